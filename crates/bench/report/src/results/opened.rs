//! The result of opening a file.

use super::differences::Differences;
use super::set::Results;

/// The result of opening a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Opened {
    /// It has its own rates.
    Results(Results),
    /// It needs a baseline.
    Differences(Differences),
}
