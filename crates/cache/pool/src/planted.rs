//! Deliberate defects, for the tests that the crash simulation finds them. (`flaz_engine::planted` has those of a cache, and says how
//! they work.)

/// The deliberate defects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// The table names the copy of a chunk before the copy is stable.
    MovedUnflushed,
    /// Writes to a part go on while it is copied.
    MovedUnderWrites,
    /// The pool is changed while the table still names an older copy of a part.
    CopyForgotten,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
}

/// From now on this thread has the defect, and no other.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<PlantedBug>) {
    PLANTED.set(bug);
}

/// Whether this thread has the defect.
#[cfg(feature = "planted-bugs")]
pub(crate) fn planted(bug: PlantedBug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether this thread has the defect.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn planted(_bug: PlantedBug) -> bool {
    false
}
