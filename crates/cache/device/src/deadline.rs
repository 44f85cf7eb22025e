//! A device that is given a time to answer: what takes longer fails, and goes on behind the caller's back.
//!
//! A disk that dies often does not say so: it stops answering. Whoever waits for it, waits for ever. Behind a
//! [`Deadline`] every operation ends within its limit or a quarter more, with an error of the kind
//! [`io::ErrorKind::TimedOut`] that [`is_timeout`] knows.
//!
//! Invariants:
//! - the operation itself cannot be taken back. Its buffer stays with it until the device has answered; the caller gets
//!   another one, of zeroes;
//! - nothing that changes the medium is issued while an abandoned change may still land: it waits for that one, and fails
//!   with it. So what is written after a failure is not undone by what was written before;
//! - no clock is read and nothing is allocated for a read in the steady state: a task that lives while operations are in
//!   flight looks at all of them four times within the limit, and what is there for the fifth time is late. So a process
//!   that was stopped, or a machine that slept, finds no device late.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::local::Notify;
use crate::{Device, DeviceError, DeviceOp, Env, IoBuf};

/// How long a device has for an operation unless the user says otherwise.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// How often the operations in flight are looked at within the limit.
const LOOKS: u32 = 4;

/// Whether a device failed because it did not answer in time.
#[must_use]
pub fn is_timeout(error: &DeviceError) -> bool {
    error.source.kind() == io::ErrorKind::TimedOut
}

/// A device whose operations end in time. Belongs to one thread; see the module's documentation.
pub struct Deadline<D, E> {
    device: D,
    env: E,
    watch: Rc<Watch>,
    abandoned: Rc<Abandoned>,
}

/// Operations in flight, by number, and how long they have been.
#[derive(Default)]
struct Watch {
    limit: Cell<Option<Duration>>,
    slots: RefCell<Slots>,
    looks: Cell<u64>,
    looking: Cell<bool>,
}

#[derive(Default)]
struct Slots {
    all: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Default)]
struct Slot {
    /// Looks so far when it was taken.
    since: u64,
    overdue: bool,
    waker: Option<Waker>,
}

/// Changes of the medium that nobody waits for any more.
#[derive(Default)]
struct Abandoned {
    count: Cell<usize>,
    ended: Notify,
}

/// An operation's place among those in flight; free again when it is dropped.
struct Place<'a> {
    watch: &'a Watch,
    number: Option<u32>,
}

impl Place<'_> {
    /// The operation is not done: whether it is overdue. The task is woken when it becomes so.
    fn wait(&mut self, cx: &Context<'_>) -> bool {
        let mut slots = self.watch.slots.borrow_mut();
        let Some(number) = self.number else {
            let slot = Slot {
                since: self.watch.looks.get(),
                overdue: false,
                waker: Some(cx.waker().clone()),
            };
            let number = slots.free.pop().unwrap_or(slots.all.len() as u32);
            if number as usize == slots.all.len() {
                slots.all.push(slot);
            } else {
                slots.all[number as usize] = slot;
            }
            self.number = Some(number);
            return false;
        };
        let slot = &mut slots.all[number as usize];
        let known = slot
            .waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()));
        let stale = if known {
            None
        } else {
            slot.waker.replace(cx.waker().clone())
        };
        let overdue = slot.overdue;
        // A waker may be the last owner of a task, and that of another place.
        drop(slots);
        drop(stale);
        overdue
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let waker = {
            let slots = &mut *self.watch.slots.borrow_mut();
            slots.free.push(number);
            slots.all[number as usize].waker.take()
        };
        drop(waker);
    }
}

impl Watch {
    /// What is in flight has all its time from now on.
    fn begin_again(&self) {
        let now = self.looks.get();
        for slot in &mut self.slots.borrow_mut().all {
            slot.since = now;
        }
    }

    fn any(&self) -> bool {
        let slots = self.slots.borrow();
        slots.free.len() < slots.all.len()
    }

    /// Marks what has been in flight for longer than [`LOOKS`] whole looks; false: nothing is in flight.
    fn look(&self) -> bool {
        let now = self.looks.get() + 1;
        self.looks.set(now);
        let mut late = Vec::new();
        for slot in &mut self.slots.borrow_mut().all {
            if slot.waker.is_some() && now - slot.since > u64::from(LOOKS) && !slot.overdue {
                slot.overdue = true;
                late.extend(slot.waker.clone());
            }
        }
        let any = self.any();
        late.into_iter().for_each(Waker::wake);
        any
    }
}

type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;

impl<D: Device + Clone, E: Env> Deadline<D, E> {
    /// Gives every operation of `device` this long; `None`: for ever.
    #[must_use]
    pub fn new(device: D, env: E, limit: Option<Duration>) -> Self {
        let watch = Watch {
            limit: Cell::new(limit),
            ..Watch::default()
        };
        Self {
            device,
            env,
            watch: Rc::new(watch),
            abandoned: Rc::default(),
        }
    }

    /// Changes the time that operations have; `None`: as long as they take. What is overdue stays so, what is in flight
    /// has all of the new time from now on.
    pub fn set_limit(&self, limit: Option<Duration>) {
        self.watch.limit.set(limit);
        self.watch.begin_again();
        if self.watch.any() {
            self.look_after();
        }
    }

    /// Runs `operation` until it ends or is overdue.
    async fn within<F: Future + Unpin>(&self, mut operation: F) -> Option<F::Output> {
        let mut place = Place {
            watch: &self.watch,
            number: None,
        };
        poll_fn(|cx| {
            if let Poll::Ready(output) = Pin::new(&mut operation).poll(cx) {
                return Poll::Ready(Some(output));
            }
            // Also while there is no limit: there may be one before it ends.
            if place.wait(cx) {
                return Poll::Ready(None);
            }
            self.look_after();
            Poll::Pending
        })
        .await
    }

    /// Sees to it that somebody looks.
    fn look_after(&self) {
        if self.watch.limit.get().is_none() || self.watch.looking.replace(true) {
            return;
        }
        let (watch, env) = (Rc::clone(&self.watch), self.env.clone());
        self.env.spawn(async move {
            while let Some(limit) = watch.limit.get() {
                env.sleep(limit / LOOKS).await;
                if watch.limit.get().is_some() && !watch.look() {
                    break;
                }
            }
            watch.looking.set(false);
        });
    }

    fn late(&self, op: DeviceOp, offset: u64, len: u64) -> DeviceError {
        let limit = self.watch.limit.get().unwrap_or_default();
        let message = format!("the device did not answer within {limit:?}");
        DeviceError::new(op, offset, len, io::Error::new(io::ErrorKind::TimedOut, message))
    }

    /// Runs something that changes the medium. Overdue, it goes on alone. `None`: it, or one before it, is overdue.
    async fn change<T: 'static>(&self, operation: impl Future<Output = T> + 'static) -> Option<T> {
        while self.abandoned.count.get() > 0 {
            self.within(pin!(self.abandoned.ended.notified())).await?;
        }
        let mut operation: Boxed<T> = Box::pin(operation);
        let output = self.within(&mut operation).await;
        if output.is_none() {
            let abandoned = Rc::clone(&self.abandoned);
            abandoned.count.set(abandoned.count.get() + 1);
            self.env.spawn(async move {
                drop(operation.await);
                abandoned.count.set(abandoned.count.get() - 1);
                abandoned.ended.notify_all();
            });
        }
        output
    }
}

impl<D: Device + Clone, E: Env> Device for Deadline<D, E> {
    fn len(&self) -> u64 {
        self.device.len()
    }

    fn alignment(&self) -> u32 {
        self.device.alignment()
    }

    fn fua_stands_alone(&self) -> bool {
        self.device.fua_stands_alone()
    }

    fn has_volatile_cache(&self) -> bool {
        self.device.has_volatile_cache()
    }

    async fn read_at(&self, offset: u64, buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        let len = buf.len();
        match self.within(pin!(self.device.read_at(offset, buf))).await {
            Some(answer) => answer,
            None => (
                IoBuf::zeroed(len),
                Err(self.late(DeviceOp::Read, offset, len as u64)),
            ),
        }
    }

    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        let len = buf.len();
        let device = self.device.clone();
        let write = async move { device.write_at(offset, buf, fua).await };
        match self.change(write).await {
            Some(answer) => answer,
            None => (
                IoBuf::zeroed(len),
                Err(self.late(DeviceOp::Write, offset, len as u64)),
            ),
        }
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        let device = self.device.clone();
        let flush = self.change(async move { device.flush().await }).await;
        flush.unwrap_or_else(|| Err(self.late(DeviceOp::Flush, 0, 0)))
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let device = self.device.clone();
        let discard = self
            .change(async move { device.discard(offset, len).await })
            .await;
        discard.unwrap_or_else(|| Err(self.late(DeviceOp::Discard, offset, len)))
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), DeviceError> {
        let device = self.device.clone();
        let zeroes = async move { device.write_zeroes(offset, len, may_unmap, fua).await };
        let answer = self.change(zeroes).await;
        answer.unwrap_or_else(|| Err(self.late(DeviceOp::WriteZeroes, offset, len)))
    }

    async fn status(&self, offset: u64, len: u64, runs_max: usize) -> Result<Vec<(u64, bool)>, DeviceError> {
        match self.within(pin!(self.device.status(offset, len, runs_max))).await {
            Some(answer) => answer,
            None => Err(self.late(DeviceOp::Status, offset, len)),
        }
    }
}
