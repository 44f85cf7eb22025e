//! Stops a server from any thread, including idle clients.
//!
//! A connection that waits for its client cannot check a flag. Stopping therefore shuts down the receiving side of
//! every socket, which ends the wait in the kernel on any thread. This costs nothing while the server runs.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flaz_runtime::peer::peer;
use rustix::net::{AddressFamily, sockopt};

/// Stops a server. Clones stop the same server.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    stopping: AtomicBool,
    sockets: Mutex<Sockets>,
}

#[derive(Debug, Default)]
struct Sockets {
    next: u64,
    listeners: HashMap<u64, OwnedFd>,
    connections: HashMap<u64, OwnedFd>,
    /// Bytes of the export that clients were told, at least. Only of connections with a handshake.
    told_bytes: HashMap<u64, u64>,
}

impl Shutdown {
    /// A handle for a running server.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a clean stop: no new connections and no new requests. Requests in flight are completed and answered;
    /// requests that the server has not read yet get ESHUTDOWN.
    pub fn stop(&self) {
        let sockets = self.lock();
        // Under the lock, so that no socket is registered in between and misses the stop.
        self.inner.stopping.store(true, Ordering::Release);
        for fd in sockets.listeners.values() {
            hang_up(fd, rustix::net::Shutdown::Both);
        }
        for fd in sockets.connections.values() {
            hang_up(fd, rustix::net::Shutdown::Read);
        }
    }

    /// Ends all connections now, for clients that have not read their replies for a while.
    pub fn cut(&self) {
        self.stop();
        for fd in self.lock().connections.values() {
            hang_up(fd, rustix::net::Shutdown::Both);
        }
    }

    /// Whether the stop has begun.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.inner.stopping.load(Ordering::Acquire)
    }

    /// Connections that have not ended yet.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.lock().connections.len()
    }

    /// Connections whose clients were told a smaller size of the export than `bytes`.
    #[must_use]
    pub fn connections_smaller(&self, bytes: u64) -> usize {
        let sockets = self.lock();
        sockets.told_bytes.values().filter(|told| **told < bytes).count()
    }

    /// The clients that are connected, for the user.
    #[must_use]
    pub fn clients(&self) -> Vec<String> {
        let mut clients: Vec<String> = self.lock().connections.values().map(client).collect();
        clients.sort_unstable();
        clients
    }

    /// Registers a listening socket; `None` if the server is stopping.
    pub(crate) fn register_listener(&self, fd: OwnedFd) -> Option<Registration> {
        self.register(fd, usize::MAX, |sockets| &mut sockets.listeners)
            .ok()
    }

    /// Registers a connection, if there are fewer than `connections_max` and the server runs.
    pub(crate) fn register_connection(
        &self,
        fd: OwnedFd,
        connections_max: usize,
    ) -> Result<Registration, Unregistered> {
        self.register(fd, connections_max, |sockets| &mut sockets.connections)
    }

    fn register(
        &self,
        fd: OwnedFd,
        max: usize,
        of: fn(&mut Sockets) -> &mut HashMap<u64, OwnedFd>,
    ) -> Result<Registration, Unregistered> {
        let mut sockets = self.lock();
        if self.is_stopping() {
            return Err(Unregistered::Stopping);
        }
        if of(&mut sockets).len() >= max {
            return Err(Unregistered::TooMany);
        }
        let key = sockets.next;
        sockets.next += 1;
        let former = of(&mut sockets).insert(key, fd);
        assert!(former.is_none(), "key {key} was given twice");
        Ok(Registration {
            shutdown: self.clone(),
            key,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Sockets> {
        // The maps are consistent after every statement, so a panic elsewhere does no harm.
        self.inner.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a socket was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unregistered {
    Stopping,
    TooMany,
}

/// Keeps a socket in the list. Dropping this, after the socket was closed, removes it.
#[derive(Debug)]
pub(crate) struct Registration {
    shutdown: Shutdown,
    key: u64,
}

impl Registration {
    pub(crate) fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Records that the client is told at least this size of the export from now on.
    pub(crate) fn tells(&self, bytes: u64) {
        self.shutdown.lock().told_bytes.insert(self.key, bytes);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut sockets = self.shutdown.lock();
        sockets.told_bytes.remove(&self.key);
        let fd = sockets
            .connections
            .remove(&self.key)
            .or_else(|| sockets.listeners.remove(&self.key));
        drop(sockets);
        assert!(
            fd.is_some(),
            "socket {} was removed before its registration",
            self.key
        );
    }
}

/// The other end of a connection: its process on this machine, or its address.
fn client(fd: &OwnedFd) -> String {
    // Only a Unix socket knows the process.
    if sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && let Ok(peer) = peer(fd)
    {
        return name_of(peer.pid);
    }
    match rustix::net::getpeername(fd)
        .ok()
        .flatten()
        .map(SocketAddr::try_from)
    {
        Some(Ok(address)) => address.to_string(),
        _ => "a client without an address".to_owned(),
    }
}

/// A process of this machine, for the user.
fn name_of(pid: Option<u32>) -> String {
    let Some(pid) = pid else {
        return "an unknown process (in another PID namespace)".to_owned();
    };
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim_end()),
        // nbd-client gives its connection to the kernel and ends.
        Err(_) => format!("process {pid} (which has ended)"),
    }
}

fn hang_up(fd: &OwnedFd, how: rustix::net::Shutdown) {
    // Fails only if the peer has already gone.
    let _ = rustix::net::shutdown(fd.as_fd(), how);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    #[test]
    fn stopping_ends_a_wait_for_the_client() {
        let shutdown = Shutdown::new();
        let (mut server, _client) = UnixStream::pair().unwrap();
        let held = shutdown
            .register_connection(server.try_clone().unwrap().into(), 1)
            .unwrap();
        let (extra, _) = UnixStream::pair().unwrap();
        assert_eq!(
            shutdown.register_connection(extra.into(), 1).err(),
            Some(Unregistered::TooMany)
        );
        let waiting = std::thread::spawn(move || server.read(&mut [0; 1]).unwrap());
        shutdown.stop();
        assert_eq!(waiting.join().unwrap(), 0);
        let (extra, _) = UnixStream::pair().unwrap();
        assert_eq!(
            shutdown.register_connection(extra.into(), 9).err(),
            Some(Unregistered::Stopping)
        );
        assert_eq!(shutdown.connections(), 1);
        drop(held);
        assert_eq!(shutdown.connections(), 0);
    }

    #[test]
    fn listeners_are_no_connections_and_make_room_for_none() {
        let shutdown = Shutdown::new();
        let pairs = [(); 3].map(|()| UnixStream::pair().unwrap());
        let fd = |at: usize| pairs[at].0.try_clone().unwrap().into();
        let listener = shutdown.register_listener(fd(0)).unwrap();
        let first = shutdown.register_connection(fd(1), 1).unwrap();
        drop(listener);
        assert_eq!(shutdown.connections(), 1);
        assert!(shutdown.register_connection(fd(2), 1).is_err());
        drop(first);
        let _second = shutdown.register_connection(fd(2), 1).unwrap();
        assert_eq!(shutdown.connections(), 1);
    }

    #[test]
    fn a_connection_has_the_size_that_it_was_told() {
        let shutdown = Shutdown::new();
        let pairs = [(); 2].map(|()| UnixStream::pair().unwrap());
        let register = |at: usize| shutdown.register_connection(pairs[at].0.try_clone().unwrap().into(), 9);
        let (old, new) = (register(0).unwrap(), register(1).unwrap());
        assert_eq!(shutdown.connections_smaller(20), 0, "neither was told anything");
        old.tells(10);
        new.tells(10);
        assert_eq!(shutdown.connections_smaller(10), 0);
        assert_eq!(shutdown.connections_smaller(20), 2);
        new.tells(20);
        assert_eq!(shutdown.connections_smaller(20), 1);
        drop(old);
        assert_eq!(shutdown.connections_smaller(20), 0);
    }

    #[test]
    fn clients_are_named_by_process_or_address() {
        let shutdown = Shutdown::new();
        assert!(shutdown.clients().is_empty());
        let (local, _client) = UnixStream::pair().unwrap();
        let held = shutdown.register_connection(local.into(), 2).unwrap();
        let process = format!("process {} (", std::process::id());
        let clients = shutdown.clients();
        assert!(
            clients.len() == 1 && clients[0].starts_with(&process),
            "{clients:?}"
        );
        drop(held);
        assert!(name_of(None).starts_with("an unknown process"));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (remote, _) = listener.accept().unwrap();
        let _held = shutdown.register_connection(remote.into(), 2).unwrap();
        assert_eq!(shutdown.clients(), [client.local_addr().unwrap().to_string()]);
    }

    #[test]
    fn a_cut_ends_the_sending_side_too() {
        let shutdown = Shutdown::new();
        let (server, mut client) = UnixStream::pair().unwrap();
        let _held = shutdown
            .register_connection(server.try_clone().unwrap().into(), 1)
            .unwrap();
        shutdown.cut();
        assert!(shutdown.is_stopping());
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
        assert!((&server).write_all(b"late").is_err());
    }
}
