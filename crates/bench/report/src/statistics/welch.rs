//! Welch's t-test: do two sets of runs, with different variances, have the same mean? And the equivalence test: is the
//! difference of the means smaller than a margin?
//!
//! Sources: Welch, "The generalization of 'Student's' problem when several different population variances are involved"
//! (1947); Schuirmann, "A comparison of the two one-sided tests procedure .." (1987).

use super::moments::Moments;
use super::student;

/// The result of Welch's test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Welch {
    /// Mean of B minus mean of A.
    pub difference: f64,
    /// Standard error of the difference.
    pub error: f64,
    /// The statistic. Infinite if nothing varies and the means differ.
    pub t: f64,
    /// Degrees of freedom after Welch and Satterthwaite.
    pub df: f64,
    /// Two-sided p-value. For values that do not vary: 1 if they are equal, else 0, as in the limit.
    pub p: f64,
}

/// Compares B with A.
///
/// # Panics
/// If one has fewer than two runs.
#[must_use]
pub fn welch(a: Moments, b: Moments) -> Welch {
    assert!(a.runs >= 2 && b.runs >= 2, "Welch's test needs two runs a side");
    let difference = b.mean - a.mean;
    let (va, vb) = (a.variance_of_mean(), b.variance_of_mean());
    let variance = va + vb;
    let error = variance.sqrt();
    let (da, db) = (f64::from(a.runs - 1), f64::from(b.runs - 1));
    // Shares instead of squares of variances, because squares of tiny variances would be zero.
    let (share_a, share_b) = (va / variance, vb / variance);
    let df = if variance > 0.0 {
        1.0 / (share_a * share_a / da + share_b * share_b / db)
    } else {
        da + db
    };
    let t = statistic(difference, error);
    Welch {
        difference,
        error,
        t,
        df,
        p: student::two_sided(t, df),
    }
}

/// `distance` in standard errors; infinite or zero if the error is zero.
fn statistic(distance: f64, error: f64) -> f64 {
    if error > 0.0 {
        distance / error
    } else if distance == 0.0 {
        0.0
    } else {
        f64::INFINITY.copysign(distance)
    }
}

impl Welch {
    /// The interval of the true difference with coverage `coverage` (for example 0.95).
    ///
    /// # Panics
    /// If `coverage` is not between 0 and 1.
    #[must_use]
    pub fn interval(&self, coverage: f64) -> (f64, f64) {
        assert!(coverage > 0.0 && coverage < 1.0, "found a coverage of {coverage}");
        let half = student::upper_quantile((1.0 - coverage) / 2.0, self.df) * self.error;
        (self.difference - half, self.difference + half)
    }

    /// p-value of the two one-sided tests: small if the true difference is within `-margin..margin`.
    ///
    /// # Panics
    /// If `margin` is negative or not a number.
    #[must_use]
    pub fn equivalence(&self, margin: f64) -> f64 {
        assert!(margin >= 0.0, "found a margin of {margin}");
        let above_low = student::upper(statistic(self.difference + margin, self.error), self.df);
        let below_high = student::upper(statistic(margin - self.difference, self.error), self.df);
        above_low.max(below_high)
    }

    /// The smallest margin within which the two one-sided tests show equivalence at the level `alpha`.
    ///
    /// # Panics
    /// If `alpha` is not above 0 and at most one half.
    #[must_use]
    pub fn smallest_margin(&self, alpha: f64) -> f64 {
        self.difference.abs() + student::upper_quantile(alpha, self.df) * self.error
    }
}

/// The interval of the true mean with coverage `coverage`, by Student's t.
///
/// # Panics
/// With fewer than two runs, or a `coverage` that is not between 0 and 1.
#[must_use]
pub fn mean_interval(moments: Moments, coverage: f64) -> (f64, f64) {
    assert!(moments.runs >= 2, "an interval needs two runs");
    assert!(coverage > 0.0 && coverage < 1.0, "found a coverage of {coverage}");
    let t = student::upper_quantile((1.0 - coverage) / 2.0, f64::from(moments.runs - 1));
    let half = t * moments.variance_of_mean().sqrt();
    (moments.mean - half, moments.mean + half)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(mean: f64, variance: f64, runs: u32) -> Moments {
        Moments { mean, variance, runs }
    }

    #[test]
    fn equal_variances_have_the_pooled_degrees_of_freedom() {
        let test = welch(moments(1.0, 4.0, 10), moments(3.0, 4.0, 10));
        assert!((test.df - 18.0).abs() < 1e-12);
        assert!((test.t - 2.0 / 0.8f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn a_constant_side_keeps_the_degrees_of_the_other() {
        let test = welch(moments(1.0, 0.0, 5), moments(3.0, 4.0, 10));
        assert!((test.df - 9.0).abs() < 1e-12);
    }

    #[test]
    fn constant_runs_have_p_values_0_or_1() {
        let same = welch(moments(1.0, 0.0, 5), moments(1.0, 0.0, 5));
        assert_eq!((same.p, same.equivalence(0.01)), (1.0, 0.0));
        let other = welch(moments(1.0, 0.0, 5), moments(2.0, 0.0, 5));
        assert_eq!((other.p, other.equivalence(0.01)), (0.0, 1.0));
        assert_eq!(other.interval(0.95), (1.0, 1.0));
    }

    #[test]
    fn equivalence_matches_the_interval_at_twice_the_level() {
        let test = welch(moments(10.0, 0.3, 8), moments(10.1, 0.5, 12));
        let margin = test.smallest_margin(0.05);
        assert!((test.equivalence(margin) - 0.05).abs() < 1e-9);
        let (low, high) = test.interval(0.90);
        assert!((high.abs().max(low.abs()) - margin).abs() < 1e-9);
        assert!(test.equivalence(0.0) >= 0.5, "no margin, no equivalence");
    }
}
