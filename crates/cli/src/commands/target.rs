//! Finds the daemon that serves a cache, from its device or its control socket.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::control::file::ServedFile;
use crate::control::place::Places;
use crate::control::{Client, ControlError, Reply, Request};
use crate::error::Failure;
use crate::host;
use crate::host::pool::Place;

/// How long each daemon has to say what it serves.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A connection to the daemon of a cache, or `None` if it is not running.
///
/// # Errors
/// The cache cannot be identified, or its daemon exists but refuses this user.
pub fn find(cache: Option<&Path>, control: Option<&Path>) -> Result<Option<Client>, Failure> {
    let what = "finding the daemon (or use --control PATH) of";
    if let Some(cache) = cache {
        host::refuse_to_wait(cache).map_err(Failure::host(what, cache))?;
    }
    if let Some(control) = control {
        let owner = cache.and_then(owner);
        let mut client = match Client::connect(control, owner) {
            Err(ControlError::NotRunning { .. }) if cache.is_some() => return Ok(None),
            other => other?,
        };
        let Some(cache) = cache else {
            return Ok(Some(client));
        };
        return match served(&mut client, owner)? {
            Some(file) if !is_of(&file, cache) => Err(Failure::NotItsSocket {
                cache: cache.to_owned(),
                control: control.to_owned(),
                served: path_of(file),
            }),
            _ => Ok(Some(client)),
        };
    }
    let cache = cache.ok_or_else(|| Failure::Usage("expected CACHE or --control PATH".to_owned()))?;
    let owner = owner(cache);
    let uuid = match host::identify(cache) {
        Ok(uuid) => uuid,
        // A device that has failed is served on, and this is when its status matters.
        Err(error) => {
            return match find_by_path(cache, owner) {
                None => Err(Failure::host(what, cache)(error)),
                found => Ok(found),
            };
        }
    };
    let (mut refused, mut copied) = (None, None);
    let places = Places::of_process();
    for path in places.control_candidates(&uuid, owner) {
        match Client::connect(&path, owner) {
            Ok(mut client) => match served(&mut client, owner) {
                Ok(Some(file)) if !is_of(&file, cache) => copied = Some(path_of(file)),
                Ok(_) => return Ok(Some(client)),
                Err(error) => refused = refused.or(Some(error)),
            },
            Err(ControlError::NotRunning { .. }) => {}
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    if let Some(served) = copied {
        return Err(Failure::Copy {
            cache: cache.to_owned(),
            served,
        });
    }
    match refused {
        Some(error) if !is_nobodys(&error, cache) => Err(error.into()),
        _ => {
            places.remove_stale_sockets();
            Ok(None)
        }
    }
}

/// The file that the daemon of this connection serves. `None`: the daemon is older and does not report it.
///
/// # Errors
/// It does not answer.
pub fn served(client: &mut Client, owner: Option<u32>) -> Result<Option<ServedFile>, ControlError> {
    match client.ask(&Request::Identify {}, ANSWER_WITHIN) {
        Ok(Reply::File(file)) => Ok(Some(file)),
        Ok(_) => Ok(None),
        // The daemon may have refused the connection. The command itself reports why.
        Err(ControlError::Refused { .. }) => {
            let path = client.path().to_owned();
            *client = Client::connect(&path, owner)?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Whether a daemon that serves `file` is that of `cache`.
pub fn is_of(file: &ServedFile, cache: &Path) -> bool {
    let Place { device, volume } = Place::of(cache);
    file.is(&device, volume.as_deref())
}

/// The path as the user names it.
fn path_of(served: ServedFile) -> PathBuf {
    match served.volume {
        Some(volume) => Place::path_of(&served.path, &volume),
        None => served.path,
    }
}

/// The daemon that says that it serves this path.
fn find_by_path(cache: &Path, owner: Option<u32>) -> Option<Client> {
    let wanted = std::path::absolute(cache).ok()?;
    let serves_it = |client: &mut Client| match client.ask(&Request::Status {}, ANSWER_WITHIN) {
        // A relative path is relative to the directory of the daemon, which is not known.
        Ok(Reply::Status(status)) => status.cache.path == wanted,
        _ => false,
    };
    let sockets = Places::of_process().all_control_sockets(owner);
    let mut clients = sockets.iter().flat_map(|path| Client::connect(path, owner));
    clients.find_map(|mut client| serves_it(&mut client).then_some(client))
}

/// Whether a directory without read permission is irrelevant for this cache: root's runtime directory is closed to
/// others, whatever it contains, and a daemon would hold the lock of the cache file.
fn is_nobodys(refused: &ControlError, cache: &Path) -> bool {
    let lock = || {
        let file = std::fs::File::open(Place::of(cache).device).ok()?;
        let is_file = file.metadata().ok()?.is_file();
        (is_file && flock(&file, FlockOperation::NonBlockingLockShared).is_ok()).then_some(())
    };
    matches!(refused, ControlError::Denied { .. }) && lock().is_some()
}

/// The same for commands that need a daemon.
///
/// # Errors
/// As [`find`], and no daemon.
pub fn require(cache: Option<&Path>, control: Option<&Path>) -> Result<Client, Failure> {
    match (find(cache, control)?, cache) {
        (Some(client), _) => Ok(client),
        (None, Some(cache)) => Err(Failure::NoDaemon {
            cache: cache.to_owned(),
        }),
        (None, None) => Err(Failure::Usage("expected CACHE or --control PATH".to_owned())),
    }
}

fn owner(cache: &Path) -> Option<u32> {
    Some(std::fs::metadata(Place::of(cache).device).ok()?.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_directory_does_not_hide_an_idle_cache() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let denied = ControlError::Denied {
            path: folder.path().join("x.sock"),
        };
        assert!(!is_nobodys(&denied, &cache), "it does not exist");
        let daemon = std::fs::File::create(&cache).unwrap();
        assert!(is_nobodys(&denied, &cache));
        let hung_up = ControlError::HungUp { path: cache.clone() };
        assert!(!is_nobodys(&hung_up, &cache), "a daemon listens");
        flock(&daemon, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(!is_nobodys(&denied, &cache), "it is being served");
    }
}
