//! Volumes that share a cache device: each is served by its own process, which may be killed, while others come and go.

use std::path::Path;
use std::thread;

use flaz_nbd::Client;
use serde_json::Value;

use crate::support::kills::{Kills, ORIGIN_BYTES};
use crate::support::{Cache, Program, Scratch, ServeMode, Server};

/// Small enough that the volumes compete for it.
const DEVICE_BYTES: u64 = 24 << 20;
/// Kills of each server.
const KILLS: u64 = 8;

fn volume(scratch: &Scratch, words: &str) -> Program {
    Program::flaz()
        .words(&format!("volume {words}"))
        .arg(device(scratch))
}

fn device(scratch: &Scratch) -> std::path::PathBuf {
    scratch.image("ssd.img")
}

fn add(scratch: &Scratch, name: &str, origin: &Path, words: &str) -> Cache {
    volume(scratch, "add")
        .arg(name)
        .arg("--origin")
        .arg(origin)
        .words(words)
        .ok();
    Cache {
        path: format!("{}:{name}", device(scratch).display()).into(),
    }
}

fn list(scratch: &Scratch) -> Value {
    let text = volume(scratch, "list --json").ok();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn shared(scratch: &Scratch) {
    Program::flaz()
        .arg("create")
        .arg(device(scratch))
        .words(&format!("--shared --size {DEVICE_BYTES} --region-size 256K"))
        .ok();
}

/// No volume loses what it acknowledged, whenever its process or another one is killed, while a third volume is added and removed
/// again and again.
#[test]
fn volumes_survive_kills_beside_each_other() {
    let scratch = [Scratch::new(), Scratch::new()];
    shared(&scratch[0]);
    let origins = scratch
        .each_ref()
        .map(|own| own.sparse("origin.img", ORIGIN_BYTES));
    let modes = [ServeMode::WriteBack, ServeMode::WriteThrough];
    let third = scratch[0].sparse("third.img", ORIGIN_BYTES);
    let caches = ["one", "two"]
        .into_iter()
        .zip(&origins)
        .map(|(name, origin)| add(&scratch[0], name, origin, "--shards 2 --at-least 4M"))
        .collect::<Vec<_>>();
    thread::scope(|scope| {
        let runs: Vec<_> = scratch
            .iter()
            .zip(caches)
            .zip(&origins)
            .zip(modes)
            .zip(1..)
            .map(|((((own, cache), origin), mode), seed)| {
                scope.spawn(move || {
                    let mut kills = Kills::of(own, cache, origin.clone(), seed, mode);
                    let outcome = kills.run(|_, done| done < KILLS);
                    outcome.unwrap_or_else(|violation| panic!("{}", violation.0));
                })
            })
            .collect();
        let mut turns = 0;
        while runs.iter().any(|run| !run.is_finished()) {
            // It may find no space: that is no failure of the others.
            let added = Program::flaz()
                .words("volume add")
                .arg(device(&scratch[0]))
                .words("three --shards 1 --origin")
                .arg(&third)
                .output();
            if added.status.success() {
                Cache {
                    path: format!("{}:three", device(&scratch[0]).display()).into(),
                }
                .check();
                volume(&scratch[0], "remove").arg("three").ok();
                turns += 1;
            }
        }
        assert!(turns > 0, "it was never added");
        runs.into_iter().for_each(|run| run.join().expect("no panic"));
    });
    let report = list(&scratch[0]);
    let names: Vec<_> = report["volumes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert_eq!(names, ["one", "two"]);
    let held: u64 = report["volumes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["held_bytes"].as_u64().expect("a number"))
        .sum();
    let space = &report["cache"];
    assert_eq!(
        Some(held + space["free_bytes"].as_u64().expect("a number")),
        space["size_bytes"].as_u64(),
        "{report}"
    );
}

/// The origin of a volume that was removed with its dirty blocks gets a new volume, which is served.
#[test]
fn a_volume_that_was_removed_with_its_dirty_blocks_is_forgotten() {
    let scratch = Scratch::new();
    shared(&scratch);
    let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
    let cache = add(&scratch, "one", &origin, "--shards 1");
    let server = Server::start(&scratch, &cache, "--mode write-back");
    let mut client = Client::connect(server.socket()).expect("it is served");
    client.write(8192, &[0xA5; 4096]).expect("writes");
    drop(client);
    assert!(!server.end_by(rustix::process::Signal::KILL).success());
    let remove = || {
        volume(&scratch, "remove")
            .arg("one")
            .env("STATE_DIRECTORY", scratch.state_dir())
    };
    remove().fails();
    remove().arg("--discard-dirty").ok();
    let cache = add(&scratch, "two", &origin, "--shards 1");
    Server::start(&scratch, &cache, "").stop();
}

/// All volumes together store what the budget of the device allows, and a volume that stops returns what it did not need.
#[test]
fn volumes_share_a_write_budget() {
    const PER_DAY: u64 = 1 << 30;
    /// What a volume takes at its start.
    const CREDIT: u64 = 4 << 20;
    /// What a stop writes after the last report, metadata, and what time adds to the budget meanwhile.
    const MORE: u64 = 2 << 20;
    let scratch = [Scratch::new(), Scratch::new()];
    shared(&scratch[0]);
    let said = volume(&scratch[0], "set --write-budget 1GiB").ok();
    assert!(
        said.contains("write budget 1.00 GiB per day, 1.00 GiB left"),
        "{said}"
    );
    let budget = || list(&scratch[0])["cache"]["write_budget"].clone();
    let left = || budget()["left_bytes"].as_u64().expect("a number");
    let mut written = 0;
    for (own, name) in scratch.iter().zip(["one", "two"]) {
        let origin = own.filled("origin.img", 32 << 20, 7);
        let cache = add(&scratch[0], name, &origin, "--shards 1");
        let before = left();
        let server = Server::start(own, &cache, "");
        assert!(before - left() <= CREDIT && before - left() > CREDIT - MORE);
        let mut client = Client::connect(server.socket()).expect("it is served");
        let mut data = vec![0; 256 << 10];
        for at in 0..128 {
            client.read(at << 18, &mut data).expect("it is served");
        }
        drop(client);
        let share = &server.status()["live"]["share"]["write_budget"];
        assert_eq!(share["bytes_per_day"], PER_DAY);
        let used = server.live("/traffic/cache_written_bytes");
        // Without a budget half of what was read would be stored. On a slow machine it has looked for more credit.
        assert!((CREDIT / 2..3 * CREDIT).contains(&used), "{used} bytes written");
        server.stop();
        let taken = before - left();
        assert!(taken.abs_diff(used) < MORE, "{taken} bytes taken, {used} written");
        written += taken;
    }
    assert!(PER_DAY - left() <= written + MORE);
    let refused = volume(&scratch[0], "set --write-budget 1MiB").fails();
    assert!(
        refused.contains("1.00 MiB per day: expected none, or at least 1.00 GiB per day"),
        "{refused}"
    );
    volume(&scratch[0], "set --write-budget none").ok();
    assert!(budget().is_null());
}
