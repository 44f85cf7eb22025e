//! Storing again the blocks of a reclaimed region that stay.
//!
//! A fragment is copied without decoding it, so damage stays detectable (see [`crate::format::extent::moved_checksum`]); or its blocks
//! are compressed again, alone or together with their neighbours (see [`super::repack`]).
//!
//! A record of a group names the blocks that have it as their latest record when it is appended, and no other: a block that was
//! dropped or written while the group was read or compressed must not come back at the next start.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use flaz_device::IoBuf;

use super::fragment::{self, Group};
use super::gather::{Limits, neighbours};
use super::log::{Append, Appended, Class};
use super::repack::Wider;
use super::sets::{Kept, PackedGroup, Repacked};
use super::{Platform, Shard, Shared};
use crate::advise::StoredAs;
use crate::format::group::{Members, group_of};
use crate::index::{Entry, Place};
use crate::planted::{PlantedBug, planted};
use crate::policy::{Allowance, Ring};
use crate::stats::count;
use crate::units::{BLOCK_BYTES, BlockNumber, LocalBlock};

/// Fragments to store again that are read in one go.
const GATHER: Limits = Limits {
    bytes_max: 256 << 10,
    gap_max: 8 << 10,
};

/// A block to store again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Survivor {
    pub(super) block: LocalBlock,
    pub(super) entry: Entry,
    pub(super) ring: Ring,
    pub(super) hits: u8,
    /// Where its fragment is in the shard's part of the device.
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Fragments that were read together.
struct Read {
    data: Shared,
    /// Where in `data` the byte at `start` of the shard's part is.
    at: usize,
    start: u64,
}

impl Read {
    fn place(&self, survivor: &Survivor) -> Range<usize> {
        let start = self.at + (survivor.start - self.start) as usize;
        start..start + (survivor.end - survivor.start) as usize
    }
}

/// The members that a record names: those that have it as their latest record.
fn named(bug: PlantedBug, live: Members, all: Members) -> Members {
    if planted(bug) { all } else { live }
}

impl<P: Platform> Shard<P> {
    /// Stores the blocks that stay in the open extents of their rings: dirty ones first, because clean ones may take more space than
    /// before, and can be dropped.
    pub(super) async fn store_again(self: &Rc<Self>, survivors: &[Survivor]) {
        let (dirty, clean): (Vec<Survivor>, Vec<Survivor>) =
            survivors.iter().partition(|survivor| survivor.entry.dirty());
        self.store_some_again(&dirty).await;
        self.store_some_again(&clean).await;
    }

    async fn store_some_again(self: &Rc<Self>, survivors: &[Survivor]) {
        let region_bytes = self.id.layout.region_bytes;
        let wider = Wider::new(survivors, region_bytes);
        for (range, part) in neighbours(survivors, GATHER, region_bytes, |survivor| {
            survivor.start..survivor.end
        }) {
            // Others may have been stored along with their neighbours.
            let mut here = Vec::with_capacity(part.len());
            for survivor in part {
                self.load_page(survivor.block).await;
                if self.map.is_at(survivor.block, survivor.entry) {
                    here.push(*survivor);
                }
            }
            let part = here;
            if part.is_empty() {
                continue;
            }
            let only_same_filled = range.is_empty();
            let read = if only_same_filled {
                None
            } else {
                self.read_cache(range.start, range.end - range.start).await.ok()
            };
            let read = read.map(|(buf, at)| Read {
                data: Arc::new(buf),
                at,
                start: range.start,
            });
            self.store_part_again(&part, read, &wider).await;
        }
    }

    async fn store_part_again(self: &Rc<Self>, part: &[Survivor], read: Option<Read>, wider: &Wider<'_>) {
        let mut again = match &read {
            None => super::repack::Again::default(),
            Some(read) => {
                let kept = part.iter().map(|survivor| Kept {
                    survivor: *survivor,
                    data: Arc::clone(&read.data),
                    place: read.place(survivor),
                });
                self.repack(kept.collect(), wider).await
            }
        };
        for group in &again.groups {
            self.store_group(group).await;
        }
        for fragment in part.chunk_by(|a, b| a.entry.is_group() && a.entry.same_place(b.entry)) {
            let bytes = read.as_ref().map(|read| &read.data[read.place(&fragment[0])]);
            let bytes = bytes.unwrap_or_default();
            let mut rest = Vec::new();
            for survivor in fragment {
                match again.blocks.remove(&survivor.block) {
                    None if survivor.entry.is_group() => rest.push(*survivor),
                    repacked => self.store_one_again(survivor, bytes, repacked).await,
                }
            }
            if !rest.is_empty() {
                self.move_group(&rest, bytes, wider).await;
            }
        }
    }

    /// Whether a block may not be stored again: the device is fenced, or a clean block is dropped because the write budget has ended
    /// meanwhile.
    fn is_refused(&self, is_dirty: bool) -> bool {
        self.cache.is_fenced() || !is_dirty && self.allowance() == Allowance::Nothing
    }

    /// Before a block goes to another ring: the open extent of the ring that it leaves may contain its *cleaned* record. Extents get
    /// their sequence when they are sealed, so that record could get a higher sequence than the block's new record.
    fn seal_cleaned(&self, survivor: &Survivor) {
        let ring = self.log.ring_at(survivor.entry.location());
        if survivor.ring != ring && self.map.is_newly_clean(survivor.block) {
            self.log.seal_ring(ring);
        }
    }

    /// Waits until an append may succeed. False: never. The victim is the next region to become free, so waiting for another one is
    /// useless; a clean block is dropped.
    async fn await_room(self: &Rc<Self>) -> bool {
        if self.cache.is_fenced() || !self.log.writing() {
            return false;
        }
        self.pump_writes();
        self.log.room().await;
        true
    }

    /// Sets the entry of a block that was stored again.
    fn install_again(&self, survivor: &Survivor, now: Entry, new: Entry) {
        // Hits since the decision count for the next one.
        let hits = survivor
            .hits
            .max(now.hits().saturating_sub(survivor.entry.hits()));
        let new = new.with_hits(hits).with_dirty(now.dirty());
        self.map.install(&self.log, survivor.block, new);
        count(&self.stats.counters.reinserted_blocks, 1);
        count(&self.stats.counters.dirty_moved_blocks, u64::from(now.dirty()));
    }

    /// Stores a block again: its fragment as it is in `bytes`, or as it was compressed again.
    async fn store_one_again(self: &Rc<Self>, survivor: &Survivor, bytes: &[u8], repacked: Option<Repacked>) {
        let global: BlockNumber = self.global(survivor.block);
        let mut verified = false;
        loop {
            self.load_page(survivor.block).await;
            let still = self.map.lookup(survivor.block);
            let Some(entry) = still.filter(|entry| entry.same_place(survivor.entry)) else {
                return;
            };
            if self.is_refused(entry.dirty()) {
                return;
            }
            let what = match repacked.as_ref().filter(|_| !entry.dirty()) {
                Some(again) => again.as_append(),
                None => match self.as_it_is(global, entry, bytes, &mut verified) {
                    Some(what) => what,
                    // Without this fragment, the block is dropped below, or found lost.
                    None => return,
                },
            };
            let stored_bytes = what.fragment_bytes() as u64;
            self.seal_cleaned(survivor);
            let appended = self.log.append(survivor.ring, global, what, Class::Reclaim);
            if let Some(Appended { entry: new, .. }) = appended {
                self.install_again(survivor, entry, new);
                let stored_as = if entry.dirty() {
                    StoredAs::Moved
                } else {
                    StoredAs::Kept
                };
                self.follow_kept(survivor.block, stored_bytes, stored_as);
                count(&self.stats.counters.reinserted_bytes, stored_bytes);
                if repacked.is_some() && !entry.dirty() {
                    let saved = (survivor.end - survivor.start).saturating_sub(stored_bytes);
                    count(&self.stats.counters.repacked_blocks, 1);
                    count(&self.stats.counters.repacked_saved_bytes, saved);
                }
                self.pump_writes();
                return;
            }
            if !self.await_room().await {
                return;
            }
        }
    }

    /// What stores a block as its fragment in `bytes` is. `None`: it is a group, or damaged. Damage of a clean block moves with it, and
    /// makes the block a miss. A dirty block is verified, because a read that fails its checks can be repeated now, and not later.
    /// Whether it was `verified` is kept.
    fn as_it_is<'a>(
        &self,
        block: BlockNumber,
        entry: Entry,
        bytes: &'a [u8],
        verified: &mut bool,
    ) -> Option<Append<'a>> {
        let dirty = entry.dirty();
        let location = match entry.place() {
            Place::SameFilled { value, .. } => return Some(Append::SameFilled { value, dirty }),
            Place::Fragment { location, .. } => location,
        };
        let (header, stored) = fragment::split(bytes).ok()?;
        if header.members != 0 {
            return None;
        }
        let from = self.log.identity_at(block, location);
        if dirty && !*verified {
            let mut block = IoBuf::new(BLOCK_BYTES);
            self.codecs.unpack(bytes, &from, &mut block).ok()?;
            *verified = true;
        }
        Some(Append::Moved {
            header,
            stored,
            from,
            dirty,
        })
    }

    /// Those of `blocks` that still have the entries that they had, and are clean.
    fn still_clean<'a>(
        &self,
        blocks: impl Iterator<Item = &'a Survivor>,
    ) -> (Vec<(&'a Survivor, Entry)>, Option<Members>) {
        let still: Vec<_> = blocks
            .filter_map(|survivor| {
                let now = self.map.lookup(survivor.block)?;
                (now.same_place(survivor.entry) && !now.dirty()).then_some((survivor, now))
            })
            .collect();
        let all = still.iter().map(|(survivor, _)| survivor.block);
        let live = Members::of(all);
        (still, live)
    }

    /// Stores blocks that were compressed together.
    async fn store_group(self: &Rc<Self>, group: &PackedGroup) {
        let what = |live| Append::Group {
            codec: group.codec,
            stream: &group.stream,
            members: group.members,
            plain_crcs: &group.plain_crcs,
            live: named(PlantedBug::OvertakenMemberGrouped, live, group.members),
        };
        if self.store_together(&group.blocks, what, group.members).await {
            let blocks = group.blocks.len() as u64;
            count(&self.stats.counters.repacked_blocks, blocks);
            count(&self.stats.counters.grouped_blocks, blocks);
            count(&self.stats.counters.repacked_saved_bytes, group.saved_bytes);
        }
    }

    /// Stores the blocks of a group as their fragment in `bytes` is. If the region would hardly be emptied, and the fragment has
    /// others, the blocks are dropped.
    async fn move_group(self: &Rc<Self>, blocks: &[Survivor], bytes: &[u8], wider: &Wider<'_>) {
        let split = fragment::split(bytes);
        let Some((header, stored, group)) = split
            .ok()
            .and_then(|(header, stored)| Some((header, stored, Group::of(header, stored)?)))
        else {
            return;
        };
        if blocks.len() < group.members.count() && wider.is_full() {
            return;
        }
        let from = self.identity_of(&blocks[0]);
        let what = |live| Append::MovedGroup {
            header,
            stored,
            from,
            live: named(PlantedBug::DeadMemberMoved, live, group.members),
        };
        self.store_together(blocks, what, group.members).await;
    }

    /// Appends one record for those of `blocks`, at least one, that have not changed.
    async fn store_together<'a>(
        self: &Rc<Self>,
        blocks: &[Survivor],
        what: impl Fn(Members) -> Append<'a>,
        members: Members,
    ) -> bool {
        loop {
            self.load_four(blocks[0].block).await;
            if self.is_refused(false) {
                return false;
            }
            let (still, live) = self.still_clean(blocks.iter());
            let Some(live) = live else { return false };
            if !members.contains(live) {
                return false;
            }
            still.iter().for_each(|(survivor, _)| self.seal_cleaned(survivor));
            let what = what(live);
            let first = group_of(self.global(still[0].0.block));
            let appended = self.log.append(Ring::Main, first, what, Class::Reclaim);
            if let Some(Appended { entry: new, .. }) = appended {
                let bytes = what.fragment_bytes() as u64;
                let each = bytes.div_ceil(still.len() as u64);
                for (survivor, now) in still {
                    self.install_again(survivor, now, new);
                    self.follow_kept(survivor.block, each, StoredAs::Kept);
                }
                count(&self.stats.counters.reinserted_bytes, bytes);
                self.pump_writes();
                return true;
            }
            if !self.await_room().await {
                return false;
            }
        }
    }
}
