//! Contents of single blocks: from an extent in memory, the cache device or the origin.

use std::rc::Rc;

use flaz_device::{Env, IoBuf};

use super::fragment::{FragmentError, Restored};
use super::io::Failed;
use super::order::Version;
use super::tasks::Phase;
use super::{Platform, Shard};
use crate::format::extent::FragmentIdentity;
use crate::index::{Entry, Place};
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;
use crate::stats::count;
use crate::units::{BLOCK_BYTES, LocalBlock, Location};
use crate::volume::IoError;

/// One in this many decodings is timed.
const UNPACK_SAMPLE: u64 = 16;

/// A hit on the cache device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    /// Block within the request.
    pub(super) index: usize,
    pub(super) block: LocalBlock,
    pub(super) entry: Entry,
    /// The ring of the entry's region.
    pub(super) ring: Ring,
    /// The version of the block, as it was when its entry was looked up, unless another await came first: such a hit is not stored again.
    pub(super) version: Version,
    pub(super) identity: FragmentIdentity,
    /// Bytes of the shard's part that the fragment touches, in whole sectors.
    pub(super) start: u64,
    pub(super) end: u64,
}

impl<P: Platform> Shard<P> {
    /// Whether the contents of a block are known.
    ///
    /// # Errors
    /// [`IoError::CacheFailed`]: not before the next start.
    pub(super) fn is_known(&self, block: LocalBlock) -> Result<(), IoError> {
        if self.cache.is_fenced() && self.map.is_unknown(block) {
            return Err(self.cache_failed());
        }
        Ok(())
    }

    /// [`Shard::load`], for a read by a client of a block that is looked up there.
    pub(super) fn load_hit(
        self: &Rc<Self>,
        block: LocalBlock,
        entry: Entry,
        out: &mut [u8],
    ) -> impl Future<Output = Result<bool, IoError>> {
        self.load(block, entry, out, true)
    }

    /// [`Shard::load`], for anything else.
    pub(super) fn load_block(
        self: &Rc<Self>,
        block: LocalBlock,
        entry: Entry,
        out: &mut [u8],
    ) -> impl Future<Output = Result<bool, IoError>> {
        self.load(block, entry, out, false)
    }

    /// Restores the block at `entry` into `out`. The entry was looked up without an await since, or is of a dirty block. False: the copy could not be read;
    /// repeat the lookup, because there may be a newer one by now.
    ///
    /// # Errors
    /// [`IoError::DirtyLost`]: it was the only copy. [`IoError::CacheFailed`]: the contents are known only after the next start.
    async fn load(
        self: &Rc<Self>,
        block: LocalBlock,
        entry: Entry,
        out: &mut [u8],
        for_client: bool,
    ) -> Result<bool, IoError> {
        self.is_known(block)?;
        match self.load_from_memory(block, entry, out) {
            Some(Ok(())) => return Ok(true),
            Some(Err(error)) => {
                // While the region is pinned, no other copy gets the same location.
                let pin = self.log.pin(entry.location());
                self.load_page(block).await;
                drop(pin);
                return self.drop_bad(block, entry, Some(&error)).map(|()| false);
            }
            None => {}
        }
        let hit = self.hit(0, block, entry);
        let pin = self.log.pin(entry.location());
        let known = self.map.is_damaged(block);
        let read = self.read_cache_again(hit.start, hit.end - hit.start, known).await;
        let Ok((buf, at)) = read else {
            self.load_page(block).await;
            return self.drop_bad(block, entry, None).map(|()| false);
        };
        let skip = at + (hit.identity.location.offset() - hit.start) as usize;
        match self.unpack(&buf[skip..], &hit.identity, out) {
            Ok(()) => {
                self.map.not_damaged(block);
                if for_client && self.weighs() {
                    let restored = Restored::of(&buf[skip..], hit.identity.block);
                    self.weigh_hits(&[(hit, restored)], |_| out);
                }
                Ok(true)
            }
            Err(error) => {
                self.load_page(block).await;
                drop(pin);
                self.drop_bad(block, entry, Some(&error)).map(|()| false)
            }
        }
    }

    pub(super) fn unpack(
        &self,
        bytes: &[u8],
        identity: &FragmentIdentity,
        out: &mut [u8],
    ) -> Result<(), FragmentError> {
        let counters = &self.stats.counters;
        count(&counters.unpacked_blocks, 1);
        if !counters.unpacked_blocks.get().is_multiple_of(UNPACK_SAMPLE) {
            return self.codecs.unpack(bytes, identity, out);
        }
        let started = self.env.now();
        let result = self.codecs.unpack(bytes, identity, out);
        let took = self.env.now().since(started).as_nanos() as u64;
        count(&counters.unpack_ns, took * UNPACK_SAMPLE);
        result
    }

    /// Same-filled blocks, and fragments whose extent is still in memory. `None`: the device must be read.
    pub(super) fn load_from_memory(
        &self,
        block: LocalBlock,
        entry: Entry,
        out: &mut [u8],
    ) -> Option<Result<(), FragmentError>> {
        let location = match entry.place() {
            Place::SameFilled { value, .. } => {
                out.fill(value);
                return Some(Ok(()));
            }
            Place::Fragment { location, .. } => location,
        };
        self.log
            .in_memory(self.global(block), location, |bytes, identity| {
                count(&self.stats.counters.memory_hit_blocks, 1);
                self.unpack(bytes, &identity, out)
            })
    }

    /// A hit on the device at `entry`. If it is for a client, the entry was looked up without an await since.
    pub(super) fn hit(&self, index: usize, block: LocalBlock, entry: Entry) -> Hit {
        let Place::Fragment { location, sectors } = entry.place() else {
            unreachable!("same-filled blocks are never on the device")
        };
        let start = location.offset() / 512 * 512;
        let end = start + u64::from(sectors) * 512;
        let identity = self.log.identity_at(self.global(block), location);
        Hit {
            index,
            block,
            entry,
            ring: self.log.ring_at(location),
            version: self.order.version(block),
            identity,
            start,
            end,
        }
    }

    /// Handles a bad fragment (`None`: could not be read). A clean block is dropped. The caller has counted a failed read, and loaded
    /// the block's index page.
    ///
    /// # Errors
    /// [`IoError::DirtyLost`] if the block is dirty and still has this copy: the origin has only an older version, which must
    /// not be served.
    pub(super) fn drop_bad(
        self: &Rc<Self>,
        block: LocalBlock,
        entry: Entry,
        error: Option<&FragmentError>,
    ) -> Result<(), IoError> {
        self.is_known(block)?;
        if let Some(error) = error {
            count(&self.stats.counters.checksum_failures, 1);
            // The writeback worker reads a dirty one again every second.
            if !self.map.is_damaged(block) {
                let (number, shard, place) =
                    (self.global(block).0, self.id.number, entry.location().offset());
                let text = format!("block {number}, at {place} of shard {shard}: {error}");
                self.origin.shared().log_bad_block(Failed::Fragment, &text);
            }
        }
        self.close_damaged(entry.location());
        let now = self.map.lookup(block);
        let Some(now) = now.filter(|now| now.same_place(entry)) else {
            return Ok(());
        };
        if now.dirty() && !planted(PlantedBug::DirtyDamageIsAMiss) {
            count(&self.stats.counters.dirty_lost, 1);
            let first = self.map.note_damaged(block);
            let block = self.global(block).0;
            if first {
                let text = format!("block {block}, in shard {}", self.id.number);
                self.origin.shared().log_bad_block(Failed::OnlyCopy, &text);
            }
            return Err(IoError::DirtyLost { block });
        }
        self.drop_if_same(block, entry);
        Ok(())
    }

    /// Closes an open region with damage. Recovery walks an open region by the headers of its extents; one may be damaged as well,
    /// and then a later start is refused, even if all blocks have been written again by then. In a closed region, the summary
    /// stands in for the headers.
    fn close_damaged(self: &Rc<Self>, location: Location) {
        if self.tasks.phase() != Phase::Serving || self.cache.is_fenced() {
            return;
        }
        if self.log.note_damage(location) {
            self.pump_writes();
        } else if self.log.wants_reclaim() {
            self.reclaimer.wake();
        }
    }

    /// The latest contents of one block, from the cache or the origin.
    pub(super) async fn read_block(
        self: &Rc<Self>,
        block: LocalBlock,
        out: &mut [u8],
    ) -> Result<(), IoError> {
        loop {
            self.load_page(block).await;
            let entry = self.map.lookup(block);
            let Some(entry) = entry else { break };
            if self.load_block(block, entry, out).await? {
                return Ok(());
            }
        }
        self.is_known(block)?;
        let offset = self.global(block).offset();
        let (buf, result) = self.origin.read(offset, IoBuf::new(BLOCK_BYTES)).await;
        result.map_err(IoError::Origin)?;
        out.copy_from_slice(&buf);
        Ok(())
    }
}
