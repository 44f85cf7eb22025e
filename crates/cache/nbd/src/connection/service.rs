//! What the connections of a server have in common.

use std::sync::Arc;

use crate::counters::Counters;
use crate::export::Export;
use crate::limits::Limits;

/// What connections have in common; cheap to clone, one a thread.
#[derive(Clone, Debug)]
pub struct Service {
    /// What is served.
    pub export: Arc<Export>,
    /// The maxima.
    pub limits: Limits,
    /// Where requests are counted: one a thread is best.
    pub counters: Arc<Counters>,
}
