//! The free end of a thread's heap. Without the test harness, whose threads have heaps of their own.

use std::hint::black_box;

use flaz_runtime::memory::{free_bytes, return_large_parts, trim_end, trim_heap};

/// Less than the allocator returns by itself.
const PARTS: usize = 200;
const PART_BYTES: usize = 4096;

fn main() {
    if !cfg!(target_env = "gnu") {
        println!("skipped: the allocator is not that of the GNU C library");
        return;
    }
    return_large_parts();
    let of_a_thread = || {
        let before = free_bytes();
        let parts = black_box(vec![vec![1_u8; PART_BYTES]; PARTS]);
        drop(parts);
        trim_heap();
        let kept = free_bytes().saturating_sub(before);
        assert!(
            kept >= PARTS * PART_BYTES / 2,
            "{kept} bytes are kept: the test tests nothing"
        );
        trim_end();
        let left = free_bytes().saturating_sub(before);
        assert!(left <= 192 << 10, "{left} of {kept} bytes are left");
    };
    std::thread::spawn(of_a_thread).join().expect("ends");
    println!("the end of the heap was returned");
}
