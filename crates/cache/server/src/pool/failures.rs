//! Failed flushes of a shared cache device, told to all processes that use it.
//!
//! A device may drop writes when a flush fails, and reports that once: to the process that flushed. The others learn it from a file
//! in the runtime directory, which grows by a byte for each failure. Processes with other runtime directories, of another user or in another
//! container, do not learn it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use flaz_control::place::{Places, prepare_directory};
use uuid::Uuid;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct FailedFlushes {
    /// `None`: this process alone counts.
    shared: Option<File>,
    /// Failures of this process that the file does not have.
    own: AtomicU64,
}

impl FailedFlushes {
    /// The failures of a pool.
    pub(super) fn of(pool: Uuid) -> Self {
        let directory = Places::of_process().daemon_directory();
        let path = directory.join(format!("{pool}.flushes"));
        let opened = prepare_directory(&directory)
            .map_err(|error| error.to_string())
            .and_then(|()| {
                let opened = OpenOptions::new().append(true).create(true).open(&path);
                opened.map_err(|error| error.to_string())
            });
        let shared = opened.inspect_err(|why| {
            tracing::warn!(
                "failed flushes of the cache device will not be reported to the processes of other volumes: {}: {why}",
                path.display()
            );
        });
        Self {
            shared: shared.ok(),
            own: AtomicU64::new(0),
        }
    }

    /// Number of failures so far.
    pub(super) fn count(&self) -> u64 {
        let shared = self.shared.as_ref().and_then(|file| file.metadata().ok());
        self.own.load(Ordering::Acquire) + shared.map_or(0, |metadata| metadata.len())
    }

    /// Counts a failure, and tells it to the other processes.
    pub(super) fn note(&self) {
        let told = self.shared.as_ref().map(|mut file| file.write_all(&[0]));
        if let Some(Err(error)) = &told {
            tracing::error!("cannot report a failed flush to the processes of other volumes: {error}");
        }
        if !matches!(told, Some(Ok(()))) {
            self.own.fetch_add(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_counts_also_if_it_cannot_be_told() {
        for path in ["/dev/full", ""] {
            let failures = FailedFlushes {
                shared: OpenOptions::new().append(true).open(path).ok(),
                own: AtomicU64::new(0),
            };
            failures.note();
            failures.note();
            assert_eq!(failures.count(), 2, "{path}");
        }
    }

    #[test]
    fn a_failure_is_told_to_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let [one, other] = [(); 2].map(|()| {
            let path = folder.path().join("flushes");
            let opened = OpenOptions::new().append(true).create(true).open(path);
            FailedFlushes {
                shared: Some(opened.expect("it can be created")),
                own: AtomicU64::new(0),
            }
        });
        one.note();
        assert_eq!((one.count(), other.count()), (1, 1));
    }
}
