//! Real images to be mutated: created by the engine, in several shapes, once per process.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Duration;

use flaz_codec::CodecChoice;
use flaz_device::{DeviceOp, Env};
use flaz_engine::cache::{CreateOptions, Start, create};
use flaz_engine::format::geometry::{Geometry, GeometryOptions};
use flaz_engine::format::manifest::{ManifestEntry, ManifestSector, RegionUse};
use flaz_engine::settings::Mode;
use flaz_engine::volume::{STRIPE_BYTES, Volume};
use flaz_sim::{CrashPlan, DiscardMode, DiskConfig, DiskImage, DiskMoment, EventStage, Rng};
use uuid::Uuid;

use crate::sectors::{BLOCK, History, SECTOR, TRIMMED, sectors};
use crate::shape::{DIRTY_SHAPES, End, SHAPES, STRIPES, Shape};
use crate::structure::{Place, places};
use crate::world::{Served, World};

/// Number of used blocks at the beginning of each stripe, so that caches fill quickly.
pub const STRIPE_BLOCKS_USED: u64 = 72;
/// Long enough for intents to be cleared.
const CLEARED: Duration = Duration::from_secs(12);

/// A cache after its last run, and its expected contents.
pub struct Victim {
    /// How it was made.
    pub shape: Shape,
    /// Its sizes.
    pub geometry: Geometry,
    /// The cache device.
    pub cache: DiskImage,
    /// The origin.
    pub origin: DiskImage,
    /// What readers should see: the contents of the origin, unless a dirty block is newer.
    pub truth: Vec<u8>,
    /// All contents it ever had.
    pub history: History,
    /// The cache device at earlier moments: while served, and after a clean stop.
    pub older: Vec<DiskImage>,
    /// Another cache of the same shape.
    pub twin: DiskImage,
    /// All contents of that cache's origin.
    pub twin_history: History,
    /// Places of all structures.
    pub places: Vec<Place>,
}

impl Victim {
    /// The image of shape `number` in write-through.
    ///
    /// # Panics
    /// If there is no such shape.
    #[must_use]
    pub fn get(number: usize) -> &'static Self {
        static MADE: [OnceLock<Victim>; SHAPES.len()] = [const { OnceLock::new() }; SHAPES.len()];
        Self::of(&MADE[number], SHAPES[number])
    }

    /// The image of shape `number` in write-back.
    ///
    /// # Panics
    /// If there is no such shape.
    #[must_use]
    pub fn dirty(number: usize) -> &'static Self {
        static MADE: [OnceLock<Victim>; DIRTY_SHAPES.len()] = [const { OnceLock::new() }; DIRTY_SHAPES.len()];
        Self::of(&MADE[number], DIRTY_SHAPES[number])
    }

    /// Opens the image as it is.
    ///
    /// # Panics
    /// If it is refused.
    #[must_use]
    pub fn opened(&self) -> Opened {
        let world = World::new(1, &self.origin, &self.cache);
        world.sim.block_on(async {
            let served = world.open(&self.shape).await.expect("opens");
            let holdings = served.cache.stats().holdings;
            Opened {
                start: served.cache.start,
                cached_blocks: holdings.cached_blocks,
                dirty_blocks: holdings.dirty_blocks,
                intended_stripes: served.cache.recovered.stripes,
            }
        })
    }

    fn of(made: &'static OnceLock<Self>, shape: Shape) -> &'static Self {
        made.get_or_init(|| {
            let made = Made::new(shape, 1, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
            let twin = Made::new(shape, 1001, 0xfedc_ba98_7654_3210_fedc_ba98_7654_3210);
            let places = places(&made.cache, &made.geometry, made.cache_id);
            Self {
                shape,
                geometry: made.geometry,
                truth: match shape.mode {
                    Mode::WriteBack => made.history.latest(),
                    _ => made.origin.read(0, shape.origin_len as usize),
                },
                cache: made.cache.without_write_cache(),
                origin: made.origin.without_write_cache(),
                history: made.history,
                older: made.older,
                twin: twin.cache,
                twin_history: twin.history,
                places,
            }
        })
    }
}

/// The first opening of an image that was not mutated.
pub struct Opened {
    /// How the cache started.
    pub start: Start,
    /// Cached blocks.
    pub cached_blocks: u64,
    /// Blocks that are newer than those of the origin.
    pub dirty_blocks: u64,
    /// Stripes with intents.
    pub intended_stripes: u64,
}

/// The result of a workload.
struct Made {
    geometry: Geometry,
    cache_id: u32,
    cache: DiskImage,
    origin: DiskImage,
    history: History,
    older: Vec<DiskImage>,
}

/// A region that was caught while it was being reclaimed: both disks.
type Caught = Rc<RefCell<Option<(DiskMoment, DiskMoment)>>>;

impl Made {
    fn new(shape: Shape, version: u32, uuid: u128) -> Self {
        let region_bytes = 128 << 10;
        let front = 192 << 10;
        let cache_len = front + u64::from(shape.shard_count) * shape.regions_per_shard * region_bytes;
        let disk = |len, alignment| DiskConfig {
            alignment,
            discard_mode: DiscardMode::Zero,
            ..DiskConfig::fast(len)
        };
        // Slow enough for `auto` to compress blocks again.
        let slow = Duration::from_micros(400)..=Duration::from_micros(600);
        let mut origin = DiskImage::new(DiskConfig {
            read_latency: slow,
            ..disk(shape.origin_len, 512)
        });
        origin.write(0, &sectors(0, shape.origin_len / SECTOR, version));
        let cache = DiskImage::new(disk(cache_len, shape.sector_bytes));
        let world = World::new(version.into(), &origin, &cache);
        shape.apply();
        let superblock = world.sim.block_on(create(
            &world.cache,
            CreateOptions {
                uuid: Uuid::from_u128(uuid),
                created_unix_s: 1_700_000_000,
                wish: GeometryOptions {
                    extent_bytes: Some(32 << 10),
                    region_bytes: Some(region_bytes),
                    shard_count: Some(shape.shard_count),
                    threads: None,
                    index_memory: None,
                    dictionary_bytes: None,
                }
                .into(),
                codec: CodecChoice::default(),
                origin_len: shape.origin_len,
                origin_identity: "sim:origin".into(),
                origin_path: "/dev/slow".into(),
            },
        ));
        let superblock = superblock.expect("the cache fits");
        let mut made = Self {
            geometry: superblock.geometry,
            cache_id: superblock.cache_id(),
            cache,
            origin,
            history: History::new(shape.origin_len, version),
            older: Vec::new(),
        };
        made.lives(shape, world, version);
        made
    }

    /// Two runs; the second one ends as the shape says.
    fn lives(&mut self, shape: Shape, world: World, first_version: u32) {
        let mut work = Workload {
            rng: Rng::new(first_version.into()),
            version: first_version,
            stripes: u64::from(shape.shard_count) * STRIPES,
            kinds: Kinds::All,
        };
        let caught = Caught::default();
        world.sim.block_on(async {
            let served = world.open(&shape).await.expect("opens");
            work.run(&served, 48, &mut self.history).await;
            served.stop().await.expect("stops");
        });
        self.older.push(world.cache.snapshot());
        let end = world.sim.block_on(async {
            let served = world.open(&shape).await.expect("opens");
            work.run(&served, 48, &mut self.history).await;
            self.older.push(world.cache.snapshot());
            match shape.end {
                _ if shape.mode == Mode::WriteBack => {
                    // Writeback makes no progress from here on.
                    world.origin.set_dead(shape.end != End::Clean);
                    work.kinds = Kinds::WholeBlocks;
                    work.run(&served, 24, &mut self.history).await;
                    world.origin.set_dead(false);
                    if shape.end == End::Clean {
                        served.stop().await.expect("stops");
                        return None;
                    }
                    served.volume.flush().await.expect("both disks work");
                    return Some(served);
                }
                End::Clean => {
                    work.run(&served, 24, &mut self.history).await;
                    served.stop().await.expect("stops");
                    return None;
                }
                End::Reclaiming => {
                    // What is read needs no intents.
                    work.kinds = Kinds::Reads;
                    world.sim.env().sleep(CLEARED).await;
                    self.catch(&world, &caught);
                    for _ in 0..80 {
                        work.run(&served, 8, &mut self.history).await;
                        if caught.borrow().is_some() {
                            break;
                        }
                    }
                }
                End::Killed | End::Cut => {
                    work.run(&served, 24, &mut self.history).await;
                    world.sim.env().sleep(CLEARED).await;
                    work.stripes /= STRIPES;
                    work.run(&served, 6, &mut self.history).await;
                }
            }
            // Long enough for the queue to drain.
            world.sim.env().sleep(Duration::from_millis(200)).await;
            Some(served)
        });
        (self.origin, self.cache) = match shape.end {
            End::Clean => (world.origin.snapshot(), world.cache.snapshot()),
            End::Killed => {
                drop(end);
                world.killed()
            }
            End::Cut => (
                world.origin.crash(&CrashPlan::Random(7)),
                world.cache.crash(&CrashPlan::Random(8)),
            ),
            End::Reclaiming => {
                let (origin, cache) = caught.take().expect("a region was reclaimed");
                (origin.kill(|_, _| false), cache.kill(|_, _| false))
            }
        };
    }

    /// Looks out for a region of which the manifest says that it is being reclaimed.
    fn catch(&self, world: &World, caught: &Caught) {
        let (geometry, cache_id) = (self.geometry, self.cache_id);
        let (origin, cache, caught) = (world.origin.clone(), world.cache.clone(), Rc::clone(caught));
        world.sim.set_observer(move |event| {
            let ours = event.disk == cache.number() && event.stage == EventStage::Completed;
            let manifest = geometry.manifest_offset()..geometry.intent_offset();
            if !ours
                || event.op != DeviceOp::Write
                || !manifest.contains(&event.offset)
                || caught.borrow().is_some()
            {
                return;
            }
            let reclaiming = (0..geometry.shard_count).any(|shard| {
                let count = geometry.manifest_regions(0).len();
                let bytes = cache.peek(event.offset, geometry.sector_bytes as usize);
                let number = geometry.manifest_sector_number(shard, 0);
                let sector = ManifestSector::parse(&bytes, cache_id, number, count, geometry.region_bytes);
                let reclaiming = |entry: &ManifestEntry| entry.state == RegionUse::Reclaiming;
                sector.is_ok_and(|sector| sector.entries.iter().any(reclaiming))
            });
            if reclaiming {
                *caught.borrow_mut() = Some((origin.moment(), cache.moment()));
            }
        });
    }
}

/// Reads, writes and trims in sequence.
struct Workload {
    rng: Rng,
    version: u32,
    /// The used stripes.
    stripes: u64,
    kinds: Kinds,
}

/// The operations of a workload.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kinds {
    All,
    /// On a larger part of each stripe.
    Reads,
    /// Writes that need no data of the origin.
    WholeBlocks,
}

impl Workload {
    async fn run(&mut self, served: &Served, steps: u64, history: &mut History) {
        let rng = &mut self.rng;
        for _ in 0..steps * self.stripes / STRIPES {
            let stripe = rng.below(self.stripes) * (STRIPE_BYTES / BLOCK);
            let (used, kinds) = match self.kinds {
                Kinds::All => (STRIPE_BLOCKS_USED, 0..8),
                Kinds::Reads => (180, 0..3),
                Kinds::WholeBlocks => (STRIPE_BLOCKS_USED, 6..8),
            };
            let (first, count) = (stripe + rng.below(used - 8), 1 + rng.below(8));
            match kinds.start + rng.below(kinds.end - kinds.start) {
                0..3 => served
                    .volume
                    .prefetch(first * BLOCK, count * BLOCK)
                    .await
                    .expect("is well"),
                3 => {
                    served.read(first * BLOCK, count * BLOCK).await;
                    served.read(first * BLOCK, count * BLOCK).await;
                }
                4 => {
                    history.write(first * 8, 8, TRIMMED);
                    served
                        .volume
                        .trim(first * BLOCK, BLOCK, false)
                        .await
                        .expect("is well");
                }
                kind => {
                    self.version += 1;
                    let (at, count) = match kind {
                        5 => (first * 8 + rng.below(8), 1 + rng.below(12)),
                        _ => (first * 8, count * 8),
                    };
                    history.write(at, count, self.version);
                    served.write(at * SECTOR, &sectors(at, count, self.version)).await;
                }
            }
            served.stored().await;
        }
    }
}
