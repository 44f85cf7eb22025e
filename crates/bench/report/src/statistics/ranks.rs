//! The Mann-Whitney U test (1947): does one side tend to have larger values? It uses only ranks, so outliers and skew
//! do not affect it; it cannot fall below 0.05 with fewer than four runs per side.

use super::student;

/// Maximum number of runs per side for which the exact distribution is computed; beyond that, and with ties, the normal
/// approximation is used. The counts of 50 against 50 still fit into 128 bits, and the approximation is accurate to
/// three digits there.
pub const EXACT_RUNS_MAX: usize = 50;

/// How a p-value was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Counted over all permutations.
    Exact,
    /// From the normal distribution, corrected for ties and continuity.
    Normal,
}

/// The result of the test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MannWhitney {
    /// Number of pairs with the larger value in A; ties count half.
    pub u: f64,
    /// Two-sided p-value.
    pub p: f64,
    /// How it was computed.
    pub method: Method,
}

/// Compares the values of two sides.
///
/// # Panics
/// If a side is empty.
#[must_use]
pub fn mann_whitney(a: &[f64], b: &[f64]) -> MannWhitney {
    assert!(!a.is_empty() && !b.is_empty(), "both sides need a value");
    let (rank_sum, ties) = rank_sum_of_first(a, b);
    let (na, nb) = (a.len() as f64, b.len() as f64);
    let u = rank_sum - na * (na + 1.0) / 2.0;
    let larger = u.max(na * nb - u);
    let (p, method) = if ties == 0.0 && a.len().max(b.len()) <= EXACT_RUNS_MAX {
        (
            2.0 * exact_upper(larger as usize, a.len(), b.len()),
            Method::Exact,
        )
    } else {
        (normal_two_sided(larger, na, nb, ties), Method::Normal)
    };
    MannWhitney {
        u,
        p: p.min(1.0),
        method,
    }
}

/// The sum of the ranks of `a` among both, and the sum of t^3 - t over groups of t equal values.
fn rank_sum_of_first(a: &[f64], b: &[f64]) -> (f64, f64) {
    let mut all: Vec<(f64, bool)> = a.iter().map(|&value| (value, true)).collect();
    all.extend(b.iter().map(|&value| (value, false)));
    all.sort_unstable_by(|x, y| x.0.total_cmp(&y.0));
    let (mut rank_sum, mut ties, mut before) = (0.0, 0.0, 0.0);
    for group in all.chunk_by(|x, y| x.0 == y.0) {
        let size = group.len() as f64;
        let rank = before + (size + 1.0) / 2.0;
        rank_sum += rank * group.iter().filter(|(_, first)| *first).count() as f64;
        ties += size * size * size - size;
        before += size;
    }
    (rank_sum, ties)
}

/// Probability that U is at least `u` if all orders of `na` and `nb` values are equally likely; by symmetry, that it is
/// at most as far from the other end.
fn exact_upper(u: usize, na: usize, nb: usize) -> f64 {
    let mirrored = (na * nb).saturating_sub(u);
    let tail: i128 = orders_by_u(na, nb, mirrored).iter().sum();
    // C(na + nb, na), an integer after each step.
    let total = (1..=na).fold(1i128, |total, i| total * (nb + i) as i128 / i as i128);
    tail as f64 / total as f64
}

/// Number of orders with U = 0, 1, .. up to `u_max`: coefficients of the Gaussian binomial, the product over i of (1 -
/// q^(nb + i)) / (1 - q^i), computed by factors; each step's result is again a polynomial with positive coefficients.
fn orders_by_u(na: usize, nb: usize, u_max: usize) -> Vec<i128> {
    let mut counts = vec![0i128; u_max + 1];
    counts[0] = 1;
    for i in 1..=na {
        for at in (nb + i..counts.len()).rev() {
            counts[at] -= counts[at - (nb + i)];
        }
        for at in i..counts.len() {
            counts[at] += counts[at - i];
        }
    }
    counts
}

fn normal_two_sided(larger: f64, na: f64, nb: f64, ties: f64) -> f64 {
    let n = na + nb;
    let variance = na * nb / 12.0 * ((n + 1.0) - ties / (n * (n - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    // Continuity correction: half a step towards the middle, because U is an integer.
    let z = (larger - na * nb / 2.0 - 0.5) / variance.sqrt();
    if z <= 0.0 {
        return 1.0;
    }
    student::normal_two_sided(z)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every assignment of ranks to A.
    fn counted_out(na: usize, nb: usize) -> Vec<i128> {
        let mut counts = vec![0; na * nb + 1];
        for choice in 0u32..1 << (na + nb) {
            if choice.count_ones() as usize == na {
                let ranks: usize = (0..na + nb).filter(|bit| choice >> bit & 1 == 1).sum();
                counts[ranks - na * (na - 1) / 2] += 1;
            }
        }
        counts
    }

    #[test]
    fn counts_match_all_permutations() {
        for (na, nb) in [(1, 1), (1, 6), (3, 4), (5, 5), (7, 2)] {
            assert_eq!(orders_by_u(na, nb, na * nb), counted_out(na, nb), "{na} {nb}");
        }
        let largest = orders_by_u(EXACT_RUNS_MAX, EXACT_RUNS_MAX, EXACT_RUNS_MAX.pow(2));
        assert!(largest.iter().all(|&count| count > 0));
        assert_eq!(
            largest.iter().sum::<i128>(),
            100_891_344_545_564_193_334_812_497_256
        );
    }

    #[test]
    fn below_four_runs_nothing_reaches_five_percent() {
        let side = |first: u32, runs: u32| (0..runs).map(|i| f64::from(first + i)).collect::<Vec<_>>();
        assert!((mann_whitney(&side(0, 3), &side(10, 3)).p - 0.1).abs() < 1e-12);
        assert!(mann_whitney(&side(0, 4), &side(10, 4)).p < 0.05);
    }

    #[test]
    fn equal_values_have_no_rank_difference() {
        let same = mann_whitney(&[5.0; 10], &[5.0; 10]);
        assert_eq!((same.p, same.u, same.method), (1.0, 50.0, Method::Normal));
    }

    #[test]
    fn swapped_sides_mirror_the_result() {
        let (a, b) = ([1.0, 5.0, 2.5, 9.0], [3.0, 4.0, 8.0, 11.0, 12.0]);
        let (ab, ba) = (mann_whitney(&a, &b), mann_whitney(&b, &a));
        assert_eq!((ab.p, ab.u + ba.u), (ba.p, 20.0));
    }
}
