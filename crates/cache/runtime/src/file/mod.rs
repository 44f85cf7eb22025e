//! Files and block devices, through io_uring and with direct I/O.
//!
//! Invariants:
//! - a transfer is complete or an error: short reads and writes are continued, the end of the file is an error;
//! - an operation runs on the runtime of the thread that polls it, so one [`FileDevice`] serves all threads;
//! - the kernel never uses memory or a descriptor that a dropped future has released (see [the crate](crate)).
//!
//! | file | contents |
//! |---|---|
//! | `kind`, `handle` | an open file, data transfers |
//! | `open` | opening, probing for O_DIRECT, sizes and alignments, locks |
//! | `identity` | the identity of a file or device |
//! | `stable` | writes that are stable when they return, and flushes |
//! | `zero` | discard and write-zeroes, with substitutes if they are not supported |
//! | `size`, `resize` | the size now, and changing that of a file |
//! | `status` | holes |
//! | `device` | the [`Device`](flaz_device::Device) implementation |

mod device;
mod handle;
mod identity;
mod kind;
mod lock;
mod open;
mod resize;
mod size;
mod stable;
mod status;
mod zero;

pub use handle::FileDevice;
pub use identity::Identity;
pub use kind::Kind;
pub use lock::{ByteLock, is_byte_locked, lock_byte, locked_by, wait_for_byte};
pub use open::{Hold, OpenError, OpenMode};
pub use status::Run;
