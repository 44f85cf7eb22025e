//! Smaller workloads that still fail, found by removing steps.
//!
//! Delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002) over the list of
//! steps. Each candidate is explored like the original, because another workload has other moments to crash at. It may then
//! fail because of another defect, which is just as useful.

use super::explore::{Base, Budget, Counts, Failure, explore};
use super::workload::{Scenario, Step};

/// Crash states that minimising may use, about a minute.
const STATES_MAX: u64 = 50_000;

/// A failing workload and its failure.
pub struct Smallest {
    pub steps: Vec<Step>,
    pub failure: Failure,
}

/// Removes as many steps as possible from a scenario that fails with `failure`.
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
