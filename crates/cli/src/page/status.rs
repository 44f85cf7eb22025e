//! The detailed page of `flaz status`.

use std::time::Duration;

use super::summary::{health, state};
use super::{Page, geometry, seconds, settings};
use crate::report::{
    CodecReport, ErrorReport, Health, LatencyReport, LiveReport, OperationReport, ShareReport, ShrinkReport,
    StatusReport, WriteBackReport,
};
use crate::size::{HumanBytes, HumanCount, HumanDuration, HumanMicros, HumanPercent, HumanRatio, counted};

/// The detailed page of `flaz status`, with rates since an earlier report.
#[must_use]
pub fn details(report: &StatusReport, earlier: Option<(&StatusReport, Duration)>) -> String {
    let mut page = Page(String::new());
    head(&mut page, report);
    for warning in &report.warnings {
        page.line("Warning", warning);
    }
    if let Some(live) = &report.live {
        page.gap();
        if let Some((
            StatusReport {
                live: Some(before), ..
            },
            span,
        )) = earlier
        {
            recent(&mut page, before, live, span);
            page.gap();
        }
        reads(&mut page, live);
        holdings(&mut page, live);
        movement(&mut page, live);
        page.gap();
        operations(&mut page, &live.operations);
        page.gap();
        insides(&mut page, live);
    }
    page.0
}

/// The level, and all reasons.
fn all_reasons(health: &Health) -> String {
    let level = health.level.name();
    if health.reasons.is_empty() {
        return level.to_owned();
    }
    format!("{level}: {}", health.reasons.join("; "))
}

fn head(page: &mut Page, report: &StatusReport) {
    let state = state(report);
    let daemon = report.live.as_ref().map_or_else(String::new, |live| {
        let daemon = &live.daemon;
        format!(
            ", pid {}, up {}, {}, {} CPU, flaz {}{}",
            daemon.pid,
            HumanDuration(seconds(daemon.uptime_s)),
            counted(daemon.threads.into(), "thread", "threads"),
            HumanDuration(seconds(daemon.cpu_s)),
            daemon.version,
            if daemon.read_only { ", READ-ONLY" } else { "" }
        )
    });
    page.line("Health", &all_reasons(&health(report)));
    page.line("State", &format!("{state}{daemon}"));
    let cache = &report.cache;
    page.line(
        "Cache",
        &format!(
            "{}, {}, uuid {}",
            cache.path.display(),
            HumanBytes(cache.size_bytes),
            cache.uuid
        ),
    );
    page.more(&geometry(cache));
    if let Some(share) = report.live.as_ref().and_then(|live| live.share.as_ref()) {
        page.line("Space", &space(share));
    }
    if let Some(shrink) = report.live.as_ref().and_then(|live| live.shrink) {
        page.more(&shrinking(&shrink));
    }
    page.line(
        "Origin",
        &format!(
            "{}, {}",
            report.origin.path.display(),
            HumanBytes(report.origin.size_bytes)
        ),
    );
    match &report.settings {
        Some(in_force) if report.state.is_running() => page.line("Settings", &settings(in_force)),
        // Settings of a daemon; none is running.
        Some(next) => page.line(
            "Settings",
            &format!("at the next start, by default: {}", settings(next)),
        ),
        None => {}
    }
    let Some(live) = &report.live else { return };
    for device in &live.block_devices {
        page.line(
            "Block device",
            &format!(
                "{} ({}), {} of {}",
                device.name.display(),
                device.device.display(),
                counted(device.queues.into(), "queue", "queues"),
                counted(device.depth.into(), "request", "requests")
            ),
        );
    }
    for nbd in &live.nbd {
        page.line(
            "NBD",
            &format!(
                "{}, {} of {} connections, {} in total",
                nbd.address, nbd.connections, nbd.connections_max, nbd.connections_total
            ),
        );
    }
}

fn space(share: &ShareReport) -> String {
    let mut text = format!("{} of a shared device", HumanBytes(share.held_bytes));
    if share.at_least_bytes > 0 {
        text += &format!(", at least {}", HumanBytes(share.at_least_bytes));
    }
    if let Some(most) = share.at_most_bytes {
        text += &format!(", at most {}", HumanBytes(most));
    }
    text += &format!(
        "; {} free, need {}",
        HumanBytes(share.free_bytes),
        HumanCount(share.need)
    );
    if let Some(budget) = &share.write_budget {
        text += &format!(
            "; write budget of all volumes {} per day, {} left",
            HumanBytes(budget.bytes_per_day),
            HumanBytes(budget.left_bytes)
        );
    }
    text
}

fn shrinking(shrink: &ShrinkReport) -> String {
    let left = match shrink.dirty_bytes_left {
        0 => format!("regions to empty: {}", HumanCount(shrink.regions_left)),
        bytes => format!("{} to write to the origin first", HumanBytes(bytes)),
    };
    format!("shrinking to {}; {left}", HumanBytes(shrink.size_bytes))
}

/// Rates since an earlier report.
fn recent(page: &mut Page, before: &LiveReport, live: &LiveReport, span: Duration) {
    let per_second = |amount: u64| (amount as f64 / span.as_secs_f64().max(1e-3)) as u64;
    let mut parts = Vec::new();
    for operation in &live.operations {
        let old = before
            .operations
            .iter()
            .find(|other| other.operation == operation.operation);
        let (old_count, old_bytes) = old.map_or((0, 0), |old| (old.count, old.bytes));
        let count = operation.count.saturating_sub(old_count);
        if count > 0 {
            let bytes = operation.bytes.saturating_sub(old_bytes);
            parts.push(format!(
                "{} {}/s {}/s",
                operation.operation,
                HumanCount(per_second(count)),
                HumanBytes(per_second(bytes))
            ));
        }
    }
    page.line(
        "Now",
        &if parts.is_empty() {
            "idle".to_owned()
        } else {
            parts.join("   ")
        },
    );
    let hits = live.lookups.hit_blocks.saturating_sub(before.lookups.hit_blocks);
    let misses = live
        .lookups
        .miss_blocks
        .saturating_sub(before.lookups.miss_blocks);
    let traffic = |now: u64, then: u64| HumanBytes(per_second(now.saturating_sub(then)));
    page.more(&format!(
        "block hits {}   cache device {}/s read, {}/s written   origin {}/s read, {}/s written",
        HumanPercent {
            part: hits,
            whole: hits + misses
        },
        traffic(live.traffic.cache_read_bytes, before.traffic.cache_read_bytes),
        traffic(
            live.traffic.cache_written_bytes,
            before.traffic.cache_written_bytes
        ),
        traffic(live.traffic.origin_read_bytes, before.traffic.origin_read_bytes),
        traffic(
            live.traffic.origin_written_bytes,
            before.traffic.origin_written_bytes
        ),
    ));
}

fn errors(errors: &ErrorReport) -> String {
    if *errors == ErrorReport::default() {
        return "none".to_owned();
    }
    format!(
        "{}; cache device: {}, {}, {}; origin: {}",
        counted(errors.checksum_failures, "checksum failure", "checksum failures"),
        counted(errors.cache_read_errors, "failed read", "failed reads"),
        counted(errors.cache_write_errors, "failed write", "failed writes"),
        counted(
            errors.cache_unreadable_regions,
            "unreadable region",
            "unreadable regions"
        ),
        counted(errors.origin_errors, "failed request", "failed requests")
    )
}

fn reads(page: &mut Page, live: &LiveReport) {
    let lookups = &live.lookups;
    let requests = lookups.hits + lookups.partial_hits + lookups.misses;
    let blocks = lookups.hit_blocks + lookups.miss_blocks;
    page.line(
        "Hits",
        &format!(
            "{} of reads, {} of blocks",
            HumanPercent {
                part: lookups.hits,
                whole: requests
            },
            HumanPercent {
                part: lookups.hit_blocks,
                whole: blocks
            }
        ),
    );
    page.more(&format!(
        "{}, {} partial, {}; {} shared another read, {}",
        counted(lookups.hits, "hit", "hits"),
        HumanCount(lookups.partial_hits),
        counted(lookups.misses, "miss", "misses"),
        counted(lookups.joined_blocks, "block", "blocks"),
        counted(lookups.origin_reads, "origin read", "origin reads")
    ));
}

fn holdings(page: &mut Page, live: &LiveReport) {
    let space = &live.space;
    page.line(
        "Holds",
        &format!(
            "{} of data in {} of fragments ({}); {} of {} in use ({})",
            HumanBytes(space.cached_bytes),
            HumanBytes(space.fragment_bytes),
            HumanRatio {
                amount: space.cached_bytes,
                by: space.fragment_bytes
            },
            HumanBytes(space.used_bytes),
            HumanBytes(space.capacity_bytes),
            HumanPercent {
                part: space.used_bytes,
                whole: space.capacity_bytes
            }
        ),
    );
    page.more(&format!(
        "{}; effective capacity {} ({}); regions: {} probation, {} main, {} free",
        counted(space.cached_blocks, "block", "blocks"),
        HumanBytes(space.effective_capacity_bytes),
        HumanRatio {
            amount: space.effective_capacity_bytes,
            by: space.capacity_bytes
        },
        HumanCount(space.probation_regions),
        HumanCount(space.main_regions),
        HumanCount(space.free_regions)
    ));
    let dirty = &live.write_back;
    if dirty.dirty_blocks > 0 || dirty.cleaned_blocks > 0 {
        write_back(page, dirty);
    }
    codec(page, &live.codec);
}

fn write_back(page: &mut Page, dirty: &WriteBackReport) {
    let time = match dirty.clean_s {
        _ if dirty.dirty_blocks == 0 => String::new(),
        _ if dirty.failing => "; write-back is failing".to_owned(),
        Some(s) => format!("; write-back takes {}", HumanDuration(seconds(s))),
        None => "; the time for write-back is not known yet".to_owned(),
    };
    page.line(
        "Dirty",
        &format!(
            "{}; {} of the dirty limit of {} used{time}",
            HumanBytes(dirty.dirty_bytes),
            HumanBytes(dirty.dirty_device_bytes),
            HumanBytes(dirty.limit_bytes)
        ),
    );
    page.more(&format!(
        "{} written back, {} waited; {} closed early for {} ({} per block)",
        counted(dirty.cleaned_blocks, "block", "blocks"),
        counted(dirty.waits, "write", "writes"),
        counted(dirty.acknowledged_extents, "extent", "extents"),
        counted(dirty.acknowledged_blocks, "block", "blocks"),
        HumanBytes(dirty.acknowledged_bytes / dirty.acknowledged_blocks.max(1))
    ));
}

fn codec(page: &mut Page, codec: &CodecReport) {
    page.line(
        "Codec",
        &format!(
            "{} in, {} out ({}); {} compressed, {} raw, {}",
            HumanBytes(codec.in_bytes),
            HumanBytes(codec.out_bytes),
            HumanRatio {
                amount: codec.in_bytes,
                by: codec.out_bytes
            },
            HumanCount(codec.compressed_blocks),
            HumanCount(codec.raw_blocks),
            counted(
                codec.single_value_blocks,
                "same-filled block",
                "same-filled blocks"
            )
        ),
    );
    page.more(&format!(
        "{} compressing, {} decompressing {}",
        HumanDuration(seconds(codec.compress_s)),
        HumanDuration(seconds(codec.decompress_s)),
        counted(codec.decompressed_blocks, "block", "blocks")
    ));
    if codec.recompressed_blocks > 0 {
        page.more(&format!(
            "{} compressed again at reclaim, {} saved, {} waited for that",
            counted(codec.recompressed_blocks, "block", "blocks"),
            HumanBytes(codec.recompressed_saved_bytes),
            HumanDuration(seconds(codec.recompress_s))
        ));
        page.more(&format!(
            "{} of these compressed together with neighbours; {} had lost blocks when reclaimed",
            counted(codec.grouped_blocks, "block", "blocks"),
            counted(codec.divided_groups, "group", "groups")
        ));
        if codec.high_effort_s > 0.0 {
            page.more(&format!(
                "{} with high effort, by processors with little else to do",
                HumanDuration(seconds(codec.high_effort_s))
            ));
        }
        if codec.dictionaries > 0 {
            page.more(&format!(
                "{} trained for these",
                counted(codec.dictionaries, "dictionary", "dictionaries")
            ));
        }
    }
    if codec.less_compressed_blocks > 0 {
        page.more(&format!(
            "{} stored again with less compression or none, because restoring took longer than misses",
            counted(codec.less_compressed_blocks, "block", "blocks")
        ));
    }
}

fn movement(page: &mut Page, live: &LiveReport) {
    let (admission, reclaim, traffic) = (&live.admission, &live.reclaim, &live.traffic);
    let refused = admission
        .refused_blocks
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("{} {reason}", HumanCount(*count)))
        .collect::<Vec<_>>();
    let refused = if refused.is_empty() {
        "none".to_owned()
    } else {
        refused.join(", ")
    };
    page.line(
        "Admitted",
        &format!(
            "{} after misses, {} by writes; not admitted: {refused}",
            counted(admission.admitted_blocks, "block", "blocks"),
            HumanCount(admission.written_blocks)
        ),
    );
    page.line(
        "Reclaimed",
        &format!(
            "{}: {} dropped, {} reinserted ({}); {}",
            counted(reclaim.regions, "region", "regions"),
            counted(reclaim.dropped_blocks, "block", "blocks"),
            HumanCount(reclaim.reinserted_blocks),
            HumanBytes(reclaim.reinserted_bytes),
            counted(reclaim.ghost_hits, "ghost hit", "ghost hits")
        ),
    );
    page.line(
        "Traffic",
        &format!(
            "cache device {} read, {} written, {} discarded",
            HumanBytes(traffic.cache_read_bytes),
            HumanBytes(traffic.cache_written_bytes),
            HumanBytes(traffic.cache_discarded_bytes)
        ),
    );
    page.more(&format!(
        "origin {} read, {} written",
        HumanBytes(traffic.origin_read_bytes),
        HumanBytes(traffic.origin_written_bytes)
    ));
    let written = &traffic.cache_written;
    page.more(&format!(
        "written: {} admitted, {} dirty, {} stored again, {} dirty moved, {} other",
        HumanBytes(written.admitted_bytes),
        HumanBytes(written.dirty_bytes),
        HumanBytes(written.reinserted_bytes),
        HumanBytes(written.moved_dirty_bytes),
        HumanBytes(written.other_bytes)
    ));
    if let Some(budget) = &live.write_budget {
        page.line(
            "Budget",
            &format!(
                "{} per day: {}; {} written in the last 24 h, {} left, {} owed",
                HumanBytes(budget.bytes_per_day),
                budget.state,
                HumanBytes(budget.last_day_bytes),
                HumanBytes(budget.left_bytes),
                HumanBytes(budget.owed_bytes)
            ),
        );
    }
    page.line("Errors", &errors(&live.errors));
}

fn operations(page: &mut Page, operations: &[OperationReport]) {
    const HEADS: [&str; 9] = [
        "count", "bytes", "mean", "p50", "p90", "p99", "p99.9", "max", "errors",
    ];
    let row = |cells: [String; 9]| {
        cells
            .iter()
            .fold(String::new(), |line, cell| line + &format!("{cell:>10} "))
    };
    page.line("Operation", &row(HEADS.map(str::to_owned)));
    let shown = |operation: &&OperationReport| operation.count > 0 || operation.errors > 0;
    if !operations.iter().any(|operation| shown(&operation)) {
        page.line("(none yet)", "");
    }
    for operation in operations.iter().filter(shown) {
        let us = |value: fn(&LatencyReport) -> f64| {
            let latency = operation.latency_us.as_ref();
            latency.map_or_else(|| "-".to_owned(), |it| HumanMicros(value(it)).to_string())
        };
        let cells = [
            HumanCount(operation.count).to_string(),
            if operation.bytes == 0 {
                "-".to_owned()
            } else {
                HumanBytes(operation.bytes).to_string()
            },
            us(|it| it.mean),
            us(|it| it.p50),
            us(|it| it.p90),
            us(|it| it.p99),
            us(|it| it.p999),
            us(|it| it.max),
            HumanCount(operation.errors).to_string(),
        ];
        page.line(&operation.operation, &row(cells));
    }
}

fn insides(page: &mut Page, live: &LiveReport) {
    memory(page, live);
    for (at, queue) in live.queues.iter().enumerate() {
        let limit = HumanCount(queue.depth_max).to_string();
        let fullest = match queue.queues {
            0 | 1 => String::new(),
            queues => format!("   fullest of {queues}"),
        };
        page.line(
            if at == 0 { "Queues" } else { "" },
            &format!(
                "{:<14} {:>8} now {:>8} peak {limit:>8} limit {:>8} times full{fullest}",
                queue.name,
                HumanCount(queue.depth),
                HumanCount(queue.depth_peak),
                HumanCount(queue.full_count)
            ),
        );
    }
    let start = if live.daemon.started_warm { "warm" } else { "cold" };
    page.line(
        "Start",
        &format!(
            "{start}, index loaded in {}",
            HumanMicros(live.daemon.recovery_ms * 1e3)
        ),
    );
}

fn memory(page: &mut Page, live: &LiveReport) {
    let (memory, space) = (&live.memory, &live.space);
    // Tables have their first size also while hardly anything is cached.
    let tells_blocks = space.cached_bytes >= space.capacity_bytes / 100;
    let by_block = tells_blocks.then(|| {
        format!(
            "; index {:.2} B/block, ghosts and tables {:.2} B/block",
            memory.index_bytes_per_block, memory.tables_bytes_per_block
        )
    });
    page.line(
        "Memory",
        &format!(
            "{} resident, {} listed{}",
            HumanBytes(memory.resident_bytes),
            HumanBytes(memory.listed_bytes),
            by_block.unwrap_or_default()
        ),
    );
    if let Some(index) = &memory.index_pages {
        page.line(
            "Index pages",
            &format!(
                "{} of {} in memory, at most {} with ghosts and tables; {:.3} reads a lookup, {:.1} % of the SSD's writes",
                HumanCount(index.pages_in_memory),
                HumanCount(index.pages),
                HumanBytes(index.bound_bytes),
                index.reads_per_lookup,
                100.0 * index.written_share
            ),
        );
    }
    for used in &memory.uses {
        let limit = used
            .bytes_max
            .map(|most| format!("   {:>10} at most", HumanBytes(most).to_string()));
        page.line(
            "",
            &format!(
                "{:<14} {:>10}{}",
                used.name,
                HumanBytes(used.bytes).to_string(),
                limit.unwrap_or_default()
            ),
        );
    }
}
