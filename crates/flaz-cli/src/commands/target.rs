//! From what the user names, a device or a socket, to the daemon that serves it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::control::place::Places;
use crate::control::{Client, ControlError};
use crate::error::Failure;
use crate::host;

/// A connection to the daemon of a cache, or none if it is not running.
///
/// # Errors
/// The cache cannot be identified, or its daemon is there but may not be asked.
pub fn find(cache: Option<&Path>, control: Option<&Path>) -> Result<Option<Client>, Failure> {
    if let Some(control) = control {
        return match Client::connect(control, cache.and_then(owner)) {
            Err(ControlError::NotRunning { .. }) if cache.is_some() => Ok(None),
            other => Ok(other.map(Some)?),
        };
    }
    let cache = cache.ok_or_else(|| Failure::Usage("expected CACHE or --control PATH".to_owned()))?;
    let uuid = host::identify(cache).map_err(Failure::host("finding the daemon of", cache))?;
    let owner = owner(cache);
    let mut refused = None;
    for path in Places::of_process().control_candidates(&uuid, owner) {
        match Client::connect(&path, owner) {
            Ok(client) => return Ok(Some(client)),
            Err(ControlError::NotRunning { .. }) => {}
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    match refused {
        Some(error) => Err(error.into()),
        None => Ok(None),
    }
}

/// The same for commands that make no sense without a daemon.
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
    Some(std::fs::metadata(cache).ok()?.uid())
}
