//! The page of a replay in a real browser, if there is one: with many series, with one, and with a fast origin.

use flaz_replay::html;
use flaz_replay::report::{
    CodecRatio, CurveReport, DataReport, DeviceReport, LatencyReport, PointReport, Ratio, ReplayReport,
    ResultReport, SampleReport, TraceReport,
};

use browser::{ask, browser, check_legible};

#[path = "../../../bench/report/tests/support/browser.rs"]
mod browser;

const MIB: u64 = 1 << 20;

fn latency(mean_us: f64) -> LatencyReport {
    LatencyReport {
        mean_us,
        p99_us: mean_us,
        p99_low_us: mean_us,
        p99_high_us: mean_us,
    }
}

fn ratio(value: f64) -> Ratio {
    Ratio {
        value,
        low: value - 0.02,
        high: value + 0.02,
    }
}

/// A report with a series for each codec and policy; `miss_us` is the latency without a cache.
fn report(codecs: &[&str], policies: &[&str], sizes: &[u64], miss_us: f64) -> ReplayReport {
    let device = DeviceReport {
        latency_us: miss_us,
        sequential_is_free: true,
        read_bytes_per_second: 100_000_000,
        write_bytes_per_second: 100_000_000,
    };
    let series: Vec<(String, String)> = codecs
        .iter()
        .flat_map(|codec| {
            policies
                .iter()
                .map(move |policy| ((*codec).to_owned(), (*policy).to_owned()))
        })
        .collect();
    // All series end near each other, so that their labels have to be moved apart.
    let hits = |number: usize, bytes: u64| 0.8 - 0.01 * number as f64 - 4.0 / (bytes / MIB) as f64;
    let curves = series
        .iter()
        .enumerate()
        .map(|(number, (codec, policy))| CurveReport {
            codec: codec.clone(),
            policy: policy.clone(),
            points: (3..10)
                .map(|power| PointReport {
                    capacity_bytes: MIB << power,
                    hit_ratio: ratio(hits(number, MIB << power)),
                })
                .collect(),
            error_max: Some(0.01),
        });
    let results = series.iter().enumerate().flat_map(|(number, (codec, policy))| {
        sizes.iter().map(move |size| ResultReport {
            cache_bytes: *size,
            capacity_bytes: *size,
            codec: codec.clone(),
            policy: policy.clone(),
            hit_ratio: ratio(hits(number, *size)),
            origin_reads: 1000,
            origin_read_bytes: 1 << 30,
            origin_writes: 1000,
            origin_write_bytes: 1 << 30,
            ssd_write_bytes: 1 << 30,
            ssd_write_bytes_per_day: Some(1e9),
            life_years: Some(120.0),
            read: latency(miss_us * (1.0 - hits(number, *size))),
            data_in_cache: 1.5,
            curve: None,
            index: None,
        })
    });
    ReplayReport {
        trace: TraceReport {
            path: format!("/a/{}/with-a-long-name.blkparse.zst", "folder".repeat(30)).into(),
            format: "blkparse".to_owned(),
            distinguishes_writes: true,
            reads: 1000,
            read_bytes: 1 << 30,
            writes: 1000,
            write_bytes: 1 << 30,
            trims: 0,
            footprint_bytes: 1 << 30,
            seconds: Some(86_400.0),
            skipped_lines: 0,
            skipped: Vec::new(),
        },
        sample: SampleReport {
            one_in: 1,
            blocks: 1000,
            accesses: 1000,
        },
        data: DataReport {
            source: "programs".to_owned(),
            is_built_in: true,
            ratios: vec![CodecRatio {
                codec: "lz4".to_owned(),
                ratio: 1.5,
            }],
        },
        origin: device,
        ssd: device,
        ssd_endurance_bytes: Some(1 << 40),
        without_cache: latency(miss_us),
        results: results.collect(),
        curves: curves.collect(),
        recommendation: "32.0 MiB with lz4 and fifo".to_owned(),
    }
}

#[test]
fn the_page_is_laid_out_legibly() {
    let Some(browser) = browser() else { return };
    let codecs = ["lz4", "auto", "none", "zstd:-7", "zstd:19", "zlib:12"];
    let policies = ["s3-fifo", "second-touch", "fifo"];
    let sizes: Vec<u64> = (4..8).map(|power| MIB << power).collect();
    let many = html::page(&report(&codecs, &policies, &sizes, 12_600.0), "0");
    check_legible(&browser, &many, 2);
    let one = html::page(&report(&codecs[..1], &policies[..1], &sizes[..1], 170.0), "0");
    for page in [many, one] {
        // No browser window is as narrow as a telephone.
        let narrow = page.replacen("<main>", "<main style=\"width: 400px\">", 1);
        assert_ne!(narrow, page);
        for (page, size) in [(&page, "1240,1600"), (&page, "800,1600"), (&narrow, "500,900")] {
            let answer = ask(&browser, page, size, &[]);
            assert_eq!(answer["faults"], serde_json::json!([]), "{size}: {answer}");
            assert_eq!(answer["overflow"], 0, "{answer}");
            assert_eq!(answer["drawings"], 2, "{answer}");
        }
    }
}

#[test]
fn axes_have_round_numbers_and_series_have_different_lines() {
    let fast = html::page(&report(&["lz4"], &["fifo"], &[32 * MIB], 170.0), "0");
    assert!(fast.contains(">0.15 ms</text>"), "{fast}");
    let codecs = ["a", "b", "c", "d"];
    let many = html::page(&report(&codecs, &["fifo", "s3-fifo"], &[32 * MIB], 9000.0), "0");
    for number in 0..8 {
        let class = flaz_page::series_class(number);
        // One in each chart, and in front of its label.
        let paths = many.matches(&format!("<path class=\"line {class}\"")).count();
        let keys = many.matches(&format!("<line class=\"line {class}\"")).count();
        assert_eq!((paths, keys), (2, 2), "{class}");
    }
}
