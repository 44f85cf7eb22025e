//! The example at the end of `docs/format.md`: its bytes are those of a cache with the operations described there.

use std::path::Path;

use flaz_engine::format::geometry::GeometryOptions;
use flaz_engine::policy::PolicyKind;
use flaz_engine::volume::Volume;
use flaz_sim::SimDisk;

use crate::whole_cache::rig::{BLOCK, Rig, plain_disk, settings};

const CACHE_LEN: u64 = 4 << 20;

/// An origin of 16 MiB; block 0 is filled with `aa`, block 1 with a word, block 0 trimmed, block 258 written.
fn make() -> SimDisk {
    let rig = Rig::new(1, plain_disk(16 << 20), plain_disk(CACHE_LEN));
    let wish = GeometryOptions {
        shard_count: Some(1),
        ..GeometryOptions::default()
    };
    rig.create(16 << 20, wish);
    rig.sim.block_on(async {
        let open = rig.opened(settings("lz4", PolicyKind::S3Fifo)).await;
        open.write(0, &[0xaa; 4096]).await;
        open.write(BLOCK, &b"flaz".repeat(1024)).await;
        open.stored().await;
        open.volume.trim(0, BLOCK, false).await.expect("trims");
        open.stored().await;
        open.write(258 * BLOCK, &b"0123456789abcdef".repeat(256)).await;
        open.stored().await;
        open.stop().await.expect("stops in order");
    });
    rig.disk
}

/// Lines such as `030000  464c5a58   what it is`: offset and bytes.
fn lines(text: &str) -> Vec<(u64, Vec<u8>)> {
    let line = |line: &str| {
        let (offset, rest) = line.split_once("  ")?;
        let offset = (offset.len() == 6).then(|| u64::from_str_radix(offset, 16).ok())??;
        let digits: String = rest.split("   ").next()?.split_whitespace().collect();
        let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        Some((offset, (0..digits.len()).step_by(2).map_while(byte).collect()))
    };
    text.lines().filter_map(line).collect()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the page is a file of the repository")]
fn the_example_of_the_format_page_is_right() {
    let disk = make();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/format.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let (_, example) = page.split_once("## Example").expect("it has an example");
    let lines = lines(example);
    assert!(lines.len() > 30, "{} lines with bytes", lines.len());
    for (offset, bytes) in lines {
        let found = disk.peek(offset, bytes.len());
        assert_eq!(bytes, found, "at {offset:06x}: {found:02x?}");
    }
}
