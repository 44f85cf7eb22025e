//! A cache is detached while clients write in write-back: acknowledged writes are on the origin, or a message says that
//! the cache is still needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use flaz_nbd::Client;

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
