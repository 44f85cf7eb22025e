//! Stopping a shard in order, and the index image that makes its next start warm.

use std::rc::Rc;

use flaz_device::{Device, IoBuf};

use super::contents::{CHUNK_BYTES, HEADER_BYTES, ImageContents, MAGIC, read_image, read_state};
use super::regions::RegionState;
use super::tasks::Phase;
use super::{Platform, Shard};
use crate::format::FormatError;
use crate::format::shard_state::{IMAGE_REGIONS_MAX, ShardState};
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;
use crate::units::Epoch;

/// Why an index image could not be written or read. The shard then starts cold.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The device failed.
    #[error("index image of shard {shard}: {source}")]
    Device {
        /// The shard.
        shard: u32,
        /// What happened.
        source: flaz_device::DeviceError,
    },
    /// The origin failed a flush.
    #[error(
        "shard {shard}: the origin could not be flushed, so the cache is not marked as stopped in order: {source}"
    )]
    Origin {
        /// The shard.
        shard: u32,
        /// What happened.
        source: flaz_device::DeviceError,
    },
    /// The state page or the image is not valid.
    #[error("index image of shard {shard}: {source}")]
    Format {
        /// The shard.
        shard: u32,
        /// What is wrong.
        source: FormatError,
    },
    /// The parts of the image do not fit each other or the geometry.
    #[error("index image of shard {shard}: {what}")]
    Contents {
        /// The shard.
        shard: u32,
        /// What is wrong.
        what: String,
    },
    /// The cache device failed earlier; nothing may be left that looks valid.
    #[error(
        "shard {shard}: the cache device failed while it was served; of what it holds, the next start uses only what has \
         not reached the origin"
    )]
    Failed {
        /// The shard.
        shard: u32,
    },
}

impl<P: Platform> Shard<P> {
    /// Stops admission and reclaim, and waits until everything is on the cache device. Front ends take no more
    /// requests by now; writes and trims in flight are waited for.
    pub async fn stop(self: &Rc<Self>) {
        // A write that the origin has not answered yet may still change a block that the index has: an image made
        // now would name its old contents.
        self.order.wait_until_idle().await;
        self.tasks.enter(Phase::Stopping);
        self.intents.wake();
        self.queue.wake_worker();
        self.reclaimer.wake();
        self.writeback.wake();
        self.writeback.note_step();
        self.room.notify_all();
        self.store_what_waits().await;
    }

    /// Stores what is queued, and waits until it is on the cache device. No task of the shard runs on return.
    async fn store_what_waits(self: &Rc<Self>) {
        while !(self.queue.is_empty() && self.tasks.is_idle()) {
            // The task ended when there was nothing left to store, and a copy was found damaged since.
            if !self.queue.is_empty() && !self.queue.has_worker() {
                self.tasks.spawn(&self.env, Self::admit_task(Rc::clone(self)));
            }
            self.tasks.one_ended().await;
        }
        self.log.borrow_mut().seal_all();
        self.pump_writes();
        while self.log.borrow().writing() {
            self.landed.notified().await;
        }
    }

    /// Writes the image and the state page. Nothing is valid before the superblock says so.
    ///
    /// # Errors
    /// [`ImageError`] when the cache device failed now or earlier.
    pub async fn save(self: &Rc<Self>) -> Result<(), ImageError> {
        let shard = self.number;
        let device = |source| ImageError::Device { shard, source };
        if self.failed.get() || !self.make_log_stable().await {
            return Err(ImageError::Failed { shard });
        }
        self.not_stuck()?;
        // What is cached must be what the origin keeps, whatever happens to its power after the stop.
        if !planted(PlantedBug::OriginNotFlushedAtStop) {
            let failures = self.doubt_what_a_flush_lost();
            let flushed = self.flush_origin_for(failures).await;
            flushed.map_err(|source| ImageError::Origin { shard, source })?;
        }
        let image = self.fit_image().await?;
        let regions: Vec<u32> = {
            let log = self.log.borrow();
            let wanted = image.len().div_ceil(self.geometry.region_bytes as usize);
            log.regions.free().take(wanted).collect()
        };
        for (number, part) in regions
            .iter()
            .zip(image.chunks(self.geometry.region_bytes as usize))
        {
            let start = self.geometry.shard_offset(shard) + u64::from(*number) * self.geometry.region_bytes;
            for (i, chunk) in part.chunks(CHUNK_BYTES).enumerate() {
                let mut buf =
                    IoBuf::zeroed(chunk.len().next_multiple_of(self.geometry.sector_bytes as usize));
                buf[..chunk.len()].copy_from_slice(chunk);
                let position = start + (i * CHUNK_BYTES) as u64;
                self.cache
                    .write_at(position, buf, false)
                    .await
                    .1
                    .map_err(device)?;
            }
        }
        let state = ShardState {
            cache: self.cache_id,
            shard,
            epoch: self.epoch,
            next_sequence: self.log.borrow().next_sequence,
            image_bytes: image.len() as u64,
            image_checksum: crc32c::crc32c(&image),
            image_regions: regions,
        };
        let page = IoBuf::copy_of(&state.to_bytes());
        self.cache
            .write_at(self.geometry.shard_state_offset(shard), page, false)
            .await
            .1
            .map_err(device)?;
        self.clear_all_intents().await.map_err(device)?;
        match self.failed.get() {
            true => Err(ImageError::Failed { shard }),
            false => Ok(()),
        }
    }

    /// Some tombstones cannot be written.
    fn not_stuck(&self) -> Result<(), ImageError> {
        if self.reclaimer.is_stuck() && !self.obsolete.borrow().is_empty() {
            let (shard, what) = (
                self.number,
                "its regions are full of dirty blocks, and the origin takes none".to_owned(),
            );
            return Err(ImageError::Contents { shard, what });
        }
        Ok(())
    }

    /// Makes the tombstones stable that came after the stop had stored all: a read has found a copy damaged, or an extent
    /// did not reach the device. The image does not name their blocks, so nothing else would say that these copies are void.
    async fn settle_late(self: &Rc<Self>) -> Result<(), ImageError> {
        while !self.obsolete.borrow().is_empty() {
            self.store_what_waits().await;
            if !self.make_log_stable().await {
                return Err(ImageError::Failed { shard: self.number });
            }
            self.not_stuck()?;
        }
        Ok(())
    }

    /// The image, after freeing as many regions as it needs. It has no place for a reclaim that is not finished, nor for a
    /// tombstone that is not written.
    async fn fit_image(self: &Rc<Self>) -> Result<Vec<u8>, ImageError> {
        let before = self.index.borrow().len();
        loop {
            self.settle_late().await?;
            // Reclaim goes on when the device is given up: a region that it frees then need not be void on the medium, and
            // what it holds would come back after the next crash.
            if self.failed.get() {
                return Err(ImageError::Failed { shard: self.number });
            }
            let regions = self.image_bytes().div_ceil(self.geometry.region_bytes) as usize;
            let free = self.log.borrow().regions.free_len();
            if regions <= free.min(IMAGE_REGIONS_MAX) && self.reclaimer.unfinished().is_none() {
                let dropped = before - self.index.borrow().len();
                if dropped > 0 {
                    tracing::info!(
                        shard = self.number,
                        dropped,
                        "blocks made room for the index image"
                    );
                }
                return Ok(self.image());
            }
            if !self.reclaim_one(false).await {
                let what = format!("{regions} regions are needed, and none can be freed");
                return Err(ImageError::Contents {
                    shard: self.number,
                    what,
                });
            }
        }
    }

    /// Bytes of the image as it would be now.
    fn image_bytes(&self) -> u64 {
        let (log, index) = (self.log.borrow(), self.index.borrow());
        let regions = &log.regions;
        let rings = u64::from(regions.ring_len(Ring::Probation)) + u64::from(regions.ring_len(Ring::Main));
        let open: usize = log
            .open_regions()
            .map(|(_, extents, records)| 16 + extents.len() * 24 + records.len() * 8)
            .sum();
        let table = HEADER_BYTES as u64 + u64::from(regions.len()) * 16 + rings * 4;
        table + (open + index.image_bytes()) as u64
    }

    fn image(&self) -> Vec<u8> {
        let (log, index) = (self.log.borrow(), self.index.borrow());
        let regions = &log.regions;
        let open: Vec<_> = log.open_regions().collect();
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&(index.image_bytes() as u64).to_le_bytes());
        for count in [
            regions.len(),
            open.len() as u32,
            regions.ring_len(Ring::Probation),
            regions.ring_len(Ring::Main),
        ] {
            out.extend_from_slice(&count.to_le_bytes());
        }
        out.extend_from_slice(&[0; 16]);
        for region in regions.iter() {
            let state = match region.state {
                RegionState::Free | RegionState::Reclaiming => 0,
                RegionState::Open => 1,
                RegionState::Full => 2,
            };
            out.extend_from_slice(&[state, region.ring.number(), 0, 0]);
            out.extend_from_slice(&region.used.to_le_bytes());
            out.extend_from_slice(&region.fill.0.to_le_bytes());
        }
        for number in Ring::ALL.into_iter().flat_map(|ring| regions.ring(ring)) {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for (number, extents, records) in open {
            for count in [number, extents.len() as u32, records.len() as u32, 0] {
                out.extend_from_slice(&count.to_le_bytes());
            }
            for extent in extents {
                out.extend_from_slice(&extent.offset.to_le_bytes());
                out.extend_from_slice(&extent.len.to_le_bytes());
                out.extend_from_slice(&extent.sequence.0.to_le_bytes());
                out.extend_from_slice(&extent.epoch.0.to_le_bytes());
                out.extend_from_slice(&u32::from(extent.record_count).to_le_bytes());
            }
            for record in records {
                out.extend_from_slice(&record.to_le_bytes());
            }
        }
        index.write_image(&mut out);
        drop((log, index));
        debug_assert_eq!(out.len() as u64, self.image_bytes());
        out
    }

    /// Takes over what the last clean stop left. Returns the number of index entries that were refused.
    ///
    /// # Errors
    /// [`ImageError`]: the shard is then as empty as before.
    pub async fn load_image(self: &Rc<Self>, epoch: Epoch) -> Result<usize, ImageError> {
        let state = read_state(&*self.cache, &self.geometry, self.number, self.cache_id, epoch).await?;
        let image = read_image(&*self.cache, &self.geometry, &state).await?;
        let contents =
            ImageContents::parse(&image, &self.geometry, &state).map_err(|what| ImageError::Contents {
                shard: self.number,
                what,
            })?;
        let dirty = contents.index.dirty_blocks();
        if dirty > 0 && !self.may_be_dirty {
            let what = format!("{dirty} blocks newer than the origin, of which the superblock knows nothing");
            return Err(ImageError::Contents {
                shard: self.number,
                what,
            });
        }
        // Nothing was in flight, so no bit is set but where a flush of the origin failed, or where the host could not be
        // told what the origin begins with. But their marks may name regions that will be reclaimed, and new pages must
        // count more than the old ones.
        let loaded = self.load_intents().await;
        loaded.map_err(|source| ImageError::Device {
            shard: self.number,
            source,
        })?;
        {
            let mut log = self.log.borrow_mut();
            log.regions = contents.regions;
            log.next_sequence = state.next_sequence;
            for region in contents.open {
                let ring = log.regions.ring_of(region.number);
                log.reopen(ring, region.number, region.extents, region.records);
            }
            // All of it was stable when the superblock said that the cache was clean.
            self.intents.set_durable(log.durable_marks());
        }
        *self.index.borrow_mut() = contents.index;
        self.inherit_dirty();
        if self.intents.set_count() > 0 {
            let dropped = self.drop_intended().await.map_err(|error| {
                tracing::warn!(%error, "what the origin may have lost cannot be dropped");
                ImageError::Failed { shard: self.number }
            })?;
            tracing::warn!(
                shard = self.number,
                dropped,
                "blocks are dropped that the origin may have lost in a failed flush"
            );
        }
        Ok(contents.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::{Geometry, GeometryWish};
    use crate::shard::simulated::{Simulated, shard};
    use flaz_device::{DeviceOp, Env};
    use flaz_sim::{DiskConfig, Sim, SimDisk};
    use std::time::Duration;

    /// Stops a shard that has to reclaim a region before it can write its image, and saves it. The first write of that
    /// fails, if `fail`.
    fn save(fail: bool) -> Result<(), ImageError> {
        const CACHE_LEN: u64 = 2 << 20;
        let sim = Sim::new(1);
        let env = sim.env();
        let cache = SimDisk::new(&env, DiskConfig::fast(CACHE_LEN));
        let wish = GeometryWish {
            extent_bytes: Some(32 << 10),
            region_bytes: Some(128 << 10),
            shard_count: Some(1),
        };
        let geometry = Geometry::plan(CACHE_LEN, 512, 8 << 20, wish).expect("fits");
        sim.block_on(async {
            let shard: Rc<Shard<Simulated>> = shard(&env, &cache, geometry, 1);
            shard.start();
            for stripe in 0..4 {
                let read = shard.read(stripe << 20, 1 << 20, false).await;
                read.expect("the origin is well");
                env.sleep(Duration::from_secs(1)).await;
            }
            let full = |ring: Ring| shard.log.borrow().regions.ring_len(ring) > 0;
            let oldest = Ring::ALL.into_iter().find(|ring| full(*ring));
            shard.stop().await;
            shard.reclaimer.note_unfinished(oldest.expect("a region is full"));
            if fail {
                cache.fail_nth(DeviceOp::Write, 1);
            }
            let saved = shard.save().await;
            assert_eq!(shard.failed(), fail);
            saved
        })
    }

    /// It cannot be made void then, and the image would say that it is free.
    #[test]
    fn a_shard_fenced_while_freeing_image_space_is_not_saved() {
        save(false).expect("the device is well");
        let error = save(true).expect_err("the device was given up");
        assert!(matches!(error, ImageError::Failed { .. }), "{error}");
    }
}
