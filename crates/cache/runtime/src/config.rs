//! Configuration of a runtime.

/// How I/O operations are executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// io_uring, or threads if it is forbidden; the log then has one warning.
    #[default]
    Auto,
    /// io_uring only.
    IoUring,
    /// Blocking threads for files and `poll` for sockets: slower, but works everywhere.
    Threads,
}

/// Configuration of a runtime.
#[derive(Clone, Debug)]
pub struct Config {
    /// How I/O operations are executed.
    pub backend: Backend,
    /// Maximum number of operations collected before they are submitted to the kernel: a power of two.
    pub sq_entries: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            backend: Backend::default(),
            sq_entries: 512,
        }
    }
}
