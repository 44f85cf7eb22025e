//! Properties of a campaign's samples: outliers, drift, steady state, and the width of the intervals.

use flaz_bench::campaign_file::{Campaign, CampaignCell, Drift};
use flaz_bench::statistics::family::benjamini_hochberg;
use flaz_bench::statistics::moments::{Moments, outlier_places};
use flaz_bench::statistics::trend;
use flaz_bench::statistics::welch::mean_interval;

/// Coverage of the intervals.
const COVERAGE: f64 = 0.95;
/// A drift is reported if its p-value is below this, corrected for the number of cells.
const DRIFT_P_MAX: f64 = 0.05;
/// Minimum number of samples for outliers and drift: of three samples, one is nearly always far from the other two.
const SAMPLES_MIN: usize = 5;

/// Recomputes the flags of all cells.
pub fn set(campaign: &mut Campaign) {
    let trends: Vec<(usize, trend::Trend, f64)> = campaign
        .cells
        .iter()
        .enumerate()
        .filter_map(|(place, cell)| {
            let (trend, span) = drift(cell)?;
            Some((place, trend, span))
        })
        .collect();
    let p: Vec<f64> = trends.iter().map(|(_, trend, _)| trend.p).collect();
    for cell in &mut campaign.cells {
        cell.drift = None;
        cell.outliers = if cell.samples.len() < SAMPLES_MIN {
            Vec::new()
        } else {
            outlier_places(&cell.samples)
        };
        cell.steady = trend::is_steady(&cell.samples);
    }
    for ((place, trend, span), adjusted_p) in trends.into_iter().zip(benjamini_hochberg(&p)) {
        if adjusted_p < DRIFT_P_MAX {
            campaign.cells[place].drift = Some(Drift {
                change_pct: (trend.slope * span).exp_m1() * 100.0,
                adjusted_p,
            });
        }
    }
}

/// Regression of the logarithms over the order of the runs, and its total change.
fn drift(cell: &CampaignCell) -> Option<(trend::Trend, f64)> {
    if cell.samples.len() < SAMPLES_MIN || cell.order.len() != cell.samples.len() {
        return None;
    }
    let x: Vec<f64> = cell.order.iter().map(|&place| f64::from(place)).collect();
    let y: Vec<f64> = cell.samples.iter().map(|sample| sample.ln()).collect();
    let (least, most) = x
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), &x| {
            (least.min(x), most.max(x))
        });
    Some((trend::trend(&x, &y)?, most - least))
}

/// Half-width of the 95 % interval of a cell's geometric mean, in percent; `None` with fewer than two samples.
#[must_use]
pub fn half_width_pct(samples: &[f64]) -> Option<f64> {
    if samples.len() < 2 {
        return None;
    }
    let (low, high) = mean_interval(Moments::of_logs(samples), COVERAGE);
    Some(((high - low) / 2.0).exp_m1() * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(test: &str, samples: Vec<f64>) -> CampaignCell {
        let mut cell = CampaignCell::new(test, 4096, "50".parse().unwrap(), samples);
        cell.order = (0..cell.samples.len() as u32).map(|place| place * 3).collect();
        cell
    }

    #[test]
    fn drift_and_outliers_are_reported_and_nothing_is_dropped() {
        let mut campaign = Campaign::new(1);
        let noise = [0.0, 0.4, -0.3, 0.1, -0.2, 0.3, -0.4, 0.2, -0.1, 0.0];
        let falling = |place: usize| 100.0 * (1.0 - 0.02 * place as f64) + noise[place];
        campaign
            .cells
            .push(cell("falling", (0..10).map(falling).collect()));
        campaign
            .cells
            .push(cell("flat", noise.iter().map(|noise| 100.0 + noise).collect()));
        let mut odd: Vec<f64> = noise.iter().map(|noise| 100.0 + noise).collect();
        odd[4] = 50.0;
        campaign.cells.push(cell("odd", odd.clone()));
        set(&mut campaign);
        let drift = campaign.cells[0].drift.unwrap();
        assert!((-19.0..-17.0).contains(&drift.change_pct), "{drift:?}");
        assert_eq!((campaign.cells[1].drift, campaign.cells[2].drift), (None, None));
        assert_eq!(campaign.cells[1].outliers, [0; 0]);
        assert_eq!(campaign.cells[2].outliers, [4]);
        assert_eq!(campaign.cells[2].samples, odd);
        assert_eq!(campaign.cells[1].steady, Some(true));
    }

    #[test]
    fn intervals_narrow_with_runs() {
        assert_eq!(half_width_pct(&[1.0]), None);
        let few = half_width_pct(&[100.0, 102.0, 98.0]).unwrap();
        let many = half_width_pct(&[100.0, 102.0, 98.0].repeat(10)).unwrap();
        // 2 % of noise: 4.303 * 2 / sqrt(3), and 2.045 * 1.66 / sqrt(30).
        assert!(
            (few - 5.1).abs() < 0.2 && (many - 0.62).abs() < 0.05,
            "{few} {many}"
        );
    }
}
