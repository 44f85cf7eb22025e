//! libCacheSim's oracleGeneral: records of 24 bytes, little-endian: time in seconds u32, object u64, size in bytes u32, next access i64.
//!
//! An object is a run of whole blocks of its own: its offset follows from a hash of its number, so that objects overlap no others.
//! The format does not distinguish reads from writes.

use crate::fields::{Bad, u32_at, u64_at};
use crate::request::{END_BYTES_MAX, LENGTH_BYTES_MAX, Op, Request, in_bytes};

pub(crate) const RECORD_BYTES: usize = 24;
/// The offset of an object is a multiple of this.
const PLACE_BYTES: u64 = 1 << 16;

pub(crate) fn record(record: &[u8]) -> Result<Option<Request>, Bad> {
    let (seconds, object, len) = (u32_at(record, 0), u64_at(record, 4), u32_at(record, 12));
    // The finaliser of SplitMix64.
    let mut hash = object.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let offset = (hash ^ (hash >> 31)) % ((END_BYTES_MAX - LENGTH_BYTES_MAX) / PLACE_BYTES) * PLACE_BYTES;
    in_bytes(
        Some(u64::from(seconds) * 1_000_000),
        Op::Read,
        0,
        offset,
        u64::from(len),
    )
}

/// Whether the times of the beginning ascend slowly, and all objects have a size.
pub(crate) fn is_beginning(head: &[u8]) -> bool {
    const SECONDS_MAX: u32 = 7 * 24 * 3600;
    let mut before = None;
    for record in head.chunks_exact(RECORD_BYTES).take(64) {
        let (seconds, len, next) = (u32_at(record, 0), u32_at(record, 12), u64_at(record, 16) as i64);
        let ascends = before.is_none_or(|before| seconds >= before && seconds - before <= SECONDS_MAX);
        if !ascends || len == 0 || u64::from(len) > LENGTH_BYTES_MAX || !(-2..1 << 40).contains(&next) {
            return false;
        }
        before = Some(seconds);
    }
    before.is_some()
}
