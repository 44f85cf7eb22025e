//! `flaz remove-device`: removes a block device whose server cannot return.

use flaz_server::{RemovedDevice, remove_device};

use super::output;
use crate::args::RemoveDeviceArgs;
use crate::error::Failure;
use crate::report::RemovedDeviceReport;
use crate::size::HumanBytes;

/// Runs `flaz remove-device`.
///
/// # Errors
/// There is no such device, it has a server or is in use, or the driver refuses.
pub fn run(args: &RemoveDeviceArgs) -> Result<(), Failure> {
    let path = std::path::Path::new("/dev/flaz").join(&args.name);
    let removed = remove_device(&args.name, args.force).map_err(Failure::host("remove-device", &path))?;
    let RemovedDevice { name, device, bytes } = removed;
    if args.json {
        return output::print_json(&RemovedDeviceReport { name, device, bytes }, true);
    }
    output::confirm(&format!(
        "removed {}, which was {} with {}\n",
        name.display(),
        device.display(),
        HumanBytes(bytes)
    ))
}
