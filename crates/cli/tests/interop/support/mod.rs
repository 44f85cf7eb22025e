//! Shared by the interop tests: scratch space, caches, a running server, other projects' tools, real mounts.
//!
//! Everything created here is removed when it is dropped, also when a test fails: processes are killed, mounts and loop
//! devices detached, files removed. Every external program runs with a time limit.

pub mod blackout;
pub mod cache;
pub mod data;
pub mod disk;
pub mod forgetful;
pub mod kills;
pub mod ledger;
pub mod limited;
pub mod load;
pub mod need;
pub mod no_uring;
pub mod program;
pub mod scratch;
pub mod server;
pub mod stamp;

pub use blackout::Blackout;
pub use cache::{Cache, CacheSpec};
pub use data::assert_same_content;
pub use disk::{Disk, Mount};
pub use forgetful::Forgetful;
pub use kills::Kills;
pub use limited::Limited;
pub use program::Program;
pub use scratch::Scratch;
pub use server::{ServeMode, Server};
