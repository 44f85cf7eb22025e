//! Failed flushes of a shared cache device, told to all processes that use it.
//!
//! A device may drop writes when a flush fails, and reports that once: to the process that flushed. The others learn it from a file
//! in the runtime directory, which grows by a byte for each failure.

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

    pub(super) fn count(&self) -> u64 {
        let shared = self.shared.as_ref().and_then(|file| file.metadata().ok());
        shared.map_or_else(|| self.own.load(Ordering::Acquire), |metadata| metadata.len())
    }

    /// Tells of failures of another count, of which `known` were told.
    pub(super) fn note_more(&self, known: &mut u64, now: u64) {
        for _ in *known..now {
            self.note();
        }
        *known = now;
    }

    pub(super) fn note(&self) {
        self.own.fetch_add(1, Ordering::AcqRel);
        if let Some(mut file) = self.shared.as_ref()
            && let Err(error) = file.write_all(&[0])
        {
            tracing::error!("cannot report a failed flush to the processes of other volumes: {error}");
        }
    }
}
