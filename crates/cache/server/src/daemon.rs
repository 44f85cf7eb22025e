//! The running cache: how it is opened, the threads that drive it, and how it is closed.

mod make_room;
mod resize;
mod share;
mod start;
mod writeback;

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flaz_control::report::{AdviseReport, CacheReport, OriginReport, StatusReport, VolumeResizeReport};
use flaz_control::settings::SettingsPatch;
use flaz_control::size::{HumanBytes, counted};
use flaz_device::buf;
use flaz_device::deadline::Deadline;
use flaz_engine::cache::lifecycle::{Leave, Lifecycle, Opened};
use flaz_engine::cache::shard_set::ShardSet;
use flaz_engine::cache::surroundings::Surroundings;
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::shared_budget::SharedBudget;
use flaz_engine::stats::StatsSnapshot;
use flaz_engine::units::BLOCK_BYTES;
use flaz_nbd::limits::{BYTES_IN_FLIGHT_MAX, CONNECTIONS_MAX, RECEIVE_BUFFER_BYTES};
use flaz_runtime::file::FileDevice;
use flaz_runtime::{Config, Rt, Runtime};

use crate::advise::advise_report;
use crate::block_device;
use crate::device::{HeldCache, HostDevice, Production};
use crate::error::HostError;
use crate::front_end::FrontEnd;
use crate::order::{ANSWER_WITHIN, Order};
use crate::spec::ServeSpec;
use crate::state::StateFile;
use crate::state_records::StateRecords;
use crate::status::{Facts, live};
use crate::threads::Threads;

/// How long clients have to read their last replies when the daemon stops.
const CLIENTS_LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// Interval of [`Daemon::housekeep`].
pub(crate) const HOUSEKEEP_EVERY: Duration = Duration::from_secs(10);
/// How long clients that are leaving have before they count as users.
const LEAVING_WITHIN: Duration = Duration::from_secs(1);
/// How long a status report waits for the size of the origin.
const SIZE_KNOWN_WITHIN: Duration = Duration::from_secs(1);
/// How long the threads have to write all dirty blocks to the origin: a slow disk and a large cache take hours.
pub const CLEAN_WITHIN: Duration = Duration::from_secs(48 * 3600);

pub use resize::Resize;
pub use start::start;
pub(crate) use start::{open_cache, threads_default};
use writeback::Detach;

/// How long a change of settings lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// As long as the cache is served.
    UntilRestart,
    /// Also for later starts, which may choose other settings.
    Stored,
}

/// A cache being served. Dropping it without [`Daemon::shutdown`] counts as a crash, on purpose.
pub struct Daemon {
    spec: ServeSpec,
    settings: Mutex<Settings>,
    /// Held during a change of settings, which may wait for a device, and where they must not change. Locked before `lifecycle`.
    /// `settings` is never locked during such a wait, because status reports read it.
    changing: Mutex<()>,
    /// The cache device and the layout of the cache.
    cache_report: Mutex<CacheReport>,
    /// The change of the size under way. Locked after `lifecycle`.
    resize: Mutex<Option<resize::Waited>>,
    origin_path: PathBuf,
    /// Bytes of the origin that are served.
    origin_bytes: AtomicU64,
    /// What is known of the share of the cache device. Locked before `lifecycle`.
    share: Mutex<share::Known>,
    /// Held while the volume is resized: front ends are told the sizes in order.
    resizing: Mutex<()>,
    /// Why the origin cannot be written.
    origin_protection: Option<String>,
    started: Instant,
    opened: Opened,
    stopping: AtomicBool,
    detach: Mutex<Detach>,
    /// Held during a detach: a second one waits for it.
    detaches: Mutex<()>,
    lifecycle: Mutex<Lifecycle>,
    devices: Devices,
    threads: Threads,
    front_ends: Vec<Box<dyn FrontEnd>>,
    held: HeldCache,
}

/// The devices of a cache and the host record, from which each thread makes its [`Surroundings`].
struct Devices {
    cache: HostDevice,
    /// The same device at full speed.
    cache_file: FileDevice,
    origin: HostDevice,
    state: Arc<StateFile>,
    /// Of the volumes on the cache device, if it is shared.
    shared_budget: Option<Arc<SharedBudget>>,
    /// Time limit of a cache device operation; `None`: no limit.
    device_timeout: Option<Duration>,
}

impl Devices {
    fn surroundings(&self) -> Surroundings<Production> {
        Surroundings {
            env: Rt,
            cache: Rc::new(Deadline::new(self.cache.clone(), Rt, self.device_timeout)),
            origin: Rc::new(self.origin.clone()),
            host_records: StateRecords::of_lifecycle(&self.state, &self.origin),
            shared_budget: self.shared_budget.clone(),
        }
    }
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Daemon")
            .field("cache", &self.spec.cache)
            .finish_non_exhaustive()
    }
}

/// The warning about clients that a stop no longer waits for. The daemon cannot tell what these clients wait for.
fn cut_off(connections: usize) -> String {
    format!(
        "disconnected {} with requests in flight after {} s (a device is slow, or a client does not read its \
         replies); acknowledged writes are safe",
        counted(connections as u64, "connection", "connections"),
        CLIENTS_LEAVE_WITHIN.as_secs()
    )
}

impl Daemon {
    /// The state of the daemon, at any time until shutdown returns.
    ///
    /// # Errors
    /// A thread does not answer: without its counts the amount of dirty data is unknown.
    pub fn status(&self) -> Result<StatusReport, HostError> {
        let parts = self.threads.ask(ANSWER_WITHIN, Order::Stats)?;
        let (mut total, mut cleaning) = (StatsSnapshot::default(), Vec::new());
        for part in &parts {
            total.add(&part.total);
            cleaning.extend_from_slice(&part.cleaning);
        }
        let origin = OriginReport {
            path: self.origin_path.clone(),
            size_bytes: self.origin_bytes.load(Ordering::Relaxed),
        };
        let origin_now = self.devices.origin.file().measure_within(SIZE_KNOWN_WITHIN);
        let devices: Vec<_> = self
            .front_ends
            .iter()
            .flat_map(|front_end| front_end.devices())
            .collect();
        let settings = self.settings_now();
        let whole = self.cache_report.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = match &self.held.member {
            Some(member) => &member.report(whole.clone()),
            None => &*whole,
        };
        let facts = Facts {
            spec: &self.spec,
            settings,
            cache,
            origin: &origin,
            shrink: self.shrink().or_else(|| self.shrink_of_device()),
            share: self.share_report(),
            origin_now,
            origin_protection: self.origin_protection.as_deref(),
            started: self.started,
            opened: &self.opened,
            stopping: self.stopping.load(Ordering::Relaxed) || *self.detach_state() == Detach::Complete,
            threads: self.threads.count(),
            task_bytes: parts.iter().map(|part| part.task_bytes).sum(),
            request_bytes_max: self.request_bytes_max(cache.shards),
            listeners: self
                .front_ends
                .iter()
                .flat_map(|front_end| front_end.report())
                .collect(),
            smaller_devices: devices
                .iter()
                .filter_map(|device| {
                    let bytes = block_device::smaller_size(device, origin.size_bytes)?;
                    Some((device.name.clone(), bytes))
                })
                .collect(),
            devices,
        };
        let counts: Vec<_> = self
            .front_ends
            .iter()
            .flat_map(|front_end| front_end.counts())
            .collect();
        Ok(live(&facts, &total, &cleaning, &counts))
    }

    /// Memory that buffers of requests and of the work that they cause take at most: of block devices, and of NBD clients.
    fn request_bytes_max(&self, shards: u32) -> u64 {
        let clients = match self.spec.nbd.is_empty() {
            true => 0,
            false => CONNECTIONS_MAX * (BYTES_IN_FLIGHT_MAX + RECEIVE_BUFFER_BYTES),
        };
        (start::request_bytes(&self.front_ends, shards) + clients) as u64
    }

    /// What other capacities and codecs would be worth.
    ///
    /// # Errors
    /// A thread does not answer.
    pub fn advise(&self) -> Result<AdviseReport, HostError> {
        let parts = self.threads.ask(ANSWER_WITHIN, Order::Stats)?;
        let mut total = StatsSnapshot::default();
        for part in &parts {
            total.add(&part.total);
        }
        let codec = self.settings_now().codec;
        Ok(advise_report(&self.spec.cache, codec, &total))
    }

    /// The addresses of the front ends, for the log.
    #[must_use]
    pub fn front_ends(&self) -> Vec<String> {
        self.front_ends.iter().map(|front_end| front_end.name()).collect()
    }

    /// Changes settings; returns the settings then in force.
    ///
    /// # Errors
    /// The change is refused, or cannot be stored; or a thread does not answer. In the first two cases nothing has changed.
    pub fn set(&self, patch: &SettingsPatch, lasting: Lasting) -> Result<Settings, HostError> {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let settings = self.settings_now();
        let next = patch.applied_to(&settings);
        if patch.write_budget.is_some() {
            let lifecycle = self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
            next.write_budget.check(&lifecycle.superblock().geometry)?;
        }
        if next.mode == Mode::WriteBack && self.is_detaching() {
            return Err("the cache is being detached: write-back is no longer allowed".into());
        }
        if next.mode == Mode::WriteBack && settings.mode != Mode::WriteBack && !self.spec.read_only {
            let mut lifecycle = self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
            if self.stopping.load(Ordering::SeqCst) {
                // A stop is closing the cache, or has closed it.
                return Err("the daemon is stopping: set the mode after the next start".into());
            }
            let around = self.devices.surroundings();
            let permit = lifecycle.permit_write_back(&around, &self.threads);
            Runtime::new(Config::default())?.block_on(permit)?;
        }
        if lasting == Lasting::Stored {
            self.store(patch)?;
        }
        self.threads
            .ask(ANSWER_WITHIN, |reply| Order::Set(next.clone(), reply))?;
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = next.clone();
        Ok(next)
    }

    fn settings_now(&self) -> Settings {
        self.settings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Stores changed settings in the cache, for later starts.
    fn store(&self, patch: &SettingsPatch) -> Result<(), HostError> {
        let mut lifecycle = self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
        if self.stopping.load(Ordering::SeqCst) {
            return Err("the daemon is stopping: change settings after the next start".into());
        }
        let superblock = lifecycle.superblock();
        let codec = patch.codec.unwrap_or(superblock.codec);
        let settings = patch.stored_over(superblock.settings);
        let around = self.devices.surroundings();
        let storing = lifecycle.store_settings(&around, &self.threads, settings, codec);
        let stored = Runtime::new(Config::default())?.block_on(storing);
        Ok(stored.map_err(|error| {
            format!(
                "the settings were not changed, because they cannot be stored in the cache: {error}; to change them \
                 until the next start only, use --until-restart"
            )
        })?)
    }

    /// Takes over the size of an origin that has grown, and tells the front ends. If it has not grown, they are told all the same:
    /// one may have been left at an older size.
    ///
    /// # Errors
    /// The size cannot be taken over, or a front end cannot follow; or a thread does not answer. Clients then have the old size.
    pub fn resize_volume(&self) -> Result<VolumeResizeReport, HostError> {
        let _alone = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.devices.origin.file();
        let origin = || format!("origin {}", file.path().display());
        let (bytes, identity) = file
            .measure()
            .and_then(|bytes| Ok((bytes, file.identity_now()?)))
            .map_err(|error| format!("{}: cannot determine its size: {error}", origin()))?;
        if let Some(why) = self
            .front_ends
            .iter()
            .find_map(|front_end| front_end.refuses(bytes))
        {
            return Err(why.into());
        }
        let grown = {
            let mut lifecycle = self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
            if self.stopping.load(Ordering::SeqCst) || self.is_detaching() {
                return Err("the daemon is stopping: resize the volume when it has stopped".into());
            }
            let around = self.devices.surroundings();
            let grow = lifecycle.grow_origin(&around, &self.threads, bytes, &identity);
            let grown = Runtime::new(Config::default())?
                .block_on(grow)
                .map_err(|error| format!("{}: {error}", origin()))?;
            // Only now: the shards of all threads serve it.
            self.threads
                .ask(ANSWER_WITHIN, |reply| Order::GrowVolume(bytes, reply))?;
            self.origin_bytes.store(bytes, Ordering::Relaxed);
            grown
        };
        // Without the lock of the lifecycle: a driver waits for requests in flight.
        Ok(VolumeResizeReport {
            bytes_before: grown.before,
            bytes: grown.after,
            front_ends: self
                .front_ends
                .iter()
                .flat_map(|front_end| front_end.grow(bytes))
                .collect(),
        })
    }

    /// Work that is done from time to time: `span` has passed since the last call.
    pub fn housekeep(&self, span: Duration) {
        self.threads.origin_writes().report_errors(span);
        if let Err(error) = self.settle() {
            tracing::warn!("the cache stays marked as dirty: {error}");
        }
        self.call_off_abandoned();
        while buf::trim() {}
        while buf::trim_shared() {}
    }

    /// Marks the cache as not dirty, once the mode is not write-back and the origin has every block: then damage to the cache
    /// refuses no start.
    ///
    /// # Errors
    /// A thread does not answer, or the cache device fails.
    fn settle(&self) -> Result<(), HostError> {
        // Prevents a change to write-back meanwhile.
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let settings = self.settings_now();
        let mut lifecycle = self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
        let is_served = !self.stopping.load(Ordering::SeqCst);
        if is_served && settings.mode != Mode::WriteBack && lifecycle.superblock().dirty {
            let around = self.devices.surroundings();
            let withdraw = lifecycle.withdraw_write_back(&around, &self.threads);
            if Runtime::new(Config::default())?.block_on(withdraw)? {
                tracing::info!("the origin has every block: the cache is no longer marked as dirty");
            }
        }
        Ok(())
    }

    /// What a stop would disconnect, or leave waiting for the next start: clients, and users of a block device.
    pub fn users(&self) -> Vec<String> {
        let deadline = Instant::now() + LEAVING_WITHIN;
        loop {
            let users: Vec<_> = self
                .front_ends
                .iter()
                .flat_map(|front_end| front_end.users())
                .collect();
            if users.is_empty() || Instant::now() > deadline {
                return users;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Stops accepting requests, completes those in flight, writes the index and the clean mark, and joins the threads.
    /// Returns the number of dirty blocks, which the origin lacks.
    ///
    /// # Errors
    /// The cache could not be closed cleanly; the next start will run crash recovery.
    pub fn shutdown(&self) -> Result<u64, HostError> {
        self.stopping.store(true, Ordering::SeqCst);
        self.front_ends.iter().for_each(|front_end| front_end.stop());
        let clients = || self.front_ends.iter().map(|front_end| front_end.clients()).sum();
        let deadline = Instant::now() + CLIENTS_LEAVE_WITHIN;
        while clients() > 0_usize {
            if Instant::now() > deadline {
                tracing::warn!("{}", cut_off(clients()));
                self.front_ends.iter().for_each(|front_end| front_end.cut());
                std::thread::sleep(Duration::from_millis(100));
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let closed = self.close();
        self.threads.origin_writes().report_errors(HOUSEKEEP_EVERY);
        self.threads.end();
        if let Some(member) = &self.held.member
            && let Err(error) = member.credit.give_back(&member.client)
        {
            tracing::warn!("this volume's unused part of the write budget is not returned: {error}");
        }
        closed
    }

    /// Closes the cache. Returns the number of dirty blocks.
    fn close(&self) -> Result<u64, HostError> {
        let leave = self.left_by_stop();
        let around = self.devices.surroundings();
        let mut lifecycle = self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
        let close = lifecycle.close(&around, &self.threads, leave);
        let dirty = Runtime::new(Config::default())?.block_on(close)?;
        if dirty == 0 {
            return Ok(0);
        }
        let bytes = HumanBytes(dirty * BLOCK_BYTES as u64);
        if leave == Leave::Empty {
            // A write that began before the mode changed and was acknowledged after the last writeback pass.
            return Err(format!(
                "{bytes} of writes arrived during the detach and are only on {}: keep it, serve it again, and \
                 detach it again",
                self.spec.cache.display()
            )
            .into());
        }
        tracing::warn!(
            "{bytes} of dirty data is only on the cache device: the origin is incomplete without it (write it \
             back with `flaz flush`)"
        );
        Ok(dirty)
    }
}

#[cfg(test)]
mod tests;
