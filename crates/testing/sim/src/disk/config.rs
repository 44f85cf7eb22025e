//! How a simulated disk behaves when nothing is wrong, what may go wrong, and what it counted.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::contents::{Background, DiscardMode};

/// Volatile write cache of a disk unless configured otherwise, in bytes.
pub const WRITE_CACHE_BYTES_DEFAULT: u64 = 16 << 20;

/// Size and manners of a simulated disk.
#[derive(Clone)]
pub struct DiskConfig {
    /// Size in bytes: a multiple of `alignment`.
    pub len: u64,
    /// Granularity of offsets and lengths in bytes: a power of two, at least 512.
    pub alignment: u32,
    /// Shortest and longest time of a read.
    pub read_latency: RangeInclusive<Duration>,
    /// Shortest and longest time of a write, also of zeroes.
    pub write_latency: RangeInclusive<Duration>,
    /// Shortest and longest time of a flush.
    pub flush_latency: RangeInclusive<Duration>,
    /// Shortest and longest time of a discard.
    pub discard_latency: RangeInclusive<Duration>,
    /// Bytes of completed writes that may be volatile at a time; the oldest become durable beyond it. Zero:
    /// every write is durable when it completes, and contents are kept once only (for large replays).
    pub write_cache_bytes_max: u64,
    /// What discarded ranges read as.
    pub discard_mode: DiscardMode,
    /// Contents of pages never written; `None` is zeroes.
    pub background: Option<Background>,
    /// Whether in-flight writes land in two parts and reads sample in two parts, so that overlapping
    /// operations see each other half done.
    pub tear_in_flight: bool,
}

impl DiskConfig {
    /// A flash disk of `len` bytes: 20 to 200 us an operation, 512-byte sectors.
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

    /// A hard disk of `len` bytes: 4 to 16 ms an operation, 512-byte sectors; discarded ranges keep their
    /// contents.
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

/// Random faults, each in events per million operations. All zero at the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    /// Reads that fail.
    pub read_error_ppm: u32,
    /// Writes (of data or zeroes) that fail; any of their sectors may have landed all the same.
    pub write_error_ppm: u32,
    /// Writes (of data or zeroes) that fail for want of space, having done nothing.
    pub write_no_space_ppm: u32,
    /// Flushes that fail; what they covered is then durable, still volatile, or lost at the next power cut
    /// whatever later flushes say, as with operating systems that forget failed pages.
    pub flush_error_ppm: u32,
    /// Discards that fail, having done nothing.
    pub discard_error_ppm: u32,
    /// Reads that succeed with one bit wrong, once.
    pub read_flip_ppm: u32,
    /// After such a read there are no more.
    pub read_flip_once: bool,
    /// Writes that succeed and never land.
    pub write_lost_ppm: u32,
    /// Writes that succeed and land somewhere else.
    pub write_misdirected_ppm: u32,
    /// Operations that take `stall` longer.
    pub stall_ppm: u32,
    /// How long stalled operations are held up.
    pub stall: Duration,
    /// Flushes that report success and make nothing durable: a broken device, as a negative control.
    pub flush_lie_ppm: u32,
}

/// What a simulated disk did. Bytes and operations are counted when they complete well.
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
    /// Most operations in flight at a time.
    pub in_flight_max: u64,
}
