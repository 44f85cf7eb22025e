//! Power cuts and kills of the server under load, on a cache device and an origin that both lose unflushed writes.
//!
//! After each crash the server must start warm, and its data is read twice and compared with the ledger: all of it or a
//! part, so that the next crash finds sectors that were not checked yet. Before a cut either disk may persist its
//! volatile data at any moment, so that one of them may be older than the other.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use flaz_random::Random;
use rustix::process::Signal;

use super::forgetful::{Flush, Forgetful, persist};
use super::ledger::{Range, Violation};
use super::load::{CLIENTS, Load, Stopped};
use super::{Cache, Program, Scratch, ServeMode, Server};

const ORIGIN_BYTES: u64 = 16 << 20;
/// Small enough for the log to wrap.
const CACHE_BYTES: u64 = 8 << 20;
/// Minimum number of writes acknowledged before a crash.
const WRITES_A_CRASH: u64 = 60;
/// A crash comes at any moment of this time; before that, a disk may persist its volatile data in the same time.
const MOMENT_MAX_US: u64 = 150_000;
/// Number of parts of the device, one of which is written in a run: cached data of the others should survive.
const WINDOWS: u64 = 4;
const WAIT_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);

/// The kind of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crash {
    /// The server is killed, the disks stay.
    Kill,
    /// The power fails: the server ends first, so no client sees an error.
    Cut,
    /// The power fails: the disks end first, so the server sees errors before it ends.
    DisksFirst,
}

/// The disks, while they have power.
struct Disks {
    origin: Forgetful,
    cache: Forgetful,
}

/// A cache that crashes repeatedly.
pub struct Blackout<'a> {
    scratch: &'a Scratch,
    origin_image: PathBuf,
    cache_image: PathBuf,
    origin_flush: Flush,
    numbers: Random,
    mode: ServeMode,
    created: bool,
    /// In the last crash the disks ended before the server.
    disks_first: bool,
    pub load: Load,
    pub kills: u64,
    pub power_cuts: u64,
    /// Number of blocks read from the cache in the first check after a crash: cache contents survive.
    pub hit_blocks: u64,
}

impl<'a> Blackout<'a> {
    pub fn new(scratch: &'a Scratch, seed: u64, mode: ServeMode, origin_flush: Flush) -> Self {
        Self {
            scratch,
            origin_image: scratch.sparse("origin.img", ORIGIN_BYTES),
            cache_image: scratch.sparse("cache.img", CACHE_BYTES),
            origin_flush,
            numbers: Random::new(seed),
            mode,
            created: false,
            disks_first: false,
            load: Load::new(ORIGIN_BYTES),
            kills: 0,
            power_cuts: 0,
            hit_blocks: 0,
        }
    }

    /// From power on to the next power cut, with kills in between.
    ///
    /// # Errors
    /// Lost data.
    ///
    /// # Panics
    /// If something does not start, the cache starts cold, or no client makes progress.
    pub fn until_power_cut(&mut self) -> Result<(), Violation> {
        let mut disks = self.power_on();
        loop {
            let server = self.serve(&disks);
            self.look(&server)?;
            let crash = match self.numbers.bits() % 8 {
                0..2 => Crash::Kill,
                2..4 => Crash::DisksFirst,
                _ => Crash::Cut,
            };
            match self.crash_under_load(server, disks, crash)? {
                Some(kept) => {
                    self.kills += 1;
                    disks = kept;
                }
                None => {
                    self.power_cuts += 1;
                    self.load.ledger().power_cut();
                    return Ok(());
                }
            }
        }
    }

    /// Stops cleanly and checks everything, including the origin's image; then again after a power cut.
    ///
    /// # Errors
    /// Lost data.
    ///
    /// # Panics
    /// As [`until_power_cut`](Self::until_power_cut).
    pub fn finish(&mut self) -> Result<(), Violation> {
        for last in [false, true] {
            let disks = self.power_on();
            let server = self.serve(&disks);
            self.load.verify(server.socket(), 1.0)?;
            self.load
                .flush(server.socket())
                .map_err(|error| Violation(format!("flush failed: {error}")))?;
            self.load.verify(server.socket(), 1.0)?;
            let detaches = last && self.mode == ServeMode::WriteBack;
            if detaches {
                server.detach();
            } else {
                server.stop();
            }
            let path = disks.cache.file();
            Cache { path }.check();
            drop(disks);
            self.load.ledger().power_cut();
            // In write-back the origin is complete only after that.
            if detaches || self.mode == ServeMode::WriteThrough {
                self.load.compare_origin(&self.origin_image)?;
            }
        }
        Ok(())
    }

    fn power_on(&mut self) -> Disks {
        let disks = Disks {
            origin: Forgetful::start(self.scratch, "origin", &self.origin_image, self.origin_flush),
            cache: Forgetful::start(self.scratch, "cache", &self.cache_image, Flush::Honest),
        };
        if !self.created {
            Program::flaz()
                .arg("create")
                .arg(disks.cache.file())
                .arg("--origin")
                .arg(disks.origin.file())
                .words("--region-size 256KiB --shards 2")
                .ok();
        }
        disks
    }

    fn serve(&mut self, disks: &Disks) -> Server {
        let path = disks.cache.file();
        let server = Server::start(self.scratch, &Cache { path }, self.mode.words());
        // A cache device that ended before the server may have missed writes, from the server's view.
        let given_up = std::mem::take(&mut self.disks_first);
        assert!(
            server.started_warm() || !self.created || given_up,
            "cold after a crash: all that the cache held is lost\n{}",
            server.log()
        );
        self.created = true;
        server
    }

    fn look(&mut self, server: &Server) -> Result<(), Violation> {
        let share = match self.numbers.bits() % 8 {
            0 => 0.0,
            1 => 0.5,
            _ => 1.0,
        };
        self.load.verify(server.socket(), share)?;
        self.hit_blocks += server.live("/lookups/hit_blocks");
        self.load.verify(server.socket(), share)
    }

    /// Returns the disks if they still have power.
    fn crash_under_load(
        &mut self,
        server: Server,
        disks: Disks,
        crash: Crash,
    ) -> Result<Option<Disks>, Violation> {
        let (load, numbers) = (&self.load, &mut self.numbers);
        load.rearm();
        let sectors = load.ledger().sectors();
        let count = sectors / WINDOWS;
        load.write_within(Range {
            first: numbers.bits() % WINDOWS * count,
            count,
        });
        let socket = server.socket().to_owned();
        thread::scope(|scope| {
            let _stopped = Stopped(load);
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    let (seed, socket) = (numbers.bits(), &socket);
                    scope.spawn(move || load.run_client(socket, seed))
                })
                .collect();
            let goal = load.acknowledged() + WRITES_A_CRASH;
            let give_up = Instant::now() + WAIT_MAX;
            while load.acknowledged() < goal && clients.iter().all(|client| !client.is_finished()) {
                assert!(
                    Instant::now() < give_up,
                    "no {WRITES_A_CRASH} writes in {WAIT_MAX:?}"
                );
                thread::sleep(POLL);
            }
            // At any moment of the load.
            any_moment(numbers);
            persist_perhaps(numbers, &disks);
            any_moment(numbers);
            let kept = match crash {
                Crash::Kill => {
                    server.end_by(Signal::KILL);
                    Some(disks)
                }
                Crash::Cut => {
                    server.end_by(Signal::KILL);
                    persist_perhaps(numbers, &disks);
                    None
                }
                Crash::DisksFirst => {
                    self.disks_first = true;
                    load.expect_errors();
                    drop(disks);
                    server.end_by(Signal::KILL);
                    None
                }
            };
            for client in clients {
                client
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            Ok(kept)
        })
    }
}

fn any_moment(numbers: &mut Random) {
    thread::sleep(Duration::from_micros(numbers.bits() % MOMENT_MAX_US));
}

fn persist_perhaps(numbers: &mut Random, disks: &Disks) {
    match numbers.bits() % 4 {
        0 => persist(disks.origin.socket()),
        1 => persist(disks.cache.socket()),
        _ => {}
    }
}
