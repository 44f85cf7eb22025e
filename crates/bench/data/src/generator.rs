//! Generates data as a function of seed and offset.
//!
//! Chunks are numbered from offset 0. A chunk consists of *units*: cells of 4 KiB (or the whole chunk, if it is smaller
//! or if the distance of copies exceeds half a cell). Each unit has its own key.
//!
//! Invariants:
//! - every byte is a function of the spec and its offset, independent of the order and size of requests;
//! - a duplicate chunk equals the one [`DEDUP_STRIDE_BYTES`] before it. That is beyond the window of any codec that
//!   compresses up to a few MiB at once, so duplicates do not compress.

use flaz_random::Key;

use crate::alphabet;
use crate::distribution::Size;
use crate::layout::{CELL_BYTES, Layout};
use crate::spec::{DataSpec, Family, SpecError};

/// Distance in bytes from a duplicate to its original, or one chunk if that is larger. Data before this offset contains
/// no duplicates.
pub const DEDUP_STRIDE_BYTES: u64 = 4 << 20;
/// Maximum number of steps from a duplicate back to its original; a chunk farther away is a new one.
const DEDUP_STEPS_MAX: u64 = 1024;
/// Number of levels that `random-level` draws from, a tenth of a percent apart.
const LEVELS: u64 = 1001;
/// Words of a chunk's key that determine the chunk.
const WORD_DUPLICATE: u64 = 0;
const WORD_VALUE: u64 = 1;
const WORD_LEVEL: u64 = 2;
/// Share of IOzone's weakly random part that repeats, and what an entropy coder saves of the rest. Chosen so that the
/// codecs save what they save of IOzone's own data: a sixth without an entropy stage, nearly half with one.
const IOZONE_REPEATED: f64 = 0.17;
const IOZONE_ENTROPY: f64 = 0.36;
const IOZONE_DISTANCE_BYTES: usize = 256;

/// Generates data and verifies it.
#[derive(Clone, Debug)]
pub struct Generator {
    spec: DataSpec,
    key: Key,
    unit_bytes: usize,
    shape: Shape,
}

/// How the layout of a unit is determined.
#[derive(Clone, Debug)]
enum Shape {
    /// Zeroes.
    Zeros,
    /// The same for all units.
    One(Layout),
    /// Drawn for each chunk, all layouts with equal probability.
    Drawn(Vec<Layout>),
    /// Drawn for each chunk by weight.
    Weighted {
        /// `None`: zeroes.
        layouts: Vec<Option<Layout>>,
        /// `cumulative[i]`: weight of the layouts 0 to i.
        cumulative: Vec<u64>,
    },
    /// A constant part at the front of the chunk, then a layout.
    Record { constant_bytes: usize, rest: Layout },
}

/// A difference between the data found and the expected data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "wrong data at offset {offset} (chunk {chunk}): expected byte {expected:#04x}, found {found:#04x}; {differing} bytes \
     of the rest of its 4 KiB differ"
)]
pub struct Difference {
    /// Offset of the first different byte, from the beginning of the data.
    pub offset: u64,
    /// Number of its chunk.
    pub chunk: u64,
    /// Expected byte.
    pub expected: u8,
    /// Byte found.
    pub found: u8,
    /// Number of different bytes from there to the end of the unit, or of the data given: 1 means a flipped bit, all
    /// mean another block.
    pub differing: u64,
}

impl Generator {
    /// A generator for `spec`.
    ///
    /// # Errors
    /// Such data cannot be generated.
    pub fn new(spec: DataSpec) -> Result<Self, SpecError> {
        spec.check()?;
        let chunk_bytes = spec.chunk_bytes as usize;
        let far = match spec.family {
            Family::Copies { distance_bytes } => distance_bytes > CELL_BYTES as u64 / 2,
            _ => false,
        };
        let unit_bytes = if far {
            chunk_bytes
        } else {
            chunk_bytes.min(CELL_BYTES)
        };
        Ok(Self {
            shape: Shape::of(&spec, unit_bytes),
            key: spec.seed.key(),
            unit_bytes,
            spec,
        })
    }

    /// The spec of the data.
    #[must_use]
    pub fn spec(&self) -> &DataSpec {
        &self.spec
    }

    /// Fills `bytes` with the data at `offset`.
    pub fn fill(&self, offset: u64, bytes: &mut [u8]) {
        let mut scratch = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let (unit, skip, len) = self.piece(offset + at as u64, bytes.len() - at);
            let target = &mut bytes[at..at + len];
            if len == self.unit_bytes {
                self.fill_unit(unit, target);
            } else {
                scratch.resize(self.unit_bytes, 0);
                self.fill_unit(unit, &mut scratch);
                target.copy_from_slice(&scratch[skip..skip + len]);
            }
            at += len;
        }
    }

    /// Compares `bytes` with the data at `offset`.
    ///
    /// # Errors
    /// The first difference.
    pub fn verify(&self, offset: u64, bytes: &[u8]) -> Result<(), Difference> {
        let mut expected = vec![0; self.unit_bytes];
        let mut at = 0;
        while at < bytes.len() {
            let (unit, skip, len) = self.piece(offset + at as u64, bytes.len() - at);
            self.fill_unit(unit, &mut expected);
            let (expected, found) = (&expected[skip..skip + len], &bytes[at..at + len]);
            if expected != found {
                return Err(self.difference(offset + at as u64, expected, found));
            }
            at += len;
        }
        Ok(())
    }

    /// Whether chunk `chunk` duplicates an earlier one.
    #[must_use]
    pub fn is_duplicate(&self, chunk: u64) -> bool {
        self.original(chunk) != chunk
    }

    fn difference(&self, offset: u64, expected: &[u8], found: &[u8]) -> Difference {
        let mut differing = expected
            .iter()
            .zip(found)
            .enumerate()
            .filter(|(_, (expected, found))| expected != found);
        let (first, (expected, found)) = differing.next().unwrap_or((0, (&0, &0)));
        let offset = offset + first as u64;
        Difference {
            offset,
            chunk: offset / self.spec.chunk_bytes,
            expected: *expected,
            found: *found,
            differing: 1 + differing.count() as u64,
        }
    }

    /// The unit that contains `offset`, the offset in it, and how much of it is within `limit` bytes.
    fn piece(&self, offset: u64, limit: usize) -> (u64, usize, usize) {
        let unit_bytes = self.unit_bytes as u64;
        let skip = (offset % unit_bytes) as usize;
        (offset / unit_bytes, skip, limit.min(self.unit_bytes - skip))
    }

    fn fill_unit(&self, unit: u64, bytes: &mut [u8]) {
        let units_per_chunk = self.spec.chunk_bytes / self.unit_bytes as u64;
        let chunk = self.original(unit / units_per_chunk);
        let place = unit % units_per_chunk;
        let chunk_key = self.key.part(chunk);
        // Not zero, because devices detect zeroes.
        let value = (chunk_key.below(WORD_VALUE, 255) + 1) as u8;
        // Part 0 of a chunk's key is the chunk's own.
        let key = chunk_key.part(place + 1);
        match &self.shape {
            Shape::Zeros => bytes.fill(0),
            Shape::One(layout) => layout.fill(key, value, bytes),
            Shape::Drawn(layouts) => {
                let drawn = chunk_key.below(WORD_LEVEL, layouts.len() as u64);
                layouts[drawn as usize].fill(key, value, bytes);
            }
            Shape::Weighted { layouts, cumulative } => {
                let total = cumulative.last().copied().unwrap_or(0);
                let point = chunk_key.below(WORD_LEVEL, total);
                let drawn = cumulative.partition_point(|&weight| weight <= point);
                match &layouts[drawn] {
                    Some(layout) => layout.fill(key, value, bytes),
                    None => bytes.fill(0),
                }
            }
            Shape::Record { constant_bytes, rest } => {
                let before = place as usize * self.unit_bytes;
                let run_bytes = constant_bytes.saturating_sub(before).min(bytes.len());
                let (run, bytes) = bytes.split_at_mut(run_bytes);
                run.fill(value);
                rest.scaled(bytes.len(), self.unit_bytes).fill(key, value, bytes);
            }
        }
    }

    /// The chunk that chunk `chunk` duplicates, or itself.
    fn original(&self, mut chunk: u64) -> u64 {
        let share = self.spec.dedup.share();
        if share == 0.0 {
            return chunk;
        }
        let stride = (DEDUP_STRIDE_BYTES / self.spec.chunk_bytes).max(1);
        for _ in 0..DEDUP_STEPS_MAX {
            if chunk < stride || self.key.part(chunk).unit(WORD_DUPLICATE) >= share {
                break;
            }
            chunk -= stride;
        }
        chunk
    }
}

impl Shape {
    fn of(spec: &DataSpec, unit_bytes: usize) -> Self {
        let saved = spec.level.share();
        match &spec.family {
            Family::Zeros => Self::Zeros,
            Family::Random => Self::One(Layout::RANDOM),
            Family::Run => Self::One(Layout::run(saved, unit_bytes)),
            Family::Copies { distance_bytes } => {
                Self::One(Layout::copies(saved, unit_bytes, *distance_bytes as usize))
            }
            Family::Alphabet => Self::One(Layout::alphabet(saved, unit_bytes)),
            Family::RandomLevel => Self::Drawn(
                (0..LEVELS)
                    .map(|level| Layout::run(level as f64 / (LEVELS - 1) as f64, unit_bytes))
                    .collect(),
            ),
            Family::Iozone => Self::Record {
                constant_bytes: (saved * saved * spec.chunk_bytes as f64).round() as usize,
                rest: Layout {
                    masks: alphabet::masks(IOZONE_ENTROPY),
                    ..Layout::copies(IOZONE_REPEATED, unit_bytes, IOZONE_DISTANCE_BYTES)
                },
            },
            // The check of the spec has ensured that the distribution has this size.
            Family::Replay(distribution) => distribution
                .size(spec.chunk_bytes)
                .map_or(Self::Zeros, |size| Self::weighted(size, unit_bytes)),
        }
    }

    fn weighted(size: &Size, unit_bytes: usize) -> Self {
        let mut layouts = vec![None];
        let mut cumulative = vec![size.zero_chunks];
        let mut total = size.zero_chunks;
        for row in &size.rows {
            total += row.chunks;
            cumulative.push(total);
            layouts.push(Some(Layout::mixed(
                row.matched_percent / 100.0,
                row.entropy_percent / 100.0,
                unit_bytes,
            )));
        }
        Self::Weighted { layouts, cumulative }
    }
}
