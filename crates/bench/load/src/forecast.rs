//! Estimates the remaining time from the duration of similar visits.
//!
//! The speed of tests differs by orders of magnitude, so a bar over bytes or runs would be misleading. The estimate of
//! a visit is the time of the same visit in earlier rounds, or that of similar visits. Before any visit is complete,
//! during preconditioning and in the first visit, it is the time at the highest rate seen so far.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::schedule::Visit;

/// Share of a visit that must be complete before its rate is used.
const SHARE_MIN: f64 = 0.02;

/// Durations of visits.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    seen: HashMap<Visit, Mean>,
    bytes_per_s_max: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, other: Self) {
        self.sum += other.sum;
        self.count += other.count;
    }

    fn get(self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

impl Forecast {
    /// Records that this many bytes were transferred in this many seconds.
    pub fn moved(&mut self, bytes: u64, seconds: f64) {
        if seconds > 0.0 {
            let rate = bytes as f64 / seconds;
            self.bytes_per_s_max = Some(self.bytes_per_s_max.map_or(rate, |most| most.max(rate)));
        }
    }

    /// Highest rate seen, in bytes per second.
    #[must_use]
    pub fn bytes_per_s_max(&self) -> Option<f64> {
        self.bytes_per_s_max
    }

    /// Records the duration of a visit in seconds.
    pub fn took(&mut self, visit: &Visit, seconds: f64) {
        self.seen.entry(*visit).or_default().add(Mean {
            sum: seconds,
            count: 1.0,
        });
    }

    /// Estimated seconds of a visit: its own last duration, else that of the same visit with other data, of its group,
    /// or of any visit.
    #[must_use]
    pub fn seconds(&self, visit: &Visit) -> Option<f64> {
        self.mean(|seen| seen == visit)
            .or_else(|| {
                self.mean(|seen| (seen.group, seen.record_bytes) == (visit.group, visit.record_bytes))
            })
            .or_else(|| self.mean(|seen| seen.group == visit.group))
            .or_else(|| self.mean(|_| true))
    }

    /// Whether a test of this group and record size was seen, with any data.
    #[must_use]
    pub fn knows(&self, visit: &Visit) -> bool {
        self.seen
            .keys()
            .any(|seen| (seen.group, seen.record_bytes) == (visit.group, visit.record_bytes))
    }

    /// Estimated seconds of several visits together; `None` before one was seen.
    #[must_use]
    pub fn total<'v>(&self, visits: impl Iterator<Item = &'v Visit>) -> Option<f64> {
        visits.map(|visit| self.seconds(visit)).sum()
    }

    fn mean(&self, like: impl Fn(&Visit) -> bool) -> Option<f64> {
        let mut mean = Mean::default();
        for (_, seen) in self.seen.iter().filter(|(visit, _)| like(visit)) {
            mean.add(*seen);
        }
        mean.get()
    }
}

/// Reliability of an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surety {
    /// All remaining visits were seen before.
    Known,
    /// Some were not; their estimate is that of similar visits.
    About,
    /// None were, or more may follow; this is the time at the highest rate seen.
    AtLeast,
}

/// Estimated time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The estimate.
    pub time: Duration,
    /// Reliability.
    pub surety: Surety,
}

/// The current activity, for a progress display.
#[derive(Clone, Debug)]
pub struct Status {
    /// In words.
    pub what: String,
    /// Time of its start.
    pub began: Instant,
    /// Bytes that the current visit will transfer.
    pub bytes: u64,
    /// Its estimated seconds.
    pub expected_s: Option<f64>,
    /// Estimated seconds of everything after it, and their reliability; `None` before a visit was seen.
    pub later: Option<(f64, Surety)>,
    /// Bytes of everything after it.
    pub later_bytes: u64,
    /// Highest rate seen, in bytes per second.
    pub bytes_per_s_max: Option<f64>,
    /// Seconds of everything before it.
    pub spent_s: f64,
}

impl Status {
    /// Remaining time at `now`, after `done` bytes of the visit.
    #[must_use]
    pub fn left(&self, done: u64, now: Instant) -> Option<Left> {
        let elapsed = now.saturating_duration_since(self.began).as_secs_f64();
        let share = if self.bytes == 0 {
            0.0
        } else {
            (done as f64 / self.bytes as f64).min(1.0)
        };
        let under_way = share > SHARE_MIN && elapsed > 0.0;
        let this = match self.expected_s {
            // The bytes are a better measure than the clock: a visit may be slower than those before.
            Some(expected) => Some(expected.max(elapsed * share) * (1.0 - share)),
            None => under_way.then(|| elapsed / share * (1.0 - share)),
        };
        if let (Some(this), Some((later, surety))) = (this, self.later) {
            return Some(Left {
                time: Duration::from_secs_f64(this + later),
                surety,
            });
        }
        let rate = self
            .bytes_per_s_max
            .into_iter()
            .chain(under_way.then(|| done as f64 / elapsed))
            .reduce(f64::max)
            .filter(|rate| *rate > 0.0)?;
        // The current visit has its own rate, which may be far below the highest.
        let this = this.unwrap_or(self.bytes.saturating_sub(done) as f64 / rate);
        Some(Left {
            time: Duration::try_from_secs_f64(this + self.later_bytes as f64 / rate).ok()?,
            surety: Surety::AtLeast,
        })
    }

    /// Completed share of everything, 0 to 1.
    #[must_use]
    pub fn share(&self, done: u64, now: Instant) -> Option<f64> {
        let left = self.left(done, now)?.time.as_secs_f64();
        let spent = self.spent_s + now.saturating_duration_since(self.began).as_secs_f64();
        Some(spent / (spent + left).max(1e-9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::Group;

    fn visit(group: Group, record_bytes: u64, level: usize) -> Visit {
        Visit {
            group,
            record_bytes,
            level,
        }
    }

    #[test]
    fn the_most_similar_visit_predicts_the_time() {
        let mut forecast = Forecast::default();
        assert_eq!(forecast.seconds(&visit(Group::Read, 4096, 0)), None);
        forecast.took(&visit(Group::Write, 4096, 0), 10.0);
        assert_eq!(forecast.seconds(&visit(Group::Read, 4096, 0)), Some(10.0));
        forecast.took(&visit(Group::Read, 1 << 20, 0), 1.0);
        forecast.took(&visit(Group::Read, 1 << 20, 0), 3.0);
        assert_eq!(forecast.seconds(&visit(Group::Read, 1 << 20, 0)), Some(2.0));
        assert_eq!(forecast.seconds(&visit(Group::Read, 1 << 20, 1)), Some(2.0));
        assert_eq!(forecast.seconds(&visit(Group::Read, 4096, 0)), Some(2.0));
        let both = [visit(Group::Read, 4096, 0), visit(Group::Write, 4096, 1)];
        assert_eq!(forecast.total(both.iter()), Some(12.0));
        assert_eq!(forecast.total([].iter()), Some(0.0));
    }

    #[test]
    fn the_remaining_time_shrinks_with_the_bytes() {
        let began = Instant::now();
        let status = Status {
            what: String::new(),
            began,
            bytes: 1000,
            expected_s: Some(8.0),
            later: Some((92.0, Surety::About)),
            later_bytes: 50_000,
            bytes_per_s_max: None,
            spent_s: 100.0,
        };
        let at = |seconds| began + Duration::from_secs(seconds);
        let left = |status: &Status, done, now| {
            let left = status.left(done, now)?;
            Some((left.time.as_secs(), left.surety))
        };
        let about = |seconds| Some((seconds, Surety::About));
        let at_least = |seconds| Some((seconds, Surety::AtLeast));
        assert_eq!(left(&status, 0, began), about(100));
        assert_eq!(status.share(0, began), Some(0.5));
        assert_eq!(left(&status, 500, at(4)), about(96));
        assert_eq!(left(&status, 1000, at(8)), about(92));
        let only = Status {
            expected_s: None,
            later: Some((0.0, Surety::Known)),
            ..status.clone()
        };
        assert_eq!(left(&only, 0, at(1)), None, "nothing is known yet");
        assert_eq!(left(&only, 250, at(2)), Some((6, Surety::Known)));
        let first = Status {
            later: None,
            expected_s: None,
            ..status
        };
        assert_eq!(left(&first, 0, at(1)), None);
        // 500 bytes per second: one more second for this visit, a hundred for the rest.
        assert_eq!(left(&first, 500, at(1)), at_least(101));
        let after_preconditioning = Status {
            bytes_per_s_max: Some(1000.0),
            ..first
        };
        assert_eq!(left(&after_preconditioning, 0, at(1)), at_least(51));
        // The current test is slower: two more seconds, and fifty for the rest.
        assert_eq!(left(&after_preconditioning, 500, at(2)), at_least(52));
    }

    #[test]
    fn the_forecast_keeps_the_highest_rate() {
        let mut forecast = Forecast::default();
        assert_eq!(forecast.bytes_per_s_max(), None);
        forecast.moved(1000, 2.0);
        forecast.moved(1000, 4.0);
        forecast.moved(0, 0.0);
        assert_eq!(forecast.bytes_per_s_max(), Some(500.0));
        assert!(!forecast.knows(&visit(Group::Read, 4096, 0)));
        forecast.took(&visit(Group::Read, 4096, 0), 1.0);
        assert!(forecast.knows(&visit(Group::Read, 4096, 3)));
        assert!(!forecast.knows(&visit(Group::Read, 8192, 0)));
    }
}
