//! Single NBD commands of every kind, sent by libnbd from Python and checked against a copy of the device in memory.
//! The scripts are in `nbdsh/`; they get the server's address as `FLAZ_URI`.

use crate::support::{Cache, CacheSpec, Program, Scratch, Server, need};

const TOOLS: &[(&str, &str)] = &[("nbdsh", "python3-libnbd")];
const ORIGIN_BYTES: u64 = 16 << 20;

fn run_script(script: &str, mode: &str, seed: u64) {
    if !need::tools(TOOLS) {
        return;
    }
    let scratch = Scratch::new();
    let origin = scratch.filled("origin.img", ORIGIN_BYTES, seed);
    // Smaller than the origin, so that blocks are evicted as well.
    let spec = CacheSpec {
        size: 6 << 20,
        region: 256 << 10,
        ..CacheSpec::default()
    };
    let cache = Cache::create(&scratch, &origin, &spec);
    let server = Server::start(&scratch, &cache, &format!("--mode {mode}"));
    Program::new("nbdsh")
        .words("-c -")
        .env("FLAZ_URI", server.uri())
        .env("FLAZ_ORIGIN", &origin)
        .env(
            "FLAZ_SEED",
            std::env::var("FLAZ_SEED").unwrap_or_else(|_| seed.to_string()),
        )
        .input(script)
        .ok();
    server.stop();
    cache.check();
}

#[test]
fn random_commands_write_through() {
    run_script(include_str!("nbdsh/random.py"), "write-through", 11);
}

#[test]
fn random_commands_write_around() {
    run_script(include_str!("nbdsh/random.py"), "write-around", 12);
}

#[test]
fn random_commands_pass_through() {
    run_script(include_str!("nbdsh/random.py"), "pass-through", 13);
}

#[test]
fn single_commands_and_their_errors() {
    run_script(include_str!("nbdsh/single.py"), "write-through", 14);
}

#[test]
fn several_connections_see_one_device() {
    run_script(include_str!("nbdsh/connections.py"), "write-through", 15);
}
