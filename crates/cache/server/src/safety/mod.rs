//! What must be known about a device before it is overwritten.
//!
//! | module | question |
//! |---|---|
//! | [`identity`], [`node`] | what does a path lead to, and do two lead to the same thing |
//! | [`mounts`], [`holders`] | who uses it: mounts, swap, devices stacked on it |
//! | [`source`], [`signatures`], [`probe`] | what does it carry |
//! | [`objections`], [`error`] | what speaks against using it |
//! | [`file`], [`claim`] | may it be ours, and is it |
//!
//! Invariants: nothing is written, not even a file made, before every check has passed; what is mounted, swapped
//! to or claimed by others is refused whatever the user says.

mod claim;
mod error;
mod file;
mod holders;
pub mod identity;
mod mounts;
mod node;
mod objections;
mod probe;
mod signatures;
mod source;

pub use claim::{
    Claim, cache, claim_existing, claim_for_create, claim_to_overwrite, final_uses_text, origin, uses_text,
};
pub use error::SafetyError;
pub use file::Access;
pub use node::Node;
