//! The admission queue: blocks to be stored, and tombstones to be written.
//!
//! Invariants:
//! - At most [`JOBS_MAX`] jobs are reserved, queued or running. Each holds a [`JobSlot`], which is released when it is
//!   dropped.
//! - The data of queued and running jobs takes at most [`JOB_BYTES_MAX`], or belongs to a single job.
//! - One worker takes jobs one at a time, in the order of the offers.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use flaz_codec::CodecSpec;
use flaz_device::IoBuf;
use flaz_device::local::{Notify, Semaphore};

use super::fragment::Restored;
use super::order::Version;
use crate::index::Entry;
use crate::policy::Ring;
use crate::stats::{Stats, count, raise};
use crate::units::LocalBlock;

/// Maximum number of jobs. Writers wait for a slot; reads are not admitted without one.
pub const JOBS_MAX: usize = 1024;
/// Maximum bytes of queued blocks; above it, blocks are not stored.
pub const JOB_BYTES_MAX: usize = 8 << 20;

/// A block to store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Block within the job's buffer.
    pub(super) index: usize,
    /// The ring for a block without an older copy.
    pub(super) ring: Ring,
    pub(super) hits: u8,
    /// From a write, not from a read.
    pub(super) written: bool,
    pub(super) version: Version,
    /// The cached copy that this one replaces. `None`: the block is not cached.
    pub(super) replaces: Option<Replaced>,
}

/// A cached copy, in place of which another one is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replaced {
    pub(super) entry: Entry,
    /// What restored it.
    pub(super) restored: Restored,
    /// The codec of the other one.
    pub(super) codec: CodecSpec,
}

/// Work for the admission task.
#[derive(Debug)]
pub(super) enum Job {
    /// Store blocks of a buffer whose first block is `first`, then write tombstones for others.
    Store {
        first: LocalBlock,
        data: Arc<IoBuf>,
        candidates: Vec<Candidate>,
        stale: Vec<LocalBlock>,
    },
    /// Write tombstones for blocks that are still stale.
    WriteTombstones { blocks: Vec<LocalBlock> },
}

impl Job {
    fn bytes(&self) -> usize {
        match self {
            Self::Store { data, .. } => data.len(),
            Self::WriteTombstones { .. } => 0,
        }
    }
}

/// The right to offer one job. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct JobSlot {
    slots: Rc<Semaphore>,
}

impl Drop for JobSlot {
    fn drop(&mut self) {
        self.slots.release(1);
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct AdmissionQueue {
    jobs: RefCell<VecDeque<(Job, JobSlot)>>,
    /// Bytes of data of all jobs, including the running one.
    bytes: Cell<usize>,
    slots: Rc<Semaphore>,
    /// The worker is running a job.
    running: Cell<bool>,
    has_worker: Cell<bool>,
    /// A job was offered, or the worker should check whether to end.
    offered: Notify,
}

impl AdmissionQueue {
    pub(super) fn new() -> Self {
        Self {
            jobs: RefCell::default(),
            bytes: Cell::new(0),
            slots: Rc::new(Semaphore::new(JOBS_MAX)),
            running: Cell::new(false),
            has_worker: Cell::new(false),
            offered: Notify::new(),
        }
    }

    /// Waits for a slot.
    pub(super) async fn reserve(&self, stats: &Stats) -> JobSlot {
        match self.slots.try_acquire(1) {
            Some(permit) => permit.forget(),
            None => {
                count(&stats.counters.admission_full, 1);
                self.slots.acquire(1).await.forget();
            }
        }
        self.slot()
    }

    /// A slot for a job with `bytes` of data, if both fit now.
    pub(super) fn try_reserve(&self, bytes: usize) -> Option<JobSlot> {
        debug_assert!(self.slots.available() <= JOBS_MAX, "slots are given back once");
        if self.bytes.get() + bytes > JOB_BYTES_MAX {
            return None;
        }
        self.slots.try_acquire(1)?.forget();
        Some(self.slot())
    }

    fn slot(&self) -> JobSlot {
        let slots = Rc::clone(&self.slots);
        JobSlot { slots }
    }

    /// Queues a job. A job whose data does not fit becomes one that only writes tombstones.
    pub(super) fn offer(&self, slot: JobSlot, job: Job, stats: &Stats) {
        assert!(Rc::ptr_eq(&slot.slots, &self.slots), "the slot is of this queue");
        let queued = self.bytes.get();
        let job = match job {
            Job::Store {
                data,
                first,
                candidates,
                mut stale,
            } if queued > 0 && queued + data.len() > JOB_BYTES_MAX => {
                count(&stats.counters.admission_full, 1);
                count(&stats.counters.refused_queue_full, candidates.len() as u64);
                stale.extend(candidates.iter().map(|c| LocalBlock(first.0 + c.index as u64)));
                Job::WriteTombstones { blocks: stale }
            }
            job => job,
        };
        self.bytes.set(queued + job.bytes());
        self.jobs.borrow_mut().push_back((job, slot));
        assert!(self.waiting() <= JOBS_MAX as u64, "every job has a slot");
        raise(&stats.peaks.admission, self.waiting());
        self.offered.notify_one();
    }

    /// The number of jobs, including the running one.
    pub(super) fn waiting(&self) -> u64 {
        self.jobs.borrow().len() as u64 + u64::from(self.running.get())
    }

    /// Whether no job is queued or running.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting() == 0
    }

    /// Whether there is a worker.
    pub(super) fn has_worker(&self) -> bool {
        self.has_worker.get()
    }

    /// Becomes the worker, until this is dropped.
    pub(super) fn work(&self) -> Worker<'_> {
        assert!(!self.has_worker.replace(true), "there is one worker");
        Worker { queue: self }
    }

    /// Wakes the worker, so that it checks whether to end.
    pub(super) fn wake_worker(&self) {
        self.offered.notify_one();
    }
}

/// The worker that takes jobs off the queue.
#[derive(Debug)]
pub(super) struct Worker<'a> {
    queue: &'a AdmissionQueue,
}

impl<'a> Worker<'a> {
    /// The next job. It counts as running until the second value is dropped.
    pub(super) fn take(&self) -> Option<(Job, RunningJob<'a>)> {
        let queue = self.queue;
        assert!(!queue.running.get(), "one job runs at a time");
        let (job, slot) = queue.jobs.borrow_mut().pop_front()?;
        queue.running.set(true);
        let running = RunningJob {
            queue,
            bytes: job.bytes(),
            _slot: slot,
        };
        Some((job, running))
    }

    /// Waits until a job is offered, or [`AdmissionQueue::wake_worker`] was called.
    pub(super) async fn wait(&self) {
        self.queue.offered.notified().await;
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.queue.has_worker.set(false);
    }
}

/// A running job.
#[derive(Debug)]
pub(super) struct RunningJob<'a> {
    queue: &'a AdmissionQueue,
    bytes: usize,
    _slot: JobSlot,
}

impl RunningJob<'_> {
    /// The job's data has been dropped.
    pub(super) fn data_done(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.queue.bytes.set(self.queue.bytes.get() - bytes);
    }
}

impl Drop for RunningJob<'_> {
    fn drop(&mut self) {
        self.data_done();
        self.queue.running.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn stale(block: u64) -> Job {
        let blocks = vec![LocalBlock(block)];
        Job::WriteTombstones { blocks }
    }

    fn store(bytes: usize) -> Job {
        Job::Store {
            first: LocalBlock(0),
            data: Arc::new(IoBuf::zeroed(bytes)),
            candidates: Vec::new(),
            stale: vec![LocalBlock(7)],
        }
    }

    #[test]
    fn a_dropped_slot_lets_the_next_writer_on() {
        let (queue, stats) = (AdmissionQueue::new(), Stats::default());
        let reserve = || queue.reserve(&stats).now_or_never();
        let mut slots: Vec<JobSlot> = (0..JOBS_MAX).map(|_| reserve().expect("free")).collect();
        assert!(queue.try_reserve(0).is_none() && reserve().is_none());
        slots.pop();
        assert!(reserve().is_some());
    }

    #[test]
    fn jobs_run_in_order_and_give_slot_and_bytes_back() {
        let (queue, stats) = (AdmissionQueue::new(), Stats::default());
        let worker = queue.work();
        assert!(worker.take().is_none());
        for job in [store(JOB_BYTES_MAX), stale(1)] {
            let slot = queue.reserve(&stats).now_or_never().expect("free");
            queue.offer(slot, job, &stats);
        }
        assert!(queue.try_reserve(4096).is_none(), "no room for its data");
        let (job, running) = worker.take().expect("two are queued");
        assert!(matches!(job, Job::Store { .. }));
        assert_eq!(queue.waiting(), 2);
        drop(running);
        assert!(queue.try_reserve(JOB_BYTES_MAX).is_some());
        let (job, running) = worker.take().expect("one is queued");
        assert!(matches!(job, Job::WriteTombstones { blocks } if blocks == [LocalBlock(1)]));
        assert!(!queue.is_empty());
        drop(running);
        assert!(queue.is_empty());
        assert_eq!(queue.slots.available(), JOBS_MAX);
    }

    #[test]
    fn a_job_with_too_much_data_only_writes_tombstones() {
        let (queue, stats) = (AdmissionQueue::new(), Stats::default());
        for bytes in [JOB_BYTES_MAX, 4096] {
            let slot = queue.reserve(&stats).now_or_never().expect("free");
            queue.offer(slot, store(bytes), &stats);
        }
        let worker = queue.work();
        drop(worker.take().expect("two are queued"));
        let (job, _running) = worker.take().expect("one is queued");
        assert!(matches!(job, Job::WriteTombstones { blocks } if blocks == [LocalBlock(7)]));
    }

    #[test]
    #[should_panic(expected = "one worker")]
    fn a_second_worker_panics() {
        let queue = AdmissionQueue::new();
        let _first = queue.work();
        let _second = queue.work();
    }
}
