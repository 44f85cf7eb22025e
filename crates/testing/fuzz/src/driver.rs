//! Inputs without a fuzzer: the stored ones, those from real images, and seeded mutations of both.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use flaz_codec::{CodecId, CodecSpec, encoder, encoder_with, ids};
use flaz_sim::Rng;

use crate::sectors::sectors;
use crate::shape::SHAPES;
use crate::structure::Kind;
use crate::victim::Victim;
use crate::{Target, formats};

/// A running input is named after this time, in case it never ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// Directory of the stored inputs of a target.
#[must_use]
pub fn corpus_dir(target: &Target) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
    root.join(target.name)
}

/// The stored inputs of a target, sorted by name.
///
/// # Errors
/// The directory cannot be read.
pub fn corpus(target: &Target) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<_> = fs::read_dir(corpus_dir(target))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.sort();
    Ok(files)
}

/// Valid inputs of a target, from real images and clients. Empty if an input consists of decisions.
#[must_use]
pub fn starts(target: &Target) -> Vec<Vec<u8>> {
    let of = |kind, prefix: &[u8]| -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for victim in (0..SHAPES.len()).map(Victim::get) {
            for place in victim.places.iter().filter(|place| place.kind == kind).take(4) {
                // For an extent, also some of its fragments.
                let len = if kind == Kind::Extent { 8192 } else { place.len };
                all.push([prefix, &victim.cache.read(place.start, len as usize)].concat());
            }
        }
        all
    };
    match target.name {
        "superblock" => of(Kind::Superblock, &[0]),
        "shard-state" => of(Kind::State, &[0]),
        "intent" => of(Kind::Intent, &[0]),
        "extent" => of(Kind::Extent, &[0]),
        "dictionary" => vec![formats::stored_dictionary()],
        "summary" => of(Kind::Summary, &[0]),
        "manifest" => of(Kind::Manifest, &[0]),
        "index-image" => of(Kind::Image, &[]),
        "codec" => streams(),
        "fragment" => streams().iter().map(|stream| of_stream(stream)).collect(),
        "nbd-handshake" => handshakes(),
        "nbd-requests" => vec![[&[3][..], &[0; 28].repeat(4)].concat()],
        _ => Vec::new(),
    }
}

fn streams() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (codec, version) in ids().flat_map(|codec| (1..7).map(move |version| (codec, version))) {
        let spec = CodecSpec::new(codec, None).expect("it exists");
        let mut out = vec![0; 4096];
        if let Some(len) = encoder(spec).compress(&sectors(0, 8, version), &mut out) {
            all.push([&[codec.0], &out[..len]].concat());
        }
    }
    for version in 1..7 {
        let [dictionary, _] = formats::dictionaries();
        let encoder = dictionary.and_then(|dictionary| encoder_with(&dictionary, CodecSpec::ZSTD));
        let mut encoder = encoder.expect("it can be used");
        let mut out = vec![0; 4096];
        if let Some(len) = encoder.compress(&sectors(0, 8, version), &mut out) {
            all.push([&[CodecId::ZSTD.with_dictionary(0).0], &out[..len]].concat());
        }
    }
    all
}

/// A stream with the header of a fragment, whose checksum is corrected later.
fn of_stream(stream: &[u8]) -> Vec<u8> {
    let (codec, stored) = stream.split_first().expect("a codec comes first");
    let len = (stored.len() as u16).to_le_bytes();
    [&[0; 5][..], &len, &[*codec, 0], stored].concat()
}

fn handshakes() -> Vec<Vec<u8>> {
    let option = |number: u32, data: &[u8]| {
        let (number, len) = (number.to_be_bytes(), (data.len() as u32).to_be_bytes());
        [b"IHAVEOPT", &number[..], &len, data].concat()
    };
    let name = b"\0\0\0\x04disk";
    let info = [&name[..], b"\0\x03\0\x00\0\x02\0\x03"].concat();
    let query = [&name[..], b"\0\0\0\x02\0\0\0\x0fbase:allocation\0\0\0\x05base:"].concat();
    let greet = |pieces: u8, options: &[Vec<u8>]| [&[pieces, 0, 0, 0, 3], &options.concat()[..]].concat();
    vec![
        greet(0, &[option(1, b"disk")]),
        greet(1, &[option(3, b""), option(5, b""), option(2, b"")]),
        greet(
            7,
            &[
                option(8, b""),
                option(10, &query),
                option(6, &info),
                option(7, &info),
            ],
        ),
        greet(
            0,
            &[
                option(8, b""),
                option(9, name),
                option(99, b"what"),
                option(7, &info),
            ],
        ),
    ]
}

/// The input of a seed. It depends on nothing else, not even on the corpus.
#[must_use]
pub fn input(target: &Target, starts: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    if starts.is_empty() || rng.below(32) == 0 {
        let most = if rng.coin() { 24 } else { 100 };
        let len = 5 + rng.below(most);
        let mut bytes = vec![0; len as usize];
        rng.fill(&mut bytes);
        return bytes;
    }
    let mut bytes = starts[rng.below(starts.len() as u64) as usize].clone();
    for _ in 0..1 + rng.below(6) {
        mutate(&mut bytes, starts, &mut rng);
    }
    bytes.truncate(target.len_max);
    bytes
}

/// One change that is independent of the structure of the input.
fn mutate(bytes: &mut Vec<u8>, starts: &[Vec<u8>], rng: &mut Rng) {
    if bytes.is_empty() {
        bytes.push(rng.next_u64() as u8);
    }
    // Usually at a position that is not zero.
    let end = if rng.coin() {
        bytes.len()
    } else {
        bytes.len().min(160)
    };
    let at = rng.below(end as u64) as usize;
    let width = [1, 2, 4, 8][rng.below(4) as usize];
    match rng.below(8) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1..4 if at + width <= bytes.len() => {
            let value = match rng.below(5) {
                0 => 0,
                1 => u64::MAX,
                2 => rng.below(16),
                3 => 1 << rng.below(64),
                _ => rng.next_u64(),
            };
            let value = if rng.coin() {
                value.to_le_bytes()
            } else {
                value.to_be_bytes()
            };
            let value = if value[0] == 0 {
                &value[8 - width..]
            } else {
                &value[..width]
            };
            bytes[at..at + width].copy_from_slice(value);
        }
        4 => bytes.truncate(at),
        5 => {
            let other = &starts[rng.below(starts.len() as u64) as usize];
            let from = rng.below(other.len() as u64) as usize;
            let count = (other.len() - from).min(bytes.len() - at).min(width * 16);
            bytes[at..at + count].copy_from_slice(&other[from..from + count]);
        }
        6 => {
            let piece = bytes[at..(at + width * 4).min(bytes.len())].to_vec();
            bytes.splice(at..at, piece);
        }
        _ => bytes[at] = rng.next_u64() as u8,
    }
}

/// Runs inputs, each with the arguments that replay it. A failure prints the command; an input that does not end is
/// named.
///
/// # Panics
/// If the target does.
pub fn run(target: &Target, inputs: impl Iterator<Item = (String, Vec<u8>)>) -> u64 {
    let (beat, beats) = channel::<String>();
    let name = target.name;
    let watch = std::thread::spawn(move || {
        let mut now = String::new();
        loop {
            match beats.recv_timeout(PATIENCE) {
                Ok(replay) => now = replay,
                Err(RecvTimeoutError::Timeout) => {
                    eprintln!("{name} is still running. To replay: {}", command(name, &now));
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    let mut count = 0;
    for (replay, data) in inputs {
        beat.send(replay.clone()).expect("somebody watches");
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(&data))) {
            eprintln!("{name} failed. To replay: {}", command(name, &replay));
            resume_unwind(panic);
        }
        count += 1;
    }
    drop(beat);
    watch.join().expect("the watcher does not panic");
    count
}

fn command(target: &str, replay: &str) -> String {
    format!("cargo run -p flaz-fuzz -- {target} {replay}")
}

/// The stored inputs of a target, with the arguments that replay them.
///
/// # Errors
/// They cannot be read.
pub fn kept(target: &Target) -> io::Result<Vec<(String, Vec<u8>)>> {
    let read = |path: PathBuf| Ok((path.display().to_string(), fs::read(path)?));
    corpus(target)?.into_iter().map(read).collect()
}

/// The inputs of seeds, with the arguments that replay them.
pub fn seeded<'t>(
    target: &'t Target,
    seeds: impl Iterator<Item = u64> + 't,
) -> impl Iterator<Item = (String, Vec<u8>)> + 't {
    let starts = starts(target);
    seeds.map(move |seed| (format!("--seed {seed}"), input(target, &starts, seed)))
}
