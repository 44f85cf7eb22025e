//! Per-host state of a cache: a small file in the state directory, named by the UUID of the cache.
//!
//! The file outlives the cache device, so it records facts that the device itself cannot: that the device was fenced
//! and has missed writes, that it was rolled back to an older state, or, after a crash, what the origin began with. The
//! rules are in `flaz_engine::host_record`. The file also describes the origin's file system at the last clean stop, to
//! tell the user what changed. flaz works without the file; a warning says which conditions are then not detected.
//!
//! A second file, named by the origin's identity, records which cache served that origin last. If an origin has two
//! caches, one becomes out of date when the other is used.
//!
//! Invariant: the file is replaced as a whole and is stable before a call returns, so a reader sees either the old or
//! the new contents.

use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flaz_engine::host_record::{HostRecord, NotedOrigin, OtherCache};
use flaz_engine::units::Epoch;
use flaz_runtime::file::Identity;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::filesystem::FileSystem;
use crate::state_directory::StateDirectory;

/// Format version of the file.
const VERSION: u32 = 2;

/// Maximum number of concurrent origin records; each is written on its own thread.
const NOTES_MAX: usize = 16;

/// Number of characters of an origin's identity in the name of its file. A checksum of the whole identity follows.
const IDENTITY_CHARS_MAX: usize = 80;

/// Contents of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    version: u32,
    uuid: Uuid,
    /// Where the cache device was when it was served last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    generation: u64,
    epoch: u32,
    fenced: bool,
    /// The cache may contain blocks that are newer than the origin.
    #[serde(default)]
    dirty: bool,
    /// Checksum of the first bytes of the origin, at the opening of `epoch` or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin_fingerprint: Option<NonZeroU32>,
    /// Bytes of the origin that were served when it was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin_bytes: Option<u64>,
    /// The origin checksum is that of a stop.
    #[serde(default)]
    stopped: bool,
    /// The origin's file system at the last stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<FileSystem>,
}

impl Record {
    fn noted_origin(&self) -> Option<NotedOrigin> {
        let (fingerprint, len) = self.origin_fingerprint.zip(self.origin_bytes)?;
        Some(NotedOrigin { fingerprint, len })
    }

    fn set_origin(&mut self, origin: Option<NotedOrigin>) {
        self.origin_fingerprint = origin.map(|origin| origin.fingerprint);
        self.origin_bytes = origin.map(|origin| origin.len);
    }
}

/// The state file of one cache.
#[derive(Debug)]
pub struct StateFile {
    uuid: Uuid,
    /// Path of the cache device, for messages about it while another cache is served.
    path: Option<String>,
    directory: Option<StateDirectory>,
    held: Mutex<Held>,
    /// Number of origin records in progress.
    noting: AtomicUsize,
}

/// The record written last.
#[derive(Debug, Default)]
struct Held {
    record: Option<Record>,
    /// Number of the last origin record since the cache was opened.
    ticket: u64,
    /// The last write failed and the failure was logged. The contents of the file are unknown.
    failing: bool,
}

/// Default state directory: `$STATE_DIRECTORY` (systemd), `/var/lib/flaz` for root, else `$XDG_STATE_HOME/flaz` or
/// `~/.local/state/flaz`.
#[must_use]
pub fn default_directory() -> Option<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    // systemd separates several directories by colons; the first one is used.
    let systemd = std::env::var("STATE_DIRECTORY")
        .ok()
        .and_then(|list| list.split(':').next().map(PathBuf::from))
        .filter(|path| path.is_absolute());
    if systemd.is_some() {
        return systemd;
    }
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/flaz".into());
    }
    absolute("XDG_STATE_HOME")
        .map(|home| home.join("flaz"))
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state/flaz")))
}

impl StateFile {
    /// Opens the state file of the cache `uuid`. A directory that cannot be used causes a warning.
    #[must_use]
    pub fn open(directory: Option<&Path>, uuid: Uuid) -> Self {
        let without = "a cache device that returns after a failure, or that was rolled back, is not detected";
        let Some(directory) = directory else {
            tracing::warn!("no state directory (set one with --state-dir): {without}");
            return Self::with(uuid, None, None);
        };
        let opened = match StateDirectory::open(directory) {
            Ok(opened) => opened,
            Err(error) => {
                tracing::warn!(
                    "cannot open the state directory {}: {error} (use another with --state-dir): {without}",
                    directory.display()
                );
                return Self::with(uuid, None, None);
            }
        };
        let record = read(&opened, uuid).unwrap_or_else(|error| {
            let path = opened.path_of(&file_name(uuid));
            tracing::warn!("{} is not valid and will be replaced: {error}", path.display());
            None
        });
        Self::with(uuid, Some(opened), record)
    }

    /// Opens the state file to read it, for a report: no directory is made, and one that cannot be used causes no warning.
    #[must_use]
    pub(crate) fn peek(directory: Option<&Path>, uuid: Uuid) -> Self {
        let opened = directory.and_then(|directory| StateDirectory::existing(directory).ok());
        let record = opened
            .as_ref()
            .and_then(|opened| read(opened, uuid).ok().flatten());
        Self::with(uuid, opened, record)
    }

    fn with(uuid: Uuid, directory: Option<StateDirectory>, record: Option<Record>) -> Self {
        Self {
            uuid,
            path: None,
            directory,
            held: Mutex::new(Held {
                record,
                ..Held::default()
            }),
            noting: AtomicUsize::new(0),
        }
    }

    /// Records the path of the cache device with every change.
    #[must_use]
    pub fn of_cache_at(mut self, path: &Path) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        // A path that is not UTF-8 has no JSON form.
        self.path = Some(path.to_string_lossy().into_owned());
        self
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a state directory.
    #[must_use]
    pub fn has_place(&self) -> bool {
        self.directory.is_some()
    }

    /// The last record, if any.
    #[must_use]
    pub fn recall(&self) -> Option<HostRecord> {
        self.held().record.as_ref().map(|record| HostRecord {
            generation: record.generation,
            epoch: Epoch(record.epoch),
            fenced: record.fenced,
            dirty: record.dirty,
            origin: record.noted_origin(),
            stopped: record.stopped,
        })
    }

    /// The origin's file system at the last stop, if it is known.
    #[must_use]
    pub fn origin(&self) -> Option<FileSystem> {
        let held = self.held();
        held.record.as_ref().and_then(|record| record.origin.clone())
    }

    /// The cache that served an origin last, if it is known.
    #[must_use]
    fn last_cache_of(&self, identity: &str) -> Option<Uuid> {
        let text = self
            .directory
            .as_ref()?
            .read(&origin_file_name(identity))
            .ok()??;
        text.trim().parse().ok()
    }

    /// The cache that served an origin last, if it is another one than this.
    #[must_use]
    pub fn other_cache_of(&self, identity: &str) -> Option<OtherCache> {
        let uuid = self.last_cache_of(identity)?;
        if uuid == self.uuid {
            return None;
        }
        let record = self.record_of(uuid);
        Some(OtherCache {
            uuid,
            dirty: record.as_ref().is_some_and(|record| record.dirty),
            path: record.and_then(|record| record.path),
        })
    }

    /// Records that this cache serves an origin. Returns false and warns if the record cannot be written.
    pub fn note_cache_of(&self, identity: &str) -> bool {
        let Some(directory) = &self.directory else {
            return false;
        };
        let name = origin_file_name(identity);
        let written = directory.replace(&name, format!("{}\n", self.uuid).as_bytes());
        if let Err(error) = &written {
            tracing::warn!("cannot write {}: {error}", directory.path_of(&name).display());
        }
        written.is_ok()
    }

    /// The host's record of another cache.
    fn record_of(&self, other: Uuid) -> Option<Record> {
        let directory = self.directory.as_ref()?;
        read(directory, other).unwrap_or_else(|error| {
            let path = directory.path_of(&file_name(other));
            tracing::warn!("{} is not valid: {error}", path.display());
            None
        })
    }

    /// Records the generation of the superblock and the first bytes of the origin, and at a stop its file system.
    /// Returns false and warns if the record cannot be written.
    pub fn note(&self, memory: HostRecord, origin: Option<FileSystem>) -> bool {
        let held = &mut *self.held();
        held.ticket = 0;
        self.change(held, |record| {
            record.generation = memory.generation;
            record.epoch = memory.epoch.0;
            record.fenced = memory.fenced;
            record.dirty = memory.dirty;
            record.set_origin(memory.origin);
            record.stopped = memory.stopped;
            record.origin = origin;
        })
    }

    /// Records that the shards have stopped without a superblock that says so, and the state of the origin at that
    /// time. Returns false and warns if the record cannot be written.
    pub fn note_stopped(&self, noted: Option<NotedOrigin>, origin: Option<FileSystem>) -> bool {
        self.change(&mut self.held(), |record| {
            record.set_origin(noted);
            record.stopped = true;
            record.origin = origin;
        })
    }

    /// Records that the cache device must never be trusted again. Returns false and warns if the record cannot be
    /// written.
    pub fn note_fenced(&self) -> bool {
        self.change(&mut self.held(), |record| record.fenced = true)
    }

    /// Records whether the cache being served may contain blocks that are newer than the origin from now on. Returns false
    /// and warns if the record cannot be written.
    pub fn note_dirty(&self, dirty: bool, generation: u64) -> bool {
        self.change(&mut self.held(), |record| {
            record.generation = generation;
            record.dirty = dirty;
        })
    }

    /// Records the first bytes of the origin, unless a later reading was recorded already. Returns false if the record
    /// cannot be written, and warns the first time.
    pub fn note_origin(&self, ticket: u64, origin: NotedOrigin) -> bool {
        let held = &mut *self.held();
        if ticket < held.ticket {
            return true;
        }
        // This reading was delayed for long, and a later one was recorded.
        if held.record.as_ref().is_some_and(|record| record.stopped) {
            return false;
        }
        let known = held.record.as_ref().and_then(Record::noted_origin);
        if (known != Some(origin) || held.failing)
            && !self.change(held, |record| record.set_origin(Some(origin)))
        {
            return false;
        }
        held.ticket = ticket;
        true
    }

    /// Changes the file. `held` stays locked during the write, so that there is one writer at a time.
    fn change(&self, held: &mut Held, change: impl FnOnce(&mut Record)) -> bool {
        let Some(directory) = &self.directory else {
            return false;
        };
        let mut record = held.record.clone().unwrap_or(Record {
            version: VERSION,
            uuid: self.uuid,
            path: None,
            generation: 0,
            epoch: 0,
            fenced: false,
            dirty: false,
            origin_fingerprint: None,
            origin_bytes: None,
            stopped: false,
            origin: None,
        });
        change(&mut record);
        if self.path.is_some() {
            record.path.clone_from(&self.path);
        }
        assert!(
            record.version == VERSION && record.uuid == self.uuid,
            "a record of another cache or version would not be read again"
        );
        let written = write(directory, &record);
        // Kept although the write failed: the next successful write must not contradict it.
        held.record = Some(record);
        match written {
            Ok(()) => {
                held.failing = false;
                true
            }
            Err(error) => {
                // The origin is recorded repeatedly, so only the first failure is logged.
                if !std::mem::replace(&mut held.failing, true) {
                    let path = directory.path_of(&file_name(self.uuid));
                    tracing::warn!("cannot write {}: {error}", path.display());
                }
                false
            }
        }
    }
}

/// Records that the user discarded the dirty blocks of these caches on `device`, so that a new cache of the same origin is not refused
/// because of them. `directory`: the state directory. Records of caches that were last served from another device do not change: `device`
/// held only a copy.
pub fn note_discarded(directory: Option<&Path>, device: &Path, caches: &[Uuid]) {
    for &uuid in caches {
        let state = StateFile::peek(directory, uuid);
        let is_here = |record: &Record| record.path.as_ref().is_some_and(|path| is_on(path, device));
        let here = state.held().record.as_ref().is_some_and(is_here);
        if let Some(record) = state.recall().filter(|record| here && record.dirty) {
            state.note_dirty(false, record.generation);
        }
    }
}

/// Whether a recorded path names a cache on this device, or one of its volumes.
fn is_on(recorded: &str, device: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    let volume_of = recorded.rsplit_once(':').map(|(device, _)| device);
    let mut paths = [Some(recorded), volume_of].into_iter().flatten();
    real(device).is_some_and(|device| paths.any(|path| real(Path::new(path)).as_ref() == Some(&device)))
}

fn file_name(uuid: Uuid) -> String {
    format!("{uuid}.json")
}

/// The same for a disk without a serial number that has grown.
fn origin_file_name(identity: &str) -> String {
    let identity = Identity::without_size(identity);
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let short: String = identity.chars().take(IDENTITY_CHARS_MAX).map(plain).collect();
    format!("origin-{short}-{:08x}", crc32c::crc32c(identity.as_bytes()))
}

fn read(directory: &StateDirectory, uuid: Uuid) -> io::Result<Option<Record>> {
    let Some(text) = directory.read(&file_name(uuid))? else {
        return Ok(None);
    };
    let record: Record = serde_json::from_str(&text)?;
    if record.version != VERSION || record.uuid != uuid {
        let found = format!(
            "expected version {VERSION} for cache {uuid}, found version {} for {}",
            record.version, record.uuid
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, found));
    }
    Ok(Some(record))
}

fn write(directory: &StateDirectory, record: &Record) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(record)?;
    text.push(b'\n');
    directory.replace(&file_name(record.uuid), &text)
}

/// An origin record in progress. Shards write them repeatedly, and a file system may delay them for long.
pub(crate) struct Slot(Arc<StateFile>);

impl Slot {
    /// `None` while as many records are in progress as may be.
    pub(crate) fn take(state: &Arc<StateFile>) -> Option<Self> {
        let slot = Self(Arc::clone(state));
        let before = state.noting.fetch_add(1, Ordering::Relaxed);
        (before < NOTES_MAX).then_some(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let before = self.0.noting.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a slot is released once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(generation: u64) -> HostRecord {
        HostRecord {
            generation,
            epoch: Epoch(3),
            fenced: false,
            dirty: false,
            origin: None,
            stopped: false,
        }
    }

    fn print(value: u32) -> NotedOrigin {
        NotedOrigin {
            fingerprint: NonZeroU32::new(value).unwrap(),
            len: 1 << 20,
        }
    }

    /// Makes writes of the file fail, for root too, until the returned directory is removed.
    fn refuse_writes(directory: &Path, uuid: Uuid) -> PathBuf {
        let obstacle = directory.join(format!("{}.new", file_name(uuid)));
        std::fs::create_dir(&obstacle).unwrap();
        obstacle
    }

    #[test]
    fn the_later_reading_of_the_origin_is_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let uuid = Uuid::from_u128(7);
        let state = StateFile::open(Some(directory.path()), uuid);
        let noted = || {
            let memory = StateFile::open(Some(directory.path()), uuid).recall().unwrap();
            memory.origin.map(|origin| origin.fingerprint.get())
        };
        assert!(state.note(memory(1), None));
        assert_eq!(noted(), None);
        for (ticket, value, expected) in [(2, 20, 20), (1, 10, 20), (4, 20, 20), (3, 30, 20), (5, 50, 50)] {
            assert!(state.note_origin(ticket, print(value)));
            assert_eq!(noted(), Some(expected), "ticket {ticket}");
        }
        // The next opening begins a new count and forgets the old one.
        assert!(state.note(memory(2), None));
        assert_eq!(noted(), None);
        assert!(state.note_origin(1, print(60)));
        assert_eq!(noted(), Some(60));
    }

    /// A failed write may have reached the file, so its contents are unknown.
    #[test]
    fn after_a_failed_record_the_next_is_always_written() {
        let directory = tempfile::tempdir().unwrap();
        let (place, uuid) = (directory.path(), Uuid::from_u128(7));
        let state = StateFile::open(Some(place), uuid);
        assert!(state.note(memory(1), None));
        assert!(state.note_origin(1, print(10)));
        let obstacle = refuse_writes(place, uuid);
        assert!(!state.note_origin(2, print(20)));
        std::fs::remove_dir(obstacle).unwrap();
        assert!(state.note_origin(3, print(10)));
        let recalled = StateFile::open(Some(place), uuid).recall();
        assert_eq!(recalled.unwrap().origin, Some(print(10)));
    }

    #[test]
    fn a_failed_record_is_written_with_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let (place, uuid) = (directory.path(), Uuid::from_u128(7));
        let state = StateFile::open(Some(place), uuid);
        let print = print(10);
        assert!(state.note(memory(1), None));
        let obstacle = refuse_writes(place, uuid);
        assert!(!state.note(memory(2), None));
        assert!(!state.note_dirty(true, 9));
        assert!(!state.note_fenced());
        std::fs::remove_dir(obstacle).unwrap();
        assert!(state.note_origin(1, print));
        let expected = HostRecord {
            generation: 9,
            fenced: true,
            dirty: true,
            origin: Some(print),
            ..memory(2)
        };
        assert_eq!(StateFile::open(Some(place), uuid).recall(), Some(expected));
    }

    #[test]
    fn a_record_is_read_by_the_next_process() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("not/there/yet");
        let uuid = Uuid::from_u128(7);
        let state = StateFile::open(Some(&place), uuid);
        assert_eq!(state.recall(), None);
        assert!(state.note(memory(12), None));
        assert_eq!(StateFile::open(Some(&place), uuid).recall(), Some(memory(12)));
        assert!(state.note_fenced());
        let lost = HostRecord {
            fenced: true,
            ..memory(12)
        };
        assert_eq!(StateFile::open(Some(&place), uuid).recall(), Some(lost));
        // Another cache is independent of this one.
        assert_eq!(StateFile::open(Some(&place), Uuid::from_u128(8)).recall(), None);
        assert!(state.note(memory(14), None));
        assert_eq!(StateFile::open(Some(&place), uuid).recall(), Some(memory(14)));
    }

    #[test]
    fn dirty_blocks_of_another_cache_are_known() {
        let directory = tempfile::tempdir().unwrap();
        let state = |number| StateFile::open(Some(directory.path()), Uuid::from_u128(number));
        let other = Uuid::from_u128(2);
        let dirty = || Some(state(1).record_of(other)?.dirty);
        assert_eq!(dirty(), None);
        assert!(state(2).note(memory(1), None));
        assert_eq!(dirty(), Some(false));
        assert!(state(2).note_dirty(true, 2));
        assert_eq!(dirty(), Some(true));
        assert!(state(2).note_dirty(false, 3));
        assert_eq!(dirty(), Some(false));
        assert_eq!(state(2).recall().unwrap().generation, 3);
    }

    /// Also by a server that is not told the path.
    #[test]
    fn the_path_of_another_cache_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let state = |number| StateFile::open(Some(directory.path()), Uuid::from_u128(number));
        assert!(state(1).of_cache_at(Path::new("/dev/ssd")).note(memory(1), None));
        assert!(state(1).note_cache_of("wwn:1") && state(1).note_dirty(true, 2));
        let other = state(2).other_cache_of("wwn:1").unwrap();
        assert_eq!(other.path.as_deref(), Some("/dev/ssd"));
        assert!(
            other.to_string().ends_with("last served from /dev/ssd"),
            "{other}"
        );
    }

    /// Discarding a copy of the cache does not clear the record of the original.
    #[test]
    fn only_the_discarded_cache_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, name).unwrap();
            path
        };
        let (device, copy) = (file("ssd"), file("copy"));
        let states = directory.path().join("states");
        let state = |number| StateFile::open(Some(&states), Uuid::from_u128(number));
        let volume = PathBuf::from(format!("{}:a", device.display()));
        for (number, path) in [(1, &device), (2, &volume), (3, &device)] {
            assert!(state(number).of_cache_at(path).note(memory(1), None));
            assert!(state(number).note_dirty(true, 2));
        }
        let all = [1, 2].map(Uuid::from_u128);
        let dirty = || [1, 2, 3].map(|number| state(number).recall().unwrap().dirty);
        note_discarded(Some(&states), &copy, &all);
        note_discarded(Some(&states), &directory.path().join("gone"), &all);
        assert_eq!(dirty(), [true; 3]);
        note_discarded(Some(&states), &device, &all);
        assert_eq!(dirty(), [false, false, true]);
    }

    #[test]
    fn the_cache_that_served_an_origin_last_is_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let state = |number| StateFile::open(Some(directory.path()), Uuid::from_u128(number));
        let long = format!("file:{}/../x", "y".repeat(300));
        for identity in ["wwn:0x5000", "file:/a b", &long] {
            assert_eq!(state(1).last_cache_of(identity), None);
            assert!(state(1).note_cache_of(identity));
            assert_eq!(state(2).last_cache_of(identity), Some(Uuid::from_u128(1)));
            assert!(state(2).note_cache_of(identity));
            assert_eq!(state(1).last_cache_of(identity), Some(Uuid::from_u128(2)));
        }
        assert_eq!(state(1).last_cache_of("file:/a_b"), None, "another one");
    }

    #[test]
    fn the_other_cache_of_an_origin_is_reported_with_its_dirty_mark() {
        let directory = tempfile::tempdir().unwrap();
        let state = |number| StateFile::open(Some(directory.path()), Uuid::from_u128(number));
        assert!(state(1).other_cache_of("wwn:1").is_none());
        assert!(state(1).note_cache_of("wwn:1"));
        assert!(state(1).other_cache_of("wwn:1").is_none(), "it is this one");
        let other = || state(2).other_cache_of("wwn:1").unwrap();
        assert_eq!((other().uuid, other().dirty), (Uuid::from_u128(1), false));
        assert!(state(1).note_dirty(true, 4));
        assert!(other().dirty);
    }

    #[test]
    fn origin_records_in_progress_are_limited() {
        let state = Arc::new(StateFile::open(None, Uuid::from_u128(7)));
        let mut slots: Vec<_> = (0..NOTES_MAX).map(|_| Slot::take(&state).unwrap()).collect();
        assert!(Slot::take(&state).is_none());
        assert!(Slot::take(&state).is_none(), "a refusal takes no slot");
        slots.pop();
        assert!(Slot::take(&state).is_some());
    }

    #[test]
    fn an_unusable_state_directory_is_only_a_warning() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "in the way").unwrap();
        for place in [None, Some(file.as_path())] {
            let state = StateFile::open(place, Uuid::from_u128(7));
            assert_eq!(state.recall(), None);
            assert!(!state.note(memory(1), None));
            assert!(!state.note_origin(1, print(1)));
            assert!(!state.note_fenced());
        }
    }

    #[test]
    fn a_damaged_state_file_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let uuid = Uuid::from_u128(7);
        for text in ["", "{", "{\"version\":3}", "\u{0}\u{0}"] {
            std::fs::write(directory.path().join(format!("{uuid}.json")), text).unwrap();
            let state = StateFile::open(Some(directory.path()), uuid);
            assert_eq!(state.recall(), None, "{text:?}");
            assert!(state.note(memory(5), None));
            assert_eq!(
                StateFile::open(Some(directory.path()), uuid).recall(),
                Some(memory(5))
            );
        }
    }
}
