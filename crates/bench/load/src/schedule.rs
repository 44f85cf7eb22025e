//! The order in which cells are measured, and the steps of a measurement.
//!
//! A campaign consists of *rounds*. Each round has every cell once, so that changes over time affect all cells. In a
//! round the levels are shuffled, and within a level the groups of tests with their record sizes. The target is thus
//! filled with other data once per level and round, not for each test. Every round has another order. The order is a
//! function of the seed.

use flaz_random::Random;
use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::test::{Group, Test};

/// A group of tests with one record size on data of one level, measured without a break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Visit {
    /// The tests.
    pub group: Group,
    /// The record size.
    pub record_bytes: u64,
    /// Index of the level in the plan.
    pub level: usize,
}

/// One step of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Recreate the files.
    Anew,
    /// Make sure that the whole target contains data of the level.
    Fill,
    /// Drop cached pages.
    DropCaches,
    /// Run a test. It is a sample if it counts; otherwise it prepares another test.
    Pass {
        /// The test.
        test: Test,
        /// Whether it is in the plan.
        counts: bool,
    },
    /// Restore what the repeated writing of one record has changed.
    Restore,
    /// Read all data back and compare it.
    Verify,
}

/// The visits of a round, in order.
#[must_use]
pub fn round(plan: &Plan, round: u64) -> Vec<Visit> {
    let mut random = Random::stream(plan.seed, round);
    let mut levels: Vec<usize> = (0..plan.data.levels.len()).collect();
    random.shuffle(&mut levels);
    let mut visits = Vec::new();
    for level in levels {
        let mut of_level: Vec<Visit> = Group::ALL
            .into_iter()
            .filter_map(|group| {
                let test = group.tests().find(|test| plan.tests.contains(test))?;
                Some((group, plan.records_of(test)))
            })
            .flat_map(|(group, records)| {
                records.iter().map(move |&record_bytes| Visit {
                    group,
                    record_bytes,
                    level,
                })
            })
            .collect();
        random.shuffle(&mut of_level);
        visits.append(&mut of_level);
    }
    visits
}

/// The steps of a visit.
#[must_use]
pub fn steps(group: Group, plan: &Plan) -> Vec<Step> {
    let wanted = |test: Test| plan.tests.contains(&test);
    let tests: Vec<Test> = group.tests().collect();
    let pass = |test: Test| Step::Pass {
        test,
        counts: wanted(test),
    };
    let mut steps = match (group, tests.as_slice()) {
        (Group::Write | Group::StreamWrite, &[first, again]) => {
            let mut steps = if wanted(first) {
                vec![Step::Anew, Step::DropCaches, pass(first)]
            } else {
                vec![Step::Fill, Step::DropCaches]
            };
            if wanted(again) {
                steps.push(pass(again));
            }
            steps
        }
        (Group::WriteIops, tests) => [Step::Anew, Step::DropCaches]
            .into_iter()
            .chain(tests.iter().copied().map(pass))
            .collect(),
        (Group::Read | Group::StreamRead, &[first, again]) => {
            let mut steps = vec![Step::Fill, Step::DropCaches, pass(first)];
            if wanted(again) {
                // The first one may have left it in a cache, which is what this test measures.
                steps.push(pass(again));
            }
            steps
        }
        (_, tests) => tests
            .iter()
            .copied()
            .filter(|test| wanted(*test))
            .flat_map(|test| [Step::Fill, Step::DropCaches, pass(test)])
            .collect(),
    };
    if group == Group::RecordRewrite {
        steps.push(Step::Restore);
    }
    if plan.method.verify {
        steps.extend([Step::DropCaches, Step::Verify]);
    }
    steps
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::plan::{Bytes, Wanted};

    fn plan(tests: &[&str], verify: bool) -> Plan {
        Wanted {
            target: Some("/tmp".into()),
            tests: Some(tests.iter().map(|&test| test.to_owned()).collect()),
            records: Some(vec![Bytes(4096), Bytes(1 << 20)]),
            verify: Some(verify),
            ..Wanted::default()
        }
        .plan()
        .unwrap()
    }

    #[test]
    fn a_round_has_each_cell_once_and_levels_together() {
        let plan = plan(&["all"], false);
        let visits = round(&plan, 0);
        let distinct: HashSet<&Visit> = visits.iter().collect();
        // Eight groups with two records, three with one, on three levels.
        assert_eq!((visits.len(), distinct.len()), (57, 57));
        let changes = visits
            .windows(2)
            .filter(|pair| pair[0].level != pair[1].level)
            .count();
        assert_eq!(changes, 2, "a level is left once");
        let cells: usize = visits.iter().map(|visit| visit.group.tests().count()).sum();
        assert_eq!(cells, plan.cells());
    }

    #[test]
    fn rounds_differ_and_are_reproducible_from_the_seed() {
        let plan = plan(&["throughput"], false);
        assert_eq!(round(&plan, 4), round(&plan, 4));
        assert_ne!(round(&plan, 4), round(&plan, 5));
        let first: HashSet<Visit> = (0..20).map(|number| round(&plan, number)[0]).collect();
        assert!(first.len() > 5, "rounds begin with different cells");
    }

    #[test]
    fn steps_prepare_each_test() {
        use Step::{Anew, DropCaches, Fill, Pass, Restore, Verify};
        let counted = |test| Pass { test, counts: true };
        let all = plan(&["all"], false);
        assert_eq!(
            steps(Group::Write, &all),
            [Anew, DropCaches, counted(Test::Write), counted(Test::Rewrite)]
        );
        assert_eq!(
            steps(Group::Read, &all),
            [Fill, DropCaches, counted(Test::Read), counted(Test::Reread)]
        );
        assert_eq!(
            steps(Group::RecordRewrite, &all),
            [Fill, DropCaches, counted(Test::RecordRewrite), Restore]
        );
        assert_eq!(
            steps(Group::WriteIops, &all),
            [Anew, DropCaches, counted(Test::WriteIops)]
        );
        let few = plan(&["rewrite", "reread", "random_write"], true);
        assert_eq!(
            steps(Group::Write, &few),
            [Fill, DropCaches, counted(Test::Rewrite), DropCaches, Verify]
        );
        let read = Pass {
            test: Test::Read,
            counts: false,
        };
        assert_eq!(
            steps(Group::Read, &few)[..4],
            [Fill, DropCaches, read, counted(Test::Reread)]
        );
        assert_eq!(
            steps(Group::Random, &few)[..3],
            [Fill, DropCaches, counted(Test::RandomWrite)]
        );
    }
}
