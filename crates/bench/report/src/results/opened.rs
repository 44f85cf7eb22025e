//! What a file turns out to be when it is opened.

use super::differences::Differences;
use super::set::Results;

/// What a file turned out to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Opened {
    /// It stands for itself.
    Results(Results),
    /// It needs a baseline.
    Differences(Differences),
}
