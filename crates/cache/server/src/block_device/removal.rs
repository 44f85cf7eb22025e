//! Removal of a device whose server cannot return, because its cache is lost.

use std::path::{Path, PathBuf};

use flaz_control::size::HumanBytes;

use super::{SETTLE_WITHIN, claim, disk, kernel_nbd, ublk};
use crate::error::HostError;
use crate::names::Name;
use crate::safety::{hold_unused_within, uses_text};

/// A device that was removed.
#[derive(Clone, Debug)]
pub struct RemovedDevice {
    /// Its name, `/dev/flaz/NAME`.
    pub name: PathBuf,
    /// The block device's file.
    pub device: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Removes the block device `/dev/flaz/NAME`, which has no server; with `force`, also while it is in use. Requests that wait
/// for the server fail, so that data which users of the device have not yet written is lost.
///
/// # Errors
/// There is no such device, it has a server, it is in use, or the driver refuses.
pub fn remove_device(name: &str, force: bool) -> Result<RemovedDevice, HostError> {
    let name = Name::new(name);
    let path = name.path();
    let Some(linked) = name.device() else {
        return Err("there is no such block device: `ls /dev/flaz` lists their names".into());
    };
    // Held until the device is gone: no server starts meanwhile.
    let Some(_held) = claim::hold(&name)? else {
        return Err(
            "it has a server: stop that with `flaz stop`, which removes the device if nothing uses it".into(),
        );
    };
    let Some(device) = claim::device_of(&name) else {
        return Err(format!(
            "the link points to {}, which flaz did not create under this name; nothing was changed",
            linked.display()
        )
        .into());
    };
    let bytes = disk::bytes(&device)?.unwrap_or(0);
    let unused = match force {
        // Opening it may wait for a server.
        true => None,
        false => {
            Some(hold_unused_within(&device, SETTLE_WITHIN).map_err(|why| in_use(&device, bytes, &why))?)
        }
    };
    if let Some(uses) = uses_text(&device) {
        tracing::warn!(
            "{} is in use ({uses}): its requests fail from now on",
            path.display()
        );
    }
    match kernel_nbd::number_of(&device) {
        Some(number) => kernel_nbd::remove_left(number, &name)?,
        None => ublk::remove_left(&device, &name)?,
    }
    drop(unused);
    Ok(RemovedDevice {
        name: path,
        device,
        bytes,
    })
}

fn in_use(device: &Path, bytes: u64, why: &str) -> HostError {
    format!(
        "{} ({}) is in use ({why}): release it first, or use --force: its requests then fail with an I/O error, and data that \
         its users have not written is lost",
        device.display(),
        HumanBytes(bytes)
    )
    .into()
}
