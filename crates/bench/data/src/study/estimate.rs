//! Estimates shares with 95 % intervals from windows.
//!
//! A share is the ratio of two sums over windows (stored bytes to bytes). Windows are drawn at random without
//! replacement, so its variance is that of the residuals between windows (the linearised ratio estimator of survey
//! sampling: Cochran, "Sampling Techniques", chapters 2 and 6), with the finite-population factor, which makes it zero
//! when everything was read. If all windows agree, the variance gives no information, and the rule of three is used
//! instead.

use serde::Serialize;

/// Quantile of the normal distribution for a two-sided 95 % interval.
const Z: f64 = 1.959_963_985;
/// Upper limit of a count if none was seen, with 95 % confidence.
pub const NONE_SEEN_AT_MOST: f64 = 3.0;

/// A share in percent with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Estimate {
    /// The share.
    pub percent: f64,
    /// Lower end of the 95 % interval.
    pub low_percent: f64,
    /// Upper end.
    pub high_percent: f64,
}

impl Estimate {
    /// A share that is known exactly.
    #[must_use]
    pub fn exact(percent: f64) -> Self {
        Self {
            percent,
            low_percent: percent,
            high_percent: percent,
        }
    }

    /// Half-width of the interval, in points.
    #[must_use]
    pub fn half_points(&self) -> f64 {
        (self.high_percent - self.low_percent) / 2.0
    }

    /// The complement: converts the stored share to the saved share.
    #[must_use]
    pub fn rest(&self) -> Self {
        Self {
            percent: 100.0 - self.percent,
            low_percent: 100.0 - self.high_percent,
            high_percent: 100.0 - self.low_percent,
        }
    }
}

/// The share `sum(parts) / sum(wholes)` of a population of `windows` windows, estimated from the drawn ones. Not
/// limited to 100 %, because a ratio need not be a share; `None` if there is no data.
#[must_use]
pub fn ratio(pairs: impl Iterator<Item = (f64, f64)> + Clone, windows: u64) -> Option<Estimate> {
    let (mut drawn, mut part, mut whole) = (0_u64, 0.0, 0.0);
    for (of, all) in pairs.clone() {
        drawn += 1;
        part += of;
        whole += all;
    }
    if whole <= 0.0 {
        return None;
    }
    let share = part / whole;
    if drawn >= windows {
        return Some(Estimate::exact(share * 100.0));
    }
    if drawn < 2 {
        return Some(Estimate {
            percent: share * 100.0,
            low_percent: 0.0,
            high_percent: 100.0_f64.max(share * 100.0),
        });
    }
    let count = drawn as f64;
    let residuals: f64 = pairs.map(|(of, all)| (of - share * all).powi(2)).sum();
    let left = 1.0 - count / windows as f64;
    let mean = whole / count;
    let variance = left * residuals / (count - 1.0) / count / (mean * mean);
    let half = if residuals > 1e-9 * part * part {
        student(drawn - 1) * variance.sqrt()
    } else {
        left * NONE_SEEN_AT_MOST / count
    };
    Some(Estimate {
        percent: share * 100.0,
        low_percent: ((share - half) * 100.0).max(0.0),
        high_percent: (share + half) * 100.0,
    })
}

/// Quantile of Student's t distribution for a two-sided 95 % interval, by the Cornish-Fisher expansion: accurate to 1 %
/// from 4 degrees of freedom on.
#[must_use]
pub fn student(degrees: u64) -> f64 {
    let n = degrees.max(1) as f64;
    let (z3, z5, z7) = (Z.powi(3), Z.powi(5), Z.powi(7));
    Z + (z3 + Z) / (4.0 * n)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * Z) / (96.0 * n * n)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * Z) / (384.0 * n * n * n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_quantiles_match_published_tables() {
        for (degrees, value) in [(4, 2.776), (9, 2.262), (29, 2.045), (99, 1.984), (9999, 1.960)] {
            assert!((student(degrees) / value - 1.0).abs() < 0.01, "{degrees}");
        }
    }

    #[test]
    fn a_full_read_is_exact_and_no_data_has_no_share() {
        let pairs = [(1.0, 4.0), (3.0, 4.0)];
        assert_eq!(ratio(pairs.into_iter(), 2), Some(Estimate::exact(50.0)));
        assert_eq!(ratio(std::iter::empty(), 2), None);
        let half = ratio(pairs.into_iter(), 1000).expect("two windows");
        assert!(half.low_percent < 50.0 && half.high_percent > 50.0);
        assert_eq!(half.rest().percent, 50.0);
    }

    #[test]
    fn equal_windows_still_have_an_interval() {
        let agreed = ratio([(4.0, 4.0); 100].into_iter(), 1_000_000).expect("windows");
        assert!((agreed.low_percent - 97.0).abs() < 0.1, "{agreed:?}");
    }
}
