//! The life cycle of a daemon: starting, serving, stopped. Several threads wait for its changes.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::HostError;
use flaz_control::chain;

/// The reply to a request that arrives too early.
pub const STILL_STARTING: &str = "the cache is still starting: try again later";

/// Why the daemon stops.
#[derive(Debug)]
pub enum Reason {
    /// SIGTERM or SIGINT.
    Signal(i32),
    /// `flaz stop`.
    Asked,
    /// `flaz detach`.
    Detached,
    /// The daemon cannot continue.
    Failed(HostError),
}

impl Reason {
    /// For the log.
    pub fn text(&self) -> String {
        match self {
            Self::Signal(SIGINT) => "SIGINT".to_owned(),
            Self::Signal(SIGTERM) => "SIGTERM".to_owned(),
            Self::Signal(other) => format!("signal {other}"),
            Self::Asked => "requested by `flaz stop`".to_owned(),
            Self::Detached => "`flaz detach`: the origin is complete".to_owned(),
            Self::Failed(error) => chain(error.as_ref()),
        }
    }
}

/// The life cycle from starting to stopped; several threads wait for its changes.
#[derive(Debug, Default)]
pub struct Life {
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Stage {
    /// Whether the host has started.
    begun: bool,
    /// The first reason to stop, until taken.
    reason: Option<Reason>,
    stopping: bool,
    /// The result of the stop: the number of dirty blocks, or the error.
    ended: Option<Result<u64, String>>,
}

/// How long a request waits for a daemon that is starting; shorter than the client's timeout.
const START_WAIT: Duration = Duration::from_secs(8);

impl Life {
    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host has started.
    pub fn begin(&self) {
        self.lock().begun = true;
        self.changed.notify_all();
    }

    /// Begins the stop. Later reasons are only logged.
    pub fn ask_to_stop(&self, reason: Reason) {
        let mut stage = self.lock();
        if stage.stopping {
            tracing::info!("already stopping; also: {}", reason.text());
            return;
        }
        stage.stopping = true;
        stage.reason = Some(reason);
        self.changed.notify_all();
    }

    /// Waits until a stop is requested.
    pub fn wait_for_reason(&self) -> Reason {
        let mut stage = self.lock();
        loop {
            if let Some(reason) = stage.reason.take() {
                return reason;
            }
            stage = self.changed.wait(stage).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The host has stopped, with this number of dirty blocks, or failed to start or to stop.
    pub fn end(&self, end: Result<u64, String>) {
        self.lock().ended = Some(end);
        self.changed.notify_all();
    }

    /// Waits until the host has started. Returns the reason if it will not.
    pub fn wait_for_begin(&self) -> Result<(), String> {
        let waiting = |stage: &mut Stage| !stage.begun && stage.ended.is_none();
        let (stage, _) = self
            .changed
            .wait_timeout_while(self.lock(), START_WAIT, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        match &stage.ended {
            Some(Ok(_)) => Err("the cache has stopped".to_owned()),
            Some(Err(error)) => Err(error.clone()),
            None if stage.begun => Ok(()),
            None => Err(STILL_STARTING.to_owned()),
        }
    }

    /// Waits for the end. Returns the number of dirty blocks, or the error.
    pub fn wait_for_end(&self) -> Result<u64, String> {
        let mut stage = self.lock();
        loop {
            if let Some(end) = &stage.ended {
                return end.clone();
            }
            stage = self.changed.wait(stage).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_first_reason_counts() {
        let life = Life::default();
        life.ask_to_stop(Reason::Signal(SIGTERM));
        life.ask_to_stop(Reason::Asked);
        assert_eq!(life.wait_for_reason().text(), "SIGTERM");
    }

    #[test]
    fn questions_wait_for_the_start_and_end_with_the_stop() {
        let life = Arc::new(Life::default());
        let asker = std::thread::spawn({
            let life = Arc::clone(&life);
            move || life.wait_for_begin()
        });
        life.begin();
        assert_eq!(asker.join().unwrap(), Ok(()));
        life.end(Ok(7));
        assert_eq!(life.wait_for_begin(), Err("the cache has stopped".to_owned()));
        assert_eq!(life.wait_for_end(), Ok(7));
    }

    #[test]
    fn a_failed_start_is_reported_to_all_waiting_requests() {
        let life = Arc::new(Life::default());
        let ends = [0, 1].map(|_| {
            let life = Arc::clone(&life);
            std::thread::spawn(move || life.wait_for_end())
        });
        life.end(Err("no disk".to_owned()));
        for end in ends {
            assert_eq!(end.join().unwrap(), Err("no disk".to_owned()));
        }
        assert_eq!(life.wait_for_begin(), Err("no disk".to_owned()));
    }
}
