//! The daemon's machinery: devices, threads, the engine's assembly.
//!
//! | module | what it holds |
//! |---|---|
//! | [`device`] | files and block devices, made slow on request |
//! | [`threads`] | starting, asking and ending the threads that drive shards |
//! | [`worker`] | the threads that drive shards |
//! | [`patience`] | when the cache device must answer in time, and when it is waited for |
//! | [`timed`] | how long flushes and prefetches take |
//! | [`daemon`] | opening, serving and closing a cache |
//! | [`process`] | what a server asks of the kernel for its own process |
//! | [`origin`] | whether an origin is the right one, and how far its cache can be believed |
//! | [`state`] | what the host remembers about a cache apart from the cache device |
//! | [`filesystem`] | what an origin's file system says about mounts and writes |
//! | [`status`] | from the engine's counters to the status report |
//! | [`offline`] | creating, identifying, checking and dumping a cache that nobody serves |

mod daemon;
mod device;
mod filesystem;
mod offline;
mod origin;
mod patience;
mod process;
mod state;
mod status;
mod threads;
mod timed;
mod worker;

pub use daemon::{CLEAN_WITHIN, Daemon, start};
pub use filesystem::utc;
pub use offline::{check, create, dump, identify, offline_status};
pub use process::prepare;
pub use state::default_directory;

/// Any error of the host; its message says what was expected, found, and what to do.
pub type HostError = Box<dyn std::error::Error + Send + Sync>;

/// Where flaz's superblocks start (byte offsets) and the bytes they start with.
pub const SUPERBLOCK_SIGNATURES: &[(u64, &[u8])] = &[(0, b"FLAZCACH"), (64 << 10, b"FLAZCACH")];
