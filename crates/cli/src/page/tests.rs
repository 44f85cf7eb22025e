//! Pages of synthetic reports.

use flaz_engine::settings::{Mode, StrictFlush};

use super::*;
use crate::report::example::example;
use crate::report::*;
use crate::settings::SettingsPatch;

#[test]
fn a_running_cache_shows_its_state() {
    let text = details(&example(), None);
    for part in [
        "running, pid 4711, up 2 h 07 min, 4 threads",
        "/dev/nvme0n1p3, 100 GiB",
        "write-through, s3-fifo, codec lz4, sequential cut-off 4.00 MiB",
        "Warning       the origin is emulated",
        "90.0 % of reads, 75.0 % of blocks",
        "(2.50x)",
        "480 blocks of these compressed together with neighbours; 12 groups had lost blocks when reclaimed\n",
        "not admitted: 4 sequential\n",
        "2 of 64 connections",
        "1,234,567",
        "13.1 ms",
        "Errors        none",
        "admission             1 now        9 peak    1,024 limit        2 times full   fullest of 8\n",
        "origin-reads          0 now       32 peak      256 limit        0 times full\n",
    ] {
        assert!(text.contains(part), "no '{part}' in:\n{text}");
    }
    let write = text.lines().find(|line| line.starts_with("write ")).unwrap();
    assert!(write.ends_with('3'), "failures alone are shown:\n{text}");
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

/// Text of the line with this label.
#[track_caller]
fn line<'a>(page: &'a str, label: &str) -> &'a str {
    let found = page.lines().find_map(|line| {
        let (start, text) = line.split_at_checked(13)?;
        (start.trim_end() == label).then_some(text.trim())
    });
    found.unwrap_or_else(|| panic!("no line '{label}' in:\n{page}"))
}

#[test]
fn labels_do_not_change_with_values() {
    let mut report = example();
    let before = details(&report, None);
    assert_eq!(line(&before, "Errors"), "none");
    report.live.as_mut().unwrap().errors.checksum_failures = 3;
    assert!(line(&details(&report, None), "Errors").starts_with("3 checksum failures"));
    assert_eq!(
        line(&summary(&report, None, true), "Errors"),
        "3 client, 3 checksum"
    );
    // The short page has the first reason, the other one all.
    let (first, second) = ("3 client requests failed", "3 checksums were wrong");
    assert_eq!(
        line(&summary(&report, None, true), "Health"),
        format!("warning: {first}; 1 more")
    );
    assert_eq!(
        line(&details(&report, None), "Health"),
        format!("warning: {first}; {second}")
    );
}

#[test]
fn a_region_that_cannot_be_read_is_an_error() {
    let mut report = example();
    let errors = &mut report.live.as_mut().unwrap().errors;
    (errors.cache_unreadable_regions, errors.cache_read_errors) = (1, 2);
    assert_eq!(
        line(&details(&report, None), "Errors"),
        "0 checksum failures; cache device: 2 failed reads, 0 failed writes, 1 unreadable region; origin: 0 failed requests"
    );
    assert_eq!(
        line(&summary(&report, None, true), "Errors"),
        "3 client, 2 cache device, 1 region"
    );
}

#[test]
fn one_of_a_kind_is_singular() {
    let mut report = example();
    report.cache.regions = 1;
    let live = report.live.as_mut().unwrap();
    live.daemon.threads = 1;
    live.lookups.hits = 1;
    live.lookups.misses = 1;
    live.admission.admitted_blocks = 1;
    live.reclaim.regions = 1;
    live.codec.grouped_blocks = 1;
    live.codec.divided_groups = 1;
    live.codec.dictionaries = 1;
    live.write_back.waits = 1;
    live.block_devices[0].queues = 1;
    live.block_devices[0].depth = 1;
    let text = details(&report, None);
    for part in [
        ", 1 thread, ",
        ", 1 region of ",
        ", 1 queue of 1 request\n",
        "1 hit, 50 partial, 1 miss; ",
        "1 block of these compressed together with neighbours; 1 group had lost blocks",
        ", 1 write waited; ",
        "1 block after misses, ",
        "1 region: ",
    ] {
        assert!(text.contains(part), "no '{part}' in:\n{text}");
    }
}

#[test]
fn the_health_is_never_cut() {
    let clause = "the origin has grown to 734003200 bytes, 536870912 are served, and the rest is not reachable through the cache";
    let report = StatusReport {
        health: Some(Health {
            level: HealthLevel::Warning,
            reasons: vec![clause.to_owned()],
        }),
        ..example()
    };
    let whole = summary(&report, None, false);
    assert_eq!(line(&whole, "Health"), format!("warning: {clause}"));
    let wrapped = summary(&report, None, true);
    assert!(
        wrapped.lines().all(|line| line.chars().count() <= 80),
        "{wrapped}"
    );
    let end = wrapped.find("State ").expect("the next line");
    let words: Vec<&str> = wrapped[..end].split_whitespace().collect();
    assert_eq!(words.join(" "), format!("Health warning: {clause}"));
}

/// The rate of writeback so far says nothing about an origin that takes no writes.
#[test]
fn a_failing_writeback_has_no_time() {
    let mut report = example();
    let dirty = &mut report.live.as_mut().unwrap().write_back;
    (dirty.dirty_blocks, dirty.clean_s, dirty.failing) = (3, None, true);
    let text = details(&report, None);
    assert!(text.contains("used; write-back is failing\n"), "{text}");
}

#[test]
fn a_stopped_cache_is_shown_as_stopped() {
    let report = StatusReport {
        state: CacheState::Unclean,
        live: None,
        ..example()
    };
    let text = details(&report, None);
    assert!(line(&text, "Health").starts_with("warning: "), "{text}");
    assert!(
        line(&text, "State").starts_with("not running; not stopped cleanly"),
        "{text}"
    );
    assert!(!text.contains("Hits"));
    assert!(
        line(&text, "Settings").starts_with("at the next start, by default: write-through, "),
        "{text}"
    );
    let short = summary(&report, None, true);
    assert_eq!(line(&short, "State"), "not running; not stopped cleanly");
    assert!(line(&short, "Dirty").contains("flaz flush"), "{short}");
    let clean = StatusReport {
        may_be_dirty: false,
        ..report
    };
    let text = summary(&clean, None, true);
    assert_eq!(line(&text, "Dirty"), "none");
    let refused = StatusReport {
        state: CacheState::Clean,
        start_refused: Some("the origin has shrunk".to_owned()),
        ..clean
    };
    let text = summary(&refused, None, true);
    assert_eq!(line(&text, "State"), "not running; stopped cleanly");
}

#[test]
fn the_short_page_has_ten_lines_of_eighty_columns() {
    let mut report = example();
    let mut labels = Vec::new();
    for step in 0..3 {
        let live = report.live.as_mut().unwrap();
        if step > 0 {
            // Of another cache, in every respect worse.
            let deep = "/mnt/a very deep\nfolder".repeat(20);
            report.cache.path = deep.clone().into();
            report.origin.path = deep.clone().into();
            live.block_devices[0].name = deep.clone().into();
            live.nbd[0].address = format!("unix:{deep}");
            live.nbd[0].connections = u32::MAX;
            live.errors = ErrorReport {
                checksum_failures: u64::MAX,
                cache_read_errors: u64::MAX,
                cache_write_errors: u64::MAX,
                cache_no_space_errors: u64::MAX,
                cache_unreadable_regions: u64::MAX,
                origin_errors: u64::MAX,
            };
            live.operations[0].errors = u64::MAX;
            live.lookups.hits = u64::MAX / 4;
            live.write_back.clean_s = Some(1e9);
            live.write_back.dirty_s = 1e9;
            live.write_back.failing = step == 2;
            live.shrink = Some(ShrinkReport {
                size_bytes: 1023 << 30,
                regions_left: u64::MAX,
                dirty_bytes_left: u64::MAX,
            });
        }
        if step == 2 {
            report.state = CacheState::Degraded;
            live.operations.clear();
            live.write_back.dirty_blocks = 0;
            live.block_devices.clear();
            live.nbd.clear();
        }
        report.health = None;
        let text = summary(&report, None, true);
        assert_eq!(text.lines().count(), 10, "{text}");
        let whole = summary(&report, None, false);
        assert_eq!(
            (whole.lines().count(), whole.contains("..")),
            (10, false),
            "{whole}"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let found: Vec<String> = text.lines().map(|line| line[..13].to_owned()).collect();
        assert!(
            found[0].starts_with("Health ") && found[1].starts_with("State "),
            "{text}"
        );
        if step > 0 {
            assert_eq!(found, labels);
        }
        labels = found;
    }
}

#[test]
fn the_short_page_says_what_matters() {
    let mut report = example();
    report.live.as_mut().unwrap().operations[3].errors = 0;
    report.warnings.clear();
    let text = summary(&report, None, true);
    for (label, expected) in [
        ("Health", "healthy"),
        ("State", "running for 2 h 07 min, write-through, codec lz4"),
        ("Cache", "/dev/nvme0n1p3, 100 GiB"),
        ("Clients", "/dev/flaz/disk and 1 more, 2 NBD clients"),
        ("Hits", "90.0 % of 1,000 reads, 75.0 % of their blocks"),
        (
            "Contents",
            "11.4 GiB of data, 4.7 % full; effective capacity 243 GiB (2.46x)",
        ),
        (
            "Dirty",
            "10.0 MiB, 0.0 % of the limit, for up to 2.50 s; clean in 0.80 s",
        ),
        ("Latency", "99 % below: reads 130 us, writes -, flushes 130 us"),
        ("Errors", "none"),
    ] {
        assert_eq!(line(&text, label), expected);
    }
    report.state = CacheState::Degraded;
    assert_eq!(
        line(&summary(&report, None, true), "State"),
        "degraded: origin only; up 2 h 07 min, write-through, codec lz4"
    );
    report.state = CacheState::Running;
    // While writeback fails, its time is unknown.
    report.live.as_mut().unwrap().write_back.failing = true;
    let failing = summary(&report, None, true);
    assert_eq!(line(&failing, "Health"), "failed: writeback to the origin fails");
    assert!(!line(&failing, "Dirty").contains("clean in"), "{failing}");
}

#[test]
fn a_write_budget_has_a_line() {
    let mut report = example();
    let mut budget = WriteBudgetReport {
        bytes_per_day: 999 << 30,
        left_bytes: 111 << 30,
        owed_bytes: 0,
        last_day_bytes: 888 << 30,
        state: WriteBudgetState::RememberedOnly,
    };
    report.live.as_mut().unwrap().write_budget = Some(budget);
    let short = summary(&report, None, true);
    assert_eq!(
        line(&short, "Budget"),
        "remembered blocks only; 888 GiB of 999 GiB in 24 h, 111 GiB left"
    );
    assert!(short.lines().count() == 11 && short.lines().all(|line| line.len() <= 80));
    assert_eq!(
        line(&details(&report, None), "Budget"),
        "999 GiB per day: remembered blocks only; 888 GiB written in the last 24 h, 111 GiB left, 0 B owed"
    );
    for state in [
        WriteBudgetState::AdmittingAll,
        WriteBudgetState::FewerStoredAgain,
        WriteBudgetState::StoringNothing,
    ] {
        budget.state = state;
        report.live.as_mut().unwrap().write_budget = Some(budget);
        assert!(line(&summary(&report, None, true), "Budget").starts_with(&state.to_string()));
    }
}

#[test]
fn a_shrink_under_way_is_shown() {
    let mut report = example();
    let before = line(&summary(&report, None, true), "Cache").to_owned();
    let mut shrink = ShrinkReport {
        size_bytes: 50 << 30,
        regions_left: 3168,
        dirty_bytes_left: 0,
    };
    report.live.as_mut().unwrap().shrink = Some(shrink);
    let cache = line(&summary(&report, None, true), "Cache").to_owned();
    assert_eq!(cache, format!("{before}, shrinking to 50.0 GiB"));
    let text = details(&report, None);
    assert!(
        text.contains("shrinking to 50.0 GiB; regions to empty: 3,168\n"),
        "{text}"
    );
    shrink.dirty_bytes_left = 1 << 20;
    report.live.as_mut().unwrap().shrink = Some(shrink);
    let text = details(&report, None);
    assert!(
        text.contains("; 1.00 MiB to write to the origin first\n"),
        "{text}"
    );
    // The part of a volume.
    let live = report.live.as_mut().unwrap();
    live.share = Some(ShareReport {
        volume: "home".to_owned(),
        held_bytes: 60 << 30,
        at_least_bytes: 0,
        at_most_bytes: None,
        free_bytes: 0,
        need: 0,
        write_budget: None,
    });
    assert_eq!(
        line(&summary(&report, None, true), "Cache"),
        "/dev/nvme0n1p3, 60.0 GiB of a shared device, shrinking to 50.0 GiB"
    );
}

#[test]
fn rates_cover_only_the_interval() {
    let (before, mut after) = (example(), example());
    after.live.as_mut().unwrap().operations[0].count += 500;
    let half = Duration::from_millis(500);
    let text = details(&after, Some((&before, half)));
    assert!(text.contains("Now           read 1,000/s 0 B/s\n"), "{text}");
    let idle = details(&before, Some((&before, half)));
    assert!(idle.contains("Now           idle"), "{idle}");
    // The daemon was restarted between the reports: counters decreased.
    assert!(details(&before, Some((&after, Duration::ZERO))).contains("Now           idle"));
    let short = summary(&after, Some((&before, half)), true);
    assert_eq!(line(&short, "Now"), "1,000 reads/s (0 B/s), 0 writes/s (0 B/s)");
    let restarted = summary(&before, Some((&after, half)), true);
    assert_eq!(line(&restarted, "Now"), "0 reads/s (0 B/s), 0 writes/s (0 B/s)");
}

#[test]
fn the_json_of_reports_is_stable() {
    let report = example();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["live"]["operations"][0]["latency_us"]["p99"], 130.0);
    assert_eq!(json["settings"]["mode"], "write-through");
    assert_eq!(json["settings"]["sequential_cutoff_bytes"], 4 << 20);
    assert_eq!(json["state"], "running");
    assert_eq!(serde_json::from_value::<StatusReport>(json).unwrap(), report);
}

#[test]
fn check_lists_kinds_and_the_first_problems() {
    let problem = |offset| Problem {
        kind: "extent".to_owned(),
        offset,
        message: "checksum".to_owned(),
    };
    let report = CheckReport {
        schema: REPORT_SCHEMA,
        cache: example().cache,
        clean: true,
        may_be_dirty: false,
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
    assert_eq!(
        serde_json::to_string(&record).unwrap(),
        r#"{"kind":"extent","offset":4096,"len_bytes":512,"depth":1,"fields":{"sequence":7,"codec":"lz4"}}"#
    );
}

#[test]
fn a_changed_setting_is_shown_even_without_effect() {
    let mut settings = example().settings.unwrap();
    settings.dirty_percent = 10;
    settings.strict_flush = StrictFlush::Always;
    let unchanged = SettingsPatch::default();
    let limit = SettingsPatch {
        dirty_limit: Some(10),
        ..SettingsPatch::default()
    };
    let strict = SettingsPatch {
        strict_flush: Some(StrictFlush::Always),
        ..SettingsPatch::default()
    };
    assert!(settings_after(&settings, &limit).ends_with(", dirty limit 10 % (in write-back)"));
    assert!(settings_after(&settings, &strict).ends_with(" MiB, strict flush always (in write-back)"));
    assert!(settings_after(&settings, &unchanged).ends_with(" MiB"));
    settings.mode = Mode::WriteBack;
    for patch in [unchanged, limit, strict] {
        let text = settings_after(&settings, &patch);
        assert!(
            text.ends_with(" MiB, dirty limit 10 %, strict flush always"),
            "{text}"
        );
    }
}
