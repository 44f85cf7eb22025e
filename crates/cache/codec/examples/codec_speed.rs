//! The cost of the codecs, and of the compressibility tests before them, on blocks of 4 KiB of real and synthetic data.
//!
//! `cargo run --release -p flaz-codec --example codec_speed [CODEC ...]`
//!
//! Prints a table for each kind of data: share of blocks stored raw, ratio, and nanoseconds per block (best of several
//! rounds, one core) to compress and to decompress. Data: shared libraries of /usr/lib, text of /usr/share, random
//! bytes, and base64 of random bytes.

use std::error::Error;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use flaz_codec::compressibility::{Detector, looks_incompressible, single_value};
use flaz_codec::{CodecSpec, Decoders, encoder};

const BLOCK: usize = 4096;
/// Largest fragment worth storing compressed.
const FRAGMENT_MAX: usize = BLOCK - 64;
const SAMPLE_BYTES: usize = 8 << 20;
const ROUNDS: usize = 7;
/// Blocks in one request.
const REQUEST_BLOCKS: usize = 8;
/// Blocks that are timed together.
const BATCH: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let named = match named.is_empty() {
        true => ["lz4", "zstd:-5", "zstd:1", "zstd:3", "zlib:1", "zlib:6", "lzo"]
            .map(String::from)
            .to_vec(),
        false => named,
    };
    let specs = named
        .iter()
        .map(|name| name.parse())
        .collect::<Result<Vec<CodecSpec>, _>>()?;
    let random = random_bytes(SAMPLE_BYTES);
    let samples = [
        (
            "libraries (/usr/lib)",
            files(Path::new("/usr/lib"), |name| name.contains(".so")),
        ),
        ("text (/usr/share)", files(Path::new("/usr/share"), is_text)),
        ("random", random.clone()),
        ("base64 of random", base64(&random)),
    ];
    for (name, data) in &samples {
        report(name, data, &specs);
    }
    Ok(())
}

fn report(name: &str, data: &[u8], specs: &[CodecSpec]) {
    let blocks: Vec<&[u8]> = data.chunks_exact(BLOCK).collect();
    if blocks.is_empty() {
        println!("\n{name}: no such data on this machine");
        return;
    }
    let single = blocks
        .iter()
        .filter(|block| single_value(block).is_some())
        .count();
    let hopeless = blocks.iter().filter(|block| looks_incompressible(block)).count();
    println!(
        "\n{name}: {} blocks, {single} of a single value, {hopeless} look incompressible",
        blocks.len()
    );
    let mut copy = vec![0; BLOCK];
    // In the middle of a long stretch of incompressible blocks.
    let mut detector = Detector::new();
    (0..33).for_each(|_| detector.note(true));
    let mut in_request = 0;
    for (what, ns) in [
        (
            "copy",
            time(&blocks, |block| black_box(&mut copy).copy_from_slice(block)),
        ),
        (
            "crc32c",
            time(&blocks, |block| _ = black_box(crc32c::crc32c(block))),
        ),
        (
            "single_value",
            time(&blocks, |block| _ = black_box(single_value(block))),
        ),
        (
            "looks_incompressible",
            time(&blocks, |block| _ = black_box(looks_incompressible(block))),
        ),
        (
            "the same, in a streak",
            time(&blocks, |block| {
                if in_request % REQUEST_BLOCKS == 0 {
                    detector.next_request();
                }
                in_request += 1;
                _ = black_box(detector.incompressible(block));
            }),
        ),
    ] {
        println!("  {what:<22} {ns:8.0} ns");
    }
    println!(
        "  {:<10} {:>6} {:>7} {:>12} {:>14}",
        "codec", "raw", "ratio", "compress", "decompress"
    );
    for &spec in specs {
        report_codec(spec, &blocks);
    }
}

/// Packs blocks as the cache does: incompressible blocks bypass the codec.
fn spared(spec: CodecSpec, blocks: &[&[u8]]) -> (f64, f64) {
    let (mut encoder, mut detector) = (encoder(spec), Detector::new());
    let mut out = vec![0; FRAGMENT_MAX];
    let (mut stored, mut number) = (0, 0);
    let ns = time(blocks, |block| {
        if number % REQUEST_BLOCKS == 0 {
            detector.next_request();
        }
        number += 1;
        let asked = !detector.incompressible(block);
        let len = asked.then(|| encoder.compress(block, &mut out)).flatten();
        detector.note(len.is_none());
        stored += len.unwrap_or(BLOCK);
    });
    (ns, (number * BLOCK) as f64 / stored as f64)
}

fn report_codec(spec: CodecSpec, blocks: &[&[u8]]) {
    let mut encoder = encoder(spec);
    let mut out = vec![0; FRAGMENT_MAX];
    let compress_ns = time(blocks, |block| _ = black_box(encoder.compress(block, &mut out)));
    let mut fragments: Vec<Vec<u8>> = Vec::new();
    let (mut raw, mut stored_bytes, mut missed) = (0, 0, 0);
    for block in blocks {
        match encoder.compress(block, &mut out) {
            Some(len) => {
                fragments.push(out[..len].to_vec());
                stored_bytes += len;
                missed += usize::from(looks_incompressible(block));
            }
            None => {
                raw += 1;
                stored_bytes += BLOCK;
            }
        }
    }
    let mut decoders = Decoders::new();
    let mut block = vec![0; BLOCK];
    let pieces: Vec<&[u8]> = fragments.iter().map(Vec::as_slice).collect();
    let decompress = match pieces.is_empty() {
        true => "-".to_owned(),
        false => {
            let ns = time(&pieces, |input| {
                _ = black_box(decoders.decompress(spec.id(), input, &mut block))
            });
            format!("{ns:.0} ns")
        }
    };
    let share = 100.0 * f64::from(raw) / blocks.len() as f64;
    let ratio = (blocks.len() * BLOCK) as f64 / stored_bytes as f64;
    let (spared_ns, spared_ratio) = spared(spec, blocks);
    let name = spec.to_string();
    print!("  {name:<10} {share:>5.1}% {ratio:>7.3} {compress_ns:>9.0} ns {decompress:>14}");
    print!("   as packed {spared_ratio:.3} {spared_ns:>6.0} ns");
    println!(
        "{}",
        if missed > 0 {
            format!("   {missed} wrongly classified as incompressible")
        } else {
            String::new()
        }
    );
}

/// Nanoseconds per block: for each batch the best of several rounds, then the mean over batches, so that interruptions
/// do not count.
fn time(blocks: &[&[u8]], mut work: impl FnMut(&[u8])) -> f64 {
    let mut best_ns = vec![u128::MAX; blocks.len().div_ceil(BATCH)];
    for _ in 0..ROUNDS {
        for (batch, best_ns) in blocks.chunks(BATCH).zip(&mut best_ns) {
            let start = Instant::now();
            for block in batch {
                work(black_box(block));
            }
            *best_ns = start.elapsed().as_nanos().min(*best_ns);
        }
    }
    best_ns.iter().sum::<u128>() as f64 / blocks.len() as f64
}

fn is_text(name: &str) -> bool {
    [
        ".txt", ".html", ".py", ".h", ".xml", ".md", ".rst", ".pl", ".pm", ".svg",
    ]
    .iter()
    .any(|end| name.ends_with(end))
}

/// Contents of the selected regular files under `root`, concatenated.
fn files(root: &Path, wanted: impl Fn(&str) -> bool) -> Vec<u8> {
    let mut data = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let mut entries: Vec<_> = std::fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .flatten()
            .collect();
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && wanted(&entry.file_name().to_string_lossy()) {
                let bytes = std::fs::read(entry.path()).unwrap_or_default();
                data.extend_from_slice(&bytes[..bytes.len().min(1 << 20) / BLOCK * BLOCK]);
            }
            if data.len() >= SAMPLE_BYTES {
                return data;
            }
        }
    }
    data
}

fn random_bytes(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    flaz_random::Random::new(0).fill(&mut bytes);
    bytes
}

fn base64(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bytes.iter().map(|byte| DIGITS[usize::from(byte % 64)]).collect()
}
