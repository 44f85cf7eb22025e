//! Reading the manifest of a shard that is not served: the states of its regions.

use flaz_device::deadline::is_timeout;
use flaz_device::{Device, DeviceError, IoBuf};

use crate::format::geometry::Geometry;
use crate::format::manifest::{ManifestEntry, ManifestSector};
use crate::units::Epoch;

/// Attempts to read a sector that fails its checks.
const READS_MAX: u32 = 2;

/// Identifies the manifest, and which of its sectors are valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManifestPlace<'a> {
    pub(crate) geometry: &'a Geometry,
    /// First four bytes of the cache's UUID.
    pub(crate) cache_id: u32,
    pub(crate) shard: u32,
    /// Contents from before this epoch are void: all regions are free.
    pub(crate) valid_from: Epoch,
    /// The first epoch that cannot have written a sector.
    pub(crate) until: Epoch,
}

/// A copy of a sector that cannot be read, or fails its checks.
#[derive(Debug)]
pub(crate) struct DamagedCopy {
    /// Byte offset on the device.
    pub(crate) position: u64,
    pub(crate) error: String,
}

/// The contents of a shard's manifest.
#[derive(Debug)]
pub(crate) struct Manifest {
    /// The regions in order.
    pub(crate) entries: Vec<ManifestEntry>,
    /// The copy of each sector to write next: the older or the damaged one.
    pub(crate) next_copies: Vec<u8>,
    /// Damaged copies that were not needed.
    pub(crate) damaged: Vec<DamagedCopy>,
    pub(crate) bytes_read: u64,
}

/// Why a manifest could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Both copies of a sector are damaged.
    #[error("both copies of a sector of the manifest, at {} and {}, are damaged: {}", .0.position, .1.position, .0.error)]
    Damaged(DamagedCopy, DamagedCopy),
}

/// Reads the manifest of a shard.
///
/// # Errors
/// [`ManifestError`]: the device timed out, or both copies of a sector are damaged.
pub(crate) async fn read_manifest<D: Device>(
    device: &D,
    place: &ManifestPlace<'_>,
) -> Result<Manifest, ManifestError> {
    let geometry = place.geometry;
    let len = geometry.manifest_copy_len();
    let mut manifest = Manifest {
        entries: Vec::with_capacity(geometry.regions_per_shard as usize),
        next_copies: Vec::new(),
        damaged: Vec::new(),
        bytes_read: 2 * len,
    };
    let mut copies = Vec::new();
    for copy in 0..2 {
        let position = geometry.manifest_sector_offset(place.shard, 0, copy);
        let (buf, result) = device.read_at(position, IoBuf::new(len as usize)).await;
        copies.push(match result {
            Ok(()) => Some(buf),
            Err(error) if is_timeout(&error) => return Err(error.into()),
            // Read it sector by sector instead.
            Err(_) => None,
        });
    }
    for sector in 0..geometry.manifest_sectors_of(geometry.regions_per_shard) {
        let mut found = Vec::new();
        for (copy, all) in copies.iter().enumerate() {
            found.push(read_sector(device, place, sector, copy, all.as_ref()).await?);
        }
        let (second, first) = (found.pop().expect("two copies"), found.pop().expect("two copies"));
        let (newest, next) = match (first, second) {
            (Ok(first), Ok(second)) if second.age() > first.age() => (second, 0),
            (Ok(first), Ok(_)) => (first, 1),
            (Ok(one), Err(damaged)) => {
                manifest.damaged.push(damaged);
                (one, 1)
            }
            (Err(damaged), Ok(one)) => {
                manifest.damaged.push(damaged);
                (one, 0)
            }
            (Err(first), Err(second)) => return Err(ManifestError::Damaged(first, second)),
        };
        manifest.next_copies.push(next);
        if newest.epoch < place.valid_from {
            let count = newest.entries.len();
            manifest
                .entries
                .extend(std::iter::repeat_n(ManifestEntry::FREE, count));
        } else {
            manifest.entries.extend(newest.entries);
        }
    }
    // The rest describes regions that the shard does not have now.
    manifest.entries.truncate(geometry.regions_per_shard as usize);
    assert_eq!(manifest.entries.len(), geometry.regions_per_shard as usize);
    manifest
        .next_copies
        .resize(geometry.shard_manifest_sectors() as usize, 0);
    Ok(manifest)
}

/// Reads one copy of a sector, from `all` if that could be read and the sector in it is valid.
async fn read_sector<D: Device>(
    device: &D,
    place: &ManifestPlace<'_>,
    sector: u32,
    copy: usize,
    all: Option<&IoBuf>,
) -> Result<Result<ManifestSector, DamagedCopy>, DeviceError> {
    let geometry = place.geometry;
    let (number, sector_bytes) = (
        geometry.manifest_sector_number(place.shard, sector),
        geometry.sector_bytes as usize,
    );
    let count = geometry.manifest_regions(sector).len();
    let parse = |bytes: &[u8]| {
        let parsed = ManifestSector::parse(bytes, place.cache_id, number, count, geometry.region_bytes);
        let parsed = parsed.map_err(|error| error.to_string())?;
        match parsed.epoch < place.until {
            true => Ok(parsed),
            false => Err(format!(
                "of epoch {}, expected below {}",
                parsed.epoch.0, place.until.0
            )),
        }
    };
    let position = geometry.manifest_sector_offset(place.shard, sector, copy);
    let mut error = String::new();
    if let Some(all) = all {
        match parse(&all[sector as usize * sector_bytes..][..sector_bytes]) {
            Ok(parsed) => return Ok(Ok(parsed)),
            Err(why) => error = why,
        }
    }
    // A single read may be wrong.
    for _ in 0..READS_MAX {
        let (buf, result) = device.read_at(position, IoBuf::new(sector_bytes)).await;
        match result {
            Ok(()) => match parse(&buf) {
                Ok(parsed) => return Ok(Ok(parsed)),
                Err(why) => error = why,
            },
            Err(failure) if is_timeout(&failure) => return Err(failure),
            Err(failure) => error = failure.to_string(),
        }
    }
    Ok(Err(DamagedCopy { position, error }))
}
