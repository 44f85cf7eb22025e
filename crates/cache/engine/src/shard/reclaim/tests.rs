use std::time::Duration;

use flaz_device::{DeviceOp, Env};
use flaz_sim::Rng;
use futures_util::future::join;

use super::*;
use crate::format::geometry::GeometryOptions;
use crate::shard::simulated::{Disks, Simulated, contents, raw};
use crate::units::LocalBlock;

const REGIONS: u64 = 8;

fn data(block: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK_BYTES];
    Rng::new(block).fill(&mut data);
    data
}

/// A shard whose regions are full of dirty blocks to the last byte: the number of blocks.
async fn stuffed(disks: &Disks) -> (Rc<Shard<Simulated>>, u64) {
    let shard = disks.shard(1);
    shard.writeback.note_dirty_record();
    let mut block = 0;
    while keep(disks, &shard, block).await {
        block += 1;
    }
    (shard, block)
}

/// Makes a block dirty; false: there is no room.
async fn keep(disks: &Disks, shard: &Rc<Shard<Simulated>>, block: u64) -> bool {
    loop {
        let number = BlockNumber(block);
        let appended = (shard.log).append(Ring::Main, number, raw(&data(block)), Class::Reclaim);
        shard.pump_writes();
        if let Some(Appended { entry, .. }) = appended {
            shard
                .map
                .install(&shard.log, LocalBlock(block), entry.with_dirty(true));
            return true;
        }
        if !shard.log.writing() {
            return false;
        }
        disks.env.sleep(Duration::from_millis(1)).await;
    }
}

/// Nothing is left where dirty blocks could be stored again: they go to the origin, and are there when their region is
/// void. A write to one of them waits until then; a start after a crash at any of these moments finds them.
#[test]
fn reclaim_without_room_writes_dirty_blocks_back() {
    let disks = Disks::of_small_regions(REGIONS);
    let blocks = disks.sim.block_on(async {
        let (shard, blocks) = stuffed(&disks).await;
        assert!(blocks > REGIONS * 20, "{blocks} fit");
        assert!(shard.reclaim_one(true).await, "it is evacuated");
        let evacuated = blocks - shard.dirty_blocks();
        assert!(evacuated > 20, "{evacuated} are on the origin");
        assert_eq!(shard.log.free_regions(), 1);
        for block in 0..evacuated {
            let there = disks.origin.peek(block * BLOCK_BYTES as u64, BLOCK_BYTES);
            assert!(there == data(block), "block {block}");
        }
        for block in 0..blocks {
            assert!(
                contents(&shard, block).await == Some(data(block)),
                "block {block}"
            );
        }
        blocks
    });
    disks.sim.kill_tasks();
    disks.sim.block_on(async {
        let second = disks.recovered(2).await;
        for block in 0..blocks {
            assert!(
                contents(&second, block).await == Some(data(block)),
                "block {block}"
            );
        }
    });
}

/// A cache of nine regions of 1 MiB.
fn of_large_regions() -> Disks {
    let wish = GeometryOptions {
        region_bytes: Some(1 << 20),
        ..GeometryOptions::default()
    };
    Disks::new(10 << 20, wish)
}

/// A reclaim was put back while the shard opened. Clients wait for its end, so it is wanted, however many regions are free since.
#[test]
fn a_reclaim_that_was_put_back_is_wanted_until_it_has_ended() {
    let disks = of_large_regions();
    disks.sim.block_on(async {
        let shard = disks.shard(1);
        for block in 0.. {
            if shard.log.free_regions() == 1 {
                break;
            }
            assert!(keep(&disks, &shard, block).await);
            shard.log.close_regions();
            assert!(shard.make_log_stable().await);
        }
        let victim = shard.log.take_oldest(Ring::Main).expect("it is full");
        let reclaim = shard.reclaimer.begin();
        shard.log.hold_for_reclaim(true);
        assert!(keep(&disks, &shard, 0).await);
        shard.log.put_back(victim);
        shard.log.hold_for_reclaim(false);
        reclaim.put_back(Ring::Main, true);
        shard.log.grow(shard.log.region_count() as u32 + 2, false);
        let append = || (shard.log).append(Ring::Main, BlockNumber(1), raw(&data(1)), Class::Client);
        assert!(append().is_none(), "until the reclaim has ended");
        assert!(shard.can_reclaim());
        assert!(shard.reclaim_one(true).await, "it is finished");
        assert!(append().is_some());
        assert!(!shard.can_reclaim(), "enough regions are free");
    });
}

/// The device is fenced at any moment of a reclaim. Its dirty blocks are still where they were, or have been moved.
#[test]
fn blocks_moved_by_reclaim_stay_readable_after_a_fence() {
    const BLOCKS: u64 = 200;
    let mut amid = 0;
    for after_us in (0..3000).step_by(20) {
        let disks = of_large_regions();
        disks.sim.block_on(async {
            let shard = disks.shard(1);
            shard.writeback.note_dirty_record();
            for block in 0..BLOCKS {
                keep(&disks, &shard, block).await;
            }
            shard.log.close_regions();
            assert!(shard.make_log_stable().await);
            let fails = async {
                disks.env.sleep(Duration::from_micros(after_us)).await;
                shard.fence("a flush failed");
            };
            join(shard.reclaim_one(true), fails).await;
            disks.env.sleep(Duration::from_secs(1)).await;
            let moved = shard.stats.counters.dirty_moved_blocks.get();
            amid += u32::from((1..BLOCKS).contains(&moved));
            for block in 0..BLOCKS {
                let found = contents(&shard, block).await;
                assert!(found == Some(data(block)), "block {block}, after {after_us} us");
            }
        });
    }
    assert!(amid > 5, "{amid} in the middle of it");
}

/// A read fails, or a few in a row: what reclaim moves is not noted as lost for that.
#[test]
fn a_read_that_fails_for_a_while_makes_no_dirty_block_lost() {
    const BLOCKS: u64 = 40;
    for row in 1..=LOAD_AGAIN.len() as u64 {
        let mut failed = 0;
        for nth in 1.. {
            let disks = Disks::new(8 << 20, GeometryOptions::default());
            let all = disks.sim.block_on(async {
                let shard = disks.shard(1);
                shard.writeback.note_dirty_record();
                for block in 0..BLOCKS {
                    keep(&disks, &shard, block).await;
                }
                shard.log.close_regions();
                assert!(shard.make_log_stable().await);
                (0..row).for_each(|more| disks.cache.fail_nth(DeviceOp::Read, nth + more));
                assert!(shard.reclaim_one(true).await);
                let all = disks.cache.stats().errors == row;
                if all {
                    for block in 0..BLOCKS {
                        let found = contents(&shard, block).await;
                        assert!(
                            found == Some(data(block)),
                            "block {block}, {row} reads from {nth} on"
                        );
                    }
                }
                all
            });
            if !all {
                break;
            }
            failed += 1;
        }
        assert!(failed > 1, "{failed} were read");
    }
}

const UNREADABLE: [u64; 2] = [3, 30];

/// A shard with a region of dirty blocks, of which two are in sectors that cannot be read.
async fn two_unreadable(disks: &Disks) -> Rc<Shard<Simulated>> {
    let shard = disks.shard(1);
    shard.writeback.note_dirty_record();
    for block in 0..40 {
        keep(disks, &shard, block).await;
    }
    shard.log.close_regions();
    assert!(shard.make_log_stable().await);
    for block in UNREADABLE {
        let entry = shard.map.lookup(LocalBlock(block)).expect("cached");
        let at = disks.geometry.position(0, entry.location()) + 1024;
        disks.cache.mark_bad(at / 512 * 512, 512);
    }
    shard
}

/// However often they are tried: their region is reclaimed, they are noted as lost, and the others are there.
#[test]
fn dirty_blocks_that_cannot_be_read_do_not_cost_the_device() {
    let disks = Disks::new(8 << 20, GeometryOptions::default());
    disks.sim.block_on(async {
        let shard = two_unreadable(&disks).await;
        assert!(shard.reclaim_one(true).await);
        assert!(!shard.cache.is_fenced(), "the device was fenced");
        for block in 0..40 {
            let found = contents(&shard, block).await;
            let expected = (!UNREADABLE.contains(&block)).then(|| data(block));
            assert!(found == expected, "block {block}");
        }
    });
}

/// The same where a stop needs the room.
#[test]
fn dirty_blocks_that_cannot_be_read_do_not_spoil_a_stop() {
    let disks = Disks::new(8 << 20, GeometryOptions::default());
    disks.sim.block_on(async {
        let shard = two_unreadable(&disks).await;
        shard.stop().await;
        shard.reclaimer.note_unfinished(Ring::Main);
        shard.save().await.expect("stops in order");
    });
}

/// The writeback worker comes to them again and again.
#[test]
fn unreadable_dirty_blocks_do_not_fence_the_device() {
    let disks = Disks::new(8 << 20, GeometryOptions::default());
    disks.sim.block_on(async {
        let shard = two_unreadable(&disks).await;
        shard.start();
        disks.env.sleep(Duration::from_secs(120)).await;
        assert!(!shard.cache.is_fenced(), "the device was fenced");
        assert_eq!(shard.dirty_blocks(), UNREADABLE.len() as u64);
    });
}

/// Stores a clean block in main, as if it had been read so many times since.
fn store(shard: &Rc<Shard<Simulated>>, block: u64, data: &[u8], hits: u8) {
    let (mut packer, mut bytes) = (shard.take_packer(), Vec::new());
    packer.next_request();
    let what = match packer.pack(&IoBuf::copy_of(data), &mut bytes) {
        fragment::Packed::Compressed {
            codec,
            start,
            len,
            plain_crc,
        } => Append::Packed {
            codec,
            stored: &bytes[start..start + len],
            plain_crc,
            dirty: false,
        },
        fragment::Packed::Raw { plain_crc } => Append::Packed {
            codec: flaz_codec::CodecId::RAW,
            stored: data,
            plain_crc,
            dirty: false,
        },
        fragment::Packed::SameFilled(value) => panic!("not all bytes are {value}"),
    };
    shard.codecs.put_back(packer);
    let appended = (shard.log).append(Ring::Main, BlockNumber(block), what, Class::Reclaim);
    let entry = appended.expect("there is room").entry;
    shard.pump_writes();
    (shard.map).install(&shard.log, LocalBlock(block), entry.with_hits(hits));
}

/// Of the blocks that were read once, those that take at least twice the mean make room for the others.
#[test]
fn a_large_block_in_main_stays_for_two_reads() {
    const SMALL: u64 = 30;
    let disks = Disks::new(8 << 20, GeometryOptions::default());
    disks.sim.block_on(async {
        let shard = disks.shard_with_s3_fifo();
        for block in 0..SMALL {
            let mut small = data(block);
            small[1000..].fill(0);
            store(&shard, block, &small, u8::from(block.is_multiple_of(2)));
        }
        let (once, twice) = (SMALL, SMALL + 1);
        store(&shard, once, &data(once), 1);
        store(&shard, twice, &data(twice), 2);
        shard.log.close_regions();
        assert!(shard.make_log_stable().await);
        assert!(shard.reclaim_one(true).await);
        let kept = (0..=twice).filter(|block| shard.is_cached(BlockNumber(*block)));
        let expected = (0..SMALL).step_by(2).chain([twice]);
        assert_eq!(kept.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    });
}

/// A shard with a closed region of clean blocks: the shard, and where the region begins on the device.
async fn clean_region(disks: &Disks, blocks: u64) -> (Rc<Shard<Simulated>>, u64) {
    let shard = disks.shard_with_s3_fifo();
    for block in 0..blocks {
        store(&shard, block, &data(block), 3);
    }
    let entry = shard.map.lookup(LocalBlock(0)).expect("cached");
    let start = disks.region(shard.log.region_of(entry.location()));
    shard.log.close_regions();
    assert!(shard.make_log_stable().await);
    (shard, start)
}

/// Errors found by reclaim are counted like those found by clients, so that status shows a failing device.
#[test]
fn a_region_that_cannot_be_read_is_counted() {
    let disks = Disks::new(8 << 20, GeometryOptions::default());
    disks.sim.block_on(async {
        let (shard, start) = clean_region(&disks, 30).await;
        disks.cache.mark_bad(start, disks.geometry.region_bytes);
        assert!(shard.reclaim_one(true).await);
        assert_eq!(shard.map.len(), 0, "its blocks are dropped");
        let counters = &shard.stats.counters;
        assert_eq!(counters.regions_unreadable.get(), 1);
        assert_eq!(counters.cache_read_errors.get(), disks.cache.stats().errors);
        assert!(!shard.cache.is_fenced(), "the next region may be well");
    });
}

/// The summary, the header and its copy are damaged.
#[test]
fn a_region_with_damaged_records_is_counted() {
    let disks = Disks::new(8 << 20, GeometryOptions::default());
    disks.sim.block_on(async {
        let (shard, start) = clean_region(&disks, 30).await;
        let len = disks.geometry.region_bytes;
        disks.cache.poke(start, &vec![0xa5; len as usize]);
        assert!(shard.reclaim_one(true).await);
        let counters = &shard.stats.counters;
        assert_eq!(
            (
                counters.regions_unreadable.get(),
                counters.cache_read_errors.get()
            ),
            (1, 0)
        );
    });
}

/// Only the summary is unreadable: the extents have the same records. The failed reads are counted.
#[test]
fn a_summary_that_cannot_be_read_is_a_failed_read() {
    let disks = Disks::new(8 << 20, GeometryOptions::default());
    disks.sim.block_on(async {
        let (shard, start) = clean_region(&disks, 30).await;
        disks
            .cache
            .mark_bad(start + disks.geometry.region_bytes - 512, 512);
        assert!(shard.reclaim_one(true).await);
        assert!(shard.map.len() >= 20, "most blocks are kept");
        let counters = &shard.stats.counters;
        assert_eq!(counters.regions_unreadable.get(), 0);
        let failed = counters.cache_read_errors.get();
        assert!(failed > 0 && failed == disks.cache.stats().errors, "{failed}");
    });
}
