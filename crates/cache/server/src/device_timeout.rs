//! Whether cache device operations have a time limit.
//!
//! Dirty blocks exist only on the cache device. While there are dirty blocks, or writes may make some, the engine waits
//! for a stalled device. When the mode is not write-back and nothing is dirty, the time limit applies again and the
//! device can be bypassed.
//!
//! Invariant: while the mode is write-back, the limit does not apply from the first [`DeviceTimeout::suspend`] on.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::Env;
use flaz_engine::settings::Mode;

/// Interval between two checks for dirty blocks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of consecutive checks that must find nothing dirty before the limit applies again: a write that began in
/// write-back may be in flight.
const CLEAN_CHECKS: u32 = 3;

/// The time limit of one thread's cache device operations.
pub(crate) struct DeviceTimeout<E>(Rc<State<E>>);

struct State<E> {
    env: E,
    /// `None`: there is never a limit.
    limit: Option<Duration>,
    apply: Box<dyn Fn(Option<Duration>)>,
    mode: Cell<Mode>,
    /// Number of the task that checks, if one does. A later task replaces an earlier one.
    task: Cell<u64>,
}

impl<E: Env> DeviceTimeout<E> {
    /// `apply` sets the limit of the device, which is `limit` now.
    pub(crate) fn new(
        env: E,
        limit: Option<Duration>,
        mode: Mode,
        apply: impl Fn(Option<Duration>) + 'static,
    ) -> Self {
        Self(Rc::new(State {
            env,
            limit,
            apply: Box::new(apply),
            mode: Cell::new(mode),
            task: Cell::new(0),
        }))
    }

    /// Records a mode. With write-back, [`DeviceTimeout::suspend`] is called as well.
    pub(crate) fn set_mode(&self, mode: Mode) {
        self.0.mode.set(mode);
    }

    /// Blocks may become dirty from now on: waits for the device without a limit, until the mode is not write-back and
    /// `is_dirty` returns false.
    pub(crate) fn suspend(&self, is_dirty: impl Fn() -> bool + 'static) {
        let state = Rc::clone(&self.0);
        let Some(limit) = state.limit else { return };
        let task = state.task.get() + 1;
        state.task.set(task);
        (state.apply)(None);
        self.0.env.spawn(async move {
            let mut clean = 0;
            while clean < CLEAN_CHECKS {
                state.env.sleep(CHECK_INTERVAL).await;
                if state.task.get() != task {
                    return;
                }
                let needed = state.mode.get() == Mode::WriteBack || is_dirty();
                clean = if needed { 0 } else { clean + 1 };
            }
            (state.apply)(Some(limit));
            tracing::info!(
                "nothing is dirty: the time limit of {limit:?} for cache device operations applies again"
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use flaz_sim::{Sim, SimEnv};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(7);

    /// Limits that were applied, with their second.
    type Applied = Vec<(u64, Option<Duration>)>;

    /// A limit, and whether blocks are dirty.
    struct Rig {
        timeout: DeviceTimeout<SimEnv>,
        dirty: Rc<Cell<bool>>,
        applied: Rc<RefCell<Applied>>,
    }

    impl Rig {
        fn new(env: &SimEnv, mode: Mode) -> Self {
            let applied = Rc::<RefCell<Applied>>::default();
            let apply = {
                let (env, applied) = (env.clone(), Rc::clone(&applied));
                move |limit| applied.borrow_mut().push((env.now().0 / 1_000_000_000, limit))
            };
            Self {
                timeout: DeviceTimeout::new(env.clone(), Some(LIMIT), mode, apply),
                dirty: Rc::default(),
                applied,
            }
        }

        fn suspend(&self) {
            let dirty = Rc::clone(&self.dirty);
            self.timeout.suspend(move || dirty.get());
        }
    }

    #[test]
    fn limit_returns_after_consecutive_clean_checks() {
        let sim = Sim::new(1);
        let env = sim.env();
        let rig = Rig::new(&env, Mode::WriteBack);
        sim.block_on(async {
            rig.suspend();
            env.sleep(Duration::from_millis(60_500)).await;
            assert_eq!(*rig.applied.borrow(), [(0, None)], "write-back, though clean");
            rig.timeout.set_mode(Mode::WriteThrough);
            env.sleep(Duration::from_secs(2)).await;
            rig.dirty.set(true);
            env.sleep(Duration::from_secs(30)).await;
            assert_eq!(*rig.applied.borrow(), [(0, None)], "dirty before the third check");
            rig.dirty.set(false);
            env.sleep(Duration::from_secs(10)).await;
            assert_eq!(*rig.applied.borrow(), [(0, None), (95, Some(LIMIT))]);
        });
    }

    #[test]
    fn a_second_suspension_replaces_the_first() {
        let sim = Sim::new(2);
        let env = sim.env();
        let rig = Rig::new(&env, Mode::WriteThrough);
        sim.block_on(async {
            rig.suspend();
            env.sleep(Duration::from_millis(2500)).await;
            rig.suspend();
            env.sleep(Duration::from_secs(10)).await;
            assert_eq!(*rig.applied.borrow(), [(0, None), (2, None), (5, Some(LIMIT))]);
        });
    }

    #[test]
    fn without_a_limit_nothing_is_applied() {
        let sim = Sim::new(3);
        let env = sim.env();
        let timeout = DeviceTimeout::new(env.clone(), None, Mode::WriteBack, |_| panic!("no limit"));
        sim.block_on(async {
            timeout.suspend(|| false);
            env.sleep(Duration::from_secs(10)).await;
        });
    }
}
