//! What a dictionary would save, in a cache that has none: a trial with earlier blocks instead of one.
//!
//! Training a dictionary takes megabytes of samples. Instead, a block is compressed with a few blocks that were sampled before it, once
//! with 16 KiB of them and once with 64 KiB. A trained dictionary saves as much as a history of about four times its size, and what a
//! history saves grows with the logarithm of its size: by more for each step, the better blocks compress alone ([`GROWTH`]).
//!
//! Invariant: a history takes [`History::BYTES_MAX`] at most, and a block is compressed with blocks that were sampled before it.

use flaz_codec::{CodecChoice, Dictionary, Effort, Encoder, encoder, encoder_with};

use crate::units::BLOCK_BYTES;

/// Of the samples, one in so many is a trial: it takes 1.4 ms more. Not a divisor of the number of groups, so that each group has some.
const SAMPLES_PER_TRIAL: u32 = 5;
/// Bytes of earlier blocks in the two trials of a block.
const HISTORIES: [usize; 2] = [16 << 10, 64 << 10];
/// Blocks in the larger one.
const BLOCKS_MAX: usize = HISTORIES[1] / BLOCK_BYTES;
/// With fewer trials, they say nothing.
pub(super) const TRIALS_MIN: f64 = 32.0;
/// How much more a history of four times the size saves, in units of the difference between the two trials, for each unit by which the
/// compression ratio of single blocks exceeds 1. Text gains from ever more text; data with a small vocabulary has nearly all of it in a
/// few blocks. Measured with seventeen kinds of data: see `docs/advise.md`.
const GROWTH: f64 = 0.6;
/// But at most as much as this.
const GROWTH_MAX: f64 = 1.5;
/// Standard error of the gain, as a share of the capacity. Measured with the same kinds of data: see `docs/advise.md`.
pub(super) const GAIN_ERROR: f64 = 0.05;

/// The blocks that were sampled last, each once.
#[derive(Debug, Default)]
pub struct History {
    /// The newest is at the end.
    blocks: Vec<u8>,
    /// Their numbers.
    numbers: Vec<u64>,
    samples: u32,
}

impl History {
    /// Bytes of memory of a history.
    pub const BYTES_MAX: usize = HISTORIES[1] + BLOCKS_MAX * size_of::<u64>();

    /// Takes a block, after the trial of it.
    pub fn add(&mut self, number: u64, block: &[u8]) {
        if self.numbers.capacity() < BLOCKS_MAX {
            self.blocks.reserve_exact(BLOCKS_MAX * BLOCK_BYTES);
            self.numbers.reserve_exact(BLOCKS_MAX);
        }
        let is_full = self.numbers.len() == BLOCKS_MAX;
        // An earlier version of the same block would save what no dictionary does.
        if let Some(gone) = self.place_of(number).or(is_full.then_some(0)) {
            self.numbers.remove(gone);
            self.blocks
                .copy_within((gone + 1) * BLOCK_BYTES.., gone * BLOCK_BYTES);
            self.blocks.truncate(self.numbers.len() * BLOCK_BYTES);
        }
        self.numbers.push(number);
        self.blocks.extend_from_slice(block);
        self.samples = self.samples.wrapping_add(1);
    }

    /// A copy of the history, if a block with this number, which is sampled next, is for a trial.
    #[must_use]
    pub fn for_trial(&self, number: u64) -> Option<Vec<u8>> {
        let is_full = self.numbers.len() == BLOCKS_MAX;
        let is_due = self.samples.is_multiple_of(SAMPLES_PER_TRIAL);
        (is_full && is_due && self.place_of(number).is_none()).then(|| self.blocks.clone())
    }

    fn place_of(&self, number: u64) -> Option<usize> {
        self.numbers.iter().position(|of| *of == number)
    }

    /// Frees the memory.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.blocks.capacity() + self.numbers.capacity() * size_of::<u64>()
    }
}

/// Bytes of blocks that stay, with the second codec of `auto`: alone, and with each history.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Trial {
    /// Number of blocks.
    pub blocks: f64,
    /// Without history.
    pub alone: f64,
    /// With 16 and 64 KiB of history.
    pub with: [f64; HISTORIES.len()],
}

impl Trial {
    /// Compresses a block in the three ways; `size` gives the bytes of the block with an encoder. `None`: the history cannot be used.
    pub(super) fn of(history: &[u8], size: impl Fn(&mut dyn Encoder) -> f64) -> Option<Self> {
        let codec = CodecChoice::Auto.second(Effort::Usual, false)?;
        let mut with = [0.0; HISTORIES.len()];
        for (with, bytes) in with.iter_mut().zip(HISTORIES) {
            // A history is a dictionary without tables of its own.
            let dictionary = Dictionary::new(&history[history.len().checked_sub(bytes)?..])?;
            *with = size(&mut *encoder_with(&dictionary, codec)?);
        }
        let alone = size(&mut *encoder(codec));
        Some(Self {
            blocks: 1.0,
            alone,
            with,
        })
    }

    /// All that is counted.
    pub(super) fn counts(&mut self) -> impl Iterator<Item = &mut f64> {
        [&mut self.blocks, &mut self.alone]
            .into_iter()
            .chain(&mut self.with)
    }

    /// Adds those of other blocks.
    pub(super) fn add(&mut self, other: &Self) {
        let mut other = *other;
        self.counts()
            .zip(other.counts())
            .for_each(|(count, other)| *count += *other);
    }

    /// By how much the ratio would rise with a dictionary of so many bytes, as a share, if a block was tried.
    pub(super) fn gain(&self, dictionary_bytes: f64) -> f64 {
        if self.blocks == 0.0 {
            return 0.0;
        }
        let [few, many] = self.with.map(|with| self.alone / with - 1.0);
        let [small, large] = HISTORIES.map(|bytes| bytes as f64);
        // A history of four times the size of the dictionary: so many steps from `many`, of which one leads from `few` to it.
        let steps = (4.0 * dictionary_bytes / large).ln() / (large / small).ln();
        let ratio = self.blocks * BLOCK_BYTES as f64 / self.alone;
        let growth = match steps > 0.0 {
            true => (GROWTH * (ratio - 1.0)).clamp(0.0, GROWTH_MAX),
            false => 1.0,
        };
        (many + steps * growth * (many - few)).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use flaz_random::Random;

    use super::super::{AUTO, CODECS, CodecSamples, Common, Compressed, FORMS, GROUPS, LZ4};
    use super::*;

    /// Blocks of random words of one vocabulary.
    fn block(vocabulary: u64, random: &mut Random) -> Vec<u8> {
        let mut words = [[0; 16]; 4000];
        let mut of = Random::new(vocabulary);
        words.iter_mut().for_each(|word| of.fill(word));
        let words = (0..BLOCK_BYTES / 16).flat_map(|_| words[random.below(4000) as usize]);
        words.collect()
    }

    /// Samples as a cache with so much space for a dictionary takes them, of blocks that `next` gives.
    fn samples(dictionary_bytes: f64, mut next: impl FnMut(u64) -> Vec<u8>) -> CodecSamples {
        let mut history = History::default();
        let mut samples = CodecSamples {
            dictionary_bytes,
            ..CodecSamples::default()
        };
        for number in 0..200 {
            let block = next(number);
            let common = history.for_trial(number).map_or(Common::Nothing, Common::History);
            history.add(number, &block);
            assert!(history.memory_bytes() <= History::BYTES_MAX);
            let four = [block.clone(), next(number), next(number), next(number)].concat();
            let compressed = Compressed::of(&block, Some(&four), Effort::Usual, &common);
            samples.sample(&compressed, 4096, Default::default());
            // Those of other shards, without trials.
            for _ in 0..3 {
                let compressed = Compressed::of(&block, None, Effort::Usual, &Common::Nothing);
                samples.sample(&compressed, 4096, Default::default());
            }
        }
        assert!(
            samples.trials.iter().all(|of| of.blocks >= 3.0),
            "each group has some"
        );
        samples
    }

    #[test]
    fn what_blocks_have_in_common_is_found_and_counts_for_auto_only() {
        let mut random = Random::new(1);
        let samples = samples(65536.0, |_| block(7, &mut random));
        assert_eq!(samples.trials.iter().map(|trial| trial.blocks).sum::<f64>(), 36.0);
        let none = CodecSamples {
            dictionary_bytes: 0.0,
            ..samples
        };
        for (codec, least) in [(AUTO, 0.25), (LZ4, 0.0)] {
            let [with, without] = [&samples, &none].map(|samples| samples.capacity_factor(codec, None).0);
            assert!(with >= without * (1.0 + least), "{codec}: {with} {without}");
            assert!(codec == AUTO || with == without, "{codec}: {with} {without}");
            let [ratio, of_none] = [&samples, &none].map(|samples| samples.ratio(codec, false));
            assert!((ratio / of_none - with / without).abs() < 1e-9);
            assert_eq!(
                samples.ratio(codec, true),
                of_none,
                "in use, it has no dictionary yet"
            );
            assert_eq!(samples.unknown_gain(codec), 1.0);
        }
        // In shards that have no history, and together.
        let mut all = CodecSamples::default();
        all.add(&samples);
        all.add(&samples);
        let [all, one] = [&all, &samples].map(|samples| samples.capacity_factor(AUTO, None));
        assert!((all.0 - one.0).abs() < 1e-9 && (all.1 - one.1).abs() < 1e-9);
    }

    #[test]
    fn nothing_in_common_is_no_gain() {
        let mut random = Random::new(1);
        let samples = samples(262_144.0, |number| block(number, &mut random));
        let none = CodecSamples {
            dictionary_bytes: 0.0,
            ..samples
        };
        let [with, without] = [&samples, &none].map(|samples| samples.capacity_factor(AUTO, None));
        assert!((with.0 / without.0 - 1.0).abs() < 0.02, "{with:?} {without:?}");
        assert!(
            with.1 > without.1 + 0.01,
            "a trial has an error of its own: {with:?} {without:?}"
        );
    }

    /// Trials with blocks that compress to a part of their size alone, and gain so much with each history.
    fn trial(blocks: f64, ratio: f64, gains: [f64; 2]) -> Trial {
        let alone = blocks * BLOCK_BYTES as f64 / ratio;
        Trial {
            blocks,
            alone,
            with: gains.map(|gain| alone / (1.0 + gain)),
        }
    }

    #[test]
    fn a_larger_dictionary_gains_more_the_better_blocks_compress_alone() {
        // 4, 16, 64 and 256 KiB.
        for (ratio, gains) in [
            (1.0, [0.1, 0.2, 0.2, 0.2]),
            (1.5, [0.1, 0.2, 0.23, 0.26]),
            (3.0, [0.1, 0.2, 0.32, 0.44]),
            (50.0, [0.1, 0.2, 0.35, 0.5]),
        ] {
            for (kib, gain) in [4.0, 16.0, 64.0, 256.0].into_iter().zip(gains) {
                let found = trial(TRIALS_MIN, ratio, [0.1, 0.2]).gain(kib * 1024.0);
                assert!((found - gain).abs() < 1e-9, "{ratio}, {kib} KiB: {found}");
            }
        }
        assert_eq!(
            trial(TRIALS_MIN, 1.0, [-0.1, -0.2]).gain(65536.0),
            0.0,
            "worse than none"
        );
    }

    /// Half of the samples were taken with a dictionary.
    #[test]
    fn a_dictionary_saves_only_what_has_none() {
        let samples = CodecSamples {
            blocks: [10.0; GROUPS],
            dictionary_bytes: 65536.0,
            trials: [trial(10.0, 1.0 + 1.0 / GROWTH, [0.2, 0.25]); GROUPS],
            now_bytes: [20_000.0; GROUPS],
            bytes: [[10_000.0; GROUPS]; CODECS],
            without_dictionary: [5200.0; GROUPS],
            ..CodecSamples::default()
        };
        // 5200 of 10,000 become 4000.
        let (factor, error) = samples.capacity_factor(AUTO, None);
        assert!((factor - 20.0 / 8.8).abs() < 1e-9, "{factor}");
        let expected = factor * 0.03_f64.hypot(0.05 * 0.52);
        assert!((error - expected).abs() < 1e-9, "{error} {expected}");
        // So do the sizes of blocks that stay, and those of new ones if they have the second codec.
        let mut sized = samples;
        sized.new_bytes = 12_000.0 * GROUPS as f64;
        let sizes = sized.auto_sizes(Some(LZ4)).expect("enough");
        assert!((sizes.new - 1.2).abs() < 1e-9, "{sizes:?}");
        assert!(
            (sizes.stay - (0.88 - 0.07 * 1.2) / 0.93).abs() < 1e-9,
            "{sizes:?}"
        );
        sized.new_without_dictionary = sized.new_bytes;
        let new = 1.2 / 1.3;
        let sizes = sized.auto_sizes(Some(LZ4)).expect("enough");
        assert!((sizes.new - new).abs() < 1e-9, "{sizes:?}");
        assert!(
            (sizes.stay - (0.88 - 0.07 * new) / 0.93).abs() < 1e-9,
            "{sizes:?}"
        );
        let mut untried = samples;
        untried.trials.iter_mut().for_each(|trial| trial.blocks = 3.9);
        assert!((untried.capacity_factor(AUTO, None).0 - 2.0).abs() < 1e-9);
        let unknown = untried.unknown_gain(AUTO);
        assert!((unknown - 10.0 / (4.8 + 5.2 / 1.5)).abs() < 1e-9, "{unknown}");
        assert_eq!(untried.unknown_gain(LZ4), 1.0);
        // Trials may be from a few groups only.
        let mut few = samples;
        few.trials[1..].fill(Trial::default());
        few.trials[0] = trial(80.0, 1.0 + 1.0 / GROWTH, [0.2, 0.25]);
        assert!((few.capacity_factor(AUTO, None).0 - factor).abs() < 1e-9);
        // What differs between the groups widens the interval.
        let mut apart = samples;
        apart.trials[0] = trial(10.0, 1.0 + 1.0 / GROWTH, [1.0, 1.4]);
        assert!(apart.capacity_factor(AUTO, None).1 > error + 0.01);
    }

    #[test]
    fn a_history_has_each_block_once_and_the_newest_at_the_end() {
        let mut history = History::default();
        for number in 0..20_u8 {
            let is_enough = number >= 16;
            assert!(is_enough || history.for_trial(99).is_none(), "{number} blocks");
            history.add(u64::from(number), &[number; BLOCK_BYTES]);
        }
        let firsts = |copy: Vec<u8>| copy.chunks(BLOCK_BYTES).map(|block| block[0]).collect::<Vec<_>>();
        let copy = history.for_trial(20).expect("enough");
        assert_eq!(firsts(copy), (4..20_u8).collect::<Vec<_>>());
        assert_eq!(history.for_trial(7), None, "an earlier version of it is there");
        history.add(7, &[107; BLOCK_BYTES]);
        assert_eq!(history.for_trial(20), None, "not each sample");
        (20..24).for_each(|number| history.add(number, &[number as u8; BLOCK_BYTES]));
        let copy = history.for_trial(24).expect("enough");
        assert_eq!(
            firsts(copy),
            [9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 107, 20, 21, 22, 23]
        );
        assert!(history.memory_bytes() <= History::BYTES_MAX);
        history.clear();
        assert_eq!(history.memory_bytes(), 0);
        let compressed = Compressed::of(
            &[0; BLOCK_BYTES],
            None,
            Effort::Usual,
            &Common::History(vec![0; 5]),
        );
        let mut samples = CodecSamples::default();
        samples.sample(&compressed, 10, [Default::default(); FORMS]);
        assert_eq!(
            samples.trials,
            [Trial::default(); GROUPS],
            "a history that is too short is not used"
        );
    }
}
