//! Reports on a page for people: aligned, compact, units on every number.

use std::fmt::Write;
use std::time::Duration;

use crate::report::{
    CacheState, CheckReport, CreateReport, DumpRecord, LiveReport, OperationReport, StatusReport,
};
use crate::settings::Settings;
use crate::size::{HumanBytes, HumanCount, HumanDuration, HumanMicros, HumanPercent, HumanRatio};

/// Bytes of a block.
const BLOCK_BYTES: u64 = 4096;
/// Problems of a check shown on the page; JSON has more.
const PROBLEMS_SHOWN_MAX: usize = 20;

/// Lines with a label on the left, appended one by one.
struct Page(String);

impl Page {
    fn line(&mut self, label: &str, text: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{}", format!("{label:<13} {text}").trim_end());
    }

    fn more(&mut self, text: &str) {
        self.line("", text);
    }

    fn gap(&mut self) {
        self.0.push('\n');
    }
}

/// The page of `flaz status`.
#[must_use]
pub fn status(report: &StatusReport) -> String {
    watch(report, None)
}

/// The same, with what happened since an earlier report.
#[must_use]
pub fn watch(report: &StatusReport, earlier: Option<(&StatusReport, Duration)>) -> String {
    let mut page = Page(String::new());
    head(&mut page, report);
    for warning in &report.warnings {
        page.line("WARNING", warning);
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

fn head(page: &mut Page, report: &StatusReport) {
    let state = match report.state {
        CacheState::Clean => "not running; stopped cleanly, the next start is warm",
        CacheState::Unclean => "not running; did NOT stop cleanly the last time",
        CacheState::New => "not running; never served yet",
        CacheState::Starting => "starting",
        CacheState::Running => "running",
        CacheState::Degraded => "DEGRADED: serving from the origin only",
        CacheState::Stopping => "stopping",
    };
    let daemon = report.live.as_ref().map_or_else(String::new, |live| {
        let daemon = &live.daemon;
        format!(
            ", pid {}, up {}, {} threads, {} CPU, flaz {}{}",
            daemon.pid,
            HumanDuration(seconds(daemon.uptime_s)),
            daemon.threads,
            HumanDuration(seconds(daemon.cpu_s)),
            daemon.version,
            if daemon.read_only { ", READ-ONLY" } else { "" }
        )
    });
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
    page.line(
        "Origin",
        &format!(
            "{}, {}",
            report.origin.path.display(),
            HumanBytes(report.origin.size_bytes)
        ),
    );
    if let Some(in_force) = &report.settings {
        page.line("Settings", &settings(in_force));
    }
    let Some(live) = &report.live else { return };
    for (device, emulation) in [
        ("origin", live.daemon.emulate_origin),
        ("cache device", live.daemon.emulate_cache),
    ] {
        if let Some(emulation) = emulation {
            page.line(
                "EMULATION",
                &format!("the {device} is slowed down to an emulated '{emulation}'"),
            );
        }
    }
    for nbd in &live.nbd {
        page.line(
            "NBD",
            &format!(
                "{}, {} of {} connections, {} since the start",
                nbd.address, nbd.connections, nbd.connections_max, nbd.connections_total
            ),
        );
    }
}

fn geometry(cache: &crate::report::CacheReport) -> String {
    format!(
        "format {}, {} regions of {}, extents of {}, {} shards",
        cache.format_version,
        HumanCount(cache.regions),
        HumanBytes(cache.region_bytes),
        HumanBytes(cache.extent_bytes),
        cache.shards
    )
}

/// Settings on one line.
#[must_use]
pub fn settings(settings: &Settings) -> String {
    let cutoff = match settings.sequential_cutoff_bytes {
        0 => "off".to_owned(),
        bytes => HumanBytes(bytes).to_string(),
    };
    format!(
        "{}, {}, codec {}, sequential cut-off {cutoff}",
        settings.mode, settings.policy, settings.codec
    )
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
        "{} hits, {} partial, {} misses; {} blocks joined another read, {} origin reads",
        HumanCount(lookups.hits),
        HumanCount(lookups.partial_hits),
        HumanCount(lookups.misses),
        HumanCount(lookups.joined_blocks),
        HumanCount(lookups.origin_reads)
    ));
}

fn holdings(page: &mut Page, live: &LiveReport) {
    let (space, codec) = (&live.space, &live.codec);
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
        "{} blocks; effective capacity {} ({}); regions: {} probation, {} main, {} free",
        HumanCount(space.cached_blocks),
        HumanBytes(space.effective_capacity_bytes),
        HumanRatio {
            amount: space.effective_capacity_bytes,
            by: space.capacity_bytes
        },
        HumanCount(space.probation_regions),
        HumanCount(space.main_regions),
        HumanCount(space.free_regions)
    ));
    page.line(
        "Codec",
        &format!(
            "{} in, {} out ({}); {} compressed, {} raw, {} single-value blocks",
            HumanBytes(codec.in_bytes),
            HumanBytes(codec.out_bytes),
            HumanRatio {
                amount: codec.in_bytes,
                by: codec.out_bytes
            },
            HumanCount(codec.compressed_blocks),
            HumanCount(codec.raw_blocks),
            HumanCount(codec.single_value_blocks)
        ),
    );
    page.more(&format!(
        "{} CPU compressing, {} decompressing {} blocks",
        HumanDuration(seconds(codec.compress_s)),
        HumanDuration(seconds(codec.decompress_s)),
        HumanCount(codec.decompressed_blocks)
    ));
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
            "{} blocks after misses, {} by writes; refused: {refused}",
            HumanCount(admission.admitted_blocks),
            HumanCount(admission.written_blocks)
        ),
    );
    page.line(
        "Reclaimed",
        &format!(
            "{} regions: {} blocks dropped, {} reinserted ({}); {} ghost hits",
            HumanCount(reclaim.regions),
            HumanCount(reclaim.dropped_blocks),
            HumanCount(reclaim.reinserted_blocks),
            HumanBytes(reclaim.reinserted_bytes),
            HumanCount(reclaim.ghost_hits)
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
    let errors = &live.errors;
    if *errors == Default::default() {
        page.line("Errors", "none");
    } else {
        page.line(
            "ERRORS",
            &format!(
                "{} checksum failures; cache device: {} failed reads, {} failed writes; origin: {} failed requests",
                HumanCount(errors.checksum_failures),
                HumanCount(errors.cache_read_errors),
                HumanCount(errors.cache_write_errors),
                HumanCount(errors.origin_errors)
            ),
        );
    }
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
    if operations.iter().all(|operation| operation.count == 0) {
        page.line("(none yet)", "");
    }
    for operation in operations.iter().filter(|operation| operation.count > 0) {
        let us = |value: f64| HumanMicros(value).to_string();
        let latency = &operation.latency_us;
        let cells = [
            HumanCount(operation.count).to_string(),
            if operation.bytes == 0 {
                "-".to_owned()
            } else {
                HumanBytes(operation.bytes).to_string()
            },
            us(latency.mean),
            us(latency.p50),
            us(latency.p90),
            us(latency.p99),
            us(latency.p999),
            us(latency.max),
            HumanCount(operation.errors).to_string(),
        ];
        page.line(&operation.operation, &row(cells));
    }
}

fn insides(page: &mut Page, live: &LiveReport) {
    let memory = &live.memory;
    page.line(
        "Memory",
        &format!(
            "index {} ({:.2} B/block), ghosts and others {} ({:.2} B/block), buffers {}, resident {}",
            HumanBytes(memory.index_bytes),
            memory.index_bytes_per_block,
            HumanBytes(memory.other_bytes),
            memory.other_bytes_per_block,
            HumanBytes(memory.buffer_bytes),
            HumanBytes(memory.resident_bytes)
        ),
    );
    for (at, queue) in live.queues.iter().enumerate() {
        page.line(
            if at == 0 { "Queues" } else { "" },
            &format!(
                "{:<20} {:>8} now {:>8} peak {:>8} limit {:>8} times full",
                queue.name,
                HumanCount(queue.depth),
                HumanCount(queue.depth_peak),
                HumanCount(queue.depth_max),
                HumanCount(queue.full_count)
            ),
        );
    }
    let start = if live.daemon.started_warm { "warm" } else { "cold" };
    page.line(
        "Start",
        &format!(
            "{start}, index restored in {}",
            HumanMicros(live.daemon.recovery_ms * 1e3)
        ),
    );
}

/// The page of `flaz create`.
#[must_use]
pub fn created(report: &CreateReport) -> String {
    let mut page = Page(String::new());
    let cache = &report.cache;
    page.line(
        "Created",
        &format!(
            "{}, {}, uuid {}",
            cache.path.display(),
            HumanBytes(cache.size_bytes),
            cache.uuid
        ),
    );
    page.more(&geometry(cache));
    page.line(
        "Origin",
        &format!(
            "{}, {}",
            report.origin.path.display(),
            HumanBytes(report.origin.size_bytes)
        ),
    );
    page.line(
        "Holds",
        &format!(
            "{} ({} blocks) before compression by {}",
            HumanBytes(cache.data_bytes),
            HumanCount(cache.data_bytes / BLOCK_BYTES),
            report.codec
        ),
    );
    page.line("Next", &format!("flaz serve {}", cache.path.display()));
    page.0
}

/// The page of `flaz check`.
#[must_use]
pub fn check(report: &CheckReport) -> String {
    let mut page = Page(String::new());
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
    page.line("Last stop", if report.clean { "clean" } else { "not clean" });
    page.line(
        "Verified",
        &format!(
            "{} of fragments in {}",
            HumanBytes(report.verified_bytes),
            HumanDuration(seconds(report.duration_s))
        ),
    );
    page.gap();
    page.line("Kind", &format!("{:>23} {:>14}", "good", "bad"));
    let mut kinds: Vec<&String> = report.good.keys().chain(report.bad.keys()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for kind in kinds {
        let count = |counts: &std::collections::BTreeMap<String, u64>| counts.get(kind).copied().unwrap_or(0);
        let (good, bad) = (HumanCount(count(&report.good)), HumanCount(count(&report.bad)));
        let _ = writeln!(page.0, "{kind:<22} {good:>14} {bad:>14}");
    }
    page.gap();
    for problem in report.problems.iter().take(PROBLEMS_SHOWN_MAX) {
        page.line(
            "BAD",
            &format!(
                "{} at offset {}: {}",
                problem.kind, problem.offset, problem.message
            ),
        );
    }
    let bad = report.bad_total();
    let shown = report.problems.len().min(PROBLEMS_SHOWN_MAX) as u64;
    if bad > shown && shown > 0 {
        page.line(
            "",
            &format!(
                "and {} more; --json lists up to {}",
                HumanCount(bad - shown),
                crate::report::PROBLEMS_LISTED_MAX
            ),
        );
    }
    page.line("Result", if bad == 0 { "good" } else { "BAD" });
    page.0
}

/// One line of `flaz dump`.
#[must_use]
pub fn dump(record: &DumpRecord) -> String {
    let mut line = format!("{:>14} {:>9} ", record.offset, record.len_bytes);
    for _ in 0..record.depth {
        line.push_str("  ");
    }
    line.push_str(&record.kind);
    for (name, value) in &record.fields {
        // A text is shown without quotes, everything else as in JSON.
        let _ = match value.as_str() {
            Some(text) => write!(line, " {name}={text}"),
            None => write!(line, " {name}={value}"),
        };
    }
    line.push('\n');
    line
}

/// Seconds of a report, which may come from elsewhere, as a span.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::report::*;
    use crate::settings::{Codec, Emulation, Mode, Policy};

    pub(crate) fn example() -> StatusReport {
        let latency_us = LatencyReport {
            mean: 31.5,
            p50: 25.0,
            p90: 48.0,
            p99: 130.0,
            p999: 2200.0,
            max: 13_100.0,
        };
        let read = OperationReport {
            operation: "read".to_owned(),
            count: 1_234_567,
            bytes: 5_056_786_432,
            errors: 0,
            latency_us,
        };
        let flush = OperationReport {
            operation: "flush".to_owned(),
            count: 12,
            latency_us,
            ..Default::default()
        };
        StatusReport {
            schema: REPORT_SCHEMA,
            state: CacheState::Running,
            cache: CacheReport {
                path: "/dev/nvme0n1p3".into(),
                uuid: Uuid::from_u128(0x1234),
                format_version: 1,
                size_bytes: 100 << 30,
                data_bytes: 99 << 30,
                extent_bytes: 64 << 10,
                region_bytes: 16 << 20,
                regions: 6336,
                shards: 8,
            },
            origin: OriginReport {
                path: "/dev/sdb".into(),
                size_bytes: 2 << 40,
            },
            settings: Some(Settings {
                mode: Mode::WriteThrough,
                policy: Policy::S3Fifo,
                codec: Codec::LZ4,
                sequential_cutoff_bytes: 4 << 20,
            }),
            live: Some(LiveReport {
                daemon: DaemonReport {
                    pid: 4711,
                    version: "0.1.0".to_owned(),
                    uptime_s: 7620.0,
                    threads: 4,
                    emulate_origin: Some(Emulation::Hdd),
                    ..Default::default()
                },
                operations: vec![
                    read,
                    flush,
                    OperationReport {
                        operation: "trim".to_owned(),
                        ..Default::default()
                    },
                ],
                lookups: LookupReport {
                    hits: 900,
                    partial_hits: 50,
                    misses: 50,
                    hit_blocks: 3,
                    miss_blocks: 1,
                    ..Default::default()
                },
                admission: AdmissionReport {
                    admitted_blocks: 10,
                    refused_blocks: [("sequential".to_owned(), 4), ("first-touch".to_owned(), 0)].into(),
                    ..Default::default()
                },
                codec: CodecReport {
                    in_bytes: 4000,
                    out_bytes: 1600,
                    ..Default::default()
                },
                queues: vec![QueueReport {
                    name: "codec".to_owned(),
                    depth: 1,
                    depth_peak: 9,
                    depth_max: 64,
                    full_count: 0,
                }],
                nbd: vec![NbdReport {
                    address: "unix:/x".to_owned(),
                    connections: 2,
                    connections_max: 64,
                    connections_total: 3,
                }],
                ..Default::default()
            }),
            warnings: vec!["the origin is emulated".to_owned()],
        }
    }

    #[test]
    fn a_running_cache_shows_what_matters() {
        let text = status(&example());
        for part in [
            "running, pid 4711, up 2 h 07 min, 4 threads",
            "/dev/nvme0n1p3, 100 GiB",
            "write-through, s3-fifo, codec lz4, sequential cut-off 4.00 MiB",
            "EMULATION     the origin is slowed down to an emulated 'hdd'",
            "WARNING       the origin is emulated",
            "90.0 % of reads, 75.0 % of blocks",
            "(2.50x)",
            "refused: 4 sequential\n",
            "2 of 64 connections",
            "1,234,567",
            "13.1 ms",
            "Errors        none",
        ] {
            assert!(text.contains(part), "no '{part}' in:\n{text}");
        }
        assert!(
            !text.contains("trim"),
            "operations that never happened are left out:\n{text}"
        );
        assert!(
            text.lines()
                .all(|line| line.len() <= 124 && line == line.trim_end()),
            "{text}"
        );
    }

    #[test]
    fn errors_stand_out() {
        let mut report = example();
        report.live.as_mut().unwrap().errors.checksum_failures = 3;
        assert!(status(&report).contains("ERRORS        3 checksum failures"));
    }

    #[test]
    fn a_stopped_cache_says_so() {
        let report = StatusReport {
            state: CacheState::Unclean,
            live: None,
            ..example()
        };
        let text = status(&report);
        assert!(
            text.starts_with("State         not running; did NOT stop cleanly"),
            "{text}"
        );
        assert!(!text.contains("Hits"));
    }

    #[test]
    fn rates_are_of_the_interval() {
        let (before, mut after) = (example(), example());
        after.live.as_mut().unwrap().operations[0].count += 500;
        let text = watch(&after, Some((&before, Duration::from_millis(500))));
        assert!(text.contains("Now           read 1,000/s 0 B/s\n"), "{text}");
        let idle = watch(&before, Some((&before, Duration::from_millis(500))));
        assert!(idle.contains("Now           idle"), "{idle}");
        // The daemon was restarted in between: counters went back.
        assert!(watch(&before, Some((&after, Duration::ZERO))).contains("Now           idle"));
    }

    #[test]
    fn reports_keep_their_json() {
        let report = example();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["live"]["operations"][0]["latency_us"]["p99"], 130.0);
        assert_eq!(json["settings"]["mode"], "write-through");
        assert_eq!(json["settings"]["sequential_cutoff_bytes"], 4 << 20);
        assert_eq!(json["state"], "running");
        assert_eq!(serde_json::from_value::<StatusReport>(json).unwrap(), report);
    }

    #[test]
    fn a_check_lists_kinds_and_the_first_problems() {
        let problem = |offset| Problem {
            kind: "extent".to_owned(),
            offset,
            message: "checksum".to_owned(),
        };
        let report = CheckReport {
            schema: REPORT_SCHEMA,
            cache: example().cache,
            clean: true,
            good: [("extent".to_owned(), 1000), ("superblock".to_owned(), 2)].into(),
            bad: [("extent".to_owned(), 30)].into(),
            verified_bytes: 1 << 20,
            problems: (0..30).map(problem).collect(),
            duration_s: 1.5,
        };
        let text = check(&report);
        assert!(
            text.contains("extent                          1,000             30"),
            "{text}"
        );
        assert!(text.contains("and 10 more"), "{text}");
        assert!(text.ends_with("Result        BAD\n"), "{text}");
    }

    #[test]
    fn a_dump_line_is_indented_by_depth() {
        let record = DumpRecord {
            kind: "extent".to_owned(),
            offset: 4096,
            len_bytes: 512,
            depth: 1,
            fields: vec![
                ("sequence".to_owned(), 7.into()),
                ("codec".to_owned(), "lz4".into()),
            ],
        };
        assert_eq!(
            dump(&record),
            "          4096       512   extent sequence=7 codec=lz4\n"
        );
    }
}
