//! Generated loads: the requests that a file system would send for a published mix of operations.
//!
//! They stand for what was not recorded. The mix is published; the sizes of files are not those of SPECsfs2008, and the page cache has a
//! tenth of the data.

use flaz_random::Random;
use flaz_trace::recording::Recorded;

use super::files::Files;
use super::{Workload, WorkloadError};

/// Blocks of a MiB.
const MIB_BLOCKS: u64 = 256;

/// A generated load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generated {
    /// The operation mix of SPECsfs2008 for NFS.
    FileServer,
    /// Sequential reads of more than the cache: each is stored, so reclaim never pauses.
    Stream,
}

impl Generated {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FileServer => "file-server",
            Self::Stream => "stream",
        }
    }

    /// The load, of which `scale` divides the size.
    ///
    /// # Errors
    /// Never with a `scale` for which something is left.
    pub fn workload(self, scale: u64) -> Result<Workload, WorkloadError> {
        let scale = scale.max(1);
        let requests = match self {
            Self::FileServer => file_server(scale),
            Self::Stream => stream(scale),
        };
        Workload::new(self.name(), requests)
    }
}

/// Files whose inodes share a block.
const INODES: u64 = 16;
/// Most blocks of a request.
const REQUEST_BLOCKS: u64 = 32;

/// Operations of SPECsfs2008 for NFS version 3, in percent, that read or write something.
#[derive(Clone, Copy)]
enum FileOperation {
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
const FILE_SERVER_MIX: [(u64, FileOperation); 7] = [
    (63, FileOperation::Lookup),
    (18, FileOperation::Read),
    (10, FileOperation::Write),
    (1, FileOperation::Create),
    (1, FileOperation::Remove),
    (3, FileOperation::ReadDirectory),
    (4, FileOperation::SetAttributes),
];
/// Clients of the file server at the same time.
const FILE_SERVER_DEPTH: u32 = 16;
/// Longest file in blocks: 1 MiB. Lengths are spread over the powers of two up to it.
const FILE_BLOCKS_MAX_LOG: u64 = 8;

fn file_server(scale: u64) -> Vec<Recorded> {
    let count = 1600 / scale.min(100);
    let mut random = Random::new(2008);
    let inodes = count / INODES + 1;
    let mut at = inodes;
    let places: Vec<(u64, u64)> = (0..count)
        .map(|_| {
            let length = 1 << random.below(FILE_BLOCKS_MAX_LOG + 1);
            at += length;
            (at - length, length)
        })
        .collect();
    let mut files = Files::new((at / 10) as usize, FILE_SERVER_DEPTH);
    for _ in 0..100_000 / scale {
        // Three quarters of the accesses are to three tenths of the files.
        let file = match random.below(4) {
            0 => random.below(count),
            _ => random.below((count * 3 / 10).max(1)),
        };
        let (first, length) = places[file as usize];
        let inode = file / INODES;
        files.think(4);
        let mut draw = random.below(100);
        let operation = FILE_SERVER_MIX.iter().find(|(percent, _)| {
            let found = draw < *percent;
            draw = draw.saturating_sub(*percent);
            found
        });
        match operation.map(|it| it.1) {
            Some(FileOperation::Read) => {
                let begin = random.below(length);
                files.read(inode, 1);
                files.read(first + begin, (length - begin).min(REQUEST_BLOCKS));
            }
            Some(FileOperation::Write) => {
                let begin = random.below(length);
                files.write(first + begin, (length - begin).min(1 + random.below(16)));
                files.write(inode, 1);
            }
            Some(FileOperation::Create) => files.write(first, length.min(REQUEST_BLOCKS)),
            Some(FileOperation::Remove) => {
                files.forget(first, length);
                files.write(inode, 1);
            }
            Some(FileOperation::ReadDirectory) => files.read(inode.saturating_sub(2), 3.min(inodes)),
            Some(FileOperation::SetAttributes) => files.write(inode, 1),
            Some(FileOperation::Lookup) | None => files.read(inode, 1),
        }
    }
    files.finish()
}

/// A read of 128 KiB after another.
fn stream(scale: u64) -> Vec<Recorded> {
    let total = 512 * MIB_BLOCKS / scale;
    let mut files = Files::new(1024, 4);
    for at in (0..total).step_by(REQUEST_BLOCKS as usize) {
        files.read(at, REQUEST_BLOCKS.min(total - at));
    }
    files.finish()
}

#[cfg(test)]
mod tests {
    use flaz_trace::Op;

    use super::*;

    #[test]
    fn loads_are_what_they_say() {
        for load in [Generated::FileServer, Generated::Stream] {
            let workload = load.workload(20).expect("a load");
            let requests = workload.requests();
            let writes = requests.iter().filter(|it| it.request.op == Op::Write).count();
            assert_eq!(workload.name(), load.name());
            assert!(requests.len() > 20, "{load:?}: {} requests", requests.len());
            assert_eq!(writes == 0, load == Generated::Stream);
            assert!(workload.footprint_bytes() <= workload.origin_bytes());
            // The same each time.
            let again = load.workload(20).expect("a load");
            assert_eq!(again.requests(), requests, "{load:?}");
        }
    }
}
