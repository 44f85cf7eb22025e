//! Writing the manifest: the region table of the shard, for the next start.
//!
//! A sector is written from the current entries ([`State::entry`](super::state::State::entry)) of all its regions. Each
//! sector has two copies. Some changes must not be missed by a reader, because the older entry would bring back void
//! contents. Such a change goes to both copies, one after the other, so that one damaged copy loses no data. A mark of a
//! stable length goes to one copy, alternating: an older mark is also true. (The index image needs the newer one: if its copy
//! is damaged after a clean stop, the next start recovers the log, or is cold if no block is dirty.)
//!
//! Invariants: one writer at a time; the copy being written is never the only one that counts.

use flaz_device::{DeviceError, IoBuf};
use futures_util::future::join_all;

use super::SegmentLog;
use super::copies::Copies;
use super::state::State;
use crate::format::manifest::{ManifestSector, entries_checksum};
use crate::shard::io::CacheIo;
use crate::shard::platform::Platform;

impl State {
    /// A sector of the manifest with the current entries.
    fn manifest_sector(&self, sector: u32, generation: u64) -> IoBuf {
        let (layout, identity) = self.place();
        let sector = ManifestSector {
            cache: identity.cache,
            number: layout.manifest_sector_number(identity.shard, sector),
            generation,
            epoch: identity.epoch,
            entries: layout
                .manifest_regions(sector)
                .map(|region| self.entry(region))
                .collect(),
        };
        assert!(!sector.entries.is_empty(), "a sector describes regions");
        let mut buf = IoBuf::new(layout.sector_bytes as usize);
        sector.write(&mut buf);
        buf
    }
}

impl SegmentLog {
    /// The copy of each sector to write next, as found on the device.
    pub(in crate::shard) fn inherit_copies(&self, next: &[u8]) {
        assert!(next.iter().all(|copy| *copy < 2), "there are two copies");
        self.manifest.next.borrow_mut().copy_from_slice(next);
    }

    /// Writes the entries of these regions, and of all regions in the same sectors.
    ///
    /// # Errors
    /// The device's, or the device is fenced: then nothing is written, because the steps of reclaim that depend on it are
    /// not done on the device.
    pub(in crate::shard) async fn write_manifest<P: Platform>(
        &self,
        cache: &CacheIo<P>,
        regions: &[u32],
        copies: Copies,
    ) -> Result<(), DeviceError> {
        if regions.is_empty() {
            return Ok(());
        }
        let _permit = self.manifest.writer.acquire(1).await;
        let mut sectors: Vec<u32> = (regions.iter())
            .map(|&region| self.layout.manifest_sector_of(region))
            .collect();
        sectors.sort_unstable();
        sectors.dedup();
        let (told, buffers) = {
            let state = self.state.borrow();
            let buffers: Vec<(u32, IoBuf)> = (sectors.iter())
                .map(|&sector| {
                    (
                        sector,
                        state.manifest_sector(sector, self.manifest.next_generation()),
                    )
                })
                .collect();
            let among = |region| sectors.contains(&self.layout.manifest_sector_of(region));
            (state.told(among), buffers)
        };
        self.write_copy(cache, &buffers, copies.is_stable()).await?;
        if copies.are_both() {
            self.write_copy(cache, &buffers, false).await?;
        }
        self.state
            .borrow_mut()
            .manifest_written(&told, copies.is_stable());
        Ok(())
    }

    async fn write_copy<P: Platform>(
        &self,
        cache: &CacheIo<P>,
        sectors: &[(u32, IoBuf)],
        stable: bool,
    ) -> Result<(), DeviceError> {
        let shard = self.state.borrow().place().1.shard;
        let writes = sectors.iter().map(async |(sector, buf)| {
            let copy = usize::from(self.manifest.next.borrow()[*sector as usize]);
            let position = self.layout.manifest_sector_offset(shard, *sector, copy);
            let write = async { cache.write(position, IoBuf::copy_of(buf), stable).await.1 };
            match stable {
                true => cache.stable(write).await?,
                false => write.await?,
            }
            self.manifest.next.borrow_mut()[*sector as usize] = 1 - copy as u8;
            Ok::<(), DeviceError>(())
        });
        // All of them have ended on return: none lands after a later write.
        join_all(writes).await.into_iter().collect()
    }

    /// The checksum of the entries of all regions: see [`entries_checksum`].
    pub(in crate::shard) fn manifest_checksum(&self) -> u32 {
        let regions = 0..self.region_count() as u32;
        let state = self.state.borrow();
        entries_checksum(regions.map(|region| state.entry(region)))
    }

    /// Writes the stable lengths of regions that the manifest does not have yet.
    ///
    /// # Errors
    /// As for [`SegmentLog::write_manifest`].
    pub(in crate::shard) async fn write_marks<P: Platform>(
        &self,
        cache: &CacheIo<P>,
        stable: bool,
    ) -> Result<(), DeviceError> {
        let regions = self.unmarked(stable);
        let copies = if stable { Copies::OneStable } else { Copies::One };
        self.write_manifest(cache, &regions, copies).await
    }

    /// Regions whose length in the manifest on the device is below the stable length; with `stable`, also those whose older
    /// length a power cut could bring back.
    pub(in crate::shard) fn unmarked(&self, stable: bool) -> Vec<u32> {
        self.state.borrow().unmarked(stable)
    }
}
