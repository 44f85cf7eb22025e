//! State shared by the connections of a server.

use std::sync::Arc;

use crate::counters::Counters;
use crate::export::Export;
use crate::limits::Limits;

/// State shared by connections. Cheap to clone; each thread has one.
#[derive(Clone, Debug)]
pub struct Service {
    /// The export.
    pub export: Arc<Export>,
    /// The maxima.
    pub limits: Limits,
    /// Where requests are counted; best one per thread.
    pub counters: Arc<Counters>,
}
