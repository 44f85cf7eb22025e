//! What a dictionary would save, in a cache that has none: a trial with earlier blocks instead of one.
//!
//! Training a dictionary takes megabytes of samples. Instead, a block is compressed with a few blocks that were sampled before it, once
//! with 16 KiB of them and once with 64 KiB. What they save grows with the logarithm of their size, and a trained dictionary saves as much
//! as a history of about four times its size: a line through the two points gives an estimate.
//!
//! Invariant: a history takes [`History::BYTES_MAX`] at most, and a block is compressed with blocks that were sampled before it.

use flaz_codec::{CodecChoice, Dictionary, Effort, Encoder, encoder, encoder_with};

use crate::units::BLOCK_BYTES;

/// Of the samples, one in so many is a trial: it takes 1.4 ms more.
const SAMPLES_PER_TRIAL: u32 = 4;
/// Bytes of earlier blocks in the two trials of a block.
const HISTORIES: [usize; 2] = [16 << 10, 64 << 10];
/// Standard error of the gain, as a share of the capacity. Measured with twelve kinds of data: see `docs/advise.md`.
pub(super) const GAIN_ERROR: f64 = 0.05;

/// The blocks that were sampled last.
#[derive(Debug, Default)]
pub struct History {
    /// The newest is at the end.
    blocks: Vec<u8>,
    samples: u32,
}

impl History {
    /// Bytes of memory of a history.
    pub const BYTES_MAX: usize = HISTORIES[1];

    /// Takes a block, after the trial of it.
    pub fn add(&mut self, block: &[u8]) {
        if self.blocks.capacity() < Self::BYTES_MAX {
            self.blocks.reserve_exact(Self::BYTES_MAX);
        }
        if self.blocks.len() == Self::BYTES_MAX {
            self.blocks.copy_within(BLOCK_BYTES.., 0);
            self.blocks.truncate(Self::BYTES_MAX - BLOCK_BYTES);
        }
        self.blocks.extend_from_slice(block);
        self.samples += 1;
    }

    /// A copy of the history, if the next sample is for a trial.
    #[must_use]
    pub fn for_trial(&self) -> Option<Vec<u8>> {
        let is_due = self.samples.is_multiple_of(SAMPLES_PER_TRIAL);
        (self.blocks.len() == Self::BYTES_MAX && is_due).then(|| self.blocks.clone())
    }

    /// Frees the memory: the cache has a dictionary.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.blocks.capacity()
    }
}

/// Bytes of a block, or of blocks, with the second codec of `auto`: alone, and with each history.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Trial {
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
        Some(Self { alone, with })
    }

    /// Adds those of other blocks.
    pub(super) fn add(&mut self, other: &Self) {
        self.alone += other.alone;
        self.with
            .iter_mut()
            .zip(other.with)
            .for_each(|(with, other)| *with += other);
    }

    /// Counts all blocks half.
    pub(super) fn halve(&mut self) {
        self.alone /= 2.0;
        self.with.iter_mut().for_each(|with| *with /= 2.0);
    }

    /// By how much more blocks would fit with a dictionary of so many bytes, as a share. `None`: no block was tried.
    pub(super) fn gain(&self, dictionary_bytes: f64) -> Option<f64> {
        if self.alone == 0.0 {
            return None;
        }
        let [few, many] = self.with.map(|with| self.alone / with - 1.0);
        let [small, large] = HISTORIES.map(|bytes| bytes as f64);
        // A history of four times the size of the dictionary: from `many`, so many steps of the distance between the two.
        let steps = (4.0 * dictionary_bytes / large).ln() / (large / small).ln();
        Some((many + steps * (many - few)).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use flaz_random::Random;

    use super::super::{AUTO, CodecSamples, Common, Compressed, FORMS, LZ4};
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
    fn samples(dictionary_bytes: f64, mut next: impl FnMut() -> Vec<u8>) -> CodecSamples {
        let mut history = History::default();
        let mut samples = CodecSamples {
            dictionary_bytes,
            ..CodecSamples::default()
        };
        for _ in 0..200 {
            let block = next();
            let common = history.for_trial().map_or(Common::Nothing, Common::History);
            history.add(&block);
            assert!(history.memory_bytes() <= History::BYTES_MAX);
            let compressed = Compressed::of(&block, None, Effort::Usual, &common);
            samples.sample(&compressed, 4096, Default::default());
        }
        samples
    }

    #[test]
    fn what_blocks_have_in_common_is_found_and_counts_for_auto_only() {
        let mut random = Random::new(1);
        let common = samples(65536.0, || block(7, &mut random));
        let gain = common.trial.gain(65536.0).expect("blocks were tried");
        let larger = common.trial.gain(262_144.0).expect("blocks were tried");
        assert!(gain > 0.3 && larger > gain, "{gain} {larger}");
        let none = CodecSamples {
            dictionary_bytes: 0.0,
            ..common
        };
        for (codec, least) in [(AUTO, 0.25), (LZ4, 0.0)] {
            let [with, without] = [&common, &none].map(|samples| samples.capacity_factor(codec, None).0);
            assert!(with >= without * (1.0 + least), "{codec}: {with} {without}");
            assert!(codec == AUTO || with == without, "{codec}: {with} {without}");
            assert_eq!(common.ratio(codec) / none.ratio(codec), with / without);
            assert_eq!(common.unknown_gain(codec), 0.0);
        }
        // In shards that have no history, and together.
        let mut all = CodecSamples::default();
        all.add(&common);
        all.add(&common);
        assert_eq!(all.trial.gain(65536.0), Some(gain));
        assert_eq!(all.dictionary_bytes, 65536.0);
    }

    #[test]
    fn nothing_in_common_is_no_gain() {
        let mut random = Random::new(1);
        let mut number = 0;
        let samples = samples(262_144.0, || {
            number += 1;
            block(number, &mut random)
        });
        let gain = samples.trial.gain(262_144.0).expect("blocks were tried");
        assert!(gain < 0.02, "{gain}");
    }

    #[test]
    fn without_trials_the_gain_is_unknown() {
        assert_eq!(Trial::default().gain(65536.0), None);
        let mut history = History::default();
        for number in 0..15_u32 {
            assert_eq!(history.for_trial(), None, "{number} blocks are not enough");
            history.add(&[0; BLOCK_BYTES]);
        }
        history.add(&[1; BLOCK_BYTES]);
        let copy = history.for_trial().expect("enough");
        assert_eq!(copy[copy.len() - 1], 1, "the newest is at the end");
        history.add(&[2; BLOCK_BYTES]);
        assert_eq!(history.for_trial(), None, "not each sample");
        history.clear();
        assert_eq!(history.memory_bytes(), 0);
        let codec = Compressed::of(
            &[0; BLOCK_BYTES],
            None,
            Effort::Usual,
            &Common::History(vec![0; 5]),
        );
        let mut samples = CodecSamples::default();
        samples.sample(&codec, 10, [Default::default(); FORMS]);
        assert_eq!(
            samples.trial,
            Trial::default(),
            "a history that is too short is not used"
        );
    }
}
