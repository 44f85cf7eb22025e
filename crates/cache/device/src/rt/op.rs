//! One operation as a future, and the table that owns what the kernel uses meanwhile.
//!
//! Invariants:
//! - from submission to completion the [`Payload`] lies in the table and nobody touches it;
//! - a dropped future marks its entry abandoned; the completion then frees it (and closes a descriptor that
//!   an abandoned accept brought);
//! - at most [`OPS_MAX`] operations are with the kernel; further ones wait their turn, first come first served
//!   as far as their tasks are polled in the order of their wakes.

use std::future::Future;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::batch::Outgoing;
use super::executor::{self, Core};
use crate::IoBuf;

/// Most operations of one runtime that are with the kernel at a time.
pub(crate) const OPS_MAX: usize = 4096;

/// What to ask of the kernel. Pointers point into the payload that travels with the request.
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
    /// Whether it may wait for a peer for ever, so that giving it up must cancel it.
    pub(crate) fn is_open_ended(self) -> bool {
        matches!(
            self,
            Self::Accept { .. } | Self::Recv { .. } | Self::Send { .. } | Self::SendMsg { .. }
        )
    }
}

/// What an operation owns.
#[derive(Debug)]
pub(crate) enum Payload {
    None,
    Buf(IoBuf),
    Batch(Box<Outgoing>),
    /// The result is a new descriptor, to be closed if nobody takes it.
    Accepted,
}

impl Payload {
    pub(crate) fn into_buf(self) -> IoBuf {
        match self {
            Self::Buf(buf) => buf,
            other => unreachable!("an operation on a buffer gave {other:?} back"),
        }
    }

    pub(crate) fn into_batch(self) -> Box<Outgoing> {
        match self {
            Self::Batch(batch) => batch,
            other => unreachable!("an operation on a batch gave {other:?} back"),
        }
    }

    /// Frees what an abandoned operation leaves.
    fn dispose(self, result: i32) {
        if let Self::Accepted = self
            && result >= 0
        {
            // SAFETY: the kernel made this descriptor for us, and nobody else has seen its number.
            drop(unsafe { OwnedFd::from_raw_fd(result) });
        }
    }
}

enum State {
    Free,
    Pending(Waker),
    Abandoned,
    Done(i32),
}

struct Entry {
    state: State,
    payload: Payload,
    open_ended: bool,
}

/// What a completion asks for, outside the borrow of the table.
pub(crate) enum Completed {
    Wake(Waker),
    Dispose(Payload, i32),
}

/// The operations of a runtime.
#[derive(Default)]
pub(crate) struct OpTable {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// With the kernel.
    in_flight: usize,
    /// Futures that found [`OPS_MAX`] in flight.
    waiting: Vec<Waker>,
}

impl OpTable {
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn insert(&mut self, payload: Payload, open_ended: bool, waker: Waker) -> u32 {
        self.in_flight += 1;
        let entry = Entry {
            state: State::Pending(waker),
            payload,
            open_ended,
        };
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = entry;
            return index;
        }
        let index = u32::try_from(self.entries.len()).expect("entries are bounded by the number of tasks");
        self.entries.push(entry);
        index
    }

    pub(crate) fn complete(&mut self, index: u32, result: i32) -> Completed {
        let entry = &mut self.entries[index as usize];
        self.in_flight -= 1;
        match std::mem::replace(&mut entry.state, State::Done(result)) {
            State::Pending(waker) => Completed::Wake(waker),
            State::Abandoned => Completed::Dispose(self.release(index), result),
            State::Free | State::Done(_) => unreachable!("operation {index} completed twice"),
        }
    }

    /// Futures to wake because there is room again.
    pub(crate) fn take_waiting(&mut self) -> Vec<Waker> {
        if self.waiting.is_empty() || self.in_flight >= OPS_MAX {
            return Vec::new();
        }
        std::mem::take(&mut self.waiting)
    }

    fn release(&mut self, index: u32) -> Payload {
        let entry = &mut self.entries[index as usize];
        entry.state = State::Free;
        self.free.push(index);
        std::mem::replace(&mut entry.payload, Payload::None)
    }

    /// Numbers of all operations that are with the kernel, for the end of the runtime.
    pub(crate) fn pending(&self) -> Vec<u32> {
        let with_kernel = |entry: &Entry| matches!(entry.state, State::Pending(_) | State::Abandoned);
        (0u32..)
            .zip(&self.entries)
            .filter(|(_, entry)| with_kernel(entry))
            .map(|(index, _)| index)
            .collect()
    }

    /// Leaks everything: the last resort when the kernel does not give buffers back.
    pub(crate) fn leak(&mut self) {
        for entry in self.entries.drain(..) {
            std::mem::forget(entry.payload);
        }
        self.free.clear();
    }
}

enum Stage {
    /// Not handed over yet.
    New(Request, Payload),
    /// With the kernel, or done and not looked at.
    Entered(u32),
    Finished,
}

/// One operation. Gives the payload back with the kernel's answer: a count, or a negative error number.
#[must_use = "an operation is submitted when it is first polled"]
pub(crate) struct Op {
    core: Rc<Core>,
    stage: Stage,
}

impl Op {
    /// An operation on this thread's runtime.
    ///
    /// # Panics
    /// Outside a runtime.
    pub(crate) fn new(request: Request, payload: Payload) -> Self {
        Self {
            core: executor::current(),
            stage: Stage::New(request, payload),
        }
    }
}

impl Future for Op {
    type Output = (Payload, i32);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        match std::mem::replace(&mut this.stage, Stage::Finished) {
            Stage::New(request, payload) => {
                let mut ops = this.core.ops.borrow_mut();
                if ops.in_flight >= OPS_MAX {
                    if !ops.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                        ops.waiting.push(cx.waker().clone());
                    }
                    this.stage = Stage::New(request, payload);
                    return Poll::Pending;
                }
                let index = ops.insert(payload, request.is_open_ended(), cx.waker().clone());
                drop(ops);
                this.stage = Stage::Entered(index);
                this.core.driver.push(request, u64::from(index));
                Poll::Pending
            }
            Stage::Entered(index) => {
                let mut ops = this.core.ops.borrow_mut();
                match &mut ops.entries[index as usize].state {
                    State::Done(result) => {
                        let result = *result;
                        Poll::Ready((ops.release(index), result))
                    }
                    State::Pending(waker) => {
                        let stale = (!waker.will_wake(cx.waker()))
                            .then(|| std::mem::replace(waker, cx.waker().clone()));
                        drop(ops);
                        drop(stale);
                        this.stage = Stage::Entered(index);
                        Poll::Pending
                    }
                    State::Free | State::Abandoned => unreachable!("operation {index} lost its entry"),
                }
            }
            Stage::Finished => panic!("an operation was polled after it had ended"),
        }
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        let Stage::Entered(index) = self.stage else { return };
        let mut ops = self.core.ops.borrow_mut();
        // Nothing is there any more if the runtime had to leak its operations.
        let Some(entry) = ops.entries.get_mut(index as usize) else {
            return;
        };
        match std::mem::replace(&mut entry.state, State::Abandoned) {
            State::Done(result) => {
                let payload = ops.release(index);
                drop(ops);
                payload.dispose(result);
            }
            State::Pending(waker) => {
                let open_ended = entry.open_ended;
                drop(ops);
                drop(waker);
                if open_ended {
                    self.core.driver.cancel(u64::from(index));
                }
                // The owner of the descriptor may close it next, and its number may then mean another file:
                // the kernel must have taken its own reference before.
                self.core.driver.submit_all();
            }
            State::Free | State::Abandoned => unreachable!("operation {index} lost its entry"),
        }
    }
}

/// Acts on a completion.
pub(crate) fn settle(completed: Completed) {
    match completed {
        Completed::Wake(waker) => waker.wake(),
        Completed::Dispose(payload, result) => payload.dispose(result),
    }
}
