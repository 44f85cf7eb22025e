//! Memory that is there before it is needed.
//!
//! A block device of this process may be what the kernel writes to when memory runs out. If the process then needs a page
//! that it does not have, the kernel waits for the process and the process for the kernel. So such a server keeps its heap in
//! one place, gives nothing back, and has a reserve of free heap whose pages are there.
//!
//! This is about the allocator of the GNU C library. With another one, these functions do nothing.

use std::hint::black_box;

/// Pages are not smaller.
const PAGE_BYTES: usize = 4096;
/// The reserve is made of parts that the allocator takes from the heap, not from a mapping of their own.
const PART_BYTES: usize = 4 << 20;

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
