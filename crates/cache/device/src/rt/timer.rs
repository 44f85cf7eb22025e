//! Sleeping tasks by deadline.
//!
//! Invariant: every entry belongs to one live [`Sleep`], which removes it when it is dropped, so the map is
//! bounded by the number of sleeping futures.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::executor::{Core, monotonic};
use crate::Nanos;

/// A deadline and a number that makes it unique.
type Key = (Nanos, u64);

#[derive(Default)]
pub(crate) struct Timers {
    entries: BTreeMap<Key, Waker>,
    next_id: u64,
}

impl Timers {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The earliest deadline.
    pub(crate) fn first(&self) -> Option<Nanos> {
        self.entries.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// Removes the earliest entry that is due at `now`.
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<Waker> {
        let entry = self.entries.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    fn insert(&mut self, deadline: Nanos, waker: Waker) -> Key {
        let key = (deadline, self.next_id);
        self.next_id += 1;
        self.entries.insert(key, waker);
        key
    }
}

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
        match this.key.and_then(|key| timers.entries.get_mut(&key)) {
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
            let waker = self.core.timers.borrow_mut().entries.remove(&key);
            drop(waker);
        }
    }
}
