//! The clean stop of a shard, and the index image from which the next start is warm.

use std::rc::Rc;

use flaz_device::{DeviceError, IoBuf};

use super::contents::{
    CHUNK_BYTES, HEADER_BYTES, ImageContents, IndexKind, MAGIC, page_image_bytes_max, read_image, read_state,
};
use super::errors::ImageError;
use super::log::Copies;
use super::tasks::Phase;
use super::{Platform, Shard};
use crate::format::manifest::entries_checksum;
use crate::format::shard_state::{IMAGE_REGIONS_MAX, ShardState};
use crate::planted::{PlantedBug, planted};
use crate::units::Epoch;

/// Each sector of the manifest has so many copies, which are written in turn.
const MANIFEST_COPIES: usize = 2;
const FROM_TABLE: &str = "its index was a table, and is in pages now";
const LARGE: &str = "its index was a table, or had more memory than now";
/// Regions whose manifest entries are written at a time.
const MANIFEST_REGIONS_MAX: usize = 1024;

impl<P: Platform> Shard<P> {
    /// Stops admission and reclaim, and waits until everything is on the cache device. Front ends have stopped accepting
    /// requests; this waits for writes and trims in flight.
    pub async fn stop(self: &Rc<Self>) {
        // A write in flight to the origin may still change a cached block: an image written now would have its old
        // contents.
        self.order.wait_until_idle().await;
        assert_eq!(self.order.writing(), 0, "front ends take no more requests");
        self.tasks.enter(Phase::Stopping);
        // The superblock may not have regions that are sealed.
        if !self.log.is_sealed() {
            self.cancel_shrink();
        }
        self.cancel_give_back();
        self.intents.wake();
        self.queue.wake_worker();
        self.reclaimer.wake();
        self.writeback.wake();
        self.writeback.note_step();
        self.log.wake_room();
        self.store_what_waits().await;
        self.common_budget.tell(self.written_bytes());
    }

    /// Stores what is queued, and waits until it is on the cache device. No task of the shard runs on return.
    async fn store_what_waits(self: &Rc<Self>) {
        while !(self.queue.is_empty() && self.tasks.is_idle()) {
            // The task had ended with an empty queue, and a damaged copy was found since.
            if !self.queue.is_empty() && !self.queue.has_worker() {
                self.tasks.spawn(&self.env, Self::admit_task(Rc::clone(self)));
            }
            self.tasks.one_ended().await;
        }
        self.log.seal_all();
        self.pump_writes();
        while self.log.writing() {
            self.log.write_ended().await;
        }
    }

    /// Writes the image and the state page. They become valid with the superblock.
    ///
    /// # Errors
    /// [`ImageError`] when the cache device failed now or earlier.
    pub async fn save(self: &Rc<Self>) -> Result<(), ImageError> {
        let shard = self.id.number;
        let device = |source| ImageError::Device { shard, source };
        if self.cache.is_fenced() || !self.make_log_stable().await {
            return Err(ImageError::Failed { shard });
        }
        self.not_stuck()?;
        // The origin must keep the cached data even if it loses power after the stop.
        if !planted(PlantedBug::OriginNotFlushedAtStop) {
            let failures = self.doubt_what_a_flush_lost();
            let flushed = self.origin.flush_since(failures).await;
            flushed.map_err(|source| ImageError::Origin { shard, source })?;
        }
        let image = self.fit_image().await?;
        // In a cache with an area for index pages, the next start may read the log.
        if self.permits_dirty() || self.id.layout.index_bytes > 0 {
            self.write_whole_manifest().await.map_err(device)?;
        }
        let wanted = image.len().div_ceil(self.id.layout.region_bytes as usize);
        let regions = self.log.first_free(wanted);
        assert_eq!(regions.len(), wanted, "the image has room");
        for (number, part) in regions
            .iter()
            .zip(image.chunks(self.id.layout.region_bytes as usize))
        {
            let start = self.id.position_of(*number);
            for (i, chunk) in part.chunks(CHUNK_BYTES).enumerate() {
                let mut buf =
                    IoBuf::zeroed(chunk.len().next_multiple_of(self.id.layout.sector_bytes as usize));
                buf[..chunk.len()].copy_from_slice(chunk);
                let position = start + (i * CHUNK_BYTES) as u64;
                self.cache.write_at(position, buf).await.map_err(device)?;
            }
        }
        assert!(self.log.is_all_stable(), "nothing is appended beside the image");
        let state = ShardState {
            cache: self.id.cache_id,
            shard,
            epoch: self.id.epoch,
            next_sequence: self.log.next_sequence(),
            image_bytes: image.len() as u64,
            image_checksum: crc32c::crc32c(&image),
            manifest_checksum: self.log.manifest_checksum(),
            image_regions: regions,
        };
        let page = IoBuf::copy_of(&state.to_bytes());
        let position = self.id.layout.shard_state_offset(shard);
        self.cache.write_at(position, page).await.map_err(device)?;
        self.clear_all_intents().await.map_err(device)?;
        self.pages_written().await;
        match self.cache.is_fenced() {
            true => Err(ImageError::Failed { shard }),
            false => Ok(()),
        }
    }

    /// Writes both copies of the whole manifest, in case the device lost writes of it that it had acknowledged: the image would not
    /// fit it, and a recovery from the log would miss regions and serve older versions of their dirty blocks. If any shard has
    /// dirty blocks, the next start recovers all shards in this way, so those without dirty blocks do the same. A cache that
    /// may have none starts cold instead.
    async fn write_whole_manifest(&self) -> Result<(), DeviceError> {
        let regions: Vec<u32> = (0..self.log.region_count() as u32).collect();
        for _ in 0..MANIFEST_COPIES {
            for some in regions.chunks(MANIFEST_REGIONS_MAX) {
                self.log.write_manifest(&self.cache, some, Copies::One).await?;
            }
            // A power cut damages one copy at most.
            self.cache.flush().await?;
        }
        Ok(())
    }

    /// Some tombstones cannot be written.
    fn not_stuck(&self) -> Result<(), ImageError> {
        if self.reclaimer.is_stuck() && self.map.any_stale() {
            let (shard, what) = (
                self.id.number,
                "all regions are full of dirty blocks, and writeback fails".to_owned(),
            );
            return Err(ImageError::Contents { shard, what });
        }
        Ok(())
    }

    /// Makes the tombstones stable that were added after the queue was drained: a read found a damaged copy, or an extent did
    /// not reach the device. The image does not contain their blocks, so only the tombstones say that these copies are stale.
    async fn settle_late(self: &Rc<Self>) -> Result<(), ImageError> {
        while self.map.any_stale() {
            self.store_what_waits().await;
            if !self.make_log_stable().await {
                return Err(ImageError::Failed {
                    shard: self.id.number,
                });
            }
            self.not_stuck()?;
        }
        Ok(())
    }

    /// The image, after freeing as many regions as it needs. It cannot represent an unfinished reclaim or an unwritten
    /// tombstone. Empty, if the index is in pages, and they cannot be written or no region can be freed: then the next start reads the log.
    async fn fit_image(self: &Rc<Self>) -> Result<Vec<u8>, ImageError> {
        let before = self.map.len();
        loop {
            self.settle_late().await?;
            // Reclaim has just moved blocks: the manifest must have their regions before the image names them.
            if !self.log.is_all_stable() {
                if !self.make_log_stable().await {
                    return Err(ImageError::Failed {
                        shard: self.id.number,
                    });
                }
                continue;
            }
            // Reclaim continues when the device is fenced. A region freed then may not be free in the manifest, and its
            // blocks would be recovered after the next crash.
            if self.cache.is_fenced() {
                return Err(ImageError::Failed {
                    shard: self.id.number,
                });
            }
            let regions = self.image_bytes().div_ceil(self.id.layout.region_bytes) as usize;
            let free = self.log.free_regions();
            if regions <= free.min(IMAGE_REGIONS_MAX) && self.reclaimer.unfinished().is_none() {
                match self.map.write_changed_pages(&self.cache).await {
                    Some(true) => continue,
                    Some(false) => {}
                    None => return Ok(Vec::new()),
                }
                let dropped = before - self.map.len();
                if dropped > 0 {
                    tracing::info!(
                        shard = self.id.number,
                        dropped,
                        "dropped blocks to make space for the index image"
                    );
                }
                // A read may find a damaged copy after this: the next start finds it again.
                assert!(!self.map.any_stale(), "all tombstones are written");
                return Ok(self.image());
            }
            if !self.allocate_one().await && !self.reclaim_one(false).await {
                if self.map.is_paged() && self.reclaimer.unfinished().is_none() {
                    return Ok(Vec::new());
                }
                let what = format!("regions needed: {regions}; none can be freed");
                return Err(ImageError::Contents {
                    shard: self.id.number,
                    what,
                });
            }
        }
    }

    /// Bytes of an image written now.
    fn image_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.log.image_bytes() + self.map.image_bytes()
    }

    /// The image. All index pages are written; none is written from now on.
    fn image(&self) -> Vec<u8> {
        let kind = match self.map.is_paged() {
            true => IndexKind::Pages,
            false => IndexKind::Table,
        };
        let mut out = Vec::with_capacity(self.image_bytes() as usize);
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&self.map.image_bytes().to_le_bytes());
        out.extend_from_slice(&self.log.open_count().to_le_bytes());
        out.extend_from_slice(&(kind as u32).to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        self.log.write_image(&mut out);
        self.map.write_image(&mut out);
        assert_eq!(out.len() as u64, self.image_bytes());
        out
    }

    fn contradiction(&self, what: String) -> ImageError {
        let shard = self.id.number;
        ImageError::Contradiction { shard, what }
    }

    fn absent(&self, what: &str) -> ImageError {
        let (shard, what) = (self.id.number, what.to_owned());
        ImageError::Absent { shard, what }
    }

    /// Fills the index from an image whose regions are as the manifest has them, and counts the entries there. Returns the number of
    /// entries that were refused.
    async fn load_index(
        &self,
        contents: &mut ImageContents<'_>,
        tell: impl Fn(),
    ) -> Result<usize, ImageError> {
        let (shard, geometry) = (self.id.number, &self.id.opened);
        let may_be_dirty = |dirty: u64| match dirty > 0 && !self.id.may_be_dirty {
            true => {
                let what = format!("dirty blocks: {dirty}, but the superblock allows none");
                Err(ImageError::Contents { shard, what })
            }
            false => Ok(()),
        };
        match (contents.kind, self.map.is_paged()) {
            (IndexKind::Table, false) => {
                let table = contents.table(geometry, shard);
                let (index, refused) = table.map_err(|what| self.contradiction(what))?;
                // Some of these blocks may be dirty, and the origin has older versions.
                if refused > 0 && self.id.may_be_dirty {
                    let what = format!("blocks in no region that is in use: {refused}");
                    return Err(self.contradiction(what));
                }
                may_be_dirty(index.dirty_blocks())?;
                self.map.replace(index);
                Ok(refused)
            }
            (IndexKind::Pages, true) => {
                let damaged = |what| ImageError::Damaged { shard, what };
                let mut image = contents.pages(geometry).map_err(damaged)?;
                if !self.map.fits(&image) {
                    return Err(self.absent("its pages have another size, or had more memory than now"));
                }
                self.count_pages(&mut image, &mut contents.regions, tell).await?;
                may_be_dirty(image.dirty_blocks())?;
                self.map.inherit_pages(image);
                Ok(0)
            }
            (IndexKind::Pages, false) => Err(self.absent("its index was in pages, and is a table now")),
            (IndexKind::Table, true) => Err(self.absent(FROM_TABLE)),
        }
    }

    /// Restores the state of the last clean stop. Returns the number of index entries that were refused. `tell` is called as often as there
    /// are regions while index pages are read.
    ///
    /// # Errors
    /// [`ImageError`]: the shard stays empty.
    pub async fn load_image(self: &Rc<Self>, epoch: Epoch, tell: impl Fn()) -> Result<usize, ImageError> {
        let state = read_state(
            self.cache.device(),
            &self.id.opened,
            self.id.number,
            self.id.cache_id,
            epoch,
        )
        .await?;
        let may_be_paged = self.id.layout.index_bytes > 0;
        let manifest = self.load_manifest().await;
        let manifest = manifest.map_err(|error| ImageError::Contents {
            shard: self.id.number,
            what: error.to_string(),
        })?;
        let (found, expected) = (
            entries_checksum(manifest.entries.iter().copied()),
            state.manifest_checksum,
        );
        // The log may be read instead: a manifest that is not the one of the stop must not be followed.
        if may_be_paged && found != expected {
            return Err(self.contradiction(format!("checksum {found:#010x}, expected {expected:#010x}")));
        }
        if may_be_paged && state.image_bytes == 0 {
            return Err(self.absent("its index is in pages, which could not be kept"));
        }
        if self.map.is_paged()
            && state.image_bytes > page_image_bytes_max(&self.id.opened, self.id.index_memory)
        {
            // It is not read, because it may not fit in memory.
            return Err(self.absent(LARGE));
        }
        let image = read_image(self.cache.device(), &self.id.layout, &state).await;
        let image = image.map_err(|error| match may_be_paged {
            true => ImageError::Damaged {
                shard: self.id.number,
                what: error.to_string(),
            },
            false => error,
        })?;
        let mut contents = ImageContents::parse(&image, &self.id.layout, &state, &manifest.entries)
            .map_err(|what| self.contradiction(what))?;
        let refused = self.load_index(&mut contents, tell).await?;
        // No write was in flight, so a bit is set only if a flush of the origin failed, or if the host could not record the
        // origin's fingerprint.
        let loaded = self.load_intents().await;
        loaded.map_err(|source| ImageError::Device {
            shard: self.id.number,
            source,
        })?;
        self.log.inherit(contents.regions, state.next_sequence);
        self.withhold_inherited();
        for region in contents.open {
            self.log.reopen(region.number, region.extents, region.records);
        }
        self.inherit_dirty();
        if self.intents.set_count() > 0 {
            let dropped = self.drop_intended().await.map_err(|error| {
                tracing::warn!(%error, "blocks that the origin may have lost cannot be dropped");
                ImageError::Failed {
                    shard: self.id.number,
                }
            })?;
            if dropped > 0 {
                tracing::warn!(
                    shard = self.id.number,
                    dropped,
                    "dropped blocks that the origin may have lost in a failed flush"
                );
            }
        }
        match self.map.failure() {
            Some(what) => {
                let shard = self.id.number;
                Err(ImageError::Contents { shard, what })
            }
            None => Ok(refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::{Geometry, GeometryOptions};
    use crate::policy::Ring;
    use crate::shard::simulated::{Simulated, shard};
    use flaz_device::{DeviceOp, Env};
    use flaz_sim::{DiskConfig, Sim, SimDisk};
    use std::time::Duration;

    /// Stops and saves a shard that has to reclaim a region before it can write its image. With `fail`, the first write of the
    /// image fails. With `damaged`, an open region is closed when another one is free.
    fn save(fail: bool, damaged: bool) -> Result<(), ImageError> {
        const CACHE_LEN: u64 = 2 << 20;
        let sim = Sim::new(1);
        let env = sim.env();
        let cache = SimDisk::new(&env, DiskConfig::fast(CACHE_LEN));
        let wish = GeometryOptions {
            extent_bytes: Some(32 << 10),
            region_bytes: Some(128 << 10),
            shard_count: Some(1),
            threads: None,
            index_memory: None,
            dictionary_bytes: None,
        };
        let geometry = Geometry::plan(CACHE_LEN, 512, 8 << 20, wish).expect("fits");
        sim.block_on(async {
            let first: Rc<Shard<Simulated>> = shard(&env, &cache, geometry, 1);
            first.start();
            for stripe in 0..4 {
                let read = first.read(stripe << 20, 1 << 20, false).await;
                read.expect("the origin is well");
                env.sleep(Duration::from_secs(1)).await;
            }
            let full = |ring: Ring| first.log.full_regions(ring) > 0;
            let oldest = Ring::ALL.into_iter().find(|ring| full(*ring));
            first.stop().await;
            first.reclaimer.note_unfinished(oldest.expect("a region is full"));
            assert!(first.make_log_stable().await);
            let open = first.log.open_numbers();
            let number = open.into_iter().flatten().next().expect("a region is open");
            let start = u64::from(number) * geometry.region_bytes;
            if damaged {
                // No region is closed for damage while another one is being reclaimed.
                let victim = first.log.take_oldest(oldest.expect("a region is full"));
                let closed = first.log.note_damage(crate::units::Location::at(start));
                assert!(!closed);
                first.log.put_back(victim.expect("a region is full"));
            }
            if fail {
                cache.fail_nth(DeviceOp::Write, 1);
            }
            let saved = first.save().await;
            assert_eq!(first.is_fenced(), fail);
            assert_eq!(first.log.open_numbers() == open, !damaged);
            saved?;
            shard(&env, &cache, geometry, 2)
                .load_image(crate::units::Epoch(1), || ())
                .await
                .map(drop)
        })
    }

    /// A region cannot be marked as free after the fence, and the image would say that it is free.
    #[test]
    fn a_shard_fenced_while_freeing_image_space_is_not_saved() {
        save(false, false).expect("the device is well");
        let error = save(true, false).expect_err("the device was fenced");
        assert!(matches!(error, ImageError::Failed { .. }), "{error}");
    }

    /// The image has the records of open regions only, so those of a region that was closed last must be in its summary, and the
    /// manifest must have it as full.
    #[test]
    fn a_region_closed_while_freeing_image_space_is_full_before_the_image_is_taken() {
        save(false, true).expect("the devices are well");
    }
}
