//! Models of the machines that published texts describe, so that their claims can be checked anywhere.
//!
//! | module | contents |
//! |---|---|
//! | [`ssd`] | an SSD that compresses: description, flash translation layer, rates, life; compared with published figures |
//! | [`serve`] | the same SSD as a device with its contents, over NBD, in real time |
//!
//! `docs/lab.md` has the formulas, and what was fitted to what.
#![forbid(unsafe_code)]

pub mod serve;
pub mod ssd;
