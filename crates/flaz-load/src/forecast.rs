//! How long the rest will take: from how long what is like it took.
//!
//! Tests differ in speed by orders of magnitude, so a bar over bytes or over runs would lie. A visit is expected to take what
//! the same visit took in earlier rounds; one that was not done yet, what its like took.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::schedule::Visit;

/// What visits took.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    seen: HashMap<Visit, Mean>,
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
    /// Notes that a visit took so many seconds.
    pub fn took(&mut self, visit: &Visit, seconds: f64) {
        self.seen.entry(*visit).or_default().add(Mean {
            sum: seconds,
            count: 1.0,
        });
    }

    /// Seconds that a visit should take: as itself before, else as the same with other data, else as its group, else as any.
    #[must_use]
    pub fn seconds(&self, visit: &Visit) -> Option<f64> {
        self.mean(|seen| seen == visit)
            .or_else(|| {
                self.mean(|seen| (seen.group, seen.record_bytes) == (visit.group, visit.record_bytes))
            })
            .or_else(|| self.mean(|seen| seen.group == visit.group))
            .or_else(|| self.mean(|_| true))
    }

    /// Seconds that visits should take together; nothing before one was seen.
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

/// What is going on, for somebody who looks now and then.
#[derive(Clone, Debug)]
pub struct Status {
    /// In words.
    pub what: String,
    /// When it began.
    pub began: Instant,
    /// Bytes that the visit under way will move.
    pub bytes: u64,
    /// Seconds that it should take.
    pub expected_s: Option<f64>,
    /// Seconds that everything after it should take.
    pub later_s: Option<f64>,
    /// Seconds that everything before it took.
    pub spent_s: f64,
}

impl Status {
    /// Seconds that are left, when `done` bytes of the visit are moved and it is `now`.
    #[must_use]
    pub fn left(&self, done: u64, now: Instant) -> Option<Duration> {
        let elapsed = now.saturating_duration_since(self.began).as_secs_f64();
        let share = if self.bytes == 0 {
            0.0
        } else {
            (done as f64 / self.bytes as f64).min(1.0)
        };
        let this = match self.expected_s {
            // Bytes say more than the clock: a visit may be slower than those before.
            Some(expected) => expected.max(elapsed * share) * (1.0 - share),
            None if share > 0.02 => elapsed / share * (1.0 - share),
            None => return None,
        };
        Some(Duration::from_secs_f64(this + self.later_s?))
    }

    /// Which part of everything is done, 0 to 1.
    #[must_use]
    pub fn share(&self, done: u64, now: Instant) -> Option<f64> {
        let left = self.left(done, now)?.as_secs_f64();
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
    fn the_most_alike_is_believed() {
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
    fn what_is_left_shrinks_with_the_bytes() {
        let began = Instant::now();
        let status = Status {
            what: String::new(),
            began,
            bytes: 1000,
            expected_s: Some(8.0),
            later_s: Some(92.0),
            spent_s: 100.0,
        };
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(status.left(0, began), Some(Duration::from_secs(100)));
        assert_eq!(status.share(0, began), Some(0.5));
        assert_eq!(status.left(500, at(4)), Some(Duration::from_secs(96)));
        assert_eq!(status.left(1000, at(8)), Some(Duration::from_secs(92)));
        let first = Status {
            expected_s: None,
            later_s: Some(0.0),
            ..status.clone()
        };
        assert_eq!(first.left(0, at(1)), None, "nothing is known yet");
        assert_eq!(first.left(250, at(2)), Some(Duration::from_secs(6)));
        let unknown = Status {
            later_s: None,
            ..status
        };
        assert_eq!(unknown.left(500, at(1)), None);
    }
}
