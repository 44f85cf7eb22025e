//! What other programs measured: from their output to runs of cells.
//!
//! A file holds one run of some cells, or several, one after the other. Where the samples of a cell come from several
//! files, these stand in one folder.

mod fio;
mod imported;
mod iozone;

pub use self::imported::{Imported, ImportedCell, Run};

use crate::error::Problem;

/// Which program made a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// fio, with `--output-format=json`.
    Fio,
    /// IOzone, its table or its Excel-style lists.
    Iozone,
}

impl Program {
    /// Which program made `text`; `None` if neither.
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

    /// What the text of a file says.
    ///
    /// # Errors
    /// It is not understood; the line where that shows.
    pub fn read(self, text: &str) -> Result<Imported, (Option<u64>, Problem)> {
        match self {
            Self::Fio => fio::read(text),
            Self::Iozone => iozone::read(text),
        }
    }
}
