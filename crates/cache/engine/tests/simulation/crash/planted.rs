//! Deliberate defects, all of which the simulation must find; and a model of an index that is larger than memory, which must change
//! nothing.

use std::sync::atomic::{AtomicUsize, Ordering};

use flaz_engine::planted::{PlantedBug, hit_bound, page_index, plant};
use flaz_engine::settings::Mode;

use super::explore::{Base, Budget, explore};
use super::workload::{Scenario, Shape, with_resizes};
use super::{Counts, Failure, explore_bases, groups, number_from_env};

/// Crash states within which each defect must be found: less than a minute on two cores.
const STATES_MAX: u64 = 50_000;

/// Crash states with a paged index.
const PAGED_STATES: u64 = 20_000;

/// Crash states in which blocks are stored with less compression again when they are read.
const UNDONE_STATES: u64 = 4_000;

/// Defects, with the seeds of scenarios that find them. These scenarios are explored first, which saves most of the search.
/// `FlushNotSentAtTimes` has none: it counts flushes over many scenarios.
/// A seed changes its meaning with the generator and the engine: if its scenario finds nothing, the test searches and prints another one.
type Known = (PlantedBug, u64);

const KNOWN: &[Known] = &[
    (PlantedBug::ChecksumNotCompared, 1),
    (PlantedBug::StaleAdmission, 2),
    (PlantedBug::ClockTickedOnce, 4),
    (PlantedBug::OvertakenReadJoined, 0),
    (PlantedBug::DeadMemberMoved, 1_152_921_504_606_846_976),
    (PlantedBug::OvertakenMemberGrouped, 1_152_921_504_606_847_115),
    (PlantedBug::RetireSkipped, 0),
    (PlantedBug::TrimKeepsCopy, 1),
    (PlantedBug::UnknownPartsStored, 0),
    (PlantedBug::RangeLockSkipped, 0),
    (PlantedBug::FlushNotSent, 0),
    (PlantedBug::FuaDropped, 0),
    (PlantedBug::TrimFuaDropped, 16),
    (PlantedBug::OriginNotFlushedAtStop, 9),
    (PlantedBug::CleanBeforeImage, 0),
    (PlantedBug::OpenMarkNotFlushed, 0),
    (PlantedBug::ShrunkEarly, 0),
    (PlantedBug::ExtentOutlivesRegion, 8),
    (PlantedBug::TombstoneNotWritten, 4),
    (PlantedBug::IntentNotSet, 0),
    (PlantedBug::IntentNotStable, 0),
    (PlantedBug::IntentClearedUnflushed, 2),
    (PlantedBug::IntentClearedBeforeLog, 4),
    (PlantedBug::OriginNotNoted, 4),
    (PlantedBug::OriginComparedIntended, 0),
    (PlantedBug::IntendedKept, 0),
    (PlantedBug::RecordsOutOfOrder, 0),
    (PlantedBug::TornExtentCounts, 32),
    (PlantedBug::TombstonesForgotten, 0),
    (PlantedBug::RegionNotVoided, 4),
    (PlantedBug::FullUnflushed, 8),
    (PlantedBug::ExtentBeforeManifest, 45),
    (PlantedBug::DirtyStoredClean, 32),
    (PlantedBug::AcknowledgedBeforeLanding, 32),
    (PlantedBug::DirtyFuaDropped, 32),
    (PlantedBug::DirtyFlushNotSent, 32),
    (PlantedBug::StableMarkSkipped, 32),
    (PlantedBug::DirtyDamageIsAMiss, 48),
    (PlantedBug::CleanedBeforeStable, 33),
    (PlantedBug::CleanedUnflushed, 32),
    (PlantedBug::CleanedNotSettled, 104),
    (PlantedBug::DirtyVoidedUnstable, 57),
    (PlantedBug::ReclaimedBeforeClean, 48),
    (PlantedBug::IntendedDirtyDropped, 33),
    (PlantedBug::CleanedForgotten, 32),
    (PlantedBug::PassEndsLate, 48),
];

/// One flush in 200 must be one that data depends on when the power fails.
fn states_max(bug: PlantedBug) -> u64 {
    match bug {
        PlantedBug::FlushNotSentAtTimes | PlantedBug::OvertakenMemberGrouped => 4 * STATES_MAX,
        _ => STATES_MAX,
    }
}

/// Changes a scenario to one in which the defect matters.
fn adapt(bug: PlantedBug, scenario: &mut Scenario) {
    if bug == PlantedBug::ShrunkEarly {
        with_resizes(scenario);
    }
}

/// Explores one scenario with the defect.
fn explore_known((bug, seed): Known) -> Result<(), Failure> {
    plant(Some(bug));
    let base = Base::new(Scenario::base_of(seed))?;
    let mut scenario = Scenario::of_seed(seed, &base.shape);
    adapt(bug, &mut scenario);
    explore(&base, &scenario, &Budget::USUAL, &mut Counts::default())
}

/// Explores the known scenarios on all cores. Returns the defects that they did not find.
#[expect(
    clippy::disallowed_methods,
    reason = "each thread has simulations of its own; nothing is shared but the list"
)]
fn missed_in(known: &[Known]) -> Vec<PlantedBug> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut missed = Vec::new();
        while let Some(&(bug, seed)) = known.get(next.fetch_add(1, Ordering::Relaxed)) {
            match explore_known((bug, seed)) {
                Err(failure) => eprintln!("{bug:?}: found in a known scenario: {failure}"),
                Ok(()) => missed.push(bug),
            }
        }
        missed
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let missed = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        missed.flatten().collect()
    })
}

/// Explores scenarios from the first on, until one finds the defect.
fn search(bug: PlantedBug, goal: u64) -> bool {
    // Searching bases without write-back takes time and proves nothing about write-back.
    let base_of = |turn| {
        if bug.is_of_groups() {
            groups::FIRST_BASE + turn
        } else if bug.is_of_write_back() {
            Shape::bases_of(Mode::WriteBack)
                .nth(turn as usize)
                .expect("endless")
        } else {
            turn
        }
    };
    let found = explore_bases(
        goal,
        &|| plant(Some(bug)),
        &|scenario: &mut Scenario| adapt(bug, scenario),
        &base_of,
    );
    is_found(bug, found)
}

fn is_found(bug: PlantedBug, (counts, failure): (Counts, Option<Failure>)) -> bool {
    match &failure {
        Some(failure) => eprintln!("{bug:?}: found after {} crash states: {failure}", counts.states),
        None => eprintln!("{bug:?}: NOT FOUND in {} crash states", counts.states),
    }
    failure.is_some()
}

/// `FLAZ_PLANTED` is the name of a defect, or `all`: search for it without the known scenarios.
#[test]
fn planted_bugs_are_found() {
    let goal = number_from_env("FLAZ_CRASH_STATES");
    let mut missed = match std::env::var("FLAZ_PLANTED") {
        Ok(name) if name == "all" => PlantedBug::ALL.to_vec(),
        Ok(name) => {
            let bug = PlantedBug::ALL.iter().find(|bug| name == format!("{bug:?}"));
            vec![*bug.unwrap_or_else(|| {
                panic!(
                    "FLAZ_PLANTED: expected all or one of {:?}, found {name}",
                    PlantedBug::ALL
                )
            })]
        }
        Err(_) => {
            let is_known = |bug: &&PlantedBug| KNOWN.iter().any(|(known, _)| known == *bug);
            let mut missed = missed_in(KNOWN);
            missed.extend(PlantedBug::ALL.iter().filter(|bug| !is_known(bug)));
            missed
        }
    };
    missed.retain(|&bug| !search(bug, goal.unwrap_or(states_max(bug))));
    assert_eq!(missed, [], "planted and not found");
}

/// Explores lives with a paged index.
fn explore_paged(goal: u64, bug: Option<PlantedBug>) -> (Counts, Option<Failure>) {
    let prepare = || {
        page_index(true);
        plant(bug);
    };
    explore_bases(goal, &prepare, &|_| {}, &|turn| turn)
}

/// Blocks of groups that are stored alone again when they are read have their latest contents after every crash.
#[test]
fn undone_blocks_are_up_to_date_after_a_crash() {
    let goal = number_from_env("FLAZ_CRASH_STATES").unwrap_or(UNDONE_STATES);
    let explore = |bug| {
        let prepare = || {
            hit_bound(true);
            plant(bug);
        };
        explore_bases(goal, &prepare, &|_| {}, &|turn| groups::FIRST_BASE + turn)
    };
    let (counts, failure) = explore(None);
    if let Some(failure) = failure {
        panic!("after {} crash states: {failure}", counts.states);
    }
    assert!(counts.did.undone_blocks > 100, "{:?}", counts.did);
    let (_, failure) = explore(Some(PlantedBug::UndoneOvertaken));
    assert!(failure.is_some(), "not found");
}

/// Each use of the index follows a load of its page, without an await in between, and no wait for a page breaks an order.
#[test]
fn index_pages_are_loaded_before_use() {
    let goal = number_from_env("FLAZ_CRASH_STATES").unwrap_or(PAGED_STATES);
    if let (counts, Some(failure)) = explore_paged(goal, None) {
        panic!("after {} crash states: {failure}", counts.states);
    }
    for bug in [
        PlantedBug::PageNotLoaded,
        PlantedBug::ChangedPageEvicted,
        PlantedBug::DeferredRemovalLost,
        PlantedBug::StoredChangesSkipped,
        PlantedBug::MovedChangesLost,
        PlantedBug::ImageOfOldPages,
        PlantedBug::RetiredEntryFound,
        PlantedBug::PageNotChecked,
        PlantedBug::RetiredEarly,
        PlantedBug::SlotFreedEarly,
        PlantedBug::OlderRunWins,
    ] {
        let (_, failure) = explore_paged(goal, Some(bug));
        assert!(failure.is_some(), "{bug:?} is not found");
    }
}
