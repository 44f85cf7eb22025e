//! Models of the machines that published texts describe, so that their claims can be checked anywhere; and recordings of loads, which
//! `flaz-evaluate` replays on such machines.
//!
//! | module | contents |
//! |---|---|
//! | [`ssd`] | an SSD that compresses: description, flash translation layer, rates, life; compared with published figures |
//! | [`serve`] | the same SSD as a device with its contents, over NBD, in real time |
//! | [`record`] | a device or file over NBD, whose requests are recorded |
//! | [`nbd`] | what serves both |
//!
//! `docs/lab.md` has the formulas, and what was fitted to what.
#![forbid(unsafe_code)]

pub mod nbd;
pub mod record;
pub mod serve;
pub mod ssd;
