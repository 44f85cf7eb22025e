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
///
/// Invariants: the phase goes forward only; the first request to stop is the reason, and is taken once.
#[derive(Debug, Default)]
pub struct Life {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// A stop may be requested in every phase.
    stop: Stop,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Starting,
    Serving,
    /// The result of the stop: the number of dirty blocks, or the error.
    Ended(Result<u64, String>),
}

#[derive(Debug, Default)]
enum Stop {
    #[default]
    NotRequested,
    Requested(Reason),
    /// The daemon knows the reason.
    Taken,
}

/// How long a request waits for a daemon that is starting; shorter than the client's timeout.
const START_WAIT: Duration = Duration::from_secs(8);

impl Life {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The host has started.
    pub fn begin(&self) {
        let mut state = self.lock();
        assert!(
            matches!(state.phase, Phase::Starting),
            "the host starts once: {:?}",
            state.phase
        );
        state.phase = Phase::Serving;
        self.changed.notify_all();
    }

    /// Begins the stop. Later reasons are only logged.
    pub fn ask_to_stop(&self, reason: Reason) {
        let mut state = self.lock();
        if !matches!(state.stop, Stop::NotRequested) {
            tracing::info!("already stopping; also: {}", reason.text());
            return;
        }
        state.stop = Stop::Requested(reason);
        self.changed.notify_all();
    }

    /// Whether a stop was requested.
    pub fn is_stopping(&self) -> bool {
        !matches!(self.lock().stop, Stop::NotRequested)
    }

    /// Whether a stop is requested within this time; waits for it.
    pub fn stops_within(&self, within: Duration) -> bool {
        let waits = |state: &mut State| matches!(state.stop, Stop::NotRequested);
        let waited = self.changed.wait_timeout_while(self.lock(), within, waits);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !matches!(state.stop, Stop::NotRequested)
    }

    /// Waits until a stop is requested; `None`: not within this time.
    pub fn wait_for_reason(&self, within: Duration) -> Option<Reason> {
        let waits = |state: &mut State| matches!(state.stop, Stop::NotRequested);
        let waited = self.changed.wait_timeout_while(self.lock(), within, waits);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut state.stop, Stop::Taken) {
            Stop::Requested(reason) => Some(reason),
            Stop::NotRequested => {
                state.stop = Stop::NotRequested;
                None
            }
            Stop::Taken => unreachable!("one thread waits for the reason, once"),
        }
    }

    /// The host has stopped, with this number of dirty blocks, or failed to start or to stop.
    pub fn end(&self, end: Result<u64, String>) {
        let mut state = self.lock();
        assert!(
            !matches!(state.phase, Phase::Ended(_)),
            "the host ends once: {:?}",
            state.phase
        );
        state.phase = Phase::Ended(end);
        self.changed.notify_all();
    }

    /// Waits until the host has started. Returns the reason if it will not.
    pub fn wait_for_begin(&self) -> Result<(), String> {
        let starting = |state: &mut State| matches!(state.phase, Phase::Starting);
        let (state, _) = self
            .changed
            .wait_timeout_while(self.lock(), START_WAIT, starting)
            .unwrap_or_else(PoisonError::into_inner);
        match &state.phase {
            Phase::Starting => Err(STILL_STARTING.to_owned()),
            Phase::Serving => Ok(()),
            Phase::Ended(Ok(_)) => Err("the cache has stopped".to_owned()),
            Phase::Ended(Err(error)) => Err(error.clone()),
        }
    }

    /// Waits for the end. Returns the number of dirty blocks, or the error.
    pub fn wait_for_end(&self) -> Result<u64, String> {
        let mut state = self.lock();
        loop {
            if let Phase::Ended(end) = &state.phase {
                return end.clone();
            }
            state = self.wait(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_first_stop_reason_is_kept() {
        let life = Life::default();
        assert!(!life.is_stopping() && life.wait_for_reason(Duration::ZERO).is_none());
        life.ask_to_stop(Reason::Signal(SIGTERM));
        life.ask_to_stop(Reason::Asked);
        let reason = life
            .wait_for_reason(Duration::from_secs(60))
            .map(|reason| reason.text());
        assert_eq!(reason.as_deref(), Some("SIGTERM"));
        life.ask_to_stop(Reason::Asked);
        assert!(matches!(life.lock().stop, Stop::Taken), "it is only logged");
        assert!(life.is_stopping());
    }

    #[test]
    fn requests_wait_for_the_start_and_end_with_the_stop() {
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

    #[test]
    #[should_panic(expected = "the host ends once")]
    fn a_second_end_is_refused() {
        let life = Life::default();
        life.end(Ok(0));
        life.end(Ok(1));
    }
}
