//! The data to study: files and devices, concatenated, each padded to whole blocks of 4 KiB.
//!
//! Invariants: a file is included once, even if several names refer to it; files that could not be opened or listed are
//! counted and named, never skipped silently.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::error::StudyError;
use super::options::FILES_MAX;
use super::window::{BLOCK_BYTES, WINDOW_BYTES};

/// Maximum number of failures that are named; the others are only counted.
const FAILURES_NAMED_MAX: usize = 8;

/// All data to study.
#[derive(Debug, Default)]
pub struct Population {
    files: Vec<Member>,
    /// Padded bytes.
    bytes: u64,
    /// What was skipped.
    pub skipped: Skipped,
}

/// A file and its position.
#[derive(Debug)]
struct Member {
    path: PathBuf,
    /// Its start.
    start: u64,
    /// Its length without padding.
    bytes: u64,
}

/// What was skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Skipped {
    /// Files and directories that could not be read.
    pub unreadable: u64,
    /// The first ones, with the reason.
    pub named: Vec<String>,
    /// Sockets, pipes, symbolic links, devices inside directories.
    pub special: u64,
    /// Further names of files that are already included.
    pub hard_links: u64,
}

impl Skipped {
    pub(super) fn failure(&mut self, path: &Path, error: &io::Error) {
        self.unreadable += 1;
        if self.named.len() < FAILURES_NAMED_MAX {
            self.named.push(format!("{}: {error}", path.display()));
        }
    }
}

/// Collects members.
#[derive(Default)]
struct Collector {
    population: Population,
    seen: BTreeSet<(u64, u64)>,
}

impl Population {
    /// All data under `paths`. Directories are searched without following symbolic links; a path that is itself a link
    /// is followed.
    ///
    /// # Errors
    /// A path cannot be read or has an unsupported type, there is no data, or there are too many files.
    pub fn of(paths: &[PathBuf]) -> Result<Self, StudyError> {
        let mut collector = Collector::default();
        for path in paths {
            collector.named(path)?;
        }
        let population = collector.population;
        if population.bytes == 0 {
            let skipped = &population.skipped;
            return Err(StudyError::Nothing {
                places: places(paths),
                skipped: match skipped.named.first() {
                    Some(first) => format!(", {} unreadable, the first {first}", skipped.unreadable),
                    None => String::new(),
                },
            });
        }
        Ok(population)
    }

    /// Total bytes, including padding.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of files and devices.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files.len() as u64
    }

    /// Number of windows; the last may be shorter.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.bytes.div_ceil(WINDOW_BYTES)
    }
}

impl Collector {
    fn named(&mut self, path: &Path) -> Result<(), StudyError> {
        let failed = |action| {
            move |source| StudyError::Path {
                action,
                path: path.to_owned(),
                source,
            }
        };
        let metadata = fs::metadata(path).map_err(failed("read"))?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            fs::read_dir(path).map_err(failed("list"))?;
            return self.directory(path);
        }
        if !kind.is_file() && !kind.is_block_device() {
            return Err(StudyError::Kind(path.to_owned()));
        }
        let mut file = File::open(path).map_err(failed("read"))?;
        // The length of a block device is the offset of its end.
        let bytes = file.seek(SeekFrom::End(0)).map_err(failed("read"))?;
        self.add(path, &metadata, bytes)
    }

    fn directory(&mut self, root: &Path) -> Result<(), StudyError> {
        let mut waiting = vec![root.to_owned()];
        while let Some(folder) = waiting.pop() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) => {
                    self.population.skipped.failure(&folder, &error);
                    continue;
                }
            };
            // Sorted by name, so that a seed draws the same windows again.
            let mut found = Vec::new();
            for entry in entries {
                match entry.and_then(|entry| Ok((entry.path(), fs::symlink_metadata(entry.path())?))) {
                    Ok(entry) => found.push(entry),
                    Err(error) => self.population.skipped.failure(&folder, &error),
                }
            }
            found.sort_by(|a, b| a.0.cmp(&b.0));
            for (path, metadata) in found {
                if metadata.is_dir() {
                    waiting.push(path);
                } else if metadata.is_file() {
                    self.add(&path, &metadata, metadata.len())?;
                } else {
                    self.population.skipped.special += 1;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, metadata: &Metadata, bytes: u64) -> Result<(), StudyError> {
        let population = &mut self.population;
        if bytes == 0 {
            return Ok(());
        }
        if !self.seen.insert((metadata.dev(), metadata.ino())) {
            population.skipped.hard_links += 1;
            return Ok(());
        }
        if population.files.len() >= FILES_MAX {
            return Err(StudyError::TooManyFiles);
        }
        population.files.push(Member {
            path: path.to_owned(),
            start: population.bytes,
            bytes,
        });
        population.bytes += bytes.next_multiple_of(BLOCK_BYTES);
        Ok(())
    }
}

/// Reads windows and keeps the last file open. One per thread.
#[derive(Debug)]
pub struct WindowReader<'a> {
    population: &'a Population,
    open: Option<(usize, File)>,
}

impl<'a> WindowReader<'a> {
    /// A reader of `population`.
    #[must_use]
    pub fn new(population: &'a Population) -> Self {
        Self {
            population,
            open: None,
        }
    }

    /// Reads window `number` to the front of `buffer`, with padding as zeroes. Unreadable parts are left out: a file
    /// may have been deleted or shortened, or have bad sectors. Returns the length of the data in whole blocks, and
    /// adds the missing parts to `failures`.
    pub fn read(
        &mut self,
        number: u64,
        buffer: &mut [u8],
        failures: &mut Vec<(PathBuf, io::Error)>,
    ) -> usize {
        let start = number * WINDOW_BYTES;
        let end = (start + WINDOW_BYTES).min(self.population.bytes);
        let files = &self.population.files;
        let first = files
            .partition_point(|file| file.start <= start)
            .saturating_sub(1);
        let mut filled = 0;
        for (index, member) in files.iter().enumerate().skip(first) {
            if member.start >= end {
                break;
            }
            let from = start.saturating_sub(member.start);
            let until = end - member.start;
            let part = until.min(member.bytes).saturating_sub(from) as usize;
            let padded = until.min(member.bytes.next_multiple_of(BLOCK_BYTES)) - from;
            let place = &mut buffer[filled..filled + padded as usize];
            place[part..].fill(0);
            match self.read_part(index, from, &mut place[..part]) {
                Ok(()) => filled += padded as usize,
                Err(error) => failures.push((member.path.clone(), error)),
            }
        }
        filled
    }

    fn read_part(&mut self, index: usize, from: u64, part: &mut [u8]) -> io::Result<()> {
        if part.is_empty() {
            return Ok(());
        }
        let file = match self.open.take() {
            Some((open, file)) if open == index => file,
            _ => File::open(&self.population.files[index].path)?,
        };
        let (_, file) = self.open.insert((index, file));
        file.read_exact_at(part, from)
    }
}

/// The paths, for messages.
#[must_use]
pub fn places(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}
