//! The stable mark: how far the log was stable when a flush was answered, kept on the cache device.
//!
//! Recovery takes the first place without a whole extent for the end of the log. A write that a power cut interrupted looks
//! like that, and so does damage to an extent that was flushed. Only a mark on the device tells them apart: an extent that
//! it covers is there, so if it cannot be read, its blocks give an error or the start is refused.
//!
//! The positions of a mark are the durable marks of the intent bitmap
//! ([`DurableMark`](crate::format::intent::DurableMark)), which every page of the bitmap carries. This module decides when a
//! page is written for their sake:
//!
//! | who makes the log stable | when the mark is stable |
//! |---|---|
//! | a flush or FUA write, strict | before the answer |
//! | a flush or FUA write, not strict | soon after the answer: [`follow`](Shard::follow) |
//! | cleaner, reclaim, clearing of intents, stop, recovery | before they go on |
//!
//! Invariants:
//! - A mark names only extents that a flush of the cache device has made stable: a power cut alone never leaves less.
//! - `stable <= written <= wanted`. These are numbers of positions, counted from 1 in each opening: the newest position, the
//!   newest in a completed write, the newest in a stable one.
//! - At most one write of a mark is in flight in a shard; it carries the newest position.
//! - Nothing is written where no block has been dirty, nor where the newest position is already stable.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::Env;
use flaz_device::local::Notify;
use futures_util::future::{Either, select};

use super::tasks::Phase;
use super::{Platform, Shard};
use crate::settings::StrictFlush;

/// Times that a mark is written before the cache device is fenced, or before the next flush tries again.
const TRIES_MAX: u32 = 3;
/// How long a completed mark waits for the next flush to make it stable, before the device is flushed for its sake.
const FORCE_AFTER: Duration = Duration::from_millis(2);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct StableMark {
    wanted: Cell<u64>,
    written: Cell<u64>,
    stable: Cell<u64>,
    /// A region ended shortly before a flush: a mark can cover what follows that region once its summary is stable.
    behind: Cell<bool>,
    /// The task that follows flushes is running.
    following: Cell<bool>,
    /// There is a new position.
    moved: Notify,
}

impl StableMark {
    /// No position of this opening is on the device yet.
    pub(super) fn new() -> Self {
        Self {
            wanted: Cell::new(1),
            written: Cell::new(0),
            stable: Cell::new(0),
            behind: Cell::new(false),
            following: Cell::new(false),
            moved: Notify::new(),
        }
    }

    /// The log is stable up to a new position; with `behind` it cannot be marked before a summary is stable.
    pub(super) fn advance(&self, moved: bool, behind: bool) {
        self.wanted.set(self.wanted.get() + u64::from(moved));
        self.behind.set(self.behind.get() || behind);
    }

    /// The newest position.
    pub(super) fn wanted(&self) -> u64 {
        self.wanted.get()
    }

    /// A page with the position of this number has been written, and is stable or not.
    pub(super) fn note_written(&self, number: u64, stable: bool) {
        assert!(
            number <= self.wanted.get(),
            "a mark of a position that is to come"
        );
        self.written.set(self.written.get().max(number));
        if stable {
            self.stable.set(self.stable.get().max(number));
        }
    }

    /// Whether the position of this number is on the device, stable or not.
    pub(super) fn covers(&self, number: u64, stable: bool) -> bool {
        let on_device = if stable { &self.stable } else { &self.written };
        on_device.get() >= number
    }
}

impl<P: Platform> Shard<P> {
    /// Whether a flush is answered after its mark is stable.
    pub(super) fn flushes_strictly(&self) -> bool {
        match self.tuning.settings().strict_flush {
            StrictFlush::Always => true,
            StrictFlush::Never => false,
            StrictFlush::Auto => !self.cache.has_volatile_cache(),
        }
    }

    /// Makes the mark of the present position stable. False: the device failed, and is fenced.
    pub(super) async fn make_mark_stable(self: &Rc<Self>) -> bool {
        if !self.writeback.has_dirty_records() {
            return true;
        }
        let wanted = self.stable_mark.wanted();
        for _ in 0..TRIES_MAX {
            if self.cache.is_fenced() {
                return false;
            }
            match self.write_marks(wanted, true).await {
                Ok(()) => return !self.cache.is_fenced(),
                Err(error) => self.cache_error(&error),
            }
        }
        self.fence("the stable position of the log could not be written");
        false
    }

    /// Has the mark follow the flush that is being answered.
    pub(super) fn mark_soon(self: &Rc<Self>) {
        let mark = &self.stable_mark;
        mark.moved.notify_all();
        if self.tasks.phase() == Phase::Opening || mark.following.replace(true) {
            return;
        }
        let shard = Rc::clone(self);
        self.tasks.spawn(&self.env, async move {
            shard.follow().await;
            shard.stable_mark.following.set(false);
        });
    }

    /// Writes marks until the newest one is stable. A mark is written at once, which is enough when the process is killed. For
    /// a power cut the next flush makes it stable, or one of our own where none comes: so it costs clients no flush.
    async fn follow(self: &Rc<Self>) {
        let mark = &self.stable_mark;
        let fua = self.cache.fua_stands_alone();
        let mut failures = 0;
        while !self.cache.is_fenced() {
            if mark.behind.take() && !self.make_log_stable().await {
                return;
            }
            let wanted = mark.wanted();
            if !mark.covers(wanted, false) {
                if let Err(error) = self.write_marks(wanted, fua).await {
                    self.cache_error(&error);
                    failures += 1;
                    if failures == TRIES_MAX {
                        return;
                    }
                }
                continue;
            }
            if mark.covers(wanted, true) {
                return;
            }
            let (pause, moved) = (self.env.sleep(FORCE_AFTER), mark.moved.notified());
            if let Either::Left(_) = select(pin!(pause), pin!(moved)).await {
                if let Err(error) = self.cache.flush().await {
                    self.cache_error(&error);
                    self.fence("the cache device failed a flush");
                    return;
                }
                mark.note_written(wanted, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stable_mark_is_a_written_one() {
        let mark = StableMark::new();
        assert!(!mark.covers(mark.wanted(), false), "none is on the device yet");
        mark.note_written(1, true);
        mark.advance(true, false);
        mark.note_written(2, false);
        assert!(mark.covers(2, false) && mark.covers(1, true) && !mark.covers(2, true));
        mark.advance(false, true);
        assert_eq!(mark.wanted(), 2, "nothing has moved");
        assert!(mark.behind.take());
    }
}
