//! What ends a server, and what does not.

use flaz_nbd::Client;
use flaz_nbd::request::Command;
use rustix::process::Signal;

use crate::support::{Cache, CacheSpec, Program, Scratch, Server};

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

#[test]
fn a_stop_is_refused_while_clients_are_connected() {
    let scratch = Scratch::new();
    let (_cache, server) = served(&scratch);
    let mut client = Client::connect(server.socket()).expect("connects");
    let stop = |words: &str| {
        Program::flaz()
            .words("stop")
            .words(words)
            .arg("--control")
            .arg(server.control())
    };
    let name = format!("NBD client process {} (", std::process::id());
    let said = stop("").fails();
    assert!(
        said.contains(&name) && said.contains(") is connected: disconnect") && said.contains("--force"),
        "{said}"
    );
    let said = stop("--if-idle").ok();
    assert!(
        said.starts_with("left running: ") && said.contains(&name),
        "{said}"
    );
    client.call(Command::Read, 0, 4096).expect("it is still served");
    drop(client);
    let said = stop("").ok();
    assert!(said.starts_with("stopped cleanly"), "{said}");
}

#[test]
fn a_forced_stop_disconnects_clients() {
    let scratch = Scratch::new();
    let (cache, server) = served(&scratch);
    let _client = Client::connect(server.socket()).expect("connects");
    let said = Program::flaz()
        .words("stop --force --control")
        .arg(server.control())
        .ok();
    assert!(said.starts_with("stopped cleanly"), "{said}");
    cache.check();
}
