//! What fails, and what to do.

use std::io;
use std::path::PathBuf;

/// Why a device cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// The driver is not there.
    #[error(
        "ublk: /dev/ublk-control does not exist: load the driver with `modprobe ublk_drv` (Linux 6.1 or later; Ubuntu has it \
         in linux-modules-extra), or serve over NBD with --nbd"
    )]
    NoDriver,
    /// The user may not use the driver.
    #[error("ublk: cannot open {}: {source}: run as root, or serve over NBD with --nbd", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The driver lacks something.
    #[error(
        "ublk: the driver of this kernel lacks {what}: use Linux 6.1 or later, or serve over NBD with --nbd"
    )]
    Lacks {
        /// What it lacks.
        what: &'static str,
    },
    /// io_uring cannot be used.
    #[error("ublk: io_uring cannot be used: {0}")]
    Ring(#[source] io::Error),
    /// The driver refused a command.
    #[error("ublk: cannot {what}: {source}")]
    Command {
        /// What was attempted.
        what: &'static str,
        /// The driver's error.
        source: io::Error,
    },
    /// The driver did not answer.
    #[error("ublk: cannot {what}: no answer within {seconds} s")]
    Late {
        /// What was attempted.
        what: &'static str,
        /// The time waited.
        seconds: u64,
    },
    /// The driver gave a device another mode than the one asked for, or an earlier server did.
    #[error(
        "ublk: /dev/ublkb{device} has flags {flags:#x}: expected recovery with reissue, and data that is copied; serve over \
         NBD with --nbd"
    )]
    Mode {
        /// Number of the device.
        device: u32,
        /// Its flags.
        flags: u64,
    },
    /// The memory of a queue cannot be mapped.
    #[error("ublk: cannot map the requests of queue {queue}: {source}")]
    Map {
        /// Number of the queue.
        queue: u16,
        /// The system's error.
        source: io::Error,
    },
    /// The driver ended the service of a queue, or of one of its requests.
    #[error("ublk: the driver has ended queue {queue}: {source}; was the device deleted?")]
    Ended {
        /// Number of the queue.
        queue: u16,
        /// The driver's error.
        source: io::Error,
    },
}
