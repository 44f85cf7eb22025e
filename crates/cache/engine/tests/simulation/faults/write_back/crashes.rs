//! The process is killed or the power fails: at every event of writers and of the writeback worker, of a recovery, of a
//! reclaim.

use std::cell::RefCell;
use std::time::Duration;

use flaz_device::DeviceOp;
use flaz_engine::cache::Start;
use flaz_engine::settings::Mode;
use flaz_engine::volume::Volume;
use flaz_sim::EventStage;
use futures_util::future::join_all;

use super::world;
use crate::faults::world::{Left, Moment, World};

fn matters(moment: &Moment) -> bool {
    matches!(moment.op, DeviceOp::Write | DeviceOp::Discard)
        || moment.op == DeviceOp::Flush && moment.stage == EventStage::Completed
}

/// Writers, a flush, and a round of the writeback worker; killed and cut at every event of it.
#[test]
fn writes_survive_kills_and_power_cuts_at_every_event() {
    let world = world(1);
    // Block, and the event at which it was acknowledged; the event at which the flush was acknowledged.
    let acknowledged = RefCell::new(Vec::new());
    let (moments, flushed) = world.sim.block_on(async {
        let live = world.serve().await;
        let moments = world.watch();
        let write = |from: u64| {
            let (live, acknowledged, world) = (&live, &acknowledged, &world);
            join_all((0..4).map(move |client| async move {
                for block in (from + client..from + 24).step_by(4) {
                    live.try_write(block).await.expect("writes");
                    acknowledged.borrow_mut().push((block, world.sim.events()));
                }
            }))
        };
        write(0).await;
        live.volume.flush().await.expect("flushes");
        let flushed = world.sim.events();
        write(24).await;
        live.cleaned().await;
        world.unwatch();
        (moments.take(), flushed)
    });
    world.versions.borrow_mut().clear();
    let acknowledged = acknowledged.into_inner();
    let mut states = 0;
    for moment in moments.iter().filter(|moment| matters(moment)) {
        let killed = Left::ALL.map(|left| (true, moment.kill(left, left)));
        let cut = Left::ALL.map(|left| (false, moment.cut(left, Left::Nothing)));
        for (kill, found) in killed.into_iter().chain(cut) {
            let next = world.boot(moment.number, found);
            next.sim.block_on(async {
                let live = next.serve().await;
                for past in [false, true] {
                    if past {
                        next.switch(&live, Mode::PassThrough);
                    }
                    for &(block, event) in &acknowledged {
                        let version = live.try_read(block).await.expect("none is damaged");
                        let sure = event < moment.number && (kill || block < 24 && flushed < moment.number);
                        assert!(
                            version == 1 || !sure && version == 0,
                            "block {block} is version {version} after event {}, kill: {kill}",
                            moment.number
                        );
                    }
                }
            });
            states += 1;
        }
    }
    assert!(states > 150, "only {states} states");
}

#[test]
fn a_dirty_recovery_cut_at_every_event_is_idempotent() {
    let world = world(2);
    world.sim.block_on(async {
        let live = world.serve().await;
        live.warm(512..1024).await;
        for turn in 0..2 {
            for block in 0..200 {
                live.write(block).await;
            }
            if turn == 0 {
                live.cleaned().await;
            }
        }
        live.volume.flush().await.expect("flushes");
    });
    let world = world.reboot(3);
    let moments = world.watch();
    let dirty = world.sim.block_on(async {
        let live = world.open().await;
        assert_eq!(live.cache.start, Start::Recovered);
        live.dirty()
    });
    assert!(dirty > 150, "{dirty} blocks");
    let mut states = 0;
    for moment in moments.take().iter().filter(|moment| matters(moment)) {
        for left in Left::ALL {
            for disks in [
                moment.cut(left, Left::Nothing),
                moment.kill(left, Left::Everything),
            ] {
                let next = world.boot(moment.number, disks);
                next.sim.block_on(async {
                    let live = next.open().await;
                    assert_eq!(live.dirty(), dirty, "cut at event {}", moment.number);
                    for block in 0..200 {
                        live.read(block).await;
                    }
                });
                states += 1;
            }
        }
    }
    assert!(states > 20, "only {states} states");
}

#[test]
fn a_dirty_reclaim_survives_a_power_cut_at_every_event() {
    let world = World::sized(4, Mode::WriteBack, (192 << 10) + 10 * (128 << 10));
    world.dirty_percent.set(50);
    let moments = world.sim.block_on(async {
        let live = world.serve().await;
        // Some blocks were cleaned and are dirty again, some are clean; the origin fails writes in the meantime.
        for block in 0..120 {
            live.write(block).await;
        }
        live.cleaned().await;
        for block in 0..60 {
            live.write(block).await;
        }
        live.volume.flush().await.expect("flushes");
        world.origin.stall(Duration::from_secs(600));
        let moments = world.watch();
        let before = live.stats().counts.regions_reclaimed;
        while live.stats().counts.regions_reclaimed < before + 4 {
            live.write(200).await;
        }
        world.unwatch();
        moments.take()
    });
    world.versions.borrow_mut().remove(&200);
    let mut states = 0;
    for moment in moments
        .iter()
        .filter(|moment| moment.on_cache && matters(moment) && moment.len != 0)
    {
        for left in Left::ALL {
            let next = world.boot(moment.number, moment.cut(left, Left::Everything));
            next.sim.block_on(async {
                let live = next.open().await;
                for block in 0..120 {
                    live.read(block).await;
                }
            });
            states += 1;
        }
    }
    assert!(states > 40, "only {states} states");
}
