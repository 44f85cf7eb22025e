//! Output files of a command: checked before any work, and written completely or not at all.
//!
//! | the path names | action |
//! |---|---|
//! | nothing | the file is created |
//! | a regular file | it is replaced, unless it is in use or contains a file system or similar |
//! | a character device, a pipe, the file of standard output or error | written in place |
//! | anything else, above all a block device | refused |
//!
//! Invariant: an input file is never an output file, and no file is used for two outputs.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use flaz_load::campaign::Keeper;
use flaz_load::error::LoadError;
use rustix::fs::FlockOperation;

use crate::error::Failure;
use crate::safety::identity::Identity;
use crate::safety::{self, Claim, SafetyError};

/// Maximum number of followed links, as in the kernel.
const LINKS_MAX: usize = 40;
/// Mode of a new file before the umask: that of any file created by a program.
const NEW_FILE_MODE: u32 = 0o666;
/// Types of file systems (statfs(2)) that may store data in less space: btrfs, ZFS, bcachefs.
const COMPRESSING: [u32; 3] = [0x9123_683e, 0x2fc1_2fc1, 0xca45_1a4e];

/// The output files of a command, all of which are named before the first is written.
#[derive(Debug, Default)]
pub struct OutputFiles {
    inputs: Vec<(PathBuf, Identity)>,
    taken: Vec<PathBuf>,
}

impl OutputFiles {
    /// For a command that reads `inputs`.
    pub fn beside<'a>(inputs: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        let known = |path: &PathBuf| Some((path.clone(), Identity::at(path)?));
        Self {
            inputs: inputs.into_iter().filter_map(known).collect(),
            taken: Vec::new(),
        }
    }

    /// Checks the path of an output file, and holds an existing file.
    ///
    /// # Errors
    /// No file can be created there, or the existing one must not be replaced. Nothing was written in that case.
    pub fn take(&mut self, path: &Path) -> Result<OutputFile, Failure> {
        let (place, found) = place(path)?;
        let kind = found.as_ref().map(fs::Metadata::file_type);
        let stands = match kind {
            Some(kind) if kind.is_block_device() => {
                return Err(refused(
                    path,
                    "is a block device, whose contents would be overwritten",
                ));
            }
            Some(kind) if kind.is_dir() => return Err(refused(path, "is a directory")),
            Some(kind) if kind.is_char_device() || kind.is_fifo() => true,
            _ => false,
        };
        if let Some(found) = &found {
            if let Some((input, _)) = self
                .inputs
                .iter()
                .find(|(_, input)| Identity::of(found) == Some(*input))
            {
                return Err(Failure::Usage(format!(
                    "{}: is also an input file ({}): choose another output file",
                    path.display(),
                    input.display()
                )));
            }
            if stands || standard(found).is_some() {
                return Ok(self.taken(path, State::Stands));
            }
            if !found.is_file() {
                return Err(refused(path, "is not a file or a pipe"));
            }
        }
        if self.taken.contains(&place) {
            return Err(Failure::Usage(format!(
                "{}: given for two outputs: use a different file for each",
                path.display()
            )));
        }
        can_hold(path)?;
        let state = match found {
            None => State::Missing(place.clone()),
            Some(_) => State::Held(place.clone(), safety::claim_to_overwrite(&place)?),
        };
        self.taken.push(place);
        Ok(self.taken(path, state))
    }

    fn taken(&self, path: &Path, state: State) -> OutputFile {
        OutputFile {
            path: path.to_owned(),
            state,
        }
    }
}

/// A checked path.
#[derive(Debug)]
pub struct OutputFile {
    /// As specified by the user.
    path: PathBuf,
    state: State,
}

/// What exists there, with its path without links.
#[derive(Debug)]
enum State {
    Missing(PathBuf),
    Held(PathBuf, Claim),
    Stands,
}

impl OutputFile {
    /// As specified by the user.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates or replaces the file with the contents `bytes`: completely, or not at all.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(self, bytes: &[u8]) -> Result<(), Failure> {
        let failed = || Failure::system(format!("writing {}", self.path.display()));
        let (place, old) = match &self.state {
            State::Stands => {
                let mut file = standing(&self.path).map_err(failed())?;
                return file
                    .write_all(bytes)
                    .and_then(|()| file.flush())
                    .map_err(failed());
            }
            State::Missing(place) => (place, None),
            State::Held(place, claim) => (place, Some(claim)),
        };
        let draft = draft(place, old.map(Claim::file), bytes).map_err(failed())?;
        let put = match old {
            None => draft.persist_noclobber(place),
            Some(claim) if Identity::at(place) != Some(claim.node().identity) => {
                return Err(SafetyError::Changed { path: self.path }.into());
            }
            Some(_) => draft.persist(place),
        };
        put.map(drop).map_err(|refused| failed()(refused.error))
    }

    /// Checks that the file system has room for so many bytes, unless it may compress them, or the output is a pipe or a device.
    ///
    /// # Errors
    /// It has less.
    pub fn expect_room(&self, wanted_bytes: u64) -> Result<(), Failure> {
        let (place, reused_bytes) = match &self.state {
            State::Stands => return Ok(()),
            State::Missing(place) => (place, 0),
            State::Held(place, claim) => {
                let allocated = claim.file().metadata().map_or(0, |found| found.blocks() * 512);
                (place, allocated)
            }
        };
        let Ok(found) = rustix::fs::statfs(folder(place)) else {
            return Ok(());
        };
        // Some file systems, such as ramfs, have no size.
        if found.f_blocks == 0 || COMPRESSING.contains(&(found.f_type as u32)) {
            return Ok(());
        }
        let found_bytes = (found.f_bavail.saturating_mul(found.f_bsize as u64)).saturating_add(reused_bytes);
        if wanted_bytes <= found_bytes {
            return Ok(());
        }
        let path = self.path.clone();
        Err(Failure::Load(LoadError::Room {
            path,
            wanted_bytes,
            found_bytes,
        }))
    }

    /// For a file that is replaced repeatedly, completely each time.
    ///
    /// # Errors
    /// The existing file cannot be replaced.
    pub fn keep(self) -> Result<KeptFile, Failure> {
        let (place, current) = match self.state {
            State::Stands => return Err(refused(&self.path, "is written in place")),
            State::Missing(place) => (place, Current::Nothing),
            State::Held(place, claim) => (place, Current::Theirs(claim)),
        };
        Ok(KeptFile {
            path: self.path,
            place,
            current,
        })
    }

    /// Opens the file for large output that is written in place; its previous contents are lost.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(self) -> Result<OpenFile, Failure> {
        let failed = Failure::system(format!("opening {} for writing", self.path.display()));
        let opened = match &self.state {
            State::Stands => standing(&self.path),
            State::Missing(place) => OpenOptions::new().write(true).create_new(true).open(place),
            State::Held(_, claim) => claim.file().set_len(0).and_then(|()| {
                let mut file = claim.file().try_clone()?;
                file.rewind()?;
                Ok(file)
            }),
        };
        Ok(OpenFile {
            file: opened.map_err(failed)?,
            place: self,
        })
    }
}

/// An output file that is written piece by piece and held meanwhile.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    place: OutputFile,
}

impl OpenFile {
    /// Removes the file if this made it: of an output that has failed, nothing is left.
    pub fn remove_made(self) {
        if let State::Missing(place) = &self.place.state
            && Identity::at(place)
                .is_some_and(|there| Some(there) == self.file.metadata().ok().as_ref().and_then(Identity::of))
            && let Err(error) = fs::remove_file(place)
        {
            tracing::warn!("{} was created but cannot be removed: {error}", place.display());
        }
    }

    /// Another handle of the file.
    ///
    /// # Errors
    /// The system's error.
    pub fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

impl Write for OpenFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// An output file that is replaced repeatedly and held meanwhile.
#[derive(Debug)]
pub struct KeptFile {
    /// As specified by the user.
    path: PathBuf,
    /// Without links.
    place: PathBuf,
    current: Current,
}

/// What exists at the path of a kept file.
#[derive(Debug)]
enum Current {
    Nothing,
    Theirs(Claim),
    Ours(File),
}

impl KeptFile {
    /// Replaces the file with `bytes`. If another program has created a file there, that file stays, and from now on
    /// the output is written next to it.
    ///
    /// # Errors
    /// The system's error, or that another file has appeared.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let old = match &self.current {
            Current::Nothing => None,
            Current::Theirs(claim) => Some(claim.file()),
            Current::Ours(file) => Some(file),
        };
        let draft = draft(&self.place, old, bytes)?;
        // The file is held from its first moment, if the file system has locks.
        let _ = rustix::fs::flock(draft.as_file(), FlockOperation::NonBlockingLockExclusive);
        let known = old.and_then(|file| Identity::of(&file.metadata().ok()?));
        let there = fs::symlink_metadata(&self.place).ok();
        let put = match there {
            // Removed, or never created.
            None => draft.persist_noclobber(&self.place),
            Some(found) if known.is_some() && Identity::of(&found) == known => draft.persist(&self.place),
            Some(_) => {
                let (file, beside) = draft.keep().map_err(|refused| refused.error)?;
                let message = format!(
                    "another file has appeared there and was left unchanged; the output is in {}",
                    beside.display()
                );
                (self.path, self.place) = (beside.clone(), beside);
                self.current = Current::Ours(file);
                return Err(io::Error::other(message));
            }
        };
        self.current = Current::Ours(put.map_err(|refused| refused.error)?);
        Ok(())
    }
}

impl Keeper for KeptFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn keep(&mut self, text: &str) -> io::Result<()> {
        self.write(text.as_bytes())
    }
}

/// Whether a file can be created at `path`: its directory exists and is writable.
///
/// # Errors
/// It cannot.
fn can_hold(path: &Path) -> Result<(), Failure> {
    let (place, _) = place(path)?;
    match tempfile::tempfile_in(folder(&place)) {
        Ok(_) => Ok(()),
        Err(error) => {
            let expected = format!("{error}: the directory must exist and be writable");
            let writing = Failure::system(format!("writing {}", path.display()));
            Err(writing(io::Error::other(expected)))
        }
    }
}

fn refused(path: &Path, what: &str) -> Failure {
    Failure::Usage(format!(
        "{} {what}: expected a file, or a name for a new file",
        path.display()
    ))
}

/// The target of `path` after following links, which are kept, and what exists there.
fn place(path: &Path) -> Result<(PathBuf, Option<fs::Metadata>), Failure> {
    if path.as_os_str().is_empty() || path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(refused(path, "does not end in a file name"));
    }
    let looking = || Failure::system(format!("inspecting {}", path.display()));
    match fs::metadata(path) {
        // The path of a descriptor, such as /dev/stdout, may refer to a file that has no path any more.
        Ok(found) => Ok((
            fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()),
            Some(found),
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut end = path.to_owned();
            for _ in 0..LINKS_MAX {
                match fs::read_link(&end) {
                    Ok(next) => end = folder(&end).join(next),
                    Err(_) => break,
                }
            }
            let name: OsString = end.file_name().map(Into::into).unwrap_or_default();
            Ok((
                fs::canonicalize(folder(&end)).map_or(end, |folder| folder.join(name)),
                None,
            ))
        }
        Err(error) => Err(looking()(error)),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Standard output or error, if it refers to the file `found`: replacing that file would cut the output off, and
/// reopening it would start again at its beginning.
fn standard(found: &fs::Metadata) -> Option<OwnedFd> {
    let goes_there = |out: BorrowedFd<'_>| {
        let known = rustix::fs::fstat(out).ok()?;
        let same = known.st_dev == found.dev() && known.st_ino == found.ino();
        same.then(|| out.try_clone_to_owned().ok()).flatten()
    };
    goes_there(io::stdout().as_fd()).or_else(|| goes_there(io::stderr().as_fd()))
}

/// Opens a file that is written in place.
fn standing(path: &Path) -> io::Result<File> {
    match standard(&fs::metadata(path)?) {
        Some(standard) => Ok(standard.into()),
        None => OpenOptions::new().write(true).open(path),
    }
}

/// A temporary file in the same directory, to be renamed.
fn draft(place: &Path, old: Option<&File>, bytes: &[u8]) -> io::Result<tempfile::NamedTempFile> {
    let mut draft = tempfile::Builder::new()
        .prefix(".flaz-")
        .suffix(".new")
        .permissions(Permissions::from_mode(NEW_FILE_MODE))
        .tempfile_in(folder(place))?;
    draft.write_all(bytes)?;
    if let Some(old) = old {
        let old = old.metadata()?;
        // Only root may change the owner; for other users the file becomes their own, as a copy would.
        let _ = std::os::unix::fs::fchown(draft.as_file(), Some(old.uid()), Some(old.gid()));
        draft.as_file().set_permissions(old.permissions())?;
    }
    draft.as_file().sync_all()?;
    Ok(draft)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn taken(path: &Path) -> Result<OutputFile, String> {
        OutputFiles::default()
            .take(path)
            .map_err(|failure| crate::error::chain(&failure))
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn more_than_the_file_system_has_room_for_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        let free = rustix::fs::statvfs(scratch.path()).unwrap();
        let free = free.f_bavail * free.f_frsize;
        let refused = |file: &OutputFile| {
            let error = file.expect_room(free * 2 + (1 << 30)).unwrap_err();
            crate::error::chain(&error)
        };
        let missing = taken(&path).unwrap();
        missing.expect_room(1).unwrap();
        assert!(refused(&missing).contains("bytes of free space, found"));
        fs::write(&path, "old").unwrap();
        let held = taken(&path).unwrap();
        held.expect_room(1).unwrap();
        assert!(refused(&held).contains("bytes of free space, found"));
        let device = taken(Path::new("/dev/null")).unwrap();
        device.expect_room(u64::MAX).unwrap();
    }

    #[test]
    fn a_new_file_has_the_usual_mode() {
        let scratch = tempfile::tempdir().unwrap();
        let (ours, any) = (scratch.path().join("ours"), scratch.path().join("any"));
        taken(&ours).unwrap().write(b"text").unwrap();
        fs::write(&any, "text").unwrap();
        assert_eq!(fs::read(&ours).unwrap(), b"text");
        assert_eq!(mode(&ours), mode(&any));
        assert_eq!(
            fs::read_dir(scratch.path()).unwrap().count(),
            2,
            "no draft is left"
        );
    }

    #[test]
    fn an_old_file_keeps_its_mode_and_the_links_to_it() {
        let scratch = tempfile::tempdir().unwrap();
        let (file, link) = (scratch.path().join("file"), scratch.path().join("link"));
        fs::write(&file, "a text that is longer").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        taken(&link).unwrap().write(b"text").unwrap();
        assert_eq!((fs::read(&file).unwrap(), mode(&file)), (b"text".to_vec(), 0o640));
        assert!(link.is_symlink());
        let mut open = taken(&link).unwrap().open().unwrap();
        open.write_all(b"t").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"t", "cut to what was written");
        drop(open);
        fs::remove_file(&file).unwrap();
        taken(&link).unwrap().write(b"again").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"again");
    }

    #[test]
    fn a_file_created_meanwhile_is_not_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        let new = taken(&path).unwrap();
        fs::write(&path, "theirs").unwrap();
        assert!(new.write(b"ours").is_err());
        let old = taken(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "theirs again").unwrap();
        assert!(old.write(b"ours").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"theirs again");
    }

    #[test]
    fn a_kept_file_is_replaced_completely_and_held() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        let mut kept = taken(&path).unwrap().keep().unwrap();
        for text in ["first", "second"] {
            kept.write(text.as_bytes()).unwrap();
            assert_eq!(fs::read(&path).unwrap(), text.as_bytes());
            assert!(
                taken(&path).unwrap_err().contains("locked"),
                "held after the {text}"
            );
        }
        fs::remove_file(&path).unwrap();
        kept.write(b"third").unwrap();
        assert_eq!(
            fs::read(&path).unwrap(),
            b"third",
            "a removed file is created again"
        );
        drop(kept);
        let mut again = taken(&path).unwrap().keep().unwrap();
        assert_eq!(
            fs::read(&path).unwrap(),
            b"third",
            "nothing is lost before something is written"
        );
        again.write(b"fourth").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"fourth");
        assert_eq!(
            fs::read_dir(scratch.path()).unwrap().count(),
            1,
            "no draft is left"
        );
        assert!(taken(Path::new("/dev/null")).unwrap().keep().is_err());
    }

    #[test]
    fn a_file_in_place_of_a_kept_one_is_not_replaced() {
        for first in [false, true] {
            let scratch = tempfile::tempdir().unwrap();
            let (path, theirs) = (scratch.path().join("file"), scratch.path().join("theirs"));
            let mut kept = taken(&path).unwrap().keep().unwrap();
            if first {
                kept.write(b"ours").unwrap();
                fs::remove_file(&path).unwrap();
            }
            // A link to a file that must not be written is refused as well.
            fs::write(&theirs, "theirs").unwrap();
            symlink(&theirs, &path).unwrap();
            let message = kept.write(b"ours again").unwrap_err().to_string();
            assert!(path.is_symlink());
            assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
            assert_ne!(kept.path(), path);
            assert!(message.contains(kept.path().to_str().unwrap()), "{message}");
            assert_eq!(fs::read(kept.path()).unwrap(), b"ours again");
        }
    }

    #[test]
    fn files_in_use_and_other_types_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        fs::write(path("file"), "text").unwrap();
        let _held = taken(&path("file")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        for (name, part) in [
            ("file", "locked"),
            ("socket", "not a file or a pipe"),
            ("", "does not end in a file name"),
            ("none/", "does not end in a file name"),
            ("none/file", "the directory must exist"),
            ("file/file", "inspecting"),
            (".", "is a directory"),
        ] {
            let message = taken(&path(name)).unwrap_err();
            assert!(message.contains(part), "'{name}': no '{part}' in {message}");
        }
        assert!(
            taken(Path::new(""))
                .unwrap_err()
                .contains("does not end in a file name")
        );
    }

    #[test]
    fn a_file_is_used_as_input_or_for_one_output_only() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        fs::write(path("in"), "text").unwrap();
        fs::hard_link(path("in"), path("same")).unwrap();
        let mut files = OutputFiles::beside(&[path("in"), path("none")]);
        assert!(matches!(files.take(&path("same")), Err(Failure::Usage(_))));
        fs::write(path("old"), "text").unwrap();
        symlink("old", path("link")).unwrap();
        symlink("new", path("nowhere")).unwrap();
        for (one, other) in [("old", "link"), ("new", "nowhere")] {
            let _held = files.take(&path(one)).unwrap();
            let message = files.take(&path(other)).unwrap_err().to_string();
            assert!(message.contains("given for two outputs"), "{message}");
        }
    }

    #[test]
    fn character_devices_are_written_in_place() {
        taken(Path::new("/dev/null")).unwrap().write(b"text").unwrap();
        let full = taken(Path::new("/dev/full")).unwrap().write(b"text");
        assert!(crate::error::chain(&full.unwrap_err()).contains("/dev/full: No space left"));
    }
}
