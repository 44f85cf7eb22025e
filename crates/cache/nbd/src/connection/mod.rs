//! One client: a receiver, a set of workers, a sender, all on one thread.
//!
//! ```text
//! socket -> receiver -> queue of jobs -> workers (volume) -> outbox -> sender -> socket
//! ```
//!
//! The receiver reads all available bytes into one buffer and turns them into jobs. Workers are tasks that live as long
//! as the connection; each takes the next job when it is free, so that a request costs no task and no allocation of its
//! own. Replies collect in the outbox while the sender is busy, and one system call sends them.
//!
//! Invariants:
//! - a request is *in flight* from its header to the moment its reply was sent; requests and their bytes are limited,
//!   and the receiver waits at the limit. A client that does not read its replies stops only its own connection and
//!   holds no more than the limit;
//! - the bytes of one reply are contiguous in the outbox;
//! - a connection ends only when the volume has completed every request: the volume's futures are never dropped.

mod error;
mod handshake;
mod idle;
mod in_flight;
mod job;
mod job_queue;
mod outbox;
mod payload;
mod receiver;
mod sender;
mod service;
mod shared;
mod worker;

use std::io;
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
use crate::limits::{CONNECTIONS_MAX, RECEIVE_BUFFER_BYTES};
use crate::negotiation::Session;
use crate::shutdown::{Registration, Shutdown};

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// It begins with a handshake. When the server stops, requests that it has not read are refused.
    Negotiates,
    /// The kernel's block device: no handshake, simple replies. It sends requests that were not answered to the next server,
    /// so none is refused because the server stops.
    Kernel,
}

/// An accepted connection that has not reached its thread yet.
#[derive(Debug)]
pub struct Incoming {
    // Dropped before the registration, so that the socket is closed first.
    fd: OwnedFd,
    registration: Registration,
    client: Client,
}

impl Incoming {
    pub(crate) fn new(fd: OwnedFd, registration: Registration) -> Self {
        Self {
            fd,
            registration,
            client: Client::Negotiates,
        }
    }

    /// A connection that no server has accepted: one end of a pair of sockets. `None` if the server is stopping.
    ///
    /// # Errors
    /// The socket cannot be duplicated.
    pub fn of_pair(fd: OwnedFd, shutdown: &Shutdown) -> io::Result<Option<Self>> {
        Self::registered(fd, shutdown, Client::Negotiates)
    }

    /// A connection to the kernel's client, to which no handshake is due. `None` if the server is stopping.
    ///
    /// # Errors
    /// The socket cannot be duplicated.
    pub fn of_kernel(fd: OwnedFd, shutdown: &Shutdown) -> io::Result<Option<Self>> {
        Self::registered(fd, shutdown, Client::Kernel)
    }

    fn registered(fd: OwnedFd, shutdown: &Shutdown, client: Client) -> io::Result<Option<Self>> {
        let registered = shutdown.register_connection(fd.try_clone()?, CONNECTIONS_MAX);
        Ok(registered.ok().map(|registration| Self {
            fd,
            registration,
            client,
        }))
    }
}

/// Serves one client until it leaves, violates the protocol, or the server stops. Requires the io_uring runtime of this
/// thread; `env` must be its handle.
pub async fn serve_connection<V: Volume, E: Env>(incoming: Incoming, volume: V, env: E, service: Service) {
    let Incoming {
        fd,
        registration,
        client,
    } = incoming;
    let counters = Arc::clone(&service.counters);
    Counters::add(&counters.connections_total, 1);
    let end = match Stream::new(fd) {
        Ok(stream) => serve(stream, client, volume, env, service, &registration).await,
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
    client: Client,
    volume: V,
    env: E,
    service: Service,
    registration: &Registration,
) -> Result<(), ConnectionError> {
    // Only has an effect on TCP.
    let _ = rustix::net::sockopt::set_tcp_nodelay(&stream, true);
    let mut receiver = Receiver::new(IoBuf::new(RECEIVE_BUFFER_BYTES));
    let negotiated = match client {
        Client::Negotiates => handshake::run(&stream, &mut receiver, &env, &service, registration).await?,
        Client::Kernel => Some(Session::default()),
    };
    let Some(session) = negotiated else {
        return Ok(());
    };
    let connection = Rc::new(Connection::new(stream, volume, service, session, client));
    let sending = Rc::clone(&connection);
    env.spawn(async move { sending.send().await });
    let end = receiver.run(&connection, &env, registration.shutdown()).await;
    connection.finish().await;
    end
}
