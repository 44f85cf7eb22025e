//! Which uses of a block keep it in the cache.

use std::time::Duration;

use flaz_device::Env;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::units::BlockNumber;
use flaz_sim::Rng;

use crate::whole_cache::rig::{BLOCK, FRONT_BYTES, Open, Rig, SMALLEST, filled_disk, plain_disk, settings};

const ORIGIN_LEN: u64 = 32 << 20;
const REGIONS: u64 = 64;
const REGION_BYTES: u64 = 128 << 10;

/// Used several times as soon as it was admitted.
const BURST: u64 = 1;
/// Used once after others were admitted.
const LATER: u64 = 2;
/// Never used.
const UNUSED: u64 = 3;

fn random(number: u64, block: &mut [u8; 4096]) {
    Rng::new(number).fill(block);
}

fn rig() -> Rig {
    let cache_len = FRONT_BYTES + REGIONS * REGION_BYTES;
    let rig = Rig::new(1, filled_disk(ORIGIN_LEN, random), plain_disk(cache_len));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig
}

fn with_mode(mode: Mode) -> Settings {
    Settings {
        mode,
        ..settings("none", PolicyKind::S3Fifo)
    }
}

async fn read(open: &Open, block: u64) {
    open.read(block * BLOCK, BLOCK).await;
    open.stored().await;
}

/// Reads other blocks until at least ten regions have been reclaimed: all those that are full by now.
async fn reclaim(rig: &Rig, open: &Open) {
    // Dirty blocks stay whatever their uses.
    rig.sim.env().sleep(Duration::from_secs(60)).await;
    let mut block = 1000;
    while open.cache.stats().counts.regions_reclaimed < 10 {
        read(open, block).await;
        block += 1;
        assert!(block < ORIGIN_LEN / BLOCK, "regions are reclaimed before that");
    }
}

fn cached(open: &Open) -> Vec<u64> {
    let shards = open.cache.shards();
    let shard = shards.iter().next().expect("one shard");
    let blocks = [BURST, LATER, UNUSED].into_iter();
    blocks
        .filter(|block| shard.is_cached(BlockNumber(*block)))
        .collect()
}

/// A block that is read after the first quarter of its stay in probation moves to main. One that was read only in the burst that
/// brought it in does not. A write always counts.
#[test]
fn reads_of_the_first_burst_do_not_keep_a_block() {
    for (mode, writes, kept) in [
        (Mode::WriteThrough, false, &[LATER][..]),
        (Mode::WriteThrough, true, &[BURST, LATER]),
        (Mode::WriteBack, true, &[BURST, LATER]),
    ] {
        let rig = rig();
        rig.sim.block_on(async {
            let open = rig.opened(with_mode(mode)).await;
            let use_block = async |block: u64| match writes {
                true => open.write(block * BLOCK, &[7; BLOCK as usize]).await,
                false => read(&open, block).await,
            };
            for block in [BURST, LATER, UNUSED] {
                read(&open, block).await;
            }
            for _ in 0..4 {
                use_block(BURST).await;
            }
            for block in 100..200 {
                read(&open, block).await;
            }
            use_block(LATER).await;
            assert_eq!(cached(&open), [BURST, LATER, UNUSED], "{mode}, writes: {writes}");
            reclaim(&rig, &open).await;
            assert_eq!(cached(&open), kept, "{mode}, writes: {writes}");
        });
    }
}

/// A stop is no time that passes.
#[test]
fn a_burst_goes_on_after_a_clean_stop() {
    let rig = rig();
    rig.sim.block_on(async {
        let open = rig.opened(with_mode(Mode::WriteThrough)).await;
        read(&open, LATER).await;
        for block in 100..200 {
            read(&open, block).await;
        }
        read(&open, BURST).await;
        open.stop().await.expect("it stops");
        let open = rig.opened(with_mode(Mode::WriteThrough)).await;
        read(&open, BURST).await;
        read(&open, LATER).await;
        assert_eq!(cached(&open), [BURST, LATER]);
        reclaim(&rig, &open).await;
        assert_eq!(cached(&open), [LATER]);
    });
}
