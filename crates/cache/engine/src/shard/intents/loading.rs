//! The bitmap as a whole: read after a crash, set when the cache device is fenced.

use std::collections::BTreeSet;

use flaz_device::deadline::is_timeout;
use flaz_device::{Device, DeviceError, IoBuf};

use super::page_of;
use crate::format::geometry::PAGE_BYTES;
use crate::format::intent::{INTENT_STRIPES, IntentSector};
use crate::shard::{Platform, Shard};
use crate::stats::count;

/// Bytes of the bitmap read or written at a time.
const CHUNK_BYTES: u64 = 1 << 20;
/// Maximum number of unreadable pages in such a part.
const UNREADABLE_PAGES_MAX: u32 = 8;

impl<P: Platform> Shard<P> {
    /// Reads the bitmap after a crash. A sector with a wrong checksum counts as all ones. Bits from before a cold start count,
    /// too, because the origin may not have been flushed after the cold start.
    ///
    /// Bits that count as set without being read are written, stable: writers rely on a set bit, and a page that was
    /// unreadable once may be read after the next crash, with its old bits.
    pub(in crate::shard) async fn load_intents(&self) -> Result<(), DeviceError> {
        let (start, len) = (
            self.id.geometry.shard_intent_offset(self.id.number),
            self.id.geometry.shard_intent_len(),
        );
        let mut assumed = BTreeSet::new();
        let mut at = 0;
        while at < len {
            let part = CHUNK_BYTES.min(len - at);
            let buf = self.read_intents(start + at, part).await?;
            let mut bits = self.intents.bits.borrow_mut();
            let stripes = bits.stripes();
            for (i, bytes) in buf.chunks_exact(512).enumerate() {
                let within = at / 512 + i as u64;
                let number = (self.first_intent_sector() + within) as u32;
                let range = within * INTENT_STRIPES..((within + 1) * INTENT_STRIPES).min(stripes);
                let bytes = bytes.try_into().expect("chunks of 512 bytes");
                match IntentSector::parse(bytes, number) {
                    Ok(sector) => {
                        let first = range.start;
                        range
                            .filter(|stripe| sector.has(stripe - first))
                            .for_each(|stripe| bits.set(stripe));
                    }
                    Err(error) => {
                        if !range.is_empty() {
                            tracing::warn!(shard = self.id.number, sector = number, %error, "an intent sector is damaged");
                            assumed.insert(page_of(range.start));
                            range.for_each(|stripe| bits.set(stripe));
                        }
                    }
                }
            }
            at += part;
        }
        let permit = self.intents.pages().await;
        for page in assumed {
            self.write_intents(page, &[], true).await?;
        }
        drop(permit);
        Ok(())
    }

    /// Reads part of the bitmap. Unreadable pages are returned as zeroes, which fail the checksum.
    ///
    /// # Errors
    /// The device's, after a timeout or if more than [`UNREADABLE_PAGES_MAX`] pages cannot be read.
    async fn read_intents(&self, position: u64, len: u64) -> Result<IoBuf, DeviceError> {
        let device = self.cache.device();
        let (mut buf, result) = device.read_at(position, IoBuf::new(len as usize)).await;
        if result.is_ok() {
            return Ok(buf);
        }
        let mut unreadable = 0;
        for (at, page) in buf.chunks_mut(PAGE_BYTES).enumerate() {
            let position = position + (at * PAGE_BYTES) as u64;
            let (read, result) = device.read_at(position, IoBuf::new(page.len())).await;
            match result {
                Ok(()) => page.copy_from_slice(&read),
                Err(error) if is_timeout(&error) || unreadable == UNREADABLE_PAGES_MAX => {
                    return Err(error);
                }
                Err(error) => {
                    unreadable += 1;
                    count(&self.stats.counters.cache_read_errors, 1);
                    tracing::warn!(shard = self.id.number, %error, "a page of intents cannot be read: all of it counts as set");
                    page.fill(0);
                }
            }
        }
        Ok(buf)
    }

    /// Sets every bit of the shard: writes go to the origin without intents from now on.
    pub(in crate::shard) async fn write_fence_mark(&self) -> Result<(), DeviceError> {
        // A page write in flight has clear bits and must not land after this one.
        let permit = self.intents.pages().await;
        let failures = self.cache.flush_failures();
        self.intents.bits.borrow_mut().set_all();
        let pages = self.id.geometry.shard_intent_len() / PAGE_BYTES as u64;
        for page in 0..pages {
            self.write_intents(page, &[], false).await?;
        }
        // Earlier failed flushes do not matter for these pages, but one of another shard that fails now may lose them.
        let flushed = self.cache.flush_since(failures).await;
        drop(permit);
        flushed
    }
}
