//! Blocks that are read are stored with less compression again, beside writes and reclaim.

use flaz_engine::planted::{PlantedBug, hit_bound, plant};
use flaz_sim::check_seeds;

use super::{plan, run};

/// Returns how many blocks were stored so.
fn runs(runs: u64) -> u64 {
    hit_bound(true);
    let undone = std::cell::Cell::new(0);
    check_seeds(runs, |seed| {
        let mut plan = plan(seed);
        if seed % 2 == 0 {
            // Regions are freed all the time.
            let shards = u64::from(plan.wish.shard_count.expect("there is"));
            plan.cache_len = (192 << 10) + 6 * shards * (128 << 10);
        }
        undone.set(undone.get() + run(&plan).stats.counts.undone_blocks);
    });
    hit_bound(false);
    undone.get()
}

#[test]
fn a_block_is_stored_with_less_compression_unless_a_write_has_overtaken_it() {
    let undone = runs(40);
    assert!(undone > 40, "{undone}");
    plant(Some(PlantedBug::UndoneOvertaken));
    let outcome = std::panic::catch_unwind(|| runs(400));
    plant(None);
    hit_bound(false);
    assert!(outcome.is_err(), "the defect is not found");
}
