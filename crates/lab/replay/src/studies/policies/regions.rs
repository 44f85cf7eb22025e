//! A cache of regions with the engine's own policies; no bytes are stored.
//!
//! Each ring fills one open region. When it is full, the ring takes a free one; before a miss takes one, whole regions
//! are reclaimed, oldest first, until enough are free. Two regions are thus always free and up to two are partly
//! filled: this is what a cache with regions loses compared with one by block.

use std::collections::VecDeque;

use flaz_engine::policy::{Admission, Fate, HITS_MAX, Policy, Price, Ring, RingSizes, block_key};

use super::outcome::Outcome;
use super::studied::Studied;

/// Regions of a cache.
pub const REGIONS: usize = 64;

/// Number of regions that stay free, as in the engine. One would be sufficient: reinserted blocks need space, at most
/// one region, before the reclaimed region is free.
const REGIONS_KEPT_FREE: usize = 2;

/// Number of regions of the smallest cache: the free ones, one open in each ring, and one to reclaim.
const REGIONS_MIN: usize = REGIONS_KEPT_FREE + 3;

/// Bytes of a block. Those that compress count as if regions were larger.
const BLOCK_BYTES: u64 = 4096;

/// Location of a block that is not cached.
const NOWHERE: u32 = u32::MAX;

/// A cache of one shard.
pub struct RegionCache {
    policy: Box<dyn Policy>,
    region_blocks: usize,
    /// For each region its blocks, in write order.
    regions: Vec<Vec<u32>>,
    free: Vec<u32>,
    /// For each ring its full regions, oldest first.
    full: [VecDeque<u32>; 2],
    /// For each ring its open region.
    open: [Option<u32>; 2],
    /// For each block its region, or `NOWHERE`.
    place: Vec<u32>,
    hits: Vec<u8>,
    /// For each block in probation the blocks that probation had been given up to it; `None` in main.
    entered: Vec<Option<u64>>,
    /// Blocks that probation has been given.
    given: u64,
    cached: u64,
    outcome: Outcome,
    reclaimed: u64,
    reclaims_in_a_row_max: u64,
}

impl RegionCache {
    /// A cache in which `capacity` uncompressed blocks fit, for blocks that compress `compression`:1.
    pub fn new(policy: impl Into<Studied>, distinct: usize, capacity: usize, compression: usize) -> Self {
        // All regions have the same size; the remainder is lost, as on a device.
        let uncompressed = (capacity / REGIONS).max(1);
        let regions = (capacity / uncompressed).max(REGIONS_MIN);
        RegionCache {
            policy: policy.into().build((uncompressed * regions) as u64),
            region_blocks: uncompressed * compression,
            regions: vec![Vec::new(); regions],
            free: (0..regions as u32).rev().collect(),
            full: [VecDeque::new(), VecDeque::new()],
            open: [None, None],
            place: vec![NOWHERE; distinct],
            hits: vec![0; distinct],
            entered: vec![None; distinct],
            given: 0,
            cached: 0,
            outcome: Outcome::default(),
            reclaimed: 0,
            reclaims_in_a_row_max: 0,
        }
    }

    /// Replays a trace.
    pub fn replay(mut self, references: &[u32]) -> Replay {
        for &block in references {
            self.reference(block);
        }
        Replay {
            outcome: self.outcome,
            reclaimed: self.reclaimed,
            reclaims_in_a_row_max: self.reclaims_in_a_row_max,
            ghost_bytes_per_block: self.policy.memory_bytes() as f64 / self.cached.max(1) as f64,
        }
    }

    fn reference(&mut self, block: u32) {
        self.outcome.references += 1;
        if self.place[block as usize] != NOWHERE {
            self.outcome.hits += 1;
            if self.counts_use(block) {
                let hits = &mut self.hits[block as usize];
                *hits = (*hits + 1).min(HITS_MAX);
            }
        } else if let Admission::To(ring) | Admission::Remembered(ring) =
            self.policy.admit(block_key(u64::from(block)))
        {
            if !self.has_room(ring) {
                self.make_room();
            }
            self.append(ring, block, 0);
            self.outcome.admitted += 1;
            self.cached += 1;
        }
    }

    /// Whether a use of a block counts: see [`Policy::window`].
    fn counts_use(&self, block: u32) -> bool {
        let window = self.policy.window(self.sizes());
        self.entered[block as usize].is_none_or(|entered| (self.given - entered) * BLOCK_BYTES >= window)
    }

    fn has_room(&self, ring: Ring) -> bool {
        self.open[ring.index()].is_some_and(|open| self.regions[open as usize].len() < self.region_blocks)
    }

    fn make_room(&mut self) {
        let before = self.reclaimed;
        while self.free.len() <= REGIONS_KEPT_FREE {
            self.reclaim();
        }
        self.reclaims_in_a_row_max = self.reclaims_in_a_row_max.max(self.reclaimed - before);
    }

    fn reclaim(&mut self) {
        let victim = self.policy.victim(self.sizes());
        let taken = [victim, victim.other()]
            .into_iter()
            .find_map(|ring| Some((ring, self.full[ring.index()].pop_front()?)));
        let (ring, region) =
            taken.expect("of REGIONS_MIN and more regions, all but those open or free are full");
        self.policy.cached_blocks(self.cached);
        for block in std::mem::take(&mut self.regions[region as usize]) {
            let hits = self.hits[block as usize];
            // All blocks have the same size here.
            let key = block_key(u64::from(block));
            match self.policy.reclaim(ring, key, hits, Price::USUAL) {
                Fate::Keep { ring, hits } => {
                    self.append(ring, block, hits);
                    self.outcome.reinserted += 1;
                }
                Fate::Drop => {
                    self.place[block as usize] = NOWHERE;
                    self.cached -= 1;
                }
            }
        }
        self.free.push(region);
        self.reclaimed += 1;
    }

    fn append(&mut self, ring: Ring, block: u32, hits: u8) {
        if !self.has_room(ring) {
            self.full[ring.index()].extend(self.open[ring.index()].take());
            let free = self
                .free
                .pop()
                .expect("a region stays free for reinserted blocks");
            self.open[ring.index()] = Some(free);
        }
        if let Some(open) = self.open[ring.index()] {
            self.regions[open as usize].push(block);
            self.place[block as usize] = open;
            self.hits[block as usize] = hits;
        }
        let is_new = ring == Ring::Probation;
        self.given += u64::from(is_new);
        self.entered[block as usize] = is_new.then_some(self.given);
    }

    fn sizes(&self) -> RingSizes {
        let bytes = |ring: Ring| {
            let regions = self.full[ring.index()].len() + usize::from(self.open[ring.index()].is_some());
            (regions * self.region_blocks) as u64 * BLOCK_BYTES
        };
        RingSizes {
            probation: bytes(Ring::Probation),
            main: bytes(Ring::Main),
            total: (self.regions.len() * self.region_blocks) as u64 * BLOCK_BYTES,
        }
    }
}

/// The result of a replay.
#[derive(Debug, Clone, Copy)]
pub struct Replay {
    /// Hits and writes.
    pub outcome: Outcome,
    /// Number of reclaimed regions.
    pub reclaimed: u64,
    /// Maximum number of reclaimed regions for one miss.
    pub reclaims_in_a_row_max: u64,
    /// Memory of the policy at the end, in bytes per cached block.
    pub ghost_bytes_per_block: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use flaz_engine::policy::PolicyKind;

    #[test]
    fn a_cache_that_is_large_enough_misses_each_block_once() {
        let references: Vec<u32> = (0..1000).chain(0..1000).collect();
        let outcome = RegionCache::new(PolicyKind::S3Fifo, 1000, 1100, 1)
            .replay(&references)
            .outcome;
        assert_eq!(
            (outcome.hits, outcome.admitted, outcome.reinserted),
            (1000, 1000, 0)
        );
    }

    #[test]
    fn the_smallest_caches_work() {
        let references: Vec<u32> = (0..5000).map(|i| (i * i) % 97).collect();
        for policy in Studied::ALL {
            for capacity in [1, 5, 6, 63, 64, 65, 90] {
                let replay = RegionCache::new(policy, 97, capacity, 1).replay(&references);
                assert!(replay.outcome.hits < 5000, "{} {capacity}", policy.name());
            }
        }
    }

    #[test]
    fn reclaiming_ends_when_every_block_is_hot() {
        // Each block is used more often than uses are counted, and then new ones arrive: they must find space soon.
        for kind in PolicyKind::ALL {
            let references: Vec<u32> = (0..12_000).flat_map(|block| [block; 6]).collect();
            let replay = RegionCache::new(kind, 12_000, 6400, 1).replay(&references);
            assert!(replay.reclaimed > 0, "{kind}");
            assert!(
                replay.reclaims_in_a_row_max <= 16,
                "{kind}: {} regions for one miss",
                replay.reclaims_in_a_row_max
            );
        }
    }

    #[test]
    fn twice_the_blocks_fit_at_two_to_one() {
        let references: Vec<u32> = (0..1900).chain(0..1900).collect();
        let hits = |compression| {
            RegionCache::new(PolicyKind::Fifo, 1900, 1000, compression)
                .replay(&references)
                .outcome
                .hits
        };
        assert_eq!(hits(1), 0);
        assert_eq!(hits(2), 1900);
    }
}
