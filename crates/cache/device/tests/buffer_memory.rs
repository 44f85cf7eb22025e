//! The memory of all buffers and pools is counted and bounded. One test, because the counts are those of the process.

use flaz_device::IoBuf;
use flaz_device::buf::{
    POOL_BYTES_MAX, Pooled, SHARED_BYTES_MAX, allocated_bytes, pooled, trim, trim_shared,
};

const MIB: usize = 1 << 20;

fn buffers(count: usize) -> Vec<IoBuf> {
    (0..count).map(|_| IoBuf::new(MIB)).collect()
}

#[test]
fn buffer_memory_is_counted_and_bounded() {
    assert_eq!((allocated_bytes(), pooled()), (0, Pooled::default()));
    let buffer = IoBuf::new(5000);
    assert_eq!(allocated_bytes(), 8192, "whole pages of a size class");
    let pools = Pooled {
        pools: 2,
        bytes: 0,
        bytes_max: (POOL_BYTES_MAX + SHARED_BYTES_MAX) as u64,
    };
    assert_eq!(pooled(), pools, "that of this thread, and the shared one");
    drop(buffer);
    assert_eq!((allocated_bytes(), pooled().bytes), (8192, 8192), "pooled");
    drop(IoBuf::new(8000));
    assert_eq!(allocated_bytes(), 8192, "from the pool");
    let large = IoBuf::new(2 * MIB + 1);
    assert_eq!(
        allocated_bytes(),
        (8192 + 2 * MIB + 4096) as u64,
        "larger ones have their exact size"
    );
    drop(large);
    assert_eq!((allocated_bytes(), pooled().bytes), (8192, 8192), "not pooled");

    // More than both pools keep. This thread's has 8 KiB already, so one MiB less fits.
    let (own, shared) = (POOL_BYTES_MAX / MIB - 1, SHARED_BYTES_MAX / MIB);
    drop(buffers(own + shared + 3));
    let kept = ((own + shared) * MIB + 8192) as u64;
    assert_eq!((allocated_bytes(), pooled().bytes), (kept, kept));

    // Another thread takes from the shared one, and a thread that ends frees its own.
    std::thread::spawn(move || {
        let taken = buffers(shared);
        assert_eq!(allocated_bytes(), kept, "nothing new");
        drop(taken);
        assert_eq!(
            (allocated_bytes(), pooled().bytes, pooled().pools),
            (kept, kept, 3)
        );
    })
    .join()
    .expect("the thread ends");
    let left = kept - POOL_BYTES_MAX as u64;
    assert_eq!(
        (allocated_bytes(), pooled().bytes, pooled().pools),
        (left, left, 2)
    );

    // One round for what was needed before, one that finds it unneeded.
    for _ in 0..2 {
        while trim() {}
        while trim_shared() {}
    }
    assert_eq!((allocated_bytes(), pooled().bytes), (0, 0));
}
