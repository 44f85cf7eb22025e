//! Control of devices, through `/dev/ublk-control`.
//!
//! Invariants:
//! - one command is in flight at a time, and memory that the driver may access lives until its answer: after a command that is
//!   late it is leaked, and the ring is not used again;
//! - a device is recognised by its stamp, which the driver keeps for the server.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::UblkError;
use crate::protocol::{ANY_DEVICE, ControlCommand, ControlOp, DeviceInfo, Encoding, Parameters, flag};

const CONTROL: &str = "/dev/ublk-control";
/// The devices that there are.
const DEVICES: &str = "/sys/class/ublk-char";
/// How long most commands may take.
const COMMAND_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of a command in a submission entry of 128 bytes.
const COMMAND_AREA_BYTES: usize = 80;

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
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    encoding: Encoding,
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
        let ring = IoUring::builder().build(8).map_err(UblkError::Ring)?;
        let mut control = Self {
            file,
            ring,
            encoding: Encoding::Ioctl,
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
        match self.exchange(WHAT, ControlOp::GetFeatures, command, 0_u64, COMMAND_WITHIN) {
            Ok(features) => {
                if features & flag::USER_RECOVERY_REISSUE == 0 {
                    return Err(UblkError::Lacks {
                        what: "recovery with reissue",
                    });
                }
                if features & flag::IOCTL_ENCODE == 0 {
                    self.encoding = Encoding::Plain;
                }
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

    /// The device with this stamp.
    ///
    /// # Errors
    /// The driver's.
    pub fn find(&mut self, stamp: u64) -> Result<Option<DeviceInfo>, UblkError> {
        let Ok(entries) = std::fs::read_dir(DEVICES) else {
            return Ok(None);
        };
        let numbers = entries.flatten().filter_map(|entry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix("ublkc")?.parse().ok()
        });
        for number in numbers {
            if let Some(info) = self.info(number)?
                && info.stamp == stamp
            {
                return Ok(Some(info));
            }
        }
        Ok(None)
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
        match self.exchange(WHAT, ControlOp::GetInfo, command, room, COMMAND_WITHIN) {
            Ok(info) => Ok(Some(info)),
            // It has gone meanwhile, or belongs to another user.
            Err(UblkError::Command { source, .. })
                if matches!(
                    source.raw_os_error(),
                    Some(libc::EINVAL | libc::ENODEV | libc::EPERM | libc::EACCES)
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
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
        self.exchange("add a device", ControlOp::Add, command, info, COMMAND_WITHIN)
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
        self.exchange(
            WHAT,
            ControlOp::SetParameters,
            command,
            parameters,
            COMMAND_WITHIN,
        )?;
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
        self.exchange(WHAT, ControlOp::GetParameters, command, room, COMMAND_WITHIN)
    }

    /// Makes the block device appear. Its queues must be served meanwhile: the driver waits until all their requests are
    /// awaited, and the kernel then reads the partition table.
    ///
    /// # Errors
    /// The driver's.
    pub fn start(&mut self, device: u32, within: Duration) -> Result<(), UblkError> {
        self.with_process("start a device", ControlOp::Start, device, within)
    }

    /// Takes a device over whose server has ended. Its queues must be served next, and then [`Control::end_recovery`] called.
    ///
    /// # Errors
    /// The driver's: it still has a server, for example.
    pub fn start_recovery(&mut self, device: u32) -> Result<(), UblkError> {
        const WHAT: &str = "take a device over";
        let command = ControlCommand::of(device);
        self.exchange(WHAT, ControlOp::StartRecovery, command, 0_u64, COMMAND_WITHIN)?;
        Ok(())
    }

    /// Continues the requests of a device that was taken over. Its queues must be served meanwhile.
    ///
    /// # Errors
    /// The driver's.
    pub fn end_recovery(&mut self, device: u32, within: Duration) -> Result<(), UblkError> {
        self.with_process("continue a device", ControlOp::EndRecovery, device, within)
    }

    /// Makes the block device disappear. Requests in flight are answered first, so its queues must be served meanwhile.
    ///
    /// # Errors
    /// The driver's.
    pub fn stop(&mut self, device: u32, within: Duration) -> Result<(), UblkError> {
        let command = ControlCommand::of(device);
        self.exchange("stop a device", ControlOp::Stop, command, 0_u64, within)?;
        Ok(())
    }

    /// Deletes a device. Nothing may have its character device open.
    ///
    /// # Errors
    /// The driver's, or it is late: something has the device open.
    pub fn delete(&mut self, device: u32, within: Duration) -> Result<(), UblkError> {
        let command = ControlCommand::of(device);
        self.exchange("delete a device", ControlOp::Delete, command, 0_u64, within)?;
        Ok(())
    }

    fn with_process(
        &mut self,
        what: &'static str,
        op: ControlOp,
        device: u32,
        within: Duration,
    ) -> Result<(), UblkError> {
        let command = ControlCommand {
            data: u64::from(std::process::id()),
            ..ControlCommand::of(device)
        };
        self.exchange(what, op, command, 0_u64, within)?;
        Ok(())
    }

    /// Sends a command, with `memory` if it has a length, and returns the memory after the answer.
    fn exchange<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        what: &'static str,
        op: ControlOp,
        command: ControlCommand,
        memory: T,
        within: Duration,
    ) -> Result<T, UblkError> {
        assert!(
            usize::from(command.len) <= size_of::<T>(),
            "the driver stays inside"
        );
        let mut memory = Box::new(memory);
        let address: *mut T = &raw mut *memory;
        let command = ControlCommand {
            address: if command.len > 0 { address as u64 } else { 0 },
            ..command
        };
        match self.send(op.number(self.encoding), &command, within) {
            Ok(result) if result >= 0 => Ok(*memory),
            Ok(result) => Err(UblkError::Command {
                what,
                source: io::Error::from_raw_os_error(-result),
            }),
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => {
                // The driver may still write to it.
                Box::leak(memory);
                self.renew().map_err(UblkError::Ring)?;
                Err(UblkError::Late {
                    what,
                    seconds: within.as_secs(),
                    why: String::new(),
                })
            }
            Err(error) => {
                Box::leak(memory);
                Err(UblkError::Ring(error))
            }
        }
    }

    fn send(&mut self, number: u32, command: &ControlCommand, within: Duration) -> io::Result<i32> {
        let mut area = [0; COMMAND_AREA_BYTES];
        area[..size_of::<ControlCommand>()].copy_from_slice(command.as_bytes());
        let entry = opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), number)
            .cmd(area)
            .build();
        // SAFETY: the only memory that the command names is that of `exchange`, which lives until the answer.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| io::Error::other("the ring is full"))?;
        let limit = Timespec::from(within);
        loop {
            let arguments = SubmitArgs::new().timespec(&limit);
            match self.ring.submitter().submit_with_args(1, &arguments) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) if error.raw_os_error() != Some(libc::ETIME) => return Err(error),
                submitted => {
                    if let Some(completion) = self.ring.completion().next() {
                        return Ok(completion.result());
                    }
                    submitted?;
                }
            }
        }
    }

    /// After a late command: its answer must not be taken for that of another one.
    fn renew(&mut self) -> io::Result<()> {
        self.ring = IoUring::builder().build(8)?;
        Ok(())
    }
}
