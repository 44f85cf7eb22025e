//! The cache device of one volume, open and held.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flaz_control::report::CacheReport;
use flaz_engine::format::superblock::Superblock;
use flaz_pool::{PoolSuperblock, VolumeDevice, VolumeEntry};
use flaz_runtime::file::{ByteLock, FileDevice, Hold, OpenMode, is_byte_locked, lock_byte};

use super::client::HostPool;
use super::{Credit, PoolClient, request_byte, volume_byte};
use crate::error::HostError;
use crate::safety::{self, Access, Claim, TakenOver};
use crate::status::volume_report;

/// How long a start waits for a process that changes the pool.
const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// How often a process tries to become the one that has a shared device open exclusively.
const EXCLUSIVE_EVERY: Duration = Duration::from_millis(500);

/// The cache device of a volume.
pub(crate) type Part = VolumeDevice<FileDevice, PoolClient>;

/// A volume that this process holds.
#[derive(Debug)]
pub(crate) struct Member {
    /// Holds the volume, and keeps the device from being overwritten.
    _claim: Arc<Claim>,
    pub(crate) client: PoolClient,
    pub(crate) entry: VolumeEntry,
    pub(crate) part: Part,
    pub(crate) credit: Credit,
}

impl Member {
    /// Opens a volume, and holds it: with others that read, or alone.
    ///
    /// # Errors
    /// There is no such volume, or another process uses it.
    pub(crate) fn open(device: &Path, volume: &str, access: Access) -> Result<Self, HostError> {
        let claim = safety::claim_shared(device, access)?;
        let (client, superblock) = PoolClient::start(device, access)?;
        let number = find(device, &superblock, volume)?.number;
        hold(device, claim.file(), volume, number, access)?;
        let file = open_file(device, number, access)?;
        // A process that held the volume until now may have removed it.
        let (superblock, map) = client.ask_blocking(access, async move |pool| {
            Ok((pool.superblock(), pool.map(number)))
        })?;
        let entry = find(device, &superblock, volume)?.clone();
        let map = map?;
        let claim = Arc::new(claim);
        keep_exclusive(&claim)?;
        Ok(Self {
            part: {
                let chunks = client.of_volume(&superblock, number, &file);
                VolumeDevice::new(file, map, chunks)
            },
            _claim: claim,
            client,
            entry,
            credit: Credit::new(superblock.budget),
        })
    }
}

impl Member {
    /// The report of the volume's cache, of which `whole` is that of a cache which has the device alone.
    pub(crate) fn report(&self, whole: CacheReport) -> CacheReport {
        let map = self.part.map();
        let held = u64::from(map.chunks()) * map.chunk_bytes();
        volume_report(whole, held, self.entry.front_bytes)
    }

    /// Looks at the write budget of all volumes for the first time. If that fails, nothing is stored until the next look.
    pub(crate) fn first_credit(&self) {
        let look = async |pool: HostPool| Ok(pool.superblock().budget);
        let found = self.client.ask_within(LOOK_WITHIN, Access::Read, look);
        if let Err(error) = found.and_then(|found| self.credit.renew(&self.client, found)) {
            tracing::warn!("the write budget of the cache device cannot be read yet: {error}");
        }
    }

    /// Checks that the cache on the volume's device is the one that was made for it.
    ///
    /// # Errors
    /// It is another one.
    pub(crate) fn check(&self, cache: &Superblock) -> Result<(), HostError> {
        let (geometry, entry) = (&cache.geometry, &self.entry);
        let fits = geometry.data_offset() == entry.front_bytes
            && geometry.region_bytes == self.part.map().chunk_bytes()
            && cache.uuid == entry.uuid;
        if fits {
            return Ok(());
        }
        Err(format!(
            "volume {}: expected the cache {} with metadata of {} bytes and regions of {} bytes, found {} with {} and {}: the device \
             was changed by another program; remove the volume, and add it anew",
            entry.name,
            entry.uuid,
            entry.front_bytes,
            self.part.map().chunk_bytes(),
            cache.uuid,
            geometry.data_offset(),
            geometry.region_bytes
        )
        .into())
    }
}

/// Takes the exclusive open of the device over when the process that has it ends, as long as the claim lives.
fn keep_exclusive(claim: &Arc<Claim>) -> Result<(), HostError> {
    if claim.is_exclusive() {
        return Ok(());
    }
    let claim = Arc::downgrade(claim);
    let watch = move || {
        let mut warned = false;
        while let Some(claim) = claim.upgrade() {
            match claim.take_over() {
                TakenOver::Yes => return,
                TakenOver::Member => warned = false,
                TakenOver::Other if !warned => {
                    warned = true;
                    tracing::error!(
                        "{} is also used by another program: stop that program, or stop the cache before data is lost",
                        claim.path().display()
                    );
                }
                TakenOver::Other => {}
            }
            drop(claim);
            std::thread::sleep(EXCLUSIVE_EVERY);
        }
    };
    std::thread::Builder::new()
        .name("flaz-exclusive".to_owned())
        .spawn(watch)?;
    Ok(())
}

/// Holds a volume for the descriptor of a claim.
pub(super) fn hold(
    device: &Path,
    file: &File,
    volume: &str,
    number: u32,
    access: Access,
) -> Result<(), HostError> {
    let lock = match access {
        Access::Read => ByteLock::Shared,
        Access::ReadWrite => ByteLock::Exclusive,
    };
    if lock_byte(file, volume_byte(number), lock)? {
        return Ok(());
    }
    Err(format!(
        "volume {volume} of {} is in use by another flaz process: stop that first",
        device.display()
    )
    .into())
}

/// Opens the device for the requests to a volume, after those of a process that was killed.
pub(super) fn open_file(device: &Path, number: u32, access: Access) -> Result<FileDevice, HostError> {
    let mode = OpenMode {
        read_only: access == Access::Read,
        hold: Hold::ClaimedPart(request_byte(number)),
        buffered: false,
    };
    Ok(FileDevice::open(device, mode)?)
}

/// The volume of this name.
pub(super) fn find<'a>(
    device: &Path,
    superblock: &'a PoolSuperblock,
    volume: &str,
) -> Result<&'a VolumeEntry, HostError> {
    let mut all = superblock.volumes.iter();
    all.find(|entry| entry.name == volume).ok_or_else(|| {
        let names: Vec<_> = superblock.volumes.iter().map(|entry| &*entry.name).collect();
        let found = match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        };
        format!(
            "{} has no volume {volume}: expected one of its volumes, which are: {found}",
            device.display()
        )
        .into()
    })
}

/// A volume that is not held: another process may be changing it.
///
/// # Errors
/// There is no such volume, or the device cannot be read.
pub(crate) fn peek(device: &Path, volume: &str) -> Result<(VolumeEntry, Part), HostError> {
    let (client, superblock) = PoolClient::start(device, Access::Read)?;
    let entry = find(device, &superblock, volume)?.clone();
    let part = peek_at(device, &client, &entry)?;
    Ok((entry, part))
}

/// As [`peek`], for a volume of an open pool.
pub(super) fn peek_at(device: &Path, client: &PoolClient, entry: &VolumeEntry) -> Result<Part, HostError> {
    let number = entry.number;
    let map = client.ask_blocking(Access::Read, async move |pool| Ok(pool.map(number)?))?;
    let mode = OpenMode {
        read_only: true,
        hold: Hold::None,
        buffered: false,
    };
    Ok(VolumeDevice::new(
        FileDevice::open(device, mode)?,
        map,
        client.clone(),
    ))
}

/// Whether a process holds the volume to write.
pub(crate) fn in_use(device: &Path, number: u32) -> bool {
    let locked = || is_byte_locked(File::open(device).ok()?, volume_byte(number), ByteLock::Shared).ok();
    locked().unwrap_or(false)
}
