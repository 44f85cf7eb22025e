//! Converts the output of other programs to runs of cells.
//!
//! A file contains one run of some cells, or several runs in sequence. Several files with samples of the same cells are
//! in one directory.

mod fio;
mod imported;
mod iozone;

pub use self::imported::{Imported, ImportedCell, Run};

use crate::error::Problem;

/// The program that created a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// fio, with `--output-format=json`.
    Fio,
    /// IOzone, its table or its Excel-style lists.
    Iozone,
}

impl Program {
    /// The program that created `text`; `None` if unknown.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        if fio::is_output(text) {
            Some(Self::Fio)
        } else if iozone::is_output(text) {
            Some(Self::Iozone)
        } else {
            None
        }
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// It is invalid; with the line.
    pub fn read(self, text: &str) -> Result<Imported, (Option<u64>, Problem)> {
        match self {
            Self::Fio => fio::read(text),
            Self::Iozone => iozone::read(text),
        }
    }
}
