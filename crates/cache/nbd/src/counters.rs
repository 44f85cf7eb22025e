//! Counters of the server for the status report.
//!
//! A host keeps one [`Counters`] per thread, so that threads do not share cache lines, and adds up their [`Snapshot`]s.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::request::Command;

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident),+; $($(#[$peak_doc:meta])+ $peak:ident,)+) => {
        /// Counters of the connections of one thread.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters {
            $($(#[$doc])+ pub(crate) $name: AtomicU64,)+
            $($(#[$peak_doc])+ pub(crate) $peak: AtomicU64,)+
        }

        /// Values of the counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Snapshot {
            $($(#[$doc])+ pub $name: u64,)+
            $($(#[$peak_doc])+ pub $peak: u64,)+
        }

        impl Counters {
            /// The current values. Each is exact; together they may be from slightly different moments.
            #[must_use]
            pub fn snapshot(&self) -> Snapshot {
                Snapshot {
                    $($name: self.$name.load(Ordering::Relaxed),)+
                    $($peak: self.$peak.load(Ordering::Relaxed),)+
                }
            }
        }

        impl AddAssign for Snapshot {
            fn add_assign(&mut self, other: Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)+
                $(self.$peak = self.$peak.max(other.$peak);)+
            }
        }
    };
}

counters! {
    /// Connections accepted by this thread.
    connections_total,
    /// Connections that have ended.
    connections_ended,
    /// Connections that ended because the client violated the protocol or was too slow in the handshake.
    connections_failed,
    /// READ requests.
    reads,
    /// WRITE requests.
    writes,
    /// FLUSH requests.
    flushes,
    /// TRIM requests.
    trims,
    /// CACHE requests.
    prefetches,
    /// WRITE_ZEROES requests.
    write_zeroes,
    /// BLOCK_STATUS requests.
    block_statuses,
    /// Requests that were refused before they reached the volume.
    refused,
    /// Requests that failed in the volume.
    errors,
    /// READ requests among them.
    read_errors,
    /// WRITE requests among them.
    write_errors,
    /// FLUSH requests among them.
    flush_errors,
    /// TRIM requests among them.
    trim_errors,
    /// CACHE requests among them.
    prefetch_errors,
    /// WRITE_ZEROES requests among them.
    write_zeroes_errors,
    /// Requests that were answered, with success or error.
    answered,
    /// Bytes received.
    bytes_in,
    /// Bytes sent.
    bytes_out,
    /// System calls that sent replies: `answered / sends` is the number of replies per call.
    sends,
    /// How often a connection reached its limit of requests or bytes in flight, so that no more was read from it.
    requests_full;
    /// Maximum number of requests in flight on the connections of one thread.
    requests_in_flight_peak,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, command: Command) {
        let counter = match command {
            Command::Read => &self.reads,
            Command::Write { .. } => &self.writes,
            Command::Flush => &self.flushes,
            Command::Trim { .. } => &self.trims,
            Command::Cache => &self.prefetches,
            Command::WriteZeroes { .. } => &self.write_zeroes,
            Command::BlockStatus { .. } => &self.block_statuses,
            Command::Disconnect => return,
        };
        Self::add(counter, 1);
        self.note_requests();
    }

    /// Counts a request that failed in the volume.
    pub(crate) fn count_failed(&self, command: Command) {
        Self::add(&self.errors, 1);
        let counter = match command {
            Command::Read => &self.read_errors,
            Command::Write { .. } => &self.write_errors,
            Command::Flush => &self.flush_errors,
            Command::Trim { .. } => &self.trim_errors,
            Command::Cache => &self.prefetch_errors,
            Command::WriteZeroes { .. } => &self.write_zeroes_errors,
            Command::BlockStatus { .. } | Command::Disconnect => return,
        };
        Self::add(counter, 1);
    }

    pub(crate) fn count_refused(&self) {
        Self::add(&self.refused, 1);
        self.note_requests();
    }

    /// Updates the peak. Plain loads of the thread's own cache lines cost less than another counter.
    fn note_requests(&self) {
        let now = self.snapshot().requests_in_flight();
        if now > self.requests_in_flight_peak.load(Ordering::Relaxed) {
            self.requests_in_flight_peak.fetch_max(now, Ordering::Relaxed);
        }
    }
}

impl Snapshot {
    /// Open connections.
    #[must_use]
    pub fn connections_now(&self) -> u64 {
        self.connections_total.saturating_sub(self.connections_ended)
    }

    /// Requests, including refused ones.
    #[must_use]
    pub fn requests_total(&self) -> u64 {
        self.reads
            + self.writes
            + self.flushes
            + self.trims
            + self.prefetches
            + self.write_zeroes
            + self.block_statuses
            + self.refused
    }

    /// Requests that have not been answered yet.
    #[must_use]
    pub fn requests_in_flight(&self) -> u64 {
        self.requests_total().saturating_sub(self.answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_that_of_the_fullest_thread() {
        let (one, other) = (Counters::default(), Counters::default());
        for _ in 0..5 {
            one.count(Command::Read);
        }
        one.count_refused();
        Counters::add(&one.answered, 6);
        one.count(Command::Flush);
        other.count(Command::Read);
        other.count(Command::Read);
        let mut sum = one.snapshot();
        assert_eq!((sum.requests_in_flight(), sum.requests_in_flight_peak), (1, 6));
        sum += other.snapshot();
        assert_eq!((sum.requests_in_flight(), sum.requests_in_flight_peak), (3, 6));
    }

    #[test]
    fn snapshots_add_up() {
        let counters = Counters::default();
        counters.count(Command::Read);
        counters.count(Command::Write { fua: true });
        counters.count(Command::Disconnect);
        Counters::add(&counters.answered, 1);
        Counters::add(&counters.connections_total, 3);
        Counters::add(&counters.connections_ended, 1);
        let mut sum = counters.snapshot();
        assert_eq!((sum.reads, sum.writes, sum.requests_total()), (1, 1, 2));
        sum += counters.snapshot();
        assert_eq!(
            (
                sum.requests_total(),
                sum.requests_in_flight(),
                sum.connections_now()
            ),
            (4, 2, 4)
        );
    }
}
