//! Clients of other projects against the server: what they show, copy and verify.

mod support;

use std::fs;
use std::path::Path;

use flaz_nbd::Export;
use support::tools::{failure, have, output};
use support::{MIB, Remote};

/// A file of `len` bytes with data, holes, and zeroes that are written out.
fn image(path: &Path, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (number, block) in bytes.chunks_mut(4096).enumerate() {
        if number % 7 < 4 && number / 512 % 3 != 1 {
            for (at, byte) in block.iter_mut().enumerate() {
                *byte = (number * 31 + at * at / 7) as u8;
            }
        }
    }
    fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn nbdinfo_shows_the_export() {
    if !have("nbdinfo", "libnbd-bin") {
        return;
    }
    let export = Export::new(10 * MIB)
        .with_name("disk")
        .unwrap()
        .with_description("a test")
        .unwrap();
    let server = Remote::start(export);
    let text = output("nbdinfo", &[&server.uri()]);
    for line in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "description: a test",
        "export-size: 10485760",
        "base:allocation",
        "is_read_only: false",
        "can_cache: true",
        "can_df: true",
        "can_fast_zero: false",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "block_size_minimum: 1",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    let list = output("nbdinfo", &["--list", &server.uri()]);
    assert!(list.contains("export=\"disk\""), "{list}");
    let map = output("nbdinfo", &["--map", &server.uri()]);
    assert!(map.contains("10485760") && map.contains("hole,zero"), "{map}");
    assert_eq!(output("nbdinfo", &["--size", &server.uri()]).trim(), "10485760");

    let read_only = Remote::start(Export::new(MIB).read_only(true).fast_zero(true));
    let text = output("nbdinfo", &[&read_only.uri()]);
    assert!(
        text.contains("is_read_only: true") && text.contains("can_zero: false"),
        "{text}"
    );
}

#[test]
fn nbdcopy_copies_both_ways() {
    if !have("nbdcopy", "libnbd-bin") {
        return;
    }
    let len = 40 * MIB as usize + 512;
    let server = Remote::start(Export::new(len as u64));
    let (from, to) = (server.dir.path().join("from"), server.dir.path().join("to"));
    let bytes = image(&from, len);
    output("nbdcopy", &["--flush", from.to_str().unwrap(), &server.uri()]);
    output("nbdcopy", &[&server.uri(), to.to_str().unwrap()]);
    assert!(fs::read(&to).unwrap() == bytes);
    let counted = server.counters.snapshot();
    assert!(
        counted.connections_total >= 4,
        "several connections were used: {counted:?}"
    );
    assert_eq!(
        (counted.errors, counted.refused, counted.connections_failed),
        (0, 0, 0)
    );
    // From server to server, with requests far larger than the receive buffer.
    let second = Remote::start(Export::new(len as u64));
    output(
        "nbdcopy",
        &[
            "--request-size=33554432",
            "--connections=1",
            &server.uri(),
            &second.uri(),
        ],
    );
    fs::remove_file(&to).unwrap();
    output("nbdcopy", &["--synchronous", &second.uri(), to.to_str().unwrap()]);
    assert!(fs::read(&to).unwrap() == bytes);
}

#[test]
fn libnbd_commands_return_correct_data() {
    if !have("nbdsh", "python3-libnbd") {
        return;
    }
    let server = Remote::start(Export::new(8 * MIB).with_name("disk").unwrap());
    let script = r#"
import errno, os
def fails(number, call, *arguments):
    try:
        call(*arguments)
    except nbd.Error as error:
        assert error.errnum == number, error
    else:
        assert False, "no error"

def check(h):
    h.pwrite(b"abc" * 1000, 5000, nbd.CMD_FLAG_FUA)
    assert h.pread(3000, 5000) == b"abc" * 1000
    if h.get_structured_replies_negotiated():
        chunks = []
        def chunk(buffer, offset, kind, error):
            chunks.append((bytes(buffer), offset, kind))
        h.pread_structured(3000, 5000, chunk, nbd.CMD_FLAG_DF)
        assert chunks == [(b"abc" * 1000, 5000, nbd.READ_DATA)], chunks
    h.zero(1000, 5000, nbd.CMD_FLAG_NO_HOLE)
    assert h.pread(1003, 5000) == bytes(1000) + b"bca"
    h.trim(4096, 4096)
    h.cache(4096, 0)
    h.flush()
    assert h.pread(h.get_size(), 0)[:5000] == bytes(5000)
    # Without libnbd's own checks.
    h.set_strict_mode(0)
    fails(errno.EINVAL, h.pread, 512, h.get_size())
    fails(errno.ENOSPC, h.pwrite, bytes(512), h.get_size())
    fails(errno.ENOSPC, h.zero, 512, h.get_size())
    fails(errno.EINVAL, h.trim, 512, h.get_size())
    fails(errno.EINVAL, h.zero, 512, 0, nbd.CMD_FLAG_FAST_ZERO)
    fails(errno.EINVAL, h.pread, 512, 0, nbd.CMD_FLAG_REQ_ONE)
    fails(errno.EINVAL, h.cache, 512, 0, 1 << 15)
    assert h.pread(3, 6000) == bytes(3)

for structured in (False, True):
    for name in ("", "disk"):
        h = nbd.NBD()
        h.set_request_structured_replies(structured)
        h.set_export_name(name)
        h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
        h.connect_unix(os.environ["FLAZ_SOCKET"])
        check(h)
        if structured:
            seen = []
            h.pwrite(b"x", 3 << 20)
            def extents(context, offset, entries, error):
                assert context == "base:allocation"
                seen.extend(entries)
            h.block_status(h.get_size(), 0, extents)
            assert sum(seen[::2]) == h.get_size(), seen
            assert 3 in seen[1::2] and 0 in seen[1::2], seen
            del seen[:]
            h.block_status(h.get_size(), 0, extents, nbd.CMD_FLAG_REQ_ONE)
            assert len(seen) == 2, seen
        h.shutdown()

# An export that does not exist; a negotiation by hand; giving up.
h = nbd.NBD()
h.set_export_name("other")
fails(errno.ENOENT, h.connect_unix, os.environ["FLAZ_SOCKET"])
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_unix(os.environ["FLAZ_SOCKET"])
names = []
assert h.opt_list(lambda name, description: names.append(name)) == 1 and names == ["disk"], names
contexts = []
assert h.opt_list_meta_context(lambda name: contexts.append(name)) == 1, contexts
assert contexts == ["base:allocation"]
h.opt_info()
assert h.get_size() == 8 << 20
h.opt_abort()

# TLS is not there, and the client is told.
if nbd.NBD().supports_tls():
    h = nbd.NBD()
    h.set_tls(nbd.TLS_REQUIRE)
    fails(errno.ENOTSUP, h.connect_unix, os.environ["FLAZ_SOCKET"])

# A flush on one connection covers the others; what one writes the other reads.
a, b = nbd.NBD(), nbd.NBD()
a.connect_unix(os.environ["FLAZ_SOCKET"])
b.connect_unix(os.environ["FLAZ_SOCKET"])
assert a.can_multi_conn()
a.pwrite(b"across", 77)
b.flush()
assert b.pread(6, 77) == b"across"
"#;
    let socket = format!("FLAZ_SOCKET={}", server.dir.path().join("s").display());
    // Debian's python3, which has the module, and not another one in PATH.
    let path = "PATH=/usr/bin:/bin:/usr/local/bin";
    output("env", &[&socket, path, "nbdsh", "-n", "-c", script]);
    assert_eq!(server.counters.snapshot().connections_failed, 0);
}

#[test]
fn qemu_io_writes_and_verifies() {
    if !have("qemu-io", "qemu-utils") {
        return;
    }
    let server = Remote::start(Export::new(64 * MIB));
    let text = output(
        "qemu-io",
        &[
            "-f",
            "raw",
            &server.uri(),
            "-c",
            "write -P 0xab 0 1M",
            "-c",
            "write -P 0xcd -f 1000k 2M",
            "-c",
            "read -P 0xab 0 1000k",
            "-c",
            "read -P 0xcd 1000k 2M",
            "-c",
            "aio_write -P 0x11 32M 16M",
            "-c",
            "aio_write -P 0x22 48M 16M",
            "-c",
            "aio_flush",
            "-c",
            "read -P 0x11 32M 16M",
            "-c",
            "read -P 0x22 48M 16M",
            "-c",
            "write -z 33M 1M",
            "-c",
            "write -z -u 34M 1M",
            "-c",
            "discard 35M 1M",
            "-c",
            "read -P 0 33M 2M",
            "-c",
            "flush",
            "-c",
            "map",
        ],
    );
    assert!(!text.to_lowercase().contains("fail"), "{text}");
    assert_eq!(text.matches("wrote ").count(), 6, "{text}");
    // fio detects wrong data.
    let text = failure(
        "qemu-io",
        &["-f", "raw", &server.uri(), "-c", "read -P 0xaa 0 1M"],
    );
    assert!(text.contains("Pattern verification failed"), "{text}");
}

#[test]
fn qemu_img_converts_and_compares() {
    if !have("qemu-img", "qemu-utils") {
        return;
    }
    let len = 24 * MIB as usize;
    let server = Remote::start(Export::new(len as u64));
    let file = |name: &str| server.dir.path().join(name).to_str().unwrap().to_owned();
    image(Path::new(&file("from")), len);
    let uri = server.uri();
    output(
        "qemu-img",
        &["convert", "-n", "-f", "raw", "-O", "raw", &file("from"), &uri],
    );
    let same = output(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", &file("from"), &uri],
    );
    assert!(same.contains("identical"), "{same}");
    output(
        "qemu-img",
        &["convert", "-f", "raw", "-O", "qcow2", &uri, &file("to.qcow2")],
    );
    let same = output(
        "qemu-img",
        &[
            "compare",
            "-f",
            "raw",
            "-F",
            "qcow2",
            &file("from"),
            &file("to.qcow2"),
        ],
    );
    assert!(same.contains("identical"), "{same}");
    let map = output("qemu-img", &["map", "-f", "raw", "--output=json", &uri]);
    assert!(
        map.contains("\"zero\": true") && map.contains("\"data\": true"),
        "{map}"
    );
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !have("fio", "fio") {
        return;
    }
    let server = Remote::start(Export::new(64 * MIB));
    let help = output("fio", &["--enghelp"]);
    if !help.contains("nbd") {
        println!("skipped: this fio has no nbd engine");
        return;
    }
    let uri = format!("--uri={}", server.uri());
    for (name, rw, sizes, depth) in [
        ("--name=small", "--rw=randrw", "--bsrange=512-16k", "--iodepth=32"),
        (
            "--name=large",
            "--rw=randwrite",
            "--bsrange=64k-4m",
            "--iodepth=16",
        ),
        ("--name=trim", "--rw=randtrimwrite", "--bs=4k", "--iodepth=8"),
    ] {
        let mut arguments = vec![
            name,
            "--ioengine=nbd",
            &uri,
            rw,
            sizes,
            depth,
            "--size=48m",
            "--randseed=7",
            "--fsync=64",
        ];
        if name != "--name=trim" {
            // Without this option fio leaves files in its working directory.
            arguments.extend([
                "--verify=crc32c",
                "--verify_fatal=1",
                "--do_verify=1",
                "--verify_state_save=0",
            ]);
        }
        let text = output("fio", &arguments);
        assert!(text.contains("err= 0"), "{text}");
    }
    let counted = server.counters.snapshot();
    assert_eq!(
        (counted.errors, counted.refused, counted.connections_failed),
        (0, 0, 0),
        "{counted:?}"
    );
    assert!(counted.flushes > 0 && counted.trims > 0, "{counted:?}");
}
