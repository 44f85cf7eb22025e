//! A cache being served: opening it, the threads, and closing it in order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flaz_device::deadline::Deadline;
use flaz_device::file::{FileDevice, OpenMode};
use flaz_device::rt::mailbox::{Sender, channel};
use flaz_device::rt::{Config, Rt, Runtime, compute};
use flaz_device::rt::{OneReceiver, OneSender, oneshot};
use flaz_engine::cache::{
    Belief, CacheError, Start, check_origin, look_at_origin, mark_clean, mark_dirty, mark_dirty_served,
    mark_empty, mark_void, open_superblock, read_superblock, settle_origin, start_cold, without_image,
    without_log,
};
use flaz_engine::format::superblock::Superblock;
use flaz_engine::settings::AfterCrash;
use flaz_engine::shard::{ImageError, OriginWrites, RecoverError, Recovered};
use flaz_engine::stats::StatsSnapshot;
use flaz_engine::units::BLOCK_BYTES;
use flaz_engine::volume::IoError;
use flaz_engine::witness::Memory;
use flaz_nbd::{Counters, Export, Limits, NbdAddress, Server, Service, Shutdown, Snapshot};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::HostError;
use super::device::{CacheDevice, HostDevice};
use super::origin::{believe_host, explain, file_system, open_origin};
use super::state::StateFile;
use super::worker::{self, MAILBOX_MAX, Order, WorkerParts};
use crate::commands::spec::ServeSpec;
use crate::report::StatusReport;
use crate::safety::{self, Claim};
use crate::settings::{Mode, Settings, SettingsPatch};
use crate::size::HumanBytes;

/// How long clients have to read their last replies at a stop.
const CLIENTS_LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// How long a thread has to answer a question of the status page.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long a thread has to bring admitted blocks to the cache device, or to write its index.
const STOP_WITHIN: Duration = Duration::from_secs(300);
/// How long the threads have to bring all that is dirty to the origin: a slow disk and a large cache take hours.
pub const CLEAN_WITHIN: Duration = Duration::from_secs(48 * 3600);
/// Times that a detach cleans again what came while it began.
const CLEAN_TURNS_MAX: u32 = 3;
/// Longest time for the threads to read the log back after a crash.
const RECOVER_WITHIN: Duration = Duration::from_secs(3600);

/// A cache being served. Dropping it without [`Daemon::shutdown`] is a crash, on purpose.
pub struct Daemon {
    pub(super) spec: ServeSpec,
    pub(super) superblock: Mutex<Superblock>,
    pub(super) settings: Mutex<Settings>,
    pub(super) started: Instant,
    pub(super) started_warm: bool,
    pub(super) recovery: Duration,
    pub(super) threads: u32,
    pub(super) counters: Vec<Arc<Counters>>,
    pub(super) stopping: AtomicBool,
    detaching: AtomicBool,
    origin_path: std::path::PathBuf,
    cache: HostDevice,
    origin: HostDevice,
    state: Arc<StateFile>,
    origin_writes: OriginWrites,
    mailboxes: Vec<Sender<Order>>,
    shutdown: Shutdown,
    joins: Mutex<Vec<JoinHandle<()>>>,
    _claim: Claim,
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Daemon")
            .field("cache", &self.spec.cache)
            .finish_non_exhaustive()
    }
}

/// Opens the devices, restores the index, starts the threads, binds the NBD sockets: ready on return.
///
/// # Errors
/// Something of that failed; everything is closed again.
pub fn start(spec: &ServeSpec, failed: Arc<dyn Fn(HostError) + Send + Sync>) -> Result<Daemon, HostError> {
    let claim = safety::claim_existing(&spec.cache, safety::Access::ReadWrite)?;
    let cache_file = open_cache(&spec.cache, false)?;
    let device = HostDevice::new(cache_file.clone(), spec.emulate_cache);
    let runtime = Runtime::new(Config::default())?;
    let cache = Deadline::new(device.clone(), Rt, spec.device_timeout);
    let mut superblock = runtime.block_on(read_superblock(&cache))?;
    let state = Arc::new(StateFile::open(spec.state_dir.as_deref(), superblock.uuid));
    superblock.after_crash = spec.after_crash;
    let origin_path = spec
        .origin
        .clone()
        .unwrap_or_else(|| superblock.origin_path.clone().into());
    let origin = open_origin(spec, &origin_path, &mut superblock)?;
    // What opens a cache for a moment need not say it.
    if !spec.nbd.is_empty() {
        warn_if_buffered("cache device", &cache_file);
        warn_if_buffered("origin", &origin);
    }
    let origin = HostDevice::new(origin, spec.emulate_origin);
    let settings = spec.settings(superblock.codec);
    let shutdown = Shutdown::new();
    // Bound before anything is marked: a socket in use leaves a clean cache clean.
    let servers = bind(&spec.nbd, &shutdown)?;

    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // A second daemon in one process keeps the first one's pool.
    let _ = compute::configure(cores);
    let shards = superblock.geometry.shard_count;
    if let Some(wanted) = spec.threads.filter(|wanted| *wanted > shards) {
        tracing::warn!(
            "--threads {wanted}: expected at most one for each shard, found {shards} of these, and so many are started (their \
             number is chosen at flaz create --shards)"
        );
    }
    let threads = spec
        .threads
        // The other half is for the kernel's side of the sockets, codecs and clients: on a small machine a second thread
        // costs every other request at depth 1 two hand-overs, and gains nothing at depth 32.
        .unwrap_or(cores.div_ceil(2) as u32)
        .clamp(1, shards);
    let workers = Workers::start(
        threads,
        &device,
        &origin,
        &state,
        spec,
        superblock.geometry.origin_len,
        &failed,
    )?;

    let started = Instant::now();
    if spec.discard_cache && superblock.dirty && !spec.discard_dirty {
        return Err(CacheError::Dirty.into());
    }
    if spec.discard_cache {
        tracing::warn!("--discard-cache: what the cache held is given up, and it starts empty");
        superblock.dirty = false;
    }
    let mut memory = state.recall();
    if let Some(memory) = &mut memory {
        memory.dirty &= !(spec.discard_cache && spec.discard_dirty);
    }
    let belief = believe_host(spec, &mut superblock, memory, &state)?;
    if !spec.discard_cache && belief != Belief::Nothing {
        let checked = runtime.block_on(check_origin(&cache, &origin, &superblock, memory));
        checked.map_err(|error| explain(error, &runtime, &origin, &state))?;
    }
    let write_back = spec.mode == Mode::WriteBack;
    if spec.after_crash == AfterCrash::Cold && (write_back || superblock.dirty) {
        return Err(CacheError::ColdWriteBack.into());
    }
    let belief = if spec.discard_cache {
        Belief::Nothing
    } else {
        belief
    };
    let begin = runtime.block_on(open_superblock(&cache, &mut superblock, belief))?;
    let distrust = belief == Belief::DirtyAlone;
    let warm = workers.restore(begin, distrust, &runtime, &cache, &mut superblock, &settings)?;
    if write_back {
        // Not before what is there was read: what counts as dirty in it is none, unless the superblock said so.
        runtime.block_on(mark_dirty(&cache, &mut superblock))?;
    }
    workers.permit_write_back(superblock.dirty)?;
    if !warm {
        runtime.block_on(settle_origin(&origin))?;
    }
    let recovery = started.elapsed();
    // Before anything can reach the origin that the cache device might miss.
    let found = runtime.block_on(look_at_origin(&origin, &workers.origin_writes, &mut superblock));
    if let Some(found) = found.filter(|_| state.has_place()) {
        workers.origin_writes.watch_from(&found);
    }
    state.note(Memory::of(&superblock), None);
    state.note_cache_of(&superblock.origin_identity);
    workers.start_shards()?;
    let acceptors = accept(servers, workers.mailboxes.clone(), failed)?;
    let origin_writes = workers.origin_writes.clone();
    let (mailboxes, counters, mut joins) = workers.take();
    joins.extend(acceptors);
    Ok(Daemon {
        spec: spec.clone(),
        superblock: Mutex::new(superblock),
        settings: Mutex::new(settings),
        started,
        started_warm: warm,
        recovery,
        threads,
        counters,
        stopping: AtomicBool::new(false),
        detaching: AtomicBool::new(false),
        origin_path,
        cache: device,
        origin,
        state,
        origin_writes,
        mailboxes,
        shutdown,
        joins: Mutex::new(joins),
        _claim: claim,
    })
}

/// Opens a cache device that is already held.
pub(super) fn open_cache(path: &std::path::Path, read_only: bool) -> Result<FileDevice, HostError> {
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

/// A bar for reading the log back, on a terminal; nothing in a pipe.
fn recovery_bar(regions: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(regions), ProgressDrawTarget::stderr());
    // The template is a constant of this program; a bar in the default style is no reason to fail.
    if let Ok(style) =
        ProgressStyle::with_template("reading the cache back {bar:28.cyan/dim} {percent:>3}%  {eta}")
    {
        bar.set_style(style.progress_chars("━━─"));
    }
    bar
}

fn bind(addresses: &[NbdAddress], shutdown: &Shutdown) -> Result<Vec<Server>, HostError> {
    addresses
        .iter()
        .map(|address| Ok(Server::bind(address, Limits::default(), shutdown.clone())?))
        .collect()
}

/// Mailboxes, counters and handles of the threads.
type TakenOver = (Vec<Sender<Order>>, Vec<Arc<Counters>>, Vec<JoinHandle<()>>);

/// The threads that drive shards, while the cache is being opened.
struct Workers {
    mailboxes: Vec<Sender<Order>>,
    joins: Vec<JoinHandle<()>>,
    counters: Vec<Arc<Counters>>,
    origin_writes: OriginWrites,
}

impl Drop for Workers {
    fn drop(&mut self) {
        // Only if the start failed: otherwise the threads have been taken over.
        if !self.joins.is_empty() {
            for mailbox in &self.mailboxes {
                let _ = post(mailbox, Order::Exit);
            }
        }
    }
}

impl Workers {
    fn start(
        threads: u32,
        cache: &HostDevice,
        origin: &HostDevice,
        state: &Arc<StateFile>,
        spec: &ServeSpec,
        size: u64,
        failed: &Arc<dyn Fn(HostError) + Send + Sync>,
    ) -> Result<Self, HostError> {
        let (mailboxes, inboxes): (Vec<_>, Vec<_>) = (0..threads).map(|_| channel(MAILBOX_MAX)).unzip();
        let mut workers = Self {
            mailboxes: mailboxes.clone(),
            joins: Vec::new(),
            counters: Vec::new(),
            origin_writes: OriginWrites::default(),
        };
        let export = Arc::new(Export::new(size).read_only(spec.read_only));
        for (number, inbox) in inboxes.into_iter().enumerate() {
            let counters = Arc::new(Counters::default());
            let service = Service {
                export: Arc::clone(&export),
                limits: Limits::default(),
                counters: Arc::clone(&counters),
            };
            let parts = WorkerParts {
                number: number as u32,
                threads,
                cache: cache.clone(),
                origin: origin.clone(),
                device_timeout: spec.device_timeout,
                state: Arc::clone(state),
                service,
                mailboxes: mailboxes.clone(),
                origin_writes: workers.origin_writes.clone(),
                inbox,
            };
            let (ready, told) = mpsc::channel();
            let join = watched(format!("flaz-{number}"), Arc::clone(failed), move || {
                worker::run(parts, ready)
            })?;
            workers.joins.push(join);
            workers.counters.push(counters);
            told.recv().map_err(|_| "a thread ended before it began")??;
        }
        Ok(workers)
    }

    /// Builds the shards, warm if possible; says whether they are.
    fn restore(
        &self,
        begin: Start,
        distrust: bool,
        runtime: &Runtime,
        cache: &CacheDevice,
        superblock: &mut Superblock,
        settings: &Settings,
    ) -> Result<bool, HostError> {
        self.build(superblock, settings)?;
        let mut begin = begin;
        if let Start::Warm(epoch) = begin {
            let loaded = ask_all(&self.mailboxes, STOP_WITHIN, |reply| Order::Load { epoch, reply })?;
            match loaded.into_iter().collect::<Result<Vec<usize>, _>>() {
                Ok(refused) => {
                    let refused: usize = refused.iter().sum();
                    if refused > 0 {
                        tracing::warn!("{refused} index entries were not usable and were left out");
                    }
                    return Ok(true);
                }
                Err(error) => {
                    begin = runtime.block_on(without_image(cache, superblock, &error))?;
                    self.build(superblock, settings)?;
                }
            }
        }
        if begin == Start::Recovered {
            match self.recover(superblock, distrust)? {
                Ok(()) => return Ok(true),
                Err(error) => begin = without_log(superblock, &error)?,
            }
        }
        if begin != Start::Empty {
            runtime.block_on(start_cold(cache, superblock))?;
            self.build(superblock, settings)?;
        }
        Ok(false)
    }

    /// Reads the log back. With `distrust` only what is dirty is kept.
    fn recover(
        &self,
        superblock: &Superblock,
        distrust: bool,
    ) -> Result<Result<(), RecoverError>, HostError> {
        let started = Instant::now();
        let geometry = &superblock.geometry;
        let progress = recovery_bar(u64::from(geometry.shard_count) * u64::from(geometry.regions_per_shard));
        let parts = ask_all(&self.mailboxes, RECOVER_WITHIN, |reply| Order::Recover {
            distrust,
            progress: progress.clone(),
            reply,
        });
        progress.finish_and_clear();
        let mut total = Recovered::default();
        for part in parts? {
            match part {
                Ok(part) => total.add(&part),
                Err(error) => return Ok(Err(error)),
            }
        }
        tracing::warn!(
            "the cache was not stopped in order: {} blocks of {} regions are warm again after {:.3} s, {} of them newer \
             than the origin; {} blocks of {} stripes that may have been written to were dropped",
            total.blocks,
            total.regions,
            started.elapsed().as_secs_f64(),
            total.dirty,
            total.dropped,
            total.stripes
        );
        Ok(Ok(()))
    }

    /// Tells the shards whether the superblock says that blocks may be dirty.
    fn permit_write_back(&self, permitted: bool) -> Result<(), HostError> {
        ask_all(&self.mailboxes, ANSWER_WITHIN, |reply| {
            Order::PermitWriteBack(permitted, reply)
        })?;
        Ok(())
    }

    /// Hands the threads over to the daemon.
    fn take(mut self) -> TakenOver {
        let joins = std::mem::take(&mut self.joins);
        (
            std::mem::take(&mut self.mailboxes),
            std::mem::take(&mut self.counters),
            joins,
        )
    }

    fn build(&self, superblock: &Superblock, settings: &Settings) -> Result<(), HostError> {
        let superblock = Arc::new(superblock.clone());
        let engine = flaz_engine::settings::Settings::from(settings);
        ask_all(&self.mailboxes, ANSWER_WITHIN, |reply| Order::Build {
            superblock: Arc::clone(&superblock),
            settings: engine.clone(),
            reply,
        })?;
        Ok(())
    }

    fn start_shards(&self) -> Result<(), HostError> {
        self.mailboxes
            .iter()
            .try_for_each(|mailbox| post(mailbox, Order::Start))
    }
}

/// A thread whose panic ends the daemon instead of leaving half of it.
fn watched(
    name: String,
    failed: Arc<dyn Fn(HostError) + Send + Sync>,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, HostError> {
    let guarded = move || {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
            let name = std::thread::current().name().unwrap_or("?").to_owned();
            failed(
                format!("thread {name} panicked: this is a bug; the next start is that after a crash").into(),
            );
        }
    };
    Ok(std::thread::Builder::new().name(name).spawn(guarded)?)
}

/// Accepts connections on a thread of its own and deals them out to the workers in turn.
fn accept(
    servers: Vec<Server>,
    mailboxes: Vec<Sender<Order>>,
    failed: Arc<dyn Fn(HostError) + Send + Sync>,
) -> Result<Vec<JoinHandle<()>>, HostError> {
    let body = {
        let failed = Arc::clone(&failed);
        move || {
            let runtime = match Runtime::new(Config::default()) {
                Ok(runtime) => runtime,
                Err(error) => return failed(error.into()),
            };
            runtime.block_on(async {
                let next = std::cell::Cell::new(0usize);
                let runs = servers.into_iter().map(|server| {
                    let hand_over = |incoming| {
                        let turn = next.get();
                        next.set(turn + 1);
                        if post(&mailboxes[turn % mailboxes.len()], Order::Connection(incoming)).is_err() {
                            tracing::warn!("a connection was closed: its thread takes no more orders");
                        }
                    };
                    server.run(&Rt, hand_over)
                });
                for result in futures_util::future::join_all(runs).await {
                    if let Err(error) = result {
                        failed(error.into());
                    }
                }
            });
        }
    };
    Ok(vec![watched("flaz-accept".to_owned(), failed, body)?])
}

/// Puts an order into a mailbox from an ordinary thread, waiting while the mailbox is full.
fn post(mailbox: &Sender<Order>, order: Order) -> Result<(), HostError> {
    let deadline = Instant::now() + ANSWER_WITHIN;
    let mut order = order;
    loop {
        match mailbox.try_send(order) {
            Ok(()) => return Ok(()),
            Err(_) if mailbox.is_closed() => return Err("a thread has ended".into()),
            Err(back) if Instant::now() < deadline => order = back,
            Err(_) => return Err("a thread does not take orders: its mailbox stays full".into()),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Asks every thread at once and collects the answers.
fn ask_all<T: Send>(
    mailboxes: &[Sender<Order>],
    within: Duration,
    order: impl Fn(OneSender<T>) -> Order,
) -> Result<Vec<T>, HostError> {
    let waiting = mailboxes
        .iter()
        .map(|mailbox| {
            let (reply, answer) = oneshot();
            post(mailbox, order(reply)).map(|()| answer)
        })
        .collect::<Result<Vec<OneReceiver<T>>, _>>()?;
    waiting
        .into_iter()
        .map(|answer| {
            answer
                .recv_blocking(within)
                .map_err(|error| format!("a thread gave no answer: {error}").into())
        })
        .collect()
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
        let parts = ask_all(&self.mailboxes, ANSWER_WITHIN, Order::Stats)?;
        let (mut total, mut cleaning) = (StatsSnapshot::default(), Vec::new());
        for part in &parts {
            total.add(&part.total);
            cleaning.extend_from_slice(&part.cleaning);
        }
        let nbd: Vec<Snapshot> = self.counters.iter().map(|counters| counters.snapshot()).collect();
        Ok(super::status::live(self, &total, &cleaning, &nbd))
    }

    /// Changes settings; returns those then in force.
    ///
    /// # Errors
    /// A thread does not answer.
    pub fn set(&self, patch: &SettingsPatch) -> Result<Settings, HostError> {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let next = settings.patched(patch);
        if next.mode == Mode::WriteBack && self.detaching.load(Ordering::Relaxed) {
            return Err("the cache is being detached: no writes are kept back any more".into());
        }
        if next.mode == Mode::WriteBack && settings.mode != Mode::WriteBack {
            let runtime = Runtime::new(Config::default())?;
            let mut superblock = self.superblock.lock().unwrap_or_else(PoisonError::into_inner);
            if self.stopping.load(Ordering::SeqCst) {
                // What the stop has said of the cache, or will say when it has the lock, is the last word.
                return Err("the server is being stopped: set the mode when it is started again".into());
            }
            let (cache, writes) = (self.deadlined_cache(), &self.origin_writes);
            runtime.block_on(mark_dirty_served(&Rt, &cache, &mut superblock, writes))?;
            self.state.note_dirty(superblock.generation);
            ask_all(&self.mailboxes, ANSWER_WITHIN, |reply| {
                Order::PermitWriteBack(true, reply)
            })?;
        }
        let engine = flaz_engine::settings::Settings::from(&next);
        ask_all(&self.mailboxes, ANSWER_WITHIN, |reply| {
            Order::Set(engine.clone(), reply)
        })?;
        *settings = next.clone();
        Ok(next)
    }

    fn deadlined_cache(&self) -> CacheDevice {
        Deadline::new(self.cache.clone(), Rt, self.spec.device_timeout)
    }

    /// Brings everything that is dirty to the origin. Gives the number of dirty blocks that are left: written
    /// meanwhile, or damaged.
    ///
    /// # Errors
    /// The cleaner cannot.
    pub fn clean(&self) -> Result<u64, HostError> {
        let cleaned = ask_all(&self.mailboxes, CLEAN_WITHIN, Order::Clean)?;
        let left = self.dirty_blocks()?;
        if let Some(error) = cleaned.into_iter().find_map(Result::err) {
            return Err(self.not_clean(left, &error));
        }
        Ok(left)
    }

    /// Why blocks stay dirty, and what to do.
    fn not_clean(&self, left: u64, error: &IoError) -> HostError {
        let cache = self.spec.cache.display();
        // Its first words are for a request; here they say nothing, and would do so twice.
        let why = error
            .to_string()
            .replace(&IoError::CacheFailed(String::new()).to_string(), "");
        // Those that are damaged now: what was counted may have been written anew since.
        let damaged_blocks = self.damaged_blocks().unwrap_or_default();
        if why.ends_with("cannot be read") && damaged_blocks > 0 {
            return damaged(damaged_blocks);
        }
        format!(
            "{left} blocks stay dirty, their latest contents on {cache} alone: {why}; keep it, and try again when that is \
             mended"
        )
        .into()
    }

    fn dirty_blocks(&self) -> Result<u64, HostError> {
        let parts = ask_all(&self.mailboxes, ANSWER_WITHIN, Order::Stats)?;
        Ok(parts.iter().map(|part| part.total.holdings.dirty_blocks).sum())
    }

    fn damaged_blocks(&self) -> Result<u64, HostError> {
        let parts = ask_all(&self.mailboxes, ANSWER_WITHIN, Order::Stats)?;
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
            mode: Some(crate::settings::Mode::WriteThrough),
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

    /// Where the origin is.
    pub(super) fn origin_path(&self) -> &std::path::Path {
        &self.origin_path
    }

    /// Takes no more requests, finishes those in flight, writes the index and the clean mark, joins threads. Gives the
    /// number of dirty blocks: the origin lacks them.
    ///
    /// # Errors
    /// The cache could not be closed cleanly; the next start is that after a crash.
    pub fn shutdown(&self) -> Result<u64, HostError> {
        self.stopping.store(true, Ordering::SeqCst);
        self.shutdown.stop();
        let deadline = Instant::now() + CLIENTS_LEAVE_WITHIN;
        while self.shutdown.connections() > 0 {
            if Instant::now() > deadline {
                tracing::warn!("{}", cut_off(self.shutdown.connections()));
                self.shutdown.cut();
                std::thread::sleep(Duration::from_millis(100));
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let saved = self.save();
        for mailbox in &self.mailboxes {
            if let Err(error) = post(mailbox, Order::Exit) {
                tracing::warn!("stopping: {error}");
            }
        }
        let joins = std::mem::take(&mut *self.joins.lock().unwrap_or_else(PoisonError::into_inner));
        for join in joins {
            // Panics were reported when they happened.
            let _ = join.join();
        }
        saved
    }

    fn save(&self) -> Result<u64, HostError> {
        ask_all(&self.mailboxes, STOP_WITHIN, Order::Stop)?;
        let saved = ask_all(&self.mailboxes, STOP_WITHIN, Order::Save)?;
        let failed = saved
            .iter()
            .any(|part| matches!(part, Err(ImageError::Failed { .. })));
        let dirty = self.dirty_blocks()?;
        let runtime = Runtime::new(Config::default())?;
        let mut superblock = self.superblock.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = self.deadlined_cache();
        let mut outcome = Ok(());
        if failed && dirty == 0 {
            // Writes went past it: what is on it must not be believed if it comes back. (What is dirty on it must; its
            // intents, all of them set, make the rest void.)
            outcome = runtime
                .block_on(mark_void(&cache, &mut superblock))
                .map_err(HostError::from);
        }
        // Nothing was written since the flush of the last shard.
        runtime.block_on(look_at_origin(&self.origin, &self.origin_writes, &mut superblock));
        let held = file_system(&runtime, &self.origin);
        if dirty > 0 {
            tracing::warn!(
                "{} of writes have not reached the origin: it is complete only together with this cache (`flaz flush` \
                 brings them there)",
                HumanBytes(dirty * BLOCK_BYTES as u64)
            );
        }
        let saved = saved.into_iter().collect::<Result<(), _>>();
        if let Err(error) = outcome.and_then(|()| saved.map_err(HostError::from)) {
            self.state.note_stopped(superblock.origin_fingerprint, held);
            return Err(error);
        }
        superblock.dirty = dirty > 0;
        if self.detaching.load(Ordering::SeqCst) && dirty == 0 {
            runtime.block_on(mark_empty(&cache, &mut superblock))?;
        } else {
            runtime.block_on(mark_clean(&cache, &mut superblock))?;
        }
        self.state.note(Memory::of(&superblock), held);
        if self.detaching.load(Ordering::Relaxed) && dirty > 0 {
            // A write that had begun before the mode was changed, and was acknowledged after the cleaner's last round.
            return Err(format!(
                "{} of writes arrived while the cache was being detached and are on {} alone: keep it, serve it again, and \
                 detach it once more",
                HumanBytes(dirty * BLOCK_BYTES as u64),
                self.spec.cache.display()
            )
            .into());
        }
        Ok(dirty)
    }
}

#[cfg(test)]
mod tests;
