//! The order of the steps that open and close a whole cache.

use std::num::NonZeroU32;

use flaz_device::{DeviceOp, Env};
use flaz_engine::cache::{CacheError, read_superblock};
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{Mode, StoredSettings, StrictFlush};
use flaz_engine::volume::Volume;
use flaz_engine::write_budget::WriteBudget;
use flaz_sim::EventStage::Issued;
use flaz_sim::FaultRates;

use super::world::{BLOCKS, CLEARED, Left, STRIPE, TIMEOUT_MOST, World};

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

/// Settings are stored while clients write. After any cut the superblock has the old or the new ones, and the new ones once
/// they are stored; the contents survive.
#[test]
pub fn stored_settings_survive_every_cut() {
    let world = World::new(53, Mode::WriteBack);
    let new = StoredSettings {
        mode: Some(Mode::WriteAround),
        policy: Some(PolicyKind::Fifo),
        sequential_cutoff: Some(0),
        dirty_percent: Some(7),
        strict_flush: Some(StrictFlush::Never),
        write_budget: NonZeroU32::new(500).map(WriteBudget::DwpdThousandths),
    };
    let (moments, stored) = world.sim.block_on(async {
        let mut live = world.open().await;
        for block in 0..8 {
            live.write(block).await;
        }
        live.volume.flush().await.expect("the devices are well");
        let moments = world.watch();
        live.cache.store_settings(new).await.expect("the device is well");
        let stored = moments.borrow().len();
        // Events of which the store is no part.
        live.volume.flush().await.expect("the devices are well");
        live.env.sleep(CLEARED).await;
        world.unwatch();
        (moments.take(), stored)
    });
    assert!(stored > 4, "two slots are written and flushed");
    assert!(moments.len() > stored, "something happens afterwards");
    let mut seen = [0, 0];
    for (at, moment) in moments.iter().enumerate() {
        for left in Left::ALL {
            let next = world.boot(moment.number, moment.cut(left, Left::Everything));
            let found = next.sim.block_on(read_superblock(&next.cache)).expect("is there");
            let is_new = found.settings == new;
            assert!(
                is_new || found.settings == StoredSettings::default(),
                "{:?}",
                found.settings
            );
            assert!(is_new || at < stored, "at event {}: lost", moment.number);
            seen[usize::from(is_new)] += 1;
            next.sim.block_on(async { next.open().await.check_all().await });
        }
    }
    assert!(seen[0] > 0, "a cut comes before the store");
}

/// A device that fails keeps the settings that it had, in memory and for the next start.
#[test]
pub fn settings_are_not_stored_on_a_failing_device() {
    let world = World::new(54, Mode::WriteThrough);
    let new = StoredSettings {
        policy: Some(PolicyKind::Fifo),
        ..StoredSettings::default()
    };
    world.sim.block_on(async {
        let mut live = world.open().await;
        world.cache.fail_nth(DeviceOp::Write, 1);
        let error = live.cache.store_settings(new).await.expect_err("the write fails");
        assert!(matches!(error, CacheError::Device(_)), "{error}");
        assert_eq!(live.cache.superblock().settings, StoredSettings::default());
        live.cache
            .store_settings(new)
            .await
            .expect("the device is well again");
        live.write(1).await;
        let superblock = live.stop().await.expect("stops");
        assert_eq!(superblock.settings, new);
        let found = read_superblock(&world.cache).await.expect("is there");
        assert_eq!(found.settings, new);
    });
}

/// Nothing is written to a fenced device, although it works again: neither settings nor anything else.
#[test]
pub fn settings_are_not_stored_on_a_fenced_device() {
    let world = World::new(55, Mode::WriteThrough);
    world.sim.block_on(async {
        let mut live = world.open().await;
        world.cache.set_faults(FaultRates {
            write_error_ppm: 1_000_000,
            ..FaultRates::default()
        });
        for block in 0..8 {
            live.write(block).await;
        }
        live.env.sleep(TIMEOUT_MOST).await;
        assert!(live.failed());
        world.cache.set_faults(FaultRates::default());
        let moments = world.watch();
        let new = StoredSettings {
            mode: Some(Mode::PassThrough),
            ..StoredSettings::default()
        };
        let error = live
            .cache
            .store_settings(new)
            .await
            .expect_err("the device is fenced");
        assert!(matches!(error, CacheError::Fenced), "{error}");
        world.unwatch();
        let writes = moments
            .take()
            .into_iter()
            .filter(|m| m.is(true, Issued, DeviceOp::Write))
            .count();
        assert_eq!(writes, 0);
        assert_eq!(live.cache.superblock().settings, StoredSettings::default());
    });
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
