//! The surroundings of a cache: devices, time, host records.

use std::rc::Rc;
use std::sync::Arc;

use crate::host_record::HostRecords;
use crate::shard::Platform;
use crate::shared_budget::SharedBudget;

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
    /// The write budget that the caches on one device share.
    pub shared_budget: Option<Arc<SharedBudget>>,
}

impl<P: Platform> Clone for Surroundings<P> {
    fn clone(&self) -> Self {
        Self {
            env: self.env.clone(),
            cache: Rc::clone(&self.cache),
            origin: Rc::clone(&self.origin),
            host_records: self.host_records.clone(),
            shared_budget: self.shared_budget.clone(),
        }
    }
}
