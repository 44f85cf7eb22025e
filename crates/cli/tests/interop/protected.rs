//! An origin that must not be written.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use flaz_nbd::Client;
use flaz_nbd::request::Command;
use rustix::process::Signal;

use crate::support::{Cache, CacheSpec, Program, Scratch, Server};

fn set_mode(path: &Path, mode: u32) {
    set_permissions(path, Permissions::from_mode(mode)).expect("the mode can be set");
}

/// Writes the block at 8192, as a client that leaves then.
fn write_block(server: &Server, byte: u8) {
    let mut client = Client::connect(server.socket()).expect("connects");
    client.write(8192, &[byte; 4096]).expect("writes");
}

#[test]
fn a_read_only_origin_is_served_read_only() {
    let scratch = Scratch::new();
    let origin = scratch.filled("origin.img", 16 << 20, 7);
    let before = std::fs::read(&origin).expect("reads");
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    set_mode(&origin, 0o444);
    for mode in ["write-through", "write-back"] {
        let server = Server::start(&scratch, &cache, &format!("--mode {mode}"));
        let mut client = Client::connect(server.socket()).expect("connects");
        let read = client.call(Command::Read, 4096, 4096).expect("reads");
        assert!(read == before[4096..8192], "{mode}");
        client.write(4096, &[1; 4096]).expect_err("writes are refused");
        drop(client);
        let status = server.status();
        assert_eq!(status["live"]["daemon"]["read_only"], true, "{status:#}");
        let warnings = status["warnings"].to_string();
        assert!(
            warnings.contains("the origin is read-only (its mode is 0444)"),
            "{warnings}"
        );
        assert!(
            server.log().contains("is read-only (its mode is 0444)"),
            "{}",
            server.log()
        );
        server.stop();
    }
    assert!(std::fs::read(&origin).expect("reads") == before);
    set_mode(&origin, 0o644);
    let server = Server::start(&scratch, &cache, "");
    assert_eq!(server.status()["live"]["daemon"]["read_only"], false);
    server.stop();
    cache.check();
}

#[test]
fn dirty_blocks_are_written_back_under_readers() {
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", 16 << 20);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    let server = Server::start(&scratch, &cache, "--mode write-back");
    write_block(&server, 0xA5);
    assert!(!server.end_by(Signal::KILL).success());
    let server = Server::start(&scratch, &cache, "--read-only");
    let mut client = Client::connect(server.socket()).expect("connects");
    client.write(8192, &[1; 4096]).expect_err("writes are refused");
    drop(client);
    server.flush();
    assert_eq!(std::fs::read(&origin).expect("reads")[8192..12288], [0xA5; 4096]);
    server.stop();
    // An origin that cannot be written is served as well: the cache has what it lacks.
    let server = Server::start(&scratch, &cache, "--mode write-back");
    write_block(&server, 0x5A);
    assert!(!server.end_by(Signal::KILL).success());
    set_mode(&origin, 0o444);
    let server = Server::start(&scratch, &cache, "--read-only");
    let mut client = Client::connect(server.socket()).expect("connects");
    let read = client.call(Command::Read, 8192, 4096).expect("reads");
    assert_eq!(read, [0x5A; 4096]);
    drop(client);
    assert!(!server.end_by(Signal::KILL).success());
    set_mode(&origin, 0o644);
}

/// They could never be written back.
#[test]
fn a_read_only_origin_is_refused_with_dirty_blocks() {
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", 16 << 20);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    let server = Server::start(&scratch, &cache, "--mode write-back");
    write_block(&server, 0xA5);
    server.stop();
    set_mode(&origin, 0o444);
    for command in ["serve", "flush", "detach"] {
        let said = Program::flaz()
            .arg(command)
            .arg(&cache.path)
            .arg("--state-dir")
            .arg(scratch.state_dir())
            .fails();
        for part in [
            "is read-only (its mode is 0444)",
            "dirty blocks",
            "make the origin writable",
        ] {
            assert!(said.contains(part), "{command}: no '{part}' in {said}");
        }
    }
    set_mode(&origin, 0o644);
    let server = Server::start(&scratch, &cache, "");
    server.detach();
    assert_eq!(std::fs::read(&origin).expect("reads")[8192..12288], [0xA5; 4096]);
}
