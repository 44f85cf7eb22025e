//! Determines for which data a claim would be true.
//!
//! Between two levels, the time per byte is interpolated linearly, which matches a device whose flash stores what
//! remains after compression. Ratios are proportional to that time, so they are joined by straight lines, and the claim
//! is true where the line is at 1.

use serde::Serialize;

use super::level::Levels;
use super::point::PointReport;

/// A point where the ratio crosses 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Crossing {
    /// The level in percent at which the ratio is 1.
    pub level_pct: f64,
    /// The interval of that level, from the intervals of the measured rates; `None` if the line of a limit does not
    /// cross 1 between the same levels.
    pub low_pct: Option<f64>,
    /// The upper one.
    pub high_pct: Option<f64>,
    /// The next lower measured level, in percent.
    pub lower_pct: f64,
    /// The next higher measured level, in percent.
    pub upper_pct: f64,
    /// Whether the claim is true for data that compresses better than the level, or worse.
    pub true_above: bool,
}

/// For which data a claim would be true.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum TrueAt {
    /// For all measured levels.
    Everywhere {
        /// The lowest measured level, in percent.
        from_pct: f64,
        /// The highest.
        to_pct: f64,
    },
    /// Beyond some level: the ratio crosses 1 between two measured levels.
    Between {
        /// The crossings, in ascending order.
        crossings: Vec<Crossing>,
    },
    /// For no measured level; there may be one outside the measured range.
    Outside {
        /// The lowest measured level, in percent.
        from_pct: f64,
        /// The highest.
        to_pct: f64,
        /// The level with the lowest ratio.
        best_pct: f64,
        /// That ratio.
        best_ratio: f64,
        /// The level at which the extrapolated line reaches 1, if there is one.
        extrapolated_pct: Option<f64>,
    },
    /// Fewer than two levels are percentages.
    Unknown,
}

impl TrueAt {
    /// Evaluates the points of a curve at these levels.
    pub(super) fn of(points: &[PointReport], levels: &Levels) -> Self {
        let mut points: Vec<(f64, &PointReport)> = points
            .iter()
            .filter_map(|point| Some((levels.at(point)?, point)))
            .collect();
        points.sort_by(|x, y| x.0.total_cmp(&y.0));
        let ([(from_pct, _), ..], [.., (to_pct, _)]) = (points.as_slice(), points.as_slice()) else {
            return Self::Unknown;
        };
        let (from_pct, to_pct) = (*from_pct, *to_pct);
        if points.len() < 2 {
            return Self::Unknown;
        }
        let crossings: Vec<Crossing> = points
            .windows(2)
            .filter_map(|pair| crossing(pair[0], pair[1]))
            .collect();
        if !crossings.is_empty() {
            return Self::Between { crossings };
        }
        let best = points.iter().min_by(|x, y| ratio(x).total_cmp(&ratio(y)));
        match best {
            Some(best) if ratio(best) > 1.0 => Self::Outside {
                from_pct,
                to_pct,
                best_pct: best.0,
                best_ratio: ratio(best),
                extrapolated_pct: beyond(&points),
            },
            _ => Self::Everywhere { from_pct, to_pct },
        }
    }
}

fn ratio(point: &(f64, &PointReport)) -> f64 {
    point.1.bs_ratio.estimate
}

/// Whether the claim is true for exactly one of two neighbours, and the level between them at which this changes.
fn crossing(low: (f64, &PointReport), high: (f64, &PointReport)) -> Option<Crossing> {
    let between = |at: &dyn Fn(&PointReport) -> f64| {
        let (at_low, at_high) = (at(low.1), at(high.1));
        let crosses = (at_low <= 1.0) != (at_high <= 1.0);
        crosses.then(|| line_at_one((low.0, at_low), (high.0, at_high)))
    };
    let level_pct = between(&|point| point.bs_ratio.estimate)?;
    let limits = [
        between(&|point| point.bs_ratio.low),
        between(&|point| point.bs_ratio.high),
    ];
    let (low_pct, high_pct) = match limits {
        [Some(x), Some(y)] => (Some(x.min(y)), Some(x.max(y))),
        [Some(only), None] | [None, Some(only)] if only < level_pct => (Some(only), None),
        [Some(only), None] | [None, Some(only)] => (None, Some(only)),
        [None, None] => (None, None),
    };
    Some(Crossing {
        level_pct,
        low_pct,
        high_pct,
        lower_pct: low.0,
        upper_pct: high.0,
        true_above: high.1.bs_ratio.estimate <= 1.0,
    })
}

/// The level at which the line through two points is at 1.
fn line_at_one(from: (f64, f64), to: (f64, f64)) -> f64 {
    from.0 + (1.0 - from.1) / (to.1 - from.1) * (to.0 - from.0)
}

/// The level at which the line through the two outermost levels is at 1, if it is beyond that end and a percentage.
fn beyond(points: &[(f64, &PointReport)]) -> Option<f64> {
    let at = |index: usize| (points[index].0, ratio(&points[index]));
    let last = points.len() - 1;
    let above = line_at_one(at(last - 1), at(last));
    if above > at(last).0 && above <= 100.0 {
        return Some(above);
    }
    let below = line_at_one(at(1), at(0));
    (below < at(0).0 && below >= 0.0).then_some(below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign_file::Achieved;
    use crate::cell::Measured;
    use crate::claim::Standing;
    use crate::comparison::{Interval, IntervalMethod};
    use crate::unit::Unit;

    /// Points with these levels and ratios, and limits a tenth away.
    fn points(levels: &[(&str, f64)]) -> Vec<PointReport> {
        let point = |&(level, estimate): &(&str, f64)| {
            let bs_ratio = Interval {
                estimate,
                low: estimate - 0.1,
                high: estimate + 0.1,
                method: IntervalMethod::Bootstrap,
            };
            PointReport {
                level: level.parse().unwrap(),
                achieved: None,
                unit: Unit::BytesPerSecond,
                measured: Measured::from_runs(vec![1.0, 2.0]).unwrap().describe(),
                rate: bs_ratio,
                bs_ratio,
                standing: Standing::of(&bs_ratio),
                notes: Vec::new(),
            }
        };
        levels.iter().map(point).collect()
    }

    fn asked(points: &[PointReport]) -> TrueAt {
        TrueAt::of(points, &Levels::of(points))
    }

    #[test]
    fn achieved_levels_are_used_if_all_points_have_them() {
        let mut points = points(&[("2", 3.0), ("50", 2.0), ("98", 0.5), ("zeros", 0.1)]);
        let achieved = |saved_pct| {
            Some(Achieved {
                codec: "lz4".to_owned(),
                chunk_bytes: 4096,
                saved_pct,
                spread_pct: 0.1,
            })
        };
        for (point, saved_pct) in points.iter_mut().zip([18.0, 40.0, 96.0]) {
            assert_eq!(Levels::of(std::slice::from_ref(point)), Levels::Asked);
            point.achieved = achieved(saved_pct);
        }
        let levels = Levels::of(&points);
        assert!(matches!(levels, Levels::Achieved { .. }));
        let TrueAt::Between { crossings } = TrueAt::of(&points, &levels) else {
            panic!("{points:?}")
        };
        assert!((crossings[0].level_pct - (40.0 + 56.0 / 1.5)).abs() < 1e-9);
        assert_eq!((crossings[0].lower_pct, crossings[0].upper_pct), (40.0, 96.0));
        points[1].achieved = None;
        assert_eq!(Levels::of(&points), Levels::Asked, "one does not say");
        // In another order than the expected one.
        points[1].achieved = achieved(10.0);
        let TrueAt::Between { crossings } = TrueAt::of(&points, &Levels::of(&points)) else {
            panic!("{points:?}")
        };
        assert_eq!((crossings[0].lower_pct, crossings[0].upper_pct), (18.0, 96.0));
    }

    #[test]
    fn a_crossing_between_two_levels() {
        let found = asked(&points(&[("0", 3.0), ("50", 2.0), ("100", 0.5), ("zeros", 0.1)]));
        let TrueAt::Between { crossings } = found else {
            panic!("{found:?}")
        };
        let [crossing] = crossings.as_slice() else {
            panic!("{crossings:?}")
        };
        assert!((crossing.level_pct - (50.0 + 50.0 / 1.5)).abs() < 1e-12);
        assert!((crossing.low_pct.unwrap() - (50.0 + 50.0 * 0.9 / 1.5)).abs() < 1e-12);
        assert!((crossing.high_pct.unwrap() - (50.0 + 50.0 * 1.1 / 1.5)).abs() < 1e-12);
        assert_eq!(
            (crossing.lower_pct, crossing.upper_pct, crossing.true_above),
            (50.0, 100.0, true)
        );
    }

    #[test]
    fn a_curve_may_cross_twice() {
        let found = asked(&points(&[("2", 1.2), ("50", 0.8), ("98", 1.2)]));
        let TrueAt::Between { crossings } = found else {
            panic!("{found:?}")
        };
        let directions: Vec<bool> = crossings.iter().map(|crossing| crossing.true_above).collect();
        assert_eq!(directions, [true, false]);
    }

    #[test]
    fn a_limit_without_crossing_is_omitted() {
        let found = asked(&points(&[("0", 1.5), ("100", 0.95)]));
        let TrueAt::Between { crossings } = found else {
            panic!("{found:?}")
        };
        // The upper limit of the ratio is above 1 even at 100 %.
        assert!(crossings[0].low_pct.is_some() && crossings[0].high_pct.is_none());
    }

    #[test]
    fn a_crossing_outside_the_measured_range() {
        let found = asked(&points(&[("2", 2.0), ("50", 1.5), ("98", 1.01)]));
        let TrueAt::Outside {
            best_pct,
            extrapolated_pct: Some(level),
            ..
        } = found
        else {
            panic!("{found:?}")
        };
        assert_eq!(best_pct, 98.0);
        assert!((98.0..100.0).contains(&level), "{level}");
        let found = asked(&points(&[("2", 2.0), ("50", 1.9), ("98", 1.8)]));
        assert!(
            matches!(
                found,
                TrueAt::Outside {
                    extrapolated_pct: None,
                    ..
                }
            ),
            "{found:?}"
        );
        let found = asked(&points(&[("2", 0.9), ("98", 0.4)]));
        assert_eq!(
            found,
            TrueAt::Everywhere {
                from_pct: 2.0,
                to_pct: 98.0
            }
        );
    }

    #[test]
    fn a_flat_line_crosses_nowhere() {
        let found = asked(&points(&[("2", 1.5), ("98", 1.5)]));
        assert!(
            matches!(
                found,
                TrueAt::Outside {
                    extrapolated_pct: None,
                    ..
                }
            ),
            "{found:?}"
        );
    }

    #[test]
    fn one_level_is_not_a_curve() {
        assert_eq!(asked(&points(&[("2", 2.0), ("zeros", 0.5)])), TrueAt::Unknown);
        assert_eq!(asked(&points(&[("zeros", 0.5)])), TrueAt::Unknown);
    }
}
