//! The memory of buffers is counted. A separate test program, because the count is that of the whole process.

use flaz_device::IoBuf;
use flaz_device::buf::{POOL_BYTES_MAX, allocated_bytes};

#[test]
fn buffer_memory_is_counted_until_it_is_freed() {
    assert_eq!(allocated_bytes(), 0);
    let small = IoBuf::new(5000);
    assert_eq!(allocated_bytes(), 8192, "whole pages of a size class");
    drop(small);
    assert_eq!(allocated_bytes(), 8192, "pooled");
    let again = IoBuf::new(8192);
    assert_eq!(allocated_bytes(), 8192, "from the pool");
    let large = IoBuf::new((2 << 20) + 1);
    assert_eq!(
        allocated_bytes(),
        8192 + (2 << 20) + 4096,
        "exactly, without a class"
    );
    drop(large);
    assert_eq!(allocated_bytes(), 8192, "not pooled");
    // More buffers of a class than a pool keeps.
    let many: Vec<IoBuf> = (0..POOL_BYTES_MAX / (1 << 20) + 3)
        .map(|_| IoBuf::new(1 << 20))
        .collect();
    assert_eq!(allocated_bytes(), (POOL_BYTES_MAX + (3 << 20) + 8192) as u64);
    drop(many);
    assert_eq!(allocated_bytes(), (POOL_BYTES_MAX + 8192) as u64);
    // A thread's pool is freed with the thread, and a buffer may be freed on another thread.
    std::thread::spawn(move || drop((again, IoBuf::new(1 << 20))))
        .join()
        .expect("the thread ends cleanly");
    assert_eq!(allocated_bytes(), POOL_BYTES_MAX as u64);
}
