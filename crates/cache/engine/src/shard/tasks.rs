//! The background tasks of a shard, and its phase.
//!
//! Invariants:
//! - A [`Phase`] only advances: opening, serving, stopping.
//! - The count of running tasks is exact: a task leaves the group when its future ends or is dropped.

use std::cell::Cell;
use std::rc::Rc;

use flaz_device::Env;
use flaz_device::local::Notify;

/// The phase of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The shard recovers or loads its image. Its tasks do not run yet.
    Opening,
    /// The shard serves requests.
    Serving,
    /// The shard accepts no more writes and stores waiting admissions on the cache device. Its tasks end.
    Stopping,
}

/// A group of tasks whose end can be awaited.
#[derive(Debug)]
pub(super) struct TaskGroup {
    phase: Cell<Phase>,
    running: Cell<usize>,
    /// A task has ended.
    ended: Notify,
    /// The phase is now [`Phase::Stopping`].
    stopping: Notify,
}

impl TaskGroup {
    pub(super) fn new() -> Rc<Self> {
        Rc::new(Self {
            phase: Cell::new(Phase::Opening),
            running: Cell::new(0),
            ended: Notify::new(),
            stopping: Notify::new(),
        })
    }

    /// The current phase.
    pub(super) fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Enters a phase.
    pub(super) fn enter(&self, phase: Phase) {
        assert!(
            self.phase.get() <= phase,
            "a shard that is {:?} cannot become {phase:?}",
            self.phase.get()
        );
        self.phase.set(phase);
        if phase == Phase::Stopping {
            self.stopping.notify_all();
        }
    }

    /// Waits until the shard stops.
    pub(super) async fn stopped(&self) {
        while self.phase.get() != Phase::Stopping {
            self.stopping.notified().await;
        }
    }

    /// Runs a task in the group.
    pub(super) fn spawn<E: Env>(self: &Rc<Self>, env: &E, task: impl Future<Output = ()> + 'static) {
        self.running.set(self.running.get() + 1);
        let member = Member(Rc::clone(self));
        env.spawn(async move {
            task.await;
            drop(member);
        });
    }

    /// Whether no task is running.
    pub(super) fn is_idle(&self) -> bool {
        self.running.get() == 0
    }

    /// Waits until a task ends.
    pub(super) async fn one_ended(&self) {
        self.ended.notified().await;
    }
}

/// A task in the group.
struct Member(Rc<TaskGroup>);

impl Drop for Member {
    fn drop(&mut self) {
        let running = self.0.running.get();
        assert!(running > 0, "tasks are counted in pairs");
        self.0.running.set(running - 1);
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use flaz_sim::Sim;

    #[test]
    fn a_group_is_idle_when_its_last_task_has_ended() {
        let sim = Sim::new(1);
        let env = sim.env();
        sim.block_on(async {
            let tasks = TaskGroup::new();
            for seconds in 1..=3 {
                let sleeper = env.clone();
                tasks.spawn(
                    &env,
                    async move { sleeper.sleep(Duration::from_secs(seconds)).await },
                );
            }
            let mut ended = 0;
            while !tasks.is_idle() {
                tasks.one_ended().await;
                ended += 1;
            }
            assert_eq!(ended, 3);
        });
    }

    #[test]
    fn a_stop_wakes_the_tasks_that_wait_for_it() {
        let sim = Sim::new(1);
        let env = sim.env();
        sim.block_on(async {
            let tasks = TaskGroup::new();
            tasks.enter(Phase::Serving);
            let group = Rc::clone(&tasks);
            tasks.spawn(&env, async move { group.stopped().await });
            env.sleep(Duration::from_secs(1)).await;
            assert!(!tasks.is_idle());
            tasks.enter(Phase::Stopping);
            tasks.one_ended().await;
            assert!(tasks.is_idle());
        });
    }

    #[test]
    #[should_panic(expected = "cannot become")]
    fn a_stopped_shard_does_not_start_again() {
        let tasks = TaskGroup::new();
        tasks.enter(Phase::Stopping);
        tasks.enter(Phase::Serving);
    }
}
