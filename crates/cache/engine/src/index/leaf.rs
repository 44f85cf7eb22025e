//! One page of a paged index: the entries of neighbouring blocks, sorted by block.
//!
//! ```text
//! bytes 0..8   first block (40 bits), bytes of stretches (16 bits), 0
//! bytes 8..16  mark of the index: of the opening that began it, empty or from the log
//! then         stretches: number of bytes (1 byte, at most 128), codes of entries (see `super::code`)
//! then         zeros
//! ```
//! The first code of a stretch does not depend on other stretches: a lookup goes from stretch to stretch, and reads the codes of one.
//! A change encodes anew an entry and the next one.
//!
//! Invariants: entries ascend, each block once; the first block is a multiple of four, so a group is in one page; no stretch is empty.

use super::code::{BLOCK_BITS, CODE_MAX, Context};
use super::entry::Entry;
use crate::format::group::GROUP_BLOCKS_MAX;
use crate::units::LocalBlock;

/// Bytes of a page on the device.
pub const PAGE_BYTES: usize = 4096;
const HEAD_BYTES: usize = 16;
const USED_BITS: u32 = 16;
/// Most bytes of the codes of a stretch: 64 entries that follow one another.
const STRETCH_BYTES_MAX: usize = 128;
/// A stretch takes the next one if both have so many bytes at most.
const STRETCH_JOINED_MAX: usize = STRETCH_BYTES_MAX * 3 / 4;
/// Memory for codes is a multiple of this.
const ROOM_STEP: usize = 64;

const _: () = assert!(STRETCH_BYTES_MAX + 2 * CODE_MAX <= u8::MAX as usize && PAGE_BYTES < 1 << USED_BITS);

/// The first block of a page that may begin with `block`.
pub(super) fn aligned(block: LocalBlock) -> LocalBlock {
    LocalBlock(block.0 - block.0 % GROUP_BLOCKS_MAX as u64)
}

/// A page has no room for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    first: LocalBlock,
    len: u32,
    dirty: u32,
    /// The stretches.
    bytes: Vec<u8>,
}

/// Reads entries.
#[derive(Clone, Copy, Debug)]
struct Reader<'a> {
    leaf: &'a Leaf,
    context: Context,
    /// The rest of the stretch.
    codes: &'a [u8],
    /// Where it ends.
    end: usize,
}

impl<'a> Reader<'a> {
    /// Of the stretch that begins at `at`, and of those behind it.
    fn new(leaf: &'a Leaf, at: usize) -> Self {
        let mut reader = Self {
            leaf,
            context: Context::start(leaf.first),
            codes: &[],
            end: at,
        };
        reader.enter();
        reader
    }

    /// Goes to the codes of the next stretch, if there is one.
    fn enter(&mut self) {
        if let Some((len, codes)) = self.leaf.bytes[self.end..].split_first() {
            self.context = Context::start(self.leaf.first);
            self.codes = &codes[..usize::from(*len)];
            self.end += 1 + self.codes.len();
        }
    }

    /// Where the next code is.
    fn at(&self) -> usize {
        self.end - self.codes.len()
    }

    /// The next entry of the stretch, unless it has no more.
    #[inline(always)]
    fn read(&mut self) -> Option<(LocalBlock, Entry)> {
        if self.codes.is_empty() {
            return None;
        }
        let len = self.context.read(self.codes);
        self.codes = &self.codes[len.expect("a page was checked when it was read")..];
        Some((self.context.block(), self.context.entry()))
    }
}

impl Iterator for Reader<'_> {
    type Item = (LocalBlock, Entry);

    fn next(&mut self) -> Option<Self::Item> {
        if self.codes.is_empty() {
            self.enter();
        }
        self.read()
    }
}

impl Leaf {
    pub(super) fn new(first: LocalBlock) -> Self {
        assert!(first == aligned(first) && first.0 >> BLOCK_BITS == 0);
        Self {
            first,
            len: 0,
            dirty: 0,
            bytes: Vec::new(),
        }
    }

    /// A page of entries that ascend.
    pub(super) fn of(first: LocalBlock, entries: impl Iterator<Item = (LocalBlock, Entry)>) -> Self {
        let mut leaf = Self::new(first);
        let (mut stretch, mut context) = (0, Context::start(first));
        for (block, entry) in entries {
            let before = leaf.bytes.len();
            let mut after = context;
            if before > 0 {
                after.write(block, entry, &mut leaf.bytes);
            }
            if before == 0 || leaf.bytes.len() - stretch > 1 + STRETCH_BYTES_MAX {
                leaf.bytes.truncate(before);
                leaf.bytes.push(0);
                (stretch, after) = (before, Context::start(first));
                after.write(block, entry, &mut leaf.bytes);
            }
            context = after;
            leaf.bytes[stretch] = (leaf.bytes.len() - stretch - 1) as u8;
            leaf.count(None, Some(entry));
        }
        leaf.fit_memory();
        leaf
    }

    pub(super) fn first(&self) -> LocalBlock {
        self.first
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Bytes of the page on the device that have a meaning.
    pub(super) fn used_bytes(&self) -> usize {
        HEAD_BYTES + self.bytes.len()
    }

    /// Bytes of memory besides the structure itself.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    fn count(&mut self, old: Option<Entry>, new: Option<Entry>) {
        let counts =
            |entry: Option<Entry>| (entry.map_or(0, |_| 1), entry.map_or(0, |e| u32::from(e.dirty())));
        let ((old, old_dirty), (new, new_dirty)) = (counts(old), counts(new));
        self.len = self.len + new - old;
        self.dirty = self.dirty + new_dirty - old_dirty;
    }

    /// Makes the memory for codes a multiple of [`ROOM_STEP`] with little to spare.
    fn fit_memory(&mut self) {
        let room = self.bytes.len().next_multiple_of(ROOM_STEP);
        if self.bytes.capacity() > room + ROOM_STEP {
            self.bytes.shrink_to(room);
        }
    }

    /// Replaces some bytes.
    fn splice(&mut self, range: std::ops::Range<usize>, with: &[u8]) {
        let len = self.bytes.len() + with.len() - range.len();
        if len > self.bytes.capacity() {
            let more = len.next_multiple_of(ROOM_STEP) - self.bytes.len();
            self.bytes.reserve_exact(more);
        }
        self.bytes.splice(range, with.iter().copied());
        self.fit_memory();
    }

    /// Where the stretch begins that a block belongs to: the last one that does not begin behind it, or the first one.
    fn stretch_of(&self, block: LocalBlock) -> usize {
        let (context, mut found, mut at) = (Context::start(self.first), 0, 0);
        while let Some((len, codes)) = self.bytes[at..].split_first() {
            if context.peek(codes).is_some_and(|first| first > block) {
                break;
            }
            (found, at) = (at, at + 1 + usize::from(*len));
        }
        found
    }

    pub(super) fn get(&self, block: LocalBlock) -> Option<Entry> {
        let mut reader = Reader::new(self, self.stretch_of(block));
        while let Some((found, entry)) = reader.read() {
            if found >= block {
                return (found == block).then_some(entry);
            }
        }
        None
    }

    /// Sets the entry of a block; returns the one that it had.
    ///
    /// # Errors
    /// The page would have more than `most` bytes: nothing has changed.
    pub(super) fn insert(
        &mut self,
        block: LocalBlock,
        entry: Entry,
        most: usize,
    ) -> Result<Option<Entry>, Full> {
        assert!(block >= self.first, "the page can name the block");
        self.replace(block, Some(entry), most)
    }

    pub(super) fn remove(&mut self, block: LocalBlock) -> Option<Entry> {
        let removed = self.replace(block, None, usize::MAX);
        removed.expect("a removal takes no room")
    }

    fn replace(&mut self, block: LocalBlock, new: Option<Entry>, most: usize) -> Result<Option<Entry>, Full> {
        let stretch = self.stretch_of(block);
        let mut reader = Reader::new(self, stretch);
        // The last entry before the block, and the first one behind it, whose code depends on the former.
        let (mut before, mut old, mut behind) = (reader, None, None);
        while let Some((found, entry)) = reader.read() {
            if found > block {
                behind = Some((found, entry));
                break;
            }
            match found == block {
                true => old = Some(entry),
                false => before = reader,
            }
        }
        if old.is_none() && new.is_none() {
            return Ok(None);
        }
        let mut with = Vec::with_capacity(2 * CODE_MAX + 1);
        if self.bytes.is_empty() {
            // The length of the first stretch.
            with.push(0);
        }
        let mut context = before.context;
        for (block, entry) in new.map(|new| (block, new)).into_iter().chain(behind) {
            context.write(block, entry, &mut with);
        }
        let replaced = before.at()..reader.at();
        let grown = with.len() as isize - replaced.len() as isize;
        let stretch_end = reader.end.checked_add_signed(grown).expect("in the page");
        let divides = stretch_end - stretch > 1 + STRETCH_BYTES_MAX;
        let used = self.used_bytes().checked_add_signed(grown).expect("in the page");
        if new.is_some() && used + usize::from(divides) * (1 + CODE_MAX) > most {
            return Err(Full);
        }
        self.splice(replaced, &with);
        self.count(old, new);
        match stretch_end - stretch - 1 {
            0 => self.splice(stretch..stretch_end, &[]),
            len => self.bytes[stretch] = len as u8,
        }
        if divides {
            self.divide(stretch, behind.is_none());
        } else if new.is_none() {
            self.join_stretches(stretch);
        }
        Ok(old)
    }

    /// Makes two stretches of one that is too long: of its halves, or of its last entry and the others, because blocks that are stored in
    /// order would otherwise leave short stretches.
    fn divide(&mut self, stretch: usize, at_last: bool) {
        let mut reader = Reader::new(self, stretch);
        let (middle, end) = (reader.at().midpoint(reader.end), reader.end);
        let (at, block, entry) = loop {
            let at = reader.at();
            let (block, entry) = reader.read().expect("half of a stretch is many codes");
            if if at_last { reader.at() == end } else { at >= middle } {
                break (at, block, entry);
            }
        };
        let mut with = vec![0];
        Context::start(self.first).write(block, entry, &mut with);
        let replaced = at..reader.at();
        with[0] = (with.len() - 1 + end - replaced.end) as u8;
        self.splice(replaced, &with);
        self.bytes[stretch] = (at - stretch - 1) as u8;
    }

    /// A stretch that has become shorter, or the one in its place, takes the next one if both are short, and together no longer.
    fn join_stretches(&mut self, stretch: usize) {
        let mut low = Reader::new(self, stretch);
        let mut high = Reader::new(self, low.end);
        if low.end == self.bytes.len() || low.end - low.at() + high.end - high.at() > STRETCH_JOINED_MAX {
            return;
        }
        while low.read().is_some() {}
        let begin = low.end;
        let (block, entry) = high.read().expect("no stretch is empty");
        let mut with = Vec::with_capacity(CODE_MAX);
        low.context.write(block, entry, &mut with);
        if with.len() > high.at() - begin {
            return;
        }
        let len = low.end - stretch - 1 + with.len() + high.end - high.at();
        self.splice(low.end..high.at(), &with);
        self.bytes[stretch] = len as u8;
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (LocalBlock, Entry)> + '_ {
        Reader::new(self, 0)
    }

    /// Moves the upper half of a full page to a new one. If `block` is behind all entries, the new one is empty and begins there: blocks
    /// that are stored in order would otherwise leave all pages half empty.
    pub(super) fn split(&mut self, block: LocalBlock) -> Self {
        let (mut entries, mut half) = (Vec::with_capacity(self.len()), 0);
        let mut reader = Reader::new(self, 0);
        while let Some(entry) = reader.next() {
            if reader.at() <= self.bytes.len() / 2 {
                half = entries.len();
            }
            entries.push(entry);
        }
        if entries.last().is_some_and(|(last, _)| aligned(block) > *last) {
            // This page stays as it is: encoded anew, it may take more room.
            return Self::new(aligned(block));
        }
        let mut groups = entries[half..].iter().map(|(block, _)| aligned(*block));
        let first = groups
            .find(|group| *group > self.first)
            .expect("a full page has more than one group");
        let at = entries.partition_point(|(block, _)| *block < first);
        let upper = entries.split_off(at);
        *self = Self::of(self.first, entries.into_iter());
        Self::of(first, upper.into_iter())
    }

    /// Whether the next page has no entries, or there are `most` bytes at most in both together.
    pub(super) fn can_take(&self, next: &Self, most: usize) -> bool {
        next.len == 0 || self.used_bytes() + next.bytes.len() <= most
    }

    /// Adds the entries of the next page, if it has some.
    pub(super) fn take(&mut self, next: &Self) {
        if next.len == 0 {
            return;
        }
        // Both together have room, also if they take more when they are encoded anew.
        *self = Self::of(self.first, self.entries().chain(next.entries()));
    }

    /// Removes the entries that `stays` refuses. Like a removal, that takes no room.
    pub(super) fn retain(&mut self, stays: impl Fn(Entry) -> bool) {
        let refused: Vec<LocalBlock> = (self.entries())
            .filter_map(|(block, entry)| (!stays(entry)).then_some(block))
            .collect();
        if refused.len() == self.len() {
            *self = Self::new(self.first);
        }
        for block in refused {
            self.remove(block);
        }
    }

    /// Whether a block is dirty.
    pub(super) fn any_dirty(&self) -> bool {
        self.dirty > 0
    }

    /// The leaf as it is on the device, in so many `bytes`: a page without its stamp, or fewer in tests.
    pub(super) fn to_bytes(&self, mark: u64, bytes: usize) -> Vec<u8> {
        assert!(self.used_bytes() <= bytes, "the page has room");
        let head = [self.first.0 | (self.bytes.len() as u64) << BLOCK_BITS, mark];
        let mut page = Vec::with_capacity(bytes);
        page.extend(head.iter().flat_map(|word| word.to_le_bytes()));
        page.extend(&self.bytes);
        page.resize(bytes, 0);
        page
    }

    /// The page that begins with `first`, in bytes whose checksum is right.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(super) fn parse(bytes: &[u8], first: LocalBlock, mark: u64) -> Result<Self, String> {
        let head = bytes.split_first_chunk::<8>().and_then(|(head, rest)| {
            let (mark, rest) = rest.split_first_chunk::<8>()?;
            Some((u64::from_le_bytes(*head), u64::from_le_bytes(*mark), rest))
        });
        let Some((head, marked, rest)) = head.filter(|_| bytes.len() <= PAGE_BYTES) else {
            return Err(format!("{} bytes, expected {PAGE_BYTES}", bytes.len()));
        };
        let (begins, used) = (head & ((1 << BLOCK_BITS) - 1), head >> BLOCK_BITS);
        if begins != first.0 || marked != mark {
            return Err(format!(
                "block {begins} and mark {marked:#x}, expected {} and {mark:#x}",
                first.0
            ));
        }
        let used = usize::try_from(used).ok().and_then(|used| rest.get(..used));
        let Some(used) = used else {
            return Err(format!(
                "{} bytes of entries, expected {} at most",
                head >> BLOCK_BITS,
                rest.len()
            ));
        };
        let mut leaf = Self::new(first);
        leaf.count_all(used)?;
        leaf.bytes = used.to_vec();
        Ok(leaf)
    }

    /// Checks the bytes of all stretches, and counts their entries.
    fn count_all(&mut self, mut rest: &[u8]) -> Result<(), String> {
        let (mut next, total) = (self.first.0, rest.len());
        while let Some((&len, behind)) = rest.split_first() {
            let at = total - rest.len();
            let len = usize::from(len);
            let Some((mut codes, behind)) = behind
                .split_at_checked(len)
                .filter(|_| (1..=STRETCH_BYTES_MAX).contains(&len))
            else {
                return Err(format!(
                    "a stretch of {len} bytes at {at} of {total}, expected 1 to {STRETCH_BYTES_MAX}"
                ));
            };
            let mut context = Context::start(self.first);
            while !codes.is_empty() {
                let read = context.read(codes).filter(|_| context.is_valid());
                let Some(len) = read else {
                    return Err(format!(
                        "no entry in the stretch at {at} of {total}: {codes:02x?}"
                    ));
                };
                let block = context.block().0;
                if block < next {
                    return Err(format!(
                        "block {block} at {at} of {total}, expected {next} or more"
                    ));
                }
                next = block + 1;
                self.len += 1;
                self.dirty += u32::from(context.entry().dirty());
                codes = &codes[len..];
            }
            rest = behind;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
