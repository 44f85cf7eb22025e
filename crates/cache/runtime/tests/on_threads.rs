//! The runtime suite without io_uring.

use flaz_runtime::{Backend, Config, Runtime};

#[path = "suite/mod.rs"]
mod suite;

fn runtime() -> Runtime {
    Runtime::new(Config {
        backend: Backend::Threads,
        ..Config::default()
    })
    .expect("nothing is needed for it")
}

#[test]
fn threads_are_used_if_requested() {
    assert_eq!(runtime().backend(), Backend::Threads);
}
