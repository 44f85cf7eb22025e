//! Workers without a job: the one that rested last is called first, because its memory is still warm.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// The workers of a connection and which of them rest.
#[derive(Debug, Default)]
pub(super) struct IdleWorkers {
    inner: RefCell<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By worker: how to wake it, once it has rested.
    wakers: Vec<Option<Waker>>,
    /// Workers that rest, the last one on top.
    resting: Vec<usize>,
    /// Workers that were woken and have not run since; each will look at the queue.
    called: usize,
}

impl IdleWorkers {
    /// The number of a new worker, which counts as called until it has run.
    pub(super) fn hire(&self) -> usize {
        let mut inner = self.inner.borrow_mut();
        inner.wakers.push(None);
        inner.called += 1;
        inner.wakers.len() - 1
    }

    /// Notes that a called worker runs.
    pub(super) fn arrived(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.called = inner.called.saturating_sub(1);
    }

    /// Makes sure that as many workers are on their way as jobs wait. False if one is missing and none rests.
    pub(super) fn wake_for(&self, jobs: usize) -> bool {
        let mut inner = self.inner.borrow_mut();
        if inner.called >= jobs {
            return true;
        }
        let Some(number) = inner.resting.pop() else {
            return false;
        };
        inner.called += 1;
        // Waking only queues the task, so nothing comes back here while the list is borrowed.
        if let Some(waker) = &inner.wakers[number] {
            waker.wake_by_ref();
        }
        true
    }

    /// Wakes every worker that rests.
    pub(super) fn wake_all(&self) {
        while self.wake_for(usize::MAX) {}
    }

    /// Rests until called.
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
            // Still in the list: woken by somebody else's leftover waker.
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
    fn the_last_to_rest_is_called_first_and_only_when_needed() {
        let workers = IdleWorkers::default();
        assert!(!workers.wake_for(1), "nobody is there");
        assert_eq!((workers.hire(), workers.hire()), (0, 1));
        assert!(workers.wake_for(2), "two are on their way");
        assert!(!workers.wake_for(3));
        workers.arrived();
        workers.arrived();
        let mut context = Context::from_waker(Waker::noop());
        let mut first = pin!(workers.rest(0));
        let mut second = pin!(workers.rest(1));
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert!(workers.wake_for(1) && workers.wake_for(1), "one call for one job");
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_ready());
        workers.wake_all();
        assert!(first.as_mut().poll(&mut context).is_ready());
    }
}
