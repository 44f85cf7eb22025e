//! The production runtime: one single-threaded executor per thread on io_uring, with files, block devices and sockets.
//!
//! A thread creates a [`Runtime`] and calls [`Runtime::block_on`]. Code that runs inside uses the runtime through
//! [`Rt`], a zero-sized handle, or implicitly (devices, sockets). Threads share only [`mailbox`]es, [`oneshot()`]s,
//! wakers, and the codec threads of [`compute`]. The engine does not depend on this crate: it uses the traits of
//! `flaz-device`, which [`Rt`] and [`file::FileDevice`] implement.
//!
//! Each file uses only files above it in this table.
//!
//! | file | contents |
//! |---|---|
//! | `request`, `config`, `clock` | requests to the kernel; configuration of a runtime; its clock |
//! | [`mailbox`], `oneshot` | bounded queues and single values between threads |
//! | [`compute`] | codec threads and blocking calls |
//! | `queries` | queries to a file system that may hang |
//! | `task` | slots of tasks, their wakers, the run queue, the inbox for wakes from other threads |
//! | `timer` | sleeping tasks by deadline |
//! | `batch`, `op_table` | many replies in one send; the table that owns buffers while the kernel uses them |
//! | `ring` | io_uring: set-up with fallbacks, submission, completions |
//! | `threads`, `driver` | operations without io_uring, if it is forbidden; the choice between the two |
//! | `state` | the state of a thread's runtime |
//! | `op`, `sleep` | one operation, one wait as a future |
//! | `executor` | the loop: poll ready tasks, submit all new operations at once, wait only if idle |
//! | [`command`] | commands to the drivers of character devices |
//! | [`memory`] | returning free memory; a reserve, for servers that the kernel waits for when memory runs out |
//! | [`resident`] | what of the process is in memory |
//! | [`net`] | sockets: accept, receive, send |
//! | [`mod@peer`] | the process at the other end of a Unix socket |
//! | [`mod@file`] | files and block devices |
//! | `load` | how busy the processors of the machine are |
//! | [`emulate`] | emulation of slow devices |
//!
//! Invariants:
//! - memory that the kernel may write to or read from is owned by the table of operations, never by a future: if a
//!   future is dropped early, its buffer stays there until the operation completes;
//! - a file descriptor is not closed while an operation that names it waits unsubmitted: dropping an
//!   unfinished operation first submits everything;
//! - a task is in at most one queue, once; so queues of tasks are bounded by the number of tasks;
//! - operations, polls and wakes allocate nothing in the steady state.

mod batch;
mod clock;
pub mod command;
pub mod compute;
mod config;
mod driver;
pub mod emulate;
mod executor;
pub mod file;
mod load;
pub mod mailbox;
pub mod memory;
pub mod net;
mod oneshot;
mod op;
mod op_table;
pub mod peer;
mod queries;
mod request;
pub mod resident;
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
