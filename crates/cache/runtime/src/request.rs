//! Requests to the kernel, and their results.

use std::os::fd::RawFd;

/// Maximum number of operations of one runtime that are submitted at a time.
pub(crate) const OPS_MAX: usize = 4096;

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
}

impl Request {
    /// Whether it may wait for a peer for ever, so that it must be cancelled if its future is dropped.
    pub(crate) fn is_open_ended(self) -> bool {
        matches!(
            self,
            Self::Accept { .. } | Self::Recv { .. } | Self::Send { .. } | Self::SendMsg { .. }
        )
    }
}

/// A completion: `user_data` and result.
pub(crate) type Completion = (u64, i32);
