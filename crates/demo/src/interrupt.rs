//! Ctrl-C and SIGTERM: the first one requests a stop, the second one ends the program at once.
//!
//! Invariants: a signal is never lost; a child registered here never outlives the program; a pid is only signalled
//! before its child was reaped (both happen under one lock), so no other process is ever killed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::error::DemoError;

/// Interval at which waiting code checks for a stop request.
pub const POLL: Duration = Duration::from_millis(20);
/// How long the second signal continues to remove files that other threads create in the directory.
const ABANDON_MAX: Duration = Duration::from_secs(5);

/// Shared by all code that may have to stop. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    stopping: AtomicBool,
    left_behind: Mutex<LeftBehind>,
}

/// What the second signal must clean up.
#[derive(Debug, Default)]
struct LeftBehind {
    children: BTreeMap<u32, Child>,
    folder: Option<PathBuf>,
}

impl Interrupt {
    /// Whether a stop was requested.
    pub fn raised(&self) -> bool {
        self.state.stopping.load(Ordering::Relaxed)
    }

    /// Requests a stop, as the first signal does.
    pub fn raise(&self) {
        self.state.stopping.store(true, Ordering::Relaxed);
    }

    /// For `?` in every loop.
    ///
    /// # Errors
    /// [`DemoError::Interrupted`] after a signal has arrived.
    pub fn check(&self) -> Result<(), DemoError> {
        if self.raised() {
            Err(DemoError::Interrupted)
        } else {
            Ok(())
        }
    }

    /// Sleeps for `time` or until a signal arrives.
    ///
    /// # Errors
    /// [`DemoError::Interrupted`] if one arrived.
    pub fn sleep(&self, time: Duration) -> Result<(), DemoError> {
        let until = Instant::now() + time;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(POLL));
        }
    }

    /// Registers a child; returns its pid.
    pub fn adopt(&self, child: Child) -> u32 {
        let pid = child.id();
        self.left_behind().children.insert(pid, child);
        pid
    }

    /// Calls a function with a registered child, under the lock; `None` if it was released.
    pub fn with_child<T>(&self, pid: u32, act: impl FnOnce(&mut Child) -> T) -> Option<T> {
        self.left_behind().children.get_mut(&pid).map(act)
    }

    /// Kills and reaps a child, if it still exists.
    pub fn finish(&self, pid: u32) {
        let mut left_behind = self.left_behind();
        if let Some(child) = left_behind.children.get_mut(&pid) {
            end(child);
        }
        left_behind.children.remove(&pid);
    }

    /// The directory to remove on the second signal.
    pub fn remember_folder(&self, folder: Option<PathBuf>) {
        self.left_behind().folder = folder;
    }

    fn left_behind(&self) -> MutexGuard<'_, LeftBehind> {
        // A poisoned lock still protects complete values: nothing here is half done when a panic passes.
        self.state
            .left_behind
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills all children and removes the directory. Other threads of this program continue meanwhile; the directory is
    /// renamed first, so that they cannot create more files in it.
    fn abandon(&self) {
        let mut left_behind = self.left_behind();
        left_behind.children.values_mut().for_each(end);
        let Some(folder) = &left_behind.folder else {
            return;
        };
        let mut name = folder.clone().into_os_string();
        name.push(".removed");
        let renamed = PathBuf::from(name);
        let folder = match std::fs::rename(folder, &renamed) {
            Ok(()) => &renamed,
            Err(_) => folder,
        };
        let give_up = Instant::now() + ABANDON_MAX;
        // A file that is being created may appear after the directory was emptied. There is nobody to report a failure
        // to, except by the exit status.
        while std::fs::remove_dir_all(folder).is_err() && folder.exists() && Instant::now() < give_up {
            std::thread::sleep(POLL);
        }
    }
}

fn end(child: &mut Child) {
    // Both fail only if the child was already reaped.
    let _ = child.kill();
    let _ = child.wait();
}

/// Handles the signals while it lives.
#[derive(Debug)]
pub struct SignalWatch {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl SignalWatch {
    /// Begins to handle SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// The system refuses the handlers or the thread.
    pub fn start(interrupt: &Interrupt) -> Result<Self, DemoError> {
        let failed = |what| DemoError::file(what, "signal handlers");
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed("install"))?;
        let handle = signals.handle();
        let interrupt = interrupt.clone();
        let thread = std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    if interrupt.raised() {
                        interrupt.abandon();
                        std::process::exit(128 + signal);
                    }
                    interrupt.raise();
                }
            })
            .map_err(failed("start the thread for"))?;
        Ok(Self {
            handle,
            thread: Some(thread),
        })
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It can only have panicked in `exit`, which does not return.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_raised_interrupt_ends_a_sleep() {
        let interrupt = Interrupt::default();
        assert!(interrupt.sleep(Duration::from_millis(1)).is_ok());
        interrupt.raise();
        let start = Instant::now();
        assert!(matches!(
            interrupt.sleep(Duration::from_secs(60)),
            Err(DemoError::Interrupted)
        ));
        assert!(start.elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn abandoning_removes_files_created_meanwhile() {
        for _ in 0..20 {
            let interrupt = Interrupt::default();
            let folder = tempfile::tempdir().expect("a temporary folder").keep();
            interrupt.remember_folder(Some(folder.clone()));
            let writer = std::thread::spawn({
                let folder = folder.clone();
                move || {
                    for number in 0_u64.. {
                        let run = folder.join(number.to_string());
                        if std::fs::create_dir(&run).is_err() {
                            return;
                        }
                        // The process may have ended already.
                        let _ = std::fs::write(run.join("file"), b"x");
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(5));
            interrupt.abandon();
            assert!(!folder.exists());
            writer.join().expect("it ends when the folder is gone");
        }
    }

    #[test]
    fn abandoning_kills_children_and_removes_the_folder() {
        let interrupt = Interrupt::default();
        let folder = tempfile::tempdir().expect("a temporary folder").keep();
        std::fs::write(folder.join("file"), b"x").expect("a file in it");
        let child = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let pid = interrupt.adopt(child);
        interrupt.remember_folder(Some(folder.clone()));
        interrupt.abandon();
        assert!(!folder.exists());
        let status = interrupt
            .with_child(pid, Child::try_wait)
            .expect("still listed")
            .expect("waitable");
        assert!(status.is_some(), "the child still runs");
        interrupt.finish(pid);
        assert!(interrupt.with_child(pid, |_| ()).is_none());
    }
}
