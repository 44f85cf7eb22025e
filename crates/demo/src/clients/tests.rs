//! Clients with another NBD server: honest, damaged and gone.

use super::*;
use crate::nbdkit::Nbdkit;
use std::fs;
use std::path::PathBuf;

struct Rig {
    folder: tempfile::TempDir,
    data: DataSet,
    disk: PathBuf,
}

/// 8 MiB of random data, and a copy of it as the disk.
fn rig() -> Rig {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image");
    let data = DataSet::random(8 << 20, 1, &image, &Interrupt::default()).expect("an image");
    let disk = folder.path().join("disk");
    fs::copy(&image, &disk).expect("a copy");
    Rig { folder, data, disk }
}

impl Rig {
    fn run(&self, writes: f64, requests: u64) -> Option<Result<Observed, DemoError>> {
        let socket = self.folder.path().join("nbd.sock");
        let disk = self.disk.to_str().expect("a plain path");
        let _server = Nbdkit::start(&socket, &["file", disk])?;
        let workload = Workload::new(&self.data, 1, 4, 0.9, writes);
        let oracle = Oracle::new(&self.data.checksums);
        let phase = Phase {
            name: "the test",
            number: 0,
            socket: &socket,
            data: &self.data,
            workload: &workload,
            oracle: &oracle,
            until: Until::Requests(requests),
        };
        let interrupt = Interrupt::default();
        let result = phase.run(&interrupt, &AtomicU64::new(0));
        Some(result.and_then(|observed| {
            check_disk(&self.disk, self.data.blocks(), &oracle, &interrupt)?;
            Ok(observed)
        }))
    }

    fn damage(&self, block: u32) {
        let disk = File::options()
            .read(true)
            .write(true)
            .open(&self.disk)
            .expect("the disk");
        let offset = u64::from(block) * BLOCK_BYTES as u64 + 1234;
        let mut byte = [0];
        disk.read_exact_at(&mut byte, offset).expect("reads");
        disk.write_all_at(&[byte[0] ^ 1], offset).expect("writes");
    }
}

#[test]
fn an_honest_server_passes_reads_and_writes_of_all_clients() {
    let Some(result) = rig().run(0.3, 2001) else {
        return;
    };
    let observed = result.expect("all is well");
    assert_eq!(observed.requests(), 2001);
    assert_eq!(observed.latency_us.len(), 2001);
    assert_eq!(observed.slices.iter().sum::<u32>(), 2001);
    assert!(observed.writes > 500 && observed.bytes_written > observed.writes * 4095);
}

#[test]
fn one_flipped_bit_in_the_hottest_piece_is_found_by_the_clients() {
    let rig = rig();
    let workload = Workload::new(&rig.data, 1, 4, 0.9, 0.0);
    let Operation::Read { first, .. } = workload.requests(0, 0).next() else {
        panic!("no writes")
    };
    rig.damage(first);
    let Some(result) = rig.run(0.0, 400) else { return };
    match result {
        Err(DemoError::WrongData { during, mismatch }) => {
            assert_eq!((during.as_str(), mismatch.block), ("the test", first));
        }
        other => panic!("not noticed: {other:?}"),
    }
}

#[test]
fn damage_that_no_client_reads_is_found_at_the_end() {
    let rig = rig();
    let oracle = Oracle::new(&rig.data.checksums);
    let check = || check_disk(&rig.disk, rig.data.blocks(), &oracle, &Interrupt::default());
    assert!(check().is_ok());
    rig.damage(rig.data.blocks() - 1);
    assert!(matches!(check(), Err(DemoError::WrongData { .. })));
}

#[test]
fn a_lost_server_is_an_error_and_an_interrupt_is_not() {
    let rig = rig();
    let workload = Workload::new(&rig.data, 1, 2, 0.9, 0.0);
    let oracle = Oracle::new(&rig.data.checksums);
    let socket = rig.folder.path().join("nbd.sock");
    let disk = rig.disk.to_str().expect("a plain path");
    let Some(server) = Nbdkit::start(&socket, &["--filter=delay", "file", disk, "delay-read=5ms"]) else {
        return;
    };
    let phase = Phase {
        name: "the test",
        number: 0,
        socket: &socket,
        data: &rig.data,
        workload: &workload,
        oracle: &oracle,
        until: Until::Elapsed(Duration::from_secs(60)),
    };
    let interrupt = Interrupt::default();
    let done = AtomicU64::new(0);
    let begin = Instant::now();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while done.load(Ordering::Relaxed) < 5 {
                std::thread::sleep(Duration::from_millis(5));
            }
            interrupt.raise();
        });
        phase.run(&interrupt, &done)
    });
    assert!(matches!(result, Err(DemoError::Interrupted)), "{result:?}");
    done.store(0, Ordering::Relaxed);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while done.load(Ordering::Relaxed) < 5 {
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(server);
        });
        phase.run(&Interrupt::default(), &done)
    });
    assert!(matches!(result, Err(DemoError::Client { .. })), "{result:?}");
    assert!(begin.elapsed() < Duration::from_secs(30));
}
