//! The expected contents of every block of the emulated disk, while several clients read and write it.
//!
//! A block is identified by the checksum of its contents. Each block has one client that may write it, one write at a
//! time; all clients read it at any time. A read may return the contents that were complete when it started, or any
//! whose write has begun since; nothing older, nothing else.
//!
//! Protocol: a reader calls [`Oracle::before_read`], reads, and passes the data to [`Oracle::check`]. A writer calls
//! [`Oracle::begin_write`], writes, and calls [`Oracle::end_write`] when the write is acknowledged.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Unit of caching and of checking, in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// Checksum of one block.
pub fn checksum(block: &[u8]) -> u32 {
    crc32c::crc32c(block)
}

/// A block with wrong contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Block number on the emulated disk.
    pub block: u32,
    /// Checksums that would have been correct, oldest first.
    pub expected: Vec<u32>,
    /// Checksum of the data read.
    pub found: u32,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offset = u64::from(self.block) * BLOCK_BYTES as u64;
        write!(
            out,
            "block {} (offset {offset}) has checksum {:08x}, expected",
            self.block, self.found
        )?;
        for (position, expected) in self.expected.iter().enumerate() {
            write!(out, "{} {expected:08x}", if position > 0 { " or" } else { "" })?;
        }
        Ok(())
    }
}

/// Checksums of all contents of a block since the start: `contents[..=complete]` are acknowledged.
#[derive(Debug)]
struct History {
    contents: Vec<u32>,
    complete: usize,
}

/// Number of contents of each block of a read when the read started.
#[derive(Debug)]
pub struct Snapshot {
    first: u32,
    complete: Vec<usize>,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Oracle<'a> {
    /// Checksums of the original image.
    image: &'a [u32],
    written: Mutex<HashMap<u32, History>>,
}

impl<'a> Oracle<'a> {
    /// For a disk that contains the image with these checksums, one per block.
    pub fn new(image: &'a [u32]) -> Self {
        Self {
            image,
            written: Mutex::new(HashMap::new()),
        }
    }

    /// Call before a read of `count` blocks from `first`.
    pub fn before_read(&self, first: u32, count: u32) -> Snapshot {
        let written = self.written();
        let complete = (first..first + count)
            .map(|block| written.get(&block).map_or(0, |history| history.complete))
            .collect();
        Snapshot { first, complete }
    }

    /// Checks the data of a read.
    ///
    /// # Errors
    /// The first block with wrong contents.
    pub fn check(&self, snapshot: &Snapshot, data: &[u8]) -> Result<(), Mismatch> {
        let found: Vec<u32> = data.chunks(BLOCK_BYTES).map(checksum).collect();
        assert_eq!(
            found.len(),
            snapshot.complete.len(),
            "a read is checked as a whole"
        );
        let written = self.written();
        for ((&found, &complete), block) in found.iter().zip(&snapshot.complete).zip(snapshot.first..) {
            let original = [self.image[block as usize]];
            let contents = written
                .get(&block)
                .map_or(&original[..], |history| &history.contents);
            if !contents[complete..].contains(&found) {
                return Err(Mismatch {
                    block,
                    expected: contents[complete..].to_vec(),
                    found,
                });
            }
        }
        Ok(())
    }

    /// Call before `contents` (a checksum) is written to `block`, by its only writer.
    pub fn begin_write(&self, block: u32, contents: u32) {
        let original = self.image[block as usize];
        let mut written = self.written();
        let history = written.entry(block).or_insert_with(|| History {
            contents: vec![original],
            complete: 0,
        });
        assert_eq!(
            history.complete + 1,
            history.contents.len(),
            "one write at a time to block {block}"
        );
        history.contents.push(contents);
    }

    /// Call when the last write to `block` is acknowledged.
    pub fn end_write(&self, block: u32) {
        if let Some(history) = self.written().get_mut(&block) {
            history.complete = history.contents.len() - 1;
        }
    }

    fn written(&self) -> MutexGuard<'_, HashMap<u32, History>> {
        // A panic of another thread ends the demo anyway; the map itself is consistent after each statement.
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> (Vec<Vec<u8>>, Vec<u32>) {
        let blocks: Vec<Vec<u8>> = (0..8u8).map(|fill| vec![fill; BLOCK_BYTES]).collect();
        let sums = blocks.iter().map(|block| checksum(block)).collect();
        (blocks, sums)
    }

    #[test]
    fn the_image_is_expected_and_one_flipped_bit_is_not() {
        let (blocks, sums) = image();
        let oracle = Oracle::new(&sums);
        let mut data = blocks[2..5].concat();
        let snapshot = oracle.before_read(2, 3);
        assert_eq!(oracle.check(&snapshot, &data), Ok(()));
        data[BLOCK_BYTES + 77] ^= 4;
        let mismatch = oracle.check(&snapshot, &data).expect_err("a flipped bit");
        assert_eq!((mismatch.block, mismatch.expected), (3, vec![sums[3]]));
    }

    #[test]
    fn the_right_contents_in_the_wrong_place_are_wrong() {
        let (blocks, sums) = image();
        let oracle = Oracle::new(&sums);
        let snapshot = oracle.before_read(2, 1);
        assert!(oracle.check(&snapshot, &blocks[3]).is_err());
    }

    #[test]
    fn a_read_during_a_write_sees_old_or_new_then_only_new() {
        let (blocks, sums) = image();
        let oracle = Oracle::new(&sums);
        let during = oracle.before_read(1, 1);
        oracle.begin_write(1, sums[7]);
        assert_eq!(oracle.check(&during, &blocks[1]), Ok(()));
        assert_eq!(oracle.check(&during, &blocks[7]), Ok(()));
        assert!(oracle.check(&during, &blocks[6]).is_err());
        oracle.end_write(1);
        let after = oracle.before_read(1, 1);
        assert!(oracle.check(&after, &blocks[1]).is_err(), "stale data passed");
        assert_eq!(oracle.check(&after, &blocks[7]), Ok(()));
        assert_eq!(
            oracle.check(&during, &blocks[1]),
            Ok(()),
            "the long read may still end with the old contents"
        );
    }

    #[test]
    fn a_mismatch_names_block_and_contents() {
        let mismatch = Mismatch {
            block: 3,
            expected: vec![1, 2],
            found: 3,
        };
        assert_eq!(
            mismatch.to_string(),
            "block 3 (offset 12288) has checksum 00000003, expected 00000001 or 00000002"
        );
    }
}
