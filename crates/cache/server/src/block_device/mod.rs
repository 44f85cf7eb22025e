//! Block devices on this machine, by the drivers ublk and NBD of the kernel: what both have in common.
//!
//! A device outlives its server. A start takes over the device that an earlier server left, which it finds by a [`Stamp`] that
//! the driver keeps, and requests that had no answer are sent again. A clean stop removes the device, unless something uses it
//! or [`BlockDeviceSpec::keep`] says so: then its requests wait for the next start.
//!
//! Invariants:
//! - while the device exists, only its own front end opens the cache: other starts are refused ([`refuse_left_over`]);
//! - a device serves one cache over one origin, which its stamp names; with another stamp it is not touched. At most one device
//!   has the stamp of a cache;
//! - it is removed only while this process holds it exclusively, and only if it still has this cache's stamp; or by
//!   [`remove_device`], while it has no server;
//! - a server holds the name of its device, and no two devices have one name ([`claim`]);
//! - a connection to the driver that ends while the device is served ends the server.

mod claim;
mod disk;
mod kernel_nbd;
mod removal;
mod ublk;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flaz_control::report::{BlockDeviceReport, FrontEndSizeReport};
use flaz_engine::format::superblock::Superblock;
use flaz_nbd::Export;
use flaz_runtime::file::Identity;
use uuid::Uuid;

use self::kernel_nbd::KernelNbdFrontEnd;
use self::ublk::UblkFrontEnd;
use crate::error::HostError;
use crate::front_end::FrontEnd;
use crate::names::LINKS;

pub(crate) use self::claim::refuse_on_waiting;
pub use self::removal::{RemovedDevice, remove_device};
pub use self::ublk::DEPTH_DEFAULT as UBLK_DEPTH_DEFAULT;

/// How long a driver has to notice that a server has ended, to make device files, and to remove a device.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);
const SETTLE_POLL: Duration = Duration::from_millis(10);
/// How long the page cache of a device may take to be written before the device is removed. If it takes longer, the device stays.
const FLUSH_WITHIN: Duration = Duration::from_secs(60);

/// The block device to serve.
#[derive(Clone, Debug)]
pub struct BlockDeviceSpec {
    /// The last part of its name below `/dev/flaz`.
    pub name: String,
    /// Bytes of a logical block, 512 or 4096; by default those of the origin.
    pub block_bytes: Option<u32>,
    /// Leave the device in place at a clean stop.
    pub keep: bool,
    /// The driver.
    pub driver: DriverSpec,
}

/// The driver of a block device, with its own options.
#[derive(Clone, Copy, Debug)]
pub enum DriverSpec {
    /// ublk, of Linux 6.1 and later.
    Ublk {
        /// Number of queues; by default one for each thread.
        queues: Option<u16>,
        /// Requests in flight of each queue; by default [`UBLK_DEPTH_DEFAULT`].
        depth: Option<u16>,
    },
    /// The kernel's NBD client, of Linux 5.14 and later.
    Nbd {
        /// Number of the device, `/dev/nbdN`; by default the first that is unused.
        number: Option<u32>,
    },
}

impl DriverSpec {
    /// The driver's name in messages.
    fn name(self) -> &'static str {
        match self {
            Self::Ublk { .. } => ublk::DRIVER,
            Self::Nbd { .. } => kernel_nbd::DRIVER,
        }
    }
}

impl BlockDeviceSpec {
    /// The name of the device.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(LINKS).join(&self.name)
    }

    /// Bytes of a logical block of a new device.
    ///
    /// # Errors
    /// The size of the origin is not a multiple of it.
    fn logical_block(&self, exported: &Exported) -> Result<u32, HostError> {
        let block = self
            .block_bytes
            .unwrap_or(exported.origin_sector.clamp(512, 4096));
        if exported.bytes.is_multiple_of(u64::from(block)) {
            return Ok(block);
        }
        Err(format!(
            "{}: the size of the origin, {} bytes, is not a multiple of the logical block of {block} bytes: {}",
            self.driver.name(),
            exported.bytes,
            if block > 512 { "use --block-size 512" } else { "serve it over NBD with --nbd" }
        )
        .into())
    }
}

/// The volume behind the device.
pub(crate) struct Exported {
    pub uuid: Uuid,
    pub origin_identity: String,
    pub bytes: u64,
    /// Bytes of a sector of the origin.
    pub origin_sector: u32,
    pub read_only: bool,
    /// Dirty data is discarded at this start.
    pub discards_dirty: bool,
    pub threads: u32,
    /// As the NBD protocol describes it.
    pub export: Export,
}

/// Prepares the device: it is added, or the one that an earlier server left is found.
///
/// # Errors
/// The driver cannot be used, or the device does not fit the volume.
pub(crate) fn bind(spec: &BlockDeviceSpec, exported: &Exported) -> Result<Box<dyn FrontEnd>, HostError> {
    Ok(match spec.driver {
        DriverSpec::Ublk { .. } => Box::new(UblkFrontEnd::bind(spec, exported)?),
        DriverSpec::Nbd { number } => Box::new(KernelNbdFrontEnd::bind(spec, number, exported)?),
    })
}

/// Refuses to open a cache whose device waits for a server: what its clients have written and not yet read back must not
/// change under them. The device of `served` is taken over instead.
///
/// # Errors
/// There is such a device, or it cannot be found out.
pub(crate) fn refuse_left_over(cache: &Superblock, served: Option<DriverSpec>) -> Result<(), HostError> {
    let waits = |device: Option<PathBuf>, driver: &str, option: &str| match device {
        None => Ok(()),
        Some(device) => Err(HostError::from(format!(
            "{driver}: {} of this cache waits for its server, and may be in use: serve the cache with {option}, unmount the \
             device, and stop; then try again",
            device.display()
        ))),
    };
    if !matches!(served, Some(DriverSpec::Ublk { .. })) {
        waits(
            ublk::left_over(
                cache.uuid,
                &(cache.origin_created_len..=cache.geometry.origin_len),
            )?,
            ublk::DRIVER,
            "--ublk",
        )?;
    }
    if !matches!(served, Some(DriverSpec::Nbd { .. })) {
        waits(
            kernel_nbd::left_over(cache.uuid)?,
            kernel_nbd::DRIVER,
            "--nbd-device",
        )?;
    }
    Ok(())
}

/// By which a device is recognised; the driver keeps it with the device. Requests that wait for a server must not reach
/// another cache, nor the same cache in front of another origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    cache: u32,
    origin: u32,
}

impl Stamp {
    fn new(uuid: Uuid, origin_identity: &str) -> Self {
        Self {
            cache: crc32c::crc32c(uuid.as_bytes()),
            // A disk without a serial number may grow.
            origin: crc32c::crc32c(Identity::without_size(origin_identity).as_bytes()),
        }
    }

    fn from_number(number: u64) -> Self {
        Self {
            cache: (number >> 32) as u32,
            origin: number as u32,
        }
    }

    fn number(self) -> u64 {
        u64::from(self.cache) << 32 | u64::from(self.origin)
    }

    /// Whether it names this cache, with any origin.
    fn is_of_cache(self, uuid: Uuid) -> bool {
        self.cache == Self::new(uuid, "").cache
    }
}

/// What the stamp begins with as a text.
const STAMP_PREFIX: &str = "flaz-";

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{STAMP_PREFIX}{:016x}", self.number())
    }
}

/// The text is no stamp: another program has made the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NotAStamp;

impl FromStr for Stamp {
    type Err = NotAStamp;

    fn from_str(text: &str) -> Result<Self, NotAStamp> {
        let digits = text.strip_prefix(STAMP_PREFIX).ok_or(NotAStamp)?;
        let number = u64::from_str_radix(digits, 16).map_err(|_| NotAStamp)?;
        let stamp = Self::from_number(number);
        (stamp.to_string() == text).then_some(stamp).ok_or(NotAStamp)
    }
}

/// A device of a driver.
trait Stamped: Copy {
    fn stamp(&self) -> Stamp;
    /// The block device's file.
    fn path(&self) -> PathBuf;
}

/// The device of this cache among all devices.
///
/// # Errors
/// It was made for another origin, or there are two.
fn of_cache<D: Stamped>(driver: &str, devices: &[D], stamp: Stamp) -> Result<Option<D>, HostError> {
    let mut found = devices
        .iter()
        .filter(|device| device.stamp().cache == stamp.cache);
    let (first, second) = (found.next(), found.next());
    match (first, second) {
        (None, _) => Ok(None),
        (Some(one), None) if one.stamp() == stamp => Ok(Some(*one)),
        (Some(one), None) => Err(format!(
            "{driver}: {} was made by this cache for another origin, and its clients still expect that one: serve the cache \
             with the earlier origin, unmount the device, and stop",
            one.path().display()
        )
        .into()),
        (Some(one), Some(two)) => Err(format!(
            "{driver}: {} and {} both have the stamp of this cache: expected one device; unmount and delete the wrong one",
            one.path().display(),
            two.path().display()
        )
        .into()),
    }
}

/// What clients of a device rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Of 512 bytes.
    sectors: u64,
    read_only: bool,
}

/// Whether a device that was left over can serve this volume. A smaller one keeps its size: the origin has grown since.
///
/// # Errors
/// What differs.
fn fits(
    driver: &str,
    device: &Path,
    found: Shape,
    wanted: Shape,
    exported: &Exported,
) -> Result<(), HostError> {
    let access = |shape: Shape| if shape.read_only { "read-only" } else { "writable" };
    let what = if found.sectors > wanted.sectors {
        format!(
            "has {} sectors, expected at most {}",
            found.sectors, wanted.sectors
        )
    } else if found.read_only != wanted.read_only {
        format!("is {}, expected {}", access(found), access(wanted))
    } else if exported.discards_dirty {
        "may be in use, and would lose dirty data with --discard-dirty".to_owned()
    } else {
        if found.sectors < wanted.sectors {
            tracing::warn!(
                "{} keeps its size of {} bytes, but the volume has {}: `flaz volume resize` says what to do",
                device.display(),
                found.sectors * 512,
                wanted.sectors * 512
            );
        }
        return Ok(());
    };
    Err(format!(
        "{driver}: {} was left by an earlier server of this cache and {what}: serve it as before, unmount it, and stop",
        device.display()
    )
    .into())
}

/// Goes forward only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// There is no block device yet, or it has no server.
    #[default]
    Starting,
    Serving,
    /// The end of a connection to the driver is expected.
    Leaving,
}

/// Why a volume of `bytes` bytes cannot be a device with logical blocks of `block` bytes.
fn not_in_blocks(name: &Path, block: u32, bytes: u64) -> Option<String> {
    let is_odd = !bytes.is_multiple_of(u64::from(block));
    is_odd.then(|| {
        format!(
            "{} has logical blocks of {block} bytes, and the size of the origin, {bytes} bytes, is not a multiple of them: make \
             the origin a little larger, or smaller again",
            name.display()
        )
    })
}

/// The size of a device that is smaller than a volume of `bytes` bytes: it keeps the size that it had when the origin grew.
pub(crate) fn smaller_size(device: &BlockDeviceReport, bytes: u64) -> Option<u64> {
    disk::bytes(&device.device)
        .ok()
        .flatten()
        .filter(|has| *has < bytes)
}

/// Gives a block device the size of the volume with `resize`, unless it has it.
fn size_of_device(
    name: &Path,
    device: &Path,
    bytes: u64,
    resize: impl FnOnce() -> Result<(), String>,
) -> FrontEndSizeReport {
    size_report(name, bytes, || disk::bytes(device).ok().flatten(), resize)
}

fn size_report(
    name: &Path,
    bytes: u64,
    size: impl Fn() -> Option<u64>,
    resize: impl FnOnce() -> Result<(), String>,
) -> FrontEndSizeReport {
    let done = match size() {
        Some(now) if now == bytes => Ok(()),
        _ => resize(),
    };
    let has = size();
    let advice = match (&done, has) {
        (Ok(()), Some(now)) if now == bytes => None,
        (Ok(()), _) => Some("the kernel has not changed its size".to_owned()),
        (Err(why), _) => Some(why.clone()),
    };
    let advice = advice.map(|why| {
        let now = has.map_or_else(|| "its old size".to_owned(), |now| format!("{now} bytes"));
        format!(
            "it has {now} until it is created again ({why}): unmount it, stop the cache without --keep-device, and serve it again"
        )
    });
    FrontEndSizeReport {
        name: name.display().to_string(),
        up_to_date: advice.is_none(),
        advice,
    }
}

/// The phase of a front end.
#[derive(Debug, Default)]
struct Phases(Mutex<Phase>);

impl Phases {
    /// Returns the phase before.
    fn enter(&self, phase: Phase) -> Phase {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *now;
        *now = before.max(phase);
        before
    }

    fn now(&self) -> Phase {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
