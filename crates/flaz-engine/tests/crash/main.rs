//! Crashes: the process killed, both devices without power, at every moment that differs, in every way that matters.
//!
//! A workload runs on two simulated disks with volatile write caches; every device event of it is a place to crash.
//! From each crash the cache is opened again, everything is read, and an oracle of every sector says whether that may
//! be. `docs/testing.md` says what this proves and how a failure is replayed.
//!
//! | module | what it holds |
//! |---|---|
//! | `sectors` | contents that say which write they are from |
//! | `oracle` | what each sector may hold, now and after a crash |
//! | `workload` | sizes and requests, as data made from a seed |
//! | `run` | one life of a cache on two disks |
//! | `explore` | crashes of a life, lives after them |

mod explore;
mod oracle;
mod run;
mod sectors;
mod workload;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use explore::{Base, Budget, Counts, Failure, explore};
use workload::{SCENARIOS_A_BASE, Scenario};

/// Crash states of a run of all tests, unless `FLAZ_CRASH_STATES` says otherwise.
const CRASH_STATES: u64 = 200_000;

fn number_from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|error| panic!("{name}={text} is not a number: {error}")),
    )
}

/// Explores scenarios, one base a turn, on all cores, until there are `goal` crash states or one is wrong.
#[expect(
    clippy::disallowed_methods,
    reason = "each thread has simulations of its own; nothing is shared but counters"
)]
fn explore_all(goal: u64, budget: &Budget) -> Result<Counts, Failure> {
    let (next_base, states, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        let mut counts = Counts::default();
        while states.load(Ordering::Relaxed) < goal && !failed.load(Ordering::Relaxed) {
            let number = next_base.fetch_add(1, Ordering::Relaxed);
            let before = counts.states;
            let outcome = Base::new(number).and_then(|base| {
                (0..SCENARIOS_A_BASE).try_for_each(|n| {
                    let scenario = Scenario::of_seed(number * SCENARIOS_A_BASE + n, &base.shape);
                    explore(&base, &scenario, budget, &mut counts)
                })
            });
            states.fetch_add(counts.states - before, Ordering::Relaxed);
            if let Err(failure) = outcome {
                failed.store(true, Ordering::Relaxed);
                return (counts, Some(failure));
            }
        }
        (counts, None)
    };
    let started = std::time::Instant::now();
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
    eprintln!(
        "{} states in {:?} on {cores} cores",
        counts.states,
        started.elapsed()
    );
    failure.map_or(Ok(counts), Err)
}

#[test]
fn no_crash_loses_or_revives_anything() {
    if let Some(seed) = number_from_env("FLAZ_SEED") {
        let mut counts = Counts::default();
        let base = Base::new(Scenario::base_of(seed)).unwrap_or_else(|failure| panic!("{failure}"));
        let scenario = Scenario::of_seed(seed, &base.shape);
        if let Err(failure) = explore(&base, &scenario, &Budget::USUAL, &mut counts) {
            panic!("{failure}");
        }
        eprintln!("crash states explored: {}", counts.states);
        return;
    }
    let goal = number_from_env("FLAZ_CRASH_STATES").unwrap_or(CRASH_STATES);
    match explore_all(goal, &Budget::USUAL) {
        Ok(counts) => {
            eprintln!("crash states explored: {}", counts.states);
            eprintln!("{counts:?}");
        }
        Err(failure) => panic!("{failure}"),
    }
}
