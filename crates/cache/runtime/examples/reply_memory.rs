//! Replies to requests of 28 bytes with 4 KiB each over a Unix socket, as an NBD server does, without a disk. Shows the
//! cost of sockets, tasks and batches. The client is a thread of the same process.
//!
//! ```text
//! cargo run --release -p flaz-device --example reply_memory -- [DEPTH] [SECONDS]
//! ```

use std::cell::RefCell;
use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use flaz_device::local::Notify;
use flaz_device::{Env, IoBuf};
use flaz_runtime::net::Stream;
use flaz_runtime::{Config, Rt, Runtime, SendBatch};

const REQUEST: usize = 28;
const HEADER: usize = 20;
const BLOCK: usize = 4096;

/// Keeps `depth` requests in flight for a while; returns the number of replies.
fn client(mut socket: UnixStream, depth: usize, duration: Duration) -> std::io::Result<u64> {
    let request = vec![7u8; REQUEST * depth];
    let mut answers = vec![0u8; (HEADER + BLOCK) * depth];
    let (mut answered, mut got) = (0u64, 0usize);
    socket.write_all(&request)?;
    let started = Instant::now();
    while started.elapsed() < duration {
        got += socket.read(&mut answers[got..])?;
        let whole = got / (HEADER + BLOCK);
        got %= HEADER + BLOCK;
        answered += whole as u64;
        socket.write_all(&request[..whole * REQUEST])?;
    }
    Ok(answered)
}

/// One connection: one task per request, and one sender that sends all available replies.
async fn serve(stream: Stream) {
    let stream = Rc::new(stream);
    let ready: Rc<RefCell<Vec<IoBuf>>> = Rc::default();
    let signal = Rc::new(Notify::new());
    let (to_send, wake) = (Rc::clone(&ready), Rc::clone(&signal));
    let out = Rc::clone(&stream);
    Rt.spawn(async move {
        let mut batch = SendBatch::new();
        loop {
            if to_send.borrow().is_empty() {
                wake.notified().await;
            }
            batch.clear();
            for answer in to_send.borrow_mut().drain(..) {
                batch.push_bytes(&[1; HEADER]);
                batch.push_buf(answer);
            }
            let (back, sent) = out.send_all(batch).await;
            if sent.is_err() {
                return;
            }
            batch = back;
        }
    });
    let mut buf = IoBuf::new(64 << 10);
    let mut filled = 0;
    loop {
        let end = buf.len();
        let (back, received) = stream.recv(buf, filled, end).await;
        buf = back;
        match received {
            Ok(1..) => filled += received.unwrap_or(0),
            _ => return,
        }
        for _ in 0..filled / REQUEST {
            let (ready, signal) = (Rc::clone(&ready), Rc::clone(&signal));
            Rt.spawn(async move {
                ready.borrow_mut().push(IoBuf::new(BLOCK));
                signal.notify_one();
            });
        }
        filled %= REQUEST;
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let depth: usize = arguments.next().map_or(Ok(32), |text| text.parse())?;
    let seconds: u64 = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let (here, there) = UnixStream::pair()?;
    let duration = Duration::from_secs(seconds);
    let thread = std::thread::spawn(move || client(there, depth, duration));
    Runtime::new(Config::default())?.block_on(serve(Stream::new(here.into())?));
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let cpu_us = time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3;
    let answered = thread.join().map_err(|_| "the client failed")??;
    println!(
        "{depth:>4} deep: {:.0} answers a second, {:.2} us of the server's CPU each",
        answered as f64 / seconds as f64,
        cpu_us / answered as f64
    );
    Ok(())
}
