//! What errors advise is possible, and does not lose data.

use super::*;

const SUPERBLOCKS: [u64; 2] = [0, 64 << 10];

/// Makes it a cache of an earlier format.
fn make_older(cache: &File, is_dirty: bool) {
    use flaz_engine::format::geometry::{PAGE_BYTES, SUPERBLOCK_BYTES};
    use flaz_engine::format::superblock::VERSION;

    for slot in SUPERBLOCKS {
        let mut page = vec![0; SUPERBLOCK_BYTES];
        cache.read_exact_at(&mut page, slot).unwrap();
        page[8..12].copy_from_slice(&(VERSION - 1).to_le_bytes());
        page[16] |= u8::from(is_dirty);
        page[12..16].fill(0);
        let checksum = crc32c::crc32c(&page[..PAGE_BYTES]);
        page[12..16].copy_from_slice(&checksum.to_le_bytes());
        cache.write_all_at(&page, slot).unwrap();
    }
}

#[test]
fn a_cache_that_is_not_overwritten_is_freed_with_its_own_commands() {
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    let ran = scratch.run("bench run cache --yes-destroy cache");
    ran.refused(
        FAILURE,
        &[
            "`flaz detach cache`, then delete the file",
            "`dd if=/dev/zero of=cache bs=128K count=1 conv=notrunc`",
        ],
    );
    assert!(!ran.err().contains("wipefs"), "{}", ran.err());
    let other = scratch.file("other");
    other.write_all_at(b"LUKS\xba\xbe", 0).unwrap();
    scratch
        .run("bench run other --yes-destroy other")
        .refused(FAILURE, &["`wipefs --all` removes signatures"]);
    // The advice frees it.
    scratch.run("detach cache").succeeded();
    let cache = File::options().write(true).open(scratch.path("cache")).unwrap();
    cache.write_all_at(&[0; 128 << 10], 0).unwrap();
    scratch
        .run("status cache")
        .refused(FAILURE, &["not a flaz cache"]);
}

#[test]
fn a_cache_of_an_older_format_is_left_to_its_version() {
    let scratch = Scratch::new();
    scratch.file("origin");
    let cache = scratch.file("cache");
    scratch.run("create cache --origin origin").succeeded();
    make_older(&cache, true);
    for command in ["serve", "status", "check", "detach"] {
        let ran = scratch.run(&format!("{command} cache"));
        ran.refused(
            FAILURE,
            &[
                "made by an older flaz (format ",
                "detach it with that version, then create it again",
            ],
        );
        for not in ["damaged", "restore the device"] {
            assert!(!ran.err().contains(not), "{command}: {}", ran.err());
        }
    }
    let ran = scratch.run("create cache --origin origin --force");
    ran.refused(
        FAILURE,
        &[
            "another version",
            "`flaz detach` of that version",
            "--discard-dirty",
        ],
    );
    assert!(!ran.err().contains("`flaz detach cache`"), "{}", ran.err());
    scratch
        .run("bench run cache --yes-destroy cache")
        .refused(FAILURE, &["`flaz detach` of the version that made it"]);
    make_older(&cache, false);
    scratch
        .run("create cache --origin origin --force --discard-dirty")
        .succeeded();
}

#[test]
fn an_origin_that_is_a_cache_is_refused_with_the_options_of_the_command() {
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    scratch
        .run("create ssd --shared --size 64M --region-size 256K")
        .succeeded();
    let ran = scratch.run("volume add ssd one --origin cache");
    ran.refused(
        FAILURE,
        &[
            "contains a flaz cache",
            "`flaz volume add DEVICE NAME --origin ORIGIN`",
        ],
    );
    let ran = scratch.run("lab record cache --nbd unix:s -o t.flaztrace.zst");
    ran.refused(
        FAILURE,
        &["contains a flaz cache: record its origin, or serve it"],
    );
    assert!(!ran.err().contains("--force"), "{}", ran.err());
    let ran = scratch.run("lab record none --nbd unix:s -o t.flaztrace.zst");
    ran.refused(
        FAILURE,
        &["none: no such origin: expected the device or file to record"],
    );
    assert!(!ran.err().contains("--origin"), "{}", ran.err());
    let ran = scratch.run("lab evaluate cache");
    ran.refused(FAILURE, &["cache: expected a recording of `flaz lab record`"]);
    assert!(!ran.err().contains("--format"), "{}", ran.err());
    assert!(!scratch.path("t.flaztrace.zst").exists());
}

#[test]
fn one_socket_has_one_purpose() {
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    for (options, names) in [
        (
            "--nbd unix:s --control s",
            "--nbd and --control name the same socket",
        ),
        (
            "--nbd unix:s --control ./s",
            "--nbd and --control name the same socket",
        ),
        (
            "--metrics unix:s --control s",
            "--metrics and --control name the same socket",
        ),
        (
            "--nbd unix:s --metrics unix:s",
            "--nbd and --metrics name the same socket",
        ),
    ] {
        scratch
            .run(&format!("serve cache {options}"))
            .refused(USAGE, &[names]);
    }
    let ran = scratch.run("serve cache --control origin");
    ran.refused(FAILURE, &["origin is not a socket: use another --control PATH"]);
    assert!(!ran.err().contains("remove"), "{}", ran.err());
}

#[test]
fn a_cache_that_is_served_says_how_to_stop_its_server() {
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    let served = scratch.served_by(&mut scratch.command("serve cache --nbd unix:nbd"));
    let ran = scratch.run("serve cache --nbd unix:other");
    ran.refused(
        FAILURE,
        &[
            "cache is already served",
            "control socket ",
            "`flaz stop --control ",
        ],
    );
    assert!(!ran.err().contains("another path"), "{}", ran.err());
    scratch.run("status --control nbd").refused(
        FAILURE,
        &["nbd: this is an NBD address, not a control socket: omit --control, or see `flaz list`"],
    );
    // Without its control socket the server still holds the cache.
    let sockets = fs::read_dir(scratch.path("run")).unwrap();
    for entry in sockets.flatten() {
        fs::remove_file(entry.path()).unwrap();
    }
    for command in ["stop cache", "set cache mode=write-around", "status cache"] {
        let ran = scratch.run(command);
        ran.refused(
            FAILURE,
            &["cache is in use by ", "no daemon listens", "--control PATH"],
        );
        assert!(!ran.err().contains("start it"), "{}", ran.err());
    }
    let pid = rustix::process::Pid::from_raw(served.child.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    served.ended();
    scratch.run("stop cache").refused(FAILURE, &["not running"]);
}

#[test]
fn only_a_shared_device_has_volumes() {
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    scratch
        .run("volume list cache")
        .refused(FAILURE, &["a cache of one origin, not a shared device"]);
    scratch.run("volume list origin").refused(
        FAILURE,
        &["it contains no flaz cache", "flaz create origin --shared"],
    );
    scratch
        .run("create ssd --shared --size 64M --region-size 256K")
        .succeeded();
    let command = |line: &str| {
        let mut command = scratch.command(line);
        command.env("FLAZ_CONFIG_DIR", scratch.path("etc"));
        let line = line.to_owned();
        let output = command.output().unwrap();
        Ran { line, output }
    };
    fs::create_dir(scratch.path("etc")).unwrap();
    command("volume add ssd one --origin origin --name home").succeeded();
    command("volume list home").refused(
        USAGE,
        &[
            "expected the path of the shared device; home is a volume of ",
            "/ssd",
        ],
    );
}

/// No server could have this bound.
#[test]
fn too_little_index_memory_is_refused_at_creation() {
    let scratch = Scratch::new();
    scratch.file("origin");
    for (memory, part) in [("0", "more than 0 bytes"), ("4K", "use a larger --index-memory")] {
        scratch
            .run(&format!(
                "create cache --size 64M --origin origin --index-memory {memory}"
            ))
            .refused(FAILURE, &[part]);
        assert!(!scratch.path("cache").exists(), "{memory}");
    }
}

/// A full disk, imitated by the largest size of a file.
#[test]
fn an_output_that_failed_is_removed() {
    let scratch = Scratch::new();
    let limited = |line: &str| {
        let script = format!("trap '' XFSZ; ulimit -f 64; exec \"$0\" {line}");
        let mut command = scratch.command("");
        let program = command.get_program().to_owned();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &script])
            .arg(program)
            .current_dir(scratch.folder.path());
        command = shell;
        Ran {
            line: line.to_owned(),
            output: command.output().unwrap(),
        }
    };
    limited("bench data --size 1M --output made").refused(FAILURE, &["writing made: File too large"]);
    assert!(!scratch.path("made").exists());
    fs::write(scratch.path("old"), "theirs").unwrap();
    limited("bench data --size 1M --output old").refused(FAILURE, &["writing old"]);
    assert!(scratch.path("old").exists(), "it was there before");
}

#[test]
fn a_replay_without_reads_recommends_nothing() {
    let scratch = Scratch::new();
    let mut trace = "fio version 2 iolog\n/d add\n/d open\n".to_owned();
    for block in 0..64 {
        trace += &format!("/d write {} 4096\n", block * 4096);
    }
    fs::write(scratch.path("t.iolog"), trace).unwrap();
    let page = scratch.run("lab replay t.iolog --cache 8M").succeeded();
    assert_eq!(
        page.matches("no reads: hits and latencies are not defined")
            .count(),
        2,
        "{page}"
    );
    // What was computed is printed even if the page cannot be written.
    let ran = scratch.run("lab replay t.iolog --cache 8M --html /dev/full");
    assert_eq!(ran.output.status.code(), Some(FAILURE), "{}", ran.err());
    assert!(
        ran.out().contains("no reads") && ran.err().contains("/dev/full"),
        "{}",
        ran.err()
    );
}
