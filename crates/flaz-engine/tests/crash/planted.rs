//! Defects on purpose, all of which must be found: or the simulation is not good enough.

use flaz_engine::planted::{PlantedBug, plant};

use super::workload::Shape;
use super::{explore_bases, number_from_env};
use flaz_engine::settings::Mode;

/// Crash states within which each bug must be found: less than a minute on two cores.
const STATES_MAX: u64 = 50_000;

#[test]
fn planted_bugs_are_found() {
    let goal = number_from_env("FLAZ_CRASH_STATES").unwrap_or(STATES_MAX);
    let wanted = std::env::var("FLAZ_PLANTED").ok();
    let mut missed = Vec::new();
    for &bug in PlantedBug::ALL {
        if wanted.as_ref().is_some_and(|name| *name != format!("{bug:?}")) {
            continue;
        }
        // Where the bug can show: a search among bases that never are in its mode proves nothing and takes time.
        let mode = if bug.is_of_write_back() {
            Mode::WriteBack
        } else {
            Mode::WriteThrough
        };
        let base_of = |turn| Shape::bases_of(mode).nth(turn as usize).expect("endless");
        let (counts, failure) = explore_bases(goal, &|| plant(Some(bug)), &|_| {}, &base_of);
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
