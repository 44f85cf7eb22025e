//! Rebuilds damaged index pages from the log while the cache is being served: one, or all whose changes were in one damaged slot.
//!
//! The records of all regions are read, as in a recovery, and of those of each block of the page the last one counts. Others use the
//! cache meanwhile; those that need the page wait. The result is the page exactly as it was, because:
//! - Blocks of the page are not stored, cleaned or removed while it is not in memory. So which of their records count is decided when the
//!   rebuild begins: all later ones are tombstones of blocks that are not in the index. If the page gets into memory meanwhile, because a
//!   later read succeeds, the rebuild has no effect.
//! - Removed blocks without a newer record are known: they are stale, or were evacuated from the region that is being reclaimed. A recovery
//!   also leaves out clean blocks of a region whose reclaim a crash has interrupted, and which these were is not known: until that reclaim
//!   is finished, no page is rebuilt.
//! - A region that is freed meanwhile loses all its entries, by its retirement. A newer record of a block is not lost before an older one.
//! - Regions that are open, or closed and not complete on the device, have their records in memory: nothing is waited for that could wait
//!   for the page.

use std::collections::BTreeMap;

use flaz_device::Env;
use futures_util::stream::{StreamExt, iter};

use super::log::UsedRegion;
use super::map::LostPage;
use super::recover_records::change_of;
use super::region_reader::{Found, Guess, RegionContents, located, read_region};
use super::{Platform, Shard};
use crate::index::{Change, DamagedPage, Entry};
use crate::planted::{PlantedBug, planted};
use crate::stats::count;
use crate::units::{LocalBlock, Location, Sequence};

/// Regions read concurrently.
const READS_MAX: usize = 8;
/// Maximum number of blocks with records that a rebuild holds, to bound its memory. A page has at most a few thousand entries, but after a
/// large trim the log may have tombstones of many more blocks in its range.
const BLOCKS_MAX: usize = 64 << 10;

/// The place of a record: the sequence of its extent, and its number there.
type Order = (Sequence, usize);

/// What the records of a block say.
#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    /// The last one that stores or drops it.
    stored: Option<(Order, Option<Entry>)>,
    /// The last one that cleans it.
    cleaned: Option<Order>,
}

impl Latest {
    fn add(&mut self, order: Order, change: Change) {
        let entry = match change {
            Change::Clean => {
                self.cleaned = self.cleaned.max(Some(order));
                return;
            }
            Change::Set(entry) => Some(entry),
            Change::Drop => None,
        };
        if self.stored.is_none_or(|(before, _)| before < order) {
            self.stored = Some((order, entry));
        }
    }

    fn entry(&self) -> Option<Entry> {
        let (order, entry) = self.stored?;
        let is_clean = self.cleaned.is_some_and(|cleaned| cleaned > order);
        entry.map(|entry| entry.with_dirty(entry.dirty() && !is_clean))
    }
}

impl<P: Platform> Shard<P> {
    /// Rebuilds a damaged index page, and those that cannot be read for the same reason. Does nothing if the page no longer needs a rebuild.
    ///
    /// # Errors
    /// The reason why it cannot be rebuilt.
    pub(super) async fn rebuild(&self, damaged: &DamagedPage) -> Result<(), String> {
        let _turn = self.map.turn_to_rebuild().await;
        let mut lost = self.map.begin_rebuild(damaged)?;
        if lost.is_empty() {
            return Ok(());
        }
        if self.log.victim().is_some() && self.reclaimer.unfinished().is_some() {
            return Err("a reclaim that was interrupted is not finished".into());
        }
        let shard = self.id.number;
        let (why, pages) = (&damaged.why, lost.len());
        match damaged.page.changes_slot().filter(|_| damaged.of_changes) {
            None => tracing::warn!(shard, "{why}; it is rebuilt from the log"),
            Some(slot) => tracing::warn!(
                shard,
                "{why}; the pages with changes in slot {slot} are rebuilt from the log, {pages} of them"
            ),
        }
        let regions = self.log.used_regions();
        // By region: entries, and those of dirty blocks.
        let counts: BTreeMap<u32, (u32, u32)> = (regions.iter())
            .map(|region| (region.number, (region.live, self.map.dirty_in(region.number))))
            .collect();
        let victim = self.log.victim();
        let latest = self.latest_records(regions, &mut lost, damaged).await?;
        self.map.end_rebuild();
        if self.cache.is_fenced() {
            return Ok(());
        }
        let is_there = |lost: &LostPage, block: &LocalBlock, entry: Entry| {
            if planted(PlantedBug::RebuiltFromLeft) {
                return true;
            }
            let region = self.log.region_of(entry.location());
            if victim == Some(region) && lost.evacuated.contains(block) {
                return false;
            }
            counts
                .get(&region)
                .is_some_and(|(live, dirty)| match entry.dirty() {
                    true => *dirty > 0,
                    false => live > dirty,
                })
        };
        for lost in &lost {
            let latest = latest.range(lost.blocks.clone());
            let entries = latest.filter_map(|(block, latest)| Some((*block, latest.entry()?)));
            let entries = entries.filter(|(block, entry)| is_there(lost, block, *entry));
            let is_put = self.map.put_rebuilt(lost, entries.collect());
            count(&self.stats.counters.index_pages_rebuilt, is_put.into());
        }
        Ok(())
    }

    /// What the records of all regions say of the blocks of some pages. If these are too many, only the damaged page remains.
    async fn latest_records(
        &self,
        regions: Vec<UsedRegion>,
        lost: &mut Vec<LostPage>,
        damaged: &DamagedPage,
    ) -> Result<BTreeMap<LocalBlock, Latest>, String> {
        let guess = &Guess::default();
        let reads = regions
            .into_iter()
            .map(async |region| (region.number, self.contents_of_used(region, guess).await));
        let (mut reads, mut latest) = (iter(reads).buffered(READS_MAX), BTreeMap::new());
        while let Some((number, contents)) = reads.next().await {
            if let Some(contents) = contents? {
                self.add_records(number, &contents, lost, &mut latest);
            }
            if latest.len() > BLOCKS_MAX && lost.len() > 1 {
                lost.retain(|page| page.is_of(damaged));
                latest.retain(|block, _| lost[0].blocks.contains(block));
            }
            if latest.len() > BLOCKS_MAX {
                return Err(format!(
                    "the log has records of more than {BLOCKS_MAX} of its blocks"
                ));
            }
            self.env.yield_now().await;
        }
        Ok(latest)
    }

    /// The contents of a region. `None`: it was freed meanwhile.
    async fn contents_of_used(
        &self,
        region: UsedRegion,
        guess: &Guess,
    ) -> Result<Option<RegionContents>, String> {
        let UsedRegion { number, entry, .. } = region;
        if let Some((extents, records)) = region.contents {
            if planted(PlantedBug::RebuiltFromDevice) {
                return Ok(None);
            }
            return Ok(Some(RegionContents {
                extents,
                records,
                ..RegionContents::default()
            }));
        }
        let place = self.id.region(number);
        let errors = &self.stats.counters.cache_read_errors;
        let why = match read_region(self.cache.device(), &place, &entry, guess, errors).await {
            Ok(Found::Contents(contents)) => return Ok(Some(contents)),
            Ok(Found::Damaged(what)) => what,
            Err(error) => format!("region {number}: {error}"),
        };
        match self.log.whole_entry(number) {
            Some(now) if now == entry => Err(why),
            _ => Ok(None),
        }
    }

    fn add_records(
        &self,
        number: u32,
        contents: &RegionContents,
        lost: &[LostPage],
        latest: &mut BTreeMap<LocalBlock, Latest>,
    ) {
        let base = u64::from(number) * self.id.layout.region_bytes;
        for (extent, records) in contents.records_by_extent() {
            let start = Location::at(base + u64::from(extent.offset));
            for (nth, (record, at)) in located(extent, records).enumerate() {
                let Some(change) = change_of(record, start.offset(), base + at) else {
                    continue;
                };
                for block in record.blocks() {
                    let (shard, local) = block.in_shard(self.id.layout.shard_count);
                    let is_ours = block.0 < self.whole_blocks() && shard == self.id.number;
                    if is_ours && lost.iter().any(|page| page.blocks.contains(&local)) {
                        latest
                            .entry(local)
                            .or_default()
                            .add((extent.sequence, nth), change);
                    }
                }
            }
        }
    }
}

#[cfg(all(test, feature = "planted-bugs"))]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use flaz_device::Env;

    use crate::format::geometry::GeometryOptions;
    use crate::planted::page_index;
    use crate::policy::Ring;
    use crate::shard::Shard;
    use crate::shard::log::{Append, Copies};
    use crate::shard::simulated::{self, Disks, Simulated};
    use crate::units::LocalBlock;

    /// Stores a block in main.
    async fn store(shard: &Rc<Shard<Simulated>>, block: u64, value: u8, dirty: bool) {
        if dirty {
            shard.writeback.note_dirty_record();
        }
        let what = Append::SameFilled { value, dirty };
        simulated::store(shard, Ring::Main, block, what).await;
    }

    async fn close(shard: &Rc<Shard<Simulated>>) {
        shard.log.close_regions();
        assert!(shard.make_log_stable().await);
    }

    /// A recovery leaves clean blocks out of the region that was being reclaimed, and then a dirty block there becomes clean, too.
    #[test]
    fn what_a_recovery_left_out_does_not_come_back() {
        page_index(true);
        let disks = Disks::new(8 << 20, GeometryOptions::default());
        disks.sim.block_on(async {
            let first = disks.shard(1);
            for block in (0..200).step_by(10) {
                store(&first, block, 1, false).await;
            }
            store(&first, 5, 2, true).await;
            close(&first).await;
            for block in (0..200).filter(|block| block % 10 > 0 && *block != 5) {
                store(&first, block, 3, false).await;
            }
            close(&first).await;
            let victim = first.log.take_oldest(Ring::Main).expect("one is full");
            let regions = [victim.region];
            let told = first
                .log
                .write_manifest(&first.cache, &regions, Copies::BothStable);
            told.await.expect("the device is well");
            first.pages_written().await;
        });
        disks.sim.kill_tasks();
        disks.sim.block_on(async {
            let second = disks.recovered(2).await;
            second.start();
            disks.env.sleep(Duration::from_secs(60)).await;
            assert_eq!(second.dirty_blocks(), 0, "the block is clean");
            assert!(second.reclaimer.unfinished().is_some(), "space is not needed");
            for block in 0..200 {
                second.load_page(LocalBlock(block)).await;
            }
            second.pages_written().await;
            let geometry = disks.geometry;
            for sector in 0..geometry.index_bytes / 512 {
                disks
                    .cache
                    .flip_bit(geometry.index_offset() + sector * 512 + 40, 1);
            }
            for block in (0..200).step_by(10) {
                second.load_page(LocalBlock(block)).await;
                assert_eq!(second.map.lookup(LocalBlock(block)), None, "block {block}");
            }
            assert!(second.is_fenced(), "nothing is rebuilt yet");
        });
        page_index(false);
    }
}
