//! Flush and detach: write all dirty blocks to the origin.
//!
//! Both are canceled when their client disconnects, and the cache is served as before. A stop also cancels them: only a completed detach
//! leaves an empty cache.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use flaz_control::settings::SettingsPatch;
use flaz_control::size::counted;
use flaz_engine::cache::lifecycle::Leave;
use flaz_engine::settings::Mode;
use flaz_engine::volume::IoError;

use super::{CLEAN_WITHIN, Daemon, Lasting};
use crate::error::HostError;
use crate::order::{ANSWER_WITHIN, Order};

/// Maximum number of further writeback passes in a detach, for writes that arrive while it begins.
const CLEAN_TURNS_MAX: u32 = 3;

/// State of a detach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Detach {
    /// None was requested.
    #[default]
    No,
    /// Dirty blocks are being written to the origin; write-back is not permitted.
    Begun,
    /// The origin is complete: the stop that follows leaves an empty cache.
    Complete,
    /// A stop began before the detach completed; the cache keeps its contents.
    TooLate,
}

/// Why writeback left dirty blocks although it met no error, and what to do. Blocks that are merely rewritten again and
/// again must not be discarded.
pub(super) fn left_dirty(left: u64, damaged_blocks: u64) -> HostError {
    if damaged_blocks > 0 {
        return damaged(damaged_blocks);
    }
    format!(
        "{} still dirty because clients rewrite data as fast as it is written back: try again when the clients \
         write less, or stop them first",
        counted(left, "block is", "blocks are")
    )
    .into()
}

/// What to do about dirty blocks that cannot be read.
fn damaged(blocks: u64) -> HostError {
    format!(
        "{} damaged on the cache device: `flaz check` lists the byte ranges; overwrite these through the served \
         device, or discard all dirty blocks with `flaz serve --discard-cache --discard-dirty`",
        counted(
            blocks,
            "block cannot be written to the origin because it is",
            "blocks cannot be written to the origin because they are"
        )
    )
    .into()
}

impl Daemon {
    /// Writes all dirty blocks to the origin. Returns the number of blocks that are still dirty: written in the
    /// meantime, or damaged.
    ///
    /// # Errors
    /// Writeback fails; or it was canceled because `gone` returned true: then writeback continues at its normal rate.
    pub fn clean(&self, gone: &dyn Fn() -> bool) -> Result<u64, HostError> {
        self.write_all(gone)
            .map_err(|error| self.why_not_clean(gone, error))
    }

    fn write_all(&self, gone: &dyn Fn() -> bool) -> Result<u64, HostError> {
        let cleaned = self.threads.ask_unless(gone, CLEAN_WITHIN, Order::Clean)?;
        let left = self.dirty_blocks()?;
        if let Some(error) = cleaned.into_iter().find_map(Result::err) {
            return Err(self.not_clean(left, &error));
        }
        if left == 0
            && let Err(error) = self.settle()
        {
            tracing::warn!("the cache stays marked as dirty: {error}");
        }
        Ok(left)
    }

    /// The reason why dirty blocks remain: a stop, the cancellation, or else `error`.
    fn why_not_clean(&self, gone: &dyn Fn() -> bool, error: HostError) -> HostError {
        if self.stopping.load(Ordering::SeqCst) {
            return "the daemon is stopping: the cache may still contain dirty blocks; keep it, serve it again, then try again"
                .into();
        }
        if gone() {
            return "interrupted: blocks that are not on the origin yet stay dirty; keep the cache, and try again".into();
        }
        error
    }

    /// Why blocks stay dirty, and what to do.
    fn not_clean(&self, left: u64, error: &IoError) -> HostError {
        let cache = self.spec.cache.display();
        // Counted now, because some of the damaged blocks may have been overwritten since.
        if let Ok(damaged_blocks @ 1..) = self.only_damage_left() {
            return damaged(damaged_blocks);
        }
        let why = match error {
            // The variant's own prefix is meant for a request and would repeat this message.
            IoError::CacheFailed(why) => why.clone(),
            _ => error.to_string(),
        };
        format!(
            "{} still dirty and only on {cache}: {why}; keep that device, and try again when the problem is fixed",
            counted(left, "block is", "blocks are")
        )
        .into()
    }

    fn dirty_blocks(&self) -> Result<u64, HostError> {
        let parts = self.threads.ask(ANSWER_WITHIN, Order::State)?;
        Ok(parts.iter().map(|part| part.dirty_blocks).sum())
    }

    /// Number of damaged dirty blocks, if nothing else hinders writeback; else 0.
    fn only_damage_left(&self) -> Result<u64, HostError> {
        let parts = self.threads.ask(ANSWER_WITHIN, Order::Stats)?;
        let failing = parts.iter().any(|part| part.total.holdings.writeback_failing > 0);
        let damaged = parts.iter().map(|part| part.total.holdings.damaged_blocks).sum();
        Ok(if failing { 0 } else { damaged })
    }

    fn damaged_blocks(&self) -> Result<u64, HostError> {
        let parts = self.threads.ask(ANSWER_WITHIN, Order::Stats)?;
        Ok(parts.iter().map(|part| part.total.holdings.damaged_blocks).sum())
    }

    /// Makes the origin complete: stops write-back and writes all dirty blocks to the origin. The next stop leaves an
    /// empty cache. A second detach waits for the first.
    ///
    /// # Errors
    /// Some blocks cannot be written to the origin, so the cache is still needed; a stop came first; or the detach was canceled because
    /// `gone` returned true: then the mode is restored.
    pub fn detach(&self, gone: &dyn Fn() -> bool) -> Result<(), HostError> {
        if let Some(user) = self.front_ends.iter().find_map(|front_end| front_end.in_use()) {
            return Err(format!("{user}: unmount it first, so that the cache can be taken away").into());
        }
        let _alone = self.detaches.lock().unwrap_or_else(PoisonError::into_inner);
        // From here on, `set` refuses write-back.
        if self.moved(Detach::No, Detach::Begun) == Detach::Complete {
            return Ok(());
        }
        let before = {
            let _unchanged = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            self.settings_now().mode
        };
        let done = self.bring_all(gone).and_then(|()| self.complete(gone));
        let Err(error) = done else {
            self.front_ends.iter().for_each(|front_end| front_end.detached());
            return Ok(());
        };
        self.moved(Detach::Begun, Detach::No);
        let error = self.why_not_clean(gone, error);
        if before != Mode::WriteBack || self.stopping.load(Ordering::SeqCst) {
            return Err(error);
        }
        if gone() {
            self.set_mode(before)?;
            tracing::info!("the detach was interrupted: the cache is served as before, in write-back");
            return Err(error);
        }
        // The mode is not changed back: write-through adds no dirty blocks.
        Err(format!("{error} (the mode is write-through now)").into())
    }

    /// Whether a detach is under way or complete.
    pub(super) fn is_detaching(&self) -> bool {
        matches!(*self.detach_state(), Detach::Begun | Detach::Complete)
    }

    pub(super) fn detach_state(&self) -> MutexGuard<'_, Detach> {
        self.detach.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state from `from` to `to`, if it is `from`. Returns the state afterwards.
    fn moved(&self, from: Detach, to: Detach) -> Detach {
        let mut state = self.detach_state();
        if *state == from {
            *state = to;
        }
        *state
    }

    /// Marks the detach as complete, after all dirty blocks were written to the origin.
    fn complete(&self, gone: &dyn Fn() -> bool) -> Result<(), HostError> {
        if gone() || self.moved(Detach::Begun, Detach::Complete) != Detach::Complete {
            return Err("the detach did not complete".into());
        }
        Ok(())
    }

    /// Whether a stop leaves the contents or an empty cache. Afterwards no detach can complete.
    pub(super) fn left_by_stop(&self) -> Leave {
        let mut state = self.detach_state();
        if *state == Detach::Complete {
            return Leave::Empty;
        }
        *state = Detach::TooLate;
        Leave::Contents
    }

    fn set_mode(&self, mode: Mode) -> Result<(), HostError> {
        let patch = SettingsPatch {
            mode: Some(mode),
            ..SettingsPatch::default()
        };
        self.set(&patch, Lasting::UntilRestart)?;
        Ok(())
    }

    fn bring_all(&self, gone: &dyn Fn() -> bool) -> Result<(), HostError> {
        self.set_mode(Mode::WriteThrough)?;
        let mut left = self.write_all(gone)?;
        for _ in 0..CLEAN_TURNS_MAX {
            if left == 0 {
                break;
            }
            // A write that was in progress when its shard had not yet seen the new mode.
            left = self.write_all(gone)?;
        }
        if left > 0 {
            return Err(left_dirty(left, self.damaged_blocks()?));
        }
        Ok(())
    }
}
