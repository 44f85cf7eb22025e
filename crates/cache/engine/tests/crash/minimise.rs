//! Smaller workloads that still fail, by leaving steps out.
//!
//! Delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002) over the list
//! of steps. Each candidate is explored like the original, because another workload has other moments to crash at.
//! What fails may then be another defect than at first: that one is welcome, too.

use super::explore::{Base, Budget, Counts, Failure, explore};
use super::workload::{Scenario, Step};

/// Crash states that minimising may cost, about a minute.
const STATES_MAX: u64 = 50_000;

/// A workload that fails and the failure that it has.
pub struct Smallest {
    pub steps: Vec<Step>,
    pub failure: Failure,
}

/// Leaves out what can be left out of a scenario that fails with `failure`.
pub fn minimise(base: &Base, scenario: &Scenario, failure: Failure, budget: &Budget) -> Smallest {
    let mut counts = Counts::default();
    let mut best = Smallest {
        steps: scenario.steps.clone(),
        failure,
    };
    let mut chunk = best.steps.len().div_ceil(2);
    while chunk > 0 && counts.states < STATES_MAX {
        let mut at = 0;
        let mut smaller = false;
        while at < best.steps.len() && counts.states < STATES_MAX {
            let mut candidate = scenario.clone();
            candidate.steps.clone_from(&best.steps);
            candidate.steps.drain(at..(at + chunk).min(best.steps.len()));
            match explore(base, &candidate, budget, &mut counts) {
                Err(failure) => {
                    best = Smallest {
                        steps: candidate.steps,
                        failure,
                    };
                    smaller = true;
                }
                Ok(()) => at += chunk,
            }
        }
        chunk = if smaller && chunk == 1 { 1 } else { chunk / 2 };
    }
    best
}
