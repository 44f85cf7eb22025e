//! All inputs that were kept, and a bounded number of seeds of every target.
//!
//! `FLAZ_SEEDS=n` tries so many seeds of each instead.

use std::cell::Cell;

use flaz_fuzz::driver::{input, kept, run, seeded};
use flaz_fuzz::{TARGETS, Target};

/// Most memory that all of this may take, in KiB.
const MEMORY_KIB_MAX: u64 = 512 << 10;

fn target(name: &str) -> &'static Target {
    TARGETS
        .iter()
        .find(|target| target.name == name)
        .expect("a target")
}

/// The most memory that this process ever had, in KiB.
fn memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("a high-water mark");
    let number = line
        .split_whitespace()
        .next()
        .and_then(|number| number.parse().ok());
    number.expect("a number")
}

fn check(name: &str) {
    let target = target(name);
    let kept = kept(target).expect("a folder of inputs");
    assert!(!kept.is_empty(), "nothing is kept of {name}");
    run(target, kept.into_iter());
    let seeds = match std::env::var("FLAZ_SEEDS") {
        Ok(seeds) => seeds.parse().expect("FLAZ_SEEDS is a number"),
        Err(_) => target.seeds,
    };
    run(target, seeded(target, 0..seeds));
    let memory = memory_kib();
    assert!(memory < MEMORY_KIB_MAX, "{name}: {memory} KiB of memory");
}

#[test]
fn fixed_structures() {
    for name in [
        "superblock",
        "shard-state",
        "intent",
        "extent",
        "fragment",
        "summary",
        "void-mark",
    ] {
        check(name);
    }
}

#[test]
fn codec_streams() {
    check("codec");
}

#[test]
fn index_images() {
    check("index-image");
}

#[test]
fn caches_on_mutated_devices() {
    check("cache");
}

#[test]
fn nbd_without_io() {
    check("nbd-handshake");
    check("nbd-requests");
}

#[test]
fn nbd_sessions() {
    check("nbd-session");
}

/// The mutations are no good if every cache is refused or starts cold.
#[test]
fn mutated_caches_start_in_every_way() {
    use flaz_engine::cache::Start;
    let (warm, recovered, cold, refused) = (Cell::new(0), Cell::new(0), Cell::new(0), Cell::new(0));
    for seed in 0..200 {
        let data = input(target("cache"), &[], seed);
        let count = match flaz_fuzz::life::cache_life(&data).start {
            Some(Start::Warm(_)) => &warm,
            Some(Start::Recovered) => &recovered,
            Some(_) => &cold,
            None => &refused,
        };
        count.set(count.get() + 1);
    }
    let counts = [&warm, &recovered, &cold, &refused].map(Cell::get);
    println!("warm, recovered, cold, refused: {counts:?}");
    assert!(
        counts[..3].iter().all(|count| *count > 20) && counts[3] > 0,
        "{counts:?}"
    );
}
