//! Sockets: accepting, batches, short sends, ends of connections.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{Env, IoBuf};
use flaz_runtime::net::{Listener, Stream};
use flaz_runtime::{Rt, SendBatch};

use crate::runtime;

/// Echoes received data until the peer closes.
async fn echo(fd: OwnedFd) {
    let stream = Stream::new(fd).expect("stream");
    let mut buf = IoBuf::new(64 << 10);
    let mut batch = SendBatch::new();
    loop {
        let end = buf.len();
        let (back, received) = stream.recv(buf, 0, end).await;
        buf = back;
        let received = received.expect("a local socket");
        if received == 0 {
            return;
        }
        batch.clear();
        for piece in buf[..received].chunks(3000) {
            let (head, tail) = piece.split_at(piece.len() / 3);
            batch.push_bytes(head);
            batch.push_buf(IoBuf::copy_of(tail));
        }
        assert_eq!(batch.bytes(), received);
        let (back, sent) = stream.send_all(batch).await;
        sent.expect("a local socket");
        batch = back;
    }
}

fn exchange(mut client: impl Read + Write + Send + 'static) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        for len in [1usize, 10, 3000, 4096, 60_000] {
            let message: Vec<u8> = (0..len).map(|at| (at * 31 + len) as u8).collect();
            client.write_all(&message).expect("the server accepts it");
            let mut answer = vec![0; len];
            client.read_exact(&mut answer).expect("the server answers");
            assert_eq!(answer, message);
        }
    })
}

#[test]
fn an_echo_server_on_a_unix_socket_and_one_on_tcp() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("socket");
    let unix = UnixListener::bind(&path).expect("bind");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = tcp.local_addr().expect("an address");
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(exchange(UnixStream::connect(&path).expect("connect")));
        clients.push(exchange(TcpStream::connect(address).expect("connect")));
    }
    runtime().block_on(async {
        let unix = Listener::from_unix(unix).expect("listener");
        let tcp = Listener::from_tcp(tcp).expect("listener");
        for _ in 0..4 {
            Rt.spawn(echo(unix.accept().await.expect("a connection")));
            Rt.spawn(echo(tcp.accept().await.expect("a connection")));
        }
        while !clients.iter().all(std::thread::JoinHandle::is_finished) {
            Rt.sleep(Duration::from_millis(1)).await;
        }
    });
    for client in clients {
        client.join().expect("the answers were right");
    }
}

/// More data than a socket accepts at once, in more pieces than one call accepts, with a slow reader.
#[test]
fn a_large_batch_arrives_whole_and_in_order() {
    let (here, mut there) = UnixStream::pair().expect("socket pair");
    let mut expected = Vec::new();
    let mut batch = SendBatch::new();
    for number in 0..3000u32 {
        let header = number.to_be_bytes();
        let payload: Vec<u8> = (0..number as usize % 4100)
            .map(|at| (at as u32 ^ number) as u8)
            .collect();
        batch.push_bytes(&header);
        batch.push_buf(IoBuf::copy_of(&payload));
        expected.extend_from_slice(&header);
        expected.extend_from_slice(&payload);
    }
    let total = expected.len();
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; total];
        for piece in got.chunks_mut(777_777) {
            std::thread::sleep(Duration::from_millis(3));
            there.read_exact(piece).expect("the sender sends all");
        }
        assert!(got == expected, "the bytes differ");
        there
    });
    runtime().block_on(async {
        let stream = Stream::new(here.into()).expect("stream");
        assert_eq!(batch.bytes(), total);
        let (mut batch, sent) = stream.send_all(batch).await;
        sent.expect("the reader reads all");
        batch.clear();
        assert!(batch.is_empty());
        let (_, sent) = stream.send_all(batch).await;
        sent.expect("an empty batch is nothing to send");
    });
    reader.join().expect("the bytes were right");
}

#[test]
fn shutting_down_ends_a_waiting_receive_and_fails_sends() {
    let (here, _there) = UnixStream::pair().expect("socket pair");
    runtime().block_on(async {
        let stream = Rc::new(Stream::new(here.into()).expect("stream"));
        let closer = Rc::clone(&stream);
        Rt.spawn(async move {
            Rt.sleep(Duration::from_millis(2)).await;
            closer.shutdown();
        });
        let (_, received) = stream.recv(IoBuf::new(16), 0, 16).await;
        assert_eq!(received.expect("an orderly end"), 0);
        let mut batch = SendBatch::new();
        batch.push_bytes(b"too late");
        let (_, sent) = stream.send_all(batch).await;
        assert_eq!(
            sent.expect_err("no one reads it").kind(),
            std::io::ErrorKind::BrokenPipe
        );
        stream.shutdown();
    });
}

#[test]
fn a_dropped_accept_loses_no_listener() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).expect("bind");
    runtime().block_on(async {
        let listener = Listener::from_unix(listener).expect("listener");
        for _ in 0..100 {
            let waiting = std::pin::pin!(listener.accept());
            let timeout = std::pin::pin!(Rt.sleep(Duration::from_micros(50)));
            futures_util::future::select(waiting, timeout).await;
        }
        let _client = UnixStream::connect(&path).expect("connect");
        listener.accept().await.expect("a connection");
    });
}

/// A server stops in this way.
#[test]
fn an_accept_ends_when_the_listener_is_shut_down() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let unix = UnixListener::bind(directory.path().join("socket")).expect("bind");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("bind");
    let descriptors = [
        OwnedFd::from(unix.try_clone().expect("a second descriptor")),
        OwnedFd::from(tcp.try_clone().expect("a second descriptor")),
    ];
    runtime().block_on(async {
        let listeners = [
            Listener::from_unix(unix).expect("listener"),
            Listener::from_tcp(tcp).expect("listener"),
        ];
        for (listener, second) in listeners.iter().zip(&descriptors) {
            let shut_down = async {
                Rt.sleep(Duration::from_millis(1)).await;
                rustix::net::shutdown(second, rustix::net::Shutdown::Both).expect("it listens");
            };
            let (accepted, ()) = futures_util::future::join(listener.accept(), shut_down).await;
            assert!(accepted.is_err(), "and at once from now on");
            assert!(listener.accept().await.is_err());
        }
    });
}
