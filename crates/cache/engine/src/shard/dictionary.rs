//! The dictionaries of a shard: what blocks that stay have in common. The second codec compresses with the current one.
//!
//! A dictionary is trained from a sample of the blocks that reclaim compresses again, one of each aligned 16 KiB, and stored on the cache
//! device before the first block is compressed with it. The first one is also trained from new blocks, because a cache has to be full
//! before it reclaims anything. From time to time another one is trained. If it is better, it takes the number that is not in use, and
//! blocks that need the earlier one are compressed again when their region is reclaimed.
//!
//! Invariants:
//! - Only clean blocks are compressed with a dictionary: those that are compressed again, and those that a miss brings in. So nothing is
//!   lost with a dictionary but hits, and a wrong one is found by the checksum of each block.
//! - A dictionary takes a number only when no region may have fragments of an earlier one with that number.

use std::cell::{Cell, RefCell};
use std::mem::take;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use flaz_codec::{CodecSpec, DICTIONARIES_MAX, Dictionary, Effort, Encoder, encoder, encoder_with};
use flaz_device::Env;
use futures_util::future::{Either, select};

use super::tasks::Phase;
use super::{Platform, Shard};
use crate::format::dictionary::{DICTIONARY_HEADER_BYTES, DictionarySlot, StoredDictionary};
use crate::format::group::GROUP_BLOCKS_MAX;
use crate::planted::{PlantedBug, planted};
use crate::stats::count;
use crate::units::{BLOCK_BYTES, LocalBlock};

/// Bytes of samples for each byte of a dictionary ...
const SAMPLES_SHARE: usize = 16;
/// ... but at most this many in all.
const SAMPLES_BYTES_MAX: usize = 4 << 20;
/// Of the samples, one in this many is not used for training: it shows whether the new dictionary is better.
const COMPARED_SHARE: usize = 16;
/// A new dictionary must save one part in this many of the bytes that blocks take with the current one ...
const GAIN_PART: usize = 32;
/// ... or with none.
const FIRST_GAIN_PART: usize = 64;
/// A new dictionary is tried after the shard has written so many times the bytes of its regions.
const RENEWAL: u64 = 4;
/// The samples among new blocks are spread over one part in this many of the blocks that a shard holds uncompressed ...
const NEW_PART: u64 = 4;
/// ... but at least one new block in this many is a sample.
const NEW_STEP_MAX: u64 = 16;

/// The samples for the next dictionary.
#[derive(Debug)]
pub(super) struct Training {
    /// Bytes that a dictionary is trained from. 0: there is no space for one.
    wanted: usize,
    samples: RefCell<Vec<u8>>,
    /// Samples are taken once the shard has written as many bytes. `None`: a dictionary is being made.
    begins: Cell<Option<u64>>,
    /// Whether new blocks are samples as well.
    new: Cell<New>,
    /// The generation of the newest dictionary; 0 if there is none.
    generation: Cell<u32>,
}

/// Which new blocks are samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum New {
    /// One in `step`, of which `passed` have passed, and at most one of an aligned 16 KiB in a row.
    Every {
        step: u64,
        passed: u64,
        last: Option<u64>,
    },
    /// None: those that stay say more.
    Never,
}

impl Training {
    /// For dictionaries with so much space, of a shard with so many bytes of regions.
    pub(super) fn new(dictionary_bytes: u32, region_bytes: u64) -> Self {
        let wanted = (dictionary_bytes as usize * SAMPLES_SHARE).min(SAMPLES_BYTES_MAX);
        let step = (region_bytes / NEW_PART).checked_div(wanted as u64);
        Self {
            wanted,
            samples: RefCell::default(),
            begins: Cell::new(Some(0)),
            new: Cell::new(New::Every {
                step: step.unwrap_or(1).clamp(1, NEW_STEP_MAX),
                passed: 0,
                last: None,
            }),
            generation: Cell::new(0),
        }
    }

    /// Whether a sample is wanted, when the shard has written so many bytes.
    pub(super) fn wants(&self, written: u64) -> bool {
        self.wanted > 0 && self.begins.get().is_some_and(|begins| begins <= written)
    }

    /// Whether new blocks are samples as well.
    fn has_new(&self) -> bool {
        self.new.get() != New::Never
    }

    /// A new block is stored: whether it should be a sample, if one is wanted.
    pub(super) fn selects_new(&self, block: LocalBlock) -> bool {
        let New::Every { step, passed, last } = self.new.get() else {
            return false;
        };
        let four = Some(block.0 / GROUP_BLOCKS_MAX as u64);
        let selects = passed + 1 >= step && last != four;
        self.new.set(match selects {
            true => New::Every {
                step,
                passed: 0,
                last: four,
            },
            false => New::Every {
                step,
                passed: passed + 1,
                last,
            },
        });
        selects
    }

    /// Takes a block. Returns all samples when there are enough; then none is wanted until [`Training::begin`].
    fn add(&self, block: &[u8]) -> Option<Vec<u8>> {
        self.begins.get()?;
        let mut samples = self.samples.borrow_mut();
        samples.extend_from_slice(block);
        if samples.len() < self.wanted {
            return None;
        }
        self.begins.set(None);
        self.new.set(New::Never);
        Some(take(&mut samples))
    }

    /// Samples are taken once the shard has written so many bytes.
    fn begin(&self, written: u64) {
        self.begins.set(Some(written));
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.samples.borrow().capacity()
    }
}

/// A dictionary that was made from samples.
struct Made {
    contents: Vec<u8>,
    dictionary: Arc<Dictionary>,
}

/// Makes a dictionary of at most `bytes_max` bytes. `None`: the blocks have nothing in common, or the current one, or none, is nearly as
/// good. It is compared by single blocks, which gain more than groups.
fn make(
    samples: &[u8],
    bytes_max: usize,
    codec: CodecSpec,
    current: Option<Arc<Dictionary>>,
) -> Option<Made> {
    let blocks = samples.chunks_exact(BLOCK_BYTES).enumerate();
    let (compared, trained): (Vec<_>, Vec<_>) =
        blocks.partition(|(number, _)| number % COMPARED_SHARE == COMPARED_SHARE - 1);
    let trained: Vec<u8> = trained
        .into_iter()
        .flat_map(|(_, block)| block)
        .copied()
        .collect();
    let contents = Dictionary::train(&trained, BLOCK_BYTES, bytes_max)?;
    let dictionary = Arc::new(Dictionary::new(&contents)?);
    let bytes_with = |mut encoder: Box<dyn Encoder + Send>| {
        let mut out = vec![0; BLOCK_BYTES];
        let stored = compared
            .iter()
            .map(|(_, block)| encoder.compress(block, &mut out));
        stored.map(|len| len.unwrap_or(BLOCK_BYTES)).sum::<usize>()
    };
    let with_current = current.and_then(|current| encoder_with(&current, codec));
    let part = match with_current {
        Some(_) => GAIN_PART,
        None => FIRST_GAIN_PART,
    };
    let now = bytes_with(with_current.unwrap_or_else(|| encoder(codec)));
    let new = bytes_with(encoder_with(&dictionary, codec)?);
    (new + now / part <= now).then_some(Made { contents, dictionary })
}

impl<P: Platform> Shard<P> {
    /// Reads the dictionaries that earlier openings left. Blocks whose dictionary cannot be read are misses.
    pub(crate) async fn load_dictionaries(self: &Rc<Self>) {
        if self.id.layout.dictionary_bytes == 0 {
            return;
        }
        for number in 0..DICTIONARIES_MAX as u8 {
            let bytes = match self.cache.read_dictionary(number).await {
                Ok(bytes) => bytes,
                Err(error) => {
                    self.cache_error(&error);
                    continue;
                }
            };
            let stored = match StoredDictionary::parse(&bytes, self.dictionary_slot(number)) {
                Ok(stored) => stored,
                Err(error) => {
                    tracing::warn!(
                        shard = self.id.number,
                        "dictionary {number} is lost, and with it the blocks that need it (no data is lost): {error}"
                    );
                    continue;
                }
            };
            let Some(StoredDictionary { generation, contents }) = stored else {
                continue;
            };
            if let Some(dictionary) = Dictionary::new(&contents) {
                let is_newest = self.training.generation.get() < generation;
                let newest = self.training.generation.get().max(generation);
                self.training.generation.set(newest);
                self.codecs
                    .set_dictionary(number, Arc::new(dictionary), is_newest);
                self.training.new.set(New::Never);
            }
        }
    }

    fn dictionary_slot(&self, number: u8) -> DictionarySlot {
        DictionarySlot {
            cache: self.id.cache_id,
            shard: self.id.number,
            number,
        }
    }

    /// How many bytes the shard will have written when another dictionary is tried.
    fn renewal(&self) -> u64 {
        self.written_bytes() + RENEWAL * self.log.region_count() * self.id.layout.region_bytes
    }

    /// The number that the next dictionary takes.
    fn next_number(&self) -> u8 {
        match self.codecs.current_number() {
            Some(current) if planted(PlantedBug::DictionaryReplaced) => current,
            Some(current) => 1 - current,
            None => 0,
        }
    }

    /// Whether no block needs the dictionary that has this number, or none can be restored, because there is no such dictionary.
    fn is_free(&self, number: u8) -> bool {
        self.codecs.dictionaries()[usize::from(number)].is_none()
            || self.log.is_dictionary_unused(number)
            || planted(PlantedBug::DictionaryReplaced)
    }

    /// Whether a block is wanted as a sample.
    pub(super) fn wants_sample(&self) -> bool {
        self.training.wants(self.written_bytes()) && self.is_free(self.next_number())
    }

    /// Takes a block as a sample. When there are enough, a dictionary is made and stored in the background.
    pub(super) fn add_sample(self: &Rc<Self>, block: &[u8]) {
        // Those that stay may have other things in common.
        let has_new = self.training.has_new();
        let samples = self.training.add(block);
        if let Some(samples) = samples.filter(|_| self.tasks.phase() == Phase::Serving) {
            let shard = Rc::clone(self);
            self.tasks.spawn(&self.env, async move {
                shard.make_dictionary(samples).await;
                let begins = match has_new {
                    true => 0,
                    false => shard.renewal(),
                };
                shard.training.begin(begins);
            });
        }
    }

    async fn make_dictionary(self: &Rc<Self>, samples: Vec<u8>) {
        let Some(codec) = self.tuning.settings().codec.second(Effort::Usual, true) else {
            return;
        };
        let bytes_max = self.id.layout.dictionary_bytes as usize - DICTIONARY_HEADER_BYTES;
        let current = self.codecs.current().map(|current| current.dictionary);
        let train = move || make(&samples, bytes_max, codec, current);
        // A stop does not wait for it.
        let made = match select(pin!(self.env.compute_long(train)), pin!(self.tasks.stopped())).await {
            Either::Left((made, _)) => made,
            Either::Right(_) => None,
        };
        let Some(Made { contents, dictionary }) = made else {
            return;
        };
        let number = self.next_number();
        if !self.is_free(number) {
            return;
        }
        let generation = self.training.generation.get().saturating_add(1);
        let bytes = StoredDictionary { generation, contents }.to_bytes(self.dictionary_slot(number));
        if self.store_dictionary(number, &bytes).await {
            self.training.generation.set(generation);
            self.codecs.set_dictionary(number, dictionary, true);
            count(&self.stats.counters.dictionaries_made, 1);
        }
    }

    /// Stores a dictionary, stable. After a power cut there is the whole dictionary or none, without damage. False: it is not stored.
    async fn store_dictionary(self: &Rc<Self>, number: u8, bytes: &[u8]) -> bool {
        let sector = self.id.layout.sector_bytes as usize;
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(sector), 0);
        let (first, rest) = padded.split_at(sector);
        // A recovery must not find regions again that were freed, so the log is stable before anything is overwritten.
        let mut stable = self.make_log_stable().await;
        for (offset, part) in [(0, &vec![0; sector][..]), (sector, rest), (0, first)] {
            if !stable || part.is_empty() {
                continue;
            }
            if let Err(error) = self.cache.write_dictionary(number, offset, part).await {
                self.cache_error(&error);
                return false;
            }
            stable = self.make_log_stable().await;
        }
        stable
    }
}

#[cfg(test)]
mod tests {
    use flaz_codec::CodecChoice;

    use super::*;

    /// Blocks of random words of one of several vocabularies.
    fn blocks(count: u64, vocabulary: u64) -> Vec<u8> {
        let mut random = flaz_random::Random::new(vocabulary);
        let words: Vec<[u8; 12]> = std::iter::repeat_with(|| {
            let mut word = [0; 12];
            random.fill(&mut word);
            word
        })
        .take(600)
        .collect();
        (0..count * BLOCK_BYTES as u64 / 12 + 1)
            .flat_map(|_| words[random.below(600) as usize])
            .take(count as usize * BLOCK_BYTES)
            .collect()
    }

    #[test]
    fn samples_are_taken_until_there_are_enough_and_then_after_a_while() {
        let training = Training::new(8 << 10, 2 << 20);
        assert!(training.wants(0));
        for n in 1..32 {
            assert_eq!(training.add(&[1; BLOCK_BYTES]), None, "{n}");
        }
        let samples = training.add(&[2; BLOCK_BYTES]).expect("32 of them");
        assert_eq!(samples.len(), 128 << 10);
        assert!(!training.wants(u64::MAX), "one is being made");
        assert_eq!(training.add(&[1; BLOCK_BYTES]), None);
        training.begin(1000);
        assert!(!training.wants(999) && training.wants(1000));
        assert_eq!(training.memory_bytes(), 0);
        let none = Training::new(0, 2 << 20);
        assert!(!none.wants(u64::MAX), "there is no space for one");
    }

    #[test]
    fn the_first_samples_include_new_blocks_that_lie_apart() {
        let selected = |training: &Training, blocks: &[u64]| {
            let blocks = blocks.iter().copied().map(LocalBlock);
            blocks.filter(|block| training.selects_new(*block)).count()
        };
        // 128 KiB of samples from 512 KiB.
        let training = Training::new(8 << 10, 2 << 20);
        let apart: Vec<u64> = (0..64).map(|number| number * 100).collect();
        assert_eq!(selected(&training, &apart), 16);
        assert_eq!(
            selected(&training, &[8; 64]),
            1,
            "all of them in one aligned 16 KiB"
        );
        assert_eq!(
            selected(&Training::new(256 << 10, 1 << 40), &apart),
            4,
            "soon also in a large shard"
        );
        for _ in 0..32 {
            training.add(&[1; BLOCK_BYTES]);
        }
        training.begin(0);
        assert_eq!(selected(&training, &apart), 0, "then only those that stay");
    }

    #[test]
    fn a_dictionary_is_made_if_it_is_better_than_the_current_one() {
        let codec = CodecChoice::Auto.second(Effort::Usual, true).expect("it has one");
        let first = make(&blocks(64, 1), 8 << 10, codec, None).expect("they have words in common");
        assert!(first.contents.len() <= 8 << 10);
        let current = Some(first.dictionary);
        assert!(
            make(&blocks(64, 1), 8 << 10, codec, current.clone()).is_none(),
            "the same words"
        );
        assert!(
            make(&blocks(64, 2), 8 << 10, codec, current).is_some(),
            "other words"
        );
        let mut noise = vec![0; 64 * BLOCK_BYTES];
        flaz_random::Random::new(5).fill(&mut noise);
        let of_noise = make(&noise, 8 << 10, codec, None);
        assert!(of_noise.is_none(), "no dictionary is as good");
    }
}
