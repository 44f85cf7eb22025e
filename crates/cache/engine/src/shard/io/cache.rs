//! The cache device of a shard.
//!
//! Invariants:
//! - Once the device is fenced nothing is written to it but the mark that says so, and extents that dirty blocks had been
//!   moved to by then. Nothing is discarded.
//! - A flush succeeds only if no flush of the device failed, of any shard, since the first write that it covers.
//! - A fence is never lifted.

use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::deadline::is_timeout;
use flaz_device::{Device, DeviceError, DeviceOp, Env, IoBuf};
use futures_util::future::{Either, select};

use super::{OriginWrites, timed};
use crate::format::geometry::Geometry;
use crate::host_record::HostRecords;
use crate::shard::platform::Platform;
use crate::stats::{Stats, count};

/// Failed operations of the cache device after which it is fenced.
pub const CACHE_ERRORS_MAX: u64 = 8;
/// One in so many reads of the cache device is timed: it is the hit path, and a clock takes time to read.
const CACHE_READ_SAMPLE: u64 = 16;

/// How long the host has to note that a cache is lost.
const HOST_WITHIN: Duration = Duration::from_secs(10);

/// Whether the device is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fence {
    /// It is.
    Open,
    /// Not any more.
    Fenced {
        /// The device is being told so.
        marking: bool,
        /// A later start will not trust what is on the device, or nothing can be done about it.
        settled: bool,
    },
}

/// An operation that is refused because the device is fenced.
#[derive(Debug, thiserror::Error)]
#[error("the cache device is fenced")]
struct Refused;

/// See the module's documentation.
pub(in crate::shard) struct CacheIo<P: Platform> {
    device: Rc<P::Cache>,
    env: P::Env,
    stats: Rc<Stats>,
    shared: OriginWrites,
    /// Where the shard's part of the device begins, and its length.
    start: u64,
    len: u64,
    fence: Cell<Fence>,
    /// Who is told that the cache is lost when the device cannot be, if anybody.
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
            start: geometry.shard_offset(shard),
            len: geometry.shard_len(),
            fence: Cell::new(Fence::Open),
            host,
        }
    }

    /// Whether a write with FUA is stable however other flushes end.
    pub(in crate::shard) fn fua_stands_alone(&self) -> bool {
        self.device.fua_stands_alone()
    }

    /// Whether the device keeps writes in a volatile cache until a flush.
    pub(in crate::shard) fn has_volatile_cache(&self) -> bool {
        self.device.has_volatile_cache()
    }

    // Health.

    /// Whether the device is no longer used.
    pub(in crate::shard) fn is_fenced(&self) -> bool {
        self.fence.get() != Fence::Open
    }

    /// Stops using the device. False: it was fenced before. The device is then to be told: see
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

    /// Whether the device is being told that it is fenced.
    pub(in crate::shard) fn is_marking(&self) -> bool {
        matches!(self.fence.get(), Fence::Fenced { marking: true, .. })
    }

    /// The device has been told, or cannot be.
    pub(in crate::shard) fn marking_ended(&self) {
        assert!(self.is_fenced(), "a device in use is not marked");
        if let Fence::Fenced { settled, .. } = self.fence.get() {
            self.fence.set(Fence::Fenced {
                marking: false,
                settled,
            });
        }
    }

    /// Whether what is on the fenced device will not be trusted, or nothing can be done about it: writes may go to the
    /// origin past it.
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

    /// Counts an error of the device. Why the device is to be fenced for it, if it is: after too many, or one operation that
    /// did not end in time.
    pub(in crate::shard) fn note_error(&self, error: &DeviceError) -> Option<String> {
        let counters = &self.stats.counters;
        count(&counters.cache_errors, 1);
        count(
            &counters.cache_write_errors,
            u64::from(error.op != DeviceOp::Read),
        );
        if is_timeout(error) {
            Some("it does not answer in time".to_owned())
        } else if counters.cache_errors.get() >= CACHE_ERRORS_MAX {
            Some(format!("it failed {CACHE_ERRORS_MAX} times"))
        } else {
            None
        }
    }

    /// Tells the host that the cache is lost. False: it could not be noted in time.
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

    /// Whether there is a host to tell.
    pub(in crate::shard) fn has_host(&self) -> bool {
        self.host.is_some()
    }

    /// Whether an operation was refused because the device is fenced: it says nothing of the device.
    pub(in crate::shard) fn was_refused(error: &DeviceError) -> bool {
        error
            .source
            .get_ref()
            .is_some_and(|source| source.is::<Refused>())
    }

    fn refused(&self, op: DeviceOp, position: u64, len: u64) -> Result<(), DeviceError> {
        match self.is_fenced() {
            true => Err(DeviceError::new(op, position, len, io::Error::other(Refused))),
            false => Ok(()),
        }
    }

    // Reading.

    /// The device itself, for reading structures of the format.
    pub(in crate::shard) fn device(&self) -> &P::Cache {
        &self.device
    }

    /// Reads the sectors that cover `len` bytes of the shard's part at `offset`, and tells where in them these begin.
    ///
    /// # Errors
    /// The device's, counted as a failed read.
    pub(in crate::shard) async fn read(&self, offset: u64, len: u64) -> Result<(IoBuf, usize), DeviceError> {
        assert!(offset + len <= self.len, "it lies in the part of the shard");
        let align = u64::from(self.device.alignment());
        let start = offset / align * align;
        let end = (offset + len).next_multiple_of(align).min(self.len);
        let buf = IoBuf::new((end - start) as usize);
        let position = self.start + start;
        let counters = &self.stats.counters;
        let is_sample = counters.cache_reads.get().is_multiple_of(CACHE_READ_SAMPLE);
        count(&counters.cache_reads, 1);
        count(&counters.cache_read_bytes, end - start);
        let (buf, result) = if is_sample {
            let read = self.device.read_at(position, buf);
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

    /// Writes an extent, a summary, a sector of the manifest or a page of intents. Bytes count as written once they are.
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

    /// The same, also if the device is fenced: for the mark that says so, and for extents that dirty blocks had been moved
    /// to.
    pub(in crate::shard) async fn write_fenced(
        &self,
        position: u64,
        buf: IoBuf,
        fua: bool,
    ) -> (IoBuf, Result<(), DeviceError>) {
        let len = buf.len() as u64;
        assert!(len > 0, "something is written");
        count(&self.stats.counters.cache_writes, 1);
        let write = self.device.write_at(position, buf, fua);
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
        (buf, result)
    }

    /// Writes what belongs to no client: the summaries of regions that recovery closes, index images. Nothing is counted.
    ///
    /// # Errors
    /// The device's, or it is fenced.
    pub(in crate::shard) async fn write_at(&self, position: u64, buf: IoBuf) -> Result<(), DeviceError> {
        assert!(!buf.is_empty(), "something is written");
        self.refused(DeviceOp::Write, position, buf.len() as u64)?;
        self.device.write_at(position, buf, false).await.1
    }

    /// Gives a range up.
    ///
    /// # Errors
    /// The device's, or it is fenced.
    pub(in crate::shard) async fn discard(&self, position: u64, len: u64) -> Result<(), DeviceError> {
        let part = self.start..=self.start + self.len;
        assert!(
            part.contains(&position) && part.contains(&(position + len)),
            "a region is given up"
        );
        self.refused(DeviceOp::Discard, position, len)?;
        self.device.discard(position, len).await
    }

    // Making stable.

    /// Makes what has landed stable.
    ///
    /// # Errors
    /// This flush failed, or another of the cache device did, of whichever shard: what is stable is then not known, and
    /// asking again may say yes to what is lost. The device must be fenced.
    pub(in crate::shard) async fn flush(&self) -> Result<(), DeviceError> {
        self.shared.cache_flushed(&self.env, self.device.flush()).await
    }

    /// Flushes of the device that failed, of all shards.
    pub(in crate::shard) fn flush_failures(&self) -> u64 {
        self.shared.cache_flushes().failures()
    }

    /// Makes stable what was written when so many flushes had failed, whatever was lost before.
    ///
    /// # Errors
    /// This flush failed, or another one did since.
    pub(in crate::shard) async fn flush_since(&self, failures: u64) -> Result<(), DeviceError> {
        let flush = self.device.flush();
        self.shared.cache_flushed_since(&self.env, failures, flush).await
    }

    /// Awaits a write that is stable on return. Some devices make it so by a flush: everybody relies on all of those, and it
    /// on theirs.
    ///
    /// # Errors
    /// It failed, or a flush that it relies on did.
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
