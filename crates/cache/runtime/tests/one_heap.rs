//! The reserve of memory. Without the test harness, whose threads would have heaps of their own.

use flaz_runtime::memory::{free_bytes, reserve, trim_end, use_one_heap};

const RESERVE: usize = 32 << 20;

fn main() {
    if !cfg!(target_env = "gnu") {
        println!("skipped: the allocator is not that of the GNU C library");
        return;
    }
    use_one_heap();
    reserve(RESERVE);
    let before = free_bytes();
    assert!(before >= RESERVE, "{before} bytes are free");
    // Of any size, from any thread.
    let used = std::thread::spawn(|| [vec![vec![1_u8; 1 << 20]; 8], vec![vec![1_u8; 4096]; 2048]]);
    let used = used.join().expect("ends");
    let after = free_bytes();
    assert!(
        before.saturating_sub(after) >= 16 << 20,
        "another thread has a heap of its own: {before} bytes were free, then {after}"
    );
    drop(used);
    trim_end();
    assert!(free_bytes() >= RESERVE, "memory was given back");
    println!("the reserve serves all threads, and stays");
}
