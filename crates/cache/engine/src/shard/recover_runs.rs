//! I/O of the external merge sort in a recovery: writes sorted runs to free index slots, and merges them into the index.
//!
//! Invariants:
//! - Runs use only slots that hold no index page. No later recovery reads them.
//! - A failed write or read of a run costs time, but no entries: changes that were not written stay in memory, and another pass computes the
//!   entries after a failed read.
//! - The slots of a failed write or read are not used again.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use flaz_device::Env;

use super::errors::RecoverError;
use super::manifest_reader::Manifest;
use super::recover_records::Progress;
use super::{Platform, Shard};
use crate::format::group::GROUP_BLOCKS_MAX;
use crate::format::manifest::RegionUse;
use crate::index::{CHUNK_SLOTS, Entry, Pass, Step};
use crate::planted::{PlantedBug, planted};
use crate::units::LocalBlock;

/// Entries added to the index at a time.
const RUN_ENTRIES: usize = 8 << 10;
/// Attempts to read pages of a run.
const READ_TRIES: u32 = 2;
/// Maximum number of failed writes and reads; beyond it, no more runs are written.
const FAILED_WRITES_MAX: u32 = 4;
const FAILED_READS_MAX: u32 = 3;
/// Pause after a failed write.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Failures so far, which decide whether more runs are written.
#[derive(Debug, Default)]
pub(super) struct Runs {
    failed_writes: u32,
    failed_reads: u32,
}

impl Runs {
    fn are_written(&self) -> bool {
        self.failed_writes < FAILED_WRITES_MAX && self.failed_reads < FAILED_READS_MAX
    }
}

/// What the entries of a pass change besides the index.
pub(super) struct HandOver<'a> {
    pub(super) manifest: &'a Manifest,
    /// Live counts of the regions.
    pub(super) live: &'a mut [u32],
    /// Pages of the intent bitmap with new intents.
    pub(super) assumed: BTreeSet<u64>,
}

impl<P: Platform> Shard<P> {
    /// Writes the changes of a pass as a run, if slots are free and it saves memory. `is_last`: no changes follow.
    pub(super) async fn write_run(&self, pass: &mut Pass, runs: &mut Runs, is_last: bool) {
        self.return_chunks(pass.take_dropped());
        if !runs.are_written() {
            return;
        }
        let mut lent = self.map.lend_chunk();
        let page_bytes = self.map.run_plan().page_bytes;
        if lent.is_none() || !pass.begin_run(is_last) {
            self.return_chunks(lent);
            return;
        }
        while let Some(chunk) = pass.next_chunk()
            && let Some(slot) = lent.take()
        {
            match self.cache.write_pages(slot, page_bytes, &chunk).await {
                Ok(()) => pass.chunk_written(slot),
                Err(error) => {
                    runs.failed_writes += 1;
                    tracing::warn!(shard = self.id.number, %error, "a sorted run of the recovery cannot be written; the recovery may take longer");
                    self.env.sleep(RETRY_PAUSE).await;
                }
            }
            lent = runs.are_written().then(|| self.map.lend_chunk()).flatten();
        }
        self.return_chunks(lent);
        pass.end_run();
    }

    fn return_chunks(&self, chunks: impl IntoIterator<Item = u32>) {
        chunks.into_iter().for_each(|chunk| self.map.return_chunk(chunk));
    }

    /// Merges the runs of a pass into the index. Returns the block at which the next pass begins: the end of this pass, or the first block
    /// without entries if a run cannot be read.
    ///
    /// # Errors
    /// Pages of the index cannot be read or written.
    pub(super) async fn hand_over(
        &self,
        pass: &mut Pass,
        runs: &mut Runs,
        over: &mut HandOver<'_>,
        progress: &mut Progress<impl Fn()>,
    ) -> Result<LocalBlock, RecoverError> {
        let range = pass.range();
        let outcome = self.merge_runs(pass, over, progress).await;
        let mut chunks = pass.take_chunks();
        if let Err(MergeError::Run { slots, .. }) = &outcome {
            chunks.retain(|chunk| !(*chunk..chunk + CHUNK_SLOTS).contains(&slots.start));
        }
        self.return_chunks(chunks);
        match outcome {
            Ok(()) => Ok(range.end),
            Err(MergeError::Run { from, what, .. }) => {
                let shard = self.id.number;
                tracing::warn!(
                    shard,
                    what,
                    "a sorted run of the recovery cannot be read; the recovery takes longer"
                );
                runs.failed_reads += 1;
                Ok(from)
            }
            Err(MergeError::Index(what)) => Err(RecoverError::Damaged {
                shard: self.id.number,
                what,
            }),
        }
    }

    async fn merge_runs(
        &self,
        pass: &mut Pass,
        over: &mut HandOver<'_>,
        progress: &mut Progress<impl Fn()>,
    ) -> Result<(), MergeError> {
        let (range, page_bytes) = (pass.range(), self.map.run_plan().page_bytes);
        let (mut merge, mut some) = (pass.merge(), Vec::with_capacity(RUN_ENTRIES));
        // The index has all entries below this block.
        let mut from = range.start;
        loop {
            match merge.step() {
                Step::Entry(block, entry) => {
                    let group = LocalBlock(block.0 - block.0 % GROUP_BLOCKS_MAX as u64);
                    if some.len() >= RUN_ENTRIES && some.last().is_some_and(|(last, _)| *last < group) {
                        self.append_entries(&some, over).await?;
                        some.clear();
                        from = group;
                        progress.handed_over(&range, from);
                    }
                    some.push((block, entry));
                }
                Step::Read(slots) => {
                    let mut supplied = Err(String::new());
                    for _ in 0..READ_TRIES {
                        if supplied.is_err() {
                            let read = self.cache.read_pages(slots.clone(), page_bytes).await;
                            supplied = read
                                .map_err(|error| error.to_string())
                                .and_then(|bytes| merge.supply(&bytes));
                        }
                    }
                    supplied.map_err(|what| MergeError::Run { from, slots, what })?;
                    while let Some(slot) = merge.take_free() {
                        self.map.return_chunk(slot);
                    }
                }
                Step::Done => return self.append_entries(&some, over).await,
            }
        }
    }

    /// Adds entries to the index, without the clean ones in a region that was being reclaimed: see [`Shard::drop_reclaimed`]. A block that
    /// looks dirty in a cache that has no dirty blocks is not: its *cleaned* record was not stable, or this record is forged. The origin has
    /// the right data, as with a clean block whose intent is set: so the intent is set.
    async fn append_entries(
        &self,
        some: &[(LocalBlock, Entry)],
        over: &mut HandOver<'_>,
    ) -> Result<(), MergeError> {
        let mut wanted = Vec::with_capacity(some.len());
        for (block, mut entry) in some.iter().copied() {
            let region = self.log.region_of(entry.location()) as usize;
            let reclaimed = over.manifest.entries[region].state == RegionUse::Reclaiming && !entry.dirty();
            if reclaimed && !planted(PlantedBug::ReclaimedKept) {
                continue;
            }
            if entry.dirty() && !self.id.may_be_dirty {
                over.assumed.insert(self.intents.assume_set(block));
                entry = entry.with_dirty(false);
            }
            over.live[region] += 1;
            wanted.push((block, entry));
        }
        let appended = self.map.append_sorted(&self.cache, &wanted).await;
        appended.map_err(|error| MergeError::Index(self.map.give_up(error)))
    }
}

/// Why a merge failed.
enum MergeError {
    /// A run cannot be read from these slots. Entries from block `from` on are missing.
    Run {
        from: LocalBlock,
        slots: Range<u32>,
        what: String,
    },
    /// Pages of the index cannot be read or written.
    Index(String),
}
