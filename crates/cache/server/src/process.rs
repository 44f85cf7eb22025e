//! What a server asks of the kernel for its own process.

use rustix::process::{DumpableBehavior, configure_io_flusher_behavior, set_dumpable_behavior};

/// Prepares the process for serving. To be called before any thread is started, for these inherit it.
///
/// - No core dump: memory holds the data of whoever is served, and a dump would be a copy of it that nobody guards.
///   (Nor may other processes of the same user look into this one.)
/// - Memory is given to this process without writing to a file system or swap first: if the exported device is mounted
///   here, that write would wait for this process. See `PR_SET_IO_FLUSHER` in prctl(2); it needs `CAP_SYS_RESOURCE`.
///
/// Neither stops a server that cannot have it.
pub fn prepare() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "core dumps of this process cannot be turned off: they would hold cached data");
    }
    match configure_io_flusher_behavior(true) {
        Ok(()) => tracing::debug!("memory comes without waiting for file systems (PR_SET_IO_FLUSHER)"),
        Err(error) => tracing::debug!(
            %error,
            "not marked as a process that I/O waits for (PR_SET_IO_FLUSHER needs CAP_SYS_RESOURCE): if memory gets \
             short where the exported device is mounted or swapped to, both may wait for each other"
        ),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{dumpable_behavior, is_io_flusher};

    use super::*;

    #[test]
    fn a_server_leaves_no_core_dump_and_is_an_io_flusher() {
        // A thread of its own, so that other tests are left as they are.
        let before = std::thread::spawn(is_io_flusher).join().expect("ends");
        let of_threads = std::thread::spawn(|| {
            prepare();
            std::thread::spawn(is_io_flusher).join().expect("ends")
        });
        let after = of_threads.join().expect("ends");
        assert!(matches!(dumpable_behavior(), Ok(DumpableBehavior::NotDumpable)));
        match before {
            Ok(before) => assert_eq!((before, after), (false, Ok(true))),
            // Without CAP_SYS_RESOURCE a server does without.
            Err(error) => assert_eq!(after, Err(error)),
        }
    }
}
