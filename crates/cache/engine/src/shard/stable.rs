//! Making the log stable, and recording that in the manifest.
//!
//! Recovery takes the first place without a whole extent for the end of an open region. A write that a power cut
//! interrupted looks like that, and so does damage to an extent that was flushed. Only the manifest distinguishes them: an
//! extent that it calls stable must be present, so if it cannot be read, its blocks give an error or the start is refused.
//!
//! | what makes the log stable | when the mark in the manifest is stable |
//! |---|---|
//! | a flush or FUA write, strict, or while the shard stops | before the reply |
//! | another flush or FUA write | soon after the reply: [`Shard::mark_task`] |
//! | writeback, reclaim, clearing of intents, stop, recovery | before they go on |
//!
//! The manifest never claims more than a flush has made stable, so a power cut alone never leaves less.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::Env;
use futures_util::future::{Either, select};

use super::{Platform, Shard};
use crate::planted::{PlantedBug, planted};
use crate::settings::StrictFlush;

/// Attempts to write the manifest before the cache device is fenced, or before the next flush tries again.
const TRIES_MAX: u32 = 3;
/// How long a written mark waits for another flush to make it stable, before the device is flushed for that.
const FORCE_AFTER: Duration = Duration::from_millis(2);

impl<P: Platform> Shard<P> {
    /// Whether the reply to a flush waits until the mark that covers it is stable. While the shard stops, no task follows, and
    /// the end of the stop may have to wait for the origin.
    pub(super) fn flushes_strictly(&self) -> bool {
        self.is_stopping() || self.is_set_to_flush_strictly()
    }

    fn is_set_to_flush_strictly(&self) -> bool {
        match self.tuning.settings().strict_flush {
            StrictFlush::Always => true,
            StrictFlush::Never => false,
            StrictFlush::Auto => !self.cache.has_volatile_cache(),
        }
    }

    /// Waits until everything appended so far is stable on the cache device, and its mark too. False: the device failed.
    pub(super) async fn make_log_stable(self: &Rc<Self>) -> bool {
        let point = self.log.seal_for_flush();
        self.pump_writes();
        loop {
            if self.cache.is_fenced() {
                return false;
            }
            if self.log.has_ended(&point) {
                break;
            }
            self.log.write_ended().await;
        }
        if let Err(error) = self.cache.flush().await {
            self.cache_error(&error);
            self.fence("the cache device failed a flush");
            return false;
        }
        self.log.note_flushed(&point);
        if !self.make_marks_stable().await {
            return false;
        }
        self.log.raise_stable(&point);
        self.map.log_stable(&self.log);
        true
    }

    /// Makes the marks of the stable part of the log stable. False: the device failed, and is fenced.
    pub(super) async fn make_marks_stable(self: &Rc<Self>) -> bool {
        if planted(PlantedBug::StableMarkSkipped) {
            return true;
        }
        for _ in 0..TRIES_MAX {
            if self.cache.is_fenced() {
                return false;
            }
            match self.log.write_marks(&self.cache, true).await {
                Ok(()) => return !self.cache.is_fenced(),
                Err(error) => self.cache_error(&error),
            }
        }
        self.fence("the manifest could not be written");
        false
    }

    /// Follows acknowledged flushes until the shard stops, including those before. A mark is written at once, which is enough
    /// if the process is killed. For a power cut, the next flush makes it stable, or a flush of the task's own if none comes:
    /// so marks cost clients no flush.
    pub(super) async fn mark_task(shard: Rc<Self>) {
        while !shard.is_stopping() {
            let (answered, stopped) = (shard.log.flush_answered(), shard.tasks.stopped());
            // If both have happened, the flush is followed.
            if let Either::Left(_) = select(pin!(answered), pin!(stopped)).await
                && !planted(PlantedBug::StableMarkSkipped)
            {
                shard.follow_flushes().await;
            }
        }
    }

    async fn follow_flushes(self: &Rc<Self>) {
        let fua = self.cache.fua_stands_alone();
        let mut failures = 0;
        while !self.cache.is_fenced() {
            if self.is_stopping() {
                // No more flushes are to be followed. On failure the device has been fenced.
                self.make_marks_stable().await;
                return;
            }
            if !self.log.unmarked(false).is_empty() {
                if let Err(error) = self.log.write_marks(&self.cache, fua).await {
                    self.cache_error(&error);
                    failures += 1;
                    if failures == TRIES_MAX {
                        return;
                    }
                }
                continue;
            }
            if self.log.unmarked(true).is_empty() {
                return;
            }
            let (pause, answered) = (self.env.sleep(FORCE_AFTER), self.log.flush_answered());
            if let Either::Left(_) = select(pin!(pause), pin!(answered)).await {
                let point = self.log.landed_point();
                if let Err(error) = self.cache.flush().await {
                    self.cache_error(&error);
                    self.fence("the cache device failed a flush");
                    return;
                }
                self.log.note_manifest_flushed(&point);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use flaz_device::IoBuf;
    use flaz_sim::Rng;

    use crate::format::geometry::GeometryOptions;
    use crate::shard::Shard;
    use crate::shard::simulated::{Disks, Simulated};
    use crate::shard::tasks::Phase;
    use crate::units::BLOCK_BYTES;

    /// A shard of whose tasks only the one that follows flushes runs.
    fn serving(disks: &Disks) -> Rc<Shard<Simulated>> {
        let shard = disks.shard(1);
        shard.tasks.enter(Phase::Serving);
        shard.tasks.spawn(&disks.env, Shard::mark_task(Rc::clone(&shard)));
        shard
    }

    async fn write_one_dirty(shard: &Rc<Shard<Simulated>>) {
        let mut data = IoBuf::new(BLOCK_BYTES);
        Rng::new(1).fill(&mut data);
        let lock = shard.lock_blocks(&(0..1)).await;
        let written = shard.write_back(0, data, false, &(0..1), &lock).await;
        assert!(written.is_ok(), "it is acknowledged");
    }

    /// The task that follows flushes has ended, and the stop may still wait for the origin.
    #[test]
    fn a_flush_while_the_shard_stops_is_marked_before_the_reply() {
        let disks = Disks::new(8 << 20, GeometryOptions::default());
        disks.sim.block_on(async {
            let shard = serving(&disks);
            write_one_dirty(&shard).await;
            shard.stop().await;
            assert!(!shard.log.keeps_promises());
            shard.flush().await.expect("the devices are well");
            assert!(shard.log.keeps_promises() && shard.log.unmarked(true).is_empty());
        });
    }

    #[test]
    fn a_flush_just_before_a_stop_is_marked_by_its_end() {
        let disks = Disks::new(8 << 20, GeometryOptions::default());
        disks.sim.block_on(async {
            let shard = serving(&disks);
            write_one_dirty(&shard).await;
            shard.flush().await.expect("the devices are well");
            assert!(
                !shard.log.unmarked(false).is_empty(),
                "the mark follows the reply"
            );
            shard.stop().await;
            assert!(shard.log.unmarked(true).is_empty());
        });
    }
}
