//! A cache much smaller than the origin: every region is reclaimed many times while clients read and write.

use crate::support::{Cache, CacheSpec, Program, Scratch, Server, assert_same_content, need};

const TOOLS: &[(&str, &str)] = &[("fio", "fio"), ("nbdcopy", "libnbd-bin")];
const ORIGIN_BYTES: u64 = 128 << 20;
const CACHE_BYTES: u64 = 16 << 20;

fn mixed_load_over_a_small_cache(policy: &str, seed: u64) {
    if !need::tools(TOOLS) {
        return;
    }
    let scratch = Scratch::new();
    let origin = scratch.filled("origin.img", ORIGIN_BYTES, seed);
    let spec = CacheSpec {
        size: CACHE_BYTES,
        region: 512 << 10,
        ..CacheSpec::default()
    };
    let cache = Cache::create(&scratch, &origin, &spec);
    let server = Server::start(&scratch, &cache, &format!("--policy {policy}"));
    // Skewed reads and writes, each write read back soon after, so that hits, misses and stale copies mix.
    Program::new("fio")
        .words("--name=mixed --ioengine=nbd --iodepth=32 --rw=randrw --rwmixread=60 --bssplit=4k/80:32k/20")
        .words("--blockalign=4k --random_distribution=zipf:1.1 --norandommap=1 --refill_buffers")
        .words("--verify=crc32c --verify_fatal=1 --verify_state_save=0 --verify_backlog=256")
        .words("--buffer_compress_percentage=60")
        .words("--numjobs=2 --size=64m --offset_increment=64m --io_size=96m --end_fsync=1 --group_reporting")
        .arg(format!("--randseed={seed}"))
        .arg(format!("--uri={}", server.uri()))
        .ok();
    let copy = scratch.image("copy.img");
    Program::new("nbdcopy")
        .words("--connections=4")
        .arg(server.uri())
        .arg(&copy)
        .ok();
    assert_same_content(&copy, &origin);
    let regions = CACHE_BYTES / spec.region;
    let reclaimed = server.live("/reclaim/regions");
    assert!(
        reclaimed > regions,
        "only {reclaimed} regions were reclaimed of {regions}: the test tests nothing"
    );
    assert!(
        server.live("/lookups/hits") > 0,
        "no hits: the test tests nothing"
    );
    assert_eq!(server.live("/errors/checksum_failures"), 0);
    // Clients at a depth of 32, never above the limit.
    assert!(server.live("/queues/0/depth_peak") >= 8, "{policy}: requests");
    for queue in 0..3 {
        let of = |what: &str| server.live(&format!("/queues/{queue}/{what}"));
        assert!(
            (1..=of("depth_max")).contains(&of("depth_peak")),
            "{policy}: queue {queue}"
        );
    }
    let pooled = server.memory("pooled");
    assert!(pooled >= 64 << 10, "{policy}: {pooled} bytes");
    // Random data of the origin is stored raw, with a header; written data compresses.
    let (cached, fragments) = (
        server.live("/space/cached_bytes"),
        server.live("/space/fragment_bytes"),
    );
    assert!(
        (cached / 10..cached * 101 / 100).contains(&fragments),
        "{policy}: {fragments} bytes of fragments for {cached}"
    );
    let ghost_hits = server.live("/reclaim/ghost_hits");
    assert_eq!(
        ghost_hits > 0,
        policy != "fifo",
        "{policy}: {ghost_hits} ghost hits"
    );
    server.stop();
    cache.check();
}

#[test]
fn s3_fifo() {
    mixed_load_over_a_small_cache("s3-fifo", 41);
}

#[test]
fn plain_fifo() {
    mixed_load_over_a_small_cache("fifo", 42);
}
