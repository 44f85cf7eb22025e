//! Student's t distribution for any positive number of degrees of freedom, and the tails of the normal distribution.
//!
//! The distribution is a regularised incomplete beta function, evaluated by its continued fraction with Lentz's
//! algorithm (Abramowitz and Stegun 26.5.8 and 26.7.1; Press et al., "Numerical Recipes", 6.4). Tails are computed
//! directly, never as one minus the rest, so that small p-values keep their digits.

/// Maximum number of terms of the continued fraction. It needs about the square root of the degrees of freedom: this is
/// sufficient for 10^7.
const TERMS_MAX: u32 = 20_000;

/// Maximum number of bisections in the search of a quantile: more than a double has bits.
const HALVINGS_MAX: u32 = 128;

/// Probability that |T| is at least |`t`|, with `df` degrees of freedom.
///
/// # Panics
/// If `df` is not positive, or `t` is not a number.
#[must_use]
pub fn two_sided(t: f64, df: f64) -> f64 {
    assert!(
        df > 0.0 && !t.is_nan(),
        "expected df > 0 and a number, found {df} and {t}"
    );
    if t.is_infinite() || df.is_infinite() {
        return if t.is_infinite() { 0.0 } else { normal_two_sided(t) };
    }
    let square = t * t;
    let sum = df + square;
    if sum.is_infinite() {
        return 0.0;
    }
    beta_regularised(df / 2.0, 0.5, df / sum, square / sum)
}

/// Probability that T is at least `t`.
///
/// # Panics
/// As [`two_sided`].
#[must_use]
pub fn upper(t: f64, df: f64) -> f64 {
    let tail = two_sided(t, df) / 2.0;
    if t >= 0.0 { tail } else { 1.0 - tail }
}

/// The t that T exceeds with probability `tail`, which is above 0 and at most one half.
///
/// # Panics
/// If `tail` or `df` is out of range.
#[must_use]
pub fn upper_quantile(tail: f64, df: f64) -> f64 {
    assert!(
        tail > 0.0 && tail <= 0.5,
        "expected a tail of up to a half, found {tail}"
    );
    let (mut low, mut high) = (0.0, 1.0);
    while upper(high, df) > tail && high < f64::MAX / 4.0 {
        low = high;
        high *= 2.0;
    }
    for _ in 0..HALVINGS_MAX {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high {
            break;
        }
        if upper(middle, df) > tail {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// Probability that a standard normal variable is at least |`z`| away from zero.
#[must_use]
pub fn normal_two_sided(z: f64) -> f64 {
    libm::erfc(z.abs() / std::f64::consts::SQRT_2)
}

/// I_x(a, b); `rest` is 1 - x, passed separately because it is more accurate than a subtraction.
fn beta_regularised(a: f64, b: f64, x: f64, rest: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if rest <= 0.0 {
        return 1.0;
    }
    let ln_beta = libm::lgamma(a) + libm::lgamma(b) - libm::lgamma(a + b);
    // ln x, from the smaller of the two for x near 1.
    let ln_x = if rest < 0.5 { (-rest).ln_1p() } else { x.ln() };
    let ln_rest = if x < 0.5 { (-x).ln_1p() } else { rest.ln() };
    let front = (a * ln_x + b * ln_rest - ln_beta).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * continued_fraction(a, b, x) / a
    } else {
        1.0 - front * continued_fraction(b, a, rest) / b
    }
}

fn continued_fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let away_from_zero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for term in 1..=TERMS_MAX {
        let m = f64::from(term);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / away_from_zero(1.0 + even * d);
        c = away_from_zero(1.0 + even / c);
        fraction *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / away_from_zero(1.0 + odd * d);
        c = away_from_zero(1.0 + odd / c);
        let step = d * c;
        fraction *= step;
        if (step - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_and_two_degrees_have_closed_forms() {
        for t in [0.0, 0.1, 1.0, 3.0, 40.0, 1e6] {
            let cauchy = 2.0 * (1.0f64).atan2(t) / std::f64::consts::PI;
            assert!((two_sided(t, 1.0) / cauchy - 1.0).abs() < 1e-12, "{t}");
            let root = (2.0 + t * t).sqrt();
            // 1 - t / root without cancellation.
            let two = 2.0 / (root * (root + t));
            assert!((two_sided(t, 2.0) / two - 1.0).abs() < 1e-12, "{t}");
        }
    }

    #[test]
    fn extreme_t_values_have_limits() {
        assert_eq!(two_sided(0.0, 7.3), 1.0);
        assert_eq!(two_sided(f64::INFINITY, 7.3), 0.0);
        assert_eq!(two_sided(1e300, 7.3), 0.0);
        assert_eq!(upper(f64::NEG_INFINITY, 7.3), 1.0);
        assert!((two_sided(1.959_963_984_540_054, f64::INFINITY) - 0.05).abs() < 1e-15);
    }

    #[test]
    fn quantiles_invert_the_tail() {
        for df in [0.7, 1.0, 2.5, 9.0, 18.0, 1e3, 1e6] {
            for tail in [0.5, 0.4, 0.05, 0.025, 1e-6] {
                let t = upper_quantile(tail, df);
                assert!((upper(t, df) / tail - 1.0).abs() < 1e-10, "{df} {tail} {t}");
            }
        }
    }
}
