//! Pages of synthetic reports.

use flaz_engine::settings::{Mode, StrictFlush};

use super::*;
use crate::report::example::example;
use crate::report::*;
use crate::settings::SettingsPatch;

#[test]
fn a_running_cache_shows_its_state() {
    let text = status(&example());
    for part in [
        "running, pid 4711, up 2 h 07 min, 4 threads",
        "/dev/nvme0n1p3, 100 GiB",
        "write-through, s3-fifo, codec lz4, sequential cut-off 4.00 MiB",
        "WARNING       the origin is emulated",
        "90.0 % of reads, 75.0 % of blocks",
        "(2.50x)",
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

#[test]
fn errors_are_counted_under_the_label_that_says_none() {
    let mut report = example();
    assert!(status(&report).contains("\nErrors        none\n"));
    report.live.as_mut().unwrap().errors.checksum_failures = 3;
    assert!(status(&report).contains("\nErrors        3 checksum failures"));
}

/// The rate of writeback so far says nothing about an origin that takes no writes.
#[test]
fn a_failing_writeback_has_no_time() {
    let mut report = example();
    let dirty = &mut report.live.as_mut().unwrap().write_back;
    (dirty.dirty_blocks, dirty.clean_s, dirty.failing) = (3, None, true);
    let text = status(&report);
    assert!(text.contains("used; write-back is failing\n"), "{text}");
}

#[test]
fn a_stopped_cache_is_shown_as_stopped() {
    let report = StatusReport {
        state: CacheState::Unclean,
        live: None,
        ..example()
    };
    let text = status(&report);
    assert!(
        text.starts_with("State         not running; NOT stopped cleanly"),
        "{text}"
    );
    assert!(!text.contains("Hits"));
    assert!(text.contains("\nNext start    write-through, "), "{text}");
    assert!(text.contains(" by default\n"), "{text}");
    assert!(!text.contains("Settings"), "{text}");
}

#[test]
fn rates_cover_only_the_interval() {
    let (before, mut after) = (example(), example());
    after.live.as_mut().unwrap().operations[0].count += 500;
    let text = watch(&after, Some((&before, Duration::from_millis(500))));
    assert!(text.contains("Now           read 1,000/s 0 B/s\n"), "{text}");
    let idle = watch(&before, Some((&before, Duration::from_millis(500))));
    assert!(idle.contains("Now           idle"), "{idle}");
    // The daemon was restarted between the reports: counters decreased.
    assert!(watch(&before, Some((&after, Duration::ZERO))).contains("Now           idle"));
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
