//! What ends a server, and what does not.

use rustix::process::Signal;

use crate::support::{Cache, CacheSpec, Scratch, Server};

fn served(scratch: &Scratch) -> (Cache, Server) {
    let origin = scratch.sparse("origin.img", 16 << 20);
    let cache = Cache::create(scratch, &origin, &CacheSpec::default());
    let server = Server::start(scratch, &cache, "");
    (cache, server)
}

#[test]
fn a_hangup_does_not_end_a_server() {
    let scratch = Scratch::new();
    let (cache, mut server) = served(&scratch);
    for _ in 0..2 {
        server.signal(Signal::HUP);
    }
    server.log_with("SIGHUP has no effect");
    assert_eq!(server.status()["state"], "running");
    assert!(
        server.end_by(Signal::TERM).success(),
        "the first SIGTERM is no second signal"
    );
    cache.check();
}
