//! How much faster one kind of data is written than random data: a paired t-test on logarithms, round by round.

use std::collections::BTreeMap;

use serde::Serialize;

use super::pattern::Pattern;
use super::{ALPHA, MARGIN_PCT, ROUNDS_MIN, SMALL_PCT, Sample};
use crate::statistics::moments::Moments;
use crate::statistics::{family, student, welch};

/// A kind of data against random data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// Which kind.
    pub pattern: Pattern,
    /// Its rate divided by that of random data: geometric mean over the rounds.
    pub ratio: f64,
    /// Lower limit of that, with 95 % probability.
    pub low: f64,
    /// Upper limit.
    pub high: f64,
    /// How probable such a gain is if there is none above the margin; adjusted for the number of kinds (Holm).
    pub p: f64,
    /// Share that the device says it keeps, 0 to 1: the mean over the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<f64>,
}

impl Effect {
    /// Whether a gain above the margin is proven.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        match self.kept {
            Some(kept) => kept < KEPT_MAX,
            None => self.p < ALPHA,
        }
    }

    /// Whether a gain that matters is excluded.
    #[must_use]
    pub fn is_excluded(&self) -> bool {
        !self.is_proven() && (self.kept.is_some() || self.high < 1.0 + SMALL_PCT / 100.0)
    }
}

/// Share that is kept from which on a device that tells gains nothing: that of the margin.
const KEPT_MAX: f64 = 1.0 / (1.0 + MARGIN_PCT / 100.0);

/// What the device says that it keeps of a kind; nothing unless it says so of each sample.
fn kept_of(samples: &[Sample], pattern: Pattern) -> Option<f64> {
    let of_kind = samples.iter().filter(|sample| sample.pattern == pattern);
    let kept: Vec<f64> = of_kind.map(|sample| sample.kept).collect::<Option<_>>()?;
    (!kept.is_empty()).then(|| Moments::of(&kept).mean)
}

/// The rates of a kind, with their rounds.
pub(super) fn rates_of(samples: &[Sample], pattern: Pattern) -> Vec<(usize, f64)> {
    let of_kind = samples.iter().filter(|sample| sample.pattern == pattern);
    let rates: BTreeMap<usize, f64> = of_kind.map(|sample| (sample.round, sample.bytes_per_s)).collect();
    rates.into_iter().collect()
}

/// Every kind but random data that was written in enough rounds.
pub(super) fn effects(samples: &[Sample]) -> Vec<Effect> {
    let random: BTreeMap<usize, f64> = rates_of(samples, Pattern::Random).into_iter().collect();
    let mut effects = Vec::new();
    for pattern in Pattern::all()
        .into_iter()
        .filter(|pattern| *pattern != Pattern::Random)
    {
        let logs: Vec<f64> = rates_of(samples, pattern)
            .into_iter()
            .filter_map(|(round, rate)| Some((rate / random.get(&round)?).ln()))
            .collect();
        if logs.len() < ROUNDS_MIN {
            continue;
        }
        let moments = Moments::of(&logs);
        let (low, high) = welch::mean_interval(moments, 0.95);
        effects.push(Effect {
            pattern,
            ratio: moments.mean.exp(),
            low: low.exp(),
            high: high.exp(),
            p: p_above_margin(moments),
            kept: kept_of(samples, pattern),
        });
    }
    let p: Vec<f64> = effects.iter().map(|effect| effect.p).collect();
    for (effect, p) in effects.iter_mut().zip(family::holm(&p)) {
        effect.p = p;
    }
    effects
}

/// One-sided: how probable such a mean is if the true one is at the margin.
fn p_above_margin(moments: Moments) -> f64 {
    let above = moments.mean - (MARGIN_PCT / 100.0).ln_1p();
    let error = moments.variance_of_mean().sqrt();
    if error == 0.0 {
        return if above > 0.0 { 0.0 } else { 1.0 };
    }
    student::upper(above / error, f64::from(moments.runs - 1))
}
