//! Sends the requests of a load over NBD, as the replay in virtual time does: when fewer requests of their kind are in flight than was
//! recorded, and after the time that the client computed.
//!
//! Invariant: requests in flight and their bytes do not exceed what a server accepts, whatever was recorded.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flaz_nbd::client::{Client, ClientError, ClientOptions};
use flaz_nbd::limits::{BYTES_IN_FLIGHT_MAX, REQUESTS_IN_FLIGHT_MAX};
use flaz_nbd::request::Command;
use flaz_trace::Op;
use flaz_trace::recording::Recorded;

use crate::contents::Contents;
use crate::workload::Workload;

/// The end of a wait that a thread does not sleep through, because it would wake up late.
const AWAKE: Duration = Duration::from_micros(100);

/// A pass.
#[derive(Debug)]
pub(super) struct Pass {
    pub elapsed: Duration,
    /// Sum of the latencies of reads.
    pub read_latency: Duration,
    pub reads: u64,
}

/// The client, connected.
#[derive(Debug)]
pub(super) struct Replayer {
    client: Client,
    load: Workload,
    contents: Arc<Contents>,
    in_flight: HashMap<u64, Sent>,
    reads: u32,
    others: u32,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    op: Op,
    offset: u64,
    len: u64,
    at: Instant,
}

impl Replayer {
    pub(super) fn connect(
        socket: UnixStream,
        load: Workload,
        contents: Arc<Contents>,
    ) -> Result<Self, ClientError> {
        Ok(Self {
            client: Client::over(socket, &ClientOptions::default())?,
            load,
            contents,
            in_flight: HashMap::new(),
            reads: 0,
            others: 0,
            bytes: 0,
        })
    }

    /// Replays the load once, and waits until all requests have ended.
    pub(super) fn pass(mut self) -> (Self, Result<Pass, ClientError>) {
        let result = self.replay();
        (self, result)
    }

    fn replay(&mut self) -> Result<Pass, ClientError> {
        let mut pass = Pass {
            elapsed: Duration::ZERO,
            read_latency: Duration::ZERO,
            reads: 0,
        };
        let requests = self.load.clone();
        let began = Instant::now();
        for recorded in requests.requests() {
            while !self.has_room(recorded) {
                self.receive(&mut pass)?;
            }
            wait(Duration::from_micros(recorded.think_us));
            self.send(recorded)?;
        }
        while !self.in_flight.is_empty() {
            self.receive(&mut pass)?;
        }
        pass.elapsed = began.elapsed();
        Ok(pass)
    }

    fn has_room(&self, recorded: &Recorded) -> bool {
        let of_kind = match recorded.request.op {
            Op::Read => self.reads,
            Op::Write | Op::Trim => self.others,
        };
        let bytes = self.bytes + recorded.request.len;
        of_kind < recorded.depth.max(1)
            && self.in_flight.len() < REQUESTS_IN_FLIGHT_MAX
            && (self.bytes == 0 || bytes <= BYTES_IN_FLIGHT_MAX as u64)
    }

    fn send(&mut self, recorded: &Recorded) -> Result<(), ClientError> {
        let (op, offset, len) = (recorded.request.op, recorded.request.offset, recorded.request.len);
        // No client of NBD can trim more at once.
        let length = u32::try_from(len).unwrap_or(u32::MAX);
        let at = Instant::now();
        let cookie = match op {
            Op::Read => self.client.send(Command::Read, offset, length)?,
            Op::Trim => self.client.send(Command::Trim { fua: false }, offset, length)?,
            Op::Write => {
                let data = self.contents.of_write(recorded);
                self.client.send_write(offset, &data, false)?
            }
        };
        *self.count(op) += 1;
        self.bytes += len;
        self.in_flight.insert(cookie, Sent { op, offset, len, at });
        Ok(())
    }

    fn receive(&mut self, pass: &mut Pass) -> Result<(), ClientError> {
        let reply = self.client.receive()?;
        let Some(sent) = self.in_flight.remove(&reply.cookie) else {
            return Err(ClientError::Protocol {
                expected: "the cookie of a request in flight",
                found: reply.cookie,
            });
        };
        *self.count(sent.op) -= 1;
        self.bytes -= sent.len;
        if let Err(failure) = reply.outcome {
            return Err(ClientError::Request {
                command: match sent.op {
                    Op::Read => "read",
                    Op::Write => "write",
                    Op::Trim => "trim",
                },
                offset: sent.offset,
                length: u32::try_from(sent.len).unwrap_or(u32::MAX),
                failure,
            });
        }
        if sent.op == Op::Read {
            pass.reads += 1;
            pass.read_latency += sent.at.elapsed();
        }
        Ok(())
    }

    fn count(&mut self, op: Op) -> &mut u32 {
        match op {
            Op::Read => &mut self.reads,
            Op::Write | Op::Trim => &mut self.others,
        }
    }
}

/// Passes time as a client that computes.
fn wait(time: Duration) {
    if time.is_zero() {
        return;
    }
    let until = Instant::now() + time;
    if let Some(asleep) = time.checked_sub(AWAKE) {
        thread::sleep(asleep);
    }
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}
