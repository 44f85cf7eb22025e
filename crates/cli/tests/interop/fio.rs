//! Random writes and reads by fio, every block with its own checksum, in every mode and codec.

use std::path::Path;

use crate::support::{Cache, CacheSpec, Program, Scratch, Server, need};

const TOOLS: &[(&str, &str)] = &[("fio", "fio")];
const JOB_BYTES: u64 = 12 << 20;
const JOBS: u64 = 3;
const ORIGIN_BYTES: u64 = JOB_BYTES * JOBS;

/// fio with the options that determine what is written where: the same over NBD and on the origin. Each job writes its
/// own area, in blocks from a sector to 128 KiB, half of it compressible.
fn workload(seed: u64) -> Program {
    Program::new("fio")
        .words("--name=blocks --rw=randwrite --verify=crc32c --verify_fatal=1 --verify_state_save=0")
        .words("--randrepeat=1 --allrandrepeat=1 --norandommap=0")
        .words("--bssplit=512/10:4k/60:16k/20:128k/10 --blockalign=512 --buffer_compress_percentage=50")
        .words(&format!(
            "--refill_buffers --size={JOB_BYTES} --numjobs={JOBS} --offset_increment={JOB_BYTES}"
        ))
        .words(&format!("--randseed={seed} --group_reporting"))
}

fn over_nbd(program: Program, server: &Server) -> Program {
    program
        .words("--ioengine=nbd --iodepth=16")
        .arg(format!("--uri={}", server.uri()))
}

fn on_file(program: Program, file: &Path) -> Program {
    program
        .words("--ioengine=psync")
        .arg(format!("--filename={}", file.display()))
}

/// Writes and verifies over NBD, verifies once more, and verifies on the origin itself.
fn write_and_verify(codec: &'static str, mode: &str, options: &str, seed: u64) {
    if !need::tools(TOOLS) {
        return;
    }
    let scratch = Scratch::new();
    let origin = scratch.sparse("origin.img", ORIGIN_BYTES);
    let cache = Cache::create(
        &scratch,
        &origin,
        &CacheSpec {
            codec,
            // More than threads, for servers with several threads.
            shards: 4,
            ..CacheSpec::default()
        },
    );
    let server = Server::start(&scratch, &cache, &format!("--mode {mode} {options}"));
    over_nbd(workload(seed), &server)
        .words("--do_verify=1 --end_fsync=1")
        .ok();
    if mode == "write-back" {
        server.flush();
    }
    on_file(workload(seed), &origin).arg("--verify_only").ok();
    over_nbd(workload(seed), &server).arg("--verify_only").ok();
    assert_eq!(server.live("/errors/checksum_failures"), 0);
    server.stop();
    cache.check();
}

#[test]
fn write_through_lz4() {
    write_and_verify("lz4", "write-through", "", 31);
}

#[test]
fn write_around_lz4() {
    write_and_verify("lz4", "write-around", "", 32);
}

/// The origin is checked after `flaz flush`.
#[test]
fn write_back_lz4() {
    write_and_verify("lz4", "write-back", "", 39);
}

#[test]
fn write_back_zstd_on_three_threads() {
    write_and_verify("zstd:1", "write-back", "--threads 3 --dirty-limit 20", 40);
}

#[test]
fn pass_through_lz4() {
    write_and_verify("lz4", "pass-through", "", 33);
}

#[test]
fn write_through_zstd() {
    write_and_verify("zstd:3", "write-through", "--policy fifo", 34);
}

#[test]
fn write_through_zlib() {
    write_and_verify("zlib", "write-through", "--policy second-touch", 35);
}

#[test]
fn write_through_lzo() {
    write_and_verify("lzo", "write-through", "--threads 1", 36);
}

#[test]
fn write_through_no_codec() {
    write_and_verify("none", "write-through", "", 37);
}

/// Three threads: two of three requests of a connection are for another thread.
#[test]
fn write_through_on_three_threads() {
    write_and_verify("lz4", "write-through", "--threads 3", 38);
}
