//! A client that speaks raw bytes, written from the specification and not from the server's code.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use flaz_device::IoBuf;
use flaz_device::rt::SendBatch;
use flaz_device::rt::net::Stream;

use super::within;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

/// What a request came to.
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
    /// Reads in flight by cookie: their lengths, which simple replies do not tell.
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

    /// Sends bytes; an error means that the server has hung up.
    pub async fn try_send(&self, bytes: &[u8]) -> std::io::Result<()> {
        let mut batch = SendBatch::new();
        batch.push_bytes(bytes);
        self.stream.send_all(batch).await.1
    }

    pub async fn send(&self, bytes: &[u8]) {
        self.try_send(bytes).await.unwrap();
    }

    /// Exactly `len` bytes, or `None` if the server has hung up before the first.
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

    /// Waits for the server to hang up, whatever it sends before.
    pub async fn expect_end(&self) {
        while self.try_recv(1).await.is_some() {}
    }

    pub async fn greet(&self) {
        assert_eq!(self.recv(18).await, b"NBDMAGICIHAVEOPT\0\x03");
        self.send(&3_u32.to_be_bytes()).await;
    }

    pub async fn negotiate(&mut self, structured: bool) {
        self.greet().await;
        let mut bytes = vec![];
        if structured {
            option(&mut bytes, 8, b"");
            let mut query = vec![0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15];
            query.extend(b"base:allocation");
            option(&mut bytes, 10, &query);
        }
        option(&mut bytes, 1, b"");
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

    /// Notes a read that was sent by hand.
    pub fn expect_read(&mut self, cookie: u64, len: usize) {
        self.reads.insert(cookie, len);
    }

    /// The next reply and its cookie; `None` at the end of the connection.
    pub async fn reply(&mut self) -> Option<(u64, Reply)> {
        let head = self.try_recv(if self.structured { 20 } else { 16 }).await?;
        if !self.structured {
            assert_eq!(head[..4], [0x67, 0x44, 0x66, 0x98]);
            let (error, cookie) = (number(&head[4..8]) as u32, number(&head[8..16]));
            let read = self.reads.remove(&cookie);
            if error != 0 {
                return Some((
                    cookie,
                    Reply::Error {
                        errno: error,
                        message: String::new(),
                        at: None,
                    },
                ));
            }
            let Some(len) = read else {
                return Some((cookie, Reply::Done));
            };
            let bytes = self.recv(len).await;
            return Some((cookie, Reply::Data { offset: 0, bytes }));
        }
        assert_eq!(
            head[..6],
            [0x66, 0x8e, 0x33, 0xef, 0, 1],
            "one chunk, the last one"
        );
        let (kind, cookie) = (number(&head[6..8]), number(&head[8..16]));
        let body = match number(&head[16..20]) as usize {
            0 => vec![],
            len => self.recv(len).await,
        };
        let reply = match kind {
            0 => Reply::Done,
            1 => Reply::Data {
                offset: number(&body[..8]),
                bytes: body[8..].to_vec(),
            },
            5 => {
                assert_eq!(body[..4], [0, 0, 0, 1]);
                let extents = body[4..].chunks_exact(8);
                Reply::Status(
                    extents
                        .map(|extent| (number(&extent[..4]) as u32, number(&extent[4..]) as u32))
                        .collect(),
                )
            }
            0x8001 | 0x8002 => {
                let len = number(&body[4..6]) as usize;
                let message = String::from_utf8(body[6..6 + len].to_vec()).unwrap();
                let at = (kind == 0x8002).then(|| number(&body[6 + len..]));
                Reply::Error {
                    errno: number(&body[..4]) as u32,
                    message,
                    at,
                }
            }
            kind => panic!("chunk type {kind}"),
        };
        self.reads.remove(&cookie);
        Some((cookie, reply))
    }

    /// One request and its reply.
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

pub fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x25, 0x60, 0x95, 0x13];
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes.extend(data);
    bytes
}

fn option(out: &mut Vec<u8>, number: u32, data: &[u8]) {
    out.extend(b"IHAVEOPT");
    out.extend(number.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}
