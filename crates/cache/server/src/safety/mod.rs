//! Checks before a device is overwritten.
//!
//! | module | question |
//! |---|---|
//! | [`identity`], [`node`] | which device or file does a path name, and do two paths name the same one |
//! | [`mounts`], [`holders`] | who uses it: mounts, swap, devices stacked on it |
//! | [`location`] | is a path on a device, without touching the device |
//! | [`source`], [`signatures`], [`probe`] | what does it contain |
//! | [`objections`], [`error`] | what are the objections to using it |
//! | [`unused`] | is a device of this process unused, so that it may be removed |
//! | [`file`], [`claim`] | may flaz overwrite it, and does flaz hold it |
//!
//! Invariants: nothing is written, and no file is created, before every check has passed. A device that is mounted,
//! used for swap or claimed by others is refused, with any option.

mod claim;
mod error;
mod file;
mod holders;
pub mod identity;
mod location;
mod mounts;
mod node;
mod objections;
mod probe;
mod signatures;
mod source;
mod unused;

pub(crate) use claim::TakenOver;
pub use claim::{
    Claim, Permission, cache, claim_existing, claim_for_create, claim_shared, claim_to_overwrite,
    final_uses_text, origin, refuse_overlap, uses_text,
};
pub use error::{CACHE_DEVICE, OriginAdvice, SafetyError};
pub use file::Access;
pub(crate) use location::mount_on;
pub use node::Node;
pub(crate) use unused::{hold_unused, hold_unused_within};
