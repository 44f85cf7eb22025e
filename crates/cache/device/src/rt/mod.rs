//! The production runtime: one single-threaded executor a thread, on io_uring.
//!
//! A thread makes a [`Runtime`] and calls [`Runtime::block_on`]; everything that runs inside reaches the
//! runtime through [`Rt`], a zero-sized handle, or implicitly (devices, sockets). Nothing is shared between
//! threads but [`mailbox`]es, [`oneshot`]s, wakers, and the codec threads of [`compute`].
//!
//! | file | what it holds |
//! |---|---|
//! | `executor` | the loop: poll ready tasks, hand all new operations to the kernel at once, wait only if idle |
//! | `task` | slots of tasks, their wakers, the inbox for wakes from other threads |
//! | `ring` | io_uring: set-up with fallbacks, submission, completions |
//! | `threads`, `driver` | the same without io_uring, where it is forbidden; the choice between the two |
//! | `op` | one operation as a future, and the table that owns buffers while the kernel uses them |
//! | `timer` | sleeping tasks by deadline |
//! | `net`, `batch` | sockets: accept, receive, send many replies with one call |
//! | `mailbox`, `oneshot` | bounded queues and single answers between threads |
//! | `compute` | codec threads and blocking calls |
//!
//! Invariants:
//! - memory that the kernel may write to or read from is owned by the table of operations, never by a
//!   future: dropping a future early leaves its buffer there until the kernel has answered;
//! - a file descriptor is not closed while an operation that names it waits unsubmitted: dropping an
//!   unfinished operation first submits everything;
//! - a task is in at most one queue, once; so queues of tasks are bounded by the number of tasks;
//! - no allocation for an operation, a poll or a wake in the steady state.

mod batch;
pub mod compute;
mod driver;
mod executor;
pub mod mailbox;
pub mod net;
mod oneshot;
mod op;
mod ring;
mod task;
mod threads;
mod timer;

pub use batch::SendBatch;
pub use executor::{Backend, Config, Rt, Runtime};
pub use oneshot::{Lost, OneReceiver, OneSender, RecvTimeoutError, oneshot};

pub(crate) use op::{Op, Payload, Request};
