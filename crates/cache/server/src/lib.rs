//! A server of caches, without a command line: devices, threads, the engine's assembly, front ends.
//!
//! | module | what it holds |
//! |---|---|
//! | `device` | files and block devices, made slow on request |
//! | `threads` | starting, asking and ending the threads that drive shards |
//! | `worker` | the threads that drive shards |
//! | `patience` | when the cache device must answer in time, and when it is waited for |
//! | `timed` | how long flushes and prefetches take |
//! | `daemon` | opening, serving and closing a cache |
//! | [`serve()`], `life` | the life of a server: signals, systemd, the control socket |
//! | [`front_end`], `nbd` | where front ends plug in; the one for NBD |
//! | `order` | what the threads are asked to do, and the volume that each has |
//! | [`safety`] | what must be known about a device before it is overwritten |
//! | `process` | what a server asks of the kernel for its own process |
//! | `origin` | whether an origin is the right one, and how far its cache can be believed |
//! | `state` | what the host remembers about a cache apart from the cache device |
//! | `filesystem` | what an origin's file system says about mounts and writes |
//! | `status` | from the engine's counters to the status report |
//! | `offline` | creating, identifying, checking and dumping a cache that nobody serves |

mod daemon;
mod device;
mod error;
mod filesystem;
pub mod front_end;
mod life;
mod nbd;
mod offline;
mod order;
mod origin;
mod patience;
mod process;
pub mod safety;
mod serve;
mod spec;
mod state;
mod status;
mod threads;
mod timed;
mod worker;

pub use daemon::{CLEAN_WITHIN, Daemon, start};
pub use error::HostError;
pub use filesystem::utc;
pub use offline::{check, create, dump, identify, offline_status};
pub use serve::{ServeError, Watch, serve};
pub use spec::{CreateSpec, ServeSpec};
pub use state::default_directory;
