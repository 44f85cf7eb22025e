//! `flaz volume resize`, served and idle.

use flaz_nbd::Client;

use super::*;

const MIB: u64 = 1 << 20;
/// Places beyond the old end, in several stripes and thus on both threads.
const BEYOND: [u64; 4] = [SIZE, SIZE + 4096 + 512, SIZE + MIB, 2 * SIZE - 4096];

fn connect(scratch: &Scratch) -> Client {
    Client::connect(&scratch.path("nbd")).unwrap()
}

fn pattern(at: u64) -> Vec<u8> {
    (0..4096_u32)
        .map(|byte| (byte / 16) as u8 ^ (at / 512) as u8)
        .collect()
}

fn written(client: &mut Client, places: &[u64]) {
    for &at in places {
        client.write(at, &pattern(at)[..512]).unwrap();
    }
    client.flush().unwrap();
}

#[track_caller]
fn read(client: &mut Client, places: &[u64]) {
    for &at in places {
        let mut found = vec![0; 512];
        client.read(at, &mut found).unwrap();
        assert_eq!(found, pattern(at)[..512], "at {at}");
    }
}

fn serve(scratch: &Scratch, options: &str) -> Served {
    let line = format!("serve cache --nbd unix:nbd --threads 2 {options}");
    scratch.served_by(&mut scratch.command(&line))
}

#[test]
fn a_grown_origin_is_taken_over_while_it_is_served() {
    for mode in ["write-through", "write-back"] {
        let scratch = Scratch::new();
        let origin = scratch.file("origin");
        scratch
            .run("create cache --size 32M --shards 2 --origin origin")
            .succeeded();
        let mut served = serve(&scratch, &format!("--mode {mode}"));
        let mut early = connect(&scratch);
        written(&mut early, &[0, SIZE - 512]);
        assert_eq!(
            json(&scratch, "status cache --json")["warnings"],
            serde_json::Value::Null
        );
        origin.set_len(2 * SIZE).unwrap();
        assert_eq!(connect(&scratch).size_bytes(), SIZE, "nobody has asked for more");
        early.write(SIZE, &pattern(0)).unwrap_err();
        let warned = json(&scratch, "status cache --json")["warnings"].to_string();
        assert!(
            warned.contains("grown to 67108864 bytes, 33554432 are served")
                && warned.contains("flaz volume resize"),
            "{warned}"
        );
        let report = json(&scratch, "volume resize cache --json");
        assert_eq!(
            (&report["bytes_before"], &report["bytes"]),
            (&SIZE.into(), &(2 * SIZE).into())
        );
        let front_end = &report["front_ends"][0];
        assert_eq!(
            (&front_end["name"], &front_end["up_to_date"]),
            (&"unix:nbd".into(), &false.into())
        );
        let advice = front_end["advice"].as_str().unwrap();
        assert!(
            advice.contains("keep") && advice.contains("connect again"),
            "{advice}"
        );
        let mut late = connect(&scratch);
        assert_eq!(late.size_bytes(), 2 * SIZE);
        written(&mut late, &BEYOND);
        read(&mut late, &BEYOND);
        read(&mut early, &[0, SIZE - 512]);
        let status = json(&scratch, "status cache --json");
        assert_eq!(status["origin"]["size_bytes"], 2 * SIZE);
        assert_eq!(status["warnings"], serde_json::Value::Null);
        let again = scratch.run("volume resize cache").succeeded();
        assert!(
            again.starts_with("the volume has the size of its origin: 64.0 MiB (67108864 bytes)\n"),
            "{again}"
        );
        assert!(
            again.contains("the old size: connect again"),
            "the first client has not: {again}"
        );
        // Also after a crash.
        served.child.kill().unwrap();
        served.child.wait().unwrap();
        let served = serve(&scratch, &format!("--mode {mode}"));
        let mut client = connect(&scratch);
        assert_eq!(client.size_bytes(), 2 * SIZE);
        read(&mut client, &BEYOND);
        read(&mut client, &[0, SIZE - 512]);
        drop((early, late, client));
        scratch.run("stop cache").succeeded();
        served.ended();
        let checked = scratch.run("check cache");
        checked.succeeded();
    }
}

#[test]
fn a_grown_origin_is_taken_over_by_an_idle_cache() {
    for state in ["new", "clean", "unclean"] {
        let scratch = Scratch::new();
        let origin = scratch.file("origin");
        scratch
            .run("create cache --size 32M --shards 2 --origin origin")
            .succeeded();
        if state != "new" {
            let mut served = serve(&scratch, "--mode write-back");
            written(&mut connect(&scratch), &[0, SIZE - 512]);
            if state == "clean" {
                scratch.run("stop cache --force").succeeded();
                served.ended();
            } else {
                served.child.kill().unwrap();
                served.child.wait().unwrap();
            }
        }
        assert_eq!(json(&scratch, "status cache --json")["state"], state);
        origin.set_len(2 * SIZE).unwrap();
        let told = scratch.run("volume resize cache").succeeded();
        assert_eq!(
            told, "resized from 32.0 MiB (33554432 bytes) to 64.0 MiB (67108864 bytes)\n",
            "{state}"
        );
        let status = json(&scratch, "status cache --json");
        assert_eq!(
            (&status["state"], &status["origin"]["size_bytes"]),
            (&state.into(), &(2 * SIZE).into())
        );
        scratch.run("check cache").succeeded();
        let served = serve(&scratch, "");
        let mut client = connect(&scratch);
        assert_eq!(client.size_bytes(), 2 * SIZE);
        if state != "new" {
            read(&mut client, &[0, SIZE - 512]);
        }
        written(&mut client, &BEYOND);
        read(&mut client, &BEYOND);
        drop(client);
        scratch.run("stop cache").succeeded();
        served.ended();
    }
}

#[test]
fn an_origin_that_does_not_fit_is_refused() {
    let scratch = Scratch::new();
    let origin = scratch.file("origin");
    scratch.file("other");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    let before = fs::read(scratch.path("cache")).unwrap();
    let refused = |options: &str, parts: &[&str]| {
        scratch
            .run(&format!("volume resize {options}"))
            .refused(FAILURE, parts);
    };
    origin.set_len(SIZE / 2).unwrap();
    let smaller = [
        "has 16777216 bytes, expected at least the 33554432",
        "restore the size",
        "`flaz detach`",
    ];
    refused("cache", &smaller);
    origin.set_len(3 << 30).unwrap();
    let larger = [
        "has 3221225472 bytes, expected at most 2147483648",
        "`flaz flush`",
        "`flaz create --force`",
    ];
    refused("cache", &larger);
    refused(
        "cache --origin other",
        &[
            "other is not the origin that this cache was created for",
            "--origin",
        ],
    );
    refused("cache --origin none", &["none", "No such file"]);
    refused("origin", &["not a flaz cache"]);
    refused(
        "nothing",
        &["nothing: no such configuration", "no such cache device"],
    );
    assert!(
        fs::read(scratch.path("cache")).unwrap() == before,
        "it was written to"
    );
    scratch.run("volume resize").refused(USAGE, &["<CACHE|--control"]);
    // The same of a daemon, and of a cache whose daemon is not found.
    origin.set_len(SIZE).unwrap();
    let served = serve(&scratch, "--control s");
    origin.set_len(SIZE / 2).unwrap();
    refused("--control s", &smaller);
    let warned = json(&scratch, "status --control s --json")["warnings"].to_string();
    assert!(warned.contains("shrunk to 16777216 bytes"), "{warned}");
    origin.set_len(3 << 30).unwrap();
    refused("--control s", &larger);
    refused("cache", &["in use"]);
    origin.set_len(SIZE).unwrap();
    assert_eq!(connect(&scratch).size_bytes(), SIZE);
    scratch.run("stop --control s --force").succeeded();
    served.ended();
}

/// The log names the command.
#[test]
fn a_start_says_that_the_origin_has_grown() {
    let scratch = Scratch::new();
    let origin = scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    origin.set_len(2 * SIZE).unwrap();
    let served = serve(&scratch, "");
    assert_eq!(connect(&scratch).size_bytes(), SIZE);
    scratch.run("stop cache --force").succeeded();
    let log = served.ended();
    assert!(
        log.contains("has grown from 33554432 to 67108864 bytes")
            && log.contains("`flaz volume resize cache`"),
        "{log}"
    );
}
