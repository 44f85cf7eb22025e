//! The real program with real clients: libnbd's tools, qemu's, fio, file systems, PostgreSQL.
//!
//! Each test has its own cache, origin and server. At its end the origin itself is checked: in write-back it has all
//! data after `flaz flush`, in every other mode once a flush was acknowledged. A test is skipped with a message if a
//! tool is missing; see `support/need.rs` for how to make that a failure.

mod advise;
mod crashes;
mod damage;
mod detach;
mod detect;
mod filesystem;
mod fio;
mod lab;
mod memory;
mod metrics;
mod nbdcopy;
mod nbdinfo;
mod nbdsh;
mod origin_changed;
mod origin_errors;
mod postgres;
mod protected;
mod qemu;
mod reclaim;
mod record;
mod resize;
mod restart;
mod settings;
mod soak;
mod stable;
mod stall;
mod stopping;
mod support;
mod volumes;
