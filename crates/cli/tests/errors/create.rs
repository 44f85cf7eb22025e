//! `flaz create`.

use std::io::{BufRead, BufReader};

use super::*;

#[test]
fn create_with_invalid_options() {
    let scratch = Scratch::new();
    scratch.run("create").refused(USAGE, &["--origin", "<CACHE>"]);
    scratch.run("create c").refused(USAGE, &["--origin"]);
    let create = |words: &str| scratch.run(&format!("create c --origin o {words}"));
    create("--codec lz5").refused(USAGE, &["lz5", "lz4", "zstd"]);
    create("--codec zstd:20").refused(USAGE, &["-7 to 19"]);
    create("--codec lz4:1").refused(USAGE, &["no levels"]);
    create("--size lots").refused(USAGE, &["'lots' is not a size", "64KiB or 10G"]);
    create("--size 1X").refused(USAGE, &["unknown unit 'X'"]);
    create("--size 9E").refused(USAGE, &["the maximum is below 8 EiB"]);
    create("--size -1").refused(USAGE, &["-1"]);
    create("--extent-size 48KiB").refused(USAGE, &["expected 32KiB, 64KiB, 128KiB or 256KiB"]);
    create("--region-size x").refused(USAGE, &["'x' is not a size"]);
    create("--shards 0").refused(USAGE, &["'0'", "a whole number from 1 to 256"]);
    assert!(
        fs::read_dir(scratch.folder.path()).unwrap().next().is_none(),
        "nothing was made"
    );
}

#[test]
fn create_without_a_cache_device_or_origin() {
    let scratch = Scratch::new();
    scratch.file("cache");
    scratch
        .run("create cache --origin none")
        .refused(FAILURE, &["none: no such origin", "--origin"]);
    scratch
        .run("create cache --origin .")
        .refused(FAILURE, &["found a directory"]);
    scratch
        .run("create cache --origin /dev/null")
        .refused(FAILURE, &["found a character device"]);
    scratch.file("origin");
    scratch
        .run("create none --origin origin")
        .refused(FAILURE, &["none: no such cache device", "--size SIZE"]);
    scratch
        .run("create . --origin origin")
        .refused(FAILURE, &["found a directory"]);
    scratch
        .run("create /dev/no-such-disk --origin origin --size 1G")
        .refused(FAILURE, &["not created under /dev"]);
    scratch
        .run("create no/dir/c --origin origin --size 1G")
        .refused(FAILURE, &["cannot make no/dir/c", "No such file"]);
    assert!(!scratch.path("none").exists());
}

#[test]
fn create_over_the_origin() {
    let scratch = Scratch::new();
    scratch.file("origin");
    std::os::unix::fs::symlink("origin", scratch.path("link")).unwrap();
    for cache in ["origin", "./origin", "link"] {
        scratch
            .run(&format!("create {cache} --origin origin --force"))
            .refused(FAILURE, &["the cache would overwrite the origin"]);
    }
}

#[test]
fn create_over_existing_data() {
    let scratch = Scratch::new();
    scratch.file("origin");
    for (magic, offset, name) in [
        (&b"LUKS\xba\xbe"[..], 0, "luks"),
        (b"EFI PART", 512, "gpt partition table"),
        (b"SWAPSPACE2", 4086, "swap"),
        (b"FLAZCACH", 0, "flaz cache"),
        (
            b"dear diary",
            12_345_678,
            "unknown data (first at offset 12345678)",
        ),
    ] {
        let cache = scratch.file("cache");
        cache.write_all_at(magic, offset).unwrap();
        let before = fs::read(scratch.path("cache")).unwrap();
        scratch.run("create cache --origin origin").refused(
            FAILURE,
            &["cache is not free; nothing was written", name, "use --force"],
        );
        assert!(
            fs::read(scratch.path("cache")).unwrap() == before,
            "{name} was written to"
        );
    }
}

/// Whether the cache may contain the only copy of some writes: the newer superblock says so, and a damaged one is not
/// trusted to deny it.
#[test]
fn create_over_a_cache_says_whether_it_is_dirty() {
    use flaz_engine::format::geometry::{SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
    use flaz_engine::format::superblock::Superblock;

    let scratch = Scratch::new();
    scratch.file("origin");
    let cache = scratch.file("cache");
    scratch.run("create cache --origin origin").succeeded();
    let mut page = vec![0; SUPERBLOCK_BYTES];
    cache.read_exact_at(&mut page, SUPERBLOCK_SLOTS[0]).unwrap();
    let mut superblock = Superblock::parse(&page, 32 << 20).unwrap();
    for (dirty, damaged, is_dirty) in [
        ([true, false], None, false),
        ([false, true], None, true),
        ([true, false], Some(0), true),
        ([true, false], Some(1), true),
        ([false, false], Some(0), false),
    ] {
        for (slot, dirty) in dirty.into_iter().enumerate() {
            superblock.dirty = dirty;
            superblock.generation += 1;
            let mut page = superblock.to_bytes().unwrap();
            if damaged == Some(slot) {
                page[100] ^= 1;
            }
            cache.write_all_at(&page, SUPERBLOCK_SLOTS[slot]).unwrap();
        }
        let output = scratch.run("create cache --origin origin");
        let case = format!("{dirty:?}, {damaged:?}: {}", output.err());
        output.refused(FAILURE, &["flaz cache", "use --force"]);
        assert_eq!(case.contains("dirty (newer than its origin)"), is_dirty, "{case}");
        assert_eq!(case.contains("--discard-dirty"), is_dirty, "{case}");
    }
}

/// Not even --force loses writes that the origin lacks.
#[test]
fn create_over_dirty_data_needs_its_own_option() {
    use flaz_engine::format::geometry::{SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
    use flaz_engine::format::superblock::Superblock;

    let scratch = Scratch::new();
    scratch.file("origin");
    let cache = scratch.file("it's a cache");
    let create = |options: &[&str]| {
        let output = scratch
            .command("create --origin origin")
            .arg("it's a cache")
            .args(options)
            .output();
        Ran {
            line: options.join(" "),
            output: output.unwrap(),
        }
    };
    create(&[]).succeeded();
    let mut page = vec![0; SUPERBLOCK_BYTES];
    cache.read_exact_at(&mut page, SUPERBLOCK_SLOTS[0]).unwrap();
    let mut superblock = Superblock::parse(&page, SIZE).unwrap();
    superblock.dirty = true;
    superblock.generation += 1;
    let page = superblock.to_bytes().unwrap();
    cache.write_all_at(&page, SUPERBLOCK_SLOTS[0]).unwrap();
    for options in [&[][..], &["--force"]] {
        create(options).refused(
            FAILURE,
            &[
                "nothing was written",
                r"`flaz detach 'it'\''s a cache'`",
                "--force --discard-dirty",
            ],
        );
        let mut found = vec![0; SUPERBLOCK_BYTES];
        cache.read_exact_at(&mut found, SUPERBLOCK_SLOTS[0]).unwrap();
        assert_eq!(found, page);
    }
    create(&["--discard-dirty"]).refused(USAGE, &["--force"]);
    let made = create(&["--force", "--discard-dirty"]).succeeded();
    assert!(made.contains(r"flaz serve 'it'\''s a cache'"), "{made}");
}

/// CACHE and ORIGIN were probably exchanged.
#[test]
fn create_for_an_origin_that_is_a_cache() {
    let scratch = Scratch::new();
    for name in ["origin", "cache", "other"] {
        scratch.file(name);
    }
    scratch.run("create cache --origin origin").succeeded();
    let before = fs::read(scratch.path("other")).unwrap();
    scratch.run("create other --origin cache").refused(
        FAILURE,
        &[
            "the origin cache contains a flaz cache",
            "Check the order",
            "--force",
        ],
    );
    assert!(fs::read(scratch.path("other")).unwrap() == before);
    scratch.run("create other --origin cache --force").succeeded();
}

#[test]
fn create_in_any_size_by_default() {
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch
        .run("create cache --origin origin --size 0")
        .refused(FAILURE, &["0 bytes are too few: a cache of this origin needs at least 1728KiB; use a larger cache device or --size"]);
    assert!(!scratch.path("cache").exists());
    scratch
        .run("create least --origin origin --size 1728KiB")
        .succeeded();
    // More than any shard of eight can hold. The file system of the test may have a smaller limit.
    let large = scratch.run("create large --origin origin --size 10T --sparse --json");
    if large.err().contains("a size that the file system supports") {
        eprintln!("skipped: {}", large.err());
        return;
    }
    let report: serde_json::Value = serde_json::from_str(&large.succeeded()).unwrap();
    assert_eq!(report["cache"]["shards"], 16);
    let unused = (10 << 40) - report["cache"]["data_bytes"].as_u64().unwrap();
    assert!(unused < 1 << 30, "{unused} bytes are not used");
}

#[test]
fn an_interrupted_create_leaves_no_file() {
    let scratch = Scratch::new();
    scratch.file("origin");
    let mut child = scratch
        .command("create cache --origin origin --size 3G")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let told = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("writing zeroes")));
    if told.is_none() {
        child.wait().unwrap();
        eprintln!("skipped: this file system does not need zeroes, or has no 3 GiB");
        return;
    }
    let pid = rustix::process::Pid::from_child(&child);
    // Not INT, which a test that runs in a background job of a shell inherits as ignored.
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(!child.wait().unwrap().success());
    let left: Vec<_> = fs::read_dir(scratch.path("."))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name != "origin" && name != "run")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn create_prints_nothing_if_quiet() {
    let scratch = Scratch::new();
    scratch.file("origin");
    let quiet = scratch.run("-q create cache --origin origin --size 32M");
    assert_eq!((quiet.succeeded(), quiet.err()), (String::new(), String::new()));
    let json = scratch
        .run("create cache --origin origin --force --json -q")
        .succeeded();
    assert!(json.starts_with('{'), "{json}");
}

#[test]
fn create_with_a_different_size() {
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch.file("cache");
    scratch.run("create cache --origin origin --size 1GiB").refused(
        FAILURE,
        &["expected 1.00 GiB", "found a file of 32.0 MiB", "omit --size"],
    );
}

#[test]
fn create_over_a_file_in_use() {
    let scratch = Scratch::new();
    scratch.file("origin");
    let cache = scratch.file("cache");
    rustix::fs::flock(&cache, rustix::fs::FlockOperation::LockExclusive).unwrap();
    scratch.run("create cache --origin origin --force").refused(
        FAILURE,
        &["locked by another process", "--force does not override"],
    );
}
