//! Defects on purpose, for one test: that the simulation of crashes finds them.
//!
//! Each is one line at its site, `planted(PlantedBug::..)`, which is `false` at compile time unless the feature
//! `planted-bugs` is on, and false at run time unless the thread has asked for that bug with [`plant`]. To add one:
//! a variant here, a line at the site, a line in the table of `docs/testing.md`; the test goes through
//! [`PlantedBug::ALL`].

/// What can be wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A fragment's checksum is not compared.
    ChecksumNotCompared,
    /// Data that a write has overtaken is stored all the same.
    StaleAdmission,
    /// A write bumps versions before it, not after it.
    ClockTickedOnce,
    /// A read joins another that a write has overtaken.
    OvertakenReadJoined,
    /// A write leaves the old copy in the index.
    RetireSkipped,
    /// A trim leaves the old copy in the index.
    TrimKeepsCopy,
    /// Parts of a block that are not known are stored as if they were.
    UnknownPartsStored,
    /// Writes of one block are not kept apart.
    RangeLockSkipped,
    /// A flush is answered and not sent to the origin.
    FlushNotSent,
    /// One flush in 200 is answered and not sent to the origin.
    FlushNotSentAtTimes,
    /// A write with FUA is sent without.
    FuaDropped,
    /// A trim with FUA is not flushed.
    TrimFuaDropped,
    /// A clean stop does not flush the origin.
    OriginNotFlushedAtStop,
    /// A cold start does not flush the origin.
    OriginNotFlushedAtStart,
    /// A clean stop marks the cache clean before it writes the index images.
    CleanBeforeImage,
    /// The mark that the cache is open is not flushed.
    OpenMarkNotFlushed,
    /// A fenced cache is marked void after the index images of the other shards are written.
    VoidedAfterSave,
    /// A cache is marked dirty before the origin is known to take a flush.
    DirtyMarkedEarly,
    /// An extent is read from memory after it has landed, whatever has become of its region.
    ExtentOutlivesRegion,
    /// A region is discarded while it is read.
    RegionNotPinned,
    /// A new version goes to any ring, not to that of the old copy.
    RingOfOldIgnored,
    /// A dropped block leaves no tombstone.
    TombstoneNotWritten,
    /// A write goes to the origin before its intent is on the medium.
    IntentNotSet,
    /// An intent is written and not made stable.
    IntentNotStable,
    /// What is written goes to the log before the origin has it.
    StoredBeforeOrigin,
    /// An intent is cleared before the origin is flushed.
    IntentClearedUnflushed,
    /// An intent is cleared before the log is stable.
    IntentClearedBeforeLog,
    /// An intent of a watched stripe is cleared, and what the origin begins with is not noted.
    OriginNotNoted,
    /// What the origin begins with is compared after a crash, whether or not clients were writing there.
    OriginComparedIntended,
    /// Recovery keeps the blocks of stripes with writes in flight.
    IntendedKept,
    /// Recovery takes records over in another order than that in which they were written.
    RecordsOutOfOrder,
    /// Recovery pays no heed to tombstones.
    TombstonesForgotten,
    /// The manifest does not say that a reclaimed region is free.
    RegionNotVoided,
    /// The manifest does not say that a region is being reclaimed.
    ReclaimNotMarked,
    /// Recovery keeps clean blocks of a region that was being reclaimed.
    ReclaimedKept,
    /// The manifest says that a region is full before its extents are stable.
    FullUnflushed,
    /// An extent is sent before the manifest has its region.
    ExtentBeforeManifest,
    /// A dirty block is recorded as a clean one.
    DirtyStoredClean,
    /// A write-back write is acknowledged before its extents have landed.
    AcknowledgedBeforeLanding,
    /// A write-back write with FUA does not flush the cache device.
    DirtyFuaDropped,
    /// A flush is not sent to the cache device, dirty blocks or not.
    DirtyFlushNotSent,
    /// No page is written to say how far the log is stable.
    StableMarkSkipped,
    /// The damaged copy of a dirty block is taken for a miss.
    DirtyDamageIsAMiss,
    /// The writeback worker writes what the cache device could still lose.
    CleanedBeforeStable,
    /// A block counts as clean before the origin is flushed.
    CleanedUnflushed,
    /// A write goes past the cache before it is stable that an older version of the block was cleaned.
    CleanedNotSettled,
    /// A region with dirty blocks is made void before their copies elsewhere are stable.
    DirtyVoidedUnstable,
    /// Reclaim drops dirty blocks.
    ReclaimedBeforeClean,
    /// Recovery drops dirty blocks of stripes with writes in flight.
    IntendedDirtyDropped,
    /// Recovery pays no heed to records that say a block was cleaned.
    CleanedForgotten,
}

impl PlantedBug {
    /// All that the test must find.
    pub const ALL: &[Self] = &[
        Self::ChecksumNotCompared,
        Self::StaleAdmission,
        Self::ClockTickedOnce,
        Self::OvertakenReadJoined,
        Self::RetireSkipped,
        Self::TrimKeepsCopy,
        Self::UnknownPartsStored,
        Self::RangeLockSkipped,
        Self::FlushNotSent,
        Self::FlushNotSentAtTimes,
        Self::FuaDropped,
        Self::TrimFuaDropped,
        Self::OriginNotFlushedAtStop,
        Self::CleanBeforeImage,
        Self::OpenMarkNotFlushed,
        Self::ExtentOutlivesRegion,
        Self::TombstoneNotWritten,
        Self::IntentNotSet,
        Self::IntentNotStable,
        Self::IntentClearedUnflushed,
        Self::IntentClearedBeforeLog,
        Self::OriginNotNoted,
        Self::OriginComparedIntended,
        Self::IntendedKept,
        Self::RecordsOutOfOrder,
        Self::TombstonesForgotten,
        Self::RegionNotVoided,
        Self::FullUnflushed,
        Self::ExtentBeforeManifest,
        Self::DirtyStoredClean,
        Self::AcknowledgedBeforeLanding,
        Self::DirtyFuaDropped,
        Self::DirtyFlushNotSent,
        Self::StableMarkSkipped,
        Self::DirtyDamageIsAMiss,
        Self::CleanedBeforeStable,
        Self::CleanedUnflushed,
        Self::CleanedNotSettled,
        Self::DirtyVoidedUnstable,
        Self::ReclaimedBeforeClean,
        Self::IntendedDirtyDropped,
        Self::CleanedForgotten,
    ];

    /// Whether it concerns write-back alone.
    #[must_use]
    pub fn is_of_write_back(self) -> bool {
        matches!(
            self,
            Self::DirtyStoredClean
                | Self::AcknowledgedBeforeLanding
                | Self::DirtyFuaDropped
                | Self::DirtyFlushNotSent
                | Self::StableMarkSkipped
                | Self::DirtyDamageIsAMiss
                | Self::CleanedBeforeStable
                | Self::CleanedUnflushed
                | Self::CleanedNotSettled
                | Self::DirtyVoidedUnstable
                | Self::ReclaimedBeforeClean
                | Self::IntendedDirtyDropped
                | Self::CleanedForgotten
        )
    }

    /// Too rare for that test. `OriginNotFlushedAtStart`: a cache must be given up, opened again, killed and lose its
    /// power, in this order. `RingOfOldIgnored`: the newer record's region must be reclaimed before the older one's.
    /// `RegionNotPinned`: a region must be reclaimed while a read of it is held up.
    /// `ReclaimNotMarked`, `ReclaimedKept`: a block must be dropped by a reclaim, be written, and its intent cleared, before that reclaim ends.
    /// `StoredBeforeOrigin`: does no harm behind an intent, as long as that is kept. `VoidedAfterSave`: neither the device nor
    /// the host must take the fence mark, and the power be cut in a stop. `DirtyMarkedEarly`: does no harm to data.
    pub const RARE: &[Self] = &[
        Self::OriginNotFlushedAtStart,
        Self::RingOfOldIgnored,
        Self::RegionNotPinned,
        Self::ReclaimNotMarked,
        Self::ReclaimedKept,
        Self::StoredBeforeOrigin,
        Self::VoidedAfterSave,
        Self::DirtyMarkedEarly,
    ];
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
    static TURNS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// From now on this thread has the bug, and no other.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<PlantedBug>) {
    PLANTED.set(bug);
    TURNS.set(0);
}

/// Whether this thread has the bug.
#[cfg(feature = "planted-bugs")]
pub(crate) fn planted(bug: PlantedBug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether this thread has the bug.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn planted(_bug: PlantedBug) -> bool {
    false
}

/// Whether this thread has the bug, once in `turns` calls.
#[cfg(feature = "planted-bugs")]
pub(crate) fn planted_once_in(turns: u64, bug: PlantedBug) -> bool {
    if !planted(bug) {
        return false;
    }
    TURNS.set(TURNS.get() + 1);
    TURNS.get().is_multiple_of(turns)
}

/// Whether this thread has the bug, once in `turns` calls.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn planted_once_in(_turns: u64, _bug: PlantedBug) -> bool {
    false
}
