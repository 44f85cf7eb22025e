//! What other codecs would make of the blocks that are stored: measured on a sample.
//!
//! Invariant: each block of a sample counts for every codec, so their sizes compare.
//!
//! Of `auto`, which compresses again what stays, the sizes are of a model: see [`auto`].

use std::sync::Arc;
use std::time::Duration;

use flaz_codec::{
    CodecChoice, CodecId, CodecSpec, Decoders, Dictionary, Effort, Encoder, encoder, encoder_with,
};
use flaz_device::Nanos;

use super::GROUPS;
use super::cache::{AutoSizes, Source};
use super::trial::{GAIN_ERROR, TRIALS_MIN, Trial};
use crate::format::extent::FRAGMENT_HEADER_BYTES;
use crate::format::group::{GROUP_BLOCKS_MAX, GROUP_STORED_MAX, MEMBER_CHECKSUM_BYTES};
use crate::units::BLOCK_BYTES;

/// Number of codecs in the comparison.
pub const CODECS: usize = 5;
/// No codec among them.
pub const NONE: usize = 0;
/// LZ4 among them.
pub const LZ4: usize = 1;
/// `auto` among them.
pub const AUTO: usize = 4;
/// Forms in which a block is compressed for that: with each codec but `auto`, with the second codec of that, and with its neighbours.
pub const FORMS: usize = 6;
const SECOND: usize = 4;
const GROUP: usize = 5;
/// Of a cache with `auto`, the share of the blocks that are new: those of probation.
pub(super) const NEW_SHARE: f64 = 0.07;
/// How much of what groups of four would save is saved: many blocks stay without neighbours. From replays; see `docs/advise.md`.
const GROUPED_SHARE: f64 = 1.0 / 3.0;
/// Standard error of both, as a share of the capacity. From the same replays.
const AUTO_ERROR: f64 = 0.03;
/// By how much a dictionary may raise the compression ratio, if too few blocks were tried: see `docs/advise.md`.
const DICTIONARY_GAIN_MAX: f64 = 0.5;
/// With fewer samples, they say nothing about the sizes with `auto`.
const AUTO_SAMPLES_MIN: f64 = 32.0;
/// Blocks that stay are not expected to be smaller than this share of new ones.
const STAY_MIN: f64 = 0.1;
/// Members of a group that a hit restores, on average.
const RESTORED_MEMBERS: f64 = 2.5;
/// Of the blocks that are stored, one in so many is sampled.
const BLOCKS_PER_SAMPLE: u32 = 256;
/// Time between two samples of a cache, at least: with high effort a sample takes up to 2.2 ms of a processor, and one in five may be a
/// trial, so all of them at most 1 %.
const PAUSE: Duration = Duration::from_millis(250);
/// Samples that count. With as many, all of them count half from then on.
const SAMPLES_MAX: f64 = 8192.0;
/// The same of trials, which only one shard makes.
const TRIALS_MAX: f64 = 1024.0;

/// The codecs, from the fastest.
#[must_use]
pub fn codecs() -> [CodecChoice; CODECS] {
    let zstd = |level| CodecSpec::new(CodecId::ZSTD, Some(level)).expect("zstd has this level");
    let one = [CodecSpec::NONE, CodecSpec::LZ4, zstd(1), zstd(3)].map(CodecChoice::One);
    [one[0], one[1], one[2], one[3], CodecChoice::Auto]
}

/// The codec of a form.
fn codec_of(form: usize, effort: Effort, has_dictionary: bool) -> CodecSpec {
    let second = || CodecChoice::Auto.second(effort, has_dictionary);
    match codecs().get(form) {
        Some(CodecChoice::One(codec)) => *codec,
        Some(CodecChoice::Auto) | None => second().expect("it has two codecs"),
    }
}

/// What blocks have in common, as far as it is known.
#[derive(Debug)]
pub enum Common {
    /// Nothing is known.
    Nothing,
    /// The dictionary of the cache, with its number.
    Dictionary(u8, Arc<Dictionary>),
    /// Earlier blocks, for a trial: see [`History`](super::History).
    History(Vec<u8>),
}

/// A block in every form.
#[derive(Debug)]
pub struct Compressed {
    /// `None`: stored as it is.
    forms: [Option<Vec<u8>>; FORMS],
    /// What the headers of fragments say, by form.
    codecs: [CodecId; FORMS],
    /// The form of a new block with `auto`.
    new: usize,
    has_dictionary: bool,
    trial: Option<Trial>,
}

impl Compressed {
    /// Compresses a block in every form; with the second codec of `auto` as the cache does, with some effort and perhaps a dictionary.
    /// `four`: the aligned four that it is in, if all of them are known. Takes up to 450 us, with high effort 2.2 ms, and with a history
    /// another 1.4 ms.
    #[must_use]
    pub fn of(block: &[u8], four: Option<&[u8]>, effort: Effort, common: &Common) -> Self {
        let dictionary = match common {
            Common::Dictionary(number, dictionary) => Some((*number, dictionary)),
            Common::Nothing | Common::History(_) => None,
        };
        let mut out = vec![0; GROUP_STORED_MAX];
        let specs: [CodecSpec; FORMS] =
            std::array::from_fn(|form| codec_of(form, effort, dictionary.is_some()));
        let encoder_of = |form| match (form, dictionary) {
            (SECOND | GROUP, Some((_, dictionary))) => encoder_with(dictionary, specs[form]),
            _ => Some(encoder(specs[form])),
        };
        let forms = std::array::from_fn(|form| {
            let len = match form {
                GROUP => encoder_of(form)?.compress_group(four?, BLOCK_BYTES, &mut out)?,
                _ if specs[form] == CodecSpec::NONE => return None,
                _ => encoder_of(form)?.compress(block, &mut out[..BLOCK_BYTES - 1])?,
            };
            Some(out[..len].to_vec())
        });
        let codecs = std::array::from_fn(|form| match (form, dictionary) {
            (SECOND | GROUP, Some((number, _))) => specs[form].id().with_dictionary(number),
            _ => specs[form].id(),
        });
        let new = match effort {
            Effort::Usual => LZ4,
            // With the same codec at its usual level, a few percent larger: less than the error of the model.
            Effort::High => SECOND,
        };
        Self {
            forms,
            codecs,
            new,
            has_dictionary: dictionary.is_some(),
            trial: match common {
                Common::History(history) => Trial::of(history, |encoder| stay_bytes(block, four, encoder)),
                Common::Nothing | Common::Dictionary(..) => None,
            },
        }
    }

    /// Restores a form, to see how long that takes. `out` is for a group.
    pub fn restore(&self, form: usize, decoders: &mut Decoders, out: &mut [u8]) {
        let Some(bytes) = &self.forms[form] else { return };
        let codec = self.codecs[form];
        // It is the encoder's own output; a wrong one would only be a wrong time.
        let _ = match form {
            GROUP => decoders.decompress_first(codec, bytes, BLOCK_BYTES, out),
            _ => decoders.decompress(codec, bytes, &mut out[..BLOCK_BYTES]),
        };
    }

    /// Bytes of the cache device that a block takes in a form.
    fn bytes(&self, form: usize) -> f64 {
        match (form, &self.forms[form]) {
            (GROUP, Some(stream)) => member_bytes(stream.len()),
            (GROUP, None) => self.bytes(SECOND),
            (_, stored) => fragment_bytes(stored.as_ref().map_or(BLOCK_BYTES, Vec::len) as u64) as f64,
        }
    }

    /// Of the bytes with `auto`, those that a dictionary would make fewer: while the block is new, and on average.
    fn bytes_without_dictionary(&self) -> [f64; 2] {
        let new = match self.new {
            SECOND => self.bytes(SECOND),
            _ => 0.0,
        };
        match self.has_dictionary {
            true => [0.0; 2],
            false => [new, auto(new, self.bytes(SECOND), self.bytes(GROUP))],
        }
    }

    /// Bytes of the cache device that a block takes with each codec.
    fn bytes_with(&self) -> [f64; CODECS] {
        std::array::from_fn(|codec| match codec {
            AUTO => auto(self.bytes(self.new), self.bytes(SECOND), self.bytes(GROUP)),
            form => self.bytes(form),
        })
    }
}

/// What is so much for new blocks of `auto`, for blocks that stay, and in groups of four, on average.
fn auto(new: f64, second: f64, group: f64) -> f64 {
    NEW_SHARE * new + (1.0 - NEW_SHARE) * stays(second, group)
}

/// What is so much for blocks that stay alone, and in groups of four, on average.
fn stays(second: f64, group: f64) -> f64 {
    second + GROUPED_SHARE * (group - second)
}

/// Bytes of the cache device for a block that stays, on average, with an encoder.
fn stay_bytes(block: &[u8], four: Option<&[u8]>, encoder: &mut dyn Encoder) -> f64 {
    let mut out = vec![0; GROUP_STORED_MAX];
    let alone = encoder.compress(block, &mut out[..BLOCK_BYTES - 1]);
    let alone = fragment_bytes(alone.unwrap_or(BLOCK_BYTES) as u64) as f64;
    let together = four.and_then(|four| encoder.compress_group(four, BLOCK_BYTES, &mut out));
    stays(alone, together.map_or(alone, member_bytes))
}

/// Bytes of the cache device for a block of a group of four, of which so many bytes are stored.
fn member_bytes(stored: usize) -> f64 {
    let checksums = (GROUP_BLOCKS_MAX - 1) * MEMBER_CHECKSUM_BYTES;
    fragment_bytes((stored + checksums) as u64) as f64 / GROUP_BLOCKS_MAX as f64
}

/// Bytes of the cache device for a block of which `stored` bytes are stored.
#[must_use]
pub fn fragment_bytes(stored: u64) -> u64 {
    (stored + FRAGMENT_HEADER_BYTES as u64).next_multiple_of(8)
}

/// Sizes and times of the sampled blocks, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CodecSamples {
    /// Number of blocks, by group.
    pub blocks: [f64; GROUPS],
    /// Bytes of a dictionary, at most; 0: the cache has no space for one.
    pub dictionary_bytes: f64,
    /// What a dictionary would save, tried with some of the blocks, by group.
    pub trials: [Trial; GROUPS],
    /// Bytes that they took when they were stored, by group.
    pub now_bytes: [f64; GROUPS],
    /// Bytes that they take with each codec, by group.
    pub bytes: [[f64; GROUPS]; CODECS],
    /// Bytes that they take with `auto` while they are new.
    pub new_bytes: f64,
    /// Of these, those that a dictionary would make fewer.
    pub new_without_dictionary: f64,
    /// Of the bytes with `auto`, those that a dictionary would make fewer, by group.
    pub without_dictionary: [f64; GROUPS],
    /// Nanoseconds to restore them, by codec.
    pub decode_ns: [f64; CODECS],
}

impl CodecSamples {
    /// Number of blocks.
    #[must_use]
    pub fn count(&self) -> f64 {
        self.blocks.iter().sum()
    }

    /// Adds a block: `now` bytes are stored of it, and each form took so long to restore.
    pub fn sample(&mut self, compressed: &Compressed, now: u64, took: [Duration; FORMS]) {
        if self.count() >= SAMPLES_MAX {
            self.counts().for_each(|count| *count /= 2.0);
        }
        if self.tried() >= TRIALS_MAX {
            self.trial_counts().for_each(|count| *count /= 2.0);
        }
        let group = next_group(self.blocks);
        self.blocks[group] += 1.0;
        self.now_bytes[group] += fragment_bytes(now) as f64;
        self.new_bytes += compressed.bytes(compressed.new);
        let [new, all] = compressed.bytes_without_dictionary();
        self.new_without_dictionary += new;
        self.without_dictionary[group] += all;
        if let Some(trial) = &compressed.trial {
            let group = next_group(self.trials.map(|of| of.blocks));
            self.trials[group].add(trial);
        }
        let ns = took.map(|took| took.as_nanos() as f64);
        let group_ns = match compressed.forms[GROUP] {
            Some(_) => ns[GROUP] * RESTORED_MEMBERS / GROUP_BLOCKS_MAX as f64,
            None => ns[SECOND],
        };
        for (codec, bytes) in compressed.bytes_with().into_iter().enumerate() {
            self.bytes[codec][group] += bytes;
            self.decode_ns[codec] += match codec {
                AUTO => auto(ns[compressed.new], ns[SECOND], group_ns),
                form => ns[form],
            };
        }
    }

    /// Adds the samples of another shard.
    pub fn add(&mut self, other: &Self) {
        let mut other = *other;
        for (count, other) in self.counts().zip(other.counts()) {
            *count += *other;
        }
        for (count, other) in self.trial_counts().zip(other.trial_counts()) {
            *count += *other;
        }
        self.dictionary_bytes = self.dictionary_bytes.max(other.dictionary_bytes);
    }

    /// All that is counted, but for trials.
    fn counts(&mut self) -> impl Iterator<Item = &mut f64> {
        (self.bytes.iter_mut().flatten())
            .chain(&mut self.blocks)
            .chain(&mut self.now_bytes)
            .chain([&mut self.new_bytes, &mut self.new_without_dictionary])
            .chain(&mut self.without_dictionary)
            .chain(&mut self.decode_ns)
    }

    fn trial_counts(&mut self) -> impl Iterator<Item = &mut f64> {
        self.trials.iter_mut().flat_map(Trial::counts)
    }

    /// Number of blocks with which a dictionary was tried.
    fn tried(&self) -> f64 {
        self.trials.iter().map(|of| of.blocks).sum()
    }

    /// Compression ratio with a codec. With `auto`, if it is not in use, with the dictionary that it would have.
    #[must_use]
    pub fn ratio(&self, codec: usize, in_use: bool) -> f64 {
        let gain = match in_use {
            true => 0.0,
            false => self.dictionary_gain(codec, None).unwrap_or(0.0),
        };
        self.count() * BLOCK_BYTES as f64 / self.bytes_with(codec, gain, None).max(1.0)
    }

    /// The sizes of blocks with `auto`, with the dictionary that it has or will have, if enough blocks were tried. `in_use`: the codec
    /// whose new blocks they are compared with, if it is in the comparison. `None`: too few blocks were sampled.
    #[must_use]
    pub fn auto_sizes(&self, in_use: Option<usize>) -> Option<AutoSizes> {
        let tried = self.dictionary_gain(AUTO, None);
        let gain = tried.unwrap_or(0.0);
        let new = self.new_bytes - self.new_without_dictionary * gain / (1.0 + gain);
        let stay = (self.bytes_with(AUTO, gain, None) - NEW_SHARE * new) / (1.0 - NEW_SHARE);
        let now = match in_use {
            Some(AUTO) => new,
            Some(codec) => sum(&self.bytes[codec], None),
            None => sum(&self.now_bytes, None),
        };
        let is_enough = self.count() >= AUTO_SAMPLES_MIN && now > 0.0 && new > 0.0;
        is_enough.then(|| AutoSizes {
            new: new / now,
            stay: new / now * (stay / new).clamp(STAY_MIN, 1.0),
            source: Source {
                in_use,
                samples: true,
                trials: tried.is_some(),
            },
        })
    }

    /// How many times as many blocks a cache would have with a codec, from sizes by group: the value without each group in turn
    /// gives the standard error (jackknife). `now`: the codec in use, if the blocks that stay are not as they were stored first.
    #[must_use]
    pub fn capacity_factor(&self, codec: usize, now: Option<usize>) -> (f64, f64) {
        let factor = |without: Option<usize>| {
            let now_bytes = match now {
                Some(codec) => self.bytes_with(codec, 0.0, without),
                None => sum(&self.now_bytes, without),
            };
            let gain = self.dictionary_gain(codec, without).unwrap_or(0.0);
            now_bytes / self.bytes_with(codec, gain, without).max(1.0)
        };
        let whole = factor(None);
        let parts: [f64; GROUPS] = std::array::from_fn(|group| factor(Some(group)));
        let mean = parts.iter().sum::<f64>() / GROUPS as f64;
        let squares: f64 = parts.iter().map(|part| (part - mean).powi(2)).sum();
        let groups = GROUPS as f64;
        let mut error = ((groups - 1.0) / groups * squares).sqrt();
        if codec == AUTO || now == Some(AUTO) {
            error = error.hypot(AUTO_ERROR * whole);
        }
        if codec == AUTO && self.dictionary_bytes > 0.0 && self.dictionary_gain(codec, None).is_some() {
            let share = sum(&self.without_dictionary, None) / sum(&self.bytes[AUTO], None).max(1.0);
            error = error.hypot(GAIN_ERROR * share * whole);
        }
        (whole, error)
    }

    /// How many times as large the capacity with a codec may be as [`CodecSamples::capacity_factor`] says, because too few blocks were
    /// tried to know what `auto` gains by a dictionary.
    #[must_use]
    pub fn unknown_gain(&self, codec: usize) -> f64 {
        match self.dictionary_gain(codec, None) {
            Some(_) => 1.0,
            None => {
                let bytes = |gain| self.bytes_with(codec, gain, None).max(1.0);
                bytes(0.0) / bytes(DICTIONARY_GAIN_MAX)
            }
        }
    }

    /// By how much the ratio with a codec would rise with a dictionary, as a share, without a group. `None`: too few blocks were tried.
    fn dictionary_gain(&self, codec: usize, without: Option<usize>) -> Option<f64> {
        if codec != AUTO || self.dictionary_bytes == 0.0 {
            return Some(0.0);
        }
        if self.tried() < TRIALS_MIN {
            return None;
        }
        let mut trials = Trial::default();
        let others = self.trials.iter().enumerate();
        let others = others.filter(|(group, _)| Some(*group) != without);
        others.for_each(|(_, of)| trials.add(of));
        Some(trials.gain(self.dictionary_bytes))
    }

    /// Bytes of all blocks without a group, if a dictionary raises the ratio with `auto` by a share.
    fn bytes_with(&self, codec: usize, gain: f64, without: Option<usize>) -> f64 {
        let saved = match codec {
            AUTO => sum(&self.without_dictionary, without) * gain / (1.0 + gain),
            _ => 0.0,
        };
        sum(&self.bytes[codec], without) - saved
    }
}

/// The group with the fewest blocks. So groups take turns, and each has blocks of all times.
fn next_group(blocks: [f64; GROUPS]) -> usize {
    let fewest = |group: &usize| blocks[*group] as u64;
    (0..GROUPS).min_by_key(fewest).unwrap_or(0)
}

/// The sum of a count, without a group.
fn sum(counts: &[f64; GROUPS], without: Option<usize>) -> f64 {
    let counts = counts.iter().enumerate();
    let counts = counts.filter(|(group, _)| Some(*group) != without);
    counts.map(|(_, count)| count).sum()
}

/// Says which blocks are sampled.
#[derive(Debug, Default)]
pub struct CodecSampler {
    stored: u32,
    last: Nanos,
}

impl CodecSampler {
    /// A block is stored by one of `shards` shards: whether it is sampled.
    pub fn wants(&mut self, shards: u32, now: impl FnOnce() -> Nanos) -> bool {
        self.stored += 1;
        if self.stored < BLOCKS_PER_SAMPLE {
            return false;
        }
        let now = now();
        if now.since(self.last) < PAUSE * shards {
            return false;
        }
        (self.stored, self.last) = (0, now);
        true
    }
}
