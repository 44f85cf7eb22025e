//! Process settings of a server.

use rustix::process::{DumpableBehavior, configure_io_flusher_behavior, set_dumpable_behavior};

/// Prepares the process for serving. Call this before any thread is started, because threads inherit the settings.
///
/// - No core dump, because it would contain cached data and nothing protects it. The setting also keeps other processes
///   of the same user from reading this one's memory.
/// - Memory allocation does not write to a file system or swap first. If the exported device is mounted here, that
///   write would wait for this process. See `PR_SET_IO_FLUSHER` in prctl(2); it needs `CAP_SYS_RESOURCE`.
///
/// A server that cannot have one of them runs without it.
pub fn prepare() {
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

#[cfg(test)]
mod tests {
    use rustix::process::{dumpable_behavior, is_io_flusher};

    use super::*;

    #[test]
    fn a_server_leaves_no_core_dump_and_is_an_io_flusher() {
        // Runs on its own thread, so that other tests are not affected.
        let before = std::thread::spawn(is_io_flusher).join().expect("ends");
        let of_threads = std::thread::spawn(|| {
            prepare();
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
