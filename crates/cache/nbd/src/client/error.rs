//! Errors between a client and a server.

use std::io;
use std::path::PathBuf;

use crate::reply::Failure;

/// Why a connection or a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens on the socket, or it cannot be reached.
    #[error("cannot connect to the NBD socket {}: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The connection ended, or no reply came in time. No more replies can be received.
    #[error("NBD {during}: {source}")]
    Io {
        /// The phase of the protocol.
        during: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The server violates the protocol. No more replies can be received.
    #[error("the NBD server violated the protocol: expected {expected}, found {found:#x}")]
    Protocol {
        /// What the protocol requires.
        expected: &'static str,
        /// The number found instead.
        found: u64,
    },
    /// The server refused an option of the handshake.
    #[error("the NBD server refused to open the export: reply type {reply:#x} {message}")]
    Refused {
        /// A reply type of [`rep`](crate::protocol::rep).
        reply: u32,
        /// The server's explanation.
        message: String,
    },
    /// The server answered a request with an error. The connection stays usable.
    #[error("NBD {command} of {length} bytes at offset {offset}: {failure}")]
    Request {
        /// `read`, `write`, `flush` and so on.
        command: &'static str,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u32,
        /// The server's answer.
        failure: Failure,
    },
    /// A request that this client does not send because it exceeds a limit.
    #[error("too many {what} in flight: {found}, the maximum is {most}")]
    Limit {
        /// The limited quantity.
        what: &'static str,
        /// How many there would be with this request.
        found: u64,
        /// The limit.
        most: u64,
    },
    /// A reply was requested, but no request is in flight.
    #[error("no NBD request is in flight")]
    Idle,
}

impl ClientError {
    /// Whether the connection ended or timed out, as opposed to a server that sends wrong replies.
    #[must_use]
    pub fn is_disconnect(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Io { .. })
    }

    /// The error number in the server's reply to a request.
    #[must_use]
    pub fn errno(&self) -> Option<u32> {
        match self {
            Self::Request { failure, .. } => Some(failure.errno),
            _ => None,
        }
    }
}

/// `Ok` if the numbers are equal.
pub(super) fn expect(expected: &'static str, found: u64, wanted: u64) -> Result<(), ClientError> {
    if found == wanted {
        Ok(())
    } else {
        Err(ClientError::Protocol { expected, found })
    }
}
