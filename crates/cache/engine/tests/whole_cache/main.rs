//! A whole cache on simulated disks: its format, hostile images, memory, failing disks, warm starts.
//!
//! | module | question |
//! |---|---|
//! | [`bytes`] | do requests of any bytes do what a plain array does? |
//! | [`golden`] | is the format on the device what it was? |
//! | [`flips`] | does damage of any byte stay without harm? |
//! | [`hostile`] | do images with valid checksums and absurd values stay without harm? |
//! | [`intents`] | what do intents cost, in cached blocks after a crash and in time before it? |
//! | [`memory`] | what does a cached block cost in memory, and how much of the device holds blocks? |
//! | [`reads`] | what is read from the cache device, and what enters the cache, and when? |
//! | [`full_disk`] | what if the cache device takes no writes? |
//! | [`status`] | are the figures of the status page true? |
//! | [`warm`] | is everything there after a clean stop? |

mod bytes;
mod example;
mod flips;
mod full_disk;
mod golden;
mod hostile;
mod image;
mod intents;
mod memory;
mod reads;
mod rig;
mod status;
mod warm;
