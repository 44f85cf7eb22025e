//! Errors of the devices in the log: the first of a kind at once, those that follow as a count.
//!
//! A device that fails does so thousands of times a second, and a damaged stretch of the cache device has many blocks: a line
//! for each would hide all others. Errors are of one kind if the same operation of the same device fails for the same reason.
//!
//! Invariant: each error is logged, or counted in the next report. A kind without errors between two reports is new again.

#![expect(
    clippy::disallowed_types,
    reason = "shards on several threads share it; held for a look at a few kinds, when a device has failed"
)]

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flaz_device::{DeviceError, DeviceOp};

/// Kinds between two reports; errors of further ones are counted with the first kind.
const KINDS_MAX: usize = 64;

/// What has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Failed {
    /// An operation of the origin.
    Origin(DeviceOp),
    /// An operation of the cache device.
    Cache(DeviceOp),
    /// A fragment on the cache device fails its checks.
    Fragment,
    /// The only copy of a block cannot be read.
    OnlyCopy,
}

impl Failed {
    /// Whether data or requests of clients are concerned, and not only the speed of the cache.
    fn is_serious(self) -> bool {
        matches!(self, Self::Origin(_) | Self::OnlyCopy)
    }

    /// The line about the first error.
    fn line(self, error: &str) -> String {
        match self {
            Self::Origin(_) => format!("the origin failed an operation: {error}"),
            Self::Cache(_) => format!("the cache device failed an operation: {error}"),
            Self::Fragment => format!("found a damaged fragment: {error}"),
            Self::OnlyCopy => {
                format!("the only copy of a block cannot be read, and requests for it fail: {error}")
            }
        }
    }

    /// The line about `more` errors after the first one.
    fn report(self, more: u64, span: Duration, last: &str) -> String {
        let what = match self {
            Self::Origin(op) => format!("failed {op} operations of the origin"),
            Self::Cache(op) => format!("failed {op} operations of the cache device"),
            Self::Fragment => "damaged fragments".to_owned(),
            Self::OnlyCopy => "blocks whose only copy cannot be read".to_owned(),
        };
        format!(
            "{more} more {what} in the last {} s, the last one: {last}",
            span.as_secs()
        )
    }
}

/// Errors of one kind since the last report.
#[derive(Debug)]
struct Kind {
    what: Failed,
    /// The system's error number, if it is an error of the system.
    cause: Option<i32>,
    /// Errors that were not logged.
    more: u64,
    /// The last of them.
    last: String,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct ErrorLog(Mutex<Vec<Kind>>);

impl ErrorLog {
    fn kinds(&self) -> MutexGuard<'_, Vec<Kind>> {
        // No code panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs a failed operation of a device, or counts it.
    pub(super) fn note_device(&self, what: fn(DeviceOp) -> Failed, error: &DeviceError) {
        self.note(what(error.op), error.source.raw_os_error(), error);
    }

    /// Logs an error, or counts it.
    pub(super) fn note(&self, what: Failed, cause: Option<i32>, error: &dyn Display) {
        if let Some(line) = self.first(what, cause, error) {
            log(what, &line);
        }
    }

    /// The line about an error that is the first of its kind; others are counted.
    fn first(&self, what: Failed, cause: Option<i32>, error: &dyn Display) -> Option<String> {
        let (mut kinds, error) = (self.kinds(), error.to_string());
        let known = kinds
            .iter()
            .position(|kind| (kind.what, kind.cause) == (what, cause));
        let known = known.or((kinds.len() >= KINDS_MAX).then_some(0));
        if let Some(known) = known {
            let kind = &mut kinds[known];
            kind.more += 1;
            kind.last = error;
            return None;
        }
        kinds.push(Kind {
            what,
            cause,
            more: 0,
            last: String::new(),
        });
        Some(what.line(&error))
    }

    /// Logs how many errors there were since the last report, `span` ago, in addition to those that were logged.
    pub(super) fn report(&self, span: Duration) {
        for (what, line) in self.lines(span) {
            log(what, &line);
        }
    }

    fn lines(&self, span: Duration) -> Vec<(Failed, String)> {
        let mut kinds = self.kinds();
        kinds.retain(|kind| kind.more > 0);
        let line = |kind: &mut Kind| {
            (
                kind.what,
                kind.what.report(std::mem::take(&mut kind.more), span, &kind.last),
            )
        };
        kinds.iter_mut().map(line).collect()
    }
}

fn log(what: Failed, line: &str) {
    match what.is_serious() {
        true => tracing::error!("{line}"),
        false => tracing::warn!("{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_secs(10);

    fn reported(log: &ErrorLog) -> Vec<String> {
        log.lines(SPAN).into_iter().map(|(_, line)| line).collect()
    }

    #[test]
    fn the_first_error_of_a_kind_is_logged_and_others_are_counted() {
        let log = ErrorLog::default();
        let write = Failed::Origin(DeviceOp::Write);
        let first = log.first(write, Some(28), &"no space at 0");
        assert_eq!(
            first.as_deref(),
            Some("the origin failed an operation: no space at 0")
        );
        for at in 1..=3 {
            assert_eq!(log.first(write, Some(28), &format!("no space at {at}")), None);
        }
        assert!(
            log.first(write, Some(5), &"bad sector").is_some(),
            "another reason"
        );
        assert!(log.first(Failed::Fragment, None, &"checksum").is_some());
        assert_eq!(
            reported(&log),
            ["3 more failed write operations of the origin in the last 10 s, the last one: no space at 3"]
        );
        // It still fails, and it failed no more.
        assert!(log.first(write, Some(28), &"no space").is_none());
        assert_eq!(reported(&log).len(), 1);
        assert_eq!(reported(&log).len(), 0);
        assert!(log.first(write, Some(28), &"no space").is_some());
    }

    #[test]
    fn the_number_of_kinds_is_limited() {
        let log = ErrorLog::default();
        let kinds = 2 * KINDS_MAX as i32;
        let logged = (0..kinds).filter(|&cause| log.first(Failed::Fragment, Some(cause), &"odd").is_some());
        assert_eq!(logged.count(), KINDS_MAX);
        let lines = reported(&log);
        assert!(
            lines.len() == 1 && lines[0].starts_with(&format!("{KINDS_MAX} more ")),
            "{lines:?}"
        );
    }
}
