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
    scratch
        .run("set ssd:two mode=write-around --until-restart")
        .succeeded();
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
    // Neither is stored.
    assert_eq!(
        (field(0, "mode"), field(1, "mode")),
        ("write-back".into(), "write-around".into())
    );
    let refused = |line: &str, parts: &[&str]| scratch.run(line).refused(FAILURE, parts);
    let socket = |volume: &str| {
        let uuid = json(&scratch, &format!("status ssd:{volume} --json"))["cache"]["uuid"].clone();
        format!("run/{}.sock", uuid.as_str().unwrap())
    };
    refused(
        &format!("detach ssd:one --control {}", socket("two")),
        &["ssd:two, not ssd:one: name that one"],
    );
    scratch
        .run(&format!("status ssd:two --control {}", socket("two")))
        .succeeded();
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
    // The way that works is in the help, too.
    for command in ["check", "dump"] {
        let help = scratch.run(&format!("help {command}")).succeeded();
        assert!(help.contains("DEVICE:VOLUME"), "{help}");
        scratch.run(&format!("{command} ssd:one")).succeeded();
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
    // The limit that is in force is named.
    scratch.run("volume set ssd one --at-most 16M").succeeded();
    refused(
        "volume set ssd one --at-least 20M",
        &["--at-least 20.0 MiB: expected at most 16.0 MiB, the limit of the volume"],
    );
    scratch.run("volume set ssd one --at-most 0").succeeded();
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
    for line in ["volume set ssd", "volume set ssd --at-most 16M"] {
        usage(line, &["expected NAME", "--write-budget BUDGET"]);
    }
    usage("volume add ssd a:b --origin two.img", &["a:b"]);
    usage("create new --shared --origin two.img", &["--origin"]);
    usage("create new", &["--origin"]);
    assert_eq!(
        json(&scratch, "volume list ssd --json")["volumes"][0]["state"],
        "new"
    );
}

#[test]
fn a_new_volume_on_a_full_device_is_refused_with_the_way_out() {
    let scratch = Scratch::new();
    for name in ["one.img", "two.img"] {
        scratch.file(name);
    }
    scratch
        .run("create ssd --shared --size 16M --region-size 256K")
        .succeeded();
    scratch
        .run("volume add ssd one --origin one.img --shards 1")
        .succeeded();
    let _one = serve(&scratch, "one", "--mode write-back");
    let mut client = Client::connect(&scratch.path("one.nbd")).unwrap();
    let mut random: u64 = 1;
    for at in 0..16 {
        let mut data = vec![0; 1 << 20];
        for byte in &mut data {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = (random >> 56) as u8;
        }
        client.write(at << 20, &data).unwrap();
    }
    assert_eq!(json(&scratch, "volume list ssd --json")["cache"]["free_bytes"], 0);
    scratch.run("volume add ssd two --origin two.img").refused(
        FAILURE,
        &[
            "no chunk is free for volume two",
            "a new volume needs",
            "`flaz volume set ssd NAME --at-most LESS`",
            "`flaz volume list ssd`",
        ],
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
        "resize ssd --size 4M",
        &["expected at least", "--at-least", "4194304 bytes"],
    );
    scratch
        .run("resize ssd --origin one.img")
        .refused(USAGE, &["--origin"]);
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

/// What a MiB of a volume contains.
fn mib(volume: usize, number: u64, turn: u64) -> Vec<u8> {
    let mut random = 1 + volume as u64 + 7 * number + 1000 * turn;
    let next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 56) as u8
    };
    std::iter::repeat_with(next).take(1 << 20).collect()
}

fn write_all(scratch: &Scratch, volume: usize, turn: u64) {
    let mut client = Client::connect(&scratch.path(["one.nbd", "two.nbd"][volume])).unwrap();
    for number in 0..32 {
        client.write(number << 20, &mib(volume, number, turn)).unwrap();
    }
    client.flush().unwrap();
}

fn read_all(scratch: &Scratch, volume: usize, turn: u64) {
    let mut client = Client::connect(&scratch.path(["one.nbd", "two.nbd"][volume])).unwrap();
    let mut found = vec![0; 1 << 20];
    for number in 0..32 {
        client.read(number << 20, &mut found).unwrap();
        assert!(
            found == mib(volume, number, turn),
            "MiB {number} of {volume}, turn {turn}"
        );
    }
}

/// Two volumes that fill the device, one of them in write-back.
fn full(scratch: &Scratch) -> [Served; 2] {
    shared(scratch);
    let served = [("one", "--mode write-back"), ("two", "")].map(|(name, options)| {
        scratch
            .run(&format!("volume add ssd {name} --origin {name}.img"))
            .succeeded();
        serve(scratch, name, options)
    });
    for volume in [0, 1] {
        write_all(scratch, volume, 0);
        read_all(scratch, volume, 0);
    }
    served
}

#[test]
fn a_shared_device_becomes_smaller_while_it_is_served() {
    let scratch = Scratch::new();
    let mut served = full(&scratch);
    let space = |at: usize| {
        let list = json(&scratch, "volume list ssd --json");
        list["volumes"][at]["held_bytes"].as_u64().unwrap() >> 20
    };
    assert!(space(0) + space(1) > 40, "{} and {}", space(0), space(1));
    scratch.run("volume set ssd one --at-least 8M").succeeded();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            for turn in 1..4 {
                for volume in [0, 1] {
                    write_all(&scratch, volume, turn);
                    read_all(&scratch, volume, turn);
                }
            }
        });
        let told = scratch.run("resize ssd --size 24M").succeeded();
        assert!(
            told.starts_with("resized: ") && told.contains("(before: "),
            "{told}"
        );
        load.join().unwrap();
    });
    assert_eq!(fs::metadata(scratch.path("ssd")).unwrap().len(), 24 << 20);
    let list = json(&scratch, "volume list ssd --json");
    assert!(list["cache"]["size_bytes"].as_u64().unwrap() < 24 << 20, "{list}");
    assert_eq!(list["cache"]["shrink"], serde_json::Value::Null);
    assert!(
        space(0) >= 8 && space(0) + space(1) < 24,
        "{} and {}",
        space(0),
        space(1)
    );
    for volume in [0, 1] {
        read_all(&scratch, volume, 3);
        let status = json(&scratch, &format!("status ssd:{} --json", ["one", "two"][volume]));
        assert_eq!(status["live"]["errors"]["cache_write_errors"], 0, "{status}");
    }
    for served in &mut served {
        served.child.kill().unwrap();
        served.child.wait().unwrap();
    }
    let served = ["one", "two"].map(|name| serve(&scratch, name, ""));
    for volume in [0, 1] {
        read_all(&scratch, volume, 3);
    }
    for (name, served) in ["one", "two"].iter().zip(served) {
        scratch.run(&format!("stop ssd:{name} --force")).succeeded();
        served.ended();
        scratch.run(&format!("check ssd:{name}")).succeeded();
    }
    // It can become larger again.
    scratch.run("resize ssd --size 48M").succeeded();
    let served = serve(&scratch, "one", "");
    read_all(&scratch, 0, 3);
    scratch.run("stop ssd:one --force").succeeded();
    served.ended();
}

#[test]
fn a_shared_device_becomes_smaller_while_it_is_idle() {
    let scratch = Scratch::new();
    let mut served = full(&scratch);
    for served in &mut served {
        served.child.kill().unwrap();
        served.child.wait().unwrap();
    }
    // A volume that cannot give space back: the device keeps its size.
    fs::rename(scratch.path("one.img"), scratch.path("other.img")).unwrap();
    scratch
        .run("resize ssd --size 16M")
        .refused(FAILURE, &["volume one cannot give space back", "one.img"]);
    let list = json(&scratch, "volume list ssd --json");
    assert_eq!(list["cache"]["shrink"], serde_json::Value::Null);
    // Its configuration names the new path.
    fs::create_dir(scratch.path("etc")).unwrap();
    let (device, origin) = (scratch.path("ssd"), scratch.path("other.img"));
    let text = format!("cache = {device:?}\nvolume = 'one'\norigin = {origin:?}\n");
    fs::write(scratch.path("etc/one.toml"), text).unwrap();
    let resized = scratch
        .command("resize ssd --size 16M")
        .env("FLAZ_CONFIG_DIR", scratch.path("etc"))
        .output()
        .unwrap();
    assert!(resized.status.success(), "{resized:?}");
    assert_eq!(fs::metadata(scratch.path("ssd")).unwrap().len(), 16 << 20);
    fs::rename(scratch.path("other.img"), scratch.path("one.img")).unwrap();
    for (volume, name) in ["one", "two"].iter().enumerate() {
        scratch.run(&format!("check ssd:{name}")).succeeded();
        let served = serve(&scratch, name, &format!("--origin {name}.img"));
        read_all(&scratch, volume, 0);
        scratch.run(&format!("stop ssd:{name} --force")).succeeded();
        served.ended();
    }
    // Larger, and called off: nothing is in the way.
    scratch.run("resize ssd --size 64M").succeeded();
    scratch.run("resize ssd").succeeded();
}

/// The command is killed: the process of a volume cancels the shrink, or the command had ended.
#[test]
fn a_killed_resize_leaves_no_shrink() {
    let scratch = Scratch::new();
    let [one, two] = full(&scratch);
    let shrink = || json(&scratch, "volume list ssd --json")["cache"]["shrink"].clone();
    let mut resize = scratch.command("resize ssd --size 16M").spawn().unwrap();
    while shrink().is_null() && resize.try_wait().unwrap().is_none() {}
    resize.kill().unwrap();
    resize.wait().unwrap();
    let begun = std::time::Instant::now();
    while !shrink().is_null() {
        assert!(begun.elapsed().as_secs() < 60, "it is called off");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    for (volume, served) in [one, two].into_iter().enumerate() {
        read_all(&scratch, volume, 0);
        scratch
            .run(&format!("stop ssd:{} --force", ["one", "two"][volume]))
            .succeeded();
        served.ended();
    }
    scratch.run("resize ssd --size 16M").succeeded();
    assert_eq!(fs::metadata(scratch.path("ssd")).unwrap().len(), 16 << 20);
}
