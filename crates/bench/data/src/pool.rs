//! Data generated before the measurement starts: a pool in memory, larger than any window of a device.
//!
//! A benchmark that generates data while it writes measures the generator; one that writes the same buffer repeatedly
//! measures the deduplication of the device. Several threads fill a pool once, and it is then used in pieces. It
//! repeats only after its own length, which should exceed the distance over which a device deduplicates.

use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};

use memmap2::{Advice, MmapMut};

use crate::generator::{Difference, Generator};

/// Alignment of the pool in bytes: sufficient for direct I/O on any device.
pub const POOL_ALIGN_BYTES: usize = 4096;
/// Alignment of a huge page. A record on scattered pages needs one request per run of pages, or more segments than the
/// device accepts in one request: without huge pages, a write of 1 MiB to a virtio disk took one request or two,
/// depending on luck.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Maximum number of threads that fill a pool.
pub const POOL_THREADS_MAX: usize = 256;
/// Bytes that a thread fills at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Data in memory, from the beginning of a generator's stream.
#[derive(Debug)]
pub struct Pool {
    generator: Generator,
    memory: MmapMut,
    /// Offset of the data in the memory.
    start: usize,
    bytes: usize,
}

/// Speed of the generator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FillSpeed {
    /// Bytes made.
    pub bytes: u64,
    /// Time taken.
    pub elapsed: Duration,
    /// Number of threads.
    pub threads: usize,
}

impl FillSpeed {
    /// Gigabytes (10^9) per second, all threads together.
    #[must_use]
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Gigabytes (10^9) per second and thread.
    #[must_use]
    pub fn gb_per_s_thread(&self) -> f64 {
        self.gb_per_s() / self.threads.max(1) as f64
    }
}

/// A pool that cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// Not a whole number of chunks.
    #[error("a pool of {bytes} bytes: expected one or more whole chunks of {chunk_bytes} bytes")]
    Size {
        /// Requested size.
        bytes: usize,
        /// Size of a chunk.
        chunk_bytes: u64,
    },
    /// There is not enough memory.
    #[error(
        "not enough memory for a pool of {bytes} bytes; a smaller one is sufficient if it is larger than the \
         device's cache"
    )]
    Memory {
        /// Requested size.
        bytes: usize,
    },
}

impl Pool {
    /// Fills a pool of `bytes` bytes, a whole number of chunks, with up to `threads` threads. The memory is touched
    /// before the clock starts, so that the speed is that of the generator.
    ///
    /// # Errors
    /// The size is invalid, or there is not enough memory.
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
        // If there are no huge pages, small pages are used, which are slower.
        let _ = memory.advise(Advice::HugePage);
        let start = memory.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // Ones, because the system would map untouched pages of zeroes.
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

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The generator of the data.
    #[must_use]
    pub fn generator(&self) -> &Generator {
        &self.generator
    }

    /// All of the data; aligned to [`POOL_ALIGN_BYTES`].
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }

    /// The record of `len` bytes to write at `offset` of a file or device. Records must be at multiples of their
    /// length, which must divide the pool. Offsets beyond the pool start again at its front.
    ///
    /// # Panics
    /// If the record would exceed the end of the pool.
    #[must_use]
    pub fn record(&self, offset: u64, len: usize) -> &[u8] {
        let at = (offset % self.bytes as u64) as usize;
        &self.data()[at..at + len]
    }

    /// Compares data read at `offset` with what [`Pool::record`] returned for it, without generating it again.
    ///
    /// # Errors
    /// The first difference; its offset is that in the pool.
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
    // Whole pieces per thread: a unit shared by two threads would be generated twice.
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
