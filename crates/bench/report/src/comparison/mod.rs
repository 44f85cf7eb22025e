//! `flaz bench compare`: compares two results cell by cell.
//!
//! Invariants: every verdict of the default rule is valid after correction for the number of cells; the same files,
//! seed and options produce the same report, byte for byte; an interval does not depend on which other cells there are.

mod confidence;
mod interval;
mod margin;
mod page;
mod report;
mod verdict;

use std::collections::{HashMap, HashSet};
use std::path::Path;

pub use confidence::{ALPHA, COVERAGE, RUNS_FEW, SEED};
pub use interval::{Interval, IntervalMethod};
pub use margin::{DELTA_FLOOR_PCT, Margin};
pub(crate) use page::source_line;
pub use report::{
    CellReport, Comparison, Counts, MarginReport, RankMethod, RanksReport, RuleReport, SourceReport,
    WelchReport,
};
pub use verdict::{Note, Rule, Verdict};

use flaz_random::Random;

use crate::cell::{Cell, CellKey, Measured};
use crate::error::BenchError;
use crate::results::{self, Results};
use crate::statistics::{bootstrap, deviation, family, ranks, welch};
use verdict::Evidence;

/// Options of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What decides.
    pub rule: Rule,
    /// Number of runs behind the means of a table.
    pub runs: Option<u32>,
    /// The margin.
    pub margin: Margin,
    /// Seed of the resampling.
    pub seed: u64,
    /// Number of resamples for an interval.
    pub resamples: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rule: Rule::Welch,
            runs: None,
            margin: Margin::Percent(DELTA_FLOOR_PCT),
            seed: SEED,
            resamples: bootstrap::RESAMPLES,
        }
    }
}

/// Compares the file `b` with the file `a`, the baseline.
///
/// # Errors
/// A file is invalid, or they cannot be compared.
pub fn compare(a: &Path, b: &Path, options: &Options) -> Result<Comparison, BenchError> {
    let a = results::open_results(a, options.runs)?;
    let b = results::open_against(b, options.runs, &a)?;
    compare_results(&a, &b, options)
}

/// Compares results in memory.
///
/// # Errors
/// They have no cell in common, different units, or the margin is invalid.
pub fn compare_results(a: &Results, b: &Results, options: &Options) -> Result<Comparison, BenchError> {
    let pairs = common_cells(a, b)?;
    let keys: Vec<&CellKey> = pairs.iter().map(|(a, _)| &a.key).collect();
    let margins = margin::margins_pct(&options.margin, &keys, a, options.runs)?;
    let evidence: Vec<Evidence> = pairs
        .iter()
        .zip(&margins)
        .map(|(&(a, b), &margin_pct)| gather(a, b, margin_pct, options))
        .collect();
    let cells = judge(&pairs, &evidence, options.rule);
    let in_both: HashSet<&CellKey> = keys.iter().copied().collect();
    let only = |results: &Results| {
        results
            .cells
            .iter()
            .map(|cell| &cell.key)
            .chain(&results.without_baseline)
            .filter(|key| !in_both.contains(key))
            .cloned()
            .collect()
    };
    Ok(Comparison {
        schema: report::SCHEMA,
        a: SourceReport::of(a),
        b: SourceReport::of(b),
        rule: options.rule,
        alpha: ALPHA,
        margin: MarginReport::of(&options.margin),
        seed: options.seed,
        resamples: options.resamples,
        counts: Counts::of(&cells),
        stddev_rule: RuleReport::of(&pairs),
        only_in_a: only(a),
        only_in_b: only(b),
        cells,
    })
}

/// The common cells, in the order of A.
fn common_cells<'a>(a: &'a Results, b: &'a Results) -> Result<Vec<(&'a Cell, &'a Cell)>, BenchError> {
    let in_b: HashMap<&CellKey, &Cell> = b.cells.iter().map(|cell| (&cell.key, cell)).collect();
    let pairs: Vec<(&Cell, &Cell)> = a
        .cells
        .iter()
        .filter_map(|cell| Some((cell, *in_b.get(&cell.key)?)))
        .collect();
    if let Some((cell, other)) = pairs
        .iter()
        .find(|(cell, other)| cell.unit != other.unit || cell.direction != other.direction)
    {
        return Err(BenchError::Units {
            key: cell.key.clone(),
            a: a.path.clone(),
            b: b.path.clone(),
            counts_a: cell.counts(),
            counts_b: other.counts(),
        });
    }
    if pairs.is_empty() {
        let keys_of = |results: &'a Results| {
            let cells = results.cells.iter().map(|cell| &cell.key);
            cells.chain(&results.without_baseline)
        };
        // Reading refuses a file without cells.
        let example = |results: &'a Results| keys_of(results).next().cloned();
        if let (Some(a_example), Some(b_example)) = (example(a), example(b)) {
            return Err(BenchError::NothingCommon {
                a: a.path.clone(),
                b: b.path.clone(),
                a_example,
                b_example,
            });
        }
    }
    Ok(pairs)
}

/// The statistics of one cell that do not depend on others.
fn gather(a: &Cell, b: &Cell, margin_pct: f64, options: &Options) -> Evidence {
    let test = welch::welch(a.measured.log_moments(), b.measured.log_moments());
    let (moments_a, moments_b) = (a.measured.moments(), b.measured.moments());
    let margin = (margin_pct / 100.0).ln_1p();
    Evidence {
        direction: a.direction,
        welch: test,
        ratio: ratio(a, b, &test, options),
        ranks: match (&a.measured, &b.measured) {
            (Measured::Runs(a), Measured::Runs(b)) => Some(ranks::mann_whitney(a, b)),
            _ => None,
        },
        margin_pct,
        margin,
        equivalence_p: test.equivalence(margin),
        stddev_meaningful: deviation::meaningful(moments_b.mean - moments_a.mean, moments_b.stddev()),
        mean_difference: moments_b.mean - moments_a.mean,
    }
}

/// The ratio of the medians with its interval: from resampling if the runs are known, else from the test.
fn ratio(a: &Cell, b: &Cell, test: &welch::Welch, options: &Options) -> Interval {
    if let (Measured::Runs(runs_a), Measured::Runs(runs_b)) = (&a.measured, &b.measured) {
        let mut random = Random::named(options.seed, &a.key.to_string());
        let (low, high) = bootstrap::median_ratio(runs_a, runs_b, COVERAGE, options.resamples, &mut random);
        return Interval {
            estimate: b.measured.median() / a.measured.median(),
            low,
            high,
            method: IntervalMethod::Bootstrap,
        };
    }
    let (low, high) = test.interval(COVERAGE);
    Interval {
        estimate: test.difference.exp(),
        low: low.exp(),
        high: high.exp(),
        method: IntervalMethod::LogNormal,
    }
}

/// The verdicts, which depend on all cells.
fn judge(pairs: &[(&Cell, &Cell)], evidence: &[Evidence], rule: Rule) -> Vec<CellReport> {
    let p: Vec<f64> = evidence.iter().map(|evidence| evidence.welch.p).collect();
    let bh = family::benjamini_hochberg(&p);
    let holm = family::holm(&p);
    let equivalence: Vec<f64> = evidence.iter().map(|evidence| evidence.equivalence_p).collect();
    let equivalence_bh = family::benjamini_hochberg(&equivalence);
    pairs
        .iter()
        .zip(evidence)
        .enumerate()
        .map(|(at, ((a, b), evidence))| {
            let verdict = match rule {
                Rule::Welch => evidence.verdict(bh[at], equivalence_bh[at]),
                Rule::Stddev => evidence.old_verdict(),
            };
            CellReport {
                key: a.key.clone(),
                unit: a.unit,
                direction: a.direction,
                a: a.measured.describe(),
                b: b.measured.describe(),
                ratio: evidence.ratio,
                welch: WelchReport {
                    t: evidence.welch.t,
                    df: evidence.welch.df,
                    p: evidence.welch.p,
                    p_benjamini_hochberg: bh[at],
                    p_holm: holm[at],
                },
                mann_whitney: evidence.ranks.map(RanksReport::of),
                delta_pct: evidence.margin_pct,
                equivalence_p: evidence.equivalence_p,
                equivalence_p_benjamini_hochberg: equivalence_bh[at],
                stddev_meaningful: evidence.stddev_meaningful,
                verdict,
                notes: evidence.notes(a, b, bh[at], verdict, rule),
            }
        })
        .collect()
}
