//! The directory of a paged index: for each page its first block, and where it is. 13 bytes a page, in chunks, so that a new page moves
//! few others. Chunks grow and shrink in small steps, so little of their room is unused.
//!
//! Invariants: pages ascend by first block; the first page begins with block 0, so each block has one page: the last one that does not
//! begin behind it.

use super::code::BLOCK_BITS;
use crate::units::LocalBlock;

/// Most pages of a chunk.
const CHUNK_PAGES_MAX: usize = 512;
/// A chunk grows by so many pages, and shrinks when it has room for twice as many.
const STEP_PAGES: usize = 16;
/// Marks of [`Page::at`].
const IN_MEMORY: u32 = 1 << 31;
const DIRTY: u32 = 1 << 30;
/// Most slots and frames: a shard cannot have as many.
pub(super) const PLACES_MAX: u32 = 1 << 30;
/// Bytes of a block number.
const NUMBER_BYTES: usize = BLOCK_BITS.div_ceil(8) as usize;

/// Where a page is on the device, and the checksum of its bytes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Number of its slot.
    pub slot: u32,
    /// CRC-32C of the whole page. It makes an older version of the page, and another page, as invalid as damage.
    pub checksum: u32,
    /// Whether it has entries of dirty blocks, after its changes in memory.
    pub dirty: bool,
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In memory, in the frame with this number.
    Frame(u32),
    Away(Saved),
}

/// Its numbers are byte arrays, because aligned numbers would take three bytes more.
#[derive(Clone, Copy, Debug)]
struct Page {
    first: [u8; NUMBER_BYTES],
    /// A frame or a slot, and [`IN_MEMORY`] or [`DIRTY`].
    at: [u8; 4],
    checksum: [u8; 4],
}

const _: () = assert!(size_of::<Page>() == 13);

impl Page {
    fn new(first: LocalBlock, place: Place) -> Self {
        let (mark, at, checksum) = match place {
            Place::Frame(frame) => (IN_MEMORY, frame, 0),
            Place::Away(Saved {
                slot,
                checksum,
                dirty,
            }) => (if dirty { DIRTY } else { 0 }, slot, checksum),
        };
        assert!(
            first.0 >> BLOCK_BITS == 0 && at < PLACES_MAX,
            "{first:?}, {place:?}"
        );
        let (first, at) = (first.0.to_le_bytes(), (at | mark).to_le_bytes());
        Self {
            first: *first.first_chunk().expect("it has eight bytes"),
            at,
            checksum: checksum.to_le_bytes(),
        }
    }

    fn first(self) -> LocalBlock {
        let mut bytes = [0; 8];
        bytes[..NUMBER_BYTES].copy_from_slice(&self.first);
        LocalBlock(u64::from_le_bytes(bytes))
    }

    fn place(self) -> Place {
        let marked = u32::from_le_bytes(self.at);
        let at = marked & !(IN_MEMORY | DIRTY);
        match marked & IN_MEMORY {
            0 => Place::Away(Saved {
                slot: at,
                checksum: u32::from_le_bytes(self.checksum),
                dirty: marked & DIRTY != 0,
            }),
            _ => Place::Frame(at),
        }
    }
}

/// A page of the directory, until the next change of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    chunk: usize,
    at: usize,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Directory {
    /// Never without a chunk, no chunk without a page.
    chunks: Vec<Vec<Page>>,
    len: usize,
    /// Pages that the chunks have room for.
    room: usize,
}

impl Directory {
    /// With one page, which begins with block 0.
    pub(super) fn new(place: Place) -> Self {
        Self::of(std::iter::once((LocalBlock(0), place)))
    }

    /// Of pages that ascend, the first with block 0.
    pub(super) fn of(pages: impl Iterator<Item = (LocalBlock, Place)>) -> Self {
        let (mut chunks, mut len) = (Vec::<Vec<Page>>::new(), 0);
        for (first, place) in pages {
            if len % CHUNK_PAGES_MAX == 0 {
                chunks.push(Vec::new());
            }
            let chunk = chunks.last_mut().expect("one was added");
            assert!(len > 0 || first.0 == 0, "the first page begins with block 0");
            assert!(
                chunk.last().is_none_or(|last| last.first() < first),
                "pages ascend"
            );
            chunk.push(Page::new(first, place));
            len += 1;
        }
        assert!(len > 0, "there is a page");
        chunks.iter_mut().for_each(Vec::shrink_to_fit);
        let room = chunks.iter().map(Vec::capacity).sum();
        Self { chunks, len, room }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.room * size_of::<Page>() + self.chunks.capacity() * size_of::<Vec<Page>>()
    }

    /// The page of a block.
    pub(super) fn find(&self, block: LocalBlock) -> Position {
        let behind = self.chunks.partition_point(|chunk| chunk[0].first() <= block);
        let chunk = behind.checked_sub(1).expect("the first page begins with block 0");
        let behind = self.chunks[chunk].partition_point(|page| page.first() <= block);
        Position {
            chunk,
            at: behind - 1,
        }
    }

    fn page(&self, at: Position) -> Page {
        self.chunks[at.chunk][at.at]
    }

    pub(super) fn first(&self, at: Position) -> LocalBlock {
        self.page(at).first()
    }

    pub(super) fn place(&self, at: Position) -> Place {
        self.page(at).place()
    }

    pub(super) fn set_place(&mut self, at: Position, place: Place) {
        let page = &mut self.chunks[at.chunk][at.at];
        *page = Page::new(page.first(), place);
    }

    pub(super) fn next(&self, at: Position) -> Option<Position> {
        let Position { chunk, at } = at;
        if at + 1 < self.chunks[chunk].len() {
            return Some(Position { chunk, at: at + 1 });
        }
        (chunk + 1 < self.chunks.len()).then_some(Position {
            chunk: chunk + 1,
            at: 0,
        })
    }

    pub(super) fn previous(&self, at: Position) -> Option<Position> {
        let Position { chunk, at } = at;
        if let Some(at) = at.checked_sub(1) {
            return Some(Position { chunk, at });
        }
        let chunk = chunk.checked_sub(1)?;
        let at = self.chunks[chunk].len() - 1;
        Some(Position { chunk, at })
    }

    /// Adds a page, which begins behind the first block of the page at `at` and before the next page.
    pub(super) fn insert_behind(&mut self, at: Position, first: LocalBlock, place: Place) {
        assert!(first > self.first(at), "pages ascend");
        assert!(
            self.next(at).is_none_or(|next| first < self.first(next)),
            "pages ascend"
        );
        self.len += 1;
        let upper = self.change(at.chunk, |chunk| {
            if chunk.len() == chunk.capacity() {
                chunk.reserve_exact(STEP_PAGES);
            }
            chunk.insert(at.at + 1, Page::new(first, place));
            if chunk.len() <= CHUNK_PAGES_MAX {
                return None;
            }
            // Pages that are added in order leave full chunks behind.
            let is_last = at.at + 2 == chunk.len();
            let split = if is_last {
                CHUNK_PAGES_MAX
            } else {
                CHUNK_PAGES_MAX / 2
            };
            let upper = chunk.split_off(split);
            chunk.shrink_to_fit();
            Some(upper)
        });
        if let Some(upper) = upper {
            self.room += upper.capacity();
            self.chunks.insert(at.chunk + 1, upper);
        }
    }

    /// Removes a page, but not the first one. Its blocks belong to the page before it.
    pub(super) fn remove(&mut self, at: Position) {
        assert!(self.first(at).0 > 0, "the first page stays");
        self.len -= 1;
        self.change(at.chunk, |chunk| {
            chunk.remove(at.at);
            if chunk.capacity() - chunk.len() > 2 * STEP_PAGES {
                chunk.shrink_to(chunk.len() + STEP_PAGES);
            }
        });
        self.join_chunks(at.chunk);
    }

    /// Changes the pages of a chunk, and keeps count of the room.
    fn change<T>(&mut self, chunk: usize, change: impl FnOnce(&mut Vec<Page>) -> T) -> T {
        let chunk = &mut self.chunks[chunk];
        self.room -= chunk.capacity();
        let result = change(chunk);
        self.room += chunk.capacity();
        result
    }

    /// A chunk has become smaller.
    fn join_chunks(&mut self, chunk: usize) {
        for low in [Some(chunk), chunk.checked_sub(1)].into_iter().flatten() {
            let joins = |pair: &[Vec<Page>]| {
                pair[1].is_empty() || pair[0].len() + pair[1].len() <= CHUNK_PAGES_MAX / 2
            };
            if self.chunks.get(low..low + 2).is_some_and(joins) {
                let upper = self.chunks.remove(low + 1);
                self.room -= upper.capacity();
                self.change(low, |lower| {
                    lower.reserve_exact(upper.len());
                    lower.extend(upper);
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_directory_agrees_with_a_map() {
        let place = |n: u64| match n % 3 {
            0 => Place::Frame(n as u32),
            _ => Place::Away(Saved {
                slot: n as u32,
                checksum: !n as u32,
                dirty: n.is_multiple_of(2),
            }),
        };
        let mut directory = Directory::new(place(0));
        let mut model = BTreeMap::from([(0, place(0))]);
        let mut random = flaz_random::Random::new(5);
        for step in 1..60_000_u64 {
            // Grows to thousands of pages, and shrinks again.
            let grows = random.below(100) < if step < 30_000 { 65 } else { 35 };
            let block = LocalBlock(random.below(1 << 20));
            let at = directory.find(block);
            let (&first, &expected) = model.range(..=block.0).next_back().expect("block 0");
            assert_eq!((directory.first(at).0, directory.place(at)), (first, expected));
            let next = directory.next(at);
            let expected = model.range(first + 1..).next().map(|(first, _)| *first);
            assert_eq!(next.map(|next| directory.first(next).0), expected);
            assert!(next.is_none_or(|next| directory.previous(next) == Some(at)));
            if grows && block.0 > first {
                directory.insert_behind(at, block, place(step));
                model.insert(block.0, place(step));
            } else if !grows && first > 0 {
                directory.remove(at);
                model.remove(&first);
            } else {
                directory.set_place(at, place(step));
                model.insert(first, place(step));
            }
            assert_eq!(directory.len(), model.len());
        }
        assert!(directory.chunks.iter().all(|chunk| !chunk.is_empty()));
        let room: usize = directory.chunks.iter().map(Vec::capacity).sum();
        assert_eq!(directory.room, room);
        let unused = room - directory.len();
        assert!(unused <= 2 * STEP_PAGES * directory.chunks.len(), "{unused}");
        let again = Directory::of(model.iter().map(|(first, place)| (LocalBlock(*first), *place)));
        assert_eq!(again.len(), model.len());
        for (first, place) in model {
            let at = again.find(LocalBlock(first));
            assert_eq!((again.first(at).0, again.place(at)), (first, place));
        }
    }

    #[test]
    fn a_page_takes_little_memory() {
        let mut directory = Directory::new(Place::Frame(0));
        for n in 1..100_000 {
            let at = directory.find(LocalBlock(4 * n));
            directory.insert_behind(at, LocalBlock(4 * n), Place::Frame(0));
        }
        let each = directory.memory_bytes() as f64 / directory.len() as f64;
        assert!(each < 13.5, "{each}");
    }
}
