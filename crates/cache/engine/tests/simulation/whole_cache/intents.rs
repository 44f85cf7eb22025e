//! The cost of intents: cached blocks after a crash, and writers' time before it.

use std::collections::BTreeSet;
use std::time::Duration;

use flaz_device::Env;
use flaz_engine::cache::Start;
use flaz_engine::format::geometry::GeometryOptions;
use flaz_engine::policy::PolicyKind;
use flaz_engine::volume::Volume;
use flaz_sim::{DiskConfig, Rng};
use futures_util::future::join_all;

use crate::whole_cache::rig::{BLOCK, Open, Rig, plain_disk, settings};

const STRIPE_BYTES: u64 = 1 << 20;
const STRIPES: u64 = 3000;
/// Time after which the intents of idle stripes are clear.
const CLEARED: Duration = Duration::from_secs(30);

/// An origin and a cache device with these write latencies.
fn devices(origin_write: Duration, cache_write: Duration) -> Rig {
    let origin = DiskConfig {
        write_latency: origin_write..=origin_write,
        ..plain_disk(STRIPES * STRIPE_BYTES)
    };
    let cache = DiskConfig {
        write_latency: cache_write..=cache_write,
        ..plain_disk(32 << 20)
    };
    let rig = Rig::new(3, origin, cache);
    let wish = GeometryOptions {
        shard_count: Some(1),
        ..GeometryOptions::default()
    };
    rig.create(STRIPES * STRIPE_BYTES, wish);
    rig
}

/// Writes the second block of `writes` random stripes, with `writers` writers at a time; returns the stripes.
async fn write_scattered(open: &Open, writers: u64, writes: u64) -> BTreeSet<u64> {
    let write = async |writer| {
        let mut rng = Rng::new(writer);
        let mut written = BTreeSet::new();
        for _ in 0..writes / writers {
            let stripe = rng.below(STRIPES);
            let data = flaz_device::IoBuf::copy_of(&[1; BLOCK as usize]);
            let place = stripe * STRIPE_BYTES + BLOCK;
            let result = open.volume.write(place, [data].into(), false).await;
            result.expect("all is well");
            written.insert(stripe);
        }
        written
    };
    let written = join_all((0..writers).map(write)).await;
    written.into_iter().flatten().collect()
}

/// Scattered writes to a hard disk, then a crash: only the written stripes are cold.
#[test]
fn a_crash_under_scattered_writes_costs_only_their_stripes() {
    for writers in [1, 4, 32] {
        let rig = devices(Duration::from_millis(8), Duration::from_micros(300));
        let written = rig.sim.block_on(async {
            let open = rig.opened(settings("lz4", PolicyKind::S3Fifo)).await;
            for stripe in 0..STRIPES {
                let place = stripe * STRIPE_BYTES;
                open.volume.prefetch(place, BLOCK).await.expect("all is well");
            }
            open.stored().await;
            assert_eq!(open.cached_blocks(), STRIPES);
            rig.sim.env().sleep(CLEARED).await;
            write_scattered(&open, writers, 400).await
        });
        rig.sim.kill_tasks();
        let next = Rig::from_images(4, &rig.origin.snapshot(), &rig.disk.snapshot());
        next.sim.block_on(async {
            let open = next.opened(settings("lz4", PolicyKind::S3Fifo)).await;
            assert_eq!(open.cache.start, Start::Recovered);
            let cached = open.cached_blocks();
            assert!(
                cached >= STRIPES - written.len() as u64,
                "{writers} writers have written to {} stripes, and {cached} of the other {} are warm",
                written.len(),
                STRIPES - written.len() as u64
            );
            assert!(cached < STRIPES, "the stripes that were written are cold");
        });
    }
}

/// If each intent takes as long as the write itself, one write of the bitmap sets the intents of many stripes.
#[test]
fn scattered_writes_share_intents_where_waiting_is_slow() {
    for writers in [1, 32] {
        let rig = devices(Duration::from_micros(500), Duration::from_micros(500));
        rig.sim.block_on(async {
            let open = rig.opened(settings("lz4", PolicyKind::S3Fifo)).await;
            let started = rig.sim.env().now();
            let written = write_scattered(&open, writers, 6400).await;
            let took = rig.sim.env().now().since(started);
            let counts = open.cache.stats().counts;
            assert!(
                counts.intent_writes < 100,
                "{writers} writers have written to {} stripes in {took:?}, with {} writes of the bitmap",
                written.len(),
                counts.intent_writes
            );
        });
    }
}
