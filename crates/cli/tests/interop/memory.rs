//! Resident memory: a burst of clients takes memory, and a quiet minute later it is back, and explained.
//!
//! Waits are generous; no test depends on how fast the machine is.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Cache, CacheSpec, Program, Scratch, Server, need};

pub const TOOLS: &[(&str, &str)] = &[("fio", "fio")];
const ORIGIN_BYTES: u64 = 256 << 20;
/// A burst: four clients, each with 16 MiB in flight.
const JOBS: u64 = 4;
/// What a burst takes at least: else the test tests nothing.
const BURST_BYTES_MIN: u64 = 16 << 20;
/// Memory that a burst may leave: the index and the tables of what it cached, histograms, and the ends of heaps.
const LEFT_BYTES_MAX: u64 = 16 << 20;
/// What no component counts of the heap: strings, queues, futures of rare operations.
const OTHER_BYTES_MAX: u64 = 8 << 20;
/// Difference between the sum and the resident memory of a process that is small.
const SLACK_BYTES: u64 = 4 << 20;
/// Time limit for giving memory back: several times what it takes.
const QUIET_MAX: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_secs(1);

/// Reads and writes of 1 MiB and of 4 KiB.
pub fn burst(server: &Server, mib_a_client: u64) {
    let area = ORIGIN_BYTES / JOBS;
    let load = Program::new("fio")
        .words("--name=burst --ioengine=nbd --rw=randrw --rwmixread=70 --bssplit=4k/60:64k/20:1m/20 --iodepth=16")
        .words("--blockalign=4k --norandommap=1 --buffer_compress_percentage=50 --refill_buffers --group_reporting");
    load.words(&format!(
        "--numjobs={JOBS} --size={area} --offset_increment={area} --io_size={mib_a_client}m"
    ))
    .arg(format!("--uri={}", server.uri()))
    .ok();
}

/// A server of a cache that is a quarter of the origin, which is so slow that `auto` compresses again what stays.
pub fn serve(scratch: &Scratch, options: &str) -> Server {
    let options = &format!("{options} --emulate-origin network-volume");
    let origin = scratch.filled("origin.img", ORIGIN_BYTES, 17);
    let cache = Cache::create(scratch, &origin, &CacheSpec::default());
    Server::start(scratch, &cache, options)
}

fn gives_back_what_a_burst_took(options: &str) {
    if !need::tools(TOOLS) {
        return;
    }
    let scratch = Scratch::new();
    let server = serve(&scratch, options);
    let before = server.live("/memory/resident_bytes");
    burst(&server, 96);
    let after = server.live("/memory/resident_bytes");
    let pooled = server.memory("pooled") + server.memory("requests");
    assert!(
        after >= before + BURST_BYTES_MIN && pooled >= BURST_BYTES_MIN / 2,
        "{before} bytes resident before the burst, {after} after it, {pooled} in buffers: the test tests nothing"
    );
    let give_up = Instant::now() + QUIET_MAX;
    loop {
        let (now, pooled) = (server.live("/memory/resident_bytes"), server.memory("pooled"));
        if now <= before + LEFT_BYTES_MAX && pooled <= 1 << 20 {
            break;
        }
        assert!(
            Instant::now() < give_up,
            "{before} bytes resident before the burst, {after} after it, still {now} later: {:#}",
            server.status()["live"]["memory"]
        );
        thread::sleep(POLL);
    }
    let status = server.status();
    let memory = &status["live"]["memory"];
    let of = |name: &str| memory[name].as_u64().expect("a number");
    let (resident, listed) = (of("resident_bytes"), of("listed_bytes"));
    assert!(
        listed.abs_diff(resident) <= (resident / 10).max(SLACK_BYTES),
        "the uses are not what is resident: {memory:#}"
    );
    // The components know what the allocator has in use.
    assert!(server.memory("other") <= OTHER_BYTES_MAX, "{memory:#}");
    for used in memory["uses"].as_array().expect("a list") {
        let most = used["bytes_max"].as_u64().unwrap_or(u64::MAX);
        assert!(used["bytes"].as_u64().expect("a number") <= most, "{used}");
    }
    server.stop();
}

#[test]
fn write_through_gives_memory_back() {
    gives_back_what_a_burst_took("--mode write-through");
}

#[test]
fn write_back_on_two_threads_gives_memory_back() {
    gives_back_what_a_burst_took("--mode write-back --threads 2");
}
