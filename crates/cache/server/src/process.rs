//! Process settings of a server, and the thread that looks after its memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flaz_runtime::memory;
use flaz_runtime::resident::resident;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{
    DumpableBehavior, Resource, configure_io_flusher_behavior, getrlimit, set_dumpable_behavior,
};
use rustix::thread::{CapabilitySet, capabilities};

/// Prepares the process for serving. Call this before any thread is started, because threads inherit the settings.
///
/// - No core dump, because it would contain cached data and nothing protects it. The setting also keeps other processes
///   of the same user from reading this one's memory.
/// - With `is_local`, all threads will share one heap, for [`lock_memory`]. Otherwise large parts of the heap are returned when they
///   are freed.
/// - Memory allocation does not write to a file system or swap first. If the exported device is mounted here, that
///   write would wait for this process. See `PR_SET_IO_FLUSHER` in prctl(2); it needs `CAP_SYS_RESOURCE`.
///
/// A server that cannot have one of them runs without it.
pub fn prepare(is_local: bool) {
    if is_local {
        memory::use_one_heap();
    } else {
        memory::return_large_parts();
    }
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "cannot disable core dumps of this process, which would contain cached data");
    }
    match configure_io_flusher_behavior(true) {
        Ok(()) => tracing::debug!("memory allocation does not wait for file systems (PR_SET_IO_FLUSHER)"),
        Err(error) => tracing::debug!(
            %error,
            "cannot set PR_SET_IO_FLUSHER (requires CAP_SYS_RESOURCE): if the exported device is mounted or \
             used for swap on this machine, low memory can cause a deadlock"
        ),
    }
}

/// How often the reserve is looked at. The index grows while the cache is filled, at most by megabytes a second.
const RESERVE_EVERY: Duration = Duration::from_secs(1);
/// The reserve is refilled only while the machine has this much memory: the allocator holds its lock while it touches the first
/// new page, and all threads would wait with it.
const AVAILABLE_BYTES_MIN: u64 = 256 << 20;

/// How often the free memory of the heap is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Memory is returned when it was free at so many looks in a row: after 20 s.
const LOOKS: u32 = 4;
/// Resident free memory that stays: returning less gains little.
const SURPLUS_BYTES_MAX: u64 = 4 << 20;

/// See [`reserve_bytes`].
static RESERVE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Keeps this process in memory, with the stacks of threads that start later: pages that were swapped out would have to be
/// found while the kernel waits for this process to free memory. Call this before the threads start, and
/// [`keep_memory_free`] afterwards. Without permission, there is a warning.
pub fn lock_memory() {
    let locked = match may_lock_memory() {
        true => mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE),
        false => Err(rustix::io::Errno::PERM),
    };
    if let Err(error) = locked {
        tracing::warn!(
            "cannot lock the memory of this process: {error}; if the machine runs out of memory, writing to the block device \
             can be slow or stop (run as root, or with LimitMEMLOCK=infinity)"
        );
    }
}

/// Without permission the kernel would accept the lock of future memory, and then refuse memory above the limit.
fn may_lock_memory() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
        || getrlimit(Resource::Memlock).current.is_none()
}

/// Keeps a reserve of free memory, for requests and for the index, which grows while the cache is filled: see
/// [`flaz_runtime::memory`]. [`prepare`] must have prepared for this.
pub fn keep_memory_free(bytes: usize) {
    if may_lock_memory()
        // From here on the heap grows without pages: a thread that waited for them in the allocator would hold up all others.
        && let Err(error) = mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
    {
        tracing::warn!("cannot lock the memory that this process will need: {error}");
    }
    RESERVE_BYTES.store(bytes, Ordering::Relaxed);
    memory::reserve(bytes);
    let refill = move || {
        loop {
            std::thread::sleep(RESERVE_EVERY);
            if memory::free_bytes() < bytes / 2 && available_bytes() >= AVAILABLE_BYTES_MIN {
                memory::reserve(bytes);
            }
        }
    };
    start_thread(refill);
}

fn start_thread(work: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name("memory".to_owned()).spawn(work) {
        tracing::warn!("cannot start the thread that manages memory: {error}");
    }
}

/// Free memory that this process keeps on purpose, in bytes.
pub(crate) fn reserve_bytes() -> u64 {
    RESERVE_BYTES.load(Ordering::Relaxed) as u64
}

/// Returns memory of the heap that stays free. [`prepare`] must have prepared for this.
pub fn return_free_memory() {
    start_thread(|| {
        let mut surplus = Surplus::default();
        loop {
            std::thread::sleep(LOOK_EVERY);
            if surplus.is_lasting(free_bytes()) {
                memory::trim_heap();
                surplus.trimmed(free_bytes());
            }
        }
    });
}

/// Free memory of the heap that is resident.
fn free_bytes() -> u64 {
    let heap = resident().map_or(0, |resident| resident.heap_bytes);
    heap.saturating_sub(memory::used_bytes())
}

/// Decides when to return free memory: what a load frees and takes again stays.
#[derive(Debug, Default)]
struct Surplus {
    /// Looks in a row at which much was free.
    looks: u32,
    /// The last trim left much: a load took and freed it meanwhile, or it is in parts of pages.
    left_much: bool,
}

impl Surplus {
    /// So much is free now. Returns whether more than [`SURPLUS_BYTES_MAX`] has been free for [`LOOKS`] looks; for twice as many if
    /// the last trim left more than that.
    fn is_lasting(&mut self, free: u64) -> bool {
        if free <= SURPLUS_BYTES_MAX {
            *self = Self::default();
            return false;
        }
        self.looks += 1;
        self.looks >= if self.left_much { 2 * LOOKS } else { LOOKS }
    }

    /// The heap was trimmed, and so much is free now.
    fn trimmed(&mut self, free: u64) {
        self.looks = 0;
        self.left_much = free > SURPLUS_BYTES_MAX;
    }
}

/// Memory that the machine has without writing any out; 0 if that is not known.
#[must_use]
pub fn available_bytes() -> u64 {
    meminfo("MemAvailable:")
}

/// Memory of the machine; 0 if that is not known.
pub(crate) fn memory_bytes() -> u64 {
    meminfo("MemTotal:")
}

fn meminfo(field: &str) -> u64 {
    std::fs::read_to_string("/proc/meminfo").map_or(0, |text| field_of(&text, field))
}

fn field_of(meminfo: &str, field: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use rustix::process::{dumpable_behavior, is_io_flusher};

    use super::*;

    #[test]
    fn available_memory_is_read_in_bytes() {
        let text = "MemTotal:        512 kB\nMemAvailable:    300 kB\nBuffers:   1 kB\n";
        assert_eq!(
            (
                field_of(text, "MemAvailable:"),
                field_of("MemTotal: 5 kB", "MemAvailable:")
            ),
            (300 << 10, 0)
        );
        assert!(0 < available_bytes() && available_bytes() <= memory_bytes());
    }

    #[test]
    fn memory_is_returned_once_it_stays_free() {
        let mut surplus = Surplus::default();
        let (little, much) = (SURPLUS_BYTES_MAX, 50 << 20);
        for _ in 0..10 {
            assert!(!surplus.is_lasting(little));
        }
        // A load that takes it again and again.
        for _ in 0..10 {
            assert!((1..LOOKS).all(|_| !surplus.is_lasting(much)));
            assert!(!surplus.is_lasting(little));
        }
        assert!((1..LOOKS).all(|_| !surplus.is_lasting(much)) && surplus.is_lasting(much));
        // What cannot be returned is tried again later.
        surplus.trimmed(8 << 20);
        assert!((1..2 * LOOKS).all(|_| !surplus.is_lasting(9 << 20)) && surplus.is_lasting(9 << 20));
        surplus.trimmed(little);
        assert!((1..LOOKS).all(|_| !surplus.is_lasting(much)) && surplus.is_lasting(much));
    }

    #[test]
    fn memory_is_locked_where_that_is_permitted() {
        let locked_kib = || -> u64 {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("VmLck:"))
                .unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        lock_memory();
        let locked = locked_kib();
        rustix::mm::munlockall().unwrap();
        assert_eq!(locked > 0, may_lock_memory(), "{locked} KiB are locked");
    }

    #[test]
    fn a_server_leaves_no_core_dump_and_is_an_io_flusher() {
        // Runs on its own thread, so that other tests are not affected.
        let before = std::thread::spawn(is_io_flusher).join().expect("ends");
        let of_threads = std::thread::spawn(|| {
            prepare(false);
            std::thread::spawn(is_io_flusher).join().expect("ends")
        });
        let after = of_threads.join().expect("ends");
        assert!(matches!(dumpable_behavior(), Ok(DumpableBehavior::NotDumpable)));
        match before {
            Ok(before) => assert_eq!((before, after), (false, Ok(true))),
            // Without CAP_SYS_RESOURCE, the server runs without this setting.
            Err(error) => assert_eq!(after, Err(error)),
        }
    }
}
