//! Why a campaign cannot be measured.

use std::io;
use std::path::PathBuf;

use flaz_bench::error::InputError;
use flaz_bench::unit::WholeBytes;
use flaz_data::distribution::DistributionError;
use flaz_data::generator::Difference;
use flaz_data::pool::PoolError;
use flaz_data::spec::SpecError;

use crate::test::Test;

/// Why a campaign cannot be measured, or not go on.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file or folder.
    #[error("cannot {what} {}: {source}", path.display())]
    Path {
        /// What was being done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Options that make no sense.
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
        /// Bytes that there are.
        found_bytes: u64,
    },
    /// No direct I/O.
    #[error(
        "{}: the file system does not support direct I/O (O_DIRECT); use --io buffered to measure through the \
         page cache", path.display()
    )]
    NotDirect {
        /// The target.
        path: PathBuf,
    },
    /// Records that direct I/O cannot do.
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
        /// What the target can do.
        alignment_bytes: u64,
    },
    /// Data that cannot be made.
    #[error(transparent)]
    Data(#[from] SpecError),
    /// A distribution that cannot be replayed.
    #[error(transparent)]
    Distribution(#[from] DistributionError),
    /// No memory for it.
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
        /// What the system said.
        source: io::Error,
    },
    /// The target does not have what was written.
    #[error("{}, part of writer {writer}: {difference}: the target returned wrong data", path.display())]
    Mismatch {
        /// The target.
        path: PathBuf,
        /// Which writer's part, from 0.
        writer: usize,
        /// Where.
        difference: Difference,
    },
    /// The campaign's file.
    #[error(transparent)]
    Campaign(#[from] InputError),
    /// Somebody asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl LoadError {
    /// Options that make no sense.
    pub(crate) fn plan(text: impl Into<String>) -> Self {
        Self::Plan(text.into())
    }
}

impl LoadError {
    /// Makes an error of a system's, about `path`.
    pub fn at(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Path { what, path, source }
    }

    /// Whether the options are at fault.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Plan(_) | Self::Data(_) | Self::Alignment { .. })
    }
}
