//! The bitmap as a whole: read after a crash, set when the cache device is fenced.

use flaz_device::deadline::is_timeout;
use flaz_device::{Device, DeviceError, IoBuf};

use crate::format::geometry::PAGE_BYTES;
use crate::format::intent::{DurableMark, INTENT_STRIPES, IntentSector};
use crate::shard::{Platform, Shard};
use crate::stats::count;

/// Bytes of the bitmap read or written at a time.
const CHUNK_BYTES: u64 = 1 << 20;
/// Pages of such a part that may be unreadable.
const UNREADABLE_PAGES_MAX: u32 = 8;

impl<P: Platform> Shard<P> {
    /// Reads the bitmap that a crash left. A sector that does not check counts as all ones. Marks of openings before a cold
    /// start name regions that nobody looks for any more; their bits count, for the flush of the origin that comes after a
    /// cold start may not have been.
    pub(in crate::shard) async fn load_intents(&self) -> Result<[DurableMark; 2], DeviceError> {
        let (start, len) = (
            self.id.geometry.shard_intent_offset(self.id.number),
            self.id.geometry.shard_intent_len(),
        );
        let mut newest = ((0, 0), [DurableMark::default(); 2]);
        let mut generation = 0;
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
                        generation = generation.max(sector.generation.get());
                        if sector.age() >= newest.0 && sector.epoch.get() >= self.id.valid_from.0 {
                            newest = (sector.age(), sector.durable());
                        }
                    }
                    Err(error) => {
                        self.intents.marks.note_unread();
                        if !range.is_empty() {
                            tracing::warn!(shard = self.id.number, sector = number, %error, "an intent sector is damaged");
                            range.for_each(|stripe| bits.set(stripe));
                        }
                    }
                }
            }
            at += part;
        }
        self.intents.marks.note_found(generation, newest.1);
        Ok(newest.1)
    }

    /// Reads part of the bitmap. Pages that cannot be read are zeroes, which do not check.
    ///
    /// # Errors
    /// The device's, if it answers nothing in time or more than [`UNREADABLE_PAGES_MAX`] pages cannot be read.
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
        // A page that is being written now has bits clear: it must not land after ours.
        let permit = self.intents.pages().await;
        let failures = self.cache.flush_failures();
        self.intents.bits.borrow_mut().set_all();
        let pages = self.id.geometry.shard_intent_len() / PAGE_BYTES as u64;
        for page in 0..pages {
            self.write_intents(page, &[], false).await?;
        }
        // Whatever failed before: these pages were written since. But another shard's that fails takes them along.
        let flushed = self.cache.flush_since(failures).await;
        drop(permit);
        flushed
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::format::geometry::{Geometry, GeometryWish};
    use crate::shard::simulated::{Simulated, shard};
    use crate::units::Sequence;
    use flaz_sim::{DiskConfig, Sim, SimDisk};

    const CACHE_LEN: u64 = 8 << 20;
    /// Of so many pages of intents.
    const ORIGIN_LEN: u64 = 64 << 30;
    const PAGES: u64 = 3;

    fn mark(fill: u64) -> [DurableMark; 2] {
        let (fill, used) = (Sequence(fill), 512);
        [DurableMark { fill, used }, DurableMark::default()]
    }

    /// The latest page, with a mark of filling 9, is damaged while a second opening begins and does what `then` says.
    /// Which marks a third one finds, for which that page is right again.
    fn marks_after(then: impl AsyncFnOnce(Rc<Shard<Simulated>>)) -> [DurableMark; 2] {
        let sim = Sim::new(1);
        let env = sim.env();
        let cache = SimDisk::new(&env, DiskConfig::fast(CACHE_LEN));
        let wish = GeometryWish {
            shard_count: Some(1),
            ..GeometryWish::default()
        };
        let geometry = Geometry::plan(CACHE_LEN, 512, ORIGIN_LEN, wish).expect("fits");
        assert_eq!(geometry.shard_intent_len(), PAGES * PAGE_BYTES as u64);
        sim.block_on(async {
            let first = shard(&env, &cache, geometry, 1);
            let last = PAGES - 1;
            for (page, fill) in (0..PAGES).chain([last; 6]).zip(1..) {
                first.intents.set_marks(mark(fill));
                first.write_intents(page, &[], true).await.expect("it is well");
            }
            let position = first.intent_position(last);
            let right = cache.peek(position, PAGE_BYTES);
            cache.poke(position, &[0xa5; PAGE_BYTES]);
            let second = shard(&env, &cache, geometry, 2);
            assert_eq!(second.load_intents().await.expect("it can be read"), mark(2));
            then(second).await;
            cache.poke(position, &right);
            let third = shard(&env, &cache, geometry, 3);
            third.load_intents().await.expect("it can be read")
        })
    }

    #[test]
    fn a_transient_read_error_does_not_revive_an_old_intent_page() {
        let marks = marks_after(async |second| {
            second.intents.set_marks(mark(40));
            second.write_intents(0, &[], true).await.expect("it is well");
        });
        assert_eq!(marks, mark(40));
    }

    /// No mark may name a region that is about to be made void, nor may one that could not be read.
    #[test]
    fn a_mark_that_could_not_be_read_is_forgotten_like_any_other() {
        let marks = marks_after(async |second| second.forget_mark(Sequence(9)).await.expect("it is well"));
        assert_eq!(marks, [DurableMark::default(); 2]);
    }
}
