//! Objections to overwriting a device or file.

use std::fmt;

use super::holders::Use;
use super::probe::Found;

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
}

impl fmt::Display for Objections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.list())?;
        f.write_str(match (self.is_final(), self.uses.is_empty()) {
            (true, _) => {
                "\nUnmount it, disable the swap space, or stop the program that uses it; --force does not \
                 override this"
            }
            (false, false) => "\nRelease it first, or, if all of that can be lost, use --force",
            (false, true) => "\nChoose another CACHE, or, if all of that can be lost, use --force",
        })
    }
}
