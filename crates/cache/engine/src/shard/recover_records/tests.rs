use std::cell::Cell;

use flaz_sim::DiskImage;

use super::*;
use crate::format::geometry::{Geometry, GeometryOptions};
use crate::format::group::{GROUP_BLOCKS_MAX, Members};
use crate::planted::recover_by_passes;
use crate::policy::Ring;
use crate::shard::log::{Append, Copies};
use crate::shard::simulated::{Disks, Simulated, append, shard};

/// Numbers of blocks and of records.
const BLOCKS: u64 = 600;
const RECORDS: u64 = 2400;
/// Records between two closings of the open regions.
const RECORDS_A_REGION: u64 = 150;

fn disks() -> Disks {
    Disks::of_small_regions(64)
}

/// A log with all kinds of records, two open regions and an unfinished reclaim, after a crash.
fn crashed(disks: &Disks) -> DiskImage {
    let mut state = 5u64;
    let mut next = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    disks.sim.block_on(async {
        let first = disks.shard(1);
        first.writeback.note_dirty_record();
        for step in 1..=RECORDS {
            let block = next(BLOCKS);
            // A block stays in its ring; blocks of a group are in the same one.
            let ring = Ring::ALL[(block / GROUP_BLOCKS_MAX as u64 % 2) as usize];
            let group = |bits| Members::from_bits(bits).expect("some");
            let what = match next(12) {
                0 | 1 => Append::Tombstone,
                2 | 3 => Append::Cleaned,
                4 => Append::Group {
                    codec: flaz_codec::CodecId::LZ4,
                    stream: &[7; 600],
                    members: group(15),
                    plain_crcs: &[0; 4],
                    live: group(1 << (block % 4) | next(16) as u8),
                },
                _ => Append::SameFilled {
                    value: step as u8,
                    dirty: next(3) == 0,
                },
            };
            append(&first, ring, block, what);
            if step % 10 == 0 {
                assert!(first.make_log_stable().await);
            }
            if step % RECORDS_A_REGION == 0 && step < RECORDS {
                first.log.close_regions();
            }
        }
        assert!(first.make_log_stable().await);
        let victim = first.log.take_oldest(Ring::Probation).expect("one is full");
        let told = first
            .log
            .write_manifest(&first.cache, &[victim.region], Copies::BothStable)
            .await;
        told.expect("it is well");
    });
    disks.sim.kill_tasks();
    disks.cache.moment().cut(|_, _| true)
}

/// What a recovery results in.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    recovered: Recovered,
    entries: Vec<(LocalBlock, Entry)>,
    live: Vec<u32>,
    told: u64,
}

async fn recovered(shard: &Rc<Shard<Simulated>>) -> Outcome {
    let told = Cell::new(0);
    let recovered = shard.recover(|| told.set(told.get() + 1)).await;
    let mut entries = shard
        .pick_blocks(false, |block, entry| Some((block, entry)))
        .await
        .expect("it is a table");
    entries.sort_unstable_by_key(|(block, _)| *block);
    let regions = 0..shard.id.opened.regions_per_shard;
    Outcome {
        recovered: recovered.expect("it is well"),
        entries,
        live: regions.map(|region| shard.log.live_in(region)).collect(),
        told: told.get(),
    }
}

#[test]
fn passes_come_to_the_same_as_a_table() {
    let disks = disks();
    let image = crashed(&disks);
    let mut table: Option<Outcome> = None;
    for entries_max in [None, Some(16), Some(23), Some(100), Some(5000)] {
        disks.cache.restore(&image);
        recover_by_passes(entries_max);
        let mut outcome = disks.sim.block_on(async { recovered(&disks.shard(2)).await });
        disks.sim.kill_tasks();
        recover_by_passes(None);
        let read = std::mem::take(&mut outcome.recovered.bytes_read);
        let table = table.get_or_insert_with(|| {
            assert!(outcome.entries.len() > 200, "{} entries", outcome.entries.len());
            assert!(
                outcome.recovered.dirty > 50 && outcome.recovered.regions > 20,
                "{outcome:?}"
            );
            assert!(outcome.entries.iter().any(|(_, entry)| entry.is_group()));
            let regions = u64::from(disks.geometry.regions_per_shard);
            Outcome {
                told: regions,
                recovered: outcome.recovered,
                entries: outcome.entries.clone(),
                live: outcome.live.clone(),
            }
        });
        assert_eq!(outcome, *table, "{entries_max:?}");
        let passes = entries_max.map_or(1, |max| outcome.entries.len() as u64 / max as u64);
        assert!(
            read > passes * 4096 * outcome.recovered.regions,
            "{entries_max:?}: read {read}"
        );
    }
}

/// A damaged or forged record that says so must not be written to the origin, and is not believed later either.
#[test]
fn blocks_that_look_dirty_in_a_cache_without_dirty_blocks_are_dropped() {
    let disks = disks();
    let image = crashed(&disks);
    let all = disks.sim.block_on(async { recovered(&disks.shard(2)).await });
    disks.sim.kill_tasks();
    let dirty = |(_, entry): &&(LocalBlock, Entry)| entry.dirty();
    let forged: Vec<LocalBlock> = all
        .entries
        .iter()
        .filter(dirty)
        .map(|(block, _)| *block)
        .collect();
    assert!(forged.len() > 50);
    for entries_max in [None, Some(16)] {
        disks.cache.restore(&image);
        recover_by_passes(entries_max);
        let outcome = disks.sim.block_on(async {
            let clean = shard(&disks.env, &disks.cache, disks.geometry, 2);
            recovered(&clean).await
        });
        recover_by_passes(None);
        disks.sim.kill_tasks();
        assert!(outcome.recovered.dropped >= forged.len() as u64, "{outcome:?}");
        let later = disks.sim.block_on(async { recovered(&disks.shard(3)).await });
        disks.sim.kill_tasks();
        for outcome in [outcome, later] {
            assert_eq!(outcome.recovered.dirty, 0, "{entries_max:?}");
            let is_cached = |block| outcome.entries.iter().any(|(other, _)| *other == block);
            assert!(!forged.iter().any(|block| is_cached(*block)), "{entries_max:?}");
        }
    }
}

#[test]
fn no_more_memory_is_taken_than_the_regions_can_need() {
    let geometry = Geometry::plan(8 << 20, 512, 16 << 20, GeometryOptions::default()).expect("fits");
    let map = BlockMap::new(&geometry, None);
    let mut batches = Batches {
        map: &map,
        bulk: map.bulk(),
        bytes: 1 << 20,
        bytes_read: 0,
    };
    assert_eq!(batches.expected(), 0);
    for block in 0..100 {
        batches.bulk.push(LocalBlock(block), Change::Drop);
    }
    assert_eq!(batches.expected(), 1 << 9, "nothing was read");
    batches.bytes_read = 512;
    assert_eq!(batches.expected(), 1 << 9);
    batches.bytes_read = 1 << 19;
    assert_eq!(batches.expected(), 200);
    batches.bytes = 0;
    assert_eq!(
        batches.expected(),
        100,
        "of open regions, of which nothing is stable"
    );
}

#[test]
fn progress_only_goes_up_and_ends_with_all_regions() {
    let told = Cell::new(0);
    let mut progress = Progress::new(|| told.set(told.get() + 1), 10, LocalBlock(100));
    for (part, expected) in [(0.0, 0), (0.35, 3), (0.2, 3), (0.85, 8)] {
        progress.done(part);
        assert_eq!(told.get(), expected);
    }
    progress.end();
    assert_eq!(told.get(), 10);
}

/// The range of a pass becomes smaller, and a merge cannot go on and begins anew: whatever is done later is told.
#[test]
fn progress_of_passes_goes_on_with_all_that_they_do() {
    let told = Cell::new(0);
    let mut progress = Progress::new(|| told.set(told.get() + 1), 1000, LocalBlock(100));
    let range = |from, end| LocalBlock(from)..LocalBlock(end);
    let mut before = 0;
    let mut rises = |what: &str| {
        assert!(told.get() > before, "{what}");
        before = told.get();
    };
    progress.read(Some(range(0, 100)), 7, 10);
    rises("a part was read");
    assert_eq!(told.get(), 350);
    progress.read(Some(range(0, 40)), 8, 10);
    progress.read(Some(range(0, 40)), 9, 10);
    rises("a part of a smaller range was read");
    progress.handed_over(&range(0, 40), LocalBlock(20));
    rises("a part was handed over");
    // It begins anew.
    progress.read(Some(range(20, 100)), 1, 10);
    progress.read(Some(range(20, 100)), 2, 10);
    rises("it is read again");
    progress.handed_over(&range(20, 100), LocalBlock(60));
    rises("there is more");
    progress.handed_over(&range(20, 100), LocalBlock(100));
    assert!((999..=1000).contains(&told.get()), "{}", told.get());
    progress.end();
    assert_eq!(told.get(), 1000);
}

/// With an area for index pages, changes that do not fit in memory are written there.
#[cfg(feature = "planted-bugs")]
mod runs {
    use std::time::Duration;

    use flaz_device::DeviceOp;
    use flaz_sim::SimDisk;

    use super::*;
    use crate::planted::page_index;

    /// Changes for which there is memory: there are runs, and one pass.
    const ENTRIES: usize = 600;

    /// A crashed cache with an area for index pages.
    struct Crashed {
        disks: Disks,
        image: DiskImage,
        table: Outcome,
    }

    impl Crashed {
        fn new() -> Self {
            page_index(true);
            let disks = disks();
            assert!(disks.geometry.index_bytes > 0, "it has an area");
            let image = crashed(&disks);
            page_index(false);
            let table = disks.sim.block_on(async { recovered(&disks.shard(2)).await });
            disks.sim.kill_tasks();
            assert!(table.entries.len() > 200 && table.recovered.dirty > 50);
            Self { disks, image, table }
        }

        /// What a recovery in memory for so many entries results in must be the same. Returns the bytes of the log that it read.
        fn recover(&self, entries_max: usize, disturb: impl FnOnce()) -> u64 {
            let disks = &self.disks;
            disks.cache.restore(&self.image);
            page_index(true);
            recover_by_passes(Some(entries_max));
            disturb();
            let mut outcome = disks.sim.block_on(async { recovered(&disks.shard(2)).await });
            disks.sim.kill_tasks();
            recover_by_passes(None);
            page_index(false);
            let read = std::mem::replace(&mut outcome.recovered.bytes_read, self.table.recovered.bytes_read);
            assert_eq!(outcome, self.table, "{entries_max}");
            read
        }

        /// Slots that only runs have: the upper half.
        fn upper_half(&self) -> (u64, u64) {
            let half = self.disks.geometry.index_bytes / 2;
            (self.disks.geometry.index_offset() + half, half)
        }
    }

    #[test]
    fn they_come_to_the_same_as_a_table() {
        let crashed = Crashed::new();
        let once = crashed.table.recovered.bytes_read;
        for entries_max in [16, 23, 100, 300, ENTRIES, 1000, 20_000] {
            let read = crashed.recover(entries_max, || {});
            match entries_max {
                16 | 23 => assert!(read > 2 * once, "there is no room for all"),
                ENTRIES.. => assert!(read < once * 3 / 2, "the log is read once"),
                _ => {}
            }
        }
    }

    /// A recovery during which something happens to the slots of runs again and again.
    fn disturbed(happens: impl Fn(&SimDisk, u64, u64) + 'static) {
        let crashed = Crashed::new();
        let (from, len) = crashed.upper_half();
        let disturb = || {
            let (cache, env) = (crashed.disks.cache.clone(), crashed.disks.env.clone());
            crashed.disks.env.spawn(async move {
                for _ in 0..300 {
                    env.sleep(Duration::from_micros(100)).await;
                    happens(&cache, from, len);
                }
            });
        };
        let read = crashed.recover(ENTRIES, disturb);
        let once = crashed.table.recovered.bytes_read;
        assert!(read > once * 3 / 2, "the log is read again, without runs");
    }

    #[test]
    fn runs_that_cannot_be_read_are_not_missing() {
        disturbed(|cache, from, len| cache.mark_bad(from, len));
    }

    #[test]
    fn runs_whose_bytes_change_are_not_used() {
        disturbed(|cache, from, len| {
            // Once in each chunk.
            (from..from + len)
                .step_by(8 * 512)
                .for_each(|slot| cache.poke(slot + 9, &[7; 8]))
        });
    }

    #[test]
    fn a_write_of_them_that_fails_loses_nothing() {
        let crashed = Crashed::new();
        for nth in 1..6 {
            crashed.recover(ENTRIES, || crashed.disks.cache.fail_nth(DeviceOp::Write, nth));
        }
    }
}
