//! `flaz bench detect`: does a device compress, elide zeros, deduplicate; from the rates at which it takes data of
//! different kinds, or from what it says itself of what it keeps.
//!
//! Pure: what is measured comes in as [`Sample`]s, what is known of the target as [`Facts`]. In each round every kind of
//! data was written once, in random order, so that a drift hits all kinds alike; a kind is compared with the random data
//! of its own round.
//!
//! Invariants: an answer is *yes* only where a gain above [`MARGIN_PCT`] is proven for this kind of data among all kinds
//! (Holm), and again in a second series of rounds where there is one, *no* only where a gain above [`SMALL_PCT`] is
//! excluded; else it is *unclear*. Where the device tells what it keeps, that decides, and rates are only shown.
//!
//! A test of p trusts that the rates of a kind are as good as drawn by chance. Few rounds may share what is none: the
//! slower of two places, a neighbour that pauses. What is there in a second series, in another order, is not that: so who
//! measures is asked for one before a *yes* counts ([`Detection::wants_confirmation`]).

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

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Detection {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What was measured.
    pub target: String,
    /// Rounds that count.
    pub rounds: usize,
    /// Median rate of random data in bytes a second.
    pub random_bytes_per_s: f64,
    /// Each kind of data against random data.
    pub effects: Vec<Effect>,
    /// The answers.
    pub findings: Vec<Finding>,
    /// What could fool the test, and whether it does.
    pub caveats: Vec<Caveat>,
    /// What is known of the target.
    pub facts: Facts,
}

/// Why nothing can be said.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DetectError {
    /// Too few rounds in which everything was written.
    #[error("{0} complete rounds: expected at least {ROUNDS_MIN}")]
    Rounds(usize),
    /// A rate that is none.
    #[error("round {round}: {pattern} was written at {value} bytes per second: expected a positive number")]
    Rate {
        /// Which round, from 0.
        round: usize,
        /// What was written.
        pattern: Pattern,
        /// The rate.
        value: f64,
    },
}

/// Answers the questions from one or more series of rounds, in the order in which they were measured.
///
/// # Errors
/// Too few rounds, or rates that are none.
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
    /// Whether something is said by rates alone that a second series of rounds should confirm.
    #[must_use]
    pub fn wants_confirmation(&self) -> bool {
        self.findings.iter().any(|finding| finding.confidence.is_some())
    }
}
