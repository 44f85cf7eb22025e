//! A small blocking NBD client: for the demo, for tests, for measurements.
//!
//! Fixed newstyle handshake with `NBD_OPT_GO`, structured and simple replies, one request at a time ([`Client::read`],
//! [`Client::write`], [`Client::call`]) or several in flight ([`Client::send`], [`Client::receive`]).
//!
//! Invariants:
//! - each reply belongs to a request in flight, and each request gets one reply;
//! - the server is not trusted: a length is checked before it is used, an invalid message is an error, and nothing is
//!   received after one;
//! - requests in flight and their bytes are limited to what a server must accept ([`crate::limits`]), so that client
//!   and server never wait for each other.

mod error;
mod gather;
mod handshake;
mod wire;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U32, U64};

pub use error::ClientError;

use crate::limits::{BYTES_IN_FLIGHT_MAX, CLIENT_REPLY_TIMEOUT, PAYLOAD_BYTES_MAX, REQUESTS_IN_FLIGHT_MAX};
use crate::protocol::{CHUNK_MAGIC, ChunkHeader, SIMPLE_REPLY_MAGIC, SimpleReplyHeader, chunk, cmd};
use crate::reply::{Failure, parse_error};
use crate::request::{Command, Request};
use error::expect;
use gather::Gather;
use wire::Wire;

/// Options of a connection.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Name of the export; empty for the default.
    pub export: String,
    /// Ask for structured replies.
    pub structured: bool,
    /// Timeout of each read and write of the socket.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            export: String::new(),
            structured: true,
            timeout: CLIENT_REPLY_TIMEOUT,
        }
    }
}

/// The reply to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The cookie that [`Client::send`] returned.
    pub cookie: u64,
    /// The data of a read, empty for other requests; or the server's error.
    pub outcome: Result<Vec<u8>, Failure>,
}

/// A request in flight.
#[derive(Debug)]
struct Sent {
    request: Request,
    /// Only for a read.
    data: Option<Gather>,
    /// The first error of an incomplete reply.
    failure: Option<Failure>,
}

/// One connection to one export.
#[derive(Debug)]
pub struct Client<S: Read + Write = UnixStream> {
    wire: Wire<S>,
    agreed: handshake::Agreed,
    last_cookie: u64,
    in_flight: HashMap<u64, Sent>,
    /// Bytes of reads and writes in flight.
    bytes_in_flight: u64,
}

impl Client {
    /// Connects to the default export of the server that listens at `path`.
    ///
    /// # Errors
    /// Nothing listens there, the server does not speak NBD, or it refuses the export.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::connect_with(path, &ClientOptions::default())
    }

    /// Connects with options.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with(path: &Path, options: &ClientOptions) -> Result<Self, ClientError> {
        let failed = |source| ClientError::Connect {
            path: path.to_owned(),
            source,
        };
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(options.timeout)).map_err(failed)?;
        stream.set_write_timeout(Some(options.timeout)).map_err(failed)?;
        Self::over(stream, options)
    }
}

impl<S: Read + Write> Client<S> {
    /// Opens an export over a connected stream. The caller sets the timeouts of the stream.
    ///
    /// # Errors
    /// As [`connect`](Client::connect).
    pub fn over(stream: S, options: &ClientOptions) -> Result<Self, ClientError> {
        let mut wire = Wire::new(stream);
        let agreed = handshake::negotiate(&mut wire, &options.export, options.structured)?;
        Ok(Self {
            wire,
            agreed,
            last_cookie: 0,
            in_flight: HashMap::new(),
            bytes_in_flight: 0,
        })
    }

    /// Size of the export in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.agreed.size_bytes
    }

    /// Transmission flags of the export: see [`transmission`](crate::protocol::transmission).
    #[must_use]
    pub fn flags(&self) -> u16 {
        self.agreed.flags
    }

    /// Whether replies are structured.
    #[must_use]
    pub fn is_structured(&self) -> bool {
        self.agreed.structured
    }

    /// Sends a request without data and returns its cookie.
    ///
    /// # Errors
    /// The connection has ended, or the request exceeds a limit.
    ///
    /// # Panics
    /// On a write ([`send_write`](Self::send_write) sends it), a disconnect (dropping the client sends it) and a
    /// block-status request, because this client does not read its replies.
    pub fn send(&mut self, command: Command, offset: u64, length: u32) -> Result<u64, ClientError> {
        assert!(
            !matches!(
                command,
                Command::Write { .. } | Command::Disconnect | Command::BlockStatus { .. }
            ),
            "{command:?} cannot be sent this way"
        );
        self.send_with(command, offset, length, &[])
    }

    /// Sends a write and returns its cookie.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_write(&mut self, offset: u64, data: &[u8], fua: bool) -> Result<u64, ClientError> {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        self.send_with(Command::Write { fua }, offset, length, data)
    }

    fn send_with(
        &mut self,
        command: Command,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> Result<u64, ClientError> {
        let request = Request::new(command, self.last_cookie + 1, offset, length);
        let bytes = self.bytes_in_flight + data_bytes(&request);
        limit(
            "bytes of one request",
            data_bytes(&request),
            PAYLOAD_BYTES_MAX.into(),
        )?;
        limit("bytes of requests", bytes, BYTES_IN_FLIGHT_MAX as u64)?;
        limit(
            "requests",
            self.in_flight.len() as u64 + 1,
            REQUESTS_IN_FLIGHT_MAX as u64,
        )?;
        self.wire.put("request", &[request.header().as_bytes(), data])?;
        self.last_cookie = request.cookie;
        self.bytes_in_flight = bytes;
        let data = (command == Command::Read).then(|| Gather::new(offset, length));
        let sent = Sent {
            request,
            data,
            failure: None,
        };
        self.in_flight.insert(request.cookie, sent);
        Ok(request.cookie)
    }

    /// Waits for the next complete reply to any request.
    ///
    /// # Errors
    /// The connection has ended, the server violates the protocol, or nothing is in flight.
    pub fn receive(&mut self) -> Result<Reply, ClientError> {
        if self.in_flight.is_empty() {
            return Err(ClientError::Idle);
        }
        loop {
            match self.next_message() {
                Ok(None) => {}
                Ok(Some(reply)) => return Ok(reply),
                Err(error) => {
                    self.wire.lose();
                    return Err(error);
                }
            }
        }
    }

    /// Sends one request without data and waits for its reply: the data of a read, empty otherwise.
    ///
    /// # Errors
    /// The server replies with an error, violates the protocol, or the connection ends.
    ///
    /// # Panics
    /// If other requests are in flight, and as [`send`](Self::send).
    pub fn call(&mut self, command: Command, offset: u64, length: u32) -> Result<Vec<u8>, ClientError> {
        assert!(self.in_flight.is_empty(), "other requests are in flight");
        self.send(command, offset, length)?;
        self.receive_one(command, offset, length)
    }

    /// Reads `data.len()` bytes at `offset`.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    ///
    /// # Panics
    /// If other requests are in flight.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), ClientError> {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        data.copy_from_slice(&self.call(Command::Read, offset, length)?);
        Ok(())
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    ///
    /// # Panics
    /// If other requests are in flight.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        assert!(self.in_flight.is_empty(), "other requests are in flight");
        self.send_write(offset, data, false)?;
        self.receive_one(Command::Write { fua: false }, offset, data.len() as u32)?;
        Ok(())
    }

    /// Makes all acknowledged writes stable.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    ///
    /// # Panics
    /// If other requests are in flight.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        self.call(Command::Flush, 0, 0).map(drop)
    }

    fn receive_one(&mut self, command: Command, offset: u64, length: u32) -> Result<Vec<u8>, ClientError> {
        self.receive()?.outcome.map_err(|failure| ClientError::Request {
            command: command.name(),
            offset,
            length,
            failure,
        })
    }

    /// Reads a simple reply or a chunk. Returns a reply when it is complete.
    fn next_message(&mut self) -> Result<Option<Reply>, ClientError> {
        let magic = self.wire.get::<U32>("reply")?;
        match magic.get() {
            SIMPLE_REPLY_MAGIC => self.simple_reply(magic).map(Some),
            CHUNK_MAGIC if self.agreed.structured => self.chunk(magic),
            found => Err(ClientError::Protocol {
                expected: "the magic of a reply",
                found: found.into(),
            }),
        }
    }

    fn simple_reply(&mut self, magic: U32) -> Result<Reply, ClientError> {
        let header = self
            .wire
            .get_rest::<SimpleReplyHeader>("reply", magic.as_bytes())?;
        let cookie = header.cookie.get();
        let errno = header.error.get();
        let sent = self.in_flight.get_mut(&cookie).ok_or(unknown(cookie))?;
        if errno != 0 {
            sent.failure.get_or_insert(Failure {
                errno,
                message: String::new(),
                offset: None,
            });
        } else if let Some(data) = &mut sent.data {
            let all = data.part(sent.request.offset, sent.request.len)?;
            self.wire.get_exact("reply", all)?;
        }
        self.finish(cookie)
    }

    fn chunk(&mut self, magic: U32) -> Result<Option<Reply>, ClientError> {
        let header = self.wire.get_rest::<ChunkHeader>("reply", magic.as_bytes())?;
        let (cookie, length) = (header.cookie.get(), header.len.get());
        let sent = self.in_flight.get_mut(&cookie).ok_or(unknown(cookie))?;
        match (header.kind.get(), &mut sent.data) {
            (chunk::NONE, _) => expect("an empty chunk", length.into(), 0)?,
            (chunk::OFFSET_DATA, Some(data)) if length >= 8 => {
                let start = self.wire.get::<U64>("reply")?.get();
                self.wire.get_exact("reply", data.part(start, length - 8)?)?;
            }
            (chunk::OFFSET_HOLE, Some(data)) if length == 12 => {
                let start = self.wire.get::<U64>("reply")?.get();
                let hole = self.wire.get::<U32>("reply")?.get();
                data.part(start, hole)?.fill(0);
            }
            (kind, _) if kind & chunk::ERROR_FLAG != 0 => {
                let body = self.wire.message("reply", length)?;
                let failure = parse_error(kind, &body).ok_or(ClientError::Protocol {
                    expected: "an error chunk with a number and a message",
                    found: length.into(),
                })?;
                sent.failure.get_or_insert(failure);
            }
            (kind, _) => {
                return Err(ClientError::Protocol {
                    expected: "a kind of chunk that answers the request",
                    found: kind.into(),
                });
            }
        }
        if header.flags.get() & chunk::DONE == 0 {
            return Ok(None);
        }
        self.finish(cookie).map(Some)
    }

    /// The request is complete.
    fn finish(&mut self, cookie: u64) -> Result<Reply, ClientError> {
        let sent = self.in_flight.remove(&cookie).ok_or(unknown(cookie))?;
        self.bytes_in_flight -= data_bytes(&sent.request);
        assert!(
            !self.in_flight.is_empty() || self.bytes_in_flight == 0,
            "{} bytes in flight without a request",
            self.bytes_in_flight
        );
        let outcome = match (sent.failure, sent.data) {
            (Some(failure), _) => Err(failure),
            (None, Some(data)) => Ok(data.finish()?),
            (None, None) => Ok(Vec::new()),
        };
        Ok(Reply { cookie, outcome })
    }
}

impl<S: Read + Write> Drop for Client<S> {
    fn drop(&mut self) {
        // The server accepts a closed socket as well. With requests in flight it might not read a disconnect now.
        if self.in_flight.is_empty() && !self.wire.is_lost() {
            let request = Request::new(Command::Disconnect, 0, 0, 0);
            let _ = self.wire.put("disconnect", &[request.header().as_bytes()]);
        }
    }
}

/// Bytes of device data that this request or its reply transfers.
fn data_bytes(request: &Request) -> u64 {
    match request.command {
        cmd::READ | cmd::WRITE => request.len.into(),
        _ => 0,
    }
}

fn limit(what: &'static str, found: u64, most: u64) -> Result<(), ClientError> {
    if found > most {
        Err(ClientError::Limit { what, found, most })
    } else {
        Ok(())
    }
}

fn unknown(cookie: u64) -> ClientError {
    ClientError::Protocol {
        expected: "the cookie of a request in flight",
        found: cookie,
    }
}

#[cfg(test)]
mod tests;
