//! Two simulated disks, host records, a cache between the disks, and blocks that identify the write they are from.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flaz_codec::CodecChoice;
use flaz_device::deadline::Deadline;
use flaz_device::{DeviceOp, Env, IoBuf};
use flaz_engine::cache::{CacheError, CreateOptions, LocalCache, create};
use flaz_engine::check::{Finding, walk};
use flaz_engine::format::geometry::{Geometry, GeometryOptions, PAGE_BYTES};
use flaz_engine::format::manifest::{ManifestEntry, ManifestSector};
use flaz_engine::format::superblock::Superblock;
use flaz_engine::host_record::{HostRecord, HostRecords};
use flaz_engine::policy::PolicyKind;
use flaz_engine::router::{CachedVolume, Shards};
use flaz_engine::settings::{AfterCrash, Mode, Settings, StrictFlush};
use flaz_engine::stats::StatsSnapshot;
use flaz_engine::volume::{IoError, Volume};
use flaz_engine::write_budget::WriteBudget;
use flaz_sim::{CrashPlan, DiskConfig, DiskImage, DiskMoment, EventStage, Rng, Sim, SimDisk, SimEnv};
use uuid::Uuid;

use crate::host::{Host, Notes};
use crate::platform::{AnyDevice, Simulated, SimulatedVolume};

/// Modes of a cache in which writes are acknowledged when the origin has them.
pub const MODES: [Mode; 2] = [Mode::WriteThrough, Mode::WriteAround];

pub const BLOCK: u64 = 4096;
/// Blocks of a stripe.
pub const STRIPE: u64 = 256;
/// Stripes of the origin.
pub const STRIPES: u64 = 8;
pub const BLOCKS: u64 = STRIPE * STRIPES;
/// Length of the cache device by default: 46 regions of 128 KiB.
pub const CACHE_LEN: u64 = 6 << 20;
/// The deadline of the cache device's operations.
pub const TIMEOUT: Duration = flaz_device::deadline::TIMEOUT_DEFAULT;
/// Most time after which an operation has ended: the deadline is checked four times.
pub const TIMEOUT_MOST: Duration = Duration::from_millis(12_600);
/// Time after which the intents of an idle stripe are clear.
pub const CLEARED: Duration = Duration::from_secs(30);

/// The contents of a block after write number `version`; 0: never written. Compresses to about half.
pub fn contents(block: u64, version: u64) -> [u8; BLOCK as usize] {
    let mut data = [0; BLOCK as usize];
    Rng::new(block << 20 | version).fill(&mut data[..2048]);
    data[..8].copy_from_slice(&block.to_le_bytes());
    data[8..16].copy_from_slice(&version.to_le_bytes());
    data
}

fn pristine(block: u64, data: &mut [u8; BLOCK as usize]) {
    *data = contents(block, 0);
}

/// The write of `block` that these bytes are from.
///
/// # Panics
/// If they are from none.
pub fn version_of(block: u64, data: &[u8]) -> u64 {
    let number = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().expect("eight bytes"));
    let version = number(8);
    assert!(
        data == contents(block, version),
        "block {block} holds what nobody wrote there: it begins as version {version} of block {}",
        number(0)
    );
    version
}

/// An event at a disk, and the state of both disks at that time.
pub struct Moment {
    pub number: u64,
    pub on_cache: bool,
    pub stage: EventStage,
    pub op: DeviceOp,
    pub offset: u64,
    pub len: u64,
    pub cache: DiskMoment,
    pub origin: DiskMoment,
    /// The host record.
    pub memory: Option<HostRecord>,
}

/// The state that a boot finds: cache device, origin, and host record.
pub type Found = (DiskImage, DiskImage, Option<HostRecord>);

/// The number, counted from 1, of the first read of the cache device that ends at `end`.
pub fn read_up_to(moments: &[Moment], end: u64) -> u64 {
    let mut reads = moments
        .iter()
        .filter(|moment| moment.is(true, EventStage::Issued, DeviceOp::Read));
    let before = reads.position(|moment| moment.offset + moment.len == end);
    1 + before.expect("it is read") as u64
}

/// The remaining writes after a crash, of those that it may undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    Everything,
    Nothing,
}

impl Left {
    pub const ALL: [Self; 2] = [Self::Everything, Self::Nothing];

    pub fn plan(self) -> CrashPlan {
        match self {
            Self::Everything => CrashPlan::Everything,
            Self::Nothing => CrashPlan::Nothing,
        }
    }
}

/// The fault of a read.
#[derive(Clone, Copy, Debug)]
pub enum Wrong {
    /// One bit, this many eighths from its start.
    Bit(u64),
    /// All of it: zeroes.
    Zeroes,
}

impl Moment {
    pub fn is(&self, on_cache: bool, stage: EventStage, op: DeviceOp) -> bool {
        self.on_cache == on_cache && self.stage == stage && self.op == op
    }

    /// Both disks after a power cut at this moment.
    pub fn cut(&self, cache: Left, origin: Left) -> Found {
        (
            self.cache.cut(cache.plan().chooser()),
            self.origin.cut(origin.plan().chooser()),
            self.memory,
        )
    }

    /// Both disks after a kill of the process, with operations in flight completed or not.
    pub fn kill(&self, cache: Left, origin: Left) -> Found {
        (
            self.cache.kill(cache.plan().chooser()),
            self.origin.kill(origin.plan().chooser()),
            self.memory,
        )
    }
}

/// Everything except the process of the cache.
pub struct World {
    pub sim: Sim,
    pub cache: SimDisk,
    pub origin: SimDisk,
    pub host: Rc<Host>,
    pub mode: Mode,
    pub geometry: Geometry,
    /// The dirty limit, in percent.
    pub dirty_percent: Cell<u8>,
    /// When the mark of a flush is stable.
    pub strict_flush: Cell<StrictFlush>,
    pub policy: Cell<PolicyKind>,
    /// State after a crash of an opening.
    pub after_crash: Cell<AfterCrash>,
    /// Caches are opened without host records.
    pub alone: Cell<bool>,
    /// The last acknowledged write of each block that was written.
    pub versions: Rc<RefCell<BTreeMap<u64, u64>>>,
}

impl World {
    /// New disks and an empty cache. Both disks lose unflushed writes in a power cut.
    pub fn new(seed: u64, mode: Mode) -> Self {
        Self::sized(seed, mode, CACHE_LEN)
    }

    pub fn sized(seed: u64, mode: Mode, cache_len: u64) -> Self {
        Self::on(seed, mode, DiskConfig::fast(cache_len), 1)
    }

    /// A cache of several shards; the shard of a stripe is its number modulo the number of shards.
    pub fn shards(seed: u64, mode: Mode, count: u32) -> Self {
        Self::on(seed, mode, DiskConfig::fast(CACHE_LEN), count)
    }

    /// An origin that has grown since the cache was created.
    pub fn of_origin(seed: u64, mode: Mode, shards: u32, origin_len: u64) -> Self {
        Self::of(
            seed,
            mode,
            DiskConfig::fast(CACHE_LEN),
            shards,
            (origin_len, BLOCKS * BLOCK),
        )
    }

    /// A cache that serves all of an origin of this size.
    pub fn of_size(seed: u64, mode: Mode, shards: u32, origin_len: u64) -> Self {
        Self::of(
            seed,
            mode,
            DiskConfig::fast(CACHE_LEN),
            shards,
            (origin_len, origin_len),
        )
    }

    /// A cache device with this latency of flushes.
    pub fn with_flushes_of(seed: u64, mode: Mode, latency: Duration) -> Self {
        let cache = DiskConfig {
            flush_latency: latency..=latency,
            ..DiskConfig::fast(CACHE_LEN)
        };
        Self::on(seed, mode, cache, 1)
    }

    /// A cache device of any configuration.
    pub fn on(seed: u64, mode: Mode, cache: DiskConfig, shards: u32) -> Self {
        Self::of(seed, mode, cache, shards, (BLOCKS * BLOCK, BLOCKS * BLOCK))
    }

    /// An origin of the first size, of which the second is served.
    fn of(seed: u64, mode: Mode, cache: DiskConfig, shards: u32, (origin_len, served): (u64, u64)) -> Self {
        let origin = DiskConfig {
            background: Some(Arc::new(pristine)),
            ..DiskConfig::fast(origin_len)
        };
        let sim = Sim::new(seed);
        let env = sim.env();
        let cache = SimDisk::new(&env, cache);
        let origin = SimDisk::new(&env, origin);
        let mut wishes = options(1);
        let wish = GeometryOptions {
            shard_count: Some(shards),
            ..WISH
        };
        (wishes.wish, wishes.origin_len) = (wish.into(), served);
        let superblock = sim.block_on(create(&cache, wishes)).expect("fits");
        Self {
            sim,
            cache,
            origin,
            host: Rc::default(),
            mode,
            geometry: superblock.geometry,
            dirty_percent: Cell::new(flaz_engine::settings::DIRTY_PERCENT_DEFAULT),
            strict_flush: Cell::default(),
            policy: Cell::new(PolicyKind::Fifo),
            after_crash: Cell::new(AfterCrash::Warm),
            alone: Cell::new(false),
            versions: Rc::default(),
        }
    }

    /// Another boot of the machine; the acknowledged versions stay known.
    pub fn boot(&self, seed: u64, (cache, origin, memory): Found) -> Self {
        let sim = Sim::new(seed);
        let env = sim.env();
        Self {
            cache: SimDisk::from_image(&env, &cache),
            origin: SimDisk::from_image(&env, &origin),
            sim,
            host: Host::remembering(memory),
            mode: self.mode,
            geometry: self.geometry,
            dirty_percent: self.dirty_percent.clone(),
            strict_flush: self.strict_flush.clone(),
            policy: self.policy.clone(),
            after_crash: self.after_crash.clone(),
            alone: self.alone.clone(),
            versions: Rc::new(RefCell::new(self.versions.borrow().clone())),
        }
    }

    /// Another boot with both disks unchanged, after a kill of the process.
    pub fn reboot(&self, seed: u64) -> Self {
        self.sim.kill_tasks();
        self.cache.settle();
        self.origin.settle();
        self.boot(seed, self.now())
    }

    /// Both disks as readers see them.
    pub fn now(&self) -> Found {
        (self.cache.snapshot(), self.origin.snapshot(), self.host.memory())
    }

    pub fn settings(&self) -> Settings {
        Settings {
            mode: self.mode,
            policy: self.policy.get(),
            codec: "lz4".parse().expect("a codec"),
            sequential_cutoff: 0,
            dirty_percent: self.dirty_percent.get(),
            strict_flush: self.strict_flush.get(),
            write_budget: WriteBudget::None,
        }
    }

    pub async fn try_open(&self) -> Result<Live, CacheError> {
        let env = self.sim.env();
        // As the host does: if blocks may be dirty, there is no deadline for the device.
        let limit = (self.mode != Mode::WriteBack).then_some(TIMEOUT);
        let device = Deadline::new(self.cache.clone(), env.clone(), limit);
        let origin = AnyDevice::disk(&self.origin);
        let cache = LocalCache::<Simulated>::open_recorded(
            env.clone(),
            Rc::new(AnyDevice::Limited(device)),
            Rc::clone(&origin),
            self.settings(),
            self.after_crash.get(),
            (!self.alone.get()).then(|| Notes::of(&self.host, &env) as Rc<dyn HostRecords>),
        )
        .await?;
        let size = cache.superblock().geometry.origin_len;
        let volume = CachedVolume::new(cache.shards(), origin, size, 0);
        Ok(Live {
            env,
            cache,
            volume,
            versions: Rc::clone(&self.versions),
        })
    }

    /// Opens a cache that must open.
    pub async fn open(&self) -> Live {
        self.try_open().await.expect("the cache opens")
    }

    /// Opens the cache, and reads everything twice: each block must have the version written last.
    pub fn check(&self) -> StatsSnapshot {
        self.sim.block_on(async {
            let live = self.open().await;
            live.check_all().await;
            live.check_all().await;
            live.stats()
        })
    }

    /// Errors found by a check of the whole cache device.
    pub fn damage(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut visit = |finding: Finding, _: u64, _: u64| {
            if let Err(error) = finding.object {
                wrong.push(format!("{} at {}: {error}", finding.kind, finding.offset));
            }
        };
        self.sim.block_on(walk(&self.cache, &mut visit)).expect("a cache");
        wrong
    }

    /// Records all events at both disks from now on.
    pub fn watch(&self) -> Rc<RefCell<Vec<Moment>>> {
        let moments: Rc<RefCell<Vec<Moment>>> = Rc::default();
        let (noted, cache, origin) = (Rc::clone(&moments), self.cache.clone(), self.origin.clone());
        let host = Rc::clone(&self.host);
        self.sim.set_observer(move |event| {
            noted.borrow_mut().push(Moment {
                number: event.number,
                on_cache: event.disk == cache.number(),
                stage: event.stage,
                op: event.op,
                offset: event.offset,
                len: event.len,
                cache: cache.moment(),
                origin: origin.moment(),
                memory: host.memory(),
            });
        });
        moments
    }

    /// Makes the read of the cache device with this number wrong, once; the medium is intact. Counts the reads from now on.
    pub fn misread(&self, wrong: Option<(u64, Wrong)>) -> Rc<Cell<u64>> {
        let (number, wrong) = wrong.unwrap_or((0, Wrong::Zeroes));
        self.misread_each(number..number + 1, wrong)
    }

    /// The same for the reads of these numbers, the first of which is 1.
    pub fn misread_each(&self, numbers: Range<u64>, wrong: Wrong) -> Rc<Cell<u64>> {
        let (disk, reads) = (self.cache.clone(), Rc::new(Cell::new(0)));
        let (seen, right) = (Rc::clone(&reads), RefCell::new(None));
        self.sim.set_observer(move |event| {
            if event.disk != disk.number() || event.op != DeviceOp::Read {
                return;
            }
            if event.stage == EventStage::Issued {
                seen.set(seen.get() + 1);
                if numbers.contains(&seen.get()) {
                    let whole = disk.peek(event.offset, event.len as usize);
                    match wrong {
                        Wrong::Bit(part) => disk.flip_bit(event.offset + (event.len - 1) * part / 8, 1),
                        Wrong::Zeroes => disk.poke(event.offset, &vec![0; whole.len()]),
                    }
                    *right.borrow_mut() = Some((event.offset, whole));
                }
            } else if let Some((offset, whole)) =
                right.borrow_mut().take_if(|(offset, _)| *offset == event.offset)
            {
                disk.poke(offset, &whole);
            }
        });
        reads
    }

    pub fn unwatch(&self) {
        self.sim.set_observer(|_| {});
    }

    /// The version of a block on the origin, as readers see it.
    pub fn on_origin(&self, block: u64) -> u64 {
        version_of(block, &self.origin.peek(block * BLOCK, BLOCK as usize))
    }

    /// Whether an offset on the cache device is in the intent bitmap.
    pub fn in_intents(&self, offset: u64) -> bool {
        let start = self.geometry.intent_offset();
        (start..start + self.geometry.intent_len()).contains(&offset)
    }

    /// Whether an offset on the cache device is in the manifest.
    pub fn in_manifest(&self, offset: u64) -> bool {
        let start = self.geometry.manifest_offset();
        (start..start + self.geometry.manifest_len()).contains(&offset)
    }

    /// The manifest of the first shard on a cache device: for each sector, the copy that was written last.
    pub fn manifest(&self, cache: &DiskImage) -> Vec<ManifestEntry> {
        let geometry = &self.geometry;
        let sector_bytes = geometry.sector_bytes as usize;
        let superblock = cache.read(0, PAGE_BYTES);
        let cache_id = u32::from_le_bytes(superblock[24..28].try_into().expect("four bytes"));
        let sectors = (0..geometry.shard_manifest_sectors()).flat_map(|sector| {
            let number = geometry.manifest_sector_number(0, sector);
            let count = geometry.manifest_regions(sector).len();
            let copies = (0..2).filter_map(|copy| {
                let bytes = cache.read(geometry.manifest_sector_offset(0, sector, copy), sector_bytes);
                ManifestSector::parse(&bytes, cache_id, number, count, geometry.region_bytes).ok()
            });
            let newest = copies.max_by_key(ManifestSector::age);
            newest.expect("a sector of the manifest").entries
        });
        sectors.take(geometry.regions_per_shard as usize).collect()
    }

    /// Whether an offset on the cache device is in the regions.
    pub fn in_regions(&self, offset: u64) -> bool {
        offset >= self.geometry.data_offset()
    }
}

/// The smallest sizes.
const WISH: GeometryOptions = GeometryOptions {
    extent_bytes: Some(32 << 10),
    region_bytes: Some(128 << 10),
    shard_count: Some(1),
    threads: None,
    index_memory: None,
    dictionary_bytes: None,
};

/// Options of a cache; `number` distinguishes caches.
pub fn options(number: u128) -> CreateOptions {
    CreateOptions {
        uuid: Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_0000_0000 + (number << 96) + number),
        created_unix_s: 1_700_000_000,
        wish: WISH.into(),
        codec: CodecChoice::default(),
        origin_len: BLOCKS * BLOCK,
        origin_identity: "sim:origin".into(),
        origin_path: "/dev/slow".into(),
    }
}

/// A cache that is open, and its clients.
pub struct Live {
    pub env: SimEnv,
    pub cache: LocalCache<Simulated>,
    pub volume: SimulatedVolume,
    versions: Rc<RefCell<BTreeMap<u64, u64>>>,
}

impl Live {
    pub fn expected(&self, block: u64) -> u64 {
        self.versions.borrow().get(&block).copied().unwrap_or(0)
    }

    /// Reads a block and returns its version.
    pub async fn try_read(&self, block: u64) -> Result<u64, IoError> {
        let data = self.volume.read(block * BLOCK, BLOCK as u32).await?;
        Ok(version_of(block, &data[0]))
    }

    pub async fn read(&self, block: u64) {
        let version = self.try_read(block).await.expect("reads");
        assert_eq!(version, self.expected(block), "block {block} is stale");
    }

    /// Writes the next version of a block.
    pub async fn try_write(&self, block: u64) -> Result<u64, IoError> {
        self.try_write_fua(block, false).await
    }

    pub async fn try_write_fua(&self, block: u64, fua: bool) -> Result<u64, IoError> {
        let version = self.expected(block) + 1;
        let data = [IoBuf::copy_of(&contents(block, version))].into();
        self.volume.write(block * BLOCK, data, fua).await?;
        self.versions.borrow_mut().insert(block, version);
        Ok(version)
    }

    pub async fn write(&self, block: u64) {
        self.try_write(block).await.expect("writes");
    }

    pub async fn check_all(&self) {
        for block in 0..BLOCKS {
            self.read(block).await;
        }
    }

    pub fn is_cached(&self, block: u64) -> bool {
        let (shards, block) = (self.cache.shards(), flaz_engine::units::BlockNumber(block));
        let (number, _) = block.in_shard(shards.count());
        let shard = shards.iter().nth(number as usize).expect("its shard").clone();
        shard.is_cached(block)
    }

    /// Reads blocks into the cache, and waits until they are stored.
    pub async fn warm(&self, blocks: Range<u64>) {
        for first in blocks.clone().step_by(32) {
            let count = (blocks.end - first).min(32);
            self.volume
                .prefetch(first * BLOCK, count * BLOCK)
                .await
                .expect("the origin is well");
            self.stored().await;
        }
    }

    /// Waits until no admission is waiting.
    pub async fn stored(&self) {
        while self.stats().holdings.admission_queue > 0 && !self.stats().holdings.cache_failed {
            self.env.sleep(Duration::from_millis(1)).await;
        }
    }

    pub fn stats(&self) -> StatsSnapshot {
        self.cache.stats()
    }

    /// Number of dirty blocks.
    pub fn dirty(&self) -> u64 {
        self.stats().holdings.dirty_blocks
    }

    /// Waits for the writeback worker, without requesting writeback.
    pub async fn cleaned(&self) {
        for _ in 0..600 {
            if self.dirty() == 0 {
                return;
            }
            self.env.sleep(Duration::from_millis(100)).await;
        }
        panic!("{} blocks are dirty after a minute", self.dirty());
    }

    pub fn failed(&self) -> bool {
        self.stats().holdings.cache_failed
    }

    pub async fn stop(self) -> Result<Superblock, CacheError> {
        drop(self.volume);
        self.cache.stop().await
    }
}
