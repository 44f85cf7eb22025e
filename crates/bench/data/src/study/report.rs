//! The result of a study in its JSON form: every figure with its interval.

use std::time::Duration;

use flaz_codec::CodecSpec;
use serde::Serialize;

use super::duplicates::Duplicates;
use super::estimate::{self, Estimate};
use super::options::StudyOptions;
use super::outlook::{self, CacheOutlook, SPARE_SHARE, SsdOutlook};
use super::population::{Population, Skipped};
use super::sample::Measured;
use super::window::{BINS, BLOCK_BYTES, CHUNK_BYTES, Histograms, WINDOW_BYTES, WindowSums};
use crate::distribution::{Distribution, Row, SCHEMA, Size};

/// Value of the first field of the JSON.
pub const REPORT_SCHEMA: &str = "flaz-study/1";

/// The result of a study.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct StudyReport {
    /// [`REPORT_SCHEMA`].
    pub schema: &'static str,
    /// The studied paths.
    pub paths: Vec<String>,
    /// How much of it was read.
    #[serde(flatten)]
    pub coverage: Coverage,
    /// Share of 4 KiB blocks that are zeroes.
    pub zeroes: Estimate,
    /// Share of 4 KiB blocks of a single value, zeroes included.
    pub single_value: Estimate,
    /// Share of duplicates among the blocks that are not zeroes.
    pub duplicates: Duplicates,
    /// By chunk size and codec.
    pub chunks: Vec<ChunkReport>,
    /// Estimated gain of compression.
    #[serde(flatten)]
    pub outlook: Outlook,
    /// For the replay generator.
    #[serde(skip)]
    pub distribution: Distribution,
}

/// One codec at one chunk size.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct ChunkReport {
    /// Size of the chunks, which are compressed separately.
    pub chunk_bytes: u64,
    /// The codec.
    #[schemars(with = "String")]
    pub codec: CodecSpec,
    /// Number of compressed chunks, including zeroes.
    pub chunks: u64,
    /// Share of saved space; zeroes save everything.
    pub saved: Estimate,
    /// Standard deviation of the savings of chunks, in points; zeroes save 100.
    pub stddev_points: f64,
    /// Number of chunks by savings in whole percent, 0 to 100, without zeroes.
    pub histogram: Vec<u64>,
    /// Chunks of zeroes.
    pub zero_chunks: u64,
}

/// How much of the data a study read.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Coverage {
    /// Number of files and devices.
    pub files: u64,
    /// What was skipped.
    pub skipped: Skipped,
    /// Total bytes, each file padded to 4 KiB.
    pub total_bytes: u64,
    /// Bytes read and compressed.
    pub studied_bytes: u64,
    /// Whether all readable data was read, so that there is no sampling error.
    pub exact: bool,
    /// Number of windows of 1 MiB.
    pub windows: u64,
    /// Windows read.
    pub windows_studied: u64,
    /// Seed for the choice of windows.
    pub seed: u64,
    /// Confidence of the intervals, in percent.
    pub confidence_percent: u32,
    /// Duration.
    pub elapsed_s: f64,
}

/// Estimated gain of compression, from models with assumptions.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Outlook {
    /// Contents of a flaz cache, by codec.
    pub cache: Vec<CacheOutlook>,
    /// Size of that cache, if one was specified.
    pub cache_bytes: Option<u64>,
    /// Gain of an SSD that compresses, by codec.
    pub ssd: Vec<SsdOutlook>,
    /// Assumptions of the models.
    pub assumptions: Vec<String>,
}

impl StudyReport {
    pub(super) fn new(
        options: &StudyOptions,
        population: &Population,
        mut measured: Measured,
        elapsed: Duration,
    ) -> Self {
        let drawn = measured.windows_drawn;
        let duplicates = measured
            .fingerprints
            .duplicates(measured.sums.len() as u64, measured.windows_readable());
        let blocks =
            |count: fn(&WindowSums) -> u64| share(&measured, |sums| (count(sums) * BLOCK_BYTES) as f64);
        let chunks = chunks(&measured);
        let ssd = chunks
            .iter()
            .filter(|row| row.chunk_bytes == BLOCK_BYTES)
            .map(|row| outlook::ssd(row.codec, row.saved.percent))
            .collect();
        let paths: Vec<String> = options
            .paths
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let studied_bytes = measured.sums.iter().map(|sums| sums.bytes).sum();
        Self {
            schema: REPORT_SCHEMA,
            coverage: Coverage {
                files: population.files(),
                skipped: measured.skipped.clone(),
                total_bytes: population.bytes(),
                studied_bytes,
                exact: drawn == measured.windows,
                windows: measured.windows,
                windows_studied: measured.sums.len() as u64,
                seed: options.seed,
                confidence_percent: 95,
                elapsed_s: elapsed.as_secs_f64(),
            },
            zeroes: blocks(|sums| sums.zero_blocks),
            single_value: blocks(|sums| sums.single_value_blocks),
            outlook: Outlook {
                cache: outlook::caches(&measured, options.cache_bytes, population.bytes()),
                cache_bytes: options.cache_bytes,
                ssd,
                assumptions: assumptions(),
            },
            distribution: Distribution {
                schema: SCHEMA.to_owned(),
                source: paths.join(", "),
                measured_bytes: studied_bytes,
                duplicate_percent: duplicates.percent,
                sizes: sizes(&measured.histograms),
            },
            duplicates,
            chunks,
            paths,
        }
    }
}

fn share(measured: &Measured, part: impl Fn(&WindowSums) -> f64 + Clone) -> Estimate {
    let pairs = measured
        .sums
        .iter()
        .map(move |sums| (part(sums), sums.bytes as f64));
    let found = estimate::ratio(pairs, measured.windows_readable()).unwrap_or(Estimate::exact(0.0));
    Estimate {
        high_percent: found.high_percent.min(100.0),
        ..found
    }
}

fn chunks(measured: &Measured) -> Vec<ChunkReport> {
    let mut rows = Vec::new();
    for (size, chunk_bytes) in CHUNK_BYTES.iter().enumerate() {
        for (number, codec) in measured.codecs.iter().enumerate() {
            let histogram = &measured.histograms.saved[size][number];
            let zero_chunks = measured.histograms.zero_chunks[size];
            rows.push(ChunkReport {
                chunk_bytes: *chunk_bytes,
                codec: *codec,
                chunks: histogram.iter().sum::<u64>() + zero_chunks,
                saved: share(measured, |sums| sums.stored_bytes[size][number] as f64).rest(),
                stddev_points: deviation(histogram, zero_chunks),
                histogram: histogram.to_vec(),
                zero_chunks,
            });
        }
    }
    rows
}

fn deviation(histogram: &[u64], zero_chunks: u64) -> f64 {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    let zeroes = std::iter::once((100, &zero_chunks));
    for (percent, chunks) in histogram.iter().enumerate().chain(zeroes) {
        let (percent, chunks) = (percent as f64, *chunks as f64);
        count += chunks;
        sum += chunks * percent;
        squares += chunks * percent * percent;
    }
    if count == 0.0 {
        return 0.0;
    }
    (squares / count - (sum / count).powi(2)).max(0.0).sqrt()
}

fn sizes(histograms: &Histograms) -> Vec<Size> {
    CHUNK_BYTES
        .iter()
        .zip(&histograms.joint)
        .zip(histograms.zero_chunks)
        .map(|((chunk_bytes, joint), zero_chunks)| Size {
            chunk_bytes: *chunk_bytes,
            zero_chunks,
            rows: joint
                .iter()
                .enumerate()
                .filter(|(_, chunks)| **chunks > 0)
                .map(|(place, chunks)| Row {
                    matched_percent: (place / BINS) as f64,
                    entropy_percent: (place % BINS) as f64,
                    chunks: *chunks,
                })
                .collect(),
        })
        .collect()
}

fn assumptions() -> Vec<String> {
    vec![
        format!("windows of {WINDOW_BYTES} bytes are drawn at random and count as one observation each"),
        "files are concatenated, each padded to 4 KiB with zeroes".to_owned(),
        "cache: blocks like those measured, extents of 64 KiB, write-through, no space kept free".to_owned(),
        format!(
            "SSD: compresses blocks of 4 KiB and packs them without loss; {:.0} % spare space; random writes over \
             the whole drive, the oldest flash cleaned first",
            SPARE_SHARE * 100.0
        ),
    ]
}
