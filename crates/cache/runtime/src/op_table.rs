//! The table that owns memory while the kernel uses it.
//!
//! Invariants:
//! - from submission to completion the [`Payload`] is in the table and no code accesses it;
//! - a dropped future marks its entry abandoned; the completion then frees it (and closes the descriptor of an
//!   abandoned accept);
//! - at most [`OPS_MAX`] operations are submitted; further ones wait, and are served in order as far as their tasks are
//!   polled in the order of their wakes.

use std::os::fd::{FromRawFd, OwnedFd};
use std::task::Waker;

use flaz_device::IoBuf;

use crate::batch::Outgoing;
use crate::request::{CompletedBy, OPS_MAX};

/// Memory that an operation owns.
#[derive(Debug)]
pub(crate) enum Payload {
    None,
    Buf(IoBuf),
    Batch(Box<Outgoing>),
    /// The result is a new descriptor, to be closed if its future was dropped.
    Accepted,
}

impl Payload {
    pub(crate) fn into_buf(self) -> IoBuf {
        match self {
            Self::Buf(buf) => buf,
            other => unreachable!("an operation on a buffer returned {other:?}"),
        }
    }

    pub(crate) fn into_batch(self) -> Box<Outgoing> {
        match self {
            Self::Batch(batch) => batch,
            other => unreachable!("an operation on a batch returned {other:?}"),
        }
    }

    /// Releases the result of an abandoned operation.
    pub(crate) fn dispose(self, result: i32) {
        if let Self::Accepted = self
            && result >= 0
        {
            // SAFETY: the kernel created this descriptor for this operation, and no other code has seen its number.
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
    by: CompletedBy,
}

/// The effect of a completion, to be executed outside the borrow of the table.
pub(crate) enum Completed {
    Wake(Waker),
    Dispose(Payload, i32),
}

/// Progress of an operation. Wakers are dropped outside the borrow of the table, because dropping one may run any code.
pub(crate) enum Progress {
    Done(Payload, i32),
    Pending { stale: Option<Waker> },
}

/// What remains of a dropped future, handled in the same way.
pub(crate) enum Abandoned {
    Leaked,
    Done(Payload, i32),
    Pending { waker: Waker, by: CompletedBy },
}

/// The operations of a runtime.
#[derive(Default)]
pub(crate) struct OpTable {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Submitted to the kernel, without those of drivers.
    in_flight: usize,
    /// Submitted to drivers.
    with_driver: usize,
    /// Futures that found [`OPS_MAX`] operations in flight.
    waiting: Vec<Waker>,
}

impl OpTable {
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether a driver has commands.
    pub(crate) fn any_with_driver(&self) -> bool {
        self.with_driver > 0
    }

    /// Adds an operation. If [`OPS_MAX`] are submitted, returns the payload; the future is woken when there is space.
    pub(crate) fn insert(
        &mut self,
        payload: Payload,
        by: CompletedBy,
        waker: &Waker,
    ) -> Result<u32, Payload> {
        // A driver may keep its commands for ever: they take no slot.
        let counts = by != CompletedBy::Driver;
        if counts && self.in_flight >= OPS_MAX {
            if !self.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
                self.waiting.push(waker.clone());
            }
            return Err(payload);
        }
        self.in_flight += usize::from(counts);
        self.with_driver += usize::from(!counts);
        let entry = Entry {
            state: State::Pending(waker.clone()),
            payload,
            by,
        };
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = entry;
            return Ok(index);
        }
        let index = u32::try_from(self.entries.len()).expect("entries are bounded by the number of tasks");
        self.entries.push(entry);
        Ok(index)
    }

    /// Polls an operation; `waker` is woken when its state changes.
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

    /// Called when the future of an operation is dropped.
    pub(crate) fn abandon(&mut self, index: u32) -> Abandoned {
        // The entry is missing if the runtime had to leak its operations.
        let Some(entry) = self.entries.get_mut(index as usize) else {
            return Abandoned::Leaked;
        };
        match std::mem::replace(&mut entry.state, State::Abandoned) {
            State::Done(result) => Abandoned::Done(self.release(index), result),
            State::Pending(waker) => Abandoned::Pending { waker, by: entry.by },
            State::Free | State::Abandoned => unreachable!("operation {index} lost its entry"),
        }
    }

    pub(crate) fn complete(&mut self, index: u32, result: i32) -> Completed {
        let entry = &mut self.entries[index as usize];
        match entry.by {
            CompletedBy::Driver => self.with_driver -= 1,
            CompletedBy::Kernel | CompletedBy::Peer => self.in_flight -= 1,
        }
        match std::mem::replace(&mut entry.state, State::Done(result)) {
            State::Pending(waker) => Completed::Wake(waker),
            State::Abandoned => Completed::Dispose(self.release(index), result),
            State::Free | State::Done(_) => unreachable!("operation {index} completed twice"),
        }
    }

    /// Futures to wake because there is space again.
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

    /// Numbers of the submitted operations that the end of the runtime waits for.
    pub(crate) fn pending(&self) -> Vec<u32> {
        let with_kernel = |entry: &Entry| {
            matches!(entry.state, State::Pending(_) | State::Abandoned) && entry.by != CompletedBy::Driver
        };
        (0u32..)
            .zip(&self.entries)
            .filter(|(_, entry)| with_kernel(entry))
            .map(|(index, _)| index)
            .collect()
    }

    /// Leaks everything: the memory of operations that a driver has not completed, and the last resort if the kernel does not
    /// return buffers.
    pub(crate) fn leak(&mut self) {
        for entry in self.entries.drain(..) {
            std::mem::forget(entry.payload);
        }
        self.free.clear();
    }
}

/// Processes a completion.
pub(crate) fn settle(completed: Completed) {
    match completed {
        Completed::Wake(waker) => waker.wake(),
        Completed::Dispose(payload, result) => payload.dispose(result),
    }
}
