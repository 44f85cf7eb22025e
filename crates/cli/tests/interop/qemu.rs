//! qemu's block layer as a client: `qemu-io` patterns, `qemu-img convert` in both directions, a qcow2 image inside.

use std::path::Path;

use crate::support::{Cache, CacheSpec, Program, Scratch, Server, assert_same_content, need};

const TOOLS: &[(&str, &str)] = &[("qemu-io", "qemu-utils"), ("qemu-img", "qemu-utils")];
const ORIGIN_BYTES: u64 = 64 << 20;

/// Address in qemu's format.
fn address(server: &Server) -> String {
    format!("nbd:unix:{}", server.socket().display())
}

/// Runs `qemu-io` commands, one per line, and expects every pattern to match.
fn qemu_io(target: &str, commands: &str) {
    let text = Program::new("qemu-io")
        .words("-f raw")
        .arg(target)
        .input(commands)
        .ok();
    // Its exit status is 0 whatever its commands report.
    for bad in ["failed", "error", "invalid", "not found"] {
        assert!(!text.to_lowercase().contains(bad), "qemu-io:\n{text}");
    }
}

fn started(scratch: &Scratch, origin: &Path, mode: &str) -> (Cache, Server) {
    let cache = Cache::create(scratch, origin, &CacheSpec::default());
    let server = Server::start(scratch, &cache, &format!("--mode {mode}"));
    (cache, server)
}

const PATTERNS: &str = "\
write -P 0xab 0 1M
write -P 0xcd 1048064 1024
read -P 0xab 0 1048064
read -P 0xcd 1048064 1024
write -P 0x11 4095 2
read -P 0x11 4095 2
read -P 0xab 4097 100
write -f -P 0x22 2M 64k
read -P 0x22 2M 64k
write -z 2064k 8k
read -P 0x00 2064k 8k
read -P 0x22 2M 16k
write -z -u 2080k 4k
read -P 0x00 2080k 4k
discard 3M 1M
write -P 0x33 3145729 777
read -P 0x33 3145729 777
aio_write -P 0x41 8M 512k
aio_write -P 0x42 9M 512k
aio_write -P 0x43 10M 512k
aio_write -P 0x44 8912896 4k
aio_flush
read -P 0x41 8M 512k
read -P 0x42 9M 512k
read -P 0x43 10M 512k
read -P 0x44 8912896 4k
flush
read -P 0xab 0 4095
";

#[test]
fn patterns_of_qemu_io() {
    if !need::tools(TOOLS) {
        return;
    }
    for mode in ["write-through", "write-around"] {
        let scratch = Scratch::new();
        let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
        let (cache, server) = started(&scratch, &origin, mode);
        qemu_io(&address(&server), PATTERNS);
        // Again with cached data, and then on the origin itself.
        let reads: String = [
            "read -P 0xcd 1048064 1024",
            "read -P 0x22 2M 16k",
            "read -P 0x41 8M 512k",
        ]
        .join("\n")
            + "\n";
        qemu_io(&address(&server), &reads);
        qemu_io(&origin.to_string_lossy(), &reads);
        server.stop();
        cache.check();
    }
}

#[test]
fn convert_in_and_out() {
    if !need::tools(TOOLS) {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.filled("image.img", ORIGIN_BYTES, 21);
    let origin = scratch.filled("origin.img", ORIGIN_BYTES, 22);
    let (cache, server) = started(&scratch, &origin, "write-through");
    let convert = || Program::new("qemu-img").words("convert -W -m 8");
    convert()
        .words("-n -f raw -O raw")
        .arg(&image)
        .arg(address(&server))
        .ok();
    assert_same_content(&origin, &image);
    Program::new("qemu-img")
        .words("compare -f raw -F raw")
        .arg(&image)
        .arg(address(&server))
        .ok();
    let back = scratch.image("back.qcow2");
    convert()
        .words("-f raw -O qcow2")
        .arg(address(&server))
        .arg(&back)
        .ok();
    Program::new("qemu-img")
        .words("compare -f raw -F qcow2")
        .arg(&image)
        .arg(&back)
        .ok();
    server.stop();
    cache.check();
}

#[test]
fn a_qcow2_image_inside() {
    if !need::tools(TOOLS) {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.filled("image.img", ORIGIN_BYTES / 2, 23);
    let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
    let (cache, server) = started(&scratch, &origin, "write-through");
    let inside = address(&server);
    Program::new("qemu-img")
        .words("create -q -f qcow2")
        .arg(&inside)
        .arg((ORIGIN_BYTES / 2).to_string())
        .ok();
    Program::new("qemu-img")
        .words("convert -n -f raw -O qcow2")
        .arg(&image)
        .arg(&inside)
        .ok();
    Program::new("qemu-img").words("check -f qcow2").arg(&inside).ok();
    Program::new("qemu-img")
        .words("compare -f raw -F qcow2")
        .arg(&image)
        .arg(&inside)
        .ok();
    server.stop();
    // The origin is itself a qcow2 image.
    Program::new("qemu-img")
        .words("compare -f raw -F qcow2")
        .arg(&image)
        .arg(&origin)
        .ok();
    cache.check();
}
