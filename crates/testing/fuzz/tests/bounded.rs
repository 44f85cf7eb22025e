//! All stored inputs, and a limited number of seeds of every target.
//!
//! `FLAZ_SEEDS=n` sets the number of seeds of each target.

use flaz_engine::cache::Start;
use flaz_engine::settings::Mode;
use flaz_fuzz::driver::{input, kept, run, seeded};
use flaz_fuzz::life::{Outcome, cache_life, dirty_life};
use flaz_fuzz::shape::{DIRTY_SHAPES, End, SHAPES};
use flaz_fuzz::structure::Kind;
use flaz_fuzz::victim::Victim;
use flaz_fuzz::{TARGETS, Target};

/// Maximum memory of the whole test in KiB.
const MEMORY_KIB_MAX: u64 = 512 << 10;

fn target(name: &str) -> &'static Target {
    TARGETS
        .iter()
        .find(|target| target.name == name)
        .expect("a target")
}

/// Peak memory of this process in KiB.
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
    assert!(!kept.is_empty(), "no stored inputs of {name}");
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
        "dictionary",
        "summary",
        "manifest",
        "pool",
    ] {
        check(name);
    }
}

#[test]
fn codec_streams() {
    check("codec");
}

#[test]
fn traces() {
    check("trace");
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
fn dirty_caches_on_mutated_devices() {
    check("dirty-cache");
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

// Not a unit test: that would compile the engine once more, for this test alone.
#[test]
fn base_images_have_all_structures_and_start_warm() {
    let whole = (0..SHAPES.len()).map(Victim::get);
    for victim in whole.chain((0..DIRTY_SHAPES.len()).map(Victim::dirty)) {
        let shape = &victim.shape;
        let count = |kind| victim.places.iter().filter(|place| place.kind == kind).count();
        println!(
            "{}: {} extents, {} summaries, {} images, {} manifest sectors",
            shape.name,
            count(Kind::Extent),
            count(Kind::Summary),
            count(Kind::Image),
            count(Kind::Manifest)
        );
        assert!(
            count(Kind::Extent) > 5 && count(Kind::Summary) > 0,
            "{}",
            shape.name
        );
        assert!(
            count(Kind::Image) > 0 || shape.end != End::Clean,
            "{}",
            shape.name
        );
        assert!(count(Kind::Manifest) > 0, "{}", shape.name);
        let opened = victim.opened();
        let warm = match shape.end {
            End::Clean => matches!(opened.start, Start::Warm(_)),
            _ => opened.start == Start::Recovered,
        };
        assert!(warm, "{}: {:?}", shape.name, opened.start);
        let cached = opened.cached_blocks;
        assert!(cached > 20, "{}: {cached} blocks are cached", shape.name);
        let dirty = opened.dirty_blocks;
        assert_eq!(
            shape.mode == Mode::WriteBack,
            dirty > 10,
            "{}: {dirty} dirty",
            shape.name
        );
        if shape.mode == Mode::WriteThrough && shape.end == End::Killed {
            assert!(opened.intended_stripes > 0, "{}: no intents", shape.name);
        }
    }
}

/// The mutations are useless if every cache is refused or starts cold.
#[test]
fn mutated_caches_start_in_every_way() {
    let [warm, recovered, cold, refused] = starts("cache", cache_life);
    assert!(warm > 20 && recovered > 20 && cold > 20 && refused > 0);
    // A dirty cache does not start cold.
    let [warm, recovered, _, refused] = starts("dirty-cache", dirty_life);
    assert!(warm > 20 && recovered > 20 && refused > 0);
}

/// How many of 200 mutated caches start warm, after a recovery, cold, or not at all.
fn starts(name: &str, life: fn(&[u8]) -> Outcome) -> [u32; 4] {
    let mut counts = [0; 4];
    for seed in 0..200 {
        let place = match life(&input(target(name), &[], seed)).start {
            Some(Start::Warm(_)) => 0,
            Some(Start::Recovered) => 1,
            Some(_) => 2,
            None => 3,
        };
        counts[place] += 1;
    }
    println!("{name}: warm, recovered, cold, refused: {counts:?}");
    counts
}
