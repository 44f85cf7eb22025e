//! `flaz advise` about a served cache, whose index is in pages.

use flaz_nbd::Client;
use flaz_random::Random;
use serde_json::Value;

use crate::support::{Cache, CacheSpec, Program, Scratch, Server};

const BLOCK_BYTES: usize = 4096;
const ORIGIN_BLOCKS: usize = 16_384;
/// Half of the blocks get most of the reads.
const HOT_BLOCKS: usize = ORIGIN_BLOCKS / 2;
const READS: usize = 40_000;
/// Not enough for the pages of all cached blocks.
const INDEX_MEMORY: u64 = 68 << 10;

/// Reads random blocks, four of five times one of the hot ones, and compares them with the image. Blocks in turn would all be hits in one
/// cache and all misses in one that is little smaller, which no estimate could tell from each other.
fn read_all(server: &Server, image: &[u8]) {
    let mut client = Client::connect(server.socket()).expect("connects");
    let mut out = vec![0; BLOCK_BYTES];
    let mut random = Random::new(1);
    for read in 0..READS {
        let blocks = if read % 5 == 4 { ORIGIN_BLOCKS } else { HOT_BLOCKS };
        let block = random.below(blocks as u64) as usize;
        let start = block * BLOCK_BYTES;
        client.read(start as u64, &mut out).expect("reads");
        assert!(
            out == image[start..][..BLOCK_BYTES],
            "block {block} in read {read}"
        );
    }
}

/// `flaz advise --json`.
fn advice(server: &Server) -> Value {
    let text = Program::flaz()
        .words("advise --json --control")
        .arg(server.control())
        .ok();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

#[test]
fn a_cache_with_its_index_in_pages_says_what_more_space_is_worth() {
    let scratch = Scratch::new();
    let origin = scratch.filled("origin.img", (ORIGIN_BLOCKS * BLOCK_BYTES) as u64, 23);
    let image = std::fs::read(&origin).expect("it can be read");
    let spec = CacheSpec {
        size: 24 << 20,
        index_memory: Some(INDEX_MEMORY),
        ..CacheSpec::default()
    };
    let cache = Cache::create(&scratch, &origin, &spec);
    let server = Server::start(&scratch, &cache, "");
    let before = advice(&server);
    assert_eq!(before["enough"], false, "{before:#}");
    read_all(&server, &image);
    let after = advice(&server);
    assert_eq!(after["enough"], true, "{after:#}");
    let ratio = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {after:#}"));
    let sizes = after["sizes"].as_array().expect("an array");
    let estimates: Vec<f64> = sizes.iter().map(|of| ratio(&of["hit_ratio"]["value"])).collect();
    assert!(estimates.is_sorted() && estimates.len() == 4, "{estimates:?}");
    assert!(
        estimates[3] > estimates[0] + 0.1,
        "the cache is smaller than the data: {estimates:?}"
    );
    let (hits, misses) = (server.live("/lookups/hits"), server.live("/lookups/misses"));
    let measured = hits as f64 / (hits + misses) as f64;
    let at_present = ratio(&after["measured"]["hit_ratio"]);
    assert!((at_present - measured).abs() < 0.001, "{at_present}, {measured}");
    assert!(
        (estimates[1] - measured).abs() < 0.001,
        "{estimates:?}, {measured}"
    );
    let pages = |name| server.live(&format!("/memory/index_pages/{name}"));
    assert_eq!(pages("bound_bytes"), INDEX_MEMORY);
    assert!(pages("pages_in_memory") < pages("pages") && pages("reads") > 0);
    server.stop();
    cache.check();
    // The pages of the last run are used again.
    let server = Server::start(&scratch, &cache, "");
    assert!(server.started_warm());
    read_all(&server, &image);
    server.stop();
}
