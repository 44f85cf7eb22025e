//! The client against nbdkit, where that is installed, and against scripted servers that lie.

use super::*;
use crate::demo::nbdkit::Nbdkit;
use std::os::unix::net::UnixListener;
use std::thread;

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("nbd.sock");
    (folder, socket)
}

#[test]
fn reads_what_it_wrote_over_nbdkit() {
    let (_folder, socket) = scratch();
    let Some(_server) = Nbdkit::start(&socket, &["memory", "1M"]) else {
        return;
    };
    let mut client = NbdClient::connect(&socket).expect("connects");
    assert_eq!(client.size_bytes(), 1 << 20);
    let mut other = NbdClient::connect(&socket).expect("connects a second time");
    let data: Vec<u8> = (0..20_000u32).map(|number| (number % 251) as u8).collect();
    client.write_at(4096, &data).expect("writes");
    client.flush().expect("flushes");
    let mut read = vec![1; data.len() + 8192];
    other.read_at(0, &mut read).expect("reads");
    assert!(read[..4096].iter().all(|&byte| byte == 0));
    assert_eq!(read[4096..4096 + data.len()], data);
}

#[test]
fn an_error_of_the_server_names_the_request() {
    let (_folder, socket) = scratch();
    let Some(_server) = Nbdkit::start(
        &socket,
        &[
            "--filter=error",
            "memory",
            "1M",
            "error-pread=EIO",
            "error-pread-rate=100%",
        ],
    ) else {
        return;
    };
    let mut client = NbdClient::connect(&socket).expect("connects");
    let error = client.read_at(8192, &mut [0; 512]).expect_err("an error");
    assert!(
        matches!(
            error,
            NbdError::Request {
                offset: 8192,
                length: 512,
                errno: 5,
                ..
            }
        ),
        "{error}"
    );
    client.write_at(0, &[7; 512]).expect("the connection still works");
}

#[test]
fn nobody_listening_is_said() {
    let (_folder, socket) = scratch();
    let error = NbdClient::connect(&socket).expect_err("nobody listens");
    assert!(error.to_string().contains("nbd.sock"), "{error}");
}

/// A server that plays `script` to whoever connects: negotiation, then one reply.
fn scripted(socket: &Path, reply: Vec<u8>) -> thread::JoinHandle<()> {
    let listener = UnixListener::bind(socket).expect("binds");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut hello = Vec::new();
        hello.extend(MAGIC.to_be_bytes());
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(3u16.to_be_bytes());
        for (option, kind, data) in [
            (OPT_STRUCTURED_REPLY, REP_ACK, vec![]),
            (OPT_GO, REP_INFO, export()),
            (OPT_GO, REP_ACK, vec![]),
        ] {
            hello.extend(OPTION_REPLY_MAGIC.to_be_bytes());
            hello.extend(option.to_be_bytes());
            hello.extend(kind.to_be_bytes());
            hello.extend((data.len() as u32).to_be_bytes());
            hello.extend(data);
        }
        stream.write_all(&hello).expect("the greeting");
        stream.write_all(&reply).expect("the reply");
        stream
            .shutdown(std::net::Shutdown::Write)
            .expect("no more from here");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    })
}

fn export() -> Vec<u8> {
    [
        &INFO_EXPORT.to_be_bytes()[..],
        &(1u64 << 20).to_be_bytes(),
        &[0, 1],
    ]
    .concat()
}

fn chunk(flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    [
        &STRUCTURED_REPLY_MAGIC.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &1u64.to_be_bytes(),
        &(payload.len() as u32).to_be_bytes(),
        payload,
    ]
    .concat()
}

fn read_from(reply: Vec<u8>) -> Result<[u8; 16], NbdError> {
    let (_folder, socket) = scratch();
    let server = scripted(&socket, reply);
    let mut client = NbdClient::connect(&socket).expect("negotiates");
    let mut data = [9; 16];
    let result = client.read_at(4096, &mut data);
    drop(client);
    server.join().expect("the server ends well");
    result.map(|()| data)
}

#[test]
fn structured_chunks_are_put_together() {
    let data = chunk(
        0,
        CHUNK_OFFSET_DATA,
        &[&4104u64.to_be_bytes()[..], &[5; 8]].concat(),
    );
    let hole = chunk(
        1,
        CHUNK_OFFSET_HOLE,
        &[&4096u64.to_be_bytes()[..], &8u32.to_be_bytes()].concat(),
    );
    let read = read_from([data, hole].concat()).expect("reads");
    assert_eq!(read, [0, 0, 0, 0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5]);
}

#[test]
fn replies_that_do_not_fit_are_errors() {
    let outside = chunk(
        1,
        CHUNK_OFFSET_DATA,
        &[&4100u64.to_be_bytes()[..], &[5; 16]].concat(),
    );
    let before = chunk(
        1,
        CHUNK_OFFSET_DATA,
        &[&0u64.to_be_bytes()[..], &[5; 16]].concat(),
    );
    let short = chunk(
        1,
        CHUNK_OFFSET_DATA,
        &[&4096u64.to_be_bytes()[..], &[5; 8]].concat(),
    );
    let huge = chunk(
        1,
        CHUNK_OFFSET_HOLE,
        &[&4096u64.to_be_bytes()[..], &[255; 4]].concat(),
    );
    let unknown = chunk(1, 77, &[]);
    for reply in [outside, before, short, huge, unknown, vec![1, 2, 3, 4]] {
        let error = read_from(reply.clone()).expect_err("refused");
        assert!(
            matches!(error, NbdError::Protocol { .. }),
            "{error} for {reply:?}"
        );
    }
    let errno = chunk(
        1,
        CHUNK_FLAG_ERROR | 1,
        &[&28u32.to_be_bytes()[..], &[0, 0]].concat(),
    );
    assert!(matches!(
        read_from(errno),
        Err(NbdError::Request { errno: 28, .. })
    ));
    assert!(matches!(read_from(vec![]), Err(NbdError::Io { .. })));
}
