//! The index: block -> where its fragment lies. Exact, in memory, about 9 bytes a cached block.
//!
//! The index of a shard is split by hash into segments, each a cuckoo table that grows by an eighth and shrinks by a
//! twentieth on its own, so that the memory follows the number of cached blocks closely and no rebuild takes long.
//! Only where a segment holds few entries, or the origin has more than 10000 times as many blocks as are cached, an
//! entry takes more than 10 bytes.

mod bulk;
mod code;
mod delta;
mod directory;
mod entry;
mod entry_cache;
mod hits;
mod leaf;
mod merge;
mod paged;
mod pass;
mod retired;
mod rows;
mod run;
mod segment;
mod slots;

pub use bulk::{Bulk, Change};
pub use entry::{Entry, Place};
pub use leaf::PAGE_BYTES;
pub use merge::{Merge, Step};
pub use paged::{DamagedPage, FRAMES_MIN, ImagePage, PageImage, PagePlan, PageRead, PageWrite, PagedIndex};
pub use pass::{CHANGES_MIN, Pass, RunPlan};
pub use slots::CHUNK_SLOTS;

use crate::format::geometry::RECORDS_PER_BLOCK_MAX;
use crate::format::group::{GROUP_ALIGN_BYTES, GROUP_BLOCKS_MAX};
use crate::units::{BLOCK_BYTES, LocalBlock, UNIT_BYTES};
use retired::Left;
use segment::{SLOTS, Segment};

/// Entries that a segment has when the index is as large as planned: bounds the time of one rebuild.
const SEGMENT_ENTRIES: u64 = 16 << 10;
/// Most segments of a shard.
const SEGMENTS_MAX: u64 = 1 << 16;
/// Bytes in front of each segment of an index image: its number of buckets.
const IMAGE_HEAD_BYTES: usize = 8;

/// The index of one shard.
#[derive(Debug)]
pub struct Index {
    segments: Vec<Segment>,
    scramble: Scramble,
    segment_bits: u32,
    len: usize,
    fragments: Fragments,
}

/// The fragments that the entries name, and what dirty blocks take.
///
/// A group counts with the first of its members that is added, and until the last one is removed. Only the index can tell which these
/// are, because members are spread over it: see [`Index::others_name`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fragments {
    /// Blocks with a fragment.
    blocks: u64,
    bytes: u64,
    dirty_blocks: u64,
    dirty_sectors: u64,
}

impl Fragments {
    /// Number of dirty blocks.
    #[must_use]
    pub fn dirty_blocks(&self) -> u64 {
        self.dirty_blocks
    }

    /// Bytes that dirty blocks take of their regions: of the sectors that their fragments touch, or of a record.
    #[must_use]
    pub fn dirty_device_bytes(&self) -> u64 {
        self.dirty_sectors * SECTOR_BYTES
    }

    /// Bytes of the fragments that the entries name, headers included; those of a group once, while one of its blocks has it.
    /// Worked out from the sectors that they touch, which is all that an entry knows: right to about a hundredth for some hundreds
    /// of blocks of mixed sizes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The mean of those for each block that has one; 0 without fragments.
    #[must_use]
    pub fn mean_bytes(&self) -> u64 {
        self.bytes.checked_div(self.blocks).unwrap_or(0)
    }

    /// Adds an entry. `counted`: its fragment already counts, for others, or will count later.
    fn add(&mut self, entry: Entry, counted: bool) {
        let sectors = sectors_of(entry);
        self.blocks += u64::from(sectors > 0);
        self.bytes += if counted { 0 } else { bytes_of(entry) };
        if entry.dirty() {
            self.dirty_blocks += 1;
            self.dirty_sectors += dirty_sectors_of(entry);
        }
    }

    fn remove(&mut self, entry: Entry, counted: bool) {
        let bytes = if counted { 0 } else { bytes_of(entry) };
        debug_assert!(self.bytes >= bytes, "entries are counted in pairs");
        self.blocks -= u64::from(sectors_of(entry) > 0);
        self.bytes -= bytes;
        self.clean(entry);
    }

    /// All entries in a region are removed at once.
    fn retire(&mut self, left: Left) {
        self.blocks -= u64::from(left.blocks);
        self.bytes -= u64::from(left.bytes);
        self.dirty_blocks -= u64::from(left.dirty_blocks);
    }

    /// The entry is no longer dirty, if it was: whether it was.
    fn clean(&mut self, entry: Entry) -> bool {
        if entry.dirty() {
            self.dirty_blocks -= 1;
            self.dirty_sectors -= dirty_sectors_of(entry);
        }
        entry.dirty()
    }
}

/// Whether the entry of another block of the same group, one of those that `count`, names the same fragment as `entry`.
fn others_name(
    get: impl Fn(LocalBlock) -> Option<Entry>,
    block: LocalBlock,
    entry: Entry,
    count: impl Fn(&LocalBlock) -> bool,
) -> bool {
    if !entry.is_group() {
        return false;
    }
    let first = block.0 - block.0 % GROUP_BLOCKS_MAX as u64;
    let mut others = (first..first + GROUP_BLOCKS_MAX as u64)
        .map(LocalBlock)
        .filter(|other| *other != block && count(other));
    others.any(|other| get(other).is_some_and(|other| other.same_place(entry)))
}

/// Bytes of the entry's fragment, in the mean of those that touch as many sectors: of `n` bytes that begin at any multiple of 8
/// bytes, `(n + 504) / 512`; those of groups begin at multiples of 64.
fn bytes_of(entry: Entry) -> u64 {
    let align = if entry.is_group() {
        GROUP_ALIGN_BYTES as u64
    } else {
        UNIT_BYTES
    };
    (sectors_of(entry) * SECTOR_BYTES).saturating_sub(SECTOR_BYTES - align)
}

/// Sectors that the entry's fragment touches; a block of one value has none.
fn sectors_of(entry: Entry) -> u64 {
    match entry.place() {
        Place::Fragment { sectors, .. } => u64::from(sectors),
        Place::SameFilled { .. } => 0,
    }
}

/// Sectors that a dirty block takes of its region: of its fragment, or of a record.
fn dirty_sectors_of(entry: Entry) -> u64 {
    sectors_of(entry).max(RECORD_SECTORS)
}

const SECTOR_BYTES: u64 = 512;

/// What a block takes of a region at least, also without a fragment: a region has so many records, not more.
const RECORD_SECTORS: u64 = BLOCK_BYTES as u64 / RECORDS_PER_BLOCK_MAX / SECTOR_BYTES;

impl Index {
    /// An empty index for blocks below `blocks`, planned for about `entries_planned` of them.
    #[must_use]
    pub fn new(blocks: LocalBlock, entries_planned: u64) -> Self {
        let block_bits = 64 - blocks.0.max(2).saturating_sub(1).leading_zeros();
        let segments = (entries_planned / SEGMENT_ENTRIES)
            .clamp(1, SEGMENTS_MAX)
            .next_power_of_two();
        let segment_bits = segments.trailing_zeros().min(block_bits.saturating_sub(4));
        let key_bits = block_bits - segment_bits;
        assert!(key_bits > 0, "a segment tells its keys apart");
        Self {
            segments: (0..1usize << segment_bits)
                .map(|_| Segment::new(key_bits))
                .collect(),
            scramble: Scramble { bits: block_bits },
            segment_bits,
            len: 0,
            fragments: Fragments::default(),
        }
    }

    fn split(&self, block: LocalBlock) -> (usize, u64) {
        let key = self.scramble.forward(block.0);
        let low = self.scramble.bits - self.segment_bits;
        ((key >> low) as usize, key & ((1 << low) - 1))
    }

    fn join(&self, segment: usize, key: u64) -> LocalBlock {
        debug_assert!(segment < self.segments.len());
        let low = self.scramble.bits - self.segment_bits;
        LocalBlock(self.scramble.backward((segment as u64) << low | key))
    }

    /// The entry of a block.
    #[must_use]
    pub fn get(&self, block: LocalBlock) -> Option<Entry> {
        let (segment, key) = self.split(block);
        self.segments[segment].get(key)
    }

    /// The entry of a block, whose hit counter goes up (to 3 at most) if the hit `counts`.
    pub fn hit(&mut self, block: LocalBlock, counts: impl FnOnce(Entry) -> bool) -> Option<Entry> {
        let (segment, key) = self.split(block);
        self.segments[segment].update(key, |entry| {
            entry.with_hits(entry.hits() + u8::from(counts(entry)))
        })
    }

    /// Clears a block's dirty bit; false if it has no entry, or a clean one.
    pub fn clean(&mut self, block: LocalBlock) -> bool {
        let (segment, key) = self.split(block);
        let old = self.segments[segment].update(key, |entry| entry.with_dirty(false));
        old.is_some_and(|entry| self.fragments.clean(entry))
    }

    /// Number of dirty blocks.
    #[must_use]
    pub fn dirty_blocks(&self) -> u64 {
        self.fragments.dirty_blocks
    }

    /// The fragments that the entries name.
    #[must_use]
    pub fn fragments(&self) -> Fragments {
        self.fragments
    }

    /// Makes an empty index large enough for about `entries` blocks, so that it does not grow on the way to them.
    pub fn reserve(&mut self, entries: usize) {
        // Blocks spread over the segments by chance: three deviations more than the mean.
        assert!(self.is_empty(), "an index is reserved before it is filled");
        let mean = entries.div_ceil(self.segments.len());
        let room = mean + 3 * mean.isqrt();
        self.segments.iter_mut().for_each(|segment| segment.reserve(room));
    }

    /// After the last [`Index::apply`]: gives back what was reserved in vain, and counts the groups.
    pub fn fit(&mut self) {
        self.segments.iter_mut().for_each(Segment::fit);
        self.count_groups();
    }

    /// Adds the fragments of groups to [`Self::fragments`] after entries were added without.
    fn count_groups(&mut self) {
        let mut bytes = 0;
        for (number, segment) in self.segments.iter().enumerate() {
            for (key, entry) in segment.entries_of(|entry| entry.is_group()) {
                let block = self.join(number, key);
                let is_first = |other: &LocalBlock| *other < block;
                if !self.others_name(block, entry, is_first) {
                    bytes += bytes_of(entry);
                }
            }
        }
        self.fragments.bytes += bytes;
    }

    fn others_name(&self, block: LocalBlock, entry: Entry, count: impl Fn(&LocalBlock) -> bool) -> bool {
        others_name(|other| self.get(other), block, entry, count)
    }

    /// Number of segments.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// Sets a block's entry; returns the one it had.
    pub fn insert(&mut self, block: LocalBlock, entry: Entry) -> Option<Entry> {
        debug_assert!(
            entry.location() > crate::units::Location(0) || matches!(entry.place(), Place::SameFilled { .. })
        );
        let (segment, key) = self.split(block);
        let old = self.segments[segment].insert(key, entry);
        self.len += usize::from(old.is_none());
        self.fragments
            .add(entry, self.others_name(block, entry, |_| true));
        if let Some(old) = old {
            self.fragments.remove(old, self.others_name(block, old, |_| true));
        }
        old
    }

    /// Forgets a block; returns the entry it had.
    pub fn remove(&mut self, block: LocalBlock) -> Option<Entry> {
        let (segment, key) = self.split(block);
        let old = self.segments[segment].remove(key);
        self.len -= usize::from(old.is_some());
        if let Some(old) = old {
            self.fragments.remove(old, self.others_name(block, old, |_| true));
        }
        old
    }

    /// Number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no block is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory that the index takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.segments.iter().map(Segment::memory_bytes).sum::<usize>()
            + self.segments.capacity() * size_of::<Segment>()
    }

    /// The cached blocks of one segment, in no useful order: for searches that must not keep others waiting.
    pub fn iter_segment(&self, number: usize) -> impl Iterator<Item = (LocalBlock, Entry)> + '_ {
        let segment = self.segments.get(number);
        segment
            .into_iter()
            .flat_map(Segment::entries)
            .map(move |(key, entry)| (self.join(number, key), entry))
    }

    /// Every cached block, in no useful order.
    pub fn iter(&self) -> impl Iterator<Item = (LocalBlock, Entry)> + '_ {
        self.segments
            .iter()
            .enumerate()
            .flat_map(move |(number, segment)| {
                segment
                    .entries()
                    .map(move |(key, entry)| (self.join(number, key), entry))
            })
    }

    /// The entries without their blocks, which take most of the time to work out.
    pub fn values(&self) -> impl Iterator<Item = Entry> + '_ {
        self.segments.iter().flat_map(Segment::values)
    }

    /// Bytes of [`Index::write_image`].
    #[must_use]
    pub fn image_bytes(&self) -> usize {
        self.segments
            .iter()
            .map(|s| IMAGE_HEAD_BYTES + s.buckets().len() * SLOTS * 8)
            .sum()
    }

    /// Appends the image of the index: for each segment its number of buckets, then the buckets.
    pub fn write_image(&self, out: &mut Vec<u8>) {
        out.reserve(self.image_bytes());
        for segment in &self.segments {
            out.extend_from_slice(&(segment.buckets().len() as u64).to_le_bytes());
            for bits in segment.buckets().iter().flatten() {
                out.extend_from_slice(&bits.to_le_bytes());
            }
        }
    }

    /// Fills an empty index of the same plan from an image. `valid` is asked about every entry; those that it
    /// refuses, or that cannot be, are left out. Returns their number.
    ///
    /// # Errors
    /// A description of what does not fit when the image is not one of this index.
    pub fn read_image(
        &mut self,
        image: &[u8],
        mut valid: impl FnMut(LocalBlock, Entry) -> bool,
    ) -> Result<usize, String> {
        let key_bits = self.scramble.bits - self.segment_bits;
        let mut rest = image;
        let mut segments = Vec::with_capacity(self.segments.len());
        let mut refused = 0;
        let mut fragments = Fragments::default();
        for number in 0..self.segments.len() {
            let Some((head, body)) = rest.split_first_chunk::<IMAGE_HEAD_BYTES>() else {
                return Err(format!(
                    "index image ends before segment {number} of {}",
                    self.segments.len()
                ));
            };
            let buckets = u64::from_le_bytes(*head);
            let len = usize::try_from(buckets)
                .ok()
                .and_then(|n| n.checked_mul(SLOTS * 8));
            let Some((bytes, after)) = len.and_then(|len| body.split_at_checked(len)) else {
                return Err(format!(
                    "segment {number} has {buckets} buckets, {} bytes are left",
                    body.len()
                ));
            };
            if (buckets as usize) < Segment::buckets_min(key_bits) {
                return Err(format!("segment {number} has only {buckets} buckets"));
            }
            let table = bytes
                .chunks_exact(SLOTS * 8)
                .map(|bucket| {
                    let mut slots = [0; SLOTS];
                    for (slot, bytes) in slots.iter_mut().zip(bucket.chunks_exact(8)) {
                        *slot = u64::from_le_bytes(bytes.try_into().expect("chunks of eight bytes"));
                    }
                    slots
                })
                .collect();
            let (segment, bad) = Segment::from_buckets(key_bits, table, |key, entry| {
                let valid = valid(self.join(number, key), entry);
                if valid {
                    fragments.add(entry, entry.is_group());
                }
                valid
            });
            refused += bad;
            segments.push(segment);
            rest = after;
        }
        if !rest.is_empty() {
            return Err(format!("{} bytes follow the last segment", rest.len()));
        }
        self.len = segments.iter().map(Segment::len).sum();
        self.fragments = fragments;
        self.segments = segments;
        self.count_groups();
        Ok(refused)
    }
}

/// A bijection on numbers of `bits` bits that scatters neighbours.
#[derive(Clone, Copy, Debug)]
struct Scramble {
    bits: u32,
}

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// Inverse of [`MULTIPLIER`] modulo 2^64.
const INVERSE: u64 = inverse(MULTIPLIER);

/// Newton's iteration for the inverse of an odd number modulo 2^64.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut i = 0;
    while i < 6 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        i += 1;
    }
    x
}

impl Scramble {
    fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    fn shift(self) -> u32 {
        self.bits.div_ceil(2)
    }

    fn forward(self, block: u64) -> u64 {
        debug_assert!(block <= self.mask());
        let mut x = block;
        for _ in 0..2 {
            x = x.wrapping_mul(MULTIPLIER) & self.mask();
            x ^= x >> self.shift();
        }
        x.wrapping_mul(MULTIPLIER) & self.mask()
    }

    fn backward(self, key: u64) -> u64 {
        let mut x = key.wrapping_mul(INVERSE) & self.mask();
        for _ in 0..2 {
            // The shift is at least half the width, so one step undoes it.
            x ^= x >> self.shift();
            x = x.wrapping_mul(INVERSE) & self.mask();
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Location;
    use std::collections::BTreeMap;

    fn entry(n: u64) -> Entry {
        Entry::fragment(Location(n % (1 << 30) + 1), 2000)
    }

    /// A deterministic stream of numbers for the tests.
    fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = seed;
        move |below| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    }

    /// A group counts once, from its first member to its last.
    #[test]
    fn the_bytes_of_a_group_count_once() {
        let mut index = Index::new(LocalBlock(1000), 1000);
        let (group, other) = (
            Entry::group(Location(64), 5000),
            Entry::group(Location(1024), 3000),
        );
        let (bytes, less) = (bytes_of(group), bytes_of(other));
        for block in 4..8 {
            index.insert(LocalBlock(block), group);
        }
        assert_eq!(
            (index.fragments().bytes(), index.fragments().mean_bytes()),
            (bytes, bytes / 4)
        );
        index.insert(LocalBlock(5), other);
        index.insert(LocalBlock(6), other);
        assert_eq!(index.fragments().bytes(), bytes + less);
        let mut image = Vec::new();
        index.write_image(&mut image);
        let mut again = Index::new(LocalBlock(1000), 1000);
        assert_eq!(again.read_image(&image, |_, _| true), Ok(0));
        assert_eq!(again.fragments, index.fragments, "after a start");
        index.remove(LocalBlock(4));
        assert_eq!(index.fragments().bytes(), bytes + less);
        index.insert(LocalBlock(7), entry(1));
        assert_eq!(index.fragments().bytes(), less + bytes_of(entry(1)));
        index.remove(LocalBlock(6));
        index.remove(LocalBlock(5));
        index.remove(LocalBlock(7));
        assert_eq!(index.fragments, Fragments::default());
    }

    #[test]
    fn scrambling_is_a_bijection() {
        for bits in 4..=48 {
            let scramble = Scramble { bits };
            for x in (0..1000).chain([scramble.mask(), scramble.mask() / 2]) {
                let x = x & scramble.mask();
                assert_eq!(scramble.backward(scramble.forward(x)), x, "{bits} bits");
            }
        }
    }

    #[test]
    fn the_bytes_of_fragments_are_known_from_their_sectors() {
        let mut index = Index::new(LocalBlock(1 << 20), 10_000);
        let mut next = numbers(3);
        let mut lens = BTreeMap::new();
        let mut at = 64;
        for step in 0..6000 {
            // Some are replaced, some dropped, some are blocks of equal bytes.
            let block = LocalBlock(next(4000));
            if step % 5 == 0 {
                index.remove(block);
                lens.remove(&block);
            } else if step % 7 == 0 {
                index.insert(block, Entry::same_filled(Location(64 * step), 7));
                lens.remove(&block);
            } else {
                let len = 8 * (10 + next(500));
                index.insert(block, Entry::fragment(Location(at), len as usize));
                lens.insert(block, len);
                at += len / 8;
            }
        }
        let exact = lens.values().sum::<u64>() as f64;
        let told = index.fragments().bytes() as f64;
        assert!((told / exact - 1.0).abs() < 0.01, "{told}, {exact} are right");
        let mut image = Vec::new();
        index.write_image(&mut image);
        let mut again = Index::new(LocalBlock(1 << 20), 10_000);
        again.read_image(&image, |_, _| true).expect("fits");
        assert_eq!(
            again.fragments().bytes(),
            index.fragments().bytes(),
            "after a start"
        );
        again.read_image(&image, |_, _| false).expect("fits");
        assert_eq!(again.fragments().bytes(), 0, "what is refused does not count");
        for block in lens.keys() {
            index.remove(*block);
        }
        assert_eq!(index.fragments().bytes(), 0);
        // A raw block touches the same number of sectors wherever it begins.
        index.insert(LocalBlock(1), Entry::fragment(Location(7), 4104));
        assert_eq!(index.fragments().bytes(), 4104);
    }

    #[test]
    fn the_index_agrees_with_a_map() {
        for (blocks, planned) in [(1 << 12, 1000), (1 << 20, 200_000), (1 << 30, 50_000)] {
            let mut index = Index::new(LocalBlock(blocks), planned);
            let mut model = BTreeMap::new();
            let mut next = numbers(blocks);
            for step in 0..120_000u64 {
                let block = LocalBlock(next(blocks.min(90_000)) * (blocks / blocks.min(90_000)));
                if step < 80_000 && next(3) > 0 {
                    assert_eq!(index.insert(block, entry(step)), model.insert(block, entry(step)));
                } else {
                    assert_eq!(index.remove(block), model.remove(&block));
                }
                let probe = LocalBlock(next(blocks));
                assert_eq!(index.get(probe), model.get(&probe).copied());
                assert_eq!(index.len(), model.len());
            }
            let mut all: Vec<_> = index.iter().collect();
            all.sort_unstable_by_key(|(block, _)| *block);
            assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn memory_stays_below_ten_bytes_an_entry_while_it_grows() {
        let mut index = Index::new(LocalBlock(1 << 28), 300_000);
        for n in 0..600_000u64 {
            index.insert(LocalBlock(n * 397), entry(n));
            if n > 20_000 && n % 5000 == 0 {
                let each = index.memory_bytes() as f64 / index.len() as f64;
                assert!(each <= 10.0, "{each} bytes each at {n}");
            }
        }
    }

    #[test]
    fn memory_stays_below_ten_bytes_an_entry_while_it_shrinks() {
        let mut index = Index::new(LocalBlock(1 << 28), 300_000);
        for n in 0..600_000u64 {
            index.insert(LocalBlock(n * 397), entry(n));
        }
        for n in 0..580_000u64 {
            index.remove(LocalBlock(n * 397));
            if n % 5000 == 0 {
                let each = index.memory_bytes() as f64 / index.len() as f64;
                assert!(each <= 10.0, "{each} bytes each with {n} gone");
            }
        }
    }

    #[test]
    fn small_swings_in_entries_do_not_resize_a_segment_twice() {
        let mut index = Index::new(LocalBlock(1 << 28), 300_000);
        let mut next = numbers(5);
        let (mut first, mut last) = (0, 0);
        for _ in 0..20 {
            // Some size, reached by growing or by shrinking.
            let len = 100_000 + next(300_000);
            let mut grow = |index: &mut Index, to: u64| {
                while (index.len() as u64) < to {
                    index.insert(LocalBlock(last * 397 % (1 << 28)), entry(last));
                    last += 1;
                }
            };
            let mut shrink = |index: &mut Index, to: u64| {
                while index.len() as u64 > to {
                    index.remove(LocalBlock(first * 397 % (1 << 28)));
                    first += 1;
                }
            };
            grow(&mut index, len);
            shrink(&mut index, len);
            let mut resized = 0;
            for _ in 0..10 {
                for to in [len * 98 / 100, len] {
                    let before = index.memory_bytes();
                    shrink(&mut index, to);
                    grow(&mut index, to);
                    resized += u64::from(index.memory_bytes() != before);
                }
            }
            assert!(
                resized <= index.segment_count() as u64,
                "{resized} times at {len}"
            );
        }
    }

    #[test]
    fn hits_that_count_saturate() {
        let mut index = Index::new(LocalBlock(1 << 20), 1000);
        index.insert(LocalBlock(5), entry(1));
        for _ in 0..9 {
            index.hit(LocalBlock(5), |_| false);
        }
        assert_eq!(index.get(LocalBlock(5)).map(Entry::hits), Some(0));
        for _ in 0..9 {
            index.hit(LocalBlock(5), |_| true);
        }
        assert_eq!(index.get(LocalBlock(5)).map(Entry::hits), Some(3));
        assert_eq!(index.hit(LocalBlock(6), |_| true), None);
    }

    #[test]
    fn an_image_reads_back_and_hostile_ones_are_refused() {
        let mut index = Index::new(LocalBlock(1 << 20), 100_000);
        for n in 0..50_000 {
            index.insert(LocalBlock(n * 13), entry(n).with_hits((n % 4) as u8));
        }
        let mut image = Vec::new();
        index.write_image(&mut image);
        assert_eq!(image.len(), index.image_bytes());
        let mut copy = Index::new(LocalBlock(1 << 20), 100_000);
        assert_eq!(copy.read_image(&image, |_, _| true), Ok(0));
        assert_eq!(copy.len(), index.len());
        assert!(index.iter().all(|(block, entry)| copy.get(block) == Some(entry)));
        let mut picky = Index::new(LocalBlock(1 << 20), 100_000);
        let refused = picky
            .read_image(&image, |block, _| block.0.is_multiple_of(2))
            .expect("well-formed");
        assert_eq!(refused + picky.len(), index.len());
        let mut fresh = Index::new(LocalBlock(1 << 20), 100_000);
        assert!(fresh.read_image(&image[..image.len() - 1], |_, _| true).is_err());
        image[7] = 0xff;
        assert!(fresh.read_image(&image, |_, _| true).is_err());
    }
}
