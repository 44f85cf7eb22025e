//! Aligned I/O buffers from a thread-local pool.
//!
//! Invariants:
//! - memory is aligned to [`ALIGNMENT`] (enough for O_DIRECT on every Linux block device) and initialised;
//! - a buffer has exactly one owner at a time. An operation in flight owns its buffer, so dropping a future early never
//!   leaves the kernel writing into memory that other code reads;
//! - no allocation in the steady state: a dropped buffer returns to the pool of the thread that drops it, up to
//!   [`POOL_BYTES_MAX`] per size class;
//! - all memory of all buffers, in use or pooled, is counted ([`allocated_bytes`]), when it is allocated and freed.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Alignment of every buffer, in bytes.
pub const ALIGNMENT: usize = 4096;
/// Maximum bytes that a thread keeps for reuse in one size class.
pub const POOL_BYTES_MAX: usize = 8 << 20;
/// Largest size class that is pooled (2^9 x 4 KiB = 2 MiB); larger buffers are allocated with their exact size.
const CLASS_MAX: u8 = 9;
const CLASS_UNPOOLED: u8 = u8::MAX;

/// Memory of all buffers of the process, in bytes.
static ALLOCATED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Memory of the buffers of all threads in bytes, both in use and pooled for reuse.
#[must_use]
pub fn allocated_bytes() -> u64 {
    ALLOCATED_BYTES.load(Ordering::Relaxed)
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { free: [const { Vec::new() }; CLASS_MAX as usize + 1] }) };
}

struct Pool {
    free: [Vec<NonNull<u8>>; CLASS_MAX as usize + 1],
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (class, list) in self.free.iter_mut().enumerate() {
            for ptr in list.drain(..) {
                // SAFETY: every pointer in list `class` came from `alloc_zeroed` with this layout, and only the pool
                // owns it.
                unsafe { free(ptr, ALIGNMENT << class) };
            }
        }
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
            .try_with(|pool| pool.borrow_mut().free[class as usize].pop())
            .ok()
            .flatten();
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
            && POOL
                .try_with(|pool| {
                    let list = &mut pool.borrow_mut().free[class as usize];
                    let room = (list.len() + 1) * (ALIGNMENT << class) <= POOL_BYTES_MAX;
                    if room {
                        list.push(ptr);
                    }
                    room
                })
                .unwrap_or(false);
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

    #[test]
    #[should_panic(expected = "exceeds the buffer's capacity")]
    fn a_length_over_the_capacity_is_refused() {
        IoBuf::new(10).set_len(5000);
    }
}
