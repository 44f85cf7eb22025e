//! A block device by ublk: Linux passes the requests for `/dev/ublkbN` to this process, through io_uring.
//!
//! | file | contents |
//! |---|---|
//! | [`protocol`] | structures and numbers of the driver; pure |
//! | [`control`] | `/dev/ublk-control`: adding, starting, stopping, taking over and deleting devices |
//! | `command_ring` | its commands, one at a time |
//! | [`take_over`] | taking a device over |
//! | [`char_device`] | `/dev/ublkcN`: opened, with the requests that the driver describes there |
//! | [`queue`] | the service of one queue |
//! | `request` | one request, and its answer |
//! | [`counters`] | what was served |
//! | [`error`] | what fails, and what to do |
//!
//! Data is copied between the page cache and this process by the driver (its plain copy mode): a compressor has to see it in
//! any case. Devices are made with recovery and reissue, so a device outlives its server: requests wait, and those that were
//! not answered go to the next server.
//!
//! References: Documentation/block/ublk.rst and include/uapi/linux/ublk_cmd.h of Linux.

pub mod char_device;
mod command_ring;
pub mod control;
pub mod counters;
pub mod error;
pub mod protocol;
pub mod queue;
mod request;
pub mod take_over;

pub use char_device::{CharDevice, many_queues_are_possible};
pub use command_ring::Patience;
pub use control::{Control, NewDevice, device_numbers};
pub use counters::{Counters, Counts, Kind};
pub use error::UblkError;
pub use queue::{Queue, bytes_in_progress_max};
