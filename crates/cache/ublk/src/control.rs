//! Control of devices, through `/dev/ublk-control`.
//!
//! Invariant: a device is used only if its requests can be answered as [`crate::queue`] does it: [`Control::add`] and
//! [`Control::start_recovery`] refuse others.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::command_ring::{CommandRing, Patience};
use crate::error::UblkError;
use crate::protocol::{
    ANY_DEVICE, ControlCommand, ControlOp, DeviceInfo, Encoding, Parameters, Processors, SECTOR_BYTES, flag,
};
use crate::take_over::{self, take_over};

const CONTROL: &str = "/dev/ublk-control";
/// The devices that there are.
const DEVICES: &str = "/sys/class/ublk-char";
/// How long most commands may take.
const COMMAND_WITHIN: Duration = Duration::from_secs(10);
const COMMAND_LIMIT: Patience<'static> = Patience::Limit(COMMAND_WITHIN);

/// A device to add.
#[derive(Clone, Copy, Debug)]
pub struct NewDevice {
    /// Number of queues.
    pub queues: u16,
    /// Requests in flight of each queue.
    pub depth: u16,
    /// Maximum size of a request in bytes.
    pub request_bytes_max: u32,
    /// By which it is found again.
    pub stamp: u64,
}

/// The driver.
pub struct Control {
    file: File,
    ring: CommandRing,
    encoding: Encoding,
    /// Whether the driver can change the size of a device.
    can_resize: bool,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control")
            .field("encoding", &self.encoding)
            .finish_non_exhaustive()
    }
}

impl Control {
    /// Opens the driver, and finds out how it numbers commands.
    ///
    /// # Errors
    /// It is not there, may not be used, or lacks what is needed.
    pub fn open() -> Result<Self, UblkError> {
        let path = Path::new(CONTROL);
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => UblkError::NoDriver,
            _ => UblkError::Open {
                path: path.into(),
                source,
            },
        })?;
        let mut control = Self {
            file,
            ring: CommandRing::default(),
            encoding: Encoding::Ioctl,
            can_resize: false,
        };
        control.probe()?;
        Ok(control)
    }

    /// The driver reports its features since Linux 6.5; earlier ones know plain numbers, and all that is needed.
    fn probe(&mut self) -> Result<(), UblkError> {
        const WHAT: &str = "read the features of the driver";
        let command = ControlCommand {
            len: 8,
            ..ControlCommand::of(ANY_DEVICE)
        };
        match self.exchange(WHAT, ControlOp::GetFeatures, command, 0_u64, COMMAND_LIMIT) {
            Ok(features) => {
                if features & flag::USER_RECOVERY_REISSUE == 0 {
                    return Err(UblkError::Lacks {
                        what: "recovery with reissue",
                    });
                }
                if features & flag::IOCTL_ENCODE == 0 {
                    self.encoding = Encoding::Plain;
                }
                self.can_resize = features & flag::UPDATE_SIZE != 0;
                Ok(())
            }
            Err(UblkError::Command { .. }) => {
                self.encoding = Encoding::Plain;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// How the driver numbers commands.
    #[must_use]
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// All devices.
    ///
    /// # Errors
    /// The driver's, or the system's: a device that cannot be read may be any.
    pub fn devices(&mut self) -> Result<Vec<DeviceInfo>, UblkError> {
        let mut devices = Vec::new();
        for number in device_numbers()? {
            devices.extend(self.info(number)?);
        }
        Ok(devices)
    }

    /// A device, if there is one with this number.
    ///
    /// # Errors
    /// The driver's.
    pub fn info(&mut self, device: u32) -> Result<Option<DeviceInfo>, UblkError> {
        const WHAT: &str = "read the state of a device";
        let command = ControlCommand {
            len: size_of::<DeviceInfo>() as u16,
            ..ControlCommand::of(device)
        };
        let room = DeviceInfo::default();
        let missing = match self.encoding {
            Encoding::Ioctl => libc::ENODEV,
            // So say drivers before Linux 6.4.
            Encoding::Plain => libc::EINVAL,
        };
        match self.exchange(WHAT, ControlOp::GetInfo, command, room, COMMAND_LIMIT) {
            Ok(info) => Ok(Some(info)),
            Err(UblkError::Command { source, .. })
                if [missing, libc::ENODEV].contains(&source.raw_os_error().unwrap_or(0)) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the driver can change the size of a device.
    #[must_use]
    pub fn can_resize(&self) -> bool {
        self.can_resize
    }

    /// Changes the size of a device that is served. The kernel tells its users.
    ///
    /// # Errors
    /// The driver's; drivers that cannot do it are those that [`Control::can_resize`] says.
    pub fn resize(&mut self, device: u32, bytes: u64) -> Result<(), UblkError> {
        assert!(bytes.is_multiple_of(SECTOR_BYTES), "a device has whole sectors");
        let command = ControlCommand {
            data: bytes / SECTOR_BYTES,
            ..ControlCommand::of(device)
        };
        const WHAT: &str = "change the size of a device";
        self.exchange(WHAT, ControlOp::UpdateSize, command, 0_u64, COMMAND_LIMIT)?;
        Ok(())
    }

    /// The processors whose requests go to a queue.
    ///
    /// # Errors
    /// The driver's.
    pub fn processors(&mut self, device: u32, queue: u16) -> Result<Processors, UblkError> {
        const WHAT: &str = "read the processors of a queue";
        let command = ControlCommand {
            len: size_of::<Processors>() as u16,
            data: u64::from(queue),
            ..ControlCommand::of(device)
        };
        let room = Processors::default();
        self.exchange(WHAT, ControlOp::GetQueueAffinity, command, room, COMMAND_LIMIT)
    }

    /// Adds a device that outlives its server.
    ///
    /// # Errors
    /// The driver's.
    pub fn add(&mut self, new: NewDevice) -> Result<DeviceInfo, UblkError> {
        let encode = match self.encoding {
            Encoding::Ioctl => flag::IOCTL_ENCODE,
            Encoding::Plain => 0,
        };
        let info = DeviceInfo {
            queues: new.queues,
            depth: new.depth,
            request_bytes_max: new.request_bytes_max,
            device: ANY_DEVICE,
            flags: flag::USER_RECOVERY | flag::USER_RECOVERY_REISSUE | encode,
            stamp: new.stamp,
            ..DeviceInfo::default()
        };
        let command = ControlCommand {
            len: size_of::<DeviceInfo>() as u16,
            ..ControlCommand::of(ANY_DEVICE)
        };
        let added = self.exchange("add a device", ControlOp::Add, command, info, COMMAND_LIMIT)?;
        if let Err(error) = added.is_usable() {
            // The answer that counts is why it cannot be used.
            let _ = self.delete(added.device, COMMAND_WITHIN);
            return Err(error);
        }
        Ok(added)
    }

    /// Sets the parameters of a new device.
    ///
    /// # Errors
    /// The driver's.
    pub fn set_parameters(&mut self, device: u32, parameters: Parameters) -> Result<(), UblkError> {
        const WHAT: &str = "set the parameters of a device";
        let command = ControlCommand {
            len: Parameters::BYTES,
            ..ControlCommand::of(device)
        };
        self.exchange(WHAT, ControlOp::SetParameters, command, parameters, COMMAND_LIMIT)?;
        Ok(())
    }

    /// The parameters of a device.
    ///
    /// # Errors
    /// The driver's.
    pub fn parameters(&mut self, device: u32) -> Result<Parameters, UblkError> {
        const WHAT: &str = "read the parameters of a device";
        let command = ControlCommand {
            len: Parameters::BYTES,
            ..ControlCommand::of(device)
        };
        let room = Parameters::room();
        self.exchange(WHAT, ControlOp::GetParameters, command, room, COMMAND_LIMIT)
    }

    /// Makes the block device appear. Its queues must be served meanwhile: the driver waits until all their requests are
    /// awaited, and the kernel then reads the partition table.
    ///
    /// # Errors
    /// The driver's.
    pub fn start(&mut self, device: u32, patience: Patience<'_>) -> Result<(), UblkError> {
        self.with_process("start a device", ControlOp::Start, device, patience)
    }

    /// Takes a device over whose server has ended. Its queues must be served next, and then [`Control::end_recovery`] called.
    /// While the kernel still releases what the earlier server had, this waits up to `within`.
    ///
    /// # Errors
    /// The driver's: it still has a server, for example.
    pub fn start_recovery(&mut self, device: &DeviceInfo, within: Duration) -> Result<(), UblkError> {
        device.is_usable()?;
        let mut recovery = Recovery {
            control: self,
            device: device.device,
        };
        take_over(&mut recovery, device, within)
    }

    /// Continues the requests of a device that was taken over. Its queues must be served meanwhile.
    ///
    /// # Errors
    /// The driver's.
    pub fn end_recovery(&mut self, device: u32, patience: Patience<'_>) -> Result<(), UblkError> {
        self.with_process("continue a device", ControlOp::EndRecovery, device, patience)
    }

    /// Makes the block device disappear. Requests in flight are answered first, so its queues must be served meanwhile.
    ///
    /// # Errors
    /// The driver's.
    pub fn stop(&mut self, device: u32, within: Duration) -> Result<(), UblkError> {
        let command = ControlCommand::of(device);
        self.exchange(
            "stop a device",
            ControlOp::Stop,
            command,
            0_u64,
            Patience::Limit(within),
        )?;
        Ok(())
    }

    /// Deletes a device. Nothing may have its character device open.
    ///
    /// # Errors
    /// The driver's, or it is late: something has the device open.
    pub fn delete(&mut self, device: u32, within: Duration) -> Result<(), UblkError> {
        let command = ControlCommand::of(device);
        self.exchange(
            "delete a device",
            ControlOp::Delete,
            command,
            0_u64,
            Patience::Limit(within),
        )?;
        Ok(())
    }

    fn with_process(
        &mut self,
        what: &'static str,
        op: ControlOp,
        device: u32,
        patience: Patience<'_>,
    ) -> Result<(), UblkError> {
        let command = ControlCommand {
            data: u64::from(std::process::id()),
            ..ControlCommand::of(device)
        };
        self.exchange(what, op, command, 0_u64, patience)?;
        Ok(())
    }

    /// Sends a command, with `memory` if it has a length, and returns the memory after the answer.
    fn exchange<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        what: &'static str,
        op: ControlOp,
        command: ControlCommand,
        memory: T,
        patience: Patience<'_>,
    ) -> Result<T, UblkError> {
        let begun = Instant::now();
        let number = op.number(self.encoding);
        let answer = self
            .ring
            .exchange(self.file.as_fd(), number, command, memory, patience)
            .map_err(UblkError::Ring)?;
        match answer {
            Some((memory, result)) if result >= 0 => Ok(memory),
            Some((_, result)) => Err(UblkError::Command {
                what,
                source: io::Error::from_raw_os_error(-result),
            }),
            None => Err(UblkError::Late {
                what,
                seconds: begun.elapsed().as_secs(),
            }),
        }
    }
}

/// A device to take over.
struct Recovery<'a> {
    control: &'a mut Control,
    device: u32,
}

impl take_over::Driver for Recovery<'_> {
    fn start_recovery(&mut self) -> Result<(), UblkError> {
        const WHAT: &str = "take a device over";
        let command = ControlCommand::of(self.device);
        self.control
            .exchange(WHAT, ControlOp::StartRecovery, command, 0_u64, COMMAND_LIMIT)?;
        Ok(())
    }

    fn info(&mut self) -> Result<Option<DeviceInfo>, UblkError> {
        self.control.info(self.device)
    }
}

/// Numbers of all devices, without asking the driver.
///
/// # Errors
/// The system's.
pub fn device_numbers() -> Result<Vec<u32>, UblkError> {
    numbers(Path::new(DEVICES))
}

/// Numbers of the devices in the driver's directory of sysfs, in order. There is none before the driver is loaded.
fn numbers(directory: &Path) -> Result<Vec<u32>, UblkError> {
    let failed = |source| UblkError::Open {
        path: directory.into(),
        source,
    };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("ublkc"));
        numbers.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_listed_and_an_unreadable_list_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        for name in ["ublkc3", "ublkc0", "ublkc12", "ublkcx", "other"] {
            std::fs::create_dir(scratch.path().join(name)).unwrap();
        }
        assert_eq!(numbers(scratch.path()).unwrap(), [0, 3, 12]);
        assert!(numbers(&scratch.path().join("missing")).unwrap().is_empty());
        let file = scratch.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = numbers(&file).unwrap_err().to_string();
        assert!(error.contains("file"), "{error}");
    }
}
