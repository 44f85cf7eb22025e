//! What the engine alone does: filling with one core, and how much a full cache holds.

use std::rc::Rc;
use std::time::{Duration, Instant};

use flaz_device::{Env, IoBuf};
use flaz_engine::cache::{CreateOptions, LocalCache, create};
use flaz_engine::codec::{CodecSpec, encoder};
use flaz_engine::format::geometry::{Geometry, GeometryWish};
use flaz_engine::policy::PolicyKind;
use flaz_engine::router::CachedVolume;
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::stats::StatsSnapshot;
use flaz_engine::volume::Volume;
use flaz_sim::{DiskConfig, Sim, SimDisk};

use super::{Row, Spread, real_data};
use crate::replay::Simulated;

/// Fills a cache of `cache_len` data bytes with `data` by 64 KiB writes; gives the time and the statistics.
fn fill(data: &[u8], cache_len: u64, mode: Mode) -> (Duration, StatsSnapshot) {
    let sim = Sim::new(1);
    sim.set_step_limit(u64::MAX);
    let env = sim.env();
    let instant = Duration::ZERO..=Duration::ZERO;
    let fast = |len| DiskConfig {
        read_latency: instant.clone(),
        write_latency: instant.clone(),
        discard_latency: instant.clone(),
        flush_latency: instant.clone(),
        write_cache_bytes_max: 0,
        tear_in_flight: false,
        ..DiskConfig::fast(len)
    };
    let wish = GeometryWish {
        shard_count: Some(1),
        ..GeometryWish::default()
    };
    let origin_len = data.len() as u64;
    let metadata = Geometry::plan(1 << 40, 512, origin_len, wish)
        .expect("a plan")
        .data_offset();
    let (origin, disk) = (
        SimDisk::new(&env, fast(origin_len)),
        SimDisk::new(&env, fast(metadata + cache_len)),
    );
    sim.block_on(async {
        let codec = CodecSpec::default();
        let options = CreateOptions {
            uuid: uuid::Uuid::from_u128(1),
            created_unix_s: 0,
            wish,
            codec,
            origin_len,
            origin_identity: "bench".into(),
            origin_path: "bench".into(),
        };
        create(&disk, options).await.expect("the cache fits");
        let settings = Settings {
            mode,
            policy: PolicyKind::S3Fifo,
            codec,
            sequential_cutoff: 0,
            dirty_percent: flaz_engine::settings::DIRTY_PERCENT_DEFAULT,
        };
        let (cache, base) = (Rc::new(disk), Rc::new(origin));
        let cache = LocalCache::<Simulated>::open(env.clone(), cache, Rc::clone(&base), settings)
            .await
            .expect("opens");
        let volume = CachedVolume::new(cache.shards(), base, origin_len, 0);
        let started = Instant::now();
        for (i, chunk) in data.chunks(64 << 10).enumerate() {
            volume
                .write(i as u64 * (64 << 10), [IoBuf::copy_of(chunk)].into(), false)
                .await
                .expect("writes");
            env.sleep(Duration::from_micros(1)).await;
        }
        while cache.stats().holdings.admission_queue > 0 {
            env.sleep(Duration::from_millis(1)).await;
        }
        let stats = cache.stats();
        assert_eq!(
            stats.counts.refused_queue_full, 0,
            "every block is packed and stored"
        );
        (started.elapsed(), stats)
    })
}

/// The codec alone on the same blocks, raw ones included.
fn codec_alone(data: &[u8]) -> (Duration, f64) {
    let mut encoder = encoder(CodecSpec::default());
    let mut out = vec![0; 4096 - 64];
    let started = Instant::now();
    let stored: usize = data
        .chunks(4096)
        .map(|block| encoder.compress(block, &mut out).unwrap_or(4096))
        .sum();
    (started.elapsed(), data.len() as f64 / stored as f64)
}

/// Rows of the engine alone.
pub fn rows(runs: usize, quick: bool, bar: &indicatif::ProgressBar) -> Vec<Row> {
    let data = real_data(if quick { 96 << 20 } else { 192 << 20 });
    let (mut ours, mut whole, mut alone, mut held) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // Once uncounted: pages and code are touched for the first time.
    codec_alone(&data);
    for run in 0..runs {
        bar.set_message(format!("engine alone, run {} of {runs}", run + 1));
        let (codec_time, _) = codec_alone(&data);
        let (fill_time, _) = fill(&data, data.len() as u64 * 2, Mode::WriteThrough);
        // What the simulated origin and the calls take, without a cache.
        let (around, _) = fill(&data, data.len() as u64 * 2, Mode::PassThrough);
        alone.push(codec_time.as_secs_f64());
        ours.push(fill_time.saturating_sub(around).as_secs_f64());
        whole.push(fill_time.as_secs_f64());
    }
    // A third of the data fits: the cache is full and has been reclaimed many times.
    bar.set_message("engine alone, full cache");
    let cache_len = data.len() as u64 / 3 / (1 << 20) * (1 << 20);
    let (_, stats) = fill(&data, cache_len, Mode::WriteThrough);
    let (counts, holdings) = (&stats.counts, &stats.holdings);
    let ratio = counts.codec_in_bytes as f64 / counts.codec_out_bytes as f64;
    held.push(holdings.cached_blocks as f64 * 4096.0 / (ratio * holdings.capacity_bytes as f64));
    vec![
        Row {
            what: "write-through fill less pass-through, LZ4, one core".into(),
            peer: "the codec alone".into(),
            budget: "0.7 / 0.9",
            reached: Spread::of_ratios(&alone, &ours).ok_or_else(|| "no runs".into()),
            unit: "x",
        },
        Row {
            what: "the same, nothing taken off".into(),
            peer: "the codec alone".into(),
            budget: "-",
            reached: Spread::of_ratios(&alone, &whole).ok_or_else(|| "no runs".into()),
            unit: "x",
        },
        Row {
            what: "effective capacity, real files (simulated: equal in every run)".into(),
            peer: "codec ratio x size".into(),
            budget: "0.95 / 0.98",
            reached: Spread::of(&held).ok_or_else(|| "no runs".into()),
            unit: "x",
        },
        Row {
            what: "index memory, full cache".into(),
            peer: "-".into(),
            budget: "10 B a block",
            reached: Spread::of(&[holdings.index_bytes as f64 / holdings.cached_blocks as f64])
                .ok_or_else(|| "no runs".into()),
            unit: " B",
        },
        Row {
            what: "all other memory that grows, full cache".into(),
            peer: "-".into(),
            budget: "2 B a block",
            reached: Spread::of(&[holdings.other_memory_bytes as f64 / holdings.cached_blocks as f64])
                .ok_or_else(|| "no runs".into()),
            unit: " B",
        },
    ]
}
