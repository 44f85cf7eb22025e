//! The server's description of itself, read by `nbdinfo`.

use serde_json::Value;

use crate::support::{Cache, CacheSpec, Program, Scratch, Server, need};

const TOOLS: &[(&str, &str)] = &[("nbdinfo", "libnbd-bin"), ("nbdcopy", "libnbd-bin")];
const ORIGIN_BYTES: u64 = 32 << 20;
/// Bits of `base:allocation`.
const STATE_ZERO: u64 = 2;

fn json(program: Program) -> Value {
    let text = program.ok();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

#[test]
fn capabilities_and_limits_are_announced() {
    if !need::tools(TOOLS) {
        return;
    }
    let scratch = Scratch::new();
    let cache = Cache::create(
        &scratch,
        &scratch.sparse("origin.img", ORIGIN_BYTES),
        &CacheSpec::default(),
    );
    let server = Server::start(&scratch, &cache, "");
    let info = json(Program::new("nbdinfo").arg("--json").arg(server.uri()));
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], ORIGIN_BYTES);
    assert_eq!(export["is_read_only"], false);
    for can in [
        "can_cache",
        "can_flush",
        "can_fua",
        "can_multi_conn",
        "can_trim",
        "can_zero",
        "can_df",
    ] {
        assert_eq!(export[can], true, "{can} in {export:#}");
    }
    assert_eq!(export["block_size_minimum"], 1, "{export:#}");
    assert_eq!(export["block_size_preferred"], 4096, "{export:#}");
    assert_eq!(export["block_size_maximum"], 32 << 20, "{export:#}");
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
    server.stop();
}

#[test]
fn the_export_is_listed() {
    if !need::tools(TOOLS) {
        return;
    }
    let scratch = Scratch::new();
    let cache = Cache::create(
        &scratch,
        &scratch.sparse("origin.img", ORIGIN_BYTES),
        &CacheSpec::default(),
    );
    let server = Server::start(&scratch, &cache, "");
    let list = json(Program::new("nbdinfo").words("--list --json").arg(server.uri()));
    let exports = list["exports"].as_array().expect("a list of exports");
    assert_eq!(exports.len(), 1, "{list:#}");
    assert_eq!(exports[0]["export-size"], ORIGIN_BYTES);
    server.stop();
}

#[test]
fn an_unknown_export_is_refused_and_the_server_lives() {
    if !need::tools(TOOLS) {
        return;
    }
    let scratch = Scratch::new();
    let cache = Cache::create(
        &scratch,
        &scratch.sparse("origin.img", ORIGIN_BYTES),
        &CacheSpec::default(),
    );
    let server = Server::start(&scratch, &cache, "");
    let other = format!("nbd+unix:///no-such-export?socket={}", server.socket().display());
    Program::new("nbdinfo").arg(other).fails();
    Program::new("nbdinfo").arg("--size").arg(server.uri()).ok();
    server.stop();
}

#[test]
fn the_map_covers_the_device_and_calls_no_data_zero() {
    if !need::tools(TOOLS) {
        return;
    }
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    let server = Server::start(&scratch, &cache, "");
    let data_bytes = 3 << 20;
    let data = scratch.image("data.img");
    // All random: every block of it is data.
    std::fs::write(&data, (0..data_bytes / 8).fold(Vec::new(), random_words))
        .expect("the data can be written");
    Program::new("nbdcopy")
        .words("--flush --")
        .arg(&data)
        .arg(server.uri())
        .ok();

    let map = json(
        Program::new("nbdinfo")
            .words("--map=base:allocation --json")
            .arg(server.uri()),
    );
    let mut end = 0;
    for extent in map.as_array().expect("a list of extents") {
        let field = |name: &str| {
            extent[name]
                .as_u64()
                .unwrap_or_else(|| panic!("no {name} in {extent}"))
        };
        assert_eq!(field("offset"), end, "a gap or an overlap in {map:#}");
        assert!(field("length") > 0, "an empty extent in {map:#}");
        if end < data_bytes {
            assert_eq!(field("type") & STATE_ZERO, 0, "data is called zero in {map:#}");
        }
        end += field("length");
    }
    assert_eq!(end, ORIGIN_BYTES, "the map does not end with the device");
    server.stop();
}

fn random_words(mut bytes: Vec<u8>, number: u64) -> Vec<u8> {
    let word = flaz_random::Random::new(number).bits();
    bytes.extend_from_slice(&word.to_le_bytes());
    bytes
}
