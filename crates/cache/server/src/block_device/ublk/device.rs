//! The device of the driver that belongs to a cache: found, and added.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flaz_ublk::protocol::{DeviceInfo, DeviceState, Parameters, SECTOR_BYTES, attribute};
use flaz_ublk::{Control, NewDevice, UblkError};
use uuid::Uuid;

use super::super::{
    BlockDeviceSpec, DriverSpec, Exported, SETTLE_POLL, SETTLE_WITHIN, Shape, Stamp, Stamped, claim, disk,
    of_cache,
};
use super::{DRIVER, STOP_WITHIN};
use crate::error::HostError;
use crate::names::Name;

/// Maximum size of a request in bytes.
pub(super) const REQUEST_BYTES_MAX: usize = 256 << 10;
/// Maximum size of a discard, or of a write of zeroes, in bytes.
const DISCARD_BYTES_MAX: u64 = 256 << 20;
/// Granularity of discards: a block of the cache.
const DISCARD_GRANULARITY: u32 = 4096;
/// Requests in flight of each queue, by default.
pub const DEPTH_DEFAULT: u16 = 64;

impl Stamped for DeviceInfo {
    fn stamp(&self) -> Stamp {
        Stamp::from_number(self.stamp)
    }

    fn path(&self) -> PathBuf {
        path(self.device)
    }
}

fn path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{number}"))
}

/// The device of this cache that waits for a server. The device may have any of these sizes, which the origin has had.
///
/// # Errors
/// It cannot be found out.
pub(in super::super) fn left_over(
    uuid: Uuid,
    sizes: &RangeInclusive<u64>,
) -> Result<Option<PathBuf>, HostError> {
    let numbers = flaz_ublk::device_numbers()?;
    if numbers.is_empty() {
        return Ok(None);
    }
    match Control::open().and_then(|mut control| control.devices()) {
        Ok(devices) => Ok(waiting(&devices, uuid).map(Stamped::path)),
        Err(error) => match numbers
            .into_iter()
            .map(path)
            .find(|file| may_be_of(sizes, disk::bytes(file)))
        {
            None => Ok(None),
            Some(device) => Err(unknown(&device, &error)),
        },
    }
}

/// Whether a device whose stamp cannot be read may be that of a cache whose origin has had these sizes: a device may keep its
/// size when the origin grows. It need not be, but its size is all that a user other than root can see. To ignore such devices would
/// let that user change the data behind a device of root's server that was killed. Users without a device of such a size are not
/// kept from serving over NBD.
fn may_be_of(sizes: &RangeInclusive<u64>, bytes: io::Result<Option<u64>>) -> bool {
    match bytes {
        Ok(Some(bytes)) => sizes.contains(&bytes),
        // It was never started, or was stopped: nothing waits in it.
        Ok(None) => false,
        Err(_) => true,
    }
}

fn unknown(device: &Path, error: &UblkError) -> HostError {
    // Without its advice, which is for those who serve a device.
    let why = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    format!(
        "{DRIVER}: {} has the size of the origin, so it may be a device of this cache that waits for its server; expected to \
         read its stamp from /dev/ublk-control, found: {why}; run the command as root",
        device.display()
    )
    .into()
}

fn waiting(devices: &[DeviceInfo], uuid: Uuid) -> Option<&DeviceInfo> {
    devices
        .iter()
        .find(|info| Stamped::stamp(*info).is_of_cache(uuid) && info.state() != DeviceState::Dead)
}

/// The device of this cache, once its earlier server has ended. One that was never started, or was stopped, is deleted.
pub(super) fn find(control: &mut Control, stamp: Stamp) -> Result<Option<DeviceInfo>, HostError> {
    let give_up = Instant::now() + SETTLE_WITHIN;
    loop {
        let Some(info) = of_cache(DRIVER, &control.devices()?, stamp)? else {
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
                info.path().display(),
                info.server
            )
            .into());
        }
        std::thread::sleep(SETTLE_POLL);
    }
}

/// Deletes the device of a server that has ended. Requests that wait for it fail.
pub(in super::super) fn remove_left(device: &Path, name: &Name) -> Result<(), HostError> {
    let number = device
        .to_str()
        .and_then(|file| file.strip_prefix("/dev/ublkb")?.parse().ok());
    let number: u32 = number.ok_or_else(|| format!("{}: expected /dev/ublkbN", device.display()))?;
    let mut control = Control::open()?;
    let give_up = Instant::now() + SETTLE_WITHIN;
    // The driver notices the end of a process a little later.
    while let Some(info) = control.info(number)?
        && info.state() == DeviceState::Live
    {
        if Instant::now() >= give_up {
            return Err(format!("it is served by process {}: stop that first", info.server).into());
        }
        std::thread::sleep(SETTLE_POLL);
    }
    // Meanwhile another program may have removed the disk, and given its number to a disk of its own.
    if claim::device_of(name).as_deref() != Some(device) {
        return Err(format!("{} is another disk now; nothing was changed", device.display()).into());
    }
    // The name stays until the driver has stopped the device: by it this command is given again.
    control.stop(number, STOP_WITHIN)?;
    name.unlink_all(device);
    match control.delete(number, SETTLE_WITHIN) {
        Err(UblkError::Late { .. }) => tracing::warn!(
            "{DRIVER}: something has {} open: its number is taken until that is closed or unmounted",
            device.display()
        ),
        other => other?,
    }
    Ok(())
}

/// Adds the device, with its parameters.
pub(super) fn add(
    control: &mut Control,
    spec: &BlockDeviceSpec,
    exported: &Exported,
    parameters: Parameters,
) -> Result<DeviceInfo, HostError> {
    let (queues, depth) = options(spec);
    let mut queues = queues.unwrap_or(exported.threads as u16).max(1);
    if queues > 1 && !flaz_ublk::many_queues_are_possible() {
        tracing::warn!(
            "ublk: with the memory pages of this kernel, one queue is possible: using one, not {queues}"
        );
        queues = 1;
    }
    let info = control.add(NewDevice {
        queues,
        depth: depth.unwrap_or(DEPTH_DEFAULT),
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

/// Queues and depth that were asked for.
fn options(spec: &BlockDeviceSpec) -> (Option<u16>, Option<u16>) {
    match spec.driver {
        DriverSpec::Ublk { queues, depth } => (queues, depth),
        DriverSpec::Nbd { .. } => (None, None),
    }
}

/// The parameters of a new device, with logical blocks of `block` bytes.
pub(super) fn parameters(block: u32, exported: &Exported) -> Parameters {
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
    parameters
}

/// What clients rely on.
pub(super) fn shape(parameters: &Parameters) -> Shape {
    Shape {
        sectors: parameters.sectors,
        read_only: parameters.attributes & attribute::READ_ONLY != 0,
    }
}

/// Options of this start that a device which was left over does not follow.
pub(super) fn ignored(
    spec: &BlockDeviceSpec,
    wanted: &Parameters,
    found: &Parameters,
    info: &DeviceInfo,
) -> Vec<String> {
    let (queues, depth) = options(spec);
    let mut ignored = Vec::new();
    if spec.block_bytes.is_some() && found.shifts[0] != wanted.shifts[0] {
        ignored.push(format!("--block-size (it has {})", 1_u64 << found.shifts[0]));
    }
    if queues.is_some_and(|queues| queues != info.queues) {
        ignored.push(format!("--ublk-queues (it has {})", info.queues));
    }
    if depth.is_some_and(|depth| depth != info.depth) {
        ignored.push(format!("--ublk-depth (it has {})", info.depth));
    }
    ignored
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::{exported, spec};
    use super::*;

    fn info(device: u32, stamp: Stamp, state: u16) -> DeviceInfo {
        let mut info = DeviceInfo::default();
        info.device = device;
        info.stamp = stamp.number();
        info.in_state(state)
    }

    #[test]
    fn a_stamp_is_kept_in_the_device() {
        let stamp = Stamp::new(Uuid::from_u128(1), "disk a");
        assert_eq!(Stamped::stamp(&info(0, stamp, 1)), stamp);
    }

    #[test]
    fn a_device_that_waits_is_noticed_with_any_origin() {
        let uuid = Uuid::from_u128(1);
        let of = |identity, state| info(4, Stamp::new(uuid, identity), state);
        for waits in [of("disk a", 2), of("disk b", 2), of("disk a", 1), of("disk a", 9)] {
            assert_eq!(waiting(&[waits], uuid), Some(&waits));
        }
        let other = info(5, Stamp::new(Uuid::from_u128(2), "disk a"), 2);
        assert_eq!(waiting(&[of("disk a", 0), other], uuid), None, "no block device");
    }

    #[test]
    fn a_device_that_cannot_be_read_may_be_that_of_the_cache_by_its_size() {
        let one = (1 << 20)..=(1 << 20);
        let grown = (1 << 19)..=(1 << 20);
        for bytes in [1 << 19, 3 << 18, 1 << 20] {
            assert!(may_be_of(&grown, Ok(Some(bytes))), "{bytes}");
            assert_eq!(
                may_be_of(&one, Ok(Some(bytes))),
                bytes == 1 << 20,
                "another's: {bytes}"
            );
        }
        assert!(!may_be_of(&grown, Ok(Some(1 << 21))), "another's");
        assert!(!may_be_of(&one, Ok(None)), "no block device");
        assert!(may_be_of(&one, Err(io::ErrorKind::PermissionDenied.into())));
        let source = io::Error::from_raw_os_error(rustix::io::Errno::ACCESS.raw_os_error());
        let denied = UblkError::Open {
            path: "/dev/ublk-control".into(),
            source,
        };
        let text = unknown(Path::new("/dev/ublkb3"), &denied).to_string();
        assert!(
            text.contains("/dev/ublkb3") && text.contains("Permission denied (os error 13); run"),
            "{text}"
        );
    }

    #[test]
    fn parameters_describe_the_volume() {
        let mut volume = exported(1 << 30, 512);
        let writable = parameters(4096, &volume);
        assert_eq!((writable.shifts[0], writable.sectors), (12, 1 << 21));
        assert!(!shape(&writable).read_only);
        volume.read_only = true;
        let read_only = shape(&parameters(512, &volume));
        assert_eq!((read_only.sectors, read_only.read_only), (1 << 21, true));
    }

    #[test]
    fn options_that_a_device_does_not_follow_are_named() {
        let asked = |queues, depth, block_bytes| {
            let driver = DriverSpec::Ublk { queues, depth };
            BlockDeviceSpec {
                block_bytes,
                ..spec(driver)
            }
        };
        let ours = exported(1 << 30, 512);
        let (found, wanted) = (parameters(512, &ours), parameters(4096, &ours));
        let mut device = DeviceInfo::default();
        (device.queues, device.depth) = (1, 64);
        let named = ignored(&asked(Some(2), Some(32), Some(4096)), &wanted, &found, &device);
        assert_eq!(
            named,
            [
                "--block-size (it has 512)",
                "--ublk-queues (it has 1)",
                "--ublk-depth (it has 64)"
            ]
        );
        assert!(ignored(&asked(None, None, None), &found, &found, &device).is_empty());
    }
}
