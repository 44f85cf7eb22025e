//! A file or a block device, through io_uring and past the page cache.
//!
//! Invariants:
//! - a transfer is whole or an error: short reads and writes are continued, the end of the file is an error;
//! - an operation runs on the runtime of the thread that polls it, so one [`FileDevice`] serves all threads;
//! - the kernel never holds memory or a descriptor that a dropped future has given back (see [the crate](crate)).
//!
//! | file | what it holds |
//! |---|---|
//! | `kind`, `handle` | an open file, moving its data |
//! | `open` | opening, probing for O_DIRECT, sizes and alignments, locks |
//! | `identity` | which file or device this is, however it is called today |
//! | `stable` | writes that are stable when they return, and flushes |
//! | `zero` | discard and write-zeroes, with what to do where they are not supported |
//! | `status` | holes |
//! | `device` | the [`Device`](flaz_device::Device) that these make |

mod device;
mod handle;
mod identity;
mod kind;
mod lock;
mod open;
mod stable;
mod status;
mod zero;

pub use handle::FileDevice;
pub use identity::Identity;
pub use kind::Kind;
pub use lock::locked_by;
pub use open::{OpenError, OpenMode};
pub use status::Run;
