//! The order of the steps that open and close a whole cache.

use flaz_device::{DeviceOp, Env};
use flaz_engine::cache::{CacheError, read_superblock};
use flaz_engine::settings::Mode;
use flaz_engine::volume::Volume;
use flaz_sim::EventStage::Issued;
use flaz_sim::FaultRates;

use crate::world::{BLOCKS, CLEARED, Left, STRIPE, TIMEOUT_MOST, World};

/// One shard is fenced, and neither the device nor the host took the fence mark. The device works again at the stop. A
/// power cut while the other shard is saved must not leave a cache that serves stale blocks.
#[test]
pub fn fenced_cache_is_void_before_images_are_saved() {
    let world = World::shards(51, Mode::WriteThrough, 2);
    world.host.broken.set(true);
    let moments = world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..BLOCKS / 2).await;
        live.env.sleep(CLEARED).await;
        // Writes fail, flushes do not: after a failed flush the other shard would not be saved either.
        world.cache.set_faults(FaultRates {
            write_no_space_ppm: 1_000_000,
            ..FaultRates::default()
        });
        // Stripes of the first shard only.
        for block in (3..BLOCKS).step_by(2 * STRIPE as usize) {
            live.write(block).await;
        }
        live.env.sleep(TIMEOUT_MOST).await;
        assert!(live.failed());
        live.volume.flush().await.expect("the origin is well");
        world.cache.set_faults(FaultRates::default());
        let moments = world.watch();
        let error = live.stop().await.expect_err("the device was fenced");
        assert!(matches!(error, CacheError::Image(_)), "{error}");
        world.unwatch();
        moments.take()
    });
    // Its save begins by fencing it: it shares the device whose write failed.
    let saving = moments
        .iter()
        .position(|m| m.is(true, Issued, DeviceOp::Write) && world.in_intents(m.offset))
        .expect("the other shard is saved");
    for moment in &moments[saving..] {
        for left in Left::ALL {
            let next = world.boot(moment.number, moment.cut(left, Left::Everything));
            next.sim.block_on(async { next.open().await.check_all().await });
        }
    }
}

/// The origin fails flushes, so an empty cache does not start. It holds no dirty block, so it must not be marked dirty.
#[test]
pub fn refused_start_does_not_mark_the_cache_dirty() {
    let world = World::new(52, Mode::WriteBack);
    let moments = world.sim.block_on(async {
        world.origin.fail_nth(DeviceOp::Flush, 1);
        let moments = world.watch();
        let error = world.try_open().await.err().expect("the origin is not flushed");
        assert!(matches!(error, CacheError::Origin(_)), "{error}");
        world.unwatch();
        moments.take()
    });
    for moment in &moments {
        for left in Left::ALL {
            let next = world.boot(moment.number, moment.cut(left, left));
            let found = next.sim.block_on(read_superblock(&next.cache)).expect("is there");
            assert!(!found.dirty, "at event {}", moment.number);
            next.sim.block_on(async { next.open().await.check_all().await });
        }
    }
}
