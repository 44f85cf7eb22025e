//! A whole cache on simulated disks: its format, hostile images, memory, failing disks, warm starts.
//!
//! | module | question |
//! |---|---|
//! | [`bytes`] | do requests of any bytes behave like a plain array? |
//! | [`golden`] | is the on-disk format unchanged? |
//! | [`flips`] | is damage of any byte harmless? |
//! | [`hostile`] | are images with valid checksums and absurd values harmless? |
//! | [`intents`] | what do intents cost, in cached blocks after a crash and in time before it? |
//! | [`memory`] | what does a cached block cost in memory, and how much of the device holds blocks? |
//! | [`reads`] | what is read from the cache device, what is stored in the cache, and when? |
//! | [`full_disk`] | what happens if the cache device fails writes? |
//! | [`second_stage`] | which blocks does `auto` compress again, and when? |
//! | [`status`] | are the figures of the status page correct? |
//! | [`uses`] | which uses keep a block in the cache? |
//! | [`warm`] | is everything still cached after a clean stop? |

mod budget;
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
mod second_stage;
mod status;
mod undone;
mod uses;
mod warm;
