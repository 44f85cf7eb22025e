//! Models of drives whose bandwidth depends on the stored bytes: real codecs compress the data actually written, in
//! virtual time. The properties of the models are known, so the answers can be checked.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::time::Duration;

use flaz_bench::detect::{Answer, Detection, Facts, FileSystem, Question};
use flaz_codec::Meter;
use flaz_random::Random;

use super::measure::{Shape, Sink, Step, measured};

const BLOCK_BYTES: usize = 4096;
/// Rate at which the remaining data is stored.
const BYTES_PER_S: f64 = 200e6;
/// Additional time of a write.
const OVERHEAD_S: f64 = 200e-6;
/// Standard deviation of the logarithm of a write's time.
const NOISE: f64 = 0.03;

/// Number of rounds in a series.
const ROUNDS: u32 = 8;

struct Drive {
    /// Codec, and the number of bytes that it compresses at a time.
    codec: Option<(Meter, usize)>,
    elides_zeros: bool,
    /// Hashes of the stored blocks, if it deduplicates.
    blocks: Option<HashSet<u64>>,
    /// Stored bytes of each place, if it reports them; such a drive has the same speed with all data.
    kept: Option<HashMap<u64, usize>>,
    random: Random,
}

impl Drive {
    fn plain() -> Self {
        Self {
            codec: None,
            elides_zeros: false,
            blocks: None,
            kept: None,
            random: Random::named(5, "noise"),
        }
    }

    fn compressing(codec: &str, unit_kib: usize) -> Self {
        let codec = codec.parse().unwrap();
        Self {
            codec: Some((Meter::new(codec), unit_kib << 10)),
            ..Self::plain()
        }
    }

    fn left_of(&mut self, data: &[u8]) -> usize {
        if let Some(blocks) = &mut self.blocks {
            let is_new = |block: &&[u8]| {
                let mut hasher = DefaultHasher::new();
                block.hash(&mut hasher);
                blocks.insert(hasher.finish())
            };
            return data.chunks(BLOCK_BYTES).filter(is_new).count() * BLOCK_BYTES;
        }
        let zeros = |unit: &&[u8]| unit.iter().all(|byte| *byte == 0);
        match &mut self.codec {
            Some((meter, unit)) => data.chunks(*unit).map(|unit| meter.stored_bytes(unit)).sum(),
            None if self.elides_zeros => {
                let written = data.chunks(BLOCK_BYTES).filter(|block| !zeros(block));
                written.count() * BLOCK_BYTES
            }
            None => data.len(),
        }
    }

    fn detection(mut self) -> Detection {
        let shape = Shape {
            sample_bytes: 2 << 20,
            slots: 3,
            rounds: ROUNDS,
            seed: 11,
        };
        let mut writes = shape.writes();
        let facts = Facts {
            direct: true,
            file_system: "none".to_owned(),
            compression: FileSystem::None,
            layers: Vec::new(),
        };
        let step = |step| match step {
            Step::Written => writes -= 1,
            Step::Added(more) => writes += more,
        };
        let found = measured(&mut self, &shape, "model", &facts, step);
        assert_eq!(writes, 0, "each write is recorded, and no other");
        found.unwrap().unwrap()
    }
}

impl Sink for Drive {
    fn write(&mut self, data: &[u8], offset: u64) -> io::Result<Duration> {
        assert!(offset.is_multiple_of(data.len() as u64), "samples are aligned");
        let left = self.left_of(data);
        let moved = match &mut self.kept {
            Some(kept) => {
                kept.insert(offset, left);
                data.len()
            }
            None => left,
        };
        let deviate: f64 = (0..12).map(|_| self.random.unit()).sum::<f64>() - 6.0;
        let seconds = (OVERHEAD_S + moved as f64 / BYTES_PER_S) * (NOISE * deviate).exp();
        Ok(Duration::from_secs_f64(seconds))
    }

    fn kept_bytes(&mut self) -> Option<u64> {
        let kept = self.kept.as_ref()?;
        Some(kept.values().map(|bytes| *bytes as u64).sum())
    }
}

#[track_caller]
fn answers(found: &Detection, question: Question, answer: Answer, reason: &str) {
    let finding = found
        .findings
        .iter()
        .find(|finding| finding.question == question)
        .unwrap_or_else(|| panic!("{question:?} is not answered:\n{}", found.text(false)));
    assert!(
        finding.answer == answer && finding.reason.contains(reason),
        "{question:?}: expected {answer:?} ({reason})\n{}",
        found.text(false)
    );
}

#[test]
fn a_plain_drive() {
    let found = Drive::plain().detection();
    for question in [
        Question::Compresses,
        Question::ElidesZeros,
        Question::Deduplicates,
    ] {
        answers(&found, question, Answer::No, "");
    }
    assert_eq!(found.findings.len(), 3, "nothing else is asked");
    assert_eq!(found.rounds, ROUNDS as usize, "there is nothing to confirm");
}

#[test]
fn drives_that_compress() {
    for (codec, unit_kib, entropy_stage, unit, window) in [
        ("lz4", 4, Answer::No, "4 KiB at a time", "at least 2 KiB"),
        ("zstd:1", 32, Answer::Yes, "32 KiB at a time", "at least 16 KiB"),
        ("lz4", 64, Answer::No, "64 KiB at a time", "at least 32 KiB"),
        (
            "zlib:6",
            256,
            Answer::Yes,
            "at least 128 KiB at a time",
            "32 KiB, but not 64 KiB",
        ),
    ] {
        let found = Drive::compressing(codec, unit_kib).detection();
        answers(&found, Question::Compresses, Answer::Yes, "75 %: 3.");
        assert_eq!(found.rounds, 2 * ROUNDS as usize, "a yes is confirmed");
        answers(
            &found,
            Question::ElidesZeros,
            Answer::Unclear,
            "compression alone",
        );
        answers(&found, Question::Deduplicates, Answer::No, "");
        answers(&found, Question::EntropyStage, entropy_stage, "");
        answers(&found, Question::Unit, Answer::Yes, unit);
        answers(&found, Question::Window, Answer::Yes, window);
    }
}

#[test]
fn drives_that_elide_zeros_or_duplicates() {
    let zeros = Drive {
        elides_zeros: true,
        ..Drive::plain()
    }
    .detection();
    answers(&zeros, Question::Compresses, Answer::No, "");
    answers(&zeros, Question::ElidesZeros, Answer::Yes, "");
    answers(&zeros, Question::Deduplicates, Answer::No, "");
    let blocks = Drive {
        blocks: Some(HashSet::new()),
        ..Drive::plain()
    }
    .detection();
    answers(&blocks, Question::Compresses, Answer::No, "");
    answers(&blocks, Question::Deduplicates, Answer::Yes, "");
}

#[test]
fn a_drive_that_reports_stored_bytes() {
    let found = Drive {
        kept: Some(HashMap::new()),
        ..Drive::compressing("lz4", 4)
    }
    .detection();
    answers(
        &found,
        Question::Compresses,
        Answer::Yes,
        "25 %: 0.75, 50 %: 0.50, 75 %: 0.25",
    );
    answers(&found, Question::Deduplicates, Answer::No, "keeps 1.00");
    answers(&found, Question::EntropyStage, Answer::No, "");
    answers(&found, Question::Unit, Answer::Yes, "4 KiB at a time");
    assert_eq!(
        found.rounds, ROUNDS as usize,
        "a reported size needs no confirmation"
    );
}
