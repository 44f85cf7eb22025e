//! Detection on model devices: the stored bytes determine the time, with realistic noise.

use flaz_bench::detect::{
    Answer, CaveatState, DetectError, Detection, Facts, FileSystem, Layer, LayerState, Pattern, Question,
    Sample, detect,
};
use flaz_random::Random;

/// A device that writes the stored bytes with a fixed bandwidth.
#[derive(Clone, Copy, Default)]
struct Model {
    /// Unit of compression in bytes; 0: no compression.
    unit_bytes: u64,
    /// Window for copies.
    window_bytes: u64,
    entropy_stage: bool,
    elides_zeros: bool,
    deduplicates: bool,
    /// Share of the time that is not transfer.
    overhead: f64,
    /// Standard deviation of a write's time.
    noise: f64,
    /// Rate at the end divided by that at the start.
    drift: Option<f64>,
    /// Every n-th write stalls, and takes five times as long.
    stalls: Option<usize>,
    /// Additional time of a random half of the writes: one of two places is slower, or another load comes and goes.
    two_speeds: f64,
    /// Reports the stored bytes, and takes the same time for all data.
    tells: bool,
}

impl Model {
    fn stored_share(&self, pattern: Pattern) -> f64 {
        let compresses = self.unit_bytes > 0;
        match pattern {
            Pattern::Random => 1.0,
            Pattern::Level(percent) if compresses => 1.0 - f64::from(percent) / 100.0,
            Pattern::Zeros if self.elides_zeros || self.deduplicates => 0.0,
            Pattern::Zeros if compresses => 0.01,
            Pattern::Alphabet if self.entropy_stage => 0.51,
            Pattern::Copy { distance_bytes }
                if self.unit_bytes >= 2 * distance_bytes && self.window_bytes >= distance_bytes =>
            {
                0.51
            }
            Pattern::Across { distance_bytes }
                if self.unit_bytes >= 4 * distance_bytes && self.window_bytes >= distance_bytes =>
            {
                0.51 + 0.49 * 2.0 * distance_bytes as f64 / self.unit_bytes as f64
            }
            Pattern::Duplicates if self.deduplicates => 0.05,
            _ => 1.0,
        }
    }

    /// The answer after the first series, or after a second one if that is requested.
    fn both(&self, rounds: usize, seed: u64) -> (Detection, Detection) {
        let mut random = Random::stream(seed, 0);
        let first = self.series(rounds, &mut random);
        let found = detect("model", &[&first], facts()).unwrap();
        if !found.wants_confirmation() {
            return (found.clone(), found);
        }
        let second = self.series(rounds, &mut random);
        (found, detect("model", &[&first, &second], facts()).unwrap())
    }

    fn run(&self, rounds: usize, seed: u64) -> Detection {
        self.both(rounds, seed).1
    }

    fn series(&self, rounds: usize, random: &mut Random) -> Vec<Sample> {
        let mut samples = Vec::new();
        let patterns = Pattern::all();
        let total = rounds * patterns.len();
        for round in 0..rounds {
            let mut order = patterns.clone();
            random.shuffle(&mut order);
            for pattern in order {
                let noise: f64 = (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
                let share = if self.tells {
                    1.0
                } else {
                    self.stored_share(pattern)
                };
                let mut time = self.overhead + (1.0 - self.overhead) * share;
                time *= (self.noise * noise).exp();
                if let Some(end) = self.drift {
                    time /= 1.0 + (end - 1.0) * samples.len() as f64 / total as f64;
                }
                if self.stalls.is_some_and(|each| random.index(each) == 0) {
                    time *= 5.0;
                }
                if self.two_speeds > 0.0 && random.index(2) == 0 {
                    time *= 1.0 + self.two_speeds;
                }
                samples.push(Sample {
                    round,
                    pattern,
                    bytes_per_s: 5e8 / time,
                    kept: self.tells.then(|| self.stored_share(pattern)),
                });
            }
        }
        samples
    }
}

fn facts() -> Facts {
    Facts {
        direct: true,
        file_system: "ext4".to_owned(),
        compression: FileSystem::Cannot,
        layers: Vec::new(),
    }
}

fn answer(detection: &Detection, question: Question) -> Option<Answer> {
    detection
        .findings
        .iter()
        .find(|finding| finding.question == question)
        .map(|finding| finding.answer)
}

fn reason(detection: &Detection, question: Question) -> String {
    let mut findings = detection.findings.iter();
    findings
        .find(|finding| finding.question == question)
        .unwrap()
        .reason
        .clone()
}

const PLAIN: Model = Model {
    unit_bytes: 0,
    window_bytes: u64::MAX,
    entropy_stage: false,
    elides_zeros: false,
    deduplicates: false,
    overhead: 0.1,
    noise: 0.05,
    drift: None,
    stalls: None,
    two_speeds: 0.0,
    tells: false,
};

#[test]
fn plain_devices_give_no_false_positive() {
    let mut sure = 0;
    for (noise, drift, stalls) in [
        (0.03, None, None),
        (0.10, None, None),
        (0.20, None, Some(30)),
        (0.05, Some(0.3), None),
        (0.10, Some(0.5), Some(20)),
    ] {
        let model = Model {
            noise,
            drift,
            stalls,
            ..PLAIN
        };
        for seed in 0..200 {
            let found = model.run(12, seed);
            for finding in &found.findings {
                assert_ne!(
                    finding.answer,
                    Answer::Yes,
                    "noise {noise}, seed {seed}: {finding:?}"
                );
                sure += usize::from(noise < 0.04 && finding.answer == Answer::No);
            }
        }
    }
    // With little noise the answer is not only missing, it is excluded.
    assert!(sure >= 3 * 190, "{sure} of 600");
}

/// With few rounds all random data may by chance be written at the slower of two speeds, and all of another kind at the
/// faster one: the test takes that for significant.
#[test]
fn a_device_with_two_speeds_gives_no_false_positive() {
    let model = Model {
        noise: 0.02,
        two_speeds: 0.25,
        ..PLAIN
    };
    let says_yes = |found: &Detection| {
        let mut findings = found.findings.iter();
        findings.any(|finding| finding.answer == Answer::Yes)
    };
    let (mut first, mut confirmed) = (0, 0);
    for seed in 0..4000 {
        let (before, after) = model.both(5, seed);
        first += usize::from(says_yes(&before));
        confirmed += usize::from(says_yes(&after));
    }
    assert!(first > 0, "the second series is never needed");
    assert_eq!(confirmed, 0, "of {first} that one series alone would have");
}

#[test]
fn compression_is_detected_with_its_unit() {
    for (unit_kib, entropy_stage) in [(4u64, false), (4, true), (32, false), (128, true)] {
        let model = Model {
            unit_bytes: unit_kib << 10,
            entropy_stage,
            noise: 0.08,
            ..PLAIN
        };
        for seed in 0..20 {
            let found = model.run(12, seed);
            let case = format!("{unit_kib} KiB, seed {seed}: {}", found.text(false));
            assert_eq!(answer(&found, Question::Compresses), Some(Answer::Yes), "{case}");
            assert_ne!(
                answer(&found, Question::Deduplicates),
                Some(Answer::Yes),
                "{case}"
            );
            assert_ne!(answer(&found, Question::ElidesZeros), Some(Answer::Yes), "{case}");
            let stage = if entropy_stage {
                Some(Answer::Yes)
            } else {
                Some(Answer::No)
            };
            assert!(
                [stage, Some(Answer::Unclear)].contains(&answer(&found, Question::EntropyStage)),
                "{case}"
            );
            // With noise only the shorter bound may be significant.
            let unit = reason(&found, Question::Unit);
            assert!(unit.ends_with(&format!("{unit_kib} KiB at a time")), "{case}");
            let window = reason(&found, Question::Window);
            assert!(
                window.contains(&format!("at least {} KiB", unit_kib / 2)),
                "{case}"
            );
        }
    }
}

#[test]
fn a_short_window_is_distinguished_from_a_short_unit() {
    for (unit_kib, window_kib) in [(128, 32), (64, 8), (1024, 4)] {
        let model = Model {
            unit_bytes: unit_kib << 10,
            window_bytes: window_kib << 10,
            noise: 0.04,
            ..PLAIN
        };
        let found = model.run(12, 3);
        assert_eq!(
            reason(&found, Question::Window),
            format!(
                "detects copies at a distance of {window_kib} KiB, but not {} KiB",
                2 * window_kib
            )
        );
        assert_eq!(
            reason(&found, Question::Unit),
            format!("at least {} KiB at a time", 4 * window_kib)
        );
    }
}

#[test]
fn zero_elision_is_not_reported_as_compression() {
    let model = Model {
        elides_zeros: true,
        ..PLAIN
    };
    let found = model.run(12, 1);
    assert_eq!(answer(&found, Question::Compresses), Some(Answer::No));
    assert_eq!(answer(&found, Question::ElidesZeros), Some(Answer::Yes));
    assert_eq!(answer(&found, Question::Unit), None);
    let caveat = found
        .caveats
        .iter()
        .find(|caveat| caveat.cause == "thin zero detection");
    assert_eq!(caveat.unwrap().state, CaveatState::Present);
}

#[test]
fn deduplication_is_distinguished_from_compression() {
    let model = Model {
        deduplicates: true,
        ..PLAIN
    };
    let found = model.run(12, 1);
    assert_eq!(answer(&found, Question::Compresses), Some(Answer::No));
    assert_eq!(answer(&found, Question::Deduplicates), Some(Answer::Yes));
}

#[test]
fn possible_causes_of_wrong_results_are_listed() {
    let state = |found: &Detection, cause: &str| {
        let mut caveats = found.caveats.iter();
        caveats.find(|caveat| caveat.cause == cause).unwrap().state
    };
    let falls = Model {
        drift: Some(0.3),
        ..PLAIN
    };
    let found = falls.run(12, 1);
    assert_eq!(state(&found, "write cache"), CaveatState::Present);
    // A few rounds on a busy or virtual disk look the same.
    let found = falls.run(4, 1);
    assert_eq!(
        state(&found, "write cache"),
        CaveatState::Unknown,
        "{}",
        found.text(false)
    );
    assert!(found.text(false).contains("write cache: unknown; "));
    assert_eq!(state(&PLAIN.run(12, 1), "write cache"), CaveatState::Possible);
    let found = falls.run(12, 1);
    assert_eq!(state(&found, "page cache"), CaveatState::RuledOut);
    assert_eq!(state(&found, "file-system compression"), CaveatState::RuledOut);
    let samples: Vec<Sample> = (0..4)
        .flat_map(|round| {
            Pattern::all().into_iter().map(move |pattern| Sample {
                round,
                pattern,
                bytes_per_s: 1e8,
                kept: None,
            })
        })
        .collect();
    let buffered = Facts {
        direct: false,
        file_system: "btrfs".to_owned(),
        compression: FileSystem::On,
        layers: vec![
            Layer {
                what: "dm-0".to_owned(),
                state: LayerState::Unknown,
            },
            Layer {
                what: "loop3, a file on btrfs".to_owned(),
                state: LayerState::Compresses,
            },
        ],
    };
    let found = detect("x", &[&samples], buffered).unwrap();
    assert_eq!(state(&found, "page cache"), CaveatState::Possible);
    assert_eq!(state(&found, "file-system compression"), CaveatState::Present);
    assert_eq!(state(&found, "layers below"), CaveatState::Present);
    assert!(found.text(false).contains("loop3, a file on btrfs: compresses"));
    // Without noise, equal data has equal rates.
    assert!(
        found.findings.iter().all(|finding| finding.answer == Answer::No),
        "{}",
        found.text(false)
    );
    let text = found.text(false);
    assert!(
        text.contains("btrfs compresses here") && !text.contains('\x1b'),
        "{text}"
    );
}

#[test]
fn stored_bytes_reported_by_the_device_decide() {
    // The rates carry no information, as for a device in memory.
    let model = Model {
        unit_bytes: 4096,
        noise: 0.3,
        tells: true,
        ..PLAIN
    };
    let found = model.run(6, 1);
    let text = found.text(false);
    assert_eq!(answer(&found, Question::Compresses), Some(Answer::Yes), "{text}");
    assert_eq!(
        answer(&found, Question::ElidesZeros),
        Some(Answer::Unclear),
        "{text}"
    );
    assert_eq!(answer(&found, Question::Deduplicates), Some(Answer::No), "{text}");
    assert_eq!(answer(&found, Question::EntropyStage), Some(Answer::No), "{text}");
    assert_eq!(reason(&found, Question::Unit), "4 KiB at a time");
    assert_eq!(
        reason(&found, Question::Window),
        "detects copies at a distance of at least 2 KiB"
    );
    assert!(text.contains("25 %: 0.75, 50 %: 0.50, 75 %: 0.25"), "{text}");
    let plain = Model {
        unit_bytes: 0,
        ..model
    };
    let found = plain.run(6, 1);
    assert!(
        found.findings.iter().all(|finding| finding.answer == Answer::No),
        "{}",
        found.text(false)
    );
}

#[test]
fn too_few_rounds_give_no_answer() {
    let sample = |round, bytes_per_s| Sample {
        round,
        pattern: Pattern::Random,
        bytes_per_s,
        kept: None,
    };
    let few: Vec<Sample> = (0..3).map(|round| sample(round, 1e8)).collect();
    assert_eq!(detect("x", &[&few], facts()), Err(DetectError::Rounds(3)));
    let wrong = detect("x", &[&[sample(0, f64::NAN)]], facts()).unwrap_err();
    assert!(wrong.to_string().contains("round 0"), "{wrong}");
}
