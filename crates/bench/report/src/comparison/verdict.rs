//! Derives a verdict from the statistics.
//!
//! A cell is *faster* or *slower* if the difference is significant (Welch on logarithms, adjusted after Benjamini and
//! Hochberg, below 5 %) and larger than the margin; *equivalent* if it is shown to be smaller than the margin (two
//! one-sided tests, adjusted likewise); otherwise *inconclusive*. A cell cannot be both different and equivalent,
//! because a difference shown to be below the margin is also measured below the margin.

use serde::{Deserialize, Serialize};

use super::confidence::{ALPHA, RUNS_FEW};
use super::interval::Interval;
use crate::cell::Cell;
use crate::statistics::ranks::MannWhitney;
use crate::statistics::welch::Welch;
use crate::unit::Direction;

/// What decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Welch's test and the equivalence test, adjusted for the number of cells.
    #[default]
    Welch,
    /// The rule of older articles: a difference is meaningful if it exceeds the new standard deviation.
    Stddev,
}

/// The verdict on B against A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// B is faster.
    Faster,
    /// B is slower.
    Slower,
    /// The difference is smaller than the margin.
    Equivalent,
    /// The runs do not decide it.
    Inconclusive,
}

impl Verdict {
    /// The verdict as a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Equivalent => "equivalent",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// A remark on a verdict.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Note {
    /// The difference is significant, but not larger than the margin.
    Small,
    /// Mean and median changed in opposite directions, so the cell is inconclusive.
    MediansDisagree,
    /// The rank test, which is robust against outliers, does not confirm a significant difference.
    RanksDisagree,
    /// Neither side varies: rounded numbers, or a test of the clock.
    NoVariation,
    /// Runs far from the median.
    Outliers,
    /// Fewer than [`RUNS_FEW`] runs (in a comparison, per side): an interval by resampling is too narrow. A claim is decided
    /// by the wider one of Student's t instead.
    FewRuns,
}

impl Note {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Small,
        Self::MediansDisagree,
        Self::RanksDisagree,
        Self::NoVariation,
        Self::Outliers,
        Self::FewRuns,
    ];

    /// Its letter in a table.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Small => 's',
            Self::MediansDisagree => 'm',
            Self::RanksDisagree => 'r',
            Self::NoVariation => 'v',
            Self::Outliers => 'o',
            Self::FewRuns => 'f',
        }
    }

    /// Its explanation.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Small => "significant, but not larger than the margin",
            Self::MediansDisagree => "mean and median changed in opposite directions",
            Self::RanksDisagree => "not significant by ranks (Mann-Whitney)",
            Self::NoVariation => "all runs are equal: are the numbers rounded?",
            Self::Outliers => "outliers, which are included",
            Self::FewRuns => "fewer than 6 runs per side: the interval is too narrow",
        }
    }
}

/// The statistics of one cell that do not depend on others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    pub(super) direction: Direction,
    /// On a logarithmic scale.
    pub(super) welch: Welch,
    pub(super) ratio: Interval,
    pub(super) ranks: Option<MannWhitney>,
    pub(super) margin_pct: f64,
    /// The margin on a logarithmic scale.
    pub(super) margin: f64,
    pub(super) equivalence_p: f64,
    pub(super) stddev_meaningful: bool,
    /// Mean of B minus mean of A.
    pub(super) mean_difference: f64,
}

impl Evidence {
    /// By the default rule, from p-values adjusted for the number of cells.
    pub(super) fn verdict(&self, p: f64, equivalence_p: f64) -> Verdict {
        let difference = self.welch.difference;
        if p < ALPHA && difference.abs() > self.margin && !self.medians_disagree() {
            self.word_for(difference)
        } else if equivalence_p < ALPHA {
            Verdict::Equivalent
        } else {
            Verdict::Inconclusive
        }
    }

    /// By the standard deviation rule, which has no equivalence.
    pub(super) fn old_verdict(&self) -> Verdict {
        if self.stddev_meaningful {
            self.word_for(self.mean_difference)
        } else {
            Verdict::Inconclusive
        }
    }

    fn word_for(&self, difference: f64) -> Verdict {
        if self.direction.improves(difference) {
            Verdict::Faster
        } else {
            Verdict::Slower
        }
    }

    fn medians_disagree(&self) -> bool {
        self.ratio.estimate.ln() * self.welch.difference < 0.0
    }

    pub(super) fn notes(&self, a: &Cell, b: &Cell, p: f64, verdict: Verdict, rule: Rule) -> Vec<Note> {
        let (a, b) = (a.measured.describe(), b.measured.describe());
        let proven = p < ALPHA;
        let changed = matches!(verdict, Verdict::Faster | Verdict::Slower);
        Note::ALL
            .into_iter()
            .filter(|note| match note {
                Note::Small => rule == Rule::Welch && proven && self.welch.difference.abs() <= self.margin,
                Note::MediansDisagree => proven && self.medians_disagree(),
                Note::RanksDisagree => changed && self.ranks.is_some_and(|ranks| ranks.p >= ALPHA),
                Note::NoVariation => self.welch.error == 0.0,
                Note::Outliers => a.outliers.unwrap_or(0) + b.outliers.unwrap_or(0) > 0,
                Note::FewRuns => self.ranks.is_some() && a.runs.min(b.runs) < RUNS_FEW,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::IntervalMethod;

    fn evidence(difference: f64, direction: Direction) -> Evidence {
        Evidence {
            direction,
            welch: Welch {
                difference,
                error: 0.001,
                t: difference / 0.001,
                df: 18.0,
                p: 0.5,
            },
            ratio: Interval {
                estimate: difference.exp(),
                low: 0.0,
                high: 9.0,
                method: IntervalMethod::Bootstrap,
            },
            ranks: None,
            margin_pct: 1.0,
            margin: 0.01f64.ln_1p(),
            equivalence_p: 0.5,
            stddev_meaningful: true,
            mean_difference: difference,
        }
    }

    #[test]
    fn significance_and_size_are_both_required() {
        let higher = Direction::HigherIsBetter;
        for (difference, p, equivalence_p, verdict) in [
            (0.05, 0.001, 1.0, Verdict::Faster),
            (-0.05, 0.001, 1.0, Verdict::Slower),
            (0.05, 0.06, 1.0, Verdict::Inconclusive),
            (0.005, 0.001, 0.5, Verdict::Inconclusive),
            (0.005, 0.001, 0.01, Verdict::Equivalent),
            (0.005, 0.7, 0.01, Verdict::Equivalent),
        ] {
            assert_eq!(evidence(difference, higher).verdict(p, equivalence_p), verdict);
        }
    }

    #[test]
    fn lower_can_be_better() {
        let evidence = evidence(-0.05, Direction::LowerIsBetter);
        assert_eq!(evidence.verdict(0.001, 1.0), Verdict::Faster);
        assert_eq!(evidence.old_verdict(), Verdict::Faster);
    }

    #[test]
    fn opposite_medians_prevent_a_verdict() {
        let mut evidence = evidence(0.05, Direction::HigherIsBetter);
        evidence.ratio.estimate = 0.99;
        assert_eq!(evidence.verdict(0.001, 1.0), Verdict::Inconclusive);
    }
}
