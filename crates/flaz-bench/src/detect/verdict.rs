//! From effects to answers, and what could fool them.

use serde::Serialize;

use super::effect::Effect;
use super::pattern::Pattern;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// Does it compress?
    Compresses,
    /// Does it leave out zeros, beyond what compression does to them?
    ElidesZeros,
    /// Does it store equal blocks once?
    Deduplicates,
    /// If it compresses: does it have an entropy stage, as zstd and zlib have and lz4 has not?
    EntropyStage,
    /// If it compresses: how much at a time?
    Unit,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Proven.
    Yes,
    /// Excluded, as far as it would matter.
    No,
    /// Neither.
    Unclear,
}

/// An answer with its reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// To what.
    pub question: Question,
    /// The answer.
    pub answer: Answer,
    /// Of a yes: one less the probability that it is by chance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// Why.
    pub reason: String,
}

/// What a file system does to data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSystem {
    /// It cannot compress.
    Cannot,
    /// It could, and does not here.
    Off,
    /// It compresses here.
    On,
    /// It is not known whether it does.
    Unknown,
}

/// What is known of the target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Facts {
    /// Whether writes went past the page cache.
    pub direct: bool,
    /// Name of the file system.
    pub file_system: String,
    /// What it does to data.
    pub compression: FileSystem,
}

/// Whether something fools the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CaveatState {
    /// It does not.
    RuledOut,
    /// It may.
    Possible,
    /// It does.
    Present,
}

/// Something that could fool the test.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Caveat {
    /// What it is.
    pub cause: &'static str,
    /// Whether it does.
    pub state: CaveatState,
    /// Why.
    pub reason: String,
}

/// How much slower a higher level may seem by noise.
const NOT_SLOWER: f64 = 0.95;
/// By which factor the rate of random data must fall for a drift to be told.
const DRIFT: f64 = 0.8;

pub(super) fn findings(effects: &[Effect]) -> Vec<Finding> {
    let compresses = compresses(effects);
    let is_compressing = compresses.answer == Answer::Yes;
    let mut findings = vec![
        compresses,
        elides_zeros(effects, is_compressing),
        simple(
            Question::Deduplicates,
            find(effects, Pattern::Duplicates),
            "random blocks that come many times, far apart",
        ),
    ];
    if is_compressing {
        findings.push(simple(
            Question::EntropyStage,
            find(effects, Pattern::Alphabet),
            "bytes of 16 values without repetition",
        ));
        findings.push(unit(effects));
    }
    findings
}

fn find(effects: &[Effect], pattern: Pattern) -> Option<Effect> {
    effects.iter().copied().find(|effect| effect.pattern == pattern)
}

fn says(effect: &Effect) -> String {
    format!(
        "{:.2} times the rate of random data ({:.2} to {:.2})",
        effect.ratio, effect.low, effect.high
    )
}

/// The answer of one kind of data.
fn simple(question: Question, effect: Option<Effect>, what: &str) -> Finding {
    let Some(effect) = effect else {
        return Finding {
            question,
            answer: Answer::Unclear,
            confidence: None,
            reason: format!("{what}: not measured"),
        };
    };
    let answer = answer(&effect);
    Finding {
        question,
        answer,
        confidence: (answer == Answer::Yes).then_some(1.0 - effect.p),
        reason: format!("{what}: {}", says(&effect)),
    }
}

fn answer(effect: &Effect) -> Answer {
    match () {
        () if effect.is_proven() => Answer::Yes,
        () if effect.is_excluded() => Answer::No,
        () => Answer::Unclear,
    }
}

/// Two levels must be faster than random data, and none slower than a lower one.
fn compresses(effects: &[Effect]) -> Finding {
    let levels: Vec<Effect> = [25, 50, 75]
        .iter()
        .filter_map(|&level| find(effects, Pattern::Level(level)))
        .collect();
    let monotone = levels
        .windows(2)
        .all(|pair| pair[1].ratio > pair[0].ratio * NOT_SLOWER);
    let proven: Vec<&Effect> = levels.iter().filter(|effect| effect.is_proven()).collect();
    let answer = match () {
        () if levels.len() == 3 && proven.len() >= 2 && monotone => Answer::Yes,
        () if levels.len() == 3 && levels.iter().all(Effect::is_excluded) => Answer::No,
        () => Answer::Unclear,
    };
    let mut reason: Vec<String> = levels
        .iter()
        .map(|effect| format!("{}: {:.2}", effect.pattern, effect.ratio))
        .collect();
    if !monotone {
        reason.push("a higher level is slower than a lower one".to_owned());
    }
    Finding {
        question: Question::Compresses,
        answer,
        // Both must be by chance for the answer to be wrong; the less sure of the two is told.
        confidence: (answer == Answer::Yes).then(|| {
            let mut p: Vec<f64> = proven.iter().map(|effect| effect.p).collect();
            p.sort_by(f64::total_cmp);
            1.0 - p[1]
        }),
        reason: format!("times the rate of random data, {}", reason.join(", ")),
    }
}

fn elides_zeros(effects: &[Effect], is_compressing: bool) -> Finding {
    let mut finding = simple(Question::ElidesZeros, find(effects, Pattern::Zeros), "zeros");
    if is_compressing && finding.answer == Answer::Yes {
        finding.answer = Answer::Unclear;
        finding.confidence = None;
        finding
            .reason
            .push_str("; compression alone would do that as well");
    }
    finding
}

/// From the shortest distance on: how far copies are found.
fn unit(effects: &[Effect]) -> Finding {
    let mut found: Option<(u64, f64)> = None;
    let mut missed = None;
    for effect in effects {
        let Pattern::Copy { distance_bytes } = effect.pattern else {
            continue;
        };
        match answer(effect) {
            Answer::Yes if missed.is_none() => found = Some((2 * distance_bytes, effect.p)),
            Answer::No if missed.is_none() => missed = Some(2 * distance_bytes),
            _ => {}
        }
    }
    let kib = |bytes: u64| format!("{} KiB", bytes >> 10);
    let (answer, reason) = match (found, missed) {
        (Some((least, _)), Some(most)) => (
            Answer::Yes,
            format!(
                "compresses at least {} at a time, and less than {}",
                kib(least),
                kib(most)
            ),
        ),
        (Some((least, _)), None) => (
            Answer::Yes,
            format!("compresses at least {} at a time", kib(least)),
        ),
        (None, Some(most)) => (
            Answer::Yes,
            format!("compresses less than {} at a time", kib(most)),
        ),
        (None, None) => (
            Answer::Unclear,
            "no copies were clearly found or missed".to_owned(),
        ),
    };
    Finding {
        question: Question::Unit,
        answer,
        confidence: found.map(|(_, p)| 1.0 - p),
        reason,
    }
}

pub(super) fn caveats(effects: &[Effect], random: &[f64], facts: &Facts) -> Vec<Caveat> {
    vec![
        page_cache(facts),
        file_system(facts),
        drift(random),
        zero_detection(effects),
    ]
}

fn page_cache(facts: &Facts) -> Caveat {
    let (state, reason) = if facts.direct {
        (CaveatState::RuledOut, "writes went past it (O_DIRECT)")
    } else {
        (
            CaveatState::Possible,
            "writes may have gone through it; each was flushed within the time measured",
        )
    };
    Caveat {
        cause: "page cache",
        state,
        reason: reason.to_owned(),
    }
}

fn file_system(facts: &Facts) -> Caveat {
    let name = &facts.file_system;
    let (state, reason) = match facts.compression {
        FileSystem::Cannot => (CaveatState::RuledOut, format!("{name} does not compress")),
        FileSystem::Off => (CaveatState::RuledOut, format!("{name} could, and is not told to")),
        FileSystem::On => (
            CaveatState::Present,
            format!("{name} compresses here: the answers are about it and the device together"),
        ),
        FileSystem::Unknown => (
            CaveatState::Possible,
            format!("whether {name} compresses is not known"),
        ),
    };
    Caveat {
        cause: "file-system compression",
        state,
        reason,
    }
}

/// Random data that gets slower: a cache that fills, a device that gets hot.
fn drift(random: &[f64]) -> Caveat {
    let third = (random.len() / 3).max(1);
    let median = crate::statistics::moments::median;
    let change = median(&random[random.len() - third..]) / median(&random[..third]);
    let state = if change < DRIFT {
        CaveatState::Present
    } else {
        CaveatState::Possible
    };
    let reason = if change < DRIFT {
        format!(
            "random data fell to {:.0} % of its first rate: a cache has filled meanwhile. Kinds are compared within rounds, so \
             that none is favoured; measure more rounds to see the device behind it",
            100.0 * change
        )
    } else {
        "random data did not get slower; what fits into such a cache altogether is not told from the device"
            .to_owned()
    };
    Caveat {
        cause: "SLC cache",
        state,
        reason,
    }
}

fn zero_detection(effects: &[Effect]) -> Caveat {
    let zeros = find(effects, Pattern::Zeros).is_some_and(|effect| effect.is_proven());
    let levels = [50, 75]
        .iter()
        .filter_map(|&level| find(effects, Pattern::Level(level)))
        .any(|effect| effect.is_proven());
    let (state, reason) = match (zeros, levels) {
        (true, false) => (
            CaveatState::Present,
            "zeros alone are faster: whoever tests with zeros would take this for compression",
        ),
        (true, true) => (CaveatState::RuledOut, "data that is not all zeros is faster, too"),
        (false, _) => (CaveatState::RuledOut, "zeros are not faster"),
    };
    Caveat {
        cause: "thin zero detection",
        state,
        reason: reason.to_owned(),
    }
}
