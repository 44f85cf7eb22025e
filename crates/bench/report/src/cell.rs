//! A cell: its key (test, record size, compressibility of the data) and its results.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::statistics::moments::{self, Moments};
use crate::unit::{Direction, Unit, WholeBytes};

/// Maximum number of runs of one cell; the time for resampling is proportional to it.
pub const RUNS_MAX: usize = 1000;

/// Maximum number of runs behind a published mean. With this limit the statistics stay exact.
pub const SUMMARY_RUNS_MAX: u32 = 1_000_000;

/// Minimum and maximum value: squares and ratios of such values stay finite.
pub const VALUE_MIN: f64 = 1e-30;
/// See [`VALUE_MIN`].
pub const VALUE_MAX: f64 = 1e30;

/// Maximum number of characters in the name of a test or a level.
pub const NAME_CHARS_MAX: usize = 64;

/// Requested compressibility of the data.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Percentage saved by compression.
    Percent(Percent),
    /// Data without a percentage: `random`, `zeros`, ..
    Named(String),
}

/// A percentage from 0 to 100, in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(u16);

impl Percent {
    /// Creates a level from a number, rounded to hundredths; `None` outside of 0 to 100.
    #[must_use]
    pub fn new(percent: f64) -> Option<Self> {
        (0.0..=100.0)
            .contains(&percent)
            .then(|| Self((percent * 100.0).round() as u16))
    }

    /// The number, 0 to 100.
    #[must_use]
    pub fn get(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

impl Level {
    /// The percentage, if it has one.
    #[must_use]
    pub fn percent(&self) -> Option<f64> {
        match self {
            Self::Percent(percent) => Some(percent.get()),
            Self::Named(_) => None,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => f.pad(&format!("{} %", percent.get())),
            Self::Named(name) => f.pad(name),
        }
    }
}

impl FromStr for Level {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "a percentage from 0 to 100, or a word such as random";
        if let Ok(number) = text.parse::<f64>() {
            return Percent::new(number).map(Self::Percent).ok_or(EXPECTED);
        }
        if is_name(text) {
            Ok(Self::Named(text.to_owned()))
        } else {
            Err(EXPECTED)
        }
    }
}

/// A word that begins with a letter.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.len() <= NAME_CHARS_MAX
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c))
}

impl schemars::JsonSchema for Level {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Level".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A percentage, or a word such as random.",
            "type": ["number", "string"]
        })
    }
}

/// A number, or a word.
impl Serialize for Level {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Percent(percent) if percent.0 % 100 == 0 => serializer.serialize_u16(percent.0 / 100),
            Self::Percent(percent) => serializer.serialize_f64(percent.get()),
            Self::Named(name) => serializer.serialize_str(name),
        }
    }
}

impl<'de> Deserialize<'de> for Level {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "a level: expected a percentage from 0 to 100, or a word such as random"
        )]
        enum Raw {
            Number(f64),
            Word(String),
        }
        let text = match Raw::deserialize(deserializer)? {
            Raw::Number(number) => number.to_string(),
            Raw::Word(word) => word,
        };
        text.parse()
            .map_err(|expected| serde::de::Error::custom(format!("level '{text}': expected {expected}")))
    }
}

/// Key of a cell: cells with equal keys are compared.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct CellKey {
    /// Name of the test: `write`, `random_read`, ..
    pub test: String,
    /// Size of a record in bytes.
    pub record_bytes: u64,
    /// Compressibility of the data.
    pub level: Level,
}

impl fmt::Display for CellKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} at {}",
            self.test,
            WholeBytes(self.record_bytes),
            self.level
        )
    }
}

/// A cell with its results.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Which cell.
    pub key: CellKey,
    /// Unit of the values.
    pub unit: Unit,
    /// Whether higher or lower values are better.
    pub direction: Direction,
    /// The numbers.
    pub measured: Measured,
}

impl Cell {
    /// Unit, and whether higher or lower is better, as text.
    #[must_use]
    pub fn counts(&self) -> String {
        match self.direction {
            Direction::HigherIsBetter => format!("{} (higher is better)", self.unit),
            Direction::LowerIsBetter => format!("{} (lower is better)", self.unit),
        }
    }
}

/// The values of a cell: all of them, or their published mean and deviation. They are always valid for logarithms and a
/// variance: at least two runs, all positive.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// The value of each run, in the order of the runs.
    Runs(Vec<f64>),
    /// Only mean and variance.
    Summary(Moments),
}

/// Why values cannot be compared.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unfit {
    /// Too few runs.
    #[error("a comparison needs at least 2 runs, found {0}: measure more runs")]
    TooFew(usize),
    /// Too many.
    #[error("{found} runs: the maximum is {max}")]
    TooMany {
        /// Number of runs.
        found: usize,
        /// Maximum number of runs.
        max: usize,
    },
    /// The value of a run is not positive.
    #[error("run {run} is {value}: expected a positive number, 1e-30 to 1e30")]
    NotPositive {
        /// Number of the run, from 1.
        run: usize,
        /// Its value.
        value: f64,
    },
    /// The mean is not positive.
    #[error("the mean is {0}: expected a positive number, 1e-30 to 1e30")]
    Mean(f64),
    /// The deviation is invalid.
    #[error("the standard deviation is {0}: expected zero or more, at most 1e30")]
    Deviation(f64),
}

impl Measured {
    /// Creates it from the value of each run.
    ///
    /// # Errors
    /// There are fewer than two runs or more than [`RUNS_MAX`], or a value is not positive.
    pub fn from_runs(runs: Vec<f64>) -> Result<Self, Unfit> {
        match runs.len() {
            few @ 0..2 => return Err(Unfit::TooFew(few)),
            found if found > RUNS_MAX => {
                let max = RUNS_MAX;
                return Err(Unfit::TooMany { found, max });
            }
            _ => {}
        }
        match runs.iter().position(|run| !(VALUE_MIN..=VALUE_MAX).contains(run)) {
            Some(at) => Err(Unfit::NotPositive {
                run: at + 1,
                value: runs[at],
            }),
            None => Ok(Self::Runs(runs)),
        }
    }

    /// Creates it from mean and standard deviation over `runs` runs.
    ///
    /// # Errors
    /// There are fewer than two runs or more than [`SUMMARY_RUNS_MAX`], the mean is not positive, or the deviation is
    /// negative.
    pub fn from_summary(mean: f64, stddev: f64, runs: u32) -> Result<Self, Unfit> {
        if runs < 2 {
            return Err(Unfit::TooFew(runs as usize));
        }
        if runs > SUMMARY_RUNS_MAX {
            return Err(Unfit::TooMany {
                found: runs as usize,
                max: SUMMARY_RUNS_MAX as usize,
            });
        }
        if !(VALUE_MIN..=VALUE_MAX).contains(&mean) {
            return Err(Unfit::Mean(mean));
        }
        if !(0.0..=VALUE_MAX).contains(&stddev) {
            return Err(Unfit::Deviation(stddev));
        }
        Ok(Self::Summary(Moments {
            mean,
            variance: stddev * stddev,
            runs,
        }))
    }

    /// Mean, variance and number of runs.
    #[must_use]
    pub fn moments(&self) -> Moments {
        match self {
            Self::Runs(runs) => Moments::of(runs),
            Self::Summary(moments) => *moments,
        }
    }

    /// Mean, variance and number of the logarithms.
    #[must_use]
    pub fn log_moments(&self) -> Moments {
        match self {
            Self::Runs(runs) => Moments::of_logs(runs),
            Self::Summary(moments) => moments.to_logs(),
        }
    }

    /// The median; for a summary, that of the log-normal distribution with these moments.
    #[must_use]
    pub fn median(&self) -> f64 {
        match self {
            Self::Runs(runs) => moments::median(runs),
            Self::Summary(moments) => moments.to_logs().mean.exp(),
        }
    }

    /// The value of each run, if known.
    #[must_use]
    pub fn runs(&self) -> Option<&[f64]> {
        match self {
            Self::Runs(runs) => Some(runs),
            Self::Summary(_) => None,
        }
    }

    /// The form used in reports.
    #[must_use]
    pub fn describe(&self) -> Description {
        let moments = self.moments();
        Description {
            runs: moments.runs,
            mean: moments.mean,
            stddev: moments.stddev(),
            variation_pct: 100.0 * moments.stddev() / moments.mean,
            median: self.runs().map(moments::median),
            outliers: self.runs().map(moments::outliers),
        }
    }
}

/// One side of a cell in a report; values in the cell's unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Description {
    /// Number of runs.
    pub runs: u32,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation.
    pub stddev: f64,
    /// The coefficient of variation: the deviation in percent of the mean.
    pub variation_pct: f64,
    /// Median; unknown for a published mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median: Option<f64>,
    /// Number of runs far from the median, which are included; unknown for a published mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outliers: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_numbers_or_words() {
        for (text, json) in [("98", "98"), ("2.5", "2.5"), ("0", "0"), ("random", "\"random\"")] {
            let level: Level = text.parse().unwrap();
            assert_eq!(serde_json::to_string(&level).unwrap(), json);
            assert_eq!(serde_json::from_str::<Level>(json).unwrap(), level);
        }
        assert_eq!("98.0".parse::<Level>(), "98".parse());
        for text in ["", "101", "-1", "NaN", "inf", "a b", "%", "1e9"] {
            // Text that a parser accepts as a number must not become a word.
            assert!(text.parse::<Level>().is_err(), "{text}");
        }
        let refused = serde_json::from_str::<Level>("250").unwrap_err().to_string();
        assert!(refused.contains("0 to 100"), "{refused}");
    }

    #[test]
    fn invalid_numbers_are_reported() {
        assert_eq!(Measured::from_runs(vec![1.0]), Err(Unfit::TooFew(1)));
        let many = Measured::from_runs(vec![1.0; 1001]);
        assert_eq!(
            many,
            Err(Unfit::TooMany {
                found: 1001,
                max: 1000
            })
        );
        assert!(Measured::from_summary(1.0, 0.1, u32::MAX).is_err());
        assert!(Measured::from_summary(1e200, 1.0, 3).is_err());
        assert!(Measured::from_summary(1.0, 1e200, 3).is_err());
        let wild = Measured::from_summary(1e-30, 1e30, 2).unwrap().log_moments();
        assert!(wild.mean.is_finite() && wild.variance.is_finite());
        for value in [0.0, -1.0, f64::INFINITY] {
            let refused = Measured::from_runs(vec![1.0, value]);
            assert_eq!(refused, Err(Unfit::NotPositive { run: 2, value }));
        }
        assert!(Measured::from_runs(vec![f64::NAN, 1.0]).is_err());
        assert_eq!(Measured::from_summary(1.0, 0.1, 1), Err(Unfit::TooFew(1)));
        assert_eq!(Measured::from_summary(0.0, 0.1, 3), Err(Unfit::Mean(0.0)));
        assert_eq!(Measured::from_summary(1.0, -0.1, 3), Err(Unfit::Deviation(-0.1)));
    }

    #[test]
    fn a_description_contains_the_known_values() {
        let runs = Measured::from_runs(vec![9.0, 10.0, 11.0]).unwrap().describe();
        assert_eq!((runs.mean, runs.stddev, runs.median), (10.0, 1.0, Some(10.0)));
        assert!((runs.variation_pct - 10.0).abs() < 1e-12);
        let summary = Measured::from_summary(10.0, 1.0, 3).unwrap().describe();
        assert_eq!((summary.mean, summary.stddev, summary.median), (10.0, 1.0, None));
    }
}
