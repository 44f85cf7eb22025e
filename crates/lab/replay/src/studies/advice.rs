//! Compares what the advisor of a cache estimates for other capacities with replays of the same trace at those capacities.

use std::collections::BTreeMap;
use std::thread;

use flaz_codec::CodecChoice;
use flaz_engine::policy::PolicyKind;

use super::known::Trace;
use super::table::{Data, SHARES, replay};
use super::{Options, Selected, StudyError};

/// Capacities for which the advisor is asked.
const MULTIPLES: [f64; 4] = [0.5, 1.0, 2.0, 4.0];

/// Prints the table for all selected traces.
///
/// # Errors
/// A trace cannot be read.
pub fn run(options: &Options) -> Result<(), StudyError> {
    println!("estimate / replay = error at multiples {MULTIPLES:?} of the capacity; sample: 1 in 2^n");
    for selected in options.selected() {
        let Selected { name, trace } = selected?;
        compare(&name, &trace, options.policy)?;
    }
    Ok(())
}

/// Replays a trace with each size and data, and at the multiples of the size.
fn compare(name: &str, trace: &Trace, policy: PolicyKind) -> Result<(), StudyError> {
    let (distinct, references) = (trace.distinct as u64, &trace.references);
    let mut worst = 0.0_f64;
    for data in [Data::Random, Data::TwoToOne, Data::Mixed] {
        let mut sizes: Vec<u64> = (SHARES.iter())
            .flat_map(|share| MULTIPLES.map(|multiple| (distinct as f64 * share * multiple) as u64))
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        let run = |blocks| {
            let outcome = replay(references, distinct, blocks, data, policy, CodecChoice::default())?;
            Ok::<_, StudyError>(outcome.stats)
        };
        let outcomes: BTreeMap<u64, _> = thread::scope(|scope| {
            let halves = sizes.chunks(sizes.len().div_ceil(2));
            let threads: Vec<_> = halves
                .map(|half| {
                    scope.spawn(move || {
                        half.iter()
                            .map(|blocks| Ok((*blocks, run(*blocks)?)))
                            .collect::<Result<Vec<_>, StudyError>>()
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|it| it.join().expect("no panic"))
                .collect::<Result<Vec<_>, StudyError>>()
        })?
        .into_iter()
        .flatten()
        .collect();
        for share in SHARES {
            let blocks = |multiple| (distinct as f64 * share * multiple) as u64;
            let observed = &outcomes[&blocks(1.0)].observed;
            let mut line = format!("{name:<13} {:>3.0} %  {:<5}", share * 100.0, data.name());
            for multiple in MULTIPLES {
                let counts = &outcomes[&blocks(multiple)].counts;
                let exact = counts.hit_blocks as f64 / (counts.hit_blocks + counts.miss_blocks) as f64;
                let told = observed.hit_ratio_at(multiple);
                let error = told.value - exact;
                worst = worst.max(error.abs());
                line += &format!(
                    "  {:.3} ({:.3}-{:.3}) / {exact:.3} = {error:+.3}{}",
                    told.value,
                    told.low,
                    told.high,
                    if (told.low..=told.high).contains(&exact) {
                        ' '
                    } else {
                        '!'
                    }
                );
            }
            println!(
                "{line}  2^{}  own {:+.3}",
                observed.shift,
                observed.simulated() - observed.hit_ratio()
            );
        }
    }
    println!("{name}: the largest error is {worst:.3}");
    Ok(())
}
