//! Jobs that wait for a worker, and workers that wait for a job.
//!
//! Invariants: as many workers are on their way as jobs wait, so no job waits while a worker rests; after
//! [`JobQueue::close`] no job is added, and every worker ends.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::idle::IdleWorkers;
use super::job::Job;

/// The jobs of one connection that no worker has taken yet.
#[derive(Debug, Default)]
pub(super) struct JobQueue {
    waiting: RefCell<VecDeque<Job>>,
    workers: IdleWorkers,
    closed: Cell<bool>,
}

impl JobQueue {
    /// Adds a job for an idle worker. If there is none, returns the number of a new worker, which the caller starts.
    #[must_use]
    pub(super) fn push(&self, job: Job) -> Option<usize> {
        assert!(!self.closed.get(), "a job after the end of its connection");
        let mut waiting = self.waiting.borrow_mut();
        waiting.push_back(job);
        let jobs = waiting.len();
        drop(waiting);
        (!self.workers.wake_for(jobs)).then(|| self.workers.hire())
    }

    /// A new worker runs.
    pub(super) fn arrived(&self) {
        self.workers.arrived();
    }

    /// The next job for this worker; `None` when the queue is closed.
    pub(super) async fn next(&self, worker: usize) -> Option<Job> {
        loop {
            let job = self.waiting.borrow_mut().pop_front();
            if job.is_some() || self.closed.get() {
                return job;
            }
            self.workers.rest(worker).await;
        }
    }

    /// Whether no job waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    /// Ends all workers.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.workers.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use flaz_engine::volume::Segments;

    use super::*;
    use crate::request::Command;

    fn job(cookie: u64) -> Job {
        Job {
            command: Command::Flush,
            cookie,
            offset: 0,
            len: 0,
            data: Segments::new(),
        }
    }

    #[test]
    fn jobs_go_to_idle_workers_before_new_ones() {
        let queue = JobQueue::default();
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(queue.push(job(1)), Some(0));
        assert_eq!(queue.push(job(2)), Some(1));
        queue.arrived();
        queue.arrived();
        let mut cookies = |worker| {
            let mut next = Box::pin(queue.next(worker));
            match next.as_mut().poll(&mut context) {
                Poll::Ready(job) => job.map(|job| job.cookie),
                Poll::Pending => None,
            }
        };
        assert_eq!((cookies(0), cookies(1)), (Some(1), Some(2)));
        assert!(queue.is_empty());
        let mut resting = pin!(queue.next(0));
        let mut context = Context::from_waker(Waker::noop());
        assert!(resting.as_mut().poll(&mut context).is_pending());
        assert_eq!(queue.push(job(3)), None, "worker 0 rests");
        assert!(matches!(resting.as_mut().poll(&mut context), Poll::Ready(Some(job)) if job.cookie == 3));
    }

    #[test]
    fn closing_ends_resting_workers_and_refuses_jobs() {
        let queue = JobQueue::default();
        let number = queue.push(job(1)).unwrap();
        queue.arrived();
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(queue.next(number)).poll(&mut context).is_ready());
        let mut resting = pin!(queue.next(number));
        assert!(resting.as_mut().poll(&mut context).is_pending());
        queue.close();
        assert!(matches!(resting.as_mut().poll(&mut context), Poll::Ready(None)));
        assert!(
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _ = queue.push(job(2));
            }))
            .is_err()
        );
    }
}
