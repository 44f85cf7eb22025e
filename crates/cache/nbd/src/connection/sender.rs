//! Writes replies into the outbox, and sends all that wait with one system call.

use flaz_device::IoBuf;
use flaz_engine::volume::{Segments, Volume};
use flaz_runtime::SendBatch;
use zerocopy::IntoBytes;

use super::shared::Connection;
use crate::counters::Counters;
use crate::errno::Errno;
use crate::reply;

/// Replies up to this many bytes are copied into the batch; longer ones are sent from their own buffer.
const INLINE_REPLY_BYTES_MAX: usize = 1024;

impl<V: Volume> Connection<V> {
    /// Sends the replies in the outbox until the connection ends.
    pub(super) async fn send(&self) {
        let mut batch = SendBatch::new();
        let mut broken = false;
        while let Some(weight) = self.outbox.next(&mut batch).await {
            if !broken {
                let (sent, outcome) = self.stream.send_all(batch).await;
                batch = sent;
                match outcome {
                    Ok(()) => {
                        Counters::add(&self.counters().bytes_out, batch.bytes() as u64);
                        Counters::add(&self.counters().sends, 1);
                    }
                    Err(error) => {
                        tracing::debug!(%error, "cannot send replies");
                        broken = true;
                        // Ends the receiver.
                        self.stream.shutdown();
                    }
                }
            }
            batch.clear();
            Counters::add(&self.counters().answered, weight.requests as u64);
            self.in_flight.release(weight);
        }
    }

    /// Replies to a successful request without data.
    pub(super) fn reply_done(&self, cookie: u64, weight_bytes: usize) {
        self.outbox.put(weight_bytes, |batch| {
            if self.session.structured {
                batch.push_bytes(reply::done(cookie).as_bytes());
            } else {
                batch.push_bytes(reply::simple(cookie, None).as_bytes());
            }
        });
    }

    /// Replies to a read of `len` bytes with the data in `segments`.
    pub(super) fn reply_data(&self, cookie: u64, offset: u64, len: u32, segments: Segments) {
        self.outbox.put(len as usize, |batch| {
            if self.session.structured {
                batch.push_bytes(reply::offset_data(cookie, offset, len).as_bytes());
            } else {
                batch.push_bytes(reply::simple(cookie, None).as_bytes());
            }
            for segment in segments {
                batch.push_buf(segment);
            }
        });
    }

    /// Sends a structured reply that is already encoded.
    pub(super) fn reply_bytes(&self, bytes: &[u8], weight_bytes: usize) {
        self.outbox.put(weight_bytes, |batch| {
            if bytes.len() > INLINE_REPLY_BYTES_MAX {
                batch.push_buf(IoBuf::copy_of(bytes));
            } else {
                batch.push_bytes(bytes);
            }
        });
    }

    /// Ends a request without a reply: the client sends it again.
    pub(super) fn withdraw(&self, weight_bytes: usize) {
        self.outbox.put(weight_bytes, |_| {});
    }

    /// Replies to a failed request.
    pub(super) fn reply_error(
        &self,
        cookie: u64,
        errno: Errno,
        message: &str,
        at: Option<u64>,
        weight_bytes: usize,
    ) {
        if self.session.structured {
            let mut bytes = vec![];
            reply::error(&mut bytes, cookie, errno, message, at);
            self.reply_bytes(&bytes, weight_bytes);
        } else {
            self.outbox.put(weight_bytes, |batch| {
                batch.push_bytes(reply::simple(cookie, Some(errno)).as_bytes());
            });
        }
    }
}
