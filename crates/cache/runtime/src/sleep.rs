//! Sleeps until a deadline.
//!
//! Invariant: every entry among the [timers](crate::timer) belongs to one live [`Sleep`], which removes it when it is
//! dropped, so the number of sleeping futures limits their map.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use flaz_device::Nanos;

use crate::clock::monotonic;
use crate::state::Core;
use crate::timer::Key;

/// Ends at a deadline.
pub(crate) struct Sleep {
    core: Rc<Core>,
    deadline: Nanos,
    key: Option<Key>,
}

impl Sleep {
    pub(crate) fn until(core: Rc<Core>, deadline: Nanos) -> Self {
        Self {
            core,
            deadline,
            key: None,
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if monotonic() >= self.deadline {
            return Poll::Ready(());
        }
        let this = &mut *self;
        let mut timers = this.core.timers.borrow_mut();
        match this.key.and_then(|key| timers.waker_mut(key)) {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            Some(waker) => *waker = cx.waker().clone(),
            None => this.key = Some(timers.insert(this.deadline, cx.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let waker = self.core.timers.borrow_mut().remove(key);
            drop(waker);
        }
    }
}
