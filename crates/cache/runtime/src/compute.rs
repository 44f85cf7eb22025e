//! Threads for work that would block an executor: codec jobs of large requests, blocking calls, and long computations.
//!
//! The codec threads are one pool for the whole process, by default one thread per core ([`configure`] changes that).
//! They serve two bounded queues, reads first, because a client waits for them (FlaZ, section on parallelism). If the
//! queue of a job is full, the calling thread runs the job, so nothing ever waits for space in a queue.
//!
//! Jobs that no client waits for, and that only use time that is left, have threads of their own: half as many as codec threads, with less
//! claim to a processor. Otherwise the scheduler lets a job finish its slice, milliseconds, before a thread gets the processor that serves
//! clients and needs some microseconds. Clients in another CPU cgroup, or another session with autogroup, have no such advantage.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use flaz_device::Priority;
use flaz_device::buf::{TRIM_EVERY, has_pooled, trim};
use rustix::process::{getpriority_process, setpriority_process};

use crate::clock::monotonic;
use crate::memory::trim_end;
use crate::oneshot::oneshot;

/// Maximum number of jobs in one queue.
pub const QUEUE_MAX: usize = 1024;
/// Number of threads for blocking calls.
pub const BLOCKING_THREADS: usize = 2;
/// Maximum number of codec threads.
pub const THREADS_MAX: usize = 256;

/// How much nicer threads are whose jobs use the time that is left: they have a tenth of the claim of the others. If they were nicer still,
/// a job that holds a lock, such as the allocator's, could keep a thread that serves clients waiting for up to a second.
const SPARE_NICE: i32 = 10;
/// The same of the thread for long jobs, which run rarely.
const LEAST_NICE: i32 = 19;
/// The highest nice value.
const NICE_MAX: i32 = 19;

type Job = Box<dyn FnOnce() + Send>;

/// Usage of a queue of the codec threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Jobs in the queue.
    pub waiting: u64,
    /// Maximum number of jobs so far.
    pub waiting_peak: u64,
    /// Jobs that found the queue full and ran on the calling thread.
    pub full_count: u64,
}

/// The queues of the codec threads: reads, writes, and jobs that use the time that is left.
#[must_use]
pub fn codec_queues() -> [QueueStats; 3] {
    let Pools { codec, spare, .. } = pools();
    [codec.read.stats(), codec.write.stats(), spare.write.stats()]
}

/// A bounded queue that records its usage.
struct Queue {
    jobs: ArrayQueue<Job>,
    waiting_peak: AtomicU64,
    full_count: AtomicU64,
}

impl Queue {
    fn new(jobs_max: usize) -> Self {
        Self {
            jobs: ArrayQueue::new(jobs_max),
            waiting_peak: AtomicU64::new(0),
            full_count: AtomicU64::new(0),
        }
    }

    fn push(&self, job: Job) -> Result<(), Job> {
        if let Err(job) = self.jobs.push(job) {
            self.full_count.fetch_add(1, Ordering::Relaxed);
            return Err(job);
        }
        self.waiting_peak
            .fetch_max(self.jobs.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn stats(&self) -> QueueStats {
        QueueStats {
            waiting: self.jobs.len() as u64,
            waiting_peak: self.waiting_peak.load(Ordering::Relaxed),
            full_count: self.full_count.load(Ordering::Relaxed),
        }
    }
}

pub(crate) struct Pool {
    threads: usize,
    nice: Option<i32>,
    read: Queue,
    write: Queue,
    idle: Mutex<usize>,
    /// The same number, to skip the lock if no thread is idle.
    idle_hint: AtomicUsize,
    arrived: Condvar,
}

/// The pools for computing. They start together, not when there may be no more threads.
#[derive(Clone, Copy)]
struct Pools {
    codec: &'static Pool,
    /// For jobs that use the time that is left.
    spare: &'static Pool,
    /// For jobs that take long.
    long: &'static Pool,
}

static POOLS: OnceLock<Pools> = OnceLock::new();
static BLOCKING: OnceLock<&'static Pool> = OnceLock::new();

/// The codec threads are already running, with another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pool is already running with {running} codec threads: set their number before the first use")]
pub struct AlreadyRunning {
    /// Number of running threads.
    pub running: usize,
}

/// Sets the number of codec threads, before the first use; 1 means that jobs run on the calling thread.
///
/// # Errors
/// The pool is already running with another number.
pub fn configure(threads: usize) -> Result<(), AlreadyRunning> {
    let threads = threads.clamp(1, THREADS_MAX);
    let running = POOLS.get_or_init(|| Pools::start(threads)).codec.threads;
    if running == threads {
        Ok(())
    } else {
        Err(AlreadyRunning { running })
    }
}

fn pools() -> Pools {
    *POOLS.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Pools::start(cores.min(THREADS_MAX))
    })
}

impl Pools {
    fn start(codec_threads: usize) -> Self {
        let codec = Pool::new(codec_threads, QUEUE_MAX);
        let mut spare = Pool::nice(codec_threads / 2, SPARE_NICE);
        if codec_threads > 1 {
            codec.start_or_panic("codec");
            if !spare.start("spare") {
                spare = codec;
            }
        }
        let long = Pool::nice(1, LEAST_NICE);
        long.start_or_panic("long");
        Self { codec, spare, long }
    }
}

/// Number of codec threads; 1 means that jobs run on the calling thread.
pub(crate) fn threads() -> usize {
    pools().codec.threads
}

/// Runs `job` on a codec thread, or on this thread if there is only one core or the queue is full.
pub(crate) async fn run<T: Send + 'static>(
    priority: Priority,
    job: impl FnOnce() -> T + Send + 'static,
) -> T {
    let pool = pools().codec;
    if pool.threads <= 1 {
        job()
    } else {
        on(pool, priority, job).await
    }
}

/// Runs a job that no client waits for, in processor time that is left, or on this thread if there is only one core or the queue is full.
/// Returns its result, and the time from its start to its end.
pub(crate) async fn spare<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> (T, Duration) {
    let timed = move || {
        let began = monotonic();
        let result = job();
        (result, monotonic().since(began))
    };
    let pool = pools().spare;
    if pool.threads == 0 {
        timed()
    } else {
        on(pool, Priority::Write, timed).await
    }
}

/// Runs a call that may block for long on a thread for blocking calls, or on this thread if too many wait already.
pub async fn blocking<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    let pool = BLOCKING.get_or_init(|| {
        let pool = Pool::new(BLOCKING_THREADS, QUEUE_MAX);
        pool.start_or_panic("blocking");
        pool
    });
    on(pool, Priority::Write, job).await
}

/// Runs a job that computes for up to a few seconds, on a thread that has the least claim to a processor. One such job runs at a time.
pub(crate) async fn long<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    on(pools().long, Priority::Write, job).await
}

async fn on<T: Send + 'static>(
    pool: &'static Pool,
    priority: Priority,
    job: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = oneshot();
    let boxed: Job = Box::new(move || {
        // The receiver may have been dropped; the result is then discarded.
        let _ = sender.send(catch_unwind(AssertUnwindSafe(job)));
    });
    if let Err(job) = pool.push(priority, boxed) {
        job();
    }
    match receiver.recv().await {
        Ok(Ok(value)) => value,
        Ok(Err(panic)) => resume_unwind(panic),
        Err(lost) => unreachable!("a job always sends its result: {lost}"),
    }
}

impl Pool {
    /// A pool that lives as long as the process, like its threads.
    pub(crate) fn new(threads: usize, jobs_max: usize) -> &'static Self {
        Self::with(threads, None, jobs_max)
    }

    /// The same, with less claim to a processor.
    fn nice(threads: usize, nice: i32) -> &'static Self {
        Self::with(threads, Some(nice), QUEUE_MAX)
    }

    fn with(threads: usize, nice: Option<i32>, jobs_max: usize) -> &'static Self {
        Box::leak(Box::new(Self {
            threads,
            nice,
            read: Queue::new(jobs_max),
            write: Queue::new(jobs_max),
            idle: Mutex::new(0),
            idle_hint: AtomicUsize::new(0),
            arrived: Condvar::new(),
        }))
    }

    /// Starts as many of its threads as the system has; false if it has none.
    pub(crate) fn start(&'static self, name: &str) -> bool {
        for number in 0..self.threads {
            let started = std::thread::Builder::new()
                .name(format!("flaz-{name}-{number}"))
                .spawn(|| self.serve());
            if let Err(error) = started {
                // Jobs then run on the existing threads, or on the calling thread once the queue is full.
                tracing::warn!(%error, name, number, "cannot start a worker thread");
                return number > 0;
            }
        }
        true
    }

    fn start_or_panic(&'static self, name: &str) {
        assert!(self.start(name), "cannot start any {name} thread");
    }

    pub(crate) fn push(&self, priority: Priority, job: Job) -> Result<(), Job> {
        match priority {
            Priority::Read => self.read.push(job)?,
            Priority::Write => self.write.push(job)?,
        }
        // Pairs with the fence in `serve`: either the worker sees the job, or this thread sees that the worker is idle.
        fence(Ordering::SeqCst);
        if self.idle_hint.load(Ordering::Relaxed) > 0 {
            // Locked and unlocked, so that a worker between its last check and its wait is not missed.
            drop(self.idle.lock().unwrap_or_else(PoisonError::into_inner));
            self.arrived.notify_one();
        }
        Ok(())
    }

    fn pop(&self) -> Option<Job> {
        self.read.jobs.pop().or_else(|| self.write.jobs.pop())
    }

    fn serve(&self) {
        if let Some(nicer) = self.nice {
            // Of this thread. Without it, the thread has the same claim as the others.
            let _ = getpriority_process(None)
                .and_then(|nice| setpriority_process(None, (nice + nicer).min(NICE_MAX)));
        }
        let (mut trimmed, mut has_worked) = (monotonic(), false);
        loop {
            while let Some(job) = self.pop() {
                job();
                has_worked = true;
            }
            if monotonic().since(trimmed) >= TRIM_EVERY {
                while trim() {}
                trim_end();
                (trimmed, has_worked) = (monotonic(), false);
            }
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            *idle += 1;
            self.idle_hint.store(*idle, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.read.jobs.is_empty() && self.write.jobs.is_empty() {
                idle = if has_pooled() || has_worked {
                    let waited = self.arrived.wait_timeout(idle, TRIM_EVERY);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                } else {
                    self.arrived.wait(idle).unwrap_or_else(PoisonError::into_inner)
                };
            }
            *idle -= 1;
            self.idle_hint.store(*idle, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_records_its_usage() {
        let queue = Queue::new(QUEUE_MAX);
        let job = || -> Job { Box::new(|| ()) };
        for _ in 0..QUEUE_MAX {
            assert!(queue.push(job()).is_ok());
        }
        assert!(queue.push(job()).is_err());
        while queue.jobs.pop().is_some() {}
        assert!(queue.push(job()).is_ok());
        let expected = QueueStats {
            waiting: 1,
            waiting_peak: QUEUE_MAX as u64,
            full_count: 1,
        };
        assert_eq!(queue.stats(), expected);
    }

    #[test]
    fn reads_go_before_writes() {
        // No thread serves this pool, so its jobs stay in the queue.
        let pool = Pool::new(2, QUEUE_MAX);
        let done: &Mutex<Vec<&str>> = Box::leak(Box::default());
        for (priority, name) in [
            (Priority::Write, "first write"),
            (Priority::Read, "first read"),
            (Priority::Write, "second write"),
            (Priority::Read, "second read"),
        ] {
            let job: Job = Box::new(move || done.lock().expect("nobody panics").push(name));
            assert!(pool.push(priority, job).is_ok());
        }
        while let Some(job) = pool.pop() {
            job();
        }
        let expected = ["first read", "second read", "first write", "second write"];
        assert_eq!(*done.lock().expect("nobody panics"), expected);
    }

    #[test]
    fn jobs_with_time_to_spare_have_less_claim_to_a_processor() {
        let nice = || getpriority_process(None).expect("of this thread");
        let started = nice();
        let (sender, receiver) = std::sync::mpsc::channel();
        for nicer in [None, Some(SPARE_NICE), Some(LEAST_NICE)] {
            let pool = Pool::with(1, nicer, QUEUE_MAX);
            assert!(pool.start("test"));
            let sender = sender.clone();
            let job = move || sender.send(nice()).expect("somebody receives");
            assert!(pool.push(Priority::Write, Box::new(job)).is_ok());
            assert_eq!(receiver.recv(), Ok((started + nicer.unwrap_or(0)).min(NICE_MAX)));
        }
        assert_eq!(nice(), started);
    }

    #[test]
    fn half_of_the_cores_run_jobs_with_time_to_spare() {
        let pools = Pools::start(5);
        assert_eq!((pools.codec.threads, pools.spare.threads), (5, 2));
        assert_eq!(Pools::start(1).spare.threads, 0, "they run on the calling thread");
    }
}
