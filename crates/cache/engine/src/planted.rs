//! Deliberate defects, for one test: that the crash simulation finds them.
//!
//! Each is one line at its site, `planted(PlantedBug::..)`, which is `false` at compile time unless the feature
//! `planted-bugs` is on, and false at run time unless the thread has enabled that bug with [`plant`]. To add one: a variant
//! here, a line at the site, a line in the table of `docs/testing.md`; the test iterates over [`PlantedBug::ALL`].

/// The deliberate defects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A fragment's checksum is not compared.
    ChecksumNotCompared,
    /// Data that a write has overtaken is stored anyway.
    StaleAdmission,
    /// A write bumps versions only before it, not after it.
    ClockTickedOnce,
    /// A read joins another that a write has overtaken.
    OvertakenReadJoined,
    /// A damaged fragment is compressed again, with a correct checksum.
    RepackedDamaged,
    /// The record of a group that moves as it is names all of its blocks, also those that were written or dropped since.
    DeadMemberMoved,
    /// The record of a new group names a block that was written or dropped while the group was compressed.
    OvertakenMemberGrouped,
    /// A block that was read is stored again although a write has overtaken it, which matters only with [`hit_bound`].
    UndoneOvertaken,
    /// A write leaves the old copy in the index.
    RetireSkipped,
    /// A trim leaves the old copy in the index.
    TrimKeepsCopy,
    /// Unknown parts of a block are stored as if they were known.
    UnknownPartsStored,
    /// Writes of one block are not serialised.
    RangeLockSkipped,
    /// An admission uses the index page of its block without loading it, which matters only with [`page_index`].
    PageNotLoaded,
    /// The checksum of an index page is not compared.
    PageNotCompared,
    /// Blocks whose index pages cannot be read are not dirty for a reclaim, and it drops what is left of its region.
    UnreadCountsAsClean,
    /// An index page leaves memory before its changes are written.
    ChangedPageEvicted,
    /// The changes of an evicted index page that stay in memory lack the removed blocks.
    DeferredRemovalLost,
    /// An index page is loaded without its changes on the device.
    StoredChangesSkipped,
    /// Changes of an index page that are written with those of its neighbours lack what was in memory.
    MovedChangesLost,
    /// A rebuilt index page has blocks that were removed, and whose tombstones are not in the log yet.
    RebuiltWithRemoved,
    /// A rebuilt index page has clean blocks of a region that all blocks have left.
    RebuiltFromLeft,
    /// A dictionary takes the number of one that blocks still need.
    DictionaryReplaced,
    /// An index page is rebuilt without the records that are only in memory.
    RebuiltFromDevice,
    /// A clean stop keeps an image of index pages before their changes are written.
    ImageOfOldPages,
    /// A lookup finds an index entry whose region was freed since.
    RetiredEntryFound,
    /// A lookup without the page of its block finds an entry whose region was freed since.
    RetiredEntryCached,
    /// A lookup without the page of its block finds the entry that the block had before.
    OldEntryCached,
    /// An entry is added to an index page that has entries of regions that were freed since.
    PageNotChecked,
    /// All blocks of a region leave a paged index before its dirty blocks are moved.
    RetiredEarly,
    /// The slot of an index page counts as free while the directory names it.
    SlotFreedEarly,
    /// A flush is acknowledged and not sent to the origin.
    FlushNotSent,
    /// One flush in 200 is acknowledged and not sent to the origin.
    FlushNotSentAtTimes,
    /// A write with FUA is sent without FUA.
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
    /// The superblock says that a cache is smaller before its last regions are free.
    ShrunkEarly,
    /// The space of a region is given back before the manifest says that it is free.
    ChunkGivenBackEarly,
    /// A cache is marked dirty before the origin is known to accept a flush.
    DirtyMarkedEarly,
    /// The size of an origin that has grown is not stored.
    GrowthNotStored,
    /// An extent is read from memory after it has landed, even if its region was reused.
    ExtentOutlivesRegion,
    /// A region is discarded while it is read.
    RegionNotPinned,
    /// A new version goes to any ring, not the ring of the old copy.
    RingOfOldIgnored,
    /// A dropped block leaves no tombstone.
    TombstoneNotWritten,
    /// A write goes to the origin before its intent is on the device.
    IntentNotSet,
    /// An intent is written and not made stable.
    IntentNotStable,
    /// Written data is appended to the log before the origin has it.
    StoredBeforeOrigin,
    /// An intent is cleared before the origin is flushed.
    IntentClearedUnflushed,
    /// An intent is cleared before the log is stable.
    IntentClearedBeforeLog,
    /// An intent of a watched stripe is cleared, and the origin's fingerprint is not recorded.
    OriginNotNoted,
    /// The origin's fingerprint is compared after a crash even if clients were writing to its stripes.
    OriginComparedIntended,
    /// Recovery keeps the blocks of stripes with writes in flight.
    IntendedKept,
    /// Recovery applies records in a different order than they were written.
    RecordsOutOfOrder,
    /// Recovery takes over an extent of which only the header has landed.
    TornExtentCounts,
    /// Recovery ignores tombstones.
    TombstonesForgotten,
    /// The manifest does not mark a reclaimed region free.
    RegionNotVoided,
    /// The manifest does not mark a region as being reclaimed.
    ReclaimNotMarked,
    /// Recovery keeps clean blocks of a region that was being reclaimed.
    ReclaimedKept,
    /// The manifest marks a region full before its extents are stable.
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
    /// Marks of the stable length are not written to the manifest.
    StableMarkSkipped,
    /// A damaged copy of a dirty block counts as a miss.
    DirtyDamageIsAMiss,
    /// The writeback worker writes data that is not stable on the cache device.
    CleanedBeforeStable,
    /// A block counts as clean before the origin is flushed.
    CleanedUnflushed,
    /// A write bypasses the cache before the *cleaned* record of an older version of the block is stable.
    CleanedNotSettled,
    /// A region with dirty blocks is voided before their copies elsewhere are stable.
    DirtyVoidedUnstable,
    /// Reclaim drops dirty blocks.
    ReclaimedBeforeClean,
    /// Recovery drops dirty blocks of stripes with writes in flight.
    IntendedDirtyDropped,
    /// Recovery ignores *cleaned* records.
    CleanedForgotten,
    /// A pass of recovery keeps blocks of which it has dropped records, which matters only with [`recover_by_passes`].
    PassEndsLate,
    /// A recovery applies the changes of a block from two sorted runs in the wrong order. Matters only with [`recover_by_passes`].
    OlderRunWins,
}

impl PlantedBug {
    /// The defects that the test must find.
    pub const ALL: &[Self] = &[
        Self::ChecksumNotCompared,
        Self::StaleAdmission,
        Self::ClockTickedOnce,
        Self::OvertakenReadJoined,
        Self::DeadMemberMoved,
        Self::OvertakenMemberGrouped,
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
        Self::ShrunkEarly,
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
        Self::TornExtentCounts,
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
        Self::PassEndsLate,
    ];

    /// Whether it affects only write-back.
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
                | Self::TornExtentCounts
                | Self::CleanedForgotten
                | Self::PassEndsLate
        )
    }

    /// Whether it affects only groups.
    #[must_use]
    pub fn is_of_groups(self) -> bool {
        matches!(self, Self::DeadMemberMoved | Self::OvertakenMemberGrouped)
    }

    /// Too rare for that test. `OriginNotFlushedAtStart`: a cache must be discarded, opened again, killed and lose power,
    /// in this order. `RingOfOldIgnored`: the newer record's region must be reclaimed before the older one's.
    /// `RegionNotPinned`: a region must be reclaimed while a read of it is delayed. `ReclaimNotMarked`, `ReclaimedKept`: a
    /// block must be dropped by a reclaim, be written, and its intent cleared, before that reclaim ends.
    /// `StoredBeforeOrigin`: harmless behind an intent, as long as that is kept. `VoidedAfterSave`: both the device and the
    /// host must fail to take the fence mark, and the power be cut during a stop. `DirtyMarkedEarly`: harmless to data.
    /// `GrowthNotStored`: the origin grows in a test of its own only. `ChunkGivenBackEarly`: so do volumes share a device (found by
    /// the tests of `flaz-pool`).
    pub const RARE: &[Self] = &[
        Self::OriginNotFlushedAtStart,
        Self::RingOfOldIgnored,
        Self::RegionNotPinned,
        Self::ReclaimNotMarked,
        Self::ReclaimedKept,
        Self::StoredBeforeOrigin,
        Self::VoidedAfterSave,
        Self::DirtyMarkedEarly,
        Self::GrowthNotStored,
        Self::ChunkGivenBackEarly,
    ];
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
    static TURNS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// From now on this thread has the defect, and no other.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<PlantedBug>) {
    PLANTED.set(bug);
    TURNS.set(0);
}

/// Whether this thread has the defect.
#[cfg(feature = "planted-bugs")]
pub(crate) fn planted(bug: PlantedBug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether this thread has the defect.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn planted(_bug: PlantedBug) -> bool {
    false
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static INDEX_PAGED: std::cell::Cell<bool> = std::cell::Cell::new(std::env::var_os("FLAZ_INDEX_PAGED").is_some());
}

/// From now on the caches that this thread creates have an area for index pages, and its shards an index of small pages of which few are
/// in memory, and a table that must agree with it. No defect. In the environment, `FLAZ_INDEX_PAGED` does it for all threads.
#[cfg(feature = "planted-bugs")]
pub fn page_index(paged: bool) {
    INDEX_PAGED.set(paged);
}

/// Whether shards have an index of small pages.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_index_paged() -> bool {
    INDEX_PAGED.get()
}

/// Whether shards have an index of small pages.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is_index_paged() -> bool {
    false
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static HIT_BOUND: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// From now on the shards of this thread store some of the blocks that are read with less compression, as if there were only hits, while
/// reclaim compresses others, as if there were not. No defect.
#[cfg(feature = "planted-bugs")]
pub fn hit_bound(bound: bool) {
    HIT_BOUND.set(bound);
}

/// Whether some blocks that are read are stored with less compression.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_hit_bound() -> bool {
    HIT_BOUND.get()
}

/// Whether some blocks that are read are stored with less compression.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is_hit_bound() -> bool {
    false
}

#[cfg(any(test, feature = "planted-bugs"))]
thread_local! {
    static RECOVERY_ENTRIES_MAX: std::cell::Cell<Option<usize>> = std::cell::Cell::new(
        std::env::var("FLAZ_RECOVERY_ENTRIES").ok().and_then(|number| number.parse().ok()),
    );
}

/// From now on the shards of this thread recover by passes of so many entries, as if their index were larger than the memory for it. No
/// defect. In the environment, `FLAZ_RECOVERY_ENTRIES` does it for all threads.
#[cfg(any(test, feature = "planted-bugs"))]
pub fn recover_by_passes(entries_max: Option<usize>) {
    RECOVERY_ENTRIES_MAX.set(entries_max);
}

#[cfg(any(test, feature = "planted-bugs"))]
pub(crate) fn recovery_entries_max() -> Option<usize> {
    RECOVERY_ENTRIES_MAX.get()
}

/// Entries of a pass of recovery. `None`: all that the index has.
#[cfg(not(any(test, feature = "planted-bugs")))]
pub(crate) const fn recovery_entries_max() -> Option<usize> {
    None
}

/// Whether this thread has the defect, once in `turns` calls.
#[cfg(feature = "planted-bugs")]
pub(crate) fn planted_once_in(turns: u64, bug: PlantedBug) -> bool {
    if !planted(bug) {
        return false;
    }
    TURNS.set(TURNS.get() + 1);
    TURNS.get().is_multiple_of(turns)
}

/// Whether this thread has the defect, once in `turns` calls.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn planted_once_in(_turns: u64, _bug: PlantedBug) -> bool {
    false
}
