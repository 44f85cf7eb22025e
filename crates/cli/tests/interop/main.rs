//! The real program served to the clients that people use: libnbd's tools, qemu's, fio, file systems,
//! PostgreSQL.
//!
//! Each test has its own cache, origin and server. After each the origin itself is looked at: in every mode but
//! write-back it has all the data once a flush has been answered, in that one after `flaz flush`. A missing tool skips the test and says so;
//! see `support/need.rs` for how to make that a failure.

mod crashes;
mod damage;
mod detach;
mod detect;
mod filesystem;
mod fio;
mod nbdcopy;
mod nbdinfo;
mod nbdsh;
mod origin_changed;
mod postgres;
mod qemu;
mod reclaim;
mod restart;
mod settings;
mod soak;
mod stable;
mod stall;
mod support;
