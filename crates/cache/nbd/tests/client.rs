//! The client against flaz's own server and against nbdkit.

mod support;

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command as Program};
use std::time::{Duration, Instant};

use flaz_nbd::Export;
use flaz_nbd::client::{Client, ClientError, ClientOptions};
use flaz_nbd::protocol::transmission;
use flaz_nbd::request::Command;
use support::tools::have;
use support::{MIB, Remote};

const SIZE: u64 = 64 * MIB;

fn both() -> [ClientOptions; 2] {
    [false, true].map(|structured| ClientOptions {
        structured,
        ..ClientOptions::default()
    })
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at.wrapping_mul(seed | 1) >> 3) as u8 ^ seed as u8)
        .collect()
}

#[test]
fn data_comes_back_with_simple_and_structured_replies() {
    let server = Remote::start(Export::new(SIZE));
    for options in both() {
        let mut client = Client::connect_with(&server.socket(), &options).expect("connects");
        assert_eq!(client.size_bytes(), SIZE);
        assert_eq!(client.is_structured(), options.structured);
        let expected = transmission::SEND_FUA | transmission::SEND_TRIM | transmission::CAN_MULTI_CONN;
        assert_eq!(client.flags() & expected, expected);
        for (offset, len) in [(0, 4096), (511, 1), (MIB - 700, 1400), (3, 3 << 20), (7, 0)] {
            let data = pattern(len, offset);
            client.write(offset, &data).expect("writes");
            let mut read = vec![0xa5; len];
            client.read(offset, &mut read).expect("reads");
            assert!(read == data, "{len} bytes at {offset}");
        }
        client.flush().expect("flushes");
        client.call(Command::Cache, 0, 1 << 20).expect("prefetches");
        let zero = Command::WriteZeroes {
            fua: true,
            may_unmap: true,
        };
        client.call(zero, 100, 50).expect("zeroes");
        assert_eq!(client.call(Command::Read, 100, 50).expect("reads"), [0; 50]);
        client.call(Command::Trim { fua: true }, 0, 4096).expect("trims");
    }
}

#[test]
fn many_requests_in_flight_are_all_answered() {
    const WRITES: u64 = 200;
    let server = Remote::start(Export::new(SIZE));
    for options in both() {
        let mut client = Client::connect_with(&server.socket(), &options).expect("connects");
        for number in 0..WRITES {
            let data = pattern(4096, number);
            client
                .send_write(number * 4096, &data, number % 3 == 0)
                .expect("sends");
        }
        for _ in 0..WRITES {
            assert_eq!(client.receive().expect("a reply").outcome, Ok(vec![]));
        }
        let sent: Vec<u64> = (0..WRITES)
            .map(|number| client.send(Command::Read, number * 4096, 4096).expect("sends"))
            .collect();
        for _ in 0..WRITES {
            let reply = client.receive().expect("a reply");
            let number = sent.iter().position(|&cookie| cookie == reply.cookie);
            let data = pattern(4096, number.expect("it was sent") as u64);
            assert!(reply.outcome == Ok(data), "request {number:?}");
        }
        assert!(matches!(client.receive(), Err(ClientError::Idle)));
    }
}

#[test]
fn a_refused_request_leaves_the_connection_usable() {
    let server = Remote::start(Export::new(SIZE));
    for options in both() {
        let mut client = Client::connect_with(&server.socket(), &options).expect("connects");
        let error = client.read(SIZE - 1, &mut [0; 2]).expect_err("beyond the end");
        assert_eq!(error.errno(), Some(22), "{error}");
        let words = error.to_string().contains("exceeds the device");
        assert_eq!(words, options.structured, "{error}");
        let error = client.write(SIZE, b"x").expect_err("beyond the end");
        assert_eq!(error.errno(), Some(28), "{error}");
        client.write(0, b"still here").expect("writes");
        assert_eq!(client.call(Command::Read, 0, 10).expect("reads"), b"still here");
    }
}

#[test]
fn exports_have_names() {
    let server = Remote::start(Export::new(SIZE).with_name("disk").expect("short"));
    let named = |name: &str| ClientOptions {
        export: name.into(),
        ..ClientOptions::default()
    };
    Client::connect_with(&server.socket(), &named("disk")).expect("connects");
    let error = Client::connect_with(&server.socket(), &named("other")).expect_err("unknown");
    assert!(matches!(error, ClientError::Refused { .. }), "{error}");
}

#[test]
fn a_read_only_export_refuses_writes() {
    let server = Remote::start(Export::new(SIZE).read_only(true));
    let mut client = Client::connect(&server.socket()).expect("connects");
    assert_ne!(client.flags() & transmission::READ_ONLY, 0);
    let error = client.write(0, b"x").expect_err("read-only");
    assert_eq!(error.errno(), Some(1), "{error}");
}

#[test]
fn a_server_that_stops_ends_the_connection() {
    let server = Remote::start(Export::new(SIZE));
    let mut client = Client::connect(&server.socket()).expect("connects");
    client.write(0, b"x").expect("writes");
    drop(server);
    let error = client.read(0, &mut [0]).expect_err("it is gone");
    assert!(error.is_disconnect(), "{error}");
}

#[test]
fn a_socket_without_a_server_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let error = Client::connect(&dir.path().join("nbd.sock")).expect_err("nobody listens");
    assert!(error.is_disconnect());
    assert!(error.to_string().contains("nbd.sock"), "{error}");
}

#[test]
fn a_silent_server_is_not_waited_for_forever() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("s");
    let _silent = std::os::unix::net::UnixListener::bind(&path).expect("binds");
    let options = ClientOptions {
        timeout: Duration::from_millis(50),
        ..ClientOptions::default()
    };
    let error = Client::connect_with(&path, &options).expect_err("no greeting");
    assert!(error.is_disconnect(), "{error}");
}

/// nbdkit on a socket, killed at the end.
struct Nbdkit(Child);

impl Nbdkit {
    fn start(socket: &Path, arguments: &[&str]) -> Self {
        let child = Program::new("nbdkit")
            .arg("-f")
            .arg("-U")
            .arg(socket)
            .args(arguments)
            .spawn()
            .expect("nbdkit starts");
        let until = Instant::now() + Duration::from_secs(10);
        while UnixStream::connect(socket).is_err() {
            assert!(Instant::now() < until, "nbdkit did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self(child)
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_client_works_with_nbdkit() {
    if !have("nbdkit", "nbdkit") {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("s");
    let _server = Nbdkit::start(&path, &["memory", "1M"]);
    let mut client = Client::connect(&path).expect("connects");
    assert_eq!(client.size_bytes(), 1 << 20);
    let mut other = Client::connect(&path).expect("connects a second time");
    let data = pattern(20_000, 5);
    client.write(4096, &data).expect("writes");
    client.flush().expect("flushes");
    let mut read = vec![1; data.len() + 8192];
    other.read(0, &mut read).expect("reads");
    assert!(read[..4096].iter().all(|&byte| byte == 0));
    assert_eq!(read[4096..4096 + data.len()], data);
}

#[test]
fn an_error_of_nbdkit_names_the_request() {
    if !have("nbdkit", "nbdkit") {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("s");
    let failing = [
        "--filter=error",
        "memory",
        "1M",
        "error-pread=EIO",
        "error-pread-rate=100%",
    ];
    let _server = Nbdkit::start(&path, &failing);
    let mut client = Client::connect(&path).expect("connects");
    let error = client.read(8192, &mut [0; 512]).expect_err("an error");
    assert_eq!(error.errno(), Some(5), "{error}");
    assert!(error.to_string().contains("512 bytes at offset 8192"), "{error}");
    client.write(0, &[7; 512]).expect("the connection still works");
}
