//! The socket to the kernel's NBD driver. The kernel executes a command while it is sent, so an answer is there at once.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with, sockopt,
};

use rustix::thread::{CapabilitySet, capabilities};

use super::protocol::{self, Answer, Connect, CutOff};

/// How long the answer to a command may take, once the kernel has executed it.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Larger than any answer.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Why the driver did not do something.
#[derive(Debug, thiserror::Error)]
pub(super) enum DriverError {
    /// The driver is not there.
    #[error(
        "nbd: the kernel has no NBD driver: load it with `modprobe nbd` (Debian and Ubuntu have it in the kernel's package), or \
         serve over NBD to another client with --nbd"
    )]
    NoDriver,
    /// The user may not use the driver.
    #[error("nbd: cannot {what}: {source}: run as root, or serve over NBD with --nbd")]
    NotPermitted {
        /// What was attempted.
        what: &'static str,
        /// The kernel's error.
        source: Errno,
    },
    /// The driver refused a command.
    #[error("nbd: cannot {what}: {source}")]
    Command {
        /// What was attempted.
        what: &'static str,
        /// The kernel's error.
        source: Errno,
    },
    /// The driver's answer is not understood.
    #[error("nbd: cannot {what}: {source}")]
    Answer {
        /// What was attempted.
        what: &'static str,
        /// What is wrong with it.
        source: CutOff,
    },
    /// The answer lacks something.
    #[error("nbd: cannot {what}: the kernel's answer does not say the result")]
    NoResult {
        /// What was attempted.
        what: &'static str,
    },
}

impl DriverError {
    /// Whether the device is in use.
    pub(super) fn is_busy(&self) -> bool {
        matches!(
            self,
            Self::Command {
                source: Errno::BUSY,
                ..
            }
        )
    }
}

/// The driver.
#[derive(Debug)]
pub(super) struct Driver {
    socket: OwnedFd,
    family: u16,
    /// Of the last command.
    sequence: u32,
}

impl Driver {
    /// Finds the driver.
    ///
    /// # Errors
    /// There is none, or this process may not use it.
    pub(super) fn open() -> Result<Self, DriverError> {
        const WHAT: &str = "use the driver";
        let system = |source| DriverError::Command { what: WHAT, source };
        // The driver would say so only when a device is connected.
        if !capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN)) {
            let (what, source) = (WHAT, Errno::PERM);
            return Err(DriverError::NotPermitted { what, source });
        }
        let opened = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(GENERIC),
        );
        let socket = match opened {
            // A kernel without generic netlink has no such driver either.
            Err(Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT) => return Err(DriverError::NoDriver),
            other => other.map_err(system)?,
        };
        bind(&socket, &SocketAddrNetlink::new(0, 0)).map_err(system)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_WITHIN)).map_err(system)?;
        let mut driver = Self {
            socket,
            family: 0,
            sequence: 0,
        };
        match driver.exchange(WHAT, protocol::family) {
            Ok(Some(family)) => driver.family = family,
            Ok(None) => return Err(DriverError::NoResult { what: WHAT }),
            Err(DriverError::Command {
                source: Errno::NOENT, ..
            }) => return Err(DriverError::NoDriver),
            Err(error) => return Err(error),
        }
        Ok(driver)
    }

    /// Connects a device.
    ///
    /// # Errors
    /// [`DriverError::is_busy`] if the device of that number is in use; and others.
    pub(super) fn connect(&mut self, device: &Connect<'_>) -> Result<(), DriverError> {
        let family = self.family;
        self.exchange("connect a device", |sequence| {
            protocol::connect(family, sequence, device)
        })
        .map(drop)
    }

    /// Offers a socket to a device that has lost its own. Success does not mean that it was taken: see
    /// [`protocol::reconfigure`].
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn reconfigure(
        &mut self,
        index: u32,
        backend: &str,
        socket: BorrowedFd<'_>,
    ) -> Result<(), DriverError> {
        let (family, socket) = (self.family, socket.as_raw_fd());
        self.exchange("take over the device", |sequence| {
            protocol::reconfigure(family, sequence, index, backend, socket)
        })
        .map(drop)
    }

    /// Changes the size of a device.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn resize(&mut self, index: u32, backend: &str, bytes: u64) -> Result<(), DriverError> {
        let family = self.family;
        self.exchange("change the size of the device", |sequence| {
            protocol::resize(family, sequence, index, backend, bytes)
        })
        .map(drop)
    }

    /// Ends a device.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn disconnect(&mut self, index: u32) -> Result<(), DriverError> {
        let family = self.family;
        self.exchange("disconnect the device", |sequence| {
            protocol::disconnect(family, sequence, index)
        })
        .map(drop)
    }

    /// Sends a command and waits for its end. Returns the number of the family, if the answer has it.
    fn exchange(
        &mut self,
        what: &'static str,
        command: impl FnOnce(u32) -> Vec<u8>,
    ) -> Result<Option<u16>, DriverError> {
        let failed = |source| match source {
            Errno::PERM | Errno::ACCESS => DriverError::NotPermitted { what, source },
            _ => DriverError::Command { what, source },
        };
        self.sequence += 1;
        let sent = self.sequence;
        send(&self.socket, &command(sent), SendFlags::empty()).map_err(failed)?;
        let mut buffer = vec![0_u8; ANSWER_BYTES_MAX];
        let mut found = None;
        loop {
            let (len, _) = recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty()).map_err(failed)?;
            let answers =
                protocol::answers(&buffer[..len]).map_err(|source| DriverError::Answer { what, source })?;
            for answer in answers {
                match answer {
                    Answer::End { sequence, errno: 0 } if sequence == sent => return Ok(found),
                    Answer::End { sequence, errno } if sequence == sent => {
                        return Err(failed(Errno::from_raw_os_error(errno)));
                    }
                    Answer::Family { sequence, family } if sequence == sent => found = Some(family),
                    // Late answers to an earlier command, and notices.
                    _ => {}
                }
            }
        }
    }
}
