//! The volume of one thread, with the latency of flushes and prefetches. They concern all shards, so no shard can
//! measure them.

use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::rc::Rc;

use flaz_device::Env;
use flaz_engine::stats::{Latencies, Latency};
use flaz_engine::volume::{IoError, Segments, StatusExtent, Volume};
use flaz_runtime::Rt;

/// A volume that measures its flushes and prefetches. Clones share their counts.
#[derive(Clone)]
pub struct Timed<V> {
    volume: V,
    latencies: Rc<RefCell<Latencies>>,
}

impl<V: Volume> Timed<V> {
    /// Measures `volume`, and adds to the counts in `latencies`.
    pub(crate) fn new(volume: V, latencies: Rc<RefCell<Latencies>>) -> Self {
        Self { volume, latencies }
    }

    async fn time<T>(
        &self,
        of: fn(&mut Latencies) -> &mut Latency,
        operation: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        let started = Rt.now();
        let output = operation.await;
        of(&mut self.latencies.borrow_mut()).record(Rt.now().since(started));
        output
    }
}

impl<V: Volume> Volume for Timed<V> {
    fn size(&self) -> u64 {
        self.volume.size()
    }

    async fn read(&self, offset: u64, len: u32) -> Result<Segments, IoError> {
        self.volume.read(offset, len).await
    }

    async fn write(&self, offset: u64, data: Segments, fua: bool) -> Result<(), IoError> {
        self.volume.write(offset, data, fua).await
    }

    async fn flush(&self) -> Result<(), IoError> {
        let flush = pin!(self.volume.flush());
        self.time(|all| &mut all.flush, flush).await
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), IoError> {
        self.volume.trim(offset, len, fua).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool, fua: bool) -> Result<(), IoError> {
        self.volume.write_zeroes(offset, len, may_unmap, fua).await
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let prefetch = pin!(self.volume.prefetch(offset, len));
        self.time(|all| &mut all.prefetch, prefetch).await
    }

    async fn block_status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<StatusExtent>, IoError> {
        self.volume.block_status(offset, len, extents_max).await
    }
}
