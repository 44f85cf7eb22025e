//! The receiver: reads requests out of one buffer and turns each into a job.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use flaz_device::{Env, IoBuf};
use flaz_engine::volume::{Segments, Volume};
use flaz_runtime::net::Stream;

use super::error::ConnectionError;
use super::job::Job;
use super::payload;
use super::shared::Connection;
use crate::counters::Counters;
use crate::errno::Errno;
use crate::limits::{BUFFERED_PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX};
use crate::request::{Command, REQUEST_BYTES, Refusal, Request};
use crate::shutdown::Shutdown;

/// With fewer free bytes than this at the end of the buffer, the unread bytes move to its front.
const FREE_BYTES_MIN: usize = 64 << 10;

const STOPPING: Refusal = Refusal {
    errno: Errno::Shutdown,
    reason: "the server is stopping",
};
const CUT_OFF: Refusal = Refusal {
    errno: Errno::Io,
    reason: "the data was cut off",
};

/// Bytes from a client: `buf[start..end]` were received and not read yet.
#[derive(Debug)]
pub(super) struct Receiver {
    /// Owned by the kernel during a receive, and lost if that receive was dropped.
    buf: Option<IoBuf>,
    start: usize,
    end: usize,
}

/// The result of examining the unread bytes.
enum Next {
    /// A request was handled.
    Handled,
    /// The request is incomplete.
    NeedMore,
    /// The client disconnects.
    Disconnect,
}

impl Receiver {
    pub(super) fn new(buf: IoBuf) -> Self {
        Self {
            buf: Some(buf),
            start: 0,
            end: 0,
        }
    }

    /// The unread bytes.
    pub(super) fn unread(&self) -> &[u8] {
        match &self.buf {
            Some(buf) => &buf[self.start..self.end],
            None => &[],
        }
    }

    /// Marks the next `count` bytes as read.
    pub(super) fn take(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "more bytes were read than received");
    }

    /// Receives the available bytes; 0 if the client has closed the connection.
    pub(super) async fn receive(&mut self, stream: &Stream, counters: &Counters) -> io::Result<usize> {
        let Some(mut buf) = self.buf.take() else {
            return Err(io::Error::other("an earlier receive was dropped"));
        };
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && buf.len() - self.end < FREE_BYTES_MIN {
            buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        assert!(
            self.end < buf.len(),
            "the receive buffer is full and nothing in it can be read"
        );
        let capacity = buf.len();
        let (buf, received) = stream.recv(buf, self.end, capacity).await;
        self.buf = Some(buf);
        let received = received?;
        self.end += received;
        Counters::add(&counters.bytes_in, received as u64);
        Ok(received)
    }

    /// Handles requests until the client disconnects or the server stops.
    pub(super) async fn run<V: Volume, E: Env>(
        &mut self,
        connection: &Rc<Connection<V>>,
        env: &E,
        shutdown: &Shutdown,
    ) -> Result<(), ConnectionError> {
        loop {
            let stopping = shutdown.is_stopping();
            if stopping && connection.is_resent() {
                // What was not handled yet is for the next server.
                return Ok(());
            }
            loop {
                match self.next(connection, env, shutdown, stopping).await? {
                    Next::Handled => {}
                    Next::NeedMore => break,
                    Next::Disconnect => return Ok(()),
                }
            }
            if !stopping {
                let_replies_pass().await;
            }
            if stopping || self.receive(&connection.stream, connection.counters()).await? == 0 {
                return if stopping || self.unread().is_empty() {
                    Ok(())
                } else {
                    Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
                };
            }
        }
    }

    async fn next<V: Volume, E: Env>(
        &mut self,
        connection: &Rc<Connection<V>>,
        env: &E,
        shutdown: &Shutdown,
        stopping: bool,
    ) -> Result<Next, ConnectionError> {
        let Some(header) = self.unread().first_chunk::<REQUEST_BYTES>() else {
            return Ok(Next::NeedMore);
        };
        let request = Request::parse(header)?;
        let verdict = request.check(connection.export(), connection.session);
        let verdict = match verdict {
            Ok(command) if stopping && command != Command::Disconnect => Err(STOPPING),
            verdict => verdict,
        };
        match verdict {
            Ok(Command::Disconnect) => Ok(Next::Disconnect),
            Ok(command) => {
                if !self.worth_reading(&request) {
                    return Ok(Next::NeedMore);
                }
                connection.counters().count(command);
                connection.admit(Job::weight_bytes(command, request.len)).await;
                self.take(REQUEST_BYTES);
                let data = match command {
                    Command::Write { .. } => self.take_payload(&request, connection, shutdown).await?,
                    _ => Segments::new(),
                };
                let Request {
                    cookie, offset, len, ..
                } = request;
                connection.start(
                    env,
                    Job {
                        command,
                        cookie,
                        offset,
                        len,
                        data,
                    },
                );
                Ok(Next::Handled)
            }
            Err(refusal) => {
                if request.payload_len() > PAYLOAD_BYTES_MAX {
                    return Err(ConnectionError::OversizedWrite(request.len));
                }
                connection.counters().count_refused();
                connection.admit(0).await;
                self.take(REQUEST_BYTES);
                let drained = self.skip(request.payload_len() as usize, connection).await;
                connection.reply_error(request.cookie, refusal.errno, refusal.reason, None, 0);
                drained.map(|()| Next::Handled)
            }
        }
    }

    /// Whether to handle a request now: its payload is complete, or so much of it is missing that it is better received
    /// straight into its own buffers.
    fn worth_reading(&self, request: &Request) -> bool {
        let whole = REQUEST_BYTES + request.payload_len() as usize;
        let missing = whole.saturating_sub(self.unread().len());
        let capacity = self.buf.as_ref().map_or(0, |buf| buf.len());
        missing == 0 || missing > BUFFERED_PAYLOAD_BYTES_MAX || whole + FREE_BYTES_MIN > capacity
    }

    /// The data of a write whose header was just read. If the client closes the connection in the middle, the request
    /// is withdrawn.
    async fn take_payload<V: Volume>(
        &mut self,
        request: &Request,
        connection: &Connection<V>,
        shutdown: &Shutdown,
    ) -> Result<Segments, ConnectionError> {
        let front = self.unread().len().min(request.len as usize);
        let mut segments = payload::segments(request.offset, request.len, &self.unread()[..front]);
        self.take(front);
        let mut filled = front;
        for slot in &mut segments {
            let len = slot.len();
            if filled >= len {
                filled -= len;
                continue;
            }
            let mut segment = std::mem::replace(slot, IoBuf::new(0));
            while filled < len {
                let received;
                (segment, received) = connection.stream.recv(segment, filled, len).await;
                match received {
                    Ok(count) if count > 0 => {
                        filled += count;
                        Counters::add(&connection.counters().bytes_in, count as u64);
                    }
                    other => {
                        let error = other.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
                        let weight = Job::weight_bytes(Command::Write { fua: false }, request.len);
                        if connection.is_resent() {
                            connection.withdraw(weight);
                            return Err(error.into());
                        }
                        // A stop ends the receiving but not the client: it gets ESHUTDOWN, not the error of a failed
                        // device.
                        let Refusal { errno, reason } =
                            if shutdown.is_stopping() { STOPPING } else { CUT_OFF };
                        connection.reply_error(request.cookie, errno, reason, None, weight);
                        return Err(error.into());
                    }
                }
            }
            filled = 0;
            *slot = segment;
        }
        Ok(segments)
    }

    /// Reads and discards `count` bytes.
    async fn skip<V: Volume>(
        &mut self,
        mut count: usize,
        connection: &Connection<V>,
    ) -> Result<(), ConnectionError> {
        loop {
            let now = self.unread().len().min(count);
            self.take(now);
            count -= now;
            if count == 0 {
                return Ok(());
            }
            if self.receive(&connection.stream, connection.counters()).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }
}

/// Yields twice: the workers that were just woken run first, and then the sender that the first of them wakes. A reply
/// that needs no device is thus sent before the next receive, which usually finds nothing and only arms a wait.
async fn let_replies_pass() {
    let mut turns_left = 2;
    poll_fn(|context| {
        if turns_left == 0 {
            return Poll::Ready(());
        }
        turns_left -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
