//! Reads the bitmap of a shard from a device: after a crash, before a cache is opened, and for `flaz check`.
//!
//! Invariant: a set bit that a write left stable is never taken for a clear one. A page that cannot be read, or whose checksums
//! are wrong twice, is returned as damaged, and its reader must assume that all its bits are set.

use std::ops::Range;

use flaz_device::deadline::is_timeout;
use flaz_device::{Device, DeviceError, IoBuf};

use crate::format::FormatError;
use crate::format::geometry::PAGE_BYTES;
use crate::format::intent::{INTENT_STRIPES, IntentSector};
use crate::format::layout::Layout;

/// Bytes of the bitmap read at a time: that of a device that claims to be huge takes hundreds of MiB.
const PART_BYTES: u64 = 1 << 20;
/// Maximum number of unreadable pages in such a part.
const UNREADABLE_PAGES_MAX: usize = 8;
const PAGE: u64 = PAGE_BYTES as u64;
const SECTOR: u64 = size_of::<IntentSector>() as u64;

/// The bitmap of one shard.
pub(crate) struct IntentReader<'a, C> {
    device: &'a C,
    layout: &'a Layout,
    shard: u32,
}

/// A page of the bitmap.
#[derive(Debug)]
pub(crate) struct IntentPage {
    /// Number of the page in the shard.
    pub(crate) number: u64,
    /// Why it could not be read; its sectors are then damaged.
    pub(crate) error: Option<DeviceError>,
    /// Its sectors, in order.
    pub(crate) sectors: Vec<StoredSector>,
}

/// A sector of such a page.
#[derive(Debug)]
pub(crate) struct StoredSector {
    /// Byte offset on the device.
    pub(crate) offset: u64,
    /// The stripes of its bits (numbers in the shard); none behind the end of the origin.
    pub(crate) stripes: Range<u64>,
    /// The sector, or what is wrong with it.
    pub(crate) bits: Result<IntentSector, FormatError>,
}

impl StoredSector {
    /// Whether no bit is set, for sure.
    pub(crate) fn is_clear(&self) -> bool {
        matches!(&self.bits, Ok(sector) if sector.set_count() == 0)
    }

    /// Whether the bit of a stripe is set, or must be assumed to be.
    pub(crate) fn has(&self, stripe: u64) -> bool {
        assert!(self.stripes.contains(&stripe), "a stripe of this sector");
        match &self.bits {
            Ok(sector) => sector.has(stripe - self.stripes.start),
            Err(_) => true,
        }
    }
}

impl IntentPage {
    /// Whether bits of stripes are damaged.
    pub(crate) fn is_damaged(&self) -> bool {
        let damaged = |sector: &StoredSector| !sector.stripes.is_empty() && sector.bits.is_err();
        self.sectors.iter().any(damaged)
    }

    /// The sector with the bit of a stripe of this page.
    pub(crate) fn sector_of(&self, stripe: u64) -> &StoredSector {
        let within = stripe / INTENT_STRIPES % (PAGE / SECTOR);
        &self.sectors[within as usize]
    }
}

impl<'a, C: Device> IntentReader<'a, C> {
    pub(crate) fn new(device: &'a C, layout: &'a Layout, shard: u32) -> Self {
        assert!(shard < layout.shard_count, "shard {shard}");
        Self {
            device,
            layout,
            shard,
        }
    }

    /// All pages, in parts for [`Self::read`].
    pub(crate) fn parts(&self) -> impl Iterator<Item = Range<u64>> + use<C> {
        let (pages, most) = (self.layout.shard_intent_len() / PAGE, PART_BYTES / PAGE);
        (0..pages)
            .step_by(most as usize)
            .map(move |first| first..(first + most).min(pages))
    }

    /// Reads neighbouring pages.
    ///
    /// # Errors
    /// The device's, after a timeout or if more than [`UNREADABLE_PAGES_MAX`] pages cannot be read.
    pub(crate) async fn read(&self, pages: Range<u64>) -> Result<Vec<IntentPage>, DeviceError> {
        let len = (pages.end - pages.start) * PAGE;
        let whole = IoBuf::new(len as usize);
        let (buf, result) = self.device.read_at(self.offset(pages.start), whole).await;
        let mut unreadable = 0;
        let mut found = Vec::with_capacity(buf.len() / PAGE_BYTES);
        for (number, bytes) in pages.zip(buf.chunks_exact(PAGE_BYTES)) {
            let mut page = match result {
                Ok(()) => self.parse(number, bytes, None),
                Err(_) => self.read_page(number).await?,
            };
            if page.error.is_none() && page.is_damaged() {
                // A single read may be wrong.
                page = self.read_page(number).await?;
            }
            if let Some(error) = page.error.take() {
                if unreadable == UNREADABLE_PAGES_MAX {
                    return Err(error);
                }
                unreadable += 1;
                page.error = Some(error);
            }
            found.push(page);
        }
        Ok(found)
    }

    fn offset(&self, page: u64) -> u64 {
        self.layout.shard_intent_offset(self.shard) + page * PAGE
    }

    async fn read_page(&self, number: u64) -> Result<IntentPage, DeviceError> {
        let page = IoBuf::new(PAGE_BYTES);
        let (mut buf, result) = self.device.read_at(self.offset(number), page).await;
        match result {
            Err(error) if is_timeout(&error) => Err(error),
            Err(error) => {
                // Zeroes fail the checksums.
                buf.fill(0);
                Ok(self.parse(number, &buf, Some(error)))
            }
            Ok(()) => Ok(self.parse(number, &buf, None)),
        }
    }

    fn parse(&self, number: u64, bytes: &[u8], error: Option<DeviceError>) -> IntentPage {
        let first = self.layout.shard_intent_len() / SECTOR * u64::from(self.shard);
        let stripes = self.layout.local_stripes();
        let sectors = (number * (PAGE / SECTOR)..)
            .zip(bytes.as_chunks().0)
            .map(|(within, bytes)| StoredSector {
                offset: self.layout.intent_offset() + (first + within) * SECTOR,
                stripes: (within * INTENT_STRIPES).min(stripes)..((within + 1) * INTENT_STRIPES).min(stripes),
                bits: IntentSector::parse(bytes, (first + within) as u32),
            })
            .collect();
        IntentPage {
            number,
            error,
            sectors,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::{Geometry, GeometryOptions};
    use flaz_device::DeviceOp;
    use flaz_sim::{DiskConfig, Sim, SimDisk};
    use zerocopy::IntoBytes;

    const LEN: u64 = 64 << 20;

    /// A device with two shards, and the bit of stripe 3 set in the second.
    fn device() -> (Sim, SimDisk, Geometry) {
        let sim = Sim::new(1);
        let disk = SimDisk::new(&sim.env(), DiskConfig::fast(LEN));
        let options = GeometryOptions {
            shard_count: Some(2),
            ..GeometryOptions::default()
        };
        let geometry = Geometry::plan(LEN, 512, 16 << 30, options).expect("fits");
        for number in 0..geometry.intent_len() / SECTOR {
            let mut sector = IntentSector::clear(number as u32, 1);
            if number == geometry.shard_intent_len() / SECTOR {
                sector.set(3);
                sector.seal();
            }
            disk.poke(geometry.intent_offset() + number * SECTOR, sector.as_bytes());
        }
        (sim, disk, geometry)
    }

    fn all(sim: &Sim, disk: &SimDisk, geometry: &Geometry, shard: u32) -> Vec<IntentPage> {
        sim.block_on(async {
            let reader = IntentReader::new(disk, geometry, shard);
            let mut pages = Vec::new();
            for part in reader.parts() {
                pages.extend(reader.read(part).await.expect("readable"));
            }
            pages
        })
    }

    fn set(pages: &[IntentPage]) -> Vec<u64> {
        let sectors = pages.iter().flat_map(|page| &page.sectors);
        let of = |sector: &StoredSector| {
            let set = sector.stripes.clone().filter(|stripe| sector.has(*stripe));
            set.collect::<Vec<u64>>()
        };
        sectors.flat_map(of).collect()
    }

    #[test]
    fn each_shard_has_its_own_bits() {
        let (sim, disk, geometry) = device();
        assert_eq!(set(&all(&sim, &disk, &geometry, 0)), Vec::<u64>::new());
        let pages = all(&sim, &disk, &geometry, 1);
        assert_eq!(set(&pages), [3]);
        assert!(pages[0].sector_of(3).has(3) && !pages[0].sector_of(4).has(4));
        let stripes = pages.iter().flat_map(|page| &page.sectors);
        let stripes: u64 = stripes
            .map(|sector| sector.stripes.end - sector.stripes.start)
            .sum();
        assert_eq!(stripes, geometry.local_stripes());
    }

    #[test]
    fn all_bits_of_a_damaged_sector_count_as_set() {
        let (sim, disk, geometry) = device();
        disk.flip_bit(geometry.shard_intent_offset(0) + 100, 1);
        let pages = all(&sim, &disk, &geometry, 0);
        assert!(pages[0].is_damaged() && pages[0].error.is_none());
        assert_eq!(
            set(&pages).len() as u64,
            INTENT_STRIPES.min(geometry.local_stripes())
        );
    }

    /// The read of the part fails, and then that of its first page.
    #[test]
    fn an_unreadable_page_is_damaged_and_the_others_are_read() {
        let (sim, disk, geometry) = device();
        disk.fail_nth(DeviceOp::Read, 1);
        disk.fail_nth(DeviceOp::Read, 2);
        let pages = all(&sim, &disk, &geometry, 1);
        assert!(pages[0].error.is_some() && pages[0].is_damaged());
        assert!(pages[1..].iter().all(|page| !page.is_damaged()));
    }
}
