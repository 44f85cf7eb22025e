//! How much faster one kind of data is written than random data: a paired t-test on logarithms, by round.

use std::collections::BTreeMap;

use serde::Serialize;

use super::pattern::Pattern;
use super::sample::{ALPHA, MARGIN_PCT, ROUNDS_MIN, SMALL_PCT, Sample};
use crate::statistics::moments::Moments;
use crate::statistics::{family, student, welch};

/// A kind of data compared with random data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Effect {
    /// Which kind.
    #[schemars(with = "String")]
    pub pattern: Pattern,
    /// Its rate divided by that of random data: geometric mean over the rounds.
    pub ratio: f64,
    /// Lower limit of its 95 % interval.
    pub low: f64,
    /// Upper limit.
    pub high: f64,
    /// Probability of such a gain if the true one is not above the margin; adjusted for the number of kinds (Holm). The
    /// largest value over the series of rounds.
    pub p: f64,
    /// Share that the device reports as stored, 0 to 1: the mean over the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<f64>,
}

impl Effect {
    /// Whether a gain above the margin is significant.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        match self.kept {
            Some(kept) => kept < KEPT_MAX,
            None => self.p < ALPHA,
        }
    }

    /// Whether a relevant gain is excluded.
    #[must_use]
    pub fn is_excluded(&self) -> bool {
        !self.is_proven() && (self.kept.is_some() || self.high < 1.0 + SMALL_PCT / 100.0)
    }
}

/// From this stored share on, a device that reports it gains nothing: that of the margin.
const KEPT_MAX: f64 = 1.0 / (1.0 + MARGIN_PCT / 100.0);

/// The reported stored share of a kind; `None` unless the device reports it for every sample.
fn kept_of(series: &[&[Sample]], pattern: Pattern) -> Option<f64> {
    let of_kind = series
        .iter()
        .copied()
        .flatten()
        .filter(|sample| sample.pattern == pattern);
    let kept: Vec<f64> = of_kind.map(|sample| sample.kept).collect::<Option<_>>()?;
    (!kept.is_empty()).then(|| Moments::of(&kept).mean)
}

/// The rates of a kind, with their rounds.
pub(super) fn rates_of(samples: &[Sample], pattern: Pattern) -> Vec<(usize, f64)> {
    let of_kind = samples.iter().filter(|sample| sample.pattern == pattern);
    let rates: BTreeMap<usize, f64> = of_kind.map(|sample| (sample.round, sample.bytes_per_s)).collect();
    rates.into_iter().collect()
}

/// Logarithms of the rate of a kind relative to random data, by round.
fn logs_of(samples: &[Sample], pattern: Pattern) -> Vec<f64> {
    let random: BTreeMap<usize, f64> = rates_of(samples, Pattern::Random).into_iter().collect();
    let rates = rates_of(samples, pattern).into_iter();
    rates
        .filter_map(|(round, rate)| Some((rate / random.get(&round)?).ln()))
        .collect()
}

/// Every kind except random data that was written in enough rounds of each series.
pub(super) fn effects(series: &[&[Sample]]) -> Vec<Effect> {
    let mut effects = Vec::new();
    // For each series and each effect.
    let mut p = vec![Vec::new(); series.len()];
    for pattern in Pattern::all()
        .into_iter()
        .filter(|pattern| *pattern != Pattern::Random)
    {
        let logs: Vec<Vec<f64>> = series.iter().map(|samples| logs_of(samples, pattern)).collect();
        if logs.iter().any(|logs| logs.len() < ROUNDS_MIN) {
            continue;
        }
        for (p, logs) in p.iter_mut().zip(&logs) {
            p.push(p_above_margin(Moments::of(logs)));
        }
        let moments = Moments::of(&logs.concat());
        let (low, high) = welch::mean_interval(moments, 0.95);
        effects.push(Effect {
            pattern,
            ratio: moments.mean.exp(),
            low: low.exp(),
            high: high.exp(),
            p: 0.0,
            kept: kept_of(series, pattern),
        });
    }
    for p in p {
        for (effect, p) in effects.iter_mut().zip(family::holm(&p)) {
            effect.p = effect.p.max(p);
        }
    }
    effects
}

/// One-sided: probability of such a mean if the true one is at the margin.
fn p_above_margin(moments: Moments) -> f64 {
    let above = moments.mean - (MARGIN_PCT / 100.0).ln_1p();
    let error = moments.variance_of_mean().sqrt();
    if error == 0.0 {
        return if above > 0.0 { 0.0 } else { 1.0 };
    }
    student::upper(above / error, f64::from(moments.runs - 1))
}
