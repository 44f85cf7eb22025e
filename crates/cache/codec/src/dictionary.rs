//! Dictionaries: what blocks of one cache have in common, so that each block need not store it again.
//!
//! A dictionary is trained from samples (`ZDICT`, the fast cover algorithm). A block that was compressed with it can only be restored
//! with it. [`CodecId::with_dictionary`] says which one of a cache that is.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use zstd::zstd_safe::{CDict, DDict, train_from_buffer};

use crate::codec::CodecId;
use crate::memory::Counted;

/// Most dictionaries that a cache has at a time.
pub const DICTIONARIES_MAX: usize = 2;
/// Where the number of the dictionary is in a fragment's codec: one more than the number; 0 without a dictionary.
const NUMBER_SHIFT: u32 = 4;

/// The dictionaries that blocks were compressed with, by number.
pub type Dictionaries = [Option<Arc<Dictionary>>; DICTIONARIES_MAX];

/// A dictionary, for compression and for decompression.
pub struct Dictionary {
    contents: Box<[u8]>,
    decoder: DDict<'static>,
    prepared: Mutex<Vec<AtLevel>>,
    _memory: Counted,
}

/// A dictionary that was prepared for compression at a level.
struct AtLevel {
    level: i8,
    prepared: Arc<Prepared>,
    /// An encoder was created with it since the last trim.
    was_used: bool,
}

/// A dictionary for compression at one level. It takes ten to thirty times the memory of the contents.
pub(crate) struct Prepared {
    pub(crate) dictionary: CDict<'static>,
    _memory: Counted,
}

impl Dictionary {
    /// The contents of a dictionary of at most `bytes_max` bytes for blocks like those in `samples`, of `sample_bytes` each. `None`: there
    /// are too few, or they have nothing in common. Takes a fifth of a second per MiB of samples.
    #[must_use]
    pub fn train(samples: &[u8], sample_bytes: usize, bytes_max: usize) -> Option<Vec<u8>> {
        let mut contents = Vec::with_capacity(bytes_max);
        let sizes = vec![sample_bytes; samples.len() / sample_bytes];
        train_from_buffer(&mut contents, samples, &sizes).ok()?;
        Some(contents)
    }

    /// Prepares a dictionary for decompression. `None`: these are not the contents of one.
    #[must_use]
    pub fn new(contents: &[u8]) -> Option<Self> {
        let decoder = DDict::try_create(contents)?;
        let memory = Counted::new(contents.len() + decoder.sizeof());
        Some(Self {
            contents: contents.into(),
            decoder,
            prepared: Mutex::default(),
            _memory: memory,
        })
    }

    /// Returns the tables for compression at a level; builds them if there are none. `None`: the library rejects the contents.
    ///
    /// Building takes up to 20 ms, and longer on a thread with little claim to a processor, so other threads do not wait for it: two that
    /// need the same level at once build it twice.
    pub(crate) fn prepare(&self, level: i8) -> Option<Arc<Prepared>> {
        self.known(level).or_else(|| self.build(level))
    }

    fn known(&self, level: i8) -> Option<Arc<Prepared>> {
        let mut all = self.all_prepared();
        let known = all.iter_mut().find(|of| of.level == level)?;
        known.was_used = true;
        Some(Arc::clone(&known.prepared))
    }

    fn build(&self, level: i8) -> Option<Arc<Prepared>> {
        let dictionary = CDict::try_create(&self.contents, level.into())?;
        let memory = Counted::new(dictionary.sizeof());
        let prepared = Arc::new(Prepared {
            dictionary,
            _memory: memory,
        });
        let mut all = self.all_prepared();
        if let Some(known) = all.iter().find(|of| of.level == level) {
            // Another thread was faster.
            return Some(Arc::clone(&known.prepared));
        }
        all.push(AtLevel {
            level,
            prepared: Arc::clone(&prepared),
            was_used: true,
        });
        Some(prepared)
    }

    /// Frees the tables of levels that no encoder uses and for which none was created since the last call. Does not block.
    pub fn trim(&self) {
        // The dictionary is in use.
        let Some(mut all) = self.free_prepared() else {
            return;
        };
        all.retain_mut(|of| {
            let is_used = of.was_used || Arc::strong_count(&of.prepared) > 1;
            of.was_used = false;
            is_used
        });
    }

    /// Whether the tables for a level exist, so that creating an encoder takes no time. Does not block.
    #[must_use]
    pub fn is_prepared(&self, level: i8) -> bool {
        self.free_prepared()
            .is_some_and(|all| all.iter().any(|of| of.level == level))
    }

    /// `None`: another thread has it at this moment.
    fn free_prepared(&self) -> Option<MutexGuard<'_, Vec<AtLevel>>> {
        match self.prepared.try_lock() {
            Ok(all) => Some(all),
            Err(TryLockError::Poisoned(all)) => Some(all.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn all_prepared(&self) -> MutexGuard<'_, Vec<AtLevel>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn decoder(&self) -> &DDict<'static> {
        &self.decoder
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dictionary({} bytes)", self.contents.len())
    }
}

impl CodecId {
    /// The same codec with dictionary `number` of the cache.
    #[must_use]
    pub fn with_dictionary(self, number: u8) -> Self {
        assert!(usize::from(number) < DICTIONARIES_MAX && self.0 >> NUMBER_SHIFT == 0);
        Self(self.0 | (number + 1) << NUMBER_SHIFT)
    }

    /// The number of the dictionary that its blocks need.
    #[must_use]
    pub fn dictionary(self) -> Option<u8> {
        let codec = Self(self.0 & ((1 << NUMBER_SHIFT) - 1));
        let number = (self.0 >> NUMBER_SHIFT).checked_sub(1)?;
        (codec == Self::ZSTD && usize::from(number) < DICTIONARIES_MAX).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use flaz_random::Random;

    use super::*;
    use crate::{CodecChoice, CodecSpec, DecodeError, Decoders, Effort, encoder, encoder_with};

    const BLOCK: usize = 4096;

    /// Blocks of random words of one vocabulary, back to back.
    fn blocks(count: usize, vocabulary: u64, seed: u64) -> Vec<u8> {
        let mut words = [[0; 16]; 500];
        let mut random = Random::new(vocabulary);
        words.iter_mut().for_each(|word| random.fill(word));
        let mut random = Random::new(seed);
        (0..count * BLOCK / 16)
            .flat_map(|_| words[random.below(500) as usize])
            .collect()
    }

    fn dictionary(vocabulary: u64) -> Arc<Dictionary> {
        let contents = Dictionary::train(&blocks(128, vocabulary, 1), BLOCK, 8 << 10).expect("common words");
        assert!(contents.len() <= 8 << 10);
        Arc::new(Dictionary::new(&contents).expect("its own contents"))
    }

    fn codec(effort: Effort) -> CodecSpec {
        CodecChoice::Auto.second(effort, true).expect("it has one")
    }

    /// A block, compressed with a dictionary.
    fn packed(block: &[u8], dictionary: &Arc<Dictionary>) -> Vec<u8> {
        let mut out = vec![0; BLOCK];
        let mut encoder = encoder_with(dictionary, codec(Effort::Usual)).expect("its own contents");
        let len = encoder.compress(block, &mut out).expect("it fits");
        out.truncate(len);
        out
    }

    fn decoders(dictionaries: Dictionaries) -> Decoders {
        let mut decoders = Decoders::new();
        decoders.set_dictionaries(dictionaries);
        decoders
    }

    #[test]
    fn blocks_are_smaller_with_a_dictionary_and_read_back_alone_and_together() {
        let dictionary = dictionary(7);
        let four = blocks(4, 7, 2);
        let id = CodecId::ZSTD.with_dictionary(1);
        let mut decoders = decoders([None, Some(Arc::clone(&dictionary))]);
        for effort in [Effort::Usual, Effort::High] {
            let mut with = encoder_with(&dictionary, codec(effort)).expect("its own contents");
            let mut without = encoder(codec(effort));
            let (mut out, mut plain) = (vec![0; 4 * BLOCK], vec![0; 4 * BLOCK]);
            for block in four.chunks(BLOCK) {
                let alone = without.compress(block, &mut out).expect("it fits");
                let len = with.compress(block, &mut out).expect("it fits");
                assert!(len * 10 < alone * 9, "{len} bytes, {alone} without");
                decoders
                    .decompress(id, &out[..len], &mut plain[..BLOCK])
                    .expect("its own output");
                assert!(plain[..BLOCK] == *block);
            }
            let len = with.compress_group(&four, BLOCK, &mut out).expect("it fits");
            for count in 1..=4 {
                decoders
                    .decompress_first(id, &out[..len], BLOCK, &mut plain[..count * BLOCK])
                    .expect("its own output");
                assert!(plain[..count * BLOCK] == four[..count * BLOCK]);
            }
        }
    }

    #[test]
    fn encoders_of_a_level_share_what_is_prepared_until_none_is_left() {
        let dictionary = dictionary(7);
        let encoder = |effort| encoder_with(&dictionary, codec(effort)).expect("its own contents");
        let levels = || dictionary.all_prepared().len();
        assert!(!dictionary.is_prepared(codec(Effort::Usual).level()));
        let usual = [encoder(Effort::Usual), encoder(Effort::Usual)];
        assert_eq!(levels(), 1, "shared");
        assert!(dictionary.is_prepared(codec(Effort::Usual).level()));
        assert!(!dictionary.is_prepared(codec(Effort::High).level()));
        drop(encoder(Effort::High));
        assert_eq!(levels(), 2);
        dictionary.trim();
        assert_eq!(levels(), 2, "it was used since the last trim");
        dictionary.trim();
        assert_eq!(levels(), 1, "two encoders are left");
        drop(usual);
        dictionary.trim();
        assert_eq!(levels(), 0);
        let first = dictionary.build(6).expect("once more");
        let second = dictionary.build(6).expect("by another thread at the same time");
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(levels(), 1);
    }

    #[test]
    fn without_its_dictionary_a_block_is_refused_or_wrong() {
        let (own, other) = (dictionary(7), dictionary(8));
        let block = blocks(1, 7, 3);
        let out = packed(&block, &own);
        let mut found = vec![0; BLOCK];
        let mut restore = |dictionaries, number| {
            let id = CodecId::ZSTD.with_dictionary(number);
            let result = decoders(dictionaries).decompress(id, &out, &mut found);
            result.map(|()| found == block)
        };
        assert_eq!(restore([Some(Arc::clone(&own)), None], 0), Ok(true));
        assert_eq!(restore([None, Some(own)], 0), Err(DecodeError::NoDictionary(0)));
        assert_ne!(restore([Some(other), None], 0), Ok(true));
    }

    #[test]
    fn hostile_contents_and_streams_give_an_error_or_other_bytes() {
        let own = dictionary(7);
        let contents = Dictionary::train(&blocks(128, 7, 1), BLOCK, 8 << 10).expect("common words");
        let block = blocks(1, 7, 3);
        let out = packed(&block, &own);
        let len = out.len();
        let id = CodecId::ZSTD.with_dictionary(0);
        let mut found = vec![0; BLOCK];
        for bit in (0..contents.len() * 8).step_by(97) {
            let mut wrong = contents.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            if let Some(dictionary) = Dictionary::new(&wrong) {
                let mut decoders = decoders([Some(Arc::new(dictionary)), None]);
                // Any result; the checksum of the block is the engine's.
                let _ = decoders.decompress(id, &out, &mut found);
            }
        }
        let mut decoders = decoders([Some(own), None]);
        for bit in 0..len * 8 {
            let mut wrong = out.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let _ = decoders.decompress(id, &wrong, &mut found);
            let _ = decoders.decompress_first(id, &wrong, BLOCK, &mut found);
        }
        for cut in 0..len {
            assert!(decoders.decompress(id, &out[..cut], &mut found).is_err());
        }
    }

    #[test]
    fn numbers_of_codecs_with_a_dictionary_are_apart_from_all_others() {
        let all: Vec<CodecId> = crate::ids()
            .chain((0..DICTIONARIES_MAX as u8).map(|number| CodecId::ZSTD.with_dictionary(number)))
            .chain([CodecId::LOST, CodecChoice::Auto.id()])
            .collect();
        for (n, id) in all.iter().enumerate() {
            assert!(!all[..n].contains(id), "{id:?}");
        }
        assert_eq!(CodecId(0x22).dictionary(), Some(1));
        for other in [CodecId(0x32), CodecId(0x11), CodecId::LOST, CodecId::ZSTD] {
            assert_eq!(other.dictionary(), None);
        }
        assert_eq!(CodecId(0x12).to_string(), "zstd with dictionary");
        let mut found = [0; BLOCK];
        for unknown in [0x32, 0x11, 0xff, 0xf2, 0x15] {
            let result = Decoders::new().decompress(CodecId(unknown), &[0; 40], &mut found);
            assert_eq!(result, Err(DecodeError::UnknownCodec(unknown)), "{unknown:#x}");
        }
        let own = dictionary(7);
        assert!(encoder_with(&own, CodecSpec::LZ4).is_none(), "LZ4 has none");
    }

    #[test]
    fn nothing_is_trained_from_too_little() {
        assert_eq!(Dictionary::train(&[], BLOCK, 8 << 10), None);
        assert_eq!(Dictionary::train(&[0; BLOCK], BLOCK, 8 << 10), None);
    }
}
