//! The NBD front end: serves any [`Volume`](flaz_engine::volume::Volume) to NBD clients; and a small client.
//!
//! Fixed newstyle negotiation, structured replies, flush, FUA, trim, write-zeroes, cache, block status
//! (`base:allocation`), several connections; no TLS yet. One server has one export.
//!
//! | module | contents |
//! |---|---|
//! | [`address`], [`socket`] | `unix:PATH`, `tcp:HOST:PORT`, and listening sockets |
//! | [`protocol`] | numbers and fixed layouts |
//! | [`export`], [`negotiation`], [`option_data`] | the handshake, without I/O |
//! | [`request`], [`reply`], [`errno`] | the transmission phase, without I/O |
//! | [`shutdown`], [`counters`] | stopping, and the counters for the status report |
//! | [`limits`] | every maximum |
//! | [`connection`] | one client, or the kernel's block device: receiver, workers, sender |
//! | [`server`] | the accept loop |
//! | [`client`] | a blocking client for the demo, for tests and measurements |
#![forbid(unsafe_code)]

pub mod address;
pub mod client;
pub mod connection;
pub mod counters;
pub mod errno;
pub mod export;
pub mod limits;
pub mod negotiation;
pub mod option_data;
pub mod protocol;
pub mod reply;
pub mod request;
pub mod server;
pub mod shutdown;
pub mod socket;

pub use address::NbdAddress;
pub use client::Client;
pub use connection::{Incoming, Service, serve_connection};
pub use counters::{Counters, Snapshot};
pub use export::Export;
pub use limits::Limits;
pub use server::Server;
pub use shutdown::Shutdown;
