//! The hit ratio that a write budget costs, beside second touch and beside dropping missed blocks at random, each with as many writes.
//!
//! A replay takes 28 days of virtual time, so a budget pays for 29 days. Its writes are those of the unrestricted replay, times a
//! share. Second touch and random dropping have no budget: the share of the dropped blocks is varied until they write as much.

use std::num::NonZeroU64;
use std::time::Duration;

use flaz_codec::CodecChoice;
use flaz_engine::policy::PolicyKind;
use flaz_engine::stats::StatsSnapshot;
use flaz_engine::write_budget::WriteBudget;

use super::known::Trace;
use super::table::{Data, replay_with};
use super::{Options, Selected, StudyError};
use crate::engine::Restriction;

/// How long a trace takes with a write budget. A budget's first day is spent at once.
const REPLAY_TIME: Duration = Duration::from_secs(28 * 24 * 3600);

/// Writes as shares of those of the unrestricted replay.
const SHARES_OF_WRITES: [f64; 3] = [0.50, 0.25, 0.10];
/// Size of the cache as a share of the blocks in the trace.
const SHARE: f64 = 0.10;
/// Attempts to find the share of dropped blocks for a number of writes, and the error that ends them.
const ATTEMPTS_MAX: usize = 6;
const ERROR_MAX: f64 = 0.03;

/// Hit ratio, and bytes written.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    hit_ratio: f64,
    written: f64,
}

impl Outcome {
    fn of(stats: &StatsSnapshot) -> Self {
        let counts = &stats.counts;
        Self {
            hit_ratio: counts.hit_blocks as f64 / (counts.hit_blocks + counts.miss_blocks) as f64,
            written: counts.cache_write_bytes as f64,
        }
    }

    /// As in the table: the hit ratio, and the writes as a share of `whole`.
    fn cell(self, whole: f64) -> String {
        format!("{:.3}/{:.2}", self.hit_ratio, self.written / whole)
    }
}

/// Prints the table.
///
/// # Errors
/// A trace cannot be read.
pub fn run(options: &Options) -> Result<(), StudyError> {
    println!(
        "{} through the engine; hit ratio / writes, relative to those without a budget",
        options.policy
    );
    println!("trace          writes  budget      dropped     second touch");
    for selected in options.selected() {
        let Selected { name, trace } = selected?;
        print(&name, &trace, options.policy)?;
    }
    Ok(())
}

fn print(name: &str, trace: &Trace, policy: PolicyKind) -> Result<(), StudyError> {
    let distinct = trace.distinct as u64;
    let blocks = (distinct as f64 * SHARE) as u64;
    let with = |policy, restriction| {
        let stats = replay_with(
            &trace.references,
            distinct,
            blocks,
            Data::Random,
            policy,
            CodecChoice::default(),
            restriction,
        )?
        .stats;
        Ok::<_, StudyError>(Outcome::of(&stats))
    };
    let whole = with(policy, Restriction::default())?;
    let second = with(PolicyKind::SecondTouch, Restriction::default())?;
    println!(
        "{name:<13}  100 %   {}  {}  {}",
        whole.cell(whole.written),
        whole.cell(whole.written),
        second.cell(whole.written)
    );
    for share in SHARES_OF_WRITES {
        let wanted = whole.written * share;
        let days = REPLAY_TIME.as_secs_f64() / 86_400.0 + 1.0;
        let budget =
            NonZeroU64::new((wanted / days) as u64).map_or(WriteBudget::None, WriteBudget::BytesPerDay);
        let step = match budget {
            WriteBudget::None => Duration::ZERO,
            _ => REPLAY_TIME / trace.references.len() as u32,
        };
        let restricted = with(
            policy,
            Restriction {
                budget,
                step,
                dropped: 0.0,
            },
        )?;
        let dropping = |policy, start| {
            dropped(wanted, start, |dropped| {
                with(
                    policy,
                    Restriction {
                        dropped,
                        ..Restriction::default()
                    },
                )
            })
        };
        println!(
            "{name:<13}  {:>3.0} %   {}  {}  {}",
            share * 100.0,
            restricted.cell(whole.written),
            dropping(policy, whole)?.cell(whole.written),
            dropping(PolicyKind::SecondTouch, second)?.cell(whole.written)
        );
    }
    Ok(())
}

/// The outcome when so many blocks are dropped that about `wanted` bytes are written; `start` is the one when none are.
fn dropped(
    wanted: f64,
    start: Outcome,
    replayed: impl Fn(f64) -> Result<Outcome, StudyError>,
) -> Result<Outcome, StudyError> {
    // Writes fall with the share of the dropped blocks.
    let (mut low, mut high) = ((0.0, start.written), (1.0, 0.0));
    let mut best = start;
    for _ in 0..ATTEMPTS_MAX {
        if best.written <= wanted * (1.0 + ERROR_MAX) && best.written >= wanted * (1.0 - ERROR_MAX)
            || low.1 <= wanted
        {
            break;
        }
        let share = low.0 + (high.0 - low.0) * (low.1 - wanted) / (low.1 - high.1);
        best = replayed(share)?;
        if best.written > wanted {
            low = (share, best.written);
        } else {
            high = (share, best.written);
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_dropped_blocks_is_found() {
        let start = Outcome {
            hit_ratio: 0.5,
            written: 1000.0,
        };
        let replayed = |share: f64| {
            Ok(Outcome {
                hit_ratio: share,
                written: 1000.0 * (1.0 - share).powi(2),
            })
        };
        for wanted in [900.0, 500.0, 100.0] {
            let found = dropped(wanted, start, replayed).expect("nothing fails");
            assert!((found.written / wanted - 1.0).abs() < 0.1, "{wanted}: {found:?}");
        }
        assert_eq!(
            dropped(1500.0, start, replayed).expect("nothing fails").written,
            1000.0,
            "nothing is dropped"
        );
    }
}
