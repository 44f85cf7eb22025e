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
//!
//! The same sectors carry how much of each open region is known to be stable ([`DurableMark`]), so that recovery
//! notices when damage took away what was there. [`stable_mark`](super::stable_mark) decides when they are written for
//! that alone.

mod clearing;
mod loading;
mod setting;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use flaz_device::local::{Notify, Semaphore};
use flaz_device::{Device, IoBuf, Nanos};
use zerocopy::IntoBytes;

use crate::format::geometry::{Geometry, PAGE_BYTES};
use crate::format::intent::{DurableMark, INTENT_STRIPES, IntentSector};
use crate::units::{BlockNumber, LocalBlock, STRIPE_BLOCKS, Sequence};
use crate::volume::STRIPE_BYTES;

/// A sector's bits are whole words of a set.
const _: () = assert!(INTENT_STRIPES.is_multiple_of(64));

/// A set of stripes.
#[derive(Debug)]
struct Stripes {
    words: Box<[u64]>,
    len: usize,
}

impl Stripes {
    fn none(count: u64) -> Self {
        Self {
            words: vec![0; count.div_ceil(64) as usize].into_boxed_slice(),
            len: 0,
        }
    }

    fn has(&self, stripe: u64) -> bool {
        self.words[(stripe / 64) as usize] >> (stripe % 64) & 1 == 1
    }

    fn set(&mut self, stripe: u64) {
        self.len += usize::from(!self.has(stripe));
        self.words[(stripe / 64) as usize] |= 1 << (stripe % 64);
    }

    fn clear(&mut self, stripe: u64) {
        self.len -= usize::from(self.has(stripe));
        self.words[(stripe / 64) as usize] &= !(1 << (stripe % 64));
    }

    fn clear_all(&mut self) {
        self.words.fill(0);
        self.len = 0;
    }

    fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.within(0..self.words.len() as u64 * 64)
    }

    /// Those of a range that begins and ends where words do, or behind the last one.
    fn within(&self, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        assert!(range.start.is_multiple_of(64));
        let (first, end) = ((range.start / 64) as usize, range.end.div_ceil(64) as usize);
        let words = self.words[first..end].iter().zip(first as u64..);
        words.filter(|(word, _)| **word != 0).flat_map(|(&word, at)| {
            (0..64)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| at * 64 + bit)
        })
    }
}

/// The intents of one shard.
#[derive(Debug)]
pub(super) struct Intents {
    stripes: u64,
    /// Stripes whose bit is set on the medium, or on its way from set to clear and wanted again.
    set: RefCell<Stripes>,
    /// Stripes that writers wait for. Bounded by the writers in flight.
    wanted: RefCell<Vec<u64>>,
    /// Stripes written since the last round began; where no intents are set, since the cache was opened.
    written: RefCell<Stripes>,
    /// Stripes of which a failed flush may have lost writes.
    doubtful: RefCell<Stripes>,
    /// Failed flushes of the origin, at the last look.
    failures: Cell<u64>,
    /// Writes in flight, by stripe.
    in_flight: RefCell<Vec<(u64, u32)>>,
    /// How many of them are those of clients; the others are the cleaner's.
    clients: Cell<u32>,
    /// Until then the host is not asked again to note what the origin begins with.
    note_again: Cell<Nanos>,
    /// How many sets have followed each other closely; when the last one began, and how long it took.
    close_sets: Cell<u32>,
    last_set: Cell<Nanos>,
    last_took: Cell<Duration>,
    generation: Cell<u64>,
    durable: Cell<[DurableMark; 2]>,
    /// The filling that is being made void: no mark may name it. Regions are reclaimed one after the other.
    voiding: Cell<Sequence>,
    /// Fillings that marks on the medium may name: of the last page that is stable there, and of those written since.
    on_medium: RefCell<BTreeSet<Sequence>>,
    /// Some of what was there at the start could not be read: it may be the latest, and name any filling.
    unread: Cell<bool>,
    /// One writer of sectors at a time.
    sectors: Semaphore,
    /// Work for the task that sets; after a failure, a writer for the one that tells of the fence.
    pub(super) wishes: Notify,
    /// Something was set; the cache device was fenced; the shard stops.
    pub(super) changed: Notify,
}

impl Intents {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let stripes = geometry.local_stripes();
        Self {
            stripes,
            set: RefCell::new(Stripes::none(stripes)),
            wanted: RefCell::new(Vec::new()),
            written: RefCell::new(Stripes::none(stripes)),
            doubtful: RefCell::new(Stripes::none(stripes)),
            failures: Cell::new(0),
            in_flight: RefCell::new(Vec::new()),
            clients: Cell::new(0),
            note_again: Cell::new(Nanos(0)),
            close_sets: Cell::new(0),
            last_set: Cell::new(Nanos(0)),
            last_took: Cell::new(Duration::ZERO),
            generation: Cell::new(1),
            durable: Cell::new([DurableMark::default(); 2]),
            voiding: Cell::new(Sequence(0)),
            on_medium: RefCell::new(BTreeSet::new()),
            unread: Cell::new(false),
            sectors: Semaphore::new(1),
            wishes: Notify::new(),
            changed: Notify::new(),
        }
    }

    /// Whether a part of the bitmap could not be read, and nothing stable was written since.
    pub(super) fn unread(&self) -> bool {
        self.unread.get()
    }

    /// Whether a write of a client waits or is in flight.
    pub(super) fn writing(&self) -> bool {
        self.clients.get() > 0
    }

    /// Stripes whose bit is set.
    pub(super) fn set_count(&self) -> u64 {
        self.set.borrow().len as u64
    }

    /// The stripes whose bit is set, in order.
    pub(super) fn set_stripes(&self) -> Vec<u64> {
        self.set.borrow().iter().collect()
    }

    pub(super) fn is_set(&self, block: LocalBlock) -> bool {
        self.set.borrow().has(block.0 / STRIPE_BLOCKS)
    }

    /// Wakes both tasks, for the shard stops.
    pub(super) fn wake(&self) {
        self.wishes.notify_all();
        self.changed.notify_all();
    }

    pub(super) fn set_durable(&self, marks: [DurableMark; 2]) {
        self.durable.set(marks);
    }

    /// A write to a stripe begins: from now on its bit is not cleared.
    fn enter(&self, stripe: u64, of_client: bool) -> Intent<'_> {
        let mut in_flight = self.in_flight.borrow_mut();
        match in_flight.iter_mut().find(|(other, _)| *other == stripe) {
            Some((_, count)) => *count += 1,
            None => in_flight.push((stripe, 1)),
        }
        drop(in_flight);
        self.written.borrow_mut().set(stripe);
        self.clients.set(self.clients.get() + u32::from(of_client));
        Intent {
            intents: self,
            stripe,
            of_client,
        }
    }

    fn next_generation(&self) -> u64 {
        self.generation.set(self.generation.get() + 1);
        self.generation.get()
    }

    /// A page of sectors, with the bits of `set` and of `also`, which ascends.
    fn page(&self, page: u64, epoch: u32, set: &Stripes, also: &[u64], shard_sectors: u64) -> IoBuf {
        let sectors = PAGE_BYTES as u64 / 512;
        let mut buf = IoBuf::zeroed(PAGE_BYTES);
        let generation = self.next_generation();
        for (i, place) in buf.chunks_exact_mut(512).enumerate() {
            let within = page * sectors + i as u64;
            let number = (shard_sectors + within) as u32;
            let mut sector = IntentSector::clear(number, epoch, generation);
            sector.set_durable(self.durable.get());
            let range = within * INTENT_STRIPES..((within + 1) * INTENT_STRIPES).min(self.stripes);
            if !range.is_empty() {
                set.within(range.clone())
                    .for_each(|stripe| sector.set(stripe - range.start));
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
pub(super) struct Intent<'a> {
    intents: &'a Intents,
    stripe: u64,
    of_client: bool,
}

impl Drop for Intent<'_> {
    fn drop(&mut self) {
        let mut in_flight = self.intents.in_flight.borrow_mut();
        let at = in_flight
            .iter()
            .position(|(stripe, _)| *stripe == self.stripe)
            .expect("counted in pairs");
        in_flight[at].1 -= 1;
        if in_flight[at].1 == 0 {
            in_flight.swap_remove(at);
        }
        let clients = &self.intents.clients;
        clients.set(clients.get() - u32::from(self.of_client));
        // It ended now: what it wrote must be flushed by a later round than one that has begun.
        self.intents.written.borrow_mut().set(self.stripe);
    }
}
