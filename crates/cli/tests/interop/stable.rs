//! Damage to flushed data, after a kill in write-back: an error or a refused start, and never older data.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use flaz_nbd::Client;
use flaz_nbd::request::Command;
use flaz_random::Random;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Cache, CacheSpec, Program, Scratch, Server};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;
const WRITES: u64 = 300;
/// Number of kills, and of bits damaged after each, one at a time.
const KILLS: u64 = 3;
const BITS: u64 = 6;
/// Number of extents, from the newest, that are damaged.
const NEWEST: usize = 6;

fn contents(block: u64, version: u64) -> Vec<u8> {
    let mut numbers = Random::new(block << 32 | version);
    let mut data = vec![0; BLOCK];
    for word in data[..BLOCK / 2].chunks_exact_mut(8) {
        word.copy_from_slice(&numbers.bits().to_le_bytes());
    }
    data
}

/// The newest extents on a cache device, newest first: place and length.
fn newest_extents(cache: &Cache) -> Vec<(u64, u64)> {
    let listed = Program::flaz().arg("dump").arg(&cache.path).arg("--json").ok();
    let records = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut extents: Vec<(u64, u64, u64)> = records
        .filter(|record| record["kind"] == "extent")
        .map(|record| {
            let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{record}"));
            (
                number(&record["fields"]["sequence"]),
                number(&record["offset"]),
                number(&record["len_bytes"]),
            )
        })
        .collect();
    extents.sort_unstable();
    assert!(extents.len() > NEWEST, "{listed}");
    let newest = extents.into_iter().rev().take(NEWEST);
    newest.map(|(_, offset, len)| (offset, len)).collect()
}

/// Everything that a start reads: cache device, origin, per-host state.
struct Image(Vec<(std::path::PathBuf, Vec<u8>)>);

impl Image {
    fn take(scratch: &Scratch, cache: &Cache, origin: &Path) -> Self {
        let state = fs::read_dir(scratch.state_dir()).expect("a folder");
        let state = state.map(|entry| entry.expect("an entry").path());
        let all = state.chain([cache.path.clone(), origin.to_owned()]);
        let files = all.filter(|path| path.is_file());
        Self(
            files
                .map(|path| (path.clone(), fs::read(&path).expect("reads")))
                .collect(),
        )
    }

    fn restore(&self) {
        for (path, bytes) in &self.0 {
            fs::write(path, bytes).expect("writes");
        }
    }
}

/// The result of a start after the damage.
#[derive(Debug, Default)]
struct Tally {
    refused: u64,
    errors: u64,
    unharmed: u64,
    older: Vec<String>,
}

fn seed() -> u64 {
    match std::env::var("FLAZ_SEED") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|error| panic!("FLAZ_SEED={text}: {error}")),
        Err(_) => 0,
    }
}

/// Kills a server after a flush was acknowledged and `wait` is over, flips a bit, starts, reads everything.
fn trials(options: &str, wait: Duration) -> Tally {
    let mut tally = Tally::default();
    for kill in seed()..seed() + KILLS {
        let scratch = Scratch::new();
        let origin = scratch.sparse("origin.img", 2 << 20);
        let spec = CacheSpec {
            size: 16 << 20,
            ..CacheSpec::default()
        };
        let cache = Cache::create(&scratch, &origin, &spec);
        let words = format!("--mode write-back --dirty-limit 50 {options}");
        let server = Server::start(&scratch, &cache, &words);
        let mut client = Client::connect(server.socket()).expect("connects");
        let mut numbers = Random::new(kill);
        let mut versions = vec![0; BLOCKS as usize];
        for version in 1..=WRITES {
            let block = numbers.bits() % BLOCKS;
            client
                .write(block * BLOCK as u64, &contents(block, version))
                .expect("writes");
            versions[block as usize] = version;
        }
        client.flush().expect("flushes");
        thread::sleep(wait);
        server.end_by(Signal::KILL);
        let newest = newest_extents(&cache);
        let image = Image::take(&scratch, &cache, &origin);
        for _ in 0..BITS {
            image.restore();
            let (offset, len) = newest[numbers.bits() as usize % newest.len()];
            let at = offset + numbers.bits() % len;
            let file = fs::File::options().read(true).write(true).open(&cache.path);
            let file = file.expect("opens");
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).expect("reads");
            byte[0] ^= 1 << (numbers.bits() % 8);
            file.write_all_at(&byte, at).expect("writes");
            drop(file);
            let Ok(server) = Server::try_start(&scratch, &cache, &words) else {
                tally.refused += 1;
                continue;
            };
            let mut client = Client::connect(server.socket()).expect("connects");
            let (mut errors, mut older) = (0, 0);
            for (block, &version) in (0..).zip(&versions) {
                let expected = match version {
                    0 => vec![0; BLOCK],
                    version => contents(block, version),
                };
                match client.call(Command::Read, block * BLOCK as u64, BLOCK as u32) {
                    Ok(data) => older += u64::from(data != expected),
                    Err(_) => errors += 1,
                }
            }
            if older > 0 {
                let what = format!("kill {kill}, a bit of byte {at}: {older} blocks");
                tally.older.push(what);
            } else if errors > 0 {
                tally.errors += 1;
            } else {
                tally.unharmed += 1;
            }
        }
    }
    eprintln!("{options}: {tally:?}");
    tally
}

#[test]
fn one_bad_bit_after_a_strict_flush_and_a_kill() {
    let tally = trials("--strict-flush always", Duration::ZERO);
    assert!(tally.older.is_empty(), "{tally:?}");
    assert!(tally.refused + tally.errors > 0, "{tally:?}");
}

/// In a file the mark follows the flush. The wait is far longer than that takes, and shorter than the interval of any
/// other record of the stable position.
#[test]
fn one_bad_bit_soon_after_a_flush_and_a_kill() {
    let tally = trials("", Duration::from_millis(300));
    assert!(tally.older.is_empty(), "{tally:?}");
    assert!(tally.refused + tally.errors > 0, "{tally:?}");
}
