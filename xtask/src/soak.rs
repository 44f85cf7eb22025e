//! `make soak`: runs the crash simulation, kills and power cuts of the real program, and bursts of clients on a server whose memory
//! is measured, for a given time.
//!
//! Everything runs under `cargo test`, so the commands in its output replay a failure. The simulation runs in rounds,
//! each with seeds that no earlier round had. The tests of the real program print their totals after each crash
//! (`crates/cli/tests/interop/soak.rs`).

mod memory;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use self::memory::{Report, Sample};

/// Default duration in minutes, unless the options or `FLAZ_SOAK_MINUTES` change it.
const MINUTES: u64 = 60;
/// Number of crash states in one round of the simulation: less than a minute.
const ROUND_STATES: u64 = 50_000;
/// Distance of the seeds of two rounds: more than a round can use.
const ROUND_BASES: u64 = 1 << 20;
// Of the workspace, as `make test` builds them.
const SIMULATION: [&str; 5] = ["test", "--locked", "--workspace", "--test", "simulation"];
const PROGRAM: [&str; 5] = ["test", "--locked", "--workspace", "--test", "interop"];
/// The simulation's output at the end of a round.
const EXPLORED: &str = "crash states explored: ";

/// Options of the soak.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Duration in minutes [default: FLAZ_SOAK_MINUTES, or 60]
    #[arg(long)]
    minutes: Option<u64>,
    /// Only this part [default: all]
    #[arg(long)]
    part: Option<Part>,
}

/// A part of the soak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The crash simulation.
    Simulation,
    /// Kills and power cuts of the program.
    Crashes,
    /// Bursts of clients, with the memory of the server.
    Memory,
}

type RunPart = fn(Instant, u64, &Mutex<Soaked>) -> Result<(), String>;

impl Part {
    const ALL: [Self; 3] = [Self::Simulation, Self::Crashes, Self::Memory];

    fn run(self) -> RunPart {
        match self {
            Self::Simulation => simulate,
            Self::Crashes => crash_program,
            Self::Memory => measure_memory,
        }
    }

    fn tests(self) -> [&'static str; 5] {
        match self {
            Self::Simulation => SIMULATION,
            Self::Crashes | Self::Memory => PROGRAM,
        }
    }
}

/// Totals of one part so far.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    states: u64,
    kills: u64,
    power_cuts: u64,
    acknowledged: u64,
    durable: u64,
    lost: u64,
}

impl Counts {
    fn and(self, other: Self) -> Self {
        Self {
            states: self.states + other.states,
            kills: self.kills + other.kills,
            power_cuts: self.power_cuts + other.power_cuts,
            acknowledged: self.acknowledged + other.acknowledged,
            durable: self.durable + other.durable,
            lost: self.lost + other.lost,
        }
    }

    /// From a line `soak: NAME key=value ..`.
    fn of_line(line: &str) -> Self {
        let value = |key: &str| {
            let found = line.split(' ').find_map(|word| word.strip_prefix(key));
            found.and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        Self {
            states: 0,
            kills: value("kills="),
            power_cuts: value("power_cuts="),
            acknowledged: value("acknowledged="),
            durable: value("durable="),
            lost: value("lost="),
        }
    }
}

/// Totals of all parts, each of which reports its own.
#[derive(Debug, Default)]
struct Soaked {
    simulation: Counts,
    kills: Counts,
    power_cuts: Counts,
    memory: Vec<Sample>,
    /// Failed parts, with the place to look at.
    failures: Vec<String>,
}

impl Soaked {
    fn total(&self) -> Counts {
        self.simulation.and(self.kills).and(self.power_cuts)
    }
}

/// Runs all parts.
///
/// # Errors
/// Data was lost, or a part could not run.
pub fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let minutes = match (options.minutes, std::env::var("FLAZ_SOAK_MINUTES")) {
        (Some(minutes), _) => minutes,
        (None, Ok(text)) => text
            .parse()
            .map_err(|error| format!("FLAZ_SOAK_MINUTES={text} is not a number: {error}"))?,
        (None, Err(_)) => MINUTES,
    };
    let parts: Vec<Part> = (Part::ALL.into_iter())
        .filter(|part| options.part.is_none_or(|only| only == *part))
        .collect();
    for part in &parts {
        let built = cargo(&part.tests()).arg("--no-run").status()?;
        if !built.success() {
            return Err(format!("cannot build the tests: {built}").into());
        }
    }
    let crashes = parts.iter().any(|part| *part != Part::Memory);
    let begun = Instant::now();
    let until = begun + Duration::from_secs(60 * minutes);
    let soaked = Mutex::new(Soaked::default());
    std::thread::scope(|scope| {
        let (done, ended) = mpsc::channel::<()>();
        for part in parts {
            let (done, soaked) = (done.clone(), &soaked);
            scope.spawn(move || {
                if let Err(error) = part.run()(until, minutes, soaked) {
                    soaked
                        .lock()
                        .expect("no thread panics with it")
                        .failures
                        .push(error);
                }
                drop(done);
            });
        }
        drop(done);
        while ended.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            let minute = begun.elapsed().as_secs() / 60;
            let soaked = soaked.lock().expect("no thread panics with it");
            if crashes {
                eprintln!("minute {minute} of {minutes}: {}", line(soaked.total()));
            } else {
                eprintln!("minute {minute} of {minutes}");
            }
        }
    });
    let soaked = soaked.into_inner().expect("no thread panics with it");
    let took = begun.elapsed().as_secs();
    println!("Soaked for {} min {} s", took / 60, took % 60);
    if crashes {
        print_table(&soaked);
    }
    if !soaked.memory.is_empty() {
        println!("{}", Report(&soaked.memory));
    }
    if soaked.failures.is_empty() && soaked.total().lost == 0 {
        return Ok(());
    }
    Err(format!("soak failed: {}", soaked.failures.join("; ")).into())
}

fn cargo(words: &[&str]) -> Command {
    // Cargo sets it when it runs this program: use the same one.
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(words).stdin(Stdio::null());
    command
}

/// Rounds of the simulation until the time is over.
fn simulate(until: Instant, _minutes: u64, soaked: &Mutex<Soaked>) -> Result<(), String> {
    // Different crashes in every soak; a failure prints the seed that replays it.
    let clock = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut base = clock.map_or(1, |since| since.as_secs()) * ROUND_BASES;
    while Instant::now() < until {
        let output = cargo(&SIMULATION)
            .args([
                "--",
                "--exact",
                "--nocapture",
                "crash::no_crash_loses_or_revives_anything",
            ])
            .env("FLAZ_CRASH_STATES", ROUND_STATES.to_string())
            .env("FLAZ_CRASH_BASE", base.to_string())
            .env_remove("FLAZ_SEED")
            .output()
            .map_err(|error| format!("cannot start the simulation: {error}"))?;
        let text = String::from_utf8_lossy(&output.stderr);
        let states = text.lines().find_map(|line| line.strip_prefix(EXPLORED));
        let states = states.and_then(|count| count.trim().parse::<u64>().ok());
        let mut soaked = soaked.lock().expect("no thread panics with it");
        soaked.simulation.states += states.unwrap_or(0);
        if !output.status.success() || states.is_none() {
            soaked.simulation.lost += 1;
            eprintln!("{}{text}", String::from_utf8_lossy(&output.stdout));
            return Err("the simulation: see above for the seed that replays it".into());
        }
        base += ROUND_BASES;
    }
    Ok(())
}

/// Runs tests of the real program at the same time, and calls `told` with each line of theirs that is for the soak.
fn run_program(tests: &[&str], minutes: u64, mut told: impl FnMut(&str)) -> Result<ExitStatus, String> {
    let mut child = cargo(&PROGRAM)
        .args(["--", "--exact", "--ignored", "--nocapture", "--test-threads=2"])
        .args(tests)
        .env("FLAZ_SOAK_MINUTES", minutes.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", tests.join(" and ")))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        // Other output of the tests, such as the backtrace of a failure.
        scope.spawn(|| relay(stderr, |_| false));
        relay(stdout, |line| {
            let found = line.split_once("soak: ");
            if let Some((_, line)) = found {
                told(line);
            }
            found.is_some()
        });
    });
    child.wait().map_err(|error| error.to_string())
}

/// Kills and power cuts of the real program, in parallel.
fn crash_program(_until: Instant, minutes: u64, soaked: &Mutex<Soaked>) -> Result<(), String> {
    let mut folders = [String::new(), String::new()];
    let status = run_program(&["soak::kills", "soak::power_cuts"], minutes, |line| {
        let mut soaked = soaked.lock().expect("no thread panics with it");
        let which = usize::from(line.starts_with("power_cuts "));
        let counts = if which == 0 {
            &mut soaked.kills
        } else {
            &mut soaked.power_cuts
        };
        *counts = Counts::of_line(line);
        if let Some((_, folder)) = line.split_once("folder=") {
            folders[which] = folder.to_owned();
        }
    })?;
    if status.success() {
        return Ok(());
    }
    let kept: Vec<_> = folders
        .into_iter()
        .filter(|folder| std::path::Path::new(folder).exists())
        .collect();
    Err(format!(
        "kills and power cuts: see above; images, logs and ledgers are kept in {}",
        kept.join(" and ")
    ))
}

/// Memory of the real program, under bursts of clients.
fn measure_memory(_until: Instant, minutes: u64, soaked: &Mutex<Soaked>) -> Result<(), String> {
    let status = run_program(&["soak::memory"], minutes, |line| {
        eprintln!("{line}");
        let mut soaked = soaked.lock().expect("no thread panics with it");
        soaked.memory.extend(Sample::of_line(line));
    })?;
    let soaked = soaked.lock().expect("no thread panics with it");
    match (status.success(), Report(&soaked.memory).is_flat()) {
        (true, Some(true) | None) => Ok(()),
        (true, Some(false)) => Err("the memory of the server grows: see below".to_owned()),
        (false, _) => Err("the measurement of memory: see above".to_owned()),
    }
}

/// Prints the lines that `taken` does not accept.
fn relay(from: Option<impl Read>, mut taken: impl FnMut(&str) -> bool) {
    let lines = from.map(BufReader::new).into_iter().flat_map(BufRead::lines);
    for line in lines.map_while(Result::ok) {
        if !taken(&line) {
            eprintln!("{line}");
        }
    }
}

fn line(counts: Counts) -> String {
    format!(
        "{} crash states, {} kills, {} power cuts, {} writes acknowledged, {} durable, {} lost",
        counts.states, counts.kills, counts.power_cuts, counts.acknowledged, counts.durable, counts.lost
    )
}

fn print_table(soaked: &Soaked) {
    println!(
        "{:<22} {:>12} {:>8} {:>11} {:>13} {:>10} {:>6}",
        "", "states", "kills", "power cuts", "acknowledged", "durable", "lost"
    );
    for (name, counts) in [
        ("simulation", soaked.simulation),
        ("program, kills", soaked.kills),
        ("program, power cuts", soaked.power_cuts),
        ("all", soaked.total()),
    ] {
        println!(
            "{name:<22} {:>12} {:>8} {:>11} {:>13} {:>10} {:>6}",
            counts.states, counts.kills, counts.power_cuts, counts.acknowledged, counts.durable, counts.lost
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soak_line_is_parsed() {
        let counts = Counts::of_line(
            "power_cuts kills=3 power_cuts=12 acknowledged=4000 durable=2000 lost=1 seed=9 folder=/x y",
        );
        assert_eq!((counts.kills, counts.power_cuts, counts.lost), (3, 12, 1));
        assert_eq!((counts.acknowledged, counts.durable), (4000, 2000));
    }
}
