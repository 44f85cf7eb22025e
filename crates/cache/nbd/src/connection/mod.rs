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

mod error;
mod handshake;
mod idle;
mod in_flight;
mod job;
mod outbox;
mod payload;
mod receiver;
mod sender;
mod service;
mod shared;
mod worker;

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use flaz_device::{Env, IoBuf};
use flaz_engine::volume::Volume;
use flaz_runtime::net::Stream;

pub(crate) use self::error::ConnectionError;
pub use self::service::Service;

use self::receiver::Receiver;
use self::shared::Connection;
use crate::counters::Counters;
use crate::limits::RECEIVE_BUFFER_BYTES;
use crate::shutdown::{Registration, Shutdown};

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
