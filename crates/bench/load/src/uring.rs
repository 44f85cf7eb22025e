//! Operations through io_uring. The only unsafe code of this crate.
//!
//! Invariants:
//! - memory that the kernel uses outlives the operation: buffers of reads belong to the ring, and data of writes is
//!   borrowed as long as the ring lives;
//! - a ring is dropped only when nothing is in flight. Rings do not leave this crate, and no code in it forgets one. If
//!   waiting for the kernel fails, buffers are leaked.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

use flaz_device::IoBuf;
use io_uring::types::Fixed;
use io_uring::{IoUring, opcode, squeue};

use crate::queue::{self, Operation, Queue};
use crate::ticker::Ticker;

/// The only file of a ring: registered, so that the kernel does not look it up for each operation.
const FILE: Fixed = Fixed(0);
/// Number of operations that are submitted without waiting for more. Otherwise the device would process a whole batch
/// while this thread waits, and then wait while the thread works, so each would be idle part of the time. At a depth of
/// 32 on a virtio disk this gains a seventh.
const SUBMIT_EARLY: usize = 8;
/// Number of consecutive interrupted waits after which the kernel is assumed to make no progress.
const TRIES_MAX: usize = 1000;

/// A ring; `'d` is the lifetime of the data that it writes.
struct Ring<'d> {
    uring: IoUring,
    base: u64,
    in_flight: usize,
    /// Number of bytes that the operation in a slot should transfer.
    wanted: Vec<usize>,
    data: PhantomData<&'d [u8]>,
}

impl<'d> Ring<'d> {
    fn new(descriptor: BorrowedFd<'_>, base: u64, depth: usize) -> io::Result<Self> {
        let uring = build(depth as u32).map_err(explained)?;
        uring.submitter().register_files(&[descriptor.as_raw_fd()])?;
        Ok(Self {
            uring,
            base,
            in_flight: 0,
            wanted: vec![0; depth],
            data: PhantomData,
        })
    }

    /// # Safety
    /// The memory of the entry must stay valid, and a read's unused, until its completion was taken.
    unsafe fn push(&mut self, slot: usize, bytes: usize, entry: squeue::Entry) -> io::Result<()> {
        let entry = entry.user_data(slot as u64);
        // SAFETY: required of the caller.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        // The queue has as many entries as there are slots, and each slot is pushed once at a time.
        pushed.map_err(|_| io::Error::other("the queue of io_uring is full before its depth is reached"))?;
        self.wanted[slot] = bytes;
        self.in_flight += 1;
        if self.uring.submission().len() >= SUBMIT_EARLY
            && let Err(error) = self.uring.submit()
            && !is_passing(&error)
        {
            return Err(error);
        }
        // A failure here is left to the next wait.
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<usize>) -> io::Result<()> {
        for tries in 1.. {
            match self.uring.submit_and_wait(1) {
                Ok(_) => break,
                Err(error) if is_passing(&error) && tries < TRIES_MAX => {}
                Err(error) => return Err(error),
            }
        }
        let mut failed = Ok(());
        for completion in self.uring.completion() {
            let slot = completion.user_data() as usize;
            self.in_flight -= 1;
            ended.push(slot);
            failed = failed.and(outcome(completion.result(), self.wanted[slot]));
        }
        failed
    }

    /// Waits for everything in flight; returns whether that succeeded.
    fn drain(&mut self) -> bool {
        for _ in 0..TRIES_MAX + self.wanted.len() {
            // The wait also submits entries that were pushed but not submitted yet.
            if self.in_flight == 0 {
                return true;
            }
            if self
                .uring
                .submit_and_wait(1)
                .is_err_and(|error| !is_passing(&error))
            {
                return false;
            }
            self.in_flight -= self.uring.completion().count();
        }
        self.in_flight == 0
    }
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        // The kernel only reads the data of writes: in the worst case, an operation that is still in flight writes
        // wrong data.
        self.drain();
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
    )
}

fn outcome(result: i32, wanted: usize) -> io::Result<()> {
    match usize::try_from(result) {
        Err(_) => Err(io::Error::from_raw_os_error(-result)),
        Ok(moved) if moved == wanted => Ok(()),
        Ok(moved) => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("an operation of {wanted} bytes transferred {moved}: end of file, or device full"),
        )),
    }
}

/// The best set-up first; older kernels refuse flags that they do not know.
fn build(entries: u32) -> io::Result<IoUring> {
    let mut newest = IoUring::builder();
    newest
        .dontfork()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all(); // Linux 6.1
    let mut oldest = IoUring::builder();
    oldest.dontfork();
    newest.build(entries).or_else(|error| {
        if error.raw_os_error() == Some(libc::EINVAL) {
            oldest.build(entries)
        } else {
            Err(error)
        }
    })
}

fn explained(error: io::Error) -> io::Error {
    let advice = "io_uring is not allowed: see /proc/sys/kernel/io_uring_disabled and the limits of the \
         container, or use the synchronous engine with depth 1";
    io::Error::new(error.kind(), format!("cannot set up io_uring: {error}: {advice}"))
}

/// Reads into its own buffers.
pub(crate) struct Reads {
    ring: Ring<'static>,
    buffers: Vec<IoBuf>,
}

impl Reads {
    /// A ring over the file at `descriptor`, with the part from `base` on, and `depth` buffers of `record_bytes`.
    ///
    /// # Errors
    /// The system refuses io_uring.
    pub(crate) fn new(
        descriptor: BorrowedFd<'_>,
        base: u64,
        depth: usize,
        record_bytes: usize,
    ) -> io::Result<Self> {
        Ok(Self {
            ring: Ring::new(descriptor, base, depth)?,
            buffers: (0..depth).map(|_| IoBuf::new(record_bytes)).collect(),
        })
    }
}

impl<'d> Queue<'d> for Reads {
    fn push(&mut self, slot: usize, operation: Operation<'d>) -> io::Result<()> {
        let Operation::Read(access) = operation else {
            return Err(io::Error::other("a ring of reads was given a write"));
        };
        let buffer = &mut self.buffers[slot];
        assert!(access.bytes <= buffer.len(), "the record fits its buffer");
        let entry = opcode::Read::new(FILE, buffer.as_mut_ptr(), access.bytes as u32)
            .offset(self.ring.base + access.offset)
            .build();
        // SAFETY: `self` owns the buffer, does not access it while the slot is taken, and `drop` leaks it if the kernel
        // still uses it.
        unsafe { self.ring.push(slot, access.bytes, entry) }
    }

    fn wait(&mut self, ended: &mut Vec<usize>) -> io::Result<()> {
        self.ring.wait(ended)
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        if !self.ring.drain() {
            std::mem::take(&mut self.buffers)
                .into_iter()
                .for_each(std::mem::forget);
        }
    }
}

/// Writes, from borrowed data.
struct Writes<'d> {
    ring: Ring<'d>,
}

impl<'d> Queue<'d> for Writes<'d> {
    fn push(&mut self, slot: usize, operation: Operation<'d>) -> io::Result<()> {
        let Operation::Write(access, data) = operation else {
            return Err(io::Error::other("a ring of writes was given a read"));
        };
        assert_eq!(access.bytes, data.len(), "the data is as long as the record");
        let entry = opcode::Write::new(FILE, data.as_ptr(), data.len() as u32)
            .offset(self.ring.base + access.offset)
            .build();
        // SAFETY: the data is borrowed for `'d`, which outlives the ring; the ring waits for the kernel when it is dropped.
        unsafe { self.ring.push(slot, access.bytes, entry) }
    }

    fn wait(&mut self, ended: &mut Vec<usize>) -> io::Result<()> {
        self.ring.wait(ended)
    }
}

/// Executes writes, `depth` of them in flight, on the part of the file at `descriptor` that begins at `base`.
///
/// # Errors
/// The system refuses io_uring, or an operation fails; [`crate::ticker::interrupted`].
pub(crate) fn write<'d>(
    descriptor: BorrowedFd<'_>,
    base: u64,
    depth: usize,
    operations: impl Iterator<Item = Operation<'d>>,
    ticker: &Ticker<'_>,
) -> io::Result<()> {
    let mut writes = Writes {
        ring: Ring::new(descriptor, base, depth)?,
    };
    queue::keep_full(&mut writes, depth, operations, ticker)
}
