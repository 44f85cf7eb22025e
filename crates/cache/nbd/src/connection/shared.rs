//! The state that the tasks of one connection share, and the limit on requests in flight.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use flaz_device::local::Notify;
use flaz_engine::volume::Volume;
use flaz_runtime::net::Stream;

use super::idle::IdleWorkers;
use super::job::{Job, Weight};
use super::outbox::Outbox;
use super::service::Service;
use crate::counters::Counters;
use crate::export::Export;
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::negotiation::Session;

/// What the tasks of one connection share.
pub(super) struct Connection<V> {
    pub(super) stream: Stream,
    pub(super) volume: V,
    pub(super) service: Service,
    pub(super) session: Session,
    /// Jobs that no worker has taken yet.
    pub(super) queue: RefCell<VecDeque<Job>>,
    pub(super) workers: IdleWorkers,
    pub(super) outbox: Outbox,
    pub(super) requests_in_flight: Cell<usize>,
    pub(super) bytes_in_flight: Cell<usize>,
    /// The receiver waits for something to leave.
    pub(super) room: Notify,
    pub(super) room_wanted: Cell<bool>,
    /// No more jobs will come.
    pub(super) closing: Cell<bool>,
}

impl<V: Volume> Connection<V> {
    pub(super) fn new(stream: Stream, volume: V, service: Service, session: Session) -> Self {
        Self {
            stream,
            volume,
            service,
            session,
            queue: RefCell::default(),
            workers: IdleWorkers::default(),
            outbox: Outbox::default(),
            requests_in_flight: Cell::new(0),
            bytes_in_flight: Cell::new(0),
            room: Notify::new(),
            room_wanted: Cell::new(false),
            closing: Cell::new(false),
        }
    }

    pub(super) fn export(&self) -> &Export {
        &self.service.export
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.service.counters
    }

    /// Waits until one more request of `bytes` bytes may be in flight, and counts it.
    pub(super) async fn admit(&self, bytes: usize) {
        let limits = &self.service.limits;
        let bytes_max = limits.bytes_in_flight_max.max(PAYLOAD_BYTES_MAX as usize);
        let requests_max = limits.requests_in_flight_max.max(1);
        let full = || {
            self.requests_in_flight.get() >= requests_max || self.bytes_in_flight.get() + bytes > bytes_max
        };
        if full() {
            Counters::add(&self.counters().requests_full, 1);
        }
        while full() {
            self.wait_for_room().await;
        }
        self.requests_in_flight.set(self.requests_in_flight.get() + 1);
        self.bytes_in_flight.set(self.bytes_in_flight.get() + bytes);
    }

    async fn wait_for_room(&self) {
        self.room_wanted.set(true);
        self.room.notified().await;
        self.room_wanted.set(false);
    }

    /// Notes that replies have left.
    pub(super) fn release(&self, weight: Weight) {
        self.requests_in_flight
            .set(self.requests_in_flight.get() - weight.requests);
        self.bytes_in_flight
            .set(self.bytes_in_flight.get() - weight.bytes);
        if self.room_wanted.get() {
            self.room.notify_one();
        }
    }

    /// Waits for all requests in flight, then ends workers and sender, and hangs up.
    pub(super) async fn finish(&self) {
        while self.requests_in_flight.get() > 0 {
            self.wait_for_room().await;
        }
        self.closing.set(true);
        self.workers.wake_all();
        self.outbox.wake();
        self.stream.shutdown();
    }
}
