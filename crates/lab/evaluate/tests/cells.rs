//! Cells are deterministic, and behave as the machines and the cache do.

use std::sync::Arc;
use std::time::Duration;

use flaz_codec::{CodecChoice, CodecSpec};
use flaz_evaluate::agreement::choose;
use flaz_evaluate::cell::{EXTENT_BYTES, Measured, Setup, run};
use flaz_evaluate::contents::Contents;
use flaz_evaluate::evaluation::{Options, evaluate};
use flaz_evaluate::machine::Machine;
use flaz_evaluate::processor::Speeds;
use flaz_evaluate::workload::Workload;
use flaz_evaluate::workload::generated::Generated;
use flaz_evaluate::{html, real_time, text};
use flaz_page::well_formed::elements;
use flaz_random::Random;
use flaz_trace::recording::{Recorded, Stored};
use flaz_trace::{Op, Request};

const MIB: u64 = 1 << 20;

fn setup(cache_bytes: Option<u64>, codec: CodecChoice) -> Setup {
    Setup {
        machine: Machine::ALL[0],
        cache_bytes,
        codec,
        extent_bytes: EXTENT_BYTES,
        splits: true,
        speeds: Speeds::MODERN,
        cores: 4,
        warming: 1,
    }
}

fn lz4() -> CodecChoice {
    CodecSpec::LZ4.into()
}

fn read(block: u64, depth: u32, think_us: u64, granules: u64) -> Recorded {
    Recorded {
        request: Request {
            at_us: None,
            op: Op::Read,
            device: 0,
            offset: block * 4096,
            len: 4096,
        },
        depth,
        think_us,
        sizes: vec![[Stored::bytes(granules * 64); 2]],
    }
}

fn measure(load: &Workload, setup: &Setup) -> Measured {
    run(load, setup, &Arc::new(Contents::default())).expect("a cache")
}

#[test]
fn time_is_that_of_disk_ssd_client_and_processor() {
    // In random order, one after another.
    let order = Random::new(1).permutation(1000);
    let requests = (order.into_iter()).map(|number| read(u64::from(number) * 640, 1, 100, 64));
    let load = Workload::new("far", requests).expect("a load");
    let near = |measured: &Measured, each_us: u64| {
        let expected = Duration::from_micros(1000 * each_us);
        let off = measured.elapsed.as_secs_f64() / expected.as_secs_f64();
        // The last blocks are in an extent in memory.
        assert!((0.95..1.05).contains(&off), "{measured:?} beside {expected:?}");
    };
    // 12.6 ms on average, 41 us of transfer, 100 us of the client, 13 us of the processor.
    near(
        &measure(&load, &setup(None, CodecChoice::NONE)),
        12_600 + 41 + 100 + 13,
    );
    let cached = measure(&load, &setup(Some(16 * MIB), CodecChoice::NONE));
    assert_eq!((cached.hit_blocks, cached.miss_blocks), (1000, 0));
    near(&cached, 170 + 15 + 100 + 13);
    // Eight disks serve eight requests at a time, if the client sends them.
    let requests = (0..400).map(|number| read(number * 149 % 400 * 16, 8, 0, 64));
    let load = Workload::new("wide", requests).expect("a load");
    let one = measure(&load, &setup(None, CodecChoice::NONE)).elapsed;
    let eight = Setup {
        machine: Machine::ALL[1],
        ..setup(None, CodecChoice::NONE)
    };
    let ratio = one.as_secs_f64() / measure(&load, &eight).elapsed.as_secs_f64();
    assert!((5.0..8.2).contains(&ratio), "{ratio}");
}

#[test]
fn a_compressed_cache_has_more_and_costs_processor_time() {
    // 24 MiB of blocks that halve, in 16 MiB.
    let blocks = 24 * MIB / 4096;
    let requests = (0..2).flat_map(|_| (0..blocks).map(|number| read(number * 7 % blocks, 4, 0, 32)));
    let load = Workload::new("halves", requests).expect("a load");
    let plain = measure(&load, &setup(Some(16 * MIB), CodecChoice::NONE));
    let packed = measure(&load, &setup(Some(16 * MIB), lz4()));
    assert!(
        packed.hit_ratio() > 0.95 && plain.hit_ratio() < 0.8,
        "{packed:?}, {plain:?}"
    );
    assert!(packed.elapsed < plain.elapsed);
    // Every hit is restored: 1.2 us each.
    let restored = Duration::from_nanos(Speeds::MODERN.restore_ns[1] * packed.hit_blocks);
    let serves = Duration::from_nanos((Speeds::MODERN.request_ns + Speeds::MODERN.block_ns) * packed.reads);
    assert!(
        packed.processor >= restored + serves && packed.processor < (restored + serves) * 3 / 2,
        "{:?} for {restored:?} and {serves:?}",
        packed.processor
    );
}

#[test]
fn the_same_cell_gives_the_same_figures() {
    let loads = Workload::recorded().expect("recordings");
    let load = loads.iter().find(|it| it.name() == "postmark").expect("PostMark");
    let setup = setup(Some(4 * MIB), lz4());
    assert_eq!(measure(load, &setup), measure(load, &setup));
}

/// Times are not compared: they depend on what else the machine does.
#[test]
fn a_cell_in_real_time_has_the_hits_of_virtual_time() {
    let write = |number: u64| Recorded {
        request: Request {
            op: Op::Write,
            offset: number * 4096 + 512,
            len: 8192,
            ..read(0, 1, 0, 0).request
        },
        sizes: vec![[Stored::bytes(32 * 64); 2]; 3],
        ..read(0, 4, 0, 0)
    };
    // 6 MiB in 4 MiB of cache, in sequence, so that the disk is fast.
    let requests = (0..512).flat_map(|number| [read(number * 3, 8, 0, 64), write(number * 3)]);
    let load = Workload::new("mixed", requests).expect("a load");
    let setup = setup(Some(4 * MIB), lz4());
    let simulated = measure(&load, &setup);
    let served = real_time::run(&load, &setup, &Arc::new(Contents::default())).expect("a cell");
    assert_eq!(served.reads, 512);
    assert_eq!(
        served.hit_blocks + served.miss_blocks,
        simulated.hit_blocks + simulated.miss_blocks
    );
    let off = served.hit_ratio() - simulated.hit_ratio();
    assert!(off.abs() < 0.15, "{served:?} beside {simulated:?}");
    assert!(served.elapsed > Duration::from_millis(10) && served.read_latency > Duration::ZERO);
}

#[test]
fn the_shortest_cell_that_reclaims_is_chosen() {
    let load = Workload::new("one", [read(0, 1, 0, 64)]).expect("a load");
    let measured = |hits, regions, ms| Measured {
        hit_blocks: hits,
        regions_reclaimed: regions,
        elapsed: Duration::from_millis(ms),
        ..Measured::default()
    };
    let cells = [
        (setup(None, lz4()), measured(9, 9, 1)),
        (setup(Some(4 * MIB), CodecChoice::NONE), measured(9, 9, 2)),
        (setup(Some(5 * MIB), lz4()), measured(0, 9, 3)),
        (setup(Some(6 * MIB), lz4()), measured(9, 0, 4)),
        (setup(Some(7 * MIB), lz4()), measured(9, 1, 6)),
        (setup(Some(8 * MIB), lz4()), measured(9, 1, 5)),
    ];
    let chosen = |count| choose(&load, cells[..count].iter().map(|(setup, it)| (setup, it)));
    let bytes = |count| chosen(count).and_then(|it| it.setup().cache_bytes);
    assert_eq!(
        [2, 4, 5, 6].map(bytes),
        [None, Some(6 * MIB), Some(7 * MIB), Some(8 * MIB)]
    );
}

#[test]
fn an_evaluation_has_all_figures() {
    let load = |it: Generated| it.workload(30).expect("a load");
    let recorded = Workload::recorded().expect("recordings");
    let names: Vec<&str> = recorded.iter().map(Workload::name).collect();
    assert_eq!(
        names,
        ["tpch-q3", "tpch-q11", "tpch-q14", "postmark", "postmark-x4"]
    );
    let options = Options {
        loads: vec![recorded[1].clone(), load(Generated::FileServer)],
        stream: load(Generated::Stream),
        machines: vec![Machine::ALL[0], Machine::ALL[2]],
        shares: vec![0.25],
        codecs: vec![lz4()],
        speeds: Speeds::xeon_2009(),
        cores: 8,
        threads: 2,
        real_time: false,
    };
    let report = evaluate(&options, &|done, all| assert!(done <= all)).expect("caches");
    let rows = (report.disks.len(), report.sizes.len(), report.extents.len());
    assert_eq!(rows, (4, 4, 8));
    assert_eq!((report.splitting.len(), report.reclaiming.len()), (2, 2));
    // All but that of PostMark.
    assert_eq!(report.goals.len(), 7);
    assert!(report.goals.iter().all(|goal| goal.met == (goal.missing == 0.0)));
    let page = text::page(&report, false);
    for part in ["Goals", "missed by", "8D4S", "slide 24", "xeon-2ghz-2009"] {
        assert!(page.contains(part), "{part}:\n{page}");
    }
    assert!(page.lines().all(|line| line.chars().count() <= 140), "{page}");
    let page = html::page(&report, "1.2.3");
    assert!(elements(&page).expect("well-formed") > 100);
    let again = evaluate(&options, &|_, _| ()).expect("caches");
    assert_eq!(text::page(&again, false), text::page(&report, false));
}

#[test]
fn loads_that_cannot_be_replayed_are_refused() {
    let error = Workload::new("empty", []).expect_err("nothing");
    assert!(
        error
            .to_string()
            .starts_with("empty: expected reads and writes of 1 to"),
        "{error}"
    );
    let error = Workload::new("far", [read(1 << 40, 1, 0, 64)]).expect_err("too far");
    assert!(error.to_string().contains("at most 1 TiB"), "{error}");
    let error = Workload::read(std::path::Path::new("/nonexistent")).expect_err("nothing there");
    assert_eq!(error.to_string(), "cannot read the trace /nonexistent");
}
