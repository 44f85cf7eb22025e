//! The handshake over a socket, with its time limit.

use std::pin::pin;

use flaz_device::Env;
use flaz_runtime::SendBatch;
use flaz_runtime::net::Stream;
use futures_util::future::{Either, select};

use super::error::ConnectionError;
use super::receiver::Receiver;
use super::service::Service;
use crate::counters::Counters;
use crate::negotiation::{Negotiation, Progress, Session};
use crate::shutdown::Registration;

/// Runs the handshake; `None` if the client aborted it.
pub(super) async fn run<E: Env>(
    stream: &Stream,
    receiver: &mut Receiver,
    env: &E,
    service: &Service,
    registration: &Registration,
) -> Result<Option<Session>, ConnectionError> {
    let limit = service.limits.handshake_timeout;
    let haggling = pin!(haggle(stream, receiver, service, registration));
    let timeout = pin!(env.sleep(limit));
    match select(haggling, timeout).await {
        Either::Left((end, _)) => end,
        Either::Right(_) => Err(ConnectionError::HandshakeTimeout(limit.as_secs())),
    }
}

async fn haggle(
    stream: &Stream,
    receiver: &mut Receiver,
    service: &Service,
    registration: &Registration,
) -> Result<Option<Session>, ConnectionError> {
    let mut out = vec![];
    let mut batch = SendBatch::new();
    let mut negotiation = Negotiation::new(&service.export, &mut out);
    loop {
        // Before the answer: the export may grow in between, and then the client has the older size.
        registration.tells(service.export.size());
        let step = negotiation.advance(receiver.unread(), &mut out);
        if !out.is_empty() {
            batch.clear();
            batch.push_bytes(&out);
            let (sent, outcome) = stream.send_all(batch).await;
            outcome?;
            batch = sent;
            Counters::add(&service.counters.bytes_out, out.len() as u64);
            out.clear();
        }
        let (taken, progress) = step?;
        receiver.take(taken);
        match progress {
            Progress::Transmission(session) => return Ok(Some(session)),
            Progress::Aborted => return Ok(None),
            Progress::NeedMore => {
                if receiver.receive(stream, &service.counters).await? == 0 {
                    return Ok(None);
                }
            }
        }
    }
}
