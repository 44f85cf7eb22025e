//! `flaz study`: what real data would gain from compression, by sampling or in full.
//!
//! The files are laid end to end, each padded to 4 KiB, as a file system lays them on a device; windows of 1 MiB of
//! that are drawn at random without replacement, and each is compressed in chunks of 4 KiB, 64 KiB and 1 MiB.
//! Neighbouring chunks are alike, so a window counts as one observation: intervals come from the variance between
//! windows, which is honest about clusters where counting chunks is not.
//!
//! | module | what it holds |
//! |---|---|
//! | [`options`], [`error`] | what to study and how; why that is impossible |
//! | [`population`] | what there is to study, and reading a window of it |
//! | [`window`] | what is measured of a window |
//! | [`sample`] | which windows, by how many threads, until when |
//! | [`estimate`] | from windows to shares with intervals |
//! | [`duplicates`] | how many blocks repeat others, as far as a sample can tell |
//! | [`outlook`] | what a flaz cache would hold, what a compressing SSD would gain |
//! | [`report`], [`page`] | the result, as JSON and on a page |

pub mod duplicates;
pub mod error;
pub mod estimate;
pub mod options;
pub mod outlook;
pub mod page;
pub mod population;
pub mod report;
pub mod sample;
pub mod window;

use std::time::Instant;

pub use error::StudyError;
pub use options::{CODECS_MAX, StudyOptions, WINDOWS_MAX, WINDOWS_MAX_DEFAULT, WITHIN_POINTS_DEFAULT};
pub use report::StudyReport;
pub use sample::Progress;

use population::Population;

/// Studies what `options` name; `progress` is told now and then.
///
/// # Errors
/// Nothing can be read, or what was named cannot be studied.
pub fn study(options: &StudyOptions, progress: &mut Progress<'_>) -> Result<StudyReport, StudyError> {
    let began = Instant::now();
    let population = Population::of(&options.paths)?;
    let measured = sample::measure(options, &population, progress)?;
    Ok(StudyReport::new(options, &population, measured, began.elapsed()))
}
