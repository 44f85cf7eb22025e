//! A directory for one test, removed with it.

use std::fs::File;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::data::mixed_data;

/// Two directories: one next to the build output for images (a real disk, where O_DIRECT works), and one in the
/// system's temporary directory for sockets (whose paths have at most 107 bytes) and mount points.
pub struct Scratch {
    images: TempDir,
    sockets: TempDir,
}

impl Scratch {
    pub fn new() -> Self {
        let make = |parent: &Path| {
            tempfile::Builder::new()
                .prefix("flaz-test-")
                .tempdir_in(parent)
                .unwrap_or_else(|error| panic!("no scratch folder in {}: {error}", parent.display()))
        };
        Self {
            images: make(Path::new(env!("CARGO_TARGET_TMPDIR"))),
            sockets: make(&std::env::temp_dir()),
        }
    }

    /// Keeps the images and the server's log next to them, and returns their directory.
    pub fn keep(&mut self) -> &Path {
        self.images.disable_cleanup(true);
        self.images.path()
    }

    /// The images are removed after all.
    pub fn discard(&mut self) {
        self.images.disable_cleanup(false);
    }

    /// A path for an image that does not exist yet.
    pub fn image(&self, name: &str) -> PathBuf {
        self.images.path().join(name)
    }

    /// A path for a socket or a mount point that does not exist yet.
    pub fn place(&self, name: &str) -> PathBuf {
        self.sockets.path().join(name)
    }

    /// The state directory of servers.
    pub fn state_dir(&self) -> PathBuf {
        self.image("state.d")
    }

    /// A sparse file of `len` zero bytes.
    pub fn sparse(&self, name: &str, len: u64) -> PathBuf {
        let path = self.image(name);
        let file = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        file.set_len(len)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// A file of `len` bytes like those on a real disk: text, records, random bytes, runs of zeroes.
    pub fn filled(&self, name: &str, len: u64, seed: u64) -> PathBuf {
        let path = self.image(name);
        let len = usize::try_from(len).expect("test images fit memory");
        std::fs::write(&path, mixed_data(len, seed))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }
}
