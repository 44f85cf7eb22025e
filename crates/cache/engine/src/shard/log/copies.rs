//! The two copies of each sector of the manifest.

use std::cell::{Cell, RefCell};

use flaz_device::local::Semaphore;

use crate::format::layout::Layout;

/// How to write sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Copies {
    /// One copy; stable with the next flush.
    One,
    /// One copy, stable on return.
    OneStable,
    /// Both copies; stable with the next flush.
    Both,
    /// Both copies, the first one stable on return.
    BothStable,
}

impl Copies {
    pub(super) fn is_stable(self) -> bool {
        matches!(self, Self::OneStable | Self::BothStable)
    }

    pub(super) fn are_both(self) -> bool {
        matches!(self, Self::Both | Self::BothStable)
    }
}

/// The writer of the manifest, and the copy of each sector to write next.
#[derive(Debug)]
pub(super) struct Manifest {
    /// Generation of the sector written last.
    generation: Cell<u64>,
    /// The copy of each sector to write next.
    pub(super) next: RefCell<Box<[u8]>>,
    pub(super) writer: Semaphore,
}

impl Manifest {
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            generation: Cell::new(0),
            next: RefCell::new(vec![0; layout.shard_manifest_sectors() as usize].into()),
            writer: Semaphore::new(1),
        }
    }

    pub(super) fn next_generation(&self) -> u64 {
        self.generation.set(self.generation.get() + 1);
        self.generation.get()
    }
}
