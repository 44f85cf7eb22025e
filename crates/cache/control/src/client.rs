//! The client side of the control socket.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::connect::{CONNECT, connect, peer_uid};
use crate::error::ControlError;
use crate::protocol::{REPLY_LINE_MAX, Reply, Request};

/// How long a daemon may take to answer a request.
pub const ANSWER: Duration = Duration::from_secs(10);

/// How often a waiting client checks whether it was interrupted.
const LOOK: Duration = Duration::from_millis(100);
/// Advice about a daemon that does not answer.
const HUNG: &str = ": a device may be slow; see the log of the daemon, and try again";
/// With this a server of NBD greets its clients.
const NBD_GREETING: &[u8] = b"NBDMAGIC";

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the daemon on the control socket `path`. The daemon may run as root, as the current user, or as
    /// `owner_uid`, the owner of the cache.
    ///
    /// # Errors
    /// Nothing listens there, another user does, or permission is denied.
    pub fn connect(path: &Path, owner_uid: Option<u32>) -> Result<Self, ControlError> {
        let path = path.to_owned();
        let stream = match connect(&path) {
            Ok(stream) => stream,
            Err(source) => {
                return Err(match source.kind() {
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused => ControlError::NotRunning { path },
                    ErrorKind::PermissionDenied => ControlError::Denied { path },
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => ControlError::TimedOut {
                        path,
                        seconds: CONNECT.as_secs_f64(),
                        advice: HUNG,
                    },
                    _ => ControlError::Talk { path, source },
                });
            }
        };
        let uid = peer_uid(&stream).map_err(|source| ControlError::Talk {
            path: path.clone(),
            source,
        })?;
        let trusted = [0, rustix::process::geteuid().as_raw()];
        if !trusted.contains(&uid) && owner_uid != Some(uid) {
            return Err(ControlError::Stranger { path, uid });
        }
        Ok(Self {
            path,
            stream: BufReader::new(stream),
        })
    }

    /// The socket of the daemon.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sends one request and waits for the reply, at most `timeout`. A [`Reply::Refused`] is returned as an error.
    ///
    /// # Errors
    /// No reply, an invalid reply, or a refusal.
    pub fn ask(&mut self, request: &Request, timeout: Duration) -> Result<Reply, ControlError> {
        self.ask_unless(&|| false, request, timeout)
    }

    /// The same for a long request, until `interrupted` returns true. The daemon cancels the request when this connection is closed.
    ///
    /// # Errors
    /// The same, or [`ControlError::Interrupted`].
    pub fn ask_unless(
        &mut self,
        interrupted: &dyn Fn() -> bool,
        request: &Request,
        timeout: Duration,
    ) -> Result<Reply, ControlError> {
        let deadline = Instant::now() + timeout;
        let late = |path: &Path| ControlError::TimedOut {
            path: path.to_owned(),
            seconds: timeout.as_secs_f64(),
            advice: match request {
                Request::Stop { .. } => ": it is still stopping; --timeout SECONDS waits longer",
                Request::Status {} | Request::Advise {} | Request::Flush {} | Request::Detach { .. } => HUNG,
                _ => ": the request may still take effect; see `flaz status` and the log of the daemon",
            },
        };
        let path = self.path.clone();
        let talk = |source: std::io::Error| match source.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => late(&path),
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => ControlError::HungUp { path: path.clone() },
            _ => ControlError::Talk {
                path: path.clone(),
                source,
            },
        };
        self.stream
            .get_ref()
            .set_write_timeout(Some(timeout))
            .map_err(talk)?;
        // A daemon that refuses a client replies before it reads anything, so there may be a reply even if sending
        // fails.
        let sent = self.stream.get_mut().write_all(request.to_line().as_bytes());
        let mut line = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(late(&path));
            }
            if interrupted() {
                return Err(ControlError::Interrupted);
            }
            let wait = Some(left.min(LOOK));
            self.stream.get_ref().set_read_timeout(wait).map_err(talk)?;
            let room = (REPLY_LINE_MAX - line.len()) as u64;
            match (&mut self.stream).take(room).read_until(b'\n', &mut line) {
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) if line.starts_with(NBD_GREETING) => break,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(talk(error)),
            }
        }
        if line.is_empty() {
            sent.map_err(talk)?;
            return Err(ControlError::HungUp { path });
        }
        if line.starts_with(NBD_GREETING) {
            return Err(ControlError::Nbd { path });
        }
        let garbled = |detail: String| ControlError::Garbled {
            path: path.clone(),
            detail,
        };
        if !line.ends_with(b"\n") {
            return Err(garbled(format!("no end of line within {} bytes", line.len())));
        }
        let text = std::str::from_utf8(&line).map_err(|error| garbled(error.to_string()))?;
        match Reply::parse(text).map_err(|error| garbled(error.to_string()))? {
            Reply::Refused(message) => Err(ControlError::Refused { message }),
            reply => Ok(reply),
        }
    }

    /// The error for a reply that does not fit the request.
    #[must_use]
    pub fn unexpected(&self, question: &str) -> ControlError {
        ControlError::Garbled {
            path: self.path.clone(),
            detail: format!("unexpected reply to '{question}'"),
        }
    }
}
