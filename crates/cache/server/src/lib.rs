//! A server of caches, without a command line: devices, threads, the engine's assembly, front ends.
//!
//! | module | contents |
//! |---|---|
//! | `device` | files and block devices, slowed down on request |
//! | `threads` | starting, asking and ending the threads that drive shards |
//! | `worker` | the threads that drive shards |
//! | `device_timeout` | whether cache device operations have a time limit |
//! | `timed` | latency of flushes and prefetches |
//! | `daemon` | opening, serving and closing a cache |
//! | [`serve()`], `life` | the life of a server: signals, systemd, the control socket |
//! | [`front_end`] | the interface of front ends |
//! | `nbd`, `block_device` | the front ends: NBD sockets; block devices by ublk and by the kernel's NBD client |
//! | [`metrics`] | metrics for Prometheus |
//! | [`pool`] | a cache device that several volumes share |
//! | `order` | orders to the threads, and the volume of each thread |
//! | [`safety`] | checks before a device is overwritten |
//! | `process` | process settings of a server |
//! | `origin` | whether an origin belongs to the cache |
//! | `state`, `state_directory`, `state_records` | per-host state of a cache, where it is, and how an engine thread writes it |
//! | `filesystem` | mount and write counters of an origin's file system |
//! | `next_start` | whether the next start of an idle cache will be refused |
//! | `status` | from the engine's counters to the status report |
//! | `advise` | from what the shards counted to the report of `flaz advise` |
//! | `offline` | creating, identifying, checking and dumping a cache that is not running |

mod advise;
mod block_device;
mod daemon;
mod device;
mod device_timeout;
mod error;
mod filesystem;
pub mod front_end;
mod life;
mod memory_report;
pub mod metrics;
mod names;
mod nbd;
mod next_start;
mod offline;
mod order;
mod origin;
pub mod pool;
mod process;
pub mod safety;
mod serve;
mod spec;
mod state;
mod state_directory;
mod state_records;
mod status;
mod systemd;
mod threads;
mod timed;
mod worker;

pub use block_device::{BlockDeviceSpec, DriverSpec, RemovedDevice, UBLK_DEPTH_DEFAULT, remove_device};
pub use daemon::{CLEAN_WITHIN, Daemon, Resize, start};
pub use error::HostError;
pub use filesystem::utc;
pub use life::STILL_STARTING;
pub use offline::{
    IdleCache, check, create, dump, identify, idle_cache, offline_status, refuse_to_wait, resize_volume,
    unreachable_daemon,
};
pub use process::available_bytes;
pub use serve::{ServeError, Watch, serve};
pub use spec::{CreateSpec, ServeSpec};
pub use state::{default_directory, note_discarded};
pub use systemd::notify_failure;
