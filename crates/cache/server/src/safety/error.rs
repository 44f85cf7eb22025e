//! Why a device or file cannot be used.

use std::path::PathBuf;

use flaz_control::size::HumanBytes;

use super::objections::Objections;

/// Why a device or file is not to be touched, or cannot be.
#[derive(Debug, thiserror::Error)]
pub enum SafetyError {
    /// Cannot be opened, read or looked at.
    #[error("cannot {what} {}", path.display())]
    Open {
        /// What was being done.
        what: &'static str,
        /// With which device or file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Cannot be opened.
    #[error("cannot open {} to {access}", path.display())]
    NotOpened {
        /// Which device or file.
        path: PathBuf,
        /// What it was to be opened for.
        access: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// Only others may open it.
    #[error("{}: no permission to {access} it; {advice}", path.display())]
    NotAllowed {
        /// Which device or file.
        path: PathBuf,
        /// What it was to be opened for.
        access: &'static str,
        /// Who may.
        advice: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// Neither a block device nor a regular file.
    #[error("{}: expected a block device or a regular file, found {found}", path.display())]
    Kind {
        /// The path.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// Not there.
    #[error("{}: no such {role}: {advice}", path.display())]
    Missing {
        /// The path.
        path: PathBuf,
        /// `cache device` or `origin`.
        role: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// Replaced while it was being looked at.
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
    /// Somebody needs it.
    #[error("{} is not free; nothing was written:{objections}", path.display())]
    Refused {
        /// The cache device.
        path: PathBuf,
        /// What speaks against it.
        objections: Objections,
    },
    /// Somebody may need what it carries.
    #[error(
        "{} is not free; nothing was written:{list}\nNo option overrides this: choose another target, or free \
         this one first (umount, swapoff, losetup --detach; wipefs --all removes signatures, and the data \
         they belong to is lost)",
        path.display()
    )]
    Kept {
        /// The device or file.
        path: PathBuf,
        /// What speaks against it, a line each.
        list: String,
    },
    /// Somebody else holds it.
    #[error("{} is in use: {list}: stop that first", path.display())]
    Busy {
        /// The cache device.
        path: PathBuf,
        /// By whom.
        list: String,
    },
    /// `--size` on something that has another size.
    #[error(
        "{}: expected {} ({wanted} bytes, from --size), found a {what} of {} ({found} bytes): omit --size to \
         use it as it is", path.display(), HumanBytes(*wanted), HumanBytes(*found)
    )]
    OtherSize {
        /// The cache device.
        path: PathBuf,
        /// As asked for, in bytes.
        wanted: u64,
        /// As it is, in bytes.
        found: u64,
        /// `device` or `file`.
        what: &'static str,
    },
}
