//! How to set a runtime up.

/// How operations are done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// io_uring; threads where it is forbidden, which is said once in the log.
    #[default]
    Auto,
    /// io_uring or nothing.
    IoUring,
    /// Threads that block for files, `poll` for sockets: slower, and everywhere.
    Threads,
}

/// How to set a runtime up.
#[derive(Clone, Debug)]
pub struct Config {
    /// How operations are done.
    pub backend: Backend,
    /// Operations collected before they are handed to the kernel, at most: a power of two.
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
