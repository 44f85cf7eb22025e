//! Kills of the server under load that clients do not notice: nbdkit's retry filter between them reconnects and repeats
//! unanswered requests. For the clients there is no crash, so every acknowledged write must be present at any time.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use flaz_random::Random;
use rustix::process::Signal;

use super::disk::wait_ready;
use super::ledger::Violation;
use super::load::{CLIENTS, Load, Stopped};
use super::{Cache, CacheSpec, Scratch, ServeMode, Server};

pub const ORIGIN_BYTES: u64 = 16 << 20;
/// Small enough for the log to wrap, so that reclaim is killed as well.
const SPEC: CacheSpec = CacheSpec {
    size: 8 << 20,
    codec: "auto",
    region: 256 << 10,
    shards: 2,
    index_memory: None,
};
/// Minimum number of writes acknowledged between two kills.
const WRITES_A_KILL: u64 = 40;
/// The next kill comes at any moment of this time.
const MOMENT_MAX_US: u64 = 150_000;
/// An origin that is slow enough for `auto` to compress again what stays.
const SLOW_ORIGIN: &str = "--emulate-origin network-volume";
const WAIT_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);
/// Debian packages of the programs that this module runs.
pub const TOOLS: &[(&str, &str)] = &[("nbdkit", "nbdkit")];

/// nbdkit between clients and a server that restarts.
struct Shim {
    child: Child,
    socket: PathBuf,
}

impl Shim {
    fn start(scratch: &Scratch, server: &Server) -> Self {
        let socket = scratch.place("shim.sock");
        // Its minimum delay is a second; sixty of them are as long as a start may take.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "nbdkit", "--foreground", "--unix"])
            .arg(&socket)
            .args(["--filter=retry", "nbd"])
            .arg(format!("socket={}", server.socket().display()))
            .args(["retries=60", "retry-delay=1", "retry-exponential=no"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("setpriv (util-linux) starts");
        let mut shim = Self { child, socket };
        wait_ready("nbdkit", &mut shim.child, || {
            UnixStream::connect(&shim.socket).is_ok()
        });
        shim
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A cache whose server is killed repeatedly.
pub struct Kills<'a> {
    scratch: &'a Scratch,
    cache: Cache,
    origin: PathBuf,
    numbers: Random,
    mode: ServeMode,
    pub load: Load,
    pub kills: u64,
}

impl<'a> Kills<'a> {
    pub fn new(scratch: &'a Scratch, seed: u64, mode: ServeMode) -> Self {
        let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
        let cache = Cache::create(scratch, &origin, &SPEC);
        Self::of(scratch, cache, origin, seed, mode)
    }

    /// A cache that was created, for an origin of [`ORIGIN_BYTES`] zeroes.
    pub fn of(scratch: &'a Scratch, cache: Cache, origin: PathBuf, seed: u64, mode: ServeMode) -> Self {
        Self {
            scratch,
            cache,
            origin,
            numbers: Random::new(seed),
            mode,
            load: Load::new(ORIGIN_BYTES),
            kills: 0,
        }
    }

    /// Kills as long as `more` returns true after each, then stops cleanly and checks everything, including the origin.
    ///
    /// # Errors
    /// Lost data.
    ///
    /// # Panics
    /// If a server does not start, or no client makes progress.
    pub fn run(&mut self, mut more: impl FnMut(&Load, u64) -> bool) -> Result<(), Violation> {
        let (scratch, cache, load) = (self.scratch, &self.cache, &self.load);
        let (numbers, kills) = (&mut self.numbers, &mut self.kills);
        let words = &format!("{} {SLOW_ORIGIN}", self.mode.words());
        let mut server = Server::start(scratch, cache, words);
        let shim = Shim::start(scratch, &server);
        load.rearm();
        server = thread::scope(|scope| {
            let _stopped = Stopped(load);
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    // Before the first kill, because nbdkit does not retry if the server is away when a client
                    // connects.
                    let seed = numbers.bits();
                    let client = Load::connect(&shim.socket, seed).expect("the server is up");
                    scope.spawn(move || load.run_connected(client, seed))
                })
                .collect();
            while more(load, *kills) && clients.iter().all(|client| !client.is_finished()) {
                let goal = load.acknowledged() + WRITES_A_KILL;
                let give_up = Instant::now() + WAIT_MAX;
                while load.acknowledged() < goal && clients.iter().all(|client| !client.is_finished()) {
                    assert!(
                        Instant::now() < give_up,
                        "no {WRITES_A_KILL} writes in {WAIT_MAX:?}"
                    );
                    thread::sleep(POLL);
                }
                // At any moment of the load.
                thread::sleep(Duration::from_micros(numbers.bits() % MOMENT_MAX_US));
                server.end_by(Signal::KILL);
                *kills += 1;
                server = Server::start(scratch, cache, words);
            }
            let ended_early = clients.iter().any(thread::ScopedJoinHandle::is_finished);
            load.stop();
            for client in clients {
                client
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            if ended_early {
                return Err(Violation(
                    "the shim ended a connection: a request was refused, or the server was away for a minute"
                        .into(),
                ));
            }
            Ok(server)
        })?;
        drop(shim);
        load.verify(server.socket(), 1.0)?;
        load.flush(server.socket())
            .map_err(|error| Violation(format!("flush failed: {error}")))?;
        load.verify(server.socket(), 1.0)?;
        match self.mode {
            ServeMode::WriteThrough => server.stop(),
            // The origin is complete only after that.
            ServeMode::WriteBack => server.detach(),
        }
        cache.check();
        load.compare_origin(&self.origin)
    }
}
