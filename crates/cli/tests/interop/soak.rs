//! Kills and power cuts for hours: `make soak` runs this in addition to the crash simulation. Not part of `make test`.
//!
//! After every crash each test prints a line `soak: NAME key=value ..` with its totals, which `xtask soak` reads. Lost
//! data or any other failure ends the run; the images, the server's log and the ledger stay in the directory that the
//! last line names. `memory` runs one server all the time, and prints such a line after each burst and after each pause.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::memory;
use crate::support::forgetful::{self, Flush};
use crate::support::ledger::{Tally, Violation};
use crate::support::load::Load;
use crate::support::{Blackout, Kills, Scratch, ServeMode, Server, kills, need};

/// Kills, or power cuts, before the test starts again with another seed.
const CRASHES_A_CACHE: u64 = 100;
/// Unless `FLAZ_SOAK_MINUTES` says otherwise.
const MINUTES: u64 = 60;
/// What each client of a burst reads and writes, and the pause between two bursts.
const BURST_MIB: u64 = 256;
const PAUSE: Duration = Duration::from_secs(60);

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|error| panic!("{name}={text} is not a number: {error}")),
    )
}

/// One loop: its duration, its seeds (from the clock, or from `FLAZ_SEED` on), and its totals.
struct Soak {
    name: &'static str,
    until: Instant,
    seed: u64,
    kills: u64,
    power_cuts: u64,
    acknowledged: u64,
    durable: u64,
}

impl Soak {
    fn new(name: &'static str) -> Self {
        let minutes = number("FLAZ_SOAK_MINUTES").unwrap_or(MINUTES);
        let clock = || {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(0, |since| since.as_secs())
        };
        Self {
            name,
            until: Instant::now() + Duration::from_secs(60 * minutes),
            seed: number("FLAZ_SEED").unwrap_or_else(clock),
            kills: 0,
            power_cuts: 0,
            acknowledged: 0,
            durable: 0,
        }
    }

    /// Both modes in turn, depending on the seed.
    fn mode(&self) -> ServeMode {
        ServeMode::ALL[(self.seed % 2) as usize]
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Prints the totals, including the current cache, and the directory of its files.
    fn tell(&self, kills: u64, power_cuts: u64, tally: Tally, lost: u64, folder: &Path) {
        println!(
            "soak: {} kills={} power_cuts={} acknowledged={} durable={} lost={lost} seed={} folder={}",
            self.name,
            self.kills + kills,
            self.power_cuts + power_cuts,
            self.acknowledged + tally.acknowledged,
            self.durable + tally.durable,
            self.seed,
            folder.display()
        );
    }

    /// The end of a cache: its files are removed if there was no failure.
    fn close(
        &mut self,
        (kills, power_cuts): (u64, u64),
        load: &Load,
        outcome: Result<(), Violation>,
        scratch: &mut Scratch,
    ) {
        let tally = load.ledger().tally();
        if let Err(Violation(text)) = outcome {
            let folder = scratch.keep();
            let ledger = folder.join("ledger.txt");
            std::fs::write(&ledger, load.ledger().tell())
                .unwrap_or_else(|error| panic!("{}: {error}", ledger.display()));
            self.tell(kills, power_cuts, tally, 1, folder);
            panic!("lost, seed {}: {text}\nkept in {}", self.seed, folder.display());
        }
        self.kills += kills;
        self.power_cuts += power_cuts;
        self.acknowledged += tally.acknowledged;
        self.durable += tally.durable;
        scratch.discard();
        self.seed += 1;
    }
}

#[test]
#[ignore = "runs for an hour: make soak"]
fn kills() {
    assert!(need::tools(kills::TOOLS), "nothing can be soaked");
    let mut soak = Soak::new("kills");
    while !soak.is_over() {
        let mut scratch = Scratch::new();
        let folder = scratch.keep().to_owned();
        let mut kills = Kills::new(&scratch, soak.seed, soak.mode());
        let outcome = kills.run(|load, kills| {
            soak.tell(kills, 0, load.ledger().tally(), 0, &folder);
            kills < CRASHES_A_CACHE && !soak.is_over()
        });
        let (load, kills) = (kills.load, kills.kills);
        soak.close((kills, 0), &load, outcome, &mut scratch);
    }
}

/// Bursts of clients, and pauses that are long enough for memory to go back.
#[test]
#[ignore = "runs for an hour: make soak"]
fn memory() {
    assert!(need::tools(memory::TOOLS), "nothing can be soaked");
    let scratch = Scratch::new();
    let server = memory::serve(&scratch, "--mode write-back");
    let soak = Soak::new("memory");
    let begun = Instant::now();
    let tell = |phase: &str| {
        let status = server.status();
        let (memory, codec) = (&status["live"]["memory"], &status["live"]["codec"]);
        let bytes = |name: &str| memory[name].as_u64().expect("a number");
        println!(
            "soak: memory phase={phase} seconds={} resident={} listed={} codecs={} high_effort={} dictionaries={}",
            begun.elapsed().as_secs(),
            bytes("resident_bytes"),
            bytes("listed_bytes"),
            Server::memory_in(&status, "codecs"),
            codec["high_effort_s"],
            codec["dictionaries"]
        );
    };
    while !soak.is_over() {
        memory::burst(&server, BURST_MIB);
        tell("burst");
        std::thread::sleep(PAUSE);
        tell("pause");
    }
    server.stop();
}

#[test]
#[ignore = "runs for an hour: make soak"]
fn power_cuts() {
    let able = need::tools(forgetful::TOOLS) && need::fuse();
    assert!(able, "nothing can be soaked");
    let mut soak = Soak::new("power_cuts");
    while !soak.is_over() {
        let mut scratch = Scratch::new();
        let folder = scratch.keep().to_owned();
        let mut blackout = Blackout::new(&scratch, soak.seed, soak.mode(), Flush::Honest);
        let mut outcome = Ok(());
        while outcome.is_ok() && blackout.power_cuts < CRASHES_A_CACHE && !soak.is_over() {
            outcome = blackout.until_power_cut();
            let tally = blackout.load.ledger().tally();
            soak.tell(blackout.kills, blackout.power_cuts, tally, 0, &folder);
        }
        let outcome = outcome.and_then(|()| blackout.finish());
        let (load, crashes) = (blackout.load, (blackout.kills, blackout.power_cuts));
        soak.close(crashes, &load, outcome, &mut scratch);
    }
}
