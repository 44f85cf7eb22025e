//! The engine breaks an ordering deliberately (`flaz_engine::planted`), and the test of that ordering must fail.
//!
//! The crash simulation finds most of these defects by itself (`crash::planted`). The tests here show that each
//! named test can fail, and cover defects that the simulation meets too rarely.

use std::panic::catch_unwind;

use flaz_engine::planted::{PlantedBug, plant};

use super::write_back::{orderings as write_back, stable};
use super::{crashes, growth, index_pages, lifecycle, orderings, origin_changed, random, reopen};

/// A defect, and a test that must find it.
type Pair = (PlantedBug, fn());

fn are_found(pairs: &[Pair]) {
    for (bug, test) in pairs {
        plant(Some(*bug));
        let outcome = catch_unwind(test);
        plant(None);
        assert!(outcome.is_err(), "{bug:?} is not found");
    }
}

#[test]
fn broken_orderings_are_found() {
    are_found(&[(
        PlantedBug::PageNotCompared,
        index_pages::rolled_back_pages_are_never_used,
    )]);
    flaz_engine::planted::page_index(false);
    are_found(&[
        (
            PlantedBug::IntentNotSet,
            orderings::an_intent_is_stable_before_its_write_reaches_the_origin,
        ),
        (
            PlantedBug::IntentNotStable,
            orderings::an_intent_is_stable_before_its_write_reaches_the_origin,
        ),
        (
            PlantedBug::StoredBeforeOrigin,
            orderings::an_extent_is_written_after_the_origin_has_answered,
        ),
        (
            PlantedBug::IntendedKept,
            orderings::a_cut_before_cache_invalidation_serves_no_old_copy,
        ),
        (
            PlantedBug::IntentClearedUnflushed,
            orderings::an_intent_is_cleared_after_origin_flush_and_stable_log,
        ),
        (
            PlantedBug::IntentClearedBeforeLog,
            orderings::an_intent_is_cleared_after_origin_flush_and_stable_log,
        ),
        (
            PlantedBug::TombstoneNotWritten,
            orderings::a_tombstone_is_stable_before_its_intent_is_cleared,
        ),
        (
            PlantedBug::RegionNotVoided,
            orderings::a_region_is_free_in_the_manifest_before_its_discard,
        ),
        (
            PlantedBug::ReclaimNotMarked,
            crashes::a_region_is_being_reclaimed_before_a_block_leaves_it,
        ),
        (
            PlantedBug::ReclaimedKept,
            crashes::a_block_dropped_by_an_unfinished_reclaim_is_not_recovered,
        ),
        (
            PlantedBug::RegionNotPinned,
            orderings::a_region_is_not_discarded_while_it_is_read,
        ),
        (
            PlantedBug::OpenMarkNotFlushed,
            orderings::a_cache_says_open_before_the_first_write_reaches_the_origin,
        ),
        (
            PlantedBug::CleanBeforeImage,
            orderings::a_cache_is_marked_clean_after_image_and_origin_are_stable,
        ),
        (
            PlantedBug::FullUnflushed,
            orderings::the_manifest_says_what_is_stable_and_takes_nothing_back,
        ),
        (
            PlantedBug::RingOfOldIgnored,
            orderings::what_follows_a_tombstone_that_is_not_stable_goes_to_its_ring,
        ),
        (
            PlantedBug::OriginNotFlushedAtStart,
            reopen::a_start_that_begins_with_nothing_flushes_the_origin_first,
        ),
        (
            PlantedBug::VoidedAfterSave,
            lifecycle::fenced_cache_is_void_before_images_are_saved,
        ),
        (
            PlantedBug::DirtyMarkedEarly,
            lifecycle::refused_start_does_not_mark_the_cache_dirty,
        ),
        (
            PlantedBug::GrowthNotStored,
            growth::growth_survives_every_kill_and_cut,
        ),
        (
            PlantedBug::OriginComparedIntended,
            origin_changed::at_every_event_an_origin_that_was_left_alone_is_accepted,
        ),
    ]);
}

#[test]
fn broken_orderings_in_write_back_are_found() {
    are_found(&[
        (
            PlantedBug::AcknowledgedBeforeLanding,
            write_back::a_write_is_acknowledged_after_its_extents_landed,
        ),
        (
            PlantedBug::CleanedBeforeStable,
            write_back::the_cache_is_flushed_before_writeback_to_the_origin,
        ),
        (
            PlantedBug::CleanedUnflushed,
            write_back::the_origin_is_flushed_before_blocks_are_recorded_as_clean,
        ),
        (
            PlantedBug::CleanedNotSettled,
            write_back::clean_records_are_stable_before_a_write_bypasses_the_cache,
        ),
        (
            PlantedBug::DirtyVoidedUnstable,
            write_back::the_log_is_stable_before_a_dirty_region_is_voided,
        ),
        (
            PlantedBug::DirtyFlushNotSent,
            write_back::the_cache_is_flushed_before_a_flush_is_answered,
        ),
        (
            PlantedBug::DirtyFuaDropped,
            write_back::the_cache_is_flushed_before_an_fua_write_is_answered,
        ),
        (
            PlantedBug::DirtyStoredClean,
            write_back::a_block_written_after_writeback_is_dirty_after_a_crash,
        ),
        (
            PlantedBug::AcknowledgedBeforeLanding,
            random::stalls_absences_and_a_kill_in_write_back,
        ),
        (
            PlantedBug::DirtyFlushNotSent,
            random::stalls_absences_and_a_power_cut_in_write_back,
        ),
        (
            PlantedBug::StableMarkSkipped,
            stable::damage_after_a_strict_fua_write_is_found,
        ),
        (
            PlantedBug::StableMarkSkipped,
            stable::damage_after_a_strict_flush_is_found,
        ),
        (
            PlantedBug::StableMarkSkipped,
            stable::damage_after_a_marked_flush_is_found,
        ),
    ]);
}
