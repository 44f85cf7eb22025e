//! The production runtime: one single-threaded executor a thread, on io_uring; files, block devices and sockets on it.
//!
//! A thread makes a [`Runtime`] and calls [`Runtime::block_on`]; everything that runs inside reaches the
//! runtime through [`Rt`], a zero-sized handle, or implicitly (devices, sockets). Nothing is shared between
//! threads but [`mailbox`]es, [`oneshot()`]s, wakers, and the codec threads of [`compute`]. The engine knows none of this:
//! it depends on the traits of `flaz-device`, which [`Rt`] and [`file::FileDevice`] implement.
//!
//! Each file uses those above it in this table, and none below.
//!
//! | file | what it holds |
//! |---|---|
//! | `request`, `config`, `clock` | what is asked of the kernel; how a runtime is set up; its clock |
//! | [`mailbox`], `oneshot` | bounded queues and single answers between threads |
//! | [`compute`] | codec threads and blocking calls |
//! | `task` | slots of tasks, their wakers, the run queue, the inbox for wakes from other threads |
//! | `timer` | sleeping tasks by deadline |
//! | `batch`, `op_table` | many replies in one send; the table that owns buffers while the kernel uses them |
//! | `ring` | io_uring: set-up with fallbacks, submission, completions |
//! | `threads`, `driver` | the same without io_uring, where it is forbidden; the choice between the two |
//! | `state` | the state of a thread's runtime |
//! | `op`, `sleep` | one operation, one wait as a future |
//! | `executor` | the loop: poll ready tasks, hand all new operations to the kernel at once, wait only if idle |
//! | [`net`] | sockets: accept, receive, send |
//! | [`mod@file`] | files and block devices |
//! | [`emulate`] | slow devices out of fast ones |
//!
//! Invariants:
//! - memory that the kernel may write to or read from is owned by the table of operations, never by a
//!   future: dropping a future early leaves its buffer there until the kernel has answered;
//! - a file descriptor is not closed while an operation that names it waits unsubmitted: dropping an
//!   unfinished operation first submits everything;
//! - a task is in at most one queue, once; so queues of tasks are bounded by the number of tasks;
//! - no allocation for an operation, a poll or a wake in the steady state.

mod batch;
mod clock;
pub mod compute;
mod config;
mod driver;
pub mod emulate;
mod executor;
pub mod file;
pub mod mailbox;
pub mod net;
mod oneshot;
mod op;
mod op_table;
mod request;
mod ring;
mod sleep;
mod state;
mod task;
mod threads;
mod timer;

pub use batch::SendBatch;
pub use config::{Backend, Config};
pub use executor::{Rt, Runtime};
pub use oneshot::{Lost, OneReceiver, OneSender, RecvTimeoutError, oneshot};
