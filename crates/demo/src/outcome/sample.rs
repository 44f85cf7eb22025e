//! A synthetic outcome, for tests of its display.

use super::*;

/// Four runs in which compression helps.
pub fn outcome() -> Outcome {
    Outcome {
        schema: OUTCOME_SCHEMA,
        version: "0.1.0".into(),
        parameters: Parameters {
            ssd_bytes: 64 << 20,
            codec: "lz4".into(),
            clients: 4,
            skew: 0.9,
            write_percent: 5.0,
            seed: 1,
            warmup_requests: 51_200,
            measured_s: 12.0,
            hottest_quarter_share: 0.78,
            emulated_disk: "an emulated hard disk (12.6 ms, 100 MB/s)".into(),
            disk_access_us: 12_700.0,
            cores: 2,
            machine: "Linux 6.1, Some Processor <8 GHz> & more".into(),
            files_in_memory: false,
        },
        data: DataSummary {
            source: "files of /usr/lib and /usr/share".into(),
            bytes: 256 << 20,
            files: 1942,
            candidates: 60_123,
            pieces: 2519,
            folders: vec![
                ("/usr/lib/x86_64-linux-gnu".into(), 0.6),
                ("/usr/share/fonts".into(), 0.25),
            ],
            zero_blocks: 300,
            walk_cut_short: false,
        },
        runs: vec![
            run(Variant::NoCache, 78.0, 0.0, None),
            run(Variant::Uncompressed, 240.0, 0.72, Some(holdings(61, 61))),
            run(Variant::Compressed, 330.0, 0.81, Some(holdings(90, 60))),
            run(Variant::Auto, 390.0, 0.85, Some(holdings(118, 60))),
        ],
        total_s: 58.2,
        warnings: Vec::new(),
    }
}

fn holdings(logical_mib: u64, fragment_mib: u64) -> Holdings {
    Holdings {
        ssd_bytes: 64 << 20,
        cached_blocks: logical_mib << 8,
        logical_bytes: logical_mib << 20,
        fragment_bytes: fragment_mib << 20,
        other_bytes: 1 << 20,
        free_bytes: (63 - 1 - fragment_mib) << 20,
        metadata_bytes: 1 << 20,
        raw_share: 0.2,
        single_value_blocks: 12,
    }
}

fn run(variant: Variant, iops: f64, hit_ratio: f64, holdings: Option<Holdings>) -> Run {
    let requests = (iops * 12.0) as u64;
    let wobble = |second: f64| (second * 2.1).sin() * 0.02;
    let seconds = || (0..60).map(|step| f64::from(step) * 0.2 + 0.2);
    Run {
        variant,
        served: Served {
            requests,
            reads: requests * 95 / 100,
            writes: requests * 5 / 100,
            iops,
            mib_per_s: iops * 0.01,
            latency_us: Latency {
                mean: 4e6 / iops,
                p50: 300.0,
                p90: 3e4,
                p99: 7.5e4,
                p999: 9e4,
                max: 1e5,
            },
            latency_cdf: (0..=200)
                .map(|step| {
                    let micros = 10f64.powf(f64::from(step) / 40.0);
                    let slow = 1.0 / (1.0 + (-(micros.ln() - 10.5) * 5.0).exp());
                    let quick = 1.0 / (1.0 + (-(micros.ln() - 5.3) * 4.0).exp());
                    (micros, hit_ratio * quick + (1.0 - hit_ratio) * slow)
                })
                .collect(),
        },
        hit_ratio,
        cost: Cost {
            cpu_s: 0.4,
            cpu_us_per_request: 400_000.0 / requests as f64,
            ssd_written_bytes: 120 << 20,
            ssd_written_measured_bytes: 9 << 20,
        },
        holdings,
        series: Series {
            warmup: (1..30)
                .map(|step| (step * 1700, hit_ratio * (1.0 - (-(step as f64) / 5.0).exp())))
                .collect(),
            hit_ratio_series: seconds()
                .map(|second| (second, hit_ratio + wobble(second) * hit_ratio))
                .collect(),
            iops_series: seconds()
                .step_by(3)
                .map(|second| (second, iops * (1.0 + 3.0 * wobble(second))))
                .collect(),
        },
        restarted_warm: holdings.is_some(),
        verified: Verified {
            blocks_verified: requests * 3,
            disk_bytes_verified: 256 << 20,
            fragments_verified: 20_000,
        },
    }
}

#[test]
fn doubtful_results_are_reported() {
    let mut outcome = outcome();
    outcome.warn();
    assert!(outcome.warnings.is_empty(), "{:?}", outcome.warnings);
    outcome.runs[0].served.latency_us.mean = 104_000.0;
    outcome.runs[1].served.latency_us.max = 44e6;
    outcome.runs[2].restarted_warm = false;
    outcome.warn();
    assert_eq!(outcome.warnings.len(), 3, "{:?}", outcome.warnings);
    for (warning, words) in outcome
        .warnings
        .iter()
        .zip(["104 ms", "'uncompressed' took 44.0 s", "(lz4)"])
    {
        assert!(warning.contains(words), "{words} is missing in {warning}");
    }
}

#[test]
fn the_headline_distinguishes_gain_loss_and_neither() {
    let mut outcome = outcome();
    assert!(
        outcome.headline().contains("1.38 (lz4) and 1.62 (auto) times"),
        "{}",
        outcome.headline()
    );
    (outcome.runs[2].served.iops, outcome.runs[3].served.iops) = (241.0, 239.0);
    assert!(
        outcome.headline().contains("little difference"),
        "{}",
        outcome.headline()
    );
    outcome.runs[2].served.iops = 200.0;
    assert!(outcome.headline().contains("slower"), "{}", outcome.headline());
    outcome.runs[3].served.iops = 360.0;
    let mixed = "serves 0.83 (lz4) and 1.50 (auto) times";
    assert!(outcome.headline().contains(mixed), "{}", outcome.headline());
}
