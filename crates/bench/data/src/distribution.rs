//! The distribution of the savings of real chunks: `flaz study` writes it, the `replay` family draws from it.
//!
//! For each chunk size it contains how many chunks saved how much with LZ4 (which only matches) and with zstd:1 (which
//! has an entropy stage), as pairs. Replayed data thus has the right spread for both kinds of codec, and the right
//! relation between them. The order of the chunks is lost: neighbours are drawn independently, while in real data they
//! are similar.
//!
//! Invariant: a distribution that was read is within bounds and has chunks of each of its sizes.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flaz_codec::CodecSpec;
use serde::{Deserialize, Serialize};

/// The codecs of a distribution: one without and one with an entropy stage.
pub const CODECS: [CodecSpec; 2] = [CodecSpec::LZ4, CodecSpec::ZSTD];
/// Value of the first field of the file.
pub const SCHEMA: &str = "flaz-distribution/1";
/// Maximum size of the file in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of chunk sizes.
pub const SIZES_MAX: usize = 16;
/// Maximum number of rows per size: each pair of whole percentages once.
pub const ROWS_MAX: usize = 101 * 101;

/// A measured distribution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// [`SCHEMA`].
    pub schema: String,
    /// Description of the measured data.
    pub source: String,
    /// Measured bytes.
    pub measured_bytes: u64,
    /// Share of 4 KiB blocks, without zeroes, that are duplicates; in percent.
    pub duplicate_percent: f64,
    /// By chunk size.
    pub sizes: Vec<Size>,
}

/// The distribution at one chunk size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Size of the chunks in bytes.
    pub chunk_bytes: u64,
    /// Chunks of zeroes; they are not in the rows.
    pub zero_chunks: u64,
    /// The others.
    pub rows: Vec<Row>,
}

/// Chunks with the same savings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Saved by LZ4, in percent.
    #[serde(rename = "lz4_percent")]
    pub matched_percent: f64,
    /// Saved by zstd:1, in percent.
    #[serde(rename = "zstd_percent")]
    pub entropy_percent: f64,
    /// Number of chunks.
    pub chunks: u64,
}

/// A distribution that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DistributionError {
    /// The file.
    #[error("cannot read the distribution {}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Its contents.
    #[error("{} is not a distribution: {reason}; `flaz study --distribution FILE` writes one", path.display())]
    Contents {
        /// Its path.
        path: PathBuf,
        /// What was expected and found.
        reason: String,
    },
}

impl Distribution {
    /// Reads a distribution.
    ///
    /// # Errors
    /// The file cannot be read, or is not a distribution.
    pub fn read(path: &Path) -> Result<Self, DistributionError> {
        let failed = |source| DistributionError::File {
            path: path.to_owned(),
            source,
        };
        let mut text = Vec::new();
        File::open(path)
            .map_err(failed)?
            .take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut text)
            .map_err(failed)?;
        Self::parse(&text).map_err(|reason| DistributionError::Contents {
            path: path.to_owned(),
            reason,
        })
    }

    /// Encodes the file.
    ///
    /// # Errors
    /// JSON cannot represent it.
    pub fn to_json(&self) -> io::Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// Why it is invalid.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(format!("expected at most {FILE_BYTES_MAX} bytes, found more"));
        }
        let read: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        read.check()?;
        Ok(read)
    }

    fn check(&self) -> Result<(), String> {
        if self.schema != SCHEMA {
            return Err(format!("expected the schema {SCHEMA}, found {:?}", self.schema));
        }
        if !(1..=SIZES_MAX).contains(&self.sizes.len()) {
            return Err(format!(
                "expected 1 to {SIZES_MAX} chunk sizes, found {}",
                self.sizes.len()
            ));
        }
        let percent = |value: f64| (0.0..=100.0).contains(&value);
        if !percent(self.duplicate_percent) {
            return Err(format!(
                "expected a share of duplicates from 0 to 100, found {}",
                self.duplicate_percent
            ));
        }
        for size in &self.sizes {
            let place = format!("at chunks of {} bytes", size.chunk_bytes);
            if size.rows.len() > ROWS_MAX {
                return Err(format!(
                    "{place}: expected at most {ROWS_MAX} rows, found {}",
                    size.rows.len()
                ));
            }
            if let Some(row) = size
                .rows
                .iter()
                .find(|row| !percent(row.matched_percent) || !percent(row.entropy_percent))
            {
                return Err(format!("{place}: expected shares from 0 to 100, found {row:?}"));
            }
            let mut counts = size.rows.iter().map(|row| row.chunks);
            let total = counts.try_fold(size.zero_chunks, u64::checked_add);
            match total {
                Some(0) => return Err(format!("{place}: it has no chunks")),
                None => return Err(format!("{place}: it has more than 2^64 chunks")),
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The distribution at a chunk size.
    #[must_use]
    pub fn size(&self, chunk_bytes: u64) -> Option<&Size> {
        self.sizes.iter().find(|size| size.chunk_bytes == chunk_bytes)
    }

    /// Its chunk sizes, for messages.
    #[must_use]
    pub fn sizes_text(&self) -> String {
        let sizes: Vec<String> = self
            .sizes
            .iter()
            .map(|size| size.chunk_bytes.to_string())
            .collect();
        sizes.join(", ")
    }
}

impl Size {
    /// Mean share saved by LZ4 and by zstd:1, in percent.
    #[must_use]
    pub fn means_percent(&self) -> (f64, f64) {
        let zeroes = self.zero_chunks as f64;
        let mut sums = (zeroes, zeroes * 100.0, zeroes * 100.0);
        for row in &self.rows {
            let chunks = row.chunks as f64;
            sums.0 += chunks;
            sums.1 += chunks * row.matched_percent;
            sums.2 += chunks * row.entropy_percent;
        }
        (sums.1 / sums.0, sums.2 / sums.0)
    }
}
