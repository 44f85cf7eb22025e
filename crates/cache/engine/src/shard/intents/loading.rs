//! The bitmap as a whole: read after a crash, set when the cache device is fenced.

use std::collections::BTreeSet;

use flaz_device::DeviceError;

use super::reader::{IntentPage, IntentReader};
use crate::format::geometry::PAGE_BYTES;
use crate::shard::{Platform, Shard};
use crate::stats::count;

impl<P: Platform> Shard<P> {
    /// Reads the bitmap after a crash. A damaged sector counts as all ones. Bits from before a cold start count, too, because the
    /// origin may not have been flushed after the cold start.
    ///
    /// Bits that count as set without being read are written, stable: writers rely on a set bit, and a page that was
    /// unreadable once may be read after the next crash, with its old bits.
    pub(in crate::shard) async fn load_intents(&self) -> Result<(), DeviceError> {
        let reader = IntentReader::new(self.cache.device(), &self.id.layout, self.id.number);
        let mut assumed = BTreeSet::new();
        for part in reader.parts() {
            for page in reader.read(part).await? {
                count(
                    &self.stats.counters.cache_read_errors,
                    u64::from(page.error.is_some()),
                );
                if page.is_damaged() {
                    assumed.insert(page.number);
                }
                self.take_page(&page);
            }
        }
        self.write_assumed(assumed).await
    }

    /// Writes pages with bits that count as set, stable on return.
    pub(in crate::shard) async fn write_assumed(&self, pages: BTreeSet<u64>) -> Result<(), DeviceError> {
        if pages.is_empty() {
            return Ok(());
        }
        let _permit = self.intents.pages().await;
        let failures = self.cache.flush_failures();
        self.write_pages(pages, failures).await
    }

    /// Sets the bits of a page; all bits of a damaged sector.
    fn take_page(&self, page: &IntentPage) {
        if let Some(error) = &page.error {
            tracing::warn!(shard = self.id.number, %error, "cannot read a page of intents: assuming that all of them are set");
        }
        let mut bits = self.intents.bits.borrow_mut();
        for sector in &page.sectors {
            if let Err(error) = &sector.bits
                && page.error.is_none()
                && !sector.stripes.is_empty()
            {
                tracing::warn!(shard = self.id.number, offset = sector.offset, %error, "a sector of intents is damaged");
            }
            // Nearly all: an origin of 1 PiB has a thousand million stripes.
            if sector.is_clear() {
                continue;
            }
            let set = sector.stripes.clone().filter(|stripe| sector.has(*stripe));
            set.for_each(|stripe| bits.set(stripe));
        }
    }

    /// Writes pages of the bitmap, stable on return. No flush may have failed since there had been `failures`. The caller holds
    /// the permit.
    async fn write_pages(
        &self,
        pages: impl IntoIterator<Item = u64>,
        failures: u64,
    ) -> Result<(), DeviceError> {
        for page in pages {
            self.write_intents(page, &[], false).await?;
        }
        // Earlier failed flushes do not matter for these pages, but one of another shard that fails now may lose them.
        self.cache.flush_since(failures).await
    }

    /// Sets every bit of the shard: writes go to the origin without intents from now on.
    pub(in crate::shard) async fn write_fence_mark(&self) -> Result<(), DeviceError> {
        // A page write in flight has clear bits and must not land after this one.
        let _permit = self.intents.pages().await;
        let failures = self.cache.flush_failures();
        self.intents.bits.borrow_mut().set_all();
        let pages = self.id.layout.shard_intent_len() / PAGE_BYTES as u64;
        self.write_pages(0..pages, failures).await
    }
}
