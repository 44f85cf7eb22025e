//! Crashes: the process killed, or both devices without power, at every distinct moment, with every relevant outcome.
//!
//! A workload runs on two simulated disks with volatile write caches; every device event of it is a place to crash. After
//! each crash the cache is opened again, everything is read, and an oracle of every sector decides whether the result is
//! allowed. `docs/testing.md` describes what this proves and how to replay a failure.
//!
//! | module | contents |
//! |---|---|
//! | `sectors` | sector contents that identify the write they are from |
//! | `oracle` | the allowed contents of each sector, now and after a crash |
//! | `workload` | sizes and requests, as data generated from a seed |
//! | `groups` | those of caches that store neighbours together |
//! | `run` | one life of a cache on two disks |
//! | `opening` | requests, and the allowed reasons for their failure |
//! | `damage` | damage that the contract promises to survive |
//! | `start` | the filled cache that scenarios start from |
//! | `explore` | crashes of a life, lives after them |
//! | `minimise` | smaller workloads that still fail |
//! | `planted` | deliberate defects, all of which are found |

mod damage;
mod explore;
mod groups;
mod minimise;
mod opening;
mod oracle;
#[cfg(feature = "planted-bugs")]
mod planted;
mod run;
mod sectors;
mod start;
mod workload;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flaz_engine::settings::Mode;
use flaz_sim::Rng;

use explore::{Base, Budget, Counts, Failure, explore};
use minimise::minimise;
use workload::{Op, Place, SCENARIOS_A_BASE, Scenario, Shape, Step};

/// Crash states of a run of all tests, unless `FLAZ_CRASH_STATES` is set.
const CRASH_STATES: u64 = 170_000;
/// The same of the test of changes of the size.
const RESIZE_STATES: u64 = 40_000;
/// The same of the test of withdrawals.
const WITHDRAWAL_STATES: u64 = 20_000;
/// The same of the test of groups.
const GROUPS_STATES: u64 = 12_000;
/// The same of the test of growth.
const GROWTH_STATES: u64 = 20_000;

fn number_from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|error| panic!("{name}={text} is not a number: {error}")),
    )
}

/// Explores scenarios on all cores, one base a turn starting from `FLAZ_CRASH_BASE` or 0, until there are `goal` crash
/// states or one fails. Each thread begins with `prepare`, each scenario is changed by `adapt`.
fn explore_all(
    goal: u64,
    prepare: &(impl Fn() + Sync),
    adapt: &(impl Fn(&mut Scenario) + Sync),
) -> (Counts, Option<Failure>) {
    explore_bases(goal, prepare, adapt, &|turn| turn)
}

/// The same, with the base of each turn from `base_of`.
#[expect(
    clippy::disallowed_methods,
    reason = "each thread has simulations of its own; nothing is shared but counters"
)]
fn explore_bases(
    goal: u64,
    prepare: &(impl Fn() + Sync),
    adapt: &(impl Fn(&mut Scenario) + Sync),
    base_of: &(impl Fn(u64) -> u64 + Sync),
) -> (Counts, Option<Failure>) {
    let first_base = number_from_env("FLAZ_CRASH_BASE").unwrap_or(0);
    let (next_base, states, failed) = (
        AtomicU64::new(first_base),
        AtomicU64::new(0),
        AtomicBool::new(false),
    );
    let work = || {
        prepare();
        let mut counts = Counts::default();
        while states.load(Ordering::Relaxed) < goal && !failed.load(Ordering::Relaxed) {
            let number = base_of(next_base.fetch_add(1, Ordering::Relaxed));
            let outcome = Base::new(number).and_then(|base| {
                (0..SCENARIOS_A_BASE).try_for_each(|n| {
                    if states.load(Ordering::Relaxed) >= goal || failed.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    let before = counts.states;
                    let mut scenario = Scenario::of_seed(number * SCENARIOS_A_BASE + n, &base.shape);
                    adapt(&mut scenario);
                    let outcome = explore(&base, &scenario, &Budget::USUAL, &mut counts);
                    states.fetch_add(counts.states - before, Ordering::Relaxed);
                    outcome
                })
            });
            if let Err(failure) = outcome {
                failed.store(true, Ordering::Relaxed);
                return (counts, Some(failure));
            }
        }
        (counts, None)
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut counts = Counts::default();
    let mut failure = None;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            let (more, wrong) = thread.join().expect("a thread catches what goes wrong in it");
            counts.add(&more);
            failure = failure.take().or(wrong);
        }
    });
    (counts, failure)
}

/// Fails with everything that helps: how to replay the failure, and a smaller workload that fails as well.
fn report(failure: Failure, adapt: &impl Fn(&mut Scenario)) -> ! {
    let seed = failure.seed;
    eprintln!("{failure}");
    eprintln!(
        "replay: FLAZ_SEED={seed} cargo test -p flaz-engine --test simulation -- --exact --nocapture {}\n",
        std::thread::current().name().unwrap_or("TEST")
    );
    let base = Base::new(Scenario::base_of(seed)).unwrap_or_else(|failure| panic!("{failure}"));
    let mut scenario = Scenario::of_seed(seed, &base.shape);
    adapt(&mut scenario);
    let smallest = minimise(&base, &scenario, failure, &Budget::USUAL);
    eprintln!(
        "a smaller workload that fails, of {} steps:",
        smallest.steps.len()
    );
    for step in &smallest.steps {
        eprintln!("  {step:?},");
    }
    panic!("{}", smallest.failure);
}

/// Replays the scenario of `FLAZ_SEED`; false: it is not set.
fn replays(adapt: &impl Fn(&mut Scenario)) -> bool {
    let Some(seed) = number_from_env("FLAZ_SEED") else {
        return false;
    };
    let mut counts = Counts::default();
    let base = Base::new(Scenario::base_of(seed)).unwrap_or_else(|failure| panic!("{failure}"));
    let mut scenario = Scenario::of_seed(seed, &base.shape);
    adapt(&mut scenario);
    match explore(&base, &scenario, &Budget::USUAL, &mut counts) {
        Ok(()) => eprintln!("crash states explored: {}", counts.states),
        Err(failure) => report(failure, adapt),
    }
    true
}

/// Scenarios in which data was once lost or revived.
const PAST_FAILURES: [u64; 11] = [
    // A flush was answered while the cache stopped, and its mark waited for the origin.
    30_125_010_639_126_640,
    // A page of intents was unreadable at one opening: its bits counted as set, writers relied on them, and they were not
    // on the device after the next crash.
    491,
    // A damaged clean block was found during a stop, which then never ended.
    46,
    // A damaged extent in a region whose mark was removed before its summary was stable.
    30_120_649_770_926_149,
    // A damaged dirty block at a start without a free region: reclaim tried forever to make space for it.
    30_121_897_156_935_735,
    // The first header of a region had rotted, and the power failed before its summary was stable: the region was taken for
    // a reclaimed one, and data that it had voided came back.
    30_122_112_593_166_337,
    // A crash in a reclaim left no space to record that a dirty block is damaged: reclaim waited forever.
    30_121_942_606_413_860,
    // Zeroes that were not stored on a fenced cache device were read, and were gone after the process was killed.
    30_122_253_152_682_041,
    // A single read failed when a dirty block had to be moved at a start: the block was recorded as lost.
    30_122_482_983_764_031,
    // One superblock was torn, the other was temporarily unreadable and then misread once: this was taken for no cache.
    30_122_528_550_682_631,
    // Blocks of refused writes, which are not read until the next start, were reported as damaged.
    30_122_718_888_198_188,
];

#[test]
fn seeds_that_failed_before_pass() {
    for seed in PAST_FAILURES {
        let base = Base::new(Scenario::base_of(seed)).unwrap_or_else(|failure| panic!("{failure}"));
        let scenario = Scenario::of_seed(seed, &base.shape);
        let mut counts = Counts::default();
        if let Err(failure) = explore(&base, &scenario, &Budget::USUAL, &mut counts) {
            panic!("{failure}");
        }
        assert!(
            counts.states > 100,
            "{} crash states of seed {seed}",
            counts.states
        );
    }
}

/// Crash states of caches on a sparse file.
const SPARSE_STATES: u64 = 20_000;

#[test]
fn no_crash_loses_or_revives_anything() {
    let unchanged = |_: &mut Scenario| {};
    if replays(&unchanged) {
        return;
    }
    let goal = number_from_env("FLAZ_CRASH_STATES").unwrap_or(CRASH_STATES);
    let (counts, failure) = explore_all(goal, &|| {}, &unchanged);
    if let Some(failure) = failure {
        report(failure, &unchanged);
    }
    eprintln!("crash states explored: {}", counts.states);
    eprintln!("{counts:?}");
    if goal < CRASH_STATES {
        // With few bases, some kinds may not occur.
        return;
    }
    // A test must not pass without exploring anything.
    for (name, count) in [
        ("kills", counts.kills),
        ("power cuts", counts.power_cuts),
        ("second crashes", counts.second_crashes),
        ("lives after crashes", counts.lived_on),
        ("double recoveries", counts.twice),
        ("reclaimed regions", counts.did.regions_reclaimed),
        ("reclaimed blocks", counts.did.reclaimed_blocks),
        ("reinserted blocks", counts.did.reinserted_blocks),
        ("blocks compressed again", counts.did.repacked_blocks),
        ("blocks stored together", counts.did.grouped_blocks),
        ("overtaken admissions", counts.did.refused_overtaken),
        ("joined reads", counts.did.joined_reads),
        ("tombstones", counts.did.tombstones),
        ("errors of the origin", counts.did.origin_errors),
        ("errors of the cache device", counts.did.cache_errors),
        ("sequential reads past the cache", counts.did.refused_sequential),
        ("changes of settings", counts.unsettled),
        ("large requests", counts.large),
        ("openings with errors", counts.kinds.opened_failing),
        ("refused openings", counts.kinds.refused),
        ("lives with errors after a crash", counts.kinds.failing_lives),
        ("damage after a crash", counts.kinds.damaged_starts),
        ("damage to the newest extents", counts.kinds.damaged_newest),
        ("damage in lives", counts.kinds.damages),
        ("stops beside requests", counts.kinds.stops_beside),
        ("failed checksums", counts.did.checksum_failures),
        ("dirty blocks that cannot be read", counts.did.dirty_lost),
    ] {
        assert!(count > 0, "no {name} in the whole test");
    }
}

/// A cache stops being marked as dirty while clients write, and is marked again. With no mark, a crash may lose the cache's
/// contents, so all that was acknowledged has to be on the origin.
#[test]
fn no_crash_beside_a_withdrawal_loses_anything() {
    let adapt = |scenario: &mut Scenario| {
        let mut rng = Rng::new(scenario.seed ^ 0x0d1d);
        workload::withdraw(&mut scenario.steps, &mut rng);
    };
    if replays(&adapt) {
        return;
    }
    let base_of = |turn| {
        Shape::bases_of(Mode::WriteBack)
            .nth(turn as usize)
            .expect("endless")
    };
    let goal = number_from_env("FLAZ_CRASH_STATES").unwrap_or(WITHDRAWAL_STATES);
    let (counts, failure) = explore_bases(goal, &|| {}, &adapt, &base_of);
    if let Some(failure) = failure {
        report(failure, &adapt);
    }
    assert!(counts.kinds.withdrawn > 0 && counts.lived_on > 0, "{counts:?}");
}

/// The same beside changes of the size.
const PAST_FAILURES_OF_RESIZES: [u64; 2] = [
    // A stop freed a region for the index image, and so closed an open one with damage: the image was taken before the summary
    // of that region was stable.
    51,
    // A shrink was called off between the end of a reclaim of dirty blocks and its mark in the manifest: writes went to the
    // region that had taken these blocks, and recovery still ignored it.
    177,
];

/// The cache grows and shrinks while clients write. A shrink that takes too long is called off.
#[test]
fn no_crash_beside_a_resize_loses_or_revives_anything() {
    let adapt = workload::with_resizes;
    if replays(&adapt) {
        return;
    }
    for seed in PAST_FAILURES_OF_RESIZES {
        let base = Base::new(Scenario::base_of(seed)).unwrap_or_else(|failure| panic!("{failure}"));
        let mut scenario = Scenario::of_seed(seed, &base.shape);
        adapt(&mut scenario);
        if let Err(failure) = explore(&base, &scenario, &Budget::USUAL, &mut Counts::default()) {
            panic!("{failure}");
        }
    }
    let goal = number_from_env("FLAZ_CRASH_STATES").unwrap_or(RESIZE_STATES);
    let (counts, failure) = explore_all(goal, &|| {}, &adapt);
    if let Some(failure) = failure {
        report(failure, &adapt);
    }
    let kinds = [
        counts.kinds.grown,
        counts.kinds.shrunk,
        counts.kinds.shrinks_called_off,
        counts.lived_on,
    ];
    assert!(kinds.iter().all(|&count| count > 0), "{counts:?}");
}

/// The origin grows while clients write, and they write beyond its old end at once.
#[test]
fn no_crash_beside_growth_loses_anything() {
    let adapt = |scenario: &mut Scenario| {
        let mut rng = Rng::new(scenario.seed ^ 0x96f0);
        let shape = Shape::of_base(Scenario::base_of(scenario.seed));
        workload::grow(&mut scenario.steps, &shape, &mut rng);
    };
    if replays(&adapt) {
        return;
    }
    let goal = number_from_env("FLAZ_CRASH_STATES").unwrap_or(GROWTH_STATES);
    let (counts, failure) = explore_all(goal, &|| {}, &adapt);
    if let Some(failure) = failure {
        report(failure, &adapt);
    }
    assert!(
        counts.kinds.origins_grown > 0 && counts.lived_on > 0,
        "{counts:?}"
    );
}

/// Neighbours are stored together, and their groups divided and moved.
#[test]
fn no_crash_beside_groups_loses_or_revives_anything() {
    let unchanged = |_: &mut Scenario| {};
    if replays(&unchanged) {
        return;
    }
    let goal = number_from_env("FLAZ_CRASH_STATES").unwrap_or(GROUPS_STATES);
    let base_of = |turn| groups::FIRST_BASE + turn;
    let (counts, failure) = explore_bases(goal, &|| {}, &unchanged, &base_of);
    if let Some(failure) = failure {
        report(failure, &unchanged);
    }
    eprintln!("{counts:?}");
    if goal < GROUPS_STATES {
        return;
    }
    for (name, count, least) in [
        ("blocks stored together", counts.did.grouped_blocks, 1000),
        (
            "groups without some of their blocks",
            counts.did.groups_divided,
            500,
        ),
        ("kills", counts.kills, 1000),
        ("power cuts", counts.power_cuts, 1000),
        ("second crashes", counts.second_crashes, 1000),
        ("lives after crashes", counts.lived_on, 1000),
    ] {
        assert!(count >= least, "{count} {name}: {counts:?}");
    }
}

/// No sampling: a crash at each device event, with each plan.
fn every_crash_of_a_short_workload(number: u64) {
    let place = |spot, first, count| Place { spot, first, count };
    let write = |place, version, fua| Op::Write { place, version, fua };
    let ops = [
        (0, write(place(1, 0, 16), 1, false)),
        (1, write(place(3, 0, 12), 2, false)),
        (0, Op::Flush),
        (0, write(place(1, 4, 12), 3, true)),
        (
            1,
            Op::Trim {
                place: place(3, 8, 8),
                fua: false,
            },
        ),
        (1, write(place(3, 0, 8), 4, false)),
    ];
    let steps = ops.map(|(client, op)| Step { phase: 0, client, op });
    let base = Base::new(number).unwrap_or_else(|failure| panic!("{failure}"));
    let mut scenario = Scenario::of_seed(number * SCENARIOS_A_BASE, &base.shape);
    scenario.steps = steps.to_vec();
    (scenario.cache_faults, scenario.origin_faults) = Default::default();
    let mut counts = Counts::default();
    if let Err(failure) = explore(&base, &scenario, &Budget::ALL, &mut counts) {
        panic!("{failure}");
    }
    assert!(
        counts.kills > 100 && counts.power_cuts > 1000,
        "too little of base {number}: {counts:?}"
    );
}

// Each mode on one shard and on two. A test each, because each takes more than a minute of one core.

#[test]
fn every_crash_of_a_short_workload_loses_and_revives_nothing_on_base_0() {
    every_crash_of_a_short_workload(0);
}

#[test]
fn every_crash_of_a_short_workload_loses_and_revives_nothing_on_base_1() {
    every_crash_of_a_short_workload(1);
}

#[test]
fn every_crash_of_a_short_workload_loses_and_revives_nothing_on_base_2() {
    every_crash_of_a_short_workload(2);
}

#[test]
fn every_crash_of_a_short_workload_loses_and_revives_nothing_on_base_3() {
    every_crash_of_a_short_workload(3);
}

/// A cache file on a file system that is often full.
#[test]
fn no_crash_of_a_sparse_cache_loses_anything() {
    let adapt = |scenario: &mut Scenario| scenario.cache_faults.allocate_no_space_ppm = 600_000;
    let (counts, failure) = explore_all(SPARSE_STATES, &|| {}, &adapt);
    if let Some(failure) = failure {
        report(failure, &adapt);
    }
    for (name, count) in [
        ("reclaimed regions", counts.did.regions_reclaimed),
        ("allocations without space", counts.did.allocations_without_space),
    ] {
        assert!(count > 0, "no {name} in the whole test");
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let once = |seed| {
        let base = Base::new(Scenario::base_of(seed)).unwrap_or_else(|failure| panic!("{failure}"));
        let mut counts = Counts::default();
        let outcome = explore(
            &base,
            &Scenario::of_seed(seed, &base.shape),
            &Budget::SMALL,
            &mut counts,
        );
        (outcome.map_err(|failure| failure.to_string()), counts)
    };
    let digests: Vec<u64> = [5, 21, 40]
        .map(once)
        .iter()
        .map(|(_, counts)| counts.digest)
        .collect();
    assert_eq!(once(21), once(21));
    assert!(
        digests[0] != digests[1] && digests[1] != digests[2],
        "different seeds give different runs"
    );
}

/// The negative control: an origin that acknowledges flushes and does nothing loses durable data. The contract does not
/// cover that, but the test must detect it.
#[test]
fn a_lying_origin_flush_is_found_and_minimised() {
    // With host records, an origin that has lost its first bytes would be refused.
    let adapt = |scenario: &mut Scenario| {
        scenario.origin_faults.flush_lie_ppm = 1_000_000;
        scenario.forgetful_host = true;
    };
    let (counts, failure) = explore_all(20_000, &|| {}, &adapt);
    let failure = failure.unwrap_or_else(|| panic!("not found in {} crash states", counts.states));
    let base = Base::new(Scenario::base_of(failure.seed)).unwrap_or_else(|failure| panic!("{failure}"));
    let mut scenario = Scenario::of_seed(failure.seed, &base.shape);
    adapt(&mut scenario);
    let smallest = minimise(&base, &scenario, failure, &Budget::USUAL);
    assert!(
        smallest.steps.len() <= 4,
        "a write and a flush are enough to lose something: {:#?}",
        smallest.steps
    );
}
