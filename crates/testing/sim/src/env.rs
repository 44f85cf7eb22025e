//! The environment of engine code in a simulation: [`SimEnv`].

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use flaz_device::{DeviceOp, Env, Load, Nanos, Priority, compute_timed};

use crate::executor::{BoxedTask, Core, DeviceEvent, EventStage, Sim, Task};
use crate::rng::{Rng, splitmix};
use crate::timer::TimerId;

/// Maximum time that [`Env::compute`] waits, in nanoseconds.
const COMPUTE_DELAY_NS_MAX: u64 = 20_000;

/// The environment of simulated engine code. Clones are the same environment.
#[derive(Clone)]
pub struct SimEnv {
    pub(crate) core: Rc<Core>,
}

impl Sim {
    /// The environment for engine code.
    #[must_use]
    pub fn env(&self) -> SimEnv {
        SimEnv {
            core: Rc::clone(&self.core),
        }
    }
}

impl SimEnv {
    /// Waits until `moment`; returns at once if it has passed.
    pub fn sleep_until(&self, moment: Nanos) -> impl Future<Output = ()> + 'static {
        Sleep {
            env: self.clone(),
            moment: moment.0,
            timer: None,
        }
    }

    /// The seed of the simulation.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.core.seed
    }

    /// Number and random generator of a new disk.
    pub(crate) fn register_disk(&self) -> (u32, Rng) {
        let number = self.core.disks.get();
        self.core.disks.set(number + 1);
        (
            number,
            Rng::new(splitmix(self.core.seed ^ splitmix(u64::from(number) + 1))),
        )
    }

    /// Counts a device event and shows it to the observer. The disk must not be borrowed.
    pub(crate) fn device_event(&self, disk: u32, stage: EventStage, op: DeviceOp, offset: u64, len: u64) {
        let core = &*self.core;
        let number = core.events.get() + 1;
        core.events.set(number);
        core.note(offset ^ (len << 40) ^ u64::from(disk) ^ ((op as u64) << 8) ^ ((stage as u64) << 12));
        let observer = core.observer.borrow_mut().take();
        if let Some(mut observer) = observer {
            observer(&DeviceEvent {
                number,
                disk,
                stage,
                op,
                offset,
                len,
            });
            *core.observer.borrow_mut() = Some(observer);
        }
    }

    /// A random number from the seed.
    #[must_use]
    pub fn random_u64(&self) -> u64 {
        self.core.user_rng.borrow_mut().next_u64()
    }
}

impl Env for SimEnv {
    fn now(&self) -> Nanos {
        Nanos(self.core.now_ns.get())
    }

    async fn sleep(&self, duration: Duration) {
        self.sleep_until(self.now().after(duration)).await;
    }

    async fn yield_now(&self) {
        let mut yielded = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            self.core.woken.yielding.store(true, Ordering::Relaxed);
            cx.waker().wake_by_ref();
            self.core.woken.yielding.store(false, Ordering::Relaxed);
            Poll::Pending
        })
        .await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let future: BoxedTask = Box::pin(task);
        let mut tasks = self.core.tasks.borrow_mut();
        let number = tasks.free.pop().unwrap_or_else(|| {
            tasks.slots.push(None);
            (tasks.slots.len() - 1) as u32
        });
        let signal = self.core.signal(number);
        let waker = Waker::from(Arc::clone(&signal));
        signal.wake_by_ref();
        tasks.slots[number as usize] = Some(Task {
            future: Some(future),
            signal,
            waker,
        });
        tasks.count += 1;
    }

    async fn compute<T: Send + 'static>(
        &self,
        _priority: Priority,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let delay_ns = self
            .core
            .schedule_rng
            .borrow_mut()
            .below(2 * COMPUTE_DELAY_NS_MAX);
        if delay_ns < COMPUTE_DELAY_NS_MAX {
            self.sleep(Duration::from_nanos(delay_ns)).await;
        } else {
            self.yield_now().await;
        }
        job()
    }

    async fn compute_spare<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> (T, Duration) {
        compute_timed(self, job).await
    }

    async fn compute_long<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.compute(Priority::Write, job).await
    }

    fn parallelism(&self) -> usize {
        self.core.parallelism.get()
    }

    fn load(&self) -> Load {
        self.core.load.get()
    }

    /// All time if [`Sim::set_saturated`](crate::Sim::set_saturated) says so, and else none.
    fn thread_time(&self) -> Duration {
        match self.core.saturated.get() {
            true => self.now().since(Nanos(0)),
            false => Duration::ZERO,
        }
    }
}

struct Sleep {
    env: SimEnv,
    moment: u64,
    timer: Option<TimerId>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let core = Rc::clone(&self.env.core);
        if core.now_ns.get() >= self.moment {
            // The timer has fired: its slot is free, or reused.
            self.timer = None;
            return Poll::Ready(());
        }
        match self.timer {
            Some(timer) => core.timers.borrow_mut().update(timer, cx.waker()),
            None => {
                let tie = core.schedule_rng.borrow_mut().next_u64() as u32;
                self.timer = Some(core.timers.borrow_mut().add(self.moment, tie, cx.waker().clone()));
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        // A fired timer is recognised by the clock, as in `poll`.
        if let Some(timer) = self.timer
            && self.env.core.now_ns.get() < self.moment
        {
            self.env.core.timers.borrow_mut().cancel(timer);
        }
    }
}
