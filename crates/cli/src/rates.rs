//! Rates between two reports of one cache. Pure.
//!
//! Counters start again from zero with a daemon: if it was restarted in between, and for the first report, the rates are those
//! since its start.

use std::time::Duration;

use crate::report::LiveReport;

/// Amounts per second, and shares, of one cache or of several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Requests of clients per second.
    pub reads: f64,
    /// Requests of clients per second.
    pub writes: f64,
    /// Bytes that clients read per second.
    pub read_bytes: f64,
    /// Bytes that clients wrote per second.
    pub written_bytes: f64,
    /// Blocks per second that reads found in the cache.
    pub hit_blocks: f64,
    /// Blocks per second that reads did not find.
    pub miss_blocks: f64,
    /// Bytes per second written to the cache device.
    pub cache_written_bytes: f64,
    /// Bytes per second read from the origin.
    pub origin_read_bytes: f64,
    /// Bytes per second written to the origin.
    pub origin_written_bytes: f64,
    /// CPU seconds per second.
    pub cpu: f64,
    /// Upper bounds of the latency buckets in seconds.
    bounds_s: Vec<f64>,
    /// Reads and writes in each bucket, and above all bounds.
    latencies: Vec<u64>,
}

impl Rates {
    /// The rates from `before` to `now`, `span` later.
    #[must_use]
    pub fn between(before: &LiveReport, now: &LiveReport, span: Duration) -> Self {
        let restarted = before.daemon.pid != now.daemon.pid || before.daemon.uptime_s > now.daemon.uptime_s;
        if restarted {
            Self::since_start(now)
        } else {
            Self::over(before, now, span.as_secs_f64())
        }
    }

    /// The average rates since the start of the daemon.
    #[must_use]
    pub fn since_start(now: &LiveReport) -> Self {
        Self::over(&LiveReport::default(), now, now.daemon.uptime_s)
    }

    fn over(before: &LiveReport, now: &LiveReport, seconds: f64) -> Self {
        // Two reports of the same moment have no rate; a report may come from another program.
        let seconds = if seconds.is_finite() {
            seconds.max(1e-3)
        } else {
            1.0
        };
        let rate = |value: fn(&LiveReport) -> u64| value(now).saturating_sub(value(before)) as f64 / seconds;
        let latencies = |report: &LiveReport| -> Vec<u64> {
            let mut sum = vec![0_u64; now.latency_bounds_s.len() + 1];
            for operation in ["read", "write"]
                .into_iter()
                .filter_map(|name| report.operation(name))
            {
                for (sum, count) in sum.iter_mut().zip(&operation.latency_counts) {
                    *sum = sum.saturating_add(*count);
                }
            }
            sum
        };
        let earlier = latencies(before);
        Self {
            reads: rate(|it| it.operation("read").map_or(0, |it| it.count)),
            writes: rate(|it| it.operation("write").map_or(0, |it| it.count)),
            read_bytes: rate(|it| it.operation("read").map_or(0, |it| it.bytes)),
            written_bytes: rate(|it| it.operation("write").map_or(0, |it| it.bytes)),
            hit_blocks: rate(|it| it.lookups.hit_blocks),
            miss_blocks: rate(|it| it.lookups.miss_blocks),
            cache_written_bytes: rate(|it| it.traffic.cache_written_bytes),
            origin_read_bytes: rate(|it| it.traffic.origin_read_bytes),
            origin_written_bytes: rate(|it| it.traffic.origin_written_bytes),
            cpu: ((now.daemon.cpu_s - before.daemon.cpu_s) / seconds).max(0.0),
            bounds_s: now.latency_bounds_s.clone(),
            latencies: latencies(now)
                .into_iter()
                .zip(earlier)
                .map(|(now, before)| now.saturating_sub(before))
                .collect(),
        }
    }

    /// Adds those of another cache.
    pub fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.hit_blocks += other.hit_blocks;
        self.miss_blocks += other.miss_blocks;
        self.cache_written_bytes += other.cache_written_bytes;
        self.origin_read_bytes += other.origin_read_bytes;
        self.origin_written_bytes += other.origin_written_bytes;
        self.cpu += other.cpu;
        if self.bounds_s.is_empty() {
            self.bounds_s.clone_from(&other.bounds_s);
            self.latencies.clone_from(&other.latencies);
        } else if self.bounds_s == other.bounds_s {
            for (sum, count) in self.latencies.iter_mut().zip(&other.latencies) {
                *sum = sum.saturating_add(*count);
            }
        }
    }

    /// Share of the blocks of reads that were found, if there were any.
    #[must_use]
    pub fn hit_share(&self) -> Option<f64> {
        let all = self.hit_blocks + self.miss_blocks;
        (all > 0.0).then(|| self.hit_blocks / all)
    }

    /// Latency that `share` of the reads and writes did not exceed, in seconds: interpolated in its bucket, and at most the largest
    /// bound. `None` without requests.
    #[must_use]
    pub fn latency_s(&self, share: f64) -> Option<f64> {
        let all: u64 = self
            .latencies
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count));
        if all == 0 {
            return None;
        }
        let wanted = share.clamp(0.0, 1.0) * all as f64;
        let (mut below, mut from) = (0.0, 0.0);
        for (bound, count) in self.bounds_s.iter().zip(&self.latencies) {
            let count = *count as f64;
            if count > 0.0 && below + count >= wanted {
                return Some(from + (bound - from) * (wanted - below) / count);
            }
            below += count;
            from = *bound;
        }
        self.bounds_s.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::OperationReport;
    use crate::report::example::example;

    fn live() -> LiveReport {
        example().live.unwrap()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn rates_cover_the_time_between_two_reports() {
        let (before, mut now) = (live(), live());
        now.operations[0].count += 500;
        now.operations[0].bytes += 1 << 20;
        now.lookups.hit_blocks += 30;
        now.lookups.miss_blocks += 10;
        now.traffic.cache_written_bytes += 4096;
        now.daemon.cpu_s += 0.25;
        let rates = Rates::between(&before, &now, SECOND / 2);
        assert_eq!((rates.reads, rates.writes), (1000.0, 0.0));
        assert_eq!(
            (rates.read_bytes, rates.cache_written_bytes),
            (2_097_152.0, 8192.0)
        );
        assert_eq!((rates.hit_share(), rates.cpu), (Some(0.75), 0.5));
        let idle = Rates::between(&now, &now, SECOND);
        assert_eq!(
            (idle.reads, idle.hit_share(), idle.latency_s(0.99)),
            (0.0, None, None)
        );
    }

    #[test]
    fn a_restarted_daemon_counts_from_its_start() {
        let before = live();
        let mut now = live();
        now.daemon.uptime_s = 10.0;
        now.operations[0].count = 50;
        assert_eq!(Rates::between(&before, &now, SECOND), Rates::since_start(&now));
        assert_eq!(Rates::since_start(&now).reads, 5.0);
        let mut other = live();
        other.daemon.pid += 1;
        assert_eq!(
            Rates::between(&before, &other, SECOND),
            Rates::since_start(&other)
        );
        // Just started: no division by zero.
        now.daemon.uptime_s = 0.0;
        assert!(Rates::since_start(&now).reads.is_finite());
    }

    #[test]
    fn latencies_are_those_of_the_interval() {
        let bucket = |counts: [u64; 4]| LiveReport {
            latency_bounds_s: vec![0.001, 0.01, 0.1],
            operations: vec![OperationReport {
                operation: "write".to_owned(),
                latency_counts: counts.into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        // Before, all were slow; since then, 100 of which 99 took up to 10 ms.
        let rates = Rates::between(&bucket([0, 0, 0, 70]), &bucket([0, 99, 1, 70]), SECOND);
        let near = |found: Option<f64>, expected: f64| (found.unwrap() - expected).abs() < 1e-9;
        assert!(near(rates.latency_s(0.99), 0.01), "{rates:?}");
        assert!(near(rates.latency_s(1.0), 0.1), "{rates:?}");
        assert!(
            near(rates.latency_s(0.495), 0.0055),
            "half of the bucket: {rates:?}"
        );
        let slow = Rates::between(&bucket([0; 4]), &bucket([0, 0, 0, 5]), SECOND);
        assert!(near(slow.latency_s(0.5), 0.1), "the largest bound");
        let mut both = rates.clone();
        both.add(&slow);
        assert!(near(both.latency_s(1.0), 0.1) && near(both.latency_s(0.5), rates.latency_s(0.525).unwrap()));
    }

    #[test]
    fn counters_of_another_program_do_no_harm() {
        let (mut before, mut now) = (live(), live());
        before.operations[0].count = u64::MAX;
        now.daemon.uptime_s = f64::NAN;
        now.operations[0].latency_counts = vec![u64::MAX; 50];
        let rates = Rates::between(&before, &now, Duration::ZERO);
        assert_eq!(rates.reads, 0.0);
        assert!(rates.latency_s(0.99).is_some());
        assert!(Rates::since_start(&now).reads.is_finite());
    }
}
