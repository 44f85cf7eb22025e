//! One life of a pool and of the caches of its volumes: opened on given disks, used, watched at device events.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{DeviceOp, Env, IoBuf};
use flaz_engine::cache::{CacheError, ResizeError, Start as Started};
use flaz_engine::check::{Finding, walk};
use flaz_engine::volume::{IoError, STRIPE_BYTES, Volume, segment_lens};
use flaz_pool::{Pool, PoolError};
use flaz_sim::{DeviceEvent, DiskImage, DiskMoment, EventStage, FaultRates, Rng, Sim, SimDisk, SimEnv};
use futures_util::future::{join, join_all};

use crate::oracle::{Ground, Oracle, Spot};
use crate::sectors::{BLOCK_SECTORS, Print, SECTOR, describe, fill, print_of};
use crate::world::{BLOCK, Live, ORIGIN_LEN, Spec, add};

/// Executor steps after which a life counts as endless: about ten times the longest one.
const STEPS_MAX: u64 = 3_000_000;
/// A stripe has blocks that nobody writes from here on.
const BALLAST_FROM: u64 = 512 << 10;
/// Of the events that may matter, one in so many is kept, and all those of the chunk table.
const ONE_IN: u64 = 16;
/// The first chunk of the pool lies behind its superblock and the chunk table.
const CHUNKS_FROM: u64 = 192 << 10;
const ALWAYS: u32 = 1_000_000;

/// The sectors that clients write: some blocks of each stripe.
pub fn spots() -> Rc<[Spot]> {
    let stripes = 0..ORIGIN_LEN / STRIPE_BYTES;
    stripes
        .map(|number| Spot {
            first: number * STRIPE_BYTES / SECTOR as u64 + 8 * number,
            count: 12 * BLOCK_SECTORS,
        })
        .collect()
}

/// Whether a volume exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exists {
    Yes,
    No,
    /// It was being added or removed.
    Perhaps,
}

/// A volume before a life.
#[derive(Clone)]
pub struct VolumeStart {
    pub spec: Spec,
    pub origin: DiskImage,
    pub ground: Rc<Ground>,
    pub exists: Exists,
}

/// The disks before a life, and the known contents of the volumes.
#[derive(Clone)]
pub struct Start {
    pub pool: DiskImage,
    pub volumes: Vec<VolumeStart>,
}

/// A point at which a crash may differ from the one before.
pub struct Moment {
    /// The event, in words.
    pub what: String,
    pub pool: DiskMoment,
    /// A shrink of the pool was under way.
    pub shrinking: bool,
    /// Of each volume: its origin, the tick of its oracle, and whether it exists.
    pub volumes: Vec<(DiskMoment, u64, Exists)>,
}

/// What happens in a life, after everything was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Script {
    pub seed: u64,
    /// Requests of each client.
    pub requests: u32,
    /// Changes of the pool meanwhile.
    pub changes: u32,
    /// Stop cleanly at the end, check the devices, open them again and read everything.
    pub stop: bool,
    /// Keep moments.
    pub watch: bool,
}

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Did {
    pub given_back: u64,
    pub called_off: u64,
    pub added: u64,
    pub removed: u64,
    pub origins_failed: u64,
    pub recovered: u64,
    pub hits: u64,
    pub reclaimed: u64,
    pub moved: u64,
    pub shrunk: u64,
    pub shrinks_left: u64,
    pub crashed_in_shrink: u64,
}

impl Did {
    pub fn add(&mut self, other: &Self) {
        self.given_back += other.given_back;
        self.called_off += other.called_off;
        self.added += other.added;
        self.removed += other.removed;
        self.origins_failed += other.origins_failed;
        self.recovered += other.recovered;
        self.hits += other.hits;
        self.reclaimed += other.reclaimed;
        self.moved += other.moved;
        self.shrunk += other.shrunk;
        self.shrinks_left += other.shrinks_left;
        self.crashed_in_shrink += other.crashed_in_shrink;
    }
}

/// A life without violations.
pub struct Life {
    pub moments: Vec<Moment>,
    pub oracles: Vec<Rc<Oracle>>,
    pub did: Did,
}

/// A volume in a life.
struct Slot {
    spec: Spec,
    spots: Rc<[Spot]>,
    origin: Rc<SimDisk>,
    oracle: Rc<Oracle>,
    exists: Cell<Exists>,
    live: RefCell<Option<Rc<Live>>>,
    /// Clients begin no more requests.
    closing: Cell<bool>,
    /// Requests in flight.
    busy: Cell<u32>,
    versions: Cell<u64>,
}

/// A life.
struct World {
    env: SimEnv,
    disk: SimDisk,
    slots: Vec<Rc<Slot>>,
    script: Script,
    did: Cell<Did>,
    shrinking: Cell<bool>,
    failure: RefCell<Option<String>>,
    moments: RefCell<Vec<Moment>>,
}

/// Runs a script.
///
/// # Errors
/// Data that must not be read, an operation that failed without a reason, or a life that does not end.
pub fn live(start: &Start, script: Script) -> Result<Life, String> {
    let sim = Sim::new(script.seed);
    sim.set_step_limit(STEPS_MAX);
    let env = sim.env();
    let on = |image: &DiskImage| match script.watch {
        true => SimDisk::from_image(&env, image),
        false => SimDisk::from_image(&env, &image.without_write_cache()),
    };
    let disk = on(&start.pool);
    let slots = start.volumes.iter().map(|volume| {
        Rc::new(Slot {
            spec: volume.spec,
            spots: spots(),
            origin: Rc::new(on(&volume.origin)),
            oracle: Rc::new(Oracle::new(spots(), Rc::clone(&volume.ground))),
            exists: Cell::new(volume.exists),
            live: RefCell::default(),
            closing: Cell::new(false),
            busy: Cell::new(0),
            // Lives after each other write different versions.
            versions: Cell::new(script.seed % (1 << 40) * 10_000 + 1),
        })
    });
    let world = Rc::new(World {
        env: env.clone(),
        slots: slots.collect(),
        script,
        did: Cell::default(),
        shrinking: Cell::default(),
        failure: RefCell::default(),
        moments: RefCell::default(),
        disk,
    });
    if script.watch {
        let (watcher, mut rng) = (Rc::clone(&world), Rng::new(script.seed ^ 0x77));
        sim.set_observer(move |event| watcher.event(event, &mut rng));
    }
    let outcome = sim.try_block_on(world.run());
    sim.set_observer(|_| ());
    outcome.map_err(|halt| halt.to_string())??;
    Ok(Life {
        moments: world.moments.take(),
        oracles: world.slots.iter().map(|slot| Rc::clone(&slot.oracle)).collect(),
        did: world.did.get(),
    })
}

impl World {
    fn count(&self, change: impl FnOnce(&mut Did)) {
        let mut did = self.did.get();
        change(&mut did);
        self.did.set(did);
    }

    /// Keeps the moment if the event changes the state after a crash.
    fn event(&self, event: &DeviceEvent, rng: &mut Rng) {
        let reads = matches!(event.op, DeviceOp::Read | DeviceOp::Status);
        if reads || event.op == DeviceOp::Flush && event.stage == EventStage::Issued {
            return;
        }
        let on_pool = event.disk == self.disk.number();
        let table = on_pool && event.op == DeviceOp::Write && event.offset < CHUNKS_FROM;
        if !table && rng.below(ONE_IN) > 0 {
            return;
        }
        let volumes = self.slots.iter().map(|slot| {
            let tick = slot.oracle.now();
            (slot.origin.moment(), tick, slot.exists.get())
        });
        self.moments.borrow_mut().push(Moment {
            what: format!(
                "{:?} of {} at {}+{} of the {}",
                event.stage,
                event.op,
                event.offset,
                event.len,
                if on_pool { "pool" } else { "an origin" }
            ),
            pool: self.disk.moment(),
            shrinking: self.shrinking.get(),
            volumes: volumes.collect(),
        });
    }

    async fn run(self: &Rc<Self>) -> Result<(), String> {
        let pool = self.open_pool().await?;
        for slot in self.there() {
            self.open(&pool, slot, false).await?;
        }
        self.read_all().await?;
        self.read_all().await?;
        if self.script.requests > 0 {
            let mut rng = Rng::new(self.script.seed ^ 0xc11e);
            let mut clients = Vec::new();
            for slot in &self.slots {
                for kind in 0..3 {
                    let (world, slot, rng) = (Rc::clone(self), Rc::clone(slot), rng.fork());
                    clients.push(async move { world.client(&slot, kind, rng).await });
                }
            }
            let changes = async {
                if let Err(failure) = self.change(&pool, rng.fork()).await {
                    self.failure.borrow_mut().get_or_insert(failure);
                }
            };
            join(join_all(clients), changes).await;
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            self.read_all().await?;
        }
        if self.script.stop {
            for slot in self.there() {
                self.stop(slot).await?;
            }
            drop(pool);
            let pool = self.open_pool().await?;
            for slot in self.there() {
                self.open(&pool, slot, true).await?;
            }
            self.read_all().await?;
        }
        for slot in self.there() {
            self.end(slot)?;
        }
        Ok(())
    }

    /// The volumes that exist.
    fn there(&self) -> impl Iterator<Item = &Rc<Slot>> {
        self.slots.iter().filter(|slot| slot.exists.get() == Exists::Yes)
    }

    async fn open_pool(&self) -> Result<Rc<Pool<SimDisk>>, String> {
        let pool = Pool::open(Rc::new(self.disk.clone())).await;
        let pool = pool.map_err(|error| error.to_string())?;
        for slot in &self.slots {
            let found = match pool.volume(slot.spec.name) {
                Ok(_) => Exists::Yes,
                Err(_) => Exists::No,
            };
            let before = slot.exists.replace(found);
            if before != Exists::Perhaps && before != found {
                return Err(format!(
                    "volume {}: {found:?}, expected {before:?}",
                    slot.spec.name
                ));
            }
        }
        Ok(pool)
    }

    async fn open(&self, pool: &Rc<Pool<SimDisk>>, slot: &Slot, stopped: bool) -> Result<(), String> {
        let name = slot.spec.name;
        let live = Live::open(&self.env, pool, slot.spec, &slot.origin).await;
        let live = live.map_err(|error| format!("volume {name} does not open: {error}"))?;
        let start = live.start();
        if start == Started::Cold || stopped && !matches!(start, Started::Warm(_)) {
            return Err(format!("volume {name} starts {start:?}"));
        }
        self.count(|did| did.recovered += u64::from(start == Started::Recovered));
        slot.live.replace(Some(Rc::new(live)));
        Ok(())
    }

    /// Whether all was well, whatever happened to origins: no write has gone to a region without its chunk.
    fn end(&self, slot: &Slot) -> Result<(), String> {
        let live = slot.live.take().ok_or("it is not open")?;
        let stats = live.stats();
        self.count(|did| {
            did.hits += stats.counts.hit_blocks;
            did.reclaimed += stats.counts.regions_reclaimed;
        });
        if stats.holdings.cache_failed || stats.counts.cache_errors > 0 {
            let counts = stats.counts;
            return Err(format!(
                "the cache device of {} failed: {counts:?}",
                slot.spec.name
            ));
        }
        slot.live.replace(Some(live));
        Ok(())
    }

    /// Stops a volume's cache, and checks its device.
    async fn stop(&self, slot: &Slot) -> Result<(), String> {
        self.end(slot)?;
        let live = slot.live.take().ok_or("it is not open")?;
        let live = Rc::try_unwrap(live).map_err(|_| "a client uses it")?;
        let (device, name) = (live.device.clone(), slot.spec.name);
        match live.stop().await {
            Ok(()) => {}
            Err(error) => return Err(format!("volume {name} does not stop: {error}")),
        }
        let mut wrong = Vec::new();
        let mut note = |finding: Finding, _, _| {
            // Recovery leaves torn extents behind.
            if let Err(error) = finding.object
                && ["superblock", "manifest", "intent-sector", "index-image", "region"]
                    .contains(&&*finding.kind)
            {
                wrong.push(format!("{} at {}: {error}", finding.kind, finding.offset));
            }
        };
        let walked = walk(&device, &mut note).await;
        walked.map_err(|error| error.to_string())?;
        match wrong.first() {
            Some(first) => Err(format!("after a clean stop of {name}: {first}")),
            None => Ok(()),
        }
    }

    async fn read_all(&self) -> Result<(), String> {
        for slot in self.there() {
            let Some(live) = slot.live.borrow().clone() else {
                return Err(format!("volume {} is not open", slot.spec.name));
            };
            for spot in &*slot.spots {
                let read = slot.read(&live, spot.first, spot.count).await;
                read.map_err(|error| format!("volume {}: {error}", slot.spec.name))?;
            }
        }
        Ok(())
    }

    /// Requests of a client: the first kind writes most, the last one fills the cache.
    async fn client(&self, slot: &Rc<Slot>, kind: u64, mut rng: Rng) {
        for _ in 0..self.script.requests {
            while slot.live.borrow().is_none() && !slot.closing.get() && self.failure.borrow().is_none() {
                self.env.sleep(Duration::from_millis(1)).await;
            }
            if slot.closing.get() || self.failure.borrow().is_some() {
                return;
            }
            let live = slot.live.borrow().clone();
            let Some(live) = live else { continue };
            slot.busy.set(slot.busy.get() + 1);
            let done = slot.request(&live, kind, &mut rng).await;
            drop(live);
            slot.busy.set(slot.busy.get() - 1);
            if let Err(error) = done {
                let failure = format!("volume {}: {error}", slot.spec.name);
                self.failure.borrow_mut().get_or_insert(failure);
            }
            if rng.below(4) == 0 {
                self.env.sleep(Duration::from_micros(rng.below(3000))).await;
            }
        }
    }

    /// Changes the pool while clients are at work.
    async fn change(&self, pool: &Rc<Pool<SimDisk>>, mut rng: Rng) -> Result<(), String> {
        for _ in 0..self.script.changes {
            self.env.sleep(Duration::from_micros(rng.below(20_000))).await;
            let slot = &self.slots[rng.below(self.slots.len() as u64) as usize];
            let live = slot.live.borrow().clone();
            match (live, rng.below(10)) {
                (_, 8) => {
                    self.shrinking.set(true);
                    self.shrink(pool, &mut rng).await?;
                    self.shrinking.set(false);
                }
                (_, 9) => {
                    let grown = pool.grow(u64::MAX).await;
                    grown.map_err(|error| error.to_string())?;
                }
                (Some(live), 0) => self.fail_origin(slot, &live, &mut rng).await,
                (Some(live), 1) if slot.spec.name == "three" => {
                    drop(live);
                    self.remove(pool, slot).await?;
                }
                (Some(_), 2) => {
                    let shared = pool
                        .set_share(slot.spec.name, Some(rng.below(12) as u32), None)
                        .await;
                    match shared {
                        // The pool has become small.
                        Ok(()) | Err(PoolError::Guarantees { .. }) => {}
                        Err(error) => return Err(error.to_string()),
                    }
                }
                (Some(live), _) => self.give_back(slot, &live, &mut rng).await?,
                (None, _) if slot.exists.get() == Exists::No && !slot.closing.get() => {
                    slot.exists.set(Exists::Perhaps);
                    let added = add(pool, &slot.spec).await;
                    slot.exists.set(if added { Exists::Yes } else { Exists::No });
                    if added {
                        self.open(pool, slot, false).await?;
                        self.count(|did| did.added += 1);
                    }
                }
                (None, _) => {}
            }
        }
        // Clients of a volume that does not exist wait for it.
        for slot in self.slots.iter().filter(|slot| slot.live.borrow().is_none()) {
            slot.closing.set(true);
        }
        Ok(())
    }

    /// An origin fails for a while. The other volumes go on.
    async fn fail_origin(&self, slot: &Slot, live: &Live, rng: &mut Rng) {
        live.failed.set(true);
        slot.origin.set_faults(FaultRates {
            read_error_ppm: ALWAYS,
            write_error_ppm: ALWAYS,
            ..FaultRates::default()
        });
        self.env.sleep(Duration::from_micros(rng.below(100_000))).await;
        slot.origin.set_faults(FaultRates::default());
        self.count(|did| did.origins_failed += 1);
    }

    async fn give_back(&self, slot: &Slot, live: &Live, rng: &mut Rng) -> Result<(), String> {
        let patience = (rng.below(4) == 0).then(|| Duration::from_micros(rng.below(20_000)));
        let before = live.regions_with_space();
        let ended = match live.give_back(1 + rng.below(12), patience).await {
            Ok(ended) => ended,
            Err(CacheError::Resize(ResizeError::Dirty { .. })) if slot.has_failed() => false,
            Err(error) => return Err(format!("volume {}: {error}", slot.spec.name)),
        };
        let after = live.regions_with_space();
        if rng.coin() {
            self.env.sleep(Duration::from_micros(rng.below(20_000))).await;
        }
        live.map.set_limit(u32::MAX);
        self.count(|did| {
            did.given_back += u64::from(before.saturating_sub(after));
            did.called_off += u64::from(!ended);
        });
        Ok(())
    }

    /// Shrinks the pool as far as the volumes can give space back, or leaves that unfinished, or calls it off.
    async fn shrink(&self, pool: &Rc<Pool<SimDisk>>, rng: &mut Rng) -> Result<(), String> {
        let superblock = pool.superblock();
        let (least, most) = (superblock.chunks_least(), superblock.usable());
        let target = least.max(most.saturating_sub(rng.below(20) as u32));
        match pool.begin_shrink(target).await {
            Ok(()) => {}
            Err(PoolError::TooSmall { .. } | PoolError::Guarantees { .. }) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
        for slot in self.there().cloned().collect::<Vec<_>>() {
            let live = slot.live.borrow().clone();
            let (Some(live), many @ 1..) = (live, pool.chunks_too_many()) else {
                continue;
            };
            match live.give_back(many.into(), None).await {
                Ok(_) => {}
                Err(CacheError::Resize(ResizeError::Dirty { .. })) if slot.has_failed() => {}
                Err(error) => return Err(format!("volume {}: {error}", slot.spec.name)),
            }
        }
        let steps = [rng.below(8), u64::MAX][rng.below(3).min(1) as usize];
        let mut moved = 0;
        if pool.chunks_too_many() == 0 {
            for slot in self.there() {
                let number = pool
                    .volume(slot.spec.name)
                    .map_err(|error| error.to_string())?
                    .number;
                for part in pool.parts_beyond(number) {
                    if moved < steps {
                        let patience = self.env.sleep(Duration::from_secs(1));
                        let done = pool.move_part(number, part, patience).await;
                        done.map_err(|error| error.to_string())?;
                        moved += 1;
                    }
                }
            }
        }
        let ended = pool.end_shrink().await.map_err(|error| error.to_string())?;
        if !ended && rng.coin() {
            pool.cancel_shrink().await.map_err(|error| error.to_string())?;
        }
        for slot in &self.slots {
            if let Some(live) = &*slot.live.borrow() {
                live.map.set_limit(u32::MAX);
            }
        }
        self.count(|did| {
            did.moved += moved;
            did.shrunk += u64::from(ended);
            did.shrinks_left += u64::from(!ended);
        });
        Ok(())
    }

    /// Removes a volume; its chunks are free.
    async fn remove(&self, pool: &Rc<Pool<SimDisk>>, slot: &Rc<Slot>) -> Result<(), String> {
        slot.closing.set(true);
        while slot.busy.get() > 0 {
            self.env.sleep(Duration::from_millis(1)).await;
        }
        // A later life may add it again: the origin has everything then, stable.
        let live = slot.live.borrow().clone().ok_or("it is not open")?;
        let cleaned = live.clean().await;
        cleaned.map_err(|error| error.to_string())?;
        drop(live);
        self.stop(slot).await?;
        slot.exists.set(Exists::Perhaps);
        let removed = pool.remove(slot.spec.name).await;
        removed.map_err(|error| error.to_string())?;
        slot.exists.set(Exists::No);
        self.count(|did| did.removed += 1);
        Ok(())
    }
}

impl Slot {
    fn has_failed(&self) -> bool {
        self.origin.stats().errors > 0
    }

    fn may_fail(&self, error: &IoError) -> Result<(), String> {
        match self.has_failed() {
            true => Ok(()),
            false => Err(error.to_string()),
        }
    }

    async fn request(&self, live: &Live, kind: u64, rng: &mut Rng) -> Result<(), String> {
        let spot = self.spots[rng.below(self.spots.len() as u64) as usize];
        let count = 1 + rng.below(24).min(spot.count - 1);
        let first = spot.first + rng.below(spot.count - count + 1);
        match (kind, rng.below(10)) {
            (2, _) => {
                let stripe = rng.below(ORIGIN_LEN / STRIPE_BYTES) * STRIPE_BYTES;
                let blocks = (STRIPE_BYTES - BALLAST_FROM) / BLOCK;
                let count = 1 + rng.below(32);
                let block = rng.below(blocks - count + 1);
                let offset = stripe + BALLAST_FROM + block * BLOCK;
                self.ballast(live, offset, count * BLOCK).await
            }
            (_, 0) => {
                let start = self.oracle.flush_starts();
                match live.volume.flush().await {
                    Ok(()) => self.oracle.flush_ends(start),
                    Err(error) => {
                        self.oracle.flush_fails(start);
                        self.may_fail(&error)?;
                    }
                }
                Ok(())
            }
            (_, 1) => {
                let (offset, len) = (first * SECTOR as u64, count * SECTOR as u64);
                let fua = rng.below(4) == 0;
                let trim = live.volume.trim(offset, len, fua);
                self.write(first, count, Print::ZERO, fua, trim).await
            }
            (0, 2..=6) | (1, 2..=3) => {
                let version = self.versions.get();
                self.versions.set(version + 1);
                let mut data = vec![0; count as usize * SECTOR];
                fill(first, version, &mut data);
                let offset = first * SECTOR as u64;
                let mut rest = &data[..];
                let segments = segment_lens(offset, data.len() as u64).map(|len| {
                    let (head, tail) = rest.split_at(len);
                    rest = tail;
                    IoBuf::copy_of(head)
                });
                let fua = rng.below(8) == 0;
                let write = live.volume.write(offset, segments.collect(), fua);
                let print = Print::of_version(version);
                self.write(first, count, print, fua, write).await
            }
            _ => self.read(live, first, count).await,
        }
    }

    async fn write(
        &self,
        first: u64,
        count: u64,
        print: Print,
        fua: bool,
        doing: impl Future<Output = Result<(), IoError>>,
    ) -> Result<(), String> {
        let writing = self.oracle.write_starts(first, count, print);
        match doing.await {
            Ok(()) => self.oracle.write_ends(&writing, fua),
            Err(error) => {
                self.oracle.write_fails(&writing);
                self.may_fail(&error)?;
            }
        }
        Ok(())
    }

    async fn read(&self, live: &Live, first: u64, count: u64) -> Result<(), String> {
        let start = self.oracle.read_starts();
        let (offset, len) = (first * SECTOR as u64, count * SECTOR as u64);
        let segments = match live.volume.read(offset, len as u32).await {
            Ok(segments) => segments,
            Err(error) => return self.may_fail(&error),
        };
        let (mut at, mut seen) = (first, Vec::new());
        for segment in &segments {
            self.oracle.read_ends(start, at, segment, &mut seen)?;
            at += (segment.len() / SECTOR) as u64;
        }
        Ok(())
    }

    /// Reads blocks that nobody writes.
    async fn ballast(&self, live: &Live, offset: u64, len: u64) -> Result<(), String> {
        let segments = match live.volume.read(offset, len as u32).await {
            Ok(segments) => segments,
            Err(error) => return self.may_fail(&error),
        };
        let sectors = segments.iter().flat_map(|segment| segment.chunks_exact(SECTOR));
        for (sector, bytes) in (offset / SECTOR as u64..).zip(sectors) {
            if print_of(sector, bytes) != Print::of_version(0) {
                return Err(format!("sector {sector} reads as {}", describe(sector, bytes)));
            }
        }
        Ok(())
    }
}
