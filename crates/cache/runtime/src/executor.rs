//! The loop of one thread: polls ready tasks, submits all new operations with one call, and waits only if idle.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use flaz_device::{Env, Load, Nanos, Priority};

use crate::clock::monotonic;
use crate::compute;
use crate::config::{Backend, Config};
use crate::driver::Driver;
use crate::op_table::settle;
use crate::request::Completion;
use crate::sleep::Sleep;
use crate::state::{Core, current, set_current};
use crate::task::{Body, MAIN, RunQueue, Shared, TaskWaker};

/// Number of polls between two checks for completions, so that busy tasks do not starve I/O.
const POLLS_A_TURN_MAX: usize = 1024;
/// How long a runtime that ends waits for the kernel to return buffers before it leaks them.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// A single-threaded executor on io_uring: one per thread.
///
/// Dropping it drops all its tasks, cancels all operations that can be cancelled, and waits until the kernel has
/// returned every buffer.
pub struct Runtime {
    core: Rc<Core>,
}

impl Runtime {
    /// Creates the runtime of this thread.
    ///
    /// # Errors
    /// io_uring was requested explicitly and cannot be used (the message says why and what to do), or there are no
    /// descriptors left.
    ///
    /// # Panics
    /// If this thread already has a runtime.
    pub fn new(config: Config) -> io::Result<Self> {
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        let shared = Arc::new(Shared::new(eventfd));
        let driver = Driver::new(&config, &shared)?;
        let core = Rc::new(Core {
            driver,
            ops: RefCell::default(),
            timers: RefCell::default(),
            queue: RunQueue::install(shared),
            tasks: RefCell::default(),
            yielded: RefCell::default(),
            running: Cell::new(false),
        });
        set_current(Some(Rc::clone(&core)));
        Ok(Self { core })
    }

    /// How operations are executed: never [`Backend::Auto`].
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.core.driver.backend()
    }

    /// Runs `future`, and every task spawned meanwhile, until `future` ends. Remaining tasks continue in the next
    /// `block_on`, or end with the runtime.
    ///
    /// # Panics
    /// If called from inside a task, or if a task panics.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(
            !self.core.running.replace(true),
            "block_on inside a task of the same thread"
        );
        let _running = Running(&self.core.running);
        self.core.block_on(future)
    }
}

/// Resets the flag when `block_on` ends, also after a panic.
struct Running<'a>(&'a Cell<bool>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.core.queue.shared.close();
        // Futures may spawn or wake when they are dropped, so this repeats until none is left.
        loop {
            let bodies = self.core.tasks.borrow_mut().take_all();
            if bodies.is_empty() {
                break;
            }
            drop(bodies);
        }
        self.core.drain();
        set_current(None);
        RunQueue::uninstall();
    }
}

impl Core {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let main = TaskWaker::new(MAIN, Arc::clone(&self.queue.shared));
        let waker = Waker::from(Arc::clone(&main));
        let mut main_poll = || {
            main.dequeued();
            future.as_mut().poll(&mut Context::from_waker(&waker))
        };
        waker.wake_by_ref();
        let mut completions = Vec::new();
        loop {
            self.queue.shared.drain(&mut *self.queue.ready.borrow_mut());
            for _ in 0..POLLS_A_TURN_MAX {
                let Some(slot) = self.queue.ready.borrow_mut().pop_front() else {
                    break;
                };
                if slot != MAIN {
                    self.poll_task(slot);
                } else if let Poll::Ready(output) = main_poll() {
                    return output;
                }
            }
            self.turn(&mut completions);
        }
    }

    fn poll_task(&self, slot: u32) {
        let Some(mut body) = self.tasks.borrow_mut().take(slot) else {
            return;
        };
        body.task.dequeued();
        let Body { future, waker, .. } = &mut body;
        // Without a future this is a stale wake of a slot that is already free.
        let ended = future.as_mut().and_then(|future| {
            let is_ready = future.as_mut().poll(&mut Context::from_waker(waker)).is_ready();
            is_ready.then(|| size_of_val(&**future))
        });
        if ended.is_some() {
            // Outside any borrow, because its destructors may wake and spawn.
            drop(body.future.take());
        }
        self.tasks.borrow_mut().put_back(slot, body, ended);
    }

    /// Submits, waits if there is nothing to do, and makes tasks ready whose operation or sleep has ended.
    fn turn(&self, completions: &mut Vec<Completion>) {
        let busy = !self.queue.ready.borrow().is_empty() || !self.yielded.borrow().is_empty();
        if busy || !self.queue.shared.prepare_sleep() {
            self.driver.submit_and_poll();
        } else {
            let timeout = self
                .timers
                .borrow()
                .first()
                .map(|deadline| deadline.since(monotonic()));
            self.driver.submit_and_wait(timeout, &self.queue.shared);
            self.queue.shared.awake();
        }
        self.reap(completions);
        self.fire_timers();
        let mut yielded = std::mem::take(&mut *self.yielded.borrow_mut());
        for waker in yielded.drain(..) {
            waker.wake();
        }
        let mut list = self.yielded.borrow_mut();
        if list.is_empty() {
            *list = yielded; // keeps the allocation
        }
    }

    fn reap(&self, completions: &mut Vec<Completion>) {
        self.driver.completions(completions);
        if completions.is_empty() {
            return;
        }
        for (user_data, result) in completions.drain(..) {
            let completed = self.ops.borrow_mut().complete(user_data as u32, result);
            settle(completed);
        }
        let waiting = self.ops.borrow_mut().take_waiting();
        for waker in waiting {
            waker.wake();
        }
    }

    fn fire_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now = monotonic();
        loop {
            let Some(waker) = self.timers.borrow_mut().pop_due(now) else {
                return;
            };
            waker.wake();
        }
    }

    /// Waits until the kernel has returned all buffers.
    fn drain(&self) {
        let pending = self.ops.borrow().pending();
        for index in pending {
            self.driver.cancel(u64::from(index));
        }
        self.driver.close();
        let deadline = monotonic().after(DRAIN_MAX);
        let mut completions = Vec::new();
        loop {
            self.reap(&mut completions);
            if self.ops.borrow().pending().is_empty() && self.driver.is_closed() {
                // What a driver still has goes back to the kernel with the ring.
                if self.ops.borrow().any_with_driver() {
                    self.ops.borrow_mut().leak();
                }
                return;
            }
            let left = deadline.since(monotonic());
            if left.is_zero() {
                tracing::error!(
                    operations = self.ops.borrow().in_flight(),
                    "the kernel did not complete I/O operations within {DRAIN_MAX:?}: leaking their buffers"
                );
                self.ops.borrow_mut().leak();
                self.driver.leak();
                return;
            }
            self.driver.wait_closed(left);
        }
    }
}

/// Handle of the current thread's runtime: the production [`Env`].
///
/// # Panics
/// Every method except `now` panics on a thread without a [`Runtime`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Rt;

impl Rt {
    /// Memory of the tasks of this thread's runtime, in bytes, without what their futures have on the heap.
    ///
    /// # Panics
    /// On a thread without a [`Runtime`].
    #[must_use]
    pub fn task_bytes() -> usize {
        current().tasks.borrow().memory_bytes()
    }
}

impl Env for Rt {
    fn now(&self) -> Nanos {
        monotonic()
    }

    async fn sleep(&self, duration: Duration) {
        if duration.is_zero() {
            return self.yield_now().await;
        }
        Sleep::until(current(), monotonic().after(duration)).await;
    }

    async fn yield_now(&self) {
        let mut yielded = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            current().yielded.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let core = current();
        let waker = core.tasks.borrow_mut().insert(Box::pin(task), &core.queue.shared);
        waker.wake();
    }

    async fn compute<T: Send + 'static>(
        &self,
        priority: Priority,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        compute::run(priority, job).await
    }

    async fn compute_spare<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> (T, Duration) {
        compute::spare(job).await
    }

    async fn compute_long<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        compute::long(job).await
    }

    fn parallelism(&self) -> usize {
        compute::threads()
    }

    fn load(&self) -> Load {
        crate::load::now()
    }

    fn thread_time(&self) -> Duration {
        crate::load::thread_time()
    }
}
