//! The listening socket of the metrics: one thread that accepts, and one for each connection.
//!
//! Limits: [`CONNECTIONS_MAX`] connections; a connection ends after one request, and within the times of [`super::http`] and
//! [`SEND_WITHIN`].

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use flaz_nbd::socket::{ListenError, ListenSocket};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::address::MetricsAddress;
use super::http::{Connection, answer, refuse_busy};

/// Maximum number of connections; Prometheus needs one.
const CONNECTIONS_MAX: usize = 8;
/// How long a client may leave an answer unread.
const SEND_WITHIN: Duration = Duration::from_secs(5);
/// Stack of a connection's thread: a server of a block device locks its memory, whole stacks included.
const STACK_BYTES: usize = 512 << 10;
/// Pause after a failed accept: the process is probably out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Makes the page of a scrape. Called from several threads.
pub type Scrape = Arc<dyn Fn() -> String + Send + Sync>;

/// Metrics that are being offered, until this is dropped.
pub struct Exporter {
    /// Dropped to wake the thread.
    wake: Option<UnixStream>,
    acceptor: Option<JoinHandle<()>>,
}

/// Why metrics cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum ExporterError {
    /// The address cannot be used.
    #[error("--metrics: {0}")]
    Listen(#[from] ListenError),
    /// A system call failed.
    #[error("--metrics {address}: {what}")]
    System {
        /// The address.
        address: MetricsAddress,
        /// The failed action.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl Exporter {
    /// Listens on `address`, and answers each scrape with a page of `scrape`.
    ///
    /// # Errors
    /// The address is in use, or the system refuses.
    pub fn start(address: &MetricsAddress, scrape: Scrape) -> Result<Self, ExporterError> {
        let failed = |what| {
            move |source: io::Error| ExporterError::System {
                address: address.clone(),
                what,
                source,
            }
        };
        let socket = ListenSocket::bind(address.socket())?;
        // A client that has left between poll and accept must not block the thread.
        rustix::io::ioctl_fionbio(&socket, true)
            .map_err(|errno| failed("setting up the socket")(errno.into()))?;
        let (wake, woken) = UnixStream::pair().map_err(failed("setting up the socket"))?;
        let acceptor = std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || accept_loop(&socket, &woken, &scrape))
            .map_err(failed("starting a thread"))?;
        Ok(Self {
            wake: Some(wake),
            acceptor: Some(acceptor),
        })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(acceptor) = self.acceptor.take() {
            // A thread that panicked has already reported it.
            let _ = acceptor.join();
        }
    }
}

/// Accepts connections until the other end of `woken` is dropped.
fn accept_loop(socket: &ListenSocket, woken: &UnixStream, scrape: &Scrape) {
    let connections = Arc::new(AtomicUsize::new(0));
    loop {
        let mut ready = [
            PollFd::new(socket, PollFlags::IN),
            PollFd::new(woken, PollFlags::IN),
        ];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!("metrics: poll failed: {error}; no further scrapes are answered");
                return;
            }
        }
        if !ready[1].revents().is_empty() {
            return;
        }
        match rustix::net::accept_with(socket, SocketFlags::CLOEXEC) {
            Ok(stream) => admit(stream, &connections, scrape),
            Err(Errno::INTR | Errno::AGAIN | Errno::CONNABORTED) => {}
            Err(error) => {
                tracing::warn!("metrics: accept failed: {error}");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

/// Starts a thread for a connection, if there is room.
fn admit(stream: OwnedFd, connections: &Arc<AtomicUsize>, scrape: &Scrape) {
    let mut stream = Stream(File::from(stream));
    if stream.send_within(SEND_WITHIN).is_err() {
        return;
    }
    // Only this thread adds to the number.
    if connections.load(Ordering::SeqCst) >= CONNECTIONS_MAX {
        tracing::debug!("metrics: refused a connection: {CONNECTIONS_MAX} are open");
        let _ = refuse_busy(&mut stream);
        return;
    }
    connections.fetch_add(1, Ordering::SeqCst);
    let leaving = Leaving(Arc::clone(connections));
    let scrape = Arc::clone(scrape);
    let thread = std::thread::Builder::new()
        .name("metrics-client".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let _leaving = leaving;
            if let Err(error) = answer(&mut stream, || scrape()) {
                tracing::debug!("metrics: {error}");
            }
        });
    if let Err(error) = thread {
        tracing::warn!("metrics: cannot start a thread for a connection: {error}");
    }
}

/// Removes a connection from the number, also when its thread panics or does not start.
struct Leaving(Arc<AtomicUsize>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A connected socket.
struct Stream(File);

impl Stream {
    fn send_within(&self, limit: Duration) -> io::Result<()> {
        Ok(set_socket_timeout(&self.0, Timeout::Send, Some(limit))?)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        // What was written is on its way; the client is told that nothing follows.
        Ok(rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write)?)
    }
}

impl Connection for Stream {
    fn read_within(&self, limit: Duration) -> io::Result<()> {
        // Rounded up to a microsecond: zero would mean no limit.
        Ok(set_socket_timeout(
            &self.0,
            Timeout::Recv,
            Some(limit.max(Duration::from_micros(1))),
        )?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    fn ask(path: &Path) -> String {
        let mut client = UnixStream::connect(path).unwrap();
        // A refused client may find the connection reset after the answer.
        let _ = client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
        let mut text = Vec::new();
        let _ = client.read_to_end(&mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_socket_is_private_bounded_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.sock");
        let address: MetricsAddress = format!("unix:{}", path.display()).parse().unwrap();
        let start = || Exporter::start(&address, Arc::new(|| "flaz_up 1\n".to_owned()));
        let exporter = start().unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(ask(&path).ends_with("\r\n\r\nflaz_up 1\n"));
        let second = start().err().expect("it is in use").to_string();
        assert!(
            second.contains("--metrics") && second.contains("m.sock"),
            "{second}"
        );
        // Clients that only connect fill the places, but not for ever.
        let idle: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| UnixStream::connect(&path).unwrap())
            .collect();
        // The answer of a refusal is lost if the reset that follows it comes first.
        let is_refused = |_| ask(&path).starts_with("HTTP/1.1 503 ");
        assert!((0..20).any(is_refused), "all places are taken");
        drop(idle);
        assert!(
            (0..1000).any(|_| {
                std::thread::sleep(Duration::from_millis(5));
                ask(&path).starts_with("HTTP/1.1 200 ")
            }),
            "places are free again"
        );
        drop(exporter);
        assert!(!path.exists());
    }

    #[test]
    fn a_port_answers_scrapes() {
        // A free port; another program may take one between its release and the start.
        let started = (0..10).find_map(|_| {
            let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = probe.local_addr().unwrap().port();
            drop(probe);
            let address: MetricsAddress = format!("tcp:127.0.0.1:{port}").parse().unwrap();
            let exporter = Exporter::start(&address, Arc::new(|| "flaz_up 0\n".to_owned()));
            Some((port, exporter.ok()?))
        });
        let (port, _exporter) = started.expect("one of ten ports is free");
        let mut client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        client
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("\r\n\r\nflaz_up 0\n"), "{text}");
    }
}
