//! Reports as text: aligned, compact, with units on every number.

mod offline;
mod status;
mod summary;
pub mod terms;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt::Write;
use std::time::Duration;

pub use flaz_control::settings::{text as settings, text_after as settings_after};
pub use offline::{added, check, created, dump};
pub use status::details;
pub use summary::summary;

use crate::report::CacheReport;
use crate::size::{HumanBytes, counted};

/// Lines with a label on the left, appended one by one.
struct Page(String);

impl Page {
    fn line(&mut self, label: &str, text: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{}", format!("{label:<13} {text}").trim_end());
    }

    /// The lines of a text, with a label before the first one.
    fn lines(&mut self, label: &str, text: &str) {
        let mut lines = text.lines();
        self.line(label, lines.next().unwrap_or_default());
        for line in lines {
            self.more(line);
        }
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
        "format {}, {} of {}, extents of {}, {}",
        cache.format_version,
        counted(cache.regions, "region", "regions"),
        HumanBytes(cache.region_bytes),
        HumanBytes(cache.extent_bytes),
        counted(cache.shards.into(), "shard", "shards")
    )
}

/// Converts seconds from a report, which may come from another program, to a duration.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
