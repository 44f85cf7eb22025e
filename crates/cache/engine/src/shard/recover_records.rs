//! The part of recovery that turns the records of all regions into index entries.
//!
//! The changes of all extents are made in the order of their sequences, so the last record of a block wins. Usually they go to the index,
//! in batches. If the index does not fit in memory, they go to a [`Pass`], which sorts them on the device: see [`super::recover_runs`]. If the
//! sorted runs do not fit, several passes over all regions each compute the entries of a range of blocks. All passes see the same records: a full region must be complete whenever it is read. Of an open region one read may find more
//! than another, so its contents stay in memory from the first pass on.
//!
//! In memory are: the changes of a batch or of a pass; the contents of regions that are being read ([`SCANS_MAX`]), and of those with
//! extents that have not had their turn, of which there are two or three; those of the open regions, a few in each shard.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use flaz_device::Env;
use futures_util::stream::{StreamExt, iter};

use super::errors::RecoverError;
use super::manifest_reader::Manifest;
use super::map::BlockMap;
use super::recover::Recovered;
use super::recover_order::{Merge, Next};
use super::recover_runs::{HandOver, Runs};
use super::region_reader::{Found, Guess, RegionContents, located, read_region};
use super::{Platform, Shard};
use crate::format::extent::{Record, RecordKind};
use crate::format::manifest::{ManifestEntry, RegionUse};
use crate::index::{Bulk, Change, Entry, Pass};
use crate::planted::{self, PlantedBug, planted};
use crate::units::{LocalBlock, Location, Sequence};

/// Records inserted at a time, sorted by segment of the index, so that each segment stays in the processor's cache for
/// thousands of records.
const BATCH_RECORDS: usize = 256 << 10;
/// Regions read concurrently.
const SCANS_MAX: usize = 8;
/// Bytes of a stored block, up to which there is room for an index entry from the beginning.
const BLOCK_BYTES_MIN: u64 = 2048;

/// A region in use, whose records have been taken over.
pub(super) struct InUse {
    pub(super) number: u32,
    pub(super) entry: ManifestEntry,
    pub(super) used: u32,
    pub(super) last_sequence: Sequence,
    /// The contents of an open region: it must be closed or freed in the manifest.
    pub(super) open: Option<Rc<RegionContents>>,
}

impl InUse {
    fn new(number: u32, entry: ManifestEntry, contents: &Rc<RegionContents>) -> Self {
        let last = contents.last_sequence().unwrap_or_default();
        let is_open = entry.state == RegionUse::Open;
        Self {
            number,
            entry,
            used: contents.used,
            last_sequence: last.max(entry.generation),
            open: is_open.then(|| Rc::clone(contents)),
        }
    }
}

/// The regions in use, in the order of their generations.
fn regions_in_use(manifest: &Manifest) -> Vec<(u32, ManifestEntry)> {
    let mut regions: Vec<_> = (0..).zip(manifest.entries.iter().copied()).collect();
    regions.retain(|(_, entry)| !matches!(entry.state, RegionUse::Free | RegionUse::Recovering));
    regions.sort_by_key(|(_, entry)| entry.generation);
    regions
}

/// Changes of an empty index, made in batches.
struct Batches<'a> {
    map: &'a BlockMap,
    bulk: Bulk,
    /// Bytes of all regions, and of those that were read.
    bytes: u64,
    bytes_read: u64,
}

impl Batches<'_> {
    fn apply(&mut self) {
        if self.map.len() == 0 {
            self.map.reserve(self.expected());
        }
        self.map.apply(&mut self.bulk);
    }

    /// About as many changes as there will be, by the regions so far. Memory is taken for them, so not more than blocks that take
    /// half of their size; where there are more, the index grows.
    fn expected(&self) -> usize {
        let changes = self.bulk.len() as u64;
        let all = u128::from(changes) * u128::from(self.bytes) / u128::from(self.bytes_read.max(1));
        let most = u128::from(self.bytes / BLOCK_BYTES_MIN);
        all.min(most).max(changes.into()) as usize
    }
}

/// Where changes go.
enum Changes<'a> {
    Index(Batches<'a>),
    Pass(&'a mut Pass, &'a mut Runs),
}

impl Changes<'_> {
    /// Whether changes of a block, and of others in its group, are not ignored.
    fn want(&self, block: LocalBlock) -> bool {
        match self {
            Self::Index(_) => true,
            Self::Pass(pass, _) => pass.range().contains(&block),
        }
    }

    fn push(&mut self, block: LocalBlock, change: Change) {
        match self {
            Self::Index(batches) => batches.bulk.push(block, change),
            Self::Pass(pass, _) => pass.push(block, change),
        }
    }

    /// The blocks of a pass.
    fn range(&self) -> Option<Range<LocalBlock>> {
        match self {
            Self::Index(_) => None,
            Self::Pass(pass, _) => Some(pass.range()),
        }
    }

    fn region_read(&mut self, bytes: u32) {
        if let Self::Index(batches) = self {
            batches.bytes_read += u64::from(bytes);
        }
    }

    /// Makes the changes of a batch, if there are enough.
    fn apply_if_many(&mut self) -> bool {
        match self {
            Self::Index(batches) if batches.bulk.len() >= BATCH_RECORDS => {
                batches.apply();
                true
            }
            _ => false,
        }
    }
}

/// Progress of a recovery, reported as a number of regions.
///
/// Invariant: the number never decreases. If the remaining work grows, because the range of a pass was cut or a merge failed, the remaining
/// regions are spread over it. So a recovery that makes progress keeps reporting, and the limit for starts without progress does not end it.
pub(super) struct Progress<F> {
    report: F,
    reported: u64,
    regions: u64,
    /// Blocks of all passes.
    blocks: LocalBlock,
    /// The current range of the pass.
    range: Range<LocalBlock>,
    /// Work done and regions reported when the range changed last.
    since: (f64, u64),
}

impl<F: Fn()> Progress<F> {
    /// Calls `report` once per region. `blocks`: the blocks of all passes.
    pub(super) fn new(report: F, regions: u64, blocks: LocalBlock) -> Self {
        Self {
            report,
            reported: 0,
            regions,
            blocks,
            range: LocalBlock(0)..blocks,
            since: (0.0, 0),
        }
    }

    /// `part` of `whole` regions were read. `range`: of a pass, where reading counts as half of the work.
    fn read(&mut self, range: Option<Range<LocalBlock>>, part: usize, whole: usize) {
        let part = part as f64 / whole.max(1) as f64;
        match range {
            None => self.done(part),
            Some(range) => self.done_of(&range, part / 2.0),
        }
    }

    /// The entries of a pass over `range` were added to the index, up to block `upto`.
    pub(super) fn handed_over(&mut self, range: &Range<LocalBlock>, upto: LocalBlock) {
        let all = (range.end.0 - range.start.0).max(1);
        self.done_of(range, 0.5 + (upto.0 - range.start.0) as f64 / all as f64 / 2.0);
    }

    fn done_of(&mut self, range: &Range<LocalBlock>, part: f64) {
        let share = |block: LocalBlock| block.0 as f64 / self.blocks.0.max(1) as f64;
        let (from, end) = (share(range.start), share(range.end));
        let done = from + (end - from) * part;
        if self.range != *range {
            self.range = range.clone();
            self.since = (done, self.reported);
        }
        self.done(done);
    }

    /// This fraction of all work is done.
    pub(super) fn done(&mut self, part: f64) {
        let (from, reported) = self.since;
        let left = (self.regions - reported) as f64;
        let now = reported + (left * (part - from) / (1.0 - from).max(f64::MIN_POSITIVE)) as u64;
        self.report_upto(now.min(self.regions));
    }

    fn report_upto(&mut self, now: u64) {
        while self.reported < now {
            (self.report)();
            self.reported += 1;
        }
    }

    /// Reports the remaining regions.
    pub(super) fn end(mut self) {
        self.report_upto(self.regions);
    }
}

impl<P: Platform> Shard<P> {
    /// Most index entries in memory while the log is read. `None`: all of them, because the whole index is in memory.
    pub(super) fn recovery_entries_max(&self) -> Option<usize> {
        planted::recovery_entries_max().or_else(|| self.map.is_paged().then(|| self.pass_entries()))
    }

    /// Takes over the records of all regions in use. With a maximum of entries, by passes: `live` then counts the entries of each region,
    /// and clean blocks of a region that was being reclaimed are left out.
    pub(super) async fn take_over_records(
        &self,
        manifest: &Manifest,
        live: &mut [u32],
        outcome: &mut Recovered,
        tell: impl Fn(),
    ) -> Result<Vec<InUse>, RecoverError> {
        let wanted = regions_in_use(manifest);
        let regions = manifest.entries.len() as u64;
        let mut progress = Progress::new(tell, regions, self.id.layout.local_blocks());
        let mut found = Vec::new();
        if let Some(entries_max) = self.recovery_entries_max() {
            let mut pass = Pass::first(self.id.layout.local_blocks(), entries_max, self.map.run_plan());
            let mut runs = Runs::default();
            loop {
                let mut changes = Changes::Pass(&mut pass, &mut runs);
                found = self
                    .read_all(&wanted, &found, &mut changes, outcome, &mut progress)
                    .await?;
                self.write_run(&mut pass, &mut runs, true).await;
                let mut over = HandOver {
                    manifest,
                    live: &mut *live,
                    assumed: BTreeSet::new(),
                };
                let end = self
                    .hand_over(&mut pass, &mut runs, &mut over, &mut progress)
                    .await?;
                let written = self.write_assumed(over.assumed).await;
                let shard = self.id.number;
                written.map_err(|source| RecoverError::Device { shard, source })?;
                if !pass.begin(end) {
                    break;
                }
            }
        } else {
            let (map, bulk) = (&self.map, self.map.bulk());
            let bytes = wanted.iter().map(|(_, entry)| u64::from(entry.len)).sum();
            let mut changes = Changes::Index(Batches {
                map,
                bulk,
                bytes,
                bytes_read: 0,
            });
            found = self
                .read_all(&wanted, &found, &mut changes, outcome, &mut progress)
                .await?;
            if let Changes::Index(batches) = &mut changes {
                batches.apply();
            }
        }
        progress.end();
        Ok(found)
    }

    /// Reads all regions, and makes their changes. `known`: what an earlier pass has found.
    async fn read_all(
        &self,
        wanted: &[(u32, ManifestEntry)],
        known: &[InUse],
        changes: &mut Changes<'_>,
        outcome: &mut Recovered,
        progress: &mut Progress<impl Fn()>,
    ) -> Result<Vec<InUse>, RecoverError> {
        let (is_first, guess) = (known.is_empty(), Guess::default());
        let (guess, count) = (&guess, wanted.len());
        let reads = (0..count).map(async |at: usize| {
            let (number, entry) = &wanted[at];
            match known.get(at).and_then(|region| region.open.clone()) {
                Some(contents) => Ok((contents, 0)),
                None => self.read_contents(*number, entry, guess).await,
            }
        });
        let mut reads = iter(reads).buffered(SCANS_MAX);
        let (mut merge, mut found) = (Merge::default(), Vec::with_capacity(count));
        while let Some(read) = reads.next().await {
            let (contents, bytes_read) = read?;
            outcome.bytes_read += bytes_read;
            if is_first {
                outcome.regions += u64::from(contents.used > 0);
                outcome.records += contents.records.len() as u64;
            }
            let (number, entry) = wanted[found.len()];
            found.push(InUse::new(number, entry, &contents));
            changes.region_read(contents.used);
            merge.add(number, contents);
            let next = wanted.get(found.len()).map(|(_, entry)| entry.generation);
            while let Some(extent) = merge.next_before(next) {
                self.take_over_extent(&extent, changes);
                if changes.apply_if_many() {
                    self.env.yield_now().await;
                }
                if let Changes::Pass(pass, runs) = changes
                    && pass.is_nearly_full()
                {
                    self.write_run(pass, runs, false).await;
                }
            }
            progress.read(changes.range(), found.len(), count);
            if matches!(changes, Changes::Pass(..)) {
                self.env.yield_now().await;
            }
        }
        Ok(found)
    }

    /// The contents of a region, and how many bytes were read for them.
    async fn read_contents(
        &self,
        number: u32,
        entry: &ManifestEntry,
        guess: &Guess,
    ) -> Result<(Rc<RegionContents>, u64), RecoverError> {
        let (shard, place) = (self.id.number, self.id.region(number));
        let failed = &self.stats.counters.cache_read_errors;
        match read_region(self.cache.device(), &place, entry, guess, failed).await {
            Ok(Found::Contents(contents)) => {
                let bytes_read = contents.bytes_read;
                Ok((Rc::new(contents), bytes_read))
            }
            Ok(Found::Damaged(what)) => Err(RecoverError::Damaged { shard, what }),
            Err(source) => Err(RecoverError::Device { shard, source }),
        }
    }

    fn take_over_extent(
        &self,
        Next {
            region,
            contents,
            extent,
            first,
        }: &Next,
        changes: &mut Changes<'_>,
    ) {
        let extent = &contents.extents[*extent];
        let base = u64::from(*region) * self.id.layout.region_bytes;
        let start = base + u64::from(extent.offset);
        let records = &contents.records[*first..*first + usize::from(extent.record_count)];
        for (record, at) in located(extent, records) {
            if !changes.want(record.block.in_shard(self.id.layout.shard_count).1) {
                continue;
            }
            let Some(change) = change_of(record, start, base + at) else {
                continue;
            };
            for block in record.blocks() {
                let (shard, local) = block.in_shard(self.id.layout.shard_count);
                if block.0 < self.whole_blocks() && shard == self.id.number {
                    changes.push(local, change);
                }
            }
        }
    }
}

/// The effect of a record on the index entries of its blocks.
pub(super) fn change_of(record: Record, extent: u64, at: u64) -> Option<Change> {
    match record.kind {
        RecordKind::Tombstone if planted(PlantedBug::TombstonesForgotten) => None,
        RecordKind::Tombstone => Some(Change::Drop),
        RecordKind::Cleaned if planted(PlantedBug::CleanedForgotten) => None,
        RecordKind::Cleaned => Some(Change::Clean),
        _ => Entry::of_record(record, Location::at(extent), Location::at(at)).map(Change::Set),
    }
}

#[cfg(test)]
mod tests;
