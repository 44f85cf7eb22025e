//! When the cache device must answer in time, and when it is waited for.
//!
//! Dirty blocks are nowhere else: while there are some, or writes may become so, a device that stalls is waited for. When
//! the mode is another than write-back and nothing is dirty any more, it has its limit again and can be bypassed.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use flaz_device::Env;
use flaz_engine::settings::Mode;
use flaz_engine::shard::Shard;
use flaz_runtime::Rt;

use crate::device::{CacheDevice, Production};

/// Between two looks at what is dirty.
const LOOK: Duration = Duration::from_secs(1);
/// Looks that must have found nothing dirty before the limit is back: a write may be under way that began in write-back.
const CLEAN_LOOKS: u32 = 3;

/// How long one thread waits for the cache device.
pub(crate) struct Patience(Rc<State>);

struct State {
    cache: Rc<CacheDevice>,
    limit: Option<Duration>,
    /// Whether the mode is write-back.
    writes_back: Cell<bool>,
    /// Which task looks, if one does: a later one takes the place of an earlier one.
    turn: Cell<u64>,
}

impl Patience {
    /// The device has its limit until it is told otherwise.
    pub(crate) fn new(cache: Rc<CacheDevice>, limit: Option<Duration>) -> Self {
        Self(Rc::new(State {
            cache,
            limit,
            writes_back: Cell::new(false),
            turn: Cell::new(0),
        }))
    }

    /// Notes a mode. With write-back [`Patience::be`] is called as well.
    pub(crate) fn set_mode(&self, mode: Mode) {
        self.0.writes_back.set(mode == Mode::WriteBack);
    }

    /// Blocks of these shards may be dirty from now on: the device is waited for until that is over.
    pub(crate) fn be(&self, shards: &[Rc<Shard<Production>>]) {
        let state = Rc::clone(&self.0);
        let Some(limit) = state.limit else { return };
        let turn = state.turn.get() + 1;
        state.turn.set(turn);
        state.cache.set_limit(None);
        // Shards end with their thread, whoever looks at them.
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
            tracing::info!("nothing is dirty: the cache device has {limit:?} for an operation again");
        });
    }
}
