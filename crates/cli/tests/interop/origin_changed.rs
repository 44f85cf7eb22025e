//! An origin with a real file system is mounted without its cache, after a clean stop or a kill. `serve` refuses while
//! it is mounted and afterwards, and says what changed and what to do. A rolled-back cache file is detected.

use std::path::Path;

use flaz_nbd::Client;
use flaz_nbd::request::Command;
use rustix::process::Signal;

use crate::support::{Cache, CacheSpec, Mount, Program, Scratch, Server, need};

/// The minimum of mkfs.xfs is 300 MiB.
const ORIGIN_BYTES: u64 = 320 << 20;

struct FileSystem {
    name: &'static str,
    package: &'static str,
    make: &'static str,
    /// Texts in the refusal, in this order.
    told: &'static [&'static str],
}

const EXT4: FileSystem = FileSystem {
    name: "ext4",
    package: "e2fsprogs",
    make: "mkfs.ext4 -q -F",
    told: &[
        "its ext4 file system",
        "mount count was 0, is 1",
        "last mount was never, is 20",
    ],
};
const XFS: FileSystem = FileSystem {
    name: "xfs",
    package: "xfsprogs",
    make: "mkfs.xfs -q -f",
    told: &["its xfs file system", "last write of its superblock was cycle"],
};
const BTRFS: FileSystem = FileSystem {
    name: "btrfs",
    package: "btrfs-progs",
    make: "mkfs.btrfs -q -f",
    told: &["its btrfs file system", "generation was"],
};

/// Runs `flaz serve`, which should be refused.
fn serve(scratch: &Scratch, cache: &Cache, words: &str) -> Program {
    Program::flaz()
        .arg("serve")
        .arg(&cache.path)
        .arg("--state-dir")
        .arg(scratch.state_dir())
        .arg("--nbd")
        .arg(format!("unix:{}", scratch.place("refused.sock").display()))
        .arg("--control")
        .arg(scratch.place("refused-control.sock"))
        .words(words)
        .limit_s(30)
}

/// How the server ended before the origin was mounted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Stop,
    Kill,
}

fn a_mount_past_the_cache_is_refused(kind: &FileSystem, end: End) {
    let (maker, words) = kind.make.split_once(' ').expect("a program and its options");
    let wanted = [(maker, kind.package), ("mount", "mount"), ("losetup", "mount")];
    if !(need::tools(&wanted) && need::mounts(kind.name)) {
        return;
    }
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
    Program::new(maker).words(words).arg(&origin).ok();
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    let server = Server::start(&scratch, &cache, "");
    // Write something at the end of the device, where it does not affect the file system's start.
    let mut client = Client::connect(server.socket()).expect("connects");
    let data = client.call(Command::Read, ORIGIN_BYTES / 2, 4096).expect("reads");
    client.write(ORIGIN_BYTES / 2, &data).expect("writes");
    drop(client);
    match end {
        End::Stop => server.stop(),
        End::Kill => assert!(!server.end_by(Signal::KILL).success()),
    }
    // Without changes the origin is accepted.
    let server = Server::start(&scratch, &cache, "");
    assert!(server.started_warm(), "{}", server.log());
    match end {
        End::Stop => server.stop(),
        End::Kill => assert!(!server.end_by(Signal::KILL).success()),
    }

    let mount = Mount::of_file(&scratch, &origin);
    for words in ["", "--discard-cache"] {
        let said = serve(&scratch, &cache, words).fails();
        assert!(
            said.contains("is mounted on") && said.contains("unmount it first"),
            "{said}"
        );
    }
    std::fs::write(mount.path.join("new"), "past the cache").expect("writes");
    mount.unmount();

    let said = serve(&scratch, &cache, "").fails();
    assert!(said.contains("--discard-cache"), "{said}");
    match end {
        End::Stop => {
            assert!(
                said.contains("has been changed since the cache was stopped"),
                "{said}"
            );
            let mut rest = said.as_str();
            for told in kind.told {
                let at = rest
                    .find(told)
                    .unwrap_or_else(|| panic!("'{told}' is not said: {said}"));
                rest = &rest[at..];
            }
            its_notes_are_not_needed(&scratch, &cache, kind);
        }
        End::Kill => {
            assert!(said.contains("has been changed since the crash"), "{said}");
            assert!(said.contains(&format!("it now contains {}", kind.name)), "{said}");
            assert_eq!(serve(&scratch, &cache, "").fails(), said, "asked again");
        }
    }

    let server = Server::start(&scratch, &cache, "--discard-cache");
    assert!(!server.started_warm());
    server.stop();
    let server = Server::start(&scratch, &cache, "");
    assert!(server.started_warm());
    server.stop();
    cache.check();
}

/// Without the notes the superblock shows the change, with less detail.
fn its_notes_are_not_needed(scratch: &Scratch, cache: &Cache, kind: &FileSystem) {
    let elsewhere = format!("--state-dir {}", scratch.place("other-state").display());
    let said = Program::flaz()
        .arg("serve")
        .arg(&cache.path)
        .words(&elsewhere)
        .arg("--nbd")
        .arg(format!("unix:{}", scratch.place("refused.sock").display()))
        .arg("--control")
        .arg(scratch.place("refused-control.sock"))
        .limit_s(30)
        .fails();
    assert!(said.contains(&format!("it now contains {}", kind.name)), "{said}");
}

#[test]
fn an_ext4_mounted_without_the_cache_is_refused() {
    a_mount_past_the_cache_is_refused(&EXT4, End::Stop);
}

#[test]
fn an_xfs_mounted_without_the_cache_is_refused() {
    a_mount_past_the_cache_is_refused(&XFS, End::Stop);
}

#[test]
fn a_btrfs_mounted_without_the_cache_is_refused() {
    a_mount_past_the_cache_is_refused(&BTRFS, End::Stop);
}

#[test]
fn an_ext4_mounted_without_the_cache_after_a_kill_is_refused() {
    a_mount_past_the_cache_is_refused(&EXT4, End::Kill);
}

#[test]
fn an_xfs_mounted_without_the_cache_after_a_kill_is_refused() {
    a_mount_past_the_cache_is_refused(&XFS, End::Kill);
}

#[test]
fn a_btrfs_mounted_without_the_cache_after_a_kill_is_refused() {
    a_mount_past_the_cache_is_refused(&BTRFS, End::Kill);
}

fn can_mount_ext4() -> bool {
    let wanted = [
        ("mkfs.ext4", "e2fsprogs"),
        ("mount", "mount"),
        ("losetup", "mount"),
    ];
    need::tools(&wanted) && need::mounts("ext4")
}

/// After a clean stop and without changes, the cache starts warm.
fn is_accepted(scratch: &Scratch, cache: &Cache) {
    Server::start(scratch, cache, "").stop();
    let server = Server::start(scratch, cache, "");
    assert!(server.started_warm());
    server.stop();
}

/// No file is created: only the counters of the superblock, their checksum, and blocks far behind change.
#[test]
fn an_ext4_with_a_file_changed_without_the_cache_is_refused() {
    if !can_mount_ext4() {
        return;
    }
    for overwritten in [true, false] {
        let scratch = Scratch::new();
        let origin = scratch.sparse("origin.img", 64 << 20);
        let files = scratch.place("files");
        std::fs::create_dir(&files).expect("makes a folder");
        std::fs::write(files.join("old"), vec![1; 1 << 20]).expect("writes");
        Program::new("mkfs.ext4")
            .words("-q -F -O metadata_csum -d")
            .arg(&files)
            .arg(&origin)
            .ok();
        let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
        is_accepted(&scratch, &cache);

        let mount = Mount::of_file(&scratch, &origin);
        if overwritten {
            let file = std::fs::File::options().write(true).open(mount.path.join("old"));
            let file = file.expect("opens");
            std::os::unix::fs::FileExt::write_all_at(&file, &[2; 1 << 20], 0).expect("writes");
            file.sync_all().expect("is stable");
        }
        mount.unmount();
        let said = serve(&scratch, &cache, "").fails();
        assert!(said.contains("mount count was 0, is 1"), "{said}");
        Server::start(&scratch, &cache, "--discard-cache").stop();
    }
}

/// The partition table is unchanged, but the file system in the partition is not.
#[test]
fn a_partition_mounted_without_the_cache_is_refused() {
    const START: u64 = 1 << 20;
    if !can_mount_ext4() {
        return;
    }
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", 64 << 20);
    Program::new("mkfs.ext4")
        .words("-q -F -E")
        .arg(format!("offset={START}"))
        .arg(&origin)
        .arg("32M")
        .ok();
    // An MBR with one partition of Linux.
    let mut table = [0; 512];
    table[446 + 4] = 0x83;
    table[446 + 8..][..4].copy_from_slice(&2048u32.to_le_bytes());
    table[446 + 12..][..4].copy_from_slice(&65536u32.to_le_bytes());
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    let disk = std::fs::File::options().write(true).open(&origin).expect("opens");
    std::os::unix::fs::FileExt::write_all_at(&disk, &table, 0).expect("writes");
    drop(disk);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    is_accepted(&scratch, &cache);

    let mount = Mount::of_partition(&scratch, &origin, START);
    std::fs::write(mount.path.join("new"), "past the cache").expect("writes");
    mount.unmount();
    let said = serve(&scratch, &cache, "").fails();
    assert!(said.contains("has been changed since"), "{said}");
    assert!(said.contains("mount count of partition 1 was 0, is 1"), "{said}");
    Server::start(&scratch, &cache, "--discard-cache").stop();
}

#[test]
fn a_cache_starts_cold_after_its_origin_had_another_cache() {
    let (scratch, other) = (Scratch::new(), Scratch::new());
    let origin = scratch.sparse("origin.img", 64 << 20);
    let first = Cache::create(&scratch, &origin, &CacheSpec::default());
    let second = Cache::create(&other, &origin, &CacheSpec::default());
    for turn in 0..2 {
        for cache in [&first, &second] {
            let server = Server::start(&scratch, cache, "");
            assert!(!server.started_warm(), "turn {turn}");
            server.stop();
        }
    }
    assert!(
        scratch_log(&scratch).contains("was served through another cache"),
        "{}",
        scratch_log(&scratch)
    );
    let server = Server::start(&scratch, &second, "");
    assert!(server.started_warm());
    server.stop();
    second.check();
}

/// One cache has writes that its origin lacks; another cache takes its place.
#[test]
fn replacing_a_cache_with_dirty_blocks_is_refused() {
    let (scratch, other) = (Scratch::new(), Scratch::new());
    let origin = scratch.sparse("origin.img", 64 << 20);
    let first = Cache::create(&scratch, &origin, &CacheSpec::default());
    let second = Cache::create(&other, &origin, &CacheSpec::default());
    let server = Server::start(&scratch, &first, "--mode write-back");
    let written = vec![0xA5; 4096];
    let mut client = Client::connect(server.socket()).expect("connects");
    client.write(8192, &written).expect("writes");
    drop(client);
    server.stop();

    for words in ["", "--discard-cache", "--mode write-back"] {
        let said = serve(&scratch, &second, words).fails();
        assert!(said.contains("still holds"), "{words}: {said}");
        assert!(said.contains("--discard-dirty"), "{words}: {said}");
        let path = format!("last served from {}", first.path.display());
        assert!(said.contains(&path), "{words}: {said}");
        // A start that is refused has discarded nothing.
        assert!(!said.contains("starts empty"), "{words}: {said}");
    }
    let detached = |cache: &Cache| {
        Program::flaz()
            .arg("detach")
            .arg(&cache.path)
            .arg("--state-dir")
            .arg(scratch.state_dir())
    };
    let said = detached(&second).fails();
    assert!(said.contains("still holds"), "{said}");
    detached(&first).ok();
    assert_eq!(std::fs::read(&origin).expect("reads")[8192..12288], written);
    Server::start(&scratch, &second, "--mode write-back").stop();

    // Discarded on purpose.
    let server = Server::start(&scratch, &first, "--mode write-back --discard-cache");
    let mut client = Client::connect(server.socket()).expect("connects");
    client.write(8192, &[0x5A; 4096]).expect("writes");
    drop(client);
    server.stop();
    serve(&scratch, &second, "").fails();
    let before = scratch_log(&scratch).len();
    Server::start(&scratch, &second, "--discard-cache --discard-dirty").stop();
    let log = scratch_log(&scratch).split_off(before);
    assert!(!log.contains("no data is lost"), "{log}");
    let lost = log
        .lines()
        .find(|line| line.contains("dirty blocks of another cache"));
    let path = first.path.display().to_string();
    assert!(
        lost.is_some_and(|line| line.contains(&path) && line.ends_with("are lost")),
        "{log}"
    );
    let said = serve(&scratch, &first, "").fails();
    assert!(said.contains("was served through another cache"), "{said}");
}

/// A cache with dirty blocks is overwritten on purpose: a new cache of its origin is served, and one of another cache's origin
/// that has dirty blocks is still refused.
#[test]
fn a_cache_that_was_overwritten_with_its_dirty_blocks_is_forgotten() {
    let scratch = Scratch::new();
    let dirty = |cache: &Cache| {
        let server = Server::start(&scratch, cache, "--mode write-back");
        let mut client = Client::connect(server.socket()).expect("connects");
        client.write(8192, &[0xA5; 4096]).expect("writes");
        drop(client);
        assert!(!server.end_by(Signal::KILL).success());
    };
    let overwritten = |words: &str| {
        Program::flaz()
            .env("STATE_DIRECTORY", scratch.state_dir())
            .words(words)
    };
    let [origin, kept] = ["origin.img", "kept.img"].map(|name| scratch.sparse(name, 64 << 20));
    let first = Cache::create(&scratch, &origin, &CacheSpec::default());
    dirty(&first);
    let other = Scratch::new();
    let second = Cache::create(&other, &kept, &CacheSpec::default());
    dirty(&second);

    let again = || {
        overwritten("create")
            .arg(&first.path)
            .arg("--origin")
            .arg(&origin)
            .arg("--force")
    };
    again().fails();
    again().arg("--discard-dirty").ok();
    Server::start(&scratch, &first, "").stop();

    // The record of the other cache is kept.
    let third = Cache {
        path: other.image("third.img"),
    };
    overwritten("create --size 32M")
        .arg(&third.path)
        .arg("--origin")
        .arg(&kept)
        .ok();
    let said = serve(&scratch, &third, "").fails();
    assert!(said.contains("still holds"), "{said}");
}

/// A cache has writes that its origin lacks, and finds another disk in its place: a copy, so that only its identity
/// distinguishes them. Nothing may be written to it.
#[test]
fn a_cache_with_dirty_blocks_is_refused_with_another_origin() {
    const AT: usize = 8192;
    for end in [End::Stop, End::Kill] {
        let scratch = Scratch::new();
        let origin = scratch.filled("origin.img", 16 << 20, 54);
        let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
        let (before, written) = (std::fs::read(&origin).expect("reads"), vec![0xA5; 64 << 10]);
        let other = scratch.image("other.img");
        std::fs::write(&other, &before).expect("writes");
        let server = Server::start(&scratch, &cache, "--mode write-back");
        let mut client = Client::connect(server.socket()).expect("connects");
        client.write(AT as u64, &written).expect("writes");
        drop(client);
        match end {
            End::Stop => server.stop(),
            End::Kill => assert!(!server.end_by(Signal::KILL).success()),
        }
        let left = std::fs::read(&origin).expect("reads");
        assert!(left == before, "writeback was not to reach it");

        let is_refused = |program: Program| {
            let said = program.fails();
            assert!(
                said.contains("is not the origin that this cache was created for"),
                "{said}"
            );
        };
        let idle = |command: &str| {
            Program::flaz()
                .arg(command)
                .arg(&cache.path)
                .arg("--state-dir")
                .arg(scratch.state_dir())
        };
        // The wrong origin is named with --origin, or is found at the path of the right one.
        let away = scratch.image("away.img");
        let rename = |from: &Path, to: &Path| std::fs::rename(from, to).expect("renames");
        for words in ["", "--mode write-back"] {
            is_refused(serve(&scratch, &cache, words).arg("--origin").arg(&other));
        }
        // The contents of the cache are not discarded by this.
        let discarding = serve(&scratch, &cache, "--discard-cache").arg("--origin");
        let said = discarding.arg(&other).fails();
        assert!(said.contains("--discard-dirty"), "{said}");
        for command in ["flush", "detach"] {
            is_refused(idle(command).arg("--origin").arg(&other));
        }
        rename(&origin, &away);
        rename(&other, &origin);
        is_refused(serve(&scratch, &cache, "--mode write-back"));
        for command in ["flush", "detach"] {
            is_refused(idle(command));
        }
        rename(&origin, &other);
        rename(&away, &origin);
        assert!(
            std::fs::read(&other).expect("reads") == before,
            "it was written to"
        );

        let server = Server::start(&scratch, &cache, "--mode write-back");
        assert!(server.live("/write_back/dirty_blocks") > 0);
        let mut client = Client::connect(server.socket()).expect("connects");
        let read = client.call(Command::Read, AT as u64, written.len() as u32);
        assert!(read.expect("reads") == written, "an acknowledged write is lost");
        server.flush();
        let mut complete = before.clone();
        complete[AT..AT + written.len()].copy_from_slice(&written);
        assert!(
            std::fs::read(&origin).expect("reads") == complete,
            "not all is there"
        );
        server.stop();
        assert!(
            std::fs::read(&other).expect("reads") == before,
            "it was written to"
        );
        cache.check();
    }
}

/// The message does not mention write-back, which was not requested.
#[test]
fn a_cold_start_with_dirty_blocks_says_what_to_do() {
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", 16 << 20);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    let server = Server::start(&scratch, &cache, "--mode write-back");
    let mut client = Client::connect(server.socket()).expect("connects");
    client.write(8192, &[0xA5; 4096]).expect("writes");
    drop(client);
    server.stop();
    let said = serve(&scratch, &cache, "--mode write-through --after-crash cold").fails();
    assert!(
        said.contains("dirty blocks") && said.contains("`flaz flush`"),
        "{said}"
    );
    assert!(!said.contains("write-back requires"), "{said}");
    let said = serve(&scratch, &cache, "--mode write-back --after-crash cold").fails();
    assert!(said.contains("write-back requires"), "{said}");
    Program::flaz()
        .arg("flush")
        .arg(&cache.path)
        .arg("--state-dir")
        .arg(scratch.state_dir())
        .ok();
    Server::start(&scratch, &cache, "--after-crash cold").stop();
}

fn scratch_log(scratch: &Scratch) -> String {
    std::fs::read_to_string(scratch.image("serve.log")).unwrap_or_default()
}

#[test]
fn a_rolled_back_cache_file_starts_cold() {
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", 64 << 20);
    let cache = Cache::create(&scratch, &origin, &CacheSpec::default());
    Server::start(&scratch, &cache, "").stop();
    let copy = scratch.image("copy.img");
    let cp = |from: &std::path::Path, to: &std::path::Path| {
        Program::new("cp").words("--sparse=always").arg(from).arg(to).ok();
    };
    cp(&cache.path, &copy);
    let server = Server::start(&scratch, &cache, "");
    assert!(server.started_warm());
    server.stop();
    cp(&copy, &cache.path);
    let server = Server::start(&scratch, &cache, "");
    assert!(!server.started_warm());
    assert!(
        server
            .log()
            .contains("holds an older state of the cache than this host last saw"),
        "{}",
        server.log()
    );
    server.stop();
    let server = Server::start(&scratch, &cache, "");
    assert!(server.started_warm());
    server.stop();
    cache.check();
}
