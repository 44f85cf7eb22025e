//! Which blocks of a paged index were used since they were stored: a bit for each 2 KiB of a region, in memory.
//!
//! Fragments that begin in the same 2 KiB share the bit, as the members of a group do. With one bit there is no number of uses: a bit
//! counts as two.
//!
//! Invariants: a region has bits from the first use of a block in it until it is freed, so the memory depends on the regions in which
//! uses are counted. Bits change no page, and are lost in a crash.

use crate::units::Location;

/// Bytes of a region that share a bit.
const SHARED_BYTES: u64 = 2 << 10;
/// Uses that a bit stands for: enough for a block that takes twice the mean. It is counted late in the life of a block: a block that is
/// used then was probably used before, too.
const USES: u8 = 2;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct HitBits {
    region_bytes: u64,
    /// By region.
    regions: Vec<Option<Box<[u64]>>>,
    /// Number of regions with bits.
    allocated: usize,
}

impl HitBits {
    /// For regions of so many bytes.
    pub(super) fn new(region_bytes: u64) -> Self {
        Self {
            region_bytes,
            regions: Vec::new(),
            allocated: 0,
        }
    }

    /// The region of a location; its bit: the word, and the mask.
    fn place(&self, location: Location) -> (usize, usize, u64) {
        let (region, offset) = (
            location.offset() / self.region_bytes,
            location.offset() % self.region_bytes,
        );
        let bit = offset / SHARED_BYTES;
        (region as usize, (bit / 64) as usize, 1 << (bit % 64))
    }

    fn words(&self) -> usize {
        self.region_bytes.div_ceil(64 * SHARED_BYTES) as usize
    }

    /// The fragment at a location was used.
    pub(super) fn note(&mut self, location: Location) {
        let ((region, word, mask), words) = (self.place(location), self.words());
        if region >= self.regions.len() {
            self.regions.resize_with(region + 1, || None);
        }
        let allocated = &mut self.allocated;
        let bits = self.regions[region].get_or_insert_with(|| {
            *allocated += 1;
            vec![0; words].into_boxed_slice()
        });
        bits[word] |= mask;
    }

    /// The uses of the fragment at a location.
    pub(super) fn of(&self, location: Location) -> u8 {
        let (region, word, mask) = self.place(location);
        let bits = self.regions.get(region).and_then(Option::as_ref);
        match bits.is_some_and(|bits| bits[word] & mask != 0) {
            true => USES,
            false => 0,
        }
    }

    /// A region is freed.
    pub(super) fn forget(&mut self, region: u32) {
        let bits = self.regions.get_mut(region as usize).and_then(Option::take);
        self.allocated -= usize::from(bits.is_some());
    }

    /// Bytes that the image has for each region with bits.
    pub(super) fn image_bytes_of(region_bytes: u64) -> usize {
        8 + Self::new(region_bytes).words() * 8
    }

    pub(super) fn image_bytes(&self) -> usize {
        self.allocated * (8 + self.words() * 8)
    }

    /// Number of regions with bits.
    pub(super) fn regions_with_bits(&self) -> usize {
        self.allocated
    }

    /// Appends the bits of each region that has some.
    pub(super) fn write_image(&self, out: &mut Vec<u8>) {
        for (number, bits) in self.regions.iter().enumerate() {
            let Some(bits) = bits else { continue };
            out.extend((number as u64).to_le_bytes());
            out.extend(bits.iter().flat_map(|word| word.to_le_bytes()));
        }
    }

    /// Takes over an image.
    ///
    /// # Errors
    /// A region is not below `regions_max`, or is there twice.
    pub(super) fn read_image(&mut self, image: &[u8], regions_max: u32) -> Result<(), String> {
        for part in image.chunks_exact(Self::image_bytes_of(self.region_bytes)) {
            let mut words = part.as_chunks::<8>().0.iter();
            let number = words.next().map_or(0, |word| u64::from_le_bytes(*word));
            if number >= u64::from(regions_max) {
                return Err(format!("bits of region {number} of {regions_max}"));
            }
            let number = number as usize;
            if number >= self.regions.len() {
                self.regions.resize_with(number + 1, || None);
            }
            let bits = words.map(|word| u64::from_le_bytes(*word)).collect();
            if self.regions[number].replace(bits).is_some() {
                return Err(format!("bits of region {number} twice"));
            }
            self.allocated += 1;
        }
        Ok(())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let table = self.regions.capacity() * size_of::<Option<Box<[u64]>>>();
        table + self.allocated * self.words() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION_BYTES: u64 = 200 << 10;

    #[test]
    fn a_use_is_of_one_place_until_its_region_is_freed() {
        let mut hits = HitBits::new(REGION_BYTES);
        let at = |region: u64, offset: u64| Location::at(region * REGION_BYTES + offset);
        let last = REGION_BYTES - 8;
        for (region, offset) in [(3, 0), (3, 4096), (0, last), (7, 130 << 10)] {
            assert_eq!(hits.of(at(region, offset)), 0);
            hits.note(at(region, offset));
            hits.note(at(region, offset));
            assert_eq!(hits.of(at(region, offset)), USES);
        }
        assert_eq!(hits.of(at(3, 2040)), USES, "it shares the bit");
        for (region, offset) in [(3, 2048), (3, 6144), (4, 0), (0, last - 2048), (9, 0)] {
            assert_eq!(hits.of(at(region, offset)), 0, "{region} {offset}");
        }
        hits.forget(3);
        hits.forget(3);
        hits.forget(4);
        hits.forget(1000);
        assert_eq!((hits.of(at(3, 0)), hits.of(at(7, 130 << 10))), (0, USES));
    }

    #[test]
    fn only_regions_with_uses_take_memory() {
        let mut hits = HitBits::new(16 << 20);
        hits.note(Location::at(1000 * (16 << 20)));
        let least = hits.memory_bytes();
        assert!(least < 1024 + 1001 * 32, "{least}");
        for region in 0..10 {
            hits.note(Location::at(region * (16 << 20) + 5000));
        }
        assert_eq!(hits.memory_bytes() - least, 10 * 1024);
        (0..10).for_each(|region| hits.forget(region));
        assert_eq!(hits.memory_bytes(), least);
    }
}
