//! Recovery: rebuilds the index from the cache device after a crash.
//!
//! Follows the rules of `docs/format.md`: the manifest says what each region is used for; every region in use is read by its
//! summary, or by walking the headers of its extents; of all records of a block the one with the highest sequence counts.
//! Clean blocks are ignored if they are in a region that was being reclaimed, or in a stripe with a set intent; the latter
//! get tombstones. Open regions are closed.
//!
//! Until the manifest says that they are closed, recovery writes nothing that changes the result of another recovery of
//! the same device, so a crash during recovery is the same as a crash before it. The exception are intents that count as set, because
//! their page is damaged, or because a block looks dirty in a cache without dirty blocks: they are written, and another recovery drops
//! at least the same blocks.
//!
//! If the index does not fit in memory, recovery sorts the records on the device: see [`super::recover_records`].

use std::rc::Rc;

use flaz_device::{DeviceError, IoBuf};

use super::errors::RecoverError;
use super::log::{Copies, Region, RegionState, Regions};
use super::manifest_reader::{Manifest, ManifestError, ManifestPlace, read_manifest};
use super::recover_records::InUse;
use super::region_reader::RegionContents;
use super::{Platform, Shard};
use crate::format::manifest::{ManifestEntry, RegionUse};
use crate::format::summary::{Summary, summary_bytes};
use crate::index::Entry;
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;
use crate::units::Sequence;

/// The result of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Regions with contents.
    pub regions: u64,
    /// Records read.
    pub records: u64,
    /// Blocks that are cached again.
    pub blocks: u64,
    /// Blocks dropped because a write to their stripe may have been in flight.
    pub dropped: u64,
    /// Dirty blocks: newer than the origin.
    pub dirty: u64,
    /// Stripes whose intent was set.
    pub stripes: u64,
    /// Bytes read from the cache device.
    pub bytes_read: u64,
}

impl Recovered {
    /// Adds the result of another shard.
    pub fn add(&mut self, other: &Self) {
        self.regions += other.regions;
        self.records += other.records;
        self.blocks += other.blocks;
        self.dropped += other.dropped;
        self.dirty += other.dirty;
        self.stripes += other.stripes;
        self.bytes_read += other.bytes_read;
    }
}

impl<P: Platform> Shard<P> {
    /// Rebuilds the index of a shard that has not been started. `tell` is called for every region.
    ///
    /// # Errors
    /// [`RecoverError`]: drop the shard and start the cache cold.
    pub async fn recover(self: &Rc<Self>, tell: impl Fn()) -> Result<Recovered, RecoverError> {
        let shard = self.id.number;
        let device = |source| RecoverError::Device { shard, source };
        self.load_intents().await.map_err(device)?;
        let mut outcome = Recovered {
            stripes: self.intents.set_count(),
            ..Recovered::default()
        };
        let manifest = self.load_manifest().await?;
        outcome.bytes_read += manifest.bytes_read;
        let regions = self.id.opened.regions_per_shard;
        let mut live = vec![0; regions as usize];
        self.fit_pages_to_passes();
        let found = self
            .take_over_records(&manifest, &mut live, &mut outcome, tell)
            .await?;
        self.check_sequences(&found)?;
        self.check_victim(&found)?;
        self.take_over_regions(&found);
        match self.recovery_entries_max() {
            Some(_) => self.log.inherit_live(&live),
            None => {
                self.map.rebuilt(&self.log, regions);
                self.drop_reclaimed().await;
            }
        }
        self.close_regions(&found).await.map_err(device)?;
        drop(found);
        self.inherit_dirty();
        outcome.dropped = self.drop_intended().await?;
        if let Some(what) = self.map.failure() {
            return Err(RecoverError::Damaged { shard, what });
        }
        outcome.blocks = self.map.len() as u64;
        outcome.dirty = self.map.dirty_blocks();
        Ok(outcome)
    }

    /// Reads the manifest of the previous opening.
    pub(super) async fn load_manifest(&self) -> Result<Manifest, RecoverError> {
        let place = ManifestPlace {
            geometry: &self.id.opened,
            cache_id: self.id.cache_id,
            shard: self.id.number,
            valid_from: self.id.valid_from,
            until: self.id.epoch,
        };
        let shard = self.id.number;
        let manifest = read_manifest(self.cache.device(), &place).await;
        let manifest = manifest.map_err(|error| match error {
            ManifestError::Device(source) => RecoverError::Device { shard, source },
            damaged @ ManifestError::Damaged(..) => RecoverError::Damaged {
                shard,
                what: damaged.to_string(),
            },
        })?;
        for copy in &manifest.damaged {
            let (position, error) = (copy.position, &copy.error);
            tracing::warn!(
                shard,
                position,
                error,
                "one copy of a sector of the manifest is damaged"
            );
        }
        self.log.inherit_copies(&manifest.next_copies);
        Ok(manifest)
    }

    /// Refuses numbers that no cache can reach: flaz did not write them, and new numbers must be higher than all existing ones.
    fn check_sequences(&self, found: &[InUse]) -> Result<(), RecoverError> {
        let shard = self.id.number;
        let last = found.iter().map(|region| (region.last_sequence, region.number));
        match last.max() {
            Some((last, region)) if last > Sequence::MAX_READ => Err(RecoverError::Damaged {
                shard,
                what: format!(
                    "region {region} has sequence {}, expected {} at most",
                    last.0,
                    Sequence::MAX_READ.0
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Checks that at most one region was being reclaimed, the oldest of its ring.
    fn check_victim(&self, found: &[InUse]) -> Result<(), RecoverError> {
        let used = || found.iter().filter(|region| region.used > 0);
        let mut victims = used().filter(|region| region.entry.state == RegionUse::Reclaiming);
        let Some(victim) = victims.next() else {
            return Ok(());
        };
        let oldest = used().find(|region| region.entry.ring == victim.entry.ring);
        if oldest.is_some_and(|oldest| oldest.number == victim.number) && victims.next().is_none() {
            return Ok(());
        }
        Err(RecoverError::Damaged {
            shard: self.id.number,
            what: format!(
                "region {} is being reclaimed, and is not the only one, or not the oldest of its ring",
                victim.number
            ),
        })
    }

    fn take_over_regions(&self, found: &[InUse]) {
        let used = || found.iter().filter(|region| region.used > 0);
        let mut table = vec![Region::FREE; self.id.opened.regions_per_shard as usize];
        for region in used() {
            table[region.number as usize] = Region {
                state: RegionState::Full,
                ring: region.entry.ring,
                generation: region.entry.generation,
                used: region.used,
                live: 0,
            };
        }
        assert!(
            found.is_sorted_by_key(|region| region.entry.generation),
            "the order of filling"
        );
        let mut regions = Regions::from_table(&table);
        for region in used() {
            regions.enter_ring(region.number);
        }
        let last = found
            .iter()
            .map(|region| region.last_sequence)
            .max()
            .unwrap_or_default();
        // The numbers of this epoch are higher than any that an earlier epoch can have used.
        let next_sequence = self.log.next_sequence().max(Sequence(last.0 + 1));
        self.log.inherit(regions, next_sequence);
        self.withhold_inherited();
        let victim = used().find(|region| region.entry.state == RegionUse::Reclaiming);
        if let Some(victim) = victim {
            self.inherit_victim(victim.number, victim.entry.ring);
        }
    }

    /// Registers an unfinished reclaim: it is finished before another one begins.
    pub(super) fn inherit_victim(&self, number: u32, ring: Ring) {
        self.log.inherit_victim(number);
        self.reclaimer.note_unfinished(ring);
    }

    /// Drops the clean blocks of a region that was being reclaimed: some may have been dropped before the crash and written
    /// to the origin since. No older record of them exists, because they are in the oldest region of their ring.
    async fn drop_reclaimed(self: &Rc<Self>) {
        let Some(victim) = self.log.victim() else { return };
        if planted(PlantedBug::ReclaimedKept) {
            return;
        }
        let clean = |entry: Entry| !entry.dirty() && self.log.region_of(entry.location()) == victim;
        let dropped = self
            .pick_blocks(false, |block, entry| clean(entry).then_some(block))
            .await;
        for block in dropped.unwrap_or_default() {
            self.load_page(block).await;
            self.map.remove(&self.log, block);
        }
    }

    /// Closes open regions: their contents are what was found now, whatever can be read the next time. Each gets a summary, so
    /// the next reader need not walk its extents.
    async fn close_regions(&self, found: &[InUse]) -> Result<(), DeviceError> {
        let contents = |region: &'_ InUse| {
            region
                .open
                .clone()
                .map(|contents| (region.number, region.entry, contents))
        };
        let open: Vec<_> = found.iter().filter_map(contents).collect();
        if open.is_empty() {
            return Ok(());
        }
        for (number, entry, contents) in open.iter().filter(|(.., contents)| contents.used > 0) {
            self.write_summary(*number, entry, contents).await?;
        }
        // The extents found may still be in the device's volatile cache, and the manifest is about to call them stable.
        self.cache.flush().await?;
        let regions: Vec<u32> = open.iter().map(|(number, ..)| *number).collect();
        self.log
            .write_manifest(&self.cache, &regions, Copies::BothStable)
            .await
    }

    async fn write_summary(
        &self,
        number: u32,
        entry: &ManifestEntry,
        contents: &RegionContents,
    ) -> Result<(), DeviceError> {
        let start = self.id.position_of(number);
        let len = summary_bytes(
            contents.extents.len(),
            contents.records.len(),
            self.id.layout.sector_bytes,
        );
        assert!(
            u64::from(contents.used) + len <= self.id.layout.region_bytes,
            "room was kept"
        );
        let summary = Summary {
            cache: self.id.cache_id,
            shard: self.id.number,
            ring: entry.ring,
            generation: entry.generation,
            position: start,
            extents: contents.extents.clone(),
            records: contents.records.clone(),
        };
        let mut buf = IoBuf::new(len as usize);
        summary.write(&mut buf);
        let position = start + self.id.layout.region_bytes - len;
        self.cache.write_at(position, buf).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::GeometryOptions;
    use crate::shard::log::Append;
    use crate::shard::simulated::{Disks, append, contents};
    use crate::units::BLOCK_BYTES;

    fn disks() -> Disks {
        Disks::new(8 << 20, GeometryOptions::default())
    }

    fn same_filled(value: u8) -> Append<'static> {
        Append::SameFilled { value, dirty: false }
    }

    /// Once the manifest says that a region is being reclaimed, its clean blocks are ignored: a block that was dropped may
    /// have been written to the origin since.
    #[test]
    fn clean_blocks_of_a_region_being_reclaimed_are_not_recovered() {
        let disks = disks();
        disks.sim.block_on(async {
            let first = disks.shard(1);
            append(&first, Ring::Probation, 1, same_filled(1));
            append(
                &first,
                Ring::Probation,
                2,
                Append::SameFilled {
                    value: 2,
                    dirty: true,
                },
            );
            append(&first, Ring::Main, 3, same_filled(3));
            first.log.close_regions();
            assert!(first.make_log_stable().await);
            let victim = first.log.take_oldest(Ring::Probation).expect("one is full");
            let regions = [victim.region];
            let told = first
                .log
                .write_manifest(&first.cache, &regions, Copies::BothStable)
                .await;
            told.expect("it is well");
        });
        disks.sim.kill_tasks();
        disks.sim.block_on(async {
            let second = disks.recovered(2).await;
            assert_eq!(second.reclaimer.unfinished(), Some(Ring::Probation));
            for (block, value) in [(1, 0), (2, 2), (3, 3)] {
                let expected = Some(vec![value; BLOCK_BYTES]);
                assert_eq!(contents(&second, block).await, expected, "block {block}");
            }
        });
    }

    /// An interrupted reclaim moves blocks to the last free region. After a crash in that reclaim, the region is free again
    /// and the blocks are where they were.
    #[test]
    fn a_reclaim_that_crashes_cut_short_twice_has_room() {
        let disks = Disks::of_small_regions(8);
        let blocks = disks.sim.block_on(async {
            let first = disks.shard(1);
            first.writeback.note_dirty_record();
            let mut block = 0;
            let dirty = |block: u64| Append::SameFilled {
                value: block as u8,
                dirty: true,
            };
            // Seven of eight regions, none empty.
            for _ in 0..7 {
                for _ in 0..10 {
                    append(&first, Ring::Main, block, dirty(block));
                    block += 1;
                }
                first.log.close_regions();
                assert!(first.make_log_stable().await);
            }
            assert_eq!(first.log.free_regions(), 1);
            let victim = first.log.take_oldest(Ring::Main).expect("one is full");
            let regions = [victim.region];
            let told = first
                .log
                .write_manifest(&first.cache, &regions, Copies::BothStable)
                .await;
            told.expect("it is well");
            block
        });
        disks.sim.kill_tasks();
        for epoch in 2..5 {
            disks.sim.block_on(async {
                let again = disks.recovered(epoch).await;
                assert_eq!(again.log.free_regions(), 1, "opening {epoch}");
                assert_eq!(again.dirty_blocks(), blocks);
                let victim = again.log.take_oldest(Ring::Main).expect("one is full");
                again.log.hold_for_reclaim(true);
                append(&again, Ring::Main, 0, Append::LOST);
                assert_eq!(again.log.free_regions(), 0);
                assert!(again.make_log_stable().await);
                again.log.put_back(victim);
            });
            disks.sim.kill_tasks();
        }
        disks.sim.block_on(async {
            let last = disks.recovered(5).await;
            assert!(last.reclaim_one(true).await, "it is finished");
            assert_eq!(last.log.free_regions(), 1);
            assert_eq!(last.dirty_blocks(), blocks);
        });
        disks.sim.kill_tasks();
        disks.sim.block_on(async {
            let last = disks.recovered(6).await;
            assert_eq!(last.reclaimer.unfinished(), None);
            for block in 0..blocks {
                let expected = Some(vec![block as u8; BLOCK_BYTES]);
                assert_eq!(contents(&last, block).await, expected, "block {block}");
            }
        });
    }

    /// One damaged copy of a manifest sector loses nothing. With both damaged, the shard is not recovered.
    #[test]
    fn one_damaged_copy_of_the_manifest_loses_nothing() {
        for damaged in [&[0][..], &[1], &[0, 1]] {
            let disks = disks();
            disks.sim.block_on(async {
                let first = disks.shard(1);
                append(&first, Ring::Main, 1, same_filled(1));
                first.log.close_regions();
                assert!(first.make_log_stable().await);
            });
            disks.sim.kill_tasks();
            for &copy in damaged {
                let position = disks.geometry.manifest_sector_offset(0, 0, copy);
                disks.cache.flip_bit(position + 100, 3);
            }
            disks.sim.block_on(async {
                let second = disks.shard(2);
                let outcome = second.recover(|| ()).await;
                if damaged.len() == 2 {
                    assert!(
                        matches!(outcome, Err(RecoverError::Damaged { .. })),
                        "{outcome:?}"
                    );
                    return;
                }
                outcome.expect("the other copy says the same");
                assert_eq!(
                    contents(&second, 1).await,
                    Some(vec![1; BLOCK_BYTES]),
                    "copy {damaged:?}"
                );
            });
        }
    }
}
