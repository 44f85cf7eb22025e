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

    /// Makes the end of what was found in a region the end for everybody: what was read wrong today, an extent or a summary,
    /// must not come back beside what is stored from now on. (Extents behind a missing one have lower sequences than all
    /// that will be stored.)
    ///
    /// Not stable on return.
    pub(super) async fn end_region(&self, region: &Found) -> Result<(), DeviceError> {
        let (region_bytes, sector) = (self.geometry.region_bytes, u64::from(self.geometry.sector_bytes));
        let start = self.geometry.shard_offset(self.number) + u64::from(region.number) * region_bytes;
        for offset in [u64::from(region.used), region_bytes - sector] {
            let zeroes = IoBuf::zeroed(sector as usize);
            self.cache.write_at(start + offset, zeroes, false).await.1?;
        }
        Ok(())
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
