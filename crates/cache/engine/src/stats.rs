//! Counters of a shard. Plain cells: a shard belongs to one thread.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::advise::Observed;
use crate::index::PAGE_BYTES;
use crate::policy::Allowance;
use crate::units::BLOCK_BYTES;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Live counters of one shard.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Cell<u64>,)*
        }

        /// Counters at one time; those of several shards add up.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// The current counts.
            #[must_use]
            pub fn counts(&self) -> Counts {
                Counts { $($name: self.$name.get(),)* }
            }
        }

        impl Counts {
            /// Adds another shard's counts.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Read requests (parts within one stripe) answered.
    reads,
    /// Bytes read by clients.
    read_bytes,
    /// Read requests answered from the cache alone.
    read_hits,
    /// Read requests answered partly from the cache.
    read_partial_hits,
    /// Read requests answered from the origin alone.
    read_misses,
    /// Blocks found in the cache.
    hit_blocks,
    /// Hits served from an extent still in memory.
    memory_hit_blocks,
    /// Blocks not found in the cache.
    miss_blocks,
    /// Write requests (parts within one stripe).
    writes,
    /// Bytes written by clients.
    write_bytes,
    /// Trim requests (parts within one stripe).
    trims,
    /// Write-zeroes requests (parts within one stripe).
    write_zeroes,
    /// Reads sent to the origin.
    origin_reads,
    /// Reads of misses that waited because the maximum number was in flight at the origin.
    origin_reads_full,
    /// Bytes read from the origin.
    origin_read_bytes,
    /// Writes sent to the origin.
    origin_writes,
    /// Bytes written to the origin.
    origin_write_bytes,
    /// Origin operations that failed.
    origin_errors,
    /// Failed origin reads.
    origin_read_errors,
    /// Reads that joined another reader's origin read.
    joined_reads,
    /// Blocks stored in the cache, without reinsertions.
    admitted_blocks,
    /// Admitted blocks that a client wrote.
    admitted_writes,
    /// Blocks that were not cached when read or written, and were in the policy's ghost.
    ghost_hits,
    /// Not stored: rejected by the policy.
    refused_policy,
    /// Not stored: the write budget did not allow it.
    refused_budget,
    /// Not stored: part of a long sequential stream.
    refused_sequential,
    /// Not stored: too many admissions were waiting.
    refused_queue_full,
    /// Times that a request found the admission queue full, by number or bytes: writers waited, data of readers was not
    /// stored.
    admission_full,
    /// Not stored: a write overtook the data.
    refused_overtaken,
    /// Not stored: already cached.
    refused_present,
    /// Blocks dropped by writes, trims and write-zeroes.
    dropped_blocks,
    /// Tombstones written.
    tombstones,
    /// Extents closed early so that writes could be acknowledged.
    ack_extents,
    /// Bytes of those extents on the device, including headers and padding.
    ack_extent_bytes,
    /// Records in those extents.
    ack_extent_blocks,
    /// Dirty blocks that the writeback worker wrote to the origin.
    cleaned_blocks,
    /// Time of writeback, without pauses, in nanoseconds.
    clean_ns,
    /// Writes that waited because the dirty limit was reached.
    dirty_waits,
    /// Reads and writebacks that found the only copy of a dirty block damaged.
    dirty_lost,
    /// Dirty blocks stored again at reclaim because the writeback worker had not written them yet.
    dirty_moved_blocks,
    /// Pages of the intent bitmap written.
    intent_writes,
    /// Writes and trims that waited for their stripe's intent.
    intent_waits,
    /// Input bytes of the codec.
    codec_in_bytes,
    /// Output bytes of the codec (raw blocks count 4096, same-filled blocks 0).
    codec_out_bytes,
    /// Blocks stored compressed.
    packed_blocks,
    /// Time that admission spent packing or waiting for it, in nanoseconds.
    pack_ns,
    /// Blocks restored for readers.
    unpacked_blocks,
    /// Time spent restoring blocks, or waiting for other cores to do so, in nanoseconds; estimated from a sample for blocks
    /// read one by one.
    unpack_ns,
    /// Blocks stored raw: they do not compress, or hits should be quick.
    raw_blocks,
    /// Same-filled blocks, stored without a fragment.
    same_filled_blocks,
    /// Bytes written to the cache device.
    cache_write_bytes,
    /// Bytes read from the cache device.
    cache_read_bytes,
    /// Reads sent to the cache device.
    cache_reads,
    /// Writes sent to the cache device.
    cache_writes,
    /// Pages of the index read from the cache device.
    index_page_reads,
    /// Pages of the index written to the cache device.
    index_page_writes,
    /// Pages of the index that were damaged, and rebuilt from the log.
    index_pages_rebuilt,
    /// Times that storing a block waited because too many writes were queued for the cache device.
    cache_writes_full,
    /// Extents written.
    extents_written,
    /// Bytes of headers and padding in written extents.
    extent_overhead_bytes,
    /// Fragments with a wrong checksum or an invalid codec stream.
    checksum_failures,
    /// Failed operations of the cache device, except optional reads of a start.
    cache_errors,
    /// Failed reads of the cache device, including those of a start.
    cache_read_errors,
    /// Failed writes, flushes and discards of the cache device.
    cache_write_errors,
    /// Writes of the cache device that found no space: its file system, or the pool of a thin volume, is full.
    cache_no_space,
    /// Regions whose space could not be allocated: the file system of a sparse cache file is full. Not counted on a device that
    /// several caches share, where this is ordinary.
    allocations_without_space,
    /// Regions reclaimed.
    regions_reclaimed,
    /// Regions of which reclaim could not read the records, because reads failed or gave wrong data: their clean blocks were dropped.
    regions_unreadable,
    /// Blocks stored again at reclaim because they were used.
    reinserted_blocks,
    /// Bytes of fragments stored again.
    reinserted_bytes,
    /// Blocks of those that were compressed again with a stronger codec.
    repacked_blocks,
    /// Blocks of those that were compressed together with their neighbours.
    grouped_blocks,
    /// Groups that reclaim found without some of their blocks.
    groups_divided,
    /// Dictionaries made for that.
    dictionaries_made,
    /// Bytes of fragments that this saved.
    repacked_saved_bytes,
    /// Time that reclaim waited for this, in nanoseconds.
    repack_ns,
    /// Time for which blocks were compressed with high effort, at reclaim and after misses, in nanoseconds.
    high_effort_ns,
    /// Blocks that were stored again with less compression or none, because restoring took longer than misses; and others of the same
    /// reads.
    undone_blocks,
    /// Blocks dropped at reclaim.
    reclaimed_blocks,
    /// Bytes discarded on the cache device.
    discarded_bytes,
}

/// Adds to a counter.
pub(crate) fn count(counter: &Cell<u64>, by: u64) {
    counter.set(counter.get() + by);
}

/// Largest recorded latency, in nanoseconds (100 s).
const LATENCY_NS_MAX: u64 = 100_000_000_000;

/// A latency histogram in nanoseconds with two significant digits (HDR). Takes no memory before the first operation.
#[derive(Clone, Debug, Default)]
pub struct Latency(Option<Histogram<u64>>);

impl Latency {
    fn histogram(&mut self) -> &mut Histogram<u64> {
        self.0.get_or_insert_with(|| {
            Histogram::new_with_bounds(100, LATENCY_NS_MAX, 2).expect("constant bounds are valid")
        })
    }

    /// Bytes of memory of the histogram.
    fn memory_bytes(&self) -> usize {
        let counts = self.0.as_ref().map_or(0, Histogram::distinct_values);
        counts * size_of::<u64>()
    }

    /// Counts one operation.
    pub fn record(&mut self, took: Duration) {
        self.histogram()
            .saturating_record((took.as_nanos() as u64).clamp(100, LATENCY_NS_MAX));
    }

    /// Adds another histogram.
    pub fn add(&mut self, other: &Self) {
        if let Some(other) = &other.0 {
            // Equal bounds: cannot fail.
            let _ = self.histogram().add(other);
        }
    }

    /// How many latencies are in each of the buckets that end at `bounds_ns`, which ascend; the last count is of those
    /// above all bounds. A latency within 1 % of a bound may be in either bucket.
    #[must_use]
    pub fn counts_to(&self, bounds_ns: &[u64]) -> Vec<u64> {
        let mut counts = vec![0; bounds_ns.len() + 1];
        for step in self.0.iter().flat_map(Histogram::iter_recorded) {
            let bucket = bounds_ns.partition_point(|bound| *bound < step.value_iterated_to());
            counts[bucket] += step.count_since_last_iteration();
        }
        counts
    }

    /// Sum of the latencies in nanoseconds, to about 1 %.
    #[must_use]
    pub fn sum_ns(&self) -> f64 {
        let sum = |histogram: &Histogram<u64>| histogram.mean() * histogram.len() as f64;
        self.0.as_ref().map_or(0.0, sum)
    }

    /// Count, mean and percentiles.
    #[must_use]
    pub fn summary(&self) -> LatencySummary {
        let us = |ns: u64| ns as f64 / 1000.0;
        let Some(histogram) = &self.0 else {
            return LatencySummary::default();
        };
        LatencySummary {
            count: histogram.len(),
            mean_us: histogram.mean() / 1000.0,
            p50_us: us(histogram.value_at_quantile(0.5)),
            p90_us: us(histogram.value_at_quantile(0.9)),
            p99_us: us(histogram.value_at_quantile(0.99)),
            p999_us: us(histogram.value_at_quantile(0.999)),
            max_us: us(histogram.max()),
        }
    }
}

/// Summary of a latency distribution, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    /// Number of operations.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Largest.
    pub max_us: f64,
}

/// Latencies of a shard by kind of operation, and of its device operations. Flushes and prefetches concern all shards, so
/// the host records them.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Reads answered from the cache alone.
    pub read_hit: Latency,
    /// Reads that needed the origin.
    pub read_miss: Latency,
    /// Writes.
    pub write: Latency,
    /// Trims.
    pub trim: Latency,
    /// Write-zeroes that were not executed as writes.
    pub write_zeroes: Latency,
    /// Flushes.
    pub flush: Latency,
    /// Prefetches.
    pub prefetch: Latency,
    /// Reads of the origin.
    pub origin_read: Latency,
    /// Writes of the origin; for writes that had to be stable, until they were.
    pub origin_write: Latency,
    /// Reads of the cache device; sampled.
    pub cache_read: Latency,
    /// Writes of the cache device.
    pub cache_write: Latency,
}

impl Latencies {
    /// Adds another shard's latencies.
    pub fn add(&mut self, other: &Self) {
        self.read_hit.add(&other.read_hit);
        self.read_miss.add(&other.read_miss);
        self.write.add(&other.write);
        self.trim.add(&other.trim);
        self.write_zeroes.add(&other.write_zeroes);
        self.flush.add(&other.flush);
        self.prefetch.add(&other.prefetch);
        self.origin_read.add(&other.origin_read);
        self.origin_write.add(&other.origin_write);
        self.cache_read.add(&other.cache_read);
        self.cache_write.add(&other.cache_write);
    }

    /// Bytes of memory of all histograms.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let Self {
            read_hit,
            read_miss,
            write,
            trim,
            write_zeroes,
            flush,
            prefetch,
            origin_read,
            origin_write,
            cache_read,
            cache_write,
        } = self;
        let all = [
            read_hit,
            read_miss,
            write,
            trim,
            write_zeroes,
            flush,
            prefetch,
            origin_read,
            origin_write,
            cache_read,
            cache_write,
        ];
        all.map(Latency::memory_bytes).iter().sum()
    }
}

/// Current and peak depth of a queue. For several queues of a kind, those of the fullest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueDepth {
    /// Current number of entries.
    pub now: u64,
    /// Most entries since the shard was created.
    pub peak: u64,
}

impl QueueDepth {
    /// Combines two queues: the higher current and the higher peak depth.
    pub fn fullest(&mut self, other: Self) {
        self.now = self.now.max(other.now);
        self.peak = self.peak.max(other.peak);
    }
}

/// Peaks of some gauges of a shard.
#[derive(Debug, Default)]
pub(crate) struct Peaks {
    pub(crate) admission: Cell<u64>,
    pub(crate) cache_writes: Cell<u64>,
    pub(crate) origin_reads: Cell<u64>,
    pub(crate) dirty_bytes: Cell<u64>,
}

/// Raises a gauge's peak to its current value.
pub(crate) fn raise(peak: &Cell<u64>, now: u64) {
    peak.set(peak.get().max(now));
}

/// All counters and gauges of a shard.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) counters: Counters,
    pub(crate) latencies: RefCell<Latencies>,
    pub(crate) peaks: Peaks,
}

/// Bytes of fragments and their records appended to the log, by cause. Those of several shards add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AppendedBytes {
    /// Clean blocks, after misses and by writes.
    pub admitted: u64,
    /// Dirty blocks, written by clients in write-back.
    pub dirty: u64,
    /// Clean blocks that reclaim stored again.
    pub reinserted: u64,
    /// Dirty blocks that reclaim moved.
    pub moved_dirty: u64,
}

impl AppendedBytes {
    /// Adds those of another shard.
    pub fn add(&mut self, other: &Self) {
        self.admitted += other.admitted;
        self.dirty += other.dirty;
        self.reinserted += other.reinserted;
        self.moved_dirty += other.moved_dirty;
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.admitted + self.dirty + self.reinserted + self.moved_dirty
    }
}

/// The write budget of a shard (or, added up, of a cache), in bytes; all zero without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BudgetLevel {
    /// A day's budget: as much as can be left.
    pub per_day: u64,
    /// What is left.
    pub left: u64,
    /// What was written beyond the budget and is not refilled yet.
    pub owed: u64,
    /// What was written in the last 24 hours.
    pub last_day: u64,
    /// Number of shards.
    pub shards: u32,
}

impl BudgetLevel {
    /// Adds that of another shard.
    pub fn add(&mut self, other: &Self) {
        self.per_day = self.per_day.saturating_add(other.per_day);
        self.left = self.left.saturating_add(other.left);
        self.owed = self.owed.saturating_add(other.owed);
        self.last_day = self.last_day.saturating_add(other.last_day);
        self.shards += other.shards;
    }

    /// What may be stored, for all shards taken together.
    #[must_use]
    pub fn allowance(&self) -> Allowance {
        match self.per_day {
            0 => Allowance::All,
            full => Allowance::at(self.left, full, self.shards),
        }
    }
}

/// The current holdings of a shard (or, added up, of a cache).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Holdings {
    /// Blocks in the cache.
    pub cached_blocks: u64,
    /// Bytes of memory of the index.
    pub index_bytes: u64,
    /// Bytes of memory that the index and all else that grows with the cache may take. 0: the index is a table in memory, without a
    /// bound.
    pub index_bound_bytes: u64,
    /// Pages of the index. 0: it is a table.
    pub index_pages: u64,
    /// Pages of the index that are in memory.
    pub index_pages_in_memory: u64,
    /// Bytes of memory for ghosts, region tables, versions of blocks and everything else that grows with the cache.
    pub other_memory_bytes: u64,
    /// Bytes of buffers of the extents that are open, queued or in flight.
    pub extent_bytes: u64,
    /// Bytes of memory of the latency histograms.
    pub histogram_bytes: u64,
    /// Memory of the samples for a dictionary, in bytes.
    pub sample_bytes: u64,
    /// Bytes of all regions. On a device that several caches share, of those that have space.
    pub capacity_bytes: u64,
    /// Bytes of regions in use, per ring: probation, main.
    pub ring_bytes: [u64; 2],
    /// Bytes of free regions.
    pub free_bytes: u64,
    /// Of these, bytes whose space is not allocated yet: on a sparse cache file only.
    pub withheld_bytes: u64,
    /// Used bytes of the regions in use.
    pub used_bytes: u64,
    /// Admissions waiting to be stored.
    pub admission_queue: u64,
    /// Extent and summary writes queued or in flight.
    pub cache_writes_queued: u64,
    /// Reads of misses in flight at the origin.
    pub origin_reads_in_flight: u64,
    /// Whether the cache device failed and is no longer used.
    pub cache_failed: bool,
    /// Bytes of the fragments of cached blocks, to about 1 % ([`crate::index::Fragments::bytes`]).
    pub fragment_bytes: u64,
    /// Number of dirty blocks.
    pub dirty_blocks: u64,
    /// Bytes of the cache device that dirty blocks take.
    pub dirty_device_bytes: u64,
    /// The dirty limit, in bytes of the cache device.
    pub dirty_limit_bytes: u64,
    /// Shards whose writeback is failing now, for a reason other than damaged blocks.
    pub writeback_failing: u64,
    /// Dirty blocks whose only copy could not be read at the last attempt.
    pub damaged_blocks: u64,
    /// Nanoseconds since the oldest dirty block became dirty, at most; of the shard with the oldest.
    pub dirty_ns: u64,
    /// [`Self::admission_queue`], of the fullest shard.
    pub admission: QueueDepth,
    /// [`Self::cache_writes_queued`], of the fullest shard.
    pub cache_writes: QueueDepth,
    /// [`Self::origin_reads_in_flight`], of the shard with the most.
    pub origin_reads: QueueDepth,
    /// The write budget.
    pub budget: BudgetLevel,
}

impl Holdings {
    /// Adds another shard's holdings.
    pub fn add(&mut self, other: &Self) {
        self.cached_blocks += other.cached_blocks;
        self.index_bytes += other.index_bytes;
        self.index_bound_bytes += other.index_bound_bytes;
        self.index_pages += other.index_pages;
        self.index_pages_in_memory += other.index_pages_in_memory;
        self.other_memory_bytes += other.other_memory_bytes;
        self.extent_bytes += other.extent_bytes;
        self.histogram_bytes += other.histogram_bytes;
        self.sample_bytes += other.sample_bytes;
        self.capacity_bytes += other.capacity_bytes;
        self.ring_bytes[0] += other.ring_bytes[0];
        self.ring_bytes[1] += other.ring_bytes[1];
        self.free_bytes += other.free_bytes;
        self.withheld_bytes += other.withheld_bytes;
        self.used_bytes += other.used_bytes;
        self.admission_queue += other.admission_queue;
        self.cache_writes_queued += other.cache_writes_queued;
        self.origin_reads_in_flight += other.origin_reads_in_flight;
        self.cache_failed |= other.cache_failed;
        self.fragment_bytes += other.fragment_bytes;
        self.dirty_blocks += other.dirty_blocks;
        self.dirty_device_bytes += other.dirty_device_bytes;
        self.dirty_limit_bytes += other.dirty_limit_bytes;
        self.writeback_failing += other.writeback_failing;
        self.damaged_blocks += other.damaged_blocks;
        self.dirty_ns = self.dirty_ns.max(other.dirty_ns);
        self.admission.fullest(other.admission);
        self.cache_writes.fullest(other.cache_writes);
        self.origin_reads.fullest(other.origin_reads);
        self.budget.add(&other.budget);
    }
}

/// Counters, latencies and holdings of a shard or a cache at one time.
#[derive(Clone, Debug, Default)]
pub struct StatsSnapshot {
    /// Counters.
    pub counts: Counts,
    /// Latency histograms.
    pub latencies: Latencies,
    /// Holdings.
    pub holdings: Holdings,
    /// Bytes appended to the log.
    pub appended: AppendedBytes,
    /// What the advisor counted.
    pub observed: Observed,
}

impl StatsSnapshot {
    /// Adds another shard's snapshot.
    pub fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.latencies.add(&other.latencies);
        self.holdings.add(&other.holdings);
        self.appended.add(&other.appended);
        self.observed.add(&other.observed);
    }

    /// Index pages read from the cache device, for each block that a client read or wrote.
    #[must_use]
    pub fn index_reads_per_lookup(&self) -> f64 {
        let counts = &self.counts;
        let lookups = counts.hit_blocks + counts.miss_blocks + counts.write_bytes / BLOCK_BYTES as u64;
        counts.index_page_reads as f64 / lookups.max(1) as f64
    }

    /// Share of the bytes written to the cache device that are index pages.
    #[must_use]
    pub fn index_written_share(&self) -> f64 {
        let written = self.counts.index_page_writes * PAGE_BYTES as u64;
        written as f64 / self.counts.cache_write_bytes.max(1) as f64
    }
}
