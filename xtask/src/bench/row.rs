//! Lines of the table of results.

use std::fmt;

/// One line of the table.
#[derive(Debug)]
pub struct Row {
    /// The measurement.
    pub what: String,
    /// Beside what.
    pub peer: String,
    /// The required value and the target value.
    pub budget: &'static str,
    /// The result, or why it was not measured.
    pub reached: Result<Spread, String>,
    /// Unit of the values; ratios have none.
    pub unit: &'static str,
}

/// Median and extremes of paired ratios or of values.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// How many.
    pub runs: usize,
}

impl Spread {
    /// Of at least one value.
    pub fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        };
        Some(Self {
            median,
            min,
            max,
            runs: sorted.len(),
        })
    }

    /// Of the ratios of pairs within one round.
    pub fn of_ratios(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
        Self::of(&ratios)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<52} {:<26} {:<20} ", self.what, self.peer, self.budget)?;
        match &self.reached {
            Ok(spread) => write!(
                f,
                "{:.2}{unit} ({:.2} to {:.2}, {} runs)",
                spread.median,
                spread.min,
                spread.max,
                spread.runs,
                unit = self.unit
            ),
            Err(reason) => write!(f, "not measured: {reason}"),
        }
    }
}

impl Row {
    pub(super) fn json(&self) -> serde_json::Value {
        let mut value = serde_json::json!({
            "what": self.what, "peer": self.peer, "budget": self.budget, "unit": self.unit.trim(),
        });
        match &self.reached {
            Ok(spread) => {
                value["median"] = spread.median.into();
                value["min"] = spread.min.into();
                value["max"] = spread.max.into();
                value["runs"] = spread.runs.into();
            }
            Err(reason) => value["not_measured"] = reason.as_str().into(),
        }
        value
    }
}
