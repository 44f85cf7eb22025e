//! A file as a device for the engine.

use std::sync::atomic::Ordering;

use flaz_device::{Device, DeviceError, DeviceOp, IoBuf};

use super::handle::FileDevice;

impl Device for FileDevice {
    fn len(&self) -> u64 {
        self.known_len()
    }

    fn alignment(&self) -> u32 {
        self.inner.alignment
    }

    fn fua_stands_alone(&self) -> bool {
        self.inner.fua_stands_alone
    }

    fn has_volatile_cache(&self) -> bool {
        self.inner.has_volatile_cache
    }

    async fn read_at(&self, offset: u64, buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        let len = buf.len() as u64;
        if let Err(error) = self.check(DeviceOp::Read, offset, len) {
            return (buf, Err(error));
        }
        let (buf, result) = self.transfer(DeviceOp::Read, offset, buf, false).await;
        (
            buf,
            result.map_err(|source| DeviceError::new(DeviceOp::Read, offset, len, source)),
        )
    }

    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        let len = buf.len() as u64;
        if let Err(error) = self.check(DeviceOp::Write, offset, len) {
            return (buf, Err(error));
        }
        let (buf, result) = self.write_range(offset, buf, fua).await;
        (
            buf,
            result.map_err(|source| DeviceError::new(DeviceOp::Write, offset, len, source)),
        )
    }

    async fn status(&self, offset: u64, len: u64, runs_max: usize) -> Result<Vec<(u64, bool)>, DeviceError> {
        let runs = self
            .status_on_thread(offset, len, runs_max)
            .await
            .map_err(|source| DeviceError::new(DeviceOp::Status, offset, len, source))?;
        Ok(runs.into_iter().map(|run| (run.len, run.hole)).collect())
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        let result = self.sync_data().await;
        // Never retried: after a failed flush the kernel may have dropped the data that it could not write, and a
        // second flush would succeed.
        result.map_err(|source| DeviceError::new(DeviceOp::Flush, 0, 0, source))
    }

    fn is_sparse(&self) -> bool {
        self.inner.is_sparse.load(Ordering::Relaxed)
    }

    async fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.check(DeviceOp::Write, offset, len)?;
        let result = self.allocate_range(offset, len).await;
        result.map_err(|source| DeviceError::new(DeviceOp::Write, offset, len, source))
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.check(DeviceOp::Discard, offset, len)?;
        let result = self.discard_range(offset, len).await;
        result.map_err(|source| DeviceError::new(DeviceOp::Discard, offset, len, source))
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), DeviceError> {
        self.check(DeviceOp::WriteZeroes, offset, len)?;
        let result = self.zero_range(offset, len, may_unmap, fua).await;
        result.map_err(|source| DeviceError::new(DeviceOp::WriteZeroes, offset, len, source))
    }
}
