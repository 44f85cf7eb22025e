//! Statistics of one set of runs: mean, standard deviation, median, outliers.

/// Mean and variance of `runs` values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    /// Arithmetic mean.
    pub mean: f64,
    /// Variance with n - 1 in the denominator.
    pub variance: f64,
    /// Number of values.
    pub runs: u32,
}

impl Moments {
    /// Of values.
    ///
    /// # Panics
    /// With fewer than two values, which have no variance.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        assert!(values.len() >= 2, "a variance needs two values");
        let runs = values.len() as f64;
        let mean = values.iter().sum::<f64>() / runs;
        // The second pass corrects the rounding error of the first.
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let drift: f64 = values.iter().map(|value| value - mean).sum();
        Self {
            mean,
            variance: ((squares - drift * drift / runs) / (runs - 1.0)).max(0.0),
            runs: values.len() as u32,
        }
    }

    /// Of the logarithms of values.
    ///
    /// # Panics
    /// With fewer than two values, or if one is not positive.
    #[must_use]
    pub fn of_logs(values: &[f64]) -> Self {
        assert!(
            values.iter().all(|&value| value > 0.0),
            "a logarithm needs a positive value"
        );
        let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
        Self::of(&logs)
    }

    /// Of the logarithms of values with these moments, assuming a log-normal distribution: its logarithms are normal,
    /// as the tests require.
    ///
    /// # Panics
    /// If the mean is not positive.
    #[must_use]
    pub fn to_logs(self) -> Self {
        assert!(self.mean > 0.0, "a logarithm needs a positive mean");
        let variance = (self.variance / (self.mean * self.mean)).ln_1p();
        Self {
            mean: self.mean.ln() - variance / 2.0,
            variance,
            runs: self.runs,
        }
    }

    /// Standard deviation.
    #[must_use]
    pub fn stddev(&self) -> f64 {
        self.variance.sqrt()
    }

    /// Variance of the mean.
    #[must_use]
    pub fn variance_of_mean(&self) -> f64 {
        self.variance / f64::from(self.runs)
    }
}

/// The middle value, or the mean of the two middle ones.
///
/// # Panics
/// Without values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    assert!(!values.is_empty(), "a median needs values");
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    median_of_sorted(&sorted)
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

/// The modified z-score above which a value counts as an outlier (Iglewicz and Hoaglin, 1993).
pub const OUTLIER_SCORE: f64 = 3.5;

/// Converts the median absolute deviation of a normal distribution to its standard deviation.
const MAD_TO_STDDEV: f64 = 1.482_602_218_505_602;

/// Number of values far from the median, in median absolute deviations. They are reported, never dropped: they are part
/// of the behaviour of a storage device.
///
/// # Panics
/// Without values.
#[must_use]
pub fn outliers(values: &[f64]) -> usize {
    outlier_places(values).len()
}

/// Indices of these values.
///
/// # Panics
/// Without values.
#[must_use]
pub fn outlier_places(values: &[f64]) -> Vec<usize> {
    let middle = median(values);
    let distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    let spread = median(&distances) * MAD_TO_STDDEV;
    if spread == 0.0 {
        return Vec::new();
    }
    distances
        .iter()
        .enumerate()
        .filter(|&(_, &distance)| distance / spread > OUTLIER_SCORE)
        .map(|(place, _)| place)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_large_values_keep_their_digits() {
        let shifted: Vec<f64> = [4.0, 7.0, 13.0, 16.0].iter().map(|v| v + 1e9).collect();
        let moments = Moments::of(&shifted);
        assert_eq!(
            (moments.mean, moments.variance, moments.runs),
            (1e9 + 10.0, 30.0, 4)
        );
    }

    #[test]
    fn log_normal_moments_round_trip() {
        let log = Moments {
            mean: 1e5,
            variance: 4e8,
            runs: 10,
        }
        .to_logs();
        let mean = (log.mean + log.variance / 2.0).exp();
        let variance = log.variance.exp_m1() * (2.0 * log.mean + log.variance).exp();
        assert!((mean / 1e5 - 1.0).abs() < 1e-12 && (variance / 4e8 - 1.0).abs() < 1e-12);
    }

    #[test]
    fn medians_of_odd_and_even_numbers() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[9.0]), 9.0);
    }

    #[test]
    fn an_outlier_is_reported_and_plain_noise_is_not() {
        let mut values = vec![10.0, 10.1, 9.9, 10.2, 9.8, 10.05, 9.95];
        assert_eq!(outliers(&values), 0);
        values.push(12.0);
        assert_eq!((outliers(&values), outlier_places(&values)), (1, vec![7]));
        assert_eq!(
            outliers(&[1.0, 1.0, 1.0, 5.0]),
            0,
            "without a spread there are no outliers"
        );
    }
}
