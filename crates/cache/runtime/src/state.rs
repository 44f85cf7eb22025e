//! The state of a thread's runtime.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

use crate::driver::Driver;
use crate::op_table::OpTable;
use crate::task::{RunQueue, TaskTable};
use crate::timer::Timers;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// State of a thread's runtime.
pub(crate) struct Core {
    pub(crate) driver: Driver,
    pub(crate) ops: RefCell<OpTable>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) queue: Rc<RunQueue>,
    pub(crate) tasks: RefCell<TaskTable>,
    /// Tasks in `yield_now`: they continue after the next check for completions.
    pub(crate) yielded: RefCell<Vec<Waker>>,
    pub(crate) running: Cell<bool>,
}

/// The runtime of this thread.
///
/// # Panics
/// If there is none.
pub(crate) fn current() -> Rc<Core> {
    CURRENT.with_borrow(|core| {
        core.clone()
            .expect("this requires a runtime on the thread: call it inside Runtime::block_on")
    })
}

/// Sets the runtime of this thread to `core`, or to none.
pub(crate) fn set_current(core: Option<Rc<Core>>) {
    CURRENT.with_borrow_mut(|current| *current = core);
}
