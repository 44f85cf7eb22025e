//! Configuration of a simulated disk, its faults and its counters.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::contents::{Background, DiscardMode};

/// Default size of a disk's volatile write cache, in bytes.
pub const WRITE_CACHE_BYTES_DEFAULT: u64 = 16 << 20;

/// Size and behaviour of a simulated disk.
#[derive(Clone)]
pub struct DiskConfig {
    /// Size in bytes: a multiple of `alignment`.
    pub len: u64,
    /// Granularity of offsets and lengths in bytes: a power of two, at least 512.
    pub alignment: u32,
    /// Minimum and maximum time of a read.
    pub read_latency: RangeInclusive<Duration>,
    /// Minimum and maximum time of a write, also of zeroes.
    pub write_latency: RangeInclusive<Duration>,
    /// Minimum and maximum time of a flush.
    pub flush_latency: RangeInclusive<Duration>,
    /// Minimum and maximum time of a discard.
    pub discard_latency: RangeInclusive<Duration>,
    /// Maximum number of bytes of completed writes that are volatile; beyond it the oldest become durable. Zero: every
    /// write is durable when it completes, and contents are stored only once (for large replays).
    pub write_cache_bytes_max: u64,
    /// Contents of discarded ranges.
    pub discard_mode: DiscardMode,
    /// Contents of pages that were never written; `None` means zeroes.
    pub background: Option<Background>,
    /// Whether writes land in two parts and reads sample in two parts, so that overlapping operations see each other
    /// half done.
    pub tear_in_flight: bool,
}

impl DiskConfig {
    /// A flash disk of `len` bytes: 20 to 200 us per operation, 512-byte sectors.
    #[must_use]
    pub fn fast(len: u64) -> Self {
        let us = Duration::from_micros;
        Self {
            len,
            alignment: 512,
            read_latency: us(20)..=us(150),
            write_latency: us(10)..=us(200),
            flush_latency: us(50)..=us(1000),
            discard_latency: us(20)..=us(500),
            write_cache_bytes_max: WRITE_CACHE_BYTES_DEFAULT,
            discard_mode: DiscardMode::Mixed,
            background: None,
            tear_in_flight: true,
        }
    }

    /// A hard disk of `len` bytes: 4 to 16 ms per operation, 512-byte sectors; discarded ranges keep their contents.
    #[must_use]
    pub fn slow(len: u64) -> Self {
        let ms = Duration::from_millis;
        Self {
            read_latency: ms(4)..=ms(16),
            write_latency: ms(1)..=ms(16),
            flush_latency: ms(8)..=ms(30),
            discard_latency: ms(1)..=ms(4),
            discard_mode: DiscardMode::Old,
            ..Self::fast(len)
        }
    }
}

impl fmt::Debug for DiskConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskConfig")
            .field("len", &self.len)
            .field("alignment", &self.alignment)
            .field("write_cache_bytes_max", &self.write_cache_bytes_max)
            .field("discard_mode", &self.discard_mode)
            .finish_non_exhaustive()
    }
}

/// Random faults, each in events per million operations. All zero by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    /// Reads that fail.
    pub read_error_ppm: u32,
    /// Writes (of data or zeroes) that fail; any of their sectors may have landed anyway.
    pub write_error_ppm: u32,
    /// Writes (of data or zeroes) that fail for lack of space, without effect.
    pub write_no_space_ppm: u32,
    /// Allocations on a sparse disk that fail for lack of space.
    pub allocate_no_space_ppm: u32,
    /// Flushes that fail. The data they cover is then durable, still volatile, or lost at the next power cut even if
    /// later flushes succeed, as with operating systems that drop failed pages.
    pub flush_error_ppm: u32,
    /// Discards that fail without effect.
    pub discard_error_ppm: u32,
    /// Reads that succeed with one wrong bit, once.
    pub read_flip_ppm: u32,
    /// Limit of such reads.
    pub read_flip_once: bool,
    /// Writes that succeed and never land.
    pub write_lost_ppm: u32,
    /// Writes that succeed and land somewhere else.
    pub write_misdirected_ppm: u32,
    /// Operations that take `stall` longer.
    pub stall_ppm: u32,
    /// Additional time of stalled operations.
    pub stall: Duration,
    /// Flushes that report success and make nothing durable: a broken device, as a negative control.
    pub flush_lie_ppm: u32,
}

/// Counters of a simulated disk. Bytes and operations are counted when they complete successfully.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Reads that succeeded.
    pub reads: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Discards that succeeded.
    pub discards: u64,
    /// Zero-writes that succeeded.
    pub write_zeroes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written, without zero-writes.
    pub written_bytes: u64,
    /// Bytes discarded.
    pub discarded_bytes: u64,
    /// Bytes of zero-writes.
    pub zeroed_bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Flushes among them.
    pub flush_errors: u64,
    /// Silent faults: bits flipped, writes lost or misdirected, flushes that lied.
    pub silent_faults: u64,
    /// Maximum number of operations in flight.
    pub in_flight_max: u64,
}
