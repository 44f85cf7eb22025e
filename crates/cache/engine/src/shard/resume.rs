//! Going on with the regions that were being filled, where a crash left no other room.
//!
//! Recovery closes such a region with a summary, so that nothing in it hangs on what is before it. But where the crash
//! cut a reclaim short that had begun to fill the last region, the rest of that region is all the room there is, and
//! it was kept for the rest of what is being reclaimed: dirty blocks, and the notes that some are lost. Closed, it
//! would leave a damaged dirty block in the way of everything, with no place to say so. So it is opened again.

use std::rc::Rc;

use flaz_device::{DeviceError, IoBuf};

use super::scan::Found;
use super::{Platform, Shard};
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;

/// Bytes that are overwritten at a time.
const BLANK_BYTES: u64 = 1 << 20;
/// Bytes between flushes: all of a region at once may take a slow disk behind the page cache longer than a flush has.
const BLANK_FLUSH_BYTES: u64 = 16 << 20;

impl<P: Platform> Shard<P> {
    /// Of each ring the region that was being filled, where nothing is free and blocks are dirty. `found` is in the order
    /// of filling.
    pub(super) fn to_resume(&self, found: &[Found]) -> Vec<u32> {
        let full = found.len() == self.id.geometry.regions_per_shard as usize;
        if !full || !self.id.may_be_dirty || planted(PlantedBug::RegionNotResumed) {
            return Vec::new();
        }
        let youngest = Ring::ALL.map(|ring| found.iter().rfind(|region| region.ring == ring));
        let open = youngest
            .into_iter()
            .flatten()
            .filter(|region| !region.has_summary);
        open.map(|region| region.number).collect()
    }

    /// Of these the ones that can be gone on with. A ring whose reclaim the crash cut short must have a region that can be
    /// reclaimed first: if the only one that it has is this one, its summary was lost, and it is closed like any other.
    pub(super) fn can_be_resumed(&self, numbers: &mut Vec<u32>) {
        let log = &self.log;
        let unfinished = self.reclaimer.unfinished();
        let alone = |ring: Ring| unfinished == Some(ring) && log.full_regions(ring) == 0;
        let closed: Vec<u32> = (numbers.iter().copied())
            .filter(|&number| alone(log.ring_of_region(number)))
            .collect();
        for number in closed {
            log.finish(number);
            numbers.retain(|&other| other != number);
        }
    }

    /// Makes the end of what was found in these regions the end for everybody: what was read wrong today, an extent or a
    /// summary, must not come back beside what is stored from now on. Nor may what stays of extents that were lost: in a
    /// region that is gone on with no place is written twice in one filling otherwise, and a fragment of the same block may come
    /// to lie where one was; of one that is closed, they would look like extents that damage hides, should its summary be
    /// damaged later (`Shard::hides_stable`).
    ///
    /// The summaries first, for once one is believed, all must be there that it lists. The rest is not stable on return.
    pub(super) async fn end_regions(&self, found: &[Found], resumed: &[u32]) -> Result<(), DeviceError> {
        let (region_bytes, sector) = (
            self.id.geometry.region_bytes,
            u64::from(self.id.geometry.sector_bytes),
        );
        let walked = || found.iter().filter(|region| !region.has_summary);
        for region in walked() {
            let last = self.position_of(region.number) + region_bytes - sector;
            self.blank(last, sector).await?;
        }
        if walked().next().is_some() {
            self.cache.flush().await?;
        }
        for region in walked() {
            let (start, used) = (self.position_of(region.number), u64::from(region.used));
            let most = if resumed.contains(&region.number) {
                region_bytes
            } else {
                self.hidden_bytes_max()
            };
            let end = (used + most).min(region_bytes - sector);
            let mut at = used;
            while at < end {
                let len = BLANK_BYTES.min(end - at);
                self.blank(start + at, len).await?;
                at += len;
                if (at - used).is_multiple_of(BLANK_FLUSH_BYTES) {
                    self.cache.flush().await?;
                }
            }
        }
        Ok(())
    }

    async fn blank(&self, position: u64, len: u64) -> Result<(), DeviceError> {
        self.cache.write_at(position, IoBuf::zeroed(len as usize)).await
    }

    /// Opens these regions again. All that was found in them is stable.
    pub(super) fn resume(self: &Rc<Self>, found: &mut [Found], numbers: &[u32]) {
        let log = &self.log;
        for region in found.iter_mut().filter(|region| numbers.contains(&region.number)) {
            let (extents, records) = (
                std::mem::take(&mut region.extents),
                std::mem::take(&mut region.records),
            );
            log.reopen(region.number, extents, records);
        }
        self.intents.set_marks(log.durable_marks());
        // Reclaim comes first, and nothing else gets what room there is.
        log.hold_for_reclaim(true);
        log.starve();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flaz_device::Env;
    use flaz_sim::Rng;

    use super::*;
    use crate::format::geometry::GeometryWish;
    use crate::shard::log::Append;
    use crate::shard::simulated::{Disks, Simulated, append, contents, raw};
    use crate::units::BLOCK_BYTES;

    const REGIONS: u64 = 8;

    fn disks(extent_bytes: u32, region_bytes: u64) -> Disks {
        let wish = GeometryWish {
            extent_bytes: Some(extent_bytes),
            region_bytes: Some(region_bytes),
            ..GeometryWish::default()
        };
        let disks = Disks::new((192 << 10) + REGIONS * region_bytes, wish);
        assert_eq!(u64::from(disks.geometry.regions_per_shard), REGIONS);
        disks
    }

    fn fill(shard: &Rc<Shard<Simulated>>, ring: Ring, block: u64, value: u8, dirty: bool) {
        append(shard, ring, block, Append::Fill { value, dirty });
    }

    fn all(byte: u8) -> Option<Vec<u8>> {
        Some(vec![byte; BLOCK_BYTES])
    }

    /// The only region of a ring was being reclaimed, and its summary is lost. Then everything else is reclaimed, or the
    /// cache is stopped.
    fn the_only_region_of_its_ring(stop: bool) {
        let disks = disks(32 << 10, 128 << 10);
        disks.sim.block_on(async {
            let first = disks.shard(1);
            for region in 0..REGIONS - 2 {
                fill(&first, Ring::Main, 20 + region, 1, false);
                first.log.close_regions();
                first.pump_writes();
            }
            fill(&first, Ring::Probation, 0, 0x11, false);
            first.log.seal_all();
            // Reclaim has moved it.
            fill(&first, Ring::Main, 0, 0x11, false);
            fill(&first, Ring::Main, 1, 0x33, true);
            assert!(first.make_log_stable().await);
        });
        disks.sim.kill_tasks();
        disks.sim.block_on(async {
            let second = disks.recovered(2).await;
            second.permit_write_back(true);
            second.start();
            let mut new = IoBuf::new(BLOCK_BYTES);
            new.fill(0x22);
            second.write(0, new, false, false).await.expect("it is well");
            for stripe in 1..if stop { 3 } else { 15 } {
                second
                    .read(stripe << 20, 1 << 20, false)
                    .await
                    .expect("it is well");
                disks.env.sleep(Duration::from_secs(2)).await;
            }
            disks.env.sleep(Duration::from_secs(60)).await;
            if stop {
                second.stop().await;
                second.save().await.expect("it is well");
            }
        });
        disks.sim.kill_tasks();
        disks.sim.block_on(async {
            let third = disks.recovered(3).await;
            assert_eq!(contents(&third, 0).await, all(0x22), "stale");
        });
    }

    #[test]
    fn an_unfinished_reclaim_of_an_only_region_is_finished_first() {
        the_only_region_of_its_ring(false);
        the_only_region_of_its_ring(true);
    }

    /// What is left of an extent that was lost must not be taken for part of the one that is written there, for the same
    /// block, after the crash.
    #[test]
    fn a_lost_write_does_not_return_under_a_later_header() {
        let disks = disks(64 << 10, 256 << 10);
        let (mut lost, mut later) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
        Rng::new(1).fill(&mut lost);
        Rng::new(2).fill(&mut later);
        let used = disks.sim.block_on(async {
            let first = disks.shard(1);
            for region in 0..REGIONS - 1 {
                fill(&first, Ring::Main, 20 + region, 1, true);
                first.log.close_regions();
                first.pump_writes();
            }
            fill(&first, Ring::Main, 40, 1, true);
            assert!(first.make_log_stable().await);
            let used = first.log.durable_marks()[Ring::Main.index()].used;
            append(&first, Ring::Main, 0, raw(&lost));
            assert!(first.make_log_stable().await);
            u64::from(used)
        });
        disks.sim.kill_tasks();
        let extent = disks.region(REGIONS as u32 - 1) + used;
        disks.cache.poke(extent, &[0; 512]);
        disks.sim.block_on(async {
            let second = disks.recovered(2).await;
            assert_eq!(second.log.open_numbers()[Ring::Main.index()], Some(7));
            assert_eq!(contents(&second, 0).await, all(0), "it was not flushed");
            let before = disks.cache.peek(extent + 512, 2 * BLOCK_BYTES);
            append(&second, Ring::Main, 0, raw(&later));
            second.log.seal_all();
            second.pump_writes();
            disks.env.sleep(Duration::from_secs(1)).await;
            // The power fails before it is flushed, and of this extent the first sector has landed.
            disks.cache.poke(extent + 512, &before);
        });
        disks.sim.kill_tasks();
        disks.sim.block_on(async {
            let third = disks.recovered(3).await;
            assert_eq!(contents(&third, 0).await, all(0), "it has come back");
        });
    }
}
