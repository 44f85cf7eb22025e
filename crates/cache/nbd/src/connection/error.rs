//! Why a connection ends early.

use std::io;

use crate::limits::PAYLOAD_BYTES_MAX;
use crate::negotiation::NegotiationError;
use crate::request::BadMagic;

/// Why a connection ended other than by a disconnect request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("the handshake was not complete after {0} s")]
    HandshakeTimeout(u64),
    #[error("handshake: {0}")]
    Negotiation(#[from] NegotiationError),
    #[error("{0}")]
    BadMagic(#[from] BadMagic),
    #[error("a write of {0} bytes: the maximum is {PAYLOAD_BYTES_MAX}")]
    OversizedWrite(u32),
    #[error("connection lost: {0}")]
    Socket(#[from] io::Error),
}

impl ConnectionError {
    pub(super) fn is_misbehaviour(&self) -> bool {
        !matches!(self, Self::Socket(_))
    }
}
