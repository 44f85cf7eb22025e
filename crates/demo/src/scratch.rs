//! One directory for all files of the demo, on a real file system with enough space, removed at the end.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::DemoError;
use crate::interrupt::Interrupt;

/// The maximum path length of a Unix socket is 107 bytes; the names in the directory need this many.
const SOCKET_NAME_BYTES: usize = 24;
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// `f_type` of file systems in memory, where O_DIRECT and "disk" mean little: tmpfs, ramfs.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The directory. Removed with all its contents when dropped, unless it is kept.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    keep: bool,
    in_memory: bool,
    interrupt: Interrupt,
}

impl Scratch {
    /// Creates a directory with space for `needed` bytes: in `parent` if given, otherwise in the first of $TMPDIR,
    /// /var/tmp, /tmp with enough space, preferring disks to memory.
    ///
    /// # Errors
    /// [`DemoError::NoSpace`] if there is not enough space, or the system's error.
    pub fn create(
        parent: Option<&Path>,
        needed: u64,
        keep: bool,
        interrupt: &Interrupt,
    ) -> Result<Self, DemoError> {
        let candidates = match parent {
            Some(parent) => vec![parent.to_owned()],
            None => {
                let named = std::env::var_os("TMPDIR")
                    .filter(|name| !name.is_empty())
                    .map(PathBuf::from);
                named
                    .into_iter()
                    .chain(["/var/tmp".into(), "/tmp".into()])
                    .collect()
            }
        };
        let (place, in_memory) = choose(&candidates, needed)?;
        // The servers run in other working directories than the caller.
        let place = std::path::absolute(&place).map_err(DemoError::file("find", &place))?;
        if place.as_os_str().len() + 1 + SOCKET_NAME_BYTES * 2 > SOCKET_PATH_BYTES_MAX {
            return Err(DemoError::Usage(format!(
                "{} is too long a path for Unix sockets: use a shorter directory with --dir",
                place.display()
            )));
        }
        let folder = tempfile::Builder::new()
            .prefix("flaz-demo-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(&place)
            .map_err(DemoError::file("create a directory in", &place))?;
        let path = folder.keep();
        interrupt.remember_folder((!keep).then(|| path.clone()));
        Ok(Self {
            path,
            keep,
            in_memory,
            interrupt: interrupt.clone(),
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the directory is in memory because no disk had enough space.
    pub fn in_memory(&self) -> bool {
        self.in_memory
    }

    /// Creates a directory for one run in it.
    ///
    /// # Errors
    /// The system's error.
    pub fn subfolder(&self, name: &str) -> Result<PathBuf, DemoError> {
        let path = self.path.join(name);
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(DemoError::file("create", &path))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = std::fs::remove_dir_all(&self.path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!(
                "flaz demo: cannot remove {}: {error}; please remove it yourself",
                self.path.display()
            );
        }
        self.interrupt.remember_folder(None);
    }
}

/// The first candidate with enough space, preferring disks. Returns whether it is in memory.
fn choose(candidates: &[PathBuf], needed: u64) -> Result<(PathBuf, bool), DemoError> {
    let mut in_memory = None;
    let mut failure = None;
    for candidate in candidates {
        match room(candidate) {
            Err(error) => {
                failure.get_or_insert(error);
            }
            Ok((free, _)) if free < needed => {
                let path = candidate.clone();
                failure = Some(DemoError::NoSpace { path, free, needed });
            }
            Ok((_, false)) => return Ok((candidate.clone(), false)),
            Ok((_, true)) => {
                in_memory.get_or_insert_with(|| candidate.clone());
            }
        }
    }
    match (in_memory, failure) {
        (Some(place), _) => Ok((place, true)),
        (None, Some(error)) => Err(error),
        (None, None) => Err(DemoError::Usage(
            "no working directory found: specify one with --dir".into(),
        )),
    }
}

/// Free bytes for this user, and whether the file system is in memory.
fn room(folder: &Path) -> Result<(u64, bool), DemoError> {
    let failed =
        |errno: rustix::io::Errno| DemoError::file("determine the free space of", folder)(errno.into());
    let space = rustix::fs::statvfs(folder).map_err(failed)?;
    let kind = rustix::fs::statfs(folder).map_err(failed)?.f_type as u64;
    Ok((
        space.f_bavail.saturating_mul(space.f_frsize),
        MEMORY_FILE_SYSTEMS.contains(&kind),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_private_and_removed_at_the_end() {
        let scratch = Scratch::create(None, 1 << 20, false, &Interrupt::default()).expect("a folder");
        let path = scratch.path().to_owned();
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let run = scratch.subfolder("run").expect("a folder in it");
        std::fs::write(run.join("file"), b"x").expect("a file in it");
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn the_directory_is_kept_if_requested() {
        let outside = tempfile::tempdir().expect("a folder");
        let scratch =
            Scratch::create(Some(outside.path()), 1, true, &Interrupt::default()).expect("a folder");
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(path.exists());
    }

    #[test]
    fn missing_space_is_reported_before_files_are_created() {
        let outside = tempfile::tempdir().expect("a folder");
        let error =
            Scratch::create(Some(outside.path()), u64::MAX, false, &Interrupt::default()).expect_err("full");
        assert!(error.to_string().contains("--dir"), "{error}");
        assert_eq!(std::fs::read_dir(outside.path()).expect("there").count(), 0);
        let absent = outside.path().join("absent");
        assert!(matches!(
            Scratch::create(Some(&absent), 1, false, &Interrupt::default()),
            Err(DemoError::File { .. })
        ));
    }
}
