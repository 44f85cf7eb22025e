//! What a read takes from the cache device, what it stores in the cache, and when.

use flaz_codec::CodecSpec;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::Settings;
use flaz_engine::volume::Volume;
use flaz_sim::{DiskConfig, Rng};

use crate::whole_cache::rig::{BLOCK, Rig, SMALLEST, filled_disk, plain_disk, settings};

const ORIGIN_LEN: u64 = 32 << 20;
const SECTOR: u64 = 512;

/// Every fourth block is incompressible; of each other block, one to four fifths are random.
fn mixed(number: u64, block: &mut [u8; 4096]) {
    Rng::new(number).fill(block);
    if !number.is_multiple_of(4) {
        let len = 800 + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 2400;
        block[len as usize..].fill(0);
    }
}

/// Bytes of the fragment of such a block: a header of 8 bytes, rounded up to a multiple of 8.
fn fragment_bytes(number: u64) -> u64 {
    let mut encoder = flaz_codec::encoder(CodecSpec::default());
    let (mut block, mut out) = ([0; 4096], [0; 4096]);
    mixed(number, &mut block);
    let stored = encoder.compress(&block, &mut out).filter(|&len| len < 4032);
    (8 + stored.unwrap_or(4096) as u64).next_multiple_of(8)
}

/// Read one by one, several at a time, so many that other cores help, and from memory.
#[test]
fn every_block_that_is_restored_is_counted() {
    for cores in [1, 2] {
        let rig = Rig::new(1, filled_disk(ORIGIN_LEN, mixed), plain_disk(48 << 20));
        rig.create(ORIGIN_LEN, SMALLEST);
        rig.sim.set_parallelism(cores);
        rig.sim.block_on(async {
            let open = rig.opened(settings("lz4", PolicyKind::Fifo)).await;
            open.prefetch(0..1000).await;
            for (first, count) in [(0, 1), (8, 8), (64, 64), (999, 1)] {
                let before = open.cache.stats().counts;
                open.read(first * BLOCK, count * BLOCK).await;
                let after = open.cache.stats().counts;
                let restored = after.unpacked_blocks - before.unpacked_blocks;
                assert_eq!(restored, count, "{count} blocks from {first}, {cores} cores");
            }
        });
    }
}

#[test]
fn a_hit_reads_only_the_sectors_of_its_fragment() {
    let rig = Rig::new(1, filled_disk(ORIGIN_LEN, mixed), plain_disk(48 << 20));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig.sim.block_on(async {
        let open = rig.opened(settings("lz4", PolicyKind::Fifo)).await;
        // The last blocks are still in memory; the first are not.
        open.prefetch(0..1000).await;
        let (mut read, mut expected) = (0, 0);
        for number in 0..400 {
            let before = open.cache.stats().counts;
            let mut block = [0; 4096];
            mixed(number, &mut block);
            assert!(open.read(number * BLOCK, BLOCK).await == block, "block {number}");
            let after = open.cache.stats().counts;
            assert_eq!(after.cache_reads - before.cache_reads, 1, "block {number}");
            let bytes = after.cache_read_bytes - before.cache_read_bytes;
            // It starts anywhere in a sector, at a multiple of 8.
            let fragment = fragment_bytes(number);
            let (fewest, most) = (
                fragment.div_ceil(SECTOR),
                (fragment + SECTOR - 8).div_ceil(SECTOR),
            );
            assert!(
                (fewest * SECTOR..=most * SECTOR).contains(&bytes),
                "block {number}: {bytes} bytes read for a fragment of {fragment}"
            );
            read += bytes;
            expected += fragment + SECTOR - 8;
        }
        let off = read as f64 / expected as f64 - 1.0;
        assert!(off.abs() < 0.02, "{read} bytes read, {expected} are the mean");
    });
}

#[test]
fn a_miss_is_answered_first_and_admitted_afterwards() {
    let rig = Rig::new(2, filled_disk(ORIGIN_LEN, mixed), DiskConfig::slow(48 << 20));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig.sim.block_on(async {
        let open = rig.opened(settings("lz4", PolicyKind::Fifo)).await;
        for (first, blocks) in [(0, 1), (100, 8)] {
            let cached = open.cached_blocks();
            open.read(first * BLOCK, blocks * BLOCK).await;
            // There was no await since the reply.
            assert_eq!(open.cached_blocks(), cached, "stored before the answer");
            assert_eq!(open.cache.stats().holdings.admission_queue, 1, "and offered");
            open.stored().await;
            assert_eq!(open.cached_blocks(), cached + blocks);
        }
    });
}

#[test]
fn a_long_sequential_stream_is_not_admitted_and_what_follows_is() {
    let rig = Rig::new(3, filled_disk(ORIGIN_LEN, mixed), plain_disk(48 << 20));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig.sim.block_on(async {
        let with_cutoff = Settings {
            sequential_cutoff: 1 << 20,
            ..settings("lz4", PolicyKind::Fifo)
        };
        let open = rig.opened(with_cutoff).await;
        // Up to the cut-off; the last request is already beyond it.
        let (step, stream, before) = (16, 1024, 256 - 16);
        for first in (0..stream).step_by(step) {
            open.read(first * BLOCK, step as u64 * BLOCK).await;
            open.stored().await;
        }
        let counts = open.cache.stats().counts;
        assert_eq!(counts.refused_sequential, stream - before, "of reads");
        assert_eq!(open.cached_blocks(), before);
        for first in (4096..4096 + stream).step_by(step) {
            open.write(first * BLOCK, &vec![1; step * BLOCK as usize]).await;
        }
        let written = open.cache.stats().counts.refused_sequential - counts.refused_sequential;
        assert_eq!(written, stream - before, "of writes");
        assert_eq!(open.cached_blocks(), 2 * before);
        // A read elsewhere.
        open.volume.read(7000 * BLOCK, BLOCK as u32).await.expect("reads");
        open.stored().await;
        assert_eq!(open.cached_blocks(), 2 * before + 1);
    });
}
