//! The region that is being reclaimed, and the one that takes what is moved.

/// Regions that a reclaim is about. They outlive it: one that could not be finished, now or before a crash, stays.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReclaimedRegions {
    /// Its blocks are being dropped and moved.
    pub(super) victim: Option<u32>,
    /// Nothing in the victim counts any more: the manifest is to say that it is free.
    pub(super) emptied: bool,
    /// The last free region, which takes what is moved from the victim. Nothing of it counts while the victim does, so that a
    /// crash leaves it free: there is always room to finish a reclaim.
    pub(super) recovering: Option<u32>,
}
