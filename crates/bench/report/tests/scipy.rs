//! The statistics compared with SciPy: `data/scipy_values.json`, written by `data/scipy_values.py`.

use flaz_bench::statistics::moments::{Moments, median};
use flaz_bench::statistics::ranks::{Method, mann_whitney};
use flaz_bench::statistics::welch::welch;
use flaz_bench::statistics::{bootstrap, student};
use flaz_random::Random;
use serde::Deserialize;

#[derive(Deserialize)]
struct Values {
    student: Vec<Tail>,
    quantiles: Vec<Quantile>,
    pairs: Vec<Pair>,
}

#[derive(Deserialize)]
struct Tail {
    t: f64,
    df: f64,
    two_sided: f64,
}

#[derive(Deserialize)]
struct Quantile {
    tail: f64,
    df: f64,
    t: f64,
}

#[derive(Deserialize)]
struct Pair {
    a: Vec<f64>,
    b: Vec<f64>,
    mean_a: f64,
    stddev_a: f64,
    median_a: f64,
    welch: WelchValues,
    equivalence_1_pct: f64,
    mann_whitney: RankValues,
    median_ratio: Limits,
}

#[derive(Deserialize)]
struct WelchValues {
    t: f64,
    df: f64,
    p: f64,
    low: f64,
    high: f64,
}

#[derive(Deserialize)]
struct RankValues {
    u: f64,
    p: f64,
    exact: bool,
}

#[derive(Deserialize)]
struct Limits {
    low: f64,
    high: f64,
}

fn values() -> Values {
    serde_json::from_str(include_str!("data/scipy_values.json")).unwrap()
}

#[track_caller]
fn close(found: f64, expected: f64, share: f64, what: &str) {
    assert!(
        (found - expected).abs() <= share * expected.abs(),
        "{what}: found {found:e}, SciPy has {expected:e}"
    );
}

#[test]
fn tails_of_student() {
    for Tail { t, df, two_sided } in values().student {
        // SciPy underflows earlier, far below any relevant p-value.
        if two_sided > 1e-290 {
            let what = format!("t {t}, df {df}");
            close(student::two_sided(t, df), two_sided, 2e-9, &what);
        }
    }
}

#[test]
fn quantiles_of_student() {
    for Quantile { tail, df, t } in values().quantiles {
        close(
            student::upper_quantile(tail, df),
            t,
            1e-9,
            &format!("tail {tail}, df {df}"),
        );
    }
}

#[test]
fn moments_and_medians() {
    for pair in values().pairs {
        let moments = Moments::of(&pair.a);
        close(moments.mean, pair.mean_a, 1e-14, "mean");
        close(moments.stddev(), pair.stddev_a, 1e-10, "standard deviation");
        close(median(&pair.a), pair.median_a, 1e-15, "median");
    }
}

#[test]
fn welch_and_equivalence() {
    for pair in values().pairs {
        let test = welch(Moments::of_logs(&pair.a), Moments::of_logs(&pair.b));
        let expected = pair.welch;
        close(test.t, expected.t, 1e-8, "t");
        close(test.df, expected.df, 1e-8, "df");
        close(test.p, expected.p, 1e-7, "p");
        let (low, high) = test.interval(0.95);
        close(low, expected.low, 1e-8, "low");
        close(high, expected.high, 1e-8, "high");
        close(
            test.equivalence(0.01f64.ln_1p()),
            pair.equivalence_1_pct,
            1e-6,
            "equivalence",
        );
    }
}

#[test]
fn ranks() {
    let pairs = values().pairs;
    assert!(pairs.iter().any(|pair| pair.mann_whitney.exact));
    for pair in pairs {
        let test = mann_whitney(&pair.a, &pair.b);
        let expected = pair.mann_whitney;
        assert_eq!(test.u, expected.u);
        assert_eq!(test.method == Method::Exact, expected.exact);
        close(test.p, expected.p, 1e-10, "p");
    }
}

/// The random numbers differ, and SciPy drew 20 times as many: the limits agree within a share of the interval's width,
/// or of the gap between two runs where they can only jump.
#[test]
fn bootstrap_of_medians() {
    for (number, pair) in values().pairs.into_iter().enumerate() {
        let mut random = Random::stream(1, number as u64);
        let (low, high) = bootstrap::median_ratio(&pair.a, &pair.b, 0.95, bootstrap::RESAMPLES, &mut random);
        let expected = pair.median_ratio;
        let width = expected.high - expected.low;
        assert!(
            (low - expected.low).abs() < 0.05 * width && (high - expected.high).abs() < 0.05 * width,
            "pair {number}: found {low} to {high}, SciPy has {} to {}",
            expected.low,
            expected.high
        );
    }
}
