//! The hit ratio at all sizes of the cache, from one pass over a trace.
//!
//! The engine's advisor simulates ten caches under the engine's policy, on a sample of the blocks. Several advisors, each four times
//! larger than the one before, cover all sizes, with four points for each doubling. What a sample has too many or too few references is
//! taken from the hits, because the hottest blocks cause it (SHARDS-adj, FAST 2015).
//!
//! Invariant: between two points, a hit ratio is that of one of them or in between, because a larger cache has no fewer hits. So the
//! interval of a size between them has the lower end of one and the upper end of the other.

use std::f64::consts::SQRT_2;

use flaz_codec::CodecChoice;
use flaz_device::Nanos;
use flaz_engine::advise::{Advisor, Observed, Simulation, Space, StoredAs, Written};
use flaz_engine::policy::{PolicyKind, Ring, block_key};
use flaz_trace::{Op, Request};

use crate::contents::{Contents, Sizes};
use crate::engine::GROUPS;
use crate::report::Ratio;
use crate::sample::blocks_of;

/// Size of the smallest advisor's cache in bytes.
const SMALLEST_BYTES: u64 = 4 << 20;
/// Each advisor's caches are so many times larger than those of the one before.
const STEP: u64 = 4;
/// Number of advisors: caches up to 256 TiB.
const ADVISORS: u32 = 13;
/// Capacities of an advisor's caches, in units of its own: four for each doubling.
const MULTIPLES: [f64; 10] = [
    0.840_896_415_253_714_5,
    1.0,
    1.189_207_115_002_721,
    SQRT_2,
    1.681_792_830_507_429,
    2.0,
    2.378_414_230_005_442,
    2.0 * SQRT_2,
    3.363_585_661_014_858,
    4.0,
];
/// Caches of an advisor up to so many times its own size are not used: those of the smaller advisor are as large.
const USED_ABOVE: f64 = 1.0;
/// Regions of a cache: as many as replays have, on average.
const REGIONS: u64 = 96;
/// Share of a cache that fragments take. The rest are headers, the ends of extents, and summaries.
const FRAGMENT_SHARE: f64 = 0.96;
/// Slots of all curves for each size of advisor: bounds their memory, to 6 MiB for each advisor with [`Simulation::SLOTS_LIMIT`].
const SLOTS_MAX: usize = 4 * Simulation::SLOTS_LIMIT;
/// The least for a curve.
const SLOTS_MIN: usize = 2000;
/// Larger trims are not followed block by block: 1 GiB.
const TRIM_BLOCKS_MAX: u64 = 1 << 18;
/// Counts do not fade.
const NOW: Nanos = Nanos(1);
/// Student's t for a 95 % interval from [`GROUPS`] parts.
const T_95: f64 = 2.365;
/// How far a simulated or a smaller cache may be from the engine's, whatever the sample: see `docs/lab-replay.md`.
pub const MODEL_ERROR: f64 = 0.01;

/// Follows a trace for one policy and codec.
pub struct Curve {
    policy: PolicyKind,
    codec: CodecChoice,
    sizes: Sizes,
    advisors: Vec<(u64, Advisor)>,
    read_blocks: u64,
}

impl Curve {
    /// Empty caches; `curves`: so many share the memory.
    #[must_use]
    pub fn new(policy: PolicyKind, codec: CodecChoice, contents: &Contents, curves: usize) -> Self {
        let simulation = Simulation {
            multiples: &MULTIPLES,
            codecs: false,
            regions_max: REGIONS,
            slots: (SLOTS_MAX / curves.max(1)).clamp(SLOTS_MIN, Simulation::SLOTS_LIMIT),
            shift_min: 0,
        };
        let advisor = |step| {
            let bytes = SMALLEST_BYTES * STEP.pow(step);
            let space = Space {
                region_bytes: (bytes as f64 * FRAGMENT_SHARE) as u64 / REGIONS,
                regions: REGIONS,
            };
            (bytes, Advisor::simulating(simulation, policy, space, false, NOW))
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
        let largest = MULTIPLES[MULTIPLES.len() - 1] as u64;
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
                    advisor.stored(key, bytes, StoredAs::Read(Ring::Probation));
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
            MODEL_ERROR,
        )
    }
}

/// The hit ratio of `expected` reads, from reads and hits of the parts of a sample of one block in 2^`shift`, with its interval; `error`
/// is that of a complete sample.
#[must_use]
pub fn ratio(hits: &[f64; GROUPS], reads: &[f64; GROUPS], expected: f64, shift: u32, error: f64) -> Ratio {
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
    let half = sampling + error;
    let value = value.clamp(0.0, 1.0);
    Ratio {
        value,
        low: (value - half).max(0.0),
        high: (value + half).min(1.0),
    }
}

/// The value of a curve at a size, between its points.
#[must_use]
pub fn at(points: &[(u64, Ratio)], bytes: u64) -> Option<Ratio> {
    let above = points.iter().position(|(size, _)| *size >= bytes)?;
    let (high_size, high) = points[above];
    let Some((low_size, low)) = above.checked_sub(1).map(|below| points[below]) else {
        return (high_size == bytes).then_some(high);
    };
    let share = (bytes as f64 / low_size as f64).ln() / (high_size as f64 / low_size as f64).ln();
    if share >= 1.0 {
        return Some(high);
    }
    Some(Ratio {
        value: low.value + (high.value - low.value) * share,
        low: low.low.min(high.low),
        high: low.high.max(high.high),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_corrected_by_the_number_of_references() {
        // A sample that stands for 90 of 100 reads: the missing ones are hits.
        let (hits, reads) = ([5.0; GROUPS], [11.25; GROUPS]);
        let ratio = ratio(&hits, &reads, 100.0, 3, MODEL_ERROR);
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
                    low: value - 0.01,
                    high: value + 0.01,
                },
            )
        };
        let points = [point(100, 0.2), point(400, 0.4)];
        assert_eq!(at(&points, 100), Some(points[0].1));
        assert_eq!(at(&points, 400), Some(points[1].1));
        let between = at(&points, 200).expect("between");
        assert!((between.value - 0.3).abs() < 1e-9);
        assert_eq!(
            (between.low, between.high),
            (points[0].1.low, points[1].1.high),
            "a step may be anywhere between the points"
        );
        assert_eq!((at(&points, 99), at(&points, 401)), (None, None));
    }
}
