//! The fault table's column for write-back: the cache device has data that the origin does not have.
//!
//! The modules are those of the rows, as one level up. A *dirty* block in these tests was written less than two seconds
//! ago: the writeback worker waits that long to gather writes.

mod cache_lost;
mod crashes;
mod damage;
mod errors;
pub mod full;
pub mod orderings;
mod origin;
mod random;
mod slow;
pub mod stable;
mod withdrawal;

use std::time::Duration;

use flaz_device::Env;
use flaz_engine::settings::{Mode, Settings};

use crate::faults::world::{BLOCKS, Live, World};

/// A new cache in write-back.
fn world(seed: u64) -> World {
    World::new(seed, Mode::WriteBack)
}

impl World {
    /// Opens the cache, and lets its tasks start: the writeback worker is idle.
    async fn serve(&self) -> Live {
        let live = self.open().await;
        live.env.sleep(Duration::from_millis(1)).await;
        live
    }

    /// Changes the mode of a served cache.
    fn switch(&self, live: &Live, mode: Mode) {
        live.cache.set(&Settings {
            mode,
            ..self.settings()
        });
    }

    /// Reads everything twice, then everything past the cache: clean blocks must equal the origin's.
    async fn check_twice(&self, live: &Live) {
        live.check_all().await;
        live.check_all().await;
        self.switch(live, Mode::PassThrough);
        live.check_all().await;
        self.switch(live, self.mode);
    }

    /// Every block is on the origin.
    fn assert_origin_complete(&self, live: &Live) {
        for block in 0..BLOCKS {
            assert_eq!(
                self.on_origin(block),
                live.expected(block),
                "block {block} of the origin"
            );
        }
    }
}
