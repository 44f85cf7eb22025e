//! The engine alone, on devices in memory: filling with one core, the capacity of a full cache, and the cost of
//! incompressible data.

use std::rc::Rc;
use std::time::Duration;

use flaz_codec::{CodecChoice, CodecSpec, encoder};
use flaz_device::{Device, Env, IoBuf};
use flaz_engine::cache::{CreateOptions, LocalCache, create};
use flaz_engine::format::geometry::{Geometry, GeometryOptions};
use flaz_engine::router::CachedVolume;
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::shard::Platform;
use flaz_engine::stats::StatsSnapshot;
use flaz_engine::volume::Volume;
use flaz_sim::{DiskConfig, Sim, SimDisk, SimEnv};

use super::real_data::real_data;
use super::row::{Row, Spread};

/// The engine on simulated disks.
struct Simulated;

impl Platform for Simulated {
    type Env = SimEnv;
    type Cache = SimDisk;
    type Origin = SimDisk;
}

/// The parameters of a run.
#[derive(Clone, Copy)]
struct Work<'a> {
    data: &'a [u8],
    /// Size of the data area of the cache in bytes.
    cache_len: u64,
    mode: Mode,
    codec: CodecChoice,
    /// Size of each request in bytes.
    request: usize,
    /// Read everything twice from an origin that has the data, instead of writing it.
    read: bool,
}

impl Work<'_> {
    /// LZ4 in write-through.
    fn fill(data: &[u8], cache_len: u64) -> Work<'_> {
        Work {
            data,
            cache_len,
            mode: Mode::WriteThrough,
            codec: CodecChoice::default(),
            request: 64 << 10,
            read: false,
        }
    }
}

/// The result of a run.
struct Done {
    /// Processor time of writing, or of reading uncached blocks, until all of them are stored.
    first: Duration,
    /// Processor time of reading all of it again.
    again: Duration,
    stats: StatsSnapshot,
}

/// Processor time of this thread, which is the only one in a simulation; other load on the machine does not count.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Executes `work` on a new cache of one shard.
fn exercise(work: Work<'_>) -> Done {
    let Work { data, codec, .. } = work;
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
    let wish = GeometryOptions {
        shard_count: Some(1),
        ..GeometryOptions::default()
    };
    let origin_len = data.len() as u64;
    let metadata = Geometry::plan(work.cache_len + (1 << 20), 512, origin_len, wish)
        .expect("a plan")
        .data_offset();
    let (origin, disk) = (
        SimDisk::new(&env, fast(origin_len)),
        SimDisk::new(&env, fast(metadata + work.cache_len)),
    );
    sim.block_on(async {
        let options = CreateOptions {
            uuid: uuid::Uuid::from_u128(1),
            created_unix_s: 0,
            wish: wish.into(),
            codec,
            origin_len,
            origin_identity: "bench".into(),
            origin_path: "bench".into(),
        };
        create(&disk, options).await.expect("the cache fits");
        if work.read {
            for (i, chunk) in data.chunks(1 << 20).enumerate() {
                let (_, written) = origin
                    .write_at((i as u64) << 20, IoBuf::copy_of(chunk), false)
                    .await;
                written.expect("writes");
            }
        }
        let settings = Settings {
            mode: work.mode,
            codec,
            ..Settings::default()
        };
        let (cache, base) = (Rc::new(disk), Rc::new(origin));
        let cache = LocalCache::<Simulated>::open(env.clone(), cache, Rc::clone(&base), settings)
            .await
            .expect("opens");
        let volume = CachedVolume::new(cache.shards(), base, origin_len, 0);
        let mut took = [Duration::ZERO; 2];
        for took in &mut took[..if work.read { 2 } else { 1 }] {
            let started = cpu();
            for (i, chunk) in data.chunks(work.request).enumerate() {
                let at = (i * work.request) as u64;
                if work.read {
                    volume.read(at, chunk.len() as u32).await.expect("reads");
                } else {
                    let written = volume.write(at, [IoBuf::copy_of(chunk)].into(), false);
                    written.await.expect("writes");
                }
                env.sleep(Duration::from_micros(1)).await;
            }
            while cache.stats().holdings.admission_queue > 0 {
                env.sleep(Duration::from_millis(1)).await;
            }
            *took = cpu().saturating_sub(started);
        }
        let stats = cache.stats();
        assert_eq!(
            stats.counts.refused_queue_full, 0,
            "every block is packed and stored"
        );
        let [first, again] = took;
        Done { first, again, stats }
    })
}

/// The codec alone on the same blocks, including raw ones.
fn codec_alone(data: &[u8]) -> (Duration, f64) {
    let mut encoder = encoder(CodecSpec::default());
    let mut out = vec![0; 4096 - 64];
    let started = cpu();
    let stored: usize = data
        .chunks(4096)
        .map(|block| encoder.compress(block, &mut out).unwrap_or(4096))
        .sum();
    (cpu().saturating_sub(started), data.len() as f64 / stored as f64)
}

/// Rows of the engine alone.
pub fn rows(runs: usize, quick: bool, bar: &indicatif::ProgressBar) -> Vec<Row> {
    let data = real_data(if quick { 96 << 20 } else { 192 << 20 });
    let (mut ours, mut whole, mut alone, mut held) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // One run that is not counted: pages and code are touched for the first time.
    codec_alone(&data);
    for run in 0..runs {
        bar.set_message(format!("engine alone, run {} of {runs}", run + 1));
        let (codec_time, _) = codec_alone(&data);
        let work = Work::fill(&data, data.len() as u64 * 2);
        let fill_time = exercise(work).first;
        // Cost of the simulated origin and of the calls, without a cache.
        let around = exercise(Work {
            mode: Mode::PassThrough,
            ..work
        })
        .first;
        alone.push(codec_time.as_secs_f64());
        ours.push(fill_time.saturating_sub(around).as_secs_f64());
        whole.push(fill_time.as_secs_f64());
    }
    // A third of the data fits: the cache is full and has been reclaimed many times.
    bar.set_message("engine alone, full cache");
    let cache_len = data.len() as u64 / 3 / (1 << 20) * (1 << 20);
    let stats = exercise(Work::fill(&data, cache_len)).stats;
    let (counts, holdings) = (&stats.counts, &stats.holdings);
    let ratio = counts.codec_in_bytes as f64 / counts.codec_out_bytes as f64;
    held.push(holdings.cached_blocks as f64 * 4096.0 / (ratio * holdings.capacity_bytes as f64));
    let plain = exercise(Work {
        codec: CodecChoice::NONE,
        ..Work::fill(&data, cache_len)
    });
    let gained = holdings.cached_blocks as f64 / plain.stats.holdings.cached_blocks as f64;
    let mut rows = vec![
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
            what: "blocks that are held, real files (simulated)".into(),
            peer: "flaz --codec none".into(),
            budget: "1.0",
            reached: Spread::of(&[gained]).ok_or_else(|| "no runs".into()),
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
    ];
    rows.extend(random_beside_none(data.len(), runs, bar));
    rows
}

/// Processor time for random data, compared with no compression. The devices only copy here, so this is the maximum
/// difference on any device.
fn random_beside_none(len: usize, runs: usize, bar: &indicatif::ProgressBar) -> Vec<Row> {
    let mut data = vec![0; len];
    flaz_sim::Rng::new(1).fill(&mut data);
    let mut rows = Vec::new();
    for (size, request) in [("4 KiB", 4 << 10), ("64 KiB", 64 << 10)] {
        // Ratios of fills, misses and hits.
        let mut ratios: [Vec<f64>; 3] = Default::default();
        for run in 0..runs {
            bar.set_message(format!(
                "engine alone, random data, {size}, run {} of {runs}",
                run + 1
            ));
            let times = |codec| {
                let work = Work {
                    codec,
                    request,
                    ..Work::fill(&data, data.len() as u64 * 2)
                };
                let filled = exercise(work);
                let read = exercise(Work { read: true, ..work });
                [filled.first, read.first, read.again]
            };
            // The order alternates between runs.
            let (ours, plain) = if run.is_multiple_of(2) {
                let ours = times(CodecChoice::default());
                (ours, times(CodecChoice::NONE))
            } else {
                let plain = times(CodecChoice::NONE);
                (times(CodecChoice::default()), plain)
            };
            for (at, ratios) in ratios.iter_mut().enumerate() {
                ratios.push(plain[at].as_secs_f64() / ours[at].as_secs_f64());
            }
        }
        for (what, ratios) in ["fill with", "misses of", "hits of"].into_iter().zip(&ratios) {
            rows.push(Row {
                what: format!("{what} random data, {size}, one core, LZ4"),
                peer: "flaz --codec none".into(),
                budget: "0.97",
                reached: Spread::of(ratios).ok_or_else(|| "no runs".into()),
                unit: "x",
            });
        }
    }
    rows
}
