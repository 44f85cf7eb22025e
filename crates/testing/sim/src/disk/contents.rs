//! Contents of a simulated medium: a sparse tree of 4 KiB pages, shared between copies until written.
//!
//! Invariants: a clone costs one pointer per 64 MiB and never sees later writes of the other copy; a page that was
//! never written has the contents of [`DiskConfig::background`](super::DiskConfig::background); a page of zeroes or of
//! garbage takes no memory.

use std::fmt;
use std::sync::Arc;

use crate::rng::{Rng, splitmix};

/// Size of a page in bytes.
pub(crate) const PAGE_BYTES: usize = 4096;
const FANOUT: usize = 128;
/// The unit that a power cut cannot tear, in bytes.
pub const SECTOR_BYTES: u64 = 512;
const SECTOR: u64 = SECTOR_BYTES;

/// Contents of pages that were never written: called with the number of the 4 KiB page and the page to fill.
pub type Background = Arc<dyn Fn(u64, &mut [u8; PAGE_BYTES]) + Send + Sync>;

#[derive(Clone, Default)]
enum Page {
    #[default]
    Background,
    Zero,
    /// Random bytes from this seed.
    Garbage(u64),
    Bytes(Arc<[u8; PAGE_BYTES]>),
}

#[derive(Clone)]
struct Leaf {
    pages: [Page; FANOUT],
}

#[derive(Clone)]
struct Branch {
    leaves: [Option<Arc<Leaf>>; FANOUT],
}

/// Contents of a range after a discard with unspecified outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardMode {
    /// Each page is old, zero or garbage, as the seed decides.
    Mixed,
    /// Zeroes.
    Zero,
    /// The previous contents.
    Old,
    /// Random bytes.
    Garbage,
}

/// A change of a range.
#[derive(Clone)]
pub(crate) enum Payload {
    /// Bytes from this index on.
    Bytes(Arc<[u8]>, usize),
    Zeroes,
    /// A discard; the seed fixes its outcome, so that it is the same wherever it is applied.
    Discard(DiscardMode, u64),
}

#[derive(Clone)]
pub(crate) struct Contents {
    branches: Vec<Option<Arc<Branch>>>,
    background: Option<Background>,
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Contents")
    }
}

impl Contents {
    pub(crate) fn new(background: Option<Background>) -> Self {
        Self {
            branches: Vec::new(),
            background,
        }
    }

    fn page(&self, number: u64) -> &Page {
        let (branch, leaf, page) = path(number);
        self.branches
            .get(branch)
            .and_then(Option::as_ref)
            .and_then(|branch| branch.leaves[leaf].as_ref())
            .map_or(&Page::Background, |leaf| &leaf.pages[page])
    }

    fn page_mut(&mut self, number: u64) -> &mut Page {
        let (branch, leaf, page) = path(number);
        if self.branches.len() <= branch {
            self.branches.resize(branch + 1, None);
        }
        let branch = self.branches[branch].get_or_insert_with(|| {
            Arc::new(Branch {
                leaves: [const { None }; FANOUT],
            })
        });
        let leaf = Arc::make_mut(branch).leaves[leaf].get_or_insert_with(|| {
            Arc::new(Leaf {
                pages: [const { Page::Background }; FANOUT],
            })
        });
        &mut Arc::make_mut(leaf).pages[page]
    }

    /// Copies the bytes at `offset` into `out`.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        for_pages(offset, out.len(), |number, within, range| {
            let out = &mut out[range];
            match self.page(number) {
                Page::Zero => out.fill(0),
                Page::Background if self.background.is_none() => out.fill(0),
                Page::Bytes(bytes) => out.copy_from_slice(&bytes[within..within + out.len()]),
                page => {
                    let bytes = self.materialise(number, page);
                    out.copy_from_slice(&bytes[within..within + out.len()]);
                }
            }
        });
    }

    /// Changes `len` bytes at `offset`.
    pub(crate) fn apply(&mut self, offset: u64, len: u64, payload: &Payload) {
        match payload {
            Payload::Bytes(bytes, from) => self.write(offset, &bytes[*from..*from + len as usize]),
            Payload::Zeroes => self.fill_pages(offset, len, |_| Some(Page::Zero)),
            Payload::Discard(mode, seed) => self.fill_pages(offset, len, |number| {
                let dice = splitmix(seed ^ number);
                match (mode, dice % 3) {
                    (DiscardMode::Old, _) | (DiscardMode::Mixed, 0) => None,
                    (DiscardMode::Zero, _) | (DiscardMode::Mixed, 1) => Some(Page::Zero),
                    (DiscardMode::Garbage, _) | (DiscardMode::Mixed, _) => Some(Page::Garbage(dice)),
                }
            }),
        }
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        for_pages(offset, bytes.len(), |number, within, range| {
            self.write_page(number, within, &bytes[range]);
        });
    }

    fn write_page(&mut self, number: u64, within: usize, bytes: &[u8]) {
        let whole = bytes.len() == PAGE_BYTES;
        let made = match self.page(number) {
            Page::Bytes(_) => None,
            _ if whole => Some(Arc::new([0; PAGE_BYTES])),
            page => Some(Arc::new(self.materialise(number, page))),
        };
        let page = self.page_mut(number);
        if let Some(made) = made {
            *page = Page::Bytes(made);
        }
        if let Page::Bytes(old) = page {
            Arc::make_mut(old)[within..within + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn fill_pages(&mut self, offset: u64, len: u64, choose: impl Fn(u64) -> Option<Page>) {
        for_pages(offset, len as usize, |number, within, range| {
            let Some(new) = choose(number) else { return };
            if range.len() == PAGE_BYTES {
                *self.page_mut(number) = new;
            } else {
                let bytes = self.materialise(number, &new);
                self.write_page(number, within, &bytes[within..within + range.len()]);
            }
        });
    }

    fn materialise(&self, number: u64, page: &Page) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; PAGE_BYTES];
        match page {
            Page::Zero => {}
            Page::Background => {
                if let Some(background) = &self.background {
                    background(number, &mut bytes);
                }
            }
            Page::Garbage(seed) => Rng::new(*seed).fill(&mut bytes),
            Page::Bytes(shared) => bytes = **shared,
        }
        bytes
    }
}

fn path(page: u64) -> (usize, usize, usize) {
    let leaf = page as usize / FANOUT;
    (leaf / FANOUT, leaf % FANOUT, page as usize % FANOUT)
}

/// Calls `each(page, first byte within the page, range of the whole)` for every page of a range.
fn for_pages(offset: u64, len: usize, mut each: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = (at % PAGE_BYTES as u64) as usize;
        let step = (PAGE_BYTES - within).min(len - done);
        each(at / PAGE_BYTES as u64, within, done..done + step);
        done += step;
    }
}

/// Sectors of a range, whose ends need not be aligned.
pub(crate) fn sectors(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset / SECTOR..(offset + len).div_ceil(SECTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_at(contents: &Contents, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0xee; len];
        contents.read(offset, &mut out);
        out
    }

    #[test]
    fn writes_over_page_borders_are_read_back_and_the_rest_is_zero() {
        let mut contents = Contents::new(None);
        let data: Vec<u8> = (0..10_000).map(|i| (i % 251 + 1) as u8).collect();
        contents.write(1 << 40, &data);
        contents.write(3_000, &data);
        assert_eq!(bytes_at(&contents, 3_000, data.len()), data);
        assert_eq!(bytes_at(&contents, 1 << 40, data.len()), data);
        assert_eq!(bytes_at(&contents, 0, 3_000), vec![0; 3_000]);
        assert_eq!(bytes_at(&contents, 13_000, 5_000), vec![0; 5_000]);
    }

    #[test]
    fn a_clone_is_not_changed_by_later_writes() {
        let mut contents = Contents::new(None);
        contents.write(0, &[1; 8192]);
        let copy = contents.clone();
        contents.write(100, &[2; 5000]);
        assert_eq!(bytes_at(&copy, 0, 8192), vec![1; 8192]);
        assert_eq!(bytes_at(&contents, 100, 5000), vec![2; 5000]);
    }

    #[test]
    fn unwritten_pages_come_from_the_background() {
        let background: Background = Arc::new(|page, bytes| bytes.fill(page as u8));
        let mut contents = Contents::new(Some(background));
        contents.write(4096 + 10, &[9; 10]);
        assert_eq!(bytes_at(&contents, 4096 + 8, 4), [1, 1, 9, 9]);
        assert_eq!(bytes_at(&contents, 3 * 4096, 2), [3, 3]);
        contents.apply(3 * 4096, 4096, &Payload::Zeroes);
        assert_eq!(bytes_at(&contents, 3 * 4096, 2), [0, 0]);
    }

    #[test]
    fn zeroes_and_discards_keep_to_their_range() {
        let mut contents = Contents::new(None);
        contents.write(0, &[5; 16_384]);
        contents.apply(512, 8192, &Payload::Zeroes);
        assert_eq!(bytes_at(&contents, 0, 512), [5; 512]);
        assert_eq!(bytes_at(&contents, 512, 8192), vec![0; 8192]);
        assert_eq!(bytes_at(&contents, 8704, 7680), vec![5; 7680]);
        contents.apply(8704, 512, &Payload::Discard(DiscardMode::Garbage, 1));
        assert_ne!(bytes_at(&contents, 8704, 512), [5; 512]);
        assert_eq!(bytes_at(&contents, 9216, 7168), vec![5; 7168]);
    }

    #[test]
    fn a_mixed_discard_shows_all_three_outcomes_and_is_repeatable() {
        let mut contents = Contents::new(None);
        contents.write(0, &vec![5; 64 * 4096]);
        let mut again = contents.clone();
        let payload = Payload::Discard(DiscardMode::Mixed, 77);
        contents.apply(0, 64 * 4096, &payload);
        again.apply(0, 64 * 4096, &payload);
        let (mut old, mut zero, mut garbage) = (0, 0, 0);
        for page in 0..64 {
            let bytes = bytes_at(&contents, page * 4096, 4096);
            assert_eq!(bytes, bytes_at(&again, page * 4096, 4096));
            match bytes {
                b if b == vec![5; 4096] => old += 1,
                b if b == vec![0; 4096] => zero += 1,
                _ => garbage += 1,
            }
        }
        assert!(
            old > 5 && zero > 5 && garbage > 5,
            "{old} old, {zero} zero, {garbage} garbage"
        );
    }
}
