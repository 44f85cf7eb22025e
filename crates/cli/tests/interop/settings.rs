//! Settings change while clients write and verify: no request may fail. Also the contents of status and log.

use std::thread;
use std::time::Duration;

use flaz_nbd::Client;
use rustix::process::Signal;

use crate::support::data::mixed_data;
use crate::support::{Cache, CacheSpec, Program, Scratch, Server, assert_same_content, need};

const TOOLS: &[(&str, &str)] = &[("fio", "fio"), ("nbdcopy", "libnbd-bin")];
const ORIGIN_BYTES: u64 = 64 << 20;
/// Long enough for some requests with each setting.
const PAUSE: Duration = Duration::from_millis(150);
/// The settings, applied in turn while the load runs.
const CHANGES: [&str; 6] = [
    "mode=write-around",
    "codec=zstd:1 policy=fifo",
    "mode=write-through",
    "mode=pass-through codec=none",
    "mode=write-through policy=second-touch sequential-cutoff=256KiB",
    "codec=lz4 policy=s3-fifo sequential-cutoff=0",
];

#[test]
fn changes_under_load() {
    if !need::tools(TOOLS) {
        return;
    }
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
    let cache = Cache::create(
        &scratch,
        &origin,
        &CacheSpec {
            size: 32 << 20,
            region: 512 << 10,
            shards: 6,
            ..CacheSpec::default()
        },
    );
    // Requests of each connection go to the shards of other threads.
    let server = Server::start(&scratch, &cache, "--threads 3");
    assert_eq!(server.live("/daemon/threads"), 3);
    let load = Program::new("fio")
        .words("--name=load --ioengine=nbd --iodepth=16 --rw=randrw --bssplit=4k/80:32k/20 --blockalign=4k")
        .words("--verify=crc32c --verify_fatal=1 --verify_state_save=0 --verify_backlog=128")
        .words("--buffer_compress_percentage=60 --refill_buffers --size=64m --time_based --runtime=4 --end_fsync=1 --randseed=61")
        .arg(format!("--uri={}", server.uri()));
    let changed = thread::scope(|scope| {
        let running = scope.spawn(|| load.ok());
        let mut changed = 0;
        while !running.is_finished() {
            server.set(CHANGES[changed % CHANGES.len()]);
            changed += 1;
            thread::sleep(PAUSE);
        }
        changed
    });
    assert!(
        changed >= CHANGES.len(),
        "only {changed} changes while the load ran"
    );
    let copy = scratch.image("copy.img");
    Program::new("nbdcopy")
        .words("--connections=4 --")
        .arg(server.uri())
        .arg(&copy)
        .ok();
    assert_same_content(&copy, &origin);
    assert_eq!(server.live("/errors/checksum_failures"), 0);
    server.stop();
    cache.check();
}

#[test]
fn a_wrong_setting_changes_nothing() {
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    let server = Server::start(&scratch, &cache, "");
    let before = server.status()["settings"].clone();
    let error = Program::flaz()
        .words("set mode=write-around codec=lz77 --control")
        .arg(server.control())
        .fails();
    assert!(error.contains("lz77"), "{error}");
    assert_eq!(server.status()["settings"], before);
    server.stop();
}

#[test]
fn emulation_is_logged_as_a_warning() {
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    let server = Server::start(&scratch, &cache, "");
    assert!(!server.log().contains("EMULATION"), "nothing is emulated");
    server.stop();
    let server = Server::start(&scratch, &cache, "--emulate-origin hdd --emulate-cache ssd");
    let log = server.log();
    for device in ["origin", "cache device"] {
        let loud = log.lines().any(|line| {
            line.contains("WARN") && line.contains(&format!("EMULATION: the {device} is SLOWED DOWN"))
        });
        assert!(loud, "the log does not say it of the {device}:\n{log}");
    }
    let status = server.status();
    assert_eq!(status["health"]["level"], "warning", "{status:#}");
    let warnings = status["warnings"].as_array().map_or(0, Vec::len);
    assert_eq!(warnings, 2, "{status:#}");
    server.stop();
}

/// All of it is in one of two shards: the other one never writes anything back.
#[test]
fn dirty_data_is_reported_until_it_is_flushed() {
    const BYTES: usize = 64 << 10;
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    let server = Server::start(&scratch, &cache, "--mode write-back");
    let told = || {
        let status = server.status();
        let told = &status["live"]["write_back"];
        let dirty = told["dirty_bytes"].as_u64();
        assert_eq!(status["may_be_dirty"], dirty != Some(0), "{status:#}");
        // At most a moment old, and not from the start of the machine.
        let age_s = told["dirty_s"].as_f64().expect("a number");
        let lifetime_s = status["live"]["daemon"]["uptime_s"].as_f64().expect("a number");
        assert!(
            age_s <= lifetime_s && (dirty != Some(0) || age_s == 0.0),
            "{status:#}"
        );
        (dirty, told["clean_s"].as_f64())
    };
    assert_eq!(told(), (Some(0), None), "nothing was written");
    let mut client = Client::connect(server.socket()).expect("connects");
    // Writeback leaves a block alone for two seconds: a client that is delayed that long writes it again.
    let mut dirty = |data: &[u8]| {
        let mut tries = (0..20).map(|_| {
            client.write(0, data).expect("writes");
            told()
        });
        let found = tries.find(|(bytes, _)| *bytes == Some(BYTES as u64));
        found.expect("what was written is dirty").1
    };
    dirty(&mixed_data(BYTES, 62));
    server.flush();
    assert_eq!(told(), (Some(0), Some(0.0)), "all of it was written back");
    let data = mixed_data(BYTES, 63);
    let seconds = dirty(&data).expect("some was cleaned before");
    assert!(seconds > 0.0, "{seconds}");
    server.flush();
    assert_eq!(server.live("/write_back/dirty_bytes"), 0);
    let found = std::fs::read(&origin).expect("reads");
    assert!(found[..BYTES] == data, "the origin lacks what was flushed");
    server.stop();
    cache.check();
}

#[test]
fn a_status_that_finds_no_daemon_says_who_has_the_cache() {
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    // The control socket is not at its default path.
    let server = Server::start(&scratch, &cache, "");
    let status = || Program::flaz().words("status").arg(&cache.path);
    let said = status().fails();
    assert!(
        said.contains("is in use by process") && said.contains("--control"),
        "{said}"
    );
    server.end_by(Signal::KILL);
    let said = status().ok();
    assert!(said.contains("not stopped cleanly"), "{said}");
}
