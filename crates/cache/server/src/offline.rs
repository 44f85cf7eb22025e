//! Commands on a cache that is not running: create, identify, check, dump.

use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use flaz_codec::CodecChoice;
use flaz_control::chain;
use flaz_control::report::{
    CacheReport, CacheState, CheckReport, CreateReport, DumpRecord, OriginReport, PROBLEMS_LISTED_MAX,
    Problem, REPORT_SCHEMA, StatusReport, VolumeResizeReport,
};
use flaz_control::settings::SettingsPatch;
use flaz_device::Device;
use flaz_engine::cache::{self, CacheError, CreateOptions, Sizes};
use flaz_engine::check::{Finding, Object, walk};
use flaz_engine::format::geometry::{Geometry, GeometryOptions};
use flaz_engine::format::superblock::{State, Superblock};
use flaz_engine::index_memory;
use flaz_engine::settings::{Settings, StoredSettings};
use flaz_runtime::file::{FileDevice, Hold, Identity, OpenMode, locked_by};
use flaz_runtime::{Config, Runtime};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::block_device::{refuse_left_over, refuse_on_waiting};
use crate::daemon::{open_cache, threads_default};
use crate::device::{HeldCache, HostDevice};
use crate::error::HostError;
use crate::next_start::foresee;
use crate::origin::{another, refuse_used, warn_if_weak};
use crate::pool::{Place, in_use, peek};
use crate::process::memory_bytes;
use crate::safety;
use crate::spec::CreateSpec;
use crate::status::{cache_report, volume_report};

/// Refuses a cache file whose file system is on a block device that waits for its server: even looking the path up would wait.
///
/// # Errors
/// The device.
pub fn refuse_to_wait(cache: &Path) -> Result<(), HostError> {
    let device = Place::of(cache).device;
    refuse_on_waiting("the cache", &device, "give a path to it on another device")
}

fn superblock_of(path: &Path) -> Result<Superblock, HostError> {
    Ok(read_idle(path)?.1)
}

/// A cache device, open for reading, and its superblock.
fn read_idle(path: &Path) -> Result<(HostDevice, Superblock), HostError> {
    refuse_to_wait(path)?;
    let place = Place::of_cache(path)?;
    safety::cache(&place.device)?;
    let device = if let Some(volume) = &place.volume {
        let (_, part) = peek(&place.device, volume)?;
        HostDevice::Part(part)
    } else {
        let mode = OpenMode {
            read_only: true,
            ..OpenMode::default()
        };
        HostDevice::new(FileDevice::open(path, mode)?, None)
    };
    let runtime = Runtime::new(Config::default())?;
    let superblock = runtime.block_on(cache::read_superblock(&device))?;
    Ok((device, superblock))
}

/// The report of a cache device that is not served.
fn report_of(cache: &Path, superblock: &Superblock) -> CacheReport {
    let report = cache_report(cache, superblock);
    let place = Place::of(cache);
    let peeked = place.volume.and_then(|volume| peek(&place.device, &volume).ok());
    match peeked {
        Some((entry, part)) => {
            let held = u64::from(part.map().chunks()) * part.map().chunk_bytes();
            volume_report(report, held, entry.front_bytes)
        }
        None => report,
    }
}

/// Who holds a cache, for a message; `None` if nobody does.
fn held_by(path: &Path) -> Option<String> {
    let place = Place::of(path);
    let Some(volume) = &place.volume else {
        return locked_by(path);
    };
    let (entry, _) = peek(&place.device, volume).ok()?;
    in_use(&place.device, entry.number).then(|| "another process".to_owned())
}

/// The refusal of a cache that a process serves whose control socket was not found; `None` if none does.
fn unreachable(cache: &Path, superblock: &Superblock) -> Option<HostError> {
    let holder = held_by(cache).filter(|_| superblock.state == State::Open)?;
    let message = format!(
        "{} is in use by {holder}, but no daemon listens on the default control socket: if the daemon was started with \
         --control PATH, use the same option here; if its socket was deleted, stop that process with SIGTERM",
        cache.display()
    );
    Some(message.into())
}

/// The same of a cache whose superblock has not been read.
#[must_use]
pub fn unreachable_daemon(cache: &Path) -> Option<HostError> {
    unreachable(cache, &superblock_of(cache).ok()?)
}

/// The UUID in the superblock of a cache.
///
/// # Errors
/// The device cannot be read, or holds no valid superblock.
pub fn identify(cache: &Path) -> Result<Uuid, HostError> {
    Ok(superblock_of(cache)?.uuid)
}

/// A cache that is not asked through a daemon, as its superblock describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct IdleCache {
    /// Its UUID.
    pub uuid: Uuid,
    /// Its state; `Running` if a process holds it.
    pub state: CacheState,
    /// It contains, or may contain, dirty blocks.
    pub may_be_dirty: bool,
    /// The settings that it would start with.
    pub settings: Settings,
}

/// Looks at a cache without its daemon, for a list.
///
/// # Errors
/// The device cannot be read, or has no valid superblock.
pub fn idle_cache(cache: &Path) -> Result<IdleCache, HostError> {
    let superblock = superblock_of(cache)?;
    Ok(IdleCache {
        uuid: superblock.uuid,
        state: match superblock.state {
            State::Clean => CacheState::Clean,
            State::Empty => CacheState::New,
            State::Open if held_by(cache).is_some() => CacheState::Running,
            State::Open => CacheState::Unclean,
        },
        may_be_dirty: superblock.dirty,
        settings: superblock.settings.with_codec(superblock.codec),
    })
}

/// Formats a cache device. The caller has run all safety checks.
///
/// # Errors
/// The origin is not usable, the geometry does not fit, or a device failed.
pub fn create(spec: &CreateSpec) -> Result<CreateReport, HostError> {
    let origin = open_origin_to_create(&spec.origin)?;
    let device = open_cache(spec.cache.path(), false)?;
    let wish = GeometryOptions {
        extent_bytes: Some(u32::try_from(spec.extent_bytes).unwrap_or(u32::MAX)),
        region_bytes: spec.region_bytes,
        shard_count: spec.shards,
        threads: Some(threads_default()),
        index_memory: None,
        dictionary_bytes: None,
    };
    let wish = GeometryOptions {
        index_memory: match spec.index_memory {
            Some(bytes) => Some(bytes),
            // The area would take its space at once.
            None if device.is_sparse() => None,
            None => index_memory::default(device.len(), memory_bytes()),
        },
        ..wish
    };
    if let Some(bytes) = spec.index_memory {
        // Otherwise no server could have this bound.
        let geometry = Geometry::plan(device.len(), device.alignment().max(512), origin.len(), wish);
        let geometry = geometry.map_err(CacheError::from)?;
        index_memory::bound(&geometry, Some(bytes), memory_bytes())?;
    }
    let options = CreateOptions {
        codec: spec.codec,
        ..creation(&origin, Sizes::Fitted(wish))?
    };
    let runtime = Runtime::new(Config::default())?;
    // Requests that wait for the cache that is overwritten would wait for ever.
    if let Ok(earlier) = runtime.block_on(cache::read_superblock(&device)) {
        refuse_left_over(&earlier, None)?;
    }
    let superblock = runtime.block_on(cache::create(&device, options))?;
    Ok(CreateReport {
        cache: cache_report(spec.cache.path(), &superblock),
        origin: OriginReport {
            path: superblock.origin_path.clone().into(),
            size_bytes: superblock.geometry.origin_len,
        },
        codec: superblock.codec,
    })
}

/// Opens the origin of a new cache.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn open_origin_to_create(path: &Path) -> Result<FileDevice, HostError> {
    let mode = OpenMode {
        read_only: true,
        hold: Hold::None,
        buffered: false,
    };
    let origin = FileDevice::open(path, mode).map_err(|error| format!("origin: {error}"))?;
    warn_if_weak(&origin);
    Ok(origin)
}

/// A new cache of an origin, with LZ4.
///
/// # Errors
/// The path of the origin cannot be stored.
pub(crate) fn creation(origin: &FileDevice, sizes: Sizes) -> Result<CreateOptions, HostError> {
    // Links are kept: names in /dev/disk mean the same disk after the kernel has numbered its disks anew.
    let origin_path = std::path::absolute(origin.path()).map_err(|error| {
        format!(
            "origin {}: cannot determine its full path: {error}",
            origin.path().display()
        )
    })?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(CreateOptions {
        uuid: Uuid::new_v4(),
        created_unix_s: since.map_or(0, |since| since.as_secs()),
        wish: sizes,
        codec: CodecChoice::default(),
        origin_len: origin.len(),
        origin_identity: origin.identity().id.clone(),
        origin_path: origin_path
            .to_str()
            .ok_or_else(|| {
                format!(
                    "origin path {} is not UTF-8: use a symbolic link with a UTF-8 name",
                    origin_path.display()
                )
            })?
            .to_owned(),
    })
}

/// The status of a cache that is not running, from its superblock, and whether its next start will be refused; `live` is absent.
/// `origin`: its path, if it has changed. `state_dir`: the directory of the host record.
///
/// # Errors
/// The device cannot be read, has no valid superblock, or is in use, so that its superblock is out of date.
pub fn offline_status(
    cache: &Path,
    origin: Option<&Path>,
    state_dir: Option<&Path>,
) -> Result<StatusReport, HostError> {
    let (device, superblock) = read_idle(cache)?;
    let state = match superblock.state {
        State::Clean => CacheState::Clean,
        State::Open => CacheState::Unclean,
        State::Empty => CacheState::New,
    };
    if let Some(in_use) = unreachable(cache, &superblock) {
        return Err(in_use);
    }
    let origin = origin.map_or_else(|| superblock.origin_path.clone().into(), Path::to_owned);
    let (mut start_refused, mut warnings) = (None, Vec::new());
    match foresee((cache, &device), &origin, state_dir, &superblock) {
        Ok(foreseen) => warnings.extend(foreseen),
        Err(refusal) => {
            start_refused = Some(refusal.short.to_owned());
            warnings.push(format!(
                "the next start will be refused: {}",
                chain(refusal.full.as_ref())
            ));
        }
    }
    if state == CacheState::Unclean {
        warnings.push("the cache was not stopped cleanly: the next start will run crash recovery".to_owned());
    }
    if superblock.dirty {
        warnings.push(
            "the cache contains, or may contain, dirty blocks: the origin is incomplete without it (write \
             them back with `flaz flush`)"
                .to_owned(),
        );
    }
    let report = StatusReport {
        schema: REPORT_SCHEMA,
        state,
        health: None,
        cache: report_of(cache, &superblock),
        origin: OriginReport {
            path: origin,
            size_bytes: superblock.geometry.origin_len,
        },
        settings: Some(superblock.settings.with_codec(superblock.codec)),
        may_be_dirty: superblock.dirty,
        start_refused,
        live: None,
        warnings,
    };
    Ok(report.with_health())
}

/// Takes over the size of an origin that has grown, in the superblock of a cache that is not running, whatever its state.
/// `origin`: its path, if it has changed.
///
/// # Errors
/// The cache is in use, or a block device of it waits for its server; the origin is in use or another one, or its size cannot be
/// taken over; or a device failed.
pub fn resize_volume(cache: &Path, origin: Option<&Path>) -> Result<VolumeResizeReport, HostError> {
    refuse_to_wait(cache)?;
    let held = HeldCache::open(cache, safety::Access::ReadWrite)?;
    let device = held.device(None);
    let runtime = Runtime::new(Config::default())?;
    let mut superblock = runtime.block_on(cache::read_superblock(&device))?;
    refuse_left_over(&superblock, None)?;
    let path = origin.map_or_else(|| superblock.origin_path.clone().into(), Path::to_owned);
    refuse_used(&path)?;
    let mode = OpenMode {
        read_only: true,
        hold: Hold::Exclusive,
        buffered: false,
    };
    let origin = FileDevice::open(&path, mode).map_err(|error| format!("origin: {error}"))?;
    let identity = origin.identity().id.clone();
    let before = &superblock.origin_identity;
    if identity != *before && !Identity::may_have_grown(before, &identity) {
        return Err(another(&origin, &superblock));
    }
    let growing = cache::grow_idle_origin(&device, &origin, &mut superblock, &identity);
    let grown = runtime
        .block_on(growing)
        .map_err(|error| format!("origin {}: {error}", path.display()))?;
    Ok(VolumeResizeReport {
        bytes_before: grown.before,
        bytes: grown.after,
        front_ends: Vec::new(),
    })
}

fn walk_device(path: &Path, visit: &mut impl FnMut(Finding, u64, u64)) -> Result<Superblock, HostError> {
    let held = HeldCache::open(path, safety::Access::Read)?;
    let device = held.device(None);
    let runtime = Runtime::new(Config::default())?;
    let walked: Result<Superblock, CacheError> = runtime.block_on(walk(&device, visit));
    Ok(walked?)
}

/// Verifies a cache that is not running. `progress` receives the bytes done and the bytes in total.
///
/// # Errors
/// The check could not be made. Problems that it finds are part of the report, not errors.
pub fn check(cache: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport, HostError> {
    let started = Instant::now();
    let (mut good, mut bad) = (
        std::collections::BTreeMap::new(),
        std::collections::BTreeMap::new(),
    );
    let mut problems = Vec::new();
    let mut verified_bytes = 0;
    let superblock = walk_device(cache, &mut |finding, done, total| {
        progress(done, total);
        let counts = if finding.object.is_ok() {
            &mut good
        } else {
            &mut bad
        };
        *counts.entry(finding.kind.clone()).or_insert(0) += finding.count;
        match finding.object {
            Ok(Object::Fragment { .. }) => verified_bytes += finding.len,
            Ok(_) => {}
            Err(message) if problems.len() < PROBLEMS_LISTED_MAX => {
                problems.push(Problem {
                    kind: finding.kind,
                    offset: finding.offset,
                    message,
                });
            }
            Err(_) => {}
        }
    })?;
    Ok(CheckReport {
        schema: REPORT_SCHEMA,
        cache: report_of(cache, &superblock),
        clean: superblock.state != State::Open,
        may_be_dirty: superblock.dirty || bad.contains_key("fragment-dirty"),
        good,
        bad,
        verified_bytes,
        problems,
        duration_s: started.elapsed().as_secs_f64(),
    })
}

/// Lists the contents of a cache device in device order.
///
/// # Errors
/// The device cannot be read, or `emit` failed.
pub fn dump(
    cache: &Path,
    emit: &mut dyn FnMut(&DumpRecord) -> Result<(), HostError>,
) -> Result<(), HostError> {
    let mut outcome = Ok(());
    walk_device(cache, &mut |finding, _, _| {
        if outcome.is_ok() {
            outcome = emit(&record(finding));
        }
    })?;
    outcome
}

fn record(finding: Finding) -> DumpRecord {
    let depth = match finding.kind.as_str() {
        "extent" | "extent-copy" | "region-summary" | "index-image" => 1,
        "same-filled" | "tombstone" | "record" => 2,
        kind if kind.starts_with("fragment") => 2,
        _ => 0,
    };
    let fields = match finding.object {
        Ok(object) => fields(&object),
        Err(message) => vec![("bad", json!(message))],
    };
    DumpRecord {
        kind: finding.kind,
        offset: finding.offset,
        len_bytes: finding.len,
        depth,
        fields: fields
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    }
}

fn fields(object: &Object) -> Vec<(&'static str, Value)> {
    match object {
        Object::Superblock(superblock) => superblock_fields(superblock),
        Object::Intents { sectors, set } => vec![("sectors", json!(sectors)), ("stripes_set", json!(set))],
        Object::Manifest { shard, in_use } => {
            vec![("shard", json!(shard)), ("regions_in_use", json!(in_use))]
        }
        Object::Index { shard, entries } => vec![("shard", json!(shard)), ("entries", json!(entries))],
        Object::Dictionary {
            shard,
            number,
            generation,
            bytes,
        } => vec![
            ("shard", json!(shard)),
            ("number", json!(number)),
            ("generation", json!(generation)),
            ("bytes", json!(bytes)),
        ],
        Object::Entries { shard, count } => vec![("shard", json!(shard)), ("entries", json!(count))],
        Object::Region {
            shard,
            number,
            ring,
            generation,
            used,
        } => vec![
            ("shard", json!(shard)),
            ("region", json!(number)),
            ("ring", json!(ring.to_string())),
            ("generation", json!(generation.0)),
            ("used_bytes", json!(used)),
        ],
        Object::Summary { extents, records } => {
            vec![("extents", json!(extents)), ("records", json!(records))]
        }
        Object::Extent(header) => vec![
            ("sequence", json!(header.sequence.0)),
            ("epoch", json!(header.epoch.0)),
            ("ring", json!(header.ring.to_string())),
            ("records", json!(header.record_count)),
        ],
        Object::Fragment {
            block,
            codec,
            stored,
            dirty,
            live,
        } => {
            let mut fields = vec![
                ("block", json!(block.0)),
                ("codec", json!(codec.to_string())),
                ("stored_bytes", json!(stored)),
                ("dirty", json!(dirty)),
            ];
            fields.extend(live.map(|live| ("live", json!(live))));
            fields
        }
        Object::SameFilled { block, value, live } => {
            let mut fields = vec![("block", json!(block.0)), ("value", json!(value))];
            fields.extend(live.map(|live| ("live", json!(live))));
            fields
        }
        Object::Tombstone { block } | Object::Cleaned { block } => vec![("block", json!(block.0))],
    }
}

/// The settings that were chosen for a cache, by their keys.
fn stored_settings(stored: &StoredSettings) -> Value {
    let chosen = SettingsPatch::of_stored(stored);
    // Names and numbers always have a JSON form.
    serde_json::to_value(chosen).unwrap_or_default()
}

fn superblock_fields(superblock: &Superblock) -> Vec<(&'static str, Value)> {
    let geometry = &superblock.geometry;
    let state = match superblock.state {
        State::Clean => "clean",
        State::Open => "open",
        State::Empty => "empty",
    };
    vec![
        ("uuid", json!(superblock.uuid)),
        ("generation", json!(superblock.generation)),
        ("state", json!(state)),
        ("epoch", json!(superblock.epoch.0)),
        ("valid_from_epoch", json!(superblock.valid_from_epoch.0)),
        ("codec", json!(superblock.codec.to_string())),
        ("settings", stored_settings(&superblock.settings)),
        ("device_bytes", json!(geometry.device_len)),
        ("sector_bytes", json!(geometry.sector_bytes)),
        ("extent_bytes", json!(geometry.extent_bytes)),
        ("region_bytes", json!(geometry.region_bytes)),
        ("shards", json!(geometry.shard_count)),
        ("regions_a_shard", json!(geometry.regions_per_shard)),
        ("index_pages_offset", json!(geometry.index_offset())),
        ("index_pages_bytes", json!(geometry.index_bytes)),
        ("dictionary_offset", json!(geometry.dictionaries_offset())),
        ("dictionary_bytes", json!(geometry.dictionary_bytes)),
        ("index_memory_bytes", json!(superblock.index_memory)),
        ("origin_bytes", json!(geometry.origin_len)),
        ("origin", json!(superblock.origin_path)),
        ("origin_identity", json!(superblock.origin_identity)),
    ]
}
