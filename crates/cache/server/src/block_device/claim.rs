//! Which device has a name, and which devices wait for a server.
//!
//! A device has the name of the link that leads to it, if a note of its disk confirms that name: the disk of a link may have been
//! replaced by that of another program. It has a server as long as a process holds the name.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{DriverSpec, SETTLE_POLL, disk};
use crate::error::HostError;
use crate::names::{Held, Name};
use crate::safety;

/// A start that is refused, and one that looks for waiting devices, hold a name for a moment.
const HELD_FOR_A_MOMENT: Duration = Duration::from_secs(1);

/// The device that has a name.
pub(super) fn device_of(name: &Name) -> Option<PathBuf> {
    let device = name.device()?;
    name.is_noted(&disk::key(&device)?).then_some(device)
}

/// Holds a name for this process, unless another server has it, or another device than `own`. Earlier names of `own` are held as
/// well: by them the device could be removed until it has the new one.
///
/// # Errors
/// Who has it, or that it cannot be held.
pub(super) fn claim(driver: DriverSpec, name: &Name, own: Option<&Path>) -> Result<Vec<Held>, HostError> {
    let refused = |why: String| -> HostError {
        let option = match driver {
            DriverSpec::Ublk { .. } => "--ublk=NAME",
            DriverSpec::Nbd { .. } => "--nbd-device=NAME",
        };
        let (driver, name) = (driver.name(), name.path());
        format!(
            "{driver}: {} {why}: choose another one with {option}",
            name.display()
        )
        .into()
    };
    let held = hold(name)?;
    let other = device_of(name).filter(|device| Some(device.as_path()) != own);
    match (held, other) {
        (_, Some(other)) => Err(refused(format!("is the name of {}", other.display()))),
        (None, None) => Err(refused("is in use by another server".to_owned())),
        (Some(held), None) => {
            let mut all = vec![held];
            for earlier in Name::all() {
                if own.is_some() && earlier.path() != name.path() && device_of(&earlier).as_deref() == own {
                    all.push(
                        hold(&earlier)?
                            .ok_or_else(|| refused("is a device in use by another server".to_owned()))?,
                    );
                }
            }
            Ok(all)
        }
    }
}

/// Holds a name; `None` if another server has it.
///
/// # Errors
/// It cannot be held.
pub(super) fn hold(name: &Name) -> Result<Option<Held>, HostError> {
    let give_up = Instant::now() + HELD_FOR_A_MOMENT;
    loop {
        let held = name.hold().map_err(|error| {
            let name = name.path();
            format!(
                "cannot hold the name {} in /run/flaz: {error}; run as root",
                name.display()
            )
        })?;
        if held.is_some() || Instant::now() >= give_up {
            return Ok(held);
        }
        std::thread::sleep(SETTLE_POLL);
    }
}

/// Refuses a path on a file system that is mounted on a device without a server: whoever opens it waits for that server. A start
/// may be just that server, and would wait for itself.
///
/// # Errors
/// The device.
pub(crate) fn refuse_on_waiting(what: &str, path: &Path, advice: &str) -> Result<(), HostError> {
    // Names that cannot be held are those of other users, whose devices this process does not serve.
    let waits = |name: &Name| name.hold().is_ok_and(|held| held.is_some());
    let waiting: Vec<(Name, PathBuf)> = (Name::all().into_iter())
        .filter_map(|name| device_of(&name).map(|device| (name, device)))
        .filter(|(name, _)| waits(name))
        .collect();
    let devices: Vec<&Path> = waiting.iter().map(|(_, device)| device.as_path()).collect();
    let Some((device, mount)) = safety::mount_on(path, &devices) else {
        return Ok(());
    };
    let is_it = |(name, other): &(Name, PathBuf)| (other == device).then(|| name.path());
    Err(format!(
        "{what} {} is on {} (mounted on {}), which waits for its server: it cannot be read until that server has started; \
         {advice}, or, if the device is that of another cache, serve that one first",
        path.display(),
        waiting.iter().find_map(is_it).unwrap_or_default().display(),
        mount.display()
    )
    .into())
}
