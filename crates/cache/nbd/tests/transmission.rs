//! The transmission phase against a raw client: replies, and the treatment of clients that misbehave.

mod support;

use std::collections::HashSet;
use std::time::Duration;

use flaz_device::Env;
use flaz_nbd::{Export, Limits};
use flaz_random::Random;
use flaz_runtime::Rt;
use support::client::{BLOCK_STATUS, CACHE, DISC, FLUSH, READ, Reply, TRIM, WRITE, WRITE_ZEROES, request};
use support::{Local, MIB, run, until};

const SIZE: u64 = 64 * MIB;

fn start() -> Local {
    Local::start(Export::new(SIZE), Limits::default())
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at.wrapping_mul(seed | 1) >> 3) as u8 ^ seed as u8)
        .collect()
}

#[test]
fn data_comes_back_with_simple_and_structured_replies() {
    run(async {
        let server = start();
        for structured in [false, true] {
            let mut client = server.client(structured).await;
            // Small, unaligned, across stripes, longer than the receive buffer.
            for (offset, len) in [
                (0, 4096),
                (511, 1),
                (MIB - 700, 1400),
                (3, 3 << 20),
                (SIZE - 9, 9),
            ] {
                let data = pattern(len, offset);
                assert_eq!(client.write(offset, &data).await, Reply::Done);
                let reply = client.read(offset, len as u32).await;
                if let Reply::Data { offset: said, .. } = &reply {
                    assert_eq!(*said, if structured { offset } else { 0 });
                }
                assert!(reply.bytes() == data, "{len} bytes at {offset}");
            }
            assert_eq!(client.ask(FLUSH, 0, 0, 0, b"").await, Reply::Done);
            assert_eq!(client.ask(CACHE, 0, 0, 1 << 20, b"").await, Reply::Done);
            assert_eq!(client.ask(WRITE_ZEROES, 0, 100, 50, b"").await, Reply::Done);
            assert_eq!(client.read(100, 50).await.bytes(), [0; 50]);
            assert_eq!(client.ask(TRIM, 0, 0, 4096, b"").await, Reply::Done);
        }
        assert_eq!(
            (
                server.volume.probe.flushes.get(),
                server.volume.probe.prefetches.get()
            ),
            (2, 2)
        );
    });
}

#[test]
fn a_tcp_server_works_and_stops() {
    run(async {
        // A port that was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let address = format!("tcp:127.0.0.1:{port}").parse().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let server = Local::start_at(address, dir, Export::new(SIZE), Limits::default());
        let socket = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut client = support::client::Client::over(socket.into());
        client.negotiate(true).await;
        let data = pattern(3 << 20, 5);
        assert_eq!(client.write(MIB - 5, &data).await, Reply::Done);
        assert!(client.read(MIB - 5, 3 << 20).await.bytes() == data);
        server.shutdown.stop();
        client.expect_end().await;
        until("all are gone", || server.shutdown.connections() == 0).await;
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    });
}

#[test]
fn connections_can_be_served_by_other_threads() {
    fn sendable<T: Send>() {}
    sendable::<flaz_nbd::Incoming>();
    sendable::<flaz_nbd::Service>();
    sendable::<flaz_nbd::Shutdown>();
    sendable::<flaz_nbd::Server>();
}

#[test]
fn fua_reaches_the_volume() {
    run(async {
        let server = start();
        let mut client = server.client(true).await;
        assert_eq!(client.ask(WRITE, 1, 0, 3, b"abc").await, Reply::Done);
        assert_eq!(client.write(3, b"def").await, Reply::Done);
        assert_eq!(server.volume.probe.fua_writes.get(), 1);
    });
}

#[test]
fn many_requests_are_answered_with_batched_replies() {
    run(async {
        let server = start();
        let mut client = server.client(true).await;
        let data: Vec<_> = (0..200).map(|number| pattern(4096, number)).collect();
        let mut bytes = vec![];
        for (number, block) in data.iter().enumerate() {
            bytes.extend(request(
                WRITE,
                0,
                number as u64,
                number as u64 * 4096,
                4096,
                block,
            ));
        }
        client.send(&bytes).await;
        let mut cookies = HashSet::new();
        for _ in &data {
            let (cookie, reply) = client.reply().await.unwrap();
            assert_eq!(reply, Reply::Done);
            assert!(cookies.insert(cookie));
        }
        let before = server.counters.snapshot();
        let mut bytes = vec![];
        for number in 0..200 {
            bytes.extend(request(READ, 0, number, number * 4096, 4096, b""));
        }
        client.send(&bytes).await;
        for _ in &data {
            let (cookie, reply) = client.reply().await.unwrap();
            assert!(reply.bytes() == data[cookie as usize]);
        }
        until("replies are counted", || {
            server.counters.snapshot().answered == 400
        })
        .await;
        let now = server.counters.snapshot();
        assert_eq!((now.writes, now.reads, now.requests_in_flight()), (200, 200, 0));
        assert!(
            now.sends - before.sends < 50,
            "{} calls for 200 replies",
            now.sends - before.sends
        );
    });
}

#[test]
fn a_request_may_arrive_in_any_pieces() {
    run(async {
        let server = start();
        let mut client = server.client(true).await;
        let data = pattern(700_000, 7);
        for piece in [1, 27, 29, 4095, 65_536, 300_000] {
            let len = if piece < 100 { 2000 } else { data.len() };
            let bytes = request(WRITE, 0, 5, MIB - 1000, len as u32, &data[..len]);
            for part in bytes.chunks(piece) {
                client.send(part).await;
                Rt.yield_now().await;
            }
            assert_eq!(client.reply().await, Some((5, Reply::Done)));
            assert!(
                client.read(MIB - 1000, len as u32).await.bytes() == data[..len],
                "pieces of {piece}"
            );
        }
    });
}

#[test]
fn refused_requests_are_answered_and_their_data_skipped() {
    run(async {
        let server = start();
        for structured in [false, true] {
            let mut client = server.client(structured).await;
            let errno = async |client: &mut support::client::Client, command, flags, offset, len| {
                let data = if command == WRITE {
                    vec![1; len as usize]
                } else {
                    vec![]
                };
                client.ask(command, flags, offset, len, &data).await.errno()
            };
            assert_eq!(errno(&mut client, READ, 0, SIZE, 1).await, 22);
            assert_eq!(errno(&mut client, READ, 0, u64::MAX, 100).await, 22);
            assert_eq!(errno(&mut client, READ, 0, 0, (32 << 20) + 1).await, 22);
            assert_eq!(errno(&mut client, WRITE, 0, SIZE - 1, 2).await, 28);
            assert_eq!(errno(&mut client, WRITE, 0, SIZE - 1, 3 << 20).await, 28);
            assert_eq!(errno(&mut client, WRITE, 2, 0, 4096).await, 22);
            assert_eq!(errno(&mut client, WRITE_ZEROES, 0, SIZE, 1).await, 28);
            assert_eq!(errno(&mut client, WRITE_ZEROES, 16, 0, 1).await, 22);
            assert_eq!(errno(&mut client, TRIM, 0, SIZE, 1).await, 22);
            assert_eq!(errno(&mut client, 77, 0, 0, 0).await, 22);
            assert_eq!(errno(&mut client, FLUSH, 0, 1, 0).await, 22);
            assert_eq!(client.write(0, b"still here").await, Reply::Done);
            assert_eq!(client.read(0, 10).await.bytes(), b"still here");
            // Requests of length zero succeed, except for block status.
            for command in [READ, WRITE, TRIM, CACHE, WRITE_ZEROES] {
                assert_eq!(errno(&mut client, command, 0, 7, 0).await, 0);
            }
            assert_eq!(errno(&mut client, BLOCK_STATUS, 0, 7, 0).await, 22);
        }
    });
}

#[test]
fn errors_say_why_and_where() {
    run(async {
        let server = start();
        let mut client = server.client(true).await;
        server.volume.probe.bad_offset.set(Some(8192));
        let reply = client.read(4096, 8192).await;
        assert!(
            matches!(&reply, Reply::Error { errno: 5, message, at: Some(8192) } if message.contains("offset 8192")),
            "{reply:?}"
        );
        let reply = client.write(8192, b"x").await;
        assert!(
            matches!(
                reply,
                Reply::Error {
                    errno: 5,
                    at: None,
                    ..
                }
            ),
            "{reply:?}"
        );
        server.volume.probe.stopping.set(true);
        assert_eq!(client.read(0, 1).await.errno(), 108);
        assert!(matches!(
            client.ask(FLUSH, 0, 0, 0, b"").await,
            Reply::Error { .. }
        ));
        let counted = server.counters.snapshot();
        assert_eq!(
            (
                counted.errors,
                counted.read_errors,
                counted.write_errors,
                counted.flush_errors
            ),
            (4, 2, 1, 1)
        );
    });
}

#[test]
fn block_status_reports_holes() {
    run(async {
        let server = start();
        let mut client = server.client(true).await;
        client.write(2 * MIB, b"x").await;
        let mib = MIB as u32;
        let all = client.ask(BLOCK_STATUS, 0, 0, 8 * mib, b"").await;
        assert_eq!(all, Reply::Status(vec![(2 * mib, 3), (mib, 0), (5 * mib, 3)]));
        // The volume was asked for one extent, so the joined extents are shorter; the client cannot tell.
        let one = client.ask(BLOCK_STATUS, 8, 0, 8 * mib, b"").await;
        assert_eq!(one, Reply::Status(vec![(mib, 3)]));
        assert_eq!(client.ask(BLOCK_STATUS, 0, SIZE, 1, b"").await.errno(), 22);
    });
}

#[test]
fn a_read_only_export_is_never_changed() {
    run(async {
        let server = Local::start(Export::new(SIZE).read_only(true), Limits::default());
        let mut client = server.client(true).await;
        assert_eq!(client.write(0, b"x").await.errno(), 1);
        assert_eq!(client.ask(TRIM, 0, 0, 1, b"").await.errno(), 1);
        assert_eq!(client.ask(WRITE_ZEROES, 0, 0, 1, b"").await.errno(), 1);
        assert_eq!(client.read(0, 1).await.bytes(), [0]);
    });
}

#[test]
fn only_clients_that_violate_the_protocol_are_disconnected() {
    run(async {
        let server = start();
        let mut good = server.client(true).await;
        let broken = [
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            request(WRITE, 0, 1, 0, (32 << 20) + 1, b""),
            request(WRITE, 0, 1, 0, u32::MAX, b""),
        ];
        for bytes in &broken {
            let client = server.client(true).await;
            client.send(bytes).await;
            client.expect_end().await;
            assert_eq!(good.read(0, 1).await.bytes(), [0]);
        }
        for bytes in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\x03GET / HTTP/1.1\r\n\r\n"] {
            let client = server.connect();
            client.recv(18).await;
            client.send(bytes).await;
            client.expect_end().await;
        }
        until("failures are counted", || {
            server.counters.snapshot().connections_failed == 5
        })
        .await;
        assert_eq!(server.counters.snapshot().connections_now(), 1);
    });
}

#[test]
fn a_write_that_is_cut_off_changes_nothing() {
    run(async {
        let server = start();
        let mut good = server.client(true).await;
        for len in [100_usize, 1 << 20] {
            let client = server.client(true).await;
            let bytes = request(WRITE, 0, 1, 0, len as u32, &vec![9; len - 1]);
            client.send(&bytes).await;
            drop(client);
            until("the connection ends", || {
                server.counters.snapshot().connections_now() == 1
            })
            .await;
            assert_eq!(good.read(0, 1).await.bytes(), [0]);
        }
        assert_eq!(server.counters.snapshot().connections_failed, 0);
    });
}

#[test]
fn a_disconnect_waits_for_what_is_in_flight() {
    run(async {
        let server = start();
        let mut client = server.client(true).await;
        server.volume.probe.closed.set(true);
        for _ in 0..10 {
            client.start(READ, 0, 0, 4096, b"").await;
        }
        client.start(DISC, 0, 0, 0, b"").await;
        until("requests wait", || server.volume.probe.waiting.get() == 10).await;
        assert_eq!(server.counters.snapshot().connections_now(), 1);
        server.volume.probe.closed.set(false);
        server.volume.probe.gate.notify_all();
        for _ in 0..10 {
            assert_eq!(client.reply().await.unwrap().1.bytes().len(), 4096);
        }
        assert_eq!(client.reply().await, None);
    });
}

#[test]
fn requests_in_flight_are_limited() {
    run(async {
        let server = start();
        let mut client = server.client(true).await;
        server.volume.probe.closed.set(true);
        // In one piece: a thousand small writes would not fit into the socket while the server does not read.
        let mut bytes = vec![];
        for cookie in 0..1000 {
            bytes.extend(request(READ, 0, cookie, 0, 16, b""));
        }
        client.send(&bytes).await;
        until("requests wait", || server.volume.probe.waiting.get() == 256).await;
        Rt.sleep(Duration::from_millis(50)).await;
        assert_eq!(server.volume.probe.waiting.get(), 256);
        server.volume.probe.closed.set(false);
        server.volume.probe.gate.notify_all();
        for _ in 0..1000 {
            assert_eq!(client.reply().await.unwrap().1.bytes().len(), 16);
        }
    });
}

/// Over dirty blocks all of these hold buffers, even if the requests are short.
#[test]
fn bytes_of_ranges_in_flight_are_limited() {
    run(async {
        for command in [TRIM, WRITE_ZEROES, CACHE] {
            let server = start();
            let mut client = server.client(true).await;
            let probe = &server.volume.probe;
            probe.closed.set(true);
            let mut bytes = vec![];
            for cookie in 0..40 {
                bytes.extend(request(command, 0, cookie, 0, 8 << 20, b""));
            }
            client.send(&bytes).await;
            until("requests wait", || probe.waiting.get() >= 8).await;
            Rt.sleep(Duration::from_millis(50)).await;
            assert_eq!(probe.waiting.get(), 8, "64 MiB of command {command}");
            probe.closed.set(false);
            probe.gate.notify_all();
            for _ in 0..40 {
                assert_eq!(client.reply().await.unwrap().1, Reply::Done);
            }
            // Small requests count for little.
            probe.closed.set(true);
            for _ in 0..40 {
                client.start(command, 0, 0, 4096, b"").await;
            }
            until("all wait", || probe.waiting.get() == 40).await;
            probe.closed.set(false);
            probe.gate.notify_all();
            for _ in 0..40 {
                assert_eq!(client.reply().await.unwrap().1, Reply::Done);
            }
        }
    });
}

#[test]
fn a_client_that_does_not_read_stalls_no_other() {
    run(async {
        let server = start();
        let mut lazy = server.client(true).await;
        let mut good = server.client(true).await;
        for _ in 0..200 {
            lazy.start(READ, 0, 0, 4 << 20, b"").await;
        }
        until("the lazy client is at its limit", || {
            server.counters.snapshot().reads >= 16
        })
        .await;
        for _ in 0..100 {
            assert_eq!(good.read(0, 4096).await.bytes().len(), 4096);
        }
        // 64 MiB in flight, plus what the socket's own buffer holds.
        let reads = server.counters.snapshot().reads - 100;
        assert!(reads <= 18, "{reads} reads of 4 MiB were taken");
        for _ in 0..200 {
            assert_eq!(lazy.reply().await.unwrap().1.bytes().len(), 4 << 20);
        }
        // A client that never reads can be disconnected.
        for _ in 0..50 {
            lazy.start(READ, 0, 0, 4 << 20, b"").await;
        }
        server.shutdown.cut();
        until("all are gone", || server.shutdown.connections() == 0).await;
    });
}

#[test]
fn the_handshake_has_a_time_limit() {
    run(async {
        let limits = Limits {
            handshake_timeout: Duration::from_millis(100),
            ..Limits::default()
        };
        let server = Local::start(Export::new(SIZE), limits);
        let mut good = server.client(true).await;
        let slow = server.connect();
        slow.expect_end().await;
        assert_eq!(server.counters.snapshot().connections_failed, 1);
        // The time limit is for the handshake only.
        Rt.sleep(Duration::from_millis(200)).await;
        assert_eq!(good.read(0, 1).await.bytes(), [0]);
    });
}

#[test]
fn connections_are_limited() {
    run(async {
        let limits = Limits {
            connections_max: 2,
            ..Limits::default()
        };
        let server = Local::start(Export::new(SIZE), limits);
        let first = server.client(true).await;
        let mut second = server.client(true).await;
        assert_eq!(server.connect().try_recv(1).await, None);
        assert_eq!(second.read(0, 1).await.bytes(), [0]);
        drop(first);
        until("there is space", || server.shutdown.connections() == 1).await;
        let mut third = server.client(true).await;
        assert_eq!(third.read(0, 1).await.bytes(), [0]);
    });
}

#[test]
fn stopping_ends_idle_clients_and_finishes_what_was_begun() {
    run(async {
        let server = start();
        let idle = server.client(true).await;
        let haggling = server.connect();
        haggling.recv(18).await;
        let mut busy = server.client(true).await;
        server.volume.probe.closed.set(true);
        busy.start(WRITE, 0, 0, 4, b"data").await;
        until("a request waits", || server.volume.probe.waiting.get() == 1).await;
        server.shutdown.stop();
        idle.expect_end().await;
        haggling.expect_end().await;
        until("the socket is gone", || !server.path().exists()).await;
        assert_eq!(server.shutdown.connections(), 1);
        server.volume.probe.closed.set(false);
        server.volume.probe.gate.notify_all();
        assert_eq!(busy.reply().await.unwrap().1, Reply::Done);
        assert_eq!(busy.reply().await, None);
        until("all are gone", || server.shutdown.connections() == 0).await;
    });
}

#[test]
fn requests_during_a_stop_are_answered() {
    run(async {
        let limits = Limits {
            requests_in_flight_max: 1,
            ..Limits::default()
        };
        let server = Local::start(Export::new(SIZE), limits);
        let mut client = server.client(true).await;
        server.volume.probe.closed.set(true);
        let first = client.start(READ, 0, 0, 1, b"").await;
        until("a request waits", || server.volume.probe.waiting.get() == 1).await;
        // The server had read neither request when the stop came: one waits for its turn, the other is unread.
        client.start(READ, 0, 0, 1, b"").await;
        until("the second is received", || server.counters.snapshot().reads == 2).await;
        client.start(READ, 0, 0, 1, b"").await;
        server.shutdown.stop();
        server.volume.probe.closed.set(false);
        server.volume.probe.gate.notify_all();
        let (cookie, reply) = client.reply().await.unwrap();
        assert_eq!((cookie, reply.errno()), (first, 0));
        assert_eq!(client.reply().await.unwrap().1.errno(), 0);
        assert_eq!(client.reply().await.unwrap().1.errno(), 108);
        assert_eq!(client.reply().await, None);
    });
}

#[test]
fn a_write_cut_off_by_a_stop_is_answered() {
    run(async {
        let server = start();
        let mut clients = [server.client(false).await, server.client(true).await];
        let mut cookies = vec![];
        for client in &mut clients {
            let before = server.counters.snapshot().bytes_in;
            cookies.push(client.start(WRITE, 0, 0, 3 << 20, &pattern(4096, 1)).await);
            until("its beginning is received", || {
                server.counters.snapshot().bytes_in == before + 28 + 4096
            })
            .await;
        }
        server.shutdown.stop();
        for (mut client, cookie) in clients.into_iter().zip(cookies) {
            let (answered, reply) = client.reply().await.unwrap();
            assert_eq!((answered, reply.errno()), (cookie, 108));
            assert_eq!(client.reply().await, None);
        }
    });
}

#[test]
fn the_kernel_needs_no_handshake() {
    run(async {
        let server = start();
        let mut kernel = server.kernel();
        let data = pattern(3 << 20, 7);
        assert_eq!(kernel.write(4096, &data).await, Reply::Done);
        assert!(kernel.read(4096, 3 << 20).await.bytes() == data);
        assert_eq!(kernel.ask(FLUSH, 0, 0, 0, b"").await, Reply::Done);
        kernel.start(DISC, 0, 0, 0, b"").await;
        assert_eq!(kernel.reply().await, None);
        until("the session has ended", || server.shutdown.connections() == 0).await;
    });
}

/// The kernel would return the error of a refused request to its user, although the next server could serve it.
#[test]
fn a_stop_refuses_no_request_of_the_kernel() {
    run(async {
        let limits = Limits {
            requests_in_flight_max: 1,
            ..Limits::default()
        };
        let server = Local::start(Export::new(SIZE), limits);
        let mut kernel = server.kernel();
        server.volume.probe.closed.set(true);
        let first = kernel.start(READ, 0, 0, 1, b"").await;
        until("a request waits", || server.volume.probe.waiting.get() == 1).await;
        let second = kernel.start(READ, 0, 0, 1, b"").await;
        until("the second is received", || server.counters.snapshot().reads == 2).await;
        kernel.start(READ, 0, 0, 1, b"").await;
        server.shutdown.stop();
        server.volume.probe.closed.set(false);
        server.volume.probe.gate.notify_all();
        for cookie in [first, second] {
            let (answered, reply) = kernel.reply().await.unwrap();
            assert_eq!((answered, reply.errno()), (cookie, 0));
        }
        assert_eq!(kernel.reply().await, None, "the next server answers the third");
    });
}

#[test]
fn a_write_of_the_kernel_that_is_cut_off_by_a_stop_is_not_answered() {
    run(async {
        let server = start();
        let mut kernel = server.kernel();
        kernel.start(WRITE, 0, 0, 3 << 20, &pattern(4096, 1)).await;
        until("its beginning is received", || {
            server.counters.snapshot().bytes_in == 28 + 4096
        })
        .await;
        server.shutdown.stop();
        assert_eq!(kernel.reply().await, None);
        until("the session has ended", || server.shutdown.connections() == 0).await;
    });
}

#[test]
fn mutated_streams_do_not_harm_the_server() {
    run(async {
        let server = start();
        for seed in 1..150_u64 {
            let mut random = Random::new(seed);
            let mut bytes = vec![];
            for number in 0..20 {
                let len = random.below(9000) as u32;
                let command = random.below(9) as u16;
                let data = if command == WRITE {
                    vec![7; len as usize]
                } else {
                    vec![]
                };
                let flags = random.below(2) as u16;
                bytes.extend(request(command, flags, number, random.below(SIZE), len, &data));
            }
            for _ in 0..random.below(4) {
                let at = random.index(bytes.len());
                bytes[at] = random.bits() as u8;
            }
            let client = server.client(seed % 2 == 0).await;
            // The server may close the connection before it has read everything.
            let _ = client.try_send(&bytes).await;
            drop(client);
        }
        until("all are gone", || {
            server.counters.snapshot().connections_now() == 0
        })
        .await;
        let mut good = server.client(true).await;
        assert_eq!(good.write(0, b"fine").await, Reply::Done);
        assert_eq!(good.read(0, 4).await.bytes(), b"fine");
        let now = server.counters.snapshot();
        assert_eq!(now.requests_in_flight(), 0, "{now:?}");
    });
}
