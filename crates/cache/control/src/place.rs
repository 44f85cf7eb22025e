//! Default paths of the sockets of a cache: named by its UUID, in the runtime directory.
//!
//! The runtime directory is `$FLAZ_RUNTIME_DIR`, else `/run/flaz` for root, else `$XDG_RUNTIME_DIR/flaz`, else
//! `/tmp/flaz-UID`. The daemon creates it with mode 0700 and refuses a directory that other users can write to.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use uuid::Uuid;

use crate::error::ControlError;
use crate::stale;

/// The runtime directories and the environment that determines them.
#[derive(Clone, Debug)]
pub struct Places {
    /// The value of `FLAZ_RUNTIME_DIR`.
    pub own: Option<PathBuf>,
    /// The value of `XDG_RUNTIME_DIR`.
    pub xdg: Option<PathBuf>,
    /// Who asks.
    pub uid: u32,
}

impl Places {
    /// For this process.
    #[must_use]
    pub fn of_process() -> Self {
        let directory = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        Self {
            own: directory("FLAZ_RUNTIME_DIR"),
            xdg: directory("XDG_RUNTIME_DIR"),
            uid: geteuid().as_raw(),
        }
    }

    /// The directory in which a daemon of this user creates its sockets.
    #[must_use]
    pub fn daemon_directory(&self) -> PathBuf {
        match (&self.own, self.uid, &self.xdg) {
            (Some(own), _, _) => own.clone(),
            (None, 0, _) => PathBuf::from("/run/flaz"),
            (None, _, Some(xdg)) => xdg.join("flaz"),
            (None, uid, None) => PathBuf::from(format!("/tmp/flaz-{uid}")),
        }
    }

    /// Where a client looks for the control socket of a cache whose file belongs to `owner_uid`, in order: the path of
    /// this user's daemon, of root's, of the owner's.
    #[must_use]
    pub fn control_candidates(&self, uuid: &Uuid, owner_uid: Option<u32>) -> Vec<PathBuf> {
        let directories = self.directories(owner_uid);
        directories
            .iter()
            .map(|directory| control_socket(directory, uuid))
            .collect()
    }

    /// All control sockets in the same directories, for a cache that cannot be read.
    #[must_use]
    pub fn all_control_sockets(&self, owner_uid: Option<u32>) -> Vec<PathBuf> {
        let entries = self
            .directories(owner_uid)
            .into_iter()
            .flat_map(std::fs::read_dir);
        let paths = entries.flatten().flatten().map(|entry| entry.path());
        paths
            .filter(|path| path.extension().is_some_and(|end| end == "sock"))
            .collect()
    }

    /// Removes stale sockets of killed daemons from this user's runtime directory.
    pub fn remove_stale_sockets(&self) {
        let directory = self.daemon_directory();
        // In a directory that others can write to, a file could be replaced between check and removal.
        if check_directory(&directory).is_err() {
            return;
        }
        let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).filter(|path| is_default(path)) {
            stale::remove(&path);
        }
    }

    fn directories(&self, owner_uid: Option<u32>) -> Vec<PathBuf> {
        let mut directories: Vec<PathBuf> = Vec::new();
        let mut add = |directory: PathBuf| {
            if !directories.contains(&directory) {
                directories.push(directory);
            }
        };
        add(self.daemon_directory());
        add(PathBuf::from("/run/flaz"));
        if let Some(xdg) = &self.xdg {
            add(xdg.join("flaz"));
        }
        for uid in [Some(self.uid), owner_uid].into_iter().flatten() {
            add(PathBuf::from(format!("/run/user/{uid}/flaz")));
            add(PathBuf::from(format!("/tmp/flaz-{uid}")));
        }
        directories
    }
}

/// Whether a socket has a default name, not one that a user chose.
fn is_default(path: &Path) -> bool {
    let is_uuid = path
        .file_stem()
        .is_some_and(|stem| stem.to_str().is_some_and(|stem| Uuid::try_parse(stem).is_ok()));
    is_uuid && path.extension().is_some_and(|end| end == "sock" || end == "nbd")
}

/// The control socket of a cache in a runtime directory.
#[must_use]
pub fn control_socket(directory: &Path, uuid: &Uuid) -> PathBuf {
    directory.join(format!("{uuid}.sock"))
}

/// The NBD socket of a cache in a runtime directory.
#[must_use]
pub fn nbd_socket(directory: &Path, uuid: &Uuid) -> PathBuf {
    directory.join(format!("{uuid}.nbd"))
}

/// Creates the runtime directory if it is missing, and checks that other users cannot write to it.
///
/// # Errors
/// It cannot be created, belongs to another user, is writable for others, or is not a directory (a link is not one).
pub fn prepare_directory(path: &Path) -> Result<(), ControlError> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => {
            return Err(ControlError::Make {
                what: "create the runtime directory (set FLAZ_RUNTIME_DIR to use another)",
                path: path.to_owned(),
                source,
            });
        }
    }
    check_directory(path)
}

/// Checks that a runtime directory belongs to this user, and that others cannot write to it.
fn check_directory(path: &Path) -> Result<(), ControlError> {
    let uid = geteuid().as_raw();
    let metadata = std::fs::symlink_metadata(path).map_err(|source| ControlError::Make {
        what: "inspect the runtime directory",
        path: path.to_owned(),
        source,
    })?;
    let found = if !metadata.is_dir() {
        "a file that is not a directory".to_owned()
    } else if metadata.uid() != uid {
        format!("a directory of user {}", metadata.uid())
    } else if metadata.mode() & 0o022 != 0 {
        format!("mode {:03o}", metadata.mode() & 0o777)
    } else {
        return Ok(());
    };
    Err(ControlError::UnsafeDirectory {
        path: path.to_owned(),
        uid,
        found,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    fn places(own: Option<&str>, xdg: Option<&str>, uid: u32) -> Places {
        Places {
            own: own.map(PathBuf::from),
            xdg: xdg.map(PathBuf::from),
            uid,
        }
    }

    #[test]
    fn directory_by_environment_then_user() {
        let directory = |own, xdg, uid| places(own, xdg, uid).daemon_directory();
        assert_eq!(directory(Some("/x"), Some("/run/user/0"), 0), Path::new("/x"));
        assert_eq!(directory(None, Some("/run/user/0"), 0), Path::new("/run/flaz"));
        assert_eq!(
            directory(None, Some("/run/user/7"), 7),
            Path::new("/run/user/7/flaz")
        );
        assert_eq!(directory(None, None, 7), Path::new("/tmp/flaz-7"));
    }

    #[test]
    fn root_finds_the_daemon_of_the_files_owner() {
        let uuid = Uuid::from_u128(5);
        let candidates = places(None, None, 0).control_candidates(&uuid, Some(7));
        assert_eq!(
            candidates[0],
            Path::new("/run/flaz/00000000-0000-0000-0000-000000000005.sock")
        );
        assert!(candidates.contains(&PathBuf::from(format!("/tmp/flaz-7/{uuid}.sock"))));
        let unique: std::collections::BTreeSet<_> = candidates.iter().collect();
        assert_eq!(unique.len(), candidates.len());
    }

    #[test]
    fn only_sockets_that_no_process_has_are_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let run = scratch.path().join("run");
        prepare_directory(&run).unwrap();
        let uuid = |number| Uuid::from_u128(number);
        let living = [control_socket(&run, &uuid(1)), nbd_socket(&run, &uuid(1))];
        let _listeners = living.each_ref().map(|path| UnixListener::bind(path).unwrap());
        // One that is bound and does not listen yet.
        let reserved = nbd_socket(&run, &uuid(2));
        let _reserved = reserve(&reserved);
        let file = control_socket(&run, &uuid(3));
        std::fs::write(&file, "a file").unwrap();
        let named = run.join("named.sock");
        let stale = [control_socket(&run, &uuid(4)), nbd_socket(&run, &uuid(5))];
        for path in stale.iter().chain([&named]) {
            drop(UnixListener::bind(path).unwrap());
        }
        let places = places(Some(run.to_str().unwrap()), None, geteuid().as_raw());
        // Others could exchange a file.
        std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o777)).unwrap();
        places.remove_stale_sockets();
        assert!(stale.iter().all(|path| path.exists()));
        std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o700)).unwrap();
        // A daemon is starting.
        let lock = std::fs::File::open(&run).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        places.remove_stale_sockets();
        assert!(stale.iter().all(|path| path.exists()));
        drop(lock);
        places.remove_stale_sockets();
        assert!(stale.iter().all(|path| !path.exists()));
        for path in living.iter().chain([&reserved, &file, &named]) {
            assert!(path.exists(), "{}", path.display());
        }
    }

    /// A socket that has a name and does not listen.
    fn reserve(path: &Path) -> std::os::fd::OwnedFd {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, socket};

        let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        socket
    }

    #[test]
    fn directories_others_could_prepare_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let fresh = scratch.path().join("fresh");
        prepare_directory(&fresh).unwrap();
        assert_eq!(std::fs::metadata(&fresh).unwrap().mode() & 0o777, 0o700);
        prepare_directory(&fresh).unwrap();

        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(
            prepare_directory(&fresh)
                .unwrap_err()
                .to_string()
                .contains("mode 777")
        );
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o700)).unwrap();

        let link = scratch.path().join("link");
        symlink(&fresh, &link).unwrap();
        assert!(matches!(
            prepare_directory(&link),
            Err(ControlError::UnsafeDirectory { .. })
        ));
        let missing_parent = scratch.path().join("no/such");
        assert!(matches!(
            prepare_directory(&missing_parent),
            Err(ControlError::Make { .. })
        ));
    }
}
