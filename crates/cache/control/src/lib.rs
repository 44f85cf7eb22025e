//! How a running cache is asked and told, and what it answers: all that a program needs to talk to a daemon without
//! being one.
//!
//! | module | what it holds |
//! |---|---|
//! | [`protocol`], [`client`], [`server`] | requests and replies on the control socket, and both its ends |
//! | [`place`] | where the sockets of a cache are |
//! | [`report`] | what a cache reports about itself |
//! | [`settings`], [`size`] | settings, sizes and numbers as people write and read them |
//! | [`error`] | why a daemon cannot be asked |
//!
//! A daemon has one Unix socket, mode 0600, apart from the data. A client sends JSON lines and gets one line for each;
//! the daemon answers only root and its own user. Invariants:
//!
//! - nothing that a client sends or leaves out makes the daemon wait for ever or grow: lines, clients and idle time have
//!   limits;
//! - a socket file is replaced only if no process listens on it.

pub mod client;
mod connect;
pub mod error;
pub mod place;
pub mod protocol;
pub mod report;
pub mod server;
pub mod settings;
pub mod size;
#[cfg(test)]
mod tests;

pub use client::Client;
pub use error::{ControlError, chain};
pub use protocol::{Reply, Request};
pub use server::{ControlHandler, Server};
