//! A volume's part in the shrink of its cache device, while it is served: see `pool::shrink`, which asks for it.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use flaz_control::report::{ShrinkProgress, ShrinkReport};
use flaz_control::size::HumanBytes;

use super::Daemon;
use crate::error::HostError;
use crate::pool::shrink::move_some;

/// A shrink that has not asked for so long is not reported.
const ASKED_WITHIN: Duration = Duration::from_secs(10);

/// What the volume was asked for, and how far it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    at: Instant,
    keep_bytes: u64,
    progress: ShrinkProgress,
}

impl Daemon {
    /// Gives back what the volume has more than `keep_bytes`, then moves what lies beyond the new end of the device: for a short time.
    /// Returns what is left to do.
    ///
    /// # Errors
    /// The cache is not that of a volume, is stopping, or cannot give so much back; or the device fails.
    pub fn make_room(&self, keep_bytes: u64) -> Result<ShrinkProgress, HostError> {
        let member = self.held.member.as_ref();
        let member = member.ok_or("the cache shares its device with no other volume")?;
        if self.is_stopping() {
            return Err("the daemon is stopping".into());
        }
        let map = member.part.map();
        let keep = u32::try_from(keep_bytes / map.chunk_bytes()).unwrap_or(u32::MAX);
        let mut dirty_bytes_left = 0;
        match self.go_on_giving()? {
            Some(state) => dirty_bytes_left = state.dirty_bytes_left,
            None if map.chunks() > keep => {
                // Before: nothing that is given back is taken again.
                map.set_limit(keep);
                let begun = self.begin_to_give(map.chunks().saturating_sub(keep))?;
                if !begun && map.chunks() > keep {
                    return Err(format!(
                        "the volume has {}, and cannot give back more than it has: expected {} at most; restart its service, or lower \
                         --at-least of others",
                        HumanBytes(u64::from(map.chunks()) * map.chunk_bytes()),
                        HumanBytes(keep_bytes)
                    )
                    .into());
                }
            }
            None => {}
        }
        let to_give = u64::from(map.chunks().saturating_sub(keep));
        let to_move = move_some(&member.client, member.entry.number, || self.is_stopping())?;
        let progress = ShrinkProgress {
            regions_left: to_give + to_move,
            dirty_bytes_left,
        };
        let mut known = self.share.lock().unwrap_or_else(PoisonError::into_inner);
        known.asked = Some(Asked {
            at: Instant::now(),
            keep_bytes,
            progress,
        });
        Ok(progress)
    }

    /// The shrink of the device that is under way, for a report of the volume.
    pub(super) fn shrink_of_device(&self) -> Option<ShrinkReport> {
        let held = self.held.member.as_ref().map(|member| member.part.map())?;
        let known = self.share.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = known.asked.filter(|asked| asked.at.elapsed() < ASKED_WITHIN)?;
        let progress = asked.progress;
        (progress.regions_left > 0).then(|| ShrinkReport {
            size_bytes: (u64::from(held.chunks()) * held.chunk_bytes()).min(asked.keep_bytes),
            regions_left: progress.regions_left,
            dirty_bytes_left: progress.dirty_bytes_left,
        })
    }
}
