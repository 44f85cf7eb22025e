//! `flaz demo` as a user runs it: small and short, interrupted, and with invalid input.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use flaz_random::Random;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longer than any test here takes on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A directory with compressible files, a working directory, and one for results.
struct Rig {
    folder: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        // In /tmp, because the paths of sockets must be short.
        let folder = tempfile::Builder::new()
            .prefix("fd")
            .tempdir_in("/tmp")
            .expect("a folder");
        for name in ["data", "work", "out"] {
            fs::create_dir(folder.path().join(name)).expect("a folder in it");
        }
        // Half noise, half words: about 2:1 for any codec.
        let mut random = Random::new(1);
        for file in 0..96 {
            let bytes: Vec<u8> = (0..131_072usize)
                .map(|at| {
                    if at / 16 % 2 == 0 {
                        random.bits() as u8
                    } else {
                        b"the same old word"[at % 16]
                    }
                })
                .collect();
            fs::write(folder.path().join(format!("data/{file}")), bytes).expect("a file");
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn demo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flaz"));
        command
            .arg("demo")
            .arg("--data")
            .arg(self.path("data"))
            .arg("--dir")
            .arg(self.path("work"))
            .args(arguments)
            .current_dir(self.path("out"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// The working directory is empty, and no process uses it.
    fn assert_clean(&self) {
        let left: Vec<_> = fs::read_dir(self.path("work"))
            .expect("the folder")
            .flatten()
            .collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        let mut running = processes_with(&self.path("work"));
        // A killed process may stay visible for a moment.
        let until = Instant::now() + Duration::from_secs(5);
        while !running.is_empty() && Instant::now() < until {
            sleep(Duration::from_millis(20));
            running = processes_with(&self.path("work"));
        }
        assert!(running.is_empty(), "still running: {running:?}");
    }
}

/// Command lines of `flaz serve` processes that use files in `folder`.
fn processes_with(folder: &Path) -> Vec<String> {
    let folder = folder.as_os_str().as_bytes();
    let lines = fs::read_dir("/proc")
        .expect("procfs")
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| line.windows(folder.len()).any(|part| part == folder))
        .filter(|line| line.windows(5).any(|part| part == b"serve"))
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .collect()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("the child is there");
}

fn finish(mut child: Child) -> Output {
    let until = Instant::now() + PATIENCE;
    while child.try_wait().expect("waitable").is_none() {
        if Instant::now() > until {
            let _ = child.kill();
            panic!("the demo did not end");
        }
        sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("its output")
}

fn wait_for_server(rig: &Rig, child: &mut Child) {
    let until = Instant::now() + PATIENCE;
    while processes_with(&rig.path("work")).is_empty() {
        assert!(
            child.try_wait().expect("waitable").is_none(),
            "ended before it served anything"
        );
        assert!(Instant::now() < until, "no server was started");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_quick_demo_gives_table_page_and_json_and_leaves_nothing() {
    let rig = Rig::new();
    let child = rig
        .demo(&["--quick", "--seconds", "2", "--json=result.json"])
        .spawn()
        .expect("starts");
    let output = finish(child);
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{stdout}\n{stderr}");
    rig.assert_clean();
    for words in ["effective capacity", "IOPS", "no difference", "flaz-demo.html"] {
        assert!(stdout.contains(words), "{words} is missing in\n{stdout}");
    }
    assert!(
        !stdout.contains('\x1b') && !stderr.contains('\x1b'),
        "colours in a pipe"
    );
    let page = fs::read_to_string(rig.path("out/flaz-demo.html")).expect("the page");
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));

    let result = fs::read(rig.path("out/result.json")).expect("the JSON");
    let result: Value = serde_json::from_slice(&result).expect("JSON");
    let run = |number: usize, field: &str| result["runs"][number][field].as_f64().expect("a number");
    assert_eq!(result["runs"].as_array().map(Vec::len), Some(4));
    for number in 0..4 {
        assert!(
            run(number, "requests") > 50.0 && run(number, "blocks_verified") > 100.0,
            "{result:#}"
        );
    }
    for number in 1..4 {
        assert_eq!(result["runs"][number]["restarted_warm"], true);
        assert!(run(number, "hit_ratio") > 0.1, "{result:#}");
        assert!(
            run(number, "ssd_written_bytes") > 1e6 && run(number, "fragments_verified") > 300.0,
            "{result:#}"
        );
    }
    let logical = |number: usize| {
        result["runs"][number]["holdings"]["logical_bytes"]
            .as_f64()
            .expect("a number")
    };
    for compressed in [2, 3] {
        // On a busy machine, so short a run does not fill the cache.
        assert!(
            logical(compressed) > 1.2 * logical(1),
            "compressed {} uncompressed {}",
            logical(compressed),
            logical(1)
        );
    }
    // Which cache is faster in so short a run depends on the machine, so it is not tested.
}

#[test]
fn an_interrupt_stops_the_demo_and_leaves_no_files() {
    for number in [Signal::INT, Signal::TERM] {
        let rig = Rig::new();
        let mut child = rig.demo(&["--seconds", "600"]).spawn().expect("starts");
        wait_for_server(&rig, &mut child);
        let begin = Instant::now();
        signal(&child, number);
        let output = finish(child);
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
        assert!(!output.status.success());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("interrupted"), "{stderr}");
        rig.assert_clean();
        assert!(
            fs::read_dir(rig.path("out"))
                .expect("the folder")
                .next()
                .is_none(),
            "half a result"
        );
    }
}

#[test]
fn a_second_interrupt_kills_the_demo_and_leaves_no_files() {
    let rig = Rig::new();
    let mut child = rig.demo(&["--seconds", "600"]).spawn().expect("starts");
    wait_for_server(&rig, &mut child);
    signal(&child, Signal::INT);
    signal(&child, Signal::TERM);
    let output = finish(child);
    assert!(!output.status.success());
    // Shown if the rest fails.
    println!("{}", String::from_utf8_lossy(&output.stderr));
    rig.assert_clean();
}

#[test]
fn invalid_options_are_refused_before_files_are_created() {
    let rig = Rig::new();
    fs::remove_dir_all(rig.path("data")).expect("removed");
    for (arguments, words) in [
        (vec![], "data"),
        (vec!["--html", "/nonexistent/page.html"], "/nonexistent/page.html"),
        (vec!["--size", "200T"], "--size"),
        (vec!["--size", "1000G"], "--dir"),
        (vec!["--codec", "none"], "uncompressed run"),
    ] {
        let output = finish(rig.demo(&arguments).spawn().expect("starts"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
        rig.assert_clean();
    }
}

#[test]
fn a_dead_server_is_an_error_with_its_name_and_leaves_nothing() {
    let rig = Rig::new();
    let mut child = rig.demo(&["--seconds", "600"]).spawn().expect("starts");
    wait_for_server(&rig, &mut child);
    // Wait until it serves, then kill it: the demo must notice and clean up.
    sleep(Duration::from_millis(500));
    let work = rig.path("work");
    for entry in fs::read_dir("/proc").expect("procfs").flatten() {
        let Some(number) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let ours = line
            .windows(work.as_os_str().len())
            .any(|part| part == work.as_os_str().as_bytes());
        if ours
            && line.windows(5).any(|part| part == b"serve")
            && let Some(pid) = Pid::from_raw(number)
        {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    let output = finish(child);
    assert!(!output.status.success());
    rig.assert_clean();
}
