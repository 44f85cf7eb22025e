use super::*;
use crate::format::geometry::{Geometry, GeometryOptions};
use crate::shard::log::{Append, Appended, Class, LogIdentity};
use crate::shard::simulated::Disks;
use crate::units::Epoch;

const BLOCK: LocalBlock = LocalBlock(3);
const NUMBER: BlockNumber = BlockNumber(3);

fn map() -> (SegmentLog, BlockMap) {
    let wish = GeometryOptions {
        shard_count: Some(1),
        ..GeometryOptions::default()
    };
    let geometry = Geometry::plan(8 << 20, 512, 16 << 20, wish).expect("fits");
    let identity = LogIdentity {
        cache: 7,
        shard: 0,
        epoch: Epoch(1),
    };
    let log = SegmentLog::new(geometry, identity);
    (log, BlockMap::new(&geometry, None))
}

fn append(log: &SegmentLog, ring: Ring, what: Append<'_>) -> Appended {
    let appended = log.append(ring, NUMBER, what, Class::Client);
    appended.expect("there is room")
}

fn store(log: &SegmentLog, map: &BlockMap, ring: Ring, dirty: bool) -> Lsn {
    let Appended { entry, lsn } = append(log, ring, Append::SameFilled { value: 1, dirty });
    map.install(log, BLOCK, entry.with_dirty(dirty));
    lsn
}

/// Everything appended so far has landed, and is stable.
fn flush(log: &SegmentLog, map: &BlockMap) {
    let point = log.seal_for_flush();
    while let Some(write) = log.take_write() {
        assert!(log.begin_write(write.id, false));
        log.end_write(write.id);
    }
    assert!(log.has_ended(&point));
    log.raise_stable(&point);
    map.log_stable(log);
}

#[test]
fn a_new_version_follows_the_old_one_until_a_stable_tombstone() {
    let (log, map) = map();
    assert_eq!(map.ring_for(&log, BLOCK, NUMBER), None);
    store(&log, &map, Ring::Probation, false);
    let stale = map.invalidate(&log, BLOCK).expect("a copy is on the medium");
    assert_eq!((stale.ring, stale.was_cached), (Ring::Probation, true));
    flush(&log, &map);
    assert_eq!(
        map.ring_for(&log, BLOCK, NUMBER),
        Some(Ring::Probation),
        "it is stale"
    );
    let Appended { lsn, .. } = append(&log, Ring::Probation, Append::Tombstone);
    map.tombstone_appended(BLOCK, Ring::Probation, lsn);
    assert!(!map.any_stale());
    assert_eq!(
        map.ring_for(&log, BLOCK, NUMBER),
        Some(Ring::Probation),
        "it may be lost"
    );
    flush(&log, &map);
    assert_eq!(map.ring_for(&log, BLOCK, NUMBER), None);
}

#[test]
fn a_block_that_is_stored_again_is_not_stale() {
    let (log, map) = map();
    store(&log, &map, Ring::Main, false);
    map.invalidate(&log, BLOCK);
    assert!(map.any_stale_in(BLOCK..LocalBlock(BLOCK.0 + 1)));
    store(&log, &map, Ring::Main, false);
    assert!(!map.any_stale());
    let again = map.invalidate(&log, BLOCK).expect("it is cached");
    assert!(again.was_cached);
    let never = map.invalidate(&log, BLOCK).expect("no record says so yet");
    assert!(!never.was_cached);
}

#[test]
fn entries_of_a_region_are_counted() {
    let (log, map) = map();
    store(&log, &map, Ring::Main, false);
    let region = log.region_of(map.lookup(BLOCK).expect("stored").location());
    assert_eq!(log.live_in(region), 1);
    store(&log, &map, Ring::Main, false);
    assert_eq!(log.live_in(region), 1);
    map.remove(&log, BLOCK);
    assert_eq!((log.live_in(region), map.len()), (0, 0));
}

#[test]
fn a_cleaned_block_is_newly_clean_until_its_record_is_stable() {
    let (log, map) = map();
    store(&log, &map, Ring::Main, true);
    assert!(map.is_dirty(BLOCK) && map.dirty_blocks() == 1);
    let Appended { lsn, .. } = append(&log, Ring::Main, Append::Cleaned);
    map.mark_clean(BLOCK, Ring::Main, lsn);
    assert!(!map.is_dirty(BLOCK) && map.is_newly_clean(BLOCK));
    flush(&log, &map);
    assert!(!map.any_newly_clean());
}

#[test]
fn dirty_blocks_come_in_the_order_of_addresses_and_around() {
    let disks = Disks::new(8 << 20, GeometryOptions::default());
    let (map, shard) = (map().1, disks.sim.block_on(async { disks.shard(1) }));
    for block in [1, 5, 9] {
        map.insert_alone(
            LocalBlock(block),
            Entry::same_filled(crate::units::Location(64), 0).with_dirty(true),
        );
    }
    let next = |most| {
        let next = map.next_dirty(&shard.cache, LocalBlock(4), LocalBlock(100), most);
        disks.sim.block_on(next).expect("it is a table")
    };
    assert_eq!(next(3), (vec![LocalBlock(5), LocalBlock(9), LocalBlock(1)], true));
    assert_eq!(next(2), (vec![LocalBlock(5), LocalBlock(9)], false));
}
