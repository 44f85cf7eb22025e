//! A device with a time limit: an operation that takes longer fails, and continues in the background.
//!
//! A failing disk often reports no error but stops answering, and callers wait for ever. With a [`Deadline`] every
//! operation ends within its limit or a quarter more, with an error of the kind [`io::ErrorKind::TimedOut`] that
//! [`is_timeout`] detects.
//!
//! Invariants:
//! - the operation itself cannot be cancelled. It keeps its buffer until the device has answered; the caller gets
//!   another one, of zeroes;
//! - no change of the medium is issued while an abandoned change may still take effect: it waits for the abandoned one,
//!   and fails with it. A write after a failure is thus never undone by an earlier one;
//! - a read neither uses the clock nor allocates in the steady state: while operations are in flight, a task checks all
//!   of them four times within the limit, and an operation that it finds for the fifth time is late. A process that was
//!   stopped, or a machine that was suspended, therefore finds no device late.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::local::Notify;
use crate::{Device, DeviceError, DeviceOp, Env, IoBuf};

/// Default time limit of an operation.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// How often the operations in flight are checked within the limit.
const LOOKS: u32 = 4;

/// Whether an operation failed because it exceeded the time limit.
#[must_use]
pub fn is_timeout(error: &DeviceError) -> bool {
    error.source.kind() == io::ErrorKind::TimedOut
}

/// A device whose operations have a time limit. Belongs to one thread; see the module's documentation.
pub struct Deadline<D, E> {
    device: D,
    env: E,
    watch: Rc<Watch>,
    abandoned: Rc<Abandoned>,
}

/// Operations in flight, by number, and their age in checks.
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
    /// Number of checks when the operation began.
    since: u64,
    overdue: bool,
    waker: Option<Waker>,
}

/// Changes of the medium that were abandoned and are still in progress.
#[derive(Default)]
struct Abandoned {
    count: Cell<usize>,
    ended: Notify,
}

/// The registration of an operation in flight; freed on drop.
struct Place<'a> {
    watch: &'a Watch,
    number: Option<u32>,
}

impl Place<'_> {
    /// For an unfinished operation: whether it is overdue. The task is woken when it becomes overdue.
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
        // A waker may be the last owner of a task, and that task the owner of another registration.
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
    /// Operations in flight get the full time from now on.
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

    /// Marks operations that have been in flight for longer than [`LOOKS`] full checks; false if nothing is in flight.
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
    /// Gives every operation of `device` this time limit; `None`: no limit.
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

    /// Changes the time limit; `None`: no limit. Overdue operations stay overdue; operations in flight get the full new
    /// limit from now on.
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
            // Also without a limit, because one may be set before the operation ends.
            if place.wait(cx) {
                return Poll::Ready(None);
            }
            self.look_after();
            Poll::Pending
        })
        .await
    }

    /// Makes sure that the checking task runs.
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

    /// Runs an operation that changes the medium. If overdue, it continues in the background. `None`: it, or an earlier
    /// one, is overdue.
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

    fn is_sparse(&self) -> bool {
        self.device.is_sparse()
    }

    fn shares_space(&self) -> bool {
        self.device.shares_space()
    }

    fn has_space(&self, offset: u64, len: u64) -> bool {
        self.device.has_space(offset, len)
    }

    async fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let device = self.device.clone();
        let allocate = self
            .change(async move { device.allocate(offset, len).await })
            .await;
        allocate.unwrap_or_else(|| Err(self.late(DeviceOp::Write, offset, len)))
    }

    async fn deallocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let device = self.device.clone();
        let deallocate = self
            .change(async move { device.deallocate(offset, len).await })
            .await;
        deallocate.unwrap_or_else(|| Err(self.late(DeviceOp::Discard, offset, len)))
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
