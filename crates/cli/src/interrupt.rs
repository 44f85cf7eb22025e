//! Signals that end a command early, in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Failure;

/// Whether a signal has asked the command to end.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on, the first of these signals asks to end, and the second ends the process at once.
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

    /// Whether the command is to end.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
