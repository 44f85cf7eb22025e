//! Failed flushes and the writes they lose, with several tasks that flush one device.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{Device, DeviceError, DeviceOp, Env, IoBuf};
use flaz_engine::cache::LocalCache;
use flaz_engine::router::CachedVolume;
use flaz_engine::settings::Mode;
use flaz_engine::volume::Volume;
use flaz_sim::{CrashPlan, EventStage, SimDisk, SimEnv};
use futures_util::future::join;

use super::world::{BLOCK, BLOCKS, STRIPE, STRIPES, World, contents};
use crate::platform::{AnyDevice, Simulated, SimulatedVolume};

const SHARDS: u32 = 4;
/// Number of seeds: the effect of a failed flush is random.
const SEEDS: u64 = 60;

/// The writeback workers of all shards flush one origin. An error reported to one of them is not reported to the others.
#[test]
fn a_failed_origin_flush_is_no_success_for_other_writeback() {
    let mut failed = 0;
    for seed in 0..SEEDS {
        let world = World::shards(seed, Mode::WriteBack, SHARDS);
        world.sim.block_on(async {
            let live = world.open().await;
            for stripe in 0..STRIPES {
                live.write(stripe * STRIPE).await;
            }
            live.volume.flush().await.expect("flushes");
            world.origin.fail_nth(DeviceOp::Flush, 1);
            while live.dirty() > 0 {
                live.env.sleep(Duration::from_millis(50)).await;
            }
            failed += world.origin.stats().errors;
            for stripe in 0..STRIPES {
                let block = stripe * STRIPE;
                let stable = world.origin.peek_durable(block * 4096, 4096);
                let version = super::world::version_of(block, &stable);
                assert_eq!(version, 1, "seed {seed}: block {block} counts as clean");
            }
        });
    }
    assert!(failed >= SEEDS, "only {failed} flushes failed");
}

/// A client is told of a failed flush, or is not because its connection broke. It reconnects and flushes again: its writes
/// may be lost.
#[test]
fn a_failed_flush_is_no_success_for_a_reconnected_client() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let world = World::new(seed, Mode::WriteThrough);
        let again = world.sim.block_on(async {
            let live = world.open().await;
            live.write(1).await;
            world.origin.fail_nth(DeviceOp::Flush, 1);
            let first = live.volume.clone();
            first.flush().await.expect_err("it was told");
            drop(first);
            live.env.sleep(Duration::from_secs(60)).await;
            let second = live.volume.clone();
            // Some clients flush late.
            live.env.sleep(Duration::from_secs(600 * (seed % 2))).await;
            second.flush().await
        });
        let kept = world.origin.peek_durable(4096, 4096) == contents(1, 1);
        lost += u64::from(!kept);
        assert!(kept || again.is_err(), "seed {seed}: it was durable");
    }
    assert!(lost > 5, "{lost} lost");
}

/// A failed flush loses another client's writes, and the operating system reports it to only one of them.
#[test]
fn a_failed_origin_flush_is_no_success_for_another_client() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let world = World::new(seed, Mode::WriteThrough);
        let together = seed % 2 == 0;
        let durable = world.sim.block_on(async {
            let live = world.open().await;
            let other = live.volume.clone();
            live.write(1).await;
            world.origin.fail_nth(DeviceOp::Flush, 1);
            let (failed, flushed) = if together {
                join(other.flush(), live.volume.flush()).await
            } else {
                (other.flush().await, live.volume.flush().await)
            };
            failed.expect_err("it was told");
            if flushed.is_err() {
                live.volume.flush().await.expect("once");
                other.flush().await.expect("once");
                let later = live.volume.clone();
                later.flush().await.expect_err("it may be either of them");
                later.flush().await.expect("once");
                live.env.sleep(Duration::from_secs(310)).await;
                live.volume.clone().flush().await.expect("somebody else by now");
            }
            flushed.is_ok()
        });
        let kept = world.origin.peek_durable(4096, 4096) == contents(1, 1);
        lost += u64::from(!kept);
        assert!(kept || !durable, "seed {seed}: it was durable");
    }
    assert!(lost > 5, "{lost} lost");
}

/// An origin that reports a failed flush late: the writes are lost by then, and another flush has ended.
pub struct LateErrors(SimDisk, SimEnv);

impl Device for LateErrors {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn alignment(&self) -> u32 {
        self.0.alignment()
    }

    async fn read_at(&self, offset: u64, buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        self.0.read_at(offset, buf).await
    }

    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        self.0.write_at(offset, buf, fua).await
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        let flushed = self.0.flush().await;
        if flushed.is_err() {
            self.1.sleep(Duration::from_millis(3)).await;
        }
        flushed
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.0.discard(offset, len).await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), DeviceError> {
        self.0.write_zeroes(offset, len, may_unmap, fua).await
    }
}

/// The failure of a flush is not known yet when an overlapping flush has succeeded. A third client must not be told,
/// because of that flush, that everything is stable.
#[test]
fn an_origin_flush_waits_for_flushes_that_overlap_it() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let world = World::new(seed, Mode::WriteThrough);
        let durable = world.sim.block_on(async {
            let env = world.sim.env();
            let cache = AnyDevice::disk(&world.cache);
            let origin = Rc::new(AnyDevice::LateErrors(LateErrors(
                world.origin.clone(),
                env.clone(),
            )));
            let opened =
                LocalCache::<Simulated>::open(env.clone(), cache, Rc::clone(&origin), world.settings());
            let cache = opened.await.expect("the cache opens");
            let first = CachedVolume::new(cache.shards(), origin, BLOCKS * BLOCK, 0);
            let (second, third) = (first.clone(), first.clone());
            let data = [IoBuf::copy_of(&contents(1, 1))].into();
            first.write(BLOCK, data, false).await.expect("writes");
            world.origin.fail_nth(DeviceOp::Flush, 1);
            let others = async {
                let flushed = second.flush().await;
                flushed.is_ok() | third.flush().await.is_ok()
            };
            let (failed, durable) = join(first.flush(), others).await;
            failed.expect_err("it was told");
            durable
        });
        let kept = world.origin.peek_durable(BLOCK, BLOCK as usize) == contents(1, 1);
        lost += u64::from(!kept);
        assert!(kept || !durable, "seed {seed}: it was durable");
    }
    assert!(lost > 5, "{lost} lost");
}

/// A device that makes FUA writes stable with a flush after them, as file systems do. If that flush fails, the write fails.
pub struct FlushesAfter(SimDisk);

impl FlushesAfter {
    async fn flush_after(&self, op: DeviceOp, offset: u64, len: u64) -> Result<(), DeviceError> {
        let flushed = self.0.flush().await;
        flushed.map_err(|error| DeviceError::new(op, offset, len, error.source))
    }
}

impl Device for FlushesAfter {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn alignment(&self) -> u32 {
        self.0.alignment()
    }

    async fn read_at(&self, offset: u64, buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        self.0.read_at(offset, buf).await
    }

    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        let (buf, mut result) = self.0.write_at(offset, buf, false).await;
        if fua && result.is_ok() {
            result = self.flush_after(DeviceOp::Write, offset, buf.len() as u64).await;
        }
        (buf, result)
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush().await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.0.discard(offset, len).await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), DeviceError> {
        self.0.write_zeroes(offset, len, may_unmap, false).await?;
        if fua {
            return self.flush_after(DeviceOp::WriteZeroes, offset, len).await;
        }
        Ok(())
    }
}

/// A cache and a client on two such devices.
async fn open_on_flushes_after(world: &World) -> (LocalCache<Simulated>, SimulatedVolume) {
    let cache = Rc::new(AnyDevice::FlushesAfter(FlushesAfter(world.cache.clone())));
    let origin = Rc::new(AnyDevice::FlushesAfter(FlushesAfter(world.origin.clone())));
    let opened = LocalCache::<Simulated>::open(world.sim.env(), cache, Rc::clone(&origin), world.settings());
    let cache = opened.await.expect("the cache opens");
    let volume = CachedVolume::new(cache.shards(), origin, BLOCKS * BLOCK, 0);
    (cache, volume)
}

fn first_version(block: u64) -> flaz_engine::volume::Segments {
    [IoBuf::copy_of(&contents(block, 1))].into()
}

fn is_kept(world: &World, block: u64) -> bool {
    world.origin.peek_durable(block * BLOCK, BLOCK as usize) == contents(block, 1)
}

/// Of two FUA writes, one is told that the flush has failed, and that failure also loses the other.
#[test]
fn a_write_with_fua_is_not_stable_when_a_flush_fails_meanwhile() {
    let mut undone = 0;
    for seed in 0..4 * SEEDS {
        let world = World::new(seed, Mode::WriteThrough);
        let blocks = [1, STRIPE + 1];
        let durable = world.sim.block_on(async {
            let (_cache, one) = open_on_flushes_after(&world).await;
            let other = one.clone();
            for block in blocks {
                one.write(block * BLOCK, first_version(block + 1), false)
                    .await
                    .expect("writes");
            }
            one.flush().await.expect("flushes");
            world.origin.fail_nth(DeviceOp::Flush, 2);
            let (one, other) = join(
                one.write(blocks[0] * BLOCK, first_version(blocks[0]), true),
                other.write(blocks[1] * BLOCK, first_version(blocks[1]), true),
            )
            .await;
            [one.is_ok(), other.is_ok()]
        });
        for (block, durable) in blocks.into_iter().zip(durable) {
            let kept = is_kept(&world, block);
            undone += u64::from(!kept);
            assert!(
                kept || !durable,
                "seed {seed}: the write of block {block} was durable"
            );
        }
    }
    assert!(undone > 5, "{undone} undone");
}

/// A FUA write whose flush fails may lose another client's writes. A FUA write that fails itself does not, and no other
/// client is told.
#[test]
fn a_failed_fua_flush_is_no_success_for_another_client() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        for by_flush in [true, false] {
            let world = World::new(seed, Mode::WriteThrough);
            let durable = world.sim.block_on(async {
                let (_cache, one) = open_on_flushes_after(&world).await;
                let other = one.clone();
                one.write(BLOCK, first_version(1), false).await.expect("writes");
                if by_flush {
                    world.origin.fail_nth(DeviceOp::Flush, 1);
                } else {
                    // Retries fail in the same way.
                    world.origin.fail_nth(DeviceOp::Write, 1);
                    world.origin.fail_nth(DeviceOp::Write, 2);
                }
                let failed = other.write((STRIPE + 1) * BLOCK, first_version(STRIPE + 1), true);
                failed.await.expect_err("it was told");
                one.flush().await.is_ok()
            });
            let kept = is_kept(&world, 1);
            lost += u64::from(!kept);
            assert!(kept || !durable, "seed {seed}: it was durable");
            assert!(by_flush || durable, "seed {seed}: a write failed for itself");
        }
    }
    assert!(lost > 5, "{lost} lost");
}

/// Two shards set an intent, and the flush of one fails, which loses the other's page; then the flush for their fence marks
/// fails. No write may bypass a copy that counts as valid on the device afterwards.
#[test]
fn an_intent_is_not_stable_if_a_cache_flush_fails() {
    let mut gave_up = 0;
    for seed in 0..4 * SEEDS {
        let world = World::shards(seed, Mode::WriteThrough, 2);
        world.sim.block_on(async {
            let (cache, volume) = open_on_flushes_after(&world).await;
            volume.prefetch(0, 2 * STRIPE * BLOCK).await.expect("reads");
            // Also flushes the cache device: its log is stable.
            volume
                .write(3 * STRIPE * BLOCK, first_version(3 * STRIPE), false)
                .await
                .expect("writes");
            volume
                .write(2 * STRIPE * BLOCK, first_version(2 * STRIPE), false)
                .await
                .expect("writes");
            world.sim.env().sleep(super::world::CLEARED).await;
            assert_eq!(cache.stats().holdings.cached_blocks, 2 * STRIPE + 2);
            world.cache.fail_nth(DeviceOp::Flush, 2);
            world.cache.fail_nth(DeviceOp::Flush, 3 + seed % 3);
            let (one, other) = join(
                volume.write(BLOCK, first_version(1), false),
                volume.write((STRIPE + 1) * BLOCK, first_version(STRIPE + 1), false),
            )
            .await;
            one.and(other).expect("the origin is well");
            gave_up += u64::from(cache.stats().holdings.cache_failed);
        });
        let cut = (
            world.cache.crash(&CrashPlan::Everything),
            world.origin.crash(&CrashPlan::Everything),
            world.host.memory(),
        );
        let next = world.boot(seed, cut);
        next.sim.block_on(async {
            let live = next.open().await;
            for block in [1, STRIPE + 1] {
                assert_eq!(
                    live.try_read(block).await.expect("reads"),
                    1,
                    "seed {seed}: block {block}"
                );
            }
        });
    }
    assert!(gave_up > SEEDS, "only {gave_up} gave the device up");
}

/// A FUA trim is made stable by a flush, and another flush that fails may undo it.
#[test]
fn a_trim_with_fua_is_not_stable_when_a_flush_fails_meanwhile() {
    let mut undone = 0;
    for seed in 0..4 * SEEDS {
        let world = World::new(seed, Mode::WriteThrough);
        let durable = world.sim.block_on(async {
            let live = world.open().await;
            let other = live.volume.clone();
            for block in [1, STRIPE + 1] {
                live.write(block).await;
            }
            live.volume.flush().await.expect("flushes");
            // The flush of the second trim, when the first trim is done and its own flush is in flight.
            world.origin.fail_nth(DeviceOp::Flush, 2);
            let (one, two) = join(
                live.volume.trim(BLOCK, BLOCK, true),
                other.trim((STRIPE + 1) * BLOCK, BLOCK, true),
            )
            .await;
            [(1, one.is_ok()), (STRIPE + 1, two.is_ok())]
        });
        for (block, durable) in durable {
            let (at, len) = (block * BLOCK, BLOCK as usize);
            let kept = world.origin.peek_durable(at, len) == world.origin.peek(at, len);
            undone += u64::from(!kept);
            assert!(
                kept || !durable,
                "seed {seed}: the trim of block {block} was durable"
            );
        }
    }
    assert!(undone > 5, "{undone} undone");
}

/// One shard closes a region, and the flush for its summary fails; another shard has a dirty block that had landed.
#[test]
fn a_failed_cache_flush_is_no_success_for_another_shard() {
    let mut failed = 0;
    for seed in 0..SEEDS {
        let world = World::shards(seed, Mode::WriteBack, 2);
        let durable = world.sim.block_on(async {
            let live = world.open().await;
            // The writeback worker is idle.
            live.env.sleep(Duration::from_millis(1)).await;
            live.write(STRIPE).await;
            world.cache.fail_nth(DeviceOp::Flush, 1);
            live.warm(0..200).await;
            while !live.failed() && live.dirty() > 0 {
                live.env.sleep(Duration::from_millis(1)).await;
            }
            failed += u64::from(live.failed());
            live.volume.flush().await.is_ok()
        });
        let cut = (
            world.cache.crash(&CrashPlan::Nothing),
            world.origin.crash(&CrashPlan::Nothing),
            world.host.memory(),
        );
        if durable {
            let next = world.boot(seed, cut);
            next.sim.block_on(async {
                // A fenced cache may be refused, as long as no older data is served.
                if let Ok(live) = next.try_open().await
                    && let Ok(version) = live.try_read(STRIPE).await
                {
                    assert_eq!(version, 1, "seed {seed}: it was durable");
                }
            });
        }
    }
    assert!(failed > SEEDS / 2, "only {failed} shards gave up");
}

/// A round of clearing waits for the cache device while the cache is fenced: the fence mark must stay.
#[test]
fn the_fence_mark_survives_intent_clearing() {
    let world = World::with_flushes_of(31, Mode::WriteThrough, Duration::from_millis(200));
    world.host.broken.set(true);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..512).await;
        live.env.sleep(super::world::CLEARED).await;
        live.write(3).await;
        live.stored().await;
        let (cache, stage) = (world.cache.clone(), Rc::new(Cell::new(0)));
        let seen = Rc::clone(&stage);
        world.sim.set_observer(move |event| {
            let on_cache = event.disk == cache.number();
            let now = match (seen.get(), on_cache, event.op, event.stage) {
                (0, false, DeviceOp::Flush, EventStage::Completed) => 1,
                (1, true, DeviceOp::Flush, EventStage::Issued) => {
                    cache.mark_bad(0, 6 << 20);
                    2
                }
                (stage, ..) => stage,
            };
            seen.set(now);
        });
        while stage.get() < 2 {
            live.env.sleep(Duration::from_millis(1)).await;
        }
        for block in 16..32 {
            live.read(block).await;
        }
        assert!(live.failed());
        live.env.sleep(Duration::from_secs(2)).await;
        for block in 0..256 {
            live.write(block).await;
        }
        world.unwatch();
    });
    world.reboot(32).check();
}
