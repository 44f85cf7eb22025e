//! One life of a cache: opened on given disks, used, watched at every device event.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{DeviceOp, Env, Load, Nanos};
use flaz_engine::cache::{CacheError, LocalCache};
use flaz_engine::check::{Finding, walk};
use flaz_engine::host_record::HostRecord;
use flaz_engine::policy::PolicyKind;
use flaz_engine::router::CachedVolume;
use flaz_engine::settings::{AfterCrash, Mode, Settings};
use flaz_engine::stats::Counts;
#[cfg(feature = "planted-bugs")]
use flaz_sim::rng::splitmix;
use flaz_sim::{DeviceEvent, DiskImage, DiskMoment, EventStage, FaultRates, Halt, Rng, Sim, SimDisk, SimEnv};
use futures_util::future::{join, join_all};

use crate::host::{Host, Notes};
use crate::platform::{AnyDevice, Simulated};

use super::damage::{Damage, damage, damage_newest};
use super::opening::{Opening, StoredPolicy, StoredSize, client_task};
use super::oracle::{Crash, Ground, Oracle};
use super::sectors::{Print, SECTOR};
use super::workload::{Op, Shape, Step};

/// Executor steps after which a life counts as endless: about ten times the longest one.
const STEPS_MAX: u64 = 2_000_000;

/// Longest time that the host takes to write a record.
const NOTE_TAKES_MAX: Duration = Duration::from_millis(20);

/// Two disks and the known contents of the exported device.
#[derive(Clone)]
pub struct Start {
    pub cache: DiskImage,
    pub origin: DiskImage,
    pub ground: Rc<Ground>,
    pub past: Past,
    /// The host record.
    pub memory: Option<HostRecord>,
    /// The policies that may be stored in the superblock.
    pub policies: Vec<Option<PolicyKind>>,
    /// The sizes of the origin that may be stored.
    pub sizes: Vec<u64>,
}

/// Earlier events that affect what may be demanded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// The cache device has failed: structures may be missing for that reason.
    pub damaged: bool,
    /// It has failed in such a way that the next opening may refuse to continue without the missing data: while it was
    /// served, or silently. (A failed opening has changed nothing, and damage to a closed region hides nothing else.)
    pub unfit: bool,
    /// It has permanent damage.
    pub rotten: bool,
    /// There was a crash: extents may be torn or missing.
    pub crashed: bool,
    /// The last event was a clean stop: the next start is warm.
    pub stopped: bool,
    /// The cache was in write-back at some time: data that only the cache device has can be lost with it.
    pub kept_back: bool,
    /// A device failed a flush in an earlier opening. The lost data can still be read, so the cache may have it again, and
    /// no client knows of the failure any more: after a power cut nothing can be demanded then.
    pub forgetful: bool,
    /// The process may have ended before the mark of its last flush was due, and no opening has succeeded since.
    pub unmarked: bool,
}

/// A point at which a crash may differ from the one before.
pub struct Moment {
    /// Number of the device event.
    pub event: u64,
    /// The event, in words.
    pub what: String,
    /// Tick of the oracle.
    pub tick: u64,
    /// Virtual time.
    pub time: Nanos,
    /// The past after a crash here.
    pub past: Past,
    /// A device failed a flush in this opening.
    pub flush_failed: bool,
    pub cache: DiskMoment,
    pub origin: DiskMoment,
    pub memory: Option<HostRecord>,
    pub policies: Vec<Option<PolicyKind>>,
    pub sizes: Vec<u64>,
}

/// The events of a life.
#[derive(Clone, Default)]
pub struct Script<'a> {
    pub seed: u64,
    /// Read everything twice before anything else.
    pub read_first: bool,
    /// Compress nothing: faster, if compression does not matter.
    pub plain: bool,
    pub steps: &'a [Step],
    /// The mode at openings, if not that of the base.
    pub mode: Option<Mode>,
    /// Stop cleanly at the end, check the cache device, open it again and read everything.
    pub stop: bool,
    /// The first of these stops does not wait for the clients.
    pub stop_beside: bool,
    /// Record every moment.
    pub watch: bool,
    /// Record the last moment.
    pub watch_end: bool,
    pub cache_faults: FaultRates,
    pub origin_faults: FaultRates,
    /// While the cache is opened.
    pub opening_faults: Option<OpeningFaults>,
    /// Done to the cache device before anything else.
    pub damage: Option<Damage>,
    /// The host keeps no records.
    pub forgetful_host: bool,
}

/// Faults while a cache is opened.
#[derive(Clone, Copy, Debug)]
pub struct OpeningFaults {
    pub cache: FaultRates,
    pub origin: FaultRates,
}

/// Counts of events that not every life has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Openings that succeeded although devices failed.
    pub opened_failing: u64,
    /// Openings that failed because devices failed.
    pub refused: u64,
    /// Lives after a crash in which devices failed while the cache was served.
    pub failing_lives: u64,
    /// Lives that began with damage.
    pub damaged_starts: u64,
    /// Damaged starts in which an extent of an open region was damaged.
    pub damaged_newest: u64,
    /// Damage while the cache was served.
    pub damages: u64,
    /// Stops with requests in flight.
    pub stops_beside: u64,
    /// Caches that were marked as not dirty while they were served.
    pub withdrawn: u64,
    /// Caches that grew while they were served.
    pub grown: u64,
    /// Caches that shrank while they were served.
    pub shrunk: u64,
    /// Shrinks that were called off.
    pub shrinks_called_off: u64,
    /// Larger origins that were taken over.
    pub origins_grown: u64,
}

impl Kinds {
    pub fn add(&mut self, other: &Self) {
        self.opened_failing += other.opened_failing;
        self.refused += other.refused;
        self.failing_lives += other.failing_lives;
        self.damaged_starts += other.damaged_starts;
        self.damaged_newest += other.damaged_newest;
        self.damages += other.damages;
        self.stops_beside += other.stops_beside;
        self.withdrawn += other.withdrawn;
        self.grown += other.grown;
        self.shrunk += other.shrunk;
        self.shrinks_called_off += other.shrinks_called_off;
        self.origins_grown += other.origins_grown;
    }
}

/// A life without violations.
pub struct Life {
    pub oracle: Rc<Oracle>,
    pub moments: Vec<Moment>,
    /// The first values read (empty without `read_first`).
    pub first_seen: Vec<Print>,
    pub trace_hash: u64,
    pub steps: u64,
    /// The first opening was warm.
    pub warm: bool,
    /// The engine's counts.
    pub did: Counts,
    pub kinds: Kinds,
    /// It ended with an opening that failed because of the devices.
    pub refused: bool,
    /// Devices failed while the cache was served.
    pub failed: bool,
    /// How much longer some operations of the cache device took.
    pub stall: Duration,
}

impl Life {
    /// The disks as after a power cut that loses nothing now, with their known contents.
    pub fn into_start(self) -> Start {
        let ground = self.oracle.ground_at(self.oracle.now(), Crash::Kill);
        let end = self.moments.last().expect("the end is a moment");
        Start {
            cache: end.cache.cut(|_, _| true),
            origin: end.origin.cut(|_, _| true),
            ground: Rc::new(ground.settled()),
            past: end.past,
            memory: end.memory,
            policies: end.policies.clone(),
            sizes: end.sizes.clone(),
        }
    }
}

/// Runs a script.
///
/// # Errors
/// Data that must not be read, an operation that failed without a reason, or a life that does not end.
pub fn live(shape: &Shape, start: &Start, script: &Script<'_>) -> Result<Life, String> {
    let sim = Sim::new(script.seed);
    sim.set_parallelism(shape.cores);
    sim.set_load(match script.seed % 12 {
        // Then groups move as they are.
        1 | 4 | 7 | 10 => Load::High,
        2 | 6 => Load::Low,
        _ => Load::Medium,
    });
    #[cfg(feature = "planted-bugs")]
    flaz_engine::planted::recover_by_passes(entries_of_a_pass(script.seed));
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
    if script.cache_faults.allocate_no_space_ppm > 0 {
        cache.set_space(u64::MAX);
    }
    let oracle = Rc::new(Oracle::new(Rc::clone(&shape.spots), Rc::clone(&start.ground)));
    let past = Rc::new(Cell::new(start.past));
    let host = Host::remembering(start.memory);
    let opening = Rc::new(Cell::new(true));
    let stored_policy = Rc::new(StoredPolicy::known(&start.policies));
    let stored_size = Rc::new(StoredSize::known(&start.sizes));
    let watcher = Rc::new(Watcher {
        env: env.clone(),
        cache: Rc::clone(&cache),
        origin: Rc::clone(&origin),
        oracle: Rc::clone(&oracle),
        past: Rc::clone(&past),
        host: Rc::clone(&host),
        opening: Rc::clone(&opening),
        stored_policy: Rc::clone(&stored_policy),
        stored_size: Rc::clone(&stored_size),
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
        opening,
        stored_policy,
        stored_size,
        warm: None,
        doing: "opening the cache",
        did: Counts::default(),
        kinds: Kinds::default(),
        refused: false,
        opening_errors: 0,
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
    let (first_seen, did, kinds, refused) = (life.first_seen, life.did, life.kinds, life.refused);
    let failed = cache.stats().errors + origin.stats().errors > life.opening_errors;
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
        kinds,
        refused,
        failed,
        stall: match script.cache_faults.stall_ppm {
            0 => Duration::ZERO,
            _ => script.cache_faults.stall,
        },
    })
}

/// Half of the lives recover by passes, as if their index were larger than memory.
#[cfg(feature = "planted-bugs")]
fn entries_of_a_pass(seed: u64) -> Option<usize> {
    match splitmix(seed ^ 0x9a55) % 4 {
        0 => Some(16),
        1 => Some(60),
        _ => None,
    }
}

/// Records moments.
struct Watcher {
    env: SimEnv,
    cache: Rc<SimDisk>,
    origin: Rc<SimDisk>,
    oracle: Rc<Oracle>,
    past: Rc<Cell<Past>>,
    host: Rc<Host>,
    /// The cache is being opened.
    opening: Rc<Cell<bool>>,
    stored_policy: Rc<StoredPolicy>,
    stored_size: Rc<StoredSize>,
    moments: RefCell<Vec<Moment>>,
}

impl Watcher {
    /// Records the moment if the event changes the state after a crash.
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
        let failed = stats.silent_faults > 0 || stats.errors > 0 && !self.opening.get();
        let past = Past {
            damaged: past.damaged || failed,
            unfit: past.unfit || failed,
            crashed: past.crashed || !past.stopped,
            ..past
        };
        let flush_errors = stats.flush_errors + self.origin.stats().flush_errors;
        self.moments.borrow_mut().push(Moment {
            flush_failed: flush_errors > 0,
            event,
            what,
            tick: self.oracle.now(),
            time: self.env.now(),
            past,
            cache: self.cache.moment(),
            origin: self.origin.moment(),
            memory: self.host.memory(),
            policies: self.stored_policy.may_be(),
            sizes: self.stored_size.may_be(),
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
    opening: Rc<Cell<bool>>,
    stored_policy: Rc<StoredPolicy>,
    stored_size: Rc<StoredSize>,
    warm: Option<bool>,
    /// The current activity, for a life that does not end.
    doing: &'static str,
    did: Counts,
    kinds: Kinds,
    refused: bool,
    /// Errors of both devices while the cache was opened.
    opening_errors: u64,
    first_seen: Vec<Print>,
}

impl Living<'_> {
    async fn run(&mut self) -> Result<(), String> {
        let newest = matches!(self.script.damage, Some(Damage::Newest(_)));
        let damaged = match self.script.damage {
            Some(Damage::Closed(pick)) => damage(&self.cache, pick),
            Some(Damage::Newest(pick)) => damage_newest(&self.cache, pick),
            None => false,
        };
        if damaged {
            self.kinds.damaged_starts += 1;
            self.kinds.damaged_newest += u64::from(newest);
            let past = self.past.get();
            self.past.set(Past {
                damaged: true,
                rotten: true,
                unfit: past.unfit || newest,
                ..past
            });
        }
        let Some(mut opening) = self.open().await? else {
            return Ok(());
        };
        self.doing = "reading everything";
        if self.script.read_first {
            self.first_seen = opening.read_all().await?;
            opening.stored().await;
            opening.read_all().await?;
            if self.script.seed.is_multiple_of(2) {
                // Clean cached data must be equal to the origin's.
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
            if phase == last_phase && self.script.stop && self.script.stop_beside {
                if !self.stop_beside(opening, phase).await? {
                    return Ok(());
                }
                opening = match self.open().await? {
                    Some(opening) => opening,
                    None => return Ok(()),
                };
            } else {
                opening = self.phase(opening, phase).await?;
            }
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

    /// The settings of an opening.
    fn settings(&self) -> Settings {
        let usual = &self.shape.settings;
        Settings {
            mode: self.script.mode.unwrap_or(usual.mode),
            ..usual.clone()
        }
    }

    /// Opens the cache; `None`: it is damaged and the opening is refused.
    async fn open(&mut self) -> Result<Option<Opening>, String> {
        let (cache, origin) = (AnyDevice::disk(&self.cache), AnyDevice::disk(&self.origin));
        let mut settings = self.settings();
        if self.script.plain {
            settings.codec = "none".parse().expect("a codec");
        }
        self.opening.set(true);
        let faults = self.script.opening_faults.filter(|_| !self.past.get().rotten);
        self.cache
            .set_faults(faults.map_or(FaultRates::default(), |faults| faults.cache));
        self.origin
            .set_faults(faults.map_or(FaultRates::default(), |faults| faults.origin));
        let errors_before = self.cache.stats().errors + self.origin.stats().errors;
        let flush_errors = self.cache.stats().flush_errors + self.origin.stats().flush_errors;
        let silent_before = self.cache.stats().silent_faults;
        let past = self.past.get();
        self.past.set(Past {
            stopped: false,
            kept_back: past.kept_back || settings.mode == Mode::WriteBack,
            forgetful: past.forgetful || flush_errors > 0,
            ..past
        });
        self.host.broken.set(self.script.forgetful_host);
        self.host.takes.set(NOTE_TAKES_MAX);
        let cache = LocalCache::open_recorded(
            self.env.clone(),
            cache,
            Rc::clone(&origin),
            settings.clone(),
            AfterCrash::Warm,
            Some(Notes::of(&self.host, &self.env)),
        );
        let outcome = cache.await;
        let errors = self.cache.stats().errors + self.origin.stats().errors - errors_before;
        self.opening_errors += errors;
        let failing = errors > 0;
        let cache = match outcome {
            Ok(cache) => cache,
            // No service is better than old data.
            Err(CacheError::DirtyUnreadable { .. }) if past.unfit && past.kept_back => return Ok(None),
            Err(CacheError::Device(_) | CacheError::Origin(_)) if failing => return Ok(self.refuse()),
            Err(CacheError::DirtyUnreadable { .. }) if failing && self.past.get().kept_back => {
                return Ok(self.refuse());
            }
            Err(error) => return Err(format!("the cache does not open: {error}")),
        };
        self.stored_policy.found(cache.superblock().settings.policy)?;
        let size = cache.superblock().geometry.origin_len;
        self.stored_size.found(size)?;
        let stopped = matches!(cache.start, flaz_engine::cache::Start::Warm(_));
        let shards = cache.shards();
        let warm = shards
            .iter()
            .any(|shard| shard.stats().holdings.cached_blocks > 0);
        self.kinds.opened_failing += u64::from(failing);
        self.opening.set(false);
        self.past.set(Past {
            unmarked: false,
            ..self.past.get()
        });
        let misread = self.cache.stats().silent_faults > silent_before;
        if past.stopped && !past.damaged && !stopped && !failing && !misread {
            return Err(format!("after a clean stop the cache starts {:?}", cache.start));
        }
        self.warm.get_or_insert(warm);
        self.cache.set_faults(self.script.cache_faults);
        self.origin.set_faults(self.script.origin_faults);
        let volume = CachedVolume::new(cache.shards(), origin, size, settings.sequential_cutoff);
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
            stored_policy: Rc::clone(&self.stored_policy),
            stored_size: Rc::clone(&self.stored_size),
            grown_len: self.shape.grown_len,
            asked_fua: Cell::new(false),
            stopping: Cell::new(false),
            under_way: Cell::new(0),
            damages: Cell::new(0),
            withdrawn: Cell::new(0),
            resized: Cell::default(),
            origins_grown: Cell::new(0),
            failure: Cell::new(None),
        }))
    }

    /// An opening failed because of the devices.
    fn refuse(&mut self) -> Option<Opening> {
        self.refused = true;
        self.kinds.refused += 1;
        None
    }

    async fn phase(&mut self, opening: Opening, phase: u32) -> Result<Opening, String> {
        self.doing = "clients are at work";
        let opening = Rc::new(opening);
        self.clients(&opening, phase).await;
        let opening = Rc::try_unwrap(opening).unwrap_or_else(|_| unreachable!("all clients have ended"));
        self.end_phase(&opening)?;
        Ok(opening)
    }

    fn clients(&self, opening: &Rc<Opening>, phase: u32) -> impl Future<Output = Vec<()>> + use<> {
        let steps = self.script.steps;
        let clients = steps.iter().map(|step| step.client + 1).max().unwrap_or(0);
        let all = (0..clients).map(|client| {
            let mine = steps.iter();
            let ops = mine
                .filter(|step| step.phase == phase && step.client == client)
                .map(|step| step.op);
            client_task(Rc::clone(opening), ops.collect())
        });
        join_all(all.collect::<Vec<_>>())
    }

    fn end_phase(&mut self, opening: &Opening) -> Result<(), String> {
        self.did.add(&opening.counts());
        self.kinds.damages += opening.damages.get();
        self.kinds.withdrawn += opening.withdrawn.get();
        self.kinds.add(&opening.resized.get());
        self.kinds.origins_grown += opening.origins_grown.get();
        opening.failure.take().map_or(Ok(()), Err)
    }

    /// Stops the cache while clients are running; false: as for [`Living::stop`].
    async fn stop_beside(&mut self, opening: Opening, phase: u32) -> Result<bool, String> {
        self.doing = "clients are at work, and the cache is stopped";
        let mut rng = Rng::new(self.script.seed ^ 0x5709);
        let longest = 1000 << rng.below(10);
        let us = rng.below(longest);
        let opening = Rc::new(opening);
        let clients = self.clients(&opening, phase);
        let stop = async {
            self.env.sleep(Duration::from_micros(us)).await;
            opening.stopping.set(true);
            // Not while a client changes it.
            let cache = loop {
                match opening.cache.take() {
                    Some(cache) => break cache,
                    None => self.env.sleep(Duration::from_millis(1)).await,
                }
            };
            let under_way = opening.under_way.get();
            (self.stop_cache(cache).await, under_way)
        };
        let (_, (stopped, under_way)) = join(clients, stop).await;
        self.kinds.stops_beside += u64::from(under_way > 0);
        self.end_phase(&opening)?;
        if stopped? {
            self.walk_stopped().await?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Stops the cache; false: the clean stop failed because a device failed.
    async fn stop(&mut self, opening: Opening) -> Result<bool, String> {
        let Opening { cache, volume, .. } = opening;
        drop(volume);
        let cache = cache.take().expect("no client is left");
        self.doing = "stopping the cache";
        let stopped = self.stop_cache(cache).await?;
        self.doing = "going on after a stop";
        if stopped {
            self.walk_stopped().await?;
        }
        Ok(stopped)
    }

    async fn stop_cache(&self, cache: LocalCache<Simulated>) -> Result<bool, String> {
        let disk = self.cache.stats();
        let failed: u64 = cache
            .shards()
            .iter()
            .map(|shard| shard.counts().checksum_failures)
            .sum();
        let past = self.past.get();
        if failed > 0 && disk.silent_faults == 0 && !past.damaged && !past.crashed {
            return Err(format!(
                "{failed} checksums fail on a device that is well, without a crash"
            ));
        }
        let stopped = cache.stop().await;
        let faults = self.cache.stats().errors > 0;
        // Clients may have changed it in the meantime.
        let past = self.past.get();
        match stopped {
            Ok(_) => {}
            Err(_) if faults || past.damaged || self.origin.stats().errors > 0 => return Ok(false),
            Err(error) => return Err(format!("the cache does not stop: {error}")),
        }
        let failed = faults || self.cache.stats().silent_faults > 0;
        self.past.set(Past {
            damaged: past.damaged || failed,
            unfit: past.unfit || failed,
            stopped: true,
            ..past
        });
        Ok(true)
    }

    /// Checks a cache device that was intact when the cache was stopped.
    async fn walk_stopped(&self) -> Result<(), String> {
        let past = self.past.get();
        if past.damaged {
            return Ok(());
        }
        self.cache.set_faults(FaultRates::default());
        let mut wrong = Vec::new();
        let mut note = |finding: Finding, _, _| {
            let torn =
                past.crashed && !["superblock", "intent-sector", "index-image"].contains(&&*finding.kind);
            if let Err(error) = &finding.object
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
            None => Ok(()),
        }
    }
}
