//! Tests that run on each backend. The including file provides `runtime()`.

mod block_device;
mod emulate;
mod file;
mod mailbox;
mod net;
mod runtime;
