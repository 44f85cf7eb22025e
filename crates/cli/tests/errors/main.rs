//! Every command with invalid input: the message and the exit status of the real program.
//!
//! [`Ran::refused`] checks the properties of every failure: standard output is empty, and the message begins with
//! `flaz: `, has no colours, and is not a panic.
//!
//! The helpers of all commands are at the top of this file.

mod advice;
mod create;
mod resize;
mod serve;
mod top;
mod volume;
mod volumes;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use flaz_cli::control::{Asker, ControlHandler, Reply, Request, Server};
use flaz_cli::host;
use flaz_cli::report::ShrinkProgress;

const SIZE: u64 = 32 << 20;
const FAILURE: i32 = 1;
const USAGE: i32 = 2;

struct Scratch {
    folder: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a command line in the scratch directory, which also contains its runtime directory.
    fn run(&self, line: &str) -> Ran {
        let output = self.command(line).output().unwrap();
        Ran {
            line: line.to_owned(),
            output,
        }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flaz"));
        command
            .args(line.split_ascii_whitespace())
            .current_dir(self.folder.path())
            .env("FLAZ_RUNTIME_DIR", self.path("run"))
            .env("STATE_DIRECTORY", self.path("state"))
            .env_remove("FLAZ_LOG")
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null());
        command
    }

    /// Serves a cache. The caller stops it.
    fn served(&self, cache: impl AsRef<OsStr>) -> Served {
        self.served_by(self.command("serve").arg(cache))
    }

    fn served_by(&self, command: &mut Command) -> Served {
        let log = self.path("log");
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        Served { child, line, log }
    }

    /// A sparse file of 32 MiB.
    fn file(&self, name: &str) -> File {
        let file = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(self.path(name))
            .unwrap();
        file.set_len(SIZE).unwrap();
        file
    }
}

/// A server that has said that it is ready. Its log goes to a file.
struct Served {
    child: std::process::Child,
    line: String,
    log: PathBuf,
}

impl Served {
    /// Waits for its end, and returns its log.
    fn ended(mut self) -> String {
        let status = self.child.wait().unwrap();
        let log = fs::read_to_string(&self.log).unwrap();
        assert!(status.success(), "{log}");
        log
    }
}

/// A test that fails leaves no server behind.
impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Ran {
    line: String,
    output: Output,
}

impl Ran {
    fn out(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).unwrap()
    }

    fn err(&self) -> String {
        String::from_utf8(self.output.stderr.clone()).unwrap()
    }

    /// It failed with this status and its message contains all of these.
    #[track_caller]
    fn refused(&self, status: i32, parts: &[&str]) {
        let (out, err) = (self.out(), self.err());
        let line = &self.line;
        assert_eq!(self.output.status.code(), Some(status), "flaz {line}\n{out}{err}");
        assert_eq!(out, "", "flaz {line}");
        assert!(err.starts_with("flaz: "), "flaz {line}\n{err}");
        for part in parts {
            assert!(err.contains(part), "flaz {line}\nno '{part}' in\n{err}");
        }
        for bad in [
            "panicked",
            "backtrace",
            "internal error",
            "\x1b",
            "Error {",
            "Os {",
        ] {
            assert!(!err.contains(bad), "flaz {line}\n'{bad}' in\n{err}");
        }
    }

    #[track_caller]
    fn succeeded(&self) -> String {
        assert_eq!(
            self.output.status.code(),
            Some(0),
            "flaz {}\n{}",
            self.line,
            self.err()
        );
        self.out()
    }
}

#[test]
fn no_command_and_unknown_ones() {
    let scratch = Scratch::new();
    let nothing = scratch.run("");
    assert_eq!(nothing.output.status.code(), Some(USAGE));
    assert!(nothing.err().contains("Usage: flaz"), "{}", nothing.err());
    scratch
        .run("fly")
        .refused(USAGE, &["unrecognized subcommand 'fly'"]);
    scratch.run("stauts x").refused(USAGE, &["'status'"]);
    // Commands of another level, and words of other programs.
    let detect = scratch.run("detect /mnt");
    detect.refused(
        USAGE,
        &["unrecognized subcommand 'detect'", "'flaz bench detect'"],
    );
    assert!(!detect.err().contains("detach"), "{}", detect.err());
    scratch.run("bench status x").refused(USAGE, &["'flaz status'"]);
    scratch.run("start x").refused(USAGE, &["'flaz serve'"]);
    scratch
        .run("help detect")
        .refused(USAGE, &["'flaz bench detect'"]);
    scratch
        .run("status --jsno x")
        .refused(USAGE, &["--jsno", "--json"]);
    scratch
        .run("-v -q status x")
        .refused(USAGE, &["cannot be used with"]);
}

#[test]
fn help_and_version_succeed() {
    let scratch = Scratch::new();
    assert!(scratch.run("--version").succeeded().starts_with("flaz "));
    assert!(
        scratch
            .run("--help")
            .succeeded()
            .contains("Exit status: 0 success, 1 failure, 2 invalid usage")
    );
    for (words, same) in [
        ("help", "--help"),
        ("help status", "status --help"),
        ("help bench run", "bench run --help"),
        ("bench help run", "bench run --help"),
    ] {
        assert_eq!(
            scratch.run(words).succeeded(),
            scratch.run(same).succeeded(),
            "{words}"
        );
    }
    for command in [
        "create",
        "serve",
        "status",
        "top",
        "advise",
        "set",
        "flush",
        "detach",
        "stop",
        "volume resize",
        "remove-device",
        "check",
        "dump",
        "demo",
        "bench",
        "study",
        "lab",
        "lab ssd",
        "lab serve",
        "lab replay",
    ] {
        let help = scratch.run(&format!("{command} --help")).succeeded();
        assert!(help.contains("Example"), "{help}");
        assert!(help.contains("Usage: flaz"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 120), "{help}");
    }
}

#[test]
fn commands_without_a_daemon() {
    let scratch = Scratch::new();
    for command in ["status", "stop", "set mode=write-around"] {
        scratch
            .run(&format!("{command} --control none.sock"))
            .refused(FAILURE, &["no daemon listens on none.sock", "flaz serve"]);
    }
    // A socket left behind by a killed daemon, and a file that is not a socket.
    drop(UnixListener::bind(scratch.path("stale.sock")).unwrap());
    scratch
        .run("status --control stale.sock")
        .refused(FAILURE, &["no daemon listens on stale.sock"]);
    scratch.file("file");
    scratch.run("status --control file").refused(FAILURE, &["file"]);
    scratch.run("status").refused(USAGE, &["CACHE", "--control"]);
    scratch.run("stop").refused(USAGE, &["CACHE", "--control"]);
    scratch.run("status c --watch 0").refused(USAGE, &["0.1 seconds"]);
    scratch
        .run("status c --watch soon")
        .refused(USAGE, &["number of seconds"]);
    scratch
        .run("stop c --timeout 1e9")
        .refused(USAGE, &["to one year"]);
}

#[test]
fn set_with_invalid_settings() {
    let scratch = Scratch::new();
    scratch.run("set").refused(USAGE, &["KEY=VALUE"]);
    scratch.run("set c").refused(USAGE, &["at least one KEY=VALUE"]);
    scratch.run("set --control s").refused(USAGE, &["KEY=VALUE"]);
    scratch
        .run("set c mode")
        .refused(USAGE, &["'mode': expected KEY=VALUE"]);
    scratch.run("set c mode=fast").refused(
        USAGE,
        &[
            "mode=fast",
            "write-through, write-back, write-around, pass-through",
        ],
    );
    let twice = scratch.run("set c mode=fast").err();
    assert_eq!(twice.matches("write-through").count(), 1, "{twice}");
    scratch
        .run("set c policy=lru")
        .refused(USAGE, &["s3-fifo, second-touch, fifo"]);
    scratch
        .run("set c admission=lru")
        .refused(USAGE, &["admission=lru"]);
    scratch.run("set c codec=x").refused(USAGE, &["codec"]);
    scratch
        .run("set c threads=2")
        .refused(USAGE, &["'threads' cannot be set", "keys are mode"]);
    scratch
        .run("set c mode=write-around mode=pass-through")
        .refused(USAGE, &["'mode' is given twice"]);
    scratch
        .run("set c sequential-cutoff=-1")
        .refused(USAGE, &["negative"]);
}

/// A daemon that refuses everything except status.
struct Fake;

impl ControlHandler for Fake {
    fn handle(&self, request: Request, _: Asker<'_>) -> Reply {
        match request {
            Request::Status {} => Reply::Status(Box::new(serde_json::from_str(STATUS).unwrap())),
            Request::Identify {} => Reply::Refused("of no file".to_owned()),
            Request::Advise {} => Reply::Refused("nothing was read".to_owned()),
            Request::Set(_) | Request::SetUntilRestart(_) => {
                Reply::Refused("the cache device failed: settings cannot be changed".to_owned())
            }
            Request::GiveSpace { .. } => Reply::Gives { bytes: 0 },
            Request::VolumeResize {} => Reply::Refused("the origin has shrunk".to_owned()),
            Request::Flush {} | Request::Detach { .. } => Reply::Refused("the origin has no room".to_owned()),
            Request::Resize { .. } | Request::MakeRoom { .. } => Reply::Shrinking(ShrinkProgress {
                regions_left: 7,
                dirty_bytes_left: 0,
            }),
            Request::ContinueResize {} => Reply::Refused("it was called off".to_owned()),
            Request::Stop { .. } => Reply::Refused("the cache was not closed cleanly: no space".to_owned()),
        }
    }
}

const STATUS: &str = r#"{"schema":1,"state":"running",
    "cache":{"path":"/c","uuid":"00000000-0000-0000-0000-000000000001","format_version":1,"size_bytes":1,
             "data_bytes":1,"extent_bytes":65536,"region_bytes":1048576,"regions":1,"shards":1},
    "origin":{"path":"/o","size_bytes":4096}}"#;

#[test]
fn a_refusal_of_the_daemon_is_reported() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch.path("s"), Arc::new(Fake)).unwrap();
    assert!(
        scratch
            .run("status --control s")
            .succeeded()
            .starts_with("Health        healthy\nState         running\n")
    );
    scratch
        .run("set --control s mode=write-around")
        .refused(FAILURE, &["the daemon reports: the cache device failed"]);
    scratch
        .run("volume resize --control s")
        .refused(FAILURE, &["the daemon reports: the origin has shrunk"]);
    scratch
        .run("stop --control s")
        .refused(FAILURE, &["not closed cleanly: no space"]);
    scratch
        .run("resize --control s")
        .refused(FAILURE, &["the daemon reports: it was called off"]);
    server.close();
}

/// The JSON that a command prints.
fn json(scratch: &Scratch, line: &str) -> serde_json::Value {
    serde_json::from_str(&scratch.run(line).succeeded()).unwrap()
}

/// It answers every request with this refusal.
struct Refusing(&'static str);

impl ControlHandler for Refusing {
    fn handle(&self, _: Request, _: Asker<'_>) -> Reply {
        Reply::Refused(self.0.to_owned())
    }
}

#[test]
fn status_beside_a_start_is_that_of_the_superblock() {
    let scratch = Scratch::new();
    scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    for (refusal, state, level, warning) in [
        (
            host::STILL_STARTING,
            "starting",
            "warning",
            "the cache is starting",
        ),
        (
            "the origin is locked",
            "new",
            "failed",
            "the last start failed: the origin is locked",
        ),
    ] {
        let server = Server::start(&scratch.path("s"), Arc::new(Refusing(refusal))).unwrap();
        let status = json(&scratch, "status cache --control s --json");
        assert_eq!(
            (&status["state"], &status["health"]["level"]),
            (&state.into(), &level.into()),
            "{status:#}"
        );
        let details = scratch.run("status cache --control s -v").succeeded();
        assert!(details.contains(warning), "{details}");
        // There is no superblock to read.
        scratch.run("status --control s").refused(FAILURE, &[refusal]);
        scratch
            .run("status none --control s")
            .refused(FAILURE, &[refusal]);
        server.close();
    }
}

/// It is from before an update, and does not report dirty blocks.
struct Older;

impl ControlHandler for Older {
    fn handle(&self, _: Request, _: Asker<'_>) -> Reply {
        Reply::Done
    }
}

#[test]
fn an_older_daemon_can_be_stopped() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch.path("s"), Arc::new(Older)).unwrap();
    let told = scratch.run("stop --control s").succeeded();
    assert!(told.starts_with("stopped cleanly"), "{told}");
    server.close();
}

#[test]
fn a_closed_pipe_is_not_a_failure() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch.path("s"), Arc::new(Fake)).unwrap();
    for line in [
        "status --control s",
        "status --control s --json",
        "status --control s --watch 0.1",
        "top --interval 0.1",
        "--help",
        "generate completions bash",
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = scratch
            .command(line)
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "flaz {line}");
        assert_eq!(output.status.code(), Some(0), "flaz {line}");
    }
    server.close();
}

#[test]
fn a_full_disk_behind_standard_output_is_a_failure() {
    let scratch = Scratch::new();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = scratch
        .command("generate completions bash")
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(FAILURE), "{err}");
    assert!(
        err.contains("cannot write to standard output: No space left"),
        "{err}"
    );
}

#[test]
fn an_invalid_log_filter_is_reported() {
    let scratch = Scratch::new();
    let output = scratch
        .command("status --control none")
        .env("FLAZ_LOG", "a=b=c")
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("FLAZ_LOG='a=b=c' is invalid"), "{err}");
    assert!(err.contains("no daemon listens"), "{err}");
}

/// A command never writes to its input, even if another path names the same file.
#[test]
fn an_output_that_is_an_input_is_refused() {
    let scratch = Scratch::new();
    scratch.file("junk");
    fs::hard_link(scratch.path("junk"), scratch.path("same")).unwrap();
    std::os::unix::fs::symlink("junk", scratch.path("link")).unwrap();
    for output in ["junk", "./junk", "same", "link"] {
        scratch
            .run(&format!("study junk --distribution {output}"))
            .refused(
                USAGE,
                &["is also an input file (junk)", "choose another output file"],
            );
    }
    let table = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../bench/report/tests/data/sf1222-throughput.csv"
    );
    let table = fs::read(table).unwrap();
    fs::create_dir(scratch.path("runs")).unwrap();
    for name in ["cells.csv", "runs/1.json"] {
        fs::write(scratch.path(name), &table).unwrap();
    }
    for (line, input) in [
        ("cells.csv --runs 10 --output cells.csv", "cells.csv"),
        ("cells.csv --runs 10 --csv-dir .", "cells.csv"),
        ("none --baseline cells.csv --output ./cells.csv", "cells.csv"),
        ("runs --output runs/1.json", "runs/1.json"),
    ] {
        scratch
            .run(&format!("bench report {line}"))
            .refused(USAGE, &[&format!("is also an input file ({input})")]);
    }
    scratch
        .run("bench report none --svg-dir . --csv-dir . --output none/")
        .refused(USAGE, &["none/ does not end in a file name"]);
    fs::write(
        scratch.path("d.json"),
        "{\"schema\":\"flaz-distribution/1\",\"source\":\"home\",\"measured_bytes\":81920,\"duplicate_percent\":0,\"sizes\":[{\
         \"chunk_bytes\":4096,\"zero_chunks\":5,\"rows\":[{\"lz4_percent\":30,\"zstd_percent\":45,\"chunks\":15}]}]}",
    )
    .unwrap();
    scratch
        .run("bench data --family replay --distribution d.json --output d.json")
        .refused(USAGE, &["is also an input file (d.json)"]);
    scratch
        .run("demo --html page --json=./page")
        .refused(USAGE, &["./page: given for two outputs"]);
    assert_eq!(fs::read(scratch.path("cells.csv")).unwrap(), table);
    assert!(
        fs::read(scratch.path("junk"))
            .unwrap()
            .iter()
            .all(|byte| *byte == 0)
    );
}

#[test]
fn results_do_not_overwrite_a_served_cache_or_origin() {
    let scratch = Scratch::new();
    scratch.file("origin");
    fs::write(scratch.path("data"), [1; 100_000]).unwrap();
    scratch.run("create cache --size 32M --origin origin").succeeded();
    let mut server = scratch
        .command("serve cache")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(server.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    let refusals: Vec<_> = ["cache", "origin"]
        .into_iter()
        .flat_map(|place| {
            [
                scratch.run(&format!("bench data --size 1M --output {place}")),
                scratch.run(&format!("study data --distribution {place}")),
            ]
        })
        .collect();
    let stopped = scratch.run("stop cache");
    server.wait().unwrap();
    assert!(line.starts_with("ready: "), "{line}");
    for refusal in refusals {
        refusal.refused(
            FAILURE,
            &["is not free; nothing was written", "locked by another process"],
        );
    }
    stopped.succeeded();
    scratch.run("check cache").succeeded();
    assert_eq!(fs::metadata(scratch.path("origin")).unwrap().len(), SIZE);
    scratch
        .run("bench data --size 1M --output cache")
        .refused(FAILURE, &["flaz cache"]);
}

/// An argument that begins with a minus sign is a value, which is refused with what was expected instead.
#[test]
fn negative_values_are_refused_with_the_expected_range() {
    let scratch = Scratch::new();
    for (line, part) in [
        ("serve c --device-timeout -1", "0.1 seconds to one year, or 0"),
        ("serve c --sequential-cutoff -5", "'-5' is negative"),
        ("serve c --sequential-cutoff -5K", "'-5K' is negative"),
        ("serve c --threads -1", "a whole number from 1 to 1024"),
        ("create c --origin o --size -1", "'-1' is negative"),
        ("create c --origin o --size --force", "'--force' is not a size"),
        ("status c --watch -3", "0.1 seconds to one year"),
        ("stop c --timeout -1", "0.1 seconds to one year"),
        ("bench compare a b --delta -1", "from 0 to below 100"),
        ("bench compare a b --delta -1%", "from 0 to below 100"),
        ("bench data --seed -1", "a whole number of at least 0"),
        ("bench data --level -5%", "0 to 100"),
        ("bench run . --depth -1", "a whole number from 1 to 4096"),
        ("demo --skew -1", "a number from 0 to 3"),
    ] {
        scratch.run(line).refused(USAGE, &["invalid value '-", part]);
    }
}

#[test]
fn invalid_numbers_are_refused_with_the_bounds() {
    let scratch = Scratch::new();
    for (line, part) in [
        (
            "bench data --threads 0",
            "'0' for '--threads <N>': expected a whole number from 1 to 1024",
        ),
        ("study . --threads x", "expected a whole number from 1 to 1024"),
        ("study . --samples 1", "expected a whole number from 64 to"),
        (
            "bench compare a b --seed x",
            "'x' for '--seed <N>': expected a whole number of at least 0",
        ),
        (
            "bench data --seed 18446744073709551616",
            "expected a whole number from 0 to 18446744073709551615",
        ),
        ("bench detect . --rounds 1.5", "expected a whole number from"),
        ("bench run . --writers 0", "expected a whole number from 1 to 256"),
        ("demo --clients many", "expected a whole number from 1 to 64"),
    ] {
        scratch.run(line).refused(USAGE, &[part]);
    }
}

/// As in `flaz --help`: options that cannot be valid for any device are invalid usage.
#[test]
fn impossible_options_are_usage_errors() {
    let scratch = Scratch::new();
    scratch.file("origin");
    for (line, part) in [
        ("demo --size 1K", "--size: expected 8.00 MiB to"),
        ("demo --cache-size 1K", "--cache-size: expected 4.00 MiB to"),
        ("demo --codec none", "choose a codec that compresses"),
        (
            "create cache --origin origin --size 32M --region-size 64KiB",
            "region size is 65536, expected a power of two",
        ),
        (
            "create cache --origin origin --size 32M --shards 200",
            "fewer --shards",
        ),
    ] {
        scratch.run(line).refused(USAGE, &[part]);
        assert!(!scratch.path("cache").exists(), "{line}");
    }
    scratch
        .run("create cache --origin origin --size 1M")
        .refused(FAILURE, &["a larger cache device"]);
}

/// The system only reports that there is no such file; the message adds what was expected and what to do.
#[test]
fn missing_paths_are_reported_with_advice() {
    let scratch = Scratch::new();
    scratch.file("file");
    scratch.file("origin");
    scratch.run("create cache --size 32M --origin origin").succeeded();
    for command in ["serve", "status", "detach", "flush", "stop", "check"] {
        scratch.run(&format!("{command} none")).refused(
            FAILURE,
            &[
                "none: no such configuration (expected /etc/flaz/none.toml)",
                "no such cache device",
            ],
        );
        scratch.run(&format!("{command} ./none")).refused(
            FAILURE,
            &["none: no such cache device: connect it again, or correct the path"],
        );
        scratch.run(&format!("{command} .")).refused(
            FAILURE,
            &["expected a block device or a regular file, found a directory"],
        );
    }
    let nowhere = "a file or directory in the path does not exist";
    for (line, part) in [
        ("serve cache --nbd unix:none/x.sock", nowhere),
        ("bench compare none none", nowhere),
        ("bench claim none --claim write=1MB/s", nowhere),
        ("bench report none", nowhere),
        ("bench run --resume none", nowhere),
        ("bench run --campaign none", nowhere),
        ("bench data --family replay --distribution none", nowhere),
        ("study none", nowhere),
        ("bench report file/x", "a file is used as a directory in the path"),
        ("bench run --campaign .", "found a directory"),
    ] {
        scratch.run(line).refused(FAILURE, &[part]);
    }
    scratch
        .run("bench report file --output .")
        .refused(USAGE, &[". is a directory: expected a file"]);
}

#[test]
fn man_pages_and_completions() {
    let scratch = Scratch::new();
    let man = scratch.path("man");
    fs::create_dir(&man).unwrap();
    scratch.run("generate man man").succeeded();
    let page = fs::read_to_string(man.join("flaz-create.1")).unwrap();
    assert!(page.contains("region"), "{page}");
    assert!(Path::new(&man).join("flaz.1").exists());
    let status = fs::read_to_string(man.join("flaz-status.1")).unwrap();
    for term in ["Health", "Effective capacity", "Reclaimed", "same\\-filled"] {
        assert!(status.contains(term), "no '{term}' in {status}");
    }
    let names = fs::read_dir(&man)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    assert!(
        names
            .into_iter()
            .all(|name| !name.to_string_lossy().contains("help"))
    );
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            scratch
                .run(&format!("generate completions {shell}"))
                .succeeded()
                .contains("emulate-origin")
        );
    }
    scratch
        .run("generate man none")
        .refused(FAILURE, &["writing none/flaz", "the directory must exist"]);
    // An existing file of another program stays, and no page is written then.
    let (theirs, stale) = (man.join("flaz.1"), man.join("flaz-create.1"));
    fs::remove_file(&theirs).unwrap();
    fs::create_dir(&theirs).unwrap();
    fs::write(&stale, "of a version before").unwrap();
    scratch
        .run("generate man man")
        .refused(USAGE, &["flaz.1 is a directory: expected a file"]);
    assert_eq!(fs::read_to_string(&stale).unwrap(), "of a version before");
    fs::remove_dir(&theirs).unwrap();
    scratch.run("generate man man").succeeded();
    assert!(fs::read_to_string(&stale).unwrap().contains("region"));
    scratch.run("generate completions tcsh").refused(USAGE, &["bash"]);
}
