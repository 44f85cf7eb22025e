//! A client on the test's runtime that sends raw bytes, for requests that [`flaz_nbd::Client`] does not send.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use flaz_device::IoBuf;
use flaz_runtime::SendBatch;
use flaz_runtime::net::Stream;

use flaz_nbd::option_data::{put_meta_queries, put_option};
pub use flaz_nbd::protocol::cmd::{BLOCK_STATUS, CACHE, DISC, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES};
use flaz_nbd::protocol::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, CHUNK_MAGIC, ChunkHeader, ExtentDescriptor, INIT_MAGIC,
    OPTION_MAGIC, SIMPLE_REPLY_MAGIC, SimpleReplyHeader, chunk, handshake, opt,
};
use flaz_nbd::reply::{Failure, parse_error};
use flaz_nbd::request::Request;
use zerocopy::{FromBytes, IntoBytes};

use super::within;

/// Both flags of a client.
pub const CLIENT_FLAGS: u32 = (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES) as u32;

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Done,
    Data {
        offset: u64,
        bytes: Vec<u8>,
    },
    Status(Vec<(u32, u32)>),
    Error {
        errno: u32,
        message: String,
        at: Option<u64>,
    },
}

impl Reply {
    /// The error of a simple reply.
    fn error(errno: u32) -> Self {
        Self::Error {
            errno,
            message: String::new(),
            at: None,
        }
    }

    fn of_chunk(kind: u16, body: &[u8]) -> Self {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        match kind {
            chunk::NONE => Self::Done,
            chunk::OFFSET_DATA => Self::Data {
                offset: number(&body[..8]),
                bytes: body[8..].to_vec(),
            },
            chunk::BLOCK_STATUS => {
                assert_eq!(number(&body[..4]), u64::from(BASE_ALLOCATION_ID));
                let extents = <[ExtentDescriptor]>::ref_from_bytes(&body[4..]).unwrap();
                Self::Status(extents.iter().map(|of| (of.len.get(), of.state.get())).collect())
            }
            kind => {
                let Failure {
                    errno,
                    message,
                    offset,
                } = parse_error(kind, body).unwrap_or_else(|| panic!("chunk type {kind}"));
                Self::Error {
                    errno,
                    message,
                    at: offset,
                }
            }
        }
    }

    pub fn errno(&self) -> u32 {
        match self {
            Self::Error { errno, .. } => *errno,
            _ => 0,
        }
    }

    pub fn bytes(self) -> Vec<u8> {
        match self {
            Self::Data { bytes, .. } => bytes,
            other => panic!("expected data, got {other:?}"),
        }
    }
}

pub struct Client {
    stream: Stream,
    structured: bool,
    /// Reads in flight by cookie, with their lengths, which simple replies do not contain.
    reads: HashMap<u64, usize>,
    pub cookie: u64,
}

impl Client {
    pub fn connect(path: &Path) -> Self {
        Self::over(UnixStream::connect(path).unwrap().into())
    }

    /// A client over a connected socket.
    pub fn over(socket: OwnedFd) -> Self {
        let stream = Stream::new(socket).unwrap();
        Self {
            stream,
            structured: false,
            reads: HashMap::new(),
            cookie: 0x1000,
        }
    }

    /// Sends bytes; an error means that the server has closed the connection.
    pub async fn try_send(&self, bytes: &[u8]) -> std::io::Result<()> {
        let mut batch = SendBatch::new();
        batch.push_bytes(bytes);
        self.stream.send_all(batch).await.1
    }

    pub async fn send(&self, bytes: &[u8]) {
        self.try_send(bytes).await.unwrap();
    }

    /// Exactly `len` bytes, or `None` if the server closed the connection before the first.
    pub async fn try_recv(&self, len: usize) -> Option<Vec<u8>> {
        let mut buf = IoBuf::new(len);
        let mut filled = 0;
        while filled < len {
            let count;
            let receive = self.stream.recv(buf, filled, len);
            (buf, count) = within(Duration::from_secs(20), receive).await;
            match count.unwrap_or(0) {
                0 if filled == 0 => return None,
                0 => panic!("the server hung up after {filled} of {len} bytes"),
                count => filled += count,
            }
        }
        Some(buf[..len].to_vec())
    }

    pub async fn recv(&self, len: usize) -> Vec<u8> {
        self.try_recv(len).await.expect("the server hung up")
    }

    /// Waits for the server to close the connection, and ignores what it sends before.
    pub async fn expect_end(&self) {
        while self.try_recv(1).await.is_some() {}
    }

    pub async fn greet(&self) {
        let greeting = [
            &INIT_MAGIC.to_be_bytes()[..],
            &OPTION_MAGIC.to_be_bytes(),
            &(CLIENT_FLAGS as u16).to_be_bytes(),
        ];
        assert_eq!(self.recv(18).await, greeting.concat());
        self.send(&CLIENT_FLAGS.to_be_bytes()).await;
    }

    pub async fn negotiate(&mut self, structured: bool) {
        self.greet().await;
        let mut bytes = vec![];
        if structured {
            put_option(&mut bytes, opt::STRUCTURED_REPLY, b"");
            let mut queries = vec![];
            put_meta_queries(&mut queries, b"", &[BASE_ALLOCATION.as_bytes()]);
            put_option(&mut bytes, opt::SET_META_CONTEXT, &queries);
        }
        put_option(&mut bytes, opt::EXPORT_NAME, b"");
        self.send(&bytes).await;
        if structured {
            self.recv(20 + 20 + 4 + 15 + 20).await;
        }
        self.recv(10).await;
        self.structured = structured;
    }

    /// Sends a request and returns its cookie.
    pub async fn start(&mut self, command: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> u64 {
        self.cookie += 1;
        let bytes = request(command, flags, self.cookie, offset, len, data);
        if command == READ {
            self.reads.insert(self.cookie, len as usize);
        }
        self.send(&bytes).await;
        self.cookie
    }

    /// Records a read that the test encoded itself.
    pub fn expect_read(&mut self, cookie: u64, len: usize) {
        self.reads.insert(cookie, len);
    }

    /// The next reply and its cookie; `None` at the end of the connection.
    pub async fn reply(&mut self) -> Option<(u64, Reply)> {
        if !self.structured {
            let head = self.try_recv(size_of::<SimpleReplyHeader>()).await?;
            let head = SimpleReplyHeader::read_from_bytes(&head).unwrap();
            assert_eq!(head.magic.get(), SIMPLE_REPLY_MAGIC);
            let (errno, cookie) = (head.error.get(), head.cookie.get());
            let reply = match self.reads.remove(&cookie) {
                _ if errno != 0 => Reply::error(errno),
                Some(len) => Reply::Data {
                    offset: 0,
                    bytes: self.recv(len).await,
                },
                None => Reply::Done,
            };
            return Some((cookie, reply));
        }
        let head = self.try_recv(size_of::<ChunkHeader>()).await?;
        let head = ChunkHeader::read_from_bytes(&head).unwrap();
        assert_eq!(head.magic.get(), CHUNK_MAGIC);
        assert_eq!(head.flags.get(), chunk::DONE, "one chunk, the last one");
        let body = match head.len.get() as usize {
            0 => vec![],
            len => self.recv(len).await,
        };
        let reply = Reply::of_chunk(head.kind.get(), &body);
        self.reads.remove(&head.cookie.get());
        Some((head.cookie.get(), reply))
    }

    /// Sends one request and returns its reply.
    pub async fn ask(&mut self, command: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> Reply {
        let cookie = self.start(command, flags, offset, len, data).await;
        let (answered, reply) = self.reply().await.expect("the server hung up");
        assert_eq!(answered, cookie);
        reply
    }

    pub async fn read(&mut self, offset: u64, len: u32) -> Reply {
        self.ask(READ, 0, offset, len, b"").await
    }

    pub async fn write(&mut self, offset: u64, data: &[u8]) -> Reply {
        self.ask(WRITE, 0, offset, data.len() as u32, data).await
    }
}

/// A request with any numbers, valid or invalid.
pub fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32, data: &[u8]) -> Vec<u8> {
    let request = Request {
        flags,
        command,
        cookie,
        offset,
        len,
    };
    [request.header().as_bytes(), data].concat()
}
