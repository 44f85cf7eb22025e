//! Drops cached pages between tests.

use std::fs;

use crate::error::LoadError;
use crate::word::words;

/// The kernel's file for dropping its page cache.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

words! {
    /// Which pages are dropped from the page cache between tests.
    #[derive(Default)]
    pub enum DropCaches {
        /// Those of the whole system if that is permitted and the page cache is used, otherwise those of the target.
        #[default]
        Auto => "auto",
        /// Those of the target.
        Target => "target",
        /// Those of the whole system.
        System => "system",
        /// None.
        No => "no",
    }
}

/// The meaning of [`DropCaches::Auto`], given whether the page cache is used (`buffered`).
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

/// Drops the cached pages of all files and devices.
///
/// # Errors
/// It is not permitted.
pub(super) fn drop_system() -> Result<(), LoadError> {
    fs::write(DROP_CACHES, "1").map_err(LoadError::at("drop caches by", DROP_CACHES))
}
