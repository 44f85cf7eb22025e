//! The data of the demo: real files of this machine, concatenated into an image.
//!
//! The files are all regular files in the given directories, in a pseudo-random order that is always the same (a hash
//! of the path), so that every directory has its share. Only whole 4 KiB blocks of a file are used, because padding
//! would compress well and improve the ratio. The checksum of each block is stored.

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use flaz_random::{Random, mix};
use serde::Serialize;

use crate::error::DemoError;
use crate::interrupt::Interrupt;
use crate::oracle::{BLOCK_BYTES, checksum};

/// Default directories.
pub const DEFAULT_FOLDERS: [&str; 2] = ["/usr/lib", "/usr/share"];
/// Minimum amount of data for a demo.
pub const BYTES_MIN: u64 = 8 << 20;
/// Maximum number of directory entries visited, so that a huge tree does not take too long.
const ENTRIES_MAX: usize = 1_000_000;
/// Only the start of a longer file is used, so that a few huge files do not displace the others.
const FILE_BLOCKS_MAX: u64 = 2048;
/// Files with fewer blocks are used only if the others do not fill the image.
const FILE_BLOCKS_USUAL: u64 = 4;
/// Maximum number of blocks in a piece with one popularity, because parts of a large file are not equally hot.
pub const PIECE_BLOCKS_MAX: u32 = 64;

/// Consecutive blocks of one file with one popularity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// First block on the emulated disk.
    pub first: u32,
    /// Number of blocks, at least 1.
    pub blocks: u32,
}

/// Source and amount of the data, for the report.
#[derive(Debug, Clone, Default, Serialize, schemars::JsonSchema)]
pub struct DataSummary {
    /// Directories, or "random bytes".
    pub source: String,
    /// Bytes of the image.
    pub bytes: u64,
    /// Files taken.
    pub files: u64,
    /// Number of candidate files.
    pub candidates: u64,
    /// Number of pieces with their own popularity.
    pub pieces: u64,
    /// Share of the image's bytes by directory, largest first; at most eight.
    pub folders: Vec<(String, f64)>,
    /// Blocks that are all zero.
    pub zero_blocks: u64,
    /// Whether the walk stopped early because there were too many files.
    pub walk_cut_short: bool,
}

/// An image on disk.
#[derive(Debug)]
pub struct DataSet {
    /// The image file; it is no longer written.
    pub image: PathBuf,
    /// Checksum of each block.
    pub checksums: Vec<u32>,
    /// All pieces, in image order.
    pub pieces: Vec<Piece>,
    /// For the report.
    pub summary: DataSummary,
}

impl DataSet {
    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.checksums.len() as u32
    }

    /// Writes files from `folders` to a new file `image` of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// A directory cannot be read, the files have less than [`BYTES_MIN`], the image cannot be written, or a signal
    /// arrived. Unreadable files are skipped.
    pub fn from_folders(
        folders: &[PathBuf],
        bytes_max: u64,
        image: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self, DemoError> {
        let (mut candidates, walk_cut_short) = walk(folders, interrupt)?;
        candidates.sort_by(|left, right| {
            left.order
                .cmp(&right.order)
                .then_with(|| left.path.cmp(&right.path))
        });
        let mut layout = Layout::create(image)?;
        let mut shares = Shares::new(folders);
        for candidate in &candidates {
            interrupt.check()?;
            let room = bytes_max / BLOCK_BYTES as u64 - layout.blocks();
            let blocks = candidate.blocks.min(FILE_BLOCKS_MAX);
            if room == 0 {
                break;
            }
            // A file that does not fit is skipped: a smaller one may fit.
            if blocks > room {
                continue;
            }
            let Ok(taken) = layout.add_file(&candidate.path, blocks)? else {
                continue;
            };
            shares.add(&candidate.path, taken);
        }
        let mut set = layout.finish(image)?;
        if set.summary.bytes < BYTES_MIN {
            let places: Vec<_> = folders
                .iter()
                .map(|folder| folder.display().to_string())
                .collect();
            return Err(DemoError::NoData {
                places: places.join(", "),
                found: set.summary.bytes,
                needed: BYTES_MIN,
            });
        }
        let names: Vec<_> = folders
            .iter()
            .map(|folder| folder.display().to_string())
            .collect();
        set.summary.source = format!("files of {}", names.join(" and "));
        set.summary.candidates = candidates.len() as u64;
        set.summary.folders = shares.largest(set.summary.bytes);
        set.summary.walk_cut_short = walk_cut_short;
        Ok(set)
    }

    /// Fills a new file `image` with `bytes` random bytes in pieces of 16 to 256 KiB: incompressible data.
    ///
    /// # Errors
    /// The image cannot be written or a signal arrived.
    pub fn random(bytes: u64, seed: u64, image: &Path, interrupt: &Interrupt) -> Result<Self, DemoError> {
        let mut random = Random::stream(seed, 0xda7a);
        let mut layout = Layout::create(image)?;
        let mut data = Vec::new();
        loop {
            interrupt.check()?;
            let room = bytes / BLOCK_BYTES as u64 - layout.blocks();
            if room == 0 {
                break;
            }
            let blocks = (4 + random.below(u64::from(PIECE_BLOCKS_MAX) - 3)).min(room);
            data.resize(blocks as usize * BLOCK_BYTES, 0);
            random.fill(&mut data);
            layout.add(&data)?;
        }
        let mut set = layout.finish(image)?;
        set.summary.source = "random bytes".into();
        set.summary.candidates = set.summary.files;
        Ok(set)
    }
}

struct Candidate {
    path: PathBuf,
    blocks: u64,
    /// Files of usual size first, then by hash of the path.
    order: (bool, u64),
}

/// Finds the regular files with at least one whole block, each inode once. Returns whether it stopped early.
fn walk(folders: &[PathBuf], interrupt: &Interrupt) -> Result<(Vec<Candidate>, bool), DemoError> {
    let mut candidates = Vec::new();
    let mut inodes = HashSet::new();
    let mut entries = 0;
    for folder in folders {
        // The specified directories must exist; entries below them may be unreadable.
        fs::read_dir(folder).map_err(DemoError::file("read the folder", folder))?;
        let mut pending = vec![folder.clone()];
        while let Some(current) = pending.pop() {
            interrupt.check()?;
            let Ok(listing) = fs::read_dir(&current) else {
                continue;
            };
            let mut paths: Vec<PathBuf> = listing.filter_map(|entry| Some(entry.ok()?.path())).collect();
            paths.sort_unstable();
            for path in paths {
                entries += 1;
                if entries > ENTRIES_MAX {
                    return Ok((candidates, true));
                }
                let Ok(metadata) = fs::symlink_metadata(&path) else {
                    continue;
                };
                if metadata.is_dir() {
                    pending.push(path);
                } else if let Some(blocks) = usable_blocks(&metadata)
                    && inodes.insert((metadata.dev(), metadata.ino()))
                {
                    let order = (blocks < FILE_BLOCKS_USUAL, hash(&path));
                    candidates.push(Candidate { path, blocks, order });
                }
            }
        }
    }
    Ok((candidates, false))
}

fn usable_blocks(metadata: &Metadata) -> Option<u64> {
    let kind = metadata.file_type();
    let special = kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device();
    let blocks = metadata.len() / BLOCK_BYTES as u64;
    (metadata.is_file() && !special && blocks > 0).then_some(blocks)
}

/// FNV-1a, then mixed: determines the order of the files.
fn hash(path: &Path) -> u64 {
    let fold = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    mix(path
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, fold))
}

/// The image while it is being written.
struct Layout {
    path: PathBuf,
    out: BufWriter<File>,
    checksums: Vec<u32>,
    pieces: Vec<Piece>,
    files: u64,
    zero_blocks: u64,
    data: Vec<u8>,
}

impl Layout {
    fn create(path: &Path) -> Result<Self, DemoError> {
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(DemoError::file("create", path))?;
        Ok(Self {
            path: path.to_owned(),
            out: BufWriter::with_capacity(1 << 20, file),
            checksums: Vec::new(),
            pieces: Vec::new(),
            files: 0,
            zero_blocks: 0,
            data: Vec::new(),
        })
    }

    fn blocks(&self) -> u64 {
        self.checksums.len() as u64
    }

    /// Appends the first `blocks` blocks of a file. The inner error is that of the file and no reason to stop.
    fn add_file(&mut self, path: &Path, blocks: u64) -> Result<io::Result<u64>, DemoError> {
        let mut data = std::mem::take(&mut self.data);
        data.clear();
        let read =
            open_regular(path).and_then(|file| file.take(blocks * BLOCK_BYTES as u64).read_to_end(&mut data));
        // The file may have shrunk meanwhile: the remaining whole blocks are used.
        data.truncate(data.len() / BLOCK_BYTES * BLOCK_BYTES);
        let result = match read {
            Ok(_) => self.add(&data).map(|()| Ok(data.len() as u64)),
            Err(error) => Ok(Err(error)),
        };
        self.data = data;
        result
    }

    /// Appends one file's data, whole blocks, cut into pieces.
    fn add(&mut self, data: &[u8]) -> Result<(), DemoError> {
        if data.is_empty() {
            return Ok(());
        }
        self.files += 1;
        for piece in data.chunks(PIECE_BLOCKS_MAX as usize * BLOCK_BYTES) {
            let blocks = (piece.len() / BLOCK_BYTES) as u32;
            self.pieces.push(Piece {
                first: self.checksums.len() as u32,
                blocks,
            });
            for block in piece.chunks_exact(BLOCK_BYTES) {
                self.zero_blocks += u64::from(block.iter().all(|&byte| byte == 0));
                self.checksums.push(checksum(block));
            }
        }
        self.out
            .write_all(data)
            .map_err(DemoError::file("write", &self.path))
    }

    fn finish(self, image: &Path) -> Result<DataSet, DemoError> {
        let file = self
            .out
            .into_inner()
            .map_err(|error| DemoError::file("write", image)(error.into_error()))?;
        // Pending writeback would slow down the measurement.
        file.sync_all().map_err(DemoError::file("sync", image))?;
        let summary = DataSummary {
            bytes: self.checksums.len() as u64 * BLOCK_BYTES as u64,
            files: self.files,
            pieces: self.pieces.len() as u64,
            zero_blocks: self.zero_blocks,
            ..DataSummary::default()
        };
        Ok(DataSet {
            image: image.to_owned(),
            checksums: self.checksums,
            pieces: self.pieces,
            summary,
        })
    }
}

/// Opens a file without following a link that has replaced it, and without waiting on a pipe.
fn open_regular(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = File::options()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("no longer a regular file"))
    }
}

/// Bytes by directory, two levels below the specified ones.
struct Shares<'a> {
    roots: &'a [PathBuf],
    bytes: Vec<(String, u64)>,
}

impl<'a> Shares<'a> {
    fn new(roots: &'a [PathBuf]) -> Self {
        Self {
            roots,
            bytes: Vec::new(),
        }
    }

    fn add(&mut self, path: &Path, bytes: u64) {
        let root = self.roots.iter().find(|root| path.starts_with(root));
        let folder = root.map_or_else(PathBuf::new, |root| {
            let below = path
                .strip_prefix(root)
                .ok()
                .and_then(Path::parent)
                .and_then(|rest| rest.iter().next());
            below.map_or_else(|| root.clone(), |name| root.join(name))
        });
        let name = folder.display().to_string();
        match self.bytes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += bytes,
            None => self.bytes.push((name, bytes)),
        }
    }

    fn largest(mut self, total: u64) -> Vec<(String, f64)> {
        self.bytes
            .sort_by(|left, right| right.1.cmp(&left.1).then_with(|| left.0.cmp(&right.0)));
        self.bytes.truncate(8);
        self.bytes
            .into_iter()
            .map(|(name, bytes)| (name, bytes as f64 / total as f64))
            .collect()
    }
}

#[cfg(test)]
mod tests;
