//! Simulated disks: their contents, which of them are durable, faults, and power cuts.
//!
//! Fault model. Sectors of [`SECTOR_BYTES`] are atomic, nothing larger is. A completed write is visible at once. It is
//! durable after a flush that was issued after its completion, or if it was FUA. A write in flight becomes visible in
//! up to two parts at random moments before its completion. [`DiscardMode`] determines the contents of a discarded
//! range. After a power cut, any subset of the sectors of volatile writes survives; where they overlap, in the order in
//! which they became visible. Errors, bit flips, lost and misdirected writes and stalls come from [`FaultRates`] or are
//! requested one by one.
//!
//! Invariants: misuse by the caller (unaligned or out of range) is a panic, a fault of the disk is an error; no state
//! is borrowed across an await or while the observer runs; after a future is dropped, the device completes its
//! operation at the scheduled time.

mod config;
mod contents;
mod device;
mod image;
mod volatile;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{DeviceOp, Env, Nanos};

pub use self::config::{DiskConfig, DiskStats, FaultRates, WRITE_CACHE_BYTES_DEFAULT};
pub use self::contents::{Background, DiscardMode, SECTOR_BYTES};
pub use self::image::{CrashPlan, DiskImage, DiskMoment};
pub use self::volatile::VolatileWrite;

use self::contents::sectors;
use self::volatile::Medium;
use crate::env::SimEnv;
use crate::rng::Rng;

/// `EIO`, as the operating system reports it.
pub(crate) const OS_ERROR_IO: i32 = 5;
/// `ENOSPC`.
pub(crate) const OS_ERROR_NO_SPACE: i32 = 28;

struct PlannedFailure {
    op: DeviceOp,
    /// Number of operations of this kind until the failing one, inclusive.
    countdown: u64,
    os_error: i32,
}

/// The space of a sparse disk.
struct Space {
    /// Pages that can still be taken.
    left: u64,
    taken: BTreeSet<u64>,
}

impl Space {
    const PAGE_BYTES: u64 = 4096;

    /// Takes the pages of a range; false, and no change, if there are too few.
    fn take(&mut self, offset: u64, len: u64) -> bool {
        let pages = offset / Self::PAGE_BYTES..(offset + len).div_ceil(Self::PAGE_BYTES);
        let new: Vec<u64> = pages.filter(|page| !self.taken.contains(page)).collect();
        let Some(left) = self.left.checked_sub(new.len() as u64) else {
            return false;
        };
        self.left = left;
        self.taken.extend(new);
        true
    }
}

struct State {
    medium: Medium,
    /// Only of a sparse disk.
    space: Option<Space>,
    rng: Rng,
    faults: FaultRates,
    planned: Vec<PlannedFailure>,
    bad_sectors: BTreeSet<u64>,
    dead: bool,
    stalled_until: Nanos,
    stats: DiskStats,
    in_flight: u64,
    /// Number of power cuts and restores so far: an operation from before one fails.
    generation: u64,
}

struct Shared {
    env: SimEnv,
    number: u32,
    /// As at the beginning: `len` is the length now.
    config: DiskConfig,
    len: Cell<u64>,
    state: RefCell<State>,
}

/// A simulated disk. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk {
    shared: Rc<Shared>,
}

impl SimDisk {
    /// A new disk with the contents of [`DiskConfig::background`].
    ///
    /// # Panics
    /// If the configuration is inconsistent.
    #[must_use]
    pub fn new(env: &SimEnv, config: DiskConfig) -> Self {
        let image = DiskImage::new(config);
        Self::from_image(env, &image)
    }

    /// A disk with the contents of `image`. All of it is durable, unless it is from [`DiskMoment::kill`].
    #[must_use]
    pub fn from_image(env: &SimEnv, image: &DiskImage) -> Self {
        let config = image.config().clone();
        let (number, rng) = env.register_disk();
        let state = State {
            medium: image.medium(),
            space: None,
            rng,
            faults: FaultRates::default(),
            planned: Vec::new(),
            bad_sectors: BTreeSet::new(),
            dead: false,
            stalled_until: Nanos(0),
            stats: DiskStats::default(),
            in_flight: 0,
            generation: 0,
        };
        Self {
            shared: Rc::new(Shared {
                env: env.clone(),
                number,
                len: Cell::new(config.len),
                config,
                state: RefCell::new(state),
            }),
        }
    }

    /// The number of this disk in [`crate::DeviceEvent::disk`].
    #[must_use]
    pub fn number(&self) -> u32 {
        self.shared.number
    }

    /// The disk has `len` bytes from now on, durably, as a volume that is extended. The new part has the contents of
    /// [`DiskConfig::background`].
    ///
    /// # Panics
    /// If it would shrink, or `len` is not a multiple of the alignment.
    pub fn grow(&self, len: u64) {
        let before = self.shared.len.replace(len);
        assert!(before <= len, "a disk of {before} bytes does not shrink to {len}");
        assert!(len.is_multiple_of(u64::from(self.shared.config.alignment)));
    }

    fn config(&self) -> DiskConfig {
        DiskConfig {
            len: self.shared.len.get(),
            ..self.shared.config.clone()
        }
    }

    /// Its counters.
    #[must_use]
    pub fn stats(&self) -> DiskStats {
        self.shared.state.borrow().stats
    }

    /// Sets the counters to zero.
    pub fn reset_stats(&self) {
        self.shared.state.borrow_mut().stats = DiskStats::default();
    }

    // Looking inside.

    /// `len` bytes at `offset` as a reader would see them now, without an operation.
    #[must_use]
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        let now = self.shared.env.now().0;
        self.shared
            .state
            .borrow_mut()
            .medium
            .visible(now)
            .read(offset, &mut out);
        out
    }

    /// `len` bytes at `offset` after a power cut that loses as much as possible.
    #[must_use]
    pub fn peek_durable(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        let state = self.shared.state.borrow();
        state.medium.durable().read(offset, &mut out);
        out
    }

    /// Changes bytes durably without an operation, at any alignment.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len() as u64);
        assert!(
            end.is_some_and(|end| end <= self.shared.len.get()),
            "poke over the end of the disk"
        );
        let now = self.shared.env.now().0;
        let mut state = self.shared.state.borrow_mut();
        state.medium.advance(now);
        state.medium.poke(offset, bytes);
    }

    /// Flips one bit permanently (bit rot).
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        let byte = self.peek(offset, 1)[0] ^ (1 << (bit % 8));
        self.poke(offset, &[byte]);
    }

    /// Flips one random bit in a range permanently, and returns its byte offset.
    pub fn rot(&self, offset: u64, len: u64) -> u64 {
        let (at, bit) = {
            let rng = &mut self.shared.state.borrow_mut().rng;
            (offset + rng.below(len), rng.below(8) as u8)
        };
        self.flip_bit(at, bit);
        at
    }

    // Power.

    /// The writes that a power cut now may undo, in order of issue.
    #[must_use]
    pub fn volatile_writes(&self) -> Vec<VolatileWrite> {
        self.advance();
        self.shared.state.borrow().medium.volatile_writes()
    }

    /// This moment, to create crash images from it later.
    #[must_use]
    pub fn moment(&self) -> DiskMoment {
        self.advance();
        let medium = self.shared.state.borrow().medium.clone();
        DiskMoment::new(self.config(), medium)
    }

    /// The image after a power cut at this moment; this disk continues unchanged.
    #[must_use]
    pub fn crash(&self, plan: &CrashPlan) -> DiskImage {
        self.crash_with(plan.chooser())
    }

    /// Like [`SimDisk::crash`]; `survives` is called with the index of a volatile write (as in
    /// [`SimDisk::volatile_writes`]) and the number of a sector of the disk, and returns whether it survives.
    #[must_use]
    pub fn crash_with(&self, survives: impl FnMut(usize, u64) -> bool) -> DiskImage {
        self.advance();
        let contents = self.shared.state.borrow().medium.crash(survives);
        DiskImage::from_parts(self.config(), contents)
    }

    /// Cuts the power of this disk: its contents become those that `plan` leaves; operations in flight fail.
    pub fn crash_in_place(&self, plan: &CrashPlan) {
        let image = self.crash(plan);
        self.restore(&image);
    }

    /// The contents that readers see now, as an image; all of it is durable.
    #[must_use]
    pub fn snapshot(&self) -> DiskImage {
        let now = self.shared.env.now().0;
        let contents = self.shared.state.borrow_mut().medium.visible(now).clone();
        DiskImage::from_parts(self.config(), contents)
    }

    /// Replaces the contents by those of `image`; operations in flight fail.
    ///
    /// # Panics
    /// If the image has another size.
    pub fn restore(&self, image: &DiskImage) {
        assert_eq!(
            image.len(),
            self.shared.len.get(),
            "the image has another size than the disk"
        );
        let mut state = self.shared.state.borrow_mut();
        state.generation += 1;
        state.bad_sectors.clear();
        state.medium = image.medium();
    }

    /// Ends all operations in flight now; by chance, each part of them is done or not. The kernel does the same to the
    /// operations of a process that dies. Call it after [`crate::Sim::kill_tasks`].
    pub fn settle(&self) {
        self.advance();
        let state = &mut *self.shared.state.borrow_mut();
        state.medium.settle(&mut state.rng);
    }

    fn advance(&self) {
        let now = self.shared.env.now().0;
        self.shared.state.borrow_mut().medium.advance(now);
    }

    // Faults.

    /// Sets the rates of random faults from now on.
    pub fn set_faults(&self, faults: FaultRates) {
        self.shared.state.borrow_mut().faults = faults;
    }

    /// Makes operation `nth` of a kind, counted from now (1: the next one), fail with `EIO`.
    pub fn fail_nth(&self, op: DeviceOp, nth: u64) {
        self.fail_nth_with(op, nth, OS_ERROR_IO);
    }

    /// Like [`SimDisk::fail_nth`], with an error number of the operating system.
    pub fn fail_nth_with(&self, op: DeviceOp, nth: u64, os_error: i32) {
        assert!(nth > 0, "operations are counted from 1");
        self.shared.state.borrow_mut().planned.push(PlannedFailure {
            op,
            countdown: nth,
            os_error,
        });
    }

    /// Removes the disk (every operation fails, also those in flight) or restores it.
    pub fn set_dead(&self, dead: bool) {
        self.shared.state.borrow_mut().dead = dead;
    }

    /// Makes the disk sparse: it takes space when a range is first written or allocated, and has `bytes` more than it has taken
    /// so far.
    pub fn set_space(&self, bytes: u64) {
        let space = &mut self.shared.state.borrow_mut().space;
        let taken = space.take().map_or_else(BTreeSet::new, |space| space.taken);
        *space = Some(Space {
            left: bytes / Space::PAGE_BYTES,
            taken,
        });
    }

    /// Makes reads of a range fail until it is written again.
    pub fn mark_bad(&self, offset: u64, len: u64) {
        self.shared
            .state
            .borrow_mut()
            .bad_sectors
            .extend(sectors(offset, len));
    }

    /// Delays all operations that are issued in the next `duration` until it has passed.
    pub fn stall(&self, duration: Duration) {
        let until = self.shared.env.now().after(duration);
        self.shared.state.borrow_mut().stalled_until = until;
    }
}
