//! The target of the writes: an unnamed file in a directory, or a file or device in place, with or without direct I/O;
//! and the layers below it.
//!
//! Invariants: in a directory only an unnamed file is written, which disappears when the program ends in any way. A
//! file or device in place is held, contains no known data, and its path was typed as confirmation.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use flaz_bench::detect::{Facts, FileSystem};
use flaz_load::detect::file_system::FileSystemOf;
use flaz_load::detect::layers::{self, Kept};
use flaz_load::detect::measure::Sink;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, statvfs};

use crate::bench::permission;
use crate::error::Failure;
use crate::safety::Claim;
use crate::safety::identity::Identity;

/// Bytes per write.
const RECORD_BYTES: usize = 1 << 20;
/// Maximum share of the free space in percent, if no size is given.
const FREE_PERCENT_MAX: u64 = 50;

/// The target of the writes.
#[derive(Debug)]
pub struct Place {
    file: File,
    room_bytes: u64,
    /// Default number of bytes.
    room_default_bytes: u64,
    facts: Facts,
    kept: Option<Kept>,
    _held: Option<Claim>,
}

impl Place {
    /// Prepares to write to `target`; `typed` is its path as confirmation.
    ///
    /// # Errors
    /// It must not or cannot be written. Nothing was written in that case.
    pub fn open(target: &Path, typed: Option<&Path>, buffered: bool) -> Result<Self, Failure> {
        let looking = || Failure::system(format!("inspecting {}", target.display()));
        let found = fs::metadata(target).map_err(looking())?;
        let held = permission::to_overwrite(target, typed)?;
        if let Some(claim) = held {
            return Self::in_place(target, claim, buffered);
        }
        let free = statvfs(target).map_err(|error| looking()(error.into()))?;
        let room_bytes = free.f_bavail.saturating_mul(free.f_frsize);
        let file = tempfile::tempfile_in(target).map_err(Failure::system(format!(
            "creating a file in {}",
            target.display()
        )))?;
        let direct = !buffered
            && fcntl_getfl(&file).is_ok_and(|flags| fcntl_setfl(&file, flags | OFlags::DIRECT).is_ok());
        let mount = FileSystemOf::find(target, &file);
        Ok(Self {
            room_bytes,
            room_default_bytes: room_bytes / 100 * FREE_PERCENT_MAX,
            facts: facts_of(mount, direct, found.dev()),
            kept: None,
            file,
            _held: None,
        })
    }

    fn in_place(target: &Path, claim: Claim, buffered: bool) -> Result<Self, Failure> {
        let opening = || Failure::system(format!("opening {}", target.display()));
        let open = |flags: OFlags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            options.custom_flags(flags.bits().cast_signed()).open(target)
        };
        let (file, direct) = match open(OFlags::DIRECT) {
            Ok(file) if !buffered => (file, true),
            _ => (open(OFlags::empty()).map_err(opening())?, false),
        };
        let identity = claim.node().identity;
        if Identity::of(&file.metadata().map_err(opening())?) != Some(identity) {
            return Err(Failure::Usage(format!(
                "{}: was just replaced by another file: try again",
                target.display()
            )));
        }
        let (facts, kept) = match identity {
            Identity::Block(number) => {
                let below = layers::below(Path::new(layers::SYS), &number.to_string());
                let facts = Facts {
                    direct: direct && !below.cached,
                    file_system: "none".to_owned(),
                    compression: FileSystem::None,
                    layers: below.layers,
                };
                (facts, Kept::of(Path::new(layers::SYS), &number.to_string()))
            }
            Identity::File { device, .. } => {
                (facts_of(FileSystemOf::find(target, &file), direct, device), None)
            }
        };
        Ok(Self {
            room_bytes: claim.size_bytes(),
            room_default_bytes: claim.size_bytes(),
            facts,
            kept,
            file,
            _held: Some(claim),
        })
    }

    /// Available bytes.
    pub fn room_bytes(&self) -> u64 {
        self.room_bytes
    }

    /// Maximum number of bytes by default.
    pub fn room_default_bytes(&self) -> u64 {
        self.room_default_bytes
    }

    /// Properties of the target.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }
}

impl Sink for Place {
    fn write(&mut self, data: &[u8], offset: u64) -> io::Result<Duration> {
        let begun = Instant::now();
        for (record, at) in data.chunks(RECORD_BYTES).zip((offset..).step_by(RECORD_BYTES)) {
            self.file.write_all_at(record, at)?;
        }
        self.file.sync_data()?;
        Ok(begun.elapsed())
    }

    fn kept_bytes(&mut self) -> Option<u64> {
        self.kept.as_ref()?.bytes()
    }
}

/// The file system on the device with this number (`st_dev`).
fn facts_of(system: FileSystemOf, direct: bool, number: u64) -> Facts {
    let below = layers::below(Path::new(layers::SYS), &system.device(number));
    Facts {
        direct: direct && system.honours_direct() && !below.cached,
        compression: system.compression,
        file_system: system.kind,
        layers: below.layers,
    }
}
