//! `flaz study`: measures what compression saves on real data, from a sample or from all of it.
//!
//! The files are concatenated, each padded to 4 KiB, as a file system stores them on a device. Windows of 1 MiB are
//! drawn at random without replacement, and each is compressed in chunks of 4 KiB, 64 KiB and 1 MiB. Neighbouring
//! chunks are similar, so a window counts as one observation: the intervals come from the variance between windows,
//! which accounts for clusters.
//!
//! | module | contents |
//! |---|---|
//! | [`options`], [`error`] | options and errors |
//! | [`population`] | the data to study, and reading a window of it |
//! | [`window`] | measurements of one window |
//! | [`sample`] | the choice of windows, the threads, the end of the sample |
//! | [`estimate`] | shares with intervals, estimated from windows |
//! | [`duplicates`] | the share of duplicates, estimated from a sample |
//! | [`outlook`] | models of a flaz cache and of a compressing SSD |
//! | [`report`], [`page`] | the result, as JSON and as text |

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

/// Runs a study; `progress` is called regularly.
///
/// # Errors
/// Nothing can be read, or the paths cannot be studied.
pub fn study(options: &StudyOptions, progress: &mut Progress<'_>) -> Result<StudyReport, StudyError> {
    let began = Instant::now();
    let population = Population::of(&options.paths)?;
    let measured = sample::measure(options, &population, progress)?;
    Ok(StudyReport::new(options, &population, measured, began.elapsed()))
}
