//! The pages of sorted runs: a recovery whose changes do not fit in memory sorts them on the device (external merge sort).
//!
//! ```text
//! page     CRC-32C u32 of the rest of the page and of the seal; changes; zero padding
//! change   varint, followed by the entry (6 bytes) if the kind is 1
//! varint   gap to the preceding block, or the block number of the first change; times 4; plus the kind. LEB128: 7 bits in each byte, low
//!          bits first, the top bit is set in all bytes but the last
//! kind     0 end of the page, 1 set the entry, 2 drop the block, 3 mark it clean
//! ```
//!
//! Invariants:
//! - A run has one change per block, in ascending order of blocks.
//! - A page can be decoded without the preceding page: it begins with a complete block number.
//! - The seal identifies the page, its run and the recovery. A page of another run or of an earlier recovery fails the checksum.

use super::bulk::{CLEAN, DROP};
use super::code::BLOCK_BITS;
use super::entry::VALUE_MASK;
use crate::units::LocalBlock;

const CHECKSUM_BYTES: usize = 4;
const ENTRY_BYTES: usize = 6;
const _: () = assert!(VALUE_MASK < 1 << (8 * ENTRY_BYTES));
const NUMBER_BYTES_MAX: usize = (BLOCK_BITS + KIND_BITS).div_ceil(7) as usize;
/// Maximum size of a change.
const CHANGE_BYTES_MAX: usize = NUMBER_BYTES_MAX + ENTRY_BYTES;

const KIND_BITS: u32 = 2;
const END: u64 = 0;
const SET: u64 = 1;
const DROPPED: u64 = 2;
const CLEANED: u64 = 3;

/// Identity of a page: mark of the index, number of the run in this recovery, number of the page in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seal {
    pub(super) mark: u64,
    pub(super) run: u32,
    pub(super) page: u32,
}

impl Seal {
    fn checksum(self, page: &[u8]) -> u32 {
        let mut seal = [0; 16];
        seal[..8].copy_from_slice(&self.mark.to_le_bytes());
        seal[8..12].copy_from_slice(&self.run.to_le_bytes());
        seal[12..].copy_from_slice(&self.page.to_le_bytes());
        let contents = page.get(CHECKSUM_BYTES..).unwrap_or_default();
        crc32c::crc32c_append(crc32c::crc32c(contents), &seal)
    }
}

/// Encodes as many changes as fit into a page; each is a block with the bits of its entry, [`DROP`] or [`CLEAN`]. Returns their number.
pub(super) fn fill(page: &mut [u8], seal: Seal, changes: impl Iterator<Item = (LocalBlock, u64)>) -> usize {
    page.fill(0);
    let (mut at, mut next, mut count) = (CHECKSUM_BYTES, 0, 0);
    for (block, what) in changes {
        if page.len() - at < CHANGE_BYTES_MAX {
            break;
        }
        let kind = match what {
            DROP => DROPPED,
            CLEAN => CLEANED,
            _ => SET,
        };
        let mut number = (block.0 - next) << KIND_BITS | kind;
        while number >= 0x80 {
            page[at] = number as u8 | 0x80;
            number >>= 7;
            at += 1;
        }
        page[at] = number as u8;
        at += 1;
        if kind == SET {
            page[at..at + ENTRY_BYTES].copy_from_slice(&what.to_le_bytes()[..ENTRY_BYTES]);
            at += ENTRY_BYTES;
        }
        next = block.0 + 1;
        count += 1;
    }
    let checksum = seal.checksum(page);
    page[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_le_bytes());
    count
}

/// Position of the next change in a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    at: usize,
    next: u64,
}

/// Verifies the checksum of a page.
///
/// # Errors
/// The page is damaged, or is not this page.
pub(super) fn check(page: &[u8], seal: Seal) -> Result<(), String> {
    let found = page.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let expected = seal.checksum(page);
    match found {
        Some(found) if found == expected => Ok(()),
        _ => Err(format!("checksum mismatch, expected {expected:#010x}")),
    }
}

impl Cursor {
    /// The first change of a page.
    pub(super) fn start() -> Self {
        Self {
            at: CHECKSUM_BYTES,
            next: 0,
        }
    }

    /// Decodes the next change. `None`: end of the page.
    pub(super) fn next(&mut self, page: &[u8]) -> Option<(LocalBlock, u64)> {
        let number = self.number(page)?;
        let what = match number & ((1 << KIND_BITS) - 1) {
            END => return None,
            SET => {
                let mut entry = [0; 8];
                let bytes = page.get(self.at..self.at + ENTRY_BYTES)?;
                entry[..ENTRY_BYTES].copy_from_slice(bytes);
                self.at += ENTRY_BYTES;
                u64::from_le_bytes(entry)
            }
            DROPPED => DROP,
            _ => CLEAN,
        };
        let block = self.next + (number >> KIND_BITS);
        self.next = block + 1;
        Some((LocalBlock(block), what))
    }

    fn number(&mut self, page: &[u8]) -> Option<u64> {
        let mut number = 0;
        for n in 0..NUMBER_BYTES_MAX {
            let byte = u64::from(*page.get(self.at)?);
            self.at += 1;
            number |= (byte & 0x7f) << (7 * n);
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use flaz_random::Random;

    use super::*;

    fn all(page: &[u8], mut cursor: Cursor) -> Vec<(LocalBlock, u64)> {
        std::iter::from_fn(|| cursor.next(page)).collect()
    }

    #[test]
    fn changes_come_back_page_by_page() {
        let mut random = Random::new(1);
        for bits in [1, 8, 20, BLOCK_BITS] {
            let (mut block, mut changes) = (0, Vec::new());
            while changes.len() < 3000 {
                block += random.below(1 << bits);
                if block >= 1 << BLOCK_BITS {
                    break;
                }
                let what = match random.below(8) {
                    0 => DROP,
                    1 => CLEAN,
                    _ => 1 + random.below(VALUE_MASK),
                };
                changes.push((LocalBlock(block), what));
                block += 1;
            }
            changes.push((LocalBlock((1 << BLOCK_BITS) - 1), VALUE_MASK));
            let (mut read, mut page) = (Vec::new(), vec![9; 512]);
            for number in 0.. {
                let seal = Seal {
                    mark: 7,
                    run: 3,
                    page: number,
                };
                let left = changes[read.len()..].iter().copied();
                let count = fill(&mut page, seal, left);
                check(&page, seal).expect("it is the page");
                let some = all(&page, Cursor::start());
                assert_eq!(some.len(), count);
                read.extend(some);
                assert!(count >= (512 - CHECKSUM_BYTES) / CHANGE_BYTES_MAX || read.len() == changes.len());
                if read.len() == changes.len() {
                    break;
                }
            }
            assert_eq!(read, changes);
        }
    }

    #[test]
    fn another_page_and_a_damaged_one_are_refused() {
        let seal = Seal {
            mark: 7,
            run: 3,
            page: 1,
        };
        let mut page = vec![0; 512];
        assert_eq!(fill(&mut page, seal, [(LocalBlock(9), 5)].into_iter()), 1);
        for other in [
            Seal { mark: 8, ..seal },
            Seal { run: 2, ..seal },
            Seal { page: 0, ..seal },
        ] {
            assert!(check(&page, other).is_err(), "{other:?}");
        }
        for at in 0..page.len() {
            page[at] ^= 1;
            assert!(check(&page, seal).is_err(), "byte {at}");
            page[at] ^= 1;
        }
        assert!(check(&page, seal).is_ok());
        assert!(check(&[], seal).is_err());
    }

    #[test]
    fn any_bytes_are_changes_or_end() {
        let mut random = Random::new(3);
        for _ in 0..20_000 {
            let page: Vec<u8> = (0..random.below(60)).map(|_| random.below(256) as u8).collect();
            let cursor = Cursor { at: 0, next: 0 };
            assert!(all(&page, cursor).len() <= page.len());
        }
    }
}
