//! The heap: what is free of it, and what happens to that.
//!
//! **Memory that goes back.** After a burst the allocator has free memory in pieces all over the heap, and returns none of it by
//! itself but at the end of a heap. [`return_large_parts`] makes it allocate large parts on their own, so that they go back when they
//! are freed; [`trim_heap`] returns all free pages between parts in use, and [`trim_end`] those at the end of a thread's heap.
//!
//! **Memory that is there before it is needed.** A block device of this process may be what the kernel writes to when memory runs
//! out. If the process then needs a page that it does not have, the kernel waits for the process and the process for the kernel. So
//! such a server keeps its heap in one place, gives nothing back, and has a reserve of free heap whose pages are there.
//!
//! This is about the allocator of the GNU C library. With another one, these functions do nothing.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

/// Pages are not smaller.
const PAGE_BYTES: usize = 4096;
/// The reserve is made of parts that the allocator takes from the heap, not from a mapping of their own.
const PART_BYTES: usize = 4 << 20;

/// Parts from this size on have a mapping of their own: buffers of large requests, and tables. The allocator would raise the limit
/// with each larger part that is freed, and then keep free parts up to twice that size.
const OWN_MAPPING_BYTES: i32 = 64 << 10;
/// The allocator returns the end of a heap when so much is free there. Less would cost a system call again and again.
const HEAP_END_BYTES: i32 = 1 << 20;
/// The same while a thread has nothing to do.
const IDLE_END_BYTES: i32 = 64 << 10;
/// Freeing a part makes the allocator check the end of the heap if the part and its free neighbours have 64 KiB or more. This part is just
/// below the size that would get its own mapping.
const LAST_PART_BYTES: usize = OWN_MAPPING_BYTES as usize - 128;

/// Whether [`return_large_parts`] was called.
static RETURNS: AtomicBool = AtomicBool::new(false);

/// Bytes of the heaps of all threads that are in use, with what the allocator adds to each part. With another allocator, none.
#[must_use]
pub fn used_bytes() -> u64 {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the function reads numbers of the allocator.
        let info = unsafe { libc::mallinfo2() };
        (info.uordblks + info.hblkhd) as u64
    }
    #[cfg(not(target_env = "gnu"))]
    0
}

/// Makes the allocator return large parts when they are freed. Not together with [`use_one_heap`].
pub fn return_large_parts() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the function changes numbers of the allocator, at any time.
        let set = |option, value| unsafe { libc::mallopt(option, value) } == 1;
        let done = [
            set(libc::M_MMAP_THRESHOLD, OWN_MAPPING_BYTES),
            set(libc::M_TRIM_THRESHOLD, HEAP_END_BYTES),
        ];
        debug_assert_eq!(done, [true; 2], "the allocator has these options");
        RETURNS.store(true, Ordering::Relaxed);
    }
}

/// Returns the free end of the heap that this thread takes memory from, all but about 128 KiB, which [`trim_heap`] cannot. Only after
/// [`return_large_parts`]. Another thread that does the same at that moment may make it leave up to 1 MiB.
pub fn trim_end() {
    #[cfg(target_env = "gnu")]
    {
        if !RETURNS.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: the function stores a number, with the lock of the first heap. Other threads read it without the lock, before or after.
        let set = |bytes| unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, bytes) };
        set(IDLE_END_BYTES);
        drop(black_box(Vec::<u8>::with_capacity(LAST_PART_BYTES)));
        set(HEAP_END_BYTES);
    }
}

/// Returns all free pages of all heaps, except for the ends of the heaps of other threads. A thread that allocates meanwhile may wait
/// for some milliseconds.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: `malloc_trim` releases free memory only.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Keeps the memory of all threads in one heap that never shrinks, so that a reserve serves them all. Call this before other
/// threads are started: they would have heaps of their own.
pub fn use_one_heap() {
    #[cfg(target_env = "gnu")]
    {
        const ABOVE_PARTS: i32 = 2 * PART_BYTES as i32;
        // SAFETY: the function changes numbers of the allocator, at any time.
        let set = |option, value| unsafe { libc::mallopt(option, value) } == 1;
        let done = [
            set(libc::M_ARENA_MAX, 1),
            set(libc::M_TRIM_THRESHOLD, i32::MAX),
            set(libc::M_MMAP_THRESHOLD, ABOVE_PARTS),
        ];
        debug_assert_eq!(done, [true; 3], "the allocator has these options");
    }
}

/// Sees to it that at least `bytes` of the heap are free, with their pages. Memory that is free already stays free while the
/// kernel looks for pages for more.
pub fn reserve(bytes: usize) {
    while free_bytes() < bytes {
        grow();
    }
}

/// Adds a part to the heap, with its pages, and leaves it free.
fn grow() {
    // Parts from memory that was free already, whose pages are there. They go back before pages are needed.
    let mut known = Vec::new();
    let mut part = loop {
        let before = heap_bytes();
        let part: Vec<u8> = black_box(Vec::with_capacity(PART_BYTES));
        if heap_bytes() > before {
            break part;
        }
        known.push(part);
    };
    drop(known);
    for page in part.spare_capacity_mut().chunks_mut(PAGE_BYTES) {
        page[0].write(0);
    }
    drop(black_box(part));
}

/// Bytes of the heap that are free. With another allocator, all are.
#[must_use]
pub fn free_bytes() -> usize {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the function reads numbers of the allocator.
        unsafe { libc::mallinfo2() }.fordblks
    }
    #[cfg(not(target_env = "gnu"))]
    usize::MAX
}

/// Size of the heap in bytes.
fn heap_bytes() -> usize {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the function reads numbers of the allocator.
        unsafe { libc::mallinfo2() }.arena
    }
    #[cfg(not(target_env = "gnu"))]
    usize::MAX
}
