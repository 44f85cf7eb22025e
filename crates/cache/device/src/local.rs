//! Synchronisation inside one thread: notifications and permits for tasks of one executor.
//!
//! Nothing here is `Sync`; nothing allocates in the steady state. A waiter that is dropped after it was selected passes
//! its wake-up on, so that none is lost.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

#[derive(Debug)]
struct Waiter {
    waker: Option<Waker>,
    /// Requested permits (semaphore) or 0 (notify).
    wants: usize,
    chosen: bool,
}

#[derive(Debug, Default)]
struct Queue {
    waiters: Vec<Waiter>,
    free: Vec<usize>,
    order: VecDeque<usize>,
}

impl Queue {
    fn enter(&mut self, waker: &Waker, wants: usize) -> usize {
        let waiter = Waiter {
            waker: Some(waker.clone()),
            wants,
            chosen: false,
        };
        let key = match self.free.pop() {
            Some(key) => {
                self.waiters[key] = waiter;
                key
            }
            None => {
                self.waiters.push(waiter);
                self.waiters.len() - 1
            }
        };
        self.order.push_back(key);
        key
    }

    /// Marks the oldest waiter as selected and returns its waker.
    fn choose(&mut self) -> Option<Waker> {
        let key = self.order.pop_front()?;
        self.waiters[key].chosen = true;
        self.waiters[key].waker.take()
    }

    /// Removes a waiter; returns whether it was selected.
    fn leave(&mut self, key: usize) -> bool {
        let chosen = self.waiters[key].chosen;
        if !chosen {
            self.order.retain(|&k| k != key);
        }
        self.waiters[key].waker = None;
        self.free.push(key);
        chosen
    }

    fn poll(&mut self, key: usize, cx: &Context<'_>) -> Poll<()> {
        let waiter = &mut self.waiters[key];
        if waiter.chosen {
            return Poll::Ready(());
        }
        match &mut waiter.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            slot => *slot = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

/// Wakes tasks that wait for a change.
#[derive(Debug, Default)]
pub struct Notify {
    inner: RefCell<(Queue, bool)>,
}

impl Notify {
    /// A notify without waiters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes the task that has waited longest. If none waits, the next one to wait returns at once.
    pub fn notify_one(&self) {
        let waker = {
            let (queue, permit) = &mut *self.inner.borrow_mut();
            let waker = queue.choose();
            *permit |= waker.is_none() && queue.order.is_empty();
            waker
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes every task that waits now. Has no effect on later ones.
    pub fn notify_all(&self) {
        let mut count = self.inner.borrow().0.order.len();
        while count > 0 {
            count -= 1;
            let waker = self.inner.borrow_mut().0.choose();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Waits for a notification.
    pub fn notified(&self) -> Notified<'_> {
        Notified {
            notify: self,
            key: None,
        }
    }
}

/// Future of [`Notify::notified`]. It begins to wait when first polled.
#[derive(Debug)]
pub struct Notified<'a> {
    notify: &'a Notify,
    key: Option<usize>,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.notify.inner.borrow_mut();
        let (queue, permit) = &mut *inner;
        match self.key {
            None => {
                if std::mem::take(permit) {
                    return Poll::Ready(());
                }
                let key = queue.enter(cx.waker(), 0);
                drop(inner);
                self.key = Some(key);
                Poll::Pending
            }
            Some(key) => {
                let ready = queue.poll(key, cx);
                if ready.is_ready() {
                    queue.leave(key);
                    drop(inner);
                    self.key = None;
                }
                ready
            }
        }
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let chosen = self.notify.inner.borrow_mut().0.leave(key);
            if chosen {
                self.notify.notify_one();
            }
        }
    }
}

/// A counted limit: tasks wait, first come first served, until enough permits are free.
#[derive(Debug)]
pub struct Semaphore {
    inner: RefCell<(Queue, usize)>,
}

impl Semaphore {
    /// A semaphore with `permits` free.
    #[must_use]
    pub fn new(permits: usize) -> Self {
        Self {
            inner: RefCell::new((Queue::default(), permits)),
        }
    }

    /// Permits that are free now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.inner.borrow().1
    }

    /// Takes `wants` permits at once if they are free and no task waits.
    pub fn try_acquire(&self, wants: usize) -> Option<Permit<'_>> {
        let (queue, free) = &mut *self.inner.borrow_mut();
        if queue.order.is_empty() && *free >= wants {
            *free -= wants;
            return Some(Permit {
                semaphore: self,
                permits: wants,
            });
        }
        None
    }

    /// Waits for `wants` permits. A request for more than the semaphore ever has waits for ever.
    pub fn acquire(&self, wants: usize) -> Acquire<'_> {
        Acquire {
            semaphore: self,
            wants,
            key: None,
        }
    }

    /// Returns `permits` (or adds them) and wakes the tasks that can continue.
    pub fn release(&self, permits: usize) {
        self.inner.borrow_mut().1 += permits;
        loop {
            let waker = {
                let (queue, free) = &mut *self.inner.borrow_mut();
                let Some(&first) = queue.order.front() else { return };
                let wants = queue.waiters[first].wants;
                if *free < wants {
                    return;
                }
                *free -= wants;
                queue.choose()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// Future of [`Semaphore::acquire`].
#[derive(Debug)]
pub struct Acquire<'a> {
    semaphore: &'a Semaphore,
    wants: usize,
    key: Option<usize>,
}

impl<'a> Future for Acquire<'a> {
    type Output = Permit<'a>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit<'a>> {
        let semaphore = self.semaphore;
        let Some(key) = self.key else {
            if let Some(permit) = semaphore.try_acquire(self.wants) {
                return Poll::Ready(permit);
            }
            let key = semaphore.inner.borrow_mut().0.enter(cx.waker(), self.wants);
            self.key = Some(key);
            return Poll::Pending;
        };
        let queue = &mut semaphore.inner.borrow_mut().0;
        if queue.poll(key, cx).is_pending() {
            return Poll::Pending;
        }
        queue.leave(key);
        self.key = None;
        Poll::Ready(Permit {
            semaphore,
            permits: self.wants,
        })
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let chosen = self.semaphore.inner.borrow_mut().0.leave(key);
            // If it was selected, its permits were already taken; otherwise the waiters behind it may fit now.
            self.semaphore.release(if chosen { self.wants } else { 0 });
        }
    }
}

/// Permits that return to their semaphore when dropped.
#[derive(Debug)]
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    permits: usize,
}

impl Permit<'_> {
    /// Keeps the permits taken; other code calls [`Semaphore::release`].
    pub fn forget(mut self) {
        self.permits = 0;
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.permits > 0 {
            self.semaphore.release(self.permits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use futures_util::future::join;
    use futures_util::task::noop_waker;

    fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(&noop_waker()))
    }

    #[test]
    fn a_notification_before_the_wait_is_kept_once() {
        let notify = Notify::new();
        notify.notify_one();
        notify.notify_one();
        assert!(notify.notified().now_or_never().is_some());
        assert!(notify.notified().now_or_never().is_none());
    }

    #[test]
    fn notify_all_wakes_only_current_waiters() {
        let notify = Notify::new();
        let mut both = Box::pin(join(notify.notified(), notify.notified()));
        assert!(poll(&mut both).is_pending());
        notify.notify_all();
        assert!(poll(&mut both).is_ready());
        assert!(notify.notified().now_or_never().is_none());
    }

    #[test]
    fn a_dropped_waiter_passes_its_notification_on() {
        let notify = Notify::new();
        let mut first = notify.notified();
        let mut second = notify.notified();
        assert!(poll(&mut first).is_pending());
        assert!(poll(&mut second).is_pending());
        notify.notify_one();
        drop(first);
        assert!(poll(&mut second).is_ready());
    }

    #[test]
    fn a_semaphore_serves_in_order_and_counts() {
        let semaphore = Semaphore::new(3);
        let held = semaphore.try_acquire(2).expect("free");
        let mut large = semaphore.acquire(3);
        let mut small = semaphore.acquire(1);
        assert!(poll(&mut large).is_pending());
        assert!(
            poll(&mut small).is_pending(),
            "the smaller request may not overtake"
        );
        drop(held);
        let Poll::Ready(large) = poll(&mut large) else {
            panic!("three are free")
        };
        assert!(poll(&mut small).is_pending());
        drop(large);
        assert!(poll(&mut small).is_ready());
        assert_eq!(semaphore.available(), 3);
    }

    #[test]
    fn a_dropped_acquire_lets_the_next_one_through() {
        let semaphore = Semaphore::new(1);
        let mut large = Box::pin(semaphore.acquire(2));
        let mut small = Box::pin(semaphore.acquire(1));
        assert!(poll(&mut large).is_pending());
        assert!(poll(&mut small).is_pending());
        drop(large);
        assert!(poll(&mut small).is_ready());
    }
}
