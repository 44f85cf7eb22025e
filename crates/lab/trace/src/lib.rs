//! Reads block traces: the requests of a disk's clients, in order.
//!
//! A trace is read as a stream in bounded memory, whatever its length. The format is detected by the name and the contents of the
//! file; files compressed with gzip or zstd are decompressed. `docs/lab-replay.md` describes the formats.
//!
//! | module | contents |
//! |---|---|
//! | [`reader`] | [`TraceReader`]: a trace as a stream of requests; bad lines |
//! | [`format`] | the formats, and their detection |
//! | [`request`] | [`Request`], and its limits |
//! | [`recording`] | recordings: requests with the compressed sizes of their blocks; their writer |
//! | `input` | files, decompression, lines and records of bounded length |
//! | `fields` | numbers in text and in records |
//! | `blkparse`, `iolog`, `msr`, `vscsi`, `arc`, `oracle`, `own` | one format each: a line or a record to a request |
//!
//! Invariants: no input causes a panic; memory does not depend on the length of the input; each line or record is a request,
//! nothing, or an error with its number.

#![forbid(unsafe_code)]

mod arc;
mod blkparse;
mod fields;
pub mod format;
mod input;
mod iolog;
mod msr;
mod oracle;
mod own;
pub mod reader;
pub mod recording;
pub mod request;
mod vscsi;

pub use format::Format;
pub use reader::{Options, TraceError, TraceReader};
pub use request::{Op, Request};
