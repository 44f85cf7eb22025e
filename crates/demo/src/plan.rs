//! The parameters of the demo.

use std::path::PathBuf;
use std::time::Duration;

/// Default ratio of data size to cache size.
const SSD_PART: u64 = 4;
/// Warm-up requests per MiB of data, enough to touch each hot block several times.
const WARMUP_REQUESTS_PER_MIB: u64 = 200;

/// Options after checks, with defaults filled in.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Directories with the data; none for random bytes.
    pub folders: Option<Vec<PathBuf>>,
    /// Maximum bytes of data.
    pub data_bytes: u64,
    /// Size of the SSD; a quarter of the data by default.
    pub ssd_bytes: Option<u64>,
    /// Codec of the compressed run.
    pub codec: String,
    /// Number of clients.
    pub clients: u32,
    /// Percentage of writes.
    pub write_percent: f64,
    /// Zipf exponent.
    pub skew: f64,
    /// Measured time per run.
    pub measured: Duration,
    /// Seed.
    pub seed: u64,
    /// Working directory.
    pub folder: Option<PathBuf>,
    /// Whether to keep the files.
    pub keep: bool,
}

impl Plan {
    /// SSD size for this amount of data, in whole MiB.
    pub fn ssd_bytes_for(&self, data_bytes: u64) -> u64 {
        self.ssd_bytes
            .unwrap_or_else(|| (data_bytes / SSD_PART).next_multiple_of(1 << 20))
    }

    /// Warm-up requests for this amount of data.
    pub fn warmup_requests(&self, data_bytes: u64) -> u64 {
        (data_bytes >> 20) * WARMUP_REQUESTS_PER_MIB
    }

    /// Text for the progress bar.
    pub fn collecting(&self) -> String {
        match &self.folders {
            None => "generating random data".into(),
            Some(folders) => {
                let names: Vec<_> = folders
                    .iter()
                    .map(|folder| folder.display().to_string())
                    .collect();
                format!("copying files of {}", names.join(", "))
            }
        }
    }
}
