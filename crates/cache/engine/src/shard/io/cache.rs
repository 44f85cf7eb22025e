//! The cache device of a shard.
//!
//! Invariants:
//! - Once the device is fenced, nothing is written to it except the fence mark, and extents to which dirty blocks had
//!   already been moved. Nothing is discarded.
//! - A flush succeeds only if no flush of the device, by any shard, has failed since the first write that it covers.
//! - A fence is never lifted.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::deadline::is_timeout;
use flaz_device::{Device, DeviceError, DeviceOp, Env, IoBuf};
use futures_util::future::{Either, select};

use super::{OriginWrites, timed};
use crate::format::geometry::Geometry;
use crate::format::layout::Layout;
use crate::host_record::HostRecords;
use crate::shard::platform::Platform;
use crate::stats::{Stats, count};
use crate::units::{Location, UNIT_BYTES};

/// Failed operations of the cache device after which it is fenced.
pub const CACHE_ERRORS_MAX: u64 = 8;
/// One in this many reads of the cache device is timed: reads are the hit path, and reading the clock takes time.
const CACHE_READ_SAMPLE: u64 = 16;

/// Time limit for recording in the host record that a cache is fenced.
const HOST_WITHIN: Duration = Duration::from_secs(10);

/// Whether the device is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fence {
    /// In use.
    Open,
    /// No longer in use.
    Fenced {
        /// The fence mark is being written to the device.
        marking: bool,
        /// A later start will not trust the device's contents, or there is no way to ensure that.
        settled: bool,
    },
}

/// An operation was refused because the device is fenced.
#[derive(Debug, thiserror::Error)]
#[error("the cache device is fenced")]
struct Refused;

/// See the module's documentation.
pub(in crate::shard) struct CacheIo<P: Platform> {
    device: Rc<P::Cache>,
    env: P::Env,
    stats: Rc<Stats>,
    shared: OriginWrites,
    layout: Layout,
    shard: u32,
    fence: Cell<Fence>,
    /// Where the host records that the cache is fenced, if it keeps records.
    host: Option<Rc<dyn HostRecords>>,
}

impl<P: Platform> CacheIo<P> {
    pub(in crate::shard) fn new(
        device: Rc<P::Cache>,
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
            layout: geometry.layout,
            shard,
            fence: Cell::new(Fence::Open),
            host,
        }
    }

    /// Whether a write with FUA is stable even if other flushes fail.
    pub(in crate::shard) fn fua_stands_alone(&self) -> bool {
        self.device.fua_stands_alone()
    }

    /// Whether the device has a volatile write cache.
    pub(in crate::shard) fn has_volatile_cache(&self) -> bool {
        self.device.has_volatile_cache()
    }

    // Health.

    /// Whether the device is fenced.
    pub(in crate::shard) fn is_fenced(&self) -> bool {
        self.fence.get() != Fence::Open
    }

    /// Fences the device. False: it was fenced before. The caller writes the fence mark next, and then calls
    /// [`CacheIo::marking_ended`].
    pub(in crate::shard) fn fence(&self) -> bool {
        let first = !self.is_fenced();
        if first {
            self.fence.set(Fence::Fenced {
                marking: true,
                settled: false,
            });
        }
        first
    }

    /// Whether the fence mark is being written to the device.
    pub(in crate::shard) fn is_marking(&self) -> bool {
        matches!(self.fence.get(), Fence::Fenced { marking: true, .. })
    }

    /// The fence mark has been written, or cannot be.
    pub(in crate::shard) fn marking_ended(&self) {
        assert!(self.is_fenced(), "a device in use is not marked");
        if let Fence::Fenced { settled, .. } = self.fence.get() {
            self.fence.set(Fence::Fenced {
                marking: false,
                settled,
            });
        }
    }

    /// Whether the contents of the fenced device will not be trusted, or neither device nor host record took the mark:
    /// writes may go to the origin alone.
    pub(in crate::shard) fn is_settled(&self) -> bool {
        matches!(self.fence.get(), Fence::Fenced { settled: true, .. })
    }

    pub(in crate::shard) fn settle(&self) {
        assert!(self.is_fenced(), "a device in use is not settled");
        if let Fence::Fenced { marking, .. } = self.fence.get() {
            self.fence.set(Fence::Fenced {
                marking,
                settled: true,
            });
        }
    }

    /// Counts an error of the device. Returns the reason to fence it, if there is one: too many errors, or a timeout.
    pub(in crate::shard) fn note_error(&self, error: &DeviceError) -> Option<String> {
        let counters = &self.stats.counters;
        count(&counters.cache_errors, 1);
        count(
            &counters.cache_write_errors,
            u64::from(error.op != DeviceOp::Read),
        );
        if is_timeout(error) {
            Some("an operation timed out".to_owned())
        } else if counters.cache_errors.get() >= CACHE_ERRORS_MAX {
            Some(format!("{CACHE_ERRORS_MAX} operations failed"))
        } else {
            None
        }
    }

    /// Records on the host that the cache is fenced. False: not recorded in time.
    pub(in crate::shard) async fn tell_host(&self) -> bool {
        let Some(host) = &self.host else {
            return false;
        };
        let late = pin!(self.env.sleep(HOST_WITHIN));
        match select(host.note_fenced(), late).await {
            Either::Left((noted, _)) => noted,
            Either::Right(_) => false,
        }
    }

    /// Whether the host keeps records.
    pub(in crate::shard) fn has_host(&self) -> bool {
        self.host.is_some()
    }

    /// Whether an operation was refused because the device is fenced: such an error does not count against the device.
    pub(in crate::shard) fn was_refused(error: &DeviceError) -> bool {
        error
            .source
            .get_ref()
            .is_some_and(|source| source.is::<Refused>())
    }

    /// Whether space could not be given back because another process changes the pool: nothing was done.
    pub(in crate::shard) fn is_busy(error: &DeviceError) -> bool {
        error.source.kind() == io::ErrorKind::ResourceBusy
    }

    fn refused(&self, op: DeviceOp, position: u64, len: u64) -> Result<(), DeviceError> {
        match self.is_fenced() {
            true => Err(DeviceError::new(op, position, len, io::Error::other(Refused))),
            false => Ok(()),
        }
    }

    // Reading.

    /// Time and tasks.
    pub(in crate::shard) fn env(&self) -> &P::Env {
        &self.env
    }

    fn page_position(&self, slot: u32, bytes: usize) -> u64 {
        self.layout.shard_index_offset(self.shard) + u64::from(slot) * bytes as u64
    }

    /// Reads a page of the index, of `bytes` bytes, and its changes: all slots from one to the other.
    ///
    /// # Errors
    /// The device's, counted as a failed read.
    pub(in crate::shard) async fn read_page(
        &self,
        slots: Range<u32>,
        bytes: usize,
    ) -> Result<IoBuf, DeviceError> {
        count(&self.stats.counters.index_page_reads, 1);
        self.read_pages(slots, bytes).await
    }

    /// Reads consecutive slots of `bytes` bytes each during a start. Does not count as a page read of a lookup.
    ///
    /// # Errors
    /// The device's, counted as a failed read.
    pub(in crate::shard) async fn read_pages(
        &self,
        slots: Range<u32>,
        bytes: usize,
    ) -> Result<IoBuf, DeviceError> {
        let (counters, len) = (&self.stats.counters, slots.len() * bytes);
        count(&counters.cache_reads, 1);
        count(&counters.cache_read_bytes, len as u64);
        let position = self.page_position(slots.start, bytes);
        let (buf, result) = self.device.read_at(position, IoBuf::new(len)).await;
        count(&counters.cache_read_errors, u64::from(result.is_err()));
        result.map(|()| buf)
    }

    /// Reads the space of a dictionary, during a start.
    ///
    /// # Errors
    /// The device's.
    pub(in crate::shard) async fn read_dictionary(&self, number: u8) -> Result<IoBuf, DeviceError> {
        let buf = IoBuf::new(self.layout.dictionary_bytes as usize);
        let position = self.layout.dictionary_offset(self.shard, number);
        let (buf, result) = self.device.read_at(position, buf).await;
        result.map(|()| buf)
    }

    /// Writes a part of a dictionary, in whole sectors, to its space.
    ///
    /// # Errors
    /// The device's, or it is fenced.
    pub(in crate::shard) async fn write_dictionary(
        &self,
        number: u8,
        offset: usize,
        part: &[u8],
    ) -> Result<(), DeviceError> {
        assert!(
            offset + part.len() <= self.layout.dictionary_bytes as usize,
            "it fits"
        );
        let position = self.layout.dictionary_offset(self.shard, number) + offset as u64;
        self.write_at(position, IoBuf::copy_of(part)).await
    }

    /// The device itself, for reading structures of the format.
    pub(in crate::shard) fn device(&self) -> &P::Cache {
        &self.device
    }

    /// Reads the sectors that cover `len` bytes at `offset` of the shard's regions, and returns where those bytes begin in the
    /// buffer. They lie in one region.
    ///
    /// # Errors
    /// The device's, counted as a failed read.
    pub(in crate::shard) async fn read(&self, offset: u64, len: u64) -> Result<(IoBuf, usize), DeviceError> {
        let last = Location(offset.saturating_add(len).saturating_sub(1) / UNIT_BYTES);
        let region = self.layout.region_of(Location(offset / UNIT_BYTES));
        assert!(
            region == self.layout.region_of(last) && region < self.layout.regions_max,
            "it lies in one region"
        );
        let align = u64::from(self.device.alignment());
        let start = offset / align * align;
        let end = (offset + len).next_multiple_of(align);
        let buf = IoBuf::new((end - start) as usize);
        let position = self.layout.position(self.shard, Location::at(start));
        let counters = &self.stats.counters;
        let is_sample = counters.cache_reads.get().is_multiple_of(CACHE_READ_SAMPLE);
        count(&counters.cache_reads, 1);
        count(&counters.cache_read_bytes, end - start);
        let (buf, result) = if is_sample {
            let read = pin!(self.device.read_at(position, buf));
            timed(
                &self.env,
                &self.stats,
                |latencies| &mut latencies.cache_read,
                read,
            )
            .await
        } else {
            self.device.read_at(position, buf).await
        };
        count(&counters.cache_read_errors, u64::from(result.is_err()));
        result.map(|()| (buf, (offset - start) as usize))
    }

    // Writing.

    /// Writes an extent, a summary, a sector of the manifest or a page of intents. Bytes are counted once the write
    /// succeeds.
    pub(in crate::shard) async fn write(
        &self,
        position: u64,
        buf: IoBuf,
        fua: bool,
    ) -> (IoBuf, Result<(), DeviceError>) {
        match self.refused(DeviceOp::Write, position, buf.len() as u64) {
            Ok(()) => self.write_fenced(position, buf, fua).await,
            refused => (buf, refused),
        }
    }

    /// The same, even if the device is fenced: for the fence mark, and for extents to which dirty blocks had been moved.
    pub(in crate::shard) async fn write_fenced(
        &self,
        position: u64,
        buf: IoBuf,
        fua: bool,
    ) -> (IoBuf, Result<(), DeviceError>) {
        let len = buf.len() as u64;
        assert!(len > 0, "something is written");
        count(&self.stats.counters.cache_writes, 1);
        let write = pin!(self.device.write_at(position, buf, fua));
        let (buf, result) = timed(
            &self.env,
            &self.stats,
            |latencies| &mut latencies.cache_write,
            write,
        )
        .await;
        if result.is_ok() {
            count(&self.stats.counters.cache_write_bytes, len);
        }
        self.note_space(&result);
        (buf, result)
    }

    /// Whether an operation failed for want of space.
    pub(in crate::shard) fn is_no_space(error: &DeviceError) -> bool {
        matches!(
            error.source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }

    /// Counts a write that found no space.
    fn note_space(&self, result: &Result<(), DeviceError>) {
        if let Err(error) = result
            && Self::is_no_space(error)
        {
            count(&self.stats.counters.cache_no_space, 1);
        }
    }

    /// Whether a write found no space.
    pub(in crate::shard) fn found_no_space(&self) -> bool {
        self.stats.counters.cache_no_space.get() > 0
    }

    /// Writes structures that belong to no client: summaries of regions that recovery closes, index images. Only bytes are
    /// counted.
    ///
    /// # Errors
    /// The device's, or it is fenced.
    pub(in crate::shard) async fn write_at(&self, position: u64, buf: IoBuf) -> Result<(), DeviceError> {
        assert!(!buf.is_empty(), "something is written");
        self.refused(DeviceOp::Write, position, buf.len() as u64)?;
        let len = buf.len() as u64;
        let (_, result) = self.device.write_at(position, buf, false).await;
        if result.is_ok() {
            count(&self.stats.counters.cache_write_bytes, len);
        }
        self.note_space(&result);
        result
    }

    /// Writes a page of the index.
    ///
    /// # Errors
    /// The device's, or it is fenced.
    pub(in crate::shard) async fn write_page(&self, slot: u32, page: &[u8]) -> Result<(), DeviceError> {
        let position = self.page_position(slot, page.len());
        self.write_at(position, IoBuf::copy_of(page)).await?;
        count(&self.stats.counters.index_page_writes, 1);
        Ok(())
    }

    /// Writes pages of a sorted run to consecutive slots of `bytes` bytes each. Does not count as a write of index pages.
    ///
    /// # Errors
    /// The device's, or it is fenced.
    pub(in crate::shard) async fn write_pages(
        &self,
        first_slot: u32,
        bytes: usize,
        pages: &[u8],
    ) -> Result<(), DeviceError> {
        let position = self.page_position(first_slot, bytes);
        self.write_at(position, IoBuf::copy_of(pages)).await
    }

    /// Whether writes to ranges that were never written may find no space.
    pub(in crate::shard) fn is_sparse(&self) -> bool {
        self.device.is_sparse()
    }

    /// Whether other users may take the space that this cache does not have: that there is none is ordinary then.
    pub(in crate::shard) fn shares_space(&self) -> bool {
        self.device.shares_space()
    }

    /// Whether a range is known to have its space.
    pub(in crate::shard) fn has_space(&self, position: u64, len: u64) -> bool {
        self.device.has_space(position, len)
    }

    /// Gives the space of a region back. From now on its bytes may be those of another cache. Nothing of this one is there any more:
    /// see `shard::space`.
    ///
    /// # Errors
    /// The device's, or it is fenced: the region has its space or not.
    pub(in crate::shard) async fn deallocate(&self, position: u64, len: u64) -> Result<(), DeviceError> {
        assert!(self.shares_space(), "others can use it");
        self.refused(DeviceOp::Discard, position, len)?;
        self.device.deallocate(position, len).await
    }

    /// Allocates the space of a range.
    ///
    /// # Errors
    /// The device's, such as no space, or it is fenced.
    pub(in crate::shard) async fn allocate(&self, position: u64, len: u64) -> Result<(), DeviceError> {
        self.refused(DeviceOp::Write, position, len)?;
        self.device.allocate(position, len).await
    }

    /// Discards a range.
    ///
    /// # Errors
    /// The device's, or it is fenced.
    pub(in crate::shard) async fn discard(&self, position: u64, len: u64) -> Result<(), DeviceError> {
        let region = (position - self.layout.data_offset()) / len;
        let owner = region % u64::from(self.layout.shard_count);
        assert!(
            len == self.layout.region_bytes && owner == u64::from(self.shard),
            "a region of the shard is discarded"
        );
        self.refused(DeviceOp::Discard, position, len)?;
        self.device.discard(position, len).await
    }

    // Making stable.

    /// Makes everything that has landed stable.
    ///
    /// # Errors
    /// This flush failed, or another flush of the cache device did, by any shard. It is then unknown what is stable, and a
    /// repeated flush may succeed although data is lost. The device must be fenced.
    pub(in crate::shard) async fn flush(&self) -> Result<(), DeviceError> {
        self.shared.cache_flushed(&self.env, self.device.flush()).await
    }

    /// Number of failed flushes of the device, by all shards.
    pub(in crate::shard) fn flush_failures(&self) -> u64 {
        self.shared.cache_flushes().failures()
    }

    /// Makes stable everything written since the number of failed flushes was `failures`, regardless of data lost before.
    ///
    /// # Errors
    /// This flush failed, or another one has failed since.
    pub(in crate::shard) async fn flush_since(&self, failures: u64) -> Result<(), DeviceError> {
        let flush = self.device.flush();
        self.shared.cache_flushed_since(&self.env, failures, flush).await
    }

    /// Awaits a write that is stable on return. On some devices it uses a flush; then this write and all other flushes
    /// depend on each other's success.
    ///
    /// # Errors
    /// The write failed, or a flush that it depends on did.
    pub(in crate::shard) async fn stable(
        &self,
        write: impl Future<Output = Result<(), DeviceError>>,
    ) -> Result<(), DeviceError> {
        match self.device.fua_stands_alone() {
            true => self.shared.cache_flushes().run(write).await,
            false => self.shared.cache_flushed(&self.env, write).await,
        }
    }
}
