//! The engine breaks an ordering on purpose (`flaz_engine::planted`), and the test of that ordering must fail.
//!
//! The simulation of crashes finds most of these by itself, see `tests/crash/planted.rs`. Here it is shown that each test by
//! name can fail, and what the simulation meets too seldom is looked for.

use std::panic::catch_unwind;

use flaz_engine::planted::{PlantedBug, plant};

use crate::back::{full, orderings as back};
use crate::{changed, lives, orderings, random};

/// A defect, and a test that must see it.
type Pair = (PlantedBug, fn());

fn are_seen(pairs: &[Pair]) {
    for (bug, test) in pairs {
        plant(Some(*bug));
        let outcome = catch_unwind(test);
        plant(None);
        assert!(outcome.is_err(), "{bug:?} is not seen");
    }
}

#[test]
fn orderings_that_are_broken_are_seen() {
    are_seen(&[
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
            orderings::a_cut_between_origin_write_and_cache_invalidation_serves_no_old_copy,
        ),
        (
            PlantedBug::IntentClearedUnflushed,
            orderings::an_intent_is_cleared_after_the_origin_is_flushed_and_the_log_is_stable,
        ),
        (
            PlantedBug::IntentClearedBeforeLog,
            orderings::an_intent_is_cleared_after_the_origin_is_flushed_and_the_log_is_stable,
        ),
        (
            PlantedBug::TombstoneNotWritten,
            orderings::a_tombstone_is_stable_before_the_intent_that_it_replaces_is_cleared,
        ),
        (
            PlantedBug::RegionNotVoided,
            orderings::a_region_is_void_and_that_stable_before_it_is_discarded_and_before_the_next_is_reclaimed,
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
            orderings::a_cache_says_clean_after_everything_of_its_image_and_the_origin_are_stable,
        ),
        (
            PlantedBug::SummaryAfterMark,
            orderings::the_summary_of_a_recovered_region_is_stable_before_its_mark_goes,
        ),
        (
            PlantedBug::RingOfOldIgnored,
            orderings::what_follows_a_tombstone_that_is_not_stable_goes_to_its_ring,
        ),
        (
            PlantedBug::OriginNotFlushedAtStart,
            lives::a_start_that_begins_with_nothing_flushes_the_origin_first,
        ),
        (
            PlantedBug::OriginComparedIntended,
            changed::at_every_event_an_origin_that_was_left_alone_is_accepted,
        ),
    ]);
}

#[test]
fn orderings_that_are_broken_in_write_back_are_seen() {
    are_seen(&[
        (
            PlantedBug::AcknowledgedBeforeLanding,
            back::an_extent_and_those_before_it_in_its_region_have_landed_before_a_write_is_acknowledged,
        ),
        (
            PlantedBug::CleanedBeforeStable,
            back::the_cache_device_is_flushed_before_the_cleaner_writes_to_the_origin,
        ),
        (
            PlantedBug::CleanedUnflushed,
            back::the_origin_is_flushed_before_blocks_are_recorded_as_clean,
        ),
        (
            PlantedBug::CleanedNotSettled,
            back::that_a_block_is_clean_is_stable_before_a_write_goes_past_the_cache,
        ),
        (
            PlantedBug::DirtyVoidedUnstable,
            back::the_log_is_stable_before_a_region_with_dirty_records_is_made_void,
        ),
        (
            PlantedBug::DirtyFlushNotSent,
            back::the_cache_device_is_flushed_before_a_flush_is_answered,
        ),
        (
            PlantedBug::DirtyFuaDropped,
            back::the_cache_device_is_flushed_before_a_write_with_fua_is_answered,
        ),
        (
            PlantedBug::DirtyStoredClean,
            back::what_is_written_after_it_was_cleaned_is_dirty_again_after_a_crash,
        ),
        (
            PlantedBug::AcknowledgedBeforeLanding,
            random::stalls_and_absences_and_a_kill_lose_nothing_that_was_acknowledged_in_write_back,
        ),
        (
            PlantedBug::DirtyFlushNotSent,
            random::stalls_and_absences_and_a_power_cut_lose_nothing_durable_in_write_back,
        ),
        (
            PlantedBug::RegionNotResumed,
            full::a_crash_in_a_reclaim_leaves_room_to_note_that_dirty_blocks_are_lost,
        ),
    ]);
}
