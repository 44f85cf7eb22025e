//! Commands to `/dev/ublk-control`, one at a time, with limits of time.
//!
//! Invariants:
//! - a ring is used again only after the answer to its command has been taken. After an error, and after a command that is late,
//!   an answer may still come: it must not be taken for that of another command;
//! - memory that the driver may access lives until the answer; without one it is leaked.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::protocol::ControlCommand;

const ENTRIES: u32 = 8;
/// Bytes of a command in a submission entry of 128 bytes.
pub(crate) const AREA_BYTES: usize = 80;
/// Interval at which a caller is asked whether to wait on.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// How long an answer is awaited.
#[expect(missing_debug_implementations, reason = "a closure cannot be printed")]
pub enum Patience<'a> {
    /// So long.
    Limit(Duration),
    /// As long as the closure, called several times a second with the time waited, returns `true`.
    While(&'a mut dyn FnMut(Duration) -> bool),
}

/// What is used of io_uring.
pub(crate) trait Ring: Sized {
    fn new() -> io::Result<Self>;

    /// Queues a command.
    ///
    /// # Safety
    /// Memory that the command names lives until the completion.
    unsafe fn push(&mut self, fd: RawFd, number: u32, area: [u8; AREA_BYTES], id: u64) -> io::Result<()>;

    /// Submits what is queued, and waits for a completion, at most for `limit`.
    fn wait(&mut self, limit: Duration) -> io::Result<()>;

    /// Takes a completion: the number of the command, and its result.
    fn completion(&mut self) -> Option<(u64, i32)>;
}

pub(crate) type Uring = IoUring<squeue::Entry128, cqueue::Entry>;

impl Ring for Uring {
    fn new() -> io::Result<Self> {
        IoUring::builder().build(ENTRIES)
    }

    unsafe fn push(&mut self, fd: RawFd, number: u32, area: [u8; AREA_BYTES], id: u64) -> io::Result<()> {
        let entry = opcode::UringCmd80::new(Fd(fd), number).cmd(area);
        let entry = entry.build().user_data(id);
        // SAFETY: as for this function.
        unsafe { self.submission().push(&entry) }.map_err(|_| io::Error::other("the ring is full"))
    }

    fn wait(&mut self, limit: Duration) -> io::Result<()> {
        let timespec = Timespec::from(limit);
        let arguments = SubmitArgs::new().timespec(&timespec);
        match self.submitter().submit_with_args(1, &arguments) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME)) => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn completion(&mut self) -> Option<(u64, i32)> {
        let completion = IoUring::completion(self).next()?;
        Some((completion.user_data(), completion.result()))
    }
}

/// A ring for one command after the other.
pub(crate) struct CommandRing<R = Uring> {
    /// Without a command.
    ring: Option<R>,
    /// Commands sent, by which their answers are recognised.
    sent: u64,
}

impl<R> Default for CommandRing<R> {
    fn default() -> Self {
        Self { ring: None, sent: 0 }
    }
}

impl<R: Ring> CommandRing<R> {
    /// Sends a command, with `memory` if it has a length. Returns the memory after the answer, and the driver's result; `None`
    /// if it comes too late.
    ///
    /// # Errors
    /// Those of io_uring.
    pub(crate) fn exchange<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        fd: BorrowedFd<'_>,
        number: u32,
        command: ControlCommand,
        memory: T,
        patience: Patience<'_>,
    ) -> io::Result<Option<(T, i32)>> {
        assert!(
            usize::from(command.len) <= size_of::<T>(),
            "the driver stays inside"
        );
        let mut ring = match self.ring.take() {
            Some(ring) => ring,
            None => R::new()?,
        };
        let mut memory = Box::new(memory);
        let address: *mut T = &raw mut *memory;
        let command = ControlCommand {
            address: if command.len > 0 { address as u64 } else { 0 },
            ..command
        };
        let mut area = [0; AREA_BYTES];
        area[..size_of::<ControlCommand>()].copy_from_slice(command.as_bytes());
        self.sent += 1;
        // SAFETY: the command names no memory but `memory`, which is freed after the answer only.
        let pushed = unsafe { ring.push(fd.as_raw_fd(), number, area, self.sent) };
        match pushed.and_then(|()| answer(&mut ring, self.sent, patience)) {
            Ok(Some(result)) => {
                self.ring = Some(ring);
                Ok(Some((*memory, result)))
            }
            other => {
                // The driver may still write to it.
                Box::leak(memory);
                other.map(|_| None)
            }
        }
    }
}

/// The driver's result; `None` if it comes too late.
fn answer<R: Ring>(ring: &mut R, id: u64, mut patience: Patience<'_>) -> io::Result<Option<i32>> {
    let begun = Instant::now();
    loop {
        ring.wait(match &patience {
            Patience::Limit(limit) => limit.saturating_sub(begun.elapsed()),
            Patience::While(_) => ASK_EVERY,
        })?;
        if let Some((answered, result)) = ring.completion() {
            assert_eq!(answered, id, "one command is in flight");
            return Ok(Some(result));
        }
        let on = match &mut patience {
            Patience::Limit(limit) => begun.elapsed() < *limit,
            Patience::While(asked) => asked(begun.elapsed()),
        };
        if !on {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::os::fd::AsFd;

    use super::*;

    thread_local! {
        static RINGS: Cell<usize> = const { Cell::new(0) };
        /// What the next waits return; without an entry, the answers come.
        static WAITS: RefCell<Vec<io::Result<bool>>> = const { RefCell::new(Vec::new()) };
    }

    /// Answers each command with its number, in the order in which they were sent.
    struct Fake(Vec<(u64, i32)>, bool);

    impl Ring for Fake {
        fn new() -> io::Result<Self> {
            RINGS.set(RINGS.get() + 1);
            Ok(Self(Vec::new(), false))
        }

        unsafe fn push(&mut self, _: RawFd, number: u32, _: [u8; AREA_BYTES], id: u64) -> io::Result<()> {
            self.0.push((id, number as i32));
            Ok(())
        }

        fn wait(&mut self, _: Duration) -> io::Result<()> {
            self.1 = WAITS.with_borrow_mut(Vec::pop).unwrap_or(Ok(true))?;
            Ok(())
        }

        fn completion(&mut self) -> Option<(u64, i32)> {
            (self.1 && !self.0.is_empty()).then(|| self.0.remove(0))
        }
    }

    #[test]
    fn a_ring_that_still_has_a_command_is_not_used_again() {
        let file = tempfile::tempfile().unwrap();
        let mut ring = CommandRing::<Fake>::default();
        let mut exchange = |number| {
            let limit = Patience::Limit(Duration::ZERO);
            ring.exchange(file.as_fd(), number, ControlCommand::of(0), 7_u64, limit)
        };
        assert_eq!(exchange(1).unwrap(), Some((7, 1)));
        assert_eq!(exchange(2).unwrap(), Some((7, 2)));
        assert_eq!(RINGS.get(), 1);
        WAITS.with_borrow_mut(|waits| waits.push(Err(io::Error::other("no memory"))));
        assert!(exchange(3).is_err());
        assert_eq!(exchange(4).unwrap(), Some((7, 4)), "not the answer to 3");
        assert_eq!(RINGS.get(), 2);
        WAITS.with_borrow_mut(|waits| waits.push(Ok(false)));
        assert_eq!(exchange(5).unwrap(), None, "late");
        assert_eq!(exchange(6).unwrap(), Some((7, 6)), "not the answer to 5");
        assert_eq!(RINGS.get(), 3);
    }
}
