//! `flaz bench detect`: determines whether a device compresses, elides zeros or deduplicates, from the write rates of
//! different kinds of data, or from the stored size that the device itself reports.
//!
//! This module does no I/O: the measurements are [`Sample`]s, and the properties of the target are [`Facts`]. In each
//! round every kind of data was written once, in random order, so that a drift affects all kinds; each kind is compared
//! with the random data of its own round.
//!
//! Invariants: an answer is *yes* only if a gain above [`MARGIN_PCT`] is significant for this kind of data among all
//! kinds (Holm), and again in a second series of rounds if there is one; *no* only if a gain above [`SMALL_PCT`] is
//! excluded; otherwise it is *unclear*. If the device reports the stored size, that decides, and rates are only shown.
//!
//! The test assumes that the rates of a kind are independent. In a few rounds they may share a cause other than the
//! data: the slower of two places, another load that pauses. A second series in another order excludes that. The caller
//! is therefore asked for one before a *yes* counts ([`Detection::wants_confirmation`]).

mod effect;
mod page;
mod pattern;
mod sample;
mod verdict;

use serde::Serialize;

pub use effect::Effect;
pub use pattern::{COPY_DISTANCES_BYTES, Pattern};
pub use sample::{ALPHA, MARGIN_PCT, ROUNDS_MIN, SMALL_PCT, Sample};
pub use verdict::{Answer, Caveat, CaveatState, Facts, FileSystem, Finding, Layer, LayerState, Question};

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Detection {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The measurements.
    pub target: String,
    /// Number of complete rounds.
    pub rounds: usize,
    /// Median rate of random data in bytes per second.
    pub random_bytes_per_s: f64,
    /// Each kind of data compared with random data.
    pub effects: Vec<Effect>,
    /// The answers.
    pub findings: Vec<Finding>,
    /// Possible causes of a wrong result.
    pub caveats: Vec<Caveat>,
    /// Properties of the target.
    pub facts: Facts,
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DetectError {
    /// Too few complete rounds.
    #[error("{0} complete rounds: expected at least {ROUNDS_MIN}")]
    Rounds(usize),
    /// An invalid rate.
    #[error("round {round}: {pattern} was written at {value} bytes per second: expected a positive number")]
    Rate {
        /// The round, from 0.
        round: usize,
        /// The kind of data.
        pattern: Pattern,
        /// The rate.
        value: f64,
    },
}

/// Answers the questions from one or more series of rounds, in the order of their measurement.
///
/// # Errors
/// There are too few rounds, or rates are invalid.
pub fn detect(target: &str, series: &[&[Sample]], facts: Facts) -> Result<Detection, DetectError> {
    if let Some(bad) = series
        .iter()
        .copied()
        .flatten()
        .find(|sample| !(sample.bytes_per_s.is_finite() && sample.bytes_per_s > 0.0))
    {
        return Err(DetectError::Rate {
            round: bad.round,
            pattern: bad.pattern,
            value: bad.bytes_per_s,
        });
    }
    let mut rates = Vec::new();
    for samples in series {
        let random = effect::rates_of(samples, Pattern::Random);
        if random.len() < ROUNDS_MIN {
            return Err(DetectError::Rounds(random.len()));
        }
        rates.extend(random.iter().map(|(_, rate)| *rate));
    }
    if rates.is_empty() {
        return Err(DetectError::Rounds(0));
    }
    let effects = effect::effects(series);
    Ok(Detection {
        schema: SCHEMA,
        target: target.to_owned(),
        rounds: rates.len(),
        random_bytes_per_s: crate::statistics::moments::median(&rates),
        findings: verdict::findings(&effects),
        caveats: verdict::caveats(&effects, &rates, &facts),
        effects,
        facts,
    })
}

impl Detection {
    /// Whether an answer depends on rates alone, so that a second series of rounds should confirm it.
    #[must_use]
    pub fn wants_confirmation(&self) -> bool {
        self.findings.iter().any(|finding| finding.confidence.is_some())
    }
}
