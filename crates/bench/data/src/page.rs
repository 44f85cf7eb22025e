//! The report on generated data: requested and achieved savings, as JSON and as text.

use std::fmt::Write;

use serde::Serialize;

use crate::achieved::{Achieved, WINDOW_BYTES};
use crate::generator::Generator;
use crate::human;
use crate::level::Seed;
use crate::pool::FillSpeed;
use crate::spec::{DataSpec, Family};

/// Value of the first field of the JSON.
pub const DATA_SCHEMA: &str = "flaz-bench-data/1";

/// The report on generated data.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct DataReport {
    /// [`DATA_SCHEMA`].
    pub schema: &'static str,
    /// Name of the family.
    pub family: &'static str,
    /// Distance of copies, for families with copies.
    pub distance_bytes: Option<u64>,
    /// Requested savings in percent, for families with a level.
    pub requested_percent: Option<f64>,
    /// Explanation for families that interpret the level in another way.
    pub note: Option<String>,
    /// Unit of duplicates and of drawn levels.
    pub chunk_bytes: u64,
    /// Requested share of duplicate chunks, in percent.
    pub dedup_requested_percent: f64,
    /// Actual share of duplicate chunks.
    pub dedup_achieved_percent: f64,
    /// Seed.
    pub seed: Seed,
    /// Bytes written.
    pub size_bytes: u64,
    /// Gigabytes (10^9) per second and thread that the generator produced, without writing.
    pub generator_gb_per_s_thread: f64,
    /// By codec and window.
    pub achieved: Vec<Achieved>,
}

/// Number of chunks examined for the actual share of duplicates.
const CHUNKS_LOOKED_AT_MAX: u64 = 1 << 20;

impl DataReport {
    /// The report on `size_bytes` bytes of a generator's data.
    #[must_use]
    pub fn new(generator: &Generator, size_bytes: u64, speed: &FillSpeed, achieved: Vec<Achieved>) -> Self {
        let spec = generator.spec();
        Self {
            schema: DATA_SCHEMA,
            family: spec.family.name(),
            distance_bytes: match spec.family {
                Family::Copies { distance_bytes } => Some(distance_bytes),
                _ => None,
            },
            requested_percent: requested(spec),
            note: note(spec),
            chunk_bytes: spec.chunk_bytes,
            dedup_requested_percent: spec.dedup.percent(),
            dedup_achieved_percent: dedup_percent(generator, size_bytes),
            seed: spec.seed,
            size_bytes,
            generator_gb_per_s_thread: speed.gb_per_s_thread(),
            achieved,
        }
    }

    /// The page.
    #[must_use]
    pub fn page(&self) -> String {
        let mut page = String::new();
        let requested = match self.requested_percent {
            Some(percent) => format!("{percent} % requested"),
            None => "no level".to_owned(),
        };
        line(
            &mut page,
            "Data",
            &format!(
                "{} of family {}, {requested}, chunks of {}, campaign {} run {}",
                human::bytes(self.size_bytes),
                self.family,
                human::chunk(self.chunk_bytes),
                self.seed.campaign,
                self.seed.run
            ),
        );
        if let Some(note) = &self.note {
            line(&mut page, "Note", note);
        }
        if self.dedup_requested_percent > 0.0 {
            let (asked, found) = (self.dedup_requested_percent, self.dedup_achieved_percent);
            line(
                &mut page,
                "Duplicates",
                &format!("{asked} % requested, {found:.1} % of the chunks"),
            );
        }
        line(
            &mut page,
            "Generator",
            &format!("{:.2} GB/s per thread, in memory", self.generator_gb_per_s_thread),
        );
        self.table(&mut page);
        page
    }

    fn table(&self, page: &mut String) {
        let mut heading = format!("\n{:<13} ", "Space saved");
        for size in WINDOW_BYTES {
            let _ = write!(heading, "{:<27} ", format!("chunks of {}", human::chunk(size)));
        }
        let _ = writeln!(page, "{}", heading.trim_end());
        let mut codecs: Vec<_> = self.achieved.iter().map(|row| row.codec).collect();
        codecs.dedup();
        for codec in codecs {
            let mut text = format!("{:<13} ", codec.to_string());
            for size in WINDOW_BYTES {
                let row = self
                    .achieved
                    .iter()
                    .find(|row| row.codec == codec && row.window_bytes == size);
                let cell = row.map_or("-".to_owned(), |row| {
                    let saved = &row.saved;
                    format!(
                        "{:5.1} +-{:4.1} % ({:.0} to {:.0})",
                        saved.mean_percent, saved.stddev_points, saved.min_percent, saved.max_percent
                    )
                });
                let _ = write!(text, "{cell:<27} ");
            }
            let _ = writeln!(page, "{}", text.trim_end());
        }
        page.push_str("mean +- standard deviation over the windows (minimum to maximum)\n");
    }
}

fn line(page: &mut String, label: &str, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(page, "{label:<13} {text}");
}

/// Expected savings of a codec, if the family determines them.
fn requested(spec: &DataSpec) -> Option<f64> {
    match &spec.family {
        family if family.has_level() => Some(spec.level.percent()),
        Family::Zeros => Some(100.0),
        Family::Random => Some(0.0),
        Family::RandomLevel => Some(50.0),
        _ => None,
    }
}

fn note(spec: &DataSpec) -> Option<String> {
    match &spec.family {
        Family::Iozone => Some(format!(
            "as IOzone fills its records: {:.2} % of each are constant, not {}, and the rest is also \
             compressible; the true ratios are below",
            spec.level.share().powi(2) * 100.0,
            spec.level
        )),
        Family::Alphabet => Some(
            "for codecs with an entropy stage; a codec without one, such as LZ4, saves less or nothing"
                .to_owned(),
        ),
        Family::Copies { distance_bytes } if *distance_bytes > 2048 => Some(format!(
            "copies at a distance of {distance_bytes} bytes: units below twice that save nothing"
        )),
        Family::Replay(distribution) => {
            let size = distribution.size(spec.chunk_bytes)?;
            let (lz4, zstd) = size.means_percent();
            Some(format!(
                "as measured on {}: lz4 saved {lz4:.1} %, zstd:1 {zstd:.1} % of chunks of {}; {:.1} % of its \
                 blocks were duplicates, which --dedup reproduces",
                distribution.source,
                human::chunk(spec.chunk_bytes),
                distribution.duplicate_percent
            ))
        }
        _ => None,
    }
}

/// Share of duplicates among the first chunks of the data.
fn dedup_percent(generator: &Generator, size_bytes: u64) -> f64 {
    let chunks = size_bytes.div_ceil(generator.spec().chunk_bytes);
    let looked_at = chunks.min(CHUNKS_LOOKED_AT_MAX);
    if looked_at == 0 || generator.spec().dedup.percent() == 0.0 {
        return 0.0;
    }
    let duplicates = (0..looked_at)
        .filter(|chunk| generator.is_duplicate(*chunk))
        .count();
    duplicates as f64 * 100.0 / looked_at as f64
}
