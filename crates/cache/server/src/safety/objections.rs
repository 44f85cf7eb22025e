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
}

impl fmt::Display for Objections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for usage in &self.uses {
            write!(f, "\n  - {usage}")?;
        }
        for found in &self.found {
            write!(f, "\n  - {found}")?;
        }
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
