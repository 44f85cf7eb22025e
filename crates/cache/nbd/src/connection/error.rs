//! Why a connection ends early.

use std::io;

use crate::limits::PAYLOAD_BYTES_MAX;
use crate::negotiation::NegotiationError;
use crate::request::BadMagic;

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
    pub(super) fn is_misbehaviour(&self) -> bool {
        !matches!(self, Self::Socket(_))
    }
}
