//! The origin of a shard.
//!
//! Invariants:
//! - A write that is stable on return is trusted like a flush: only if no flush that it may depend on has failed.
//! - A flush that fails when no client asked for it is reported to the next client that asks for a flush.

use std::cell::Cell;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use flaz_device::deadline::is_timeout;
use flaz_device::{Device, DeviceError, DeviceOp, Env, IoBuf};

use super::mean::MeanRead;
use super::{OriginWrites, timed};
use crate::format::geometry::Geometry;
use crate::host_record::HostRecords;
use crate::shard::platform::Platform;
use crate::stats::{Stats, count};
use crate::volume::IoError;

/// See the module's documentation.
pub(in crate::shard) struct OriginIo<P: Platform> {
    device: Rc<P::Origin>,
    pub(super) env: P::Env,
    stats: Rc<Stats>,
    shared: OriginWrites,
    /// Bytes that are served.
    len: Cell<u64>,
    /// Of short reads.
    mean: MeanRead,
    /// For messages.
    pub(super) shard: u32,
    /// Where the host records the origin's fingerprint, if it does.
    pub(super) host: Option<Rc<dyn HostRecords>>,
}

impl<P: Platform> OriginIo<P> {
    pub(in crate::shard) fn new(
        device: Rc<P::Origin>,
        env: P::Env,
        stats: Rc<Stats>,
        shared: OriginWrites,
        (geometry, shard): (&Geometry, u32),
        host: Option<Rc<dyn HostRecords>>,
    ) -> Self {
        Self {
            device,
            env,
            stats,
            shared,
            len: Cell::new(geometry.origin_len),
            mean: MeanRead::default(),
            shard,
            host,
        }
    }

    /// The device itself, for reading its fingerprint.
    pub(in crate::shard) fn device(&self) -> &P::Origin {
        &self.device
    }

    /// Bytes that are served.
    pub(in crate::shard) fn len(&self) -> u64 {
        self.len.get()
    }

    /// The origin has grown: serves `len` bytes from now on.
    pub(in crate::shard) fn grow(&self, len: u64) {
        assert!(
            self.len.get() <= len && len <= self.device.len(),
            "an origin grows"
        );
        self.len.set(len);
    }

    /// The counts that all shards share.
    pub(in crate::shard) fn shared(&self) -> &OriginWrites {
        &self.shared
    }

    pub(in crate::shard) fn sector_bytes(&self) -> u64 {
        u64::from(self.device.alignment())
    }

    /// The mean time of the latest short reads, if there were enough.
    pub(in crate::shard) fn mean_read(&self) -> Option<Duration> {
        self.mean.get()
    }

    /// Reads whole sectors.
    pub(in crate::shard) async fn read(&self, offset: u64, buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        debug_assert!(!buf.is_empty(), "something is read");
        let counters = &self.stats.counters;
        count(&counters.origin_reads, 1);
        count(&counters.origin_read_bytes, buf.len() as u64);
        let (started, len) = (self.env.now(), buf.len());
        let read = pin!(self.device.read_at(offset, buf));
        let (buf, result) = timed(
            &self.env,
            &self.stats,
            |latencies| &mut latencies.origin_read,
            read,
        )
        .await;
        count(&counters.origin_read_errors, u64::from(result.is_err()));
        match &result {
            Ok(()) => self.mean.note_read(len, self.env.now().since(started)),
            Err(error) => self.note_error(error),
        }
        (buf, result)
    }

    /// Counts and logs a failed operation.
    pub(in crate::shard) fn note_error(&self, error: &DeviceError) {
        count(&self.stats.counters.origin_errors, 1);
        self.shared.log_origin_error(error);
    }

    /// Reads any range.
    ///
    /// # Errors
    /// [`IoError::Origin`].
    pub(in crate::shard) async fn read_range(&self, offset: u64, len: usize) -> Result<IoBuf, IoError> {
        let align = self.sector_bytes();
        let start = offset / align * align;
        let end = (offset + len as u64).next_multiple_of(align).min(self.len());
        assert!(offset + len as u64 <= end, "the range lies on the origin");
        let (mut buf, result) = self.read(start, IoBuf::new((end - start) as usize)).await;
        result.map_err(IoError::Origin)?;
        let skip = (offset - start) as usize;
        if skip > 0 {
            buf.copy_within(skip..skip + len, 0);
        }
        buf.set_len(len);
        Ok(buf)
    }

    /// Counts and times a `write` of `len` bytes.
    async fn counted(
        &self,
        len: u64,
        write: Pin<&mut impl Future<Output = Result<(), DeviceError>>>,
    ) -> Result<(), DeviceError> {
        let counters = &self.stats.counters;
        count(&counters.origin_writes, 1);
        count(&counters.origin_write_bytes, len);
        let result = timed(
            &self.env,
            &self.stats,
            |latencies| &mut latencies.origin_write,
            write,
        )
        .await;
        result.inspect_err(|error| self.note_error(error))
    }

    /// Writes any range, widened to the alignment by reading the sectors at the edges.
    pub(in crate::shard) async fn write(
        &self,
        offset: u64,
        data: IoBuf,
        fua: bool,
    ) -> (IoBuf, Result<(), DeviceError>) {
        let align = self.sector_bytes();
        let end = offset + data.len() as u64;
        let wide = offset / align * align..end.next_multiple_of(align);
        if wide == (offset..end) {
            let mut buf = Some(data);
            let write = self.stable_if(fua, self.device.fua_stands_alone(), async |fua| {
                let data = buf.take().unwrap_or_else(|| IoBuf::new(0));
                let (data, result) = self.device.write_at(offset, data, fua).await;
                buf = Some(data);
                result
            });
            let result = self.counted(end - offset, pin!(write)).await;
            (buf.unwrap_or_else(|| IoBuf::new(0)), result)
        } else {
            let widened = async |fua| self.write_widened(offset, &data, wide.clone(), fua).await;
            let result = self.stable_if(fua, self.device.fua_stands_alone(), widened).await;
            (data, result)
        }
    }

    async fn write_widened(
        &self,
        offset: u64,
        data: &[u8],
        wide: Range<u64>,
        fua: bool,
    ) -> Result<(), DeviceError> {
        assert!(wide.start <= offset && offset + data.len() as u64 <= wide.end);
        let align = self.sector_bytes() as usize;
        let mut buf = IoBuf::new((wide.end - wide.start) as usize);
        let len = buf.len();
        let (head, result) = self.read(wide.start, IoBuf::new(align)).await;
        result?;
        buf[..align].copy_from_slice(&head);
        if len > align {
            let (tail, result) = self.read(wide.end - align as u64, IoBuf::new(align)).await;
            result?;
            buf[len - align..].copy_from_slice(&tail);
        }
        buf[(offset - wide.start) as usize..][..data.len()].copy_from_slice(data);
        let write = async { self.device.write_at(wide.start, buf, fua).await.1 };
        self.counted(len as u64, pin!(write)).await
    }

    /// Writes dirty blocks: `data`, or zeroes if `data` is none. Whole sectors, not stable on return.
    ///
    /// # Errors
    /// The device's.
    pub(in crate::shard) async fn write_clean(
        &self,
        offset: u64,
        len: u64,
        data: Option<IoBuf>,
    ) -> Result<(), DeviceError> {
        assert!(len > 0 && data.as_ref().is_none_or(|data| data.len() as u64 == len));
        let write = async {
            match data {
                Some(data) => self.device.write_at(offset, data, false).await.1,
                None => self.device.write_zeroes(offset, len, true, false).await,
            }
        };
        self.counted(len, pin!(write)).await
    }

    /// Makes a range of whole sectors read as zeroes.
    ///
    /// # Errors
    /// The device's, or that of a flush that the write relies on.
    pub(in crate::shard) async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), DeviceError> {
        let zeroing = async |fua| self.device.write_zeroes(offset, len, may_unmap, fua).await;
        let result = self.stable_if(fua, false, zeroing).await;
        result.inspect_err(|error| self.note_error(error))
    }

    /// Discards a range of whole sectors, stable on return with `fua`.
    ///
    /// # Errors
    /// The device's, or that of a flush that the discard relies on.
    pub(in crate::shard) async fn discard(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
    ) -> Result<(), DeviceError> {
        let failures = self.flush_failures();
        let mut result = self.device.discard(offset, len).await;
        if fua && result.is_ok() {
            result = self.flush_since(failures).await;
        }
        result.inspect_err(|error| self.note_error(error))
    }

    /// A device may implement FUA as a write followed by a flush. So a FUA write is trusted like a flush: if another flush fails
    /// meanwhile, this write may be lost and only the other caller is told. A FUA write may also fail in its flush, which loses
    /// the writes of others: it is then repeated without FUA, and if that succeeds, the flush had failed. Once a write has
    /// failed by itself, the flush is issued separately. Otherwise a client that repeats an impossible write would keep the
    /// writeback worker from ever trusting a flush.
    async fn stable_if(
        &self,
        fua: bool,
        alone: bool,
        mut write: impl AsyncFnMut(bool) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let flushes = self.shared.flushes();
        if !fua {
            return write(false).await;
        }
        let failures = flushes.failures();
        if flushes.write_failed() {
            write(false).await?;
            return self.flush_since(failures).await;
        }
        // In memory of its own: other writes would move it, too.
        let stable = Box::pin(async {
            let Err(error) = write(true).await else {
                return Ok(());
            };
            let of_write = matches!(error.op, DeviceOp::Write | DeviceOp::WriteZeroes);
            // A request that has timed out may still complete.
            let again = of_write && !is_timeout(&error);
            let by_flush = again && write(false).await.is_ok();
            let op = if by_flush { DeviceOp::Flush } else { error.op };
            Err(DeviceError { op, ..error })
        });
        if alone {
            let done = flushes.run(stable).await;
            flushes.note_news(self.env.now());
            return done;
        }
        self.shared.origin_flushed(&self.env, failures, stable).await
    }

    /// Failed flushes of the origin, of all shards.
    pub(in crate::shard) fn flush_failures(&self) -> u64 {
        self.shared.flushes().failures()
    }

    /// Flushes the origin for the engine itself. Writes since there had been `failures` failures are stable on return.
    ///
    /// # Errors
    /// The flush failed, or another one failed meanwhile, which may have lost our writes.
    pub(in crate::shard) async fn flush_since(&self, failures: u64) -> Result<(), DeviceError> {
        self.shared
            .origin_flushed(&self.env, failures, self.device.flush())
            .await
    }

    /// Waits until all flushes of the origin that are in flight have ended.
    pub(in crate::shard) async fn flushes_ended(&self) {
        self.shared.flushes().overlapping(&self.env).await;
    }

    /// Keeps the failure of a flush that no client asked for, and reports it to the next client that asks for a flush: the
    /// operating system may report it only once.
    pub(in crate::shard) fn leave_untold(&self, error: DeviceError) {
        self.shared.flushes().leave_untold(error);
    }
}
