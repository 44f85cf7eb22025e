//! Cache devices that volumes share.

use super::*;
use flaz_nbd::Client;

fn shared(scratch: &Scratch) {
    for name in ["one.img", "two.img"] {
        scratch.file(name);
    }
    scratch
        .run("create ssd --shared --size 64M --region-size 256K")
        .succeeded();
}

fn serve(scratch: &Scratch, volume: &str, options: &str) -> Served {
    let line = format!("serve ssd:{volume} --nbd unix:{volume}.nbd {options}");
    scratch.served_by(&mut scratch.command(&line))
}

#[test]
fn volumes_are_added_served_and_removed() {
    let scratch = Scratch::new();
    shared(&scratch);
    scratch.run("volume add ssd one --origin one.img").succeeded();
    let mut one = serve(&scratch, "one", "--mode write-back");
    // While it is served.
    let added = scratch
        .run("volume add ssd two --origin two.img --at-least 8M --at-most 16M")
        .succeeded();
    assert!(added.contains("at least 8.00 MiB, at most 16.0 MiB"), "{added}");
    let two = serve(&scratch, "two", "");
    let mut clients =
        ["one", "two"].map(|name| Client::connect(&scratch.path(&format!("{name}.nbd"))).unwrap());
    for (client, value) in clients.iter_mut().zip(1..) {
        client.write(4096, &[value; 8192]).unwrap();
        client.flush().unwrap();
    }
    let list = json(&scratch, "volume list ssd --json");
    let field = |at: usize, name: &str| list["volumes"][at][name].clone();
    assert_eq!(
        (field(0, "name"), field(0, "state"), field(0, "may_be_dirty")),
        ("one".into(), "running".into(), true.into())
    );
    assert_eq!(
        (field(1, "at_least_bytes"), field(1, "at_most_bytes")),
        ((8 << 20).into(), (16 << 20).into())
    );
    let refused = |line: &str, parts: &[&str]| scratch.run(line).refused(FAILURE, parts);
    refused("volume remove ssd one", &["volume one of ssd is in use"]);
    refused("serve ssd:one --control c", &["volume one of ssd is in use"]);
    refused("check ssd:one", &["volume one of ssd is in use"]);
    refused(
        "create ssd --shared --force --discard-dirty",
        &["locked by another process"],
    );
    // Each has its own statistics and settings.
    assert_eq!(
        json(&scratch, "status ssd:one --json")["settings"]["mode"],
        "write-back"
    );
    scratch.run("set ssd:two mode=write-around").succeeded();
    assert_eq!(
        json(&scratch, "status ssd:one --json")["settings"]["mode"],
        "write-back"
    );
    assert_eq!(
        json(&scratch, "status ssd:two --json")["settings"]["mode"],
        "write-around"
    );
    scratch.run("stop ssd:two --force").succeeded();
    two.ended();
    let mut block = [0; 4096];
    clients[0].read(4096, &mut block).unwrap();
    assert_eq!(block, [1; 4096], "the other is not interrupted");
    scratch.run("check ssd:two").succeeded();
    scratch.run("volume remove ssd two").succeeded();
    one.child.kill().unwrap();
    one.child.wait().unwrap();
    let remove = "volume remove ssd one";
    refused(
        remove,
        &["may hold, dirty blocks", "flaz flush ssd:one", "--discard-dirty"],
    );
    scratch.run("flush ssd:one").succeeded();
    scratch.run(remove).succeeded();
    let written = fs::read(scratch.path("one.img")).unwrap();
    assert_eq!(written[4096..12288], [1; 8192]);
    let list = json(&scratch, "volume list ssd --json");
    assert_eq!(list["cache"]["free_bytes"], list["cache"]["size_bytes"]);
}

#[test]
fn commands_name_the_volume() {
    let scratch = Scratch::new();
    shared(&scratch);
    scratch.run("volume add ssd one --origin one.img").succeeded();
    let refused = |line: &str, parts: &[&str]| scratch.run(line).refused(FAILURE, parts);
    for command in ["status", "serve", "check", "flush", "dump", "stop", "detach"] {
        refused(
            &format!("{command} ssd"),
            &["is shared by volumes", "ssd:VOLUME", "flaz volume list ssd"],
        );
        refused(
            &format!("{command} ssd:none"),
            &["has no volume none", "which are: one"],
        );
    }
    refused(
        "volume add ssd one --origin two.img",
        &["already has a volume one"],
    );
    refused(
        "volume add ssd two --origin one.img",
        &["volume one of ssd has this origin"],
    );
    refused(
        "volume add ssd two --origin none.img",
        &["none.img: no such origin"],
    );
    refused("volume add ssd two --origin ssd", &["ssd"]);
    refused(
        "volume add one.img two --origin two.img",
        &["one.img", "--shared"],
    );
    refused(
        "volume add none two --origin two.img",
        &["none: no such cache device"],
    );
    refused("volume list one.img", &["one.img", "--shared"]);
    refused(
        "volume remove ssd none",
        &["has no volume none", "which are: one"],
    );
    refused(
        "volume set ssd one --at-least 1T",
        &["guaranteed", "expected at most"],
    );
    refused("volume set ssd one --at-most 1K", &["--at-most", "256 KiB"]);
    refused(
        "volume add ssd two --origin two.img --shards 256",
        &["regions a shard", "--shards"],
    );
    refused("resize ssd:one --size 1G", &["flaz volume set ssd one"]);
    refused(
        "create ssd --origin two.img",
        &["shared (with volumes) flaz cache", "flaz volume remove ssd"],
    );
    refused("create ssd --origin two.img --force", &["--discard-dirty"]);
    refused(
        "create new --shared --size 64M --region-size 3M",
        &["chunk size", "a power of two"],
    );
    assert!(!scratch.path("new").exists());
    let usage = |line: &str, parts: &[&str]| scratch.run(line).refused(USAGE, parts);
    usage("volume set ssd one", &["--at-least SIZE or --at-most SIZE"]);
    usage("volume add ssd a:b --origin two.img", &["a:b"]);
    usage("create new --shared --origin two.img", &["--origin"]);
    usage("create new", &["--origin"]);
    assert_eq!(
        json(&scratch, "volume list ssd --json")["volumes"][0]["state"],
        "new"
    );
}

#[test]
fn a_shared_device_becomes_larger() {
    let scratch = Scratch::new();
    shared(&scratch);
    scratch.run("volume add ssd one --origin one.img").succeeded();
    let before = json(&scratch, "volume list ssd --json")["cache"]["size_bytes"]
        .as_u64()
        .unwrap();
    // So that one volume needs chunks behind the old end.
    scratch.run("volume add ssd two --origin two.img").succeeded();
    let mut served = serve(&scratch, "one", "--mode write-back");
    let told = scratch.run("resize ssd --size 96M").succeeded();
    assert!(
        told.starts_with("resized: ") && told.contains("for volumes (before: "),
        "{told}"
    );
    let after = json(&scratch, "volume list ssd --json")["cache"]["size_bytes"]
        .as_u64()
        .unwrap();
    assert_eq!(after - before, 32 << 20);
    let refused = |line: &str, parts: &[&str]| scratch.run(line).refused(FAILURE, parts);
    refused(
        "resize ssd --size 32M",
        &["does not become smaller", "expected at least"],
    );
    refused("resize ssd --size 1T", &["expected at most"]);
    // With chunks behind the old end.
    let mut client = Client::connect(&scratch.path("one.nbd")).unwrap();
    let mut random = 1_u64;
    let mut data = vec![0; 1 << 20];
    for turn in 0..96_u64 {
        for byte in &mut data {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(turn + 1);
            *byte = (random >> 56) as u8;
        }
        client.write((turn % 32) << 20, &data).unwrap();
    }
    client.flush().unwrap();
    drop(client);
    let status = json(&scratch, "status ssd:one --json");
    assert_eq!(status["state"], "running", "{status}");
    assert_eq!(
        status["live"]["errors"]["cache_write_errors"], 0,
        "{}",
        status["live"]["errors"]
    );
    let held = status["live"]["share"]["held_bytes"].clone();
    assert_eq!(status["cache"]["size_bytes"], held);
    assert!(held.as_u64().unwrap() > 63 << 20, "{held}");
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let served = serve(&scratch, "one", "");
    let mut client = Client::connect(&scratch.path("one.nbd")).unwrap();
    let mut found = vec![0; 1 << 20];
    client.read(31 << 20, &mut found).unwrap();
    assert!(found == data, "the last one");
    drop(client);
    scratch.run("stop ssd:one --force").succeeded();
    served.ended();
    let status = json(&scratch, "status ssd:one --json");
    let size = status["cache"]["size_bytes"].as_u64().unwrap();
    assert!(
        (60 << 20..after).contains(&size),
        "what it has, not the whole device: {size}"
    );
    scratch.run("check ssd:one").succeeded();
}
