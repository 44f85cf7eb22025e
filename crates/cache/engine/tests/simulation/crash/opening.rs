//! One opening of a cache as its clients see it: requests, and the allowed reasons for their failure.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{Device, Env, IoBuf};
use flaz_engine::cache::resize::Resizing;
use flaz_engine::cache::{CacheError, LocalCache, ResizeError};
use flaz_engine::format::geometry::REGIONS_MIN;
use flaz_engine::policy::PolicyKind;
use flaz_engine::router::LocalShards;
use flaz_engine::settings::{Mode, Settings, StoredSettings};
use flaz_engine::stats::Counts;
use flaz_engine::volume::{IoError, Volume, segment_lens};
use flaz_sim::{SimDisk, SimEnv};
use futures_util::future::try_join_all;

use crate::platform::{Simulated, SimulatedVolume};

use super::damage::{ROT_FROM, damage};
use super::oracle::{Oracle, Spot};
use super::run::{Kinds, Past};
use super::sectors::{Print, SECTOR, describe, print_of};
use super::workload::{Op, Place};

/// A shrink on devices that are well ends within this time, in the simulation.
const SHRINK_ENDS_WITHIN: Duration = Duration::from_secs(30);

/// State shared by the clients of one opening.
pub struct Opening {
    pub env: SimEnv,
    /// `None` while a client changes it.
    pub cache: RefCell<Option<LocalCache<Simulated>>>,
    pub shards: LocalShards<Simulated>,
    pub volume: SimulatedVolume,
    pub oracle: Rc<Oracle>,
    pub spots: Rc<[Spot]>,
    pub settings: RefCell<Settings>,
    pub trim_gives: Print,
    /// Smallest write of the origin, in sectors.
    pub origin_sectors: u64,
    /// The devices, and the past: an error must have a reason.
    pub disk: Rc<SimDisk>,
    pub origin: Rc<SimDisk>,
    pub past: Rc<Cell<Past>>,
    /// The policy that the cache device has.
    pub stored_policy: Rc<StoredPolicy>,
    /// The size of the origin that the cache device has, and the one that the origin can grow to.
    pub stored_size: Rc<StoredSize>,
    pub grown_len: u64,
    /// A request with FUA was made.
    pub asked_fua: Cell<bool>,
    /// The cache is being stopped while clients are running; they may get an error for that.
    pub stopping: Cell<bool>,
    /// Requests in flight.
    pub under_way: Cell<u64>,
    /// Number of damages so far.
    pub damages: Cell<u64>,
    /// How often the cache was marked as not dirty.
    pub withdrawn: Cell<u64>,
    /// How often the size of the cache was changed.
    pub resized: Cell<Kinds>,
    /// How often a larger origin was taken over.
    pub origins_grown: Cell<u64>,
    /// The first failure.
    pub failure: Cell<Option<String>>,
}

/// The values that the superblock may have after a crash: the last one that was stored, and those whose storing did not end
/// or failed since.
#[derive(Debug)]
pub struct Stored<T>(RefCell<Vec<T>>);

/// The policy.
pub type StoredPolicy = Stored<Option<PolicyKind>>;
/// The size of the origin.
pub type StoredSize = Stored<u64>;

impl<T: Copy + PartialEq + std::fmt::Debug> Stored<T> {
    pub fn known(may_be: &[T]) -> Self {
        Self(RefCell::new(may_be.to_vec()))
    }

    fn starts(&self, value: T) {
        self.0.borrow_mut().push(value);
    }

    fn ends(&self, value: T) {
        self.0.replace(vec![value]);
    }

    pub fn may_be(&self) -> Vec<T> {
        self.0.borrow().clone()
    }

    /// An opening has found this one.
    pub fn found(&self, value: T) -> Result<(), String> {
        let before = self.0.replace(vec![value]);
        if before.contains(&value) {
            return Ok(());
        }
        Err(format!("{value:?} is stored, expected one of {before:?}"))
    }
}

pub async fn client_task(opening: Rc<Opening>, ops: Vec<Op>) {
    for op in ops {
        let asks = u64::from(op.is_request());
        opening.under_way.set(opening.under_way.get() + asks);
        let outcome = opening.carry_out(op).await;
        opening.under_way.set(opening.under_way.get() - asks);
        if let Err(failure) = outcome {
            opening.failure.set(Some(format!("{op:?}: {failure}")));
            return;
        }
    }
}

impl Opening {
    fn sectors(&self, place: Place) -> (u64, u64) {
        (self.spots[place.spot].first + place.first, place.count)
    }

    /// Whether the volume has these sectors: clients ask for no others.
    fn has(&self, sector: u64, count: u64) -> bool {
        (sector + count) * SECTOR as u64 <= self.volume.size()
    }

    pub async fn carry_out(&self, op: Op) -> Result<(), String> {
        if let Op::Write { place, .. }
        | Op::Read { place }
        | Op::Trim { place, .. }
        | Op::WriteZeroes { place, .. }
        | Op::Prefetch { place } = op
        {
            let (sector, count) = self.sectors(place);
            if !self.has(sector, count) {
                return Ok(());
            }
        }
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
                // Parts that the origin cannot trim stay unchanged.
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
                    Err(error) => return self.clean_may_fail(&error, failed_before),
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
            Op::Withdraw => {
                self.set(|settings| settings.mode = Mode::WriteThrough);
                let failed_before = self.origin.stats().errors;
                let mut result = Ok(());
                for shard in self.shards.iter() {
                    result = result.and(shard.clean_all().await);
                }
                result.or_else(|error| self.may_fail(&error, failed_before))?;
                self.withdraw_write_back().await
            }
            Op::Resize { gone, patience_ms } => self.resize(gone, Duration::from_millis(patience_ms)).await,
            Op::Grow => self.grow().await,
            Op::Mode(mode) => {
                if mode == Mode::WriteBack {
                    return self.select_write_back().await;
                }
                self.set(|settings| settings.mode = mode);
                Ok(())
            }
            Op::Rot { ppm } => {
                self.past.set(Past {
                    damaged: true,
                    unfit: true,
                    rotten: true,
                    ..self.past.get()
                });
                self.damages.set(self.damages.get() + 1);
                let room = self.disk.len() - ROT_FROM;
                self.disk.flip_bit(ROT_FROM + room * ppm / 1_000_000, ppm as u8);
                Ok(())
            }
            Op::Damage { pick } => {
                if damage(&self.disk, pick) {
                    self.past.set(Past {
                        damaged: true,
                        rotten: true,
                        ..self.past.get()
                    });
                    self.damages.set(self.damages.get() + 1);
                }
                Ok(())
            }
            Op::Policy(policy) => {
                if self.store_policy(policy).await? {
                    self.set(|settings| settings.policy = policy);
                }
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

    /// The cache, which one client at a time may change; `None`: it is being stopped.
    async fn take_cache(&self) -> Option<LocalCache<Simulated>> {
        loop {
            let cache = self.cache.take();
            match cache {
                Some(cache) => return Some(cache),
                None if self.stopping.get() => return None,
                None => self.env.sleep(Duration::from_millis(1)).await,
            }
        }
    }

    /// Stores the policy for the next openings; false: the cache device failed, or the cache is being stopped.
    async fn store_policy(&self, policy: PolicyKind) -> Result<bool, String> {
        let Some(mut cache) = self.take_cache().await else {
            return Ok(false);
        };
        let settings = StoredSettings {
            policy: Some(policy),
            ..cache.superblock().settings
        };
        self.stored_policy.starts(Some(policy));
        let stored = cache.store_settings(settings).await;
        *self.cache.borrow_mut() = Some(cache);
        match stored {
            Ok(()) => {
                self.stored_policy.ends(Some(policy));
                Ok(true)
            }
            Err(CacheError::Device(_) | CacheError::Fenced) if self.disk.stats().errors > 0 => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The origin grows, and the cache takes it over, unless the cache device failed, or the cache is being stopped.
    async fn grow(&self) -> Result<(), String> {
        let Some(mut cache) = self.take_cache().await else {
            return Ok(());
        };
        let len = self.grown_len;
        self.origin.grow(len);
        self.stored_size.starts(len);
        let grown = cache.grow_origin(len).await;
        if let Ok(grown) = grown {
            self.stored_size.ends(len);
            self.volume.grow(len);
            let count = &self.origins_grown;
            count.set(count.get() + u64::from(grown.before < len));
        }
        *self.cache.borrow_mut() = Some(cache);
        match grown {
            Ok(_) => Ok(()),
            Err(CacheError::Device(_) | CacheError::Fenced) if self.disk.stats().errors > 0 => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Marks the cache as not dirty if nothing is dirty, unless another client has selected write-back again.
    async fn withdraw_write_back(&self) -> Result<(), String> {
        let Some(mut cache) = self.take_cache().await else {
            return Ok(());
        };
        let mut withdrawn = Ok(false);
        if self.settings.borrow().mode != Mode::WriteBack {
            withdrawn = cache.withdraw_write_back().await;
        }
        *self.cache.borrow_mut() = Some(cache);
        match withdrawn {
            Ok(withdrawn) => self.withdrawn.set(self.withdrawn.get() + u64::from(withdrawn)),
            Err(CacheError::Device(_)) if self.disk.stats().errors > 0 => {}
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    /// Uses all of the device but for `gone` regions of each shard. A shrink is called off after `patience`.
    async fn resize(&self, gone: u64, patience: Duration) -> Result<(), String> {
        let begun = self.env.now();
        let mut shrinking = false;
        loop {
            let Some(mut cache) = self.take_cache().await else {
                return Ok(());
            };
            let before = cache.superblock().geometry;
            let outcome = if !shrinking {
                let row = before.region_bytes * u64::from(before.shard_count);
                let least = before.region_offset(0, REGIONS_MIN);
                let most = (self.disk.len() - least) / row;
                cache.begin_resize(self.disk.len() - gone.min(most) * row).await
            } else if self.env.now().since(begun) > patience {
                let mut resized = self.resized.get();
                resized.shrinks_called_off += 1;
                self.resized.set(resized);
                let failed = self.disk.stats().errors + self.origin.stats().errors > 0;
                if patience > SHRINK_ENDS_WITHIN && !failed && !self.past.get().damaged {
                    let state = cache.continue_resize().await;
                    return Err(format!(
                        "a shrink does not end although the devices are well: {state:?}"
                    ));
                }
                let cancelled = cache.cancel_resize().await;
                cancelled.map(|()| Resizing::Done)
            } else {
                cache.continue_resize().await
            };
            let after = cache.superblock().geometry;
            *self.cache.borrow_mut() = Some(cache);
            let mut resized = self.resized.get();
            resized.grown += u64::from(after.regions_per_shard > before.regions_per_shard);
            resized.shrunk += u64::from(after.regions_per_shard < before.regions_per_shard);
            self.resized.set(resized);
            let failed = self.disk.stats().errors > 0;
            match outcome {
                Ok(Resizing::Done) => return Ok(()),
                Ok(Resizing::Shrinking(_)) => shrinking = true,
                Err(CacheError::Resize(ResizeError::UnderWay | ResizeError::CalledOff)) => return Ok(()),
                Err(CacheError::Device(_) | CacheError::Resize(ResizeError::Fenced)) if failed => {
                    return Ok(());
                }
                Err(CacheError::Resize(ResizeError::Dirty { .. }))
                    if failed || self.past.get().damaged || self.origin.stats().errors > 0 =>
                {
                    return Ok(());
                }
                Err(error) => return Err(error.to_string()),
            }
            self.env.sleep(Duration::from_millis(5)).await;
        }
    }

    /// Permits write-back and selects it, before another client can withdraw it.
    async fn select_write_back(&self) -> Result<(), String> {
        let Some(mut cache) = self.take_cache().await else {
            return Ok(());
        };
        self.past.set(Past {
            kept_back: true,
            ..self.past.get()
        });
        let permitted = cache.permit_write_back().await;
        if permitted.is_ok() {
            self.set(|settings| settings.mode = Mode::WriteBack);
        }
        *self.cache.borrow_mut() = Some(cache);
        match permitted {
            Ok(()) => Ok(()),
            Err(CacheError::Device(_)) if self.disk.stats().errors > 0 => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The counts of all shards, without latencies, which take long to add up.
    pub fn counts(&self) -> Counts {
        let mut total = Counts::default();
        self.shards.iter().for_each(|shard| total.add(&shard.counts()));
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
                if fua {
                    self.flush_may_fail(&error)?;
                } else {
                    self.may_fail(&error, failed_before)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a request that began when the origin had failed `failed_before` times may fail in this way: because the
    /// origin has failed since; or, if blocks may be dirty, because the cache device is damaged, or the origin fails
    /// writes.
    fn may_fail(&self, error: &IoError, failed_before: u64) -> Result<(), String> {
        let (disk, origin, past) = (self.disk.stats(), self.origin.stats(), self.past.get());
        let damaged = past.damaged || disk.errors > 0 || disk.silent_faults > 0;
        let explained = match error {
            IoError::Origin(_) | IoError::OriginShared => origin.errors > failed_before,
            IoError::DirtyLost { .. } => past.kept_back && damaged,
            IoError::CacheFailed(_) => past.kept_back && (damaged || origin.errors > 0),
            IoError::Stopping => self.stopping.get(),
            IoError::OutOfRange { .. } => false,
        };
        if explained { Ok(()) } else { Err(error.to_string()) }
    }

    /// The same for a read of blocks that were never written: the origin has them even if the cache device fails.
    fn clean_may_fail(&self, error: &IoError, failed_before: u64) -> Result<(), String> {
        match error {
            IoError::DirtyLost { .. } | IoError::CacheFailed(_) => {
                Err(format!("what was never written cannot be read: {error}"))
            }
            error => self.may_fail(error, failed_before),
        }
    }

    /// The same for a flush: it is also told of failed flushes that another client, or no client, asked for. How devices
    /// make a write with FUA stable is unknown, so it may fail like a flush.
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
                if self.oracle.was_written(sector, count) {
                    self.may_fail(&error, failed_before)?;
                } else {
                    self.clean_may_fail(&error, failed_before)?;
                }
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
    pub async fn read_all(&self) -> Result<Vec<Print>, String> {
        let there = self.spots.iter().filter(|spot| self.has(spot.first, spot.count));
        let reads = there.map(|spot| self.read(spot.first, spot.count));
        Ok(try_join_all(reads).await?.into_iter().flatten().collect())
    }

    /// Waits until no admission is waiting.
    pub async fn stored(&self) {
        let waits = || self.shards.iter().any(|shard| shard.admissions_waiting() > 0);
        while waits() {
            self.env.sleep(Duration::from_millis(1)).await;
        }
    }
}
