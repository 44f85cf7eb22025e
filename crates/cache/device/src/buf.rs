//! Aligned I/O buffers from pools: one of each thread, and a larger one that all share.
//!
//! Invariants:
//! - memory is aligned to [`ALIGNMENT`] (enough for O_DIRECT on every Linux block device) and initialised;
//! - a buffer has exactly one owner at a time. An operation in flight owns its buffer, so dropping a future early never
//!   leaves the kernel writing into memory that other code reads;
//! - no allocation in the steady state: a dropped buffer returns to the pool of the thread that drops it, up to
//!   [`POOL_BYTES_MAX`], else to the shared one, up to [`SHARED_BYTES_MAX`]. So buffers come back that are dropped by another thread
//!   than the one that needs the next;
//! - a pool keeps what the load needs: [`trim`] and [`trim_shared`] free the buffers that no one has taken since the last time;
//! - all memory of all buffers is counted, when it is allocated and freed ([`allocated_bytes`]), and so is that of the pools
//!   ([`pooled`]).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Alignment of every buffer, in bytes.
pub const ALIGNMENT: usize = 4096;
/// Maximum bytes that a thread keeps for reuse.
pub const POOL_BYTES_MAX: usize = 4 << 20;
/// Maximum bytes that are kept for all threads: what 64 requests of 1 MiB take.
pub const SHARED_BYTES_MAX: usize = 64 << 20;
/// How often each thread that uses buffers trims its pool.
pub const TRIM_EVERY: Duration = Duration::from_secs(10);
/// Buffers that one call of [`trim`] frees at most, so that it takes about 0.1 ms.
const TRIMMED_MAX: usize = 16;
/// Largest size class that is pooled (2^9 x 4 KiB = 2 MiB); larger buffers are allocated with their exact size.
const CLASS_MAX: u8 = 9;
const CLASSES: usize = CLASS_MAX as usize + 1;
const CLASS_UNPOOLED: u8 = u8::MAX;

/// Memory of all buffers of the process, in bytes.
static ALLOCATED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Memory of the buffers of all threads in bytes, both in use and pooled for reuse.
#[must_use]
pub fn allocated_bytes() -> u64 {
    ALLOCATED_BYTES.load(Ordering::Relaxed)
}

/// Number of pools, and bytes in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pooled {
    /// Those of threads, and the shared one.
    pub pools: u64,
    /// Bytes of their buffers.
    pub bytes: u64,
    /// Sum of their limits.
    pub bytes_max: u64,
}

/// The pools of all threads.
#[must_use]
pub fn pooled() -> Pooled {
    let pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    Pooled {
        pools: pools.len() as u64,
        bytes: pools.iter().map(|pool| pool.bytes()).sum(),
        bytes_max: pools.iter().map(|pool| pool.bytes_max).sum(),
    }
}

/// Frees buffers of this thread's pool that were not needed since the last round of calls, some at a time. Returns whether there
/// are more; a round ends with the call that returns false. With a round every [`TRIM_EVERY`], the pool has what the load between
/// two rounds takes.
pub fn trim() -> bool {
    let taken = POOL.try_with(|pool| pool.borrow_mut().take_idle());
    release(taken.unwrap_or_default())
}

/// Whether this thread's pool has buffers.
#[must_use]
pub fn has_pooled() -> bool {
    POOL.try_with(|pool| pool.borrow().level.bytes() > 0)
        .unwrap_or(false)
}

/// The same as [`trim`] for the pool that all threads share. Call it on one thread.
pub fn trim_shared() -> bool {
    let taken = shared().take_idle();
    release(taken)
}

/// How full a pool is. Written by its owner only.
struct Level {
    bytes: AtomicU64,
    bytes_max: u64,
}

impl Level {
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.bytes.store(self.bytes() + bytes as u64, Ordering::Relaxed);
    }

    fn subtract(&self, bytes: usize) {
        self.bytes.store(self.bytes() - bytes as u64, Ordering::Relaxed);
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.bytes() + bytes as u64 <= self.bytes_max
    }
}

/// One for each pool.
static POOLS: Mutex<Vec<Arc<Level>>> = Mutex::new(Vec::new());
/// The pool of all threads; the lock is held for a few instructions.
static SHARED: LazyLock<Mutex<Pool>> = LazyLock::new(|| Mutex::new(Pool::new(SHARED_BYTES_MAX)));

fn shared() -> MutexGuard<'static, Pool> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static POOL: RefCell<Pool> = RefCell::new(Pool::new(POOL_BYTES_MAX));
}

/// Invariant: `level` has the sum of all buffers; `idle` of a class is at most its number of buffers.
struct Pool {
    /// By size class; the one that was used last is at the end.
    free: [Vec<NonNull<u8>>; CLASSES],
    /// How many of the first ones were there all the time since the last round of trimming.
    idle: [usize; CLASSES],
    level: Arc<Level>,
}

// SAFETY: the pool owns the memory that its pointers refer to.
unsafe impl Send for Pool {}

impl Pool {
    fn new(bytes_max: usize) -> Self {
        let level = Arc::new(Level {
            bytes: AtomicU64::new(0),
            bytes_max: bytes_max as u64,
        });
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        pools.push(Arc::clone(&level));
        Self {
            free: [const { Vec::new() }; CLASSES],
            idle: [0; CLASSES],
            level,
        }
    }

    fn take(&mut self, class: usize) -> Option<NonNull<u8>> {
        let ptr = self.free[class].pop()?;
        self.idle[class] = self.idle[class].min(self.free[class].len());
        self.level.subtract(ALIGNMENT << class);
        Some(ptr)
    }

    /// Takes a buffer of the class, unless the pool is full.
    fn put(&mut self, class: usize, ptr: NonNull<u8>) -> bool {
        let has_room = self.level.has_room(ALIGNMENT << class);
        if has_room {
            self.level.add(ALIGNMENT << class);
            self.free[class].push(ptr);
        }
        has_room
    }

    /// Takes out some of the buffers that were not needed since the last round; fewer than [`TRIMMED_MAX`] end the round.
    fn take_idle(&mut self) -> Vec<(NonNull<u8>, usize)> {
        let mut taken = Vec::new();
        for class in 0..CLASSES {
            let count = self.idle[class].min(TRIMMED_MAX - taken.len());
            self.idle[class] -= count;
            self.level.subtract(count * (ALIGNMENT << class));
            let buffers = self.free[class].drain(..count);
            taken.extend(buffers.map(|ptr| (ptr, ALIGNMENT << class)));
        }
        if taken.len() < TRIMMED_MAX {
            for (idle, list) in self.idle.iter_mut().zip(&mut self.free) {
                *idle = list.len();
                list.shrink_to(2 * list.len());
            }
        }
        taken
    }
}

/// Frees buffers that were taken out of a pool. Returns whether there may be more.
fn release(buffers: Vec<(NonNull<u8>, usize)>) -> bool {
    let more = buffers.len() == TRIMMED_MAX;
    for (ptr, capacity) in buffers {
        // SAFETY: the memory came from `allocate` with this capacity, and is in no pool any more.
        unsafe { free(ptr, capacity) };
    }
    more
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (class, list) in self.free.iter_mut().enumerate() {
            for ptr in list.drain(..) {
                // SAFETY: every pointer in list `class` came from `allocate` with this capacity, and only the pool owns it.
                unsafe { free(ptr, ALIGNMENT << class) };
            }
        }
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|level| !Arc::ptr_eq(level, &self.level));
    }
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, ALIGNMENT).expect("buffer capacity fits the address space")
}

/// An owned, aligned, initialised buffer of bytes.
///
/// Fresh buffers have the contents that an earlier user left (never uninitialised memory): fill them before passing
/// them on.
pub struct IoBuf {
    ptr: NonNull<u8>,
    len: usize,
    capacity: usize,
    class: u8,
}

// SAFETY: an `IoBuf` owns its memory exclusively, like a `Box<[u8]>`; the pools are per thread and only hold memory
// that no `IoBuf` refers to.
unsafe impl Send for IoBuf {}
// SAFETY: shared access only gives `&[u8]`.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// A buffer of `len` bytes with unspecified (but initialised) contents.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let pages = len.div_ceil(ALIGNMENT).max(1);
        let class = pages.next_power_of_two().trailing_zeros() as u8;
        if class > CLASS_MAX {
            let capacity = pages * ALIGNMENT;
            return Self {
                ptr: allocate(capacity),
                len,
                capacity,
                class: CLASS_UNPOOLED,
            };
        }
        let capacity = ALIGNMENT << class;
        let reused = POOL
            .try_with(|pool| pool.borrow_mut().take(class.into()))
            .ok()
            .flatten()
            .or_else(|| shared().take(class.into()));
        let ptr = reused.unwrap_or_else(|| allocate(capacity));
        Self {
            ptr,
            len,
            capacity,
            class,
        }
    }

    /// A buffer of `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::new(len);
        buf.fill(0);
        buf
    }

    /// A buffer with a copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::new(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Capacity in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the length.
    ///
    /// # Panics
    /// If `len` is more than the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.capacity,
            "length {len} exceeds the buffer's capacity {}",
            self.capacity
        );
        self.len = len;
    }

    /// The address, for an operation that owns the buffer while the kernel uses it.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }
}

fn allocate(capacity: usize) -> NonNull<u8> {
    let layout = layout(capacity);
    // SAFETY: the layout has a non-zero size.
    let ptr = unsafe { alloc_zeroed(layout) };
    let ptr = NonNull::new(ptr).unwrap_or_else(|| handle_alloc_error(layout));
    ALLOCATED_BYTES.fetch_add(capacity as u64, Ordering::Relaxed);
    ptr
}

/// Frees memory.
///
/// # Safety
/// `ptr` came from [`allocate`] with this `capacity`, and nothing refers to it any more.
unsafe fn free(ptr: NonNull<u8>, capacity: usize) {
    ALLOCATED_BYTES.fetch_sub(capacity as u64, Ordering::Relaxed);
    // SAFETY: `allocate` used this layout; the caller is the only owner of the memory.
    unsafe { dealloc(ptr.as_ptr(), layout(capacity)) };
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        let (ptr, class) = (self.ptr, self.class);
        let kept = class != CLASS_UNPOOLED
            && (POOL
                .try_with(|pool| pool.borrow_mut().put(class.into(), ptr))
                .unwrap_or(false)
                || shared().put(class.into(), ptr));
        if !kept {
            // SAFETY: the memory came from `allocate` with this capacity and is not in the pool.
            unsafe { free(ptr, self.capacity) };
        }
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= capacity` initialised bytes, owned by `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the contents, which are user data.
        write!(f, "IoBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_sized() {
        for len in [0, 1, 512, 4096, 4097, 65_536, 1 << 20, (2 << 20) + 1] {
            let mut buf = IoBuf::new(len);
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_mut_ptr() as usize % ALIGNMENT, 0);
            assert!(buf.capacity() >= len);
        }
    }

    #[test]
    fn a_dropped_buffer_is_reused() {
        let mut first = IoBuf::new(8192);
        let address = first.as_mut_ptr() as usize;
        drop(first);
        assert_eq!(IoBuf::new(5000).as_mut_ptr() as usize, address);
    }

    /// On a thread of its own, with a pool of its own.
    fn alone<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(test).join().expect("the test does not panic")
    }

    fn pool_bytes() -> u64 {
        POOL.with(|pool| pool.borrow().level.bytes())
    }

    fn trim_round() {
        while trim() {}
    }

    #[test]
    fn a_pool_is_bounded_over_all_sizes() {
        alone(|| {
            let sizes = [4 << 10, 64 << 10, 1 << 20, 2 << 20];
            let buffers: Vec<_> = (0..200).map(|n| IoBuf::new(sizes[n % sizes.len()])).collect();
            drop(buffers);
            let kept = pool_bytes();
            let full = POOL_BYTES_MAX as u64;
            assert!((full - (2 << 20)..=full).contains(&kept), "{kept} bytes");
        });
    }

    #[test]
    fn a_trim_frees_what_was_not_needed_since_the_last_one() {
        alone(|| {
            drop((0..300).map(|_| IoBuf::new(8192)).collect::<Vec<_>>());
            drop((0..1).map(|_| IoBuf::new(1 << 20)).collect::<Vec<_>>());
            let all = 300 * 8192 + (1 << 20);
            assert_eq!(pool_bytes(), all);
            // Everything was needed since the beginning.
            trim_round();
            assert_eq!(pool_bytes(), all);
            // A load that needs 20 of them.
            for _ in 0..50 {
                drop((0..20).map(|_| IoBuf::new(8192)).collect::<Vec<_>>());
            }
            assert!(trim(), "one call frees a part");
            trim_round();
            assert_eq!(pool_bytes(), 20 * 8192);
            trim_round();
            assert_eq!(pool_bytes(), 0, "a quiet round");
            assert_eq!(IoBuf::zeroed(8192)[8191], 0);
        });
    }

    #[test]
    #[should_panic(expected = "exceeds the buffer's capacity")]
    fn a_length_over_the_capacity_is_refused() {
        IoBuf::new(10).set_len(5000);
    }
}
