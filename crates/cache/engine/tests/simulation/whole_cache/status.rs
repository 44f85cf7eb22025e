//! Figures that are not counters: bytes of fragments, ghost hits by policy, depths of queues.

use std::time::Duration;

use flaz_codec::CodecSpec;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::Settings;
use flaz_engine::shard::{JOBS_MAX, ORIGIN_READS_MAX, WRITES_IN_FLIGHT_MAX};
use flaz_engine::stats::StatsSnapshot;
use flaz_engine::volume::Volume;
use flaz_sim::{DiskConfig, Rng};
use futures_util::future::join_all;

use crate::whole_cache::rig::{BLOCK, Open, Rig, SMALLEST, filled_disk, plain_disk, settings};

const ORIGIN_LEN: u64 = 32 << 20;

fn random(number: u64, block: &mut [u8; 4096]) {
    Rng::new(number).fill(block);
}

/// One to four fifths random, and every tenth same-filled.
fn mixed(number: u64, block: &mut [u8; 4096]) {
    block.fill(0);
    if !number.is_multiple_of(10) {
        let len = 800 + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 2400;
        Rng::new(number).fill(&mut block[..len as usize]);
    }
}

/// Bytes of the fragments of such blocks with LZ4, each with a header of 8 bytes and rounded up to a multiple of 8.
fn fragment_bytes(numbers: impl Iterator<Item = u64>) -> u64 {
    let mut encoder = flaz_codec::encoder(CodecSpec::default());
    let (mut block, mut out) = ([0; 4096], [0; 4096]);
    let stored = numbers.filter(|number| !number.is_multiple_of(10)).map(|number| {
        mixed(number, &mut block);
        let stored = encoder.compress(&block, &mut out).expect("it compresses");
        (8 + stored as u64).next_multiple_of(8)
    });
    stored.sum()
}

fn assert_near(found: u64, exact: u64) {
    let off = found as f64 / exact as f64 - 1.0;
    assert!(
        off.abs() <= 0.01,
        "{found}, {exact} are right: {:+.2} %",
        off * 100.0
    );
}

#[test]
fn fragment_bytes_are_those_of_cached_blocks() {
    let rig = Rig::new(1, filled_disk(ORIGIN_LEN, mixed), plain_disk(48 << 20));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig.sim.block_on(async {
        let fifo = settings("lz4", PolicyKind::Fifo);
        let open = rig.opened(fifo.clone()).await;
        open.prefetch(0..4000).await;
        let stats = open.cache.stats();
        assert_eq!(stats.holdings.cached_blocks, 4000);
        assert_near(stats.holdings.fragment_bytes, fragment_bytes(0..4000));
        // Dropped blocks do not count, though their bytes are still on the device.
        for first in (0..4000).step_by(16) {
            open.volume
                .trim(first * BLOCK, 8 * BLOCK, false)
                .await
                .expect("trims");
        }
        open.stored().await;
        let half = open.cache.stats().holdings;
        assert_eq!(half.cached_blocks, 2000);
        let left = (0..4000).filter(|number| number % 16 >= 8);
        assert_near(half.fragment_bytes, fragment_bytes(left));
        assert!(half.fragment_bytes < half.used_bytes * 6 / 10);
        open.stop().await.expect("stops");
        let open = rig.opened(fifo).await;
        let again = open.cache.stats().holdings;
        assert_eq!(again.cached_blocks, 2000);
        assert_eq!(again.fragment_bytes, half.fragment_bytes, "after a warm start");
    });
}

/// Reads blocks sequentially, twice, four times as many as fit.
async fn two_rounds(open: &Open) -> (StatsSnapshot, StatsSnapshot) {
    open.prefetch(0..4096).await;
    let first = open.cache.stats();
    open.prefetch(0..4096).await;
    (first, open.cache.stats())
}

#[test]
fn ghost_hits_are_what_the_policy_remembered() {
    for policy in PolicyKind::ALL {
        let rig = Rig::new(2, filled_disk(ORIGIN_LEN, random), plain_disk(5 << 20));
        rig.create(ORIGIN_LEN, SMALLEST);
        rig.sim.block_on(async {
            let open = rig.opened(settings("lz4", policy)).await;
            open.prefetch(0..64).await;
            assert_eq!(
                open.cache.stats().counts.ghost_hits,
                0,
                "{policy}: nothing was seen before"
            );
            open.prefetch(0..64).await;
            let seen = open.cache.stats().counts;
            let expected = if policy == PolicyKind::SecondTouch { 64 } else { 0 };
            assert_eq!(seen.ghost_hits, expected, "{policy}");
            let (first, second) = two_rounds(&open).await;
            let misses = second.counts.miss_blocks - first.counts.miss_blocks;
            let hits = second.counts.ghost_hits - first.counts.ghost_hits;
            match policy {
                PolicyKind::Fifo => assert_eq!((second.counts.ghost_hits, misses > 3000), (0, true)),
                _ => assert!(hits < misses, "{policy}: {hits} of {misses}"),
            }
            // Blocks that were recently accessed twice, by reads and by writes.
            open.prefetch(5000..5032).await;
            let before = open.cache.stats().counts;
            open.write(6000 * BLOCK, &vec![7; BLOCK as usize]).await;
            open.volume.trim(6000 * BLOCK, BLOCK, false).await.expect("trims");
            open.write(6000 * BLOCK, &vec![8; BLOCK as usize]).await;
            let after = open.cache.stats().counts;
            let expected = u64::from(policy == PolicyKind::SecondTouch);
            assert_eq!(after.ghost_hits - before.ghost_hits, expected, "{policy}");
        });
    }
}

#[test]
fn s3_fifo_counts_what_probation_dropped_and_came_back() {
    let rig = Rig::new(3, filled_disk(ORIGIN_LEN, random), plain_disk(5 << 20));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig.sim.block_on(async {
        let open = rig.opened(settings("lz4", PolicyKind::S3Fifo)).await;
        let mut first = 0;
        while open.cache.stats().counts.reclaimed_blocks < 200 {
            open.prefetch(first..first + 32).await;
            first += 32;
        }
        let before = open.cache.stats().counts.ghost_hits;
        open.prefetch(0..32).await;
        let hits = open.cache.stats().counts.ghost_hits - before;
        assert!(hits >= 30, "{hits} of the 32 blocks that were dropped first");
    });
}

fn slow_device(len: u64) -> DiskConfig {
    let long = Duration::from_secs(1)..=Duration::from_secs(1);
    DiskConfig {
        write_latency: long,
        ..plain_disk(len)
    }
}

#[test]
fn peaks_stay_when_queues_are_empty_again() {
    // So large that each block has a version of its own: nothing is refused because of a neighbour.
    let rig = Rig::new(4, DiskConfig::slow(ORIGIN_LEN), slow_device(160 << 20));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig.sim.block_on(async {
        let open = rig.opened(settings("none", PolicyKind::Fifo)).await;
        let fresh = open.cache.stats().holdings;
        assert_eq!(
            (
                fresh.admission.peak,
                fresh.cache_writes.peak,
                fresh.origin_reads.peak
            ),
            (0, 0, 0)
        );
        // Not adjacent, so that each is a read of its own.
        let reads = (0..20).map(|i| open.volume.read(i * 4 * BLOCK, BLOCK as u32));
        join_all(reads.collect::<Vec<_>>())
            .await
            .into_iter()
            .for_each(|read| drop(read.expect("reads")));
        let read = open.cache.stats().holdings;
        assert_eq!((read.origin_reads.now, read.origin_reads.peak), (0, 20));
        assert!((1..=20).contains(&read.admission.peak), "{:?}", read.admission);
        assert_eq!(open.cache.stats().counts.admission_full, 0);
        // More concurrent writes than the queue takes, while the cache device is busy with the first of them.
        let count = JOBS_MAX as u64 + 200;
        let writes = (0..count).map(|number| {
            let mut data = flaz_device::IoBuf::new(BLOCK as usize);
            Rng::new(number).fill(&mut data);
            open.volume.write(number * BLOCK, [data].into(), false)
        });
        join_all(writes.collect::<Vec<_>>())
            .await
            .into_iter()
            .for_each(|write| write.expect("writes"));
        open.stored().await;
        let stats = open.cache.stats();
        let holdings = &stats.holdings;
        assert_eq!(
            (holdings.admission.now, holdings.admission.peak),
            (0, JOBS_MAX as u64)
        );
        // The blocks read last may still have been waiting.
        assert!(
            (200..=220).contains(&stats.counts.admission_full),
            "{:?}",
            stats.counts
        );
        // Clearing intents may also close an extent of each ring.
        let most = WRITES_IN_FLIGHT_MAX as u64;
        assert!((most..=most + 2).contains(&holdings.cache_writes.peak));
        assert!(stats.counts.cache_writes_full > 0);
        assert_eq!(holdings.origin_reads.peak, 20);
    });
}

#[test]
fn misses_beyond_the_origin_read_limit_wait_and_are_shared() {
    let rig = Rig::new(6, DiskConfig::slow(ORIGIN_LEN), plain_disk(16 << 20));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig.sim.block_on(async {
        let open = rig.opened(settings("lz4", PolicyKind::Fifo)).await;
        let apart = ORIGIN_READS_MAX as u64 + 100;
        // The last ones twice: they wait, and the second readers join them.
        let blocks = (0..apart).chain(apart - 50..apart);
        let reads: Vec<_> = blocks
            .map(|number| open.volume.read(number * 4 * BLOCK, BLOCK as u32))
            .collect();
        for read in join_all(reads).await {
            read.expect("reads");
        }
        let stats = open.cache.stats();
        let reads = stats.holdings.origin_reads;
        assert_eq!((reads.now, reads.peak), (0, ORIGIN_READS_MAX as u64));
        assert_eq!(stats.counts.origin_reads_full, 100);
        assert_eq!(stats.counts.origin_reads, apart);
        assert_eq!(stats.counts.joined_reads, 50);
    });
}

#[test]
fn of_several_shards_the_fullest_counts() {
    let rig = Rig::new(5, DiskConfig::slow(ORIGIN_LEN), plain_disk(16 << 20));
    let wish = flaz_engine::format::geometry::GeometryOptions {
        shard_count: Some(4),
        ..SMALLEST
    };
    rig.create(ORIGIN_LEN, wish);
    rig.sim.block_on(async {
        let no_admission = Settings {
            sequential_cutoff: 1,
            ..settings("lz4", PolicyKind::Fifo)
        };
        let open = rig.opened(no_admission).await;
        // Seven reads in the second stripe, three in each of the others.
        let offsets = (0..4u64).flat_map(|stripe| {
            let reads = if stripe == 1 { 7 } else { 3 };
            (0..reads).map(move |read| (stripe << 20) + read * 4 * BLOCK)
        });
        let reads: Vec<_> = offsets
            .map(|offset| open.volume.read(offset, BLOCK as u32))
            .collect();
        assert_eq!(reads.len(), 16);
        join_all(reads)
            .await
            .into_iter()
            .for_each(|read| drop(read.expect("reads")));
        assert_eq!(open.cache.stats().holdings.origin_reads.peak, 7);
    });
}

/// A disk with these latencies of reads and writes.
fn timed_disk(len: u64, read_ms: u64, write_ms: u64) -> DiskConfig {
    let exactly = |ms| Duration::from_millis(ms)..=Duration::from_millis(ms);
    DiskConfig {
        read_latency: exactly(read_ms),
        write_latency: exactly(write_ms),
        ..filled_disk(len, random)
    }
}

#[test]
fn what_the_devices_are_asked_is_counted_and_timed() {
    let rig = Rig::new(7, timed_disk(ORIGIN_LEN, 5, 7), timed_disk(16 << 20, 1, 2));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig.sim.block_on(async {
        let open = rig.opened(settings("none", PolicyKind::Fifo)).await;
        for number in 0..40 {
            open.write(number * BLOCK, &[number as u8; 600]).await;
            open.prefetch(100 + number * 2..101 + number * 2).await;
        }
        open.stored().await;
        for number in 0..40 {
            open.read((100 + number * 2) * BLOCK, BLOCK).await;
        }
        let StatsSnapshot {
            counts, latencies, ..
        } = open.cache.stats();
        let found = [
            (&latencies.origin_read, counts.origin_reads, 5_000.0),
            (&latencies.origin_write, counts.origin_writes, 7_000.0),
            (&latencies.cache_read, counts.cache_reads.div_ceil(16), 1_000.0),
            (&latencies.cache_write, counts.cache_writes, 2_000.0),
        ];
        for (at, (latency, asked, us)) in found.into_iter().enumerate() {
            let summary = latency.summary();
            assert!(asked > 0, "{at}: {counts:?}");
            assert_eq!(summary.count, asked, "{at}: {counts:?}");
            assert!((summary.p50_us / us - 1.0).abs() < 0.01, "{at}: {summary:?}");
        }
        assert_eq!(counts.origin_writes, 40);
    });
}
