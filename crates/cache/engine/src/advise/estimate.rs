//! What was counted, and the estimates from it.

use serde::Serialize;

use super::{AUTO, CACHES, CodecSamples, GROUPS, MULTIPLES, NONE, REAL, STORED_BY_AUTO, UNCOMPRESSED};

/// Student's t for a 95 % interval from [`GROUPS`] parts.
const T_95: f64 = 2.365;
/// How far the simulation may be off, whatever the sample. Measured: see `docs/advise.md`.
const MODEL_ERROR: f64 = 0.01;

/// What was counted in one shard, or, added up, in all. Older counts count less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// Seconds since the counts began.
    pub age_s: f64,
    /// The seconds in which they were counted; older ones count less, as counts do.
    pub seconds: f64,
    /// Blocks read.
    pub reads: f64,
    /// Of these, hits.
    pub hits: f64,
    /// Blocks read from shards that follow a sample.
    pub sampled_reads: f64,
    /// Reads of sampled blocks.
    pub sampled: f64,
    /// The same by part of the sample; a sampled block counts as all that it stands for.
    pub group_reads: [f64; GROUPS],
    /// Hits of each simulated cache, by part of the sample; a sampled block counts as all that it stands for.
    pub cache_hits: [[f64; GROUPS]; CACHES],
    /// The sample has one block in 2^`shift`; of several shards, the most.
    pub shift: u32,
    /// How many of the simulated caches have been full, from the smallest, but for those with other codecs; of several shards, the
    /// fewest.
    pub full: u32,
    /// Whether the cache had blocks when the simulated caches were empty.
    pub warm: bool,
    /// Bytes of memory of the samples.
    pub memory_bytes: u64,
    /// What codecs make of sampled blocks.
    pub codecs: CodecSamples,
}

/// An estimate with its 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// The most likely value.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// What another codec would give.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodecEstimate {
    /// How many times as many blocks fit.
    pub factor: f64,
    /// Standard error of that.
    pub error: f64,
    /// Hit ratio.
    pub hit_ratio: Estimate,
}

impl Observed {
    pub(super) fn halve(&mut self) {
        let hits = self.cache_hits.iter_mut().flatten();
        for count in hits.chain(&mut self.group_reads).chain([
            &mut self.reads,
            &mut self.hits,
            &mut self.sampled,
            &mut self.seconds,
        ]) {
            *count /= 2.0;
        }
    }

    /// Adds what another shard counted.
    pub fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.hits += other.hits;
        self.age_s = self.age_s.max(other.age_s);
        self.seconds = self.seconds.max(other.seconds);
        self.codecs.add(&other.codecs);
        self.memory_bytes += other.memory_bytes;
        if other.sampled_reads == 0.0 {
            return;
        }
        let is_first = self.sampled_reads == 0.0;
        self.sampled_reads += other.sampled_reads;
        self.sampled += other.sampled;
        let others = other.cache_hits.iter().flatten().chain(&other.group_reads);
        let counts = self.cache_hits.iter_mut().flatten().chain(&mut self.group_reads);
        for (count, other) in counts.zip(others) {
            *count += other;
        }
        self.shift = self.shift.max(other.shift);
        self.full = if is_first {
            other.full
        } else {
            self.full.min(other.full)
        };
        self.warm |= other.warm;
    }

    /// The hit ratio that was measured.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        self.hits / self.reads.max(1.0)
    }

    /// The hit ratio of the simulated cache with the real capacity.
    #[must_use]
    pub fn simulated(&self) -> f64 {
        self.cache_hits[REAL].iter().sum::<f64>() / self.sampled_reads.max(1.0)
    }

    /// By how much the hit ratio differs with `multiple` times the capacity.
    #[must_use]
    pub fn gain(&self, multiple: f64) -> f64 {
        let gains = self.gains(&self.hits_at(multiple));
        gains.iter().sum::<f64>() / self.sampled_reads.max(1.0)
    }

    /// By how many hits another simulated cache has more, by part of the sample.
    fn gains(&self, hits: &[f64; GROUPS]) -> [f64; GROUPS] {
        std::array::from_fn(|group| hits[group] - self.cache_hits[REAL][group])
    }

    /// The hit ratio with `multiple` times the capacity, from 1/4 to 4.
    #[must_use]
    pub fn hit_ratio_at(&self, multiple: f64) -> Estimate {
        self.hit_ratio_with(&self.hits_at(multiple), multiple.log2().abs().min(1.0))
    }

    /// The hit ratio of a cache whose simulation has these hits. `distance`: how different it is from the real one, from 0 to 1.
    fn hit_ratio_with(&self, hits: &[f64; GROUPS], distance: f64) -> Estimate {
        let gains = self.gains(hits);
        let sum = gains.iter().sum::<f64>();
        let bases = self.bases(sum > 0.0);
        let base = bases.iter().sum::<f64>().max(1.0);
        // Of the misses that were measured, as many become hits as in the sample; or misses of the hits.
        let measured = match sum > 0.0 {
            true => 1.0 - self.hit_ratio(),
            false => self.hit_ratio(),
        };
        let share = (sum / base).clamp(-1.0, 1.0);
        let value = (self.hit_ratio() + measured * share).clamp(0.0, 1.0);
        let residuals = gains.iter().zip(bases).map(|(gain, base)| gain - base * share);
        let groups = GROUPS as f64;
        let squares: f64 = residuals.map(|residual| residual.powi(2)).sum();
        // A sample of half of the blocks has half of the variance: the other half is known.
        let unknown = 1.0 - 1.0 / (1_u64 << self.shift) as f64;
        let sampling = T_95 * (squares * groups / (groups - 1.0) * unknown).sqrt() / base * measured;
        let half = sampling + MODEL_ERROR * distance;
        Estimate {
            value,
            low: (value - half).max(0.0),
            high: (value + half).min(1.0),
        }
    }

    /// The hit ratio with another codec, by its number in [`codecs`](super::codecs()). `now`: the codec in use, if the blocks that stay
    /// are not as they were stored first.
    #[must_use]
    pub fn with_codec(&self, codec: usize, now: Option<usize>) -> CodecEstimate {
        let (factor, error) = self.codecs.capacity_factor(codec, now);
        let simulated = match codec {
            NONE => Some(UNCOMPRESSED),
            AUTO if now != Some(AUTO) => Some(STORED_BY_AUTO),
            _ => None,
        };
        let middle = match simulated {
            Some(cache) => self.hit_ratio_with(&self.cache_hits[cache], 1.0),
            None => self.hit_ratio_at(factor),
        };
        // Without compression, the sizes are known, if those of the blocks that stay in the real cache are.
        let error_of_sizes = if codec == NONE && now.is_none() {
            0.0
        } else {
            error
        };
        let curve = |factor| self.hit_ratio_at(factor).value;
        let least = curve(factor - 2.0 * error_of_sizes);
        let most = curve((factor + 2.0 * error_of_sizes) * self.codecs.unknown_gain(codec));
        CodecEstimate {
            factor,
            error,
            hit_ratio: Estimate {
                low: (middle.low - (curve(factor) - least).max(0.0)).max(0.0),
                high: (middle.high + (most - curve(factor)).max(0.0)).min(1.0),
                ..middle
            },
        }
    }

    /// The simulated misses at the real capacity, of which a better cache gains, or the hits, of which a worse one loses; by part of the
    /// sample.
    fn bases(&self, is_better: bool) -> [f64; GROUPS] {
        let hits = &self.cache_hits[REAL];
        std::array::from_fn(|group| match is_better {
            true => self.group_reads[group] - hits[group],
            false => hits[group],
        })
    }

    /// The hits of a simulated cache of any size, by part of the sample.
    pub(super) fn hits_at(&self, multiple: f64) -> [f64; GROUPS] {
        let multiple = multiple.clamp(MULTIPLES[0], MULTIPLES[MULTIPLES.len() - 1]);
        let above = MULTIPLES
            .partition_point(|it| *it < multiple)
            .clamp(1, MULTIPLES.len() - 1);
        let (low, high) = (MULTIPLES[above - 1], MULTIPLES[above]);
        let share = (multiple / low).ln() / (high / low).ln();
        let [lower, upper] = [&self.cache_hits[above - 1], &self.cache_hits[above]];
        std::array::from_fn(|group| lower[group] + (upper[group] - lower[group]) * share)
    }
}
