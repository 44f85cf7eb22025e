//! The requests to the parts of a volume's device, so that a part can move to another chunk while the volume is served.
//!
//! Each request counts itself before it looks up the chunk of its part. Whoever moves a part first holds the changes of that part
//! and waits for those in flight; reads go on, from the old chunk. When the part has its new chunk, all requests are held until the
//! reads of the old one have ended. Requests to other parts never wait.
//!
//! Invariants: one part is held at most. A change that was dropped before it ended counts for ever, because the device may still
//! carry it out: its part does not move any more. Every step is sequentially consistent: of a request that counts itself and then
//! looks whether its part is held, and a mover that holds the part and then looks at the count, at least one sees the other.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// One read, in the count of a part. There are at most 2^20 - 1 at a time.
const READ: u32 = 1;
/// One change. There are at most 2^12 - 1 at a time.
const CHANGE: u32 = 1 << 20;
const READS: u32 = CHANGE - 1;
const CHANGES: u32 = !READS;
/// No part is held.
const OPEN: u64 = 0;

/// Which requests to the held part do not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// Changes wait.
    Changes = 1,
    /// All wait.
    All = 2,
    /// Changes fail: it is not known which chunk the table names.
    Unknown = 3,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    /// Writes, or discards.
    Change,
}

impl Kind {
    fn one(self) -> u32 {
        match self {
            Self::Read => READ,
            Self::Change => CHANGE,
        }
    }
}

/// A change of a part whose chunk is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unknown;

#[derive(Debug, Default)]
struct Waiting {
    requests: Vec<Waker>,
    mover: Option<Waker>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Requests in flight to each part.
    counts: Box<[AtomicU32]>,
    /// [`OPEN`], or four times the part and one, plus [`Held`].
    held: AtomicU64,
    waiting: Mutex<Waiting>,
}

impl Gate {
    pub(crate) fn new(parts: u64) -> Self {
        Self {
            counts: (0..parts).map(|_| AtomicU32::new(0)).collect(),
            held: AtomicU64::new(OPEN),
            waiting: Mutex::default(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a part is held.
    fn holds(&self, part: u32) -> Option<Held> {
        let held = self.held.load(SeqCst);
        if held >> 2 != u64::from(part) + 1 {
            return None;
        }
        match held & 3 {
            1 => Some(Held::Changes),
            2 => Some(Held::All),
            _ => Some(Held::Unknown),
        }
    }

    fn set(&self, part: u32, held: Option<Held>) {
        let value = held.map_or(OPEN, |held| (u64::from(part) + 1) << 2 | held as u64);
        let mut waiting = self.waiting();
        self.held.store(value, SeqCst);
        let woken = match held {
            None | Some(Held::Unknown) => std::mem::take(&mut waiting.requests),
            Some(_) => Vec::new(),
        };
        drop(waiting);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Begins a request to a part. The chunk of the part stays the same until the request has ended.
    ///
    /// # Errors
    /// A change, and it is not known which chunk the part has.
    pub(crate) async fn enter(&self, part: u32, kind: Kind) -> Result<Entered<'_>, Unknown> {
        // A part that the device does not have has no chunk either.
        let Some(count) = self.counts.get(part as usize) else {
            return Ok(Entered {
                gate: None,
                part,
                kind,
            });
        };
        loop {
            count.fetch_add(kind.one(), SeqCst);
            match (self.holds(part), kind) {
                (None, _) | (Some(Held::Changes | Held::Unknown), Kind::Read) => {
                    let gate = Some(self);
                    return Ok(Entered { gate, part, kind });
                }
                (held, _) => {
                    self.leave(part, kind);
                    if held == Some(Held::Unknown) {
                        return Err(Unknown);
                    }
                    self.opened(part, kind).await;
                }
            }
        }
    }

    async fn opened(&self, part: u32, kind: Kind) {
        poll_fn(|cx| {
            let mut waiting = self.waiting();
            match (self.holds(part), kind) {
                (Some(Held::All), _) | (Some(Held::Changes), Kind::Change) => {
                    waiting.requests.push(cx.waker().clone());
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    fn leave(&self, part: u32, kind: Kind) {
        self.counts[part as usize].fetch_sub(kind.one(), SeqCst);
        if self.held.load(SeqCst) != OPEN {
            let mover = self.waiting().mover.take();
            mover.into_iter().for_each(Waker::wake);
        }
    }

    /// Holds the changes of a part until the hold is dropped.
    pub(crate) fn hold(&self, part: u32) -> Hold<'_> {
        self.set(part, Some(Held::Changes));
        Hold { gate: self, part }
    }

    /// It is known which chunks the parts have.
    pub(crate) fn known(&self) {
        if self.held.load(SeqCst) & 3 == Held::Unknown as u64 {
            self.set(0, None);
        }
    }
}

/// A request to a part.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    gate: Option<&'a Gate>,
    part: u32,
    kind: Kind,
}

impl Entered<'_> {
    /// The device has answered.
    pub(crate) fn end(mut self) {
        if let Some(gate) = self.gate.take() {
            gate.leave(self.part, self.kind);
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // Nobody waits for a dropped read any more. A dropped change may still reach the device.
        if let (Some(gate), Kind::Read) = (self.gate, self.kind) {
            gate.leave(self.part, self.kind);
        }
    }
}

/// A part whose changes wait, or all its requests.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    gate: &'a Gate,
    part: u32,
}

impl Hold<'_> {
    async fn drained(&self, which: u32) {
        poll_fn(|cx| {
            self.gate.waiting().mover = Some(cx.waker().clone());
            match self.gate.counts[self.part as usize].load(SeqCst) & which {
                0 => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
    }

    /// No change is in flight.
    pub(crate) async fn changes_ended(&self) {
        self.drained(CHANGES).await;
    }

    /// Reads wait too, from now on; returns when none is in flight. The caller has set the new chunk of the part.
    pub(crate) async fn reads_ended(&self) {
        self.gate.set(self.part, Some(Held::All));
        self.drained(READS).await;
    }

    /// It is not known which chunk the part has: its changes fail until [`Gate::known`].
    pub(crate) fn unknown(self) {
        self.gate.set(self.part, Some(Held::Unknown));
        std::mem::forget(self);
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.gate.set(self.part, None);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    fn now<T>(future: impl Future<Output = T>) -> T {
        poll(pin!(future)).expect("it does not wait")
    }

    #[test]
    fn a_part_is_held_when_its_changes_have_ended() {
        let gate = Gate::new(4);
        let change = now(gate.enter(2, Kind::Change)).expect("open");
        let read = now(gate.enter(2, Kind::Read)).expect("open");
        let hold = gate.hold(2);
        let mut ended = Box::pin(hold.changes_ended());
        assert!(poll(ended.as_mut()).is_none(), "one is in flight");
        let mut late = pin!(gate.enter(2, Kind::Change));
        assert!(poll(late.as_mut()).is_none(), "it waits");
        now(gate.enter(1, Kind::Change)).expect("another part").end();
        change.end();
        assert!(poll(ended.as_mut()).is_some());
        drop(ended);
        now(gate.enter(2, Kind::Read)).expect("reads go on").end();
        let mut ended = Box::pin(hold.reads_ended());
        assert!(poll(ended.as_mut()).is_none(), "one is in flight");
        let mut other = pin!(gate.enter(2, Kind::Read));
        assert!(poll(other.as_mut()).is_none(), "reads wait too");
        drop(read);
        assert!(poll(ended.as_mut()).is_some());
        drop(ended);
        drop(hold);
        poll(late.as_mut()).expect("open").expect("known").end();
        poll(other.as_mut()).expect("open").expect("known").end();
        now(gate.hold(2).changes_ended());
    }

    #[test]
    fn a_change_that_was_dropped_counts() {
        let gate = Gate::new(1);
        drop(now(gate.enter(0, Kind::Change)));
        let hold = gate.hold(0);
        assert!(poll(pin!(hold.changes_ended())).is_none());
    }

    #[test]
    fn changes_fail_until_the_chunk_is_known() {
        let gate = Gate::new(2);
        gate.hold(1).unknown();
        now(gate.enter(1, Kind::Change)).expect_err("not known");
        now(gate.enter(1, Kind::Read))
            .expect("both chunks have the same")
            .end();
        now(gate.enter(0, Kind::Change)).expect("another part").end();
        gate.known();
        now(gate.enter(1, Kind::Change)).expect("known").end();
    }
}
