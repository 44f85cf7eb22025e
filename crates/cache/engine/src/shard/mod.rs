//! A shard: an independent part of the cache, driven by one thread, without locks.
//!
//! | module | stage |
//! |---|---|
//! | [`read`] | hits, partial hits, misses, single-flight origin reads |
//! | [`write`] | write-through, write-around, pass-through, trim, write-zeroes |
//! | [`write_back`] | writes that stay in the cache, acknowledged when they have landed there |
//! | [`clean`] | bringing dirty blocks to the origin; limits on how much is dirty |
//! | [`admit`] | storing blocks, off the caller's path |
//! | [`reclaim`] | freeing the oldest regions |
//! | [`image`], [`contents`] | the index image of a clean stop, written and read |
//! | [`intents`], [`recover`] | what makes a start after a crash warm |
//! | [`log`], [`regions`], [`fragment`] | where fragments lie, and what they look like |
//! | [`order`], [`locks`] | what keeps stale data out |
//! | [`queue`], [`origin_reads`], [`reclaimer`], [`tasks`] | what waits, what is under way |
//! | [`stable_mark`] | how far the log is stable, kept on the device for the next start |
//! | [`watch`] | noting what the origin begins with |
//! | [`failure`] | giving a cache device up |
//!
//! Invariants:
//! - An index entry of a clean block names a fragment with the bytes that the origin has, but for writes in
//!   flight; a block's entry is dropped before its write is acknowledged.
//! - An index entry of a dirty block names the latest contents. Nobody reads or writes the origin there, but the
//!   cleaner, and the entry goes only when something newer is appended or the origin has it and keeps it.
//! - Of all that the medium says about a block, the newest record dies last, or what is left says "not
//!   cached": a new version goes to the ring that holds the old one ([`Shard::ring_of_old`]), a block changes
//!   rings only at the reclaim that destroys its copy, and a block that is dropped and not stored again leaves
//!   a tombstone in its ring. A reclaim that was cut short is finished before another one begins.
//! - No `RefCell` is borrowed across an await.

mod admit;
mod clean;
mod contents;
mod counts;
mod devices;
mod failure;
mod flushes;
mod fragment;
mod image;
mod intents;
mod locks;
mod log;
mod missing;
mod order;
mod origin_reads;
mod queue;
mod read;
mod reclaim;
mod reclaimer;
mod recover;
mod regions;
mod resume;
mod scan;
mod sending;
#[cfg(test)]
mod simulated;
mod stable_mark;
mod tasks;
mod watch;
mod write;
mod write_back;
mod writeback;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use flaz_codec::Decoders;
use flaz_device::local::Notify;
use flaz_device::{Device, Env, IoBuf};

use self::fragment::Packer;
use crate::format::geometry::Geometry;
use crate::host_record::HostRecords;
use crate::index::{Entry, Index};
use crate::policy::{Policy, PolicyKind, Ring, RingSizes};
use crate::settings::{AfterCrash, Mode, Settings};
use crate::stats::{Holdings, QueueDepth, Stats, StatsSnapshot, count};
use crate::units::{BLOCK_BYTES, BlockNumber, Epoch, LocalBlock, Location};
use counts::Counted;
use intents::Intents;
use log::{Landing, Log, LogIdentity};
use order::WriteOrder;
use origin_reads::OriginReads;
use queue::AdmissionQueue;
use reclaimer::Reclaimer;
use stable_mark::StableMark;
use tasks::{Phase, TaskGroup};
use writeback::{Level, Writeback};

pub(crate) use contents::{ImageContents, read_image, read_state};
pub use counts::OriginWrites;
pub use fragment::{FragmentError, unpack as unpack_fragment};
pub use image::ImageError;
pub(crate) use intents::any_intent;
pub use log::WRITES_IN_FLIGHT_MAX;
pub use origin_reads::ORIGIN_READS_MAX;
pub use queue::{JOB_BYTES_MAX, JOBS_MAX};
pub use recover::{RecoverError, Recovered};
pub(crate) use regions::RegionState;

/// Tombstones that may be in the log and not stable.
pub const TOMBSTONES_MAX: usize = 1024;
/// Failed operations of the cache device after which it is no longer used.
pub const CACHE_ERRORS_MAX: u64 = 8;

/// What an engine runs on: one type for each seam.
pub trait Platform: 'static {
    /// Time, tasks, randomness, other cores.
    type Env: Env;
    /// The cache device.
    type Cache: Device;
    /// The slow device.
    type Origin: Device;
}

/// What a shard is made from.
pub struct ShardParts<P: Platform> {
    /// Number of the shard.
    pub number: u32,
    /// Sizes and places.
    pub geometry: Geometry,
    /// First four bytes of the cache's UUID.
    pub cache_id: u32,
    /// This opening.
    pub epoch: Epoch,
    /// The first opening whose log and marks are of any account: what earlier ones left was given up.
    pub valid_from: Epoch,
    /// Whether blocks may be dirty that earlier openings left: the superblock says so, stable before the first one is.
    pub may_be_dirty: bool,
    /// What a crash of it leaves; the superblock must say the same.
    pub after_crash: AfterCrash,
    /// Surroundings.
    pub env: P::Env,
    /// The cache device.
    pub cache: Rc<P::Cache>,
    /// The origin.
    pub origin: Rc<P::Origin>,
    /// What the user chose.
    pub settings: Settings,
    /// Shared by all shards.
    pub origin_writes: OriginWrites,
    /// Who is told that the cache is lost when its device cannot be, if anybody.
    pub host_records: Option<Rc<dyn HostRecords>>,
}

/// See the module's documentation.
pub struct Shard<P: Platform> {
    number: u32,
    geometry: Geometry,
    cache_id: u32,
    epoch: Epoch,
    valid_from: Epoch,
    may_be_dirty: bool,
    pub(crate) env: P::Env,
    cache: Rc<P::Cache>,
    origin: Rc<P::Origin>,
    settings: RefCell<Settings>,
    origin_writes: OriginWrites,
    host_records: Option<Rc<dyn HostRecords>>,
    index: RefCell<Index>,
    log: RefCell<Log>,
    policy: RefCell<Box<dyn Policy>>,
    packers: RefCell<Vec<Packer>>,
    decoders: RefCell<Decoders>,
    order: WriteOrder,
    origin_reads: OriginReads,
    queue: AdmissionQueue,
    reclaimer: Reclaimer,
    /// The tasks and the phase.
    tasks: Rc<TaskGroup>,
    intents: Intents,
    stable_mark: StableMark,
    after_crash: AfterCrash,
    /// A flush of the origin that failed when nobody had asked for it.
    flush_failure: RefCell<Option<flaz_device::DeviceError>>,
    /// Blocks whose copy on the medium is void, with no newer record of them yet, and that copy's ring. Each has
    /// a job that will write the record. Bounded by the jobs.
    obsolete: RefCell<BTreeMap<LocalBlock, Ring>>,
    /// Blocks whose tombstone is in the log and not stable yet, with its ring and its number. At most
    /// [`TOMBSTONES_MAX`].
    tombstones: RefCell<BTreeMap<LocalBlock, (Ring, u64)>>,
    tombstone_count: Cell<u64>,
    /// A region became free or a write ended.
    room: Notify,
    unpinned: Notify,
    failed: Cell<bool>,
    /// Extents that are to be closed when the next write to the device ends.
    commit_waiting: RefCell<Vec<Landing>>,
    /// A write of an extent has ended.
    landed: Notify,
    /// Dirty writes acknowledged, and how many of them are stable.
    landed_writes: Cell<u64>,
    flushed_writes: Cell<u64>,
    writeback: Writeback,
    /// Dirty blocks that could not be read when they were read last.
    damaged: RefCell<BTreeSet<LocalBlock>>,
    /// Blocks of writes that the device may have in part, since it was given up: as many as were under way.
    unknown: RefCell<BTreeSet<LocalBlock>>,
    /// Blocks whose *cleaned* record is not stable yet, with the number of that record. At most one batch of the cleaner: each begins by making the
    /// log stable.
    cleaned: RefCell<BTreeMap<LocalBlock, u64>>,
    cleaned_count: Cell<u64>,
    /// Blocks that reclaim brought to the origin and dropped, in a region that is not void yet: their dirty records are
    /// on the medium. At most those of one region.
    rescued: RefCell<BTreeSet<LocalBlock>>,
    stats: Stats,
}

impl<P: Platform> Shard<P> {
    /// A shard with nothing in it. [`Shard::start`] sets its tasks going.
    #[must_use]
    pub fn new(parts: ShardParts<P>) -> Rc<Self> {
        let ShardParts {
            number,
            geometry,
            cache_id,
            epoch,
            valid_from,
            may_be_dirty,
            after_crash,
            env,
            cache,
            origin,
            settings,
            origin_writes,
            host_records,
        } = parts;
        let planned = geometry.shard_len() / BLOCK_BYTES as u64 * 2;
        let policy = settings.policy.build(geometry.shard_len() / BLOCK_BYTES as u64);
        Rc::new(Self {
            number,
            geometry,
            cache_id,
            epoch,
            valid_from,
            may_be_dirty,
            env,
            cache,
            origin,
            settings: RefCell::new(settings),
            origin_writes,
            host_records,
            index: RefCell::new(Index::new(geometry.local_blocks(), planned)),
            log: RefCell::new(Log::new(
                geometry,
                LogIdentity {
                    cache: cache_id,
                    shard: number,
                    epoch,
                },
            )),
            policy: RefCell::new(policy),
            packers: RefCell::new(Vec::new()),
            decoders: RefCell::new(Decoders::default()),
            order: WriteOrder::new(geometry.shard_len() / BLOCK_BYTES as u64),
            origin_reads: OriginReads::new(),
            queue: AdmissionQueue::new(),
            reclaimer: Reclaimer::new(),
            tasks: TaskGroup::new(),
            intents: Intents::new(&geometry),
            stable_mark: StableMark::new(),
            after_crash,
            flush_failure: RefCell::new(None),
            obsolete: RefCell::new(BTreeMap::new()),
            tombstones: RefCell::new(BTreeMap::new()),
            tombstone_count: Cell::new(0),
            room: Notify::new(),
            unpinned: Notify::new(),
            failed: Cell::new(false),
            commit_waiting: RefCell::new(Vec::new()),
            landed: Notify::new(),
            landed_writes: Cell::new(0),
            flushed_writes: Cell::new(0),
            writeback: Writeback::new(number),
            damaged: RefCell::new(BTreeSet::new()),
            unknown: RefCell::new(BTreeSet::new()),
            cleaned: RefCell::new(BTreeMap::new()),
            cleaned_count: Cell::new(0),
            rescued: RefCell::new(BTreeSet::new()),
            stats: Stats::default(),
        })
    }

    /// Starts the tasks that store admitted blocks, reclaim regions, set and clear intents, and clean.
    pub fn start(self: &Rc<Self>) {
        self.tasks.enter(Phase::Serving);
        let (tasks, env) = (&self.tasks, &self.env);
        tasks.spawn(env, Self::admit_task(Rc::clone(self)));
        tasks.spawn(env, Self::reclaim_task(Rc::clone(self)));
        tasks.spawn(env, Self::intent_task(Rc::clone(self)));
        tasks.spawn(env, Self::clear_task(Rc::clone(self)));
        tasks.spawn(env, Self::clean_task(Rc::clone(self)));
    }

    fn is_stopping(&self) -> bool {
        self.tasks.phase() == Phase::Stopping
    }

    /// What is counted of writes to the origin, for all shards of this cache.
    #[must_use]
    pub fn origin_writes(&self) -> &OriginWrites {
        &self.origin_writes
    }

    /// The shard's number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Changes what can be changed while serving.
    pub fn set(&self, change: &Settings) {
        let policy_changed = {
            let mut settings = self.settings.borrow_mut();
            let changed = settings.policy != change.policy;
            *settings = change.clone();
            changed
        };
        if policy_changed {
            self.set_policy(change.policy);
        }
        self.writeback.note_limit();
    }

    fn set_policy(&self, kind: PolicyKind) {
        let mut policy = kind.build(self.geometry.shard_len() / BLOCK_BYTES as u64);
        policy.cached_blocks(self.index.borrow().len() as u64);
        *self.policy.borrow_mut() = policy;
    }

    /// Says whether the superblock has been told that blocks may be dirty. Without it write-back is write-through.
    pub fn permit_write_back(self: &Rc<Self>, permitted: bool) {
        let was_careful = self.must_be_whole();
        self.writeback.permit(permitted);
        if permitted && !was_careful {
            // Until now reclaim has moved fragments as they were: see `must_be_whole`. Nothing dirty goes behind those.
            self.log.borrow_mut().close_regions();
            self.pump_writes();
        }
    }

    /// Whether what reclaim moves must be whole. Recovery takes an extent with a damaged fragment for a torn one, and does
    /// not read what follows it in an unfinished region: dirty blocks in there would be lost.
    fn must_be_whole(&self) -> bool {
        self.writeback.is_permitted() || self.writeback.has_dirty_records()
    }

    fn mode(&self) -> Mode {
        if self.failed.get() {
            return Mode::PassThrough;
        }
        match self.settings.borrow().mode {
            Mode::WriteBack if !self.writeback.is_permitted() => Mode::WriteThrough,
            mode => mode,
        }
    }

    /// Whether the index has the block. Does not count as a use.
    #[must_use]
    pub fn is_cached(&self, block: BlockNumber) -> bool {
        self.index.borrow().get(self.local(block)).is_some()
    }

    /// Everything that the shard counts and holds.
    #[must_use]
    pub fn stats(&self) -> StatsSnapshot {
        let index = self.index.borrow();
        let log = self.log.borrow();
        let region_bytes = self.geometry.region_bytes;
        let peaks = &self.stats.peaks;
        let depth = |now, peak: &Cell<u64>| QueueDepth {
            now,
            peak: peak.get(),
        };
        let (admission, cache_writes, origin_reads) = (
            self.queue.waiting(),
            log.writes_in_flight() as u64,
            self.origin_reads.at_origin(),
        );
        let holdings = Holdings {
            cached_blocks: index.len() as u64,
            index_bytes: index.memory_bytes() as u64,
            other_memory_bytes: (self.policy.borrow().memory_bytes()
                + log.memory_bytes()
                + self.order.memory_bytes()) as u64,
            capacity_bytes: self.geometry.shard_len(),
            ring_bytes: Ring::ALL.map(|ring| log.regions.count(ring) * region_bytes),
            free_bytes: log.regions.free_len() as u64 * region_bytes,
            used_bytes: log.regions.iter().map(|region| u64::from(region.used)).sum(),
            admission_queue: admission,
            cache_writes_queued: cache_writes,
            origin_reads_in_flight: origin_reads,
            cache_failed: self.failed.get(),
            fragment_bytes: index.fragment_bytes(),
            dirty_blocks: index.dirty_blocks(),
            dirty_device_bytes: index.dirty_device_bytes(),
            dirty_limit_bytes: self.dirty_limit(),
            // Reclaim may have failed to clean what is dirty no more.
            cleaners_failing: u64::from(
                self.writeback.progress().is_device_failing() && index.dirty_blocks() > 0,
            ),
            damaged_blocks: self.damaged.borrow().len() as u64,
            admission: depth(admission, &peaks.admission),
            cache_writes: depth(cache_writes, &peaks.cache_writes),
            origin_reads: depth(origin_reads, &peaks.origin_reads),
        };
        StatsSnapshot {
            counts: self.stats.counters.counts(),
            latencies: self.stats.latencies.borrow().clone(),
            holdings,
        }
    }

    /// Number of blocks that are newer than the origin.
    #[must_use]
    pub fn dirty_blocks(&self) -> u64 {
        self.index.borrow().dirty_blocks()
    }

    /// Bytes of the device that dirty blocks may take.
    fn dirty_limit(&self) -> u64 {
        writeback::limit_bytes(&self.geometry, self.settings.borrow().dirty_percent)
    }

    /// Bytes of the device that dirty blocks take, and may take.
    fn dirty_level(&self) -> Level {
        let index = self.index.borrow();
        Level {
            dirty: index.dirty_device_bytes() + index.dirty_blocks() * 8,
            limit: self.dirty_limit(),
        }
    }

    /// Notes what an earlier process left dirty: it may have acknowledged some that are not stable yet.
    fn inherit_dirty(&self) {
        let dirty = self.index.borrow().dirty_blocks() > 0;
        if dirty {
            self.writeback.note_dirty_record();
        }
        self.landed_writes.set(u64::from(dirty));
    }

    fn global(&self, block: LocalBlock) -> BlockNumber {
        block.global(self.number, self.geometry.shard_count)
    }

    fn local(&self, block: BlockNumber) -> LocalBlock {
        let (shard, local) = block.in_shard(self.geometry.shard_count);
        debug_assert_eq!(shard, self.number);
        local
    }

    /// The name by which policies know a block.
    fn key(block: LocalBlock) -> u64 {
        crate::policy::block_key(block.0)
    }

    /// Number of blocks that lie wholly on the origin: only these are cached.
    fn whole_blocks(&self) -> u64 {
        self.geometry.origin_len / BLOCK_BYTES as u64
    }

    fn ring_of(&self, entry: Entry) -> Ring {
        let log = self.log.borrow();
        log.regions.ring_of(log.region_of(entry.location()))
    }

    /// The ring that a new version must go to, because a copy of the block is still there. Also while the tombstone of that
    /// copy could be lost: a version in the other ring, which a power cut may keep, would die before the copy.
    fn ring_of_old(&self, block: LocalBlock) -> Option<Ring> {
        let entry = self.index.borrow().get(block);
        entry
            .map(|entry| self.ring_of(entry))
            .or_else(|| self.obsolete.borrow().get(&block).copied())
            .or_else(|| self.tombstones.borrow().get(&block).map(|(ring, _)| *ring))
            .or_else(|| self.log.borrow().ring_of_open_record(self.global(block)))
    }

    /// Sets a block's entry and keeps the regions' live counts right.
    fn set_entry(&self, block: LocalBlock, entry: Entry) {
        let old = self.index.borrow_mut().insert(block, entry);
        self.count_live(entry, 1);
        if let Some(old) = old {
            self.count_live(old, -1);
        }
    }

    /// Forgets a block and keeps the regions' live counts right.
    fn remove_entry(&self, block: LocalBlock) -> Option<Entry> {
        let old = self.index.borrow_mut().remove(block)?;
        self.count_live(old, -1);
        self.not_damaged(block);
        Some(old)
    }

    fn count_live(&self, entry: Entry, by: i32) {
        let log = &mut *self.log.borrow_mut();
        let number = log.region_of(entry.location());
        log.regions.count_live(number, by);
    }

    /// Drops a block because its cached copy is no longer what the origin has. Returns the ring in which a
    /// record must now say so, if any.
    fn retire(&self, block: LocalBlock) -> Option<Ring> {
        if let Some(entry) = self.remove_entry(block) {
            let ring = self.ring_of(entry);
            self.obsolete.borrow_mut().insert(block, ring);
            count(&self.stats.counters.dropped_blocks, 1);
        }
        self.obsolete.borrow().get(&block).copied()
    }

    fn pin(&self, location: Location) -> Pin<'_, P> {
        let log = &mut *self.log.borrow_mut();
        let region = log.region_of(location);
        log.regions.pin(region);
        Pin { shard: self, region }
    }

    /// Space in the two rings, for the policy.
    fn ring_sizes(&self) -> RingSizes {
        let log = self.log.borrow();
        let region_bytes = self.geometry.region_bytes;
        RingSizes {
            probation: log.regions.count(Ring::Probation) * region_bytes,
            main: log.regions.count(Ring::Main) * region_bytes,
            total: self.geometry.shard_len(),
        }
    }

    /// Takes a packer for the current codec from the pool, or makes one.
    fn take_packer(&self) -> Packer {
        let wanted = self.settings.borrow().codec;
        let mut pool = self.packers.borrow_mut();
        pool.retain(|packer| packer.codec() == wanted);
        pool.pop().unwrap_or_else(|| Packer::new(wanted))
    }

    fn return_packer(&self, packer: Packer) {
        self.packers.borrow_mut().push(packer);
    }
}

/// A region that must not be discarded while its data is being read.
struct Pin<'a, P: Platform> {
    shard: &'a Shard<P>,
    region: u32,
}

impl<P: Platform> Drop for Pin<'_, P> {
    fn drop(&mut self) {
        let last = self.shard.log.borrow_mut().regions.unpin(self.region);
        if last {
            self.shard.unpinned.notify_all();
        }
    }
}

/// Data shared between an answer and an admission.
type Shared = Arc<IoBuf>;
