//! A device that stops responding: a disk over FUSE whose server is frozen.

use std::time::{Duration, Instant};

use flaz_nbd::Client;
use flaz_nbd::request::Command;
use rustix::process::Signal;

use crate::support::forgetful::{Flush, Forgetful, TOOLS};
use crate::support::{Cache, CacheSpec, Program, Scratch, Server, need, no_uring};

const IMAGE_BYTES: u64 = 64 << 20;
/// Size of a request in bytes.
const PIECE: u32 = 64 << 10;
const READ_BYTES: u64 = 16 << 20;
/// Far more time than the program needs once it bypasses the device.
const ALL_WITHIN: Duration = Duration::from_secs(60);

/// While blocks may be dirty, flaz waits for the device; when everything is clean in another mode, it does not.
#[test]
fn a_cache_device_that_freezes_after_write_back_is_bypassed() {
    if !(need::tools(TOOLS) && need::fuse()) {
        return;
    }
    let scratch = Scratch::new();
    let origin = scratch.filled("origin.img", IMAGE_BYTES, 6);
    let image = scratch.sparse("cache.img", IMAGE_BYTES);
    let disk = Forgetful::start(&scratch, "cache", &image, Flush::Honest);
    let cache = Cache { path: disk.file() };
    Program::flaz()
        .arg("create")
        .arg(&cache.path)
        .arg("--origin")
        .arg(&origin)
        .words("--region-size 256KiB")
        .ok();
    let server = Server::start(&scratch, &cache, "--mode write-back --device-timeout 1");
    let mut client = Client::connect(server.socket()).expect("connects");
    client.write(0, &[9; PIECE as usize]).expect("writes");
    server.set("mode=write-through");
    Program::flaz()
        .arg("flush")
        .arg("--control")
        .arg(server.control())
        .ok();
    let begun = Instant::now();
    while !server.log().contains("nothing is dirty: the time limit") {
        assert!(begun.elapsed() < ALL_WITHIN, "{}", server.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    disk.freeze();
    let begun = Instant::now();
    for _ in 0..2 {
        let data = client.call(Command::Read, 0, PIECE).expect("reads");
        assert!(data == vec![9; PIECE as usize], "wrong data");
    }
    // Elsewhere, because the record that the first blocks are clean may not be stable yet, and a write to them must
    // wait for it.
    client.write(READ_BYTES, &[8; PIECE as usize]).expect("writes");
    assert!(begun.elapsed() < ALL_WITHIN, "after {:?}", begun.elapsed());
    disk.thaw();
    server.end_by(Signal::KILL);
}

/// Dirty blocks are only on the device, so flaz waits for it far beyond the timeout of other modes. Nothing fails, and
/// a kill loses nothing that was acknowledged before or after.
#[test]
fn a_cache_device_that_freezes_in_write_back_is_waited_for() {
    const FROZEN: Duration = Duration::from_secs(4);
    if !(need::tools(TOOLS) && need::fuse()) {
        return;
    }
    let scratch = Scratch::new();
    let origin = scratch.filled("origin.img", IMAGE_BYTES, 7);
    let expected = std::fs::read(&origin).expect("readable");
    let image = scratch.sparse("cache.img", IMAGE_BYTES);
    let disk = Forgetful::start(&scratch, "cache", &image, Flush::Honest);
    let cache = Cache { path: disk.file() };
    Program::flaz()
        .arg("create")
        .arg(&cache.path)
        .arg("--origin")
        .arg(&origin)
        .words("--region-size 256KiB")
        .ok();
    let server = Server::start(&scratch, &cache, "--mode write-back --device-timeout 1");
    let connect = || Client::connect(server.socket()).expect("connects");
    let (mut client, mut writer) = (connect(), connect());
    client.write(0, &[9; PIECE as usize]).expect("writes");
    disk.freeze();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            let data = [8; PIECE as usize];
            let written = writer.write(READ_BYTES, &data).and_then(|()| writer.flush());
            written.expect("it is waited for");
            begun.elapsed()
        });
        // Uncached data is on the origin.
        let data = client.call(Command::Read, 2 * READ_BYTES, PIECE).expect("reads");
        assert!(data == expected[2 * READ_BYTES as usize..][..PIECE as usize]);
        std::thread::sleep(FROZEN.saturating_sub(begun.elapsed()));
        disk.thaw();
        let took = late.join().expect("it ends");
        assert!(took >= FROZEN, "it was acknowledged after {took:?}");
    });
    assert!(!server.log().contains("is fenced"), "{}", server.log());
    server.end_by(Signal::KILL);
    let server = Server::start(&scratch, &cache, "--mode write-back");
    let mut client = Client::connect(server.socket()).expect("connects");
    for (offset, value) in [(0, 9), (READ_BYTES, 8)] {
        let data = client.call(Command::Read, offset, PIECE).expect("reads");
        assert!(
            data == vec![value; PIECE as usize],
            "what was acknowledged at {offset} is gone"
        );
    }
    server.stop();
}

/// Serves a cache on a disk over FUSE that freezes: on this thread, or on another one that has no io_uring.
fn freezes(uring: bool) {
    if !(need::tools(TOOLS) && need::fuse()) {
        return;
    }
    let scratch = Scratch::new();
    let origin = scratch.filled("origin.img", IMAGE_BYTES, 5);
    let expected = std::fs::read(&origin).expect("readable");
    let image = scratch.sparse("cache.img", IMAGE_BYTES);
    let disk = Forgetful::start(&scratch, "cache", &image, Flush::Honest);
    let cache = Cache { path: disk.file() };
    Program::flaz()
        .arg("create")
        .arg(&cache.path)
        .arg("--origin")
        .arg(&origin)
        .words("--region-size 256KiB")
        .ok();
    let expected = &expected;
    let serves = || {
        let server = Server::start(&scratch, &cache, "--device-timeout 1");
        let log = server.log();
        assert_eq!(log.contains("using blocking threads"), !uring, "{log}");
        serve_on_a_disk_that_freezes(server, &scratch, &cache, &disk, expected);
    };
    if uring {
        return serves();
    }
    // The disk is unmounted by a program that may need its privileges.
    std::thread::scope(|scope| {
        let confined = scope.spawn(|| {
            no_uring::forbid();
            serves();
        });
        confined
            .join()
            .unwrap_or_else(|why| std::panic::resume_unwind(why));
    });
}

fn serve_on_a_disk_that_freezes(
    server: Server,
    scratch: &Scratch,
    cache: &Cache,
    disk: &Forgetful,
    expected: &[u8],
) {
    let mut client = Client::connect(server.socket()).expect("connects");
    let mut read_all = |written: u8| {
        for offset in (0..READ_BYTES).step_by(PIECE as usize) {
            let data = client.call(Command::Read, offset, PIECE).expect("reads");
            let right = match offset {
                0 if written > 0 => vec![written; PIECE as usize],
                _ => expected[offset as usize..][..PIECE as usize].to_vec(),
            };
            assert!(data == right, "wrong data at {offset}");
        }
    };
    read_all(0);
    read_all(0);
    assert!(server.live("/lookups/hit_blocks") > 0);

    disk.freeze();
    let begun = Instant::now();
    read_all(0);
    let mut writer = Client::connect(server.socket()).expect("connects");
    writer.write(0, &[7; PIECE as usize]).expect("writes");
    writer.flush().expect("flushes");
    read_all(7);
    assert!(begun.elapsed() < ALL_WITHIN, "after {:?}", begun.elapsed());
    assert!(
        server.log().contains("an operation timed out"),
        "{}",
        server.log()
    );

    // It responds again, and the server is killed: the device has missed a write.
    disk.thaw();
    server.end_by(Signal::KILL);
    let server = Server::start(scratch, cache, "");
    let mut client = Client::connect(server.socket()).expect("connects");
    for _ in 0..2 {
        let data = client.call(Command::Read, 0, PIECE).expect("reads");
        assert!(
            data == vec![7; PIECE as usize],
            "the copy from before the write is back"
        );
    }
    server.stop();
    cache.check();
}

#[test]
fn a_frozen_cache_device_is_bypassed_and_not_trusted() {
    freezes(true);
}

/// The same with blocking threads.
#[test]
fn a_frozen_cache_device_is_bypassed_without_io_uring() {
    freezes(false);
}

/// While a block status waits for a frozen origin, hits are served, even if one thread serves all clients.
#[test]
fn hits_do_not_wait_for_block_status_of_a_frozen_origin() {
    const TOOLS_AND_INFO: &[(&str, &str)] = &[("nbdinfo", "libnbd-bin")];
    /// The kernel caches the attributes of a file over FUSE for a second.
    const ATTRIBUTES_EXPIRE: Duration = Duration::from_millis(1500);
    if !(need::tools(TOOLS) && need::tools(TOOLS_AND_INFO) && need::fuse()) {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.filled("origin.img", IMAGE_BYTES, 5);
    let disk = Forgetful::start(&scratch, "origin", &image, Flush::Honest);
    let cache = Cache::create(&scratch, &disk.file(), &CacheSpec::default());
    let server = Server::start(&scratch, &cache, "--threads 1");
    let mut client = Client::connect(server.socket()).expect("connects");
    let mut read = || client.call(Command::Read, 0, PIECE).expect("reads");
    let hits = || server.live("/lookups/hit_blocks");
    let begun = Instant::now();
    let mut before = hits();
    loop {
        read();
        let now = hits();
        if now - before == u64::from(PIECE / 4096) {
            break;
        }
        before = now;
        assert!(begun.elapsed() < ALL_WITHIN, "it is never cached");
    }
    disk.freeze_file_system();
    std::thread::sleep(ATTRIBUTES_EXPIRE);
    let mut asking = std::process::Command::new("nbdinfo")
        .arg("--map")
        .arg(server.uri())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("nbdinfo starts");
    let in_flight = || {
        let queues = server.status()["live"]["queues"].as_array().cloned();
        let requests = queues
            .into_iter()
            .flatten()
            .find(|queue| queue["name"] == "requests");
        requests.map(|queue| queue["depth"] == 1)
    };
    while in_flight() != Some(true) {
        assert!(begun.elapsed() < ALL_WITHIN, "nbdinfo sends no request");
    }
    for _ in 0..100 {
        read();
    }
    assert!(
        asking.try_wait().expect("it runs").is_none(),
        "the file system was not frozen"
    );
    let warnings = server.status()["warnings"].to_string();
    assert!(warnings.contains("does not respond"), "{warnings}");
    // It times out, and the whole device is reported as data.
    assert!(asking.wait().expect("it ends").success());
    disk.thaw_file_system();
    server.stop();
}
