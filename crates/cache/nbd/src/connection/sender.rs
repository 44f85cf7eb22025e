//! Replies: written into the outbox, and sent from there by one system call for all that wait.

use flaz_device::IoBuf;
use flaz_engine::volume::{Segments, Volume};
use flaz_runtime::SendBatch;
use zerocopy::IntoBytes;

use super::shared::Connection;
use crate::counters::Counters;
use crate::errno::Errno;
use crate::reply;

/// Replies up to this many bytes are copied into the batch; longer ones bring a buffer of their own.
const INLINE_REPLY_BYTES_MAX: usize = 1024;

impl<V: Volume> Connection<V> {
    /// Sends what is in the outbox until the connection ends.
    pub(super) async fn send(&self) {
        let mut batch = SendBatch::new();
        let mut broken = false;
        loop {
            let weight = self.outbox.take(&mut batch);
            if weight.requests == 0 {
                if self.is_closing() {
                    return;
                }
                self.outbox.ready().await;
                continue;
            }
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

    /// Answers a request that succeeded and has no data to send.
    pub(super) fn reply_done(&self, cookie: u64, weight_bytes: usize) {
        self.outbox.put(weight_bytes, |batch| {
            if self.session.structured {
                batch.push_bytes(reply::done(cookie).as_bytes());
            } else {
                batch.push_bytes(reply::simple(cookie, None).as_bytes());
            }
        });
    }

    /// Answers a read of `len` bytes, which `segments` hold.
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

    /// Sends a structured reply that is ready as it is.
    pub(super) fn reply_bytes(&self, bytes: &[u8], weight_bytes: usize) {
        self.outbox.put(weight_bytes, |batch| {
            if bytes.len() > INLINE_REPLY_BYTES_MAX {
                batch.push_buf(IoBuf::copy_of(bytes));
            } else {
                batch.push_bytes(bytes);
            }
        });
    }

    /// Answers a request that failed.
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
