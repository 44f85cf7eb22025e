//! Commands to the driver of a character device (`IORING_OP_URING_CMD`, Linux 5.19 and later).

use std::os::fd::{AsRawFd, BorrowedFd};

use flaz_device::IoBuf;

use crate::op::Op;
use crate::op_table::Payload;
use crate::request::Request;

/// When the kernel sees a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submission {
    /// Soon: with a few other operations, or at the end of the turn.
    Soon,
    /// At the end of the turn: commands that a task sends without waiting in between are submitted by one system call, so that
    /// a kill of the process falls before all of them or after all, if they fit into the submission queue.
    Together,
}

/// Sends a command of 16 bytes, and returns the driver's result: not negative, or a negative error number. `buf` belongs to
/// the driver until then. If the future is dropped, the buffer stays with the driver for as long as the thread's runtime
/// lives, and is leaked with it.
///
/// Without io_uring the result is `-EOPNOTSUPP`.
///
/// # Safety
/// While it has the command, the driver must access no memory of this process except `buf`, and the address in `bytes` must
/// be that of `buf` if it is one.
pub async unsafe fn command(
    fd: BorrowedFd<'_>,
    op: u32,
    bytes: [u8; 16],
    buf: IoBuf,
    submission: Submission,
) -> (IoBuf, i32) {
    let request = Request::Command {
        fd: fd.as_raw_fd(),
        op,
        bytes,
        submission,
    };
    let (payload, result) = Op::new(request, Payload::Buf(buf)).await;
    (payload.into_buf(), result)
}
