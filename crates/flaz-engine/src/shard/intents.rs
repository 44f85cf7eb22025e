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
//! notices when damage took away what was there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::deadline::is_timeout;
use flaz_device::local::{Notify, Semaphore};
use flaz_device::{Device, DeviceError, Env, IoBuf, Nanos};
use futures_util::future::{Either, select};
use zerocopy::IntoBytes;

use super::watch::Noted;
use super::{Platform, Shard};
use crate::format::geometry::{Geometry, PAGE_BYTES};
use crate::format::intent::{DurableMark, INTENT_STRIPES, IntentSector};
use crate::planted::{PlantedBug, planted};
use crate::settings::AfterCrash;
use crate::stats::count;
use crate::units::{BlockNumber, LocalBlock, STRIPE_BLOCKS, Sequence};
use crate::volume::{IoError, STRIPE_BYTES};

/// Time between two rounds of clearing: a stripe's bit stays for one to two of these after its last write.
const CLEAR_PERIOD: Duration = Duration::from_secs(5);
/// Time after a note that failed until the next.
const NOTE_PAUSE: Duration = Duration::from_secs(60);
/// Sets that follow each other faster than this are a workload that goes everywhere: then the stripes around those that
/// are wanted are set as well, twice as many each time, for it will come to them anyway.
const SETS_CLOSE: Duration = Duration::from_millis(50);
/// Close sets in a row before that begins, and most that are counted.
const CLOSE_SETS_ALONE: u32 = 16;
const CLOSE_SETS_MAX: u32 = CLOSE_SETS_ALONE + 12;
/// Most stripes that are set around a wanted one, with it: a sector.
const GROUP_MAX: u64 = INTENT_STRIPES;
/// Bytes of the bitmap read or written at a time.
const CHUNK_BYTES: u64 = 1 << 20;
/// Pages of such a part that may be unreadable.
const UNREADABLE_PAGES_MAX: u32 = 8;

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
        let words = self.words.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(at, &word)| {
            (0..64)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| at as u64 * 64 + bit)
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
    /// How many sets have followed each other closely, and when the last one was.
    close_sets: Cell<u32>,
    last_set: Cell<Nanos>,
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
    /// Work for the task that sets; after a failure, a writer for the one that disowns.
    pub(super) wishes: Notify,
    /// Something was set; the cache was given up; the shard stops.
    pub(super) changed: Notify,
    /// A round of clearing is under way.
    pub(super) clearing: Cell<bool>,
    /// A failed cache device is being told that all are set.
    pub(super) marking: Cell<bool>,
    /// What is on a failed cache device will not be believed, or nothing can be done about it.
    pub(super) disowned: Cell<bool>,
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
            generation: Cell::new(1),
            durable: Cell::new([DurableMark::default(); 2]),
            voiding: Cell::new(Sequence(0)),
            on_medium: RefCell::new(BTreeSet::new()),
            unread: Cell::new(false),
            sectors: Semaphore::new(1),
            wishes: Notify::new(),
            changed: Notify::new(),
            clearing: Cell::new(false),
            marking: Cell::new(false),
            disowned: Cell::new(false),
        }
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
            for stripe in range.clone() {
                if set.has(stripe) {
                    sector.set(stripe - range.start);
                }
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

impl<P: Platform> Shard<P> {
    /// Returns when a write to the stripe of `block` may go to the origin: its bit is stable on the cache device, or
    /// the cache device has been given up. The intent is to be dropped after the write's records are queued.
    pub(super) async fn intend(&self, block: LocalBlock) -> Intent<'_> {
        let stripe = block.0 / STRIPE_BLOCKS;
        let intents = &self.intents;
        let intent = intents.enter(stripe, true);
        let mut waited = false;
        loop {
            let ready = if self.after_crash == AfterCrash::Cold {
                true
            } else if self.failed.get() {
                intents.disowned.get()
            } else {
                intents.set.borrow().has(stripe)
            };
            if ready || planted(PlantedBug::IntentNotSet) {
                return intent;
            }
            if self.failed.get() {
                intents.wishes.notify_one();
            } else {
                let mut wanted = intents.wanted.borrow_mut();
                if !wanted.contains(&stripe) {
                    wanted.push(stripe);
                    intents.wishes.notify_one();
                }
            }
            count(&self.stats.counters.intent_waits, u64::from(!waited));
            waited = true;
            intents.changed.notified().await;
        }
    }

    /// The same for a copy that the cleaner brings to the origin. Recovery needs none there; whoever looks at a watched
    /// stripe does.
    ///
    /// # Errors
    /// The cache device fails. Once it is given up, what it says of this stripe is not known.
    pub(super) async fn intend_cleaning(
        self: &Rc<Self>,
        block: LocalBlock,
    ) -> Result<Option<Intent<'_>>, IoError> {
        let stripe = block.0 / STRIPE_BLOCKS;
        if !self.is_watched(stripe) {
            return Ok(None);
        }
        let intent = self.intents.enter(stripe, false);
        // Not by way of the task: it may have ended with the shard, which still cleans what is in its way.
        let set = || self.intents.set.borrow().has(stripe);
        if !set() && !self.failed.get() {
            if let Err(error) = self.set_intents(&[stripe]).await {
                return Err(IoError::CacheFailed(format!(
                    "an intent could not be written: {error}"
                )));
            }
            self.intents.changed.notify_all();
        }
        // In memory all are set then.
        if self.failed.get() {
            return Err(self.cache_failed());
        }
        Ok(Some(intent))
    }

    fn intent_position(&self, page: u64) -> u64 {
        self.geometry.shard_intent_offset(self.number) + page * PAGE_BYTES as u64
    }

    /// Number of this shard's first sector in the whole bitmap.
    fn first_intent_sector(&self) -> u64 {
        self.geometry.shard_intent_len() / 512 * u64::from(self.number)
    }

    /// Sets the bits that writers wait for, all that are there at a time with one write.
    pub(super) async fn intent_task(shard: Rc<Self>) {
        loop {
            let wanted = std::mem::take(&mut *shard.intents.wanted.borrow_mut());
            if shard.failed.get() || (wanted.is_empty() && shard.stopping.get()) {
                return;
            }
            if wanted.is_empty() {
                shard.intents.wishes.notified().await;
                continue;
            }
            if shard.set_intents(&wanted).await.is_err() {
                shard.give_up("an intent could not be written");
            }
            shard.intents.changed.notify_all();
        }
    }

    /// The wanted stripes, and more around them where sets follow each other closely. Groups end where sectors do.
    fn widen(&self, wanted: &[u64]) -> Vec<u64> {
        let intents = &self.intents;
        let now = self.env.now();
        let close = now.since(intents.last_set.replace(now)) < SETS_CLOSE;
        let run = if close {
            (intents.close_sets.get() + 1).min(CLOSE_SETS_MAX)
        } else {
            intents.close_sets.get() / 2
        };
        intents.close_sets.set(run);
        let group = (1 << run.saturating_sub(CLOSE_SETS_ALONE)).min(GROUP_MAX);
        let mut all: Vec<u64> = wanted
            .iter()
            .flat_map(|&stripe| {
                let sector = stripe / INTENT_STRIPES * INTENT_STRIPES;
                let start = sector + (stripe - sector) / group * group;
                start..(start + group).min(sector + INTENT_STRIPES).min(intents.stripes)
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Sets bits, and more around them, stable on return.
    ///
    /// # Errors
    /// The device's.
    async fn set_intents(self: &Rc<Self>, wanted: &[u64]) -> Result<(), DeviceError> {
        let wanted = &self.widen(wanted)[..];
        let mut pages: Vec<u64> = wanted.iter().map(|&stripe| page_of(stripe)).collect();
        pages.sort_unstable();
        pages.dedup();
        let permit = self.intents.sectors.acquire(1).await;
        for page in pages {
            if let Err(error) = self.write_intents(page, wanted, true).await {
                self.cache_error(&error);
                return Err(error);
            }
            let mut set = self.intents.set.borrow_mut();
            for &stripe in wanted.iter().filter(|&&stripe| page_of(stripe) == page) {
                set.set(stripe);
            }
        }
        drop(permit);
        Ok(())
    }

    /// Writes a page of the bitmap: what is set, and `also`. The caller holds the permit.
    async fn write_intents(&self, page: u64, also: &[u64], stable: bool) -> Result<(), DeviceError> {
        let buf = self.intents.page(
            page,
            self.epoch.0,
            &self.intents.set.borrow(),
            also,
            self.first_intent_sector(),
        );
        let marks = self.intents.durable.get().map(|mark| mark.fill);
        // From now on, for a write that fails may have landed.
        self.intents.on_medium.borrow_mut().extend(marks);
        count(&self.stats.counters.intent_writes, 1);
        let fua = stable && !planted(PlantedBug::IntentNotStable);
        let write = async { self.write_cache(self.intent_position(page), buf, fua).await.1 };
        // Some devices make a write stable by a flush: everybody relies on all of those, and it on theirs.
        let result = match stable {
            true if self.cache.fua_stands_alone() => self.origin_writes.cache_flushes().run(write).await,
            true => self.origin_writes.cache_flushed(&self.env, write).await,
            false => write.await,
        };
        if result.is_ok() && stable {
            // It is the latest.
            self.intents.unread.set(false);
            let mut on_medium = self.intents.on_medium.borrow_mut();
            on_medium.clear();
            on_medium.extend(marks);
        }
        result
    }

    /// Before a region is made void: no mark may demand that it be there. (With a younger region in its ring none does,
    /// but that one may not be there yet.)
    pub(super) async fn forget_mark(&self, fill: Sequence) -> Result<(), DeviceError> {
        let intents = &self.intents;
        intents.voiding.set(fill);
        let mut marks = intents.durable.get();
        for mark in marks.iter_mut().filter(|mark| mark.fill == fill) {
            *mark = DurableMark::default();
        }
        intents.set_durable(marks);
        if !intents.on_medium.borrow().contains(&fill) && !intents.unread.get() {
            return Ok(());
        }
        let permit = intents.sectors.acquire(1).await;
        let result = self.write_intents(0, &[], true).await;
        drop(permit);
        result
    }

    /// Clears bits, in rounds, until the shard stops.
    pub(super) async fn clear_task(shard: Rc<Self>) {
        while !shard.stopping.get() && !shard.failed.get() {
            if shard.intents.set_count() == 0 {
                shard.intents.changed.notified().await;
                continue;
            }
            {
                let pause = std::pin::pin!(shard.env.sleep(CLEAR_PERIOD));
                let mut pause = pause;
                loop {
                    let changed = std::pin::pin!(shard.intents.changed.notified());
                    match select(pause, changed).await {
                        Either::Left(_) => break,
                        Either::Right((_, rest)) => pause = rest,
                    }
                    if shard.stopping.get() || shard.failed.get() {
                        return;
                    }
                }
            }
            if shard.stopping.get() {
                return;
            }
            shard.intents.clearing.set(true);
            shard.clear_intents().await;
            shard.intents.clearing.set(false);
            shard.idle.notify_all();
        }
    }

    /// One round: the stripes that were not written since the last one, if nothing about them is open.
    pub(super) async fn clear_intents(self: &Rc<Self>) {
        let intents = &self.intents;
        let failures = self.doubt_what_a_flush_lost();
        let candidates: Vec<u64> = {
            let (set, mut written) = (intents.set.borrow(), intents.written.borrow_mut());
            let doubtful = intents.doubtful.borrow();
            let told = self.env.now() >= intents.note_again.get();
            let settled = |stripe: u64| {
                let free = !written.has(stripe) && !self.has_obsolete(stripe) && !doubtful.has(stripe);
                free && (told || !self.is_watched(stripe))
            };
            let candidates = set.iter().filter(|&stripe| settled(stripe)).collect();
            if self.after_crash == AfterCrash::Warm {
                written.clear_all();
            }
            for (stripe, _) in &*intents.in_flight.borrow() {
                written.set(*stripe);
            }
            candidates
        };
        if candidates.is_empty() {
            return;
        }
        // A block may have left a region whose reclaim has begun and been written since: until the region is void,
        // the old copy is on the medium, and nothing newer need be.
        let reclaimed = self.reclaims_ended.get();
        while self.reclaims_begun.get() > self.reclaims_ended.get() && self.reclaims_ended.get() == reclaimed
        {
            if self.failed.get() {
                return;
            }
            self.idle.notified().await;
        }
        if self.stuck.get() {
            // It ended, and the region is not void.
            return;
        }
        let ticket = self.origin_writes.watch().ticket();
        let flushed = planted(PlantedBug::IntentClearedUnflushed) || self.flush_origin(failures).await;
        let logged = planted(PlantedBug::IntentClearedBeforeLog) || self.make_log_stable().await;
        if !flushed || !logged {
            return;
        }
        let watched = candidates.iter().any(|&stripe| self.is_watched(stripe));
        let noted = watched && self.noted(ticket).await;
        let mut pages = Vec::new();
        let permit = intents.sectors.acquire(1).await;
        if self.failed.get() {
            // Every bit was set, and must stay: writes go to the origin without one from now on.
            return;
        }
        {
            let (mut set, written) = (intents.set.borrow_mut(), intents.written.borrow());
            for stripe in candidates {
                let untold = !noted && self.is_watched(stripe);
                if !written.has(stripe) && !self.has_obsolete(stripe) && !untold {
                    set.clear(stripe);
                    if pages.last() != Some(&page_of(stripe)) {
                        pages.push(page_of(stripe));
                    }
                }
            }
        }
        for page in pages {
            // Not stable, for a bit too many does no harm; not retried, for the same reason.
            if let Err(error) = self.write_intents(page, &[], false).await {
                self.cache_error(&error);
            }
        }
        drop(permit);
    }

    /// A flush of the origin that failed may have taken with it what was written since the one before, and no later one
    /// brings that back: what is set by now is never cleared in this opening. Where no intents are set, for a crash leaves
    /// nothing of the cache, a clean stop must know of what was written all the same. Returns how many failed so far.
    pub(super) fn doubt_what_a_flush_lost(&self) -> u64 {
        let intents = &self.intents;
        let failures = self.origin_writes.flushes().failures();
        if intents.failures.replace(failures) != failures {
            let touched = match self.after_crash {
                AfterCrash::Warm => intents.set.borrow(),
                AfterCrash::Cold => intents.written.borrow(),
            };
            let mut doubtful = intents.doubtful.borrow_mut();
            touched.iter().for_each(|stripe| doubtful.set(stripe));
        }
        failures
    }

    /// Whether the host has noted what the origin begins with. Where it cannot, it is not asked again for a while, and
    /// nothing is flushed for its sake.
    async fn noted(&self, ticket: u64) -> bool {
        let outcome = self.note_origin(ticket).await;
        if outcome == Noted::Failed {
            self.intents.note_again.set(self.env.now().after(NOTE_PAUSE));
        }
        outcome == Noted::Yes
    }

    fn has_obsolete(&self, stripe: u64) -> bool {
        let range = LocalBlock(stripe * STRIPE_BLOCKS)..LocalBlock((stripe + 1) * STRIPE_BLOCKS);
        self.obsolete.borrow().range(range).next().is_some()
    }

    /// Flushes the origin for our own sake. A failure is kept for the next one who asks for a flush: a system may
    /// report it only once.
    async fn flush_origin(&self, failures: u64) -> bool {
        match self.flush_origin_for(failures).await {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(shard = self.number, %error, "the origin failed a flush");
                count(&self.stats.counters.origin_errors, 1);
                *self.flush_failure.borrow_mut() = Some(error);
                false
            }
        }
    }

    /// Waits until everything appended so far is stable on the cache device. False: the device failed.
    pub(super) async fn make_log_stable(self: &Rc<Self>) -> bool {
        let (ticket, open, marks) = {
            let mut log = self.log.borrow_mut();
            log.seal_all();
            (log.last_queued(), log.open_numbers(), log.durable_marks())
        };
        let (cleaned, tombstones) = (self.cleaned_count.get(), self.tombstone_count.get());
        self.pump_writes();
        loop {
            if self.failed.get() {
                return false;
            }
            let abandoned = self.log.borrow().last_abandoned();
            // A summary is also what makes extents behind a missing one count.
            if self.log.borrow().all_written(ticket.max(abandoned)) {
                break;
            }
            self.idle.notified().await;
        }
        let landed = self.landed_writes.get();
        if let Err(error) = self.flush_cache().await {
            self.cache_error(&error);
            self.give_up("the cache device failed a flush");
            return false;
        }
        self.flushed_writes.set(self.flushed_writes.get().max(landed));
        // A region that was closed meanwhile needs its mark until its summary is stable, which the next time sees to. But
        // it may have been made void by now, or be about to be.
        let mut marks = marks;
        for (mark, region) in marks.iter_mut().zip(open) {
            let fill = region.map_or(Sequence(0), |number| self.log.borrow().regions.fill_of(number));
            if mark.fill != fill || fill == self.intents.voiding.get() {
                *mark = DurableMark::default();
            }
        }
        self.intents.set_durable(marks);
        self.cleaned.borrow_mut().retain(|_, number| *number > cleaned);
        let mut unstable = self.tombstones.borrow_mut();
        unstable.retain(|_, (_, number)| *number > tombstones);
        true
    }

    /// After a clean stop nothing is in flight: clears every bit that is set. (But for those of which a failed flush may
    /// have lost writes, and watched ones of which the host cannot be told: until the superblock says that the stop was
    /// clean, this is what a crash leaves.)
    pub(super) async fn clear_all_intents(&self) -> Result<(), DeviceError> {
        let mut watched: Vec<u64> = self.intents.set.borrow().iter().collect();
        watched.retain(|&stripe| self.is_watched(stripe));
        if !watched.is_empty() {
            let (ticket, failures) = (
                self.origin_writes.watch().ticket(),
                self.origin_writes.flushes().failures(),
            );
            if self.flush_origin_for(failures).await.is_ok() && self.noted(ticket).await {
                watched.clear();
            }
        }
        let permit = self.intents.sectors.acquire(1).await;
        if self.failed.get() {
            // Every bit was set, and must stay.
            return Ok(());
        }
        let mut pages = BTreeSet::new();
        {
            let (mut set, doubtful) = (self.intents.set.borrow_mut(), self.intents.doubtful.borrow());
            pages.extend(set.iter().chain(doubtful.iter()).map(page_of));
            set.clear_all();
            let kept = watched.into_iter().chain(doubtful.iter());
            kept.for_each(|stripe| set.set(stripe));
        }
        for page in pages {
            self.write_intents(page, &[], false).await?;
        }
        drop(permit);
        Ok(())
    }

    /// Reads the bitmap that a crash left. A sector that does not check counts as all ones. Marks of openings before a cold
    /// start name regions that nobody looks for any more; their bits count, for the flush of the origin that comes after a
    /// cold start may not have been.
    pub(super) async fn load_intents(&self) -> Result<[DurableMark; 2], DeviceError> {
        let (start, len) = (
            self.geometry.shard_intent_offset(self.number),
            self.geometry.shard_intent_len(),
        );
        let mut newest = ((0, 0), [DurableMark::default(); 2]);
        let mut generation = 0;
        let mut at = 0;
        while at < len {
            let part = CHUNK_BYTES.min(len - at);
            let buf = self.read_intents(start + at, part).await?;
            let mut set = self.intents.set.borrow_mut();
            for (i, bytes) in buf.chunks_exact(512).enumerate() {
                let within = at / 512 + i as u64;
                let number = (self.first_intent_sector() + within) as u32;
                let range =
                    within * INTENT_STRIPES..((within + 1) * INTENT_STRIPES).min(self.intents.stripes);
                let bytes = bytes.try_into().expect("chunks of 512 bytes");
                match IntentSector::parse(bytes, number) {
                    Ok(sector) => {
                        let first = range.start;
                        range
                            .filter(|stripe| sector.has(stripe - first))
                            .for_each(|stripe| set.set(stripe));
                        generation = generation.max(sector.generation.get());
                        if sector.age() >= newest.0 && sector.epoch.get() >= self.valid_from.0 {
                            newest = (sector.age(), sector.durable());
                        }
                    }
                    Err(error) => {
                        self.intents.unread.set(true);
                        if !range.is_empty() {
                            tracing::warn!(shard = self.number, sector = number, %error, "an intent sector is damaged");
                            range.for_each(|stripe| set.set(stripe));
                        }
                    }
                }
            }
            at += part;
        }
        self.intents.generation.set(generation.min(u64::MAX / 2) + 1);
        self.intents
            .on_medium
            .borrow_mut()
            .extend(newest.1.map(|mark| mark.fill));
        Ok(newest.1)
    }

    /// Reads part of the bitmap. Pages that cannot be read are zeroes, which do not check.
    ///
    /// # Errors
    /// The device's, if it answers nothing in time or more than [`UNREADABLE_PAGES_MAX`] pages cannot be read.
    async fn read_intents(&self, position: u64, len: u64) -> Result<IoBuf, DeviceError> {
        let (mut buf, result) = self.cache.read_at(position, IoBuf::new(len as usize)).await;
        if result.is_ok() {
            return Ok(buf);
        }
        let mut unreadable = 0;
        for (at, page) in buf.chunks_mut(PAGE_BYTES).enumerate() {
            let position = position + (at * PAGE_BYTES) as u64;
            let (read, result) = self.cache.read_at(position, IoBuf::new(page.len())).await;
            match result {
                Ok(()) => page.copy_from_slice(&read),
                Err(error) if is_timeout(&error) || unreadable == UNREADABLE_PAGES_MAX => {
                    return Err(error);
                }
                Err(error) => {
                    unreadable += 1;
                    count(&self.stats.counters.cache_read_errors, 1);
                    tracing::warn!(shard = self.number, %error, "a page of intents cannot be read: all of it counts as set");
                    page.fill(0);
                }
            }
        }
        Ok(buf)
    }

    /// Sets every bit of the shard: writes go to the origin without intents from now on.
    pub(super) async fn poison(&self) -> Result<(), DeviceError> {
        // A page that is being written now has bits clear: it must not land after ours.
        let permit = self.intents.sectors.acquire(1).await;
        let failures = self.origin_writes.cache_flushes().failures();
        {
            let mut set = self.intents.set.borrow_mut();
            (0..self.intents.stripes).for_each(|stripe| set.set(stripe));
        }
        let pages = self.geometry.shard_intent_len() / PAGE_BYTES as u64;
        for page in 0..pages {
            self.write_intents(page, &[], false).await?;
        }
        // Whatever failed before: these pages were written since. But another shard's that fails takes them along.
        let flush = self.cache.flush();
        let flushed = self
            .origin_writes
            .cache_flushed_since(&self.env, failures, flush)
            .await;
        drop(permit);
        flushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::GeometryWish;
    use crate::shard::simulated::{Simulated, shard};
    use flaz_sim::{DiskConfig, Sim, SimDisk};

    const CACHE_LEN: u64 = 8 << 20;
    /// Of so many pages of intents.
    const ORIGIN_LEN: u64 = 64 << 30;
    const PAGES: u64 = 3;

    fn mark(fill: u64) -> [DurableMark; 2] {
        let (fill, used) = (Sequence(fill), 512);
        [DurableMark { fill, used }, DurableMark::default()]
    }

    /// The latest page, with a mark of filling 9, is damaged while a second opening begins and does what `then` says.
    /// Which marks a third one finds, for which that page is right again.
    fn marks_after(then: impl AsyncFnOnce(Rc<Shard<Simulated>>)) -> [DurableMark; 2] {
        let sim = Sim::new(1);
        let env = sim.env();
        let cache = SimDisk::new(&env, DiskConfig::fast(CACHE_LEN));
        let wish = GeometryWish {
            shard_count: Some(1),
            ..GeometryWish::default()
        };
        let geometry = Geometry::plan(CACHE_LEN, 512, ORIGIN_LEN, wish).expect("fits");
        assert_eq!(geometry.shard_intent_len(), PAGES * PAGE_BYTES as u64);
        sim.block_on(async {
            let first = shard(&env, &cache, geometry, 1);
            let last = PAGES - 1;
            for (page, fill) in (0..PAGES).chain([last; 6]).zip(1..) {
                first.intents.set_durable(mark(fill));
                first.write_intents(page, &[], true).await.expect("it is well");
            }
            let position = first.intent_position(last);
            let right = cache.peek(position, PAGE_BYTES);
            cache.poke(position, &[0xa5; PAGE_BYTES]);
            let second = shard(&env, &cache, geometry, 2);
            assert_eq!(second.load_intents().await.expect("it can be read"), mark(2));
            then(second).await;
            cache.poke(position, &right);
            let third = shard(&env, &cache, geometry, 3);
            third.load_intents().await.expect("it can be read")
        })
    }

    #[test]
    fn a_page_that_was_damaged_for_once_does_not_overrule_those_of_later_openings() {
        let marks = marks_after(async |second| {
            second.intents.set_durable(mark(40));
            second.write_intents(0, &[], true).await.expect("it is well");
        });
        assert_eq!(marks, mark(40));
    }

    /// No mark may name a region that is about to be made void, nor may one that could not be read.
    #[test]
    fn a_mark_that_could_not_be_read_is_forgotten_like_any_other() {
        let marks = marks_after(async |second| second.forget_mark(Sequence(9)).await.expect("it is well"));
        assert_eq!(marks, [DurableMark::default(); 2]);
    }
}
