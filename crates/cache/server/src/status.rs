//! Converts the counters of the engine and the NBD server to the status report.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use flaz_control::report::{
    AdmissionReport, BlockDeviceReport, CacheReport, CacheState, CacheWritesReport, CodecReport,
    DaemonReport, ErrorReport, LatencyReport, LiveReport, LookupReport, NbdReport, OperationReport,
    OriginReport, QueueReport, REPORT_SCHEMA, ReclaimReport, ShareReport, ShrinkReport, SpaceReport,
    StatusReport, TrafficReport, WriteBackReport, WriteBudgetReport,
};
use flaz_control::shell::quoted;
use flaz_control::size::{HumanBytes, counted};
use flaz_engine::cache::lifecycle::Opened;
use flaz_engine::format::superblock::{Superblock, VERSION};
use flaz_engine::settings::Settings;
use flaz_engine::shard::{JOBS_MAX, NO_SPACE, ORIGIN_READS_MAX, WRITES_IN_FLIGHT_MAX};
use flaz_engine::stats::{Counts, Latency, LatencySummary, QueueDepth, StatsSnapshot};
use flaz_engine::units::BLOCK_BYTES;
use flaz_nbd::Snapshot;
use flaz_nbd::limits::{CONNECTIONS_MAX, REQUESTS_IN_FLIGHT_MAX};
use flaz_runtime::compute::{QUEUE_MAX, codec_queues};

use crate::memory_report::memory_report;
use crate::spec::ServeSpec;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Bounds of the reported latency buckets, from a hit on a fast SSD to an origin that does not answer. Fixed, so that histograms of
/// several caches and versions add up.
const LATENCY_BOUNDS_NS: [u64; 18] = [
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// The cache device, from its superblock.
pub(crate) fn cache_report(path: &Path, superblock: &Superblock) -> CacheReport {
    let geometry = &superblock.geometry;
    CacheReport {
        path: path.to_owned(),
        uuid: superblock.uuid,
        format_version: VERSION,
        size_bytes: geometry.device_len,
        data_bytes: geometry.shard_len() * u64::from(geometry.shard_count),
        extent_bytes: u64::from(geometry.extent_bytes),
        region_bytes: geometry.region_bytes,
        regions: u64::from(geometry.regions_per_shard) * u64::from(geometry.shard_count),
        shards: geometry.shard_count,
    }
}

/// The same of a volume, which has `held_bytes` of a shared device.
pub(crate) fn volume_report(mut report: CacheReport, held_bytes: u64, front_bytes: u64) -> CacheReport {
    report.size_bytes = held_bytes;
    report.data_bytes = held_bytes.saturating_sub(front_bytes.next_multiple_of(report.region_bytes));
    report.regions = report.data_bytes / report.region_bytes;
    report
}

/// Writeback of one shard: blocks left, blocks written, and time taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cleaning {
    dirty_blocks: u64,
    cleaned_blocks: u64,
    clean_ns: u64,
}

impl Cleaning {
    /// From the counters of the shard.
    pub(crate) fn of(stats: &StatsSnapshot) -> Self {
        Self {
            dirty_blocks: stats.holdings.dirty_blocks,
            cleaned_blocks: stats.counts.cleaned_blocks,
            clean_ns: stats.counts.clean_ns,
        }
    }

    /// Seconds per block so far, if any block was written. Time is counted at the end of a batch and not during
    /// reclaim; until then the number of blocks alone does not give a rate.
    fn seconds_each(&self) -> Option<f64> {
        let measured = self.cleaned_blocks > 0 && self.clean_ns > 0;
        measured.then(|| self.clean_ns as f64 / 1e9 / self.cleaned_blocks as f64)
    }
}

/// Facts about a server other than its counters.
pub(crate) struct Facts<'a> {
    pub spec: &'a ServeSpec,
    pub settings: Settings,
    pub cache: &'a CacheReport,
    pub origin: &'a OriginReport,
    /// The change of the size under way.
    pub shrink: Option<ShrinkReport>,
    /// What the volume has of a shared cache device.
    pub share: Option<ShareReport>,
    /// Bytes of the origin now; `TimedOut` if its file system hangs.
    pub origin_now: io::Result<u64>,
    /// Why the origin cannot be written.
    pub origin_protection: Option<&'a str>,
    pub started: Instant,
    pub opened: &'a Opened,
    pub stopping: bool,
    /// Number of threads that drive shards.
    pub threads: u32,
    /// Memory of their tasks.
    pub task_bytes: u64,
    /// Memory that buffers of requests take at most.
    pub request_bytes_max: u64,
    /// The addresses that clients connect to.
    pub listeners: Vec<NbdReport>,
    /// The block devices.
    pub devices: Vec<BlockDeviceReport>,
    /// Names and sizes of block devices that are smaller than the volume.
    pub smaller_devices: Vec<(PathBuf, u64)>,
}

/// The status of a running cache. `nbd`: the counts of each thread's connections.
pub(crate) fn live(
    facts: &Facts<'_>,
    stats: &StatsSnapshot,
    cleaning: &[Cleaning],
    nbd: &[Snapshot],
) -> StatusReport {
    let failed = stats.holdings.cache_failed;
    let state = if facts.stopping {
        CacheState::Stopping
    } else if failed {
        CacheState::Degraded
    } else {
        CacheState::Running
    };
    let report = StatusReport {
        schema: REPORT_SCHEMA,
        state,
        health: None,
        cache: facts.cache.clone(),
        origin: facts.origin.clone(),
        settings: Some(facts.settings.clone()),
        may_be_dirty: stats.holdings.dirty_blocks > 0,
        start_refused: None,
        live: Some(live_report(facts, stats, cleaning, nbd)),
        warnings: warnings(facts, stats, failed),
    };
    report.with_health()
}

fn warnings(facts: &Facts<'_>, stats: &StatsSnapshot, failed: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    if stats.holdings.writeback_failing > 0 {
        warnings.push(
            "writeback to the origin fails: dirty blocks stay on the cache device and writeback is retried; \
             fix the origin, and keep it with this cache device"
                .to_owned(),
        );
    }
    if stats.holdings.damaged_blocks > 0 {
        warnings.push(
            "dirty blocks on the cache device are damaged: requests for them fail; `flaz check` lists them, \
             and overwriting them makes them usable again"
                .to_owned(),
        );
    }
    if stats.counts.regions_unreadable > 0 {
        warnings.push(format!(
            "{} of the cache device could not be read, and the clean blocks in them were dropped: the device may be failing; check it \
             with `smartctl`, and replace it",
            counted(stats.counts.regions_unreadable, "region", "regions")
        ));
    }
    if stats.counts.index_pages_rebuilt > 0 {
        warnings.push(format!(
            "{} of the index could not be read from the cache device, and nothing was lost: the device may be failing; check it with \
             `smartctl`, and replace it",
            counted(stats.counts.index_pages_rebuilt, "page", "pages")
        ));
    }
    if failed && stats.holdings.dirty_blocks > 0 {
        warnings.push(format!(
            "{} only on the failed cache device: keep it",
            counted(stats.holdings.dirty_blocks, "dirty block is", "dirty blocks are")
        ));
    }
    if failed {
        warnings.push(bypassed(stats.counts.cache_no_space > 0));
    } else if stats.holdings.withheld_bytes > 0 && stats.counts.allocations_without_space > 0 {
        warnings.push(format!(
            "{NO_SPACE}: {} of the cache are not used until there is space",
            HumanBytes(stats.holdings.withheld_bytes)
        ));
    }
    if let Some(why) = facts.origin_protection {
        warnings.push(format!(
            "the origin is read-only ({why}), and so is the cached device: make the origin writable and restart"
        ));
    }
    match &facts.origin_now {
        Ok(now) if *now != facts.origin.size_bytes => warnings.push(other_size(facts, *now)),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => warnings.push(format!(
            "the file system of the origin {} does not respond: requests for data that is not cached wait for it",
            facts.origin.path.display()
        )),
        _ => {}
    }
    for (name, bytes) in &facts.smaller_devices {
        warnings.push(format!(
            "{} has {bytes} bytes, {} are served: `flaz volume resize {}` says how it gets the new size",
            name.display(),
            facts.origin.size_bytes,
            quoted(&facts.cache.path)
        ));
    }
    for (device, emulation) in [
        ("origin", facts.spec.emulate_origin),
        ("cache device", facts.spec.emulate_cache),
    ] {
        if let Some(emulation) = emulation {
            warnings.push(format!(
                "the {device} is slowed down to emulate '{emulation}': for demos and tests only"
            ));
        }
    }
    warnings
}

/// The warning that the origin has another size than the volume.
fn other_size(facts: &Facts<'_>, now: u64) -> String {
    let served = facts.origin.size_bytes;
    if now < served {
        return format!("the origin has shrunk to {now} bytes, {served} are served: restore its size");
    }
    format!(
        "the origin has grown to {now} bytes, {served} are served: serve all of it with `flaz volume resize {}`",
        quoted(&facts.cache.path)
    )
}

/// The warning that the cache device is not used.
fn bypassed(found_no_space: bool) -> String {
    if found_no_space {
        return format!(
            "{NO_SPACE}: the cache is bypassed, at least in part, and I/O goes to the origin; free space there and restart \
             flaz, or create the cache anew without --sparse, which allocates its space"
        );
    }
    "the cache device failed or does not answer and is bypassed, at least in part: I/O goes to the origin; restart when the \
     device works again, or create a new cache on another device"
        .to_owned()
}

fn live_report(
    facts: &Facts<'_>,
    stats: &StatsSnapshot,
    cleaning: &[Cleaning],
    threads: &[Snapshot],
) -> LiveReport {
    let counts = &stats.counts;
    let mut nbd = Snapshot::default();
    for thread in threads {
        nbd += *thread;
    }
    LiveReport {
        daemon: daemon_report(facts),
        operations: operations(stats, &nbd),
        latency_bounds_s: LATENCY_BOUNDS_NS.map(|bound| bound as f64 / 1e9).into(),
        lookups: LookupReport {
            hits: counts.read_hits,
            partial_hits: counts.read_partial_hits,
            misses: counts.read_misses,
            hit_blocks: counts.hit_blocks,
            miss_blocks: counts.miss_blocks,
            joined_blocks: counts.joined_reads,
            origin_reads: counts.origin_reads,
        },
        admission: AdmissionReport {
            admitted_blocks: counts.admitted_blocks - counts.admitted_writes,
            written_blocks: counts.admitted_writes,
            refused_blocks: refused(counts),
        },
        codec: CodecReport {
            in_bytes: counts.codec_in_bytes - counts.same_filled_blocks * BLOCK,
            out_bytes: counts.codec_out_bytes,
            compressed_blocks: counts.packed_blocks,
            raw_blocks: counts.raw_blocks,
            single_value_blocks: counts.same_filled_blocks,
            decompressed_blocks: counts.unpacked_blocks,
            compress_s: counts.pack_ns as f64 / 1e9,
            decompress_s: counts.unpack_ns as f64 / 1e9,
            recompressed_blocks: counts.repacked_blocks,
            recompressed_saved_bytes: counts.repacked_saved_bytes,
            grouped_blocks: counts.grouped_blocks,
            divided_groups: counts.groups_divided,
            dictionaries: counts.dictionaries_made,
            recompress_s: counts.repack_ns as f64 / 1e9,
            high_effort_s: counts.high_effort_ns as f64 / 1e9,
            less_compressed_blocks: counts.undone_blocks,
        },
        space: space(stats, facts),
        write_back: write_back(stats, cleaning),
        shrink: facts.shrink,
        share: facts.share.clone(),
        traffic: TrafficReport {
            cache_read_bytes: counts.cache_read_bytes,
            cache_written_bytes: counts.cache_write_bytes,
            cache_written: cache_written(stats),
            cache_discarded_bytes: counts.discarded_bytes,
            origin_read_bytes: counts.origin_read_bytes,
            origin_written_bytes: counts.origin_write_bytes,
        },
        write_budget: write_budget(stats),
        reclaim: ReclaimReport {
            regions: counts.regions_reclaimed,
            dropped_blocks: counts.reclaimed_blocks,
            reinserted_blocks: counts.reinserted_blocks,
            reinserted_bytes: counts.reinserted_bytes,
            ghost_hits: counts.ghost_hits,
        },
        errors: ErrorReport {
            checksum_failures: counts.checksum_failures,
            cache_read_errors: counts.cache_read_errors,
            cache_write_errors: counts.cache_write_errors,
            cache_no_space_errors: counts.cache_no_space,
            cache_unreadable_regions: counts.regions_unreadable,
            origin_errors: counts.origin_errors,
        },
        memory: memory_report(stats, facts),
        queues: queues(stats, threads, facts),
        nbd: facts.listeners.clone(),
        block_devices: facts.devices.clone(),
    }
}

fn cache_written(stats: &StatsSnapshot) -> CacheWritesReport {
    let appended = &stats.appended;
    CacheWritesReport {
        admitted_bytes: appended.admitted,
        dirty_bytes: appended.dirty,
        reinserted_bytes: appended.reinserted,
        moved_dirty_bytes: appended.moved_dirty,
        // Appended bytes may not be written yet.
        other_bytes: stats.counts.cache_write_bytes.saturating_sub(appended.total()),
    }
}

fn write_budget(stats: &StatsSnapshot) -> Option<WriteBudgetReport> {
    let budget = &stats.holdings.budget;
    (budget.per_day > 0).then(|| WriteBudgetReport {
        bytes_per_day: budget.per_day,
        left_bytes: budget.left,
        owed_bytes: budget.owed,
        last_day_bytes: budget.last_day,
        state: budget.allowance().into(),
    })
}

fn write_back(stats: &StatsSnapshot, cleaning: &[Cleaning]) -> WriteBackReport {
    let (counts, holdings) = (&stats.counts, &stats.holdings);
    WriteBackReport {
        dirty_blocks: holdings.dirty_blocks,
        dirty_bytes: holdings.dirty_blocks * BLOCK,
        dirty_device_bytes: holdings.dirty_device_bytes,
        limit_bytes: holdings.dirty_limit_bytes,
        dirty_s: holdings.dirty_ns as f64 / 1e9,
        // The rate so far says nothing about an origin that takes no writes.
        clean_s: clean_s(cleaning).filter(|_| holdings.writeback_failing == 0),
        cleaned_blocks: counts.cleaned_blocks,
        waits: counts.dirty_waits,
        moved_blocks: counts.dirty_moved_blocks,
        lost: holdings.damaged_blocks,
        failing: holdings.writeback_failing > 0,
        acknowledged_extents: counts.ack_extents,
        acknowledged_blocks: counts.ack_extent_blocks,
        acknowledged_bytes: counts.ack_extent_bytes,
    }
}

/// Seconds until all shards are clean. Shards write back in parallel, each at its own pace, so the slowest one
/// determines the result. A shard without a rate yet gets the average rate of the others.
fn clean_s(shards: &[Cleaning]) -> Option<f64> {
    let (mut blocks, mut ns) = (0, 0);
    for shard in shards.iter().filter(|shard| shard.seconds_each().is_some()) {
        blocks += shard.cleaned_blocks;
        ns += shard.clean_ns;
    }
    let average = Cleaning {
        dirty_blocks: 0,
        cleaned_blocks: blocks,
        clean_ns: ns,
    };
    let average = average.seconds_each()?;
    let seconds = |shard: &Cleaning| shard.dirty_blocks as f64 * shard.seconds_each().unwrap_or(average);
    Some(shards.iter().map(seconds).fold(0.0, f64::max))
}

fn daemon_report(facts: &Facts<'_>) -> DaemonReport {
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    DaemonReport {
        name: facts.spec.name.clone(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_s: facts.started.elapsed().as_secs_f64(),
        threads: facts.threads,
        cpu_s: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        started_warm: facts.opened.start.keeps_contents(),
        recovery_ms: facts.opened.restored_in.as_secs_f64() * 1000.0,
        read_only: facts.spec.read_only,
        emulate_origin: facts.spec.emulate_origin,
        emulate_cache: facts.spec.emulate_cache,
    }
}

fn latency(summary: LatencySummary) -> Option<LatencyReport> {
    // The resolution of the clock is assumed to be at least a microsecond.
    (summary.max_us > 0.0).then_some(LatencyReport {
        mean: summary.mean_us,
        p50: summary.p50_us,
        p90: summary.p90_us,
        p99: summary.p99_us,
        p999: summary.p999_us,
        max: summary.max_us,
    })
}

/// The NBD server counts requests as clients sent them, and failures. The shards count the latency inside the engine;
/// the host counts that of operations on all shards.
fn operations(stats: &StatsSnapshot, nbd: &Snapshot) -> Vec<OperationReport> {
    let mut all = client_operations(stats, nbd);
    all.extend(device_operations(stats));
    all
}

fn operation(name: &str, count: u64, bytes: u64, errors: u64, latency: &Latency) -> OperationReport {
    let latency_us = self::latency(latency.summary());
    OperationReport {
        operation: name.to_owned(),
        count,
        bytes,
        errors,
        latency_counts: match latency_us {
            Some(_) => latency.counts_to(&LATENCY_BOUNDS_NS),
            None => Vec::new(),
        },
        latency_sum_s: latency.sum_ns() / 1e9,
        latency_us,
    }
}

fn client_operations(stats: &StatsSnapshot, nbd: &Snapshot) -> Vec<OperationReport> {
    let (counts, took) = (&stats.counts, &stats.latencies);
    let mut reads = took.read_hit.clone();
    reads.add(&took.read_miss);
    let misses = counts.read_misses + counts.read_partial_hits;
    [
        ("read", nbd.reads, counts.read_bytes, nbd.read_errors, &reads),
        ("read-hit", counts.read_hits, 0, 0, &took.read_hit),
        ("read-miss", misses, 0, 0, &took.read_miss),
        (
            "write",
            nbd.writes,
            counts.write_bytes,
            nbd.write_errors,
            &took.write,
        ),
        ("flush", nbd.flushes, 0, nbd.flush_errors, &took.flush),
        ("trim", nbd.trims, 0, nbd.trim_errors, &took.trim),
        (
            "write-zeroes",
            nbd.write_zeroes,
            0,
            nbd.write_zeroes_errors,
            &took.write_zeroes,
        ),
        ("prefetch", nbd.prefetches, 0, nbd.prefetch_errors, &took.prefetch),
    ]
    .map(|(name, count, bytes, errors, took)| operation(name, count, bytes, errors, took))
    .into()
}

fn device_operations(stats: &StatsSnapshot) -> [OperationReport; 4] {
    let (counts, took) = (&stats.counts, &stats.latencies);
    [
        operation(
            "origin-read",
            counts.origin_reads,
            counts.origin_read_bytes,
            counts.origin_read_errors,
            &took.origin_read,
        ),
        operation(
            "origin-write",
            counts.origin_writes,
            counts.origin_write_bytes,
            counts.origin_errors - counts.origin_read_errors,
            &took.origin_write,
        ),
        operation(
            "cache-read",
            counts.cache_reads,
            counts.cache_read_bytes,
            counts.cache_read_errors,
            &took.cache_read,
        ),
        operation(
            "cache-write",
            counts.cache_writes,
            counts.cache_write_bytes,
            counts.cache_write_errors,
            &took.cache_write,
        ),
    ]
}

fn refused(counts: &Counts) -> BTreeMap<String, u64> {
    [
        ("policy", counts.refused_policy),
        ("write-budget", counts.refused_budget),
        ("sequential", counts.refused_sequential),
        ("queue-full", counts.refused_queue_full),
        ("overtaken-by-write", counts.refused_overtaken),
        ("already-there", counts.refused_present),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .map(|(reason, count)| (reason.to_owned(), count))
    .collect()
}

fn space(stats: &StatsSnapshot, facts: &Facts<'_>) -> SpaceReport {
    let holdings = &stats.holdings;
    let region_bytes = facts.cache.region_bytes.max(1);
    let cached_bytes = holdings.cached_blocks * BLOCK;
    let ratio = |of: u64, by: u64, over: u64| {
        if over == 0 {
            0
        } else {
            (of as f64 * by as f64 / over as f64) as u64
        }
    };
    SpaceReport {
        cached_blocks: holdings.cached_blocks,
        cached_bytes,
        fragment_bytes: holdings.fragment_bytes,
        used_bytes: holdings.used_bytes,
        capacity_bytes: holdings.capacity_bytes,
        effective_capacity_bytes: ratio(holdings.capacity_bytes, cached_bytes, holdings.used_bytes),
        probation_regions: holdings.ring_bytes[0] / region_bytes,
        main_regions: holdings.ring_bytes[1] / region_bytes,
        free_regions: holdings.free_bytes / region_bytes,
    }
}

/// How full the queues are. Depth and peak are those of the fullest queue of a kind, because a sum of peaks has no
/// meaning.
fn queues(stats: &StatsSnapshot, nbd: &[Snapshot], facts: &Facts<'_>) -> Vec<QueueReport> {
    let (holdings, counts) = (&stats.holdings, &stats.counts);
    let shards = u64::from(facts.cache.shards);
    let mut requests = QueueDepth::default();
    for thread in nbd {
        requests.fullest(QueueDepth {
            now: thread.requests_in_flight(),
            peak: thread.requests_in_flight_peak,
        });
    }
    let requests_full = nbd.iter().map(|thread| thread.requests_full).sum();
    // Each connection reads one request more before it waits.
    let requests_max = (CONNECTIONS_MAX * (REQUESTS_IN_FLIGHT_MAX + 1)) as u64;
    let one = |name: &str, queues, depth: QueueDepth, depth_max, full_count| QueueReport {
        name: name.to_owned(),
        queues,
        depth: depth.now,
        depth_peak: depth.peak,
        depth_max,
        full_count,
    };
    let mut reports = vec![
        one(
            "requests",
            nbd.len() as u64,
            requests,
            requests_max,
            requests_full,
        ),
        one(
            "admission",
            shards,
            holdings.admission,
            JOBS_MAX as u64,
            counts.admission_full,
        ),
        one(
            "cache-writes",
            shards,
            holdings.cache_writes,
            2 * WRITES_IN_FLIGHT_MAX as u64,
            counts.cache_writes_full,
        ),
        one(
            "origin-reads",
            shards,
            holdings.origin_reads,
            ORIGIN_READS_MAX as u64,
            counts.origin_reads_full,
        ),
    ];
    for (name, queue) in ["codec-reads", "codec-writes", "codec-spare"]
        .into_iter()
        .zip(codec_queues())
    {
        let depth = QueueDepth {
            now: queue.waiting,
            peak: queue.waiting_peak,
        };
        reports.push(one(name, 1, depth, QUEUE_MAX as u64, queue.full_count));
    }
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dirty blocks, and blocks written in a number of seconds.
    fn shard(dirty_blocks: u64, cleaned_blocks: u64, seconds: u64) -> Cleaning {
        Cleaning {
            dirty_blocks,
            cleaned_blocks,
            clean_ns: seconds * 1_000_000_000,
        }
    }

    #[test]
    fn a_full_file_system_is_named_as_the_cause_of_a_bypass() {
        assert!(bypassed(true).contains("no space left on the file system of the cache file"));
        assert!(bypassed(true).contains("--sparse"));
        assert!(!bypassed(false).contains("space"));
    }

    #[test]
    fn writeback_time_is_unknown_before_any_writeback() {
        assert_eq!(clean_s(&[]), None);
        assert_eq!(clean_s(&[shard(1000, 0, 0), shard(0, 0, 0)]), None);
        // An origin that accepts no writes still takes time.
        assert_eq!(clean_s(&[shard(1000, 0, 30), shard(0, 0, 0)]), None);
        // Blocks of a batch in progress, or of reclaim, have no time yet.
        assert_eq!(clean_s(&[shard(1000, 50, 0), shard(0, 0, 0)]), None);
    }

    #[test]
    fn writeback_time_is_unknown_while_writeback_fails() {
        let mut stats = StatsSnapshot::default();
        let report = |stats: &StatsSnapshot| write_back(stats, &[shard(1000, 200, 2)]);
        assert_eq!(report(&stats).clean_s, Some(10.0));
        stats.holdings.writeback_failing = 1;
        let failing = report(&stats);
        assert!(failing.failing && failing.clean_s.is_none(), "{failing:?}");
    }

    /// At 100 blocks per second, with any number of shards beside it.
    #[test]
    fn a_single_shard_determines_the_writeback_time() {
        let alone = shard(1000, 200, 2);
        assert_eq!(clean_s(&[alone]), Some(10.0));
        assert_eq!(clean_s(&[alone, shard(0, 0, 0)]), Some(10.0));
        assert_eq!(clean_s(&[shard(0, 0, 0), shard(0, 0, 0), alone]), Some(10.0));
        // The other shard is assumed to be as fast.
        assert_eq!(clean_s(&[alone, shard(3000, 0, 0)]), Some(30.0));
        assert_eq!(clean_s(&[alone, shard(3000, 50, 0)]), Some(30.0));
        assert_eq!(clean_s(&[alone, shard(3000, 0, 5)]), Some(30.0));
    }

    #[test]
    fn the_slowest_shard_determines_the_writeback_time() {
        // Many blocks at 1000 per second, few at 10 per second.
        let (fast, slow) = (shard(5000, 4000, 4), shard(200, 10, 1));
        assert_eq!(clean_s(&[fast, slow]), Some(20.0));
        assert_eq!(clean_s(&[slow, fast, shard(0, 100, 1)]), Some(20.0));
        // 4010 blocks in 5 seconds in total.
        assert_eq!(clean_s(&[fast, slow, shard(40_100, 0, 0)]), Some(50.0));
        assert_eq!(clean_s(&[shard(0, 4000, 4), shard(0, 10, 1)]), Some(0.0));
    }
}
