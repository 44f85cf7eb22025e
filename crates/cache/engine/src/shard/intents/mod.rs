//! Intents: a bitmap on the cache device of the stripes that may have a write in flight to the origin.
//!
//! **Crashes.** A write that reached the origin, but not the log, would leave a stale cached copy for ever. The rule: *before
//! a write to a stripe goes to the origin, the stripe's bit is set and stable; recovery drops the cached blocks of set
//! stripes.* A bit is cleared when a crash can no longer make a difference: the writes of the stripe are complete, the origin
//! has been flushed since, and the records that make older copies stale are stable.
//!
//! Writers wait until a bit is set: one task combines all requests that arrived during its last write. Bits are cleared in
//! rounds, for stripes that were not written for a while. For a watched origin, a clear bit also means that the recorded
//! fingerprint is valid: see [`watch`](super::io::watch).

mod bits;
mod clearing;
mod loading;
mod pages;
mod reader;
mod setting;
mod widening;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use flaz_device::local::{Notify, Permit, Semaphore};
use flaz_device::{Device, IoBuf, Nanos};
use zerocopy::IntoBytes;

use self::bits::Bits;
pub(crate) use self::reader::IntentReader;
use self::widening::Widening;
use crate::format::geometry::{Geometry, PAGE_BYTES};
use crate::format::intent::{INTENT_STRIPES, IntentSector};
use crate::format::layout::Layout;
use crate::units::{BlockNumber, LocalBlock, STRIPE_BLOCKS};
use crate::volume::STRIPE_BYTES;

/// The intents of one shard.
#[derive(Debug)]
pub(super) struct IntentBitmap {
    bits: RefCell<Bits>,
    widening: Widening,
    /// Stripes that writers wait for. Bounded by the writes in flight.
    wanted: RefCell<Vec<u64>>,
    /// Client writes that wait or are in flight; writeback is not counted.
    clients: Cell<u32>,
    /// Until then the host is not asked to record the fingerprint again.
    note_again: Cell<Nanos>,
    /// Permits one writer of pages.
    pages: Semaphore,
    /// Wakes the task that sets bits or, after a fence, the task that writes the fence mark.
    wishes: Notify,
    /// Bits were set, the cache device was fenced, or the shard stops.
    changed: Notify,
}

impl IntentBitmap {
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            bits: RefCell::new(Bits::new(layout.local_stripes())),
            widening: Widening::new(),
            wanted: RefCell::new(Vec::new()),
            clients: Cell::new(0),
            note_again: Cell::new(Nanos(0)),
            pages: Semaphore::new(1),
            wishes: Notify::new(),
            changed: Notify::new(),
        }
    }

    /// Whether a client write waits or is in flight.
    pub(super) fn writing(&self) -> bool {
        self.clients.get() > 0
    }

    /// Waits until a writer waits for a fenced cache device, or the shard stops.
    pub(super) async fn wanted(&self) {
        self.wishes.notified().await;
    }

    /// Stripes whose bit is set.
    pub(super) fn set_count(&self) -> u64 {
        self.bits.borrow().set_count()
    }

    /// Bytes of memory that grow with the part of the origin that was written.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bits.borrow().memory_bytes()
    }

    /// The stripes whose bit is set, in order.
    pub(super) fn set_stripes(&self) -> Vec<u64> {
        self.bits.borrow().all_set().collect()
    }

    pub(super) fn is_set(&self, block: LocalBlock) -> bool {
        self.bits.borrow().is_set(block.0 / STRIPE_BLOCKS)
    }

    /// The intent of a block's stripe counts as set from now on. Returns its page, for [`Shard::write_assumed`](super::Shard).
    pub(super) fn assume_set(&self, block: LocalBlock) -> u64 {
        let stripe = block.0 / STRIPE_BLOCKS;
        self.bits.borrow_mut().set(stripe);
        page_of(stripe)
    }

    /// Wakes both tasks because the shard stops.
    pub(super) fn wake(&self) {
        self.wishes.notify_all();
        self.changed.notify_all();
    }

    /// Wakes waiting writers: the state of the fence has changed.
    pub(super) fn recheck(&self) {
        self.changed.notify_all();
    }

    /// Waits until bits were set, or [`Self::recheck`] or [`Self::wake`] is called.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Registers a write to a stripe: its bit is not cleared while the write is in flight.
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

    /// A page of sectors with the set bits and those in `also` (ascending).
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

/// Whether the intent of one of these stripes (by number on the origin) is set on a cache that is not served. An unreadable
/// sector or a wrong checksum counts as set. Stripes beyond the served part of the origin have no intents.
pub(crate) async fn any_intent<C: Device>(cache: &C, geometry: &Geometry, stripes: &BTreeSet<u64>) -> bool {
    let served = geometry.origin_len.div_ceil(STRIPE_BYTES);
    for &stripe in stripes.range(..served) {
        let (shard, block) = BlockNumber(stripe * STRIPE_BLOCKS).in_shard(geometry.shard_count);
        let local = block.0 / STRIPE_BLOCKS;
        let page = page_of(local);
        let read = IntentReader::new(cache, geometry, shard)
            .read(page..page + 1)
            .await;
        if read.is_err() || read.is_ok_and(|pages| pages[0].sector_of(local).has(local)) {
            return true;
        }
    }
    false
}

fn page_of(stripe: u64) -> u64 {
    stripe / INTENT_STRIPES / (PAGE_BYTES as u64 / 512)
}

/// Registers a write in flight until dropped.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::GeometryOptions;

    fn bitmap() -> IntentBitmap {
        let options = GeometryOptions {
            shard_count: Some(1),
            ..GeometryOptions::default()
        };
        IntentBitmap::new(&Geometry::plan(64 << 20, 512, 64 << 30, options).expect("fits"))
    }

    #[test]
    fn a_bit_is_not_cleared_while_a_write_is_in_flight() {
        let intents = bitmap();
        intents.bits.borrow_mut().set(3);
        let (first, second) = (intents.enter(3, true), intents.enter(3, false));
        drop(first);
        assert!(!intents.writing(), "writeback is not counted");
        assert!(!intents.bits.borrow_mut().clear_if_idle(3));
        drop(second);
        intents
            .bits
            .borrow_mut()
            .begin_round(crate::settings::AfterCrash::Warm);
        assert!(intents.bits.borrow_mut().clear_if_idle(3));
        assert_eq!(intents.set_count(), 0);
    }

    #[test]
    fn a_page_has_the_set_bits_and_those_about_to_be_set() {
        let intents = bitmap();
        let second_sector = INTENT_STRIPES + 5;
        intents.bits.borrow_mut().set(3);
        let page = intents.page(0, 9, &[4, second_sector], 16);
        let sector = |within: usize| {
            let bytes = page[within * 512..][..512].try_into().expect("512 bytes");
            IntentSector::parse(bytes, 16 + within as u32).expect("sealed")
        };
        let set = |within| {
            let sector = sector(within);
            (0..INTENT_STRIPES)
                .filter(move |at| sector.has(*at))
                .collect::<Vec<u64>>()
        };
        assert_eq!((set(0), set(1)), (vec![3, 4], vec![5]));
        assert_eq!(sector(0).epoch.get(), 9);
        assert!(
            !intents.is_set(LocalBlock(4 * STRIPE_BLOCKS)),
            "not before it is stable"
        );
    }

    #[test]
    #[should_panic(expected = "they ascend")]
    fn stripes_of_a_page_must_ascend() {
        let _page = bitmap().page(0, 1, &[5, 4], 0);
    }
}
