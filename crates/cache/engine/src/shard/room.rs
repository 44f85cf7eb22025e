//! Space in the log: what follows an append, and waiting for a free region.

use std::rc::Rc;

use super::log::WRITES_IN_FLIGHT_MAX;
use super::{Platform, Shard};
use crate::stats::count;

impl<P: Platform> Shard<P> {
    /// Call it after every append: sends sealed extents, and wakes reclaim if regions run short.
    pub(super) fn appended(self: &Rc<Self>) {
        self.pump_writes();
        self.want_reclaim();
    }

    pub(super) async fn wait_for_room(self: &Rc<Self>) {
        let full = self.log.writes_in_flight() >= WRITES_IN_FLIGHT_MAX;
        count(&self.stats.counters.cache_writes_full, u64::from(full));
        self.pump_writes();
        if self.is_stopping() && !self.cache.is_fenced() && self.can_reclaim() {
            // The reclaim task has ended. Boxed, because this is rare and the future is large.
            let freed = Box::pin(self.reclaim_one(true)).await;
            if freed || self.reclaimer.is_stuck() {
                return;
            }
        }
        self.want_reclaim();
        self.log.room().await;
    }
}
