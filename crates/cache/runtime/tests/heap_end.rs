//! The free ends of heaps. Without the test harness, whose threads have heaps of their own.

use std::hint::black_box;

use flaz_runtime::memory::{free_bytes, return_large_parts, trim_end};

/// Less than the allocator returns by itself.
const PARTS: usize = 200;
const PART_BYTES: usize = 4096;

fn main() {
    if !cfg!(target_env = "gnu") {
        println!("skipped: the allocator is not that of the GNU C library");
        return;
    }
    return_large_parts();
    let fill = || drop(black_box(vec![vec![1_u8; PART_BYTES]; PARTS]));
    let of_a_thread = move || {
        let before = free_bytes();
        let kept = || free_bytes().saturating_sub(before);
        fill();
        let after = kept();
        assert!(
            after >= PARTS * PART_BYTES / 2,
            "{after} bytes are kept: the test tests nothing"
        );
        trim_end();
        let left = kept();
        assert!(left <= 192 << 10, "{left} of {after} bytes are left");
        fill();
        let again = kept();
        assert!(
            again >= PARTS * PART_BYTES / 2,
            "{again} bytes are kept under load"
        );
    };
    of_a_thread();
    std::thread::spawn(of_a_thread).join().expect("ends");
    println!("the end of the heap was returned");
}
