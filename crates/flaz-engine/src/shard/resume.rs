//! Going on with the regions that were being filled, where a crash left no other room.
//!
//! Recovery closes such a region with a summary, so that nothing in it hangs on what is before it. But where the crash
//! cut a reclaim short that had begun to fill the last region, the rest of that region is all the room there is, and
//! it was kept for the rest of what is being reclaimed: dirty blocks, and the notes that some are lost. Closed, it
//! would leave a damaged dirty block in the way of everything, with no place to say so. So it is opened again.

use std::rc::Rc;

use flaz_device::{Device, DeviceError, IoBuf};

use super::scan::Found;
use super::{Platform, Shard};
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;

/// Bytes that are overwritten at a time.
const BLANK_BYTES: u64 = 1 << 20;

impl<P: Platform> Shard<P> {
    /// Of each ring the region that was being filled, where nothing is free and blocks are dirty. `found` is in the order
    /// of filling.
    pub(super) fn to_resume(&self, found: &[Found]) -> Vec<u32> {
        let full = found.len() == self.geometry.regions_per_shard as usize;
        if !full || !self.may_be_dirty || planted(PlantedBug::RegionNotResumed) {
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
        let regions = &mut self.log.borrow_mut().regions;
        let unfinished = self.unfinished.get();
        let alone = |ring: Ring| unfinished == Some(ring) && regions.ring_len(ring) == 0;
        let closed: Vec<u32> = (numbers.iter().copied())
            .filter(|&number| alone(regions.ring_of(number)))
            .collect();
        for number in closed {
            regions.finish(number);
            numbers.retain(|&other| other != number);
        }
    }

    /// Makes the end of what was found in a region the end for everybody: what was read wrong today, an extent or a summary,
    /// must not come back beside what is stored from now on. Nor may what stays of extents that were lost: no place is
    /// written twice in one filling otherwise, and a fragment of the same block may come to lie where one was.
    ///
    /// The summary first, for once it is believed, all must be there that it lists. The rest is not stable on return.
    pub(super) async fn end_region(&self, region: &Found) -> Result<(), DeviceError> {
        let (region_bytes, sector) = (self.geometry.region_bytes, u64::from(self.geometry.sector_bytes));
        let start = self.geometry.shard_offset(self.number) + u64::from(region.number) * region_bytes;
        let end = region_bytes - sector;
        self.blank(start + end, sector).await?;
        self.flush_cache().await?;
        let mut at = u64::from(region.used);
        while at < end {
            let len = BLANK_BYTES.min(end - at);
            self.blank(start + at, len).await?;
            at += len;
        }
        Ok(())
    }

    async fn blank(&self, position: u64, len: u64) -> Result<(), DeviceError> {
        self.cache
            .write_at(position, IoBuf::zeroed(len as usize), false)
            .await
            .1
    }

    /// Opens these regions again. All that was found in them is stable.
    pub(super) fn resume(self: &Rc<Self>, found: &mut [Found], numbers: &[u32]) {
        let log = &mut *self.log.borrow_mut();
        for region in found.iter_mut().filter(|region| numbers.contains(&region.number)) {
            let (extents, records) = (
                std::mem::take(&mut region.extents),
                std::mem::take(&mut region.records),
            );
            log.reopen(region.ring, region.number, extents, records);
        }
        self.intents.set_durable(log.durable_marks());
        // Reclaim comes first, and nothing else gets what room there is.
        log.held_for_reclaim = true;
        log.starve();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flaz_device::Env;
    use flaz_sim::{DiskConfig, Rng, Sim, SimDisk, SimEnv};

    use super::*;
    use crate::codec::CodecId;
    use crate::format::geometry::{Geometry, GeometryWish};
    use crate::shard::log::Append;
    use crate::shard::simulated::{Simulated, shard_over};
    use crate::units::{BLOCK_BYTES, BlockNumber, LocalBlock};

    const REGIONS: u64 = 8;
    const ORIGIN_LEN: u64 = 16 << 20;

    struct World {
        sim: Sim,
        env: SimEnv,
        cache: SimDisk,
        origin: SimDisk,
        geometry: Geometry,
    }

    impl World {
        fn new(extent_bytes: u32, region_bytes: u64) -> Self {
            let wish = GeometryWish {
                extent_bytes: Some(extent_bytes),
                region_bytes: Some(region_bytes),
                shard_count: Some(1),
            };
            let len = (192 << 10) + REGIONS * region_bytes;
            let geometry = Geometry::plan(len, 512, ORIGIN_LEN, wish).expect("fits");
            assert_eq!(u64::from(geometry.regions_per_shard), REGIONS);
            let sim = Sim::new(1);
            let env = sim.env();
            Self {
                cache: SimDisk::new(&env, DiskConfig::fast(geometry.device_len)),
                origin: SimDisk::new(&env, DiskConfig::fast(ORIGIN_LEN)),
                sim,
                env,
                geometry,
            }
        }

        /// A shard of a cache that may have dirty blocks, in opening `epoch`.
        fn shard(&self, epoch: u32) -> Rc<Shard<Simulated>> {
            shard_over(&self.env, &self.cache, &self.origin, self.geometry, epoch, true)
        }

        async fn recovered(&self, epoch: u32) -> Rc<Shard<Simulated>> {
            let shard = self.shard(epoch);
            shard.recover(|| ()).await.expect("recovers");
            shard
        }
    }

    fn fill(shard: &Rc<Shard<Simulated>>, ring: Ring, block: u64, value: u8, dirty: bool) {
        let what = Append::Fill { value, dirty };
        let appended = shard
            .log
            .borrow_mut()
            .append(ring, BlockNumber(block), what, true);
        appended.expect("there is room");
    }

    fn raw(shard: &Rc<Shard<Simulated>>, block: u64, data: &[u8]) {
        let what = Append::Packed {
            codec: CodecId::RAW,
            stored: data,
            plain_crc: crc32c::crc32c(data),
            dirty: true,
        };
        let appended = shard
            .log
            .borrow_mut()
            .append(Ring::Main, BlockNumber(block), what, true);
        appended.expect("there is room");
    }

    async fn block(shard: &Rc<Shard<Simulated>>, block: u64) -> Vec<u8> {
        let mut out = vec![0; BLOCK_BYTES];
        let read = shard.read_block(LocalBlock(block), &mut out).await;
        read.expect("both devices are well");
        out
    }

    /// The only region of a ring was being reclaimed, and its summary is lost. Then everything else is reclaimed, or the
    /// cache is stopped.
    fn the_only_region_of_its_ring(stop: bool) {
        let world = World::new(32 << 10, 128 << 10);
        world.sim.block_on(async {
            let first = world.shard(1);
            for region in 0..REGIONS - 2 {
                fill(&first, Ring::Main, 20 + region, 1, false);
                first.log.borrow_mut().close_regions();
                first.pump_writes();
            }
            fill(&first, Ring::Probation, 0, 0x11, false);
            first.log.borrow_mut().seal_all();
            // Reclaim has moved it.
            fill(&first, Ring::Main, 0, 0x11, false);
            fill(&first, Ring::Main, 1, 0x33, true);
            assert!(first.make_log_stable().await);
        });
        world.sim.kill_tasks();
        world.sim.block_on(async {
            let second = world.recovered(2).await;
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
                world.env.sleep(Duration::from_secs(2)).await;
            }
            world.env.sleep(Duration::from_secs(60)).await;
            if stop {
                second.stop().await;
                second.save().await.expect("it is well");
            }
        });
        world.sim.kill_tasks();
        world.sim.block_on(async {
            let third = world.recovered(3).await;
            assert_eq!(block(&third, 0).await, [0x22; BLOCK_BYTES], "stale");
        });
    }

    #[test]
    fn what_a_crash_left_unfinished_is_reclaimed_first_also_if_it_is_the_only_one_of_its_ring() {
        the_only_region_of_its_ring(false);
        the_only_region_of_its_ring(true);
    }

    /// What is left of an extent that was lost must not be taken for part of the one that is written there, for the same
    /// block, after the crash.
    #[test]
    fn a_lost_write_does_not_come_back_under_the_header_of_a_later_one() {
        let world = World::new(64 << 10, 256 << 10);
        let (mut lost, mut later) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
        Rng::new(1).fill(&mut lost);
        Rng::new(2).fill(&mut later);
        let used = world.sim.block_on(async {
            let first = world.shard(1);
            for region in 0..REGIONS - 1 {
                fill(&first, Ring::Main, 20 + region, 1, true);
                first.log.borrow_mut().close_regions();
                first.pump_writes();
            }
            fill(&first, Ring::Main, 40, 1, true);
            assert!(first.make_log_stable().await);
            let used = first.log.borrow().durable_marks()[Ring::Main.index()].used;
            raw(&first, 0, &lost);
            assert!(first.make_log_stable().await);
            u64::from(used)
        });
        world.sim.kill_tasks();
        let geometry = &world.geometry;
        let extent = geometry.shard_offset(0) + (REGIONS - 1) * geometry.region_bytes + used;
        world.cache.poke(extent, &[0; 512]);
        world.sim.block_on(async {
            let second = world.recovered(2).await;
            assert_eq!(second.log.borrow().open_numbers()[Ring::Main.index()], Some(7));
            assert_eq!(block(&second, 0).await, [0; BLOCK_BYTES], "it was not flushed");
            let before = world.cache.peek(extent + 512, 2 * BLOCK_BYTES);
            raw(&second, 0, &later);
            assert!(second.make_log_stable().await);
            // The power fails, and of this extent the first sector has landed.
            world.cache.poke(extent + 512, &before);
        });
        world.sim.kill_tasks();
        world.sim.block_on(async {
            let third = world.recovered(3).await;
            assert_eq!(block(&third, 0).await, [0; BLOCK_BYTES], "it has come back");
        });
    }
}
