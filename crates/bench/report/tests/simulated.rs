//! Simulated campaigns with known differences: error rates and power of the verdicts.

use flaz_bench::cell::{Cell, CellKey, Level, Measured};
use flaz_bench::comparison::{Counts, Margin, Options, Verdict, compare_results};
use flaz_bench::results::{Kind, Results};
use flaz_bench::unit::{Direction, Unit};
use flaz_random::Random;

/// Number of campaigns in a simulation.
const CAMPAIGNS: u64 = 1000;
/// Number of cells in a campaign.
const CELLS: u32 = 20;
/// The level of the tests.
const NOMINAL: f64 = 0.05;

/// The simulated campaign.
#[derive(Clone, Copy)]
struct Truth {
    runs: usize,
    /// Rate of B divided by that of A.
    ratio: f64,
    /// Standard deviation of logarithms in A, from the first cell to the last, and the factor by which B is noisier.
    noise: (f64, f64),
    noisier_b: f64,
    margin_pct: f64,
}

const A_A: Truth = Truth {
    runs: 10,
    ratio: 1.0,
    noise: (0.002, 0.15),
    noisier_b: 1.0,
    margin_pct: 1.0,
};

/// A standard normal number (Box and Muller, 1958).
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    radius * (2.0 * std::f64::consts::PI * random.unit()).cos()
}

fn campaign(random: &mut Random, truth: &Truth, ratio: f64, noisier: f64) -> Results {
    let cells = (0..CELLS).map(|number| {
        let share = f64::from(number) / f64::from(CELLS - 1);
        let (least, most) = truth.noise;
        let noise = noisier * least * (most / least).powf(share);
        let runs = (0..truth.runs).map(|_| 1e8 * ratio * (noise * normal(random)).exp());
        Cell {
            key: CellKey {
                test: format!("test{number}"),
                record_bytes: 4096,
                level: Level::Named("random".to_owned()),
            },
            unit: Unit::BytesPerSecond,
            direction: Direction::HigherIsBetter,
            measured: Measured::from_runs(runs.collect()).unwrap(),
        }
    });
    Results::new("simulated".into(), Kind::Campaign, cells.collect())
}

/// The counts of each of a thousand comparisons.
fn simulate(truth: &Truth) -> Vec<Counts> {
    let options = Options {
        margin: Margin::Percent(truth.margin_pct),
        // Intervals decide nothing and would take minutes.
        resamples: 1,
        ..Options::default()
    };
    (0..CAMPAIGNS)
        .map(|number| {
            let mut random = Random::stream(4, number);
            let a = campaign(&mut random, truth, 1.0, 1.0);
            let b = campaign(&mut random, truth, truth.ratio, truth.noisier_b);
            compare_results(&a, &b, &options).unwrap().counts
        })
        .collect()
}

/// Campaigns with at least one cell that the verdict calls changed.
fn alarmed(counts: &[Counts]) -> usize {
    counts
        .iter()
        .filter(|counts| counts.faster + counts.slower > 0)
        .count()
}

fn share(counts: &[Counts], of: impl Fn(&Counts) -> usize) -> f64 {
    let found: usize = counts.iter().map(of).sum();
    let cells: usize = counts.iter().map(|counts| counts.cells).sum();
    found as f64 / cells as f64
}

/// Five standard deviations of a share of `trials` with the true value `p`.
fn chance(p: f64, trials: f64) -> f64 {
    5.0 * (p * (1.0 - p) / trials).sqrt()
}

#[test]
fn equal_campaigns_are_rarely_called_different() {
    for runs in [3, 5, 10, 30] {
        let counts = simulate(&Truth { runs, ..A_A });
        let wrong = alarmed(&counts);
        println!("{runs} runs: {wrong} of {CAMPAIGNS} campaigns have a false verdict");
        // The nominal share of campaigns, over all 20 cells.
        assert!(wrong as f64 <= NOMINAL * CAMPAIGNS as f64, "{runs} runs: {wrong}");
    }
}

/// Noise of up to 75 % exceeds any margin, so the test alone decides. It is nearly exact, and the count may exceed the
/// nominal one by chance.
#[test]
fn a_noisier_side_does_not_raise_false_alarms() {
    for noisier_b in [0.2, 5.0] {
        let trials = CAMPAIGNS as f64;
        let wrong = alarmed(&simulate(&Truth { noisier_b, ..A_A })) as f64 / trials;
        assert!(wrong < NOMINAL + chance(NOMINAL, trials), "{noisier_b}: {wrong}");
    }
}

/// Without a margin only the adjusted test separates noise from a verdict. It is nearly exact, so the count may exceed
/// the nominal one by chance, but not by much; a count far below it would mean that the test has no power.
#[test]
fn without_a_margin_the_test_has_its_nominal_level() {
    let counts = simulate(&Truth {
        margin_pct: 0.0,
        ..A_A
    });
    let trials = CAMPAIGNS as f64;
    let campaigns = alarmed(&counts) as f64 / trials;
    println!("no margin: {campaigns} of the campaigns have a false verdict");
    assert!(
        (campaigns - NOMINAL).abs() < chance(NOMINAL, trials),
        "{campaigns}"
    );
    let cells = trials * f64::from(CELLS);
    for (what, found) in [
        ("Welch", share(&counts, |counts| counts.welch)),
        (
            "Mann-Whitney",
            share(&counts, |counts| counts.mann_whitney.unwrap()),
        ),
    ] {
        // Rank p-values are discrete: the next one below 0.05 for ten against ten is 0.043.
        assert!(
            found < NOMINAL + chance(NOMINAL, cells) && found > 0.04,
            "{what}: {found}"
        );
    }
    assert_eq!(share(&counts, |counts| counts.equivalent), 0.0);
}

#[test]
fn the_stddev_rule_has_the_stated_error_rate() {
    for (runs, expected) in [(3, 0.345), (10, 0.052)] {
        let truth = Truth {
            runs,
            noise: (0.002, 0.01),
            ..A_A
        };
        let found = share(&simulate(&truth), |counts| counts.stddev_rule);
        assert!((found - expected).abs() < 0.01, "{runs}: {found}");
    }
}

#[test]
fn a_difference_of_the_margin_is_rarely_called_equivalent() {
    let counts = simulate(&Truth {
        ratio: 1.01,
        noise: (0.002, 0.02),
        ..A_A
    });
    let wrong = share(&counts, |counts| counts.equivalent);
    assert!(wrong <= NOMINAL, "{wrong}");
}

#[test]
fn real_differences_are_detected() {
    let quiet = Truth {
        noise: (0.002, 0.01),
        ..A_A
    };
    let faster = share(&simulate(&Truth { ratio: 1.03, ..quiet }), |counts| counts.faster);
    assert!(faster > 0.95, "{faster}");
    let slower = share(&simulate(&Truth { ratio: 0.97, ..quiet }), |counts| counts.slower);
    assert!(slower > 0.95, "{slower}");
    let still = Truth {
        noise: (0.001, 0.003),
        ..A_A
    };
    let equivalent = share(&simulate(&still), |counts| counts.equivalent);
    assert!(equivalent > 0.95, "{equivalent}");
}

/// Resampling intervals of ten runs contain the true ratio nearly as often as their coverage says.
#[test]
fn intervals_have_their_nominal_coverage() {
    let truth = Truth { ratio: 1.1, ..A_A };
    let options = Options {
        resamples: 400,
        ..Options::default()
    };
    let (mut held, mut cells) = (0u32, 0u32);
    for number in 0..50 {
        let mut random = Random::stream(5, number);
        let a = campaign(&mut random, &truth, 1.0, 1.0);
        let b = campaign(&mut random, &truth, truth.ratio, 1.0);
        for cell in compare_results(&a, &b, &options).unwrap().cells {
            cells += 1;
            held += u32::from(cell.ratio.low <= truth.ratio && truth.ratio <= cell.ratio.high);
            assert_ne!(cell.verdict, Verdict::Slower);
        }
    }
    let share = f64::from(held) / f64::from(cells);
    assert!((0.90..0.99).contains(&share), "{share}");
}
