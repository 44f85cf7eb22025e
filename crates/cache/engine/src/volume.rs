//! What a front end serves: one block device, asynchronous, on one thread.

use flaz_device::{DeviceError, IoBuf};
use smallvec::SmallVec;

/// Requests and their buffers are cut at multiples of this many bytes of the exported device, because a
/// stripe belongs to one shard.
pub const STRIPE_BYTES: u64 = 1 << 20;

/// Data of a request, in order, cut at stripe boundaries: the first segment ends at the first multiple of
/// [`STRIPE_BYTES`] after the request's offset or at the request's end, and so on. One segment, as most requests have,
/// is held in place.
pub type Segments = SmallVec<[IoBuf; 1]>;

/// The lengths of the segments of a request of `len` bytes at `offset`.
pub fn segment_lens(offset: u64, len: u64) -> impl Iterator<Item = usize> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let next = ((at / STRIPE_BYTES + 1) * STRIPE_BYTES).min(end);
        let piece = next - at;
        at = next;
        Some(piece as usize)
    })
}

/// Why a request failed. Front ends turn this into their protocol's error number.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// The request exceeds the device.
    #[error("request of {len} bytes at offset {offset} exceeds the device size of {size} bytes")]
    OutOfRange {
        /// Byte offset of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// The origin failed.
    #[error("origin: {0}")]
    Origin(#[source] DeviceError),
    /// Another reader's origin read failed, and this request had joined it.
    #[error("origin: the read shared with another request failed")]
    OriginShared,
    /// The cache device failed, and has newer data than the origin.
    #[error("the cache device failed and has the only current data of this range: {0}")]
    CacheFailed(String),
    /// A dirty block's only copy is damaged.
    #[error(
        "block {block} is dirty and its only copy on the cache device is damaged; writing the whole block repairs it"
    )]
    DirtyLost {
        /// Number of the 4 KiB block.
        block: u64,
    },
    /// The daemon is stopping and takes no more requests.
    #[error("the cache is stopping")]
    Stopping,
}

/// One run of equal allocation status (NBD `base:allocation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusExtent {
    /// Length in bytes.
    pub len: u64,
    /// Not allocated: nothing was ever written there, or it was trimmed.
    pub hole: bool,
    /// Reads as zeroes.
    pub zero: bool,
}

/// A block device as front ends see it. Cheap to clone; every clone is the same device, for another client.
///
/// Offsets and lengths may be any number of bytes. Futures may be dropped only at shutdown.
#[expect(
    async_fn_in_trait,
    reason = "a volume handle belongs to one thread; no Send bound is wanted"
)]
pub trait Volume: Clone + 'static {
    /// Size in bytes. It may grow.
    fn size(&self) -> u64;

    /// Reads `len` bytes at `offset`. # Errors: [`IoError`].
    async fn read(&self, offset: u64, len: u32) -> Result<Segments, IoError>;

    /// Writes `data`, which is cut as [`segment_lens`] says, at `offset`; with `fua` it is stable on return.
    async fn write(&self, offset: u64, data: Segments, fua: bool) -> Result<(), IoError>;

    /// Makes all writes acknowledged before the call stable, those of other clones and threads included. Fails also where a
    /// flush failed that another client was told of, or nobody: once, for what it covered may be gone.
    async fn flush(&self) -> Result<(), IoError>;

    /// Gives a range up; it may read as anything the origin gives afterwards (zeroes, as a rule).
    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), IoError>;

    /// Makes a range read as zeroes; with `may_unmap` its storage may be deallocated.
    async fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool, fua: bool) -> Result<(), IoError>;

    /// Brings a range into the cache without sending it anywhere.
    async fn prefetch(&self, offset: u64, len: u64) -> Result<(), IoError>;

    /// Allocation status of a range: at least one extent, together at most `len` bytes, at most
    /// `extents_max` of them; the sum may be shorter than `len`.
    async fn block_status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<StatusExtent>, IoError>;
}
