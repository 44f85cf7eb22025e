//! A cache being served: opening it, the threads, and closing it in order.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flaz_control::report::{CacheReport, OriginReport, StatusReport};
use flaz_control::settings::SettingsPatch;
use flaz_control::size::HumanBytes;
use flaz_device::deadline::Deadline;
use flaz_engine::cache::lifecycle::{Discard, Leave, Lifecycle, OpenOptions, Opened};
use flaz_engine::cache::read_superblock;
use flaz_engine::cache::surroundings::Surroundings;
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::stats::StatsSnapshot;
use flaz_engine::units::BLOCK_BYTES;
use flaz_engine::volume::IoError;
use flaz_nbd::Export;
use flaz_runtime::file::{FileDevice, OpenMode};
use flaz_runtime::{Config, Rt, Runtime, compute};

use crate::device::{HostDevice, Production};
use crate::error::HostError;
use crate::front_end::{FrontEnd, SessionThreads};
use crate::nbd::NbdFrontEnd;
use crate::order::{ANSWER_WITHIN, Order};
use crate::origin::{explain, open_origin};
use crate::safety::{self, Claim};
use crate::spec::ServeSpec;
use crate::state::{StateFile, StateRecords};
use crate::status::{Facts, cache_report, live};
use crate::threads::{ThreadParts, Threads};

/// How long clients have to read their last replies at a stop.
const CLIENTS_LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// How long the threads have to bring all that is dirty to the origin: a slow disk and a large cache take hours.
pub const CLEAN_WITHIN: Duration = Duration::from_secs(48 * 3600);
/// Times that a detach cleans again what came while it began.
const CLEAN_TURNS_MAX: u32 = 3;

/// A cache being served. Dropping it without [`Daemon::shutdown`] is a crash, on purpose.
pub struct Daemon {
    spec: ServeSpec,
    settings: Mutex<Settings>,
    /// The cache device and what is fixed about the cache.
    cache_report: CacheReport,
    origin_report: OriginReport,
    started: Instant,
    opened: Opened,
    stopping: AtomicBool,
    detaching: AtomicBool,
    lifecycle: Mutex<Lifecycle>,
    devices: Devices,
    threads: Threads,
    front_ends: Vec<Box<dyn FrontEnd>>,
    _claim: Claim,
}

/// The devices of a cache and the host record, from which each thread makes its [`Surroundings`].
struct Devices {
    cache: HostDevice,
    origin: HostDevice,
    state: Arc<StateFile>,
    /// Limit of an operation of the cache device; `None`: no limit.
    device_timeout: Option<Duration>,
}

impl Devices {
    fn surroundings(&self) -> Surroundings<Production> {
        Surroundings {
            env: Rt,
            cache: Rc::new(Deadline::new(self.cache.clone(), Rt, self.device_timeout)),
            origin: Rc::new(self.origin.clone()),
            host_records: StateRecords::of_lifecycle(&self.state, &self.origin),
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

/// Opens the devices and the cache, starts the threads, binds the NBD sockets: ready on return.
///
/// # Errors
/// Something of that failed; everything is closed again.
pub fn start(spec: &ServeSpec, failed: Arc<dyn Fn(HostError) + Send + Sync>) -> Result<Daemon, HostError> {
    let claim = safety::claim_existing(&spec.cache, safety::Access::ReadWrite)?;
    let cache_file = open_cache(&spec.cache, false)?;
    let runtime = Runtime::new(Config::default())?;
    let cache = HostDevice::new(cache_file.clone(), spec.emulate_cache);
    let deadlined = Deadline::new(cache.clone(), Rt, spec.device_timeout);
    let mut superblock = runtime.block_on(read_superblock(&deadlined))?;
    let state = Arc::new(StateFile::open(spec.state_dir.as_deref(), superblock.uuid));
    let origin_path = spec
        .origin
        .clone()
        .unwrap_or_else(|| superblock.origin_path.clone().into());
    let origin_file = open_origin(spec, &origin_path, &mut superblock)?;
    // A command that opens a cache for a moment need not report this.
    if !spec.nbd.is_empty() {
        warn_if_buffered("cache device", &cache_file);
        warn_if_buffered("origin", &origin_file);
    }
    let settings = spec.settings(superblock.codec);
    let geometry = &superblock.geometry;
    let thread_count = thread_count(spec.threads, geometry.shard_count);
    let export = Export::new(geometry.origin_len).read_only(spec.read_only);
    // Bound before anything is marked: a socket in use leaves a clean cache clean.
    let front_ends: Vec<Box<dyn FrontEnd>> =
        vec![Box::new(NbdFrontEnd::bind(&spec.nbd, export, thread_count)?)];
    let devices = Devices {
        cache,
        origin: HostDevice::new(origin_file, spec.emulate_origin),
        state,
        device_timeout: spec.device_timeout,
    };
    let threads = Threads::start(
        thread_count,
        &ThreadParts {
            cache: &devices.cache,
            origin: &devices.origin,
            state: &devices.state,
            device_timeout: spec.device_timeout,
            settings: settings.clone(),
            failed: Arc::clone(&failed),
        },
    )?;
    let started = Instant::now();
    let before = devices.state.origin();
    let options = OpenOptions {
        write_back: spec.mode == Mode::WriteBack,
        after_crash: spec.after_crash,
        discard: match (spec.discard_cache, spec.discard_dirty) {
            (false, _) => Discard::Nothing,
            (true, false) => Discard::Clean,
            (true, true) => Discard::All,
        },
    };
    let around = devices.surroundings();
    let opening = Lifecycle::open(&around, superblock, options, &threads);
    let (lifecycle, opened) = runtime
        .block_on(opening)
        .map_err(|error| explain(error, &runtime, &devices.origin, before.as_ref()))?;
    for front_end in &front_ends {
        let sessions = SessionThreads::new(threads.mailboxes());
        for join in front_end.start(sessions, Arc::clone(&failed))? {
            threads.add(join);
        }
    }
    Ok(Daemon {
        spec: spec.clone(),
        settings: Mutex::new(settings),
        cache_report: cache_report(&spec.cache, lifecycle.superblock()),
        origin_report: OriginReport {
            path: origin_path,
            size_bytes: lifecycle.superblock().geometry.origin_len,
        },
        started,
        opened,
        stopping: AtomicBool::new(false),
        detaching: AtomicBool::new(false),
        lifecycle: Mutex::new(lifecycle),
        devices,
        threads,
        front_ends,
        _claim: claim,
    })
}

/// How many threads drive `shards` shards.
fn thread_count(wanted: Option<u32>, shards: u32) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // A second daemon in one process keeps the first one's pool.
    let _ = compute::configure(cores);
    if let Some(wanted) = wanted.filter(|wanted| *wanted > shards) {
        tracing::warn!(
            "--threads {wanted}: expected at most one for each shard, found {shards} shards, so {shards} threads are started \
             (the number of shards is set by flaz create --shards)"
        );
    }
    wanted
        // The other half is for the kernel's side of the sockets, codecs and clients: on a small machine a second thread
        // costs every other request at depth 1 two hand-overs, and gains nothing at depth 32.
        .unwrap_or(cores.div_ceil(2) as u32)
        .clamp(1, shards)
}

/// Opens a cache device that is already held.
pub(crate) fn open_cache(path: &std::path::Path, read_only: bool) -> Result<FileDevice, HostError> {
    Ok(FileDevice::open(
        path,
        OpenMode {
            read_only,
            exclusive: false,
            buffered: false,
        },
    )?)
}

/// Says so where a device is used through the page cache.
fn warn_if_buffered(what: &str, device: &FileDevice) {
    if !device.is_direct() {
        tracing::warn!(
            "{what} {}: no direct I/O, because its file system refuses it. Going through the page cache: data is held in \
             memory twice, and writes may wait for the kernel's write-back",
            device.path().display()
        );
    }
}

/// Which clients a stop does not wait for any longer: nobody can tell from here what they wait for themselves.
fn cut_off(connections: usize) -> String {
    format!(
        "{connections} connections have requests under way after {} s: disconnected (a device takes long over them, or the \
         client does not read its replies); what was acknowledged is kept",
        CLIENTS_LEAVE_WITHIN.as_secs()
    )
}

/// Why dirty blocks are left by a cleaner that has met no error, and what to do: nothing may be given up for those that
/// are merely written again and again.
fn left_dirty(left: u64, damaged_blocks: u64) -> HostError {
    if damaged_blocks > 0 {
        return damaged(damaged_blocks);
    }
    format!(
        "{left} blocks are written again as fast as they are brought to the origin: try again when its clients write less, or \
         stop them first"
    )
    .into()
}

/// What to do about dirty blocks that cannot be read.
fn damaged(blocks: u64) -> HostError {
    format!(
        "{blocks} blocks cannot be brought to the origin, because copies of them on the cache device are damaged: `flaz check` \
         says which bytes of the origin; write those anew on the served disk, or give up all that is not on the origin with \
         `flaz serve --discard-cache --discard-dirty`"
    )
    .into()
}

impl Daemon {
    /// Everything it knows about itself, at any time until shutdown returns.
    ///
    /// # Errors
    /// A thread does not answer: without it nothing is known of what is dirty.
    pub fn status(&self) -> Result<StatusReport, HostError> {
        let parts = self.threads.ask(ANSWER_WITHIN, Order::Stats)?;
        let (mut total, mut cleaning) = (StatsSnapshot::default(), Vec::new());
        for part in &parts {
            total.add(&part.total);
            cleaning.extend_from_slice(&part.cleaning);
        }
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let facts = Facts {
            spec: &self.spec,
            settings: settings.clone(),
            cache: &self.cache_report,
            origin: &self.origin_report,
            started: self.started,
            opened: &self.opened,
            stopping: self.stopping.load(Ordering::Relaxed),
            threads: self.threads.count(),
            listeners: self
                .front_ends
                .iter()
                .flat_map(|front_end| front_end.report())
                .collect(),
        };
        drop(settings);
        let counts: Vec<_> = self
            .front_ends
            .iter()
            .flat_map(|front_end| front_end.counts())
            .collect();
        Ok(live(&facts, &total, &cleaning, &counts))
    }

    /// What clients reach the volume by, for the log.
    #[must_use]
    pub fn front_ends(&self) -> Vec<String> {
        self.front_ends.iter().map(|front_end| front_end.name()).collect()
    }

    /// Changes settings; returns those then in force.
    ///
    /// # Errors
    /// A thread does not answer.
    pub fn set(&self, patch: &SettingsPatch) -> Result<Settings, HostError> {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let next = patch.applied_to(&settings);
        if next.mode == Mode::WriteBack && self.detaching.load(Ordering::Relaxed) {
            return Err("the cache is being detached: write-back is not allowed any more".into());
        }
        if next.mode == Mode::WriteBack && settings.mode != Mode::WriteBack {
            let mut lifecycle = self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
            if self.stopping.load(Ordering::SeqCst) {
                // The stop closes the cache, or has closed it.
                return Err("the server is stopping: set the mode after the next start".into());
            }
            let around = self.devices.surroundings();
            let permit = lifecycle.permit_write_back(&around, &self.threads);
            Runtime::new(Config::default())?.block_on(permit)?;
        }
        self.threads
            .ask(ANSWER_WITHIN, |reply| Order::Set(next.clone(), reply))?;
        *settings = next.clone();
        Ok(next)
    }

    /// Brings everything that is dirty to the origin. Gives the number of dirty blocks that are left: written
    /// meanwhile, or damaged.
    ///
    /// # Errors
    /// The cleaner cannot.
    pub fn clean(&self) -> Result<u64, HostError> {
        let cleaned = self.threads.ask(CLEAN_WITHIN, Order::Clean)?;
        let left = self.dirty_blocks()?;
        if let Some(error) = cleaned.into_iter().find_map(Result::err) {
            return Err(self.not_clean(left, &error));
        }
        Ok(left)
    }

    /// Why blocks stay dirty, and what to do.
    fn not_clean(&self, left: u64, error: &IoError) -> HostError {
        let cache = self.spec.cache.display();
        // Those that are damaged now: some may have been written anew since.
        if let Ok(damaged_blocks @ 1..) = self.only_damage_left() {
            return damaged(damaged_blocks);
        }
        let why = match error {
            // Its first words are for a request, and would say the same twice here.
            IoError::CacheFailed(why) => why.clone(),
            _ => error.to_string(),
        };
        format!(
            "{left} blocks stay dirty, their latest contents on {cache} alone: {why}; keep it, and try again when that is \
             fixed"
        )
        .into()
    }

    fn dirty_blocks(&self) -> Result<u64, HostError> {
        let parts = self.threads.ask(ANSWER_WITHIN, Order::State)?;
        Ok(parts.iter().map(|part| part.dirty_blocks).sum())
    }

    /// Damaged dirty blocks, if nothing else keeps writeback from its work; else 0.
    fn only_damage_left(&self) -> Result<u64, HostError> {
        let parts = self.threads.ask(ANSWER_WITHIN, Order::Stats)?;
        let failing = parts.iter().any(|part| part.total.holdings.cleaners_failing > 0);
        let damaged = parts.iter().map(|part| part.total.holdings.damaged_blocks).sum();
        Ok(if failing { 0 } else { damaged })
    }

    fn damaged_blocks(&self) -> Result<u64, HostError> {
        let parts = self.threads.ask(ANSWER_WITHIN, Order::Stats)?;
        Ok(parts.iter().map(|part| part.total.holdings.damaged_blocks).sum())
    }

    /// Makes the origin complete: no more writes are kept back, and all that were are brought there. The next stop
    /// leaves an empty cache.
    ///
    /// # Errors
    /// Something cannot be brought to the origin; the cache is then still needed.
    pub fn detach(&self) -> Result<(), HostError> {
        // From now on nobody sets write-back again.
        self.detaching.store(true, Ordering::SeqCst);
        let before = self.settings.lock().unwrap_or_else(PoisonError::into_inner).mode;
        // A stop that had begun may not have seen that, and leave the cache as it is: one of the two sees the other.
        let done = self.bring_all().and_then(|()| self.not_stopping());
        if done.is_err() {
            self.detaching.store(false, Ordering::Relaxed);
        }
        // What stays dirty does not grow, so the mode is not changed back.
        done.map_err(|error| match before {
            Mode::WriteBack => format!("{error} (the mode is write-through now)").into(),
            _ => error,
        })
    }

    fn not_stopping(&self) -> Result<(), HostError> {
        if self.stopping.load(Ordering::SeqCst) {
            return Err(
                "the server is being stopped: the cache may still be needed; serve it again, and detach it then".into(),
            );
        }
        Ok(())
    }

    fn bring_all(&self) -> Result<(), HostError> {
        self.set(&SettingsPatch {
            mode: Some(Mode::WriteThrough),
            ..SettingsPatch::default()
        })?;
        let mut left = self.clean()?;
        for _ in 0..CLEAN_TURNS_MAX {
            if left == 0 {
                break;
            }
            // A write of the same moment, when the mode had not reached its shard yet.
            left = self.clean()?;
        }
        if left > 0 {
            return Err(left_dirty(left, self.damaged_blocks()?));
        }
        Ok(())
    }

    /// Takes no more requests, finishes those in flight, writes the index and the clean mark, joins threads. Gives the
    /// number of dirty blocks: the origin lacks them.
    ///
    /// # Errors
    /// The cache could not be closed cleanly; the next start is that after a crash.
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
        self.threads.end();
        closed
    }

    /// Closes the cache. Returns the number of dirty blocks.
    fn close(&self) -> Result<u64, HostError> {
        // A detach that begins after this sees `stopping`, and fails.
        let detaching = self.detaching.load(Ordering::SeqCst);
        let leave = if detaching { Leave::Empty } else { Leave::Contents };
        let around = self.devices.surroundings();
        let mut lifecycle = self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
        let close = lifecycle.close(&around, &self.threads, leave);
        let dirty = Runtime::new(Config::default())?.block_on(close)?;
        if dirty == 0 {
            return Ok(0);
        }
        let bytes = HumanBytes(dirty * BLOCK_BYTES as u64);
        if detaching {
            // A write that had begun before the mode was changed, and was acknowledged after the last pass of writeback.
            return Err(format!(
                "{bytes} of writes arrived while the cache was being detached and are on {} alone: keep it, serve it again, \
                 and detach it once more",
                self.spec.cache.display()
            )
            .into());
        }
        tracing::warn!(
            "{bytes} of writes have not reached the origin: it is complete only together with this cache (`flaz flush` \
             writes them to the origin)"
        );
        Ok(dirty)
    }
}

#[cfg(test)]
mod tests;
