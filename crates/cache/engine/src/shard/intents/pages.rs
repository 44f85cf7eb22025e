//! Writes pages of the bitmap.

use flaz_device::DeviceError;

use crate::format::geometry::PAGE_BYTES;
use crate::planted::{PlantedBug, planted};
use crate::shard::{Platform, Shard};
use crate::stats::count;

impl<P: Platform> Shard<P> {
    pub(super) fn intent_position(&self, page: u64) -> u64 {
        self.id.layout.shard_intent_offset(self.id.number) + page * PAGE_BYTES as u64
    }

    /// Number of this shard's first sector in the bitmap.
    pub(super) fn first_intent_sector(&self) -> u64 {
        self.id.layout.shard_intent_len() / 512 * u64::from(self.id.number)
    }

    /// Writes a page of the bitmap: the set bits and `also`. The caller holds the permit.
    pub(in crate::shard) async fn write_intents(
        &self,
        page: u64,
        also: &[u64],
        stable: bool,
    ) -> Result<(), DeviceError> {
        let (intents, first) = (&self.intents, self.first_intent_sector());
        let buf = intents.page(page, self.id.epoch.0, also, first);
        count(&self.stats.counters.intent_writes, 1);
        let fua = stable && !planted(PlantedBug::IntentNotStable);
        let position = self.intent_position(page);
        // All bits set is the fence mark.
        let is_mark = intents.bits.borrow().is_full();
        let write = async {
            match is_mark {
                true => self.cache.write_fenced(position, buf, fua).await.1,
                false => self.cache.write(position, buf, fua).await.1,
            }
        };
        match stable {
            true => self.cache.stable(write).await,
            false => write.await,
        }
    }
}
