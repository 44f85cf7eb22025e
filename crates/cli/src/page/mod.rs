//! Reports on a page for people: aligned, compact, units on every number.

mod offline;
mod status;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt::Write;
use std::time::Duration;

use flaz_engine::settings::{Mode, Settings};

pub use offline::{check, created, dump};
pub use status::{status, watch};

use crate::report::CacheReport;
use crate::settings::SettingsPatch;
use crate::size::{HumanBytes, HumanCount};

/// Lines with a label on the left, appended one by one.
struct Page(String);

impl Page {
    fn line(&mut self, label: &str, text: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{}", format!("{label:<13} {text}").trim_end());
    }

    fn more(&mut self, text: &str) {
        self.line("", text);
    }

    fn gap(&mut self) {
        self.0.push('\n');
    }
}

fn geometry(cache: &CacheReport) -> String {
    format!(
        "format {}, {} regions of {}, extents of {}, {} shard{}",
        cache.format_version,
        HumanCount(cache.regions),
        HumanBytes(cache.region_bytes),
        HumanBytes(cache.extent_bytes),
        cache.shards,
        if cache.shards == 1 { "" } else { "s" }
    )
}

/// Settings on one line.
#[must_use]
pub fn settings(settings: &Settings) -> String {
    let cutoff = match settings.sequential_cutoff {
        0 => "off".to_owned(),
        bytes => HumanBytes(bytes).to_string(),
    };
    let limit = match settings.mode {
        Mode::WriteBack => format!(", dirty limit {} %", settings.dirty_percent),
        _ => String::new(),
    };
    format!(
        "{}, {}, codec {}, sequential cut-off {cutoff}{limit}",
        settings.mode, settings.policy, settings.codec
    )
}

/// Settings after a change, with what was changed also where it is of no effect at present.
#[must_use]
pub fn settings_after(settings: &Settings, patch: &SettingsPatch) -> String {
    let text = self::settings(settings);
    match patch.dirty_limit {
        Some(_) if settings.mode != Mode::WriteBack => {
            format!("{text}, dirty limit {} % (in write-back)", settings.dirty_percent)
        }
        _ => text,
    }
}

/// Seconds of a report, which may come from elsewhere, as a span.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
