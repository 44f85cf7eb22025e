//! One life of a cache: opened on given disks, used, watched at every device event.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{Device, DeviceOp, Env, IoBuf};
use flaz_engine::cache::{CacheError, CreateOptions, LocalCache, create};
use flaz_engine::check::{Finding, Thing, walk};
use flaz_engine::codec::CodecSpec;
use flaz_engine::format::geometry::{PAGE_BYTES, SUPERBLOCK_SLOTS};
use flaz_engine::router::{CachedVolume, LocalShards};
use flaz_engine::settings::{AfterCrash, Mode, Settings};
use flaz_engine::shard::Platform;
use flaz_engine::stats::{Counts, StatsSnapshot};
use flaz_engine::volume::{IoError, Volume, segment_lens};
use flaz_engine::witness::Memory;
use flaz_sim::{
    DeviceEvent, DiskConfig, DiskImage, DiskMoment, EventStage, FaultRates, Halt, Sim, SimDisk, SimEnv,
};
use futures_util::future::{join_all, try_join_all};

use super::host::{Host, Notes};
use super::oracle::{Crash, Ground, Oracle, Spot};
use super::sectors::{BLOCK_SECTORS, Print, SECTOR, describe, print_of};
use super::workload::{Op, Place, Scenario, Shape, Step};

/// Steps of the executor after which a life counts as endless: about ten times what the longest takes.
const STEPS_MAX: u64 = 2_000_000;

/// Longest time that the host takes to note something.
const NOTE_TAKES_MAX: Duration = Duration::from_millis(20);

/// Where bits may rot: behind both superblocks, one of which must be well.
const ROT_FROM: u64 = SUPERBLOCK_SLOTS[1] + PAGE_BYTES as u64;

/// Times that the filler is run at most until the cache of a base is full.
const FILL_TURNS_MAX: u64 = 12;

pub struct Simulated;

impl Platform for Simulated {
    type Env = SimEnv;
    type Cache = SimDisk;
    type Origin = SimDisk;
}

/// Two disks and what is known of the exported device.
#[derive(Clone)]
pub struct Start {
    pub cache: DiskImage,
    pub origin: DiskImage,
    pub ground: Rc<Ground>,
    pub past: Past,
    /// What the host remembers.
    pub memory: Option<Memory>,
}

/// What came before, as far as it matters to what may be demanded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// The cache device has failed: structures may be missing for good reasons.
    pub damaged: bool,
    /// There was a crash: extents may be torn or missing.
    pub crashed: bool,
    /// The last thing was a clean stop: the next start is warm.
    pub stopped: bool,
    /// Writes were kept back at some time: what the cache device alone has can be lost with it.
    pub kept_back: bool,
    /// A device failed a flush in an earlier opening. What it has forgotten is still to be read, so that the cache has
    /// it again, and nobody who knows of the failure is left: of a power cut then nothing can be demanded.
    pub forgetful: bool,
}

/// A point at which a crash may differ from the one before.
pub struct Moment {
    /// Number of the device event.
    pub event: u64,
    /// What happened, for people.
    pub what: String,
    /// Tick of the oracle.
    pub tick: u64,
    /// What a crash here makes of the past.
    pub past: Past,
    /// A device failed a flush in this opening.
    pub flush_failed: bool,
    pub cache: DiskMoment,
    pub origin: DiskMoment,
    pub memory: Option<Memory>,
}

/// What happens in a life.
#[derive(Clone, Default)]
pub struct Script<'a> {
    pub seed: u64,
    /// Read everything twice before anything else.
    pub read_first: bool,
    /// Pack nothing: faster, where it is about other things.
    pub plain: bool,
    pub steps: &'a [Step],
    /// The mode at openings, if not that of the base.
    pub mode: Option<Mode>,
    /// Stop in order at the end, walk the cache device, open it again and read everything.
    pub stop: bool,
    /// Note every moment.
    pub watch: bool,
    /// Note the last moment.
    pub watch_end: bool,
    pub cache_faults: FaultRates,
    pub origin_faults: FaultRates,
    /// The host notes nothing.
    pub forgetful_host: bool,
}

/// A life that went as it should.
pub struct Life {
    pub oracle: Rc<Oracle>,
    pub moments: Vec<Moment>,
    /// Everything as it was read first (empty without `read_first`).
    pub first_seen: Vec<Print>,
    pub trace_hash: u64,
    pub steps: u64,
    /// The first opening was a warm one.
    pub warm: bool,
    /// What the engine counted.
    pub did: Counts,
}

impl Life {
    /// The disks as a power cut that loses nothing leaves them now, with what is known.
    pub fn into_start(self) -> Start {
        let ground = self.oracle.ground_at(self.oracle.now(), Crash::Kill);
        let end = self.moments.last().expect("the end is a moment");
        Start {
            cache: end.cache.cut(|_, _| true),
            origin: end.origin.cut(|_, _| true),
            ground: Rc::new(ground.settled()),
            past: end.past,
            memory: end.memory,
        }
    }
}

/// Lives a script.
///
/// # Errors
/// What was read and may not be, what could not be done, or that it does not end.
pub fn live(shape: &Shape, start: &Start, script: &Script<'_>) -> Result<Life, String> {
    let sim = Sim::new(script.seed);
    sim.set_parallelism(shape.cores);
    sim.set_step_limit(STEPS_MAX);
    let env = sim.env();
    let (cache, origin) = if script.watch || script.watch_end {
        (start.cache.clone(), start.origin.clone())
    } else {
        (
            start.cache.without_write_cache(),
            start.origin.without_write_cache(),
        )
    };
    let (cache, origin) = (
        Rc::new(SimDisk::from_image(&env, &cache)),
        Rc::new(SimDisk::from_image(&env, &origin)),
    );
    let oracle = Rc::new(Oracle::new(Rc::clone(&shape.spots), Rc::clone(&start.ground)));
    let past = Rc::new(Cell::new(start.past));
    let host = Host::remembering(start.memory);
    let watcher = Rc::new(Watcher {
        cache: Rc::clone(&cache),
        origin: Rc::clone(&origin),
        oracle: Rc::clone(&oracle),
        past: Rc::clone(&past),
        host: Rc::clone(&host),
        moments: RefCell::default(),
    });
    if script.watch {
        let watcher = Rc::clone(&watcher);
        sim.set_observer(move |event| watcher.event(event));
    }
    let mut life = Living {
        shape,
        script,
        env,
        cache: Rc::clone(&cache),
        origin: Rc::clone(&origin),
        oracle: Rc::clone(&oracle),
        past,
        host,
        warm: None,
        doing: "opening the cache",
        did: Counts::default(),
        first_seen: Vec::new(),
    };
    let outcome = sim.try_block_on(life.run());
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(error),
        Err(halt @ (Halt::Deadlock | Halt::StepLimit | Halt::CrashPoint)) => {
            return Err(format!("no progress while {}: {halt}", life.doing));
        }
    }
    let (first_seen, did) = (life.first_seen, life.did);
    let warm = life.warm == Some(true);
    if script.watch || script.watch_end {
        watcher.note(sim.events(), "the end".into());
    }
    let moments = std::mem::take(&mut *watcher.moments.borrow_mut());
    Ok(Life {
        oracle,
        moments,
        first_seen,
        trace_hash: sim.trace_hash(),
        steps: sim.steps(),
        warm,
        did,
    })
}

/// Notes moments.
struct Watcher {
    cache: Rc<SimDisk>,
    origin: Rc<SimDisk>,
    oracle: Rc<Oracle>,
    past: Rc<Cell<Past>>,
    host: Rc<Host>,
    moments: RefCell<Vec<Moment>>,
}

impl Watcher {
    /// Notes the moment if the event changes what a crash leaves.
    fn event(&self, event: &DeviceEvent) {
        let reads = matches!(event.op, DeviceOp::Read | DeviceOp::Status);
        if reads || event.op == DeviceOp::Flush && event.stage == EventStage::Issued {
            return;
        }
        let on_cache = event.disk == self.cache.number();
        let what = format!(
            "{:?} of {} at {}+{} of the {}",
            event.stage,
            event.op,
            event.offset,
            event.len,
            if on_cache { "cache" } else { "origin" }
        );
        self.note(event.number, what);
    }

    fn note(&self, event: u64, what: String) {
        let (past, stats) = (self.past.get(), self.cache.stats());
        let past = Past {
            damaged: past.damaged || stats.errors > 0 || stats.silent_faults > 0,
            crashed: past.crashed || !past.stopped,
            ..past
        };
        let flush_errors = stats.flush_errors + self.origin.stats().flush_errors;
        self.moments.borrow_mut().push(Moment {
            flush_failed: flush_errors > 0,
            event,
            what,
            tick: self.oracle.now(),
            past,
            cache: self.cache.moment(),
            origin: self.origin.moment(),
            memory: self.host.memory(),
        });
    }
}

struct Living<'a> {
    shape: &'a Shape,
    script: &'a Script<'a>,
    env: SimEnv,
    cache: Rc<SimDisk>,
    origin: Rc<SimDisk>,
    oracle: Rc<Oracle>,
    past: Rc<Cell<Past>>,
    host: Rc<Host>,
    warm: Option<bool>,
    /// For a life that does not end.
    doing: &'static str,
    did: Counts,
    first_seen: Vec<Print>,
}

/// What the clients of one opening share.
struct Opening {
    env: SimEnv,
    /// Not there while it is being told that writes may be kept back.
    cache: RefCell<Option<LocalCache<Simulated>>>,
    shards: LocalShards<Simulated>,
    volume: CachedVolume<LocalShards<Simulated>, SimDisk>,
    oracle: Rc<Oracle>,
    spots: Rc<[Spot]>,
    settings: RefCell<Settings>,
    trim_gives: Print,
    /// Sectors that the origin writes at least.
    origin_sectors: u64,
    /// The devices, and what was before: an error must have its reason.
    disk: Rc<SimDisk>,
    origin: Rc<SimDisk>,
    past: Rc<Cell<Past>>,
    /// Something was to be stable on return.
    asked_fua: Cell<bool>,
    /// The first thing that went wrong.
    failure: Cell<Option<String>>,
}

impl Living<'_> {
    async fn run(&mut self) -> Result<(), String> {
        let Some(mut opening) = self.open().await? else {
            return Ok(());
        };
        self.doing = "reading everything";
        if self.script.read_first {
            self.first_seen = opening.read_all().await?;
            opening.stored().await;
            opening.read_all().await?;
            if self.script.seed.is_multiple_of(2) {
                // What is cached clean must be what the origin has.
                opening.carry_out(Op::Mode(Mode::PassThrough)).await?;
                opening.read_all().await?;
                opening.carry_out(Op::Mode(self.settings().mode)).await?;
            }
        }
        let last_phase = self.script.steps.iter().map(|step| step.phase).max().unwrap_or(0);
        for phase in 0..=last_phase {
            if phase > 0 {
                if !self.stop(opening).await? {
                    return Ok(());
                }
                opening = match self.open().await? {
                    Some(opening) => opening,
                    None => return Ok(()),
                };
            }
            opening = self.phase(opening, phase).await?;
        }
        if self.script.stop {
            opening.read_all().await?;
            if self.stop(opening).await?
                && let Some(opening) = self.open().await?
            {
                opening.read_all().await?;
                self.stop(opening).await?;
            }
        }
        Ok(())
    }

    /// Those of an opening.
    fn settings(&self) -> Settings {
        let usual = &self.shape.settings;
        Settings {
            mode: self.script.mode.unwrap_or(usual.mode),
            ..usual.clone()
        }
    }

    /// Opens the cache; `None`: it is damaged and refuses.
    async fn open(&mut self) -> Result<Option<Opening>, String> {
        let (cache, origin) = (Rc::clone(&self.cache), Rc::clone(&self.origin));
        let mut settings = self.settings();
        if self.script.plain {
            settings.codec = "none".parse().expect("a codec");
        }
        // A device that fails at the start is another matter: the cache does not open.
        self.cache.set_faults(FaultRates::default());
        self.origin.set_faults(FaultRates::default());
        let flush_errors = self.cache.stats().flush_errors + self.origin.stats().flush_errors;
        let past = self.past.get();
        self.past.set(Past {
            stopped: false,
            kept_back: past.kept_back || settings.mode == Mode::WriteBack,
            forgetful: past.forgetful || flush_errors > 0,
            ..past
        });
        self.host.broken.set(self.script.forgetful_host);
        self.host.takes.set(NOTE_TAKES_MAX);
        let cache = LocalCache::open_witnessed(
            self.env.clone(),
            cache,
            Rc::clone(&origin),
            settings.clone(),
            AfterCrash::Warm,
            Some(Notes::of(&self.host, &self.env)),
        );
        let cache = match cache.await {
            Ok(cache) => cache,
            // Rather no service than old data.
            Err(CacheError::DirtyUnreadable { .. }) if past.damaged && past.kept_back => return Ok(None),
            Err(error) => return Err(format!("the cache does not open: {error}")),
        };
        let stopped = matches!(cache.start, flaz_engine::cache::Start::Warm(_));
        let warm = cache.stats().holdings.cached_blocks > 0;
        if past.stopped && !past.damaged && !stopped {
            return Err(format!("after a clean stop the cache starts {:?}", cache.start));
        }
        self.warm.get_or_insert(warm);
        self.cache.set_faults(self.script.cache_faults);
        self.origin.set_faults(self.script.origin_faults);
        let volume = CachedVolume::new(
            cache.shards(),
            origin,
            self.shape.origin_len,
            settings.sequential_cutoff,
        );
        Ok(Some(Opening {
            env: self.env.clone(),
            shards: cache.shards(),
            cache: RefCell::new(Some(cache)),
            volume,
            oracle: Rc::clone(&self.oracle),
            spots: Rc::clone(&self.shape.spots),
            settings: RefCell::new(settings),
            trim_gives: match self.shape.origin_discard {
                flaz_sim::DiscardMode::Zero => Print::ZERO,
                _ => Print::ANY,
            },
            origin_sectors: u64::from(self.shape.origin_alignment) / SECTOR as u64,
            disk: Rc::clone(&self.cache),
            origin: Rc::clone(&self.origin),
            past: Rc::clone(&self.past),
            asked_fua: Cell::new(false),
            failure: Cell::new(None),
        }))
    }

    async fn phase(&mut self, opening: Opening, phase: u32) -> Result<Opening, String> {
        self.doing = "clients are at work";
        let clients = self
            .script
            .steps
            .iter()
            .map(|step| step.client + 1)
            .max()
            .unwrap_or(0);
        let opening = Rc::new(opening);
        let all = (0..clients).map(|client| {
            let mine = self.script.steps.iter();
            let ops = mine
                .filter(|step| step.phase == phase && step.client == client)
                .map(|step| step.op);
            client_task(Rc::clone(&opening), ops.collect())
        });
        join_all(all.collect::<Vec<_>>()).await;
        let opening = Rc::try_unwrap(opening).unwrap_or_else(|_| unreachable!("all clients have ended"));
        self.did.add(&opening.stats().counts);
        match opening.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(opening),
        }
    }

    /// Stops the cache; false: it could not be stopped in order, for a device failed.
    async fn stop(&mut self, opening: Opening) -> Result<bool, String> {
        let Opening { cache, volume, .. } = opening;
        drop(volume);
        let (disk, past) = (self.cache.stats(), self.past.get());
        let cache = cache.take().expect("no client is left");
        let failed = cache.stats().counts.checksum_failures;
        if failed > 0 && disk.silent_faults == 0 && !past.damaged && !past.crashed {
            return Err(format!(
                "{failed} checksums fail on a device that is well, without a crash"
            ));
        }
        self.doing = "stopping the cache";
        let stopped = cache.stop().await;
        self.doing = "going on after a stop";
        let faults = self.cache.stats().errors > 0;
        match stopped {
            Ok(_) => {}
            Err(_) if faults || past.damaged || self.origin.stats().errors > 0 => return Ok(false),
            Err(error) => return Err(format!("the cache does not stop: {error}")),
        }
        let damaged = past.damaged || faults || self.cache.stats().silent_faults > 0;
        self.past.set(Past {
            damaged,
            stopped: true,
            ..past
        });
        if damaged {
            return Ok(true);
        }
        self.cache.set_faults(FaultRates::default());
        let mut wrong = Vec::new();
        let mut note = |finding: Finding, _, _| {
            let torn =
                past.crashed && !["superblock", "intent-sector", "index-image"].contains(&&*finding.kind);
            if let Err(error) = &finding.thing
                && !torn
            {
                wrong.push(format!("{} at {}: {error}", finding.kind, finding.offset));
            }
        };
        walk(&*self.cache, &mut note)
            .await
            .map_err(|error| format!("the cache cannot be walked: {error}"))?;
        match wrong.first() {
            Some(first) => Err(format!(
                "after a clean stop, {} findings, the first: {first}",
                wrong.len()
            )),
            None => Ok(true),
        }
    }
}

async fn client_task(opening: Rc<Opening>, ops: Vec<Op>) {
    for op in ops {
        if let Err(failure) = opening.carry_out(op).await {
            opening.failure.set(Some(format!("{op:?}: {failure}")));
            return;
        }
    }
}

impl Opening {
    fn sectors(&self, place: Place) -> (u64, u64) {
        (self.spots[place.spot].first + place.first, place.count)
    }

    async fn carry_out(&self, op: Op) -> Result<(), String> {
        match op {
            Op::Write { place, version, fua } => {
                let (sector, count) = self.sectors(place);
                let mut data = vec![0; count as usize * SECTOR];
                super::sectors::fill(sector, version, &mut data);
                let mut rest = &data[..];
                let segments = segment_lens(sector * SECTOR as u64, data.len() as u64).map(|len| {
                    let (head, tail) = rest.split_at(len);
                    rest = tail;
                    IoBuf::copy_of(head)
                });
                let segments = segments.collect();
                let writing = self.volume.write(sector * SECTOR as u64, segments, fua);
                let print = Print::of_version(version);
                self.change(sector, count, print, fua, writing).await
            }
            Op::Trim { place, fua } => {
                let (sector, count) = self.sectors(place);
                let (offset, len) = (sector * SECTOR as u64, count * SECTOR as u64);
                let trimming = self.volume.trim(offset, len, fua);
                // What the origin cannot trim stays as it is.
                let first = sector.next_multiple_of(self.origin_sectors);
                let count = (sector + count) / self.origin_sectors * self.origin_sectors;
                let count = count.saturating_sub(first);
                self.change(first, count, self.trim_gives, fua, trimming).await
            }
            Op::WriteZeroes {
                place,
                may_unmap,
                fua,
            } => {
                let (sector, count) = self.sectors(place);
                let (offset, len) = (sector * SECTOR as u64, count * SECTOR as u64);
                let zeroing = self.volume.write_zeroes(offset, len, may_unmap, fua);
                self.change(sector, count, Print::ZERO, fua, zeroing).await
            }
            Op::Read { place } => {
                let (sector, count) = self.sectors(place);
                self.read(sector, count).await.map(|_| ())
            }
            Op::Ballast { sector, count } => {
                let (offset, len) = (sector * SECTOR as u64, count * SECTOR as u64);
                let failed_before = self.origin.stats().errors;
                let segments = match self.volume.read(offset, len as u32).await {
                    Ok(segments) => segments,
                    Err(error) => return self.may_fail(&error, failed_before),
                };
                let sectors = segments.iter().flat_map(|segment| segment.chunks_exact(SECTOR));
                for (sector, bytes) in (sector..).zip(sectors) {
                    if print_of(sector, bytes) != Print::of_version(0) {
                        return Err(format!("sector {sector} reads as {}", describe(sector, bytes)));
                    }
                }
                Ok(())
            }
            Op::Prefetch { place } => {
                let (sector, count) = self.sectors(place);
                let (offset, len) = (sector * SECTOR as u64, count * SECTOR as u64);
                let failed_before = self.origin.stats().errors;
                let result = self.volume.prefetch(offset, len).await;
                result.or_else(|error| self.may_fail(&error, failed_before))
            }
            Op::Flush => {
                let start = self.oracle.flush_starts();
                match self.volume.flush().await {
                    Ok(()) => self.oracle.flush_ends(start),
                    Err(error) => {
                        if matches!(error, IoError::Origin(_)) {
                            self.oracle.flush_fails(start);
                        }
                        self.flush_may_fail(&error)?;
                    }
                }
                Ok(())
            }
            Op::Clean => {
                let failed_before = self.origin.stats().errors;
                let mut result = Ok(());
                for shard in self.shards.iter() {
                    result = result.and(shard.clean_all().await);
                }
                result.or_else(|error| self.may_fail(&error, failed_before))
            }
            Op::Mode(mode) => {
                if mode == Mode::WriteBack && !self.permit_write_back().await? {
                    return Ok(());
                }
                self.set(|settings| settings.mode = mode);
                Ok(())
            }
            Op::Rot { ppm } => {
                self.past.set(Past {
                    damaged: true,
                    ..self.past.get()
                });
                let room = self.disk.len() - ROT_FROM;
                self.disk.flip_bit(ROT_FROM + room * ppm / 1_000_000, ppm as u8);
                Ok(())
            }
            Op::Policy(policy) => {
                self.set(|settings| settings.policy = policy);
                Ok(())
            }
            Op::Cutoff { bytes } => {
                self.volume.set_sequential_cutoff(bytes);
                Ok(())
            }
            Op::Pause { us } => {
                self.env.sleep(Duration::from_micros(us)).await;
                Ok(())
            }
        }
    }

    fn set(&self, change: impl FnOnce(&mut Settings)) {
        let mut settings = self.settings.borrow_mut();
        change(&mut settings);
        self.shards.iter().for_each(|shard| shard.set(&settings));
    }

    /// As whoever changes the mode must; false: the cache device cannot be told.
    async fn permit_write_back(&self) -> Result<bool, String> {
        let mut cache = loop {
            let cache = self.cache.take();
            match cache {
                Some(cache) => break cache,
                None => self.env.sleep(Duration::from_millis(1)).await,
            }
        };
        self.past.set(Past {
            kept_back: true,
            ..self.past.get()
        });
        let permitted = cache.permit_write_back().await;
        *self.cache.borrow_mut() = Some(cache);
        match permitted {
            Ok(()) => Ok(true),
            Err(CacheError::Device(_)) if self.disk.stats().errors > 0 => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    fn stats(&self) -> StatsSnapshot {
        let mut total = StatsSnapshot::default();
        self.shards.iter().for_each(|shard| total.add(&shard.stats()));
        total
    }

    async fn change(
        &self,
        sector: u64,
        count: u64,
        print: Print,
        fua: bool,
        doing: impl Future<Output = Result<(), IoError>>,
    ) -> Result<(), String> {
        let failed_before = self.origin.stats().errors;
        let writing = self.oracle.write_starts(sector, count, print);
        self.asked_fua.set(self.asked_fua.get() || fua);
        match doing.await {
            Ok(()) => self.oracle.write_ends(&writing, fua),
            Err(error) => {
                self.oracle.write_fails(&writing);
                self.may_fail(&error, failed_before)?;
            }
        }
        Ok(())
    }

    /// Whether a request that began when the origin had failed `failed_before` times may fail so: because the origin
    /// failed meanwhile; or, where blocks may be dirty, because the cache device is damaged, or the origin does not take
    /// them.
    fn may_fail(&self, error: &IoError, failed_before: u64) -> Result<(), String> {
        let (disk, origin, past) = (self.disk.stats(), self.origin.stats(), self.past.get());
        let damaged = past.damaged || disk.errors > 0 || disk.silent_faults > 0;
        let explained = match error {
            IoError::Origin(_) | IoError::OriginShared => origin.errors > failed_before,
            IoError::DirtyLost { .. } => past.kept_back && damaged,
            IoError::CacheFailed(_) => past.kept_back && (damaged || origin.errors > 0),
            IoError::OutOfRange { .. } | IoError::Stopping => false,
        };
        if explained { Ok(()) } else { Err(error.to_string()) }
    }

    /// The same for a flush: it is told also of failures of flushes that somebody else had asked for, or nobody. A write
    /// with FUA is one, for all that is known of how devices make it stable.
    fn flush_may_fail(&self, error: &IoError) -> Result<(), String> {
        let stats = self.origin.stats();
        let flush_failed = stats.flush_errors > 0 || (self.asked_fua.get() && stats.errors > 0);
        match error {
            IoError::Origin(_) if flush_failed => Ok(()),
            error => self.may_fail(error, u64::MAX),
        }
    }

    async fn read(&self, sector: u64, count: u64) -> Result<Vec<Print>, String> {
        let start = self.oracle.read_starts();
        let failed_before = self.origin.stats().errors;
        let (offset, len) = (sector * SECTOR as u64, count * SECTOR as u64);
        let segments = match self.volume.read(offset, len as u32).await {
            Ok(segments) => segments,
            Err(error) => {
                self.may_fail(&error, failed_before)?;
                return Ok(vec![Print::ANY; count as usize]);
            }
        };
        let mut seen = Vec::with_capacity(count as usize);
        let mut at = sector;
        for segment in &segments {
            self.oracle.read_ends(start, at, segment, &mut seen)?;
            at += (segment.len() / SECTOR) as u64;
        }
        if at == sector + count {
            Ok(seen)
        } else {
            Err(format!("a read of {count} sectors gave {}", at - sector))
        }
    }

    /// Reads everything that the workload uses.
    async fn read_all(&self) -> Result<Vec<Print>, String> {
        let reads = self.spots.iter().map(|spot| self.read(spot.first, spot.count));
        Ok(try_join_all(reads).await?.into_iter().flatten().collect())
    }

    /// Waits until nothing waits to be stored.
    async fn stored(&self) {
        while self.stats().holdings.admission_queue > 0 {
            self.env.sleep(Duration::from_millis(1)).await;
        }
    }
}

/// What the extents on a cache device say about a block, for people.
pub fn records_of(start: &Start, block: u64) -> Vec<String> {
    let sim = Sim::new(0);
    let disk = SimDisk::from_image(&sim.env(), &start.cache.without_write_cache());
    let (mut told, mut extent, mut intents) = (Vec::new(), String::new(), 0);
    let mut note = |finding: Finding, _, _| match &finding.thing {
        Ok(Thing::Intents { set, .. }) => intents = *set,
        Ok(Thing::Index { shard, .. }) => told.push(format!("an index image of shard {shard}")),
        Ok(Thing::Extent(header)) => {
            extent = format!(
                "extent at {} of {} bytes, {}, fill {:#x}, sequence {:#x}, epoch {}",
                finding.offset,
                header.extent_bytes,
                header.ring,
                header.fill.0,
                header.sequence.0,
                header.epoch.0
            );
        }
        Ok(
            Thing::Fragment { block: found, .. }
            | Thing::Fill { block: found, .. }
            | Thing::Tombstone { block: found }
            | Thing::Cleaned { block: found },
        ) if found.0 == block => {
            told.push(format!("{} in {extent}", finding.kind));
        }
        _ => {}
    };
    let walked = sim.block_on(walk(&disk, &mut note));
    let first = block * BLOCK_SECTORS;
    let bytes = start
        .origin
        .read(first * SECTOR as u64, BLOCK_SECTORS as usize * SECTOR);
    let sectors = (first..).zip(bytes.chunks_exact(SECTOR));
    let prints: Vec<String> = sectors
        .map(|(sector, bytes)| print_of(sector, bytes).to_string())
        .collect();
    told.push(format!("the origin has {}", prints.join(", ")));
    told.insert(
        0,
        match walked {
            Ok(superblock) => format!(
                "{:?}, epoch {}, {intents} intents set",
                superblock.state, superblock.epoch.0
            ),
            Err(error) => error.to_string(),
        },
    );
    told
}

/// A filled cache, stopped in order.
///
/// # Errors
/// As [`live`].
pub fn filled(base: u64, shape: &Shape) -> Result<Start, String> {
    let sim = Sim::new(base);
    let origin_config = DiskConfig {
        alignment: shape.origin_alignment,
        discard_mode: shape.origin_discard,
        background: Some(std::sync::Arc::new(|page, bytes| {
            super::sectors::fill(page * super::sectors::BLOCK_SECTORS, 0, bytes);
        })),
        ..DiskConfig::slow(shape.origin_len)
    };
    let disk = SimDisk::new(&sim.env(), DiskConfig::fast(shape.cache_len));
    let options = CreateOptions {
        uuid: uuid::Uuid::from_u128(u128::from(base) << 64 | 0xf1a2),
        created_unix_s: 0,
        wish: shape.wish,
        codec: CodecSpec::default(),
        origin_len: shape.origin_len,
        origin_identity: "sim".into(),
        origin_path: "sim".into(),
    };
    sim.block_on(create(&disk, options))
        .map_err(|error| error.to_string())?;
    let mut start = Start {
        cache: disk.snapshot(),
        origin: DiskImage::new(origin_config),
        ground: Rc::new(Ground::known(&shape.spots, |_| Print::of_version(0))),
        past: Past::default(),
        memory: None,
    };
    for turn in 0..FILL_TURNS_MAX {
        let filler = Scenario::filler(base, turn, shape);
        let script = Script {
            seed: filler.seed,
            steps: &filler.steps,
            stop: true,
            watch_end: true,
            ..Script::default()
        };
        let life = live(shape, &start, &script)?;
        let full = life.did.reclaimed_blocks > 0;
        start = life.into_start();
        if full {
            break;
        }
    }
    Ok(start)
}
