//! The evaluation of the FlaZ paper: recordings of loads, replayed through the engine in virtual time, on the paper's machines.
//!
//! | module | contents |
//! |---|---|
//! | [`workload`] | loads: recordings from files, and generated ones |
//! | [`contents`] | contents of blocks that compress as recorded |
//! | [`machine`] | disks and SSDs, striped |
//! | [`processor`] | cores, and the time of codecs on them |
//! | [`memory`] | the bytes behind a modelled device |
//! | `assembly` | the engine on a machine |
//! | [`cell`] | one load on one machine with one cache |
//! | [`real_time`] | the same in real time, over NBD |
//! | [`agreement`] | which cells run in real time too, and how far the two times agree |
//! | [`evaluation`] | all cells, and what they are compared with |
//! | [`paper`] | published values and goals |
//! | [`report`], [`text`], [`html`] | results, as JSON, as text, as a page |
//!
//! Invariant: the same loads and options give the same figures, on any machine, except where this machine is measured.
#![forbid(unsafe_code)]

pub mod agreement;
mod assembly;
pub mod cell;
pub mod contents;
pub mod evaluation;
pub mod html;
pub mod machine;
pub mod memory;
pub mod paper;
pub mod processor;
pub mod real_time;
pub mod report;
pub mod text;
pub mod workload;
