//! Errors of a campaign.

use std::io;
use std::path::PathBuf;

use flaz_bench::error::InputError;
use flaz_bench::unit::WholeBytes;
use flaz_data::distribution::DistributionError;
use flaz_data::generator::Difference;
use flaz_data::pool::PoolError;
use flaz_data::spec::SpecError;

use crate::test::Test;

/// Why a campaign cannot be measured or continued.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// An operation on a file or directory failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Path {
        /// The failed action.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Invalid options.
    #[error("{0}")]
    Plan(String),
    /// The target is too small.
    #[error(
        "{}: expected {wanted_bytes} bytes of free space, found {found_bytes}: use a smaller --size, or free \
         space", path.display()
    )]
    Room {
        /// The target.
        path: PathBuf,
        /// Bytes wanted.
        wanted_bytes: u64,
        /// Free bytes.
        found_bytes: u64,
    },
    /// Direct I/O is not supported.
    #[error(
        "{}: the file system does not support direct I/O (O_DIRECT); use --io buffered to measure through the \
         page cache", path.display()
    )]
    NotDirect {
        /// The target.
        path: PathBuf,
    },
    /// Record sizes that direct I/O does not support.
    #[error(
        "records of {}: direct I/O on {} requires multiples of {alignment_bytes} bytes; use larger records, \
         or --io buffered",
        WholeBytes(*record_bytes), path.display()
    )]
    Alignment {
        /// The target.
        path: PathBuf,
        /// The record.
        record_bytes: u64,
        /// Alignment of the target.
        alignment_bytes: u64,
    },
    /// Data that cannot be generated.
    #[error(transparent)]
    Data(#[from] SpecError),
    /// A distribution that cannot be replayed.
    #[error(transparent)]
    Distribution(#[from] DistributionError),
    /// Not enough memory for the data.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A test failed.
    #[error("{test} with records of {} on {}: {source}", WholeBytes(*record_bytes), path.display())]
    Test {
        /// The test.
        test: Test,
        /// Its record.
        record_bytes: u64,
        /// The target.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The target returned wrong data.
    #[error("{}, part of writer {writer}: {difference}: the target returned wrong data", path.display())]
    Mismatch {
        /// The target.
        path: PathBuf,
        /// Index of the writer, from 0.
        writer: usize,
        /// Where.
        difference: Difference,
    },
    /// Error of the campaign's file.
    #[error(transparent)]
    Campaign(#[from] InputError),
    /// The campaign was stopped.
    #[error("interrupted")]
    Interrupted,
}

impl LoadError {
    /// An error for invalid options.
    pub(crate) fn plan(text: impl Into<String>) -> Self {
        Self::Plan(text.into())
    }
}

impl LoadError {
    /// Creates the error of a failed system call on `path`.
    pub fn at(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Path { what, path, source }
    }

    /// Whether the options are invalid.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Plan(_) | Self::Data(_) | Self::Alignment { .. })
    }
}
