//! One client: a receiver, a set of workers, a sender, all on one thread.
//!
//! ```text
//! socket -> receiver -> queue of jobs -> workers (volume) -> outbox -> sender -> socket
//! ```
//!
//! The receiver takes as much as there is into one buffer and turns it into jobs. Workers are tasks that
//! live as long as the connection; each takes the next job when it is free, so that a request costs no task
//! and no allocation of its own. Replies gather in the outbox while the sender is busy, and leave with one
//! system call.
//!
//! Invariants:
//! - a request is *in flight* from its header to the moment its reply was sent; requests and their bytes are
//!   limited, and the receiver waits at the limit. So a client that does not read its replies stops its own
//!   connection, holds no more than the limit, and disturbs nobody else;
//! - the bytes of one reply lie together in the outbox;
//! - a connection ends only when every request that reached the volume has come back: the volume's futures
//!   are never dropped.

mod handshake;
mod idle;
mod outbox;
mod payload;
mod receiver;
mod worker;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use flaz_device::local::Notify;
use flaz_device::{Env, IoBuf};
use flaz_engine::volume::Volume;
use flaz_runtime::net::Stream;

use crate::counters::Counters;
use crate::export::Export;
use crate::limits::{Limits, PAYLOAD_BYTES_MAX, RECEIVE_BUFFER_BYTES};
use crate::negotiation::{NegotiationError, Session};
use crate::request::BadMagic;
use crate::shutdown::{Registration, Shutdown};

use idle::IdleWorkers;
use outbox::Outbox;
use receiver::Receiver;
use worker::Job;

/// What connections have in common; cheap to clone, one a thread.
#[derive(Clone, Debug)]
pub struct Service {
    /// What is served.
    pub export: Arc<Export>,
    /// The maxima.
    pub limits: Limits,
    /// Where requests are counted: one a thread is best.
    pub counters: Arc<Counters>,
}

/// An accepted connection, on its way to the thread that serves it.
#[derive(Debug)]
pub struct Incoming {
    // Closed before the registration ends.
    fd: OwnedFd,
    registration: Registration,
}

impl Incoming {
    pub(crate) fn new(fd: OwnedFd, registration: Registration) -> Self {
        Self { fd, registration }
    }
}

/// Why a connection ended otherwise than by the client's wish.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("the handshake was not over after {0} s")]
    HandshakeTimeout(u64),
    #[error("handshake: {0}")]
    Negotiation(#[from] NegotiationError),
    #[error("{0}")]
    BadMagic(#[from] BadMagic),
    #[error("a write of {0} bytes; at most {PAYLOAD_BYTES_MAX} are taken")]
    OversizedWrite(u32),
    #[error("connection lost: {0}")]
    Socket(#[from] io::Error),
}

impl ConnectionError {
    fn is_misbehaviour(&self) -> bool {
        !matches!(self, Self::Socket(_))
    }
}

/// Serves one client until it leaves, breaks the rules, or the server stops. Needs the io_uring runtime of
/// this thread; `env` must be its handle.
pub async fn serve_connection<V: Volume, E: Env>(incoming: Incoming, volume: V, env: E, service: Service) {
    let Incoming { fd, registration } = incoming;
    let counters = Arc::clone(&service.counters);
    Counters::add(&counters.connections_total, 1);
    let end = match Stream::new(fd) {
        Ok(stream) => serve(stream, volume, env, service, registration.shutdown()).await,
        Err(error) => Err(error.into()),
    };
    match end {
        Ok(()) => tracing::debug!("connection ended"),
        Err(error) if error.is_misbehaviour() => {
            Counters::add(&counters.connections_failed, 1);
            tracing::warn!(%error, "connection closed");
        }
        Err(error) => tracing::debug!(%error, "connection closed"),
    }
    Counters::add(&counters.connections_ended, 1);
    drop(registration);
}

async fn serve<V: Volume, E: Env>(
    stream: Stream,
    volume: V,
    env: E,
    service: Service,
    shutdown: &Shutdown,
) -> Result<(), ConnectionError> {
    // Has an effect on TCP only.
    let _ = rustix::net::sockopt::set_tcp_nodelay(&stream, true);
    let mut receiver = Receiver::new(IoBuf::new(RECEIVE_BUFFER_BYTES));
    let Some(session) = handshake::run(&stream, &mut receiver, &env, &service).await? else {
        return Ok(());
    };
    let connection = Rc::new(Connection::new(stream, volume, service, session));
    let sending = Rc::clone(&connection);
    env.spawn(async move { sending.send().await });
    let end = receiver.run(&connection, &env, shutdown).await;
    connection.finish().await;
    end
}

/// What the tasks of one connection share.
struct Connection<V> {
    stream: Stream,
    volume: V,
    service: Service,
    session: Session,
    /// Jobs that no worker has taken yet.
    queue: RefCell<VecDeque<Job>>,
    workers: IdleWorkers,
    outbox: Outbox,
    requests_in_flight: Cell<usize>,
    bytes_in_flight: Cell<usize>,
    /// The receiver waits for something to leave.
    room: Notify,
    room_wanted: Cell<bool>,
    /// No more jobs will come.
    closing: Cell<bool>,
}

/// What a request counts for while it is in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    requests: usize,
    bytes: usize,
}

impl<V: Volume> Connection<V> {
    fn new(stream: Stream, volume: V, service: Service, session: Session) -> Self {
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

    fn export(&self) -> &Export {
        &self.service.export
    }

    fn counters(&self) -> &Counters {
        &self.service.counters
    }

    /// Waits until one more request of `bytes` bytes may be in flight, and counts it.
    async fn admit(&self, bytes: usize) {
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
    fn release(&self, weight: Weight) {
        self.requests_in_flight
            .set(self.requests_in_flight.get() - weight.requests);
        self.bytes_in_flight
            .set(self.bytes_in_flight.get() - weight.bytes);
        if self.room_wanted.get() {
            self.room.notify_one();
        }
    }

    /// Hands a job to a worker, a new one if none is free. [`Connection::admit`] limits their number.
    fn start<E: Env>(self: &Rc<Self>, env: &E, job: Job) {
        let mut queue = self.queue.borrow_mut();
        queue.push_back(job);
        let waiting = queue.len();
        drop(queue);
        if !self.workers.wake_for(waiting) {
            let connection = Rc::clone(self);
            let number = self.workers.hire();
            env.spawn(async move { connection.work(number).await });
        }
    }

    /// Waits for all requests in flight, then ends workers and sender, and hangs up.
    async fn finish(&self) {
        while self.requests_in_flight.get() > 0 {
            self.wait_for_room().await;
        }
        self.closing.set(true);
        self.workers.wake_all();
        self.outbox.wake();
        self.stream.shutdown();
    }
}
