//! Server and client against each other, and the server against clients that misbehave.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::protocol::REQUEST_LINE_MAX;
use super::server::CLIENTS_MAX;
use super::{Asker, Client, ControlError, ControlHandler, Reply, Request, Server};
use crate::client::ANSWER;
use crate::report::example::example;
use crate::settings::SettingsPatch;

/// Answers status with an example, refuses settings, and takes a while to stop.
#[derive(Default)]
struct Fake {
    asked: AtomicUsize,
}

const STOP_TAKES: Duration = Duration::from_millis(300);

impl ControlHandler for Fake {
    fn handle(&self, request: Request, _: Asker<'_>) -> Reply {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match request {
            Request::Status {} => Reply::Status(Box::new(example())),
            Request::Identify {} => Reply::Refused("of no file".to_owned()),
            Request::Advise {} => Reply::Refused("nothing was read".to_owned()),
            Request::Set(_) | Request::SetUntilRestart(_) => Reply::Refused("not on a Sunday".to_owned()),
            Request::GiveSpace { bytes, .. } => Reply::Gives { bytes },
            Request::VolumeResize {} => Reply::Refused("the origin has shrunk".to_owned()),
            Request::Flush {} => Reply::Left { dirty_blocks: 3 },
            Request::Resize { .. } | Request::ContinueResize {} | Request::MakeRoom { .. } => {
                Reply::Refused("not on a Sunday".to_owned())
            }
            Request::Stop { .. } | Request::Detach { .. } => {
                std::thread::sleep(STOP_TAKES);
                Reply::Done
            }
        }
    }
}

struct Scratch {
    folder: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("c.sock")
    }

    fn server(&self) -> Server {
        Server::start(&self.socket(), Arc::new(Fake::default())).unwrap()
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket(), None).unwrap()
    }

    fn raw(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }
}

fn line(stream: &UnixStream) -> String {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

#[test]
fn requests_are_answered_in_order() {
    let scratch = Scratch::new();
    let _server = scratch.server();
    let mut client = scratch.client();
    for _ in 0..3 {
        assert_eq!(
            client.ask(&Request::Status {}, ANSWER).unwrap(),
            Reply::Status(Box::new(example()))
        );
    }
    let error = client
        .ask(&Request::Set(SettingsPatch::default()), ANSWER)
        .unwrap_err();
    assert_eq!(error.to_string(), "the daemon reports: not on a Sunday");
    assert_eq!(
        client
            .ask(
                &Request::Stop {
                    wait: true,
                    force: false
                },
                ANSWER
            )
            .unwrap(),
        Reply::Done
    );
}

#[test]
fn the_socket_is_private_and_removed_with_the_server() {
    let scratch = Scratch::new();
    let server = scratch.server();
    let mode = std::fs::metadata(scratch.socket()).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o600);
    server.close();
    assert!(!scratch.socket().exists());
    let error = Client::connect(&scratch.socket(), None).unwrap_err();
    assert!(matches!(error, ControlError::NotRunning { .. }), "{error}");
}

/// A client that waits for the end of the daemon finds no socket when it is told.
#[test]
fn a_removed_socket_leaves_connected_clients() {
    let scratch = Scratch::new();
    let mut server = scratch.server();
    let mut client = scratch.client();
    client.ask(&Request::Status {}, ANSWER).unwrap();
    server.remove_socket();
    assert!(!scratch.socket().exists());
    client.ask(&Request::Status {}, ANSWER).unwrap();
    // The place is free for the next daemon, whose socket stays.
    let next = scratch.server();
    server.close();
    assert!(scratch.socket().exists());
    next.close();
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let scratch = Scratch::new();
    // A bound and abandoned socket, as a killed daemon leaves it.
    drop(UnixListener::bind(scratch.socket()).unwrap());
    assert!(scratch.socket().exists());
    let server = scratch.server();
    let Err(error) = Server::start(&scratch.socket(), Arc::new(Fake::default())) else {
        panic!("two servers")
    };
    assert!(matches!(error, ControlError::InUse { .. }), "{error}");
    assert!(
        scratch.client().ask(&Request::Status {}, ANSWER).is_ok(),
        "the first one lives on"
    );
    server.close();
}

#[test]
fn other_files_are_not_replaced() {
    let scratch = Scratch::new();
    std::fs::write(scratch.socket(), "precious").unwrap();
    let Err(error) = Server::start(&scratch.socket(), Arc::new(Fake::default())) else {
        panic!("replaced")
    };
    assert!(matches!(error, ControlError::NotASocket { .. }), "{error}");
    let error = error.to_string();
    assert!(
        error.ends_with(" is not a socket: use another --control PATH"),
        "{error}"
    );
    assert_eq!(std::fs::read(scratch.socket()).unwrap(), b"precious");
}

#[test]
fn a_socket_path_that_is_too_long_is_refused() {
    let long = PathBuf::from("/tmp").join("x".repeat(120));
    let Err(error) = Server::start(&long, Arc::new(Fake::default())) else {
        panic!("fits")
    };
    assert!(
        matches!(error, ControlError::PathTooLong { len: 125, .. }),
        "{error}"
    );
}

#[test]
fn another_servers_socket_is_not_removed() {
    let scratch = Scratch::new();
    let server = scratch.server();
    std::fs::remove_file(scratch.socket()).unwrap();
    let listener = UnixListener::bind(scratch.socket()).unwrap();
    drop(server);
    assert!(scratch.socket().exists());
    drop(listener);
}

#[test]
fn invalid_requests_are_answered_without_disconnecting() {
    let scratch = Scratch::new();
    let _server = scratch.server();
    let mut stream = scratch.raw();
    stream.write_all(b"hello\n").unwrap();
    assert!(line(&stream).contains(r#""ok":false"#));
    // In pieces.
    stream.write_all(br#"{"cmd":"#).unwrap();
    stream.write_all(b"\"status\"}\n").unwrap();
    assert!(line(&stream).contains(r#""ok":true"#));
    stream.write_all(b"\xff\xfe\n").unwrap();
    assert!(line(&stream).contains("UTF-8"));
}

#[test]
fn a_line_without_end_is_cut_off() {
    let scratch = Scratch::new();
    let _server = scratch.server();
    let mut stream = scratch.raw();
    stream.write_all(&vec![b'x'; REQUEST_LINE_MAX + 1]).unwrap();
    assert!(line(&stream).contains("at most 16384 bytes"));
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "hung up on");
    assert!(scratch.client().ask(&Request::Status {}, ANSWER).is_ok());
}

#[test]
fn too_many_clients_are_refused_and_slots_are_reused() {
    let scratch = Scratch::new();
    let _server = scratch.server();
    let clients: Vec<UnixStream> = (0..CLIENTS_MAX).map(|_| scratch.raw()).collect();
    let mut late = scratch.client();
    let error = late.ask(&Request::Status {}, ANSWER).unwrap_err();
    assert!(error.to_string().contains("16 clients are connected"), "{error}");
    drop(clients);
    let deadline = Instant::now() + Duration::from_secs(10);
    while scratch.client().ask(&Request::Status {}, ANSWER).is_err() {
        assert!(Instant::now() < deadline, "places do not come back");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Their flushes may continue as long as the origin stalls.
#[test]
fn clients_that_timed_out_occupy_no_slot() {
    let scratch = Scratch::new();
    let fake = Arc::new(Fake::default());
    let _server = Server::start(&scratch.socket(), Arc::clone(&fake) as Arc<dyn ControlHandler>).unwrap();
    for _ in 0..CLIENTS_MAX {
        scratch.raw().write_all(b"{\"cmd\":\"stop\"}\n").unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while fake.asked.load(Ordering::SeqCst) < CLIENTS_MAX {
        assert!(Instant::now() < deadline, "not all are served");
        std::thread::sleep(Duration::from_millis(1));
    }
    scratch.client().ask(&Request::Status {}, ANSWER).unwrap();
}

#[test]
fn idle_clients_do_not_delay_the_end_of_the_server() {
    let scratch = Scratch::new();
    let server = scratch.server();
    let _idle = scratch.raw();
    let mut stopper = scratch.raw();
    stopper.write_all(b"{\"cmd\":\"stop\"}\n").unwrap();
    std::thread::sleep(STOP_TAKES / 3);
    let begun = Instant::now();
    server.close();
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(line(&stopper).contains(r#""ok":true"#));
}

#[test]
fn a_server_that_does_not_answer_times_out() {
    let scratch = Scratch::new();
    let _listener = UnixListener::bind(scratch.socket()).unwrap();
    let error = scratch
        .client()
        .ask(&Request::Status {}, Duration::from_millis(100))
        .unwrap_err();
    assert!(matches!(error, ControlError::TimedOut { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("see the log of the daemon, and try again"),
        "{error}"
    );
    let error = scratch
        .client()
        .ask(
            &Request::Set(SettingsPatch::default()),
            Duration::from_millis(100),
        )
        .unwrap_err();
    assert!(error.to_string().contains("may still take effect"), "{error}");
    let error = scratch
        .client()
        .ask(
            &Request::Stop {
                wait: true,
                force: false,
            },
            Duration::from_millis(100),
        )
        .unwrap_err();
    assert!(error.to_string().contains("still stopping"), "{error}");
}

#[test]
fn invalid_replies_are_refused() {
    for (reply, want) in [
        (&b"HTTP/1.1 400\r\n"[..], "invalid reply"),
        (b"{\"v\":2,\"ok\":true}\n", "version 2"),
        (b"half a line", "no end of line"),
        (b"", "without a reply"),
        (b"\xff\n", "invalid reply"),
    ] {
        let scratch = Scratch::new();
        let listener = UnixListener::bind(scratch.socket()).unwrap();
        let reply = reply.to_vec();
        let answerer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            stream.write_all(&reply).unwrap();
        });
        let error = scratch
            .client()
            .ask(&Request::Status {}, ANSWER)
            .unwrap_err()
            .to_string();
        assert!(error.contains(want), "{error}");
        answerer.join().unwrap();
    }
}
