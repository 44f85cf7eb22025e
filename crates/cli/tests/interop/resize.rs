//! A cache grows and shrinks while clients write and verify: no request fails, and no data is lost.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::load::{CLIENTS, Load, Stopped};
use crate::support::{Cache, CacheSpec, Program, Scratch, ServeMode, Server};

const ORIGIN_BYTES: u64 = 64 << 20;
const CACHE_BYTES: u64 = 12 << 20;
/// The sizes that the cache gets in turn, in MiB: up, down to about the least, and up again.
const SIZES: [u64; 5] = [20, 7, 32, 16, 6];
/// Writes in each size.
const WRITES: u64 = 300;
const WAIT_MAX: Duration = Duration::from_secs(60);

fn resize(server: &Server, mib: u64) -> Value {
    let text = Program::flaz()
        .words(&format!("resize --json --size {mib}M --control"))
        .arg(server.control())
        .ok();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn resized_under_load(mode: ServeMode) {
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
    let spec = CacheSpec {
        size: CACHE_BYTES,
        region: 256 << 10,
        ..CacheSpec::default()
    };
    let cache = Cache::create(&scratch, &origin, &spec);
    let server = Server::start(&scratch, &cache, &format!("{} --threads 2", mode.words()));
    let load = &Load::new(ORIGIN_BYTES);
    let socket = server.socket();
    thread::scope(|scope| {
        let _stopped = Stopped(load);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|seed| scope.spawn(move || load.run_client(socket, seed)))
            .collect();
        for mib in SIZES {
            let goal = load.acknowledged() + WRITES;
            let give_up = Instant::now() + WAIT_MAX;
            while load.acknowledged() < goal && clients.iter().all(|client| !client.is_finished()) {
                assert!(Instant::now() < give_up, "no {WRITES} writes in {WAIT_MAX:?}");
                thread::sleep(Duration::from_millis(5));
            }
            let report = resize(&server, mib);
            assert_eq!(report["size_bytes"], mib << 20, "{report}");
            let status = server.status();
            assert_eq!(status["cache"]["size_bytes"], mib << 20);
            assert_eq!(status["cache"]["regions"], report["regions"]);
            let file = std::fs::metadata(&cache.path).expect("it is there");
            assert_eq!(file.len(), mib << 20, "the file has the size of the cache");
        }
        load.stop();
        for client in clients {
            let ended = client.join().expect("no panic");
            ended.unwrap_or_else(|violation| panic!("{}", violation.0));
        }
    });
    let right = |outcome: Result<(), crate::support::ledger::Violation>| {
        outcome.unwrap_or_else(|violation| panic!("{}", violation.0));
    };
    right(load.verify(server.socket(), 1.0));
    assert_eq!(server.live("/errors/checksum_failures"), 0);
    server.stop();
    cache.check();
    // A warm start with the new size.
    let server = Server::start(&scratch, &cache, mode.words());
    assert!(server.started_warm());
    right(load.verify(server.socket(), 1.0));
    server.flush();
    server.stop();
    cache.check();
    right(load.compare_origin(&origin));
}

#[test]
fn a_cache_is_resized_under_load() {
    resized_under_load(ServeMode::WriteThrough);
}

#[test]
fn a_write_back_cache_is_resized_under_load() {
    resized_under_load(ServeMode::WriteBack);
}
