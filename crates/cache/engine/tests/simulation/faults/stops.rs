//! A clean stop while requests still arrive.

use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

use flaz_device::{DeviceOp, Env, IoBuf};
use flaz_engine::cache::Start;
use flaz_engine::settings::Mode;
use flaz_engine::volume::{IoError, Volume};
use futures_util::future::{join, join3, select};

use super::world::{BLOCK, BLOCKS, CLEARED, MODES, STRIPE, World};

/// Front ends close their connections before a stop, but requests that were queued in them may run during the stop.
#[test]
fn writes_during_an_index_save_are_refused_or_saved() {
    let (mut warm, mut late) = (0, 0);
    for seed in 0..60 {
        for (what, mode) in [
            (0, Mode::WriteThrough),
            (1, Mode::WriteAround),
            (2, Mode::WriteThrough),
        ] {
            let world = World::new(seed, mode);
            world.sim.block_on(async {
                let live = world.open().await;
                live.warm(0..512).await;
                live.write(5).await;
                let (env, cache, volume) = (live.env, live.cache, live.volume);
                let stopped = Cell::new(false);
                let stop = async {
                    // The next start shows its outcome.
                    let _ = cache.stop().await;
                    stopped.set(true);
                };
                let requests = async {
                    for block in 0..STRIPE {
                        let offset = (block + STRIPE * (block % 2)) * BLOCK;
                        let result = match what {
                            0 | 1 => {
                                let zeroes = [IoBuf::zeroed(BLOCK as usize)].into();
                                volume.write(offset, zeroes, false).await
                            }
                            _ => volume.write_zeroes(offset, BLOCK, true, false).await,
                        };
                        match result {
                            Ok(()) => {}
                            Err(IoError::Stopping) => late += 1,
                            Err(error) => panic!("{error}"),
                        }
                        if stopped.get() {
                            break;
                        }
                        env.sleep(Duration::from_micros(20)).await;
                    }
                };
                join(stop, requests).await;
            });
            let next = world.reboot(seed);
            next.sim.block_on(async {
                let live = next.open().await;
                warm += u64::from(matches!(live.cache.start, Start::Warm(_)));
                for block in 0..BLOCKS {
                    let read = live
                        .volume
                        .read(block * BLOCK, BLOCK as u32)
                        .await
                        .expect("reads");
                    let origin = next.origin.peek(block * BLOCK, BLOCK as usize);
                    assert!(read[0][..] == origin[..], "seed {seed}: block {block} is stale");
                }
            });
        }
    }
    assert!(
        warm > 100 && late > 100,
        "{warm} warm starts, {late} requests refused"
    );
}

/// A read that finds a clean copy damaged leaves a tombstone. While a stop waits for something else, the task that writes
/// tombstones may have ended.
#[test]
fn damage_found_during_a_stop_does_not_delay_it() {
    let mut found = 0;
    for seed in 0..8 {
        let world = World::new(seed, Mode::WriteBack);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..8).await;
            live.cleaned().await;
            for block in 0..64 {
                live.write(STRIPE + block).await;
            }
            let cached = (0..8).filter(|&block| live.is_cached(block)).count();
            assert!(cached > 0, "nothing to find damaged");
            let (env, cache, volume) = (live.env, live.cache, live.volume);
            let shards = cache.shards();
            let cleaning = async {
                for shard in shards.iter() {
                    let _ = shard.clean_all().await;
                }
            };
            let stop = async {
                // The writeback worker's writes are in flight.
                world.origin.stall(Duration::from_secs(3));
                env.sleep(Duration::from_millis(500)).await;
                // The stop must end, with any outcome.
                let _ = cache.stop().await;
            };
            let reads = async {
                env.sleep(Duration::from_millis(1000)).await;
                for block in 0..8 {
                    world.cache.fail_nth(DeviceOp::Read, 1);
                    volume
                        .read(block * BLOCK, BLOCK as u32)
                        .await
                        .expect("from the origin");
                }
                found += shards
                    .iter()
                    .map(|shard| shard.stats().counts.cache_read_errors)
                    .sum::<u64>();
            };
            join3(cleaning, stop, reads).await;
        });
    }
    assert!(found > 0, "nothing was found damaged");
}

/// A read that finds a clean copy damaged while the index is being saved removes it from the index. Its tombstone must be
/// on the device before the index is, or the copy counts again after a crash of the next opening, regardless of later
/// writes.
#[test]
fn damage_found_during_an_index_save_stays_dropped() {
    const READ: u64 = 4;
    for mode in MODES {
        let world = World::new(11, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..64).await;
            let (env, cache, volume) = (live.env, live.cache, live.volume);
            // The flush of the origin takes this long.
            world.origin.stall(Duration::from_secs(3));
            let reads = async {
                env.sleep(Duration::from_secs(1)).await;
                for block in 0..READ {
                    world.cache.fail_nth(DeviceOp::Read, 1);
                    let read = volume.read(block * BLOCK, BLOCK as u32);
                    let wait = env.sleep(Duration::from_millis(10));
                    select(pin!(read), pin!(wait)).await;
                }
            };
            let (stopped, ()) = join(cache.stop(), reads).await;
            stopped.expect("nothing fails that the stop needs");
        });
        assert_eq!(world.cache.stats().errors, READ, "{mode:?}");
        let next = world.reboot(12);
        next.sim.block_on(async {
            let live = next.open().await;
            assert!(matches!(live.cache.start, Start::Warm(_)));
            for block in 0..READ {
                assert!(!live.is_cached(block), "{mode:?}: block {block}");
                live.write(block).await;
            }
            live.stored().await;
            live.env.sleep(CLEARED).await;
        });
        next.reboot(13).check();
    }
}
