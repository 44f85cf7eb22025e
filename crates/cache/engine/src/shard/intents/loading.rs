//! The bitmap as a whole: read after a crash, set when the cache device is fenced.

use std::ops::Range;

use flaz_device::deadline::is_timeout;
use flaz_device::{Device, DeviceError, IoBuf};

use crate::format::FormatError;
use crate::format::geometry::PAGE_BYTES;
use crate::format::intent::{INTENT_STRIPES, IntentSector};
use crate::shard::{Platform, Shard};
use crate::stats::count;

/// Bytes of the bitmap read or written at a time.
const CHUNK_BYTES: u64 = 1 << 20;
/// Maximum number of unreadable pages in such a part.
const UNREADABLE_PAGES_MAX: usize = 8;

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
        let mut assumed = Vec::new();
        let mut at = 0;
        while at < len {
            let part = CHUNK_BYTES.min(len - at);
            let (mut buf, unreadable) = self.read_intents(start + at, part).await?;
            for (page, bytes) in (at / PAGE_BYTES as u64..).zip(buf.chunks_exact_mut(PAGE_BYTES)) {
                let position = start + page * PAGE_BYTES as u64;
                // A single read may be wrong.
                if !unreadable.contains(&position) && !self.is_whole(page, bytes) {
                    bytes.copy_from_slice(&self.read_intents(position, PAGE_BYTES as u64).await?.0);
                }
                if !self.is_whole(page, bytes) {
                    assumed.push(page);
                }
                self.take_page(page, bytes);
            }
            at += part;
        }
        if assumed.is_empty() {
            return Ok(());
        }
        let _permit = self.intents.pages().await;
        let failures = self.cache.flush_failures();
        self.write_pages(assumed, failures).await
    }

    /// The sectors of a page that have bits, each with the stripes of its bits.
    fn sectors_of(
        &self,
        page: u64,
        bytes: &[u8],
    ) -> impl Iterator<Item = (Range<u64>, Result<IntentSector, FormatError>)> {
        let first = self.first_intent_sector();
        let stripes = self.intents.bits.borrow().stripes();
        (page * (PAGE_BYTES as u64 / 512)..)
            .zip(bytes.chunks_exact(512))
            .map(move |(within, bytes)| {
                let range = within * INTENT_STRIPES..((within + 1) * INTENT_STRIPES).min(stripes);
                let bytes = bytes.try_into().expect("chunks of 512 bytes");
                (range, IntentSector::parse(bytes, (first + within) as u32))
            })
            .filter(|(range, _)| !range.is_empty())
    }

    fn is_whole(&self, page: u64, bytes: &[u8]) -> bool {
        self.sectors_of(page, bytes).all(|(_, sector)| sector.is_ok())
    }

    /// Sets the bits of a page; all bits of a damaged sector.
    fn take_page(&self, page: u64, bytes: &[u8]) {
        for (range, sector) in self.sectors_of(page, bytes) {
            let mut bits = self.intents.bits.borrow_mut();
            match sector {
                Ok(sector) => {
                    let first = range.start;
                    range
                        .filter(|stripe| sector.has(stripe - first))
                        .for_each(|stripe| bits.set(stripe));
                }
                Err(error) => {
                    tracing::warn!(shard = self.id.number, page, %error, "an intent sector is damaged");
                    range.for_each(|stripe| bits.set(stripe));
                }
            }
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

    /// Reads part of the bitmap. Unreadable pages are zeroes, which fail the checksum; their positions are returned.
    ///
    /// # Errors
    /// The device's, after a timeout or if more than [`UNREADABLE_PAGES_MAX`] pages cannot be read.
    async fn read_intents(&self, position: u64, len: u64) -> Result<(IoBuf, Vec<u64>), DeviceError> {
        let device = self.cache.device();
        let (mut buf, result) = device.read_at(position, IoBuf::new(len as usize)).await;
        if result.is_ok() {
            return Ok((buf, Vec::new()));
        }
        let mut unreadable = Vec::new();
        for (at, page) in buf.chunks_mut(PAGE_BYTES).enumerate() {
            let position = position + (at * PAGE_BYTES) as u64;
            let (read, result) = device.read_at(position, IoBuf::new(page.len())).await;
            match result {
                Ok(()) => page.copy_from_slice(&read),
                Err(error) if is_timeout(&error) || unreadable.len() == UNREADABLE_PAGES_MAX => {
                    return Err(error);
                }
                Err(error) => {
                    unreadable.push(position);
                    count(&self.stats.counters.cache_read_errors, 1);
                    tracing::warn!(shard = self.id.number, %error, "a page of intents cannot be read: all of it counts as set");
                    page.fill(0);
                }
            }
        }
        Ok((buf, unreadable))
    }

    /// Sets every bit of the shard: writes go to the origin without intents from now on.
    pub(in crate::shard) async fn write_fence_mark(&self) -> Result<(), DeviceError> {
        // A page write in flight has clear bits and must not land after this one.
        let _permit = self.intents.pages().await;
        let failures = self.cache.flush_failures();
        self.intents.bits.borrow_mut().set_all();
        let pages = self.id.geometry.shard_intent_len() / PAGE_BYTES as u64;
        self.write_pages(0..pages, failures).await
    }
}
