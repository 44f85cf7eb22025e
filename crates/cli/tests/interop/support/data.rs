//! Test data of every compressibility, and comparison of files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use flaz_random::Random;

const BLOCK_BYTES: usize = 4096;
const COMPARE_BYTES: usize = 1 << 20;
const WORDS: [&str; 16] = [
    "extent", "fragment", "region", "shard", "origin", "cache", "device", "block", "sequence", "epoch",
    "flush", "reclaim", "admit", "promote", "clean", "dirty",
];

/// `len` bytes in blocks of five kinds: zeroes, one value, words, half random, all random.
pub fn mixed_data(len: usize, seed: u64) -> Vec<u8> {
    let mut numbers = Random::new(seed);
    let mut data = vec![0; len];
    for block in data.chunks_mut(BLOCK_BYTES) {
        match numbers.bits() % 8 {
            0 => {}
            1 => block.fill(numbers.bits() as u8),
            2..=4 => fill_words(block, &mut numbers),
            5 | 6 => {
                let half = block.len() / 2;
                numbers.fill(&mut block[..half]);
            }
            _ => numbers.fill(block),
        }
    }
    data
}

fn fill_words(bytes: &mut [u8], numbers: &mut Random) {
    let mut at = 0;
    while at < bytes.len() {
        let word = WORDS[(numbers.bits() % WORDS.len() as u64) as usize].as_bytes();
        let take = word.len().min(bytes.len() - at);
        bytes[at..at + take].copy_from_slice(&word[..take]);
        at += take + 1;
    }
}

/// Expects the two files to be equal.
///
/// # Panics
/// If they differ; the message has the offset of the first difference and its block.
pub fn assert_same_content(left: &Path, right: &Path) {
    let open = |path: &Path| File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut left_file, mut right_file) = (open(left), open(right));
    let (mut left_bytes, mut right_bytes) = (vec![0; COMPARE_BYTES], vec![0; COMPARE_BYTES]);
    let mut offset = 0;
    loop {
        let left_len = read_full(&mut left_file, &mut left_bytes);
        let right_len = read_full(&mut right_file, &mut right_bytes);
        let different = left_bytes[..left_len]
            .iter()
            .zip(&right_bytes[..right_len])
            .position(|(l, r)| l != r);
        if let Some(at) = different {
            panic!(
                "{} and {} differ first at byte {} (block {}): {:#04x} and {:#04x}",
                left.display(),
                right.display(),
                offset + at,
                (offset + at) / BLOCK_BYTES,
                left_bytes[at],
                right_bytes[at]
            );
        }
        assert_eq!(
            left_len,
            right_len,
            "{} and {} have different lengths after byte {offset}",
            left.display(),
            right.display()
        );
        if left_len == 0 {
            return;
        }
        offset += left_len;
    }
}

fn read_full(file: &mut File, bytes: &mut [u8]) -> usize {
    let mut have = 0;
    while have < bytes.len() {
        match file.read(&mut bytes[have..]).expect("a test file can be read") {
            0 => break,
            got => have += got,
        }
    }
    have
}
