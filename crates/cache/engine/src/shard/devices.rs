//! What goes to the two devices, counted and timed.

use std::rc::Rc;

use flaz_device::deadline::is_timeout;
use flaz_device::{Device, DeviceError, Env, IoBuf};

use super::{Platform, Shard};
use crate::stats::{Latencies, Latency, count};

/// One in so many reads of the cache device is timed: it is the hit path, and a clock takes time to read.
const CACHE_READ_SAMPLE: u64 = 16;

impl<P: Platform> Shard<P> {
    /// Reads the sectors of the cache device that cover `len` bytes of this shard at `offset`, and tells where in
    /// them these begin.
    pub(super) async fn read_cache(
        self: &Rc<Self>,
        offset: u64,
        len: u64,
    ) -> Result<(IoBuf, usize), DeviceError> {
        self.read_cache_again(offset, len, false).await
    }

    /// The same. Where it is `known` that this cannot be read, that it cannot is no reason to give the device up, unless it is
    /// late: it is tried again and again.
    pub(super) async fn read_cache_again(
        self: &Rc<Self>,
        offset: u64,
        len: u64,
        known: bool,
    ) -> Result<(IoBuf, usize), DeviceError> {
        let align = u64::from(self.cache.alignment());
        let start = offset / align * align;
        let end = (offset + len)
            .next_multiple_of(align)
            .min(self.geometry.shard_len());
        let buf = IoBuf::new((end - start) as usize);
        let position = self.geometry.shard_offset(self.number) + start;
        let counters = &self.stats.counters;
        let timed = counters.cache_reads.get().is_multiple_of(CACHE_READ_SAMPLE);
        count(&counters.cache_reads, 1);
        count(&counters.cache_read_bytes, end - start);
        let (buf, result) = if timed {
            self.timed(
                |latencies| &mut latencies.cache_read,
                self.cache.read_at(position, buf),
            )
            .await
        } else {
            self.cache.read_at(position, buf).await
        };
        match result {
            Ok(()) => Ok((buf, (offset - start) as usize)),
            Err(error) => {
                count(&counters.cache_read_errors, 1);
                if !known || is_timeout(&error) {
                    self.cache_error(&error);
                }
                Err(error)
            }
        }
    }

    /// Writes to the cache device, anywhere. Bytes count as written once they are.
    pub(super) async fn write_cache(
        &self,
        position: u64,
        buf: IoBuf,
        fua: bool,
    ) -> (IoBuf, Result<(), DeviceError>) {
        let len = buf.len() as u64;
        count(&self.stats.counters.cache_writes, 1);
        let (buf, result) = self
            .timed(
                |latencies| &mut latencies.cache_write,
                self.cache.write_at(position, buf, fua),
            )
            .await;
        if result.is_ok() {
            count(&self.stats.counters.cache_write_bytes, len);
        }
        (buf, result)
    }

    /// Reads from the origin, whole sectors.
    pub(super) async fn read_origin(&self, offset: u64, buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        let counters = &self.stats.counters;
        count(&counters.origin_reads, 1);
        count(&counters.origin_read_bytes, buf.len() as u64);
        let (buf, result) = self
            .timed(
                |latencies| &mut latencies.origin_read,
                self.origin.read_at(offset, buf),
            )
            .await;
        count(&counters.origin_errors, u64::from(result.is_err()));
        count(&counters.origin_read_errors, u64::from(result.is_err()));
        (buf, result)
    }

    /// A `write` of `len` bytes to the origin, which ends when it is as stable as it should be.
    pub(super) async fn write_to_origin(
        &self,
        len: u64,
        write: impl Future<Output = Result<(), DeviceError>>,
    ) -> Result<(), DeviceError> {
        let counters = &self.stats.counters;
        count(&counters.origin_writes, 1);
        count(&counters.origin_write_bytes, len);
        let result = self.timed(|latencies| &mut latencies.origin_write, write).await;
        count(&counters.origin_errors, u64::from(result.is_err()));
        result
    }

    async fn timed<T>(
        &self,
        latency: impl FnOnce(&mut Latencies) -> &mut Latency,
        operation: impl Future<Output = T>,
    ) -> T {
        let started = self.env.now();
        let result = operation.await;
        let took = self.env.now().since(started);
        latency(&mut self.stats.latencies.borrow_mut()).record(took);
        result
    }
}
