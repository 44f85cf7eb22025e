//! The server side of the control socket, with plain threads: one that accepts and one per client.
//!
//! Limits: [`CLIENTS_MAX`] clients, [`THREADS_MAX`] threads, [`REQUEST_LINE_MAX`] bytes per request, [`IDLE`] between
//! requests, [`SEND`] for a client to take a reply. A client that exceeds a limit is told the reason if possible and
//! disconnected.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::connect::{connect, peer_uid};
use crate::error::ControlError;
use crate::protocol::{REQUEST_LINE_MAX, Reply, Request};

/// Maximum number of clients.
pub const CLIENTS_MAX: usize = 16;
/// Maximum number of their threads: a thread that waits for the end of a stop continues after its client has disconnected.
pub const THREADS_MAX: usize = 64;
/// How long a client may be silent.
pub const IDLE: Duration = Duration::from_secs(30);
/// How long a client may leave a reply unread.
pub const SEND: Duration = Duration::from_secs(5);
/// How long a stopping server waits for replies in progress.
const LINGER: Duration = Duration::from_secs(2);
/// How long another process may hold the directory's lock while it sets up a socket.
const LOCK: Duration = Duration::from_secs(2);
/// Maximum length of a socket path in bytes: `sun_path` holds 108, including the final NUL.
pub const PATH_MAX: usize = 107;
const BACKLOG: i32 = 16;

/// Handles requests. Called from several threads at once; a `stop` that waits may block.
pub trait ControlHandler: Send + Sync {
    /// Handles one request. The handler may cancel a long request after its client has disconnected.
    fn handle(&self, request: Request, client: Asker<'_>) -> Reply;
}

/// The client that waits for the reply to a request.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a>(&'a UnixStream);

impl Asker<'_> {
    /// Whether the client has disconnected or exited.
    #[must_use]
    pub fn has_left(self) -> bool {
        let mut events = [PollFd::new(self.0, PollFlags::empty())];
        rustix::event::poll(&mut events, Some(&Timespec::default())).is_ok()
            && events[0].revents().contains(PollFlags::HUP)
    }
}

/// A control socket that is being served, until [`Server::close`] or drop.
pub struct Server {
    path: PathBuf,
    /// Device and inode of the socket file, so that only the server's own file is removed.
    identity: (u64, u64),
    shared: Arc<Shared>,
    /// Dropped to wake the acceptor.
    wake: Option<UnixStream>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    handler: Arc<dyn ControlHandler>,
    closing: AtomicBool,
    clients: AtomicUsize,
    /// Streams of the clients, to end their reading at close.
    streams: Mutex<Vec<(usize, UnixStream)>>,
}

impl Server {
    /// Creates the socket at `path` with mode 0600, and answers its requests with `handler`.
    ///
    /// # Errors
    /// Another process listens there, another kind of file exists there, or the socket could not be created.
    pub fn start(path: &Path, handler: Arc<dyn ControlHandler>) -> Result<Self, ControlError> {
        let listener = bind(path)?;
        let make = |what| {
            move |source| ControlError::Make {
                what,
                path: path.to_owned(),
                source,
            }
        };
        let metadata = std::fs::symlink_metadata(path).map_err(make("inspect the control socket"))?;
        let shared = Arc::new(Shared {
            handler,
            closing: AtomicBool::new(false),
            clients: AtomicUsize::new(0),
            streams: Mutex::new(Vec::new()),
        });
        listener
            .set_nonblocking(true)
            .map_err(make("set up the control socket"))?;
        let (wake, woken) = UnixStream::pair().map_err(make("set up the control socket"))?;
        let acceptor = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || accept_loop(&listener, &woken, &shared)
            })
            .map_err(make("start a thread for the control socket"))?;
        Ok(Self {
            path: path.to_owned(),
            identity: (metadata.dev(), metadata.ino()),
            shared,
            wake: Some(wake),
            acceptor: Some(acceptor),
        })
    }

    /// Path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts no more clients and removes the socket. Requests of connected clients are still answered: a client that is
    /// told of the end finds no socket afterwards.
    pub fn remove_socket(&mut self) {
        let Some(acceptor) = self.acceptor.take() else {
            return;
        };
        self.shared.closing.store(true, Ordering::SeqCst);
        drop(self.wake.take());
        let _ = acceptor.join();
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Removes the socket, accepts no more requests, and waits briefly for replies in progress.
    pub fn close(mut self) {
        self.close_now();
    }

    fn close_now(&mut self) {
        self.remove_socket();
        for (_, stream) in self
            .shared
            .streams
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            // Idle clients are disconnected; replies can still be written.
            let _ = stream.shutdown(std::net::Shutdown::Read);
        }
        let deadline = Instant::now() + LINGER;
        while self.shared.clients.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close_now();
    }
}

/// Creates a listening socket at `path`, replacing a stale one. A lock on the directory serialises two daemons that
/// start at the same moment.
fn bind(path: &Path) -> Result<UnixListener, ControlError> {
    let len = path.as_os_str().len();
    if len > PATH_MAX {
        return Err(ControlError::PathTooLong {
            path: path.to_owned(),
            len,
            max: PATH_MAX,
        });
    }
    let make = |what| {
        move |source: io::Error| ControlError::Make {
            what,
            path: path.to_owned(),
            source,
        }
    };
    let _lock = lock_directory(path).map_err(make("lock the directory of the control socket"))?;
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(source) => return Err(make("inspect the control socket")(source)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ControlError::NotASocket {
                path: path.to_owned(),
            });
        }
        Ok(_) => match connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                tracing::debug!("replacing the stale control socket {}", path.display());
                std::fs::remove_file(path).map_err(make("remove the stale control socket"))?;
            }
            Err(source) if source.kind() != ErrorKind::WouldBlock => {
                return Err(make("determine whether a daemon listens on the control socket")(
                    source,
                ));
            }
            Ok(_) | Err(_) => {
                return Err(ControlError::InUse {
                    path: path.to_owned(),
                });
            }
        },
    }
    listen(path).map_err(|error| make("create the control socket")(error.into()))
}

/// Binds with mode 0600 from the first moment: on Linux a socket file gets its mode from the socket itself.
fn listen(path: &Path) -> Result<UnixListener, Errno> {
    let socket: OwnedFd = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

fn lock_directory(path: &Path) -> io::Result<OwnedFd> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = OwnedFd::from(std::fs::File::open(parent)?);
    let deadline = Instant::now() + LOCK;
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Accepts connections until the other end of `woken` is dropped.
fn accept_loop(listener: &UnixListener, woken: &UnixStream, shared: &Arc<Shared>) {
    let mut number = 0;
    loop {
        let mut ready = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(woken, PollFlags::IN),
        ];
        match rustix::event::poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!("control socket: poll failed: {error}; no further requests are answered");
                return;
            }
        }
        if shared.closing.load(Ordering::SeqCst) {
            return;
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => continue,
            Err(error) => {
                // Probably out of descriptors: wait until other clients have finished.
                tracing::warn!("control socket: accept failed: {error}");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        number += 1;
        if let Err((mut stream, message)) = admit(stream, number, shared) {
            let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
            let _ = stream.write_all(Reply::Refused(message).to_line().as_bytes());
        }
    }
}

/// Starts a thread for a client, if it is permitted and there is room.
fn admit(stream: UnixStream, number: usize, shared: &Arc<Shared>) -> Result<(), (UnixStream, String)> {
    let uid = match peer_uid(&stream) {
        Ok(uid) => uid,
        Err(error) => return Err((stream, format!("cannot determine your user: {error}"))),
    };
    let own = rustix::process::geteuid().as_raw();
    if uid != 0 && uid != own {
        tracing::warn!("control socket: refused user {uid}");
        return Err((
            stream,
            format!("only root and user {own} may control this daemon, not user {uid}"),
        ));
    }
    let clients = shared.clients.load(Ordering::SeqCst);
    if clients >= THREADS_MAX || (clients >= CLIENTS_MAX && clients_there(shared) >= CLIENTS_MAX) {
        return Err((
            stream,
            format!("{CLIENTS_MAX} clients are connected, the maximum: try again later"),
        ));
    }
    let copy = match stream.try_clone() {
        Ok(copy) => copy,
        Err(error) => return Err((stream, format!("cannot accept another client: {error}"))),
    };
    lock_streams(shared).push((number, copy));
    shared.clients.fetch_add(1, Ordering::SeqCst);
    let thread = std::thread::Builder::new()
        .name(format!("control-{number}"))
        .spawn({
            let shared = Arc::clone(shared);
            move || {
                let _leaving = Leaving {
                    shared: &shared,
                    number,
                };
                if let Err(error) = serve_client(&stream, &shared) {
                    tracing::debug!("control client {number}: {error}");
                }
            }
        });
    if let Err(error) = thread {
        tracing::warn!("control socket: cannot start a thread for a client: {error}");
        leave(shared, number);
    }
    Ok(())
}

/// Clients that are still connected. A stop that a stalled device delays may outlive its client.
fn clients_there(shared: &Shared) -> usize {
    lock_streams(shared)
        .iter()
        .filter(|(_, stream)| !Asker(stream).has_left())
        .count()
}

/// Removes a client from the count, also when its thread panics.
struct Leaving<'a> {
    shared: &'a Shared,
    number: usize,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        leave(self.shared, self.number);
    }
}

fn leave(shared: &Shared, number: usize) {
    lock_streams(shared).retain(|(other, _)| *other != number);
    shared.clients.fetch_sub(1, Ordering::SeqCst);
}

fn lock_streams(shared: &Shared) -> std::sync::MutexGuard<'_, Vec<(usize, UnixStream)>> {
    shared.streams.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve_client(stream: &UnixStream, shared: &Shared) -> io::Result<()> {
    stream.set_write_timeout(Some(SEND))?;
    let mut reader = BufReader::new(stream);
    loop {
        let line = match read_line(&mut reader, stream)? {
            Line::End => return Ok(()),
            Line::TooLong => {
                let message = format!("request lines have at most {REQUEST_LINE_MAX} bytes");
                return send(stream, &Reply::Refused(message));
            }
            Line::NotText => return send(stream, &Reply::Refused("requests must be UTF-8".to_owned())),
            Line::Late => {
                let message = format!("no request within {} s: connection closed", IDLE.as_secs());
                return send(stream, &Reply::Refused(message));
            }
            Line::Whole(line) => line,
        };
        let reply = match Request::parse(&line) {
            Ok(request) => shared.handler.handle(request, Asker(stream)),
            Err(error) => Reply::Refused(error.to_string()),
        };
        send(stream, &reply)?;
    }
}

fn send(mut stream: &UnixStream, reply: &Reply) -> io::Result<()> {
    stream.write_all(reply.to_line().as_bytes())
}

enum Line {
    Whole(String),
    End,
    TooLong,
    NotText,
    Late,
}

/// Reads a line, with [`IDLE`] as the limit for the whole line, so that a client that sends single bytes slowly does
/// not hold its place for ever.
fn read_line(reader: &mut BufReader<&UnixStream>, stream: &UnixStream) -> io::Result<Line> {
    let deadline = Instant::now() + IDLE;
    let mut line = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Line::Late);
        }
        stream.set_read_timeout(Some(left))?;
        let available = match reader.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(error) => return Err(error),
        };
        if available.is_empty() {
            // An incomplete line at the end means that the client died.
            return Ok(Line::End);
        }
        let (taken, ended) = match available.iter().position(|byte| *byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (available.len(), false),
        };
        if line.len() + taken > REQUEST_LINE_MAX {
            // Read what has arrived: otherwise closing would reset the connection and lose the reply.
            drain(reader, stream);
            return Ok(Line::TooLong);
        }
        line.extend_from_slice(&available[..taken]);
        reader.consume(taken);
        if ended {
            return Ok(String::from_utf8(line).map_or(Line::NotText, Line::Whole));
        }
    }
}

/// Reads and discards what a client has already sent, up to a limit.
fn drain(reader: &mut BufReader<&UnixStream>, stream: &UnixStream) {
    const DRAINED_MAX: u64 = 1 << 20;
    let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
    let _ = io::copy(&mut reader.take(DRAINED_MAX), &mut io::sink());
}
