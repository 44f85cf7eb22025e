//! Opening a cache and starting what serves it, in the order in which a failure costs least.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use flaz_device::Device;
use flaz_device::deadline::Deadline;
use flaz_engine::cache::lifecycle::{Discard, Lifecycle, OpenOptions};
use flaz_engine::cache::read_superblock;
use flaz_engine::index_memory;
use flaz_engine::settings::Mode;
use flaz_engine::shard::JOB_BYTES_MAX;
use flaz_nbd::Export;
use flaz_runtime::file::{FileDevice, Hold, Kind, OpenMode};
use flaz_runtime::{Config, Rt, Runtime, compute};
use uuid::Uuid;

use super::{Daemon, Devices};
use crate::block_device::{self, Exported, refuse_on_waiting};
use crate::device::{HeldCache, HostDevice};
use crate::error::HostError;
use crate::front_end::{Failed, FrontEnd, SessionThreads};
use crate::nbd::NbdFrontEnd;
use crate::origin::{Origin, explain, open_origin};
use crate::process::{keep_memory_free, memory_bytes};
use crate::safety;
use crate::spec::ServeSpec;
use crate::state::StateFile;
use crate::status::cache_report;
use crate::threads::{ThreadParts, Threads};

/// Reserves the NBD sockets, opens the devices and the cache, and starts the threads. Clients can connect on return.
///
/// # Errors
/// One of these steps failed; everything that was open is closed again.
pub fn start(spec: &ServeSpec, failed: Failed) -> Result<Daemon, HostError> {
    let held = HeldCache::open(&spec.cache, safety::Access::ReadWrite)?;
    let runtime = Runtime::new(Config::default())?;
    let cache = held.device(spec.emulate_cache);
    let cache_file = cache.file().clone();
    let deadlined = Deadline::new(cache.clone(), Rt, spec.device_timeout);
    let mut superblock = runtime.block_on(read_superblock(&deadlined))?;
    if let Some(member) = &held.member {
        member.client.set_limit(spec.device_timeout);
        member.check(&superblock)?;
    }
    block_device::refuse_left_over(&superblock, spec.device.as_ref().map(|device| device.driver))?;
    let state = open_state(spec, superblock.uuid)?;
    let origin_path = spec
        .origin
        .clone()
        .unwrap_or_else(|| superblock.origin_path.clone().into());
    let Origin {
        file: origin_file,
        protection,
    } = open_origin(spec, &origin_path, &mut superblock)?;
    let spec = &ServeSpec {
        read_only: spec.read_only || protection.is_some(),
        ..spec.clone()
    };
    // Only here: a command that opens a cache for a moment does not report this.
    if !spec.nbd.is_empty() || spec.device.is_some() {
        warn_if_buffered("cache device", &cache_file);
        warn_if_buffered("origin", &origin_file);
    }
    let settings = spec.settings(&superblock);
    if let Err(error) = settings.write_budget.check(&superblock.geometry) {
        // A stored budget became too small because the cache shrank.
        match spec.settings.write_budget {
            Some(_) => return Err(error.into()),
            None => tracing::warn!("{error}"),
        }
    }
    let geometry = &superblock.geometry;
    let chosen = spec.index_memory.or(superblock.index_memory.map(NonZeroU64::get));
    let index_memory = index_memory::bound(geometry, chosen, memory_bytes())?;
    let thread_count = thread_count(spec.threads, geometry.shard_count);
    let export = Export::new(geometry.origin_len).read_only(spec.read_only);
    // Reserve the sockets before the superblock is marked open: if a socket is in use, a clean cache stays clean.
    let mut front_ends: Vec<Box<dyn FrontEnd>> = Vec::new();
    if !spec.nbd.is_empty() {
        front_ends.push(Box::new(NbdFrontEnd::bind(
            &spec.nbd,
            export.clone(),
            thread_count,
        )?));
    }
    if let Some(device) = &spec.device {
        let exported = Exported {
            uuid: superblock.uuid,
            origin_identity: superblock.origin_identity.clone(),
            bytes: geometry.origin_len,
            origin_sector: match origin_file.kind() {
                Kind::BlockDevice => origin_file.alignment(),
                Kind::File => 512,
            },
            read_only: spec.read_only,
            discards_dirty: spec.discard_dirty,
            threads: thread_count,
            export,
        };
        front_ends.push(block_device::bind(device, &exported)?);
    }
    let devices = Devices {
        cache,
        cache_file,
        origin: HostDevice::new(origin_file, spec.emulate_origin),
        state,
        shared_budget: held.member.as_ref().map(|member| member.credit.budget()),
        device_timeout: spec.device_timeout,
    };
    let threads = Threads::start(
        thread_count,
        &ThreadParts {
            cache: &devices.cache,
            origin: &devices.origin,
            state: &devices.state,
            shared_budget: devices.shared_budget.clone(),
            index_memory,
            device_timeout: spec.device_timeout,
            settings: settings.clone(),
            failed: Arc::clone(&failed),
        },
    )?;
    let started = Instant::now();
    let before = devices.state.origin();
    let around = devices.surroundings();
    let opening = Lifecycle::open(&around, superblock, open_options(spec, settings.mode), &threads);
    let (lifecycle, opened) = runtime
        .block_on(opening)
        .map_err(|error| explain(error, &runtime, &devices.origin, before.as_ref()))?;
    let sessions = SessionThreads::new(threads.mailboxes());
    let reserve_memory = || {
        if spec.device.is_some() {
            let shards = lifecycle.superblock().geometry.shard_count;
            keep_memory_free(request_bytes(&front_ends, shards));
        }
    };
    start_front_ends(&front_ends, &sessions, &failed, reserve_memory, |join| {
        threads.add(join)
    })?;
    // Only now: a start that fails must not take from the other volumes' budget.
    if let Some(member) = &held.member {
        member.first_credit();
    }
    Ok(Daemon {
        spec: spec.clone(),
        settings: Mutex::new(settings),
        changing: Mutex::new(()),
        cache_report: Mutex::new(cache_report(&spec.cache, lifecycle.superblock())),
        resize: Mutex::default(),
        share: Mutex::default(),
        origin_path,
        origin_bytes: AtomicU64::new(lifecycle.superblock().geometry.origin_len),
        resizing: Mutex::new(()),
        origin_protection: protection,
        started,
        opened,
        stopping: AtomicBool::new(false),
        detach: Mutex::default(),
        detaches: Mutex::default(),
        lifecycle: Mutex::new(lifecycle),
        devices,
        threads,
        front_ends,
        held,
    })
}

fn open_state(spec: &ServeSpec, uuid: Uuid) -> Result<Arc<StateFile>, HostError> {
    let directory = spec.state_dir.as_deref();
    if let Some(directory) = directory {
        refuse_on_waiting(
            "the state directory",
            directory,
            "choose another one with --state-dir",
        )?;
    }
    Ok(Arc::new(
        StateFile::open(directory, uuid).of_cache_at(&spec.cache),
    ))
}

fn open_options(spec: &ServeSpec, mode: Mode) -> OpenOptions {
    OpenOptions {
        // Nobody can write: the cache need not be marked dirty.
        write_back: mode == Mode::WriteBack && !spec.read_only,
        after_crash: spec.after_crash,
        discard: match (spec.discard_cache, spec.discard_dirty) {
            (false, _) => Discard::Nothing,
            (true, false) => Discard::Clean,
            (true, true) => Discard::All,
        },
    }
}

/// Starts the front ends. `reserve_memory` is called when they have their own memory, and before clients send requests: from then
/// on the kernel may wait for this process to free memory.
pub(super) fn start_front_ends(
    front_ends: &[Box<dyn FrontEnd>],
    sessions: &SessionThreads,
    failed: &Failed,
    reserve_memory: impl FnOnce(),
    add_thread: impl Fn(JoinHandle<()>),
) -> Result<(), HostError> {
    for front_end in front_ends {
        front_end.prepare(sessions, failed)?;
    }
    reserve_memory();
    for front_end in front_ends {
        let threads = front_end.start(sessions.clone(), Arc::clone(failed))?;
        threads.into_iter().for_each(&add_thread);
    }
    Ok(())
}

/// Memory that requests of block devices take at most while they are served, in bytes: their data, what the shards queue and send,
/// and some for all else.
pub(super) fn request_bytes(front_ends: &[Box<dyn FrontEnd>], shards: u32) -> usize {
    const OTHER_BYTES: usize = 32 << 20;
    let requests = front_ends.iter().map(|front_end| front_end.request_bytes());
    requests.sum::<usize>() + shards as usize * 2 * JOB_BYTES_MAX + OTHER_BYTES
}

/// Number of threads that drive `shards` shards.
pub(super) fn thread_count(wanted: Option<u32>, shards: u32) -> u32 {
    let cores = cores();
    // A second daemon in one process keeps the first one's pool.
    let _ = compute::configure(cores);
    if let Some(wanted) = wanted.filter(|wanted| *wanted > shards) {
        tracing::warn!(
            "--threads {wanted}: the maximum is one thread per shard; starting {shards} (`flaz create --shards` sets the \
             number of shards)"
        );
    }
    wanted.unwrap_or_else(threads_default).clamp(1, shards)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Number of threads that drive shards on this machine, if not given. The other half of the cores serves the kernel's side of the
/// sockets, codecs and clients. On a small machine a second thread adds two hand-overs to every other request at depth 1, and gains
/// nothing at depth 32.
pub(crate) fn threads_default() -> u32 {
    cores().div_ceil(2) as u32
}

/// Opens a cache device that this process already holds.
pub(crate) fn open_cache(path: &Path, read_only: bool) -> Result<FileDevice, HostError> {
    let device = FileDevice::open(
        path,
        OpenMode {
            read_only,
            hold: Hold::Claimed,
            buffered: false,
        },
    )?;
    device.keep_space();
    Ok(device)
}

/// Warns if a device is used through the page cache.
fn warn_if_buffered(what: &str, device: &FileDevice) {
    if !device.is_direct() {
        tracing::warn!(
            "{what} {}: no direct I/O on this file system; using the page cache, which keeps data in memory \
             twice and can delay writes until the kernel writes pages back",
            device.path().display()
        );
    }
}
