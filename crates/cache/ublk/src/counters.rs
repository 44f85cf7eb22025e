//! Counts of the requests of a queue, for reports.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::protocol::Op;

/// The kinds of requests that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A discard.
    Discard,
    /// A write of zeroes.
    WriteZeroes,
}

impl Kind {
    /// The kind of an operation; `None` if the driver does not send it.
    pub(crate) fn of(op: Op) -> Option<Self> {
        match op {
            Op::Read => Some(Self::Read),
            Op::Write { .. } => Some(Self::Write),
            Op::Flush => Some(Self::Flush),
            Op::Discard => Some(Self::Discard),
            Op::WriteZeroes { .. } => Some(Self::WriteZeroes),
            Op::Other(_) => None,
        }
    }
}

/// The counts of one queue. Its thread adds, others read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Requests of each kind.
    begun: [AtomicU64; 5],
    /// Those that failed.
    failed: [AtomicU64; 5],
    /// Requests that have ended.
    ended: AtomicU64,
    peak: AtomicU64,
}

/// The counts at one moment. Each is exact; together they may be from slightly different moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    begun: [u64; 5],
    failed: [u64; 5],
    /// Requests that have ended.
    pub ended: u64,
    /// The most requests that were served at a time.
    pub peak: u64,
}

impl Counts {
    /// Requests of a kind, those in progress included.
    #[must_use]
    pub fn requests(&self, kind: Kind) -> u64 {
        self.begun[kind as usize]
    }

    /// Requests of a kind that failed.
    #[must_use]
    pub fn failed(&self, kind: Kind) -> u64 {
        self.failed[kind as usize]
    }
}

fn values(counters: &[AtomicU64; 5]) -> [u64; 5] {
    counters.each_ref().map(|counter| counter.load(Ordering::Relaxed))
}

impl Counters {
    /// The counts now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            begun: values(&self.begun),
            failed: values(&self.failed),
            ended: self.ended.load(Ordering::Relaxed),
            peak: self.peak.load(Ordering::Relaxed),
        }
    }

    /// A request has arrived.
    pub(crate) fn begin(&self, op: Op) {
        let Some(kind) = Kind::of(op) else { return };
        self.begun[kind as usize].fetch_add(1, Ordering::Relaxed);
        let begun: u64 = values(&self.begun).iter().sum();
        let now = begun.saturating_sub(self.ended.load(Ordering::Relaxed));
        if now > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// A request has ended.
    pub(crate) fn end(&self, op: Op, failed: bool) {
        let Some(kind) = Kind::of(op) else { return };
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.failed[kind as usize].fetch_add(u64::from(failed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_kind() {
        let counters = Counters::default();
        let write = Op::Write { fua: true };
        for op in [Op::Read, write, Op::Read, Op::Other(9)] {
            counters.begin(op);
        }
        counters.end(Op::Read, false);
        counters.end(write, true);
        counters.end(Op::Other(9), true);
        counters.begin(Op::Flush);
        let counts = counters.counts();
        assert_eq!(
            (counts.requests(Kind::Read), counts.requests(Kind::Write)),
            (2, 1)
        );
        assert_eq!(
            (counts.requests(Kind::Flush), counts.requests(Kind::Discard)),
            (1, 0)
        );
        assert_eq!((counts.failed(Kind::Read), counts.failed(Kind::Write)), (0, 1));
        assert_eq!((counts.ended, counts.peak), (2, 3));
    }
}
