//! The control protocol of a running cache: everything that a program needs to communicate with a daemon.
//!
//! | module | contents |
//! |---|---|
//! | [`protocol`], [`client`], [`server`] | requests and replies on the control socket, its client and its server |
//! | [`place`], `stale` | default paths of the sockets of a cache; those that killed daemons have left |
//! | [`report`] | the status, check and create reports |
//! | [`settings`], [`size`] | parsing and formatting of settings, sizes and numbers |
//! | [`file`] | the file or device of a cache, as opposed to a copy |
//! | [`path`], [`shell`] | paths in JSON, and quoted in suggested commands |
//! | [`error`] | errors of requests to a daemon |
//!
//! A daemon has one Unix socket for control, with mode 0600. A client sends JSON lines and gets one line for each. The
//! daemon answers only root and its own user. Invariants:
//!
//! - no client can make the daemon wait for ever or grow: lines, clients and idle time have limits;
//! - a socket file is replaced only if no process listens on it.

pub mod client;
mod connect;
pub mod error;
pub mod file;
pub mod path;
pub mod place;
pub mod protocol;
pub mod report;
pub mod server;
pub mod settings;
pub mod shell;
pub mod size;
mod stale;
#[cfg(test)]
mod tests;

pub use client::Client;
pub use error::{ControlError, chain};
pub use protocol::{Reply, Request};
pub use server::{Asker, ControlHandler, Server};
