//! Index pages are damaged while clients run, and rebuilt from the log.

use std::cell::Cell;

use flaz_engine::planted::{PlantedBug, page_index, plant};
use flaz_sim::check_seeds;

use super::{plan, run};

/// So many runs in which index pages are damaged. Returns how many were rebuilt: exactly as they were, so that no request fails.
fn rotten_runs(runs: u64) -> u64 {
    let rebuilt = Cell::new(0);
    page_index(true);
    check_seeds(runs, |seed| {
        let mut plan = plan(seed);
        plan.pages_rot = true;
        match seed % 4 {
            0 => {
                plan = plan.through();
                plan.cache_faults.write_error_ppm = 5_000;
            }
            // Regions are freed all the time.
            1 => {
                let shards = u64::from(plan.wish.shard_count.expect("there is"));
                plan.cache_len = (192 << 10) + 6 * shards * (128 << 10);
            }
            // Some pages can be read later.
            2 => {
                plan = plan.through();
                plan.cache_faults.read_error_ppm = 3_000;
            }
            _ => {}
        }
        rebuilt.set(rebuilt.get() + run(&plan).stats.counts.index_pages_rebuilt);
    });
    page_index(false);
    rebuilt.get()
}

#[test]
fn rotten_index_pages_are_rebuilt_while_clients_run() {
    let rebuilt = rotten_runs(60);
    assert!(
        rebuilt > 300 || std::env::var_os("FLAZ_SEED").is_some(),
        "{rebuilt}"
    );
}

#[test]
fn index_pages_that_are_rebuilt_wrongly_are_found() {
    for bug in [
        PlantedBug::RebuiltWithRemoved,
        PlantedBug::RebuiltFromLeft,
        PlantedBug::RebuiltFromDevice,
    ] {
        plant(Some(bug));
        let outcome = std::panic::catch_unwind(|| rotten_runs(3000));
        plant(None);
        assert!(outcome.is_err(), "{bug:?} is not found");
    }
    page_index(false);
}
