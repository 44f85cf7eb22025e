//! A file server: the requests that its file system would send for published operations of NFS.
//!
//! The mix of operations is that of SPECsfs2008 for NFS version 3, with three tenths of the files in use. The lengths of files, reads and
//! writes are those of SPEC SFS 3.0, its predecessor. The page cache has a tenth of the data.

use flaz_random::Random;
use flaz_trace::recording::Recorded;

use super::files::Files;

/// Operations in percent, that read or write something.
#[derive(Clone, Copy)]
enum Operation {
    /// Attributes, names, access.
    Lookup,
    Read,
    Write,
    Create,
    Remove,
    ReadDirectory,
    SetAttributes,
}

/// LOOKUP 24, GETATTR 26, ACCESS 11, READLINK 1, FSSTAT 1 are lookups here; READDIR 1 and READDIRPLUS 2 read a directory.
const MIX: [(u64, Operation); 7] = [
    (63, Operation::Lookup),
    (18, Operation::Read),
    (10, Operation::Write),
    (1, Operation::Create),
    (1, Operation::Remove),
    (3, Operation::ReadDirectory),
    (4, Operation::SetAttributes),
];

/// KiB, from and to, that so many of a hundred have.
type Lengths = (u64, (u64, u64));

const FILE_LENGTHS: [Lengths; 10] = [
    (33, (1, 1)),
    (21, (2, 2)),
    (13, (4, 4)),
    (10, (8, 8)),
    (8, (16, 16)),
    (5, (32, 32)),
    (4, (64, 64)),
    (3, (128, 128)),
    (2, (256, 256)),
    (1, (1024, 1024)),
];
const READ_LENGTHS: [Lengths; 5] = [
    (85, (8, 8)),
    (8, (17, 23)),
    (4, (33, 39)),
    (2, (65, 71)),
    (1, (129, 135)),
];
const WRITE_LENGTHS: [Lengths; 6] = [
    (49, (1, 7)),
    (36, (9, 15)),
    (8, (17, 23)),
    (4, (33, 39)),
    (2, (65, 71)),
    (1, (129, 135)),
];

/// Number of files: 350 MiB.
const FILES: u64 = 12_800;
/// Number of operations.
const OPERATIONS: u64 = 100_000;
/// Files whose inodes share a block.
const INODES: u64 = 16;
/// Clients at the same time, and what each computes before an operation, in microseconds.
const DEPTH: u32 = 16;
const THINK_US: u64 = 4;
/// KiB of a block.
const BLOCK_KIB: u64 = 4;

/// A file.
#[derive(Clone, Copy)]
struct File {
    /// Block of its inode.
    inode: u64,
    /// Its first block, and their number.
    first: u64,
    blocks: u64,
}

/// Files, the longest first, of each length those that are in use before the others.
struct FileSet {
    files: Vec<File>,
    inodes: u64,
    blocks: u64,
}

impl FileSet {
    fn new(count: u64, random: &mut Random) -> Self {
        let inodes = count / INODES + 1;
        let mut end = inodes;
        let files = (0..count).map(|number| {
            let blocks = draw_blocks(random, &FILE_LENGTHS);
            end += blocks;
            File {
                inode: number / INODES,
                first: end - blocks,
                blocks,
            }
        });
        let mut files: Vec<File> = files.collect();
        files.sort_by_key(|file| std::cmp::Reverse(file.blocks));
        Self {
            files,
            inodes,
            blocks: end,
        }
    }

    /// A file in use, of at least so many blocks, or the longest.
    fn choose(&self, blocks: u64, random: &mut Random) -> File {
        let long = self.files.partition_point(|file| file.blocks >= blocks).max(1);
        let length = self.files[random.below(long as u64) as usize].blocks;
        let begin = self.files.partition_point(|file| file.blocks > length);
        let count = (self.files.partition_point(|file| file.blocks >= length) - begin) as u64;
        // Three tenths are in use.
        self.files[begin + random.below((count * 3 / 10).max(1)) as usize]
    }
}

/// Draws from a table whose first column sums up to 100.
fn draw<'a, T>(random: &mut Random, table: &'a [(u64, T)]) -> &'a T {
    let mut drawn = random.below(100);
    let found = table.iter().find(|(percent, _)| {
        let found = drawn < *percent;
        drawn = drawn.saturating_sub(*percent);
        found
    });
    &found.unwrap_or(&table[0]).1
}

/// Blocks of a length that is drawn from a table.
fn draw_blocks(random: &mut Random, lengths: &[Lengths]) -> u64 {
    let (from, to) = *draw(random, lengths);
    (from + random.below(to - from + 1)).div_ceil(BLOCK_KIB)
}

/// The load, of which `scale` divides the size.
pub(super) fn file_server(scale: u64) -> Vec<Recorded> {
    let mut random = Random::new(2008);
    let set = FileSet::new(FILES / scale.min(100), &mut random);
    // Of three tenths of the files.
    let mut files = Files::new((set.blocks * 3 / 100) as usize, DEPTH);
    for _ in 0..OPERATIONS / scale {
        files.think(THINK_US);
        match draw(&mut random, &MIX) {
            Operation::Read => {
                let (file, begin, blocks) = part(&set, &mut random, &READ_LENGTHS);
                files.read(file.inode, 1);
                files.read(begin, blocks);
            }
            Operation::Write => {
                let (file, begin, blocks) = part(&set, &mut random, &WRITE_LENGTHS);
                files.write(begin, blocks);
                files.write(file.inode, 1);
            }
            Operation::Create => {
                let file = set.choose(1, &mut random);
                files.write(file.first, file.blocks);
                files.write(file.inode, 1);
            }
            Operation::Remove => {
                let file = set.choose(1, &mut random);
                files.forget(file.first, file.blocks);
                files.write(file.inode, 1);
            }
            Operation::ReadDirectory => {
                let first = set.choose(1, &mut random).inode.saturating_sub(2);
                files.read(first, 3.min(set.inodes));
            }
            Operation::SetAttributes => files.write(set.choose(1, &mut random).inode, 1),
            Operation::Lookup => files.read(set.choose(1, &mut random).inode, 1),
        }
    }
    files.finish()
}

/// A part of a file, of a length from a table: the file, the first block, and the number of blocks.
fn part(set: &FileSet, random: &mut Random, lengths: &[Lengths]) -> (File, u64, u64) {
    let blocks = draw_blocks(random, lengths);
    let file = set.choose(blocks, random);
    let blocks = blocks.min(file.blocks);
    (file, file.first + random.below(file.blocks - blocks + 1), blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_whole_and_lengths_are_as_published() {
        for table in [&FILE_LENGTHS[..], &READ_LENGTHS, &WRITE_LENGTHS] {
            assert_eq!(table.iter().map(|(percent, _)| percent).sum::<u64>(), 100);
        }
        assert_eq!(MIX.iter().map(|(percent, _)| percent).sum::<u64>(), 100);
        let mut random = Random::new(1);
        let set = FileSet::new(FILES, &mut random);
        // 27.7 KiB on average, in whole blocks.
        let mean = (set.blocks - set.inodes) as f64 / set.files.len() as f64;
        assert!((6.0..8.0).contains(&mean), "{mean} blocks");
        for blocks in [1, 2, 30, 256] {
            let file = set.choose(blocks, &mut random);
            assert!(file.blocks >= blocks, "{} for {blocks}", file.blocks);
        }
        assert_eq!(set.choose(1000, &mut random).blocks, 256);
        let small = FileSet::new(3, &mut random);
        let longest = small.files[0].blocks;
        assert_eq!(small.choose(1000, &mut random).blocks, longest);
    }
}
