//! Counters over time, as a drive reports them by SMART: CSV, a row for each second, and one at the end.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::volume::SsdVolume;
use crate::nbd::ServeError;

/// The first line.
pub const TRACE_COLUMNS: &str = "seconds,host_written_bytes,host_read_bytes,flash_written_bytes,flash_moved_bytes,\
                                 write_amplification,erased_blocks,erases_least,erases_mean,erases_most";

/// A trace file.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    file: File,
    begun: Instant,
    failed: Option<io::Error>,
}

impl Trace {
    /// Creates the file, or replaces its contents.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut file = File::create(path)?;
        writeln!(file, "{TRACE_COLUMNS}")?;
        Ok(Self {
            path: path.to_owned(),
            file,
            begun: Instant::now(),
            failed: None,
        })
    }

    /// Writes a row; nothing after an error.
    pub(super) fn row(&mut self, volume: &SsdVolume) {
        if self.failed.is_some() {
            return;
        }
        let (counters, wear) = volume.counters();
        let written = counters.host_written_bytes.max(1) as f64;
        let row = format!(
            "{:.1},{},{},{},{},{:.3},{},{},{:.2},{}\n",
            self.begun.elapsed().as_secs_f64(),
            counters.host_written_bytes,
            counters.host_read_bytes,
            counters.flash_written_bytes,
            counters.flash_moved_bytes,
            counters.flash_written_bytes as f64 / written,
            counters.erased_blocks,
            wear.least,
            wear.mean,
            wear.most
        );
        self.failed = self.file.write_all(row.as_bytes()).err();
    }

    pub(super) fn finish(self) -> Result<(), ServeError> {
        match self.failed {
            Some(source) => Err(ServeError::System {
                what: format!("writing the trace {}", self.path.display()),
                source,
            }),
            None => Ok(()),
        }
    }
}
