//! The tests that are run with each way of doing operations. The including file gives `runtime()`.

mod block_device;
mod emulate;
mod file;
mod mailbox;
mod net;
mod runtime;
