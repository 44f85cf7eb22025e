//! Reading the cache device, and what follows from an error.

use std::rc::Rc;

use flaz_device::deadline::is_timeout;
use flaz_device::{DeviceError, IoBuf};

use super::{Platform, Shard};

impl<P: Platform> Shard<P> {
    /// Reads the sectors of the cache device that cover `len` bytes of this shard at `offset`, and tells where in
    /// them these begin.
    pub(super) async fn read_cache(
        self: &Rc<Self>,
        offset: u64,
        len: u64,
    ) -> Result<(IoBuf, usize), DeviceError> {
        self.read_cache_again(offset, len, false).await
    }

    /// The same. Where it is `known` that this cannot be read, a failure is no reason to fence the device, unless the read is
    /// late: it is tried again and again.
    pub(super) async fn read_cache_again(
        self: &Rc<Self>,
        offset: u64,
        len: u64,
        known: bool,
    ) -> Result<(IoBuf, usize), DeviceError> {
        let read = self.cache.read(offset, len).await;
        if let Err(error) = &read
            && (!known || is_timeout(error))
        {
            self.cache_error(error);
        }
        read
    }
}
