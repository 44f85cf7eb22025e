//! Queries to a file system that may hang: each kind runs on a thread of its own.
//!
//! Invariants:
//! - a caller waits no longer than its timeout, and not at all while an earlier query is overdue;
//! - a query does not run if its caller has already timed out.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use flaz_device::Priority;
use futures_util::FutureExt;
use futures_util::future::{Either, select};

use crate::clock::monotonic;
use crate::compute::Pool;
use crate::oneshot::{OneReceiver, oneshot};
use crate::sleep::Sleep;
use crate::state::current;

/// Maximum number of queued queries of a kind.
const WAITING_MAX: usize = 64;

/// The holes of a file: one system call each.
pub(crate) static HOLES: Queries = Queries::new("holes");
/// The size of a file.
pub(crate) static SIZES: Queries = Queries::new("sizes");

/// Queries of one kind, run by one thread in order.
pub(crate) struct Queries {
    name: &'static str,
    pool: OnceLock<&'static Pool>,
    is_started: Mutex<bool>,
    /// A caller has timed out, and no query has completed since.
    is_overdue: AtomicBool,
}

/// Receives the result of a query, or its panic.
type Returned<T> = OneReceiver<std::thread::Result<T>>;

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// This query, or an earlier one, has timed out.
    Overdue,
    /// The queue is full, or the thread cannot be started.
    NotRun,
}

impl Queries {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            pool: OnceLock::new(),
            is_started: Mutex::new(false),
            is_overdue: AtomicBool::new(false),
        }
    }

    /// Runs a query, and waits up to `timeout` for the result.
    pub(crate) async fn run<T: Send + 'static>(
        &'static self,
        timeout: Duration,
        query: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let mut answer = pin!(self.queue(query)?.recv());
        let sleep = pin!(Sleep::until(current(), monotonic().after(timeout)));
        let answered = match select(&mut answer, sleep).await {
            Either::Left((answered, _)) => Some(answered),
            Either::Right(_) => self.late(|| answer.now_or_never()),
        };
        match answered {
            Some(Ok(answered)) => Ok(answered.unwrap_or_else(|panic| resume_unwind(panic))),
            Some(Err(_)) | None => Err(Unanswered::Overdue),
        }
    }

    /// The same for a thread without a runtime.
    pub(crate) fn run_blocking<T: Send + 'static>(
        &'static self,
        timeout: Duration,
        query: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let answer = self.queue(query)?;
        let answered = answer.wait_blocking(timeout).ok();
        match answered.or_else(|| self.late(|| answer.try_recv())) {
            Some(answered) => Ok(answered.unwrap_or_else(|panic| resume_unwind(panic))),
            None => Err(Unanswered::Overdue),
        }
    }

    /// Marks the queries as overdue, unless the result has just arrived: its thread may have cleared the mark before it was set.
    fn late<T>(&self, arrived: impl FnOnce() -> Option<T>) -> Option<T> {
        self.is_overdue.store(true, Ordering::SeqCst);
        let answer = arrived();
        if answer.is_some() {
            self.is_overdue.store(false, Ordering::SeqCst);
        }
        answer
    }

    /// Queues a query.
    fn queue<T: Send + 'static>(
        &'static self,
        query: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Returned<T>, Unanswered> {
        if self.is_overdue.load(Ordering::SeqCst) {
            return Err(Unanswered::Overdue);
        }
        let pool = *self.pool.get_or_init(|| Pool::new(1, WAITING_MAX));
        let mut is_started = self.is_started.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_started {
            // Tried again for the next query: a shortage of threads may be temporary.
            *is_started = pool.start(self.name);
        }
        if !*is_started {
            return Err(Unanswered::NotRun);
        }
        drop(is_started);
        let (sender, receiver) = oneshot();
        let job = move || {
            if !sender.is_abandoned() {
                // If the caller times out meanwhile, the result is discarded.
                let _ = sender.send(catch_unwind(AssertUnwindSafe(query)));
            }
            // After the result: see `late`.
            self.is_overdue.store(false, Ordering::SeqCst);
        };
        match pool.push(Priority::Read, Box::new(job)) {
            Ok(()) => Ok(receiver),
            Err(_) => Err(Unanswered::NotRun),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    const SOON: Duration = Duration::from_millis(10);
    const LATE: Duration = Duration::from_secs(60);

    /// A query that is running, and completes when the sender is dropped.
    fn stuck(queries: &'static Queries) -> (std::sync::mpsc::Sender<()>, Returned<()>) {
        let (running, is_running) = std::sync::mpsc::channel();
        let (answer, answered) = std::sync::mpsc::channel();
        let stuck = queries.queue(move || {
            let _ = running.send(());
            let _: Result<(), _> = answered.recv();
        });
        let stuck = stuck.expect("the thread starts");
        is_running.recv().expect("it runs");
        (answer, stuck)
    }

    /// A hung query occupies the thread: one caller waits for its timeout, later ones do not wait.
    #[test]
    fn callers_do_not_wait_for_a_hung_query() {
        static TESTED: Queries = Queries::new("test");
        let (answer, stuck) = stuck(&TESTED);
        let mut waiting: Vec<_> = std::iter::from_fn(|| TESTED.queue(|| 2).ok()).collect();
        assert_eq!(waiting.len(), WAITING_MAX);
        assert_eq!(TESTED.run_blocking(LATE, || 1), Err(Unanswered::NotRun));
        let last = waiting.pop().expect("some wait");
        assert!(last.wait_blocking(SOON).is_err(), "it is stuck");
        assert!(TESTED.late(|| last.try_recv()).is_none());
        assert_eq!(TESTED.run_blocking(LATE, || 1), Err(Unanswered::Overdue));
        drop(answer);
        assert!(stuck.recv_blocking(LATE).expect("it completes").is_ok());
        let last = last.recv_blocking(LATE);
        assert_eq!(last.expect("it completes").expect("no panic"), 2);
        drop(waiting);
        let again = std::iter::repeat_with(|| TESTED.run_blocking(LATE, || 3)).find(|told| told.is_ok());
        assert_eq!(again, Some(Ok(3)), "nothing is overdue");
    }

    #[test]
    fn a_query_whose_caller_has_gone_does_not_run() {
        static TESTED: Queries = Queries::new("test");
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = || COUNT.fetch_add(1, Ordering::SeqCst);
        let (answer, _stuck) = stuck(&TESTED);
        let first = TESTED.queue(count).expect("there is room");
        drop(TESTED.queue(count).expect("there is room"));
        drop(answer);
        assert!(first.recv_blocking(LATE).is_ok());
        assert_eq!(TESTED.run_blocking(LATE, || COUNT.load(Ordering::SeqCst)), Ok(1));
    }
}
