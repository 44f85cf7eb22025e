//! Files as devices: transfers, ends, alignment, locks, holes, identity.

use std::fs;
use std::path::{Path, PathBuf};

use flaz_device::{Device, DeviceOp, IoBuf};
use flaz_runtime::file::{FileDevice, Hold, Kind, OpenError, OpenMode, Run};
use futures_util::future::join_all;

use crate::runtime;

const EXCLUSIVE: OpenMode = OpenMode {
    read_only: false,
    hold: Hold::Exclusive,
    buffered: false,
};
const READ_ONLY: OpenMode = OpenMode {
    read_only: true,
    hold: Hold::Exclusive,
    buffered: false,
};
const BUFFERED: OpenMode = OpenMode {
    read_only: false,
    hold: Hold::None,
    buffered: true,
};

struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    /// A directory next to the build outputs: on a disk, where O_DIRECT usually works.
    fn new() -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("temporary directory");
        Self { directory }
    }

    fn file(&self, name: &str, len: u64) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::File::create(&path)
            .and_then(|file| file.set_len(len))
            .expect("scratch file");
        path
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    runtime().block_on(future)
}

fn pattern(len: usize, seed: u8) -> IoBuf {
    let mut buf = IoBuf::new(len);
    buf.iter_mut()
        .enumerate()
        .for_each(|(at, byte)| *byte = (at / 7) as u8 ^ seed);
    buf
}

/// udev holds one for a moment.
#[test]
fn a_lock_that_is_released_soon_is_waited_for() {
    let scratch = Scratch::new();
    let path = scratch.file("origin", 1 << 20);
    let held = FileDevice::open(&path, EXCLUSIVE).expect("free");
    let ended = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        drop(held);
    });
    FileDevice::open(&path, EXCLUSIVE).expect("free soon");
    ended.join().expect("it ends");
}

#[test]
fn written_data_is_readable_direct_and_buffered() {
    let scratch = Scratch::new();
    for (name, mode) in [("direct", EXCLUSIVE), ("buffered", BUFFERED)] {
        let path = scratch.file(name, 8 << 20);
        let device = FileDevice::open(&path, mode).expect("open");
        assert_eq!(device.kind(), Kind::File);
        assert_eq!(device.len(), 8 << 20);
        run(async {
            let writes = (0..64u64).map(|number| {
                device.write_at(number * 65_536, pattern(65_536, number as u8), number % 8 == 0)
            });
            for (_, result) in join_all(writes).await {
                result.expect("write");
            }
            device.flush().await.expect("flush");
            let reads = (0..1024u64)
                .rev()
                .map(|number| device.read_at(number * 4096, IoBuf::new(4096)));
            for (number, (buf, result)) in (0..1024usize).rev().zip(join_all(reads).await) {
                result.expect("read");
                let whole = pattern(65_536, (number / 16) as u8);
                let start = number % 16 * 4096;
                assert!(buf[..] == whole[start..start + 4096], "block {number} differs");
            }
        });
        let on_disk = fs::read(&path).expect("read back");
        assert!(on_disk[..65_536] == pattern(65_536, 0)[..]);
    }
}

#[test]
fn misaligned_and_out_of_range_requests_are_refused() {
    let scratch = Scratch::new();
    let path = scratch.file("small", 1 << 20);
    let device = FileDevice::open(&path, EXCLUSIVE).expect("open");
    run(async {
        let cases = [
            (1, 512, "multiples"),
            (0, 511, "multiples"),
            (1 << 20, 4096, "ends at"),
            (u64::MAX - 511, 512, "ends at"),
        ];
        for (offset, len, message) in cases {
            let (buf, result) = device.read_at(offset, IoBuf::new(len)).await;
            let error = result.expect_err("a bad request");
            assert_eq!(
                (error.op, error.offset, error.len),
                (DeviceOp::Read, offset, len as u64)
            );
            assert!(error.to_string().contains(message), "{error}");
            assert!(device.write_at(offset, buf, false).await.1.is_err());
            assert!(device.discard(offset, len as u64).await.is_err());
            assert!(
                device
                    .write_zeroes(offset, len as u64, true, false)
                    .await
                    .is_err()
            );
        }
    });
}

#[test]
fn a_truncated_file_gives_an_error_at_its_new_end() {
    let scratch = Scratch::new();
    for (mode, cut) in [
        (EXCLUSIVE, 8192),
        (BUFFERED, 8192),
        (BUFFERED, 8292),
        (EXCLUSIVE, 8292),
    ] {
        let path = scratch.file("cut", 1 << 20);
        let device = FileDevice::open(&path, mode).expect("open");
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(cut))
            .expect("cut");
        run(async {
            device.read_at(0, IoBuf::new(8192)).await.1.expect("what is left");
            let error = device
                .read_at(4096, IoBuf::new(16_384))
                .await
                .1
                .expect_err("beyond the end");
            assert_eq!(error.source.kind(), std::io::ErrorKind::UnexpectedEof, "{error}");
            assert!(error.to_string().contains("8192"), "{error}");
        });
        drop(device);
    }
}

#[test]
fn a_device_measured_again_has_grown_for_all_clones() {
    let scratch = Scratch::new();
    let path = scratch.file("grows", 8192);
    let device = FileDevice::open(&path, EXCLUSIVE).expect("opens");
    let clone = device.clone();
    let file = fs::File::options().write(true).open(&path).expect("opens");
    file.set_len(16384 + 100).expect("it grows");
    assert_eq!(clone.len(), 8192, "nobody has looked");
    let beyond =
        |device: FileDevice| run(async move { device.write_at(8192, pattern(4096, 3), false).await.1 });
    assert!(beyond(clone.clone()).is_err());
    let sector = u64::from(device.alignment());
    assert_eq!(
        device.measure().expect("it is there"),
        (16384 + 100) / sector * sector
    );
    assert_eq!(clone.len(), device.len());
    assert!(clone.len() >= 16384);
    beyond(clone.clone()).expect("it is there now");
    file.set_len(4096).expect("it shrinks");
    assert_eq!(device.measure().expect("it is there"), 4096);
    assert!(clone.len() >= 16384, "a length that was promised stays");
}

#[test]
fn an_odd_size_is_rounded_down_to_a_sector() {
    let scratch = Scratch::new();
    let device = FileDevice::open(scratch.file("odd", 100_001), EXCLUSIVE).expect("open");
    assert_eq!(device.len() % u64::from(device.alignment()), 0);
    assert!(device.len() <= 100_001 && device.len() > 100_001 - u64::from(device.alignment()));
    let empty = FileDevice::open(scratch.file("empty", 0), EXCLUSIVE).expect("open");
    assert!(empty.is_empty());
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeroes() {
    let scratch = Scratch::new();
    for (name, mode) in [("direct", EXCLUSIVE), ("buffered", BUFFERED)] {
        let device = FileDevice::open(scratch.file(name, 4 << 20), mode).expect("open");
        run(async {
            device
                .write_at(0, pattern(4 << 20, 9), false)
                .await
                .1
                .expect("write");
            device.discard(0, 1 << 20).await.expect("discard");
            device
                .write_zeroes(1 << 20, 1 << 20, true, false)
                .await
                .expect("zero by unmapping");
            device
                .write_zeroes((2 << 20) + 512, (1 << 20) - 512, false, true)
                .await
                .expect("zero, stable");
            device.discard(0, 0).await.expect("nothing to do");
            device
                .write_zeroes(0, 0, true, true)
                .await
                .expect("nothing to do");
            let (buf, result) = device.read_at(0, IoBuf::new(4 << 20)).await;
            result.expect("read");
            let whole = pattern(4 << 20, 9);
            assert!(buf[..2 << 20].iter().all(|byte| *byte == 0));
            assert!(buf[2 << 20..][..512] == whole[2 << 20..][..512]);
            assert!(buf[(2 << 20) + 512..3 << 20].iter().all(|byte| *byte == 0));
            assert!(buf[3 << 20..] == whole[3 << 20..]);
        });
    }
}

/// A discard would give the space back, and the file system could be full when the file needs it.
#[test]
fn a_file_of_a_cache_keeps_its_space() {
    use std::os::unix::fs::MetadataExt;

    const LEN: u64 = 4 << 20;
    let scratch = Scratch::new();
    for (name, is_sparse) in [("allocated", false), ("sparse", true)] {
        let path = scratch.file(name, LEN);
        let device = FileDevice::open(&path, EXCLUSIVE).expect("open");
        let written = if is_sparse { LEN / 2 } else { LEN };
        let space = || fs::metadata(&path).expect("metadata").blocks() * 512;
        run(async {
            let write = device.write_at(0, pattern(written as usize, 9), false);
            write.await.1.expect("write");
            device.flush().await.expect("flush");
            device.keep_space();
            assert_eq!(device.is_sparse(), is_sparse, "{name}");
            device.discard(0, LEN / 2).await.expect("discard");
            assert!(space() >= written, "{name}: {} bytes", space());
            device.allocate(LEN / 2, LEN / 2).await.expect("allocate");
            assert!(space() >= LEN, "{name}: {} bytes", space());
            let (buf, result) = device.read_at(0, IoBuf::new(LEN as usize / 2)).await;
            result.expect("read");
            assert!(
                buf[..] == pattern(written as usize, 9)[..LEN as usize / 2],
                "{name}"
            );
        });
    }
}

#[test]
fn holes_are_distinguished_from_data() {
    let scratch = Scratch::new();
    let path = scratch.file("sparse", 1 << 20);
    let device = FileDevice::open(&path, EXCLUSIVE).expect("open");
    run(async {
        device
            .write_at(65_536, pattern(65_536, 1), false)
            .await
            .1
            .expect("write");
        device.flush().await.expect("flush");
    });
    let hole = |len| Run { len, hole: true };
    let data = |len| Run { len, hole: false };
    let all = device.status(0, 1 << 20, 100).expect("status");
    assert_eq!(all, [hole(65_536), data(65_536), hole((1 << 20) - 131_072)]);
    assert_eq!(device.status(0, 1 << 20, 1).expect("status"), [hole(65_536)]);
    assert_eq!(device.status(66_048, 1024, 9).expect("status"), [data(1024)]);
    assert_eq!(device.status(0, 512, 9).expect("status"), [hole(512)]);
    assert_eq!(device.status(5, 0, 9).expect("status"), []);
    assert!(device.status(0, (1 << 20) + 1, 9).is_err());

    // The engine's way, on another thread.
    let told = run(Device::status(&device, 0, 1 << 20, 2)).expect("status");
    assert_eq!(told, [(65_536, true), (65_536, false)]);
    let error = run(Device::status(&device, 0, (1 << 20) + 1, 9)).expect_err("it is beyond the end");
    assert_eq!(error.op, DeviceOp::Status);
    let size = device.measure_within(std::time::Duration::from_secs(60));
    assert_eq!(size.expect("the file system answers"), 1 << 20);
}

/// A client that takes a range for zeroes does not read it, and would not notice that it is lost.
#[test]
fn the_lost_end_of_a_truncated_file_is_no_hole() {
    const END: u64 = 1 << 20;
    let hole = |len| Run { len, hole: true };
    let data = |len| Run { len, hole: false };
    for (shorter, expected) in [
        (0, vec![data(END)]),
        (65_536, vec![hole(65_536), data(END - 65_536)]),
        (65_536 + 100, vec![hole(65_536), data(END - 65_536)]),
        (131_072, vec![hole(65_536), data(END - 65_536)]),
        (131_072 - 100, vec![hole(65_536), data(END - 65_536)]),
        (
            262_144,
            vec![hole(65_536), data(65_536), hole(131_072), data(END - 262_144)],
        ),
        (
            262_144 + 700,
            vec![hole(65_536), data(65_536), hole(131_584), data(END - 262_656)],
        ),
    ] {
        let scratch = Scratch::new();
        let path = scratch.file("truncated", END);
        let device = FileDevice::open(&path, EXCLUSIVE).expect("open");
        run(async {
            let data = pattern(65_536, 1);
            device.write_at(65_536, data, false).await.1.expect("write");
            device.flush().await.expect("flush");
        });
        std::fs::File::options()
            .write(true)
            .open(&path)
            .expect("open")
            .set_len(shorter)
            .expect("truncate");
        let all = device.status(0, END, 100).expect("status");
        assert_eq!(all, expected, "{shorter} bytes are left");
        let last = device.status(END - 4096, 4096, 100).expect("status");
        assert_eq!(last, [data(4096)], "{shorter} bytes are left");
    }
}

#[test]
fn a_locked_file_is_refused_and_the_holder_named() {
    let scratch = Scratch::new();
    let path = scratch.file("locked", 1 << 20);
    let first = FileDevice::open(&path, EXCLUSIVE).expect("open");
    let error = FileDevice::open(&path, EXCLUSIVE).expect_err("it is locked");
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("this process itself"), "{error}");
    assert!(matches!(
        FileDevice::open(&path, READ_ONLY),
        Err(OpenError::Locked { .. })
    ));
    FileDevice::open(&path, OpenMode::default()).expect("it may be opened without a lock");
    drop(first);
    let _reader = FileDevice::open(&path, READ_ONLY).expect("free again");
    FileDevice::open(&path, READ_ONLY).expect("readers share");
    assert!(matches!(
        FileDevice::open(&path, EXCLUSIVE),
        Err(OpenError::Locked { .. })
    ));
}

#[test]
fn a_read_only_device_refuses_writes() {
    let scratch = Scratch::new();
    let device = FileDevice::open(scratch.file("read-only", 1 << 20), READ_ONLY).expect("open");
    run(async {
        device.read_at(0, IoBuf::new(4096)).await.1.expect("read");
        let error = device
            .write_at(0, pattern(4096, 0), false)
            .await
            .1
            .expect_err("not open for writing");
        assert_eq!(error.source.raw_os_error(), Some(9), "EBADF: {error}");
    });
}

#[test]
fn other_file_types_are_refused_by_name() {
    let open = |path: &Path| {
        FileDevice::open(path, OpenMode::default())
            .expect_err("not a device")
            .to_string()
    };
    assert!(open(Path::new("/")).contains("/ is a directory"));
    assert!(open(Path::new("/dev/null")).contains("/dev/null is a character device"));
    assert!(open(Path::new("/nonexistent/x")).contains("cannot open /nonexistent/x"));
}

#[test]
fn the_identity_follows_the_file_not_the_path() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.file("one", 4096), scratch.file("two", 4096));
    let identity = |path: &Path| {
        FileDevice::open(path, OpenMode::default())
            .expect("open")
            .identity()
            .id
            .clone()
    };
    let first = identity(&one);
    assert_ne!(first, identity(&two));
    fs::rename(&two, scratch.directory.path().join("three")).expect("rename");
    fs::rename(&one, &two).expect("rename");
    assert_eq!(first, identity(&two));
}

#[test]
fn one_device_serves_several_threads() {
    let scratch = Scratch::new();
    let device = FileDevice::open(scratch.file("shared", 4 << 20), EXCLUSIVE).expect("open");
    let threads: Vec<_> = (0..4u64)
        .map(|number| {
            let device = device.clone();
            std::thread::spawn(move || {
                run(async {
                    for round in 0..50u64 {
                        let offset = (number << 20) + round * 4096;
                        device
                            .write_at(offset, pattern(4096, round as u8), false)
                            .await
                            .1
                            .expect("write");
                        let (buf, result) = device.read_at(offset, IoBuf::new(4096)).await;
                        result.expect("read");
                        assert!(buf[..] == pattern(4096, round as u8)[..]);
                    }
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no thread panics");
    }
}

/// All clones notice it, and reach what was not there when the file was opened.
#[test]
fn a_file_that_changes_its_size_is_measured_again() {
    use std::os::unix::fs::MetadataExt;

    const LEN: u64 = 1 << 20;
    let scratch = Scratch::new();
    let path = scratch.file("grows", LEN);
    let device = FileDevice::open(&path, EXCLUSIVE).expect("open");
    let clone = device.clone();
    let write_end = |device: &FileDevice, len| {
        let device = device.clone();
        run(async move { device.write_at(len - 4096, pattern(4096, 3), false).await.1 })
    };
    fs::File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(2 * LEN))
        .expect("it becomes longer");
    write_end(&clone, 2 * LEN).expect_err("it has not been measured");
    assert_eq!(device.measure().expect("measured"), 2 * LEN);
    assert_eq!(clone.len(), 2 * LEN);
    write_end(&clone, 2 * LEN).expect("it is there");
    device.set_len(4 * LEN, true).expect("it becomes longer");
    assert_eq!(clone.len(), 4 * LEN);
    let blocks = fs::metadata(&path).expect("metadata").blocks();
    assert!(
        blocks * 512 >= 2 * LEN,
        "what is new is allocated: {blocks} blocks"
    );
    device.set_len(LEN, true).expect("it becomes shorter");
    write_end(&clone, 2 * LEN).expect_err("it ends before");
    assert_eq!(fs::metadata(&path).expect("metadata").len(), LEN);
}
