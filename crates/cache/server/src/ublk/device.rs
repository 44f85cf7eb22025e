//! The device of the driver that belongs to a cache: found, added, and checked.
//!
//! Invariants: a device serves one cache over one origin, which its stamp names; with another stamp it is not touched. At most
//! one device has the stamp of a cache.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use flaz_ublk::protocol::{DeviceInfo, DeviceState, Parameters, SECTOR_BYTES, attribute};
use flaz_ublk::{Control, NewDevice, UblkError};
use uuid::Uuid;

use super::{Exported, SETTLE_POLL, SETTLE_WITHIN, UblkSpec};
use crate::error::HostError;

/// Maximum size of a request in bytes.
pub(crate) const REQUEST_BYTES_MAX: usize = 256 << 10;
/// Maximum size of a discard, or of a write of zeroes, in bytes.
const DISCARD_BYTES_MAX: u64 = 256 << 20;
/// Granularity of discards: a block of the cache.
const DISCARD_GRANULARITY: u32 = 4096;
/// Requests in flight of each queue, by default.
pub const DEPTH_DEFAULT: u16 = 64;

/// By which a device is recognised; the driver keeps it with the device. Requests that wait for a server must not reach
/// another cache, nor the same cache in front of another origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    cache: u32,
    origin: u32,
}

impl Stamp {
    pub(super) fn new(uuid: Uuid, origin_identity: &str) -> Self {
        Self {
            cache: crc32c::crc32c(uuid.as_bytes()),
            origin: crc32c::crc32c(origin_identity.as_bytes()),
        }
    }

    pub(super) fn of(info: &DeviceInfo) -> Self {
        Self {
            cache: (info.stamp >> 32) as u32,
            origin: info.stamp as u32,
        }
    }

    fn number(self) -> u64 {
        u64::from(self.cache) << 32 | u64::from(self.origin)
    }
}

/// The block device's file.
pub(super) fn path(info: &DeviceInfo) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{}", info.device))
}

/// The device of this cache among all devices.
///
/// # Errors
/// It was made for another origin, or there are two.
fn of_cache(devices: &[DeviceInfo], stamp: Stamp) -> Result<Option<DeviceInfo>, HostError> {
    let ours = |info: &&DeviceInfo| Stamp::of(info).cache == stamp.cache;
    let mut found = devices.iter().filter(ours);
    let (first, second) = (found.next(), found.next());
    match (first, second) {
        (None, _) => Ok(None),
        (Some(one), None) if Stamp::of(one) == stamp => Ok(Some(*one)),
        (Some(one), None) => Err(format!(
            "ublk: {} was made by this cache for another origin, and its clients still expect that one: serve the cache \
             with the earlier origin, unmount the device, and stop",
            path(one).display()
        )
        .into()),
        (Some(one), Some(two)) => Err(format!(
            "ublk: {} and {} both have the stamp of this cache: expected one device; unmount and delete the wrong one",
            path(one).display(),
            path(two).display()
        )
        .into()),
    }
}

/// Refuses to open a cache whose device waits for a server: what its clients have written and not yet read back must not
/// change under them.
///
/// # Errors
/// There is such a device, or it cannot be found out.
pub(crate) fn refuse_left_over(uuid: Uuid) -> Result<(), HostError> {
    if flaz_ublk::device_numbers()?.is_empty() {
        return Ok(());
    }
    let devices = match Control::open() {
        Ok(mut control) => control.devices()?,
        // Who may not use the driver has made no device.
        Err(UblkError::Open { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    match left_over(&devices, uuid) {
        None => Ok(()),
        Some(info) => Err(format!(
            "ublk: {} of this cache waits for its server, and may be in use: serve the cache with --ublk, unmount the device, \
             and stop; then try again",
            path(&info).display()
        )
        .into()),
    }
}

fn left_over(devices: &[DeviceInfo], uuid: Uuid) -> Option<DeviceInfo> {
    let cache = Stamp::new(uuid, "").cache;
    let waits = |info: &&DeviceInfo| Stamp::of(info).cache == cache && info.state() != DeviceState::Dead;
    devices.iter().find(waits).copied()
}

/// The device of this cache, once its earlier server has ended. One that was never started, or was stopped, is deleted.
pub(super) fn find(control: &mut Control, stamp: Stamp) -> Result<Option<DeviceInfo>, HostError> {
    let give_up = Instant::now() + SETTLE_WITHIN;
    loop {
        let Some(info) = of_cache(&control.devices()?, stamp)? else {
            return Ok(None);
        };
        match info.state() {
            DeviceState::Quiesced => return Ok(Some(info)),
            DeviceState::Dead => {
                control.delete(info.device, SETTLE_WITHIN)?;
                return Ok(None);
            }
            // The driver notices the end of a process a little later.
            DeviceState::Live | DeviceState::Other(_) => {}
        }
        if Instant::now() >= give_up {
            return Err(format!(
                "ublk: {} of this cache is served by process {}: stop that first",
                path(&info).display(),
                info.server
            )
            .into());
        }
        std::thread::sleep(SETTLE_POLL);
    }
}

/// Adds the device, with its parameters.
pub(super) fn add(
    control: &mut Control,
    spec: &UblkSpec,
    exported: &Exported,
    parameters: Parameters,
) -> Result<DeviceInfo, HostError> {
    let mut queues = spec.queues.unwrap_or(exported.threads as u16).max(1);
    if queues > 1 && !flaz_ublk::many_queues_are_possible() {
        tracing::warn!(
            "ublk: with the memory pages of this kernel, one queue is possible: using one, not {queues}"
        );
        queues = 1;
    }
    let info = control.add(NewDevice {
        queues,
        depth: spec.depth.unwrap_or(DEPTH_DEFAULT),
        request_bytes_max: REQUEST_BYTES_MAX as u32,
        stamp: Stamp::new(exported.uuid, &exported.origin_identity).number(),
    })?;
    if let Err(error) = control.set_parameters(info.device, parameters) {
        // The first error says why.
        let _ = control.delete(info.device, Duration::from_secs(1));
        return Err(error.into());
    }
    Ok(info)
}

/// The parameters of a new device.
///
/// # Errors
/// The size is not a multiple of the logical block.
pub(super) fn parameters(spec: &UblkSpec, exported: &Exported) -> Result<Parameters, HostError> {
    let block = spec
        .block_bytes
        .unwrap_or(exported.origin_sector.clamp(512, 4096));
    if !exported.bytes.is_multiple_of(u64::from(block)) {
        return Err(format!(
            "ublk: the size of the origin, {} bytes, is not a multiple of the logical block of {block} bytes: {}",
            exported.bytes,
            if block > 512 { "use --block-size 512" } else { "serve it over NBD with --nbd" }
        )
        .into());
    }
    let mut attributes = attribute::VOLATILE_CACHE | attribute::FUA;
    if exported.read_only {
        attributes |= attribute::READ_ONLY;
    }
    let sectors = |bytes: u64| bytes / SECTOR_BYTES;
    let mut parameters = Parameters::both();
    parameters.attributes = attributes;
    parameters.shifts = [block.trailing_zeros() as u8, 12, 12, 12];
    parameters.sectors_max = sectors(REQUEST_BYTES_MAX as u64) as u32;
    parameters.sectors = sectors(exported.bytes);
    parameters.discard_granularity = DISCARD_GRANULARITY;
    parameters.discard_sectors_max = sectors(DISCARD_BYTES_MAX) as u32;
    parameters.zeroes_sectors_max = sectors(DISCARD_BYTES_MAX) as u32;
    parameters.discard_segments_max = 1;
    Ok(parameters)
}

/// Whether a device that was left over can serve this volume.
///
/// # Errors
/// What differs.
pub(super) fn fits(
    wanted: &Parameters,
    found: &Parameters,
    info: &DeviceInfo,
    exported: &Exported,
) -> Result<(), HostError> {
    let read_only = |parameters: &Parameters| parameters.attributes & attribute::READ_ONLY != 0;
    let what = if found.sectors != wanted.sectors {
        format!("has {} sectors, expected {}", found.sectors, wanted.sectors)
    } else if read_only(found) != read_only(wanted) {
        let text = |is| if is { "read-only" } else { "writable" };
        format!(
            "is {}, expected {}",
            text(read_only(found)),
            text(read_only(wanted))
        )
    } else if exported.discards_dirty {
        "may be in use, and would lose dirty data with --discard-dirty".to_owned()
    } else {
        return Ok(());
    };
    Err(format!(
        "ublk: {} was left by an earlier server of this cache and {what}: serve it as before, unmount it, and stop",
        path(info).display()
    )
    .into())
}

/// Options of this start that a device which was left over does not follow.
pub(super) fn ignored(
    spec: &UblkSpec,
    wanted: &Parameters,
    found: &Parameters,
    info: &DeviceInfo,
) -> Vec<String> {
    let mut ignored = Vec::new();
    if spec.block_bytes.is_some() && found.shifts[0] != wanted.shifts[0] {
        ignored.push(format!("--block-size (it has {})", 1_u64 << found.shifts[0]));
    }
    if spec.queues.is_some_and(|queues| queues != info.queues) {
        ignored.push(format!("--ublk-queues (it has {})", info.queues));
    }
    if spec.depth.is_some_and(|depth| depth != info.depth) {
        ignored.push(format!("--ublk-depth (it has {})", info.depth));
    }
    ignored
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exported(bytes: u64, origin_sector: u32) -> Exported {
        Exported {
            uuid: Uuid::from_u128(7),
            origin_identity: "file 1".to_owned(),
            bytes,
            origin_sector,
            read_only: false,
            discards_dirty: false,
            threads: 1,
        }
    }

    fn info(device: u32, stamp: Stamp, state: u16) -> DeviceInfo {
        let mut info = DeviceInfo::default();
        info.device = device;
        info.stamp = stamp.number();
        info.in_state(state)
    }

    #[test]
    fn a_stamp_names_cache_and_origin() {
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let stamps = [
            Stamp::new(one, "disk a"),
            Stamp::new(one, "disk b"),
            Stamp::new(two, "disk a"),
        ];
        assert!(stamps[0] != stamps[1] && stamps[0] != stamps[2] && stamps[1] != stamps[2]);
        for stamp in stamps {
            assert_eq!(Stamp::of(&info(0, stamp, 1)), stamp);
        }
    }

    #[test]
    fn the_device_of_a_cache_is_found_by_its_stamp() {
        let stamp = Stamp::new(Uuid::from_u128(1), "disk a");
        let other_cache = info(0, Stamp::new(Uuid::from_u128(2), "disk a"), 2);
        let ours = info(1, stamp, 2);
        assert!(of_cache(&[], stamp).unwrap().is_none());
        assert!(of_cache(&[other_cache], stamp).unwrap().is_none());
        assert_eq!(of_cache(&[other_cache, ours], stamp).unwrap(), Some(ours));
        let refused = |devices: &[DeviceInfo], text| {
            let error = of_cache(devices, stamp).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        let other_origin = info(3, Stamp::new(Uuid::from_u128(1), "disk b"), 2);
        refused(
            &[other_origin],
            "/dev/ublkb3 was made by this cache for another origin",
        );
        refused(&[ours, other_origin], "/dev/ublkb1 and /dev/ublkb3");
        refused(&[ours, info(2, stamp, 2)], "/dev/ublkb1 and /dev/ublkb2");
    }

    #[test]
    fn a_device_that_waits_is_noticed_with_any_origin() {
        let uuid = Uuid::from_u128(1);
        let of = |identity, state| info(4, Stamp::new(uuid, identity), state);
        for waits in [of("disk a", 2), of("disk b", 2), of("disk a", 1), of("disk a", 9)] {
            assert_eq!(left_over(&[waits], uuid), Some(waits));
        }
        let other = info(5, Stamp::new(Uuid::from_u128(2), "disk a"), 2);
        assert_eq!(
            left_over(&[of("disk a", 0), other], uuid),
            None,
            "no block device"
        );
    }

    #[test]
    fn a_logical_block_is_that_of_the_origin_or_as_asked() {
        let block = |asked, sector| {
            let spec = UblkSpec {
                block_bytes: asked,
                ..UblkSpec::default()
            };
            1_u32 << parameters(&spec, &exported(1 << 30, sector)).unwrap().shifts[0]
        };
        assert_eq!((block(None, 512), block(None, 4096)), (512, 4096));
        assert_eq!((block(Some(4096), 512), block(Some(512), 4096)), (4096, 512));
    }

    #[test]
    fn a_size_that_is_no_multiple_of_the_block_is_refused() {
        let refused = |block_bytes, bytes, text| {
            let spec = UblkSpec {
                block_bytes,
                ..UblkSpec::default()
            };
            let error = parameters(&spec, &exported(bytes, 512)).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        refused(Some(4096), (1 << 30) + 512, "use --block-size 512");
        refused(None, (1 << 30) + 7, "--nbd");
        assert!(parameters(&UblkSpec::default(), &exported((1 << 30) + 512, 512)).is_ok());
    }

    #[test]
    fn a_device_that_differs_is_not_taken_over() {
        let made = |bytes, read_only| {
            let exported = Exported {
                read_only,
                ..exported(bytes, 512)
            };
            parameters(&UblkSpec::default(), &exported).unwrap()
        };
        let (wanted, ours) = (made(1 << 30, false), exported(1 << 30, 512));
        let device = info(3, Stamp::new(ours.uuid, &ours.origin_identity), 2);
        assert!(fits(&wanted, &wanted, &device, &ours).is_ok());
        let discards = Exported {
            discards_dirty: true,
            ..exported(1 << 30, 512)
        };
        for (found, exported, text) in [
            (made(1 << 20, false), &ours, "has 2048 sectors, expected 2097152"),
            (made(1 << 30, true), &ours, "is read-only, expected writable"),
            (wanted, &discards, "--discard-dirty"),
        ] {
            let error = fits(&wanted, &found, &device, exported).unwrap_err().to_string();
            assert!(
                error.contains("/dev/ublkb3 was left by") && error.contains(text),
                "{error}"
            );
        }
    }

    #[test]
    fn options_that_a_device_does_not_follow_are_named() {
        let spec = UblkSpec {
            queues: Some(2),
            depth: Some(32),
            block_bytes: Some(4096),
            ..UblkSpec::default()
        };
        let ours = exported(1 << 30, 512);
        let found = parameters(&UblkSpec::default(), &ours).unwrap();
        let wanted = parameters(&spec, &ours).unwrap();
        let mut device = DeviceInfo::default();
        (device.queues, device.depth) = (1, 64);
        let named = ignored(&spec, &wanted, &found, &device);
        assert_eq!(
            named,
            [
                "--block-size (it has 512)",
                "--ublk-queues (it has 1)",
                "--ublk-depth (it has 64)"
            ]
        );
        assert!(ignored(&UblkSpec::default(), &found, &found, &device).is_empty());
    }
}
