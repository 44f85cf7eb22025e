//! `flaz serve`, and other commands that open a cache.

use super::*;

/// Otherwise `systemctl status` says "starting" of a service that has failed.
#[test]
fn systemd_is_told_why_a_start_is_refused() {
    let scratch = Scratch::new();
    let origin = scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    origin.set_len(SIZE / 2).unwrap();
    let path = scratch.path("notify.sock");
    let systemd = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    systemd.set_nonblocking(true).unwrap();
    for (cache, code, reason) in [
        ("cache", FAILURE, "failed: serve cache: origin "),
        (
            "./none",
            FAILURE,
            "failed: serve ./none: ./none: no such cache device",
        ),
        // The unit does not start again after this status.
        ("none.toml", USAGE, "failed: none.toml: no such configuration"),
    ] {
        let mut command = scratch.command("serve");
        let status = command
            .arg(cache)
            .env("NOTIFY_SOCKET", &path)
            .stderr(Stdio::null())
            .status();
        assert_eq!(status.unwrap().code(), Some(code), "{cache}");
        let mut said = String::new();
        let mut bytes = [0; 4096];
        while let Ok(len) = systemd.recv(&mut bytes) {
            said.push_str(&String::from_utf8_lossy(&bytes[..len]));
            said.push('\n');
        }
        let last = said
            .lines()
            .rfind(|line| line.starts_with("STATUS="))
            .unwrap_or_default();
        assert!(last.starts_with(&format!("STATUS={reason}")), "{cache}: {said}");
    }
}

#[test]
fn a_bound_of_the_index_needs_an_area_for_its_pages() {
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch.run("create cache --size 64M --origin origin").succeeded();
    scratch.run("serve cache --index-memory 100K").refused(
        FAILURE,
        &[
            "created without an area for index pages",
            "flaz create --index-memory",
        ],
    );
}

#[test]
fn serve_with_invalid_options() {
    let scratch = Scratch::new();
    scratch.run("serve").refused(USAGE, &["<CACHE>"]);
    let serve = |words: &str| scratch.run(&format!("serve c {words}"));
    serve("--mode write-behind").refused(
        USAGE,
        &[
            "write-behind",
            "write-through, write-back, write-around, pass-through",
        ],
    );
    serve("--policy lru").refused(USAGE, &["s3-fifo, second-touch, fifo"]);
    serve("--threads 0").refused(USAGE, &["--threads"]);
    serve("--threads two").refused(USAGE, &["two"]);
    serve("--sequential-cutoff x").refused(USAGE, &["'x' is not a size"]);
    serve("--codec gzip").refused(USAGE, &["gzip"]);
    serve("--emulate-origin floppy").refused(USAGE, &["hdd, ssd, network-volume"]);
    serve("--nbd /run/x").refused(USAGE, &["expected unix:PATH or tcp:HOST[:PORT]"]);
    serve("--nbd tcp:host").refused(USAGE, &["tcp:host:10809", "--insecure-tcp"]);
    serve("--nbd tcp:host:0").refused(USAGE, &["expected a number from 1 to 65535"]);
    let long = format!("--nbd unix:/{}", "x".repeat(120));
    serve(&long).refused(USAGE, &["has 121 bytes", "maximum is 107"]);
    serve("--nbd tcp:127.0.0.1:10809").refused(USAGE, &["TCP without TLS", "--insecure-tcp"]);
    serve("--metrics 9750").refused(USAGE, &["expected unix:PATH or tcp:HOST:PORT"]);
    serve("--metrics tcp:localhost").refused(USAGE, &["the port is missing"]);
    for address in ["tcp:0.0.0.0:9750", "tcp:[::]:9750", "tcp:host:9750"] {
        serve(&format!("--metrics {address}"))
            .refused(USAGE, &[address, "--insecure-tcp", "tcp:127.0.0.1:PORT"]);
    }
    for name in ["a/b", ".a", "a%20b", ""] {
        serve(&format!("--ublk={name}")).refused(USAGE, &["--ublk"]);
    }
    for device in ["a/b", "/dev/sda", "/dev/nbd", "/dev/nbd32768", "/dev/nbd-1", ""] {
        serve(&format!("--nbd-device={device}"))
            .refused(USAGE, &["--nbd-device", "expected /dev/nbdN, or a name"]);
    }
    serve("--nbd-device --ublk").refused(USAGE, &["--nbd-device", "cannot be used with"]);
    serve("--nbd-device --ublk-depth 8").refused(USAGE, &["--ublk"]);
    serve("--keep-device").refused(USAGE, &["--ublk", "--nbd-device"]);
    serve("--ublk --block-size 1024").refused(USAGE, &["expected 512 or 4096"]);
    serve("--ublk --ublk-depth 0").refused(USAGE, &["--ublk-depth"]);
    serve("--nbd unix:a --nbd unix:a").refused(USAGE, &["unix:a is given twice"]);
    serve(&"--nbd unix:a ".repeat(17)).refused(USAGE, &["the maximum is 16"]);
}

#[test]
fn a_device_that_is_not_there_is_not_removed() {
    let scratch = Scratch::new();
    let remove = |words: &str| scratch.run(&format!("remove-device {words}"));
    remove("").refused(USAGE, &["<NAME|/dev/flaz/NAME>"]);
    for name in ["/dev/sda", "a/b", ".a", "/dev/flaz/", "/dev/flaz/../sda"] {
        remove(name).refused(USAGE, &["expected /dev/flaz/NAME, or NAME"]);
    }
    for name in ["no-such-device-here", "/dev/flaz/no-such-device-here --force"] {
        remove(name).refused(
            FAILURE,
            &[
                "remove-device /dev/flaz/no-such-device-here",
                "`ls /dev/flaz` lists",
            ],
        );
    }
}

/// Without the driver, the cache stays as it was.
#[test]
fn a_missing_ublk_driver_is_named_with_what_to_do() {
    if Path::new("/dev/ublk-control").exists() {
        eprintln!("skipped: the ublk driver is loaded");
        return;
    }
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    let before = fs::read(scratch.path("cache")).unwrap();
    for options in [
        "",
        "=disk --ublk-depth 8 --ublk-queues 2 --block-size 4096 --keep-device",
    ] {
        let ran = scratch.run(&format!("serve cache --ublk{options}"));
        ran.refused(FAILURE, &["/dev/ublk-control", "modprobe ublk_drv", "--nbd"]);
    }
    assert!(before == fs::read(scratch.path("cache")).unwrap());
}

/// Without the driver, or without permission to use it, the cache stays as it was.
#[test]
fn a_missing_nbd_driver_is_named_with_what_to_do() {
    if Path::new("/sys/module/nbd").exists() || Path::new("/sys/block/nbd0").exists() {
        eprintln!("skipped: the NBD driver is loaded");
        return;
    }
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    let before = fs::read(scratch.path("cache")).unwrap();
    let may_use = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN));
    let expected: &[&str] = match may_use {
        true => &["the kernel has no NBD driver", "modprobe nbd", "--nbd"],
        false => &["cannot use the driver", "run as root", "--nbd"],
    };
    for device in ["", "=disk", "=/dev/nbd3 --block-size 4096 --keep-device"] {
        let ran = scratch.run(&format!("serve cache --nbd-device{device}"));
        ran.refused(FAILURE, expected);
    }
    assert!(before == fs::read(scratch.path("cache")).unwrap());
}

#[test]
fn serve_check_and_dump_refuse_other_files() {
    let scratch = Scratch::new();
    scratch.file("zeroes");
    for command in ["serve", "check", "dump", "status", "stop"] {
        scratch
            .run(&format!("{command} none"))
            .refused(FAILURE, &["none"]);
        scratch
            .run(&format!("{command} zeroes"))
            .refused(FAILURE, &["zeroes"]);
    }
    scratch.run("check").refused(USAGE, &["<CACHE>"]);
    scratch.run("dump").refused(USAGE, &["<CACHE>"]);
}

/// A damaged cache may contain writes that the origin lacks: no message may suggest recreating it.
#[test]
fn a_damaged_cache_is_not_recreated_without_warning() {
    let scratch = Scratch::new();
    scratch.file("origin");
    let commands = ["check", "serve", "status", "flush", "detach"];
    let refuse = |hint: &[&str], not: &str| {
        for command in commands {
            let ran = scratch.run(&format!("{command} cache"));
            ran.refused(FAILURE, hint);
            assert!(!ran.err().contains(not), "{command}: {}", ran.err());
        }
    };
    scratch.file("cache");
    refuse(
        &["not a flaz cache", "check the path", "`flaz create`"],
        "may hold writes",
    );
    scratch.run("create cache --origin origin --force").succeeded();
    let cache = File::options().write(true).open(scratch.path("cache")).unwrap();
    cache.set_len(SIZE / 2).unwrap();
    let sizes = format!("device size is {} bytes, expected at least", SIZE / 2);
    let created = format!("created on a device of {SIZE} bytes");
    refuse(
        &["truncated", "may hold writes", &sizes, &created],
        "`flaz create`",
    );
    cache.set_len(SIZE).unwrap();
    scratch.run("status cache").succeeded();
    for slot in [0, 64 << 10] {
        cache.write_all_at(b"bit rot", slot + 600).unwrap();
    }
    let remedy = "restore the device. If those writes may be lost, recreate the cache";
    refuse(&["checksum mismatch", "may hold writes", remedy], "create one");
}

/// The next start repairs it.
#[test]
fn one_damaged_superblock_is_no_reason_to_recreate() {
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    let cache = File::options().write(true).open(scratch.path("cache")).unwrap();
    cache.write_all_at(b"bit rot", 600).unwrap();
    let checked = scratch.run("check cache");
    assert_eq!(checked.output.status.code(), Some(FAILURE));
    let advice = checked.err();
    assert!(advice.contains("nothing is lost"), "{advice}");
    for not in ["--force", "fragment-dirty", "discard"] {
        assert!(!advice.contains(not), "{advice}");
    }
    let served = scratch.served("cache");
    scratch.run("stop cache").succeeded();
    served.ended();
    scratch.run("check cache").succeeded();
}

/// The command returns when the daemon has ended, and a script may then list or reuse the sockets.
#[test]
fn stop_and_detach_leave_no_control_socket() {
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    for command in ["stop", "detach", "stop -q"] {
        let served = scratch.served("cache");
        let (line, log) = (served.line.clone(), scratch.run(&format!("{command} cache")));
        assert!(line.starts_with("ready: "), "{line}");
        let left: Vec<_> = fs::read_dir(scratch.path("run"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|end| end == "sock"))
            .collect();
        assert!(left.is_empty(), "{command}: {left:?}");
        let said = log.succeeded();
        assert_eq!(said.is_empty(), command.ends_with("-q"), "{command}: {said}");
        let log = served.ended();
        assert!(!log.contains("ready in"), "announced twice: {log}");
    }
}

/// It has the same UUID, but the daemon has the original.
#[test]
fn a_command_on_a_copy_of_a_served_cache_does_not_act_on_the_original() {
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    fs::copy(scratch.path("cache"), scratch.path("copy")).unwrap();
    fs::hard_link(scratch.path("cache"), scratch.path("link")).unwrap();
    let served = scratch.served("cache");
    let original = scratch.path("cache");
    let named = format!(
        "copy is a copy of the cache that is served from {}",
        original.display()
    );
    for command in [
        "status copy",
        "set copy mode=write-around",
        "flush copy",
        "resize copy",
        "detach copy",
        "stop copy",
    ] {
        let hints = [named.as_str(), "same UUID", "name that one"];
        scratch.run(command).refused(FAILURE, &hints);
    }
    let status = scratch.run("status link").succeeded();
    assert!(
        status.contains("running") && status.contains("write-through"),
        "{status}"
    );
    scratch.run("stop cache").succeeded();
    served.ended();
    scratch.run("status copy").succeeded();
}

/// Neither the socket of the original for its copy, nor that of another cache.
#[test]
fn a_command_with_the_socket_of_another_cache_does_not_act_on_it() {
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    fs::copy(scratch.path("cache"), scratch.path("copy")).unwrap();
    scratch.file("origin2");
    scratch
        .run("create other --size 32M --origin origin2")
        .succeeded();
    let served = scratch.served_by(&mut scratch.command("serve cache --control own.sock"));
    for cache in ["copy", "other"] {
        let named = format!(
            "own.sock: the daemon that listens there serves {}, not {cache}: name that one, or omit --control",
            scratch.path("cache").display()
        );
        for command in [
            "status",
            "set mode=write-around",
            "flush",
            "resize",
            "detach",
            "stop",
            "volume resize",
            "advise",
        ] {
            let line = match command.strip_prefix("set ") {
                Some(setting) => format!("set {cache} {setting} --control own.sock"),
                None => format!("{command} {cache} --control own.sock"),
            };
            scratch.run(&line).refused(FAILURE, &[&named]);
        }
    }
    let status = scratch.run("status cache --control own.sock").succeeded();
    assert!(
        status.contains("running") && status.contains("write-through"),
        "{status}"
    );
    scratch.run("stop --control own.sock").succeeded();
    served.ended();
}

/// Their requests would fail.
#[test]
fn detach_names_connected_clients_as_stop_does() {
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    let served = scratch.served_by(&mut scratch.command("serve cache --nbd unix:nbd --mode write-back"));
    let mut client = flaz_nbd::Client::connect(&scratch.path("nbd")).unwrap();
    client.write(4096, &[7; 4096]).unwrap();
    for command in ["stop", "detach"] {
        let hints = [
            "NBD client process",
            "is connected",
            "disconnect or unmount first",
            "--force",
        ];
        scratch.run(&format!("{command} cache")).refused(FAILURE, &hints);
    }
    let mut found = [0; 4096];
    client.read(4096, &mut found).unwrap();
    assert_eq!(found, [7; 4096]);
    let status = scratch.run("status cache").succeeded();
    assert!(status.contains("write-back"), "nothing has changed: {status}");
    scratch.run("detach cache --force").succeeded();
    served.ended();
    assert_eq!(fs::read(scratch.path("origin")).unwrap()[4096..8192], [7; 4096]);
}

#[test]
fn a_smaller_missing_or_different_origin_is_refused() {
    let scratch = Scratch::new();
    let origin = scratch.file("origin");
    scratch.file("other");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    let before = fs::read(scratch.path("cache")).unwrap();
    let refuse = |hint: &[&str], options: &str| {
        for command in ["serve", "flush", "detach"] {
            scratch
                .run(&format!("{command} cache {options}"))
                .refused(FAILURE, hint);
        }
    };
    refuse(
        &[
            "other is not the origin that this cache was created for",
            "specify the right origin with --origin",
            "--discard-cache",
        ],
        "--origin other",
    );
    // The size of another device means nothing.
    scratch.file("small").set_len(SIZE / 4).unwrap();
    refuse(
        &["small is not the origin that this cache was created for"],
        "--origin small",
    );
    refuse(
        &["none", "No such file", "current path with --origin"],
        "--origin none",
    );
    origin.set_len(SIZE / 2).unwrap();
    refuse(
        &[
            "is smaller than when the cache was created",
            "expected 33554432 bytes, found 16777216",
        ],
        "",
    );
    fs::remove_file(scratch.path("origin")).unwrap();
    refuse(&["No such file", "--origin"], "");
    assert!(
        fs::read(scratch.path("cache")).unwrap() == before,
        "it was written to"
    );
}

/// The name of a file may be any bytes: in JSON those that are not UTF-8 are escaped.
#[test]
fn a_cache_whose_path_is_not_utf8_can_be_used() {
    use std::os::unix::ffi::OsStrExt;

    let scratch = Scratch::new();
    scratch.file("origin");
    let name = OsStr::from_bytes(b"caf\xe9.img");
    let run = |before: &str, after: &str| {
        let mut command = scratch.command(before);
        command.arg(name).args(after.split_ascii_whitespace());
        let line = format!("{before} CACHE {after}");
        Ran {
            line,
            output: command.output().unwrap(),
        }
    };
    let json = |ran: Ran| serde_json::from_str::<serde_json::Value>(&ran.succeeded()).unwrap();
    let created = json(run("create --json --size 32M --origin origin", ""));
    assert_eq!(created["cache"]["path"], r"caf\xe9.img");
    assert_eq!(json(run("status --json", ""))["cache"]["path"], r"caf\xe9.img");
    assert_eq!(json(run("check --json", ""))["cache"]["path"], r"caf\xe9.img");
    run("dump", "").succeeded();
    let served = scratch.served(name);
    let running = json(run("status --json", ""));
    assert_eq!(
        (&running["state"], &running["cache"]["path"]),
        (&"running".into(), &r"caf\xe9.img".into())
    );
    assert!(
        run("set", "mode=write-around")
            .succeeded()
            .starts_with("write-around")
    );
    run("stop", "").succeeded();
    served.ended();
}
