//! The client against scripted servers, most of which violate the protocol.

use std::io::{self, Cursor};

use super::*;
use crate::protocol::{
    ExportInfo, INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionReplyHeader, handshake as flag, info,
    opt, rep, transmission,
};

/// A server with a fixed script. It records what the client sends.
#[derive(Debug)]
struct Script {
    says: Cursor<Vec<u8>>,
    heard: Vec<u8>,
}

impl Read for Script {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        // In small pieces, as a socket may deliver them.
        let most = bytes.len().min(7);
        self.says.read(&mut bytes[..most])
    }
}

impl Write for Script {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.heard.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn greeting() -> Vec<u8> {
    let flags = flag::FIXED_NEWSTYLE | flag::NO_ZEROES;
    [
        &INIT_MAGIC.to_be_bytes()[..],
        &OPTION_MAGIC.to_be_bytes(),
        &flags.to_be_bytes(),
    ]
    .concat()
}

fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let header = OptionReplyHeader {
        magic: OPTION_REPLY_MAGIC.into(),
        option: option.into(),
        kind: kind.into(),
        len: (data.len() as u32).into(),
    };
    [header.as_bytes(), data].concat()
}

fn export() -> Vec<u8> {
    let export = ExportInfo {
        size: (1 << 20).into(),
        flags: transmission::HAS_FLAGS.into(),
    };
    [&info::EXPORT.to_be_bytes()[..], export.as_bytes()].concat()
}

/// A handshake with structured replies, then `replies`.
fn connect(replies: &[u8]) -> Client<Script> {
    let says = [
        greeting(),
        option_reply(opt::STRUCTURED_REPLY, rep::ACK, &[]),
        option_reply(opt::GO, rep::INFO, &export()),
        option_reply(opt::GO, rep::ACK, &[]),
        replies.to_vec(),
    ];
    over(says.concat(), true).expect("negotiates")
}

fn over(says: Vec<u8>, structured: bool) -> Result<Client<Script>, ClientError> {
    let script = Script {
        says: Cursor::new(says),
        heard: Vec::new(),
    };
    let options = ClientOptions {
        structured,
        ..ClientOptions::default()
    };
    Client::over(script, &options)
}

fn chunk_of(cookie: u64, flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let header = ChunkHeader {
        magic: CHUNK_MAGIC.into(),
        flags: flags.into(),
        kind: kind.into(),
        cookie: cookie.into(),
        len: (payload.len() as u32).into(),
    };
    [header.as_bytes(), payload].concat()
}

fn data_chunk(cookie: u64, flags: u16, offset: u64, data: &[u8]) -> Vec<u8> {
    let payload = [&offset.to_be_bytes()[..], data].concat();
    chunk_of(cookie, flags, chunk::OFFSET_DATA, &payload)
}

fn hole_chunk(cookie: u64, flags: u16, offset: u64, len: u32) -> Vec<u8> {
    let payload = [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat();
    chunk_of(cookie, flags, chunk::OFFSET_HOLE, &payload)
}

/// The first request, a read of 16 bytes, answered with `reply`.
fn read_from(reply: &[u8]) -> Result<[u8; 16], ClientError> {
    let mut data = [9; 16];
    connect(reply).read(4096, &mut data).map(|()| data)
}

#[test]
fn structured_chunks_are_combined() {
    let chunks = [data_chunk(1, 0, 4104, &[5; 8]), hole_chunk(1, 1, 4096, 8)];
    let read = read_from(&chunks.concat()).expect("reads");
    assert_eq!(read, [0, 0, 0, 0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5]);
}

#[test]
fn chunks_of_several_replies_may_be_mixed() {
    let replies = [
        data_chunk(2, 0, 100, &[2; 2]),
        data_chunk(1, 1, 0, &[1; 4]),
        data_chunk(2, 1, 102, &[3; 2]),
    ];
    let mut client = connect(&replies.concat());
    assert_eq!(client.send(Command::Read, 0, 4).expect("sends"), 1);
    assert_eq!(client.send(Command::Read, 100, 4).expect("sends"), 2);
    for (cookie, data) in [(1, vec![1; 4]), (2, vec![2, 2, 3, 3])] {
        let outcome = Ok(data);
        assert_eq!(client.receive().expect("receives"), Reply { cookie, outcome });
    }
    assert!(matches!(client.receive(), Err(ClientError::Idle)));
}

#[test]
fn replies_that_do_not_fit_are_errors() {
    let [outside, before] = [4100, 0].map(|at| data_chunk(1, 1, at, &[5; 16]));
    let short = data_chunk(1, 1, 4096, &[5; 8]);
    let twice = [data_chunk(1, 0, 4096, &[5; 8]), data_chunk(1, 1, 4096, &[5; 8])].concat();
    let huge = hole_chunk(1, 1, 4096, u32::MAX);
    let unknown = chunk_of(1, 1, 77, &[]);
    let other = data_chunk(2, 1, 4096, &[5; 16]);
    let long = chunk_of(1, 1, chunk::ERROR, &vec![0; (64 << 10) + 1]);
    let cut = chunk_of(1, 1, chunk::ERROR, &[0, 0, 0, 5, 0, 1]);
    let garbage = vec![1, 2, 3, 4];
    for reply in [
        outside, before, short, twice, huge, unknown, other, long, cut, garbage,
    ] {
        let error = read_from(&reply).expect_err("refused");
        assert!(
            matches!(error, ClientError::Protocol { .. }),
            "{error} for {reply:?}"
        );
    }
    let error = read_from(&[]).expect_err("the server hung up");
    assert!(error.is_disconnect(), "{error}");
}

#[test]
fn an_error_of_the_server_names_the_request() {
    let body = [&28_u32.to_be_bytes()[..], &[0, 4], b"full"].concat();
    let error = read_from(&chunk_of(1, 1, chunk::ERROR, &body)).expect_err("an error");
    assert_eq!(error.errno(), Some(28));
    let text = error.to_string();
    assert!(
        text.starts_with("NBD read of 16 bytes at offset 4096: No space left"),
        "{text}"
    );
    assert!(text.ends_with("full"), "{text}");
}

#[test]
fn nothing_is_received_after_a_broken_reply() {
    let broken = [chunk_of(1, 1, 77, &[]), data_chunk(1, 1, 0, &[5; 4])];
    let mut client = connect(&broken.concat());
    client.send(Command::Read, 0, 4).expect("sends");
    assert!(matches!(client.receive(), Err(ClientError::Protocol { .. })));
    assert!(client.receive().expect_err("it ended").is_disconnect());
}

#[test]
fn simple_replies_are_followed_by_their_data() {
    let reply = |cookie: u64, error: u32| {
        let header = SimpleReplyHeader {
            magic: SIMPLE_REPLY_MAGIC.into(),
            error: error.into(),
            cookie: cookie.into(),
        };
        header.as_bytes().to_vec()
    };
    let says = [
        greeting(),
        option_reply(opt::GO, rep::INFO, &export()),
        option_reply(opt::GO, rep::ACK, &[]),
        reply(1, 0),
        vec![7; 4],
        reply(2, 5),
        reply(3, 0),
        chunk_of(4, 1, chunk::NONE, &[]),
    ];
    let mut client = over(says.concat(), false).expect("negotiates");
    assert!(!client.is_structured());
    assert_eq!(client.call(Command::Read, 0, 4).expect("reads"), [7; 4]);
    assert_eq!(
        client.call(Command::Read, 0, 4).expect_err("an error").errno(),
        Some(5)
    );
    client.flush().expect("flushes");
    let error = client.flush().expect_err("it was not agreed on");
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
}

#[test]
fn invalid_handshakes_are_refused() {
    let go = |kind, data: &[u8]| option_reply(opt::GO, kind, data);
    let mut wrong_magic = greeting();
    wrong_magic[0] = b'M';
    let mut old_style = greeting();
    old_style[17] = 0;
    let endless = vec![go(rep::INFO, &export()); 65].concat();
    let huge = OptionReplyHeader {
        magic: OPTION_REPLY_MAGIC.into(),
        option: opt::GO.into(),
        kind: rep::INFO.into(),
        len: u32::MAX.into(),
    };
    let without_flags = [&info::EXPORT.to_be_bytes()[..], &[0; 10]].concat();
    for says in [
        wrong_magic,
        old_style,
        [greeting(), go(rep::ACK, &[])].concat(),
        [greeting(), endless].concat(),
        [&greeting()[..], huge.as_bytes()].concat(),
        [greeting(), go(rep::INFO, &export()[..11])].concat(),
        [greeting(), go(rep::INFO, &without_flags)].concat(),
        [greeting(), option_reply(opt::LIST, rep::ACK, &[])].concat(),
    ] {
        let error = over(says.clone(), false).expect_err("refused");
        assert!(
            matches!(error, ClientError::Protocol { .. }),
            "{error} for {says:?}"
        );
    }
    let says = [greeting(), go(rep::ERR_UNKNOWN, b"no such export")].concat();
    let error = over(says, false).expect_err("refused");
    assert!(
        matches!(
            error,
            ClientError::Refused {
                reply: rep::ERR_UNKNOWN,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("no such export"), "{error}");
}

#[test]
fn requests_in_flight_are_limited() {
    let mut client = connect(&[]);
    let over = PAYLOAD_BYTES_MAX + 1;
    assert!(matches!(
        client.send(Command::Read, 0, over),
        Err(ClientError::Limit { .. })
    ));
    for _ in 0..2 {
        client.send(Command::Read, 0, PAYLOAD_BYTES_MAX).expect("sends");
    }
    assert!(matches!(
        client.send(Command::Read, 0, 1),
        Err(ClientError::Limit { .. })
    ));
    for _ in 2..REQUESTS_IN_FLIGHT_MAX {
        client
            .send(Command::Trim { fua: false }, 0, u32::MAX)
            .expect("sends");
    }
    assert!(matches!(
        client.send(Command::Flush, 0, 0),
        Err(ClientError::Limit { .. })
    ));
}
