//! Compressing clean fragments again with a stronger codec, when reclaim stores them again.
//!
//! The codec threads do the work, a few blocks at a time, so that work that clients wait for is never far back in their queue.
//! Fragments are moved as they are where processors are busy, where space is needed at once, and where it does not pay: see
//! [`super::second_stage`].

use std::mem::take;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use flaz_codec::{CodecId, CodecSpec};
use flaz_device::{Env, IoBuf, Priority};

use super::fragment::{self, FragmentError, Packed, Packer};
use super::log::Append;
use super::packing::SECOND_JOB_BLOCKS;
use super::second_stage::Stored;
use super::tasks::Phase;
use super::{Platform, Shard, Shared};
use crate::format::extent::{FRAGMENT_HEADER_BYTES, FragmentIdentity};
use crate::index::{Entry, Place};
use crate::planted::{PlantedBug, planted};
use crate::stats::count;
use crate::units::{BLOCK_BYTES, LocalBlock};

/// A fragment that reclaim stores again.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) block: LocalBlock,
    pub(super) entry: Entry,
    /// Where it is in the buffer.
    pub(super) place: Range<usize>,
}

/// A fragment that was compressed again.
#[derive(Debug)]
pub(super) struct Repacked {
    pub(super) codec: CodecId,
    pub(super) stored: Vec<u8>,
    pub(super) plain_crc: u32,
}

impl Repacked {
    /// What stores the block so.
    pub(super) fn as_append(&self, dirty: bool) -> Append<'_> {
        Append::Packed {
            codec: self.codec,
            stored: &self.stored,
            plain_crc: self.plain_crc,
            dirty,
        }
    }
}

/// What a codec thread makes of a fragment. Not `Err`: its block was restored, and matches its checksum.
type Restored = Result<Option<Repacked>, FragmentError>;

struct Try {
    /// Among the fragments that are kept.
    index: usize,
    place: Range<usize>,
    stored: Stored,
    identity: FragmentIdentity,
}

impl<P: Platform> Shard<P> {
    /// The codec for blocks that stay, if the settings have one and it pays to use it now.
    pub(super) fn second_codec(&self) -> Option<CodecSpec> {
        let codec = self.tuning.settings().codec.second()?;
        let pays = self.second_stage.pays(self.origin.mean_read());
        (pays && !self.env.is_busy()).then_some(codec)
    }

    /// Compresses fragments in `data` again, where it pays; the result has the index of each. A fragment that is damaged is
    /// dropped.
    pub(super) async fn repack(self: &Rc<Self>, data: &Shared, kept: &[Kept]) -> Vec<(usize, Repacked)> {
        let mut repacked = Vec::new();
        let mut tries = Vec::new();
        for (index, fragment) in kept.iter().enumerate() {
            tries.extend(self.to_try(data, index, fragment));
            if tries.len() >= SECOND_JOB_BLOCKS || index + 1 == kept.len() {
                self.repack_some(data, kept, take(&mut tries), &mut repacked)
                    .await;
            }
        }
        repacked
    }

    fn to_try(&self, data: &IoBuf, index: usize, kept: &Kept) -> Option<Try> {
        let Place::Fragment { location, .. } = kept.entry.place() else {
            return None;
        };
        if kept.entry.dirty() {
            return None;
        }
        let (header, _) = fragment::split(&data[kept.place.clone()]).ok()?;
        let stored = match CodecId(header.codec) {
            CodecId::RAW => Stored::Raw,
            CodecId::LZ4 => Stored::Packed,
            _ => return None,
        };
        self.second_stage.tries(stored).then(|| Try {
            index,
            place: kept.place.clone(),
            stored,
            identity: self.log.identity_at(self.global(kept.block), location),
        })
    }

    async fn repack_some(
        self: &Rc<Self>,
        data: &Shared,
        kept: &[Kept],
        tries: Vec<Try>,
        repacked: &mut Vec<(usize, Repacked)>,
    ) {
        // Without a free region, writers may wait for this reclaim. A start and a stop should end soon.
        let hurries = self.log.free_regions() == 0 || self.tasks.phase() != Phase::Serving;
        let codec = self.second_codec().filter(|_| !hurries && !tries.is_empty());
        let Some(codec) = codec else { return };
        let started = self.env.now();
        let packer = self.codecs.take(codec, self.tuning.settings().codec);
        let bytes = Arc::clone(data);
        let job = move || {
            let mut packer = packer;
            let restored: Vec<Restored> = restore_and_pack(&mut packer, &bytes, &tries);
            (packer, tries, restored)
        };
        let (packer, tries, restored) = self.env.compute(Priority::Write, job).await;
        self.codecs.put_back(packer);
        let counters = &self.stats.counters;
        count(
            &counters.repack_ns,
            self.env.now().since(started).as_nanos() as u64,
        );
        for (tried, restored) in tries.iter().zip(restored) {
            let Kept { block, entry, place } = &kept[tried.index];
            match restored {
                Ok(found) => {
                    let before = place.len() - FRAGMENT_HEADER_BYTES;
                    let now = found.as_ref().map(|found| found.stored.len());
                    if self.second_stage.is_worth(tried.stored, before, now) {
                        repacked.extend(found.map(|found| (tried.index, found)));
                    }
                }
                Err(error) => {
                    // A dirty block is not tried, and this one is clean, so there is no error to pass on.
                    let _ = self.drop_bad(*block, *entry, Some(&error));
                }
            }
        }
    }
}

fn restore_and_pack(packer: &mut Packer, data: &IoBuf, tries: &[Try]) -> Vec<Restored> {
    let mut decoders = flaz_codec::Decoders::default();
    let mut block = IoBuf::new(BLOCK_BYTES);
    packer.next_request();
    let mut restore = |tried: &Try| {
        let bytes = &data[tried.place.clone()];
        match fragment::unpack(&mut decoders, bytes, &tried.identity, &mut block) {
            Err(FragmentError::Checksum { .. }) if planted(PlantedBug::RepackedDamaged) => {}
            unpacked => unpacked?,
        }
        let mut stored = Vec::new();
        Ok(match packer.pack(&block, &mut stored) {
            Packed::Compressed { codec, plain_crc, .. } => Some(Repacked {
                codec,
                stored,
                plain_crc,
            }),
            Packed::SameFilled(_) | Packed::Raw { .. } => None,
        })
    };
    tries.iter().map(&mut restore).collect()
}
