//! The region that is being reclaimed, and the region that takes the moved blocks.

/// Regions of a reclaim. They outlive it: a reclaim that could not be finished, now or before a crash, keeps them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReclaimedRegions {
    /// The region whose blocks are being dropped and moved.
    pub(super) victim: Option<u32>,
    /// Nothing in the victim counts any more: the manifest must mark it free.
    pub(super) emptied: bool,
    /// The last free region, which takes the blocks moved from the victim. Its contents do not count while the victim's do,
    /// so a crash leaves it free: there is always space to finish a reclaim.
    pub(super) recovering: Option<u32>,
    /// It counts from the next write of the manifest on. Until the victim is free, clients append nothing to it, even if other
    /// regions have become free.
    pub(super) settling: bool,
}
