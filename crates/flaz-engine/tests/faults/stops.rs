//! A clean stop while requests still arrive.

use std::cell::Cell;
use std::time::Duration;

use flaz_device::{Env, IoBuf};
use flaz_engine::cache::Start;
use flaz_engine::settings::Mode;
use flaz_engine::volume::{IoError, Volume};
use futures_util::future::join;

use crate::world::{BLOCK, BLOCKS, STRIPE, World};

/// Front ends end their connections before a stop, but what waited in them may come to its turn in the middle of it.
#[test]
fn what_comes_while_the_index_is_being_saved_is_refused_or_in_it() {
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
                    // Its outcome is told by the next start.
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
