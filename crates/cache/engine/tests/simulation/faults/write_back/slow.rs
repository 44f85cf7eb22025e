//! An origin that is slow, and fails slowly: a writer that waits for space is refused if nothing reaches the origin, and
//! not earlier.

use std::cell::Cell;
use std::time::Duration;

use flaz_device::{DeviceOp, Env};
use flaz_engine::settings::Mode;
use flaz_engine::volume::IoError;
use flaz_sim::FaultRates;
use futures_util::future::{Either, join, join_all, pending, select};

use super::world;
use crate::faults::world::{BLOCKS, Live, STRIPE, World};

const ALWAYS: u32 = 1_000_000;

fn slow(seconds: u64) -> FaultRates {
    FaultRates {
        stall_ppm: ALWAYS,
        stall: Duration::from_secs(seconds),
        ..FaultRates::default()
    }
}

fn failing_slowly() -> FaultRates {
    FaultRates {
        write_error_ppm: ALWAYS,
        ..slow(30)
    }
}

/// Dirty blocks up to the limit, none adjacent to another: each is a write of its own. Returns the next block.
async fn fill(live: &Live) -> u64 {
    let limit = live.stats().holdings.dirty_limit_bytes;
    let mut block = 0;
    while live.stats().holdings.dirty_device_bytes + 8 * live.dirty() + 5000 < limit {
        live.write(block).await;
        block += 2;
    }
    block
}

#[test]
fn one_failed_write_of_a_slow_origin_fails_no_writer() {
    let world = world(31);
    world.sim.block_on(async {
        let live = world.serve().await;
        let block = fill(&live).await;
        world.origin.set_faults(slow(4));
        let writers = (0..150).map(|writer| live.try_write(block + 2 * writer));
        let trouble = async {
            live.env.sleep(Duration::from_millis(12_500)).await;
            world.origin.fail_nth(DeviceOp::Write, 1);
        };
        let (written, ()) = join(join_all(writers.collect::<Vec<_>>()), trouble).await;
        assert_eq!(world.origin.stats().errors, 1, "nothing failed");
        let failed = written.iter().filter(|result| result.is_err()).count();
        assert_eq!(failed, 0, "writers failed though the origin takes the others");
    });
}

/// Nothing is stable before the next flush, which follows a batch, and one write of the batch fails as well.
#[test]
fn one_failed_flush_of_a_slow_origin_fails_no_writer() {
    for (seconds, write_too) in [(1, false), (2, false), (3, true), (4, true)] {
        let world = world(36);
        world.sim.block_on(async {
            let live = world.serve().await;
            let block = fill(&live).await;
            world.origin.set_faults(slow(seconds));
            world.origin.fail_nth(DeviceOp::Flush, 1);
            let writers = (0..150).map(|writer| live.try_write(block + 2 * writer));
            let trouble = async {
                while world.origin.stats().flush_errors == 0 {
                    live.env.sleep(Duration::from_millis(100)).await;
                }
                live.env.sleep(Duration::from_millis(8500)).await;
                if write_too {
                    world.origin.fail_nth(DeviceOp::Write, 1);
                }
            };
            let (written, ()) = join(join_all(writers.collect::<Vec<_>>()), trouble).await;
            assert_eq!(world.origin.stats().errors, 1 + u64::from(write_too));
            let failed = written.iter().filter(|result| result.is_err()).count();
            assert_eq!(
                failed, 0,
                "{seconds} s, {write_too}: the origin takes the next flush"
            );
        });
    }
}

#[test]
fn an_origin_that_is_back_and_slow_fails_no_writer() {
    let world = world(37);
    world.sim.block_on(async {
        let live = world.serve().await;
        let mut block = fill(&live).await;
        world.origin.set_dead(true);
        while live.try_write(block).await.is_ok() {
            block += 2;
        }
        world.origin.set_dead(false);
        world.origin.set_faults(slow(1));
        let writers = (1..33).map(|writer| live.try_write(block + 2 * writer));
        let written = join_all(writers.collect::<Vec<_>>()).await;
        let failed = written.iter().filter(|result| result.is_err()).count();
        assert_eq!(failed, 0, "writers failed beside an origin that is well");
    });
}

#[test]
fn a_slow_failed_flush_is_reported_at_once() {
    let world = World::sized(32, Mode::WriteBack, 24 << 20);
    world.dirty_percent.set(40);
    world.sim.block_on(async {
        let live = world.serve().await;
        // More than one batch of the writeback worker.
        for block in 0..BLOCKS - 64 {
            live.write(block).await;
        }
        world.origin.set_faults(FaultRates {
            flush_error_ppm: ALWAYS,
            ..slow(30)
        });
        let begun = live.env.now();
        let first = async |happened: &dyn Fn() -> bool| {
            while !happened() {
                live.env.sleep(Duration::from_millis(100)).await;
            }
            live.env.now().since(begun)
        };
        let (failed, told) = join(
            first(&|| live.stats().counts.origin_errors > 0),
            first(&|| live.stats().holdings.writeback_failing > 0),
        )
        .await;
        assert!(told <= failed, "failed after {failed:?}, told after {told:?}");
    });
}

/// Two shards, each with a writer at its limit, and a client that reads the origin all the time: so only one run of the
/// writeback workers is in flight at a time.
#[test]
fn an_origin_failure_in_any_shard_reaches_the_writer() {
    for readers in [0, 1] {
        let world = World::shards(33, Mode::WriteBack, 2);
        world.sim.block_on(async {
            let live = world.serve().await;
            // Every other block of every other stripe.
            let next = [Cell::new(0), Cell::new(STRIPE)];
            let step = |shard: usize| {
                let after = next[shard].get() + 2;
                let jump = if after.is_multiple_of(STRIPE) { STRIPE } else { 0 };
                next[shard].replace((after + jump) % BLOCKS)
            };
            while live.dirty() < 128 {
                live.write(step(0)).await;
                live.write(step(1)).await;
            }
            world.origin.set_faults(failing_slowly());
            let writers = [0, 1].map(async |shard| {
                loop {
                    let begun = live.env.now();
                    if live.try_write(step(shard)).await.is_err() {
                        break live.env.now().since(begun);
                    }
                }
            });
            let reading = (0..readers).map(async |reader| {
                // Blocks near the end, which are not written.
                let mut block = BLOCKS - 1 - 2 * reader;
                loop {
                    let _ = live.try_read(block).await;
                    block = (block + BLOCKS - 2 * readers) % BLOCKS;
                }
            });
            let both = std::pin::pin!(join_all(writers));
            let reading = join_all(reading.collect::<Vec<_>>());
            let day = std::pin::pin!(live.env.sleep(Duration::from_secs(24 * 3600)));
            let for_ever = std::pin::pin!(join(reading, pending::<()>()));
            let Either::Left((took, _)) = select(both, select(for_ever, day)).await else {
                panic!("{readers} readers: not both were told within a day");
            };
            // Some errors of other runs come first.
            let most = Duration::from_secs(300);
            assert!(
                took.iter().all(|&took| took < most),
                "{readers} readers: {took:?}"
            );
        });
    }
}

/// A disk that retries for long before it reports a bad sector: a batch of them takes an hour.
#[test]
fn slow_origin_errors_delay_no_writer_or_stop_further() {
    let world = world(9);
    world.sim.block_on(async {
        let live = world.serve().await;
        // None adjacent to another: each is a write of its own.
        let write = async |block| {
            let begun = live.env.now();
            let written = live.try_write(block).await;
            (written, live.env.now().since(begun))
        };
        let mut block = 0;
        while live.dirty() < 64 {
            write(block).await.0.expect("all is well");
            block += 2;
        }
        world.origin.set_faults(failing_slowly());
        let took = loop {
            match write(block % BLOCKS).await {
                (Ok(_), _) => block += 2,
                (Err(error), took) => {
                    assert!(matches!(error, IoError::CacheFailed(_)), "{error}");
                    break took;
                }
            }
            assert!(block < 2 * BLOCKS, "there is no limit");
        };
        // One error may be the only one: the second is reported.
        assert!(took < Duration::from_secs(75), "{took:?}");
        let (written, took) = write(block % BLOCKS).await;
        written.expect_err("it fails still");
        assert!(
            took >= Duration::from_secs(10) && took < Duration::from_secs(11),
            "{took:?}"
        );
        let begun = live.env.now();
        live.stop().await.expect("what is dirty is on the cache device");
        let took = world.sim.env().now().since(begun);
        // Reading the bytes of the origin's fingerprint takes as long for each step.
        assert!(took < Duration::from_secs(300), "{took:?}");
    });
    world.origin.set_faults(FaultRates::default());
    let next = world.reboot(10);
    next.sim.block_on(async {
        let live = next.serve().await;
        next.check_twice(&live).await;
        live.cache.clean_all().await.expect("the origin is well");
        next.assert_origin_complete(&live);
    });
}
