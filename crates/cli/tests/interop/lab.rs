//! `flaz lab serve`: the benchmark meets the modelled SSD as it would meet the real one.
//!
//! A busy machine makes the device slower, never faster. So the device is slower than the modelled drive, lower limits of BS ratios
//! hold always, and the ratios of two rates hold in one of several attempts. How near they are to published ones is tested in
//! virtual time (`crates/lab/models/tests/tools.rs`).

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::disk::wait_ready;
use crate::support::{Program, Scratch, need};

const TOOLS: &[(&str, &str)] = &[
    ("nbdfuse", "libnbd-bin"),
    ("fusermount3", "fuse3"),
    ("fio", "fio"),
];
/// Factor of the times of the device.
const SLOWDOWN: f64 = 2.0;
/// Rounds per attempt, and attempts: four are sufficient on an idle machine.
const ROUNDS: [u32; 3] = [4, 8, 16];
/// Attempts at a campaign.
const CAMPAIGNS_MAX: u32 = 5;

/// A served device as a file. Stopped when dropped.
struct Ssd {
    server: Child,
    fuse: Child,
    folder: PathBuf,
    trace: PathBuf,
}

impl Ssd {
    /// `None`: a requirement is missing, and a message was printed.
    fn start(scratch: &Scratch, device: &str) -> Option<Self> {
        if !(need::tools(TOOLS) && need::fuse()) {
            return None;
        }
        let (socket, folder) = (scratch.place("ssd.sock"), scratch.place("ssd"));
        let trace = scratch.image("trace.csv");
        fs::create_dir_all(&folder).expect("a folder");
        let start = |signal: &str, program: &str, words: &[&str]| {
            // They die with the test's thread, however that ends.
            let child = Command::new("setpriv")
                .args(["--pdeathsig", signal, program])
                .args(words)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn();
            child.expect("setpriv (util-linux) starts")
        };
        let address = format!("unix:{}", socket.display());
        let slowdown = SLOWDOWN.to_string();
        let mut server = start(
            "KILL",
            env!("CARGO_BIN_EXE_flaz"),
            &[
                "lab",
                "serve",
                "--device",
                device,
                "--size",
                "64MiB",
                "--nbd",
                &address,
                "--slowdown",
                &slowdown,
                "--trace",
                &trace.to_string_lossy(),
            ],
        );
        wait_ready("flaz lab serve", &mut server, || {
            UnixStream::connect(&socket).is_ok()
        });
        let file = folder.join("disk");
        let words = [&file.to_string_lossy(), "--unix", &socket.to_string_lossy()].map(str::to_owned);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut fuse = start("TERM", "nbdfuse", &words);
        wait_ready("nbdfuse", &mut fuse, || file.exists());
        Some(Self {
            server,
            fuse,
            folder,
            trace,
        })
    }

    fn file(&self) -> String {
        self.folder.join("disk").to_string_lossy().into_owned()
    }

    /// The result of a command of `flaz bench` on the device.
    fn bench(&self, words: &str) -> Value {
        let file = self.file();
        let json = Program::flaz()
            .words(&format!("bench {words} --json --yes-destroy {file} {file}"))
            .ok();
        serde_json::from_str(&json).expect("nothing but JSON in the JSON")
    }

    fn detection(&self, rounds: u32) -> Value {
        self.bench(&format!(
            "detect --sample 2MiB --size 8MiB --rounds {rounds} --seed {rounds}"
        ))
    }

    /// Stops the server cleanly, and returns the rows of its trace.
    fn stop(mut self) -> Vec<Vec<f64>> {
        Program::new("fusermount3").arg("-u").arg(&self.folder).ok();
        self.fuse.wait().expect("a child can be waited for");
        let id = self.server.id().to_string();
        Program::new("kill").words("-TERM").arg(id).ok();
        let status = self.server.wait().expect("a child can be waited for");
        assert!(status.success(), "flaz lab serve ended with {status}");
        let text = fs::read_to_string(&self.trace).expect("the trace");
        let number = |field: &str| field.parse().expect("a number");
        text.lines()
            .skip(1)
            .map(|line| line.split(',').map(number).collect())
            .collect()
    }
}

impl Drop for Ssd {
    fn drop(&mut self) {
        let _ = Command::new("fusermount3")
            .args(["-u", "-z", "-q"])
            .arg(&self.folder)
            .stderr(Stdio::null())
            .status();
        for child in [&mut self.fuse, &mut self.server] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn finding<'a>(found: &'a Value, question: &str, field: &str) -> &'a str {
    let findings = found["findings"].as_array().expect("findings");
    let finding = findings.iter().find(|finding| finding["question"] == question);
    finding.map_or("not asked", |finding| finding[field].as_str().expect("a text"))
}

/// What `claim` says about a rate of the maker for this test, with zeros and with random data, in this order.
fn bs_ratios(ssd: &Ssd, scratch: &Scratch, test: &str, mb_per_s: f64) -> [f64; 2] {
    let results = scratch.image("results.json");
    // Of an earlier campaign.
    let _ = fs::remove_file(&results);
    let results = results.to_string_lossy();
    ssd.bench(&format!(
        "run --tests {test} --levels zeros,random --records 1MiB --size 8MiB --runs 3 --pool 16MiB --output {results}"
    ));
    // The rated speed, as much slower as the device is.
    let claim = format!("{test}={}MB/s", mb_per_s / SLOWDOWN);
    let json = Program::flaz()
        .words(&format!("bench claim {results} --json --claim {claim}"))
        .ok();
    let report: Value = serde_json::from_str(&json).expect("nothing but JSON in the JSON");
    let points = report["claims"][0]["curves"][0]["points"]
        .as_array()
        .expect("points");
    ["zeros", "random"].map(|level| {
        let point = points
            .iter()
            .find(|point| point["level"] == level)
            .expect("the level");
        point["bs_ratio"]["estimate"].as_f64().expect("a ratio")
    })
}

/// Repeats the campaign until its ratios are as expected.
#[track_caller]
fn attempt(ssd: &Ssd, scratch: &Scratch, is_expected: impl Fn([f64; 2]) -> bool) {
    let mut found = Vec::new();
    for _ in 0..CAMPAIGNS_MAX {
        let ratios = bs_ratios(ssd, scratch, "write", 275.0);
        if is_expected(ratios) {
            return;
        }
        found.push(ratios);
    }
    panic!("BS ratios of zeros and random data: {found:?}");
}

#[test]
fn a_compressing_ssd_is_found_out() {
    let scratch = Scratch::new();
    let Some(ssd) = Ssd::start(&scratch, "sf1200") else {
        return;
    };
    let mut found = Value::Null;
    for rounds in ROUNDS {
        found = ssd.detection(rounds);
        assert_ne!(finding(&found, "compresses", "answer"), "no", "{found:#}");
        if finding(&found, "compresses", "answer") == "yes" && finding(&found, "unit", "answer") == "yes" {
            break;
        }
    }
    assert_eq!(finding(&found, "compresses", "answer"), "yes", "{found:#}");
    assert_eq!(finding(&found, "unit", "reason"), "4 KiB at a time", "{found:#}");
    assert_ne!(finding(&found, "deduplicates", "answer"), "yes", "{found:#}");
    // Published: 3.7 for random data, and the maker's rate for zeros.
    let exaggerated = |[zeros, random]: [f64; 2]| {
        assert!(
            zeros > 0.95 && random > 3.2,
            "faster than the drive: {zeros}, {random}"
        );
        random > 1.8 * zeros
    };
    attempt(&ssd, &scratch, exaggerated);
    // By the model of reads, 1.2 and 1.45.
    let [zeros, random] = bs_ratios(&ssd, &scratch, "read", 285.0);
    assert!(
        zeros > 1.1 && random > 1.35,
        "faster than the drive: {zeros}, {random}"
    );
    other_programs_write_to(&ssd);
    let rows = ssd.stop();
    let last = rows.last().expect("a row at the end");
    let (host, flash) = (last[1], last[3]);
    assert!(
        host > 50e6 && flash > 0.2 * host && flash < 1.2 * host,
        "{last:?}"
    );
}

/// fio reads back what it wrote, and dd reports no error.
fn other_programs_write_to(ssd: &Ssd) {
    let file = ssd.file();
    let options = "--name=verify --rw=randwrite --bs=64k --size=8m --ioengine=psync --direct=0 --end_fsync=1 --verify=crc32c \
                   --do_verify=1 --verify_fatal=1 --verify_state_save=0";
    Program::new("fio")
        .words(&format!("{options} --filename={file}"))
        .ok();
    Program::new("dd")
        .words(&format!(
            "if=/dev/zero of={file} bs=1M count=8 conv=notrunc,fsync status=none"
        ))
        .ok();
}

#[test]
fn an_ssd_without_compression_is_not() {
    let scratch = Scratch::new();
    let Some(ssd) = Ssd::start(&scratch, "sf1222-raw") else {
        return;
    };
    let found = ssd.detection(ROUNDS[0]);
    for question in ["compresses", "elides-zeros", "deduplicates"] {
        assert_ne!(finding(&found, question, "answer"), "yes", "{found:#}");
    }
    attempt(&ssd, &scratch, |[zeros, random]| {
        (0.7..1.4).contains(&(zeros / random))
    });
    let rows = ssd.stop();
    let last = rows.last().expect("a row at the end");
    assert!(last[3] >= last[1] && last[5] >= 1.0, "{last:?}");
}
