//! The pages of `flaz create`, `flaz check` and `flaz dump`.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Page, geometry, seconds};
use crate::control::shell::quoted;
use crate::report::{CheckReport, CreateReport, DumpRecord, PROBLEMS_LISTED_MAX, VolumeReport};
use crate::size::{HumanBytes, HumanCount, HumanDuration, counted};

/// Bytes of a block.
const BLOCK_BYTES: u64 = 4096;
/// Maximum number of problems of a check in the text; the JSON has more.
const PROBLEMS_SHOWN_MAX: usize = 20;

/// The page of `flaz create`. `name` is that of the configuration, if one was written.
#[must_use]
pub fn created(report: &CreateReport, name: Option<&str>) -> String {
    let mut page = Page(String::new());
    let cache = &report.cache;
    page.line(
        "Created",
        &format!(
            "{}, {}, uuid {}",
            cache.path.display(),
            HumanBytes(cache.size_bytes),
            cache.uuid
        ),
    );
    page.more(&geometry(cache));
    page.line(
        "Origin",
        &format!(
            "{}, {}",
            report.origin.path.display(),
            HumanBytes(report.origin.size_bytes)
        ),
    );
    page.line(
        "Holds",
        &format!(
            "{} ({} blocks) before compression by {}",
            HumanBytes(cache.data_bytes),
            HumanCount(cache.data_bytes / BLOCK_BYTES),
            report.codec
        ),
    );
    let next = name.map_or_else(|| quoted(&cache.path), str::to_owned);
    page.line("Next", &format!("flaz serve {next}"));
    page.0
}

/// The page of `flaz volume add`. `name` is that of the configuration, if one was written.
#[must_use]
pub fn added(report: &CreateReport, volume: Option<&VolumeReport>, name: Option<&str>) -> String {
    let mut page = Page(String::new());
    let cache = &report.cache;
    page.line("Added", &format!("{}, uuid {}", cache.path.display(), cache.uuid));
    page.line(
        "Origin",
        &format!(
            "{}, {}",
            report.origin.path.display(),
            HumanBytes(report.origin.size_bytes)
        ),
    );
    page.line(
        "Space",
        &format!(
            "what it needs of {}, in {}, compressed by {}",
            HumanBytes(cache.data_bytes),
            counted(cache.shards.into(), "shard", "shards"),
            report.codec
        ),
    );
    if let Some(share) = volume.and_then(share) {
        page.line("Share", &share);
    }
    let next = name.map_or_else(|| quoted(&cache.path), str::to_owned);
    page.line("Next", &format!("flaz serve {next}"));
    page.0
}

/// The guarantee and the limit of a volume, if it has one of them.
fn share(volume: &VolumeReport) -> Option<String> {
    let least = Some(volume.at_least_bytes).filter(|bytes| *bytes > 0);
    let least = least.map(|bytes| format!("at least {}", HumanBytes(bytes)));
    let most = volume
        .at_most_bytes
        .map(|bytes| format!("at most {}", HumanBytes(bytes)));
    let limits: Vec<_> = least.into_iter().chain(most).collect();
    (!limits.is_empty()).then(|| limits.join(", "))
}

/// The page of `flaz check`.
#[must_use]
pub fn check(report: &CheckReport) -> String {
    let mut page = Page(String::new());
    let cache = &report.cache;
    page.line(
        "Cache",
        &format!(
            "{}, {}, uuid {}",
            cache.path.display(),
            HumanBytes(cache.size_bytes),
            cache.uuid
        ),
    );
    page.more(&geometry(cache));
    page.line("Last stop", if report.clean { "clean" } else { "not clean" });
    if report.may_be_dirty {
        page.line(
            "Dirty",
            "may contain dirty blocks: keep the cache with its origin",
        );
    }
    page.line(
        "Verified",
        &format!(
            "{} of fragments in {}",
            HumanBytes(report.verified_bytes),
            HumanDuration(seconds(report.duration_s))
        ),
    );
    page.gap();
    page.line("Kind", &format!("{:>23} {:>14}", "good", "bad"));
    let mut kinds: Vec<&String> = report.good.keys().chain(report.bad.keys()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for kind in kinds {
        let count = |counts: &BTreeMap<String, u64>| counts.get(kind).copied().unwrap_or(0);
        let (good, bad) = (HumanCount(count(&report.good)), HumanCount(count(&report.bad)));
        let _ = writeln!(page.0, "{kind:<22} {good:>14} {bad:>14}");
    }
    page.gap();
    for problem in report.problems.iter().take(PROBLEMS_SHOWN_MAX) {
        page.line(
            "BAD",
            &format!(
                "{} at offset {}: {}",
                problem.kind, problem.offset, problem.message
            ),
        );
    }
    let bad = report.bad_total();
    let shown = report.problems.len().min(PROBLEMS_SHOWN_MAX) as u64;
    if bad > shown && shown > 0 {
        page.line(
            "",
            &format!(
                "and {} more; --json lists up to {}",
                HumanCount(bad - shown),
                PROBLEMS_LISTED_MAX
            ),
        );
    }
    page.line("Result", if bad == 0 { "good" } else { "BAD" });
    page.0
}

/// One line of `flaz dump`.
#[must_use]
pub fn dump(record: &DumpRecord) -> String {
    let mut line = format!("{:>14} {:>9} ", record.offset, record.len_bytes);
    for _ in 0..record.depth {
        line.push_str("  ");
    }
    line.push_str(&record.kind);
    for (name, value) in &record.fields {
        // Text is shown without quotes, everything else as in JSON.
        let _ = match value.as_str() {
            Some(text) => write!(line, " {name}={text}"),
            None => write!(line, " {name}={value}"),
        };
    }
    line.push('\n');
    line
}
