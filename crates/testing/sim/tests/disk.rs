//! Simulated disks: visibility, durability, and the effect of faults and power cuts.

use std::collections::HashSet;
use std::time::Duration;

use flaz_device::{Device, DeviceOp, Env, IoBuf};
use flaz_sim::{CrashPlan, DiscardMode, DiskConfig, FaultRates, Rng, Sim, SimDisk, check_seeds};
use futures_util::future::{join, join_all};

const MIB: u64 = 1 << 20;

fn setup(seed: u64) -> (Sim, SimDisk) {
    let sim = Sim::new(seed);
    let disk = SimDisk::new(&sim.env(), DiskConfig::fast(MIB));
    (sim, disk)
}

async fn write(disk: &SimDisk, offset: u64, len: usize, byte: u8) {
    disk.write_at(offset, IoBuf::copy_of(&vec![byte; len]), false)
        .await
        .1
        .unwrap();
}

async fn read(disk: &SimDisk, offset: u64, len: usize) -> Vec<u8> {
    let (buf, result) = disk.read_at(offset, IoBuf::new(len)).await;
    result.unwrap();
    buf.to_vec()
}

#[test]
fn a_write_is_readable_at_once_and_durable_after_a_flush() {
    check_seeds(50, |seed| {
        let (sim, disk) = setup(seed);
        sim.block_on(async {
            write(&disk, 1024, 3072, 7).await;
            assert_eq!(
                read(&disk, 512, 4096).await,
                [vec![0; 512], vec![7; 3072], vec![0; 512]].concat()
            );
            assert_eq!(disk.crash(&CrashPlan::Nothing).read(1024, 1), [0]);
            assert_eq!(disk.crash(&CrashPlan::Everything).read(1024, 1), [7]);
            disk.flush().await.unwrap();
            assert_eq!(disk.crash(&CrashPlan::Nothing).read(1024, 3072), vec![7; 3072]);
            assert!(disk.volatile_writes().is_empty());
        });
    });
}

#[test]
fn fua_makes_only_its_own_write_durable() {
    let (sim, disk) = setup(1);
    sim.block_on(async {
        write(&disk, 0, 512, 1).await;
        disk.write_at(512, IoBuf::copy_of(&[2; 512]), true)
            .await
            .1
            .unwrap();
        disk.write_zeroes(1024, 512, false, true).await.unwrap();
    });
    let left = disk.crash(&CrashPlan::Nothing);
    assert_eq!((left.read(0, 1), left.read(512, 1)), (vec![0], vec![2]));
    assert_eq!(disk.volatile_writes().len(), 1);
}

#[test]
fn an_older_volatile_write_never_replaces_a_durable_one() {
    check_seeds(100, |seed| {
        let (sim, disk) = setup(seed);
        sim.block_on(async {
            write(&disk, 0, 4096, 1).await;
            disk.write_at(1024, IoBuf::copy_of(&[2; 512]), true)
                .await
                .1
                .unwrap();
        });
        for plan in [CrashPlan::Everything, CrashPlan::Nothing, CrashPlan::Random(seed)] {
            assert_eq!(disk.crash(&plan).read(1024, 512), [2; 512], "{plan:?}");
        }
        // The rest of the older write may or may not survive.
        assert_eq!(disk.crash(&CrashPlan::Nothing).read(0, 512), [0; 512]);
        assert_eq!(disk.crash(&CrashPlan::Everything).read(0, 512), [1; 512]);
        sim.block_on(disk.flush()).unwrap();
        assert_eq!(
            disk.crash(&CrashPlan::Nothing).read(512, 1024),
            [[1; 512], [2; 512]].concat()
        );
    });
}

#[test]
fn a_flush_covers_only_what_had_completed_when_it_was_issued() {
    let (mut covered_late, mut runs_overlapping) = (0, 0);
    for seed in 0..200 {
        let (sim, disk) = setup(seed);
        sim.block_on(async {
            write(&disk, 0, 512, 1).await;
            let flushed_last = std::cell::Cell::new(false);
            join(write(&disk, 4096, 512, 2), async {
                disk.flush().await.unwrap();
                flushed_last.set(disk.stats().writes == 2);
            })
            .await;
            runs_overlapping += u32::from(flushed_last.get());
        });
        let left = disk.crash(&CrashPlan::Nothing);
        assert_eq!(left.read(0, 1), [1]);
        covered_late += u32::from(left.read(4096, 1) == [2]);
    }
    // In many runs the second write completed while the flush was running, so the flush does not cover it.
    assert!(runs_overlapping > 50, "{runs_overlapping}");
    assert_eq!(covered_late, 0);
}

#[test]
fn power_cuts_keep_any_subset_and_tear_at_sectors() {
    let (sim, disk) = setup(2);
    sim.block_on(async {
        for n in 0..3 {
            write(&disk, n * 4096, 4096, n as u8 + 1).await;
        }
    });
    assert_eq!(disk.volatile_writes().len(), 3);
    let kept = |plan| {
        let image = disk.crash(&plan);
        [0, 1, 2].map(|n| image.read(n * 4096, 4096) == vec![n as u8 + 1; 4096])
    };
    assert_eq!(kept(CrashPlan::Without(1)), [true, false, true]);
    assert_eq!(kept(CrashPlan::Only(2)), [false, false, true]);
    assert_eq!(kept(CrashPlan::Subset(0b011)), [true, true, false]);
    assert_eq!(CrashPlan::explore(3, 2, 0).len(), 8 + 2);
    assert_eq!(CrashPlan::explore(9, 2, 0).len(), 2 + 18 + 2);

    let mut torn = 0;
    for seed in 0..100 {
        let image = disk.crash(&CrashPlan::Random(seed));
        for n in 0..3 {
            let mut new = 0;
            for sector in 0..8 {
                let bytes = image.read(n * 4096 + sector * 512, 512);
                assert!(
                    bytes == vec![0; 512] || bytes == vec![n as u8 + 1; 512],
                    "half a sector"
                );
                new += u32::from(bytes[0] != 0);
            }
            torn += u32::from(new > 0 && new < 8);
        }
        assert_eq!(
            image.read(0, 12_288),
            disk.crash(&CrashPlan::Random(seed)).read(0, 12_288)
        );
    }
    assert!(torn > 50, "{torn} torn writes of 300");
}

#[test]
fn a_write_in_flight_may_survive_a_cut_or_not() {
    let (sim, disk) = setup(3);
    let env = sim.env();
    let disk2 = disk.clone();
    env.spawn(async move { write(&disk2, 0, 4096, 1).await });
    sim.block_on(async {
        while disk.volatile_writes().is_empty() {
            env.yield_now().await;
        }
    });
    assert!(disk.volatile_writes()[0].in_flight);
    assert_eq!(disk.crash(&CrashPlan::Nothing).read(0, 4096), vec![0; 4096]);
    assert_eq!(disk.crash(&CrashPlan::Everything).read(0, 4096), vec![1; 4096]);
}

#[test]
fn readers_of_a_write_in_flight_see_old_new_and_torn() {
    let mut seen = HashSet::new();
    for seed in 0..300 {
        let (sim, disk) = setup(seed);
        let (bytes, ()) = sim.block_on(join(read(&disk, 0, 1024), write(&disk, 0, 1024, 1)));
        assert!(bytes[..512].iter().all(|b| *b == bytes[0]) && bytes[512..].iter().all(|b| *b == bytes[512]));
        seen.insert((bytes[0], bytes[512]));
        assert_eq!(disk.peek(0, 1024), vec![1; 1024]);
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

#[test]
fn overlapping_writes_in_flight_land_in_either_order() {
    let mut winners = HashSet::new();
    for seed in 0..200 {
        let (sim, disk) = setup(seed);
        sim.block_on(async {
            join(write(&disk, 0, 2048, 1), write(&disk, 1024, 2048, 2)).await;
            disk.flush().await.unwrap();
        });
        assert_eq!(disk.peek(0, 4096), disk.peek_durable(0, 4096), "seed {seed}");
        winners.insert(disk.peek(1024, 1)[0]);
    }
    assert_eq!(winners.len(), 2);
}

#[test]
fn a_random_workload_agrees_with_a_plain_array() {
    check_seeds(60, |seed| {
        let sim = Sim::new(seed);
        let cache_bytes_max = [0, 8192, MIB][seed as usize % 3];
        let config = DiskConfig {
            write_cache_bytes_max: cache_bytes_max,
            discard_mode: DiscardMode::Zero,
            ..DiskConfig::fast(64 << 10)
        };
        let disk = SimDisk::new(&sim.env(), config);
        let mut model = vec![0; 64 << 10];
        let mut rng = Rng::new(seed);
        sim.block_on(async {
            for _ in 0..300 {
                let first = rng.below(127);
                let sectors = rng.between(1, (128 - first).min(20));
                let (offset, len) = (first * 512, sectors as usize * 512);
                let range = first as usize * 512..first as usize * 512 + len;
                match rng.below(10) {
                    0..4 => {
                        let byte = rng.next_u64() as u8;
                        disk.write_at(offset, IoBuf::copy_of(&vec![byte; len]), rng.coin())
                            .await
                            .1
                            .unwrap();
                        model[range].fill(byte);
                    }
                    4 => {
                        disk.write_zeroes(offset, len as u64, true, rng.coin())
                            .await
                            .unwrap();
                        model[range].fill(0);
                    }
                    5 => {
                        disk.discard(offset, len as u64).await.unwrap();
                        model[range].fill(0);
                    }
                    6 => {
                        disk.flush().await.unwrap();
                        assert_eq!(disk.peek_durable(0, 64 << 10), model);
                    }
                    _ => assert_eq!(read(&disk, offset, len).await, &model[range]),
                }
                assert_eq!(disk.crash(&CrashPlan::Everything).read(0, 64 << 10), model);
            }
        });
    });
}

#[test]
fn a_small_write_cache_makes_the_oldest_durable() {
    let sim = Sim::new(4);
    let config = DiskConfig {
        write_cache_bytes_max: 8192,
        ..DiskConfig::fast(MIB)
    };
    let disk = SimDisk::new(&sim.env(), config);
    sim.block_on(async {
        for n in 0..4 {
            write(&disk, n * 4096, 4096, 9).await;
        }
    });
    let left = disk.crash(&CrashPlan::Nothing);
    assert_eq!([0, 1, 2, 3].map(|n| left.read(n * 4096, 1)[0]), [9, 9, 0, 0]);
}

#[test]
fn errors_have_the_configured_rate() {
    let (sim, disk) = setup(5);
    disk.set_faults(FaultRates {
        read_error_ppm: 100_000,
        write_error_ppm: 200_000,
        write_no_space_ppm: 100_000,
        flush_error_ppm: 300_000,
        discard_error_ppm: 400_000,
        ..FaultRates::default()
    });
    let mut failed = [0; 4];
    sim.block_on(async {
        for _ in 0..1000 {
            failed[0] += u32::from(disk.read_at(0, IoBuf::new(512)).await.1.is_err());
            if let (_, Err(error)) = disk.write_at(0, IoBuf::new(512), false).await {
                assert!(matches!(error.source.raw_os_error(), Some(5 | 28)));
                assert_eq!((error.op, error.offset, error.len), (DeviceOp::Write, 0, 512));
                failed[1] += 1;
            }
            failed[2] += u32::from(disk.flush().await.is_err());
            failed[3] += u32::from(disk.discard(0, 512).await.is_err());
        }
    });
    for (failed, expected) in failed.into_iter().zip([100, 280, 300, 400u32]) {
        assert!(failed.abs_diff(expected) < 60, "{failed} of about {expected}");
    }
    assert_eq!(
        disk.stats().errors,
        failed.iter().map(|n| u64::from(*n)).sum::<u64>()
    );
}

#[test]
fn the_nth_operation_fails_once() {
    let (sim, disk) = setup(6);
    disk.fail_nth(DeviceOp::Write, 3);
    disk.fail_nth_with(DeviceOp::Write, 5, 28);
    sim.block_on(async {
        let mut errors = Vec::new();
        for n in 1..10 {
            if let Err(error) = disk.write_at(0, IoBuf::new(512), false).await.1 {
                errors.push((n, error.source.raw_os_error()));
            }
            disk.read_at(0, IoBuf::new(512)).await.1.unwrap();
        }
        assert_eq!(errors, [(3, Some(5)), (5, Some(28))]);
    });
}

#[test]
fn a_failed_write_may_have_landed_in_part() {
    let mut seen = HashSet::new();
    for seed in 0..200 {
        let (sim, disk) = setup(seed);
        disk.fail_nth(DeviceOp::Write, 1);
        sim.block_on(disk.write_at(0, IoBuf::copy_of(&[1; 1024]), false))
            .1
            .unwrap_err();
        seen.insert((disk.peek(0, 1)[0], disk.peek(512, 1)[0]));
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

#[test]
fn a_failed_flush_may_forget_for_ever() {
    let mut fates = HashSet::new();
    for seed in 0..100 {
        let (sim, disk) = setup(seed);
        sim.block_on(async {
            write(&disk, 0, 512, 1).await;
            disk.fail_nth(DeviceOp::Flush, 1);
            disk.flush().await.unwrap_err();
            let after_error = disk.peek_durable(0, 1)[0];
            disk.flush().await.unwrap();
            fates.insert((after_error, disk.peek_durable(0, 1)[0]));
            assert_eq!(disk.peek(0, 1), [1]);
        });
    }
    assert_eq!(fates, HashSet::from([(1, 1), (0, 1), (0, 0)]));
}

#[test]
fn a_dead_disk_fails_all_io_and_keeps_its_contents() {
    let (sim, disk) = setup(7);
    sim.block_on(async {
        write(&disk, 0, 512, 1).await;
        disk.set_dead(true);
        disk.read_at(0, IoBuf::new(512)).await.1.unwrap_err();
        disk.write_at(0, IoBuf::zeroed(512), false).await.1.unwrap_err();
        disk.flush().await.unwrap_err();
        disk.discard(0, 512).await.unwrap_err();
        disk.write_zeroes(0, 512, true, false).await.unwrap_err();
        disk.set_dead(false);
        assert_eq!(read(&disk, 0, 512).await, [1; 512]);
    });
}

#[test]
fn flipped_bits_lost_and_misdirected_writes_are_silent() {
    let (sim, disk) = setup(8);
    sim.block_on(async {
        disk.set_faults(FaultRates {
            read_flip_ppm: 1_000_000,
            ..FaultRates::default()
        });
        let bytes = read(&disk, 0, 4096).await;
        assert_eq!(bytes.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
        assert_eq!(disk.peek(0, 4096), vec![0; 4096], "the medium is not harmed");

        disk.set_faults(FaultRates {
            write_lost_ppm: 1_000_000,
            ..FaultRates::default()
        });
        write(&disk, 0, 4096, 1).await;
        assert_eq!(disk.peek(0, MIB as usize), vec![0; MIB as usize]);

        disk.set_faults(FaultRates {
            write_misdirected_ppm: 1_000_000,
            ..FaultRates::default()
        });
        write(&disk, 0, 4096, 1).await;
        assert_eq!(disk.peek(0, 512), [0; 512]);
        assert_eq!(
            disk.peek(0, MIB as usize).iter().filter(|b| **b == 1).count(),
            4096
        );

        disk.set_faults(FaultRates {
            flush_lie_ppm: 1_000_000,
            ..FaultRates::default()
        });
        disk.flush().await.unwrap();
        assert_eq!(
            disk.crash(&CrashPlan::Nothing).read(0, MIB as usize),
            vec![0; MIB as usize]
        );
    });
    assert_eq!(disk.stats().silent_faults, 4);
}

#[test]
fn bad_sectors_fail_reads_until_written_and_rot_stays() {
    let (sim, disk) = setup(9);
    sim.block_on(async {
        disk.mark_bad(1024, 512);
        read(&disk, 0, 1024).await;
        disk.read_at(0, IoBuf::new(4096)).await.1.unwrap_err();
        write(&disk, 1024, 512, 1).await;
        read(&disk, 0, 4096).await;
        let at = disk.rot(8192, 4096);
        assert!((8192..12_288).contains(&at));
        assert_eq!(
            read(&disk, at / 512 * 512, 512).await[at as usize % 512].count_ones(),
            1
        );
        assert_eq!(disk.peek_durable(at, 1)[0].count_ones(), 1);
    });
}

#[test]
fn stalls_delay_operations() {
    let (sim, disk) = setup(10);
    let env = sim.env();
    let second = Duration::from_secs(1);
    sim.block_on(async {
        disk.stall(second * 10);
        let start = env.now();
        join_all((0..4).map(|n| read(&disk, n * 512, 512))).await;
        assert!(env.now().since(start) >= second * 10);

        disk.set_faults(FaultRates {
            stall_ppm: 1_000_000,
            stall: second,
            ..FaultRates::default()
        });
        let start = env.now();
        disk.flush().await.unwrap();
        assert!(env.now().since(start) >= second);
    });
}

#[test]
fn operations_of_killed_tasks_end_at_the_disk() {
    let mut seen = HashSet::new();
    for seed in 0..100 {
        let (sim, disk) = setup(seed);
        let env = sim.env();
        let disk2 = disk.clone();
        env.spawn(async move { write(&disk2, 0, 1024, 1).await });
        sim.block_on(async {
            while sim.events() == 0 {
                env.yield_now().await;
            }
        });
        sim.kill_tasks();
        if seed % 2 == 0 {
            // Without settling, it completes by itself, and then a flush covers it.
            sim.block_on(async {
                env.sleep(Duration::from_millis(1)).await;
                assert_eq!(read(&disk, 0, 1024).await, [1; 1024]);
                disk.flush().await.unwrap();
            });
            assert_eq!(disk.peek_durable(0, 1024), [1; 1024]);
        } else {
            disk.settle();
            let now = disk.peek(0, 1024);
            seen.insert((now[0], now[512]));
            sim.block_on(env.sleep(Duration::from_millis(1)));
            assert_eq!(disk.peek(0, 1024), now, "nothing lands after settling");
        }
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

#[test]
fn a_cut_in_place_fails_what_is_in_flight() {
    let (sim, disk) = setup(11);
    let env = sim.env();
    sim.block_on(async {
        write(&disk, 0, 512, 1).await;
        let (result, ()) = join(disk.write_at(512, IoBuf::copy_of(&[2; 512]), true), async {
            env.yield_now().await;
            disk.crash_in_place(&CrashPlan::Nothing);
        })
        .await;
        result.1.unwrap_err();
        assert_eq!(read(&disk, 0, 1024).await, [0; 1024]);
    });
}

#[test]
fn images_move_between_simulations_and_snapshots_restore() {
    let (sim, disk) = setup(12);
    sim.block_on(write(&disk, 0, 512, 1));
    let snapshot = disk.snapshot();
    sim.block_on(write(&disk, 0, 512, 2));
    let mut image = snapshot.clone();
    image.write(3, &[3]);

    let other = Sim::new(99);
    let copy = SimDisk::from_image(&other.env(), &image);
    assert_eq!(other.block_on(read(&copy, 0, 512))[..5], [1, 1, 1, 3, 1]);
    assert_eq!(
        copy.crash(&CrashPlan::Nothing).read(0, 1),
        [1],
        "an image is durable"
    );
    disk.restore(&snapshot);
    assert_eq!(sim.block_on(read(&disk, 0, 512)), [1; 512]);
    assert_eq!(snapshot.read(3, 1), [1], "images do not share changes");
}

#[test]
fn counters_match_the_operations() {
    let (sim, disk) = setup(13);
    sim.block_on(async {
        join(write(&disk, 0, 4096, 1), read(&disk, 0, 8192)).await;
        disk.flush().await.unwrap();
        disk.discard(0, 1024).await.unwrap();
        disk.write_zeroes(0, 512, true, false).await.unwrap();
    });
    let stats = disk.stats();
    assert_eq!(
        [
            stats.reads,
            stats.writes,
            stats.flushes,
            stats.discards,
            stats.write_zeroes
        ],
        [1; 5]
    );
    assert_eq!((stats.read_bytes, stats.written_bytes), (8192, 4096));
    assert_eq!(
        (stats.discarded_bytes, stats.zeroed_bytes, stats.in_flight_max),
        (1024, 512, 2)
    );
    disk.reset_stats();
    assert_eq!(disk.stats(), Default::default());
}

#[test]
#[should_panic(expected = "write of 512 bytes at 100 is not aligned to 512 bytes")]
fn an_unaligned_operation_is_the_callers_mistake() {
    let (sim, disk) = setup(14);
    sim.block_on(write(&disk, 100, 512, 1));
}

#[test]
#[should_panic(expected = "read of 1024 bytes at 1048064 is beyond the disk's 1048576 bytes")]
fn an_operation_beyond_the_end_is_the_callers_mistake() {
    let (sim, disk) = setup(15);
    sim.block_on(read(&disk, MIB - 512, 1024));
}

#[test]
fn a_disk_grows_durably() {
    let sim = Sim::new(1);
    let disk = SimDisk::new(&sim.env(), DiskConfig::fast(8192));
    let before = disk.moment();
    disk.grow(16384);
    assert_eq!(disk.len(), 16384);
    sim.block_on(async {
        let data = IoBuf::copy_of(&[7; 4096]);
        disk.write_at(12288, data, true).await.1.expect("it is there now");
    });
    let image = disk.crash(&CrashPlan::Nothing);
    assert_eq!((image.len(), image.read(12288, 1)), (16384, vec![7]));
    assert_eq!(before.cut(|_, _| true).len(), 8192);
}

#[test]
#[should_panic(expected = "does not shrink")]
fn a_disk_does_not_shrink() {
    SimDisk::new(&Sim::new(1).env(), DiskConfig::fast(8192)).grow(4096);
}
