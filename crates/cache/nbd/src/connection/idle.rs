//! Idle workers: the one that became idle last is woken first, because its memory is still in the CPU cache.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// The workers of a connection and which of them are idle.
#[derive(Debug, Default)]
pub(super) struct IdleWorkers {
    inner: RefCell<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By worker: its waker, once it has been idle.
    wakers: Vec<Option<Waker>>,
    /// Idle workers, the last one on top.
    resting: Vec<usize>,
    /// Workers that were woken and have not run since; each of them will check the queue.
    called: usize,
}

impl IdleWorkers {
    /// The number of a new worker, which counts as woken until it has run.
    pub(super) fn hire(&self) -> usize {
        let mut inner = self.inner.borrow_mut();
        inner.wakers.push(None);
        inner.called += 1;
        inner.wakers.len() - 1
    }

    /// Records that a woken worker runs.
    pub(super) fn arrived(&self) {
        let mut inner = self.inner.borrow_mut();
        assert!(inner.called > 0, "a worker runs that was not called");
        inner.called -= 1;
    }

    /// Makes sure that as many workers are woken as jobs wait. False if there are too few and none is idle.
    pub(super) fn wake_for(&self, jobs: usize) -> bool {
        let mut inner = self.inner.borrow_mut();
        if inner.called >= jobs {
            return true;
        }
        let Some(number) = inner.resting.pop() else {
            return false;
        };
        inner.called += 1;
        // Waking only queues the task, so nothing re-enters while the list is borrowed.
        if let Some(waker) = &inner.wakers[number] {
            waker.wake_by_ref();
        }
        true
    }

    /// Wakes every idle worker.
    pub(super) fn wake_all(&self) {
        while self.wake_for(usize::MAX) {}
    }

    /// Becomes idle until woken.
    pub(super) async fn rest(&self, number: usize) {
        let mut entered = false;
        poll_fn(|context| {
            let mut inner = self.inner.borrow_mut();
            if !entered {
                entered = true;
                if !inner.wakers[number]
                    .as_ref()
                    .is_some_and(|waker| waker.will_wake(context.waker()))
                {
                    inner.wakers[number] = Some(context.waker().clone());
                }
                inner.resting.push(number);
                return Poll::Pending;
            }
            // Still in the list: an outdated waker woke this task.
            if inner.resting.contains(&number) {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
        self.arrived();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn the_last_idle_worker_is_woken_first_if_needed() {
        let workers = IdleWorkers::default();
        assert!(!workers.wake_for(1), "no worker is idle");
        assert_eq!((workers.hire(), workers.hire()), (0, 1));
        assert!(workers.wake_for(2), "two are woken");
        assert!(!workers.wake_for(3));
        workers.arrived();
        workers.arrived();
        let mut context = Context::from_waker(Waker::noop());
        let mut first = pin!(workers.rest(0));
        let mut second = pin!(workers.rest(1));
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert!(
            workers.wake_for(1) && workers.wake_for(1),
            "one wake-up for one job"
        );
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_ready());
        workers.wake_all();
        assert!(first.as_mut().poll(&mut context).is_ready());
    }
}
