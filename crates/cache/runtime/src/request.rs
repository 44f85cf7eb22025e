//! Requests to the kernel, and their results.

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::command::Submission;

/// Maximum number of operations of one runtime that are submitted at a time.
pub(crate) const OPS_MAX: usize = 4096;

/// What keeps a file open.
pub(crate) type Keep = Arc<dyn Send + Sync>;

/// A request to the kernel. Pointers point into the payload that belongs to the request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    Read {
        fd: RawFd,
        ptr: *mut u8,
        len: u32,
        offset: u64,
    },
    Write {
        fd: RawFd,
        ptr: *const u8,
        len: u32,
        offset: u64,
        stable: bool,
    },
    DataSync {
        fd: RawFd,
    },
    Fallocate {
        fd: RawFd,
        mode: i32,
        offset: u64,
        len: u64,
    },
    Accept {
        fd: RawFd,
    },
    Recv {
        fd: RawFd,
        ptr: *mut u8,
        len: u32,
    },
    Send {
        fd: RawFd,
        ptr: *const u8,
        len: u32,
    },
    SendMsg {
        fd: RawFd,
        msg: *const libc::msghdr,
    },
    Command {
        fd: RawFd,
        op: u32,
        bytes: [u8; 16],
        submission: Submission,
    },
}

/// What completes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletedBy {
    /// The kernel, in bounded time.
    Kernel,
    /// A peer, perhaps never: it must be cancelled if its future is dropped.
    Peer,
    /// A driver, when its device has work or goes away. It cannot be cancelled, and the end of the runtime does not wait.
    Driver,
}

impl Request {
    /// Whether the device may begin before the end of the turn.
    pub(crate) fn may_be_early(self) -> bool {
        !matches!(
            self,
            Self::Command {
                submission: Submission::Together,
                ..
            }
        )
    }

    pub(crate) fn completed_by(self) -> CompletedBy {
        match self {
            Self::Accept { .. } | Self::Recv { .. } | Self::Send { .. } | Self::SendMsg { .. } => {
                CompletedBy::Peer
            }
            Self::Command { .. } => CompletedBy::Driver,
            Self::Read { .. } | Self::Write { .. } | Self::DataSync { .. } | Self::Fallocate { .. } => {
                CompletedBy::Kernel
            }
        }
    }
}

/// A completion: `user_data` and result.
pub(crate) type Completion = (u64, i32);
