//! Damage to dirty blocks on the cache device: the messages of the commands, and the ways out that they name.

use std::os::unix::fs::FileExt;

use flaz_nbd::Client;
use flaz_nbd::request::Command;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::data::mixed_data;
use crate::support::{Cache, CacheSpec, Program, Scratch, Server};

const LEN: usize = 64 << 10;

/// A cache with dirty blocks, one of which is damaged. Returns the offset of the block on the origin.
fn damaged(scratch: &Scratch) -> (Cache, u64) {
    damaged_after(scratch, |server| {
        let told = Program::flaz().words("stop --control").arg(server.control()).ok();
        assert!(told.contains("is only on the cache device"), "{told}");
    })
}

/// The same with a server that `stop` stops after the writes.
fn damaged_after(scratch: &Scratch, stop: impl FnOnce(&Server)) -> (Cache, u64) {
    let origin = scratch.sparse("origin.img", 64 << 20);
    let spec = CacheSpec {
        codec: "none",
        ..CacheSpec::default()
    };
    let cache = Cache::create(scratch, &origin, &spec);
    let server = Server::start(scratch, &cache, "--mode write-back --dirty-limit 50");
    let mut client = Client::connect(server.socket()).expect("connects");
    client.write(0, &mixed_data(LEN, 9)).expect("writes");
    drop(client);
    stop(&server);
    drop(server);
    let listed = Program::flaz().arg("dump").arg(&cache.path).arg("--json").ok();
    let fragment = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .find(|record| {
            let fields = &record["fields"];
            fields["dirty"] == true && fields["live"] != false && fields["stored_bytes"] == 4096
        })
        .unwrap_or_else(|| panic!("nothing is dirty: {listed}"));
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{fragment}"));
    let file = std::fs::File::options()
        .write(true)
        .open(&cache.path)
        .expect("opens");
    file.write_all_at(b"bit rot", number(&fragment["offset"]) + 100)
        .expect("writes");
    (cache, number(&fragment["fields"]["block"]) * 4096)
}

fn idle(scratch: &Scratch, command: &str, cache: &Cache) -> Program {
    Program::flaz()
        .arg(command)
        .arg(&cache.path)
        .arg("--state-dir")
        .arg(scratch.state_dir())
}

#[test]
fn a_damaged_dirty_block_is_named_with_safe_advice() {
    let scratch = Scratch::new();
    let (cache, at) = damaged(&scratch);
    let told = format!("bytes {at} to {} of the origin", at + 4095);
    let output = Program::flaz().arg("check").arg(&cache.path).output();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(!output.status.success());
    assert!(out.contains("fragment-dirty") && out.contains(&told), "{out}");
    assert!(!err.contains("--force"), "{err}");
    for part in [
        "may contain, dirty blocks",
        "flaz flush",
        "--discard-cache --discard-dirty",
    ] {
        assert!(err.contains(part), "no '{part}' in {err}");
    }

    for command in ["flush", "detach"] {
        let said = idle(&scratch, command, &cache).fails();
        let said = said
            .lines()
            .find(|line| line.starts_with("flaz: "))
            .unwrap_or(&said);
        for part in [
            "1 block cannot be written to the origin",
            "`flaz check` lists the byte ranges",
            "--discard-cache --discard-dirty",
        ] {
            assert!(said.contains(part), "{command}: no '{part}' in {said}");
        }
        assert_eq!(
            said.matches("cannot be written to the origin").count(),
            1,
            "{command}: {said}"
        );
        assert!(
            !said.contains("the only current data of this range"),
            "{command}: {said}"
        );
    }

    // All others are on the origin now, and the first way out leads out.
    let server = Server::start(&scratch, &cache, "--mode write-back");
    let mut client = Client::connect(server.socket()).expect("connects");
    client
        .call(Command::Read, at, 4096)
        .expect_err("the only copy is damaged");
    let said = server.detach_fails();
    for part in [
        "1 block cannot be written to the origin",
        "the mode is write-through now",
    ] {
        assert!(said.contains(part), "no '{part}' in {said}");
    }
    client.flush().expect("flushes");
    let zero = Command::WriteZeroes {
        fua: false,
        may_unmap: true,
    };
    client.call(zero, 1 << 20, 4096).expect("zeroes");
    let status = server.status();
    let row = |name: &str| {
        let all = status["live"]["operations"].as_array().expect("a list");
        let row = all.iter().find(|row| row["operation"] == name);
        let number = |value: &Value| value.as_f64().expect("a number");
        row.map(|row| (number(&row["errors"]), !row["latency_us"].is_null()))
            .unwrap_or_else(|| panic!("no {name} in {status}"))
    };
    assert_eq!(row("read").0, 1.0, "{status}");
    for (name, timed) in [
        ("write", false),
        ("flush", true),
        ("write-zeroes", true),
        ("trim", false),
    ] {
        assert_eq!(row(name), (0.0, timed), "{name}: {status}");
    }
    client.write(at, &[7; 4096]).expect("writes");
    drop(client);
    server.stop();
    idle(&scratch, "detach", &cache).ok();
    let mut expected = mixed_data(LEN, 9);
    expected[at as usize..][..4096].fill(7);
    let origin = std::fs::read(scratch.image("origin.img")).expect("reads");
    assert!(origin[..LEN] == expected, "the origin lacks writes");
}

/// Users would delete files that the origin has.
#[test]
fn damage_after_a_flush_is_no_lost_write() {
    let scratch = Scratch::new();
    let (cache, at) = damaged_after(&scratch, |server| {
        server.flush();
        Program::flaz().words("stop --control").arg(server.control()).ok();
    });
    let check = |json: &str| Program::flaz().arg("check").arg(&cache.path).words(json).output();
    let output = check("");
    assert!(!output.status.success());
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        err.contains("damaged blocks will be read from the origin"),
        "{err}"
    );
    let report: Value = serde_json::from_slice(&check("--json").stdout).expect("JSON");
    assert_eq!(report["may_be_dirty"], false, "{report}");
    assert_eq!(report["bad"]["fragment"], 1, "{report}");
    assert!(report["bad"]["fragment-dirty"].is_null(), "{report}");
    // A damaged superblock may be the one that says that blocks are dirty.
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&cache.path)
        .expect("opens");
    let mut superblock = [0; 4096];
    file.read_exact_at(&mut superblock, 0).expect("reads");
    file.write_all_at(&[0; 4096], 0).expect("writes");
    let report: Value = serde_json::from_slice(&check("--json").stdout).expect("JSON");
    assert_eq!(report["bad"]["fragment-dirty"], 1, "{report}");
    file.write_all_at(&superblock, 0).expect("writes");
    drop(file);

    let server = Server::start(&scratch, &cache, "");
    let mut client = Client::connect(server.socket()).expect("connects");
    let read = client.call(Command::Read, at, 4096).expect("reads");
    assert!(
        read == mixed_data(LEN, 9)[at as usize..][..4096],
        "not the origin's"
    );
    drop(client);
    server.stop();
}

#[test]
fn unreadable_dirty_blocks_can_be_discarded() {
    let scratch = Scratch::new();
    let (cache, _) = damaged(&scratch);
    idle(&scratch, "flush", &cache).fails();
    Server::start(&scratch, &cache, "--discard-cache --discard-dirty").stop();
    idle(&scratch, "flush", &cache).ok();
}

/// The origin has every block, so the contents of the cache are not needed.
#[test]
fn damage_after_a_flush_in_write_through_refuses_no_start() {
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", 16 << 20);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    let server = Server::start(&scratch, &cache, "--mode write-back");
    let mut client = Client::connect(server.socket()).expect("connects");
    let written = mixed_data(LEN, 11);
    client.write(0, &written).expect("writes");
    server.set("mode=write-through");
    server.flush();
    drop(client);
    assert!(!server.end_by(Signal::KILL).success());
    let file = std::fs::File::options()
        .write(true)
        .open(&cache.path)
        .expect("opens");
    let len = file.metadata().expect("a file").len();
    // Everything but the superblocks.
    file.write_all_at(&vec![0; (len - (1 << 20)) as usize], 128 << 10)
        .expect("writes");
    let server = Server::start(&scratch, &cache, "");
    assert!(!server.started_warm());
    let mut client = Client::connect(server.socket()).expect("connects");
    let read = client.call(Command::Read, 0, LEN as u32).expect("reads");
    assert!(read == written, "an acknowledged write is lost");
    drop(client);
    server.stop();
    assert!(std::fs::read(&origin).expect("reads")[..LEN] == written);
}
