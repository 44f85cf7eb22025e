//! Real file systems: nbdfuse makes the export a file, the loop driver makes that a block device. A tree of real files
//! is copied to it, compared, compared again after restarts, and finally compared on the origin itself.

use std::path::Path;

use crate::support::disk::TOOLS as DISK_TOOLS;
use crate::support::{Cache, CacheSpec, Disk, Mount, Program, Scratch, Server, need};

/// Space for several copies of the tree; the minimum of mkfs.xfs is 300 MiB.
const ORIGIN_BYTES: u64 = 512 << 20;
/// Files that every Debian machine with a C compiler has.
const TREE: &str = "/usr/include";

struct FileSystem {
    name: &'static str,
    package: &'static str,
    make: &'static str,
    /// Checks without changing anything, and fails if something is wrong.
    check: &'static str,
}

const EXT4: FileSystem = FileSystem {
    name: "ext4",
    package: "e2fsprogs",
    make: "mkfs.ext4 -q -F",
    check: "e2fsck -f -n",
};
const XFS: FileSystem = FileSystem {
    name: "xfs",
    package: "xfsprogs",
    make: "mkfs.xfs -q -f",
    check: "xfs_repair -n",
};

/// Runs `program` with `words` on the disk.
fn on(disk: &Disk, command: &str) {
    let (program, words) = command.split_once(' ').expect("a program and its options");
    Program::new(program).words(words).arg(disk.device()).ok();
}

fn assert_same_tree(mount: &Mount) {
    Program::new("diff")
        .words("--recursive --no-dereference --brief")
        .arg(TREE)
        .arg(mount.path.join("tree"))
        .ok();
}

/// Checks the file system on `disk`, mounts it and compares the tree.
fn look_at(scratch: &Scratch, disk: &Disk, kind: &FileSystem) {
    on(disk, kind.check);
    let mount = Mount::new(scratch, disk.device());
    assert_same_tree(&mount);
    mount.unmount();
}

fn tree_survives(kind: &FileSystem, codec: &'static str) {
    let maker = kind.make.split(' ').next().expect("a program");
    if !(need::tools(DISK_TOOLS) && need::tools(&[(maker, kind.package)]) && need::mounts(kind.name)) {
        return;
    }
    assert!(Path::new(TREE).is_dir(), "{TREE} is missing: install libc6-dev");
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
    let cache = Cache::create(
        &scratch,
        &origin,
        &CacheSpec {
            size: 128 << 20,
            codec,
            ..CacheSpec::default()
        },
    );
    let server = Server::start(&scratch, &cache, "");
    let disk = Disk::attach(&scratch, &server);
    on(&disk, kind.make);
    let mount = Mount::new(&scratch, disk.device());
    Program::new("cp")
        .words("--archive --no-target-directory")
        .arg(TREE)
        .arg(mount.path.join("tree"))
        .ok();
    // Changes: names, holes, a file rewritten in place, a removed file whose blocks are reused.
    let churn = "cp -a tree again && rm -r again && truncate -s 3M hole && dd if=/dev/urandom of=rewritten bs=1M count=4 \
         status=none && dd if=/dev/zero of=rewritten bs=4k seek=100 count=300 conv=notrunc,fsync status=none && sync -f .";
    Program::new("sh")
        .arg("-ec")
        .arg(format!("cd '{}' && {churn}", mount.path.display()))
        .ok();
    let sum_before = sum_of(&mount);
    mount.unmount();
    look_at(&scratch, &disk, kind);
    disk.detach();
    server.stop();
    cache.check();

    // From a warm cache, through new caches of the kernel.
    let server = Server::start(&scratch, &cache, "");
    let disk = Disk::attach(&scratch, &server);
    look_at(&scratch, &disk, kind);
    let mount = Mount::new(&scratch, disk.device());
    assert_eq!(sum_of(&mount), sum_before);
    mount.unmount();
    disk.detach();
    assert!(server.started_warm());
    assert!(server.live("/lookups/hits") > 0, "no hits after a warm start");
    server.stop();
    cache.check();

    // Without the cache: the origin alone has all data.
    let apart = Scratch::new();
    let empty = Cache::create(&apart, &origin, &CacheSpec::default());
    let server = Server::start(&apart, &empty, "--mode pass-through");
    let disk = Disk::attach(&apart, &server);
    look_at(&apart, &disk, kind);
    disk.detach();
    server.stop();
}

fn sum_of(mount: &Mount) -> String {
    Program::new("sha256sum")
        .arg(mount.path.join("rewritten"))
        .arg(mount.path.join("hole"))
        .ok()
}

#[test]
fn ext4_on_lz4() {
    tree_survives(&EXT4, "lz4");
}

#[test]
fn xfs_on_lz4() {
    tree_survives(&XFS, "lz4");
}

#[test]
fn ext4_on_zstd() {
    tree_survives(&EXT4, "zstd:1");
}
