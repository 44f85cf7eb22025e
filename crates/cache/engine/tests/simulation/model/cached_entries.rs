//! Lookups without index pages, by entries that are cached beside them.

use flaz_engine::planted::{PlantedBug, page_index, plant};
use flaz_sim::check_seeds;

use super::{plan, run};

fn runs(runs: u64) {
    page_index(true);
    check_seeds(runs, |seed| {
        let mut plan = plan(seed);
        if seed % 2 == 0 {
            // Regions are freed all the time.
            let shards = u64::from(plan.wish.shard_count.expect("there is"));
            plan.cache_len = (192 << 10) + 6 * shards * (128 << 10);
        }
        run(&plan);
    });
    page_index(false);
}

/// A table beside the pages tells.
#[test]
fn cached_entries_that_are_out_of_date_are_found() {
    runs(20);
    for bug in [PlantedBug::OldEntryCached, PlantedBug::RetiredEntryCached] {
        plant(Some(bug));
        let outcome = std::panic::catch_unwind(|| runs(400));
        plant(None);
        assert!(outcome.is_err(), "{bug:?} is not found");
    }
    page_index(false);
}
