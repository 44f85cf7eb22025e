//! Signals that cancel a command.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Failure;

/// Set by a signal that cancels the command.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs handlers: the first of these signals cancels the command, the second ends the process.
    ///
    /// # Errors
    /// The system refuses.
    pub fn by(signals: &[i32]) -> Result<Self, Failure> {
        let asked = Arc::new(AtomicBool::new(false));
        let failed = || Failure::system("installing the signal handlers");
        for signal in signals {
            signal_hook::flag::register_conditional_shutdown(*signal, 128 + signal, Arc::clone(&asked))
                .map_err(failed())?;
            signal_hook::flag::register(*signal, Arc::clone(&asked)).map_err(failed())?;
        }
        Ok(Self(asked))
    }

    /// Whether a signal has canceled the command.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
