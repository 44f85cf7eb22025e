//! Whose cached pages are dropped between tests.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::error::LoadError;

/// Where the kernel takes orders to drop its page cache.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Whose pages are dropped from the page cache between tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DropCaches {
    /// Of the whole system if that is allowed and pages are used, else of the target.
    #[default]
    Auto,
    /// Of the target.
    Target,
    /// Of the whole system.
    System,
    /// Nobody's.
    No,
}

/// What [`DropCaches::Auto`] comes to, where pages are used (`buffered`).
#[must_use]
pub fn decided(whose: DropCaches, buffered: bool) -> DropCaches {
    match whose {
        DropCaches::Auto => {
            let allowed = rustix::process::geteuid().is_root()
                && rustix::fs::access(DROP_CACHES, rustix::fs::Access::WRITE_OK).is_ok();
            if buffered && allowed {
                DropCaches::System
            } else {
                DropCaches::Target
            }
        }
        other => other,
    }
}

/// Drops what the kernel holds of all files and devices.
///
/// # Errors
/// It is not allowed.
pub(super) fn drop_system() -> Result<(), LoadError> {
    fs::write(DROP_CACHES, "1").map_err(LoadError::at("drop caches by", DROP_CACHES))
}
