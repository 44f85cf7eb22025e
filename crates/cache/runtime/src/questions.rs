//! Questions to a file system that may never answer: asked on threads of their own.
//!
//! Invariants:
//! - who asks waits no longer than it wants to; while an answer is overdue, nobody waits for another one;
//! - a question whose asker has left is not asked.

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

/// Maximum number of questions of a kind that wait for their thread.
const WAITING_MAX: usize = 64;

/// Where a file has holes. It takes a system call for each of them.
pub(crate) static HOLES: Questions = Questions::new("holes");
/// How large a file is.
pub(crate) static SIZES: Questions = Questions::new("sizes");

/// Questions of one kind, which one thread asks one after another.
pub(crate) struct Questions {
    name: &'static str,
    pool: OnceLock<&'static Pool>,
    is_started: Mutex<bool>,
    /// Somebody has waited in vain, and no question was answered since.
    is_overdue: AtomicBool,
}

/// Receives an answer, or the panic of the question.
type Returned<T> = OneReceiver<std::thread::Result<T>>;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The file system has not answered in time, this question or an earlier one.
    Overdue,
    /// Too many questions wait, or the system has no thread for them.
    NotAsked,
}

impl Questions {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            pool: OnceLock::new(),
            is_started: Mutex::new(false),
            is_overdue: AtomicBool::new(false),
        }
    }

    /// Asks, and waits up to `timeout` for the answer.
    pub(crate) async fn ask<T: Send + 'static>(
        &'static self,
        timeout: Duration,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let mut answer = pin!(self.put(question)?.recv());
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
    pub(crate) fn ask_blocking<T: Send + 'static>(
        &'static self,
        timeout: Duration,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let answer = self.put(question)?;
        let answered = answer.wait_blocking(timeout).ok();
        match answered.or_else(|| self.late(|| answer.try_recv())) {
            Some(answered) => Ok(answered.unwrap_or_else(|panic| resume_unwind(panic))),
            None => Err(Unanswered::Overdue),
        }
    }

    /// Nobody waits any more; unless the answer has just arrived, in which case its thread may have cleared the mark before it was set.
    fn late<T>(&self, arrived: impl FnOnce() -> Option<T>) -> Option<T> {
        self.is_overdue.store(true, Ordering::SeqCst);
        let answer = arrived();
        if answer.is_some() {
            self.is_overdue.store(false, Ordering::SeqCst);
        }
        answer
    }

    /// Gives a question to the thread.
    fn put<T: Send + 'static>(
        &'static self,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Returned<T>, Unanswered> {
        if self.is_overdue.load(Ordering::SeqCst) {
            return Err(Unanswered::Overdue);
        }
        let pool = *self.pool.get_or_init(|| Pool::new(1, WAITING_MAX));
        let mut is_started = self.is_started.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_started {
            // If the system has no thread now, it may have one later.
            *is_started = pool.start(self.name);
        }
        if !*is_started {
            return Err(Unanswered::NotAsked);
        }
        drop(is_started);
        let (sender, receiver) = oneshot();
        let job = move || {
            if !sender.is_abandoned() {
                // The asker may leave meanwhile; the answer is then discarded.
                let _ = sender.send(catch_unwind(AssertUnwindSafe(question)));
            }
            // Behind the answer: see `late`.
            self.is_overdue.store(false, Ordering::SeqCst);
        };
        match pool.push(Priority::Read, Box::new(job)) {
            Ok(()) => Ok(receiver),
            Err(_) => Err(Unanswered::NotAsked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(10);
    const LATE: Duration = Duration::from_secs(60);

    /// A question that is not answered until the sender is dropped, and is being asked.
    fn stuck(questions: &'static Questions) -> (std::sync::mpsc::Sender<()>, Returned<()>) {
        let (asked, is_asked) = std::sync::mpsc::channel();
        let (answer, answered) = std::sync::mpsc::channel();
        let stuck = questions.put(move || {
            let _ = asked.send(());
            let _: Result<(), _> = answered.recv();
        });
        let stuck = stuck.expect("the thread starts");
        is_asked.recv().expect("it is asked");
        (answer, stuck)
    }

    /// A file system that does not answer takes the thread; nobody waits longer than wanted, and only the first one waits at all.
    #[test]
    fn who_asks_in_vain_is_told_so() {
        static ASKED: Questions = Questions::new("test");
        let (answer, stuck) = stuck(&ASKED);
        let mut waiting: Vec<_> = std::iter::from_fn(|| ASKED.put(|| 2).ok()).collect();
        assert_eq!(waiting.len(), WAITING_MAX);
        assert_eq!(ASKED.ask_blocking(LATE, || 1), Err(Unanswered::NotAsked));
        let last = waiting.pop().expect("some wait");
        assert!(last.wait_blocking(SOON).is_err(), "no answer");
        assert!(ASKED.late(|| last.try_recv()).is_none());
        assert_eq!(ASKED.ask_blocking(LATE, || 1), Err(Unanswered::Overdue));
        drop(answer);
        assert!(stuck.recv_blocking(LATE).expect("it is answered").is_ok());
        let last = last.recv_blocking(LATE);
        assert_eq!(last.expect("it is answered").expect("no panic"), 2);
        drop(waiting);
        let again = std::iter::repeat_with(|| ASKED.ask_blocking(LATE, || 3)).find(|told| told.is_ok());
        assert_eq!(again, Some(Ok(3)), "nothing is overdue");
    }

    /// What nobody waits for is not asked.
    #[test]
    fn a_question_whose_asker_has_left_is_not_asked() {
        static ASKED: Questions = Questions::new("test");
        static COUNT: Mutex<u32> = Mutex::new(0);
        let count = || *COUNT.lock().expect("nobody panics") += 1;
        let (answer, _stuck) = stuck(&ASKED);
        let first = ASKED.put(count).expect("there is room");
        drop(ASKED.put(count).expect("there is room"));
        drop(answer);
        assert!(first.recv_blocking(LATE).is_ok());
        assert_eq!(
            ASKED.ask_blocking(LATE, || *COUNT.lock().expect("nobody panics")),
            Ok(1)
        );
    }
}
