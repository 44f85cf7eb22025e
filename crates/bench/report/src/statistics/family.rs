//! Adjusts the p-values of many tests. Of 100 tests without an effect, five are below 0.05; an adjusted p-value can be
//! compared with 0.05.

/// Benjamini and Hochberg (1995): bounds the average share of false positives among those below a level.
///
/// # Panics
/// If a p-value is not a number.
#[must_use]
pub fn benjamini_hochberg(p: &[f64]) -> Vec<f64> {
    let order = ascending(p);
    let mut adjusted = vec![0.0; p.len()];
    let mut least = 1.0f64;
    for (below, &at) in order.iter().enumerate().rev() {
        least = least.min(p[at] * p.len() as f64 / (below + 1) as f64);
        adjusted[at] = least;
    }
    adjusted
}

/// Holm (1979): bounds the probability of any false positive.
///
/// # Panics
/// If a p-value is not a number.
#[must_use]
pub fn holm(p: &[f64]) -> Vec<f64> {
    let order = ascending(p);
    let mut adjusted = vec![0.0; p.len()];
    let mut most = 0.0f64;
    for (below, &at) in order.iter().enumerate() {
        most = most.max(p[at] * (p.len() - below) as f64).min(1.0);
        adjusted[at] = most;
    }
    adjusted
}

fn ascending(p: &[f64]) -> Vec<usize> {
    assert!(p.iter().all(|p| !p.is_nan()), "a p-value is a number");
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&x, &y| p[x].total_cmp(&p[y]));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() < 1e-12, "{found:?} {expected:?}");
        }
    }

    #[test]
    fn adjusted_p_values_match_a_manual_example() {
        let p = [0.04, 0.01, 0.03, 0.5];
        close(&benjamini_hochberg(&p), &[0.16 / 3.0, 0.04, 0.16 / 3.0, 0.5]);
        close(&holm(&p), &[0.09, 0.04, 0.09, 0.5]);
    }

    #[test]
    fn p_values_of_no_one_and_only_certain_tests() {
        assert!(benjamini_hochberg(&[]).is_empty() && holm(&[]).is_empty());
        close(&benjamini_hochberg(&[0.3]), &[0.3]);
        close(&holm(&[0.3]), &[0.3]);
        close(&holm(&[0.9, 0.8]), &[1.0, 1.0]);
    }
}
