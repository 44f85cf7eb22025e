//! Accepts connections and passes them to the threads that serve them.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flaz_device::Env;
use flaz_runtime::net::Listener;

use crate::address::NbdAddress;
use crate::connection::Incoming;
use crate::limits::{ACCEPT_RETRY_PAUSE, Limits};
use crate::shutdown::{Shutdown, Unregistered};
use crate::socket::{ListenError, ListenSocket};

/// Accepts connections on one address.
#[derive(Debug)]
pub struct Server {
    socket: ListenSocket,
    limits: Limits,
    shutdown: Shutdown,
    refused: Arc<AtomicU64>,
}

impl Server {
    /// Listens. Clients can connect from now on; they are answered when [`Server::run`] runs.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(address: &NbdAddress, limits: Limits, shutdown: Shutdown) -> Result<Self, ListenError> {
        let server = Self::reserve(address, limits, shutdown)?;
        server.listen()?;
        Ok(server)
    }

    /// Reserves the address. Clients are refused until [`Server::listen`].
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn reserve(address: &NbdAddress, limits: Limits, shutdown: Shutdown) -> Result<Self, ListenError> {
        Ok(Self {
            socket: ListenSocket::reserve(address)?,
            limits,
            shutdown,
            refused: Arc::default(),
        })
    }

    /// Lets clients connect to a reserved address.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(&self) -> Result<(), ListenError> {
        self.socket.listen()
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> &NbdAddress {
        self.socket.address()
    }

    /// Number of connections that were closed at once because the maximum was reached.
    #[must_use]
    pub fn refused(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.refused)
    }

    /// Accepts connections and passes each to `hand_over`, until the server is stopped. Then removes the socket.
    /// Requires the io_uring runtime of this thread; a passed connection may go to another thread.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub async fn run<E: Env>(self, env: &E, mut hand_over: impl FnMut(Incoming)) -> io::Result<()> {
        let fd = self.socket.try_clone_fd()?;
        let listener = match self.socket.address() {
            NbdAddress::Unix(_) => Listener::from_unix(UnixListener::from(fd))?,
            NbdAddress::Tcp { .. } => Listener::from_tcp(TcpListener::from(fd))?,
        };
        let Some(_registration) = self.shutdown.register_listener(self.socket.try_clone_fd()?) else {
            return Ok(());
        };
        while !self.shutdown.is_stopping() {
            match listener.accept().await {
                Ok(fd) => {
                    if let Some(incoming) = self.admit(fd) {
                        hand_over(incoming);
                    }
                }
                Err(_) if self.shutdown.is_stopping() => break,
                Err(error) => {
                    // Usually too many open files; sometimes the client has already gone.
                    tracing::warn!(%error, address = %self.address(), "cannot accept a connection");
                    env.sleep(ACCEPT_RETRY_PAUSE).await;
                }
            }
        }
        Ok(())
    }

    fn admit(&self, fd: std::os::fd::OwnedFd) -> Option<Incoming> {
        let registered = match fd.try_clone() {
            Ok(second) => self
                .shutdown
                .register_connection(second, self.limits.connections_max),
            Err(error) => {
                tracing::warn!(%error, "cannot register a connection");
                return None;
            }
        };
        match registered {
            Ok(registration) => Some(Incoming::new(fd, registration)),
            Err(Unregistered::Stopping) => None,
            Err(Unregistered::TooMany) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    limit = self.limits.connections_max,
                    "too many connections: one was closed"
                );
                None
            }
        }
    }
}
