//! One pass over a trace: what it contains, and a sample of its accesses in memory.
//!
//! A hash of its number decides whether a *unit* of neighbouring blocks is in the sample, so all accesses to a unit are in it, or none
//! (SHARDS, FAST 2015). When the sample has too many accesses or blocks, half of its units leave it. A short trace is in it completely.
//!
//! Its units have the order that they have on the device, with gaps of at most [`GAP_UNITS_MAX`], because neighbours share index pages.
//!
//! Invariant: after each request, the sample has at most [`Limits::accesses`] accesses and [`Limits::blocks`] blocks.

use std::collections::HashMap;
use std::sync::Arc;

use flaz_engine::policy::block_key;
use flaz_engine::units::BLOCK_BYTES;
use flaz_trace::{Op, Request};

use crate::engine::{Access, GROUPS};

/// Blocks of a unit.
pub const UNIT_BLOCKS: u64 = 4;
/// Bytes of a unit.
pub const UNIT_BYTES: u64 = UNIT_BLOCKS * BLOCK_BYTES as u64;
/// Most units that lie between two neighbours of the sample: 4 MiB.
const GAP_UNITS_MAX: u64 = 256;
/// Units of a device, as a power of two: a device has at most 1 EiB.
const DEVICE_BITS: u32 = 46;
/// The sample has at least one unit in 2^this.
pub const SHIFT_MAX: u32 = 20;
/// Maximum number of units with a number of their own.
const NUMBERS_MAX: usize = u32::MAX as usize;

/// Maximum size of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Accesses: 32 MiB of memory, and seconds to a minute for each replay.
    pub accesses: usize,
    /// Blocks. A simulated cache has as many at most.
    pub blocks: u64,
}

impl Limits {
    /// Of a trace that must not be sampled: accesses and blocks take an eighth of `memory_bytes` each, if each access is to another part
    /// of the origin. A replay takes an hour at most.
    #[must_use]
    pub fn whole(memory_bytes: u64) -> Self {
        let accesses = memory_bytes / 8 / size_of::<Piece>() as u64;
        Self {
            accesses: accesses.min(256 << 20) as usize,
            blocks: (memory_bytes / 8 / UNIT_MEMORY_BYTES).min(64 << 20),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            accesses: 2 << 20,
            blocks: 300_000,
        }
    }
}

/// Bytes of memory of a unit: itself, and its number in a hash table.
const UNIT_MEMORY_BYTES: u64 = 64;

/// An access to blocks of one unit.
#[derive(Clone, Copy, Debug)]
struct Piece {
    unit: u32,
    /// Blocks of the whole request.
    request_blocks: u32,
    first: u8,
    blocks: u8,
    op: Op,
    follows: bool,
}

/// What a trace contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Reads.
    pub reads: u64,
    /// Blocks that they touch.
    pub read_blocks: u64,
    /// Writes.
    pub writes: u64,
    /// Blocks that they touch.
    pub write_blocks: u64,
    /// Trims.
    pub trims: u64,
    /// Time of the first and of the last request, if the format has times.
    pub times_us: Option<(u64, u64)>,
}

impl Totals {
    /// Time from the first to the last request.
    #[must_use]
    pub fn seconds(&self) -> Option<f64> {
        let (first, last) = self.times_us?;
        (last > first).then(|| (last - first) as f64 / 1e6)
    }

    fn count(&mut self, request: &Request, blocks: u64) {
        match request.op {
            Op::Read => (self.reads, self.read_blocks) = (self.reads + 1, self.read_blocks + blocks),
            Op::Write => (self.writes, self.write_blocks) = (self.writes + 1, self.write_blocks + blocks),
            Op::Trim => self.trims += 1,
        }
        if let Some(at) = request.at_us {
            let (first, last) = self.times_us.unwrap_or((at, at));
            self.times_us = Some((first.min(at), last.max(at)));
        }
    }
}

/// The blocks of a request, as numbers that differ for each device.
#[must_use]
pub fn blocks_of(request: &Request) -> std::ops::Range<u64> {
    let device = u64::from(request.device) << (DEVICE_BITS + UNIT_BLOCKS.trailing_zeros());
    let first = request.offset / BLOCK_BYTES as u64;
    let end = (request.offset + request.len).div_ceil(BLOCK_BYTES as u64);
    device + first..device + end
}

/// A unit of the sample.
#[derive(Clone, Copy, Debug)]
struct Unit {
    /// Its number in the trace.
    id: u64,
    /// One bit for each block that was accessed.
    touched: u8,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Sampler {
    limits: Limits,
    shift: u32,
    /// The number of a unit in `units`, by its number in the trace.
    numbers: HashMap<u64, u32>,
    units: Vec<Unit>,
    pieces: Vec<Piece>,
    /// Blocks in the sample.
    blocks: u64,
    totals: Totals,
    /// End of the last request of each device.
    ends: HashMap<u32, u64>,
}

impl Sampler {
    /// `shift`: a sample of one unit in 2^`shift` at most.
    #[must_use]
    pub fn new(limits: Limits, shift: u32) -> Self {
        Self {
            limits,
            shift: shift.min(SHIFT_MAX),
            numbers: HashMap::new(),
            units: Vec::new(),
            pieces: Vec::new(),
            blocks: 0,
            totals: Totals::default(),
            ends: HashMap::new(),
        }
    }

    fn mask(&self) -> u64 {
        (1 << self.shift) - 1
    }

    /// Adds a request of the trace.
    pub fn add(&mut self, request: &Request) {
        let range = blocks_of(request);
        let blocks = range.end - range.start;
        self.totals.count(request, blocks);
        let end = request.offset + request.len;
        let follows = self.ends.insert(request.device, end) == Some(request.offset);
        let units = range.start / UNIT_BLOCKS..range.end.div_ceil(UNIT_BLOCKS);
        if request.op == Op::Trim {
            return self.trim(&range);
        }
        for id in units {
            if block_key(id) & self.mask() != 0 {
                continue;
            }
            let first = range.start.max(id * UNIT_BLOCKS) - id * UNIT_BLOCKS;
            let last = range.end.min((id + 1) * UNIT_BLOCKS) - id * UNIT_BLOCKS;
            let unit = self.number(id);
            let touched = &mut self.units[unit as usize].touched;
            let bits = (((1_u16 << last) - 1) & !((1_u16 << first) - 1)) as u8;
            self.blocks += u64::from((bits & !*touched).count_ones());
            *touched |= bits;
            self.pieces.push(Piece {
                unit,
                request_blocks: blocks as u32,
                first: first as u8,
                blocks: (last - first) as u8,
                op: request.op,
                follows,
            });
            self.keep_small();
        }
    }

    /// Trims the whole units that are in the sample.
    fn trim(&mut self, range: &std::ops::Range<u64>) {
        let units = range.start.div_ceil(UNIT_BLOCKS)..range.end / UNIT_BLOCKS;
        let mut trimmed: Vec<u32> = match units.end.saturating_sub(units.start) > self.numbers.len() as u64 {
            true => self
                .numbers
                .iter()
                .filter(|(id, _)| units.contains(id))
                .map(|(_, number)| *number)
                .collect(),
            false => units.filter_map(|id| self.numbers.get(&id).copied()).collect(),
        };
        trimmed.sort_unstable();
        for unit in trimmed {
            self.pieces.push(Piece {
                unit,
                request_blocks: UNIT_BLOCKS as u32,
                first: 0,
                blocks: UNIT_BLOCKS as u8,
                op: Op::Trim,
                follows: false,
            });
        }
        // Not before: this changes the numbers.
        self.keep_small();
    }

    /// Bytes of the blocks so far that the trace reads or writes, estimated.
    #[must_use]
    pub fn footprint_bytes(&self) -> u64 {
        (self.blocks << self.shift) * BLOCK_BYTES as u64
    }

    /// Bytes that a replay with a cache of `largest` bytes stores, at most: all of the cache, or each accessed block.
    fn stored_bytes(&self, largest: u64) -> u64 {
        stored_bytes(&self.pieces, largest >> self.shift)
    }

    fn number(&mut self, id: u64) -> u32 {
        let next = self.units.len() as u32;
        let number = *self.numbers.entry(id).or_insert(next);
        if number == next {
            self.units.push(Unit { id, touched: 0 });
        }
        number
    }

    fn keep_small(&mut self) {
        while self.shift < SHIFT_MAX
            && (self.pieces.len() > self.limits.accesses
                || self.blocks > self.limits.blocks
                || self.units.len() >= NUMBERS_MAX)
        {
            self.thin_out();
        }
    }

    /// Half of the units leave the sample. The others get new numbers, in the same order.
    fn thin_out(&mut self) {
        self.shift += 1;
        let mask = self.mask();
        let mut renumbered = vec![u32::MAX; self.units.len()];
        let mut units = Vec::new();
        for (old, unit) in self.units.iter().enumerate() {
            if block_key(unit.id) & mask == 0 {
                renumbered[old] = units.len() as u32;
                units.push(*unit);
            }
        }
        self.units = units;
        self.numbers = (0..)
            .zip(&self.units)
            .map(|(number, unit)| (unit.id, number))
            .collect();
        self.blocks = self
            .units
            .iter()
            .map(|unit| u64::from(unit.touched.count_ones()))
            .sum();
        self.pieces.retain_mut(|piece| {
            piece.unit = renumbered[piece.unit as usize];
            piece.unit != u32::MAX
        });
    }

    /// The sample of the whole trace, for caches of up to `largest` bytes, of which the simulated one takes at most `memory`.
    #[must_use]
    pub fn finish(mut self, largest: u64, memory: u64) -> Sample {
        while self.shift < SHIFT_MAX && self.stored_bytes(largest) > memory {
            self.thin_out();
        }
        let mut order: Vec<u32> = (0..self.units.len() as u32).collect();
        order.sort_unstable_by_key(|number| self.units[*number as usize].id);
        let (mut units, mut renumbered) = (Vec::<Placed>::new(), vec![0; order.len()]);
        for (new, old) in (0..).zip(order) {
            let id = self.units[old as usize].id;
            let place = match units.last() {
                Some(before) => before.place + (id - before.id).min(GAP_UNITS_MAX),
                None => 0,
            };
            units.push(Placed { id, place });
            renumbered[old as usize] = new;
        }
        for piece in &mut self.pieces {
            piece.unit = renumbered[piece.unit as usize];
        }
        Sample {
            shift: self.shift,
            units: units.into(),
            pieces: self.pieces,
            blocks: self.blocks,
            totals: self.totals,
        }
    }
}

/// A unit of the origin that is replayed.
#[derive(Clone, Copy, Debug)]
struct Placed {
    /// Its number in the trace.
    id: u64,
    /// Its number on the origin.
    place: u64,
}

/// A sample of a trace.
#[derive(Debug)]
pub struct Sample {
    shift: u32,
    /// Ascending, by either number.
    units: Arc<[Placed]>,
    pieces: Vec<Piece>,
    blocks: u64,
    totals: Totals,
}

impl Sample {
    /// The trace has this many times the blocks of the sample.
    #[must_use]
    pub fn one_in(&self) -> u64 {
        1 << self.shift
    }

    /// Number of accesses.
    #[must_use]
    pub fn accesses(&self) -> usize {
        self.pieces.len()
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Blocks of an origin that has all units.
    #[must_use]
    pub fn origin_blocks(&self) -> u64 {
        let end = self.units.last().map_or(0, |unit| unit.place + 1);
        (end * UNIT_BLOCKS).max(256)
    }

    /// What the trace contains.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Bytes of the blocks that the trace reads or writes.
    #[must_use]
    pub fn footprint_bytes(&self) -> u64 {
        (self.blocks << self.shift) * BLOCK_BYTES as u64
    }

    /// Finds the number in the trace of a block of that origin, or any number for a block that is not in the sample.
    pub fn block_numbers(&self) -> impl Fn(u64) -> u64 + Send + Sync + use<> {
        let units = Arc::clone(&self.units);
        move |block| {
            let place = block / UNIT_BLOCKS;
            let at = units.partition_point(|unit| unit.place < place);
            let id = units.get(at).map_or(place, |unit| unit.id);
            id * UNIT_BLOCKS + block % UNIT_BLOCKS
        }
    }

    /// Bytes that the simulated cache of a cache of `bytes` takes, at most.
    #[must_use]
    pub fn stored_bytes(&self, bytes: u64) -> u64 {
        stored_bytes(&self.pieces, bytes >> self.shift)
    }

    /// The accesses in order.
    pub fn iter(&self) -> impl Iterator<Item = Access> + '_ {
        self.pieces.iter().map(|piece| Access {
            op: piece.op,
            block: self.units[piece.unit as usize].place * UNIT_BLOCKS + u64::from(piece.first),
            blocks: u32::from(piece.blocks),
            share: f64::from(piece.blocks) / f64::from(piece.request_blocks.max(1)),
            follows: piece.follows,
            group: group_of(self.units[piece.unit as usize].id),
        })
    }
}

/// All bytes of a cache, or as many as the accesses can store.
fn stored_bytes(pieces: &[Piece], cache: u64) -> u64 {
    let stored = pieces.iter().filter(|piece| piece.op != Op::Trim);
    let blocks: u64 = stored.map(|piece| u64::from(piece.blocks)).sum();
    cache.min(blocks * BLOCK_BYTES as u64)
}

/// The part that a unit belongs to: bits of its key that do not choose the sample.
fn group_of(unit: u64) -> u8 {
    ((block_key(unit) >> SHIFT_MAX) % GROUPS as u64) as u8
}

#[cfg(test)]
mod tests {
    use flaz_random::Random;

    use super::*;

    fn request(op: Op, offset: u64, len: u64) -> Request {
        Request {
            at_us: None,
            op,
            device: 0,
            offset,
            len,
        }
    }

    #[test]
    fn a_short_trace_is_sampled_completely() {
        let mut sampler = Sampler::new(Limits::default(), 0);
        sampler.add(&request(Op::Read, 4096, 8192));
        // Continues it, and begins the next unit.
        sampler.add(&request(Op::Write, 12_288, 4097));
        sampler.add(&request(Op::Trim, 0, 1 << 40));
        let sample = sampler.finish(1 << 30, u64::MAX);
        assert_eq!(
            (sample.one_in(), sample.blocks(), sample.footprint_bytes()),
            (1, 4, 16_384)
        );
        let accesses: Vec<_> = (sample.iter())
            .map(|it| (it.op, it.block, it.blocks, it.share, it.follows))
            .collect();
        assert_eq!(
            accesses,
            [
                (Op::Read, 1, 2, 1.0, false),
                (Op::Write, 3, 1, 0.5, true),
                (Op::Write, 4, 1, 0.5, true),
                (Op::Trim, 0, 4, 1.0, false),
                (Op::Trim, 4, 4, 1.0, false),
            ]
        );
        assert_eq!(sample.totals().read_blocks + sample.totals().write_blocks, 4);
    }

    #[test]
    fn units_keep_their_order_and_short_gaps() {
        let mut sampler = Sampler::new(Limits::default(), 0);
        let gap = GAP_UNITS_MAX * UNIT_BYTES;
        for offset in [gap + (7 << 40), 7 << 40, UNIT_BYTES * 2, UNIT_BYTES] {
            sampler.add(&request(Op::Read, offset + 4096, 4096));
        }
        let sample = sampler.finish(1 << 30, u64::MAX);
        let blocks: Vec<u64> = sample.iter().map(|it| it.block).collect();
        let behind = GAP_UNITS_MAX * UNIT_BLOCKS;
        assert_eq!(blocks, [5 + 2 * behind, 5 + behind, 5, 1]);
        assert_eq!(sample.origin_blocks(), 8 + 2 * behind);
        let number = sample.block_numbers();
        assert_eq!(number(1), UNIT_BLOCKS + 1);
        assert_eq!(number(5 + behind), (7 << 28) + 1);
        // Not in the sample.
        number(100);
        number(u64::MAX);
    }

    /// A sample becomes smaller until its largest cache fits in memory; a cache that never fills counts as what is stored.
    #[test]
    fn the_largest_cache_fits_in_memory() {
        let sampler = || {
            let mut sampler = Sampler::new(Limits::default(), 0);
            for block in 0..1000 {
                sampler.add(&request(Op::Write, block * 16_384, 4096));
            }
            sampler
        };
        assert_eq!(sampler().finish(1 << 40, 1000 * 4096).one_in(), 1);
        let sample = sampler().finish(1 << 20, 512 << 10);
        assert_eq!((sample.one_in(), sample.stored_bytes(1 << 20)), (2, 512 << 10));
    }

    /// However many accesses and blocks a trace has: the sample stays within its limits, and stands for all of them.
    #[test]
    fn the_sample_is_bounded() {
        let limits = Limits {
            accesses: 5000,
            blocks: 2000,
        };
        let mut sampler = Sampler::new(limits, 0);
        let mut random = Random::new(3);
        for _ in 0..200_000 {
            sampler.add(&request(Op::Read, random.below(50_000) * 4096, 4096));
            assert!(sampler.pieces.len() <= 5000 && sampler.blocks <= 2000);
        }
        let sample = sampler.finish(1 << 30, u64::MAX);
        assert!(
            sample.one_in() >= 32 && sample.accesses() > 1000,
            "{}",
            sample.one_in()
        );
        let footprint = sample.footprint_bytes() as f64 / (50_000.0 * 4096.0);
        assert!((footprint - 1.0).abs() < 0.15, "{footprint}");
        let sampled = sample.accesses() as f64 * sample.one_in() as f64 / 200_000.0;
        assert!((sampled - 1.0).abs() < 0.15, "{sampled}");
        assert!(
            sample
                .iter()
                .all(|it| it.block + u64::from(it.blocks) <= sample.origin_blocks())
        );
        let parts: std::collections::HashSet<u8> = sample.iter().map(|it| it.group).collect();
        assert_eq!(parts.len(), GROUPS);
    }
}
