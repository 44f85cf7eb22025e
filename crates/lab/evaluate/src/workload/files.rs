//! A file system with a page cache, as far as its block trace needs it.
//!
//! Reads that miss the page cache are sent at once, with read-ahead for ranges. Writes stay in the page cache until there are many; then
//! they are sent in ascending order, neighbours together, as by a flusher.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use flaz_data::distribution::Row;
use flaz_random::{mix, scale};
use flaz_replay::contents::Contents;
use flaz_trace::recording::{GRANULES, RECORDED_BLOCK_BYTES, Recorded, Sizes, Stored};
use flaz_trace::{Op, Request};

/// Most blocks of a request.
const REQUEST_BLOCKS_MAX: u64 = 32;
/// Requests that a flusher has in flight.
const FLUSH_DEPTH: u32 = 16;

/// What is recorded of a load that is generated.
pub(super) struct Files {
    recorded: Vec<Recorded>,
    /// Blocks in the page cache, with the number of their last use.
    cached: HashMap<u64, u64>,
    /// Uses in order; those that are not the last of their block count no more.
    uses: VecDeque<(u64, u64)>,
    used: u64,
    cached_max: usize,
    dirty: BTreeSet<u64>,
    dirty_max: usize,
    /// Number of writes of a block.
    versions: HashMap<u64, u64>,
    rows: Arc<[Row]>,
    rows_total: u64,
    /// Time that the client has computed since its last request, and in all.
    think_us: u64,
    at_us: u64,
    /// Clients at the same time.
    depth: u32,
}

impl Files {
    /// A page cache of `cached_max` blocks; `depth` clients.
    pub fn new(cached_max: usize, depth: u32) -> Self {
        let rows: Arc<[Row]> = Contents::usual_rows().into();
        Self {
            recorded: Vec::new(),
            cached: HashMap::new(),
            uses: VecDeque::new(),
            used: 0,
            cached_max,
            dirty: BTreeSet::new(),
            dirty_max: (cached_max / 10).max(16),
            versions: HashMap::new(),
            rows_total: rows.iter().map(|row| row.chunks).sum(),
            rows,
            think_us: 0,
            at_us: 0,
            depth,
        }
    }

    pub fn finish(mut self) -> Vec<Recorded> {
        self.write_back();
        self.recorded
    }

    /// The client computes.
    pub fn think(&mut self, us: u64) {
        self.think_us += us;
        self.at_us += us;
    }

    /// Reads blocks.
    pub fn read(&mut self, first: u64, blocks: u64) {
        let mut run: Option<(u64, u64)> = None;
        for block in first..first + blocks {
            let missed = !self.use_block(block);
            run = match run {
                Some((begin, count)) if missed && count < REQUEST_BLOCKS_MAX => Some((begin, count + 1)),
                Some((begin, count)) => {
                    self.send(Op::Read, begin, count, self.depth);
                    missed.then_some((block, 1))
                }
                None => missed.then_some((block, 1)),
            };
        }
        if let Some((begin, count)) = run {
            self.send(Op::Read, begin, count, self.depth);
        }
    }

    /// Writes blocks.
    pub fn write(&mut self, first: u64, blocks: u64) {
        for block in first..first + blocks {
            self.use_block(block);
            *self.versions.entry(block).or_default() += 1;
            self.dirty.insert(block);
        }
        if self.dirty.len() > self.dirty_max {
            self.write_back();
        }
    }

    /// The blocks were freed: what was to be written is not.
    pub fn forget(&mut self, first: u64, blocks: u64) {
        for block in first..first + blocks {
            self.dirty.remove(&block);
        }
    }

    /// Sends all writes.
    pub fn write_back(&mut self) {
        let dirty = std::mem::take(&mut self.dirty);
        let mut run: Option<(u64, u64)> = None;
        for block in dirty {
            run = match run {
                Some((begin, count)) if begin + count == block && count < REQUEST_BLOCKS_MAX => {
                    Some((begin, count + 1))
                }
                Some((begin, count)) => {
                    self.send(Op::Write, begin, count, FLUSH_DEPTH);
                    Some((block, 1))
                }
                None => Some((block, 1)),
            };
        }
        if let Some((begin, count)) = run {
            self.send(Op::Write, begin, count, FLUSH_DEPTH);
        }
    }

    /// Whether the block is in the page cache, where it is then.
    fn use_block(&mut self, block: u64) -> bool {
        self.used += 1;
        self.uses.push_back((block, self.used));
        let known = self.cached.insert(block, self.used).is_some();
        while self.cached.len() > self.cached_max {
            let Some((oldest, used)) = self.uses.pop_front() else {
                break;
            };
            if self.cached.get(&oldest) == Some(&used) {
                self.cached.remove(&oldest);
            }
        }
        known
    }

    fn send(&mut self, op: Op, first: u64, blocks: u64, depth: u32) {
        let sizes = (first..first + blocks).map(|block| self.sizes(block)).collect();
        self.recorded.push(Recorded {
            request: Request {
                at_us: Some(self.at_us),
                op,
                device: 0,
                offset: first * RECORDED_BLOCK_BYTES,
                len: blocks * RECORDED_BLOCK_BYTES,
            },
            depth,
            think_us: std::mem::take(&mut self.think_us),
            sizes,
        });
    }

    /// Sizes of the block's present version, drawn from the built-in distribution.
    fn sizes(&self, block: u64) -> Sizes {
        let version = self.versions.get(&block).copied().unwrap_or(0);
        let mut drawn = scale(mix(mix(block) ^ version), self.rows_total.max(1));
        for row in self.rows.iter() {
            if drawn < row.chunks {
                let left = |saved: f64| {
                    let bytes = RECORDED_BLOCK_BYTES as f64 * (1.0 - saved / 100.0);
                    Stored::bytes(bytes.round() as u64)
                };
                return [left(row.matched_percent), left(row.entropy_percent)];
            }
            drawn -= row.chunks;
        }
        [Stored::bytes(u64::from(GRANULES) * 64); 2]
    }
}
