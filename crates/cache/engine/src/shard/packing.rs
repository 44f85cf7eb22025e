//! Packing blocks before they are appended.

use std::sync::Arc;

use flaz_codec::CodecSpec;
use flaz_device::{Env, Nanos};
use futures_util::future::join_all;

use super::fragment::{Packed, Packer};
use super::log::Append;
use super::queue::Candidate;
use super::second_stage::Second;
use super::{Platform, Shard, Shared};
use crate::stats::count;
use crate::units::BLOCK_BYTES;

/// Number of blocks of a job from which packing is spread over the cores.
pub(super) const PACK_SPLIT_BLOCKS_MIN: usize = 16;

/// The result of packing some blocks of a job.
pub(super) struct Batch {
    pub(super) items: Vec<(Candidate, Packed)>,
    pub(super) bytes: Vec<u8>,
    pub(super) packer: Packer,
}

impl Batch {
    /// The record to append for the block at `index` of `data`, and the number of bytes that it stores.
    pub(super) fn record<'a>(
        &'a self,
        packed: &Packed,
        data: &'a [u8],
        index: usize,
        dirty: bool,
    ) -> (Append<'a>, u64) {
        match *packed {
            Packed::SameFilled(value) => (Append::SameFilled { value, dirty }, 0),
            Packed::Compressed {
                codec,
                start,
                len,
                plain_crc,
            } => {
                debug_assert_eq!(codec, self.packer.packed_as());
                let stored = &self.bytes[start..start + len];
                let what = Append::Packed {
                    codec,
                    stored,
                    plain_crc,
                    dirty,
                };
                (what, len as u64)
            }
            Packed::Raw { plain_crc } => {
                let what = Append::Packed {
                    codec: flaz_codec::CodecId::RAW,
                    stored: &data[index * BLOCK_BYTES..][..BLOCK_BYTES],
                    plain_crc,
                    dirty,
                };
                (what, BLOCK_BYTES as u64)
            }
        }
    }

    pub(super) fn pack(
        mut packer: Packer,
        data: &[u8],
        candidates: &[Candidate],
        mut bytes: Vec<u8>,
    ) -> Self {
        bytes.clear();
        packer.next_request();
        let items = candidates
            .iter()
            .map(|candidate| {
                let block = &data[candidate.index * BLOCK_BYTES..][..BLOCK_BYTES];
                (*candidate, packer.pack(block, &mut bytes))
            })
            .collect();
        Self { items, bytes, packer }
    }
}

impl<P: Platform> Shard<P> {
    /// Packs many blocks on all cores.
    pub(super) async fn pack_spread(&self, data: &Shared, candidates: &[Candidate]) -> Vec<Batch> {
        let share = candidates
            .len()
            .div_ceil(self.env.parallelism())
            .max(PACK_SPLIT_BLOCKS_MIN / 2);
        let codec = self.tuning.settings().codec.first();
        self.pack_in_jobs(data, candidates, codec, None, share).await
    }

    /// Packs blocks with the second codec, on other threads.
    pub(super) async fn pack_second(
        &self,
        data: &Shared,
        candidates: &[Candidate],
        second: Second,
    ) -> Vec<Batch> {
        self.pack_in_jobs(data, candidates, second.codec, Some(second), second.job_blocks())
            .await
    }

    async fn pack_in_jobs(
        &self,
        data: &Shared,
        candidates: &[Candidate],
        codec: CodecSpec,
        second: Option<Second>,
        share: usize,
    ) -> Vec<Batch> {
        let started = self.env.now();
        let choice = self.tuning.settings().codec;
        let jobs = candidates.chunks(share).map(|chunk| {
            let packer = self.codecs.take(codec, choice);
            let (chunk, data) = (chunk.to_vec(), Arc::clone(data));
            self.compute_second(second, move || Batch::pack(packer, &data, &chunk, Vec::new()))
        });
        let batches = join_all(jobs).await;
        self.count_packing(started);
        batches
    }

    pub(super) fn count_packing(&self, started: Nanos) {
        let took = self.env.now().since(started).as_nanos() as u64;
        count(&self.stats.counters.pack_ns, took);
    }

    pub(super) fn count_admitted(&self, packed: &Packed, stored: u64, written: bool) {
        count(&self.stats.counters.admitted_blocks, 1);
        count(&self.stats.counters.admitted_writes, u64::from(written));
        self.count_stored(packed, stored);
    }

    pub(super) fn count_stored(&self, packed: &Packed, stored: u64) {
        let counters = &self.stats.counters;
        count(&counters.codec_in_bytes, BLOCK_BYTES as u64);
        count(&counters.codec_out_bytes, stored);
        let kind = match packed {
            Packed::SameFilled(_) => &counters.same_filled_blocks,
            Packed::Compressed { .. } => &counters.packed_blocks,
            Packed::Raw { .. } => &counters.raw_blocks,
        };
        count(kind, 1);
    }
}
