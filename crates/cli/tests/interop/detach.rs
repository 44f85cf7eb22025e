//! A cache is detached while clients write in write-back: acknowledged writes are on the origin, or a message says that
//! the cache is still needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use flaz_nbd::Client;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Cache, CacheSpec, Program, Scratch, Server};

const ORIGIN_BYTES: u64 = 64 << 20;
/// Writes of a part of a block. Each first reads the rest from an emulated disk, so that most of them have begun but
/// are not dirty yet when the cache is detached.
const WRITES: u64 = 48;
const WRITE_BYTES: u32 = 512;
const APART_BYTES: u64 = 1 << 20;

fn place(number: u64) -> u64 {
    number * APART_BYTES + u64::from(WRITE_BYTES)
}

fn data(number: u64) -> Vec<u8> {
    vec![number as u8 + 1; WRITE_BYTES as usize]
}

/// The writes that were acknowledged before the connection ended.
fn acknowledged(mut client: Client, sent: &BTreeMap<u64, u64>) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    while let Ok(reply) = client.receive() {
        if reply.outcome.is_ok() {
            all.insert(sent[&reply.cookie]);
        }
    }
    all
}

#[test]
fn writes_during_a_detach_are_on_the_origin_or_reported() {
    let mut seen = 0;
    for round in 0..6 {
        let scratch = Scratch::new();
        let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
        let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
        let server = Server::start(&scratch, &cache, "--mode write-back --emulate-origin hdd");
        let mut client = Client::connect(server.socket()).expect("connects");
        let mut sent = BTreeMap::new();
        for number in 0..WRITES {
            let cookie = client.send_write(place(number), &data(number), false);
            sent.insert(cookie.expect("sent"), number);
        }
        let replies = thread::spawn(move || acknowledged(client, &sent));
        thread::sleep(Duration::from_millis(20 * round));
        let detached = Program::flaz()
            .words("detach --force --control")
            .arg(server.control())
            .output();
        let acknowledged = replies.join().expect("no panic");
        seen += acknowledged.len();
        if !detached.status.success() {
            let said = String::from_utf8_lossy(&detached.stderr);
            assert!(said.contains("keep it"), "round {round}: {said}");
            // The message says to detach again.
            drop(server);
            Server::start(&scratch, &cache, "--mode write-back").detach();
        }
        let origin = File::open(&origin).expect("readable");
        for number in acknowledged {
            let mut found = vec![0; WRITE_BYTES as usize];
            origin.read_exact_at(&mut found, place(number)).expect("readable");
            assert!(
                found == data(number),
                "round {round}: write {number} was acknowledged and is not on the origin"
            );
        }
    }
    assert!(seen > 0, "no write was acknowledged");
}

/// Whether a process that has just been started has its handler of SIGINT.
fn handles_interrupts(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let caught = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .expect("on Linux");
    let caught = u64::from_str_radix(caught.trim(), 16).expect("a mask");
    caught & 1 << (Signal::INT.as_raw() - 1) != 0
}

/// Ctrl-C while dirty blocks are written: the cache is served as before, and the messages say so.
#[test]
fn an_interrupted_command_leaves_the_cache_served() {
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    let server = Server::start(&scratch, &cache, "--mode write-back --emulate-origin hdd");
    let mut client = Client::connect(server.socket()).expect("connects");
    for number in 0..1024 {
        // So far apart that each is a write of its own.
        client.write(number << 16, &[7; 4096]).expect("writes");
    }
    drop(client);
    let mode = || server.status()["settings"]["mode"].clone();
    for (command, said) in [
        (
            "detach",
            "interrupted: not detached: the cache is served as before",
        ),
        ("flush", "interrupted: not all is written back"),
    ] {
        let child = Command::new(env!("CARGO_BIN_EXE_flaz"))
            .arg(command)
            .arg("--control")
            .arg(server.control())
            .stderr(Stdio::piped())
            .spawn()
            .expect("flaz starts");
        if command == "detach" {
            while mode() != "write-through" {
                thread::sleep(Duration::from_millis(1));
            }
        }
        while !handles_interrupts(child.id()) {
            thread::sleep(Duration::from_millis(1));
        }
        kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
        let output = child.wait_with_output().expect("it ends");
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {err}");
        assert!(err.contains(said), "{command}: {err}");
    }
    // The server notices it a moment later.
    while mode() != "write-back" {
        thread::sleep(Duration::from_millis(10));
    }
    assert!(server.live("/write_back/dirty_bytes") > 0, "it is not drained");
    assert_eq!(server.status()["state"], "running");
    server.stop();
}
