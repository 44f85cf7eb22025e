//! The hit ratio at all sizes of the cache, from one pass over a trace.
//!
//! The engine's advisor simulates ten caches, of 1/8 to 4 times the size of its own, under the engine's policy, on a sample of the blocks.
//! Several advisors, each four times larger than the one before, cover all sizes with their largest caches, which have the most sampled
//! blocks; each advisor takes at most 1 MiB of memory. What a sample has too many or too few references is taken from the hits, because
//! the hottest blocks cause it (SHARDS-adj, FAST 2015).

use flaz_codec::CodecChoice;
use flaz_device::Nanos;
use flaz_engine::advise::{Advisor, CACHES, MULTIPLES, Observed, Space, Written};
use flaz_engine::policy::{PolicyKind, block_key};
use flaz_trace::{Op, Request};

use crate::contents::{Contents, Sizes};
use crate::engine::GROUPS;
use crate::report::Ratio;
use crate::sample::blocks_of;

/// Size of the cache of the smallest advisor in bytes.
const SMALLEST_BYTES: u64 = 16 << 20;
/// Each advisor's caches are so many times larger than those of the one before.
const STEP: u64 = 4;
/// Caches of an advisor up to so many times its own size are not used: those of the smaller advisor are as large.
const USED_ABOVE: f64 = 1.0;
/// Number of advisors: caches of 2 MiB to 16 TiB.
const ADVISORS: u32 = 10;
/// Regions of a cache: as many as replays have.
const REGION_BYTES: std::ops::RangeInclusive<u64> = (128 << 10)..=(16 << 20);
/// Larger trims are not followed block by block: 1 GiB.
const TRIM_BLOCKS_MAX: u64 = 1 << 18;
/// Counts do not fade.
const NOW: Nanos = Nanos(1);
/// Student's t for a 95 % interval from [`GROUPS`] parts.
const T_95: f64 = 2.365;
/// How far the simulated caches may be from the engine, whatever the sample: see `docs/lab-replay.md`.
const MODEL_ERROR: f64 = 0.01;

/// Follows a trace for one policy and codec.
pub struct Curve {
    policy: PolicyKind,
    codec: CodecChoice,
    sizes: Sizes,
    advisors: Vec<(u64, Advisor)>,
    read_blocks: u64,
}

impl Curve {
    /// Empty caches.
    #[must_use]
    pub fn new(policy: PolicyKind, codec: CodecChoice, contents: &Contents) -> Self {
        let advisor = |step| {
            let bytes = SMALLEST_BYTES * STEP.pow(step);
            let region_bytes = (bytes / 64).clamp(*REGION_BYTES.start(), *REGION_BYTES.end());
            let space = Space {
                region_bytes,
                regions: bytes / region_bytes,
            };
            (bytes, Advisor::new(policy, space, 1, false, NOW))
        };
        Self {
            policy,
            codec,
            sizes: contents.sizes(codec),
            advisors: (0..ADVISORS).map(advisor).collect(),
            read_blocks: 0,
        }
    }

    /// Policy and codec.
    #[must_use]
    pub fn of(&self) -> (PolicyKind, CodecChoice) {
        (self.policy, self.codec)
    }

    /// Sizes below `bytes` are not wanted: the advisors of smaller caches end, because they have the largest samples.
    pub fn forget_below(&mut self, bytes: u64) {
        let largest = MULTIPLES[CACHES - 1] as u64;
        self.advisors.retain(|(own, _)| own * largest >= bytes);
    }

    /// Adds a request of the trace.
    pub fn add(&mut self, request: &Request) {
        let blocks = blocks_of(request);
        if request.op == Op::Trim && blocks.end - blocks.start > TRIM_BLOCKS_MAX {
            return;
        }
        if request.op == Op::Read {
            self.read_blocks += blocks.end - blocks.start;
        }
        let any = self
            .advisors
            .iter()
            .map(|(_, advisor)| advisor.mask())
            .min()
            .unwrap_or(0);
        for block in blocks {
            let key = block_key(block);
            if key & any != 0 {
                continue;
            }
            let bytes = self.sizes.of(block);
            for (_, advisor) in &mut self.advisors {
                if key & advisor.mask() != 0 {
                    continue;
                }
                match request.op {
                    Op::Read => advisor.read(key, false, NOW),
                    Op::Write => advisor.write(key, Written::Admitted),
                    Op::Trim => advisor.write(key, Written::Dropped),
                }
                if request.op != Op::Trim {
                    advisor.stored(key, bytes);
                }
            }
        }
    }

    /// The curve up to the first size that has room for all blocks.
    #[must_use]
    pub fn points(&self, footprint_bytes: u64) -> Vec<(u64, Ratio)> {
        let mut points = Vec::new();
        for (number, (bytes, advisor)) in self.advisors.iter().enumerate() {
            let observed = advisor.observed(NOW);
            for (cache, multiple) in MULTIPLES.iter().enumerate() {
                if number > 0 && *multiple <= USED_ABOVE {
                    continue;
                }
                let size = (*bytes as f64 * multiple) as u64;
                points.push((size, self.ratio(&observed, cache)));
                if size >= footprint_bytes {
                    return points;
                }
            }
        }
        points
    }

    fn ratio(&self, observed: &Observed, cache: usize) -> Ratio {
        let reads = self.read_blocks.max(1) as f64;
        ratio(
            &observed.cache_hits[cache],
            &observed.group_reads,
            reads,
            observed.shift,
        )
    }
}

/// The hit ratio of `expected` reads, from reads and hits of the parts of a sample of one block in 2^`shift`, with its interval.
#[must_use]
pub fn ratio(hits: &[f64; GROUPS], reads: &[f64; GROUPS], expected: f64, shift: u32) -> Ratio {
    let (all_hits, all_reads): (f64, f64) = (hits.iter().sum(), reads.iter().sum());
    if all_reads == 0.0 || expected <= 0.0 {
        return Ratio::default();
    }
    let value = 1.0 - (all_reads - all_hits) / expected;
    // Misses of each part, and as many as its reads would have if all parts were alike.
    let misses_share = (all_reads - all_hits) / all_reads;
    let residuals = hits
        .iter()
        .zip(reads)
        .map(|(hits, reads)| (reads - hits) - reads * misses_share);
    let squares: f64 = residuals.map(|residual| residual.powi(2)).sum();
    let groups = GROUPS as f64;
    // A sample of half of the blocks has half of the variance: the other half is known.
    let unknown = 1.0 - 1.0 / (1_u64 << shift) as f64;
    let sampling = T_95 * (squares * groups / (groups - 1.0) * unknown).sqrt() / expected;
    let half = if shift == 0 { 0.0 } else { sampling + MODEL_ERROR };
    let value = value.clamp(0.0, 1.0);
    Ratio {
        value,
        low: (value - half).max(0.0),
        high: (value + half).min(1.0),
    }
}

/// The value of a curve at a size, between its points.
#[must_use]
pub fn at(points: &[(u64, Ratio)], bytes: u64) -> Option<f64> {
    let above = points.iter().position(|(size, _)| *size >= bytes)?;
    let (high_size, high) = points[above];
    let Some((low_size, low)) = above.checked_sub(1).map(|below| points[below]) else {
        return (high_size == bytes).then_some(high.value);
    };
    let share = (bytes as f64 / low_size as f64).ln() / (high_size as f64 / low_size as f64).ln();
    Some(low.value + (high.value - low.value) * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_corrected_by_the_number_of_references() {
        // A sample that stands for 90 of 100 reads: the missing ones are hits.
        let (hits, reads) = ([5.0; GROUPS], [11.25; GROUPS]);
        let ratio = ratio(&hits, &reads, 100.0, 3);
        assert!((ratio.value - 0.5).abs() < 1e-9, "{ratio:?}");
        assert!(
            (ratio.high - ratio.low - 0.02).abs() < 1e-9,
            "all parts are alike: {ratio:?}"
        );
    }

    #[test]
    fn points_are_joined() {
        let point = |size, value| {
            (
                size,
                Ratio {
                    value,
                    low: value,
                    high: value,
                },
            )
        };
        let points = [point(100, 0.2), point(400, 0.4)];
        assert_eq!(at(&points, 100), Some(0.2));
        assert!((at(&points, 200).expect("between") - 0.3).abs() < 1e-9);
        assert_eq!((at(&points, 99), at(&points, 401)), (None, None));
    }
}
