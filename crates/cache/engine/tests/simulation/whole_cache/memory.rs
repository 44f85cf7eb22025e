//! The memory that a cached block costs, and the share of the device that holds blocks.

use std::sync::OnceLock;

use flaz_engine::format::geometry::GeometryOptions;
use flaz_engine::policy::PolicyKind;
use flaz_sim::Rng;

use crate::whole_cache::rig::{BLOCK, Rig, filled_disk, plain_disk, settings};

const CACHE_LEN: u64 = 64 << 20;

/// A cheap, unique block: a part of a random pool, and the number.
fn random(number: u64, block: &mut [u8; 4096]) {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    let noise = NOISE.get_or_init(|| {
        let mut noise = vec![0; 1 << 20];
        Rng::new(0).fill(&mut noise);
        noise
    });
    let at = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44) as usize % (noise.len() - block.len());
    block.copy_from_slice(&noise[at..at + BLOCK as usize]);
    block[..8].copy_from_slice(&number.to_le_bytes());
}

/// Random bytes over about half of the block, 1900 to 2195: LZ4 compresses it 2:1.
fn half(number: u64, block: &mut [u8; 4096]) {
    random(number, block);
    let len = 1900 + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 296;
    block[len as usize..].fill(0x20);
}

fn mixed(number: u64, block: &mut [u8; 4096]) {
    match number % 8 {
        0 => block.fill(number as u8),
        1..4 => random(number, block),
        _ => half(number, block),
    }
}

/// The contents of a full cache.
struct Full {
    blocks: u64,
    index_bytes: f64,
    other_bytes: f64,
    /// Stored bytes of the cached blocks, as a share of the device.
    capacity: f64,
    /// Share of the used bytes of regions that holds no stored bytes.
    packing_loss: f64,
}

fn fill(name: &str, fill: fn(u64, &mut [u8; 4096]), policy: PolicyKind, origin_len: u64) -> Full {
    fill_of_size(name, fill, policy, origin_len, CACHE_LEN)
}

fn fill_of_size(
    name: &str,
    fill: fn(u64, &mut [u8; 4096]),
    policy: PolicyKind,
    origin_len: u64,
    cache_len: u64,
) -> Full {
    let rig = Rig::new(1, filled_disk(origin_len, fill), plain_disk(cache_len));
    let wish = GeometryOptions {
        shard_count: Some(1),
        ..GeometryOptions::default()
    };
    let geometry = rig.create(origin_len, wish).geometry;
    let stats = rig.sim.block_on(async {
        let open = rig.opened(settings("lz4", policy)).await;
        let mut number = 0;
        // Until every region has been used and some have been reclaimed.
        while open.cache.stats().counts.regions_reclaimed < 12 {
            open.prefetch(number..number + 512).await;
            number = (number + 512) % (origin_len / BLOCK);
        }
        open.cache.stats()
    });
    let (counts, holdings) = (stats.counts, stats.holdings);
    let blocks = holdings.cached_blocks as f64;
    let stored = counts.codec_out_bytes as f64 / counts.admitted_blocks as f64;
    let in_use = holdings.ring_bytes.iter().sum::<u64>() as f64;
    let full = Full {
        blocks: holdings.cached_blocks,
        index_bytes: holdings.index_bytes as f64 / blocks,
        other_bytes: holdings.other_memory_bytes as f64 / blocks,
        capacity: blocks * stored / cache_len as f64,
        packing_loss: 1.0 - blocks * stored / holdings.used_bytes as f64,
    };
    eprintln!(
        "{name}, {}, {} MiB: {} blocks of {stored:.0} bytes in {} regions of {} KiB; {:.2} bytes of index and {:.2} of all \
         else a block; {:.2} % of the device is blocks, {:.2} % of the regions in use; packing loss {:.2} %",
        policy.name(),
        cache_len >> 20,
        full.blocks,
        geometry.regions_per_shard * geometry.shard_count,
        geometry.region_bytes >> 10,
        full.index_bytes,
        full.other_bytes,
        full.capacity * 100.0,
        blocks * stored / in_use * 100.0,
        full.packing_loss * 100.0,
    );
    assert!(
        full.index_bytes <= 10.0,
        "{name}: {} bytes of index a block",
        full.index_bytes
    );
    assert!(
        full.other_bytes <= 2.0,
        "{name}: {} bytes of all else a block",
        full.other_bytes
    );
    full
}

#[test]
fn incompressible_blocks() {
    let full = fill("random", random, PolicyKind::S3Fifo, 128 << 20);
    assert!(full.blocks > 15_000, "{}", full.blocks);
}

#[test]
fn blocks_of_half_the_size() {
    let full = fill("2:1", half, PolicyKind::S3Fifo, 256 << 20);
    assert!(full.packing_loss < 0.05, "{}", full.packing_loss);
    assert!(full.capacity >= 0.95, "{}", full.capacity);
}

#[test]
fn blocks_of_half_the_size_in_one_ring() {
    let full = fill("2:1", half, PolicyKind::Fifo, 256 << 20);
    assert!(full.packing_loss < 0.05, "{}", full.packing_loss);
    assert!(full.capacity >= 0.95, "{}", full.capacity);
}

/// Sizes at which tables of a power of two would just have doubled.
#[test]
fn sizes_just_past_a_power_of_two() {
    for cache_len in [65, 258].map(|mib| mib << 20) {
        fill_of_size("random", random, PolicyKind::S3Fifo, 2 * cache_len, cache_len);
        fill_of_size("2:1", half, PolicyKind::S3Fifo, 3 * cache_len, cache_len);
    }
}

/// Blocks of the first half of the origin compress to half, those of the second to 0.7 of their size.
fn half_then_less(number: u64, block: &mut [u8; 4096]) {
    half(number, block);
    if number >= CHANGE {
        random(number, block);
        let len = 2600 + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 500;
        block[len as usize..].fill(0x20);
    }
}

const CHANGE: u64 = (128 << 20) / BLOCK;

/// A full cache with an increasing share of larger blocks: it holds fewer blocks, and the memory follows.
#[test]
fn blocks_that_compress_less_than_those_before() {
    for policy in [PolicyKind::Fifo, PolicyKind::S3Fifo] {
        let origin_len = 2 * CHANGE * BLOCK;
        let rig = Rig::new(1, filled_disk(origin_len, half_then_less), plain_disk(56 << 20));
        rig.create(origin_len, GeometryOptions::default());
        rig.sim.block_on(async {
            let open = rig.opened(settings("lz4", policy)).await;
            open.prefetch(0..CHANGE).await;
            let before = open.cache.stats();
            assert!(before.counts.regions_reclaimed > 0, "the cache is full");
            let (mut index_most, mut other_most) = (0.0_f64, 0.0_f64);
            for first in (CHANGE..2 * CHANGE).step_by(256) {
                open.prefetch(first..first + 256).await;
                let holdings = open.cache.stats().holdings;
                let blocks = holdings.cached_blocks as f64;
                index_most = index_most.max(holdings.index_bytes as f64 / blocks);
                other_most = other_most.max(holdings.other_memory_bytes as f64 / blocks);
            }
            let (blocks, after) = (before.holdings.cached_blocks, open.cached_blocks());
            eprintln!(
                "{}: {blocks} blocks, then {after}: up to {index_most:.2} bytes of index a block, {other_most:.2} of all else",
                policy.name(),
            );
            assert!(after < blocks * 9 / 10, "{after} blocks of {blocks}");
            assert!(index_most <= 10.0, "{policy}: {index_most} bytes of index a block");
            assert!(other_most <= 2.0, "{policy}: {other_most} bytes of all else a block");
        });
    }
}

#[test]
fn mixed_blocks() {
    fill("mixed", mixed, PolicyKind::S3Fifo, 256 << 20);
}
