//! The seeded executor: tasks, virtual time, and the sequence of device events.
//!
//! Each step polls one runnable task, chosen by the seed, and moves the virtual clock by a few hundred nanoseconds;
//! when nothing is runnable the clock jumps to the next timer. Scheduling uses rounds, so that every interleaving is
//! possible and no task starves: a woken task joins the current round or the next with equal probability; a task that
//! yields always joins the next.
//!
//! Invariants:
//! - no state of the executor is borrowed while a task is polled or dropped, so tasks may spawn and wake;
//! - only the seed and the tasks' own actions determine a run ([`Sim::trace_hash`] distinguishes runs);
//! - [`Sim::block_on`] always returns the value; a deadlock or the step limit is a panic that names the seed.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use flaz_device::{DeviceOp, Load};

use crate::rng::Rng;
use crate::timer::Timers;

/// Number of steps after which a run counts as endless, unless [`Sim::set_step_limit`] changes it.
pub const STEP_LIMIT_DEFAULT: u64 = 100_000_000;
/// Virtual time of one step in nanoseconds: a random number from 1 to this (a power of two).
const STEP_COST_NS_MAX: u64 = 512;
/// The task number of the future given to `block_on`.
const ROOT: u32 = u32::MAX;

/// Why a run stopped before its future ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// Nothing can run and no event is pending.
    Deadlock,
    /// The step limit is reached.
    StepLimit,
    /// The device event given to [`Sim::halt_at_event`] has happened.
    CrashPoint,
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadlock => "deadlock: nothing can run and no event is pending",
            Self::StepLimit => "the step limit is reached: endless loop, or set_step_limit is too low",
            Self::CrashPoint => "the crash point is reached (use try_block_on with halt_at_event)",
        })
    }
}

/// Whether an operation starts or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventStage {
    /// The operation was passed to the device.
    Issued,
    /// Its caller is about to see the result.
    Completed,
}

/// An event at a simulated disk: a point at which a crash may differ from the previous one.
#[derive(Clone, Copy, Debug)]
pub struct DeviceEvent {
    /// Number of the event in this simulation, from 1.
    pub number: u64,
    /// Number of the disk in this simulation, in order of creation.
    pub disk: u32,
    /// Start or end.
    pub stage: EventStage,
    /// The operation.
    pub op: DeviceOp,
    /// Byte offset.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

pub(crate) type Observer = Box<dyn FnMut(&DeviceEvent)>;
pub(crate) type BoxedTask = Pin<Box<dyn Future<Output = ()>>>;

/// Tasks woken since the executor last checked. In a mutex because wakers must be `Sync`; there is only one thread, so
/// it is never contended.
#[derive(Default)]
pub(crate) struct Woken {
    list: Mutex<WokenLists>,
    pub(crate) yielding: AtomicBool,
}

#[derive(Default)]
struct WokenLists {
    soon: Vec<u32>,
    later: Vec<u32>,
}

pub(crate) struct TaskWaker {
    task: u32,
    queued: AtomicBool,
    woken: Arc<Woken>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut lists = self.woken.list.lock().unwrap_or_else(PoisonError::into_inner);
        if self.woken.yielding.load(Ordering::Relaxed) {
            lists.later.push(self.task);
        } else {
            lists.soon.push(self.task);
        }
    }
}

pub(crate) struct Task {
    /// Taken out while it is polled.
    pub(crate) future: Option<BoxedTask>,
    pub(crate) signal: Arc<TaskWaker>,
    pub(crate) waker: Waker,
}

#[derive(Default)]
pub(crate) struct Tasks {
    pub(crate) slots: Vec<Option<Task>>,
    pub(crate) free: Vec<u32>,
    pub(crate) count: usize,
    pub(crate) round: Vec<u32>,
    pub(crate) next_round: Vec<u32>,
}

pub(crate) struct Core {
    pub(crate) seed: u64,
    pub(crate) schedule_rng: RefCell<Rng>,
    pub(crate) user_rng: RefCell<Rng>,
    pub(crate) now_ns: Cell<u64>,
    pub(crate) steps: Cell<u64>,
    pub(crate) step_limit: Cell<u64>,
    pub(crate) parallelism: Cell<usize>,
    pub(crate) load: Cell<Load>,
    pub(crate) saturated: Cell<bool>,
    pub(crate) trace: Cell<u64>,
    pub(crate) tasks: RefCell<Tasks>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) woken: Arc<Woken>,
    pub(crate) disks: Cell<u32>,
    pub(crate) events: Cell<u64>,
    pub(crate) halt_at_event: Cell<u64>,
    pub(crate) observer: RefCell<Option<Observer>>,
}

impl Core {
    pub(crate) fn note(&self, what: u64) {
        self.trace
            .set((self.trace.get().rotate_left(5) ^ what).wrapping_mul(0x517c_c1b7_2722_0a95));
    }

    pub(crate) fn signal(&self, task: u32) -> Arc<TaskWaker> {
        Arc::new(TaskWaker {
            task,
            queued: AtomicBool::new(false),
            woken: Arc::clone(&self.woken),
        })
    }
}

/// A simulation. It owns the tasks; dropping it drops them.
pub struct Sim {
    pub(crate) core: Rc<Core>,
}

impl Sim {
    /// A simulation that `seed` determines completely.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let core = Core {
            seed,
            schedule_rng: RefCell::new(rng.fork()),
            user_rng: RefCell::new(rng.fork()),
            now_ns: Cell::new(0),
            steps: Cell::new(0),
            step_limit: Cell::new(STEP_LIMIT_DEFAULT),
            parallelism: Cell::new(1),
            load: Cell::default(),
            saturated: Cell::default(),
            trace: Cell::new(seed),
            tasks: RefCell::default(),
            timers: RefCell::default(),
            woken: Arc::default(),
            disks: Cell::new(0),
            events: Cell::new(0),
            halt_at_event: Cell::new(u64::MAX),
            observer: RefCell::new(None),
        };
        Self { core: Rc::new(core) }
    }

    /// The seed of this run.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.core.seed
    }

    /// Number of steps (polls of a task) so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.core.steps.get()
    }

    /// Stops the run when [`Sim::steps`] reaches `steps_max`.
    pub fn set_step_limit(&self, steps_max: u64) {
        self.core.step_limit.set(steps_max);
    }

    /// Whether `Env::thread_time` is all the time that passes; initially not.
    pub fn set_saturated(&self, saturated: bool) {
        self.core.saturated.set(saturated);
    }

    /// The result of `Env::load`; initially medium.
    pub fn set_load(&self, load: Load) {
        self.core.load.set(load);
    }

    /// The result of `Env::parallelism`; initially 1.
    pub fn set_parallelism(&self, cores: usize) {
        self.core.parallelism.set(cores.max(1));
    }

    /// Number of device events so far (starts and ends of operations on all disks of this simulation).
    #[must_use]
    pub fn events(&self) -> u64 {
        self.core.events.get()
    }

    /// Stops the run with [`Halt::CrashPoint`] once device event `number` (from 1) has happened.
    pub fn halt_at_event(&self, number: u64) {
        self.core.halt_at_event.set(number);
    }

    /// Calls `observer` at every device event. [`crate::SimDisk::crash`] called from there returns the image after a
    /// power cut at this point. The observer must not use this simulation otherwise.
    pub fn set_observer(&self, observer: impl FnMut(&DeviceEvent) + 'static) {
        *self.core.observer.borrow_mut() = Some(Box::new(observer));
    }

    /// A digest of everything that has happened: equal for two runs of one seed.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.core.trace.get()
    }

    /// Runs until `future` ends and returns its value. Spawned tasks stay and continue in the next call.
    ///
    /// # Panics
    /// On a deadlock, at the step limit and at a crash point, with the seed.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        match self.try_block_on(future) {
            Ok(value) => value,
            Err(halt) => panic!("simulation stopped: {halt} ({})", self.position()),
        }
    }

    /// Like [`Sim::block_on`], but a stop is an error.
    ///
    /// # Errors
    /// [`Halt`] says why the run ended before its future did.
    pub fn try_block_on<T>(&self, future: impl Future<Output = T>) -> Result<T, Halt> {
        let _tell = TellSeed(self);
        let mut root = pin!(future);
        let signal = self.core.signal(ROOT);
        let waker = Waker::from(Arc::clone(&signal));
        signal.wake_by_ref();
        loop {
            let task = self.next_task()?;
            let core = &*self.core;
            core.steps.set(core.steps.get() + 1);
            core.note(u64::from(task));
            if task == ROOT {
                signal.queued.store(false, Ordering::Relaxed);
                if let Poll::Ready(value) = root.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return Ok(value);
                }
            } else {
                self.poll_task(task);
            }
        }
    }

    /// Drops all spawned tasks, as the death of the process would. Their operations in flight continue on the disks
    /// (see [`crate::SimDisk::settle`]).
    pub fn kill_tasks(&self) {
        // Dropping a task may run code that uses the executor, so nothing may be borrowed.
        let tasks = std::mem::take(&mut *self.core.tasks.borrow_mut());
        drop(tasks);
        *self
            .core
            .woken
            .list
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = WokenLists::default();
    }

    /// Number of spawned tasks that have not ended.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.core.tasks.borrow().count
    }

    fn position(&self) -> String {
        format!(
            "seed {:#x}, step {}, virtual time {} us, {} device events, {} spawned tasks alive",
            self.core.seed,
            self.core.steps.get(),
            self.core.now_ns.get() / 1000,
            self.core.events.get(),
            self.task_count(),
        )
    }

    fn next_task(&self) -> Result<u32, Halt> {
        let core = &*self.core;
        if core.events.get() >= core.halt_at_event.get() {
            return Err(Halt::CrashPoint);
        }
        if core.steps.get() >= core.step_limit.get() {
            return Err(Halt::StepLimit);
        }
        let mut rng = core.schedule_rng.borrow_mut();
        let dice = rng.next_u64();
        let mut now = core.now_ns.get() + 1 + dice % STEP_COST_NS_MAX;
        let mut tasks = core.tasks.borrow_mut();
        loop {
            // The clock first: a timer has fired exactly if its time is not after the clock.
            core.now_ns.set(now);
            self.fire_due(now);
            Self::queue_woken(core, &mut tasks, &mut rng);
            if tasks.round.is_empty() {
                let tasks = &mut *tasks;
                std::mem::swap(&mut tasks.round, &mut tasks.next_round);
            }
            if !tasks.round.is_empty() {
                break;
            }
            let moment = core.timers.borrow_mut().next_moment().ok_or(Halt::Deadlock)?;
            now = now.max(moment);
        }
        let choice = ((dice >> 32) * tasks.round.len() as u64) >> 32;
        Ok(tasks.round.swap_remove(choice as usize))
    }

    fn fire_due(&self, now: u64) {
        loop {
            let Some(waker) = self.core.timers.borrow_mut().pop_due(now) else {
                break;
            };
            waker.wake();
        }
    }

    fn queue_woken(core: &Core, tasks: &mut Tasks, rng: &mut Rng) {
        let mut lists = core.woken.list.lock().unwrap_or_else(PoisonError::into_inner);
        for task in lists.soon.drain(..) {
            if rng.coin() {
                tasks.round.push(task);
            } else {
                tasks.next_round.push(task);
            }
        }
        tasks.next_round.append(&mut lists.later);
    }

    fn poll_task(&self, number: u32) {
        let taken = {
            let mut tasks = self.core.tasks.borrow_mut();
            tasks
                .slots
                .get_mut(number as usize)
                .and_then(Option::as_mut)
                .and_then(|task| {
                    task.signal.queued.store(false, Ordering::Relaxed);
                    Some((task.future.take()?, task.waker.clone()))
                })
        };
        // A wake-up may arrive after its task has ended.
        let Some((mut future, waker)) = taken else { return };
        let ended = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let mut tasks = self.core.tasks.borrow_mut();
        if !ended {
            if let Some(task) = tasks.slots.get_mut(number as usize).and_then(Option::as_mut) {
                task.future = Some(future);
            }
            return;
        }
        tasks.slots[number as usize] = None;
        tasks.free.push(number);
        tasks.count -= 1;
        drop(tasks);
        drop(future);
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // Tasks own the environment, which owns the tasks: this breaks the cycle.
        self.kill_tasks();
        drop(self.core.observer.borrow_mut().take());
    }
}

/// Prints the seed when a panic passes through the executor.
struct TellSeed<'a>(&'a Sim);

impl Drop for TellSeed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let core = &self.0.core;
            eprintln!(
                "simulation: panic at seed {:#x}, step {}, virtual time {} us, {} device events",
                core.seed,
                core.steps.get(),
                core.now_ns.get() / 1000,
                core.events.get(),
            );
        }
    }
}
