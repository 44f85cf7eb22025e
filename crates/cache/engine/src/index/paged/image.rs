//! What a clean stop keeps of an index in pages: with it, the next start need not read the log.
//!
//! ```text
//! head (48 bytes)   mark of the pages u64, bytes of a page u32, regions u32, retirements u64, regions with bits of uses u32,
//!                   pages with changes u32, pages u64, rows u64
//! regions           number of the last retirement u64
//! bits of uses      region u64, words u64
//! pages             first block and whether some are dirty u64, slot u32, CRC-32C u32
//! rows              number u32, a bit for each of its pages that has changes on the device u32 (see `crate::index::rows`), 0 u32,
//!                   CRC-32C of these u32
//! changes           number of the page u32, length u16, changes that are not on the device (see `crate::index::delta`)
//! ```
//!
//! Invariants:
//! - It is taken when each page in memory is in its slot as it is in memory, and no page is written afterwards.
//! - A start reads each page that it names once before the index is used, and counts the entries. So the counts are not in it; a damaged
//!   page is found when the log still has all blocks; and entries that were made up cannot contradict the counts later.

use std::ops::Range;

use super::super::code::BLOCK_BITS;
use super::super::delta::{DELTA_BYTES_MAX, Delta, Deltas};
use super::super::directory::Directory;
use super::super::entry::Place as Site;
use super::super::leaf::aligned;
use super::super::slots::ROW_SLOTS;
use super::{
    Entry, Fragments, HitBits, Leaf, PAGE_BYTES, PagePlan, PagedIndex, Place, Retired, Rows, STAMP_BYTES,
    Saved, Slots, Stored, others_name, rows,
};
use crate::format::geometry::Geometry;
use crate::planted::{PlantedBug, planted};
use crate::units::{LocalBlock, Location};

const HEAD_BYTES: usize = 48;
const PAGE_ENTRY_BYTES: usize = 16;
const ROW_ENTRY_BYTES: usize = 16;
/// In front of the changes of a page.
const DELTA_HEAD_BYTES: usize = 6;
const DIRTY: u64 = 1 << 63;

/// See the module's documentation.
#[derive(Debug)]
pub struct PageImage {
    mark: u64,
    page_bytes: usize,
    pages: Vec<(LocalBlock, Saved)>,
    deltas: Deltas,
    rows: Rows,
    slots: Slots,
    hits: HitBits,
    retired: Retired,
    fragments: Fragments,
    len: usize,
}

/// Bytes of the area for index pages that are read at a time.
const READ_BYTES: usize = 64 << 10;

/// A page that an image names.
#[derive(Clone, Copy, Debug)]
pub struct ImagePage {
    at: u32,
    /// Its slot.
    pub slot: u32,
}

/// Checks the bytes of a page, and returns its entries and when they were checked.
///
/// # Errors
/// The bytes are not those that were written last; what is wrong, in words.
pub(super) fn read_leaf(
    bytes: &[u8],
    first: LocalBlock,
    checksum: u32,
    mark: u64,
) -> Result<(Leaf, u64), String> {
    let computed = crc32c::crc32c(bytes);
    if computed != checksum && !planted(PlantedBug::PageNotCompared) {
        return Err(format!("checksum {computed:#010x}, expected {checksum:#010x}"));
    }
    let Some((bytes, stamp)) = bytes.split_last_chunk::<STAMP_BYTES>() else {
        return Err(format!("{} bytes, expected a page", bytes.len()));
    };
    Ok((Leaf::parse(bytes, first, mark)?, u64::from_le_bytes(*stamp)))
}

impl PageImage {
    /// Most bytes that an image of a shard can have whose changes take so many.
    #[must_use]
    pub fn bytes_max(geometry: &Geometry, changes: u64) -> u64 {
        let regions = u64::from(geometry.regions_max);
        let bits = HitBits::image_bytes_of(geometry.region_bytes) as u64;
        let slots = geometry.shard_index_len() / u64::from(geometry.sector_bytes);
        let each = PAGE_ENTRY_BYTES + DELTA_HEAD_BYTES + ROW_ENTRY_BYTES;
        HEAD_BYTES as u64 + regions * (8 + bits) + slots * each as u64 + changes
    }

    /// Most bytes of the changes of all pages of a shard: those of a row fit in a page.
    #[must_use]
    pub fn changes_max(geometry: &Geometry) -> u64 {
        let row = u64::from(ROW_SLOTS) * PAGE_BYTES as u64;
        geometry.shard_index_len().div_ceil(row) * PAGE_BYTES as u64
    }

    /// Parses the image of a shard's index, whose checksum is right.
    ///
    /// # Errors
    /// The defect, in words.
    pub fn parse(image: &[u8], geometry: &Geometry) -> Result<Self, String> {
        let (head, mut rest) = image.split_at_checked(HEAD_BYTES).ok_or("the image ends early")?;
        let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let mark = u64_at(0);
        let (page_bytes, regions) = (u32_at(8), u32_at(12));
        let (retirements, regions_with_bits) = (u64_at(16), u32_at(24));
        let (changed, pages, rows) = (u32_at(28), u64_at(32), u64_at(40));
        let sizes = geometry.sector_bytes..=PAGE_BYTES as u32;
        if !sizes.contains(&page_bytes) || !page_bytes.is_multiple_of(geometry.sector_bytes) {
            return Err(format!("pages of {page_bytes} bytes"));
        }
        let slots = (geometry.shard_index_len() / u64::from(page_bytes)) as u32;
        let (regions_max, bits) = (
            geometry.regions_max,
            HitBits::image_bytes_of(geometry.region_bytes),
        );
        let fits = regions.max(regions_with_bits) <= regions_max && pages.max(rows) <= u64::from(slots);
        let parts = || {
            u64::from(regions) * 8
                + u64::from(regions_with_bits) * bits as u64
                + pages * PAGE_ENTRY_BYTES as u64
                + rows * ROW_ENTRY_BYTES as u64
        };
        if !fits || parts() > rest.len() as u64 {
            return Err(format!(
                "{} bytes for {regions} regions, bits of {regions_with_bits}, {pages} pages and {rows} rows, {changed} pages with changes",
                image.len()
            ));
        }
        let mut take = |bytes: usize| {
            let (part, behind) = rest.split_at(bytes);
            rest = behind;
            part
        };
        let numbers = words(take(regions as usize * 8));
        let retired = Retired::read_image(geometry.region_bytes, retirements, numbers)?;
        let mut hits = HitBits::new(geometry.region_bytes);
        hits.read_image(take(regions_with_bits as usize * bits), regions_max)?;
        let mut this = Self {
            mark,
            page_bytes: page_bytes as usize,
            pages: Vec::with_capacity(pages as usize),
            deltas: Deltas::default(),
            rows: Rows::new(slots),
            slots: Slots::new(slots),
            hits,
            retired,
            fragments: Fragments::default(),
            len: 0,
        };
        for entry in take(pages as usize * PAGE_ENTRY_BYTES).chunks_exact(PAGE_ENTRY_BYTES) {
            this.add_page(entry)?;
        }
        for entry in take(rows as usize * ROW_ENTRY_BYTES).chunks_exact(ROW_ENTRY_BYTES) {
            this.add_row(entry)?;
        }
        this.add_changes(rest, changed)?;
        match this.pages.first() {
            Some((LocalBlock(0), _)) => Ok(this),
            _ => Err("no page begins with block 0".into()),
        }
    }

    fn add_page(&mut self, entry: &[u8]) -> Result<(), String> {
        let mut parts = words(entry);
        let (Some(first), Some(at)) = (parts.next(), parts.next()) else {
            unreachable!("an entry has two words")
        };
        let block = LocalBlock(first & !DIRTY);
        let saved = Saved {
            slot: at as u32,
            checksum: (at >> 32) as u32,
            dirty: first & DIRTY != 0,
        };
        let is_behind = self.pages.last().is_none_or(|(last, _)| *last < block);
        if block.0 >> BLOCK_BITS != 0 || block != aligned(block) || !is_behind {
            return Err(format!("a page begins with block {}", block.0));
        }
        if !self.slots.claim(saved.slot) {
            return Err(format!("two pages are in slot {}, or there is none", saved.slot));
        }
        self.pages.push((block, saved));
        Ok(())
    }

    fn add_row(&mut self, entry: &[u8]) -> Result<(), String> {
        let mut parts = words(entry);
        let (Some(row), Some(checksum)) = (parts.next(), parts.next()) else {
            unreachable!("an entry has two words")
        };
        if checksum as u32 != 0 {
            return Err(format!("{:#x} behind row {}", checksum as u32, row as u32));
        }
        let (row, pages) = (row as u32, row >> 32);
        let pages = u8::try_from(pages).map_err(|_| format!("row {row} has pages {pages:#b}"))?;
        self.rows.add(row, (checksum >> 32) as u32, pages)?;
        for (at, slot) in rows::page_slots(row).into_iter().enumerate() {
            if pages >> at & 1 > 0 && !self.slots.is_in_use(slot) {
                return Err(format!("slot {slot} has changes and no page"));
            }
        }
        Ok(())
    }

    /// The changes of so many pages, which take all of `rest`.
    fn add_changes(&mut self, mut rest: &[u8], count: u32) -> Result<(), String> {
        let mut next = 0;
        for _ in 0..count {
            let head = rest.split_first_chunk::<4>();
            let delta = head.and_then(|(number, rest)| {
                let (len, rest) = rest.split_first_chunk::<2>()?;
                let parts = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
                Some((u32::from_le_bytes(*number), parts))
            });
            let Some((number, (bytes, behind))) = delta else {
                return Err(format!(
                    "changes of {count} pages expected, {next} or fewer found"
                ));
            };
            let page = self.pages.get(number as usize).filter(|_| number >= next);
            let Some((first, saved)) = page else {
                return Err(format!("changes of page {number} of {}", self.pages.len()));
            };
            let delta = Delta::decode(bytes, *first)?;
            let end = self.pages.get(number as usize + 1).map(|(first, _)| *first);
            let most = match self.rows.stored(saved.slot) {
                Stored::No => DELTA_BYTES_MAX,
                _ => rows::most(self.page_bytes),
            };
            let fits = bytes.len() <= most && delta.checked <= self.retired.count();
            if !fits || end.is_some_and(|end| delta.last() >= Some(end)) {
                return Err(format!("changes {bytes:02x?} of page {number}"));
            }
            self.deltas.put(saved.slot, bytes);
            (rest, next) = (behind, number + 1);
        }
        match rest.len() {
            0 => Ok(()),
            more => Err(format!("{more} bytes behind the changes")),
        }
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// The pages in the order of their slots.
    #[must_use]
    pub fn pages(&self) -> Vec<ImagePage> {
        let pages = (0..).zip(&self.pages);
        let mut pages: Vec<_> = pages
            .map(|(at, (_, saved))| ImagePage { at, slot: saved.slot })
            .collect();
        pages.sort_unstable_by_key(|page| page.slot);
        pages
    }

    /// What to read at a time, of the pages in the order of their slots: slots, and the pages there. Slots between them are read, too, and
    /// those of changes.
    pub fn runs<'a>(
        &self,
        pages: &'a [ImagePage],
    ) -> impl Iterator<Item = (Range<u32>, &'a [ImagePage])> + use<'a> {
        let (most, slots) = ((READ_BYTES / self.page_bytes) as u32, self.slots.count());
        let runs = pages.chunk_by(move |page, next| page.slot / most == next.slot / most);
        runs.map(move |run| {
            let (first, last) = (run[0].slot, run[run.len() - 1].slot);
            // Changes are in the middle of their row.
            let start = first.min(rows::changes_slot(rows::row_of(first).0));
            let end = last.max(rows::changes_slot(rows::row_of(last).0));
            (start..end.min(slots - 1) + 1, run)
        })
    }

    /// The entries of a page after its changes, without those of regions that were freed since they were checked. `bytes`: those of the
    /// slots from `start` on, as in [`Self::runs`].
    ///
    /// # Errors
    /// The bytes are not those that the image was taken with; what is wrong, in words.
    pub fn entries(
        &self,
        page: ImagePage,
        start: u32,
        bytes: &[u8],
    ) -> Result<Vec<(LocalBlock, Entry)>, String> {
        let in_slot = |slot: u32| &bytes[(slot - start) as usize * self.page_bytes..][..self.page_bytes];
        let at = page.at as usize;
        let (first, saved) = self.pages[at];
        let (leaf, checked) = read_leaf(in_slot(saved.slot), first, saved.checksum, self.mark)?;
        if checked > self.retired.count() {
            return Err(format!(
                "checked at retirement {checked} of {}",
                self.retired.count()
            ));
        }
        let valid = |entries: &mut Vec<(LocalBlock, Entry)>, checked| {
            entries.retain(|(_, entry)| self.retired.is_valid(entry.location(), checked));
        };
        let mut entries: Vec<_> = leaf.entries().collect();
        valid(&mut entries, checked);
        let (row, of_row) = rows::row_of(saved.slot);
        let stored = match self.rows.stored(saved.slot) {
            Stored::Yes(checksum) => Some(rows::part(in_slot(rows::changes_slot(row)), checksum, of_row)?),
            Stored::No | Stored::Writing(_) => None,
        };
        for delta in stored.into_iter().chain(self.deltas.get(saved.slot)) {
            let mut delta = Delta::decode(delta, first)?;
            if delta.checked > self.retired.count() {
                return Err(format!("changes of retirement {}", delta.checked));
            }
            entries.retain(|(block, _)| !delta.has(*block));
            valid(&mut delta.set, delta.checked);
            entries.append(&mut delta.set);
            entries.sort_unstable_by_key(|(block, _)| *block);
        }
        let behind = self.pages.get(at + 1).map(|(next, _)| *next);
        for (block, entry) in &entries {
            if behind.is_some_and(|next| *block >= next) {
                return Err(format!("block {} is in the next page", block.0));
            }
            if entry.dirty() && !saved.dirty {
                return Err(format!("block {} is dirty", block.0));
            }
            if entry.location() == Location(0) && !matches!(entry.place(), Site::SameFilled { .. }) {
                return Err(format!("block {} is where the first extent begins", block.0));
            }
        }
        Ok(entries)
    }

    /// Counts the entries of a page, which lie in regions.
    ///
    /// # Errors
    /// A region has more than fits.
    pub fn count(&mut self, entries: &[(LocalBlock, Entry)]) -> Result<(), String> {
        let entry_of = |block: LocalBlock| {
            let found = entries.binary_search_by_key(&block, |(block, _)| *block);
            found.ok().map(|at| entries[at].1)
        };
        for (block, entry) in entries {
            if !self.retired.can_add(*entry) {
                return Err(format!("the region of block {} is more than full", block.0));
            }
            // A group is in one page.
            let counted = others_name(entry_of, *block, *entry, |other| other < block);
            self.fragments.add(*entry, counted);
            self.retired.add(*entry, counted);
        }
        self.len += entries.len();
        Ok(())
    }

    /// Number of blocks that were counted.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.len as u64
    }

    /// Number of dirty blocks among those that were counted.
    #[must_use]
    pub fn dirty_blocks(&self) -> u64 {
        self.fragments.dirty_blocks()
    }
}

impl PagedIndex {
    /// Bytes of an image that is taken now.
    #[must_use]
    pub fn image_bytes(&self) -> usize {
        HEAD_BYTES
            + self.retired.regions() * 8
            + self.hits.image_bytes()
            + self.directory.len() * PAGE_ENTRY_BYTES
            + self.rows.iter().count() * ROW_ENTRY_BYTES
            + self.deltas.len() * DELTA_HEAD_BYTES
            + self.deltas.bytes()
    }

    /// The image. `None`: some pages in memory are not in their slots as they are there, or pages cannot be read any more.
    #[must_use]
    pub fn image(&self) -> Option<Vec<u8>> {
        if self.is_abandoned || self.rows.are_writing() {
            return None;
        }
        let mut out = Vec::with_capacity(self.image_bytes());
        out.extend(self.plan.mark.to_le_bytes());
        out.extend((self.plan.page_bytes as u32).to_le_bytes());
        out.extend((self.retired.regions() as u32).to_le_bytes());
        out.extend(self.retired.count().to_le_bytes());
        out.extend((self.hits.regions_with_bits() as u32).to_le_bytes());
        out.extend((self.deltas.len() as u32).to_le_bytes());
        out.extend((self.directory.len() as u64).to_le_bytes());
        out.extend((self.rows.iter().count() as u64).to_le_bytes());
        self.retired.write_image(&mut out);
        self.hits.write_image(&mut out);
        let (mut changes, mut number) = (Vec::new(), 0_u32);
        let mut page = Some(self.directory.find(LocalBlock(0)));
        while let Some(at) = page {
            let saved = match self.directory.place(at) {
                Place::Away(saved) => saved,
                Place::Frame(frame) => {
                    let frame = self.frame(frame);
                    let is_old = frame.is_changed() && !planted(PlantedBug::ImageOfOldPages);
                    frame.saved.filter(|_| !is_old)?.0
                }
            };
            let first = self.directory.first(at).0 | if saved.dirty { DIRTY } else { 0 };
            out.extend(first.to_le_bytes());
            out.extend(saved.slot.to_le_bytes());
            out.extend(saved.checksum.to_le_bytes());
            if let Some(delta) = self.deltas.get(saved.slot) {
                changes.extend(number.to_le_bytes());
                let len = u16::try_from(delta.len()).expect("few bytes");
                changes.extend(len.to_le_bytes());
                changes.extend(delta);
            }
            (page, number) = (self.directory.next(at), number + 1);
        }
        for (row, checksum, pages) in self.rows.iter() {
            out.extend((u64::from(row) | u64::from(pages) << 32).to_le_bytes());
            out.extend((u64::from(checksum) << 32).to_le_bytes());
        }
        out.extend(changes);
        assert_eq!(out.len(), self.image_bytes());
        Some(out)
    }

    /// Whether the pages of an image are as large as those of this index, and its changes fit in the memory for them.
    #[must_use]
    pub fn fits(&self, image: &PageImage) -> bool {
        self.plan.page_bytes == image.page_bytes && self.has_room_for_changes(image.deltas.memory_bytes())
    }

    /// An empty index becomes the one of an image whose pages were all counted. Pages keep their mark.
    pub fn inherit(&mut self, image: PageImage) {
        assert!(self.fits(&image) && self.is_empty() && self.directory.len() == 1);
        let plan = PagePlan {
            mark: image.mark,
            ..self.plan
        };
        let pages = image.pages.iter();
        let directory = Directory::of(pages.map(|(first, saved)| (*first, Place::Away(*saved))));
        *self = Self {
            directory,
            deltas: image.deltas,
            rows: image.rows,
            slots: image.slots,
            hits: image.hits,
            retired: image.retired,
            len: image.len,
            fragments: image.fragments,
            ..Self::new(plan)
        };
        // The new index had a page with block 0.
        self.vacate(0);
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let words = bytes.as_chunks::<8>().0.iter();
    words.map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests;
