//! The threads that drive shards, as the rest of the process uses them: start, ask, end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flaz_engine::advise::SharedSamples;
use flaz_engine::cache::shard_set::{Reached, ShardSet, ShardsState, worst_load, worst_save};
use flaz_engine::cache::{ShardsUnreachable, Trust};
use flaz_engine::format::superblock::Superblock;
use flaz_engine::shard::{ImageError, OriginWrites, RecoverError, Recovered, ResizeStep, Shrinking};
use flaz_engine::shared_budget::SharedBudget;
use flaz_engine::units::Epoch;
use flaz_runtime::mailbox::{Sender, channel};
use flaz_runtime::{OneReceiver, OneSender, RecvTimeoutError, oneshot};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::device::HostDevice;
use crate::error::{Failed, HostError};
use crate::order::{ANSWER_WITHIN, MAILBOX_MAX, Order, post};
use crate::state::StateFile;
use crate::systemd;
use crate::worker::{self, WorkerParts};

/// Time limit for a thread to store admitted blocks, or to read or write its index.
const STOP_WITHIN: Duration = Duration::from_secs(300);
/// Time limit of a recovery that makes no progress. One that does may take as long as it needs.
const START_STALLED: Duration = Duration::from_secs(600);
/// How often the progress of a recovery is checked, and reported to systemd.
const PROGRESS_EVERY: Duration = Duration::from_secs(20);
/// How often [`Threads::ask_unless`] checks for cancellation.
const GONE_LOOK: Duration = Duration::from_millis(100);

/// The parameters that are common to all threads.
pub(crate) struct ThreadParts<'a> {
    pub cache: &'a HostDevice,
    pub origin: &'a HostDevice,
    pub state: &'a Arc<StateFile>,
    pub shared_budget: Option<Arc<SharedBudget>>,
    pub index_memory: Option<u64>,
    pub device_timeout: Option<Duration>,
    pub settings: flaz_engine::settings::Settings,
    pub failed: Failed,
}

/// The threads that drive shards.
///
/// Invariant: every thread that was started ends when this is dropped, or with [`Threads::end`].
pub(crate) struct Threads {
    mailboxes: Vec<Sender<Order>>,
    joins: Mutex<Vec<JoinHandle<()>>>,
    origin_writes: OriginWrites,
    /// Regions of the cache, for the progress of a recovery.
    regions: AtomicU64,
}

impl Drop for Threads {
    fn drop(&mut self) {
        for mailbox in &self.mailboxes {
            let _ = post(mailbox, Order::Exit);
        }
    }
}

impl Threads {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// A thread cannot be started; those that are running end.
    pub(crate) fn start(count: u32, parts: &ThreadParts<'_>) -> Result<Self, HostError> {
        let (mailboxes, inboxes): (Vec<_>, Vec<_>) = (0..count).map(|_| channel(MAILBOX_MAX)).unzip();
        let threads = Self {
            mailboxes: mailboxes.clone(),
            joins: Mutex::default(),
            origin_writes: OriginWrites::default(),
            regions: AtomicU64::new(0),
        };
        let codec_samples = SharedSamples::default();
        for (number, inbox) in inboxes.into_iter().enumerate() {
            let worker = WorkerParts {
                number: number as u32,
                threads: count,
                cache: parts.cache.clone(),
                origin: parts.origin.clone(),
                device_timeout: parts.device_timeout,
                state: Arc::clone(parts.state),
                shared_budget: parts.shared_budget.clone(),
                index_memory: parts.index_memory,
                mailboxes: mailboxes.clone(),
                origin_writes: threads.origin_writes.clone(),
                codec_samples: codec_samples.clone(),
                settings: parts.settings.clone(),
                inbox,
            };
            let (ready, told) = mpsc::channel();
            let join = watched(format!("flaz-{number}"), Arc::clone(&parts.failed), move || {
                worker::run(worker, ready)
            })?;
            threads.add(join);
            told.recv().map_err(|_| "a thread ended during its start")??;
        }
        Ok(threads)
    }

    /// Number of threads that drive shards.
    pub(crate) fn count(&self) -> u32 {
        self.mailboxes.len() as u32
    }

    /// Senders to the mailboxes of all threads, in the order of their numbers.
    pub(crate) fn mailboxes(&self) -> Vec<Sender<Order>> {
        self.mailboxes.clone()
    }

    /// Adds a thread, to be joined with the others.
    pub(crate) fn add(&self, join: JoinHandle<()>) {
        self.joins
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(join);
    }

    /// Sends an order to every thread at once and collects the answers.
    ///
    /// # Errors
    /// A thread has ended, or does not answer in time.
    pub(crate) fn ask<T: Send>(
        &self,
        within: Duration,
        order: impl Fn(OneSender<T>) -> Order,
    ) -> Reached<Vec<T>> {
        let wait = |answer: OneReceiver<T>| answer.recv_blocking(within);
        self.ask_and_wait(order, wait)
    }

    /// [`Threads::ask`] for a long order, canceled when `gone` returns true. A thread cancels the order when its answer is no longer
    /// awaited.
    ///
    /// # Errors
    /// As [`Threads::ask`], or the order was canceled.
    pub(crate) fn ask_unless<T: Send>(
        &self,
        gone: &dyn Fn() -> bool,
        within: Duration,
        order: impl Fn(OneSender<T>) -> Order,
    ) -> Reached<Vec<T>> {
        let deadline = Instant::now() + within;
        self.ask_and_wait(order, |answer| {
            loop {
                match answer.wait_blocking(GONE_LOOK) {
                    Err(RecvTimeoutError::Timeout(_)) if !gone() && Instant::now() < deadline => {}
                    done => return done,
                }
            }
        })
    }

    /// [`Threads::ask`], with a way to wait for each answer.
    fn ask_and_wait<T: Send>(
        &self,
        order: impl Fn(OneSender<T>) -> Order,
        wait: impl Fn(OneReceiver<T>) -> Result<T, RecvTimeoutError>,
    ) -> Reached<Vec<T>> {
        let waiting = self
            .mailboxes
            .iter()
            .map(|mailbox| {
                let (reply, answer) = oneshot();
                post(mailbox, order(reply)).map(|()| answer)
            })
            .collect::<Reached<Vec<OneReceiver<T>>>>()?;
        waiting
            .into_iter()
            .map(|answer| {
                wait(answer).map_err(|error| ShardsUnreachable(format!("a thread did not answer: {error}")))
            })
            .collect()
    }

    /// Orders a step of a start that reads `what`, and may take as long as it makes progress: once for each region.
    fn ask_with_progress<T: Send>(
        &self,
        what: &'static str,
        order: impl Fn(ProgressBar, OneSender<T>) -> Order,
    ) -> Reached<Vec<T>> {
        let regions = self.regions.load(Ordering::Relaxed);
        let progress = start_bar(regions, what);
        let moved = |done: u64| {
            let percent = (100 * done).checked_div(regions).unwrap_or(0);
            systemd::starting_takes_longer(START_STALLED, &format!("starting: reading {what}, {percent} %"));
        };
        let answers = self.ask_and_wait(
            |reply| order(progress.clone(), reply),
            |answer| {
                let position = || progress.position();
                wait_while_moving(&answer, position, moved, PROGRESS_EVERY, START_STALLED)
            },
        );
        progress.finish_and_clear();
        answers
    }

    /// Ends all threads, and waits until they have ended.
    pub(crate) fn end(&self) {
        for mailbox in &self.mailboxes {
            if let Err(error) = post(mailbox, Order::Exit) {
                tracing::warn!("stopping: {error}");
            }
        }
        let joins = std::mem::take(&mut *self.joins.lock().unwrap_or_else(PoisonError::into_inner));
        for join in joins {
            // Panics were reported when they happened.
            let _ = join.join();
        }
    }
}

/// The shards on all threads. The calling thread waits for each step, because it drives no shard itself.
impl ShardSet for Threads {
    async fn build(&self, superblock: &Superblock) -> Reached<()> {
        let geometry = &superblock.geometry;
        let regions = u64::from(geometry.shard_count) * u64::from(geometry.regions_per_shard);
        self.regions.store(regions, Ordering::Relaxed);
        let superblock = Arc::new(superblock.clone());
        self.ask(ANSWER_WITHIN, |reply| Order::Build {
            superblock: Arc::clone(&superblock),
            reply,
        })?;
        Ok(())
    }

    async fn load_images(&self, epoch: Epoch) -> Reached<Result<u64, ImageError>> {
        let loaded = self.ask_with_progress("the index", |progress, reply| Order::Load {
            epoch,
            progress,
            reply,
        });
        Ok(worst_load(loaded?))
    }

    async fn recover(&self, trust: Trust) -> Reached<Result<Recovered, RecoverError>> {
        let parts = self.ask_with_progress("the log", |progress, reply| Order::Recover {
            trust,
            progress,
            reply,
        });
        let mut total = Recovered::default();
        for part in parts? {
            match part {
                Ok(part) => total.add(&part),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(total))
    }

    async fn permit_write_back(&self, permitted: bool) -> Reached<()> {
        self.ask(ANSWER_WITHIN, |reply| Order::PermitWriteBack(permitted, reply))?;
        Ok(())
    }

    async fn start(&self) -> Reached<()> {
        self.ask(ANSWER_WITHIN, Order::Start)?;
        Ok(())
    }

    async fn stop(&self) -> Reached<()> {
        self.ask(STOP_WITHIN, Order::Stop)?;
        Ok(())
    }

    async fn save(&self) -> Reached<Result<(), ImageError>> {
        Ok(worst_save(self.ask(STOP_WITHIN, Order::Save)?))
    }

    async fn state(&self) -> Reached<ShardsState> {
        let mut total = ShardsState::default();
        for part in self.ask(ANSWER_WITHIN, Order::State)? {
            total.add(part);
        }
        Ok(total)
    }

    async fn resize(&self, step: ResizeStep) -> Reached<Shrinking> {
        let mut total = Shrinking::default();
        // A large manifest is written in one step.
        for part in self.ask(STOP_WITHIN, |reply| Order::Resize(step, reply))? {
            total.add(part);
        }
        Ok(total)
    }

    async fn grow_origin(&self, len: u64) -> Reached<()> {
        self.ask(ANSWER_WITHIN, |reply| Order::GrowShards(len, reply))?;
        Ok(())
    }

    fn origin_writes(&self) -> &OriginWrites {
        &self.origin_writes
    }
}

/// Waits for an answer while there is progress: until `position` has not changed for about `stalled`. Polls it at intervals of `every`, and
/// calls `moved` with each new position.
fn wait_while_moving<T: Send>(
    answer: &OneReceiver<T>,
    position: impl Fn() -> u64,
    moved: impl Fn(u64),
    every: Duration,
    stalled: Duration,
) -> Result<T, RecvTimeoutError> {
    let (mut last, mut still) = (position(), Duration::ZERO);
    loop {
        match answer.wait_blocking(every) {
            Err(RecvTimeoutError::Timeout(_)) => {}
            done => return done,
        }
        let now = position();
        if now != last {
            (last, still) = (now, Duration::ZERO);
            moved(now);
        } else {
            still += every;
        }
        if still >= stalled {
            return Err(RecvTimeoutError::Timeout(stalled));
        }
    }
}

/// A progress bar on a terminal; nothing in a pipe.
fn start_bar(regions: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(regions), ProgressDrawTarget::stderr());
    // The template is a constant of this program. If it were wrong, a bar in the default style would do.
    if let Ok(style) = ProgressStyle::with_template("reading {msg} {bar:28.cyan/dim} {percent:>3}%  {eta}") {
        bar.set_style(style.progress_chars("━━─"));
    }
    bar.set_message(what);
    bar
}

/// Ends the daemon if its thread panics, instead of leaving it without one of its threads.
pub(crate) fn watched(
    name: String,
    failed: Failed,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, HostError> {
    let guarded = move || {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
            let name = std::thread::current().name().unwrap_or("?").to_owned();
            failed(
                format!("thread {name} panicked: this is a bug; the next start will run crash recovery")
                    .into(),
            );
        }
    };
    Ok(std::thread::Builder::new().name(name).spawn(guarded)?)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    const EVERY: Duration = Duration::from_millis(1);

    #[test]
    fn an_answer_is_waited_for_as_long_as_there_is_progress() {
        let (reply, answer) = oneshot();
        let (position, reply) = (Cell::new(0), Cell::new(Some(reply)));
        let told = RefCell::new(Vec::<u64>::new());
        let look = || {
            position.set(position.get() + 1);
            // Long after the limit.
            if position.get() == 50 {
                assert!(reply.take().expect("once").send("done").is_ok());
            }
            position.get()
        };
        let moved = |at| told.borrow_mut().push(at);
        let got = wait_while_moving(&answer, look, moved, EVERY, 5 * EVERY);
        assert_eq!(got, Ok("done"));
        let told = told.into_inner();
        assert_eq!(told, (2..=50).collect::<Vec<_>>());
    }

    #[test]
    fn without_progress_an_answer_is_late_after_the_limit() {
        let (reply, answer) = oneshot::<()>();
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            looks.get().min(10)
        };
        let got = wait_while_moving(&answer, look, |_| {}, EVERY, 5 * EVERY);
        assert_eq!(got, Err(RecvTimeoutError::Timeout(5 * EVERY)));
        assert_eq!(looks.get(), 15, "five times at 10");
        drop(reply);
        let got = wait_while_moving(&answer, || 0, |_| {}, EVERY, 5 * EVERY);
        assert_eq!(got, Err(RecvTimeoutError::Lost));
    }
}
