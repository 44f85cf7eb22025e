//! The engine on simulated disks: replays accesses through a cache, one after another.
//!
//! One shard, regions of about a 64th of the cache, or of a 256th if the memory for the index is bounded, because the records of open
//! regions are part of it. A block admitted after a miss is stored before the next access, so that the order is that of the trace.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flaz_codec::CodecChoice;
use flaz_device::{Env, IoBuf, Load, Nanos};
use flaz_engine::cache::{CreateOptions, LocalCache, create};
use flaz_engine::format::geometry::{Geometry, GeometryOptions, REGION_BYTES};
use flaz_engine::policy::PolicyKind;
use flaz_engine::router::{CachedVolume, LocalShards};
use flaz_engine::settings::Settings;
use flaz_engine::shard::{Platform, Shard};
use flaz_engine::stats::StatsSnapshot;
use flaz_engine::units::{BLOCK_BYTES, BlockNumber};
use flaz_engine::volume::{STRIPE_BYTES, Segments, Volume, segment_lens};
use flaz_engine::write_budget::WriteBudget;
use flaz_random::Random;
use flaz_sim::disk::Background;
use flaz_sim::{DiskConfig, Sim, SimDisk, SimEnv};
use flaz_trace::Op;

use crate::latency::Latencies;
use crate::model::{Model, Modelled, Served, Serving, Traffic};

/// Simulated time after which an admitted block is stored.
const STORED_AFTER: Duration = Duration::from_millis(1);
/// The smallest cache that is replayed, in bytes: regions are then as small as they can be.
pub const CACHE_BYTES_MIN: u64 = 4 << 20;
/// Parts of the blocks, whose differences give the interval of a hit ratio.
pub const GROUPS: usize = 8;

/// Engine on modelled disks.
pub struct Simulated;

impl Platform for Simulated {
    type Env = SimEnv;
    type Cache = Modelled;
    type Origin = Modelled;
}

/// A cache, and what it is replayed with.
pub struct Setup {
    /// Blocks of the origin.
    pub origin_blocks: u64,
    /// Bytes of the cache's regions.
    pub cache_bytes: u64,
    /// Contents of the origin, by block. Writes write the same.
    pub contents: Background,
    /// Policy.
    pub policy: PolicyKind,
    /// Codec.
    pub codec: CodecChoice,
    /// Performance of the origin.
    pub origin: Model,
    /// Performance of the cache device.
    pub ssd: Model,
    /// Memory for the index and all else that grows with the cache; `None`: the index is a table.
    pub index_memory: Option<u64>,
    /// Whether the contents have in common what real ones have: `auto` then compresses with a dictionary and with high effort.
    pub is_real: bool,
    /// What is stored less.
    pub restriction: Restriction,
}

/// How a replay differs from one that stores what the policy wants.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restriction {
    /// The write budget.
    pub budget: WriteBudget,
    /// Virtual time of an access, for the budget.
    pub step: Duration,
    /// Share of the missed blocks that are not offered to the policy, at random.
    pub dropped: f64,
}

/// An access to neighbouring blocks of one stripe.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Kind.
    pub op: Op,
    /// First block.
    pub block: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// Share of the client's request that it is.
    pub share: f64,
    /// The client's request continues the one before it.
    pub follows: bool,
    /// Number of its part, below [`GROUPS`].
    pub group: u8,
}

/// Reads of one part of the blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Blocks read.
    pub reads: u64,
    /// Hits among them.
    pub hits: u64,
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Held {
    /// Cached blocks.
    pub blocks: f64,
    /// Cached bytes per byte of the log in use: where a cache is not full, its free regions would hold as much.
    pub bytes_per_used_byte: f64,
}

impl Held {
    fn now(shard: &Shard<Simulated>) -> Self {
        let holdings = shard.stats().holdings;
        let bytes = holdings.cached_blocks * BLOCK_BYTES as u64;
        Self {
            blocks: holdings.cached_blocks as f64,
            bytes_per_used_byte: bytes as f64 / holdings.used_bytes.max(1) as f64,
        }
    }

    fn mean(of: &[Self]) -> Self {
        let mean = |value: fn(&Self) -> f64| of.iter().map(value).sum::<f64>() / of.len().max(1) as f64;
        Self {
            blocks: mean(|it| it.blocks),
            bytes_per_used_byte: mean(|it| it.bytes_per_used_byte),
        }
    }
}

/// What was counted.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The engine's own counts.
    pub stats: StatsSnapshot,
    /// What the cache held in the second half of the accesses, on average. What the end of a trace leaves in it may be unusual.
    pub held: Held,
    /// Index pages that were read between two accesses: by admission and reclaim.
    pub index_reads_between: u64,
    /// Operations of the origin.
    pub origin: Traffic,
    /// Reads, by part of the blocks.
    pub groups: [Group; GROUPS],
    /// Latencies of reads whose blocks were all cached.
    pub hits: Latencies,
    /// Latencies of the other reads.
    pub misses: Latencies,
}

/// Why the engine cannot replay.
#[derive(Debug, thiserror::Error)]
#[error("the simulated cache of {cache_bytes} bytes failed: {reason}")]
pub struct EngineError {
    /// Size of the cache.
    pub cache_bytes: u64,
    /// What failed.
    pub reason: String,
}

/// Replays accesses; calls `progress` with the number of accesses once in a while.
///
/// # Errors
/// The cache is too small.
pub fn replay(
    setup: &Setup,
    accesses: impl IntoIterator<Item = Access>,
    progress: &mut dyn FnMut(u64),
) -> Result<Outcome, EngineError> {
    let sim = Sim::new(1);
    // More than one, so that blocks may be packed beside requests.
    sim.set_parallelism(2);
    if setup.is_real {
        // High effort makes a replay five times slower, and gains nothing with contents that are generated to a size.
        sim.set_load(Load::Low);
    }
    sim.set_step_limit(u64::MAX);
    let env = sim.env();
    let failed = |reason: String| EngineError {
        cache_bytes: setup.cache_bytes,
        reason,
    };
    let serving = Serving::default();
    let origin_len = setup.origin_blocks * BLOCK_BYTES as u64;
    let wish = geometry(setup);
    // Metadata is not part of the capacity. It grows with the number of regions.
    let plan = Geometry::plan(setup.cache_bytes + (1 << 20), 512, origin_len, wish);
    let metadata = plan.map_err(|error| failed(error.to_string()))?.data_offset();
    let disk = SimDisk::new(&env, instant(metadata + setup.cache_bytes, None));
    let origin = SimDisk::new(&env, instant(origin_len, Some(Arc::clone(&setup.contents))));
    let disk = Modelled::new(disk, env.clone(), setup.ssd, Rc::clone(&serving));
    let origin = Modelled::unchanging(origin, env.clone(), setup.origin, Rc::clone(&serving));
    sim.block_on(async {
        let options = CreateOptions {
            uuid: uuid::Uuid::from_u128(1),
            created_unix_s: 0,
            wish: wish.into(),
            codec: CodecChoice::default(),
            origin_len,
            origin_identity: "replay".into(),
            origin_path: "replay".into(),
        };
        create(&disk, options)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let settings = Settings {
            policy: setup.policy,
            write_budget: setup.restriction.budget,
            codec: setup.codec,
            ..Settings::default()
        };
        let (disk, base) = (Rc::new(disk), Rc::new(origin));
        let cache = LocalCache::<Simulated>::open(env.clone(), disk, Rc::clone(&base), settings)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let before = base.traffic();
        let shard = Rc::clone(
            cache
                .shards()
                .iter()
                .next()
                .ok_or_else(|| failed("no shard".to_owned()))?,
        );
        let volume = CachedVolume::new(cache.shards(), Rc::clone(&base), origin_len, 0);
        let mut replay = Replay::new(setup, env, serving, shard, volume);
        let mut held = Vec::new();
        for (number, access) in accesses.into_iter().enumerate() {
            replay.access(&access).await.map_err(failed)?;
            if number % 4096 == 0 {
                progress(number as u64);
                held.push(Held::now(&replay.shard));
            }
        }
        let after = base.traffic();
        held.push(Held::now(&replay.shard));
        let outcome = replay.outcome(
            cache.stats(),
            Held::mean(&held[held.len() / 2..]),
            Traffic {
                reads: after.reads - before.reads,
                read_bytes: after.read_bytes - before.read_bytes,
                writes: after.writes - before.writes,
                write_bytes: after.write_bytes - before.write_bytes,
            },
        );
        // Its tasks refer to the disks: without a stop, their memory is never freed.
        cache.stop().await.map_err(|error| failed(error.to_string()))?;
        Ok(outcome)
    })
}

fn geometry(setup: &Setup) -> GeometryOptions {
    let (cache_bytes, index_memory) = (setup.cache_bytes, setup.index_memory);
    let regions = if index_memory.is_some() { 256 } else { 64 };
    let parts = (cache_bytes / regions).max(1);
    let region_bytes =
        (1u64 << (63 - parts.leading_zeros())).clamp(*REGION_BYTES.start(), *REGION_BYTES.end());
    GeometryOptions {
        extent_bytes: Some((region_bytes / 4).clamp(32 << 10, 64 << 10) as u32),
        region_bytes: Some(region_bytes),
        shard_count: Some(1),
        threads: None,
        index_memory,
        dictionary_bytes: (!setup.is_real).then_some(0),
    }
}

/// A disk whose operations take no time.
#[must_use]
pub fn instant(len: u64, background: Option<Background>) -> DiskConfig {
    let instant = Duration::ZERO..=Duration::ZERO;
    DiskConfig {
        read_latency: instant.clone(),
        write_latency: instant.clone(),
        discard_latency: instant.clone(),
        flush_latency: instant,
        write_cache_bytes_max: 0,
        tear_in_flight: false,
        background,
        ..DiskConfig::fast(len)
    }
}

type SimulatedVolume = CachedVolume<LocalShards<Simulated>, Modelled>;

/// A replay under way.
struct Replay<'a> {
    setup: &'a Setup,
    env: SimEnv,
    serving: Serving,
    shard: Rc<Shard<Simulated>>,
    volume: SimulatedVolume,
    random: Random,
    /// Time of the accesses since the clock went on.
    behind: Duration,
    index_reads_between: u64,
    groups: [Group; GROUPS],
    hits: Latencies,
    misses: Latencies,
}

impl<'a> Replay<'a> {
    fn new(
        setup: &'a Setup,
        env: SimEnv,
        serving: Serving,
        shard: Rc<Shard<Simulated>>,
        volume: SimulatedVolume,
    ) -> Self {
        Self {
            setup,
            env,
            serving,
            shard,
            volume,
            random: Random::new(5),
            behind: Duration::ZERO,
            index_reads_between: 0,
            groups: [Group::default(); GROUPS],
            hits: Latencies::default(),
            misses: Latencies::default(),
        }
    }

    fn outcome(self, stats: StatsSnapshot, held: Held, origin: Traffic) -> Outcome {
        Outcome {
            stats,
            held,
            index_reads_between: self.index_reads_between,
            origin,
            groups: self.groups,
            hits: self.hits,
            misses: self.misses,
        }
    }

    async fn access(&mut self, access: &Access) -> Result<(), String> {
        self.behind += self.setup.restriction.step;
        let began = self.env.now();
        self.serving.set(Some(Served {
            share: access.share,
            follows: access.follows,
        }));
        let stores = match access.op {
            Op::Read => self.read(access, began).await?,
            Op::Write => self.write(access).await?,
            Op::Trim => {
                let (offset, len) = place(access);
                self.volume
                    .trim(offset, len, false)
                    .await
                    .map_err(|error| error.to_string())?;
                true
            }
        };
        self.serving.set(None);
        if stores {
            // Virtual time passes: admitted blocks are stored, and regions are reclaimed.
            let before = self.shard.counts().index_page_reads;
            self.env.sleep(self.behind.max(STORED_AFTER)).await;
            self.index_reads_between += self.shard.counts().index_page_reads - before;
            self.behind = Duration::ZERO;
        }
        Ok(())
    }

    /// Returns whether blocks may be stored.
    async fn read(&mut self, access: &Access, began: Nanos) -> Result<bool, String> {
        let (offset, len) = place(access);
        let hits_before = self.shard.counts().hit_blocks;
        let is_dropped = self.is_dropped(access);
        let failed = match is_dropped {
            true => self.shard.read(offset, len as usize, true).await.err(),
            false => self.volume.read(offset, len as u32).await.err(),
        };
        if let Some(error) = failed {
            return Err(error.to_string());
        }
        let cached = self.shard.counts().hit_blocks - hits_before;
        let group = &mut self.groups[usize::from(access.group) % GROUPS];
        group.reads += u64::from(access.blocks);
        group.hits += cached;
        if is_dropped {
            return Ok(false);
        }
        let is_hit = cached == u64::from(access.blocks);
        let latency = self.env.now().since(began);
        let of_its_kind = if is_hit { &mut self.hits } else { &mut self.misses };
        of_its_kind.add(latency, access.share);
        Ok(!is_hit)
    }

    /// Whether the blocks of a read, unless all are cached, are not offered to the policy.
    fn is_dropped(&mut self, access: &Access) -> bool {
        let dropped = self.setup.restriction.dropped;
        let mut blocks = access.block..access.block + u64::from(access.blocks);
        dropped > 0.0
            && !blocks.all(|block| self.shard.is_cached(BlockNumber(block)))
            && self.random.unit() < dropped
    }

    async fn write(&mut self, access: &Access) -> Result<bool, String> {
        let (offset, len) = place(access);
        let mut block = access.block;
        let data: Segments = segment_lens(offset, len)
            .map(|len| {
                let mut data = IoBuf::zeroed(len);
                for part in data.chunks_exact_mut(BLOCK_BYTES) {
                    let part = part.try_into().expect("parts of a block");
                    (self.setup.contents)(block, part);
                    block += 1;
                }
                data
            })
            .collect();
        let written = self.volume.write(offset, data, false).await;
        written.map_err(|error| error.to_string())?;
        Ok(true)
    }
}

/// Offset and length in bytes.
fn place(access: &Access) -> (u64, u64) {
    debug_assert!(u64::from(access.blocks) * BLOCK_BYTES as u64 <= STRIPE_BYTES);
    (
        access.block * BLOCK_BYTES as u64,
        u64::from(access.blocks) * BLOCK_BYTES as u64,
    )
}
