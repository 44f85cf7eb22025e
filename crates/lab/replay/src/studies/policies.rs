//! Replays the real traces with each policy and prints the hit ratios next to the design's table.
//!
//! There are two models: by block (`ideal`), as in the table, and with regions and the engine's own policies
//! (`regions`), as a cache can do. FIFO with reinsertion is a column of the table but not a policy of the engine; it is
//! implemented here (`reinsertion`). The engine's plain FIFO has no column. The engine's S3-FIFO has a correlation window, which the
//! table's has not. Every comparison includes writes to the SSD for admissions and reinsertions, in blocks per reference.

mod ideal;
mod outcome;
mod regions;
mod reinsertion;
mod studied;

use std::path::Path;

use flaz_engine::policy::PolicyKind;

use super::StudyError;
use super::known::{KNOWN, Trace};
use outcome::Outcome;
use regions::RegionCache;
use studied::Studied;

/// Maximum difference of the ideal models from the table, which has three digits and an unpublished variant behind it.
const IDEAL_DIFFERENCE_MAX: f64 = 0.005;

/// Maximum by which S3-FIFO with regions may be below the table. It is above, because the table's S3-FIFO has no correlation window.
const REGIONS_BELOW_MAX: f64 = 0.02;

/// A row of the design's table.
struct Row {
    trace: &'static str,
    per_cent: usize,
    fifo_with_reinsertion: f64,
    second_touch: f64,
    s3_fifo: f64,
    s3_fifo_x2: f64,
}

const fn row(
    trace: &'static str,
    per_cent: usize,
    [fifo_with_reinsertion, second_touch, s3_fifo, s3_fifo_x2]: [f64; 4],
) -> Row {
    Row {
        trace,
        per_cent,
        fifo_with_reinsertion,
        second_touch,
        s3_fifo,
        s3_fifo_x2,
    }
}

const TABLE: [Row; 6] = [
    row("arc-P3", 5, [0.158, 0.167, 0.266, 0.408]),
    row("arc-P3", 10, [0.294, 0.361, 0.408, 0.596]),
    row("arc-P6", 5, [0.186, 0.204, 0.333, 0.537]),
    row("arc-P6", 10, [0.395, 0.544, 0.537, 0.851]),
    row("cloudphysics", 10, [0.127, 0.107, 0.180, 0.271]),
    row("cloudphysics", 20, [0.195, 0.202, 0.271, 0.399]),
];

impl Row {
    /// The table's value for a policy; there is no column for plain FIFO, and some have no value at twice the size.
    fn published(&self, policy: Studied, compression: usize) -> Option<f64> {
        match (policy, compression) {
            (Studied::FifoWithReinsertion, 1) => Some(self.fifo_with_reinsertion),
            (Studied::Engine(PolicyKind::SecondTouch), 1) => Some(self.second_touch),
            (Studied::Engine(PolicyKind::S3Fifo), 1) => Some(self.s3_fifo),
            (Studied::Engine(PolicyKind::S3Fifo), 2) => Some(self.s3_fifo_x2),
            _ => None,
        }
    }
}

/// Runs the study and prints it.
///
/// # Errors
/// A trace cannot be read.
pub fn run(traces: &Path) -> Result<(), StudyError> {
    println!("hit ratios; w: blocks written to the SSD per block requested");
    println!(
        "{:12} {:>4} {:>2} {:12}  {:>5}  {:>5} {:>6} {:>5}  {:>5} {:>6} {:>5} {:>8} {:>9}",
        "trace", "size", "", "policy", "table", "ideal", "", "w", "regns", "", "w", "ghost B", "reclaims"
    );
    let (mut ideal_worst, mut regions_worst) = (0_f64, 0_f64);
    for known in &KNOWN {
        let trace = Trace::known(traces, known)?;
        for row in TABLE.iter().filter(|row| row.trace == known.name) {
            for (policy, compression) in cases() {
                let (ideal, regions) = print_case(&trace, row, policy, compression);
                ideal_worst = ideal_worst.max(ideal.abs());
                if policy == PolicyKind::S3Fifo.into() {
                    regions_worst = regions_worst.max(-regions);
                }
            }
        }
    }
    println!("largest difference of an ideal model: {ideal_worst:.4} (wanted: {IDEAL_DIFFERENCE_MAX})");
    println!(
        "furthest that S3-FIFO with regions is below the table: {regions_worst:.4} (at most {REGIONS_BELOW_MAX})"
    );
    Ok(())
}

fn cases() -> impl Iterator<Item = (Studied, usize)> {
    [1, 2]
        .into_iter()
        .flat_map(|compression| Studied::ALL.map(|policy| (policy, compression)))
}

fn print_case(trace: &Trace, row: &Row, policy: Studied, compression: usize) -> (f64, f64) {
    let distinct = trace.distinct;
    let capacity = distinct * row.per_cent / 100;
    let ideal = policy.ideal()(&trace.references, distinct, capacity * compression);
    let replay = RegionCache::new(policy, distinct, capacity, compression).replay(&trace.references);
    let published = row.published(policy, compression);
    let difference = |outcome: &Outcome| published.map_or(0.0, |ratio| outcome.hit_ratio() - ratio);
    let signed =
        |outcome: &Outcome| published.map_or(String::new(), |_| format!("{:+.3}", difference(outcome)));
    println!(
        "{:12} {:>3}% {} {:12}  {:>5}  {:.3} {:>6} {:.3}  {:.3} {:>6} {:.3} {:>8.2} {:>5} <={}",
        row.trace,
        row.per_cent,
        ["", "x1", "x2"][compression],
        policy.name(),
        published.map_or(String::new(), |ratio| format!("{ratio:.3}")),
        ideal.hit_ratio(),
        signed(&ideal),
        ideal.writes_per_reference(),
        replay.outcome.hit_ratio(),
        signed(&replay.outcome),
        replay.outcome.writes_per_reference(),
        replay.ghost_bytes_per_block,
        replay.reclaimed,
        replay.reclaims_in_a_row_max,
    );
    (difference(&ideal), difference(&replay.outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requires the real traces, which are not in this repository.
    #[test]
    fn hit_ratios_match_the_design() {
        let Some(dir) = std::env::var_os("FLAZ_TRACES") else {
            println!("skipped: FLAZ_TRACES is not set to the directory with the traces");
            return;
        };
        for known in &KNOWN {
            let trace = Trace::known(Path::new(&dir), known).expect("a known trace");
            for row in TABLE.iter().filter(|row| row.trace == known.name) {
                for (policy, compression) in cases() {
                    let (ideal, regions) = print_case(&trace, row, policy, compression);
                    let case = format!(
                        "{} {} % x{compression} {}",
                        row.trace,
                        row.per_cent,
                        policy.name()
                    );
                    assert!(ideal.abs() <= IDEAL_DIFFERENCE_MAX, "{case}, ideal: {ideal:+.4}");
                    if policy == PolicyKind::S3Fifo.into() {
                        assert!(regions >= -REGIONS_BELOW_MAX, "{case}, regions: {regions:+.4}");
                    }
                }
            }
        }
    }
}
