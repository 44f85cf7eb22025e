//! Why a device or file cannot be used.

use std::path::PathBuf;

use flaz_control::size::HumanBytes;

use super::objections::Objections;

/// The role of a cache device in [`SafetyError::Missing`].
pub const CACHE_DEVICE: &str = "cache device";

/// What a command advises about an origin that it refuses.
#[derive(Clone, Copy, Debug)]
pub struct OriginAdvice {
    /// It is not there.
    pub missing: &'static str,
    /// It contains a flaz cache.
    pub is_cache: &'static str,
}

/// Why a device or file cannot or must not be used.
#[derive(Debug, thiserror::Error)]
pub enum SafetyError {
    /// It cannot be opened, read or inspected.
    #[error("cannot {what} {}", path.display())]
    Open {
        /// The failed action.
        what: &'static str,
        /// The device or file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// It cannot be opened.
    #[error("cannot open {} to {access}", path.display())]
    NotOpened {
        /// The device or file.
        path: PathBuf,
        /// The requested access.
        access: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// No permission to open it.
    #[error("{}: no permission to {access} it; {advice}", path.display())]
    NotAllowed {
        /// The device or file.
        path: PathBuf,
        /// The requested access.
        access: &'static str,
        /// Who may.
        advice: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// It is not a block device or a regular file.
    #[error("{}: expected a block device or a regular file, found {found}", path.display())]
    Kind {
        /// The path.
        path: PathBuf,
        /// What was found.
        found: &'static str,
    },
    /// Not there.
    #[error("{}: no such {role}: {advice}", path.display())]
    Missing {
        /// The path.
        path: PathBuf,
        /// [`CACHE_DEVICE`], or another word.
        role: &'static str,
        /// Advice to the user.
        advice: &'static str,
    },
    /// It was replaced during the checks.
    #[error("{}: was just replaced by another file: try again", path.display())]
    Changed {
        /// The path.
        path: PathBuf,
    },
    /// Cache and origin share bytes.
    #[error(
        "{} and the origin {} are the same device or file, or one contains the other: the cache would \
         overwrite the origin; choose another CACHE",
        cache.display(), origin.display()
    )]
    SameAsOrigin {
        /// The cache device.
        cache: PathBuf,
        /// The origin.
        origin: PathBuf,
    },
    /// The origin is a cache.
    #[error(
        "the origin {} contains a flaz cache: {advice}",
        path.display()
    )]
    OriginIsCache {
        /// The origin.
        path: PathBuf,
        /// Advice to the user.
        advice: &'static str,
    },
    /// The file system has no space for the file.
    #[error(
        "{}: no space for a cache of {} ({size_bytes} bytes) on its file system, which has {} free: choose a smaller --size, \
         or use --sparse for a file that takes space as the cache fills",
        path.display(), HumanBytes(*size_bytes), HumanBytes(*free_bytes)
    )]
    NoSpace {
        /// The cache file.
        path: PathBuf,
        /// Its size in bytes.
        size_bytes: u64,
        /// Free bytes of the file system.
        free_bytes: u64,
    },
    /// It is in use.
    #[error("{} is not free; nothing was written:{}\n{}", path.display(), objections.list(), objections.advice(path))]
    Refused {
        /// The cache device.
        path: PathBuf,
        /// The objections.
        objections: Objections,
    },
    /// It contains data that may be needed.
    #[error(
        "{} is not free; nothing was written:{}\nNo option overrides this: choose another target, or free this one: {}",
        path.display(), objections.list(), objections.freeing(path)
    )]
    Kept {
        /// The device or file.
        path: PathBuf,
        /// The objections.
        objections: Objections,
    },
    /// Another process holds it.
    #[error("{} is in use: {list}: stop that first", path.display())]
    Busy {
        /// The cache device.
        path: PathBuf,
        /// By whom.
        list: String,
    },
    /// `--size` differs from the size of an existing device or file.
    #[error(
        "{}: expected {} ({wanted} bytes, from --size), found a {what} of {} ({found} bytes): omit --size to \
         use it as it is", path.display(), HumanBytes(*wanted), HumanBytes(*found)
    )]
    OtherSize {
        /// The cache device.
        path: PathBuf,
        /// The requested size in bytes.
        wanted: u64,
        /// The size found, in bytes.
        found: u64,
        /// `device` or `file`.
        what: &'static str,
    },
}
