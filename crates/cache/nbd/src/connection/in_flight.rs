//! The limit on what one connection has in flight.
//!
//! Invariants:
//! - a request counts from [`InFlight::admit`] to the [`InFlight::release`] of its reply;
//! - neither requests nor bytes exceed their maximum;
//! - one task waits at a time: the receiver.

use std::cell::Cell;

use flaz_device::local::Notify;

use super::job::Weight;
use crate::limits::{Limits, PAYLOAD_BYTES_MAX};

/// Requests between their header and the sending of their reply, and the bytes that they hold.
#[derive(Debug)]
pub(super) struct InFlight {
    requests_max: usize,
    bytes_max: usize,
    now: Cell<Weight>,
    released: Notify,
    /// The receiver waits for a release.
    awaited: Cell<bool>,
}

impl InFlight {
    /// Nothing in flight. A limit too small for any request counts as one request, or as one payload.
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            requests_max: limits.requests_in_flight_max.max(1),
            bytes_max: limits.bytes_in_flight_max.max(PAYLOAD_BYTES_MAX as usize),
            now: Cell::default(),
            released: Notify::new(),
            awaited: Cell::new(false),
        }
    }

    /// Whether a request of `bytes` bytes must wait.
    pub(super) fn is_full_for(&self, bytes: usize) -> bool {
        let now = self.now.get();
        now.requests >= self.requests_max || now.bytes + bytes > self.bytes_max
    }

    /// Waits until one more request of `bytes` bytes may be in flight, and counts it.
    pub(super) async fn admit(&self, bytes: usize) {
        assert!(bytes <= self.bytes_max, "a request of {bytes} bytes never fits");
        while self.is_full_for(bytes) {
            self.wait_for_release().await;
        }
        let now = self.now.get();
        self.now.set(Weight {
            requests: now.requests + 1,
            bytes: now.bytes + bytes,
        });
    }

    /// Stops counting requests whose replies were sent.
    pub(super) fn release(&self, weight: Weight) {
        let now = self.now.get();
        assert!(
            weight.requests <= now.requests && weight.bytes <= now.bytes,
            "replies of {weight:?} were sent with {now:?} in flight"
        );
        let left = Weight {
            requests: now.requests - weight.requests,
            bytes: now.bytes - weight.bytes,
        };
        assert!(left.requests > 0 || left.bytes == 0, "{left:?} without a request");
        self.now.set(left);
        if self.awaited.get() {
            self.released.notify_one();
        }
    }

    /// Waits until nothing is in flight.
    pub(super) async fn drained(&self) {
        while self.now.get().requests > 0 {
            self.wait_for_release().await;
        }
    }

    async fn wait_for_release(&self) {
        assert!(!self.awaited.replace(true), "two tasks wait for a release");
        self.released.notified().await;
        self.awaited.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use futures_util::FutureExt;

    const PAYLOAD: usize = PAYLOAD_BYTES_MAX as usize;

    fn limited(requests_max: usize, bytes_max: usize) -> InFlight {
        InFlight::new(&Limits {
            requests_in_flight_max: requests_max,
            bytes_in_flight_max: bytes_max,
            ..Limits::default()
        })
    }

    fn weight(requests: usize, bytes: usize) -> Weight {
        Weight { requests, bytes }
    }

    #[test]
    fn a_request_over_the_limit_waits_for_a_release() {
        for (in_flight, bytes) in [(limited(2, usize::MAX), 1), (limited(9, 2 * PAYLOAD), PAYLOAD)] {
            assert!(in_flight.admit(bytes).now_or_never().is_some());
            assert!(in_flight.admit(bytes).now_or_never().is_some());
            assert!(in_flight.is_full_for(bytes));
            let mut context = Context::from_waker(Waker::noop());
            let mut third = pin!(in_flight.admit(bytes));
            assert!(third.as_mut().poll(&mut context).is_pending());
            in_flight.release(weight(1, bytes));
            assert!(third.as_mut().poll(&mut context).is_ready());
            assert!(in_flight.is_full_for(bytes));
        }
    }

    #[test]
    fn one_request_always_fits() {
        let in_flight = limited(0, 0);
        assert!(in_flight.admit(PAYLOAD).now_or_never().is_some());
        assert!(in_flight.is_full_for(0));
    }

    #[test]
    fn drained_means_that_every_reply_was_sent() {
        let in_flight = limited(9, PAYLOAD);
        assert!(in_flight.drained().now_or_never().is_some());
        for bytes in [0, 4096, 0] {
            in_flight.admit(bytes).now_or_never().unwrap();
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut drained = pin!(in_flight.drained());
        for sent in [weight(1, 0), weight(1, 4096)] {
            assert!(drained.as_mut().poll(&mut context).is_pending());
            in_flight.release(sent);
        }
        assert!(drained.as_mut().poll(&mut context).is_pending());
        in_flight.release(weight(1, 0));
        assert!(drained.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    #[should_panic(expected = "were sent with")]
    fn more_replies_than_requests_are_refused() {
        let in_flight = limited(9, PAYLOAD);
        in_flight.admit(4096).now_or_never().unwrap();
        in_flight.release(weight(1, 8192));
    }

    #[test]
    #[should_panic(expected = "without a request")]
    fn bytes_without_a_request_are_refused() {
        let in_flight = limited(9, PAYLOAD);
        in_flight.admit(4096).now_or_never().unwrap();
        in_flight.release(weight(1, 0));
    }
}
