//! A real NBD server on its own thread. Hostile clients connect one after the other over a Unix socket; after each one,
//! an honest client must be served as usual.
//!
//! Every byte of the export is a function of its offset, and writes contain the existing data. All data that leaves the
//! server can thus be compared, whatever a client does and in whichever order requests are served.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown as Direction;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use flaz_device::{Env, IoBuf};
use flaz_engine::volume::{IoError, Segments, StatusExtent, Volume, segment_lens};
use flaz_nbd::option_data::{put_meta_queries, put_option};
use flaz_nbd::protocol::{
    BASE_ALLOCATION, CHUNK_MAGIC, ChunkHeader, SIMPLE_REPLY_MAGIC, SimpleReplyHeader, chunk, cmd,
    handshake as flag, opt,
};
use flaz_nbd::request::Request;
use flaz_nbd::{Counters, Export, Limits, NbdAddress, Server, Service, Shutdown, serve_connection};
use flaz_runtime::{Config, Rt, Runtime};
use zerocopy::{FromBytes, IntoBytes};

use crate::choices::Choices;

/// Size of the export: more than the receive buffer, and not a multiple of sectors.
const SIZE: u64 = (80 << 10) + 100;
/// A server that does not reply for this time hangs. Far more than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Maximum number of reply bytes that are accepted from the server.
const REPLIES_MAX: u64 = 256 << 20;

/// The byte at `offset`.
fn pattern(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn patterns(offset: u64, len: u64) -> Vec<u8> {
    (offset..offset + len).map(pattern).collect()
}

/// Writes whose data differed from the export.
static WRONG_WRITES: AtomicU64 = AtomicU64::new(0);

/// A device that never changes.
#[derive(Clone)]
struct Pattern;

impl Pattern {
    fn within(offset: u64, len: u64) {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= SIZE),
            "{len} bytes at {offset}"
        );
    }
}

impl Volume for Pattern {
    fn size(&self) -> u64 {
        SIZE
    }

    async fn read(&self, offset: u64, len: u32) -> Result<Segments, IoError> {
        Self::within(offset, len.into());
        Ok([IoBuf::copy_of(&patterns(offset, len.into()))].into())
    }

    async fn write(&self, offset: u64, data: Segments, _fua: bool) -> Result<(), IoError> {
        let bytes = data
            .iter()
            .map(|segment| &segment[..])
            .collect::<Vec<_>>()
            .concat();
        Self::within(offset, bytes.len() as u64);
        let lens = segment_lens(offset, bytes.len() as u64);
        assert!(
            data.iter().map(|segment| segment.len()).eq(lens),
            "cut at stripes"
        );
        let wrong = bytes != patterns(offset, bytes.len() as u64);
        WRONG_WRITES.fetch_add(u64::from(wrong), Ordering::Relaxed);
        Ok(())
    }

    async fn flush(&self) -> Result<(), IoError> {
        Ok(())
    }

    async fn trim(&self, offset: u64, len: u64, _fua: bool) -> Result<(), IoError> {
        Self::within(offset, len);
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, _unmap: bool, _fua: bool) -> Result<(), IoError> {
        Self::within(offset, len);
        Ok(())
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<(), IoError> {
        Self::within(offset, len);
        Ok(())
    }

    async fn block_status(&self, offset: u64, len: u64, most: usize) -> Result<Vec<StatusExtent>, IoError> {
        Self::within(offset, len);
        assert!(most > 0);
        Ok(vec![StatusExtent {
            len,
            hole: false,
            zero: false,
        }])
    }
}

/// The server of this process: its address.
fn server() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a folder for the socket");
        // It ends with the process.
        let path = dir.keep().join("s");
        let address = NbdAddress::Unix(path.clone());
        let server = Server::bind(&address, Limits::default(), Shutdown::new()).expect("binds");
        std::thread::spawn(move || {
            let runtime = Runtime::new(Config::default()).expect("a runtime");
            let service = Service {
                export: Arc::new(Export::new(SIZE)),
                limits: Limits::default(),
                counters: Arc::new(Counters::default()),
            };
            let accept = server.run(&Rt, |incoming| {
                Rt.spawn(serve_connection(incoming, Pattern, Rt, service.clone()));
            });
            runtime.block_on(async { accept.await.expect("accepts") });
        });
        path
    })
}

fn connect() -> UnixStream {
    let stream = UnixStream::connect(server()).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    stream.set_write_timeout(Some(PATIENCE)).expect("a time limit");
    stream
}

/// Data that a client sends before its requests.
fn handshake(structured: bool) -> Vec<u8> {
    let flags = flag::FIXED_NEWSTYLE | flag::NO_ZEROES;
    let mut bytes = u32::from(flags).to_be_bytes().to_vec();
    if structured {
        put_option(&mut bytes, opt::STRUCTURED_REPLY, b"");
        let mut queries = Vec::new();
        put_meta_queries(&mut queries, b"", &[BASE_ALLOCATION.as_bytes()]);
        put_option(&mut bytes, opt::SET_META_CONTEXT, &queries);
    }
    put_option(&mut bytes, opt::EXPORT_NAME, b"");
    bytes
}

/// Bytes of the server's reply to [`handshake`], including its greeting.
fn handshake_reply_len(structured: bool) -> usize {
    18 + 10 + if structured { 20 + 20 + 4 + 15 + 20 } else { 0 }
}

fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let request = Request {
        flags,
        command,
        cookie,
        offset,
        len,
    };
    request.header().as_bytes().to_vec()
}

/// The requests by cookie: command, offset, length.
type Sent = BTreeMap<u64, (u16, u64, u32)>;

/// A client's requests from the fuzzer's decisions: mostly valid ones, so that they reach the volume.
fn requests(choices: &mut Choices<'_>) -> (Vec<u8>, Sent) {
    let (mut bytes, mut sent) = (Vec::new(), BTreeMap::new());
    for cookie in 1..=64 {
        if choices.is_over() {
            break;
        }
        let command = choices.below(10) as u16;
        let flags = match choices.below(4) {
            0 => choices.number(2) as u16,
            _ => 0,
        };
        let offset = match choices.below(8) {
            0 => choices.number(8),
            _ => choices.below(SIZE),
        };
        let len = match choices.below(8) {
            0 => choices.number(4) as u32,
            1..4 => choices.below(SIZE) as u32,
            _ => choices.below(4096) as u32,
        };
        // A write's data has the announced length if that is not too long; otherwise the client disconnects.
        let payload = if command == cmd::WRITE { u64::from(len) } else { 0 };
        bytes.extend(request(command, flags, cookie, offset, len));
        sent.insert(cookie, (command, offset, len));
        if payload > 2 * SIZE {
            break;
        }
        bytes.extend((0..payload).map(|at| pattern(offset.wrapping_add(at))));
    }
    (bytes, sent)
}

/// Reads the replies of a session with known requests.
struct Replies<'b> {
    rest: &'b [u8],
    structured: bool,
}

impl<'b> Replies<'b> {
    fn take(&mut self, len: usize) -> &'b [u8] {
        assert!(
            self.rest.len() >= len,
            "a reply ends after {} of {len} bytes",
            self.rest.len()
        );
        let (head, rest) = self.rest.split_at(len);
        self.rest = rest;
        head
    }

    fn header<T: FromBytes>(&mut self) -> T {
        T::read_from_bytes(self.take(size_of::<T>())).expect("as many bytes as it has")
    }

    /// Checks every reply: a known cookie, once, with the right data.
    fn check(&mut self, mut sent: Sent) {
        while !self.rest.is_empty() {
            if self.structured {
                let head = self.header::<ChunkHeader>();
                assert_eq!(head.magic.get(), CHUNK_MAGIC, "no reply");
                let cookie = head.cookie.get();
                let body = self.take(head.len.get() as usize);
                let (_, offset, len) = sent[&cookie];
                if head.kind.get() == chunk::OFFSET_DATA {
                    assert_eq!(body[..8], offset.to_be_bytes());
                    assert!(body[8..] == patterns(offset, len.into()), "wrong data");
                }
                if head.flags.get() & chunk::DONE != 0 {
                    sent.remove(&cookie);
                }
            } else {
                let head = self.header::<SimpleReplyHeader>();
                assert_eq!(head.magic.get(), SIMPLE_REPLY_MAGIC, "no reply");
                let (command, offset, len) = sent
                    .remove(&head.cookie.get())
                    .expect("a request was sent, and not answered");
                if command == cmd::READ && head.error.get() == 0 {
                    assert!(
                        self.take(len as usize) == patterns(offset, len.into()),
                        "wrong data"
                    );
                }
            }
        }
    }
}

/// Sends all of `bytes` in two parts, and returns everything received until the server disconnects.
fn converse(bytes: &[u8], cut: usize) -> Vec<u8> {
    let mut stream = connect();
    let mut sending = stream.try_clone().expect("another handle");
    let mut replies = Vec::new();
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let (first, second) = bytes.split_at(cut.min(bytes.len()));
            // The server may disconnect at any time.
            let _ = sending.write_all(first).and_then(|()| sending.write_all(second));
            let _ = sending.shutdown(Direction::Write);
        });
        let received = (&mut stream).take(REPLIES_MAX).read_to_end(&mut replies);
        if let Err(error) = received {
            assert!(
                error.kind() == std::io::ErrorKind::ConnectionReset,
                "the server does not hang up: {error}"
            );
        }
        sender.join().expect("the sender does not panic");
    });
    assert!((replies.len() as u64) < REPLIES_MAX, "the server does not end");
    replies
}

/// A client that follows the protocol gets correct replies.
fn honest(structured: bool) {
    let mut bytes = handshake(structured);
    bytes.extend(request(cmd::WRITE, 0, 1, 5000, 700));
    bytes.extend(patterns(5000, 700));
    bytes.extend(request(cmd::READ, 0, 2, 1, 9000));
    bytes.extend(request(cmd::FLUSH, 0, 3, 0, 0));
    bytes.extend(request(cmd::DISC, 0, 4, 0, 0));
    let wrong = WRONG_WRITES.load(Ordering::Relaxed);
    let replies = converse(&bytes, usize::MAX);
    let replies = &replies[handshake_reply_len(structured)..];
    let sent = BTreeMap::from([
        (1, (cmd::WRITE, 5000, 700)),
        (2, (cmd::READ, 1, 9000)),
        (3, (cmd::FLUSH, 0, 0)),
    ]);
    let head = if structured { 20 } else { 16 };
    let data = 9000 + if structured { 8 } else { 0 };
    assert_eq!(replies.len(), 3 * head + data, "three replies");
    Replies {
        rest: replies,
        structured,
    }
    .check(sent);
    assert_eq!(
        WRONG_WRITES.load(Ordering::Relaxed),
        wrong,
        "a write's data was changed in transit"
    );
}

/// A session: raw bytes from the start, raw bytes after a handshake, or requests after a handshake.
///
/// # Panics
/// If the server sends a wrong reply, hangs, or no longer serves others.
pub fn session(data: &[u8]) {
    thread_local! {
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }
    // One session at a time, so that a wrong write belongs to this client.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut choices = Choices::new(data);
    let (mode, cut) = (choices.byte(), choices.number(2) as usize);
    let structured = mode & 4 != 0;
    let mut bytes = handshake(structured);
    match mode & 3 {
        0 => drop(converse(choices.rest(), cut)),
        1 => {
            bytes.extend(choices.rest());
            drop(converse(&bytes, cut));
        }
        _ => {
            let (more, sent) = requests(&mut choices);
            bytes.extend(more);
            let wrong = WRONG_WRITES.load(Ordering::Relaxed);
            let replies = converse(&bytes, cut);
            let rest = &replies[handshake_reply_len(structured)..];
            Replies { rest, structured }.check(sent);
            assert_eq!(
                WRONG_WRITES.load(Ordering::Relaxed),
                wrong,
                "a write's data was changed"
            );
        }
    }
    // Not after each session, because it costs as much as a hostile client.
    let count = COUNT.replace(COUNT.get() + 1);
    if count.is_multiple_of(8) {
        honest(count.is_multiple_of(16));
    }
}
