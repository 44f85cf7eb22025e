//! Whole images copied in and out over many connections, in every mode and codec.

use crate::support::{Cache, CacheSpec, Program, Scratch, Server, assert_same_content, need};

const TOOLS: &[(&str, &str)] = &[("nbdcopy", "libnbd-bin")];
const IMAGE_BYTES: u64 = 40 << 20;

/// Copies an image in, checks the origin, and copies it out twice; returns the server for further checks.
fn copy_in_and_out(codec: &'static str, mode: &str, seed: u64) {
    if !need::tools(TOOLS) {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.filled("image.img", IMAGE_BYTES, seed);
    let origin = scratch.sparse("origin.img", IMAGE_BYTES);
    let cache = Cache::create(
        &scratch,
        &origin,
        &CacheSpec {
            codec,
            ..CacheSpec::default()
        },
    );
    let server = Server::start(&scratch, &cache, &format!("--mode {mode}"));
    let copy = || Program::new("nbdcopy").words("--connections=4 --requests=32 --flush");
    copy().arg(&image).arg(server.uri()).ok();
    if mode == "write-back" {
        server.flush();
    }
    assert_same_content(&origin, &image);
    for pass in ["first", "second"] {
        let out = scratch.image(pass);
        copy().arg(server.uri()).arg(&out).ok();
        assert_same_content(&out, &image);
    }
    match mode {
        // Every block was cached by its write.
        "write-through" | "write-back" => assert!(
            server.live("/lookups/hits") > 0,
            "no hits after reading what was written"
        ),
        // The first pass cached blocks.
        "write-around" => assert!(server.live("/lookups/hits") > 0, "no hits after reading twice"),
        _ => assert_eq!(
            server.live("/lookups/hits"),
            0,
            "pass-through must not use the cache"
        ),
    }
    assert_eq!(server.live("/errors/checksum_failures"), 0);
    server.stop();
    cache.check();
}

#[test]
fn lz4_write_through() {
    copy_in_and_out("lz4", "write-through", 1);
}

#[test]
fn zstd_write_through() {
    copy_in_and_out("zstd:1", "write-through", 2);
}

#[test]
fn zlib_write_through() {
    copy_in_and_out("zlib", "write-through", 3);
}

#[test]
fn lzo_write_through() {
    copy_in_and_out("lzo", "write-through", 4);
}

#[test]
fn no_codec_write_through() {
    copy_in_and_out("none", "write-through", 5);
}

#[test]
fn write_back() {
    copy_in_and_out("lz4", "write-back", 7);
}

#[test]
fn write_around() {
    copy_in_and_out("lz4", "write-around", 6);
}

#[test]
fn pass_through() {
    copy_in_and_out("lz4", "pass-through", 7);
}

/// A copy soon exceeds the cut-off: what it reads from there on is not cached.
#[test]
fn a_copy_bypasses_the_cache() {
    if !need::tools(TOOLS) {
        return;
    }
    let scratch = Scratch::new();
    let origin = scratch.filled("origin.img", IMAGE_BYTES, 8);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    let server = Server::start(&scratch, &cache, "--sequential-cutoff 1MiB");
    let out = scratch.image("copy.img");
    Program::new("nbdcopy")
        .words("--connections=1 --requests=4")
        .arg(server.uri())
        .arg(&out)
        .ok();
    assert_same_content(&out, &origin);
    let blocks = IMAGE_BYTES / 4096;
    let refused = server.live("/admission/refused_blocks/sequential");
    let cached = server.live("/space/cached_blocks");
    assert!(
        refused > blocks * 9 / 10 && cached + refused <= blocks,
        "{refused} blocks of {blocks} were refused, {cached} are cached"
    );
    server.stop();
    cache.check();
}
