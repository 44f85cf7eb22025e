//! A path and the device or file that it names.

use std::fs::Metadata;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::error::SafetyError;
use super::identity::Identity;

/// A path and the node that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// As specified by the user.
    pub path: PathBuf,
    /// The node.
    pub identity: Identity,
}

impl Node {
    /// Inspects `path`; `None` if it does not exist.
    ///
    /// # Errors
    /// It cannot be inspected, or is not a block device or regular file.
    pub fn find(path: &Path) -> Result<Option<Self>, SafetyError> {
        let metadata = match std::fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(SafetyError::Open {
                    what: "inspect",
                    path: path.to_owned(),
                    source,
                });
            }
        };
        Self::of(path, &metadata).map(Some)
    }

    /// The node that `metadata` describes.
    ///
    /// # Errors
    /// It is not a block device or regular file.
    pub fn of(path: &Path, metadata: &Metadata) -> Result<Self, SafetyError> {
        match Identity::of(metadata) {
            Some(identity) => Ok(Self {
                path: path.to_owned(),
                identity,
            }),
            None => Err(SafetyError::Kind {
                path: path.to_owned(),
                found: kind(metadata),
            }),
        }
    }

    /// Whether it is a block device.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        matches!(self.identity, Identity::Block(_))
    }
}

fn kind(metadata: &Metadata) -> &'static str {
    let file_type = metadata.file_type();
    if file_type.is_dir() {
        "a directory"
    } else if file_type.is_char_device() {
        "a character device"
    } else if file_type.is_fifo() {
        "a pipe"
    } else if file_type.is_socket() {
        "a socket"
    } else {
        "an unsupported file type"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_name_the_same_file() {
        let scratch = tempfile::tempdir().unwrap();
        let (file, hard, soft) = (
            scratch.path().join("file"),
            scratch.path().join("hard"),
            scratch.path().join("soft"),
        );
        std::fs::write(&file, "x").unwrap();
        std::fs::hard_link(&file, &hard).unwrap();
        std::os::unix::fs::symlink(&file, &soft).unwrap();
        let node = Node::find(&file).unwrap().unwrap();
        assert_eq!(Node::find(&hard).unwrap().unwrap().identity, node.identity);
        assert_eq!(Node::find(&soft).unwrap().unwrap().identity, node.identity);
        assert!(!node.is_block_device());
        std::fs::write(scratch.path().join("other"), "x").unwrap();
        assert_ne!(Identity::at(&scratch.path().join("other")), Some(node.identity));
    }

    #[test]
    fn other_file_types_are_named() {
        assert_eq!(Node::find(Path::new("/no/such")).unwrap(), None);
        let message = |path: &str| Node::find(Path::new(path)).unwrap_err().to_string();
        assert!(message("/").contains("found a directory"));
        assert!(message("/dev/null").contains("found a character device"));
    }
}
