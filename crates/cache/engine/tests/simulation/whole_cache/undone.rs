//! `--codec auto`: blocks are stored with less compression again where hits saturate a thread.

use std::num::NonZeroU64;
use std::time::Duration;

use flaz_device::Env;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::Settings;
use flaz_engine::write_budget::WriteBudget;
use flaz_sim::SimEnv;

use crate::whole_cache::rig::{BLOCK, Open, settings};
use crate::whole_cache::second_stage::{USED, check_contents, check_whole, rig, use_blocks, use_main, words};

/// A saturated thread that has only hits stores blocks uncompressed, and they stay so. With misses, and time, they are compressed again,
/// before a fast origin with the first codec.
#[test]
fn where_no_misses_are_left_hits_are_as_quick_as_without_compression() {
    for origin_us in [2000, 120] {
        hits_become_quick(Duration::from_micros(origin_us));
    }
}

fn hits_become_quick(origin_read: Duration) {
    let rig = rig(words, origin_read);
    rig.sim.set_parallelism(2);
    rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        let before = use_blocks(&open, 40).await;
        // The first codec alone would take more than a hundredth of the time.
        let read_all = async || {
            check_contents(&open, words).await;
            rig.sim.env().sleep(Duration::from_millis(10)).await;
        };
        for _ in 0..150 {
            read_all().await;
        }
        assert_eq!(open.cache.stats().counts.undone_blocks, 0, "there is time");
        rig.sim.set_saturated(true);
        for turn in 0.. {
            let counts = open.cache.stats().counts;
            if counts.undone_blocks >= USED.end * 9 / 10 {
                break;
            }
            assert!(turn < 1000, "{counts:?}");
            read_all().await;
        }
        let counts = open.cache.stats().counts;
        assert!(counts.raw_blocks >= USED.end / 2, "{counts:?}");
        assert_eq!(counts.miss_blocks, before.miss_blocks, "{counts:?}");
        rig.sim.set_saturated(false);
        for turn in 0.. {
            let many = use_main(&open, 60).await;
            if many.repacked_blocks > counts.repacked_blocks + USED.end / 2 {
                break;
            }
            assert!(turn < 10, "{many:?}");
        }
        read_all().await;
        check_whole(&open);
        std::mem::forget(open);
    });
    rig.sim.kill_tasks();
    rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        check_contents(&open, words).await;
        check_whole(&open);
        open.stop().await.expect("stops");
        let findings = rig.check().await.expect("has a superblock");
        assert!(findings.iter().all(|finding| finding.object.is_ok()));
    });
}

/// The blocks of a read that were cached at different times are stored next to each other, so that they need one read of the device.
#[test]
fn blocks_that_are_read_together_are_stored_together() {
    become_one_place(8, async |open, _| {
        for first in 0..2 {
            for number in USED.skip(first).step_by(2) {
                open.prefetch(number..number + 1).await;
            }
        }
    });
}

/// The same for blocks that smaller reads have had stored uncompressed, each alone.
#[test]
fn blocks_that_were_stored_uncompressed_one_by_one_are_stored_together() {
    // Those few that are still compressed stay where they are.
    become_one_place(4, async |open, env| {
        for number in USED {
            open.prefetch(number..number + 1).await;
        }
        for turn in 0.. {
            let counts = open.cache.stats().counts;
            if counts.undone_blocks >= USED.end * 9 / 10 {
                break;
            }
            assert!(turn < 1000, "{counts:?}");
            check_contents(open, words).await;
            env.sleep(Duration::from_millis(10)).await;
        }
    });
}

/// Blocks that lie apart after `spread` lie together after some reads of a saturated thread, but for one request in `but`.
fn become_one_place(but: u64, spread: impl AsyncFn(&Open, &SimEnv)) {
    let rig = rig(words, Duration::from_millis(2));
    rig.sim.set_parallelism(2);
    rig.sim.set_saturated(true);
    rig.sim.block_on(async {
        let env = rig.sim.env();
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        spread(&open, &env).await;
        let read_all = async || {
            let before = open.cache.stats().counts;
            for first in USED.step_by(4) {
                open.read(first * BLOCK, 4 * BLOCK).await;
            }
            env.sleep(Duration::from_millis(10)).await;
            let after = open.cache.stats().counts;
            assert_eq!(after.miss_blocks, before.miss_blocks, "{after:?}");
            after.cache_reads - before.cache_reads
        };
        let reads = USED.end / 4;
        let apart = read_all().await;
        assert!(apart >= 2 * reads, "{apart} reads of the device for {reads}");
        for _ in 0..400 {
            read_all().await;
        }
        let together = read_all().await;
        assert!(
            together <= reads + reads / but,
            "{together} reads of the device for {reads}"
        );
        let counts = open.cache.stats().counts;
        assert!(counts.undone_blocks >= USED.end * 9 / 10, "{counts:?}");
        assert!(counts.raw_blocks < USED.end * 5 / 2, "stored again: {counts:?}");
        for _ in 0..100 {
            read_all().await;
        }
        let again = open.cache.stats().counts.raw_blocks - counts.raw_blocks;
        assert!(again < USED.end / 8, "{again} blocks were stored once more");
        check_contents(&open, words).await;
        open.stop().await.expect("stops");
    });
}

/// They stay compressed when half of the write budget is used up.
#[test]
fn hits_do_not_use_up_the_write_budget_to_become_quick() {
    let rig = rig(words, Duration::from_millis(2));
    rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        use_blocks(&open, 40).await;
        rig.sim.set_saturated(true);
        let with_budget = Settings {
            write_budget: WriteBudget::BytesPerDay(NonZeroU64::new(128 << 10).expect("not zero")),
            ..settings("auto", PolicyKind::S3Fifo)
        };
        open.cache.set(&with_budget);
        for _ in 0..100 {
            check_contents(&open, words).await;
            rig.sim.env().sleep(Duration::from_millis(40)).await;
        }
        let counts = open.cache.stats().counts;
        assert!(counts.undone_blocks < 40, "{counts:?}");
        open.stop().await.expect("stops");
    });
}
