//! Data made before the clock starts: a pool in memory, larger than any window of a device.
//!
//! A benchmark that fills its buffer again and again measures the generator, and one that writes the same buffer
//! again and again measures how well the device deduplicates. A pool is filled once, by several threads, and then
//! given out in pieces; it repeats after its own length only, which is to be more than a device can look back.

use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};

use memmap2::{Advice, MmapMut};

use crate::generator::{Difference, Generator};

/// Boundary that the pool begins on, in bytes: enough for direct I/O on any device.
pub const POOL_ALIGN_BYTES: usize = 4096;
/// Boundary of a huge page. A record whose pages lie apart in memory takes a request for every run of them, or as many
/// entries in one as the device may not take: a write of 1 MiB was one request to a virtio disk, or two, as luck had it.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Most threads that fill a pool.
pub const POOL_THREADS_MAX: usize = 256;
/// What a thread fills at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Data in memory, from the beginning of a generator's stream.
#[derive(Debug)]
pub struct Pool {
    generator: Generator,
    memory: MmapMut,
    /// Where the data begins in the memory.
    start: usize,
    bytes: usize,
}

/// How fast data was made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FillSpeed {
    /// Bytes made.
    pub bytes: u64,
    /// Time it took.
    pub elapsed: Duration,
    /// Threads that made them.
    pub threads: usize,
}

impl FillSpeed {
    /// Gigabytes (10^9) a second, of all threads together.
    #[must_use]
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Gigabytes (10^9) a second and thread.
    #[must_use]
    pub fn gb_per_s_thread(&self) -> f64 {
        self.gb_per_s() / self.threads.max(1) as f64
    }
}

/// A pool that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// Not a whole number of chunks.
    #[error("a pool of {bytes} bytes: expected one or more whole chunks of {chunk_bytes} bytes")]
    Size {
        /// Size asked for.
        bytes: usize,
        /// Size of a chunk.
        chunk_bytes: u64,
    },
    /// The system has not that much.
    #[error(
        "not enough memory for a pool of {bytes} bytes; a smaller one is sufficient if it is larger than the \
         device's cache"
    )]
    Memory {
        /// Size asked for.
        bytes: usize,
    },
}

impl Pool {
    /// Fills a pool of `bytes` bytes, a whole number of chunks, by up to `threads` threads. The memory is touched
    /// once before the clock starts, so that the speed is that of the generator.
    ///
    /// # Errors
    /// The size is none, or there is no memory for it.
    pub fn fill(
        generator: Generator,
        bytes: usize,
        threads: NonZeroUsize,
    ) -> Result<(Self, FillSpeed), PoolError> {
        let chunk_bytes = generator.spec().chunk_bytes;
        if bytes == 0 || !(bytes as u64).is_multiple_of(chunk_bytes) {
            return Err(PoolError::Size { bytes, chunk_bytes });
        }
        let no_memory = PoolError::Memory { bytes };
        let len = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(no_memory)?;
        let mut memory = MmapMut::map_anon(len).map_err(|_| no_memory)?;
        // Where there are none, or none are left, small pages do as well, only slower.
        let _ = memory.advise(Advice::HugePage);
        let start = memory.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // Ones, not zeroes: the system would map untouched pages of zeroes.
        memory[start..start + bytes].fill(1);
        let speed = fill_by_threads(
            &generator,
            &mut memory[start..start + bytes],
            threads.get().min(POOL_THREADS_MAX),
        );
        let pool = Self {
            generator,
            memory,
            start,
            bytes,
        };
        Ok((pool, speed))
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What made it.
    #[must_use]
    pub fn generator(&self) -> &Generator {
        &self.generator
    }

    /// All of it; begins on a boundary of [`POOL_ALIGN_BYTES`].
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }

    /// The record of `len` bytes to write at `offset` of a file or device, if the records lie at multiples of their
    /// length and that divides the pool. Offsets beyond the pool start again at its front.
    ///
    /// # Panics
    /// When the record would reach over the end of the pool.
    #[must_use]
    pub fn record(&self, offset: u64, len: usize) -> &[u8] {
        let at = (offset % self.bytes as u64) as usize;
        &self.data()[at..at + len]
    }

    /// Compares what was read at `offset` with what [`Pool::record`] gave to write there, without generating it.
    ///
    /// # Errors
    /// The first difference; its offset is that of the pool.
    ///
    /// # Panics
    /// As [`Pool::record`].
    pub fn verify(&self, offset: u64, bytes: &[u8]) -> Result<(), Difference> {
        if self.record(offset, bytes.len()) == bytes {
            return Ok(());
        }
        self.generator.verify(offset % self.bytes as u64, bytes)
    }
}

fn fill_by_threads(generator: &Generator, data: &mut [u8], threads: usize) -> FillSpeed {
    let bytes = data.len() as u64;
    // Whole pieces a thread: a unit that two threads share would be made twice.
    let chunk_bytes = generator.spec().chunk_bytes as usize;
    let share = data
        .len()
        .div_ceil(threads)
        .next_multiple_of(chunk_bytes.max(PIECE_BYTES));
    let threads = data.len().div_ceil(share);
    let began = Instant::now();
    thread::scope(|scope| {
        for (number, part) in data.chunks_mut(share).enumerate() {
            scope.spawn(move || generator.fill((number * share) as u64, part));
        }
    });
    FillSpeed {
        bytes,
        elapsed: began.elapsed(),
        threads,
    }
}
