//! Sleeping tasks by deadline.

use std::collections::BTreeMap;
use std::task::Waker;

use flaz_device::Nanos;

/// A deadline and a number that makes it unique.
pub(crate) type Key = (Nanos, u64);

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

    pub(crate) fn insert(&mut self, deadline: Nanos, waker: Waker) -> Key {
        let key = (deadline, self.next_id);
        self.next_id += 1;
        self.entries.insert(key, waker);
        key
    }

    /// The waker of an entry that has not fired.
    pub(crate) fn waker_mut(&mut self, key: Key) -> Option<&mut Waker> {
        self.entries.get_mut(&key)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Waker> {
        self.entries.remove(&key)
    }
}
