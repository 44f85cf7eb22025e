//! Devices with a time limit, on disks that exceed it.

use std::time::Duration;

use flaz_device::deadline::{Deadline, is_timeout};
use flaz_device::{Device, Env, IoBuf};
use flaz_sim::{DiskConfig, Sim, SimDisk, SimEnv};
use futures_util::future::{join, join_all};

const LIMIT: Duration = Duration::from_secs(10);

fn rig(sim: &Sim) -> (SimDisk, Deadline<SimDisk, SimEnv>) {
    let disk = SimDisk::new(&sim.env(), DiskConfig::fast(1 << 20));
    let device = Deadline::new(disk.clone(), sim.env(), Some(LIMIT));
    (disk, device)
}

fn sector(value: u8) -> IoBuf {
    IoBuf::copy_of(&[value; 512])
}

#[test]
fn operations_in_time_are_unaffected_by_a_deadline() {
    let sim = Sim::new(1);
    let (disk, device) = rig(&sim);
    sim.block_on(async {
        for round in 0..50 {
            device
                .write_at(512 * round, sector(round as u8), true)
                .await
                .1
                .expect("writes");
        }
        device.flush().await.expect("flushes");
        let reads = join_all((0..50).map(|round| device.read_at(512 * round, IoBuf::new(512)))).await;
        for (round, (buf, result)) in reads.into_iter().enumerate() {
            result.expect("reads");
            assert_eq!(buf[..], [round as u8; 512]);
        }
        device.write_zeroes(0, 512, true, false).await.expect("zeroes");
        device.discard(512, 512).await.expect("discards");
        assert_eq!(disk.peek(0, 512), [0; 512]);
        // The checking task ends when there are no operations.
        sim.env().sleep(LIMIT).await;
    });
    assert_eq!(sim.task_count(), 0);
}

#[test]
fn a_read_that_is_not_answered_fails_in_time() {
    let sim = Sim::new(2);
    let (disk, device) = rig(&sim);
    sim.block_on(async {
        let begun = sim.env().now();
        disk.stall(Duration::from_secs(60));
        let (first, second) = join(
            device.read_at(0, IoBuf::new(512)),
            device.read_at(4096, IoBuf::new(4096)),
        )
        .await;
        let took = sim.env().now().since(begun);
        assert!(
            took >= LIMIT && took <= LIMIT * 5 / 4 + Duration::from_millis(1),
            "{took:?}"
        );
        for (buf, result) in [first, second] {
            let error = result.expect_err("nobody answered");
            assert!(is_timeout(&error), "{error}");
            assert!(error.to_string().contains("did not answer within 10s"), "{error}");
            assert!(!buf.is_empty());
        }
        // The device works again and is used as before.
        sim.env().sleep(Duration::from_secs(60)).await;
        device.read_at(0, IoBuf::new(512)).await.1.expect("reads again");
    });
}

#[test]
fn a_write_that_is_late_lands_before_the_next_one() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let (disk, device) = rig(&sim);
        sim.block_on(async {
            disk.stall(Duration::from_secs(18));
            let late = device.write_at(0, sector(1), false).await.1.expect_err("late");
            assert!(is_timeout(&late));
            // The device answers new requests at once, but the abandoned ones may take effect at any time.
            device
                .write_at(0, sector(2), false)
                .await
                .1
                .expect("after the late one");
            device.flush().await.expect("flushes");
            assert_eq!(disk.peek_durable(0, 1), [2], "seed {seed}");
            sim.env().sleep(Duration::from_secs(60)).await;
            assert_eq!(
                disk.peek_durable(0, 1),
                [2],
                "seed {seed}: the late one came afterwards"
            );
        });
    }
}

#[test]
fn changes_during_a_late_write_fail_in_time() {
    let sim = Sim::new(3);
    let (disk, device) = rig(&sim);
    sim.block_on(async {
        disk.stall(Duration::from_secs(300));
        device.write_at(0, sector(1), false).await.1.expect_err("late");
        let reads = disk.stats().reads;
        for _ in 0..3 {
            let begun = sim.env().now();
            assert!(is_timeout(&device.flush().await.expect_err("after the late one")));
            assert!(sim.env().now().since(begun) <= LIMIT * 5 / 4 + Duration::from_millis(1));
        }
        assert_eq!(disk.stats().flushes, 0, "none was issued");
        assert_eq!(disk.stats().reads, reads);
    });
}

#[test]
fn without_a_limit_everything_waits() {
    let sim = Sim::new(4);
    let disk = SimDisk::new(&sim.env(), DiskConfig::fast(1 << 20));
    let device = Deadline::new(disk.clone(), sim.env(), None);
    sim.block_on(async {
        disk.stall(Duration::from_secs(3600));
        device
            .write_at(0, sector(1), true)
            .await
            .1
            .expect("after an hour");
        assert_eq!(disk.peek_durable(0, 1), [1]);
    });
}

/// After a limit was set again, operations issued without a limit have the full limit, however long they have waited.
#[test]
fn operations_without_a_limit_get_the_next_one() {
    let sim = Sim::new(5);
    let (disk, device) = rig(&sim);
    let changed = Duration::from_secs(60);
    sim.block_on(async {
        device.read_at(0, IoBuf::new(512)).await.1.expect("in time");
        device.set_limit(None);
        disk.stall(Duration::from_secs(3600));
        let begun = sim.env().now();
        let since = || sim.env().now().since(begun);
        let outcome = async |error: Option<flaz_device::DeviceError>| {
            assert!(is_timeout(&error.expect("late")));
            let took = since() - changed;
            assert!(
                (LIMIT..=LIMIT * 5 / 4 + Duration::from_millis(1)).contains(&took),
                "{took:?}"
            );
        };
        let write = async { outcome(device.write_at(0, sector(1), true).await.1.err()).await };
        let read = async { outcome(device.read_at(512, IoBuf::new(512)).await.1.err()).await };
        let change = async {
            sim.env().sleep(changed).await;
            device.set_limit(Some(LIMIT));
        };
        join(join(write, read), change).await;
    });
}
