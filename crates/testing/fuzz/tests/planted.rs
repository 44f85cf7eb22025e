//! Checks the verdicts: mutated images must reveal bugs planted in the engine. `cargo test -p flaz-fuzz --features
//! planted-bugs --test planted`.
#![cfg(feature = "planted-bugs")]

use std::panic::catch_unwind;

use flaz_engine::planted::{PlantedBug, plant};
use flaz_fuzz::driver::input;
use flaz_fuzz::life::{Outcome, cache_life, dirty_life};
use flaz_fuzz::shape::{DIRTY_SHAPES, SHAPES};
use flaz_fuzz::victim::Victim;
use flaz_fuzz::{TARGETS, Target};

/// Number of seeds tried for each bug. Since damage below the stable mark is refused, few images show
/// `DirtyStoredClean`: about one in ten thousand.
const SEEDS_MAX: u64 = 20_000;

#[test]
fn mutated_images_find_planted_bugs() {
    // Created by an engine without bugs.
    let victims = (0..SHAPES.len()).map(Victim::get);
    let victims: Vec<_> = victims
        .chain((0..DIRTY_SHAPES.len()).map(Victim::dirty))
        .collect();
    assert!(victims.iter().all(|victim| !victim.places.is_empty()));
    find(
        "cache",
        cache_life,
        &[
            PlantedBug::ChecksumNotCompared,
            PlantedBug::RecordsOutOfOrder,
            PlantedBug::TombstonesForgotten,
            PlantedBug::RetireSkipped,
        ],
    );
    find(
        "dirty-cache",
        dirty_life,
        &[
            PlantedBug::ChecksumNotCompared,
            PlantedBug::DirtyStoredClean,
            PlantedBug::IntendedDirtyDropped,
        ],
    );
}

fn find(target: &str, life: fn(&[u8]) -> Outcome, bugs: &[PlantedBug]) {
    let target: &Target = TARGETS
        .iter()
        .find(|other| other.name == target)
        .expect("a target");
    for bug in bugs {
        plant(Some(*bug));
        let found = (0..SEEDS_MAX).find(|&seed| catch_unwind(|| life(&input(target, &[], seed))).is_err());
        plant(None);
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} is not found in {SEEDS_MAX} seeds");
    }
}
