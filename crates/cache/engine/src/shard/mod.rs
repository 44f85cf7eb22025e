//! A shard: an independent part of the cache, driven by one thread, without locks.
//!
//! [`Shard`] owns one component for each kind of state. A component knows nothing of the shard or of other components
//! unless they are passed to it, and is tested alone:
//!
//! | component | state |
//! |---|---|
//! | [`map`] | locations of blocks, and which records are stale |
//! | [`log`], [`fragment`], [`codecs`] | regions, extents in flight, and the encoding of fragments |
//! | [`group_commit`] | when an extent that writers wait for is sealed |
//! | [`order`], [`locks`] | ordering of writes and admissions |
//! | [`queue`], [`origin_reads`], [`reclaimer`], [`writeback`], [`tasks`] | waiting and running work |
//! | [`advising`] | the sample of blocks that the advisor follows |
//! | [`intents`] | stripes that may differ from the origin |
//! | [`io`] | the two devices |
//! | [`tuning`], [`budget`], [`identity`] | settings and policy; the write budget; what never changes |
//! | [`second_stage`] with [`balance`] | whether blocks that stay are compressed again, and whether hits lose more by compression than misses gain |
//! | [`dictionary`] | samples for the next dictionary |
//! | [`sets`] | no state: which of them together |
//! | [`contents`], [`manifest_reader`], [`region_reader`], [`recover_order`] | no state: reading what an earlier opening left |
//!
//! An operation that needs several components is a method of the shard. Such methods only call methods of files below their
//! own (the test `layers` checks that). What concerns a file above is an event that it awaits, such as
//! [`SegmentLog::room`](log::SegmentLog::room):
//!
//! | file | methods |
//! |---|---|
//! | `start` | starting tasks, changing settings |
//! | `image` | stop, and the index image of a clean stop |
//! | `recover` | the start after a crash |
//! | `recover_intents` | dropping blocks of stripes with writes in flight |
//! | `recover_records` | from the records of all regions to index entries |
//! | `recover_runs` | external merge sort of those that do not fit in memory |
//! | `resize` | more regions, and fewer |
//! | `give_back` | giving space back to other caches on the device |
//! | `read` | hits, partial hits, misses |
//! | `write` | write-through, write-around, pass-through, trim, write-zeroes |
//! | `dirty_write` | writes that stay in the cache, acknowledged when they have landed |
//! | `writeback_worker` | cleaning dirty blocks in address order |
//! | `admit` | storing blocks and tombstones, off the caller's path |
//! | `packing` | compression before an append |
//! | `room` | waiting for space in the log |
//! | `reclaim` | freeing the oldest regions |
//! | `keep` | storing again what stays |
//! | `repack` | compressing it again, alone or with its neighbours |
//! | `dictionary` | what blocks that stay have in common |
//! | `space` | taking and giving back the space of regions |
//! | `writeback_runs` | writing dirty blocks to the origin |
//! | `load` | the contents of one block |
//! | `undo` | storing blocks with less compression again |
//! | `devices` | reads of the cache device |
//! | `intents/setting` | setting intents before a write |
//! | `intents/clearing` | clearing them when a crash no longer matters |
//! | `stable` | making the log stable, and recording that in the manifest |
//! | `sending` | writing extents and summaries |
//! | `stale` | dropping copies, and the tombstones that must follow |
//! | `advising` | showing references to the advisor |
//! | `uses` | which reads count as uses of a block |
//! | `index_pages` | loads of index pages, and the memory for them |
//! | `rebuild` | rebuilding a damaged index page from the log |
//! | `fence` | fencing a cache device that fails |
//! | `intents/loading` | the bitmap as a whole |
//! | `intents/pages` | writing a page of the bitmap |
//! | `mod` | names, sizes and levels, from the components |
//!
//! Invariants:
//! - An index entry of a clean block names a fragment with the bytes of the origin, except for writes in flight; a block's
//!   entry is dropped before its write is acknowledged.
//! - An index entry of a dirty block names the latest contents. Only the writeback worker reads or writes the origin there.
//!   The entry is removed only when newer contents are appended, or when the contents are stable on the origin.
//! - Of the records of a block on the device, the newest is destroyed last: see [`map`]. An interrupted reclaim is finished
//!   before another one begins.
//! - No `RefCell` is borrowed across an await.

mod admit;
mod advising;
mod balance;
mod budget;
mod codecs;
mod contents;
mod devices;
mod dictionary;
mod dirty_write;
mod errors;
mod fence;
mod fragment;
mod gather;
mod give_back;
mod group_commit;
mod identity;
mod image;
mod index_pages;
mod intents;
mod io;
mod keep;
mod load;
mod locks;
mod log;
mod manifest_reader;
mod map;
mod order;
mod origin_reads;
mod packing;
mod platform;
mod queue;
mod read;
mod rebuild;
mod reclaim;
mod reclaimer;
mod recover;
mod recover_intents;
mod recover_order;
mod recover_records;
mod recover_runs;
mod region_reader;
mod repack;
mod resize;
mod room;
mod second_stage;
mod sending;
mod sets;
#[cfg(test)]
mod simulated;
mod space;
mod stable;
mod stale;
mod start;
mod tasks;
mod tuning;
mod undo;
mod uses;
mod write;
mod writeback;
mod writeback_runs;
mod writeback_worker;

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use flaz_codec::{CodecChoice, Effort};
use flaz_device::{Device, Env, IoBuf};

use self::fragment::Packer;
use crate::advise::{SharedSamples, Space};
use crate::format::geometry::{Geometry, PAGE_BYTES, REGIONS_MIN, SHARDS_MAX};
use crate::host_record::HostRecords;
use crate::index::PagePlan;
use crate::planted;
use crate::policy::{Allowance, Ring, RingSizes};
use crate::settings::{AfterCrash, Mode, Settings};
use crate::shared_budget::SharedBudget;
use crate::stats::{BudgetLevel, Counts, Holdings, QueueDepth, Stats, StatsSnapshot};
use crate::units::{BLOCK_BYTES, BlockNumber, Epoch, LocalBlock, STRIPE_BLOCKS};
use crate::volume::STRIPE_BYTES;
use crate::write_budget::WriteBudget;
use advising::{Followed, Following};
use budget::{Budget, CommonBudget};
use codecs::CodecPool;
use dictionary::Training;
use group_commit::GroupCommit;
use identity::ShardIdentity;
use intents::IntentBitmap;
use io::{CacheIo, OriginIo};
use log::{LogIdentity, SegmentLog};
use map::BlockMap;
use order::WriteOrder;
use origin_reads::OriginReads;
use queue::AdmissionQueue;
use reclaimer::Reclaimer;
use second_stage::SecondStage;
use tasks::{Phase, TaskGroup};
use tuning::Tuning;
use writeback::{Level, Writeback};

pub(crate) use contents::{ImageContents, IndexKind, count_entry, read_image, read_state};
pub use errors::{ImageError, RecoverError};
pub use fence::NO_SPACE;
pub use fragment::{FragmentError, unpack as unpack_fragment};
pub(crate) use intents::{IntentReader, any_intent};
pub use io::{CACHE_ERRORS_MAX, OriginWrites};
pub(crate) use log::Regions;
pub use log::{EXTENTS_IN_MEMORY_MAX, WRITES_IN_FLIGHT_MAX};
pub(crate) use manifest_reader::{ManifestPlace, read_manifest};
pub use map::TOMBSTONES_MAX;
pub use origin_reads::ORIGIN_READS_MAX;
pub use platform::Platform;
pub use queue::{JOB_BYTES_MAX, JOBS_MAX};
pub use recover::Recovered;
pub(crate) use region_reader::{Found, Guess, RegionPlace, read_region};
pub use resize::{ResizeStep, Shrinking};
pub use second_stage::ORIGIN_SLOW;

/// The share of fragments in the log's bytes, until it has been measured.
const FRAGMENT_SHARE: f64 = 0.96;
/// The least share that is expected.
const FRAGMENT_SHARE_MIN: f64 = 0.5;

/// The parts that a shard is built from.
pub struct ShardParts<P: Platform> {
    /// Number of the shard.
    pub number: u32,
    /// Layout of the cache device.
    pub geometry: Geometry,
    /// First four bytes of the cache's UUID.
    pub cache_id: u32,
    /// Epoch of this opening.
    pub epoch: Epoch,
    /// The first epoch whose manifest is valid: the contents from earlier ones were discarded.
    pub valid_from: Epoch,
    /// Whether earlier openings may have left dirty blocks. The superblock records this, stable, before the first block is
    /// dirty.
    pub may_be_dirty: bool,
    /// State after a crash of this opening; must match the superblock.
    pub after_crash: AfterCrash,
    /// Time and tasks.
    pub env: P::Env,
    /// The cache device.
    pub cache: Rc<P::Cache>,
    /// The origin.
    pub origin: Rc<P::Origin>,
    /// Settings chosen by the user.
    pub settings: Settings,
    /// Bytes taken from the write budget by earlier openings; `None`: unknown, after a crash.
    pub budget_used: Option<u64>,
    /// Shared by all shards.
    pub origin_writes: OriginWrites,
    /// Where the host records that the cache is fenced, if it keeps records.
    pub host_records: Option<Rc<dyn HostRecords>>,
    /// Shared by all shards.
    pub codec_samples: SharedSamples,
    /// The write budget that the caches on one device share.
    pub shared_budget: Option<Arc<SharedBudget>>,
    /// Memory for the index and all else that grows with the cache, for all of its shards. `None`: the index is a table in memory, as it
    /// is if the cache has no area for index pages.
    pub index_memory: Option<u64>,
}

/// See the module's documentation.
pub struct Shard<P: Platform> {
    id: ShardIdentity,
    pub(crate) env: P::Env,
    cache: Rc<CacheIo<P>>,
    origin: OriginIo<P>,
    tuning: Tuning,
    budget: Budget,
    common_budget: CommonBudget,
    following: Following,
    map: BlockMap,
    log: SegmentLog,
    commits: GroupCommit,
    codecs: CodecPool,
    second_stage: SecondStage,
    training: Training,
    order: WriteOrder,
    origin_reads: OriginReads,
    queue: AdmissionQueue,
    reclaimer: Reclaimer,
    /// The tasks and the phase.
    tasks: Rc<TaskGroup>,
    intents: IntentBitmap,
    writeback: Writeback,
    stats: Rc<Stats>,
}

impl<P: Platform> Shard<P> {
    /// An empty shard. [`Shard::start`] starts its tasks.
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
            budget_used,
            origin_writes,
            host_records,
            codec_samples,
            shared_budget,
            index_memory,
        } = parts;
        assert!(
            number < geometry.shard_count,
            "shard {number} of {}",
            geometry.shard_count
        );
        assert!(epoch.0 > 0, "openings are numbered from 1");
        let index_memory = index_memory
            .filter(|_| geometry.index_bytes > 0)
            .map(|bytes| bytes / u64::from(geometry.shard_count));
        let (stats, place) = (Rc::new(Stats::default()), (&geometry, number));
        // On a shared device, how many regions have space is known only when the shard starts: the policy begins as small as it can.
        let room = match cache.shares_space() {
            true => geometry.region_bytes * u64::from(REGIONS_MIN),
            false => geometry.shard_len(),
        };
        let cache = Rc::new(CacheIo::new(
            cache,
            env.clone(),
            Rc::clone(&stats),
            origin_writes.clone(),
            place,
            host_records.clone(),
        ));
        let origin = OriginIo::new(
            origin,
            env.clone(),
            Rc::clone(&stats),
            origin_writes,
            place,
            host_records,
        );
        let id = ShardIdentity {
            number,
            layout: geometry.layout,
            opened: geometry,
            cache_id,
            epoch,
            valid_from,
            may_be_dirty,
            after_crash,
            index_memory,
        };
        Rc::new(Self {
            id,
            budget: Budget::new(budget_used, env.now()),
            common_budget: CommonBudget::new(shared_budget),
            env,
            cache,
            origin,
            following: Following::new(codec_samples),
            tuning: Tuning::new(
                settings,
                room / BLOCK_BYTES as u64,
                index_memory.map(|bytes| bytes / index_pages::GHOST_SHARE),
            ),
            map: BlockMap::new(
                &geometry,
                page_plan(&geometry, (cache_id, number, epoch), index_memory),
            ),
            log: SegmentLog::new(
                geometry,
                LogIdentity {
                    cache: cache_id,
                    shard: number,
                    epoch,
                },
            ),
            commits: GroupCommit::default(),
            codecs: CodecPool::default(),
            second_stage: SecondStage::default(),
            training: Training::new(geometry.dictionary_bytes, geometry.shard_len()),
            order: WriteOrder::new(geometry.shard_len() / BLOCK_BYTES as u64, index_memory),
            origin_reads: OriginReads::new(),
            queue: AdmissionQueue::new(),
            reclaimer: Reclaimer::new(),
            tasks: TaskGroup::new(),
            intents: IntentBitmap::new(&geometry),
            writeback: Writeback::new(number),
            stats,
        })
    }

    fn is_stopping(&self) -> bool {
        self.tasks.phase() == Phase::Stopping
    }

    /// Counts of writes to the origin, for all shards of this cache.
    #[must_use]
    pub fn origin_writes(&self) -> &OriginWrites {
        self.origin.shared()
    }

    /// The shard's number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.id.number
    }

    /// Whether some block is dirty, or may become dirty.
    fn permits_dirty(&self) -> bool {
        self.writeback.is_permitted() || self.writeback.has_dirty_records()
    }

    fn mode(&self) -> Mode {
        if self.cache.is_fenced() {
            return Mode::PassThrough;
        }
        match self.tuning.settings().mode {
            Mode::WriteBack if !self.writeback.is_permitted() => Mode::WriteThrough,
            mode => mode,
        }
    }

    /// Whether the index has the block, for tests and tools. Does not count as a hit. If its page of a paged index is not in memory, it
    /// counts as not cached.
    #[must_use]
    pub fn is_cached(&self, block: BlockNumber) -> bool {
        self.map.peek(self.local(block)).is_some()
    }

    /// Drops what its pools did not need since the last call. For a host that calls it from time to time; the buffers of the thread
    /// are [another pool](flaz_device::buf::trim).
    pub fn trim_pools(&self) {
        self.codecs.trim();
    }

    /// The counters of the shard.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.stats.counters.counts()
    }

    /// The number of jobs in the admission queue, including the running one.
    #[must_use]
    pub fn admissions_waiting(&self) -> u64 {
        self.queue.waiting()
    }

    /// All counts and holdings of the shard.
    #[must_use]
    pub fn stats(&self) -> StatsSnapshot {
        let map = &self.map;
        let log = &self.log;
        let region_bytes = self.id.layout.region_bytes;
        let (free, withheld) = match (log.unused_regions(), self.cache.shares_space()) {
            // Regions without space are no part of this cache: others use them.
            ((free, _), true) => (free, 0),
            (unused, false) => unused,
        };
        let now = self.env.now();
        self.following.fit(&self.followed(), now);
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
        let (index_pages, index_pages_in_memory) = map.page_counts();
        let holdings = Holdings {
            cached_blocks: map.len() as u64,
            index_bytes: map.memory_bytes(),
            index_bound_bytes: self.id.index_memory.unwrap_or(0),
            index_pages,
            index_pages_in_memory,
            other_memory_bytes: self.grown_bytes(),
            extent_bytes: log.buffer_bytes() as u64,
            sample_bytes: self.training.memory_bytes() as u64,
            histogram_bytes: self.stats.latencies.borrow().memory_bytes() as u64,
            capacity_bytes: match self.cache.shares_space() {
                true => u64::from(log.regions_with_space()) * region_bytes,
                false => log.region_count() * region_bytes,
            },
            ring_bytes: Ring::ALL.map(|ring| log.regions_of(ring) * region_bytes),
            free_bytes: (free + withheld) as u64 * region_bytes,
            withheld_bytes: withheld as u64 * region_bytes,
            used_bytes: log.used_bytes(),
            admission_queue: admission,
            cache_writes_queued: cache_writes,
            origin_reads_in_flight: origin_reads,
            cache_failed: self.cache.is_fenced(),
            fragment_bytes: map.fragment_bytes(),
            dirty_blocks: map.dirty_blocks(),
            dirty_device_bytes: map.dirty_device_bytes(),
            dirty_limit_bytes: self.dirty_limit(),
            // Reclaim may have failed to write back blocks that are no longer dirty.
            writeback_failing: u64::from(
                self.writeback.progress().is_device_failing() && map.dirty_blocks() > 0,
            ),
            damaged_blocks: map.damaged_blocks(),
            dirty_ns: match map.dirty_blocks() {
                0 => 0,
                _ => self.writeback.dirty_for(self.env.now()).as_nanos() as u64,
            },
            admission: depth(admission, &peaks.admission),
            cache_writes: depth(cache_writes, &peaks.cache_writes),
            origin_reads: depth(origin_reads, &peaks.origin_reads),
            budget: self
                .budget_level()
                .map_or_else(BudgetLevel::default, |level| BudgetLevel {
                    per_day: level.full,
                    left: level.full.saturating_sub(level.used),
                    owed: level.used.saturating_sub(level.full),
                    last_day: level.day,
                    shards: 1,
                }),
        };
        self.common_budget.tell(self.written_bytes());
        StatsSnapshot {
            counts: self.stats.counters.counts(),
            latencies: self.stats.latencies.borrow().clone(),
            holdings,
            appended: log.appended_bytes(),
            observed: self.following.observed(self.id.number == 0, now),
        }
    }

    /// Bytes of memory of what grows with the shard, besides the index.
    fn grown_bytes(&self) -> u64 {
        let parts = [
            self.tuning.memory_bytes(),
            self.log.memory_bytes(),
            self.order.memory_bytes(),
            self.intents.memory_bytes(),
        ];
        parts.into_iter().sum::<usize>() as u64
    }

    /// Number of dirty blocks.
    #[must_use]
    pub fn dirty_blocks(&self) -> u64 {
        self.map.dirty_blocks()
    }

    /// Number of writes in flight that may leave dirty blocks. With none, no dirty block and no permission for write-back, no
    /// block becomes dirty.
    #[must_use]
    pub fn dirty_writes(&self) -> u64 {
        self.writeback.writers()
    }

    /// The dirty limit, in bytes of the device.
    fn dirty_limit(&self) -> u64 {
        let regions = match self.stats.counters.allocations_without_space.get() {
            _ if self.cache.shares_space() => self.log.remaining_with_space(),
            // The withheld regions will have space when they are needed, as far as is known.
            0 => self.log.regions_remaining(),
            _ => {
                let unusable = self.log.withheld_remaining() as u32;
                self.log.regions_remaining().saturating_sub(unusable)
            }
        };
        writeback::limit_bytes(
            regions,
            self.id.layout.region_bytes,
            self.tuning.settings().dirty_percent,
        )
    }

    /// Bytes of the device that dirty blocks take, and the dirty limit.
    fn dirty_level(&self) -> Level {
        let index = &self.map;
        Level {
            dirty: index.dirty_device_bytes() + index.dirty_blocks() * 8,
            limit: self.dirty_limit(),
        }
    }

    /// What the write budgets allow to store. Without any, neither clock nor counters are read.
    fn allowance(&self) -> Allowance {
        let own = self
            .budget_level()
            .map_or(Allowance::All, |level| level.allowance());
        own.max(self.common_budget.allowance(|| self.written_bytes()))
    }

    /// The level of the write budget. `None`: there is no budget.
    fn budget_level(&self) -> Option<budget::Level> {
        let setting = self.tuning.settings().write_budget;
        if setting == WriteBudget::None {
            return None;
        }
        // A volume's drive is the whole device: what it has now would not let it grow.
        let capacity = match self.cache.shares_space() {
            true => self.log.region_count() * self.id.layout.region_bytes,
            false => self.region_space(),
        };
        let rate = setting.of_shard(capacity, self.id.layout.shard_count)?;
        Some(self.budget.level(self.env.now(), rate, self.written_bytes()))
    }

    /// Bytes taken from the write budget that time has not made up for, for the next opening.
    #[must_use]
    pub fn budget_used_bytes(&self) -> u64 {
        self.budget_level().map_or(0, |level| level.used)
    }

    /// All bytes that this opening has written to the cache device, or is about to write.
    fn written_bytes(&self) -> u64 {
        self.stats.counters.cache_write_bytes.get() + self.log.unwritten_bytes()
    }

    /// Accounts for dirty blocks of an earlier process: some may be acknowledged and not stable yet.
    fn inherit_dirty(&self) {
        let dirty = self.map.dirty_blocks() > 0;
        if dirty {
            self.writeback.note_first_dirty(self.env.now());
            self.writeback.note_dirty_record();
            self.log.promise_inherited();
        }
    }

    fn global(&self, block: LocalBlock) -> BlockNumber {
        self.id.global(block)
    }

    fn local(&self, block: BlockNumber) -> LocalBlock {
        self.id.local(block)
    }

    /// Whether the host's record of the origin depends on a stripe of this shard.
    fn is_watched(&self, stripe: u64) -> bool {
        let block = self.global(LocalBlock(stripe * STRIPE_BLOCKS));
        self.origin.is_watched(block.0 / STRIPE_BLOCKS)
    }

    /// Waits until the flushes of the origin that are in flight have ended, including those of other shards and clients.
    pub(crate) async fn await_origin_flushes(&self) {
        self.origin.flushes_ended().await;
    }

    /// Number of blocks that lie wholly within the origin: only these are cached.
    fn whole_blocks(&self) -> u64 {
        self.origin.len() / BLOCK_BYTES as u64
    }

    /// Serves an origin of `len` bytes from now on; the superblock says so, stable, and has room for them. May be called at any
    /// time: a block that was partial before, at the old end, has never been cached, and requests that are in flight see either
    /// length at each step.
    pub(crate) fn grow_origin(&self, len: u64) {
        assert!(
            len.div_ceil(STRIPE_BYTES) <= self.id.layout.stripes_max,
            "there is room"
        );
        self.origin.grow(len);
    }

    /// The ring that a new version of a block must go to, because an older copy of it is still there.
    fn ring_for(&self, block: LocalBlock) -> Option<Ring> {
        self.map.ring_for(&self.log, block, self.global(block))
    }

    /// Bytes of all regions that the policy may use.
    fn region_space(&self) -> u64 {
        let regions = match self.cache.shares_space() {
            true => u64::from(self.log.remaining_with_space()),
            false => u64::from(self.log.regions_remaining()),
        };
        regions * self.id.layout.region_bytes
    }

    /// What the advisor's sample depends on, as it is now.
    fn followed(&self) -> Followed {
        let settings = self.tuning.settings();
        let compresses_again =
            settings.codec == CodecChoice::Auto && self.second_stage.pays(self.origin.mean_read());
        Followed {
            policy: settings.policy,
            codec: settings.codec,
            compresses_again,
            space: self.fragment_space(),
        }
    }

    /// The space of fragments: without headers and summaries, and what is lost at the ends of extents and regions.
    fn fragment_space(&self) -> Space {
        let share = self.log.fragment_share().unwrap_or(FRAGMENT_SHARE);
        // Blocks of one value have no fragments, so there may be hardly any.
        let share = share.max(FRAGMENT_SHARE_MIN);
        let regions = self.region_space() / self.id.layout.region_bytes;
        Space {
            // Rounded, so that the space does not seem to change all the time.
            region_bytes: (self.id.layout.region_bytes as f64 * (share * 256.0).round() / 256.0) as u64,
            regions,
        }
    }

    /// Space in the two rings, for the policy.
    fn ring_sizes(&self) -> RingSizes {
        let region_bytes = self.id.layout.region_bytes;
        let [probation, main] = Ring::ALL.map(|ring| self.log.regions_of(ring));
        assert!(probation + main <= self.log.region_count());
        RingSizes {
            probation: probation * region_bytes,
            main: main * region_bytes,
            total: self.region_space(),
        }
    }

    /// Takes a packer for the current codec. The caller must put it back.
    fn take_packer(&self) -> Packer {
        let choice = self.tuning.settings().codec;
        self.codecs.take(choice.first(), choice)
    }

    /// How much processor time blocks that stay are worth now.
    fn effort(&self) -> Option<Effort> {
        // With one core, the codec keeps this thread from serving clients.
        let can_wait = self.log.free_regions() > 0 && self.env.parallelism() > 1;
        self.second_stage
            .effort(self.env.load(), can_wait, self.env.now())
    }

    /// Whether blocks are or may become dirty.
    fn dirty_allowed(&self) -> bool {
        self.mode() == Mode::WriteBack || self.dirty_blocks() > 0
    }

    /// Whether any of these blocks of one stripe is dirty, or may be. Their pages have been loaded.
    fn any_dirty(&self, blocks: &Range<u64>) -> bool {
        let mut locals = blocks.clone().map(|block| self.local(BlockNumber(block)));
        self.map.dirty_blocks() > 0 && locals.any(|block| self.map.is_dirty(block))
    }
}

/// The dimensions of the index of a shard of a cache in an opening, which has so much memory; `None`: it is a table.
fn page_plan(
    geometry: &Geometry,
    (cache_id, shard, epoch): (u32, u32, Epoch),
    memory: Option<u64>,
) -> Option<PagePlan> {
    let small = planted::is_index_paged() && geometry.index_bytes > 0;
    let mark = u64::from(cache_id) << 32 ^ u64::from(epoch.0) << SHARDS_MAX.ilog2() ^ u64::from(shard);
    let slots = |page_bytes: u64| (geometry.shard_index_len() / page_bytes) as u32;
    if small {
        let bytes = u64::from(geometry.sector_bytes);
        return Some(PagePlan {
            region_bytes: geometry.region_bytes,
            ..PagePlan::small(slots(bytes), bytes as usize, mark)
        });
    }
    memory.map(|memory| PagePlan {
        region_bytes: geometry.region_bytes,
        ..PagePlan::new(slots(PAGE_BYTES as u64), memory, mark)
    })
}

/// Data shared between a reply and an admission.
type Shared = Arc<IoBuf>;
