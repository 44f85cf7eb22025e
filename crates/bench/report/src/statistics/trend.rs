//! Change of values over time: a regression line, and SNIA's steady state.

use super::student;

/// Number of rounds that determine a steady state (SNIA Solid State Storage Performance Test Specification).
pub const STEADY_ROUNDS: usize = 5;
/// Maximum range of these rounds, as a share of their mean.
pub const STEADY_RANGE: f64 = 0.20;
/// Maximum change along their regression line, as a share of their mean.
pub const STEADY_SLOPE: f64 = 0.10;

/// A regression line by least squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// Slope.
    pub slope: f64,
    /// p-value of the slope, two-sided.
    pub p: f64,
}

/// The line through points (x, y); `None` with fewer than three points, or without two different x.
///
/// # Panics
/// If there are not as many x as y.
#[must_use]
pub fn trend(x: &[f64], y: &[f64]) -> Option<Trend> {
    assert_eq!(x.len(), y.len(), "an x for each y");
    if x.len() < 3 {
        return None;
    }
    let count = x.len() as f64;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(x), mean(y));
    let products = |a: &[f64], mean_a: f64, b: &[f64], mean_b: f64| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - mean_a) * (b - mean_b)).sum()
    };
    let xx = products(x, mean_x, x, mean_x);
    let xy = products(x, mean_x, y, mean_y);
    let yy = products(y, mean_y, y, mean_y);
    if xx == 0.0 {
        return None;
    }
    let slope = xy / xx;
    let rest = (yy - slope * xy).max(0.0);
    let df = count - 2.0;
    let p = match (rest > yy * 1e-14, xy == 0.0) {
        (_, true) => 1.0,
        (true, _) => student::two_sided(slope / (rest / df / xx).sqrt(), df),
        // All points are on the line.
        (false, _) => 0.0,
    };
    Some(Trend { slope, p })
}

/// Whether the last [`STEADY_ROUNDS`] values are in steady state: all within [`STEADY_RANGE`] of their mean, and their
/// line within [`STEADY_SLOPE`]. `None` with fewer values.
#[must_use]
pub fn is_steady(values: &[f64]) -> Option<bool> {
    let last = &values[values.len().checked_sub(STEADY_ROUNDS)?..];
    let mean = last.iter().sum::<f64>() / last.len() as f64;
    let (least, most) = last
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), &value| {
            (least.min(value), most.max(value))
        });
    let x: Vec<f64> = (0..last.len()).map(|at| at as f64).collect();
    let slope = trend(&x, last)?.slope;
    let rise = slope.abs() * (STEADY_ROUNDS - 1) as f64;
    Some(most - least <= STEADY_RANGE * mean && rise <= STEADY_SLOPE * mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_their_p_values() {
        // From the closed forms of Student's distribution with 3 and 4 degrees of freedom.
        let close = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 1e-9;
        let line = trend(&[0.0, 1.0, 2.0, 3.0, 4.0], &[1.0, 2.0, 2.0, 3.0, 5.0]).unwrap();
        assert!(
            close(line.slope, 0.9) && close(line.p, 0.018219854743),
            "{line:?}"
        );
        let line = trend(
            &[0.0, 2.0, 3.0, 7.0, 11.0, 12.0],
            &[10.0, 9.5, 9.9, 9.1, 9.0, 8.7],
        )
        .unwrap();
        assert!(
            close(line.slope, -0.09796472184531889) && close(line.p, 0.006523229934),
            "{line:?}"
        );
    }

    #[test]
    fn degenerate_lines() {
        assert_eq!(trend(&[1.0, 2.0], &[1.0, 2.0]), None);
        assert_eq!(trend(&[1.0; 3], &[1.0, 2.0, 3.0]), None);
        assert_eq!(trend(&[0.0, 1.0, 2.0], &[5.0; 3]).unwrap().p, 1.0);
        assert_eq!(trend(&[0.0, 1.0, 2.0], &[1.0, 2.0, 3.0]).unwrap().p, 0.0);
    }

    #[test]
    fn steady_state_requires_small_range_and_slope() {
        assert_eq!(is_steady(&[1.0; 4]), None);
        assert_eq!(is_steady(&[50.0, 100.0, 101.0, 99.0, 100.0, 102.0]), Some(true));
        // The range is at its limit, 20 % of 100, and the line is flat.
        assert_eq!(is_steady(&[100.0, 90.0, 110.0, 90.0, 110.0]), Some(true));
        assert_eq!(is_steady(&[100.0, 89.0, 111.0, 89.0, 111.0]), Some(false));
        // A slope of 12 % from end to end, within the range.
        assert_eq!(is_steady(&[94.0, 97.0, 100.0, 103.0, 106.0]), Some(false));
        assert_eq!(is_steady(&[96.0, 98.0, 100.0, 102.0, 104.0]), Some(true));
    }
}
