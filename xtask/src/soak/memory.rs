//! Resident memory over time: bursts, pauses, and the lines through what is resident at the end of the pauses, with and
//! without the codecs. The codecs grow once, when `auto` trains its dictionary, as soon as the processors have time for
//! that: it is bounded, and no leak. So the memory without them is what is judged.

use std::fmt;

/// Pauses at the start that do not count: the cache is filled.
const FILLING: f64 = 0.25;
/// A line that rises by less than this in the whole soak is flat, however small its error.
const FLAT_SHARE: f64 = 0.02;

/// What a line of the soak says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) in_pause: bool,
    pub(super) seconds: f64,
    pub(super) resident: f64,
    pub(super) listed: f64,
    /// What the line `codecs` of the status report lists of it.
    pub(super) codecs: f64,
    /// Processor time for high effort so far, in seconds, and dictionaries trained: whether `auto` did what takes memory.
    pub(super) high_effort: f64,
    pub(super) dictionaries: f64,
}

impl Sample {
    /// From a line `memory phase=pause seconds=60 resident=20000000 listed=19000000 codecs=200000 high_effort=1.5 dictionaries=1`.
    pub(super) fn of_line(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("memory ")?.split(' ');
        let mut value = |key: &str| words.next()?.strip_prefix(key)?.strip_prefix('=');
        let in_pause = value("phase")? == "pause";
        let mut number = |key: &str| value(key)?.parse().ok();
        Some(Self {
            in_pause,
            seconds: number("seconds")?,
            resident: number("resident")?,
            listed: number("listed")?,
            codecs: number("codecs")?,
            high_effort: number("high_effort")?,
            dictionaries: number("dictionaries")?,
        })
    }
}

/// The line through points, by least squares.
#[derive(Clone, Copy, Debug)]
struct Line {
    slope: f64,
    /// Standard error of the slope.
    error: f64,
}

fn line(points: &[(f64, f64)]) -> Option<Line> {
    let count = points.len() as f64;
    if points.len() < 3 {
        return None;
    }
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let sum = |of: &dyn Fn(f64, f64) -> f64| {
        points
            .iter()
            .map(|point| of(point.0 - x, point.1 - y))
            .sum::<f64>()
    };
    let (xx, xy) = (sum(&|x, _| x * x), sum(&|x, y| x * y));
    let slope = xy / xx;
    let rest = sum(&|x, y| (y - slope * x).powi(2));
    (xx > 0.0).then(|| Line {
        slope,
        error: (rest / (count - 2.0) / xx).sqrt(),
    })
}

/// Bytes of a sample.
type Bytes = fn(&Sample) -> f64;

/// The samples of a soak, judged.
pub(super) struct Report<'a>(pub(super) &'a [Sample]);

/// Memory at the end of the pauses after the cache was filled: seconds and bytes.
struct Trend {
    pauses: Vec<(f64, f64)>,
    line: Line,
}

impl Trend {
    fn is_flat(&self) -> bool {
        let (first, last) = (self.pauses[0].0, self.pauses[self.pauses.len() - 1].0);
        let mean = self.pauses.iter().map(|point| point.1).sum::<f64>() / self.pauses.len() as f64;
        self.line.slope <= 2.0 * self.line.error || self.line.slope * (last - first) <= FLAT_SHARE * mean
    }
}

impl fmt::Display for Trend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hourly = |slope: f64| slope * 3600.0 / 1024.0;
        let (slope, error) = (hourly(self.line.slope), hourly(2.0 * self.line.error));
        let verdict = if self.is_flat() { "flat" } else { "it grows" };
        let count = self.pauses.len();
        write!(
            f,
            "{slope:+.0} KiB an hour, +- {error:.0} (two standard errors), over {count} pauses: {verdict}"
        )
    }
}

impl Report<'_> {
    /// `None` with too few pauses.
    fn trend(&self, of: Bytes) -> Option<Trend> {
        let pauses: Vec<_> = self.0.iter().filter(|sample| sample.in_pause).collect();
        let skipped = (pauses.len() as f64 * FILLING).ceil() as usize;
        let counted = pauses.into_iter().skip(skipped);
        let pauses: Vec<_> = counted.map(|sample| (sample.seconds, of(sample))).collect();
        let line = line(&pauses)?;
        Some(Trend { pauses, line })
    }

    /// Whether the line without codecs is flat; `None` with too few pauses.
    pub(super) fn is_flat(&self) -> Option<bool> {
        Some(self.trend(WITHOUT_CODECS)?.is_flat())
    }
}

const WITHOUT_CODECS: Bytes = |sample| sample.resident - sample.codecs;

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: f64 = 1048576.0;
        let (bursts, pauses): (Vec<Sample>, Vec<Sample>) = self.0.iter().partition(|sample| !sample.in_pause);
        let most = |samples: &[Sample], of: Bytes| samples.iter().map(of).fold(0.0, f64::max);
        let apart = pauses
            .iter()
            .map(|sample| (sample.listed / sample.resident - 1.0).abs());
        writeln!(
            f,
            "memory: {} bursts; resident at most {:.1} MiB after a burst, {:.1} MiB after a pause; listed within {:.1} % of that; \
             codecs at most {:.1} MiB",
            bursts.len(),
            most(&bursts, |sample| sample.resident) / MIB,
            most(&pauses, |sample| sample.resident) / MIB,
            100.0 * apart.fold(0.0, f64::max),
            most(&pauses, |sample| sample.codecs) / MIB
        )?;
        writeln!(
            f,
            "memory: high effort {:.0} s, dictionaries trained {:.0}",
            most(self.0, |sample| sample.high_effort),
            most(self.0, |sample| sample.dictionaries)
        )?;
        let (Some(all), Some(without)) = (self.trend(|sample| sample.resident), self.trend(WITHOUT_CODECS))
        else {
            return write!(f, "memory: too few pauses for a line");
        };
        write!(f, "memory: {all}\nmemory without codecs: {without}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soak(resident: impl Fn(f64) -> f64) -> Vec<Sample> {
        let sample = |at: u32| Sample {
            in_pause: at % 2 == 1,
            seconds: f64::from(at) * 60.0,
            resident: resident(f64::from(at)),
            listed: 20e6,
            codecs: 0.0,
            high_effort: f64::from(at),
            dictionaries: 1.0,
        };
        (0..60).map(sample).collect()
    }

    #[test]
    fn a_line_of_the_soak_is_parsed() {
        let line = "memory phase=pause seconds=60 resident=20000000 listed=19000000 codecs=200000 high_effort=1.5 dictionaries=2";
        let expected = Sample {
            in_pause: true,
            seconds: 60.0,
            resident: 20e6,
            listed: 19e6,
            codecs: 2e5,
            high_effort: 1.5,
            dictionaries: 2.0,
        };
        assert_eq!(Sample::of_line(line), Some(expected));
        for wrong in ["memory", "kills phase=pause", "memory phase=pause seconds=x"] {
            assert_eq!(Sample::of_line(wrong), None);
        }
    }

    #[test]
    fn memory_that_fills_and_then_stays_is_flat() {
        let filling = soak(|at| 20e6 + 1e6 * at.min(10.0) + 30e3 * (at % 7.0));
        assert_eq!(Report(&filling).is_flat(), Some(true));
        let text = Report(&filling).to_string();
        assert!(
            text.contains("30 bursts") && text.ends_with("over 22 pauses: flat"),
            "{text}"
        );
        let leak = soak(|at| 20e6 + 50e3 * at + 30e3 * (at % 7.0));
        assert_eq!(Report(&leak).is_flat(), Some(false));
        assert!(Report(&leak).to_string().ends_with("it grows"));
        assert_eq!(Report(&leak[..4]).is_flat(), None);
        // A dictionary that is trained late.
        let mut trained = filling;
        for sample in &mut trained[40..] {
            sample.resident += 3e6;
            sample.codecs += 3e6;
        }
        assert_eq!(Report(&trained).is_flat(), Some(true));
        let text = Report(&trained).to_string();
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[1] == "memory: high effort 59 s, dictionaries trained 1"
                && lines[2].ends_with("it grows")
                && lines[3].ends_with("flat"),
            "{text}"
        );
    }

    #[test]
    fn the_error_of_the_slope_is_that_of_the_residuals() {
        let exact = line(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]).expect("three points");
        assert!((exact.slope - 2.0).abs() < 1e-9 && exact.error < 1e-9);
        let rough = line(&[(0.0, 0.0), (1.0, 2.0), (2.0, 1.0)]).expect("three points");
        assert!((rough.slope - 0.5).abs() < 1e-9 && (rough.error - (1.5_f64 / 2.0).sqrt()).abs() < 1e-9);
        assert!(line(&[(0.0, 0.0), (1.0, 2.0)]).is_none());
    }
}
