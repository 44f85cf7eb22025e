//! The state file for an engine thread: writes do not block the thread.

use std::rc::Rc;
use std::sync::Arc;

use flaz_engine::host_record::{HostRecord, HostRecords, NotedOrigin, OtherCache};
use flaz_runtime::oneshot;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;

use crate::device::HostDevice;
use crate::filesystem::FileSystem;
use crate::origin::file_system;
use crate::state::{Slot, StateFile};

/// The host records of an engine thread, kept in the state file.
pub struct StateRecords {
    state: Arc<StateFile>,
    /// The source of the file systems for the lifecycle's records at a stop; shards make no such records.
    origin: Option<HostDevice>,
}

impl StateRecords {
    /// For shards; `None` if there is no state directory.
    #[must_use]
    pub fn of_shards(state: &Arc<StateFile>) -> Option<Rc<dyn HostRecords>> {
        Self::over(state, None)
    }

    /// For the lifecycle; `None` if there is no state directory.
    #[must_use]
    pub fn of_lifecycle(state: &Arc<StateFile>, origin: &HostDevice) -> Option<Rc<dyn HostRecords>> {
        Self::over(state, Some(origin.clone()))
    }

    fn over(state: &Arc<StateFile>, origin: Option<HostDevice>) -> Option<Rc<dyn HostRecords>> {
        let state = Arc::clone(state);
        state
            .has_place()
            .then(|| Rc::new(Self { state, origin }) as Rc<dyn HostRecords>)
    }

    async fn file_system(&self) -> Option<FileSystem> {
        file_system(self.origin.as_ref()?).await
    }

    /// Writes a record on its own thread. Records are rare, and a write that the file system delays must not delay
    /// anything else.
    fn note_by(&self, note: impl FnOnce(&StateFile) -> bool + Send + 'static) -> LocalBoxFuture<'_, bool> {
        let state = Arc::clone(&self.state);
        let (reply, answer) = oneshot();
        let thread = std::thread::Builder::new()
            .name("flaz-note".to_owned())
            .spawn(move || {
                // The caller may not have waited for the answer.
                let _ = reply.send(note(&state));
            });
        async move {
            match thread {
                Ok(_) => answer.recv().await.unwrap_or(false),
                Err(error) => {
                    tracing::warn!("cannot write the host record: {error}");
                    false
                }
            }
        }
        .boxed_local()
    }
}

impl HostRecords for StateRecords {
    fn recall(&self) -> LocalBoxFuture<'_, Option<HostRecord>> {
        let memory = self.state.recall();
        async move { memory }.boxed_local()
    }

    fn note(&self, record: HostRecord) -> LocalBoxFuture<'_, bool> {
        async move {
            let found = if record.stopped {
                self.file_system().await
            } else {
                None
            };
            self.note_by(move |state| state.note(record, found)).await
        }
        .boxed_local()
    }

    fn note_dirty(&self, dirty: bool, generation: u64) -> LocalBoxFuture<'_, bool> {
        self.note_by(move |state| state.note_dirty(dirty, generation))
    }

    fn note_origin(&self, ticket: u64, origin: NotedOrigin) -> LocalBoxFuture<'_, bool> {
        let Some(slot) = Slot::take(&self.state) else {
            return async { false }.boxed_local();
        };
        self.note_by(move |state| {
            let _slot = slot;
            state.note_origin(ticket, origin)
        })
    }

    fn note_stopped(&self, origin: Option<NotedOrigin>) -> LocalBoxFuture<'_, bool> {
        async move {
            let found = self.file_system().await;
            self.note_by(move |state| state.note_stopped(origin, found)).await
        }
        .boxed_local()
    }

    fn note_fenced(&self) -> LocalBoxFuture<'_, bool> {
        self.note_by(StateFile::note_fenced)
    }

    fn other_cache(&self, origin_identity: &str) -> LocalBoxFuture<'_, Option<OtherCache>> {
        let other = self.state.other_cache_of(origin_identity);
        async move { other }.boxed_local()
    }

    fn note_cache_of(&self, origin_identity: &str) -> LocalBoxFuture<'_, bool> {
        let identity = origin_identity.to_owned();
        self.note_by(move |state| state.note_cache_of(&identity))
    }
}

#[cfg(test)]
mod tests {
    use flaz_engine::units::Epoch;
    use flaz_runtime::{Config, Runtime};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn records_are_written_without_blocking_the_thread() {
        let directory = tempfile::tempdir().unwrap();
        let uuid = Uuid::from_u128(7);
        let open = || Arc::new(StateFile::open(Some(directory.path()), uuid));
        let record = HostRecord {
            generation: 5,
            epoch: Epoch(3),
            fenced: false,
            dirty: false,
            origin: None,
            stopped: false,
        };
        let runtime = Runtime::new(Config::default()).unwrap();
        runtime.block_on(async {
            let records = StateRecords::of_shards(&open()).unwrap();
            assert!(records.recall().await.is_none());
            assert!(records.note(record).await);
            assert!(records.note_fenced().await);
        });
        assert!(open().recall().unwrap().fenced);
        let nowhere = Arc::new(StateFile::open(None, uuid));
        assert!(StateRecords::of_shards(&nowhere).is_none());
    }
}
