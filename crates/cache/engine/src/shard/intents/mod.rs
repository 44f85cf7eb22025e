//! Intents: which stripes may have a write on its way to the origin, kept on the cache device.
//!
//! **What a crash leaves.** A write that the origin has and the log does not know of would make the cached copy stale
//! for ever. The rule: *before a write to a stripe goes to the origin, the stripe's bit is set, and stable; recovery
//! drops the cached blocks of set stripes.* A bit is cleared when nothing of the stripe can come out differently
//! any more: its writes have been answered, the origin has been flushed since, and the log's records that make older
//! copies void are stable.
//!
//! Setting is what writers wait for: one task writes all wishes that came while the last write was on its way.
//! Clearing is done in rounds, for stripes that were left alone for a while. That a bit is clear says something of the
//! origin, too, where it is watched: see [`watch`](super::watch).

mod bits;
mod clearing;
mod loading;
mod setting;
mod widening;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use flaz_device::local::{Notify, Permit, Semaphore};
use flaz_device::{Device, IoBuf, Nanos};
use zerocopy::IntoBytes;

use self::bits::Bits;
use self::widening::Widening;
use crate::format::geometry::{Geometry, PAGE_BYTES};
use crate::format::intent::{INTENT_STRIPES, IntentSector};
use crate::units::{BlockNumber, LocalBlock, STRIPE_BLOCKS};
use crate::volume::STRIPE_BYTES;

/// The intents of one shard.
#[derive(Debug)]
pub(super) struct IntentBitmap {
    bits: RefCell<Bits>,
    widening: Widening,
    /// Stripes that writers wait for. Bounded by the writers in flight.
    wanted: RefCell<Vec<u64>>,
    /// Writes of clients that wait or are in flight; others are those of writeback.
    clients: Cell<u32>,
    /// Until then the host is not asked again to note what the origin begins with.
    note_again: Cell<Nanos>,
    /// One writer of pages at a time.
    pages: Semaphore,
    /// Work for the task that sets; after a failure, a writer for the one that tells of the fence.
    wishes: Notify,
    /// Something was set; the cache device was fenced; the shard stops.
    changed: Notify,
}

impl IntentBitmap {
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self {
            bits: RefCell::new(Bits::new(geometry.local_stripes())),
            widening: Widening::new(),
            wanted: RefCell::new(Vec::new()),
            clients: Cell::new(0),
            note_again: Cell::new(Nanos(0)),
            pages: Semaphore::new(1),
            wishes: Notify::new(),
            changed: Notify::new(),
        }
    }

    /// Whether a write of a client waits or is in flight.
    pub(super) fn writing(&self) -> bool {
        self.clients.get() > 0
    }

    /// Waits until a writer wants something of a fenced cache device, or the shard stops.
    pub(super) async fn wanted(&self) {
        self.wishes.notified().await;
    }

    /// Stripes whose bit is set.
    pub(super) fn set_count(&self) -> u64 {
        self.bits.borrow().set_count()
    }

    /// The stripes whose bit is set, in order.
    pub(super) fn set_stripes(&self) -> Vec<u64> {
        self.bits.borrow().all_set().collect()
    }

    pub(super) fn is_set(&self, block: LocalBlock) -> bool {
        self.bits.borrow().is_set(block.0 / STRIPE_BLOCKS)
    }

    /// Wakes both tasks, for the shard stops.
    pub(super) fn wake(&self) {
        self.wishes.notify_all();
        self.changed.notify_all();
    }

    /// Lets those that wait for a change look again: what they may do after the cache device was fenced has changed.
    pub(super) fn recheck(&self) {
        self.changed.notify_all();
    }

    /// Waits until something was set, or [`Self::recheck`] or [`Self::wake`] is called.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// A write to a stripe begins: from now on its bit is not cleared.
    fn enter(&self, stripe: u64, of_client: bool) -> Intent<'_> {
        self.bits.borrow_mut().write_begins(stripe);
        self.clients.set(self.clients.get() + u32::from(of_client));
        Intent {
            intents: self,
            stripe,
            of_client,
        }
    }

    /// Becomes the writer of pages.
    async fn pages(&self) -> Permit<'_> {
        self.pages.acquire(1).await
    }

    /// A page of sectors, with the bits that are set and those of `also`, which ascends.
    fn page(&self, page: u64, epoch: u32, also: &[u64], shard_sectors: u64) -> IoBuf {
        let sectors = PAGE_BYTES as u64 / 512;
        let mut buf = IoBuf::zeroed(PAGE_BYTES);
        assert!(also.is_sorted(), "they ascend");
        let bits = self.bits.borrow();
        for (i, place) in buf.chunks_exact_mut(512).enumerate() {
            let within = page * sectors + i as u64;
            let mut sector = IntentSector::clear((shard_sectors + within) as u32, epoch);
            let range = within * INTENT_STRIPES..((within + 1) * INTENT_STRIPES).min(bits.stripes());
            if !range.is_empty() {
                let set = bits.set_within(range.clone());
                set.for_each(|stripe| sector.set(stripe - range.start));
            }
            let first = also.partition_point(|stripe| *stripe < range.start);
            for stripe in also[first..].iter().take_while(|stripe| **stripe < range.end) {
                sector.set(stripe - range.start);
            }
            sector.seal();
            place.copy_from_slice(sector.as_bytes());
        }
        buf
    }
}

/// Whether the intent of one of these stripes, by their numbers on the origin, is set on a cache that is not served. A
/// sector that cannot be read, or does not check, counts as set. (Behind what the cache serves of its origin nobody writes
/// through it.)
pub(crate) async fn any_intent<C: Device>(cache: &C, geometry: &Geometry, stripes: &BTreeSet<u64>) -> bool {
    let served = geometry.origin_len.div_ceil(STRIPE_BYTES);
    for &stripe in stripes.range(..served) {
        let (shard, block) = BlockNumber(stripe * STRIPE_BLOCKS).in_shard(geometry.shard_count);
        let local = block.0 / STRIPE_BLOCKS;
        let (page, within) = (
            page_of(local),
            (local / INTENT_STRIPES) as usize * 512 % PAGE_BYTES,
        );
        let position = geometry.shard_intent_offset(shard) + page * PAGE_BYTES as u64;
        let (buf, result) = cache.read_at(position, IoBuf::new(PAGE_BYTES)).await;
        let number = geometry.shard_intent_len() / 512 * u64::from(shard) + local / INTENT_STRIPES;
        let sector = buf[within..within + 512].try_into().expect("512 bytes");
        let clear = result.is_ok()
            && IntentSector::parse(sector, number as u32)
                .is_ok_and(|sector| !sector.has(local % INTENT_STRIPES));
        if !clear {
            return true;
        }
    }
    false
}

fn page_of(stripe: u64) -> u64 {
    stripe / INTENT_STRIPES / (PAGE_BYTES as u64 / 512)
}

/// A write in flight, as far as intents are concerned.
#[derive(Debug)]
pub(super) struct Intent<'a> {
    intents: &'a IntentBitmap,
    stripe: u64,
    of_client: bool,
}

impl Drop for Intent<'_> {
    fn drop(&mut self) {
        self.intents.bits.borrow_mut().write_ends(self.stripe);
        let clients = &self.intents.clients;
        assert!(clients.get() >= u32::from(self.of_client), "counted in pairs");
        clients.set(clients.get() - u32::from(self.of_client));
    }
}
