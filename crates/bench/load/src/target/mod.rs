//! The target of a measurement: files in a directory, one per writer, or one file or device, written in place, with a
//! part for each writer.
//!
//! Invariants: in a directory only a new subdirectory is modified, which is removed when the target is dropped. Before
//! a file or device becomes a target, the caller has made sure that its contents may be lost.

mod caches;
mod direct;
mod scratch;

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use rustix::fs::Advice;

use crate::error::LoadError;
use crate::medium::FileMedium;
use crate::word::words;
use direct::{ALIGNMENTS_BYTES, alignment_of};
use scratch::Scratch;

pub use caches::{DropCaches, decided};

/// Maximum share of the free space in percent, if no size was given.
const FREE_PERCENT_MAX: u64 = 80;
/// Assumed memory of a machine that does not report it.
const MEMORY_BYTES: u64 = 8 << 30;

words! {
    /// Direct I/O or page cache.
    #[derive(Default)]
    pub enum Io {
        /// Direct I/O if possible.
        #[default]
        Auto => "auto",
        /// Only direct I/O.
        Direct => "direct",
        /// The page cache.
        Buffered => "buffered",
    }
}

/// Kind of a target.
#[derive(Debug)]
enum Kind {
    /// New files; their directory is removed with this.
    Folder(Scratch),
    /// An existing file or device.
    InPlace { device: bool },
}

/// A target.
#[derive(Debug)]
pub struct Target {
    kind: Kind,
    path: PathBuf,
    writers: usize,
    bytes_each: u64,
    /// Whether direct I/O is used.
    direct: bool,
    notes: Vec<String>,
}

/// The requirements of a plan on its target.
#[derive(Clone, Copy, Debug)]
pub struct TargetOptions {
    /// Total bytes of all writers; by default twice the memory, if there is space.
    pub size_bytes: Option<u64>,
    /// Number of writers.
    pub writers: usize,
    /// Unit of each writer's part: the largest record.
    pub unit_bytes: u64,
    /// The smallest record.
    pub record_bytes_min: u64,
    /// Direct I/O or page cache.
    pub io: Io,
}

impl Target {
    /// Prepares a measurement at `path`: a directory (created if it is missing), a file or a device.
    ///
    /// # Errors
    /// There is not enough space, direct I/O was requested and is not supported, or a system call failed.
    pub fn new(path: &Path, options: &TargetOptions) -> Result<Self, LoadError> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(LoadError::at("inspect", path)(source)),
        };
        let (kind, room_bytes) = match &metadata {
            Some(found) if found.is_file() || found.file_type().is_block_device() => {
                let device = found.file_type().is_block_device();
                let size = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
                let bytes = size.map_err(LoadError::at("determine the size of", path))?;
                (Kind::InPlace { device }, Some(bytes))
            }
            Some(found) if !found.is_dir() => {
                let message = format!(
                    "{}: expected a directory, a file or a block device",
                    path.display()
                );
                return Err(LoadError::Plan(message));
            }
            found => {
                let (scratch, room_bytes) = Scratch::new(path, found.is_none())?;
                (Kind::Folder(scratch), room_bytes)
            }
        };
        let mut target = Self {
            kind,
            path: path.to_owned(),
            writers: options.writers,
            bytes_each: 0,
            direct: false,
            notes: Vec::new(),
        };
        target.bytes_each = target.size(options, room_bytes)?;
        target.direct = target.decide(options)?;
        Ok(target)
    }

    /// As specified by the user.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path on the file system, or of the device.
    #[must_use]
    pub fn place(&self) -> &Path {
        match &self.kind {
            Kind::Folder(scratch) => scratch.path(),
            Kind::InPlace { .. } => &self.path,
        }
    }

    /// Whether it is a block device.
    #[must_use]
    pub fn is_device(&self) -> bool {
        matches!(self.kind, Kind::InPlace { device: true })
    }

    /// Whether files are recreated for tests that write for the first time.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        matches!(self.kind, Kind::Folder(_))
    }

    /// Number of writers.
    #[must_use]
    pub fn writers(&self) -> usize {
        self.writers
    }

    /// Bytes of each writer.
    #[must_use]
    pub fn bytes_each(&self) -> u64 {
        self.bytes_each
    }

    /// Bytes of all writers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes_each * self.writers as u64
    }

    /// Whether direct I/O is used, except for streams.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Messages for the user about the target.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Bytes of each writer; `room_bytes` is `None` if the file system does not report it.
    fn size(&mut self, options: &TargetOptions, room_bytes: Option<u64>) -> Result<u64, LoadError> {
        let writers = options.writers as u64;
        let wanted = match (options.size_bytes, room_bytes) {
            (Some(wanted), _) => wanted,
            (None, Some(room_bytes)) => self.default_size(room_bytes),
            (None, None) => {
                return Err(LoadError::Plan(format!(
                    "{}: the file system does not report its free space: --size is required",
                    self.path.display()
                )));
            }
        };
        let each = wanted / writers / options.unit_bytes * options.unit_bytes;
        if let Some(found_bytes) = room_bytes
            && wanted > found_bytes
        {
            return Err(LoadError::Room {
                path: self.path.clone(),
                wanted_bytes: wanted,
                found_bytes,
            });
        }
        if each == 0 {
            return Err(LoadError::Plan(format!(
                "a size of {wanted} bytes for {writers} writers: expected at least one record of {} bytes for each",
                options.unit_bytes
            )));
        }
        Ok(each)
    }

    /// Twice the memory, limited by the free space, with a message.
    fn default_size(&mut self, room_bytes: u64) -> u64 {
        let most = if self.is_folder() {
            room_bytes / 100 * FREE_PERCENT_MAX
        } else {
            room_bytes
        };
        let twice = memory_bytes().unwrap_or(MEMORY_BYTES).saturating_mul(2);
        self.notes.push(if twice > most {
            format!(
                "size: {}, {}, and not twice the memory ({})",
                short(most),
                if self.is_folder() {
                    "limited by free space"
                } else {
                    "the whole target"
                },
                short(twice)
            )
        } else {
            format!("size: {}, twice the memory", short(twice))
        });
        twice.min(most)
    }

    fn decide(&mut self, options: &TargetOptions) -> Result<bool, LoadError> {
        if options.io == Io::Buffered {
            return Ok(false);
        }
        let alignment = self
            .alignment()
            .map_err(LoadError::at("try direct I/O on", &self.path))?;
        match alignment {
            None if options.io == Io::Direct => Err(LoadError::NotDirect {
                path: self.path.clone(),
            }),
            None => {
                self.notes.push(
                    "I/O: buffered, because direct I/O is not supported here; results include the page cache"
                        .to_owned(),
                );
                Ok(false)
            }
            Some(alignment_bytes) if alignment_bytes > options.record_bytes_min => {
                Err(LoadError::Alignment {
                    path: self.path.clone(),
                    record_bytes: options.record_bytes_min,
                    alignment_bytes,
                })
            }
            Some(_) => Ok(true),
        }
    }

    /// Alignment of direct I/O here in bytes; `None` if it is not supported.
    fn alignment(&self) -> io::Result<Option<u64>> {
        let path = match &self.kind {
            Kind::Folder(scratch) => {
                let path = scratch.path().join("probe");
                let file = File::create(&path)?;
                file.write_all_at(&[1; 2 * ALIGNMENTS_BYTES[1] as usize], 0)?;
                file.sync_data()?;
                path
            }
            Kind::InPlace { .. } => self.path.clone(),
        };
        let alignment = alignment_of(&path);
        if self.is_folder() {
            fs::remove_file(&path)?;
        }
        alignment
    }

    fn file(&self, writer: usize) -> PathBuf {
        match &self.kind {
            Kind::Folder(scratch) => scratch.path().join(format!("writer-{writer}")),
            Kind::InPlace { .. } => self.path.clone(),
        }
    }

    /// Removes the files and creates empty ones. A target in place is not changed.
    ///
    /// # Errors
    /// The system's error.
    pub fn make_anew(&self) -> Result<(), LoadError> {
        if !self.is_folder() {
            return Ok(());
        }
        for writer in 0..self.writers {
            let path = self.file(writer);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(LoadError::at("remove", path)(error));
                }
                _ => {}
            }
            File::create_new(&path).map_err(LoadError::at("create", &path))?;
        }
        Ok(())
    }

    /// Opens each writer's part again, with direct I/O unless `buffered` or not supported.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(&self, buffered: bool) -> Result<Vec<FileMedium>, LoadError> {
        (0..self.writers)
            .map(|writer| {
                let path = self.file(writer);
                let direct = self.direct && !buffered;
                let medium = FileMedium::open(&path, direct).map_err(LoadError::at("open", &path))?;
                let base = if self.is_folder() {
                    0
                } else {
                    writer as u64 * self.bytes_each
                };
                Ok(medium.from_offset(base))
            })
            .collect()
    }

    /// Drops cached pages.
    ///
    /// # Errors
    /// The system's error; for those of the whole system, that it is not permitted.
    pub fn drop_caches(&self, whose: DropCaches) -> Result<(), LoadError> {
        if whose == DropCaches::No {
            return Ok(());
        }
        for medium in self.open(true)? {
            let file = medium.file();
            file.sync_data()
                .and_then(|()| Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?))
                .map_err(LoadError::at("drop cached pages of", &self.path))?;
        }
        if whose == DropCaches::System {
            caches::drop_system()?;
        }
        Ok(())
    }
}

/// Memory of the machine in bytes.
#[must_use]
pub fn memory_bytes() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// In the largest unit with a value of at least one.
fn short(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, power)| bytes >> power > 0);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(name, power)| format!("{:.1} {name}", bytes as f64 / (1u64 << power) as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::Medium;

    fn options(size_bytes: Option<u64>, writers: usize) -> TargetOptions {
        TargetOptions {
            size_bytes,
            writers,
            unit_bytes: 1 << 20,
            record_bytes_min: 4096,
            io: Io::Buffered,
        }
    }

    #[test]
    fn a_target_directory_is_left_unchanged() {
        let outer = tempfile::tempdir().unwrap();
        fs::write(outer.path().join("mine"), "x").unwrap();
        let target = Target::new(outer.path(), &options(Some(5 << 20), 2)).unwrap();
        assert_eq!((target.bytes_each(), target.bytes()), (2 << 20, 4 << 20));
        target.make_anew().unwrap();
        target.open(false).unwrap()[1].write(0, b"data").unwrap();
        target.drop_caches(DropCaches::Target).unwrap();
        target.make_anew().unwrap();
        assert_eq!(target.open(true).unwrap()[1].file().metadata().unwrap().len(), 0);
        drop(target);
        let left: Vec<_> = fs::read_dir(outer.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["mine"]);
    }

    #[test]
    fn a_missing_directory_is_created_and_removed_again() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("new");
        let target = Target::new(&path, &options(Some(1 << 20), 1)).unwrap();
        assert!(path.is_dir());
        drop(target);
        assert!(!path.exists());
        let refused = Target::new(Path::new("/dev/no-such-disk"), &options(Some(1 << 20), 1)).unwrap_err();
        assert!(refused.to_string().contains("lsblk"), "{refused}");
        assert!(Target::new(&path.join("deeper"), &options(Some(1 << 20), 1)).is_err());
    }

    #[test]
    fn writers_in_place_have_separate_parts() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("file");
        File::create(&path).unwrap().set_len((4 << 20) + 5).unwrap();
        let target = Target::new(&path, &options(Some(4 << 20), 2)).unwrap();
        target.make_anew().unwrap();
        let media = target.open(false).unwrap();
        media[1].write(7, b"second").unwrap();
        let mut found = [0; 6];
        File::open(&path)
            .unwrap()
            .read_exact_at(&mut found, (2 << 20) + 7)
            .unwrap();
        assert_eq!(&found, b"second");
        drop(target);
        assert_eq!(fs::metadata(&path).unwrap().len(), (4 << 20) + 5);
    }

    #[test]
    fn a_size_without_enough_space_is_refused() {
        let outer = tempfile::tempdir().unwrap();
        let refused = Target::new(outer.path(), &options(Some(1 << 60), 1)).unwrap_err();
        assert!(matches!(refused, LoadError::Room { .. }), "{refused}");
        let refused = Target::new(outer.path(), &options(Some(3 << 20), 4)).unwrap_err();
        assert!(refused.to_string().contains("at least one record"), "{refused}");
        let capped = Target::new(outer.path(), &options(None, 1)).unwrap();
        assert_eq!(capped.notes().len(), 1, "the size is reported");
        assert!(Target::new(Path::new("/dev/null"), &options(Some(1 << 20), 1)).is_err());
    }
}
