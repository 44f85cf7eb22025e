//! The rule of older articles: a difference is meaningful if it exceeds the standard deviation of the new campaign. It
//! is provided for reading such articles. Its error rate depends on the number of runs and on the noise of the
//! baseline, which the rule ignores.

use super::student;

/// Relative excess over the deviation that is required: decimal fractions such as 0.67 % of a mean are not exact in
/// binary, and a difference that equals the deviation does not exceed it.
const ROUNDING: f64 = 1e-9;

/// Whether the rule calls the `difference` meaningful.
#[must_use]
pub fn meaningful(difference: f64, stddev_b: f64) -> bool {
    difference.abs() > stddev_b * (1.0 + ROUNDING)
}

/// Rate of false positives of the rule for normal values: `noise_a` is the true standard deviation of the baseline in
/// units of the new campaign's.
///
/// The difference of the means has the variance 1/nb + noise_a^2/na. Divided by its root and by the measured deviation
/// of B it has Student's t distribution with nb - 1 degrees of freedom.
///
/// # Panics
/// With fewer than one run of A or two of B.
#[must_use]
pub fn false_alarms(runs_a: u32, runs_b: u32, noise_a: f64) -> f64 {
    assert!(runs_a >= 1 && runs_b >= 2, "found {runs_a} and {runs_b} runs");
    let variance = 1.0 / f64::from(runs_b) + noise_a * noise_a / f64::from(runs_a);
    student::two_sided(1.0 / variance.sqrt(), f64::from(runs_b - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stddev_rule_has_no_fixed_error_rate() {
        for (runs, noise, expected) in [
            (3, 1.0, 0.345),
            (10, 1.0, 0.052),
            (30, 1.0, 0.0006),
            (10, 5.0, 0.550),
        ] {
            let found = false_alarms(runs, runs, noise);
            assert!((found - expected).abs() < 0.001, "{runs} {noise}: {found}");
        }
    }

    #[test]
    fn an_equal_difference_is_not_meaningful() {
        let mean = 97_113.5;
        assert!(!meaningful(
            mean * (1.0 + 0.67 / 100.0) - mean,
            mean * 0.67 / 100.0
        ));
        assert!(meaningful(-0.68, 0.67) && !meaningful(0.66, 0.67));
    }
}
