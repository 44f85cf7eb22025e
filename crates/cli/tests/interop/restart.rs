//! Ends of all kinds and the start that follows: warm after a clean stop, and otherwise warm except for areas being
//! written.

use std::os::unix::fs::FileExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use flaz_random::Random;
use rustix::process::Signal;

use crate::support::{Cache, CacheSpec, Program, Scratch, Server, assert_same_content, need};

const TOOLS: &[(&str, &str)] = &[("nbdcopy", "libnbd-bin")];
const IMAGE_BYTES: u64 = 32 << 20;

fn copy_in(server: &Server, image: &Path) {
    Program::new("nbdcopy")
        .words("--flush")
        .arg(image)
        .arg(server.uri())
        .ok();
}

fn assert_reads_as(scratch: &Scratch, server: &Server, image: &Path) {
    let out = scratch.image("out.img");
    Program::new("nbdcopy").arg(server.uri()).arg(&out).ok();
    assert_same_content(&out, image);
}

/// Serves, writes an image, ends by `end`, serves again: returns the second server after reading all data through it.
fn restarted(scratch: &Scratch, end: impl FnOnce(Server)) -> Option<(Cache, Server)> {
    if !need::tools(TOOLS) {
        return None;
    }
    let image = scratch.filled("image.img", IMAGE_BYTES, 51);
    let origin = scratch.sparse("origin.img", IMAGE_BYTES);
    let cache = Cache::create(scratch, &origin, &CacheSpec::default());
    let server = Server::start(scratch, &cache, "");
    copy_in(&server, &image);
    assert_reads_as(scratch, &server, &image);
    end(server);
    assert_same_content(&origin, &image);
    let server = Server::start(scratch, &cache, "");
    assert_reads_as(scratch, &server, &image);
    Some((cache, server))
}

#[test]
fn warm_after_flaz_stop() {
    let scratch = Scratch::new();
    let Some((cache, server)) = restarted(&scratch, Server::stop) else {
        return;
    };
    assert!(server.started_warm());
    let (hits, misses) = (
        server.live("/lookups/hit_blocks"),
        server.live("/lookups/miss_blocks"),
    );
    assert!(
        hits > 9 * misses,
        "the cache holds all of the image, and still {hits} hits, {misses} misses"
    );
    server.stop();
    cache.check();
}

#[test]
fn warm_after_sigterm_and_sigint() {
    for signal in [Signal::TERM, Signal::INT] {
        let scratch = Scratch::new();
        let end = |server: Server| assert!(server.end_by(signal).success(), "{signal:?} is a clean stop");
        let Some((cache, server)) = restarted(&scratch, end) else {
            return;
        };
        assert!(server.started_warm(), "after {signal:?}");
        assert!(server.live("/lookups/hits") > 0, "after {signal:?}");
        server.stop();
        cache.check();
    }
}

#[test]
fn reclaim_survives_a_kill_with_correct_data() {
    let scratch = Scratch::new();
    let end = |server: Server| assert!(!server.end_by(Signal::KILL).success());
    let Some((cache, server)) = restarted(&scratch, end) else {
        return;
    };
    let log = server.log();
    assert!(
        log.contains("recovered from the log"),
        "the log must say what happened:\n{log}"
    );
    // It fills again like a new cache.
    let before = server.live("/lookups/hits");
    assert_reads_as(&scratch, &server, &scratch.image("image.img"));
    assert!(
        server.live("/lookups/hits") > before,
        "nothing was cached after a kill"
    );
    server.stop();
    cache.check();
}

#[test]
fn warm_after_a_kill() {
    let scratch = Scratch::new();
    let Some((cache, server)) = restarted(&scratch, Server::stop) else {
        return;
    };
    // Nothing was written since the clean stop, so the crash costs nothing.
    assert!(!server.end_by(Signal::KILL).success());
    let server = Server::start(&scratch, &cache, "");
    assert!(server.started_warm(), "{}", server.log());
    assert_reads_as(&scratch, &server, &scratch.image("image.img"));
    let (hits, misses) = (
        server.live("/lookups/hit_blocks"),
        server.live("/lookups/miss_blocks"),
    );
    assert!(
        hits > 9 * misses,
        "{hits} hits, {misses} misses\n{}",
        server.log()
    );
    server.stop();
    cache.check();
}

/// Number of kills of the server under load in one test.
const KILLS: u64 = 20;

#[test]
fn acknowledged_writes_survive_kills_under_load() {
    survive_kills("write-through");
}

#[test]
fn acknowledged_writes_survive_kills_under_load_in_write_back() {
    survive_kills("write-back");
}

fn survive_kills(mode: &str) {
    if !(need::tools(&[("nbdsh", "python3-libnbd")]) && need::tools(TOOLS)) {
        return;
    }
    let scratch = Scratch::new();
    let origin = scratch.filled("origin.img", 8 << 20, 52);
    // Small enough for the log to wrap, so that reclaim is killed as well.
    let spec = CacheSpec {
        size: 6 << 20,
        region: 256 << 10,
        ..CacheSpec::default()
    };
    let cache = Cache::create(&scratch, &origin, &spec);
    let mut numbers = Random::new(53);
    let mut acknowledged = 0;
    let options = format!("--mode {mode}");
    let client = |server: &Server, round: u64| {
        Program::new("nbdsh")
            .words("-c -")
            .env("FLAZ_URI", server.uri())
            .env("FLAZ_ORIGIN", &origin)
            .env("FLAZ_STATE", scratch.image("state"))
            .env("FLAZ_SEED", (1000 + round).to_string())
            .input(include_str!("nbdsh/killed.py"))
    };
    for kill in 0..KILLS {
        let server = Server::start(&scratch, &cache, &options);
        let ready = scratch.image(&format!("ready-{kill}"));
        let load = client(&server, kill).env("FLAZ_READY", &ready);
        let printed = thread::scope(|scope| {
            let load = scope.spawn(|| load.ok());
            while !ready.exists() && !load.is_finished() {
                thread::sleep(Duration::from_millis(2));
            }
            // At any moment of the load; every run tries 20 others.
            thread::sleep(Duration::from_micros(numbers.bits() % 150_000));
            server.end_by(Signal::KILL);
            load.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        acknowledged += printed
            .split(' ')
            .next()
            .and_then(|count| count.parse::<u64>().ok())
            .unwrap_or(0);
    }
    assert!(
        acknowledged > 10 * KILLS,
        "{mode}: only {acknowledged} writes were acknowledged before {KILLS} kills"
    );
    // Each round checks the result of the previous kill, but nothing has checked that of the last one. The result of a
    // clean stop, with dirty data, is checked in the same way.
    for _ in 0..2 {
        let server = Server::start(&scratch, &cache, &options);
        client(&server, KILLS).env("FLAZ_VERIFY_ONLY", "1").ok();
        server.stop();
    }
    let server = Server::start(&scratch, &cache, &options);
    server.flush();
    assert_reads_as(&scratch, &server, &origin);
    server.stop();
    cache.check();
}

#[test]
fn an_idle_client_does_not_delay_a_stop() {
    let scratch = Scratch::new();
    let cache = Cache::create(
        &scratch,
        &scratch.sparse("origin.img", IMAGE_BYTES),
        &CacheSpec::default(),
    );
    let server = Server::start(&scratch, &cache, "");
    // A client that has not sent anything yet.
    let idle = UnixStream::connect(server.socket()).expect("the server accepts connections");
    server.stop();
    drop(idle);
}

#[test]
fn the_sockets_are_private_and_go_with_the_server() {
    let scratch = Scratch::new();
    let cache = Cache::create(
        &scratch,
        &scratch.sparse("origin.img", IMAGE_BYTES),
        &CacheSpec::default(),
    );
    let server = Server::start(&scratch, &cache, "");
    let sockets = [server.socket().to_owned(), server.control().to_owned()];
    for socket in &sockets {
        let mode = std::fs::metadata(socket)
            .expect("the socket exists")
            .permissions()
            .mode()
            & 0o777;
        assert_eq!(mode, 0o600, "{}", socket.display());
    }
    server.stop();
    for socket in &sockets {
        assert!(!socket.exists(), "{} is left over", socket.display());
    }
    // After a kill the sockets are left over, and the next server replaces them.
    let server = Server::start(&scratch, &cache, "");
    server.end_by(Signal::KILL);
    let server = Server::start(&scratch, &cache, "");
    server.stop();
}

/// As with the names in /dev/disk, after the kernel has numbered its disks anew.
#[test]
fn an_origin_is_found_by_the_link_that_was_given() {
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", IMAGE_BYTES);
    let link = scratch.place("by-id");
    std::os::unix::fs::symlink(&origin, &link).expect("links");
    let cache = Cache::create(&scratch, &link, &CacheSpec::default());
    Server::start(&scratch, &cache, "").stop();
    let moved = scratch.place("moved.img");
    std::fs::rename(&origin, &moved).expect("renames");
    std::fs::remove_file(&link).expect("removes");
    std::os::unix::fs::symlink(&moved, &link).expect("links");
    let server = Server::start(&scratch, &cache, "");
    assert!(server.started_warm());
    server.stop();
}

/// The effect of a mount without the cache on an origin: a counter at its start changes.
#[test]
fn an_origin_changed_without_the_cache_is_refused() {
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", IMAGE_BYTES);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    Server::start(&scratch, &cache, "").stop();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&origin)
        .expect("opens");
    file.write_all_at(b"mounted", 1024 + 48).expect("writes");
    drop(file);
    let serve = || {
        Program::flaz()
            .arg("serve")
            .arg(&cache.path)
            .arg("--state-dir")
            .arg(scratch.state_dir())
            .arg("--nbd")
            .arg(format!("unix:{}", scratch.place("refused.sock").display()))
            .arg("--control")
            .arg(scratch.place("refused-control.sock"))
            .limit_s(30)
    };
    let said = serve().fails();
    assert!(
        said.contains("has been changed since") && said.contains("--discard-cache"),
        "{said}"
    );
    // Another start changes nothing, and the named way out works.
    serve().fails();
    let server = Server::start(&scratch, &cache, "--discard-cache");
    assert!(!server.started_warm());
    server.stop();
    let server = Server::start(&scratch, &cache, "");
    assert!(server.started_warm());
    server.stop();
    cache.check();
}

#[test]
fn a_second_server_of_the_same_cache_is_refused() {
    let scratch = Scratch::new();
    let cache = Cache::create(
        &scratch,
        &scratch.sparse("origin.img", IMAGE_BYTES),
        &CacheSpec::default(),
    );
    let server = Server::start(&scratch, &cache, "");
    let other = scratch.place("other.sock");
    Program::flaz()
        .arg("serve")
        .arg(&cache.path)
        .arg("--state-dir")
        .arg(scratch.state_dir())
        .arg("--nbd")
        .arg(format!("unix:{}", other.display()))
        .arg("--control")
        .arg(scratch.place("other-control.sock"))
        .limit_s(30)
        .fails();
    server.status();
    server.stop();
}

#[test]
fn systemd_is_notified_of_ready_and_stopping() {
    let scratch = Scratch::new();
    let cache = Cache::create(
        &scratch,
        &scratch.sparse("origin.img", IMAGE_BYTES),
        &CacheSpec::default(),
    );
    let path = scratch.place("notify.sock");
    let notify = UnixDatagram::bind(&path).expect("a datagram socket can be bound");
    notify
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("a timeout can be set");
    let server = Server::start_with(&scratch, &cache, "", &[("NOTIFY_SOCKET", &path)]);
    wait_for_message(&notify, "READY=1");
    server.stop();
    wait_for_message(&notify, "STOPPING=1");
}

fn wait_for_message(notify: &UnixDatagram, wanted: &str) {
    let mut seen = String::new();
    let mut bytes = [0; 4096];
    while !seen.lines().any(|line| line == wanted) {
        let len = notify
            .recv(&mut bytes)
            .unwrap_or_else(|error| panic!("no {wanted} ({error}), only: {seen}"));
        seen.push_str(&String::from_utf8_lossy(&bytes[..len]));
        seen.push('\n');
    }
}
