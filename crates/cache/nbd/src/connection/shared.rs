//! The state that the tasks of one connection share.

use flaz_engine::volume::Volume;
use flaz_runtime::net::Stream;

use super::Client;
use super::in_flight::InFlight;
use super::job_queue::JobQueue;
use super::outbox::Outbox;
use super::service::Service;
use crate::counters::Counters;
use crate::export::Export;
use crate::negotiation::Session;

/// State shared by the tasks of one connection.
pub(super) struct Connection<V> {
    pub(super) stream: Stream,
    pub(super) volume: V,
    service: Service,
    pub(super) session: Session,
    client: Client,
    pub(super) jobs: JobQueue,
    pub(super) outbox: Outbox,
    pub(super) in_flight: InFlight,
}

impl<V: Volume> Connection<V> {
    pub(super) fn new(stream: Stream, volume: V, service: Service, session: Session, client: Client) -> Self {
        Self {
            stream,
            volume,
            in_flight: InFlight::new(&service.limits),
            service,
            session,
            client,
            jobs: JobQueue::default(),
            outbox: Outbox::default(),
        }
    }

    /// Whether the client sends requests that were not answered again, to the next server.
    pub(super) fn is_resent(&self) -> bool {
        self.client == Client::Kernel
    }

    pub(super) fn export(&self) -> &Export {
        &self.service.export
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.service.counters
    }

    /// Waits until one more request of `bytes` bytes may be in flight, and counts it.
    pub(super) async fn admit(&self, bytes: usize) {
        if self.in_flight.is_full_for(bytes) {
            Counters::add(&self.counters().requests_full, 1);
        }
        self.in_flight.admit(bytes).await;
    }

    /// Waits for all requests in flight, then ends workers and sender, and closes the connection.
    pub(super) async fn finish(&self) {
        self.in_flight.drained().await;
        assert!(
            self.jobs.is_empty() && self.outbox.is_empty(),
            "a connection ends with requests left"
        );
        self.jobs.close();
        self.outbox.close();
        self.stream.shutdown();
    }
}
