//! Listening sockets: created safely, removed at the end.
//!
//! A Unix socket has mode 0600 from its first moment (the mode is set before the file appears). An existing file is
//! replaced only if it is a socket and no process has it.
//!
//! An address is reserved before the server can answer, and listened on when it can: until then clients are refused at once.

use std::fs;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use flaz_runtime::peer::peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::address::NbdAddress;
use crate::limits::{
    KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES_MAX, LISTEN_BACKLOG, SOCKET_LINGER_MAX,
    SOCKET_LINGER_POLL, SOCKET_LOCK_MAX,
};

/// Mode of Unix sockets: only the owner can connect.
pub const SOCKET_MODE: u32 = 0o600;

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another server listens there, or is about to.
    #[error("{0}: another server uses this socket: stop it, or use another path")]
    InUse(PathBuf),
    /// A file that is not a socket exists there.
    #[error("{0}: exists and is not a socket: use another path")]
    NotASocket(PathBuf),
    /// A system call failed.
    #[error("{address}: cannot listen: {what}: {source}")]
    System {
        /// The address.
        address: NbdAddress,
        /// The failed action.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// A listening socket. Removes its file when dropped, if the file is still its own.
#[derive(Debug)]
pub struct ListenSocket {
    fd: OwnedFd,
    address: NbdAddress,
    file: Option<SocketFile>,
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl ListenSocket {
    /// Binds an address, so that no other server can, and listens on it.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(address: &NbdAddress) -> Result<Self, ListenError> {
        let socket = Self::reserve(address)?;
        socket.listen()?;
        Ok(socket)
    }

    /// Binds an address: connections are refused until [`ListenSocket::listen`]. The caller has checked that TCP is allowed
    /// ([`NbdAddress::check_insecure`]). Another server that reserves the same TCP port before either listens fails when it
    /// listens.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn reserve(address: &NbdAddress) -> Result<Self, ListenError> {
        let failed = |what| move |source: io::Error| system_error(address, what, source);
        match address {
            NbdAddress::Unix(path) => {
                // Without the lock, two servers that start at the same moment would both find the same stale socket,
                // and one would remove the new socket of the other.
                let _lock = lock_directory(path);
                clear_the_way(path, address)?;
                let fd = bind_unix(path).map_err(|errno| failed("bind")(errno.into()))?;
                let found = fs::symlink_metadata(path).map_err(failed("stat"))?;
                let file = SocketFile {
                    path: path.clone(),
                    identity: (found.dev(), found.ino()),
                };
                Ok(Self {
                    fd,
                    address: address.clone(),
                    file: Some(file),
                })
            }
            NbdAddress::Tcp { host, port } => {
                let mut addresses = (host.as_str(), *port)
                    .to_socket_addrs()
                    .map_err(failed("resolve the host"))?;
                let first = addresses
                    .next()
                    .ok_or_else(|| failed("resolve the host")(io::Error::other("the name has no address")))?;
                let fd = bind_tcp(first).map_err(|errno| failed("bind")(errno.into()))?;
                keep_alive(&fd).map_err(|errno| failed("set up the socket")(errno.into()))?;
                Ok(Self {
                    fd,
                    address: address.clone(),
                    file: None,
                })
            }
        }
    }

    /// Lets clients connect.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(&self) -> Result<(), ListenError> {
        rustix::net::listen(&self.fd, LISTEN_BACKLOG)
            .map_err(|errno| system_error(&self.address, "listen", errno.into()))
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> &NbdAddress {
        &self.address
    }

    /// A second descriptor of the same socket.
    ///
    /// # Errors
    /// The system's error.
    pub fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for ListenSocket {
    fn drop(&mut self) {
        let Some(file) = &self.file else { return };
        // Another server may have created its own socket there.
        let own =
            fs::symlink_metadata(&file.path).is_ok_and(|found| (found.dev(), found.ino()) == file.identity);
        if own && let Err(error) = fs::remove_file(&file.path) {
            tracing::warn!(path = %file.path.display(), %error, "cannot remove the socket");
        }
    }
}

fn system_error(address: &NbdAddress, what: &'static str, source: io::Error) -> ListenError {
    ListenError::System {
        address: address.clone(),
        what,
        source,
    }
}

fn bind_tcp(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let fd = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Connections of an earlier server may still be closing.
    sockopt::set_socket_reuseaddr(&fd, true)?;
    rustix::net::bind(&fd, &address)?;
    Ok(fd)
}

fn bind_unix(path: &Path) -> Result<OwnedFd, Errno> {
    let fd = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Linux gives the file the mode of the socket (minus the umask), so others can never connect.
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(SOCKET_MODE))?;
    rustix::net::bind(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

/// Ends connections whose client machine or network disappeared without closing them; each would occupy one of the
/// connections for ever. Accepted sockets inherit the option.
fn keep_alive(listener: &OwnedFd) -> Result<(), Errno> {
    sockopt::set_socket_keepalive(listener, true)?;
    sockopt::set_tcp_keepidle(listener, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(listener, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(listener, KEEPALIVE_PROBES_MAX)
}

/// Locks the directory of `path` among servers that listen in it, until the descriptor is closed.
///
/// If the lock takes long or cannot be taken, the server starts without it: any process that may read a directory can
/// lock it, and it is rare that two servers meet one stale socket.
fn lock_directory(path: &Path) -> Option<OwnedFd> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(folder, flags, Mode::empty()).ok()?;
    let give_up = Instant::now() + SOCKET_LOCK_MAX;
    while rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
        && Instant::now() < give_up
    {
        thread::sleep(SOCKET_LINGER_POLL);
    }
    Some(fd)
}

/// Removes a socket file that no process has.
fn clear_the_way(path: &Path, address: &NbdAddress) -> Result<(), ListenError> {
    let failed = |what, source| system_error(address, what, source);
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("stat", error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ListenError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    let give_up = Instant::now() + SOCKET_LINGER_MAX;
    loop {
        match probe(path, SocketType::STREAM) {
            // A server that does not listen yet refuses as a file without a process does. For a datagram, only the file is
            // refused in this way.
            Err(Errno::CONNREFUSED) if probe(path, SocketType::DGRAM).err() != Some(Errno::PROTOTYPE) => {
                tracing::info!(path = %path.display(), "replacing a stale socket");
                return fs::remove_file(path).map_err(|error| failed("remove the stale socket", error));
            }
            // Checked on one connection, because a queue that is full of them no longer shows who listens.
            Ok(connection) if listener_is_dead(&connection) && hangs_up(&connection, give_up) => {}
            // A queue that stays full (AGAIN) for so long also means that a process listens.
            Err(Errno::AGAIN) if Instant::now() < give_up => thread::sleep(SOCKET_LINGER_POLL),
            Ok(_) | Err(Errno::AGAIN | Errno::CONNREFUSED) => {
                return Err(ListenError::InUse(path.to_owned()));
            }
            Err(errno) => return Err(failed("determine whether a server listens there", errno.into())),
        }
    }
}

/// Connects, without waiting.
fn probe(path: &Path, kind: SocketType) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

/// Whether the process that began to listen has ended, for example because it was just killed. One in a PID namespace that this
/// process does not see may be running.
fn listener_is_dead(connection: &OwnedFd) -> bool {
    peer(connection).is_ok_and(|peer| has_ended(peer.pid))
}

fn has_ended(pid: Option<u32>) -> bool {
    pid.is_some_and(|pid| !fs::exists(format!("/proc/{pid}")).unwrap_or(true))
}

/// Waits until the other end closes, and returns whether it did. It does not if another process inherited the socket of
/// an ended process, and answers.
fn hangs_up(connection: &OwnedFd, give_up: Instant) -> bool {
    loop {
        let left = give_up.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut waits = [PollFd::new(connection, PollFlags::IN)];
        match poll(&mut waits, Some(&left)) {
            Err(Errno::INTR) => {}
            polled => {
                let gone = PollFlags::HUP;
                return polled.is_ok() && waits[0].revents().contains(gone);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::{Barrier, Mutex, PoisonError};

    /// A child process holds a copy of every descriptor until it executes its program. A socket that another test has
    /// closed is still listening during that time.
    static STARTING: Mutex<()> = Mutex::new(());

    fn unix(dir: &tempfile::TempDir) -> (PathBuf, NbdAddress) {
        let path = dir.path().join("s");
        (path.clone(), NbdAddress::Unix(path))
    }

    #[test]
    fn one_of_many_servers_replaces_a_stale_socket() {
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let (path, address) = unix(&dir);
        let together = Barrier::new(4);
        for round in 0..200 {
            drop(UnixListener::bind(&path).unwrap());
            let all: Vec<_> = thread::scope(|scope| {
                // Half of them do not listen yet.
                let bind = |at: usize| {
                    together.wait();
                    match at % 2 {
                        0 => ListenSocket::bind(&address),
                        _ => ListenSocket::reserve(&address),
                    }
                };
                let binds: Vec<_> = (0..4).map(|at| scope.spawn(move || bind(at))).collect();
                binds.into_iter().map(|bind| bind.join().unwrap()).collect()
            });
            let found = fs::symlink_metadata(&path).unwrap();
            let sockets: Vec<_> = all.iter().flatten().collect();
            assert_eq!(sockets.len(), 1, "round {round}: {all:?}");
            let file = sockets[0].file.as_ref().unwrap();
            assert_eq!(
                file.identity,
                (found.dev(), found.ino()),
                "round {round}: it cannot be reached"
            );
        }
    }

    #[test]
    fn a_socket_is_private_and_removed_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let (path, address) = unix(&dir);
        let socket = ListenSocket::bind(&address).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let _nobody_starts = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let (path, address) = unix(&dir);
        let living = UnixListener::bind(&path).unwrap();
        assert!(matches!(ListenSocket::bind(&address), Err(ListenError::InUse(_))));
        drop(living);
        assert!(path.exists(), "std leaves the file");
        let socket = ListenSocket::bind(&address).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(socket);
    }

    /// A client of a server that is starting is refused at once, and the socket is not free for another server.
    #[test]
    fn a_reserved_address_refuses_clients_and_other_servers() {
        let dir = tempfile::tempdir().unwrap();
        let (path, address) = unix(&dir);
        let socket = ListenSocket::reserve(&address).unwrap();
        let refused = UnixStream::connect(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let second = ListenSocket::reserve(&address);
        assert!(matches!(second, Err(ListenError::InUse(_))), "{second:?}");
        socket.listen().unwrap();
        UnixStream::connect(&path).unwrap();

        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let socket = ListenSocket::reserve(&format!("tcp:{free}").parse().unwrap()).unwrap();
        let refused = std::net::TcpStream::connect(free).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        socket.listen().unwrap();
        std::net::TcpStream::connect(free).unwrap();
    }

    #[test]
    fn a_process_in_another_namespace_is_not_dead() {
        assert!(!has_ended(None));
        assert!(!has_ended(Some(std::process::id())));
        assert!(has_ended(Some(u32::MAX)), "no process has this number");
    }

    /// After a kill the kernel keeps listening until it has cleaned up the io_uring.
    #[test]
    fn the_socket_of_a_dead_server_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (path, address) = unix(&dir);
        let Some(lingering) = lingering(&path) else { return };
        let successor = thread::spawn(move || ListenSocket::bind(&address).map(drop));
        // The check ran and found a listener.
        let (found, _) = lingering.accept().unwrap();
        drop((lingering, found));
        successor.join().unwrap().unwrap();
    }

    /// More than a queue of connections holds.
    #[test]
    fn the_socket_of_a_dead_server_is_waited_for_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let (path, address) = unix(&dir);
        let Some(lingering) = lingering(&path) else { return };
        let successor = thread::spawn(move || ListenSocket::bind(&address).map(drop));
        thread::sleep(SOCKET_LINGER_POLL * 100);
        drop(lingering);
        successor.join().unwrap().unwrap();
        // Clients that retry again and again also fill the queue.
        let (path, address) = (dir.path().join("full"), NbdAddress::Unix(dir.path().join("full")));
        let Some(lingering) = self::lingering(&path) else {
            return;
        };
        let _clients: Vec<_> = std::iter::from_fn(|| probe(&path, SocketType::STREAM).ok()).collect();
        let successor = thread::spawn(move || ListenSocket::bind(&address).map(drop));
        thread::sleep(SOCKET_LINGER_POLL * 10);
        drop(lingering);
        successor.join().unwrap().unwrap();
    }

    /// Some programs listen, and let a child process accept.
    #[test]
    fn a_live_listener_on_an_inherited_socket_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (path, address) = unix(&dir);
        let Some(inherited) = lingering(&path) else { return };
        let successor = thread::spawn(move || ListenSocket::bind(&address).map(drop));
        let (mut client, _) = inherited.accept().unwrap();
        client.write_all(b"NBDMAGIC").unwrap();
        let outcome = successor.join().unwrap();
        assert!(matches!(outcome, Err(ListenError::InUse(_))), "{outcome:?}");
    }

    /// A socket at `path` on which an ended process listens: the listener is the process that called listen last.
    fn lingering(path: &Path) -> Option<UnixListener> {
        let flags = SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&fd, &SocketAddrUnix::new(path).unwrap()).unwrap();
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let listened = std::process::Command::new("perl")
            .args(["-e", "listen(STDIN, 5) or exit 1"])
            .stdin(fd.try_clone().unwrap())
            .status();
        if !listened.is_ok_and(|status| status.success()) {
            println!("skipped: perl is not installed");
            return None;
        }
        Some(UnixListener::from(fd))
    }

    #[test]
    fn a_vanished_client_is_detected() {
        // A port that was free a moment ago.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let socket = ListenSocket::bind(&format!("tcp:{free}").parse().unwrap()).unwrap();
        let listener = TcpListener::from(socket.try_clone_fd().unwrap());
        let _client = std::net::TcpStream::connect(free).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(sockopt::socket_keepalive(&accepted), Ok(true));
        let longest = sockopt::tcp_keepidle(&accepted).unwrap()
            + sockopt::tcp_keepintvl(&accepted).unwrap() * sockopt::tcp_keepcnt(&accepted).unwrap();
        assert_eq!(longest, std::time::Duration::from_secs(120));
    }

    #[test]
    fn a_file_in_the_way_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (path, address) = unix(&dir);
        fs::write(&path, "precious").unwrap();
        assert!(matches!(
            ListenSocket::bind(&address),
            Err(ListenError::NotASocket(_))
        ));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn the_socket_of_a_successor_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, address) = unix(&dir);
        let socket = ListenSocket::bind(&address).unwrap();
        // The new file must not reuse the inode number, so the first file is kept under another name.
        fs::rename(&path, dir.path().join("old")).unwrap();
        let _successor = UnixListener::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
    }
}
