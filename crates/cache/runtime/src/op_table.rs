//! The table that owns what the kernel uses.
//!
//! Invariants:
//! - from submission to completion the [`Payload`] lies in the table and nobody touches it;
//! - a dropped future marks its entry abandoned; the completion then frees it (and closes a descriptor that
//!   an abandoned accept brought);
//! - at most [`OPS_MAX`] operations are with the kernel; further ones wait their turn, first come first served
//!   as far as their tasks are polled in the order of their wakes.

use std::os::fd::{FromRawFd, OwnedFd};
use std::task::Waker;

use flaz_device::IoBuf;

use crate::batch::Outgoing;
use crate::request::OPS_MAX;

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
    pub(crate) fn dispose(self, result: i32) {
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

/// How far an operation is. Wakers are dropped outside the borrow of the table, as they may run anything.
pub(crate) enum Progress {
    Done(Payload, i32),
    Pending { stale: Option<Waker> },
}

/// What a dropped future leaves behind, likewise.
pub(crate) enum Abandoned {
    Leaked,
    Done(Payload, i32),
    Pending { waker: Waker, open_ended: bool },
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

    /// Takes an operation in. Where [`OPS_MAX`] are with the kernel, its future is woken when there is room, and gets
    /// the payload back.
    pub(crate) fn insert(
        &mut self,
        payload: Payload,
        open_ended: bool,
        waker: &Waker,
    ) -> Result<u32, Payload> {
        if self.in_flight >= OPS_MAX {
            if !self.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
                self.waiting.push(waker.clone());
            }
            return Err(payload);
        }
        self.in_flight += 1;
        let entry = Entry {
            state: State::Pending(waker.clone()),
            payload,
            open_ended,
        };
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = entry;
            return Ok(index);
        }
        let index = u32::try_from(self.entries.len()).expect("entries are bounded by the number of tasks");
        self.entries.push(entry);
        Ok(index)
    }

    /// What has become of an operation; `waker` is woken when that changes.
    pub(crate) fn poll(&mut self, index: u32, waker: &Waker) -> Progress {
        match &mut self.entries[index as usize].state {
            State::Done(result) => {
                let result = *result;
                Progress::Done(self.release(index), result)
            }
            State::Pending(current) => {
                let stale = (!current.will_wake(waker)).then(|| std::mem::replace(current, waker.clone()));
                Progress::Pending { stale }
            }
            State::Free | State::Abandoned => unreachable!("operation {index} lost its entry"),
        }
    }

    /// The future of an operation is dropped.
    pub(crate) fn abandon(&mut self, index: u32) -> Abandoned {
        // Nothing is there any more if the runtime had to leak its operations.
        let Some(entry) = self.entries.get_mut(index as usize) else {
            return Abandoned::Leaked;
        };
        match std::mem::replace(&mut entry.state, State::Abandoned) {
            State::Done(result) => Abandoned::Done(self.release(index), result),
            State::Pending(waker) => Abandoned::Pending {
                waker,
                open_ended: entry.open_ended,
            },
            State::Free | State::Abandoned => unreachable!("operation {index} lost its entry"),
        }
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

/// Acts on a completion.
pub(crate) fn settle(completed: Completed) {
    match completed {
        Completed::Wake(waker) => waker.wake(),
        Completed::Dispose(payload, result) => payload.dispose(result),
    }
}
