//! The page of an evaluation in a real browser, if there is one.

use flaz_evaluate::html;
use flaz_evaluate::report::{
    CellReport, CodecReport, ComparedReport, DisksReport, EvaluationReport, ExtentReport, GoalReport,
    LoadReport, ProcessorReport, ReclaimingReport, SizeReport, SplittingReport,
};

use browser::{ask, browser, check_legible};

#[path = "../../../bench/report/tests/support/browser.rs"]
mod browser;

const MACHINES: [&str; 3] = ["1D1S", "8D2S", "8D4S"];
const LOADS: [&str; 2] = ["tpch-q11", "postmark-x4"];

fn cell(codec: &str, hit_ratio: f64) -> CellReport {
    CellReport {
        codec: codec.to_owned(),
        seconds: 12.0,
        hit_ratio,
        read_us: 5900.0,
        processor_seconds: 0.4,
        beside_disks_percent: hit_ratio * 240.0 - 20.0,
    }
}

fn report(codecs: &[&str]) -> EvaluationReport {
    let places = || {
        LOADS
            .iter()
            .flat_map(|load| MACHINES.map(|machine| (load.to_string(), machine.to_owned())))
    };
    let sizes = places().flat_map(|(load, machine)| {
        [0.125, 0.25, 0.5, 0.75].map(|share| SizeReport {
            load: load.clone(),
            machine: machine.clone(),
            cache_bytes: 44 << 20,
            share,
            uncompressed: cell("none", share),
            compressed: (codecs.iter().zip(1..))
                .map(|(codec, number)| ComparedReport {
                    cell: cell(codec, (share * 1.3).min(1.0)),
                    gain_percent: 40.0 * share * f64::from(number) - 12.0,
                    hits_percent: Some(80.0),
                    processor_times: 2.5 * f64::from(number),
                })
                .collect(),
        })
    });
    let windows = |depth: f64| (0..40).map(|at| 1.0 - depth * f64::from(at % 2)).collect();
    EvaluationReport {
        processor: ProcessorReport {
            name: "xeon-2ghz-2009".to_owned(),
            cores: 8,
            request_us: 20.0,
            block_us: 1.5,
            codecs: vec![CodecReport {
                codec: "lz4".to_owned(),
                compress_us: 23.0,
                restore_us: 4.0,
            }],
            think: 1.0,
        },
        loads: vec![LoadReport {
            load: LOADS[0].to_owned(),
            requests: 5000,
            read_bytes: 1 << 28,
            write_bytes: 1 << 26,
            footprint_bytes: 1 << 27,
            lz4_percent: 52.0,
            depth_max: 16,
            client_seconds: 2.5,
        }],
        disks: places()
            .map(|(load, machine)| DisksReport {
                load,
                machine,
                seconds: 40.0,
                read_us: 7200.0,
            })
            .collect(),
        sizes: sizes.collect(),
        extents: (LOADS.iter())
            .flat_map(|load| {
                [32, 64, 128, 256].map(|kib| ExtentReport {
                    load: load.to_string(),
                    machine: MACHINES[2].to_owned(),
                    extent_bytes: kib << 10,
                    cell: cell("lz4", 0.5),
                    gain_percent: 4.0 - f64::from(kib) / 20.0,
                })
            })
            .collect(),
        splitting: (LOADS.iter())
            .map(|load| SplittingReport {
                load: load.to_string(),
                machine: MACHINES[2].to_owned(),
                whole: cell("lz4", 0.5),
                split: cell("lz4", 0.5),
                gain_percent: -0.7,
                latency_percent: -1.0,
            })
            .collect(),
        reclaiming: (["none", "lz4"].into_iter().zip([0.1, 0.02]))
            .map(|(codec, depth)| ReclaimingReport {
                load: "stream".to_owned(),
                machine: MACHINES[0].to_owned(),
                codec: codec.to_owned(),
                regions: 88,
                window_seconds: 0.1,
                windows: windows(depth),
                slowest: 1.0 - depth,
                slowest_uncompressed: 0.9,
            })
            .collect(),
        agreement: Vec::new(),
        goals: vec![GoalReport {
            name: "TPC-H, best cell".to_owned(),
            paper: 99.0,
            goal: 150.0,
            value: 102.0,
            at: "tpch-q11 on 1D1S".to_owned(),
            unit: "%".to_owned(),
            met: false,
            missing: 48.0,
        }],
    }
}

#[test]
fn the_page_is_laid_out_legibly() {
    let Some(browser) = browser() else { return };
    for codecs in [&["lz4"][..], &["lz4", "auto"]] {
        let page = html::page(&report(codecs), "0");
        // Of each load four, and extents, splitting and reclaiming.
        check_legible(&browser, &page, 11);
        let answer = ask(&browser, &page, "800,1600", &[]);
        assert_eq!(answer["overflow"], 0, "{answer}");
        assert_eq!(answer["faults"], serde_json::json!([]), "{answer}");
    }
}
