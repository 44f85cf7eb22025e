//! Clients that write, flush, trim and read at random until they are stopped or the server dies, and record everything
//! in a [`Ledger`].
//!
//! Each client has a connection and sends requests in batches of a few, so that many are in flight; replies may arrive
//! in any order.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flaz_nbd::Client;
use flaz_nbd::client::{ClientError, ClientOptions};
use flaz_nbd::request::Command;
use flaz_random::Random;

use super::ledger::{Ledger, Range, Violation};
use super::stamp::{Print, SECTOR, fill};

/// Number of connections.
pub const CLIENTS: u64 = 4;
/// Maximum number of requests that a client has in flight.
const BATCH_MAX: u64 = 6;
/// Percentage of reads.
const READS: std::ops::Range<u64> = 50..78;
const BLOCK_SECTORS: u64 = 8;
/// Maximum number of sectors in a request.
const RANGE_SECTORS_MAX: u64 = 96;
/// Size of one read when everything is read.
const VERIFY_SECTORS: u64 = 512;

/// A ledger that clients share.
pub struct Load {
    ledger: Mutex<Ledger>,
    /// Where clients write; they read everywhere.
    window: Mutex<Range>,
    stop: AtomicBool,
    /// Devices are about to end: errors are not failures, and the outcome of a failed write is unknown.
    errors_expected: AtomicBool,
    acknowledged: AtomicU64,
}

/// Clients end with this guard, also when a test fails.
pub struct Stopped<'a>(pub &'a Load);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A request that is in flight.
struct Sent {
    command: Command,
    range: Range,
    /// When a flush was begun.
    begun: u64,
}

impl Load {
    pub fn new(bytes: u64) -> Self {
        let count = bytes / SECTOR as u64;
        Self {
            ledger: Mutex::new(Ledger::new(count)),
            window: Mutex::new(Range { first: 0, count }),
            stop: AtomicBool::new(false),
            errors_expected: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
        }
    }

    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on only this range is written: cached blocks of other stripes survive power cuts.
    pub fn write_within(&self, window: Range) {
        *self.window.lock().unwrap_or_else(PoisonError::into_inner) = window;
    }

    /// Number of writes acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Clients end after their requests in flight.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// From now on requests may fail.
    pub fn expect_errors(&self) {
        self.errors_expected.store(true, Ordering::Relaxed);
    }

    /// Clients may start again.
    pub fn rearm(&self) {
        self.stop.store(false, Ordering::Relaxed);
        self.errors_expected.store(false, Ordering::Relaxed);
    }

    /// Runs one client until it is stopped or the server ends the connection.
    ///
    /// # Errors
    /// A read returns wrong data, or a request fails while the server runs.
    pub fn run_client(&self, socket: &Path, seed: u64) -> Result<(), Violation> {
        match Self::connect(socket, seed) {
            Ok(client) => self.run_connected(client, seed),
            Err(error) if error.is_disconnect() => Ok(()),
            Err(error) => Err(Violation(error.to_string())),
        }
    }

    /// A connection for the client of this seed: half of them request structured replies.
    ///
    /// # Errors
    /// Nothing listens, or the connection ends meanwhile.
    pub fn connect(socket: &Path, seed: u64) -> Result<Client, ClientError> {
        let options = ClientOptions {
            structured: seed.is_multiple_of(2),
            ..ClientOptions::default()
        };
        Client::connect_with(socket, &options)
    }

    /// Runs a client on a connection.
    ///
    /// # Errors
    /// As [`Self::run_client`].
    pub fn run_connected(&self, mut client: Client, seed: u64) -> Result<(), Violation> {
        let mut numbers = Random::new(seed);
        let mut sent = HashMap::new();
        while !self.stop.load(Ordering::Relaxed) {
            let ended = self.send_batch(&mut client, &mut numbers, &mut sent);
            let ended = ended.and_then(|()| self.receive_all(&mut client, &mut sent));
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(violation)) => {
                    self.give_up(&mut sent);
                    return Err(violation);
                }
                Err(_) => {
                    // Replies that the server sent before it died still count.
                    let outcome = self.receive_all(&mut client, &mut sent);
                    self.give_up(&mut sent);
                    return outcome.unwrap_or(Ok(()));
                }
            }
        }
        Ok(())
    }

    fn send_batch(
        &self,
        client: &mut Client,
        numbers: &mut Random,
        sent: &mut HashMap<u64, Sent>,
    ) -> Result<(), ClientError> {
        for _ in 0..=numbers.bits() % BATCH_MAX {
            let Some((one, data)) = self.next_request(numbers) else {
                continue;
            };
            let cookie = match one.command {
                Command::Flush => client.send(Command::Flush, 0, 0),
                Command::Write { fua } => client.send_write(offset(one.range), &data, fua),
                other => client.send(other, offset(one.range), length(one.range)),
            };
            match cookie {
                Ok(cookie) => drop(sent.insert(cookie, one)),
                Err(error) => {
                    self.lost(&one);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// A request and its data, recorded in the ledger; `None` if another request in flight conflicts.
    fn next_request(&self, numbers: &mut Random) -> Option<(Sent, Vec<u8>)> {
        let window = *self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ledger = self.ledger();
        let kind = numbers.bits() % 100;
        let all = Range {
            first: 0,
            count: ledger.sectors(),
        };
        let range = any_range(numbers, if READS.contains(&kind) { all } else { window });
        let mut data = Vec::new();
        let mut begun = 0;
        let command = match kind {
            0..50 => {
                let version = ledger.next_version();
                let fua = numbers.bits().is_multiple_of(8);
                if !ledger.write_starts(range, Print::Version(version)) {
                    return None;
                }
                data = vec![0; length(range) as usize];
                fill(range.first, version, &mut data);
                Command::Write { fua }
            }
            _ if READS.contains(&kind) => {
                if !ledger.read_starts(range) {
                    return None;
                }
                Command::Read
            }
            78..84 => {
                begun = ledger.flush_starts();
                Command::Flush
            }
            84..92 => {
                let fua = numbers.bits().is_multiple_of(8);
                if !ledger.write_starts(range, Print::Zero) {
                    return None;
                }
                Command::WriteZeroes { fua, may_unmap: true }
            }
            _ => {
                if !ledger.write_starts(range, Print::Trimmed) {
                    return None;
                }
                Command::Trim { fua: false }
            }
        };
        let sent = Sent {
            command,
            range,
            begun,
        };
        Some((sent, data))
    }

    /// Receives replies until nothing is in flight. The outer error is the end of the connection.
    fn receive_all(
        &self,
        client: &mut Client,
        sent: &mut HashMap<u64, Sent>,
    ) -> Result<Result<(), Violation>, ClientError> {
        while !sent.is_empty() {
            let reply = match client.receive() {
                Ok(reply) => reply,
                Err(error) if error.is_disconnect() => return Err(error),
                Err(error) => return Ok(Err(Violation(error.to_string()))),
            };
            let Some(Sent { command, range, .. }) = sent.get(&reply.cookie) else {
                return Ok(Err(Violation(format!("a reply to no request: {reply:?}"))));
            };
            let (command, range) = (*command, *range);
            let data = match reply.outcome {
                Ok(data) => data,
                Err(_) if self.errors_expected.load(Ordering::Relaxed) => {
                    let lost = sent.remove(&reply.cookie).expect("it was just found");
                    self.lost(&lost);
                    continue;
                }
                Err(failure) => {
                    return Ok(Err(Violation(format!(
                        "{command:?} of {range:?} failed: {failure}"
                    ))));
                }
            };
            let done = sent.remove(&reply.cookie).expect("it was just found");
            let mut ledger = self.ledger();
            match command {
                Command::Read => {
                    if let Err(violation) = ledger.read_returned(range, &data) {
                        return Ok(Err(violation));
                    }
                }
                Command::Flush => ledger.flush_succeeded(done.begun),
                Command::Write { fua } | Command::WriteZeroes { fua, .. } | Command::Trim { fua } => {
                    ledger.write_acknowledged(range, fua);
                    self.acknowledged.fetch_add(1, Ordering::Relaxed);
                }
                other => unreachable!("{other:?} is not sent"),
            }
        }
        Ok(Ok(()))
    }

    fn lost(&self, sent: &Sent) {
        match sent.command {
            Command::Read => self.ledger().read_lost(sent.range),
            command if command.writes() => self.ledger().write_lost(sent.range),
            _ => {}
        }
    }

    fn give_up(&self, sent: &mut HashMap<u64, Sent>) {
        for (_, sent) in sent.drain() {
            self.lost(&sent);
        }
    }

    /// Reads the first `share` of everything, and compares. Nothing may be in flight.
    ///
    /// # Errors
    /// The first wrong sector.
    ///
    /// # Panics
    /// If the server cannot be read.
    pub fn verify(&self, socket: &Path, share: f64) -> Result<(), Violation> {
        let mut client =
            Client::connect(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
        let end = (self.ledger().sectors() as f64 * share) as u64;
        for first in (0..end).step_by(VERIFY_SECTORS as usize) {
            let range = Range {
                first,
                count: VERIFY_SECTORS.min(end - first),
            };
            let data = client
                .call(Command::Read, offset(range), length(range))
                .map_err(|error| Violation(format!("read of {range:?} failed: {error}")))?;
            let mut ledger = self.ledger();
            assert!(ledger.read_starts(range), "nothing is in flight");
            ledger.read_returned(range, &data)?;
        }
        Ok(())
    }

    /// Flushes.
    ///
    /// # Errors
    /// The flush fails.
    pub fn flush(&self, socket: &Path) -> Result<(), ClientError> {
        let start = self.ledger().flush_starts();
        Client::connect(socket)?.flush()?;
        self.ledger().flush_succeeded(start);
        Ok(())
    }

    /// Compares the origin's own file, after everything was flushed and read.
    ///
    /// # Errors
    /// The first wrong sector.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn compare_origin(&self, origin: &Path) -> Result<(), Violation> {
        let data = std::fs::read(origin).unwrap_or_else(|error| panic!("{}: {error}", origin.display()));
        let ledger = self.ledger();
        assert_eq!(data.len() as u64, ledger.sectors() * SECTOR as u64);
        let all = Range {
            first: 0,
            count: ledger.sectors(),
        };
        ledger
            .compare_origin(all, &data)
            .map_err(|Violation(text)| Violation(format!("the origin itself: {text}")))
    }
}

fn offset(range: Range) -> u64 {
    range.first * SECTOR as u64
}

fn length(range: Range) -> u32 {
    range.count as u32 * SECTOR as u32
}

/// Mostly whole blocks, half of the time in the first eighth of `within`, so that blocks are overwritten.
fn any_range(numbers: &mut Random, within: Range) -> Range {
    let unit = if numbers.bits().is_multiple_of(4) {
        1
    } else {
        BLOCK_SECTORS
    };
    let most = if numbers.bits().is_multiple_of(4) {
        RANGE_SECTORS_MAX
    } else {
        2 * BLOCK_SECTORS
    };
    let count = (1 + numbers.bits() % (most / unit)) * unit;
    let reach = if numbers.bits().is_multiple_of(2) {
        within.count
    } else {
        within.count / 8
    };
    let first = within.first + numbers.bits() % ((reach - count) / unit + 1) * unit;
    Range { first, count }
}
