//! Whether cache device operations have a time limit.
//!
//! Dirty blocks exist only on the cache device. While there are dirty blocks, or writes may make some, the engine waits
//! for a stalled device. When the mode is not write-back and nothing is dirty, the time limit applies again and the
//! device can be bypassed.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use flaz_device::Env;
use flaz_engine::settings::Mode;
use flaz_engine::shard::Shard;
use flaz_runtime::Rt;

use crate::device::{CacheDevice, Production};

/// Interval between two checks for dirty blocks.
const LOOK: Duration = Duration::from_secs(1);
/// Number of consecutive checks that must find nothing dirty before the limit applies again: a write that began in
/// write-back may be in flight.
const CLEAN_LOOKS: u32 = 3;

/// How long one thread waits for the cache device.
pub(crate) struct Patience(Rc<State>);

struct State {
    cache: Rc<CacheDevice>,
    limit: Option<Duration>,
    /// Whether the mode is write-back.
    writes_back: Cell<bool>,
    /// Number of the task that checks, if one does. A later task replaces an earlier one.
    turn: Cell<u64>,
}

impl Patience {
    /// The time limit applies until the mode says otherwise.
    pub(crate) fn new(cache: Rc<CacheDevice>, limit: Option<Duration>) -> Self {
        Self(Rc::new(State {
            cache,
            limit,
            writes_back: Cell::new(false),
            turn: Cell::new(0),
        }))
    }

    /// Records a mode. With write-back, [`Patience::be`] is called as well.
    pub(crate) fn set_mode(&self, mode: Mode) {
        self.0.writes_back.set(mode == Mode::WriteBack);
    }

    /// Blocks of these shards may become dirty from now on: waits for the device without a limit until none are.
    pub(crate) fn be(&self, shards: &[Rc<Shard<Production>>]) {
        let state = Rc::clone(&self.0);
        let Some(limit) = state.limit else { return };
        let turn = state.turn.get() + 1;
        state.turn.set(turn);
        state.cache.set_limit(None);
        // The shards end with their thread, even if this task still checks them.
        let shards: Vec<Weak<_>> = shards.iter().map(Rc::downgrade).collect();
        Rt.spawn(async move {
            let mut clean = 0;
            while clean < CLEAN_LOOKS {
                Rt.sleep(LOOK).await;
                if state.turn.get() != turn {
                    return;
                }
                let dirty = |shard: &Weak<Shard<Production>>| {
                    shard.upgrade().is_some_and(|shard| shard.dirty_blocks() > 0)
                };
                let keeps = state.writes_back.get() || shards.iter().any(dirty);
                clean = if keeps { 0 } else { clean + 1 };
            }
            state.cache.set_limit(Some(limit));
            tracing::info!(
                "nothing is dirty: the time limit of {limit:?} for cache device operations applies \
                again"
            );
        });
    }
}
