//! The result of a comparison: the structs behind the table and the JSON.
//!
//! The JSON is an interface for scripts: a field keeps its name and unit once released, and [`SCHEMA`] is incremented
//! when a field changes its meaning. An infinite number (the t of runs that do not vary) is `null`.

use std::path::PathBuf;

use serde::Serialize;

use super::confidence::ALPHA;
use super::interval::Interval;
use super::margin::{DELTA_FLOOR_PCT, Margin};
use super::verdict::{Note, Rule, Verdict};
use crate::cell::{Cell, CellKey, Description};
use crate::results::{Kind, Results};
use crate::statistics::deviation;
use crate::statistics::ranks::{MannWhitney, Method};
use crate::unit::{Direction, Unit};

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// A comparison of B with A.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Comparison {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The baseline.
    pub a: SourceReport,
    /// The file compared with it.
    pub b: SourceReport,
    /// What decided.
    pub rule: Rule,
    /// Level of the tests.
    pub alpha: f64,
    /// The margin.
    pub margin: MarginReport,
    /// Seed of the resampling.
    pub seed: u64,
    /// Number of resamples per interval.
    pub resamples: u32,
    /// Number of cells by verdict.
    pub counts: Counts,
    /// Error rate of the standard deviation rule with these numbers of runs.
    pub stddev_rule: RuleReport,
    /// Cells that B lacks.
    pub only_in_a: Vec<CellKey>,
    /// Cells that A lacks.
    pub only_in_b: Vec<CellKey>,
    /// The common cells, in the order of A.
    pub cells: Vec<CellReport>,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct SourceReport {
    /// Path.
    pub path: PathBuf,
    /// Kind.
    pub kind: Kind,
    /// Number of cells.
    pub cells: usize,
}

impl SourceReport {
    pub(crate) fn of(results: &Results) -> Self {
        Self {
            path: results.path.clone(),
            kind: results.kind,
            cells: results.cells.len() + results.without_baseline.len(),
        }
    }
}

/// Source of the margin; each cell has its own margin.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "from")]
pub enum MarginReport {
    /// Given by the user.
    Given {
        /// The margin in percent.
        delta_pct: f64,
    },
    /// Measured.
    Repeats {
        /// One A/A campaign, compared with A, or two, compared with each other.
        paths: Vec<PathBuf>,
        /// Minimum margin in percent.
        floor_pct: f64,
    },
}

impl MarginReport {
    pub(super) fn of(margin: &Margin) -> Self {
        match margin {
            Margin::Percent(delta_pct) => Self::Given {
                delta_pct: *delta_pct,
            },
            Margin::Repeats(paths) => Self::Repeats {
                paths: paths.clone(),
                floor_pct: DELTA_FLOOR_PCT,
            },
        }
    }
}

/// Number of cells by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Counts {
    /// Cells compared.
    pub cells: usize,
    /// Verdicts.
    pub faster: usize,
    /// Verdicts.
    pub slower: usize,
    /// Verdicts.
    pub equivalent: usize,
    /// Verdicts.
    pub inconclusive: usize,
    /// Cells that the standard deviation rule calls meaningful.
    pub stddev_rule: usize,
    /// Cells with p of Welch's test below alpha.
    pub welch: usize,
    /// Cells with the p-value below alpha after Benjamini and Hochberg.
    pub welch_benjamini_hochberg: usize,
    /// Cells with the p-value below alpha after Holm.
    pub welch_holm: usize,
    /// Cells with p of the Mann-Whitney test below alpha; absent without the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mann_whitney: Option<usize>,
}

impl Counts {
    pub(super) fn of(cells: &[CellReport]) -> Self {
        let count = |is: &dyn Fn(&CellReport) -> bool| cells.iter().filter(|cell| is(cell)).count();
        let verdicts = |verdict| count(&|cell| cell.verdict == verdict);
        let with_ranks = cells.iter().any(|cell| cell.mann_whitney.is_some());
        Self {
            cells: cells.len(),
            faster: verdicts(Verdict::Faster),
            slower: verdicts(Verdict::Slower),
            equivalent: verdicts(Verdict::Equivalent),
            inconclusive: verdicts(Verdict::Inconclusive),
            stddev_rule: count(&|cell| cell.stddev_meaningful),
            welch: count(&|cell| cell.welch.p < ALPHA),
            welch_benjamini_hochberg: count(&|cell| cell.welch.p_benjamini_hochberg < ALPHA),
            welch_holm: count(&|cell| cell.welch.p_holm < ALPHA),
            mann_whitney: with_ranks
                .then(|| count(&|cell| cell.mann_whitney.is_some_and(|ranks| ranks.p < ALPHA))),
        }
    }
}

/// How often the standard deviation rule calls a cell meaningful if there is no difference and both sides are equally
/// noisy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct RuleReport {
    /// Smallest number of runs of A and of B in a cell.
    pub runs: (u32, u32),
    /// Expected share of cells in percent that the rule calls meaningful by chance.
    pub false_alarms_pct: f64,
}

impl RuleReport {
    pub(super) fn of(pairs: &[(&Cell, &Cell)]) -> Self {
        let fewest = |side: &dyn Fn(&(&Cell, &Cell)) -> u32| pairs.iter().map(side).min().unwrap_or(2);
        let runs = (
            fewest(&|pair| pair.0.measured.moments().runs),
            fewest(&|pair| pair.1.measured.moments().runs),
        );
        Self {
            runs,
            false_alarms_pct: 100.0 * deviation::false_alarms(runs.0, runs.1, 1.0),
        }
    }
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct CellReport {
    /// Test, record size, level.
    #[serde(flatten)]
    pub key: CellKey,
    /// Unit of the values.
    pub unit: Unit,
    /// Whether higher or lower values are better.
    pub direction: Direction,
    /// The baseline.
    pub a: Description,
    /// The values of B.
    pub b: Description,
    /// Median of B divided by that of A.
    pub ratio: Interval,
    /// Welch's test on logarithms.
    pub welch: WelchReport,
    /// The Mann-Whitney test, if the runs are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mann_whitney: Option<RanksReport>,
    /// The margin in percent.
    pub delta_pct: f64,
    /// p-value of the two one-sided tests: small if the difference is shown to be within the margin.
    pub equivalence_p: f64,
    /// The same, adjusted after Benjamini and Hochberg.
    pub equivalence_p_benjamini_hochberg: f64,
    /// Whether the standard deviation rule calls the difference meaningful.
    pub stddev_meaningful: bool,
    /// The verdict.
    pub verdict: Verdict,
    /// Remarks on the verdict.
    pub notes: Vec<Note>,
}

/// Welch's test on logarithms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct WelchReport {
    /// The statistic; positive where B is larger.
    pub t: f64,
    /// Degrees of freedom.
    pub df: f64,
    /// Two-sided p-value of this cell alone.
    pub p: f64,
    /// The same, adjusted after Benjamini and Hochberg: bounds the share of false positives.
    pub p_benjamini_hochberg: f64,
    /// The same, adjusted after Holm: bounds the probability of any false positive.
    pub p_holm: f64,
}

/// The Mann-Whitney test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct RanksReport {
    /// Pairs of runs with the larger value in A.
    pub u: f64,
    /// Two-sided p-value of this cell alone.
    pub p: f64,
    /// How it was computed.
    pub method: RankMethod,
}

/// How a p-value of ranks was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RankMethod {
    /// Counted over all permutations.
    Exact,
    /// The normal distribution, corrected for ties and continuity.
    Normal,
}

impl RanksReport {
    pub(super) fn of(ranks: MannWhitney) -> Self {
        Self {
            u: ranks.u,
            p: ranks.p,
            method: match ranks.method {
                Method::Exact => RankMethod::Exact,
                Method::Normal => RankMethod::Normal,
            },
        }
    }
}
