//! The layout of one unit of generated data: a run of one byte, then random bytes and copies of them.
//!
//! ```text
//! | run of one byte | literals, at least `distance` | copy | literals | copy | literals | ..
//! ```
//!
//! All families use this layout, with some parts empty. Codecs need a few bytes to encode the position and length of a
//! run or a copy. Runs and copies are therefore longer than requested, by the average need of the three calibrated
//! codecs (`slack_bytes`). The remaining error is within a percentage point.
//!
//! Invariant: run, copies and literals fill the unit exactly.

use flaz_random::Key;

use crate::alphabet;
use crate::masks::Masks;

/// Maximum length of a unit, unless its copies have a larger distance: every aligned 4 KiB then has the requested
/// share.
pub const CELL_BYTES: usize = 4096;
/// Minimum number of random bytes in a unit with copies: a codec would take a shorter period for a run.
const PERIOD_BYTES_MIN: usize = 4;
/// Copies shorter than this are not split, because matching codecs might miss the halves.
const PIECE_BYTES_MIN: usize = 48;
/// Number of words between the streams of two pieces of literals: more than a unit has.
const PIECE_WORDS: u64 = 1 << 32;

/// Lengths of the parts of a unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    /// Bytes of the run at the front.
    pub run_bytes: usize,
    /// Bytes that are copies of the bytes `distance_bytes` before them.
    pub copy_bytes: usize,
    /// Distance of the copies; smaller if there are fewer literals before them.
    pub distance_bytes: usize,
    /// Random bits of the literals.
    pub masks: Masks,
}

impl Layout {
    /// Only random bytes.
    pub const RANDOM: Self = Self {
        run_bytes: 0,
        copy_bytes: 0,
        distance_bytes: 0,
        masks: Masks::ALL,
    };

    /// A run, so that the share `saved` of `unit_bytes` is saved.
    #[must_use]
    pub fn run(saved: f64, unit_bytes: usize) -> Self {
        Self {
            run_bytes: repeated_bytes(saved, unit_bytes, 0.0, unit_bytes),
            ..Self::RANDOM
        }
    }

    /// Copies at `distance_bytes`, so that the share `saved` of `unit_bytes` is saved.
    #[must_use]
    pub fn copies(saved: f64, unit_bytes: usize, distance_bytes: usize) -> Self {
        let most = unit_bytes.saturating_sub(PERIOD_BYTES_MIN);
        Self {
            copy_bytes: repeated_bytes(saved, unit_bytes, copy_slack(saved), most),
            distance_bytes,
            ..Self::RANDOM
        }
    }

    /// A skewed alphabet, so that an entropy coder saves the share `saved` of `unit_bytes`; with a run from
    /// [`alphabet::SAVED_MAX`] on.
    #[must_use]
    pub fn alphabet(saved: f64, unit_bytes: usize) -> Self {
        let beyond = (saved - alphabet::SAVED_MAX).max(0.0) / (1.0 - alphabet::SAVED_MAX);
        Self {
            masks: alphabet::masks(saved),
            ..Self::run(beyond, unit_bytes)
        }
    }

    /// A run for the share that a matching codec without an entropy stage saves (`matched`), and an alphabet for what
    /// an entropy coder saves in addition (`entropy` in total).
    #[must_use]
    pub fn mixed(matched: f64, entropy: f64, unit_bytes: usize) -> Self {
        let rest = 1.0 - matched;
        let beyond = if rest > 0.0 {
            ((entropy - matched) / rest).max(0.0)
        } else {
            0.0
        };
        if beyond < ENTROPY_SAVED_MIN {
            // Nearly flat literals save nothing: a run of the mean length is used for both.
            return Self::run(matched.midpoint(entropy.max(matched)), unit_bytes);
        }
        if beyond > alphabet::SAVED_MAX {
            return Self::alphabet_and_run(matched, entropy, unit_bytes);
        }
        Self {
            masks: alphabet::masks(beyond),
            ..Self::run(matched, unit_bytes)
        }
    }

    /// More entropy savings than an alphabet provides: the narrowest one, and a longer run.
    fn alphabet_and_run(matched: f64, entropy: f64, unit_bytes: usize) -> Self {
        let run = ((entropy - alphabet::SAVED_MAX) / (1.0 - alphabet::SAVED_MAX)).max(matched);
        Self {
            masks: alphabet::masks(alphabet::SAVED_MAX),
            ..Self::run(run, unit_bytes)
        }
    }

    /// The same shares for a part of a unit.
    #[must_use]
    pub fn scaled(&self, part_bytes: usize, unit_bytes: usize) -> Self {
        let scale = |bytes: usize| bytes * part_bytes / unit_bytes.max(1);
        Self {
            run_bytes: scale(self.run_bytes),
            copy_bytes: scale(self.copy_bytes),
            ..*self
        }
    }

    /// Fills a unit; the same key and value produce the same bytes.
    pub fn fill(&self, key: Key, value: u8, unit: &mut [u8]) {
        let run_bytes = self.run_bytes.min(unit.len());
        let (run, rest) = unit.split_at_mut(run_bytes);
        run.fill(value);
        let copy_bytes = self.copy_bytes.min(rest.len());
        let literal_bytes = rest.len() - copy_bytes;
        if copy_bytes == 0 || literal_bytes == 0 {
            self.masks.fill(key, 0, rest);
            return;
        }
        let distance = self.distance_bytes.clamp(1, literal_bytes);
        self.masks.fill(key, 0, &mut rest[..distance]);
        let pieces: usize = if copy_bytes < 2 * PIECE_BYTES_MIN || literal_bytes < copy_bytes / 2 {
            1
        } else {
            2
        };
        let after = literal_bytes - distance;
        let mut at = distance;
        for piece in 0..pieces {
            let part = |whole: usize| whole * (piece + 1) / pieces - whole * piece / pieces;
            let end = at + part(copy_bytes);
            repeat(rest, at, end, distance);
            let literals = part(after);
            let first = (piece as u64 + 1) * PIECE_WORDS;
            self.masks.fill(key, first, &mut rest[end..end + literals]);
            at = end + literals;
        }
    }
}

/// Additional cost of copies compared with a run, as a share of the unit, by the share that is saved; interpolated
/// linearly. The reason is that copied random bytes take part in zlib's code table. From 70 to 90 % saved, zlib:6 and
/// zstd:1 are nearly two points apart (zlib in 4 KiB and zstd in more); this correction keeps both within one point.
const COPY_SLACK: [(f64, f64); 6] = [
    (0.0, 0.0),
    (0.57, 0.0022),
    (0.77, 0.0022),
    (0.8, 0.0014),
    (0.9, 0.0014),
    (1.0, 0.002),
];
/// Literals that would save less than this stay random.
const ENTROPY_SAVED_MIN: f64 = 0.02;

fn copy_slack(saved: f64) -> f64 {
    let lines = COPY_SLACK.array_windows();
    let line = lines.rev().find(|[(from, _), _]| saved >= *from);
    line.map_or(0.0, |[(from, low), (to, high)]| {
        low + (high - low) * ((saved - from) / (to - from)).min(1.0)
    })
}

/// Fills `bytes[at..end]` with the bytes `distance` before, repeated as often as necessary.
fn repeat(bytes: &mut [u8], mut at: usize, end: usize, distance: usize) {
    while at < end {
        let len = distance.min(end - at);
        bytes.copy_within(at - distance..at - distance + len, at);
        at += len;
    }
}

/// Number of bytes of `unit_bytes` to repeat so that the share `saved` is saved, plus a share `extra`; at most `most`.
fn repeated_bytes(saved: f64, unit_bytes: usize, extra: f64, most: usize) -> usize {
    if saved <= 0.0 {
        return 0;
    }
    let wanted = saved.min(1.0) * unit_bytes as f64;
    let literals = unit_bytes as f64 - wanted;
    let slack = slack_bytes(literals, unit_bytes) + extra * unit_bytes as f64;
    ((wanted + slack).round() as usize).min(most)
}

/// Average overhead of the codecs per unit: some bytes for the repeated part, and for the literals, for which zlib
/// needs a code table in small chunks.
fn slack_bytes(literals: f64, unit_bytes: usize) -> f64 {
    let cell = unit_bytes.min(CELL_BYTES) as f64;
    let cells = (unit_bytes as f64 / cell).max(1.0);
    let table = (literals / cells / (cell / 8.0)).min(1.0);
    cells * (3.4 + cell * (0.0025 + 0.0055 * table))
}
