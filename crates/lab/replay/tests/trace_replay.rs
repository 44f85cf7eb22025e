//! Replays of made traces: known hit ratios, a sample beside the whole, the curve beside the replays, both pages.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flaz_codec::CodecChoice;
use flaz_engine::policy::PolicyKind;
use flaz_page::text::prose;
use flaz_page::well_formed::elements;
use flaz_replay::combination::IndexMemory;
use flaz_replay::engine::{Access, Restriction, Setup, replay};
use flaz_replay::model::Model;
use flaz_replay::report::ReplayReport;
use flaz_replay::sizing::{Options, Progress, size};
use flaz_replay::studies::scale;
use flaz_replay::{html, text};

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn trace(&self, lines: &str) -> PathBuf {
        let path = self.0.path().join("a.flaztrace");
        std::fs::write(&path, format!("flaz-trace 1\n{lines}")).expect("written");
        path
    }
}

fn options(trace: &Path, caches: &[u64]) -> Options {
    Options {
        trace: trace.to_owned(),
        reading: flaz_trace::Options::default(),
        caches: caches.to_vec(),
        codecs: vec![CodecChoice::NONE],
        policies: vec![PolicyKind::S3Fifo],
        index_memory: None,
        memory_bytes: 1 << 30,
        contents: None,
        origin: Model::HDD,
        ssd: Model::SSD,
        endurance_bytes: Some(1 << 40),
        seconds: None,
        sample_shift: None,
        threads: 2,
    }
}

fn run(options: &Options) -> ReplayReport {
    size(options, &|_| ()).expect("replays")
}

/// Skewed reads of 4 KiB, with a write now and then; a request each millisecond.
fn skewed(requests: u64, blocks: u64) -> String {
    let mut lines = String::new();
    let mut state = 12_345_u64;
    for at in 0..requests {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let unit = (state >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = ((blocks as f64).powf(0.1) - 1.0).mul_add(unit, 1.0).powf(10.0) as u64;
        let block = rank.min(blocks - 1).wrapping_mul(48_271) % blocks;
        let op = if at % 10 == 9 { 'w' } else { 'r' };
        let _ = writeln!(lines, "{} {op} {} 4096", at * 1000, block * 4096);
    }
    lines
}

#[test]
fn a_cache_that_is_large_enough_misses_each_block_once() {
    let scratch = Scratch::new();
    let mut lines = String::new();
    for at in 0..2000_u64 {
        let _ = writeln!(lines, "{} r {} 4096", at * 43_200_000, at % 1000 * 8192);
    }
    let report = run(&options(&scratch.trace(&lines), &[64 << 20]));
    let result = &report.results[0];
    assert_eq!(
        (result.hit_ratio.value, result.hit_ratio.low),
        (0.5, 0.5),
        "{result:?}"
    );
    assert_eq!((result.origin_reads, result.origin_read_bytes), (1000, 4_096_000));
    assert_eq!(
        (result.origin_writes, report.trace.footprint_bytes),
        (0, 4_096_000)
    );
    assert_eq!(report.sample.one_in, 1);
    // A miss takes 12.6 ms and 4096 bytes at 100 MB/s; a hit some 0.17 ms and 4096 bytes at 277 MB/s, or nothing from memory.
    let miss_us = 12_600.0 + 40.96;
    assert!((report.without_cache.mean_us - miss_us).abs() < 1.0);
    assert!((result.read.p99_us / miss_us - 1.0).abs() < 0.01, "{result:?}");
    assert!(
        (miss_us / 2.0..miss_us / 2.0 + 150.0).contains(&result.read.mean_us),
        "{result:?}"
    );
    // A day, and about 4 MB written.
    let per_day = result.ssd_write_bytes_per_day.expect("the trace has times");
    assert!((per_day / result.ssd_write_bytes as f64 - 1.0).abs() < 0.001);
    let years = result.life_years.expect("an endurance is given");
    assert!((years * 365.25 * per_day / (1_u64 << 40) as f64 - 1.0).abs() < 0.001);
    assert!(
        (4_000_000..12_000_000).contains(&result.ssd_write_bytes),
        "{result:?}"
    );
}

#[test]
fn sequential_reads_of_a_disk_need_no_positioning() {
    let scratch = Scratch::new();
    let mut lines = String::new();
    for at in 0..100_u64 {
        let _ = writeln!(lines, "{at} r {} 1000000", at * 1_000_000);
    }
    let report = run(&options(&scratch.trace(&lines), &[64 << 20]));
    // 10 ms for each MB, and the positioning time once. Blocks at the borders are read for both requests.
    assert!(
        (report.without_cache.mean_us - 10_150.0).abs() < 100.0,
        "{:?}",
        report.without_cache
    );
    let result = &report.results[0];
    assert!(
        (result.read.mean_us / report.without_cache.mean_us - 1.0).abs() < 0.05,
        "{result:?}"
    );
}

#[test]
fn writes_reach_the_origin_and_stay_in_the_cache() {
    let scratch = Scratch::new();
    let mut lines = String::new();
    for at in 0..500_u64 {
        let _ = writeln!(lines, "{at} w {0} 4096\n{at} r {0} 4096", at * 4096);
    }
    let _ = writeln!(lines, "1000 t 0 2048000");
    let report = run(&options(&scratch.trace(&lines), &[64 << 20]));
    let result = &report.results[0];
    assert_eq!(
        (result.hit_ratio.value, result.origin_write_bytes),
        (1.0, 2_048_000),
        "{result:?}"
    );
    assert_eq!((report.trace.writes, report.trace.trims), (500, 1));
    assert!(result.data_in_cache < 0.01, "trims drop the blocks: {result:?}");
}

/// A sample has the hit ratio of the whole within its interval, and the curve is near the replays.
#[test]
fn a_sample_and_the_curve_agree_with_the_whole() {
    let scratch = Scratch::new();
    let trace = scratch.trace(&skewed(120_000, 60_000));
    let mut whole = options(&trace, &[40 << 20, 80 << 20]);
    whole.codecs = vec![CodecChoice::default()];
    let sampled = Options {
        sample_shift: Some(2),
        ..whole.clone()
    };
    let (whole, sampled) = (run(&whole), run(&sampled));
    assert_eq!((whole.sample.one_in, sampled.sample.one_in), (1, 4));
    for (exact, estimate) in whole.results.iter().zip(&sampled.results) {
        let (exact, ratio) = (exact.hit_ratio.value, estimate.hit_ratio);
        assert!(
            ratio.low <= exact && exact <= ratio.high,
            "{ratio:?}, expected {exact}"
        );
        assert!((ratio.value - exact).abs() < 0.03, "{ratio:?}, expected {exact}");
    }
    for (exact, estimate) in whole.results.iter().zip(&sampled.results) {
        let (exact, estimate) = (exact.read.p99_us, estimate.read);
        let interval = estimate.p99_low_us * 0.99..=estimate.p99_high_us * 1.01;
        assert!(interval.contains(&exact), "{estimate:?}, expected {exact}");
    }
    let footprint = sampled.trace.footprint_bytes as f64 / whole.trace.footprint_bytes as f64;
    assert!((footprint - 1.0).abs() < 0.05, "{footprint}");
    let error = whole.curves[0].error_max.expect("both sizes are on the curve");
    assert!(error < 0.02, "{error}");
    for result in &whole.results {
        let (curve, exact) = (result.curve.expect("on the curve"), result.hit_ratio.value);
        assert!(
            curve.low <= exact && exact <= curve.high,
            "{curve:?}, expected {exact}"
        );
    }
    let ratios: Vec<f64> = whole.curves[0]
        .points
        .iter()
        .map(|point| point.hit_ratio.value)
        .collect();
    assert!(
        ratios.windows(2).all(|pair| pair[0] <= pair[1] + 0.01),
        "{ratios:?}"
    );
}

/// Nearly all reads are hits of few blocks, most of which are not in the sample: the 99th percentile is that of a hit, although the sample
/// has misses for more than one read in a hundred.
#[test]
fn the_hottest_blocks_count_although_the_sample_lacks_them() {
    let scratch = Scratch::new();
    let mut lines = String::new();
    for at in 0..100_000_u64 {
        // One read in 250 is of a new block.
        let block = if at % 250 == 0 {
            1_000 + at / 250 * 4
        } else {
            at % 4
        };
        let _ = writeln!(lines, "{at} r {} 4096", block * 4096);
    }
    let trace = scratch.trace(&lines);
    let whole = options(&trace, &[64 << 20]);
    let sampled = Options {
        sample_shift: Some(2),
        ..whole.clone()
    };
    let (whole, sampled) = (run(&whole).results.remove(0), run(&sampled).results.remove(0));
    assert!(whole.read.p99_us < 1000.0, "{whole:?}");
    assert!(sampled.read.p99_low_us < 1000.0, "{sampled:?}");
    assert!((sampled.read.mean_us / whole.read.mean_us - 1.0).abs() < 0.5);
}

/// A cache of a sixteenth of the size on a sixteenth of the blocks has the hit ratio of the whole; the study is deterministic.
#[test]
fn a_scaled_cache_stands_for_the_whole() {
    let scratch = Scratch::new();
    let trace = scratch.trace(&skewed(120_000, 120_000));
    let rows = || scale::rows(&trace, PolicyKind::S3Fifo).expect("replays");
    let first = rows();
    assert!(!first.is_empty());
    for row in &first {
        let whole = row.whole.hit_ratio.value;
        assert_eq!(
            row.scaled.iter().map(|(one_in, _)| *one_in).collect::<Vec<_>>(),
            [4, 16]
        );
        for (one_in, scaled) in &row.scaled {
            let ratio = scaled.hit_ratio;
            assert!(
                ratio.low <= whole && whole <= ratio.high,
                "1/{one_in}: {ratio:?}, expected {whole}"
            );
        }
    }
    assert_eq!(first, rows());
}

#[test]
fn compression_makes_a_cache_larger() {
    let scratch = Scratch::new();
    let trace = scratch.trace(&skewed(60_000, 30_000));
    let mut options = options(&trace, &[24 << 20]);
    options.codecs = vec![CodecChoice::NONE, CodecChoice::default(), CodecChoice::Auto];
    options.policies = vec![PolicyKind::S3Fifo, PolicyKind::Fifo];
    let report = run(&options);
    let hits: Vec<f64> = report
        .results
        .iter()
        .map(|result| result.hit_ratio.value)
        .collect();
    assert!(hits[1] > hits[0] + 0.03 && hits[2] >= hits[1] - 0.01, "{hits:?}");
    assert_eq!((report.results.len(), report.curves.len()), (6, 6));
    let page = html::page(&report, "1.0");
    elements(&page).expect("well-formed");
    assert!(page.contains(&prose(&report.recommendation)), "{page}");
    let text = text::page(&report, false);
    for part in [
        "built in (no --data given)",
        "complete: the replay is exact",
        "zstd",
        "auto",
        "fifo",
    ] {
        assert!(part == "zstd" || text.contains(part), "{part}\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 140), "{text}");
    serde_json::to_string(&report).expect("JSON");
}

#[test]
fn an_index_in_bounded_memory_is_read_and_written() {
    let scratch = Scratch::new();
    let trace = scratch.trace(&skewed(60_000, 60_000));
    let cache = 64 << 20;
    let with = |index_memory| Options {
        index_memory,
        ..options(&trace, &[cache])
    };
    let bounded = run(&with(Some(IndexMemory::Bytes(96 << 10))));
    let result = &bounded.results[0];
    let index = result.index.expect("it is in pages");
    assert_eq!(index.bound_bytes, 96 << 10);
    assert!(index.memory_bytes < index.bound_bytes * 11 / 10, "{index:?}");
    assert!((8..index.pages).contains(&index.pages_in_memory), "{index:?}");
    // Blocks that are scattered: about a page for each lookup that a page in memory does not answer.
    assert!((0.1..1.5).contains(&index.reads_per_lookup), "{index:?}");
    assert!(
        0 < index.reads_between && index.reads_between < index.reads,
        "{index:?}"
    );
    assert!((0.01..0.9).contains(&index.written_share), "{index:?}");
    assert!((8.0..32.0).contains(&index.bytes_per_block), "{index:?}");
    let text = text::page(&bounded, false);
    assert!(text.contains("Page reads a lookup"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 140), "{text}");
    let page = html::page(&bounded, "1.0");
    elements(&page).expect("well-formed");
    assert!(page.contains("Page reads a lookup"), "{page}");
    // With memory for all pages, nothing is read. A table takes less than the largest bound.
    let (large, table) = (run(&with(Some(IndexMemory::Bytes(512 << 10)))), run(&with(None)));
    let (large, table) = (&large.results[0], &table.results[0]);
    assert_eq!(large.index.expect("it is in pages").reads, 0);
    assert!(
        (large.hit_ratio.value - table.hit_ratio.value).abs() < 0.02,
        "{large:?}, {table:?}"
    );
    assert!(
        result.hit_ratio.value < table.hit_ratio.value + 0.02,
        "{result:?}, {table:?}"
    );
    let share = IndexMemory::Share { memory: 1, cache: 8 };
    assert_eq!(run(&with(Some(share))).results[0].index, None);
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let scratch = Scratch::new();
    let refused = |options: &Options| size(options, &|_| ()).expect_err("refused").to_string();
    let empty = scratch.trace("");
    assert!(
        refused(&options(&empty, &[64 << 20])).ends_with("a.flaztrace: the trace has no reads and no writes")
    );
    let trace = scratch.trace("0 r 0 4096\n1 r x 4096\n");
    let error = refused(&options(&trace, &[64 << 20]));
    assert!(
        error.contains("a.flaztrace:3: expected microseconds, r or w or t, offset, length"),
        "{error}"
    );
    let trace = scratch.trace("0 r 0 4096\n");
    let error = refused(&options(&trace, &[4096]));
    assert!(error.starts_with("a cache of 4096 bytes: "), "{error}");
    let sampled = Options {
        sample_shift: Some(10),
        ..options(&trace, &[64 << 20])
    };
    let error = refused(&sampled);
    assert!(
        error.contains("a sample of one block in 1024 has none of the trace's accesses"),
        "{error}"
    );
    let bounded = Options {
        index_memory: Some(IndexMemory::Bytes(16 << 10)),
        ..options(&trace, &[64 << 20])
    };
    let error = refused(&bounded);
    assert!(
        error.contains("index memory: expected 36864 bytes or more for a cache of this size, found 16384"),
        "{error}"
    );
    let mut lines = String::new();
    for block in 0..64_u64 {
        let _ = writeln!(lines, "0 r {} 16384", block * 16384);
    }
    let sampled = Options {
        trace: scratch.trace(&lines),
        sample_shift: Some(1),
        ..bounded
    };
    let error = refused(&sampled);
    assert!(error.contains("only if the whole trace is replayed"), "{error}");
}

/// Many combinations are replayed one after another: each must free the memory of its disks.
#[test]
fn a_replay_frees_its_disks() {
    let contents: flaz_sim::disk::Background = Arc::new(|_, block| block.fill(7));
    let setup = Setup {
        origin_blocks: 1024,
        cache_bytes: 16 << 20,
        contents: Arc::clone(&contents),
        policy: PolicyKind::S3Fifo,
        codec: CodecChoice::default(),
        origin: Model::HDD,
        ssd: Model::SSD,
        index_memory: None,
        is_real: false,
        restriction: Restriction::default(),
    };
    let accesses = (0..1000).map(|block| Access {
        op: flaz_trace::Op::Read,
        block,
        blocks: 1,
        share: 1.0,
        follows: false,
        group: 0,
    });
    let outcome = replay(&setup, accesses, &mut |_| ()).expect("replays");
    assert_eq!(outcome.stats.counts.miss_blocks, 1000);
    drop(setup);
    assert_eq!(Arc::strong_count(&contents), 1, "a simulated disk still exists");
}

#[test]
fn progress_is_reported() {
    let scratch = Scratch::new();
    let trace = scratch.trace(&skewed(70_000, 1000));
    let seen = std::sync::Mutex::new(Vec::new());
    size(&options(&trace, &[16 << 20, 32 << 20]), &|progress| {
        seen.lock().expect("no panic").push(progress)
    })
    .expect("replays");
    let seen = seen.into_inner().expect("no panic");
    assert!(matches!(seen[0], Progress::Reading(bytes, Some(total)) if 0 < bytes && bytes <= total));
    assert!(seen.contains(&Progress::Replaying(140_000, 140_000)));
}
