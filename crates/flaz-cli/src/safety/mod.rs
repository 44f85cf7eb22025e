//! What must be known about a device before it is overwritten.
//!
//! Invariant: nothing is written, not even a file made, before every check has passed.

pub mod claim;
pub mod node;

pub use claim::{Claim, claim_for_create, origin};
pub use node::Node;

use std::path::PathBuf;

/// Why a device or file is not to be touched, or cannot be.
#[derive(Debug, thiserror::Error)]
pub enum SafetyError {
    /// Cannot be opened or looked at.
    #[error("cannot {what} {}", path.display())]
    Open {
        /// What was being done.
        what: &'static str,
        /// With which device or file.
        path: PathBuf,
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
    #[error("{}: no such {role}{advice}", path.display())]
    Missing {
        /// The path.
        path: PathBuf,
        /// `cache device` or `origin`.
        role: &'static str,
        /// What to do, or nothing.
        advice: &'static str,
    },
}

impl SafetyError {
    /// Whether the command line is to blame rather than the device.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        false
    }
}
