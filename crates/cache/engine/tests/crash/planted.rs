//! Deliberate defects, all of which the simulation must find; and a model of an index that is larger than memory, which must change
//! nothing.

use flaz_engine::planted::{PlantedBug, page_index, plant};

use super::workload::{Scenario, Shape, with_resizes};
use super::{Counts, Failure, explore_bases, groups, number_from_env};
use flaz_engine::settings::Mode;

/// Crash states within which each defect must be found: less than a minute on two cores.
const STATES_MAX: u64 = 50_000;

/// Crash states with a paged index.
const PAGED_STATES: u64 = 20_000;

/// One flush in 200 must be one that data depends on when the power fails.
fn states_max(bug: PlantedBug) -> u64 {
    match bug {
        PlantedBug::FlushNotSentAtTimes | PlantedBug::OvertakenMemberGrouped => 4 * STATES_MAX,
        _ => STATES_MAX,
    }
}

#[test]
fn planted_bugs_are_found() {
    let goal = number_from_env("FLAZ_CRASH_STATES");
    let wanted = std::env::var("FLAZ_PLANTED").ok();
    if let Some(name) = &wanted {
        let known = PlantedBug::ALL.iter().any(|bug| *name == format!("{bug:?}"));
        assert!(
            known,
            "FLAZ_PLANTED: expected one of {:?}, found {name}",
            PlantedBug::ALL
        );
    }
    let mut missed = Vec::new();
    for &bug in PlantedBug::ALL {
        if wanted.as_ref().is_some_and(|name| *name != format!("{bug:?}")) {
            continue;
        }
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
        let goal = goal.unwrap_or(states_max(bug));
        let adapt = |scenario: &mut Scenario| {
            if bug == PlantedBug::ShrunkEarly {
                with_resizes(scenario);
            }
        };
        let (counts, failure) = explore_bases(goal, &|| plant(Some(bug)), &adapt, &base_of);
        match failure {
            Some(failure) => eprintln!("{bug:?}: found after {} crash states: {failure}", counts.states),
            None => {
                eprintln!("{bug:?}: NOT FOUND in {} crash states", counts.states);
                missed.push(bug);
            }
        }
    }
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
        PlantedBug::ImageOfOldPages,
        PlantedBug::RetiredEntryFound,
        PlantedBug::PageNotChecked,
        PlantedBug::RetiredEarly,
        PlantedBug::SlotFreedEarly,
    ] {
        let (_, failure) = explore_paged(goal, Some(bug));
        assert!(failure.is_some(), "{bug:?} is not found");
    }
}
