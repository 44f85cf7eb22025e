//! Making a shared cache device; adding, removing and listing volumes.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use flaz_codec::CodecChoice;
use flaz_control::place::Places;
use flaz_control::report::{
    CacheState, CreateReport, OriginReport, REPORT_SCHEMA, SharedReport, VolumeReport, VolumesReport,
};
use flaz_control::size::HumanBytes;
use flaz_control::{Client, Reply, Request};
use flaz_device::Device;
use flaz_engine::cache::{self, CreateOptions, Sizes, read_superblock};
use flaz_engine::format::geometry::{Geometry, GeometryOptions, REGIONS_MIN, SharedSpace};
use flaz_engine::format::superblock::{State, Superblock};
use flaz_engine::settings::Mode;
use flaz_engine::write_budget::WriteBudget;
use flaz_pool::budget::PER_DAY_MIN;
use flaz_pool::format::CHUNK_BYTES;
use flaz_pool::{Pool, PoolError, PoolSuperblock, VolumeEntry, VolumeOptions};
use flaz_runtime::file::{ByteLock, FileDevice, Kind, lock_byte};
use flaz_runtime::{Config, Runtime};
use uuid::Uuid;

use super::RESIZE;
use super::budget;
use super::client::{HostPool, PoolClient};
use super::file_system::refuse_without_locks;
use super::member::{find, hold, in_use, open_file, peek_at};
use super::place::Place;
use super::shrink::{self, Help};
use crate::block_device::refuse_left_over;
use crate::daemon::{open_cache, threads_default};
use crate::error::HostError;
use crate::offline::{creation, open_origin_to_create};
use crate::safety::{self, Access, Claim};
use crate::state::note_discarded;
use crate::status::cache_report;

/// A chunk is this share of the device, within limits, if its size is not given.
const CHUNK_SHARE: u64 = 4096;
const CHUNK_BYTES_DEFAULT: std::ops::RangeInclusive<u64> = (256 << 10)..=(16 << 20);
/// How long the process of a volume has to say its mode.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// A volume to add.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// The shared device.
    pub device: PathBuf,
    /// Its name.
    pub name: String,
    /// Its origin.
    pub origin: PathBuf,
    /// Codec for new blocks.
    pub codec: CodecChoice,
    /// Size of a full extent in bytes.
    pub extent_bytes: u64,
    /// Number of shards; by default it depends on the size of the device.
    pub shards: Option<u32>,
    /// What no other volume gets, and how much it gets at most.
    pub share: Share,
}

/// A volume's share of its device, in bytes; `None`: as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// No other volume gets these.
    pub at_least: Option<u64>,
    /// It gets no more; 0: no limit.
    pub at_most: Option<u64>,
}

impl Share {
    /// In whole chunks: at least what was asked for, and at most that.
    fn chunks(self, chunk_bytes: u64) -> Result<(Option<u32>, Option<u32>), HostError> {
        let number = |chunks: u64, what: &str| {
            u32::try_from(chunks)
                .map_err(|_| HostError::from(format!("{what}: that is more than any cache device has")))
        };
        let at_least = self
            .at_least
            .map(|bytes| number(bytes.div_ceil(chunk_bytes), "--at-least"));
        let at_most = match self.at_most {
            Some(bytes @ 1..) if bytes < chunk_bytes => {
                return Err(format!(
                    "--at-most {bytes}: expected at least {}, the chunks of this cache device",
                    HumanBytes(chunk_bytes)
                )
                .into());
            }
            other => other.map(|bytes| number(bytes / chunk_bytes, "--at-most")),
        };
        Ok((at_least.transpose()?, at_most.transpose()?))
    }
}

/// Refuses a limit below what a volume needs, or is guaranteed.
fn refuse_small(at_most: Option<u32>, least: u32, chunk_bytes: u64) -> Result<(), HostError> {
    match at_most {
        Some(most @ 1..) if most < least => {
            let bytes = u64::from(least) * chunk_bytes;
            Err(format!(
                "--at-most {}: expected at least {} ({bytes} bytes), which the volume needs or is guaranteed",
                HumanBytes(u64::from(most) * chunk_bytes),
                HumanBytes(bytes)
            )
            .into())
        }
        _ => Ok(()),
    }
}

/// Makes a shared cache device without volumes. The caller has run all safety checks.
///
/// # Errors
/// A size cannot be used, or the device fails.
pub fn create_shared(claim: &Claim, chunk_bytes: Option<u64>) -> Result<SharedReport, HostError> {
    let device = open_cache(claim.path(), false)?;
    refuse_without_locks(&device, claim.path())?;
    let (floor, ceiling) = CHUNK_BYTES_DEFAULT.into_inner();
    let share = (device.len() / CHUNK_SHARE).max(1);
    let chunk_bytes = chunk_bytes.unwrap_or_else(|| (1u64 << share.ilog2()).clamp(floor, ceiling));
    if !CHUNK_BYTES.contains(&chunk_bytes) || !chunk_bytes.is_power_of_two() {
        return Err(format!(
            "chunk size: expected a power of two from {} to {}, found {chunk_bytes} bytes",
            HumanBytes(*CHUNK_BYTES.start()),
            HumanBytes(*CHUNK_BYTES.end())
        )
        .into());
    }
    let runtime = Runtime::new(Config::default())?;
    // Requests that wait for the cache that is overwritten would wait for ever.
    if let Ok(earlier) = runtime.block_on(read_superblock(&device)) {
        refuse_left_over(&earlier, None)?;
    }
    let pool = runtime.block_on(Pool::create(Rc::new(device), Uuid::new_v4(), chunk_bytes))?;
    Ok(shared_report(claim.path(), &pool))
}

/// Bytes per day of a budget for all volumes: a drive write is as many bytes as the device has for volumes now.
fn per_day(pool: &HostPool, budget: WriteBudget) -> Option<u64> {
    let superblock = pool.superblock();
    budget.bytes_per_day(u64::from(superblock.chunks) * superblock.layout.chunk_bytes)
}

/// Limits what all volumes together may write, while they are served or not.
///
/// # Errors
/// The budget is too small or too large, or the device fails. Nothing has changed.
pub fn set_budget(device: &Path, budget: WriteBudget) -> Result<(), HostError> {
    let _claim = safety::claim_shared(device, Access::ReadWrite)?;
    let (client, _) = open(device, Access::ReadWrite)?;
    client.ask_blocking(Access::ReadWrite, async move |pool: HostPool| {
        let per_day = per_day(&pool, budget);
        if let Some(per_day) = per_day.filter(|per_day| *per_day < PER_DAY_MIN) {
            return Err(format!(
                "--write-budget {} per day: expected none, or at least {} per day",
                HumanBytes(per_day),
                HumanBytes(PER_DAY_MIN)
            )
            .into());
        }
        Ok(pool.set_budget(per_day, budget::now_ms()).await?)
    })
}

fn shared_report(device: &Path, pool: &HostPool) -> SharedReport {
    let superblock = pool.superblock();
    let chunk_bytes = superblock.layout.chunk_bytes;
    SharedReport {
        path: device.to_owned(),
        uuid: superblock.uuid,
        size_bytes: u64::from(superblock.chunks) * chunk_bytes,
        free_bytes: u64::from(pool.free_chunks()) * chunk_bytes,
        shrink: shrink::left(pool),
        chunk_bytes,
        write_budget: superblock
            .budget
            .map(|budget| budget::report(budget.at(budget::now_ms()).left())),
    }
}

/// Adds a volume, while others are served.
///
/// # Errors
/// There is one of this name, the device has no space or is not shared, the origin cannot be used, or the device fails. Then there is
/// no such volume.
pub fn add(spec: &VolumeSpec) -> Result<CreateReport, HostError> {
    let device = &spec.device;
    let claim = safety::claim_shared(device, Access::ReadWrite)?;
    let origin = open_origin_to_create(&spec.origin)?;
    let (client, superblock) = open(device, Access::ReadWrite)?;
    let file = claim.file().try_clone()?;
    let options = CreateOptions {
        codec: spec.codec,
        ..creation(&origin, Sizes::Fitted(GeometryOptions::default()))?
    };
    let wish = GeometryOptions {
        extent_bytes: Some(u32::try_from(spec.extent_bytes).unwrap_or(u32::MAX)),
        region_bytes: None,
        shard_count: spec.shards,
        threads: Some(threads_default()),
        index_memory: None,
        dictionary_bytes: None,
    };
    let share = spec.share.chunks(superblock.layout.chunk_bytes)?;
    for other in &superblock.volumes {
        let known = superblock_of(device, &client, other);
        if known.is_ok_and(|known| known.origin_identity == options.origin_identity) {
            return Err(format!(
                "volume {} of {} has this origin: expected an origin of its own for each volume, because a write through one is \
                 not seen by the other; remove that volume first",
                other.name,
                device.display()
            )
            .into());
        }
    }
    // A cache stamps its structures with the first bytes of its UUID.
    let id = |uuid: &Uuid| uuid.as_fields().0;
    let is_taken = |uuid: &Uuid| superblock.volumes.iter().any(|other| id(&other.uuid) == id(uuid));
    let uuid = std::iter::repeat_with(Uuid::new_v4).find(|uuid| !is_taken(uuid));
    let options = CreateOptions {
        uuid: uuid.unwrap_or(options.uuid),
        ..options
    };
    let (name, path) = (spec.name.clone(), device.clone());
    let created = client.ask_blocking(Access::ReadWrite, async move |pool: HostPool| {
        let superblock = pool.superblock();
        let space = SharedSpace {
            chunk_bytes: superblock.layout.chunk_bytes,
            chunks: superblock.chunks,
        };
        let sector_bytes = superblock.layout.sector_bytes;
        let geometry = Geometry::plan_shared(space, sector_bytes, options.origin_len, wish)?;
        let front = geometry.data_offset().div_ceil(space.chunk_bytes) as u32;
        let least = front + REGIONS_MIN * geometry.shard_count;
        refuse_small(share.1, least.max(share.0.unwrap_or(0)), space.chunk_bytes)?;
        let prepared = pool
            .prepare(VolumeOptions {
                uuid: options.uuid,
                name: name.clone(),
                front_bytes: geometry.data_offset(),
                least,
                at_least: share.0.unwrap_or(0),
                at_most: share.1.unwrap_or(0),
            })
            .await
            .map_err(|error| with_advice(error, &path, u64::from(least) * space.chunk_bytes))?;
        let number = prepared.number();
        let options = CreateOptions {
            wish: Sizes::Planned(geometry),
            ..options
        };
        let created = async {
            // Held until the process ends: nobody serves a volume that is half made.
            hold(&path, &file, &name, number, Access::ReadWrite)?;
            let part = pool.open_volume(number)?;
            Ok::<_, HostError>(cache::create(&part, options).await?)
        };
        match created.await {
            Ok(superblock) => {
                pool.commit(prepared).await?;
                Ok(superblock)
            }
            Err(error) => {
                pool.abandon(prepared);
                Err(error)
            }
        }
    })?;
    Ok(CreateReport {
        cache: cache_report(&Place::path_of(device, &spec.name), &created),
        origin: OriginReport {
            path: created.origin_path.clone().into(),
            size_bytes: created.geometry.origin_len,
        },
        codec: created.codec,
    })
}

/// Opens a shared device.
fn open(device: &Path, access: Access) -> Result<(PoolClient, PoolSuperblock), HostError> {
    PoolClient::start(device, access).map_err(|error| {
        format!(
            "{}: {error} (`flaz create {} --shared` makes a cache device that volumes share)",
            device.display(),
            flaz_control::shell::quoted(device)
        )
        .into()
    })
}

/// What frees space for a volume that needs `bytes`, on a device that the other volumes use completely.
fn with_advice(error: PoolError, device: &Path, bytes: u64) -> HostError {
    if !matches!(error, PoolError::NoChunk { .. }) {
        return error.into();
    }
    let device = flaz_control::shell::quoted(device);
    format!(
        "{error}; a new volume needs {}. To free space, limit a volume that has more than it needs, while it is served: `flaz \
         volume set {device} NAME --at-most LESS`. When `flaz volume list {device}` shows enough free space, add the volume, \
         then restore the limit (0: none)",
        HumanBytes(bytes)
    )
    .into()
}

/// Removes a volume, while others are served. Its space is free. `state_dir`: the directory of the host records, where the dirty
/// blocks of the volume count as discarded.
///
/// # Errors
/// There is no such volume, it is served, or it has dirty blocks and `discard_dirty` is not given; or the device fails.
pub fn remove(
    device: &Path,
    name: &str,
    discard_dirty: bool,
    state_dir: Option<&Path>,
) -> Result<(), HostError> {
    let claim = safety::claim_shared(device, Access::ReadWrite)?;
    let (client, superblock) = open(device, Access::ReadWrite)?;
    let entry = find(device, &superblock, name)?.clone();
    hold(device, claim.file(), name, entry.number, Access::ReadWrite)?;
    // Waits for the requests of a process that was killed: they must not reach chunks that another volume gets.
    let _file = open_file(device, entry.number, Access::ReadWrite)?;
    match superblock_of(device, &client, &entry) {
        Ok(superblock) => {
            refuse_left_over(&superblock, None)?;
            if superblock.dirty && !discard_dirty {
                return Err(format!(
                    "volume {name} of {} holds, or may hold, dirty blocks: write them to its origin with `flaz flush {}`, or, if \
                     they can be lost, use --discard-dirty",
                    device.display(),
                    flaz_control::shell::quoted(&Place::path_of(device, name))
                )
                .into());
            }
        }
        Err(error) if !discard_dirty => {
            return Err(format!(
                "volume {name} of {} cannot be read, and may hold dirty blocks: {error}; if they can be lost, use \
                 --discard-dirty",
                device.display()
            )
            .into());
        }
        Err(_) => {}
    }
    let number = entry.number;
    client.ask_blocking(Access::ReadWrite, async move |pool: HostPool| {
        let entry = pool
            .superblock()
            .volumes
            .into_iter()
            .find(|entry| entry.number == number);
        let entry = entry.ok_or("the volume was removed by another process")?;
        Ok(pool.remove(&entry.name).await?)
    })?;
    if discard_dirty {
        note_discarded(state_dir, device, &[entry.uuid]);
    }
    Ok(())
}

/// Changes the share of a volume, while it is served or not. Returns what its device has.
///
/// # Errors
/// There is no such volume, the shares do not fit together, or the device fails. Nothing has changed.
pub fn set_share(device: &Path, name: &str, share: Share) -> Result<(), HostError> {
    let _claim = safety::claim_shared(device, Access::ReadWrite)?;
    let (client, superblock) = open(device, Access::ReadWrite)?;
    find(device, &superblock, name)?;
    let chunk_bytes = superblock.layout.chunk_bytes;
    let (at_least, at_most) = share.chunks(chunk_bytes)?;
    let name = name.to_owned();
    client.ask_blocking(Access::ReadWrite, async move |pool: HostPool| {
        let entry = pool.volume(&name)?;
        if let (Some(least), None, most @ 1..) = (at_least, at_most, entry.at_most)
            && least > most
        {
            return Err(format!(
                "--at-least {}: expected at most {}, the limit of the volume (raise it with --at-most)",
                HumanBytes(u64::from(least) * chunk_bytes),
                HumanBytes(u64::from(most) * chunk_bytes)
            )
            .into());
        }
        let least = entry.least.max(at_least.unwrap_or(entry.at_least));
        refuse_small(at_most.or(Some(entry.at_most)), least, chunk_bytes)?;
        Ok(pool.set_share(&name, at_least, at_most).await?)
    })
}

/// Lists the volumes of a device.
///
/// # Errors
/// The device cannot be read, or is not shared.
pub fn list(device: &Path) -> Result<VolumesReport, HostError> {
    crate::offline::refuse_to_wait(device)?;
    safety::cache(device)?;
    let (client, superblock) = open(device, Access::Read)?;
    let path = device.to_owned();
    let cache = client.ask_blocking(Access::Read, async move |pool: HostPool| {
        Ok(shared_report(&path, &pool))
    })?;
    Ok(VolumesReport {
        schema: REPORT_SCHEMA,
        cache,
        volumes: superblock
            .volumes
            .iter()
            .map(|entry| volume_report(device, &client, &superblock, entry))
            .collect(),
    })
}

fn volume_report(
    device: &Path,
    client: &PoolClient,
    pool: &PoolSuperblock,
    entry: &VolumeEntry,
) -> VolumeReport {
    let chunk_bytes = pool.layout.chunk_bytes;
    let bytes = |chunks: u32| u64::from(chunks) * chunk_bytes;
    let number = entry.number;
    let held = client.ask_blocking(Access::Read, async move |pool: HostPool| {
        Ok(pool.chunks_of(number))
    });
    let running = in_use(device, entry.number);
    let superblock = superblock_of(device, client, entry);
    let problem = superblock.as_ref().err().map(ToString::to_string);
    let superblock = superblock.ok();
    VolumeReport {
        name: entry.name.clone(),
        uuid: entry.uuid,
        state: superblock.as_ref().map(|superblock| match superblock.state {
            _ if running => CacheState::Running,
            State::Clean => CacheState::Clean,
            State::Empty => CacheState::New,
            State::Open => CacheState::Unclean,
        }),
        problem,
        origin: superblock.as_ref().map(|superblock| OriginReport {
            path: superblock.origin_path.clone().into(),
            size_bytes: superblock.geometry.origin_len,
        }),
        mode: running.then(|| mode_in_force(entry.uuid)).flatten().or_else(|| {
            let superblock = superblock.as_ref()?;
            Some(superblock.settings.with_codec(superblock.codec).mode)
        }),
        may_be_dirty: superblock.as_ref().is_none_or(|superblock| superblock.dirty),
        held_bytes: held.map_or(0, bytes),
        at_least_bytes: bytes(entry.at_least),
        at_most_bytes: (entry.at_most > 0).then(|| bytes(entry.at_most)),
    }
}

/// The mode of a volume that is served, if its process answers: another one may be stored.
fn mode_in_force(uuid: Uuid) -> Option<Mode> {
    let sockets = Places::of_process().control_candidates(&uuid, None);
    sockets.into_iter().find_map(|socket| {
        let mut peer = Client::connect(&socket, None).ok()?;
        match peer.ask(&Request::Status {}, ANSWER_WITHIN) {
            Ok(Reply::Status(report)) => Some(report.settings?.mode),
            _ => None,
        }
    })
}

fn superblock_of(device: &Path, client: &PoolClient, entry: &VolumeEntry) -> Result<Superblock, HostError> {
    let part = peek_at(device, client, entry)?;
    Ok(Runtime::new(Config::default())?.block_on(read_superblock(&part))?)
}

/// Uses what the device has become longer or less of it; a file gets `size` bytes. Volumes that are served follow. Returns the bytes
/// before, and what there is now.
///
/// # Errors
/// The size is not possible, or the device fails.
pub fn resize(
    device: &Path,
    size: Option<u64>,
    help: &mut Help<'_>,
) -> Result<(u64, SharedReport), HostError> {
    let claim = safety::claim_shared(device, Access::ReadWrite)?;
    // Before the size is read: what another one adds must not be truncated below.
    if !lock_byte(claim.file(), RESIZE, ByteLock::Exclusive)? {
        return Err(format!("{}: another `flaz resize` is under way", device.display()).into());
    }
    let (client, before) = open(device, Access::ReadWrite)?;
    let layout = before.layout;
    let bytes_before = u64::from(before.chunks) * layout.chunk_bytes;
    let file = FileDevice::open(device, flaz_runtime::file::OpenMode::default())?;
    let present = file.measure()?;
    let wanted = size.unwrap_or(present);
    let most = layout.chunk_offset(layout.chunks_max);
    if wanted > most && size.is_some() {
        return Err(format!(
            "{}: expected at most {} ({most} bytes), 8 times its size when it was created, found {wanted} bytes",
            device.display(),
            HumanBytes(most)
        )
        .into());
    }
    let chunks = shrink::refuse_small(device, &before, wanted)?;
    if chunks < before.chunks {
        shrink::shrink(&claim, &client, chunks, help)?;
    } else {
        if wanted > present {
            file.set_len(wanted, true).map_err(|error| {
                format!(
                    "{} cannot become {} large: {error}",
                    device.display(),
                    HumanBytes(wanted)
                )
            })?;
        }
        client.ask_blocking(Access::ReadWrite, async move |pool: HostPool| {
            Ok(pool.grow(wanted).await?)
        })?;
    }
    let path = device.to_owned();
    // Read again, stable, before a file is truncated.
    let report = client.ask_blocking(Access::ReadWrite, async move |pool: HostPool| {
        Ok(shared_report(&path, &pool))
    })?;
    if file.kind() == Kind::File
        && wanted < present
        && let Err(error) = file.set_len(wanted, false)
    {
        tracing::warn!("{} cannot be truncated: {error}", device.display());
    }
    Ok((bytes_before, report))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// What a resize knows of the device is what no other one changes meanwhile: it looks for others before it reads anything.
    #[test]
    fn a_resize_looks_for_others_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("device");
        let file = File::create_new(&path).expect("a new file");
        file.set_len(1 << 20).expect("there is space");
        assert_eq!(lock_byte(&file, RESIZE, ByteLock::Exclusive), Ok(true));
        let mut help = Help {
            with_idle: &|_, _| panic!("nothing is open"),
            show: &mut |_| (),
        };
        let refused = resize(&path, None, &mut help).expect_err("there is no pool, either");
        let refused = refused.to_string();
        assert!(
            refused.ends_with("another `flaz resize` is under way"),
            "{refused}"
        );
    }
}
