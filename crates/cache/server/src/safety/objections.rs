//! Objections to overwriting a device or file.

use std::path::Path;

use flaz_control::shell::quoted;

use super::holders::Use;
use super::probe::Found;
use super::signatures::Kind;

/// The objections to overwriting a device or file.
#[derive(Debug, Default)]
pub struct Objections {
    /// Its users.
    pub uses: Vec<Use>,
    /// Its contents.
    pub found: Vec<Found>,
}

impl Objections {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.uses.is_empty() && self.found.is_empty()
    }

    /// Whether `--force` does not override them.
    pub(super) fn is_final(&self) -> bool {
        self.uses.iter().any(Use::is_final)
    }

    /// Whether a cache with writes that have not reached its origin would be overwritten.
    pub(super) fn lose_dirty_blocks(&self) -> bool {
        self.found.iter().any(Found::is_dirty_cache)
    }

    /// Adds the reason why an exclusive open or a lock was refused. A known user explains a refused open, and nothing is
    /// added then; without one, the device may be mounted in another namespace.
    pub(super) fn add_claim(&mut self, claim: Option<Use>) {
        if let Some(claim) = claim
            && (self.uses.is_empty() || claim == Use::Locked)
        {
            self.uses.push(claim);
        }
    }

    /// The objections, each on a line of its own.
    pub(super) fn list(&self) -> String {
        let uses = self.uses.iter().map(|usage| format!("\n  - {usage}"));
        let found = self.found.iter().map(|found| format!("\n  - {found}"));
        uses.chain(found).collect()
    }

    /// How to free a device or file that no option frees.
    pub(super) fn freeing(&self, path: &Path) -> String {
        let (caches, others): (Vec<_>, Vec<_>) =
            self.found.iter().partition(|found| found.kind == Kind::Flaz);
        let mut ways = Vec::new();
        if !self.uses.is_empty() {
            ways.push("end its use (umount, swapoff, losetup --detach)".to_owned());
        }
        if !caches.is_empty() {
            let path = quoted(path);
            let first = if caches.iter().any(|found| found.has_volumes()) {
                format!("remove its volumes with `flaz volume remove {path} NAME`")
            } else if caches.iter().any(|found| found.is_of_other_version()) {
                "write its dirty blocks to its origin with `flaz detach` of the version that made it"
                    .to_owned()
            } else {
                format!("`flaz detach {path}`")
            };
            ways.push(format!(
                "{first}, then delete the file, or erase its first 128 KiB (`dd if=/dev/zero of={path} bs=128K count=1 conv=notrunc`)"
            ));
        }
        if !others.is_empty() {
            ways.push("`wipefs --all` removes signatures, and the data they belong to is lost".to_owned());
        }
        ways.join("; ")
    }

    /// What to do about them. `cache` is the device or file.
    pub(super) fn advice(&self, cache: &Path) -> String {
        if self.is_final() {
            return "Unmount it, disable the swap space, or stop the program that uses it; --force does not override this"
                .to_owned();
        }
        if self.found.iter().any(Found::has_volumes) {
            return format!(
                "`flaz volume list {0}` lists its volumes, and `flaz volume remove {0} NAME` removes one whose origin is \
                 complete. If all of that can be lost, use --force --discard-dirty",
                quoted(cache)
            );
        }
        if self.found.iter().any(Found::is_of_other_version) {
            return "It was made by another version of flaz, and may hold writes that its origin lacks: write them to the origin with \
                    `flaz detach` of that version, or choose another CACHE. If all of that can be lost, use --force --discard-dirty"
                .to_owned();
        }
        if self.lose_dirty_blocks() {
            return format!(
                "Write its dirty blocks to its origin with `flaz detach {}`, or choose another CACHE. If all of that can be \
                 lost, use --force --discard-dirty",
                quoted(cache)
            );
        }
        let first = if self.uses.is_empty() {
            "Choose another CACHE"
        } else {
            "Release it first"
        };
        format!("{first}, or, if all of that can be lost, use --force")
    }
}
