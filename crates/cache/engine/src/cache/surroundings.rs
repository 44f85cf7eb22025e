//! The surroundings of a cache: devices, time, host records.

use std::rc::Rc;

use crate::host_record::HostRecords;
use crate::shard::Platform;

/// The surroundings of a cache.
pub struct Surroundings<P: Platform> {
    /// Time and tasks.
    pub env: P::Env,
    /// The cache device.
    pub cache: Rc<P::Cache>,
    /// The origin.
    pub origin: Rc<P::Origin>,
    /// Where host records are kept, if the host keeps any.
    pub host_records: Option<Rc<dyn HostRecords>>,
}

impl<P: Platform> Clone for Surroundings<P> {
    fn clone(&self) -> Self {
        Self {
            env: self.env.clone(),
            cache: Rc::clone(&self.cache),
            origin: Rc::clone(&self.origin),
            host_records: self.host_records.clone(),
        }
    }
}
