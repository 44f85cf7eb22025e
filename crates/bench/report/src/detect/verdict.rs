//! Derives answers from effects, and lists possible causes of wrong results.

use serde::Serialize;

use super::effect::Effect;
use super::pattern::{COPY_DISTANCES_BYTES, Pattern};

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// Does it compress?
    Compresses,
    /// Does it elide zeros, beyond the effect of compression?
    ElidesZeros,
    /// Does it store equal blocks once?
    Deduplicates,
    /// If it compresses: does it have an entropy stage, as zstd and zlib do and lz4 does not?
    EntropyStage,
    /// If it compresses: in which unit?
    Unit,
    /// If it compresses: with which window?
    Window,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Proven.
    Yes,
    /// Excluded, as far as it is relevant.
    No,
    /// Neither.
    Unclear,
}

/// An answer with its reason.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Finding {
    /// To what.
    pub question: Question,
    /// The answer.
    pub answer: Answer,
    /// For a yes from rates: one minus the probability that it is by chance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// Why.
    pub reason: String,
}

/// What a file system does to data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FileSystem {
    /// It cannot compress.
    Cannot,
    /// It supports compression, but does not compress here.
    Off,
    /// It compresses here.
    On,
    /// It is unknown whether it compresses.
    Unknown,
    /// There is none: the device is written directly.
    None,
}

/// The effect of a lower layer on data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LayerState {
    /// Nothing.
    Plain,
    /// Unknown.
    Unknown,
    /// It compresses.
    Compresses,
}

/// A layer below the device or file system of the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Layer {
    /// Its description, for example `loop0, a file on btrfs`.
    pub what: String,
    /// Its effect.
    pub state: LayerState,
}

/// Properties of the target.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Facts {
    /// Whether writes bypassed the page cache.
    pub direct: bool,
    /// Name of the file system.
    pub file_system: String,
    /// Its effect on data.
    pub compression: FileSystem,
    /// The lower layers, as far as they are known.
    pub layers: Vec<Layer>,
}

/// Whether something may have caused a wrong result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CaveatState {
    /// It has not.
    RuledOut,
    /// It may.
    Possible,
    /// It does.
    Present,
    /// There is a sign of it, and too little evidence.
    Unknown,
}

/// A possible cause of a wrong result.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Caveat {
    /// Description.
    pub cause: &'static str,
    /// Whether it applies.
    pub state: CaveatState,
    /// Why.
    pub reason: String,
}

/// How much slower a higher level may appear because of noise.
const NOT_SLOWER: f64 = 0.95;
/// Factor by which the rate of random data must fall to be reported as a drift.
const DRIFT: f64 = 0.8;
/// Rounds from which on a fall can be told from the variation of a busy or virtual device: with fewer, a third of them is one
/// or two samples.
const DRIFT_ROUNDS_MIN: usize = 12;

pub(super) fn findings(effects: &[Effect]) -> Vec<Finding> {
    let compresses = compresses(effects);
    let is_compressing = compresses.answer == Answer::Yes;
    let mut findings = vec![
        compresses,
        elides_zeros(effects, is_compressing),
        simple(
            Question::Deduplicates,
            find(effects, Pattern::Duplicates),
            "random blocks that are repeated often, far apart",
        ),
    ];
    if is_compressing {
        findings.push(entropy_stage(effects));
        findings.extend(unit_and_window(effects));
    }
    findings
}

fn find(effects: &[Effect], pattern: Pattern) -> Option<Effect> {
    effects.iter().copied().find(|effect| effect.pattern == pattern)
}

fn says(effect: &Effect) -> String {
    match effect.kept {
        Some(kept) => format!("the device reports that it keeps {kept:.2} of them"),
        None => format!(
            "{:.2} times the rate of random data ({:.2} to {:.2})",
            effect.ratio, effect.low, effect.high
        ),
    }
}

/// One minus the probability that a significant effect is by chance; not for values that the device reports itself.
fn confidence(effect: &Effect) -> Option<f64> {
    effect.kept.is_none().then_some(1.0 - effect.p)
}

/// The answer about one kind of data.
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
        confidence: (answer == Answer::Yes).then(|| confidence(&effect)).flatten(),
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
    let monotone = levels.windows(2).all(|pair| match (pair[0].kept, pair[1].kept) {
        (Some(before), Some(after)) => after < before / NOT_SLOWER,
        _ => pair[1].ratio > pair[0].ratio * NOT_SLOWER,
    });
    let proven: Vec<&Effect> = levels.iter().filter(|effect| effect.is_proven()).collect();
    let answer = match () {
        () if levels.len() == 3 && proven.len() >= 2 && monotone => Answer::Yes,
        () if levels.len() == 3 && levels.iter().all(Effect::is_excluded) => Answer::No,
        () => Answer::Unclear,
    };
    let mut reason: Vec<String> = levels
        .iter()
        .map(|effect| {
            let figure = effect.kept.unwrap_or(effect.ratio);
            format!("{}: {figure:.2}", effect.pattern)
        })
        .collect();
    if !monotone {
        reason.push("a higher level gains less than a lower one".to_owned());
    }
    let told = levels.iter().any(|effect| effect.kept.is_some());
    let of = if told {
        "the device reports that it keeps, of"
    } else {
        "times the rate of random data,"
    };
    Finding {
        question: Question::Compresses,
        answer,
        // The answer is wrong only if both are by chance; the lower confidence is reported.
        confidence: (answer == Answer::Yes && !told).then(|| {
            let mut p: Vec<f64> = proven.iter().map(|effect| effect.p).collect();
            p.sort_by(f64::total_cmp);
            1.0 - p[1]
        }),
        reason: format!("{of} {}", reason.join(", ")),
    }
}

fn elides_zeros(effects: &[Effect], is_compressing: bool) -> Finding {
    let mut finding = simple(Question::ElidesZeros, find(effects, Pattern::Zeros), "zeros");
    if is_compressing && finding.answer == Answer::Yes {
        finding.answer = Answer::Unclear;
        finding.confidence = None;
        finding
            .reason
            .push_str("; compression alone would also cause this");
    }
    finding
}

/// Matching alone saves up to a tenth of such bytes in large units; an entropy stage saves half. Half of the gain of
/// data that compresses by half therefore separates the two.
fn entropy_stage(effects: &[Effect]) -> Finding {
    let mut finding = simple(
        Question::EntropyStage,
        find(effects, Pattern::Alphabet),
        "bytes of 16 values without repetition",
    );
    let (Some(effect), Some(half)) = (
        find(effects, Pattern::Alphabet),
        find(effects, Pattern::Level(50)),
    ) else {
        return finding;
    };
    let enough = (1.0 + half.ratio) / 2.0;
    finding.answer = match (effect.kept, half.kept) {
        (Some(kept), Some(half)) if kept < (1.0 + half) / 2.0 => Answer::Yes,
        (Some(_), Some(_)) => Answer::No,
        _ if effect.is_proven() && effect.low > enough => Answer::Yes,
        _ if effect.high < enough && half.is_proven() => Answer::No,
        _ => Answer::Unclear,
    };
    finding.confidence = (finding.answer == Answer::Yes)
        .then(|| confidence(&effect))
        .flatten();
    finding
}

/// Unit and window: the largest distance at which copies are detected, and whether the end of the unit hides those
/// farther apart.
fn unit_and_window(effects: &[Effect]) -> [Finding; 2] {
    let of = |pattern| find(effects, pattern);
    let mut found: Option<(u64, Effect)> = None;
    let mut missed = None;
    for distance_bytes in COPY_DISTANCES_BYTES {
        let Some(effect) = of(Pattern::Copy { distance_bytes }) else {
            break;
        };
        match answer(&effect) {
            Answer::Yes => found = Some((distance_bytes, effect)),
            Answer::No => {
                missed = Some(distance_bytes);
                break;
            }
            Answer::Unclear => break,
        }
    }
    let finding = |question, answer, effect: Option<Effect>, reason| Finding {
        question,
        answer,
        confidence: effect.and_then(|effect| confidence(&effect)),
        reason,
    };
    let Some((distance, effect)) = found else {
        return match missed {
            Some(distance) => {
                let reason = format!(
                    "less than {} at a time, or a window below {}",
                    kib(2 * distance),
                    kib(distance)
                );
                [
                    finding(Question::Unit, Answer::Yes, None, reason),
                    finding(Question::Window, Answer::Unclear, None, "see the unit".to_owned()),
                ]
            }
            None => {
                let reason = || "no copies were clearly detected or missed".to_owned();
                [
                    finding(Question::Unit, Answer::Unclear, None, reason()),
                    finding(Question::Window, Answer::Unclear, None, reason()),
                ]
            }
        };
    };
    let across = of(Pattern::Across {
        distance_bytes: distance,
    })
    .map_or(Answer::Unclear, |effect| answer(&effect));
    let unit = match across {
        Answer::No => format!("{} at a time", kib(2 * distance)),
        Answer::Yes => format!("at least {} at a time", kib(4 * distance)),
        Answer::Unclear => format!("at least {} at a time", kib(2 * distance)),
    };
    let window = match (across, missed) {
        (Answer::Yes, Some(missed)) => {
            format!(
                "detects copies at a distance of {}, but not {}",
                kib(distance),
                kib(missed)
            )
        }
        _ => format!("detects copies at a distance of at least {}", kib(distance)),
    };
    [
        finding(Question::Unit, Answer::Yes, Some(effect), unit),
        finding(Question::Window, Answer::Yes, Some(effect), window),
    ]
}

fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes >> 10)
}

pub(super) fn caveats(effects: &[Effect], random: &[f64], facts: &Facts) -> Vec<Caveat> {
    vec![
        page_cache(facts),
        file_system(facts),
        layers(facts),
        drift(random),
        zero_detection(effects),
    ]
}

fn page_cache(facts: &Facts) -> Caveat {
    let (state, reason) = if facts.direct {
        (CaveatState::RuledOut, "writes bypassed it (O_DIRECT)")
    } else {
        (
            CaveatState::Possible,
            "writes may have used it; each was flushed within the measured time",
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
        FileSystem::None => (
            CaveatState::RuledOut,
            "the device was written directly".to_owned(),
        ),
        FileSystem::Cannot => (CaveatState::RuledOut, format!("{name} does not compress")),
        FileSystem::Off => (
            CaveatState::RuledOut,
            format!("{name} supports it, but it is not enabled"),
        ),
        FileSystem::On => (
            CaveatState::Present,
            format!("{name} compresses here: the answers apply to it and the device together"),
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

fn layers(facts: &Facts) -> Caveat {
    let of = |state| -> Vec<&str> {
        let layers = facts.layers.iter().filter(|layer| layer.state == state);
        layers.map(|layer| layer.what.as_str()).collect()
    };
    let (compress, unknown) = (of(LayerState::Compresses), of(LayerState::Unknown));
    let (state, reason) = match (compress.is_empty(), unknown.is_empty()) {
        (false, _) => (
            CaveatState::Present,
            format!(
                "{}: compresses; the answers apply to it and the device together",
                compress.join("; ")
            ),
        ),
        (true, false) => (
            CaveatState::Possible,
            format!("{}: its effect on data is unknown", unknown.join("; ")),
        ),
        (true, true) if facts.layers.is_empty() => {
            (CaveatState::RuledOut, "none known to the system".to_owned())
        }
        (true, true) => (
            CaveatState::RuledOut,
            format!("{}: plain", of(LayerState::Plain).join("; ")),
        ),
    };
    Caveat {
        cause: "layers below",
        state,
        reason,
    }
}

/// Random data that becomes slower: a cache that fills, or a device that gets hot.
fn drift(random: &[f64]) -> Caveat {
    let third = (random.len() / 3).max(1);
    let median = crate::statistics::moments::median;
    let (first, last) = (&random[..third], &random[random.len() - third..]);
    let change = median(last) / median(first);
    let percent = 100.0 * change;
    let slowest_first = first.iter().copied().fold(f64::INFINITY, f64::min);
    let is_lasting = random.len() >= DRIFT_ROUNDS_MIN && last.iter().all(|rate| *rate < slowest_first);
    let (state, reason) = match (change < DRIFT, is_lasting) {
        (true, true) => (
            CaveatState::Present,
            format!(
                "random data fell to {percent:.0} % of its first rate and stayed there: a write cache, such as the SLC cache \
                 of an SSD, has filled, or the device is throttled. Kinds are compared within rounds, so none is favoured; \
                 use more rounds to measure the device behind it"
            ),
        ),
        (true, false) => (
            CaveatState::Unknown,
            format!(
                "random data fell to {percent:.0} % of its first rate in {} rounds, which are too few or vary too much to \
                 tell a full cache from other load; use --rounds {DRIFT_ROUNDS_MIN} or more",
                random.len()
            ),
        ),
        (false, _) => (
            CaveatState::Possible,
            "random data did not become slower; a cache larger than the data written cannot be detected"
                .to_owned(),
        ),
    };
    Caveat {
        cause: "write cache",
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
            "only zeros are faster: a test with zeros would report this as compression",
        ),
        (true, true) => (CaveatState::RuledOut, "data other than zeros is faster as well"),
        (false, _) => (CaveatState::RuledOut, "zeros are not faster"),
    };
    Caveat {
        cause: "thin zero detection",
        state,
        reason: reason.to_owned(),
    }
}
