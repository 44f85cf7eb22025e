//! Holds a device or file exclusively, after checking that nobody uses it.
//!
//! A block device is held by an exclusive open, which the kernel grants to one holder (a mounted file system is one). A
//! file is held by a lock (`flock`), which every flaz process requests.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;

use flaz_runtime::file::{ByteLock, is_byte_locked};
use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use uuid::Uuid;

use super::error::{CACHE_DEVICE, OriginAdvice, SafetyError};
use super::file::{Access, failed, give_size, length, lock, open, open_exclusively, open_shared};
use super::holders::{System, Use};
use super::node::Node;
use super::objections::Objections;
use super::probe::{self, Found};
use super::signatures::{Kind, cache_uuids};
use super::source::Source;
use crate::pool::MEMBERS;

/// The open files of this process.
const DESCRIPTORS: &str = "/proc/self/fd";

/// A cache device that is open and held while this lives: exclusively, or together with the processes of other volumes.
#[derive(Debug)]
pub struct Claim {
    node: Node,
    file: File,
    /// A block device that other processes use too, opened exclusively: `None` while one of them has it.
    exclusive: OnceLock<File>,
    size_bytes: u64,
    made: bool,
    /// The objections that `--force` overrides.
    overruled: Objections,
    discarded: Vec<Uuid>,
}

impl Claim {
    /// Its path, as the user wrote it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.node.path
    }

    /// Kind of the device or file.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The file, open and buffered, with the requested access. The hold ends when the claim is dropped, and not before:
    /// a file that is reopened (for example with O_DIRECT) needs no hold of its own, and a block device must be
    /// reopened without O_EXCL.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether this process keeps other programs off a shared device: it has a block device open exclusively, or a file locked.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.exclusive.get().is_some()
    }

    /// Opens a shared block device exclusively, if no process of another volume has it: the kernel then keeps file systems off it.
    pub(crate) fn take_over(&self) -> TakenOver {
        if self.is_exclusive() {
            return TakenOver::Yes;
        }
        match open_exclusively(&self.node) {
            Ok((file, true)) => {
                let _ = self.exclusive.set(file);
                TakenOver::Yes
            }
            _ if is_byte_locked(&self.file, MEMBERS, ByteLock::Exclusive) == Ok(true) => TakenOver::Member,
            _ => TakenOver::Other,
        }
    }

    /// Size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Whether [`claim_for_create`] made the file.
    #[must_use]
    pub fn was_made(&self) -> bool {
        self.made
    }

    /// The caches whose dirty blocks are overwritten with the user's consent: see [`Permission::discard_dirty`].
    #[must_use]
    pub fn discarded(&self) -> &[Uuid] {
        &self.discarded
    }

    /// Wipes the signatures of previous contents after the cache was created, so that no program mistakes the device
    /// for them. Example: the signature of a RAID member at the end of the device, which the cache's own metadata does
    /// not cover.
    ///
    /// # Errors
    /// The device cannot be read or written.
    pub fn wipe_foreign_signatures(&self) -> Result<(), SafetyError> {
        if self.overruled.found.is_empty() {
            return Ok(());
        }
        let source = Source::new(&self.file, self.size_bytes);
        let wiped = probe::wipe_foreign(&source).map_err(failed("wipe old signatures on", self.path()))?;
        if !wiped.is_empty() {
            tracing::info!("{}: wiped {}", self.path().display(), probe::list(&wiped));
        }
        Ok(())
    }
}

/// Who has a shared block device open exclusively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenOver {
    /// This process.
    Yes,
    /// Probably the process of another volume.
    Member,
    /// Another program.
    Other,
}

/// Checks an origin. `advice` is that of the command.
///
/// # Errors
/// It is missing, or is not a block device or regular file. Without `force`: it contains a flaz cache, which shows that the
/// cache and the origin were confused.
pub fn origin(path: &Path, force: bool, advice: &OriginAdvice) -> Result<Node, SafetyError> {
    let node = Node::find(path)?.ok_or_else(|| SafetyError::Missing {
        path: path.to_owned(),
        role: "origin",
        advice: advice.missing,
    })?;
    if force {
        return Ok(node);
    }
    // Not held: it may be in use, which only leads to a warning.
    let file = File::open(path).map_err(failed("open", path))?;
    let size_bytes = length(&node, &file)?;
    let found = probe::signatures(&Source::new(&file, size_bytes)).map_err(failed("read", path))?;
    if found.iter().any(|found| found.kind == Kind::Flaz) {
        return Err(SafetyError::OriginIsCache {
            path: path.to_owned(),
            advice: advice.is_cache,
        });
    }
    Ok(node)
}

/// What [`claim_for_create`] may do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Permission {
    /// Create a missing file, or give an empty one its size, with this size in bytes.
    pub size_bytes: Option<u64>,
    /// Leave that file sparse, rather than allocate its space.
    pub sparse: bool,
    /// Overwrite known contents, and a device with idle users.
    pub force: bool,
    /// Overwrite even a flaz cache with writes that have not reached its origin.
    pub discard_dirty: bool,
}

/// Checks a cache device.
///
/// # Errors
/// It is missing, or is not a block device or regular file.
pub fn cache(path: &Path) -> Result<Node, SafetyError> {
    Node::find(path)?.ok_or_else(|| SafetyError::Missing {
        path: path.to_owned(),
        role: CACHE_DEVICE,
        advice: "connect it again, or correct the path; `flaz create` makes a new cache",
    })
}

/// The users of the device or file at `path`, on one line, for a message; `None` if there are none or the path does not
/// exist.
#[must_use]
pub fn uses_text(path: &Path) -> Option<String> {
    uses_where(path, |_| true)
}

/// The users of the device or file at `path` that no option overrides: mounts, swap space. Format as in [`uses_text`].
#[must_use]
pub fn final_uses_text(path: &Path) -> Option<String> {
    uses_where(path, Use::is_final)
}

fn uses_where(path: &Path, is_wanted: impl Fn(&Use) -> bool) -> Option<String> {
    let node = Node::find(path).ok().flatten()?;
    let mut uses = System::default().uses(node.identity);
    uses.retain(is_wanted);
    (!uses.is_empty()).then(|| joined(&uses))
}

/// The uses on one line, for a message.
fn joined(uses: &[Use]) -> String {
    let texts: Vec<String> = uses.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// Refuses an origin that shares bytes with the cache device.
///
/// # Errors
/// [`SafetyError::SameAsOrigin`].
pub fn refuse_overlap(cache: &Node, origin: &Node) -> Result<(), SafetyError> {
    if !System::default().overlap(cache.identity, origin.identity) {
        return Ok(());
    }
    Err(SafetyError::SameAsOrigin {
        cache: cache.path.clone(),
        origin: origin.path.clone(),
    })
}

/// Checks that `cache` may be overwritten, and holds it. A missing file is created if its size is given.
///
/// # Errors
/// The objections. Nothing was written or created in that case.
pub fn claim_for_create(
    cache: &Path,
    origin: Option<&Node>,
    permission: Permission,
) -> Result<Claim, SafetyError> {
    let Some(node) = Node::find(cache)? else {
        return make(cache, permission);
    };
    let force = permission.force;
    let system = System::default();
    if let Some(origin) = origin {
        refuse_overlap(&node, origin)?;
    }
    let mut objections = Objections {
        uses: system.uses(node.identity),
        found: Vec::new(),
    };
    let (file, claimed) = open(&node, Access::ReadWrite)?;
    let held = claimed.is_none();
    objections.add_claim(claimed);
    let found_size = length(&node, &file)?;
    objections.found = signatures(&node, &file, found_size)?;
    let loses_dirty_blocks = objections.lose_dirty_blocks() && !permission.discard_dirty;
    if objections.is_final() || loses_dirty_blocks || !(objections.is_empty() || force) {
        return Err(SafetyError::Refused {
            path: cache.to_owned(),
            objections,
        });
    }
    let discarded = if objections.lose_dirty_blocks() {
        cache_uuids(&Source::new(&file, found_size)).map_err(failed("read", cache))?
    } else {
        Vec::new()
    };
    let size_bytes = match permission.size_bytes {
        Some(wanted) => sized(&node, &file, wanted, found_size, permission.sparse)?,
        None => found_size,
    };
    for usage in &objections.uses {
        tracing::warn!("{}: {usage}: overridden by --force", cache.display());
    }
    if !objections.found.is_empty() {
        tracing::warn!(
            "{}: overwriting {}",
            cache.display(),
            probe::list(&objections.found)
        );
    }
    assert!(held || force, "only --force works without a lock");
    Ok(Claim {
        node,
        file,
        exclusive: OnceLock::new(),
        size_bytes,
        made: false,
        overruled: objections,
        discarded,
    })
}

/// Checks that a device or file of `found` bytes has the size `wanted`. An empty file is set to that size.
fn sized(node: &Node, file: &File, wanted: u64, found: u64, sparse: bool) -> Result<u64, SafetyError> {
    let is_device = node.is_block_device();
    if wanted != found && (is_device || found > 0) {
        return Err(SafetyError::OtherSize {
            path: node.path.clone(),
            wanted,
            found,
            what: if is_device { "device" } else { "file" },
        });
    }
    if wanted != found {
        give_size(file, &node.path, wanted, sparse)?;
    }
    Ok(wanted)
}

/// Holds an existing cache, to serve it or, with [`Access::Read`], to check or dump it.
///
/// # Errors
/// It is missing, cannot be opened, or another process holds it.
pub fn claim_existing(cache: &Path, access: Access) -> Result<Claim, SafetyError> {
    let node = self::cache(cache)?;
    let (file, claimed) = open(&node, access)?;
    if let Some(claim) = claimed {
        return Err(busy(cache, &node, claim));
    }
    let size_bytes = length(&node, &file)?;
    Ok(Claim {
        node,
        file,
        exclusive: OnceLock::new(),
        size_bytes,
        made: false,
        overruled: Objections::default(),
        discarded: Vec::new(),
    })
}

/// Holds a cache device that several volumes share, together with the processes of other volumes.
///
/// # Errors
/// It is missing, cannot be opened, or is used for anything else.
pub fn claim_shared(device: &Path, access: Access) -> Result<Claim, SafetyError> {
    let node = self::cache(device)?;
    let (file, is_exclusive, claimed) = open_shared(&node, access)?;
    if let Some(claim) = claimed {
        return Err(busy(device, &node, claim));
    }
    let size_bytes = length(&node, &file)?;
    let exclusive = OnceLock::new();
    if is_exclusive || !node.is_block_device() {
        let _ = exclusive.set(file.try_clone().map_err(failed("open", device))?);
    }
    Ok(Claim {
        node,
        file,
        exclusive,
        size_bytes,
        made: false,
        overruled: Objections::default(),
        discarded: Vec::new(),
    })
}

fn busy(path: &Path, node: &Node, claim: Use) -> SafetyError {
    let mut uses = System::default().uses(node.identity);
    if uses.is_empty() {
        uses.push(claim);
    }
    SafetyError::Busy {
        path: path.to_owned(),
        list: joined(&uses),
    }
}

/// Checks that nobody uses the device or file at `path` and that it contains no file system, partition table or
/// similar, and holds it. `--force` does not apply.
///
/// # Errors
/// It is missing, cannot be opened, or there are objections. Nothing was written in that case.
pub fn claim_to_overwrite(path: &Path) -> Result<Claim, SafetyError> {
    let node = Node::find(path)?.ok_or_else(|| SafetyError::Missing {
        path: path.to_owned(),
        role: "device or file",
        advice: "`lsblk` lists the devices",
    })?;
    let mut objections = Objections {
        uses: System::default().uses(node.identity),
        found: Vec::new(),
    };
    let (file, claimed) = open(&node, Access::ReadWrite)?;
    objections.add_claim(claimed);
    let size_bytes = length(&node, &file)?;
    objections.found = probe::signatures(&Source::new(&file, size_bytes)).map_err(failed("read", path))?;
    if !objections.is_empty() {
        return Err(SafetyError::Kept {
            path: path.to_owned(),
            objections,
        });
    }
    Ok(Claim {
        node,
        file,
        exclusive: OnceLock::new(),
        size_bytes,
        made: false,
        overruled: Objections::default(),
        discarded: Vec::new(),
    })
}

fn signatures(node: &Node, file: &File, size_bytes: u64) -> Result<Vec<Found>, SafetyError> {
    let source = Source::new(file, size_bytes);
    let read = failed("read", &node.path);
    let mut found = probe::signatures(&source).map_err(read)?;
    // Data without a signature is common on devices, but somebody created a file on purpose.
    if found.is_empty() && !node.is_block_device() {
        found.extend(probe::unknown_data(&source).map_err(read)?);
    }
    Ok(found)
}

/// Creates the file of a new cache.
fn make(cache: &Path, permission: Permission) -> Result<Claim, SafetyError> {
    let absolute = std::path::absolute(cache).map_err(failed("find", cache))?;
    if absolute.starts_with("/dev") && !absolute.starts_with("/dev/shm") {
        return Err(SafetyError::Missing {
            path: cache.to_owned(),
            role: CACHE_DEVICE,
            advice: "files are not created under /dev; `lsblk` lists the devices",
        });
    }
    let size_bytes = permission.size_bytes.ok_or_else(|| SafetyError::Missing {
        path: cache.to_owned(),
        role: CACHE_DEVICE,
        advice: "specify an existing device or file, or create a file with --size SIZE",
    })?;
    let unnamed = unnamed(cache);
    let has_name = unnamed.is_none();
    let file = match unnamed {
        Some(file) => file,
        None => OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(cache)
            .map_err(failed("make", cache))?,
    };
    let claim = || -> Result<Claim, SafetyError> {
        let metadata = file.metadata().map_err(failed("inspect", cache))?;
        let node = Node::of(cache, &metadata)?;
        if !lock(&file, Access::ReadWrite).map_err(failed("lock", cache))? {
            return Err(SafetyError::Busy {
                path: cache.to_owned(),
                list: Use::Locked.to_string(),
            });
        }
        give_size(&file, cache, size_bytes, permission.sparse)?;
        if !has_name {
            give_name(&file, cache).map_err(failed("make", cache))?;
        }
        let file = file.try_clone().map_err(failed("open", cache))?;
        Ok(Claim {
            node,
            file,
            exclusive: OnceLock::new(),
            size_bytes,
            made: true,
            overruled: Objections::default(),
            discarded: Vec::new(),
        })
    };
    claim().inspect_err(|_| {
        if has_name {
            // The file was created a moment ago and is empty. The original error is reported already.
            let _ = std::fs::remove_file(cache);
        }
    })
}

/// Opens a new file that has no name yet: nothing is left if the process is killed while it writes zeroes. `None`: the file system
/// has no such files, or the name is taken.
fn unnamed(cache: &Path) -> Option<File> {
    if cache.symlink_metadata().is_ok() || !Path::new(DESCRIPTORS).exists() {
        return None;
    }
    let parent = cache.parent()?;
    let directory = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(OFlags::TMPFILE.bits().cast_signed())
        .open(directory)
        .ok()
}

/// Gives the file its name, unless there is another one with this name.
fn give_name(file: &File, cache: &Path) -> std::io::Result<()> {
    let path = format!("{DESCRIPTORS}/{}", file.as_raw_fd());
    Ok(linkat(CWD, path, CWD, cache, AtFlags::SYMLINK_FOLLOW)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;

    use super::*;

    const SIZE: u64 = 8 << 20;

    const ADVICE: OriginAdvice = OriginAdvice {
        missing: "make it",
        is_cache: "use another",
    };

    struct Scratch {
        folder: tempfile::TempDir,
        origin: Node,
    }

    impl Scratch {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("origin");
            File::create(&path).unwrap().set_len(SIZE).unwrap();
            Self {
                origin: origin(&path, false, &ADVICE).unwrap(),
                folder,
            }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn cache(&self, magic: &[u8], offset: u64) -> PathBuf {
            let path = self.path("cache");
            let file = File::create(&path).unwrap();
            file.set_len(SIZE).unwrap();
            file.write_all_at(magic, offset).unwrap();
            path
        }

        fn claim(&self, path: &Path, size_bytes: Option<u64>, force: bool) -> Result<Claim, SafetyError> {
            let permission = Permission {
                size_bytes,
                force,
                ..Permission::default()
            };
            claim_for_create(path, Some(&self.origin), permission)
        }
    }

    #[test]
    fn a_missing_file_is_made_only_with_a_size() {
        let scratch = Scratch::new();
        let path = scratch.path("new");
        let error = scratch.claim(&path, None, false).unwrap_err().to_string();
        assert!(error.contains("create a file with --size SIZE"), "{error}");
        assert!(!path.exists());
        let claim = scratch.claim(&path, Some(SIZE), false).unwrap();
        assert_eq!((claim.size_bytes(), claim.was_made()), (SIZE, true));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE);
        let error = scratch
            .claim(Path::new("/dev/no-such-disk"), Some(SIZE), false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("not created under /dev"), "{error}");
    }

    #[test]
    fn an_empty_file_takes_the_size_and_another_one_keeps_its_own() {
        let scratch = Scratch::new();
        let path = scratch.path("empty");
        File::create(&path).unwrap();
        assert_eq!(
            scratch.claim(&path, Some(SIZE), false).unwrap().size_bytes(),
            SIZE
        );
        let error = scratch.claim(&path, Some(SIZE * 2), false).unwrap_err();
        assert!(matches!(error, SafetyError::OtherSize { .. }), "{error}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE);
    }

    /// Only a file system without allocation leaves the file without its space, and none that the tests use is one.
    #[test]
    fn a_new_file_has_its_space_unless_it_is_sparse() {
        use std::os::unix::fs::MetadataExt;

        let scratch = Scratch::new();
        for (sparse, allocated) in [(false, true), (true, false)] {
            let path = scratch.path(if sparse { "sparse" } else { "full" });
            let permission = Permission {
                size_bytes: Some(SIZE),
                sparse,
                ..Permission::default()
            };
            claim_for_create(&path, Some(&scratch.origin), permission).unwrap();
            let metadata = std::fs::metadata(&path).unwrap();
            assert_eq!(metadata.len(), SIZE);
            assert_eq!(metadata.blocks() * 512 >= SIZE, allocated, "sparse: {sparse}");
        }
    }

    #[test]
    fn a_file_that_does_not_fit_is_refused_unless_sparse() {
        let scratch = Scratch::new();
        let path = scratch.path("new");
        let room = rustix::fs::statvfs(scratch.folder.path()).unwrap();
        // More than the file system has, and less than a file may have.
        let size = (room.f_blocks * room.f_frsize + (1 << 30)).next_multiple_of(1 << 20);
        let error = scratch.claim(&path, Some(size), false).unwrap_err();
        assert!(matches!(error, SafetyError::NoSpace { .. }), "{error}");
        assert!(error.to_string().contains("--sparse"), "{error}");
        assert!(!path.exists());
        // An empty file of the user stays, and stays empty.
        File::create(&path).unwrap();
        scratch.claim(&path, Some(size), false).unwrap_err();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        let permission = Permission {
            size_bytes: Some(size),
            sparse: true,
            ..Permission::default()
        };
        let claim = claim_for_create(&path, Some(&scratch.origin), permission).unwrap();
        assert_eq!(claim.size_bytes(), size);
    }

    #[test]
    fn an_origin_with_a_cache_is_refused_without_force() {
        let scratch = Scratch::new();
        let path = scratch.cache(b"FLAZCACH", 0);
        let advice = OriginAdvice {
            missing: "connect it",
            is_cache: "use --force",
        };
        let error = origin(&path, false, &advice).unwrap_err();
        assert!(matches!(error, SafetyError::OriginIsCache { .. }), "{error}");
        assert!(
            error.to_string().ends_with("contains a flaz cache: use --force"),
            "{error}"
        );
        origin(&path, true, &advice).unwrap();
        let error = origin(&scratch.path("none"), true, &advice).unwrap_err();
        assert!(
            error.to_string().ends_with("none: no such origin: connect it"),
            "{error}"
        );
    }

    #[test]
    fn signatures_are_named_and_force_overrides() {
        let scratch = Scratch::new();
        let path = scratch.cache(b"_BHRfS_M", 65_600);
        let before = std::fs::read(&path).unwrap();
        let error = scratch.claim(&path, None, false).unwrap_err().to_string();
        assert!(
            error.contains("btrfs file system (signature at offset 65600)"),
            "{error}"
        );
        assert!(error.contains("use --force"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before, "nothing was written");
        let claim = scratch.claim(&path, None, true).unwrap();
        claim.wipe_foreign_signatures().unwrap();
        drop(claim);
        scratch.claim(&path, None, false).unwrap();
    }

    #[test]
    fn another_cache_and_unknown_data_are_refused() {
        let scratch = Scratch::new();
        let path = scratch.cache(b"FLAZCACH", 65_536);
        let error = scratch.claim(&path, None, false).unwrap_err().to_string();
        assert!(error.contains("flaz cache"), "{error}");
        let path = scratch.cache(b"my thesis", 100_000);
        let error = scratch.claim(&path, None, false).unwrap_err().to_string();
        assert!(error.contains("unknown data (first at offset 100000)"), "{error}");
    }

    #[test]
    fn the_origin_is_refused_by_any_of_its_names() {
        let scratch = Scratch::new();
        let (hard, soft) = (scratch.path("hard"), scratch.path("soft"));
        std::fs::hard_link(&scratch.origin.path, &hard).unwrap();
        std::os::unix::fs::symlink(&scratch.origin.path, &soft).unwrap();
        for path in [&scratch.origin.path, &hard, &soft] {
            let error = scratch.claim(path, None, true).unwrap_err();
            assert!(matches!(error, SafetyError::SameAsOrigin { .. }), "{error}");
        }
    }

    #[test]
    fn a_locked_file_is_refused_even_with_force() {
        let scratch = Scratch::new();
        let path = scratch.cache(b"", 0);
        let held = claim_existing(&path, Access::ReadWrite).unwrap();
        let error = scratch.claim(&path, None, true).unwrap_err().to_string();
        assert!(
            error.contains("locked by another process") && error.contains("does not override"),
            "{error}"
        );
        let error = claim_existing(&path, Access::ReadWrite).unwrap_err().to_string();
        assert!(error.contains("locked by another process"), "{error}");
        drop(held);
        scratch.claim(&path, None, false).unwrap();
    }

    /// A read-only copy, or one that belongs to another user, can still be checked.
    #[test]
    fn read_only_access_does_not_open_for_writing() {
        let scratch = Scratch::new();
        let path = scratch.cache(b"", 0);
        for (access, mode) in [(Access::Read, OFlags::RDONLY), (Access::ReadWrite, OFlags::RDWR)] {
            let held = claim_existing(&path, access).unwrap();
            let flags = rustix::fs::fcntl_getfl(held.file()).unwrap();
            assert_eq!(flags & OFlags::ACCMODE, mode);
            let error = claim_existing(&path, Access::ReadWrite).unwrap_err().to_string();
            assert!(error.contains("locked by another process"), "{error}");
            assert_eq!(
                claim_existing(&path, Access::Read).is_ok(),
                access == Access::Read
            );
        }
    }

    #[test]
    fn an_overwrite_target_must_be_blank_and_unused() {
        let scratch = Scratch::new();
        let path = scratch.cache(b"_BHRfS_M", 65_600);
        let error = claim_to_overwrite(&path).unwrap_err().to_string();
        assert!(
            error.contains("btrfs file system") && error.contains("No option overrides"),
            "{error}"
        );
        let path = scratch.cache(b"my thesis", 100_000);
        let held = claim_to_overwrite(&path).unwrap();
        assert_eq!(held.size_bytes(), SIZE);
        let error = claim_to_overwrite(&path).unwrap_err().to_string();
        assert!(error.contains("locked by another process"), "{error}");
        let error = claim_to_overwrite(&scratch.path("none")).unwrap_err().to_string();
        assert!(error.contains("lsblk"), "{error}");
    }

    #[test]
    fn unsupported_file_types_are_refused() {
        let scratch = Scratch::new();
        let error = scratch
            .claim(scratch.folder.path(), None, true)
            .unwrap_err()
            .to_string();
        assert!(error.contains("found a directory"), "{error}");
        let error = origin(&scratch.path("none"), false, &ADVICE)
            .unwrap_err()
            .to_string();
        assert!(error.contains("no such origin"), "{error}");
        let error = claim_existing(&scratch.path("none"), Access::ReadWrite)
            .unwrap_err()
            .to_string();
        assert!(error.contains("flaz create"), "{error}");
    }
}
