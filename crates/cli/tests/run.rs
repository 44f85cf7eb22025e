//! `flaz bench run` as a user runs it: what it measures, refuses, stores and resumes. Values are only checked to be
//! numbers.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const FAILURE: i32 = 1;
const USAGE: i32 = 2;

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        let scratch = Self(tempfile::tempdir().unwrap());
        fs::create_dir(scratch.path("disk")).unwrap();
        scratch
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flaz"));
        command
            .args(["bench", "run"])
            .args(line.split_ascii_whitespace())
            .current_dir(self.0.path())
            .env_remove("FLAZ_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    #[track_caller]
    fn succeeded(&self, line: &str) -> String {
        let output = self.run(line);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{line}\n{err}");
        assert!(
            !err.contains('\r') && !err.contains('\x1b'),
            "no bar in a pipe: {err:?}"
        );
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn refused(&self, line: &str, status: i32, parts: &[&str]) {
        let output = self.run(line);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{line}\n{err}");
        assert!(output.stdout.is_empty(), "{line}");
        assert!(
            !err.contains("panicked") && !err.contains("internal error"),
            "{err}"
        );
        for part in parts {
            assert!(err.contains(part), "{line}\nno '{part}' in\n{err}");
        }
    }

    fn campaign(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.path(name)).unwrap()).unwrap()
    }

    fn names(&self, folder: &str) -> Vec<String> {
        fs::read_dir(self.path(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

fn cells(campaign: &Value) -> &Vec<Value> {
    campaign["cells"].as_array().unwrap()
}

/// The samples of all cells, by the order in which they were measured: each number once.
#[track_caller]
fn whole(campaign: &Value, runs: usize) {
    let mut order = Vec::new();
    for cell in cells(campaign) {
        let samples = cell["samples"].as_array().unwrap();
        assert_eq!(samples.len(), runs, "{cell}");
        assert!(samples.iter().all(|sample| sample.as_f64().unwrap() > 0.0));
        order.extend(
            cell["order"]
                .as_array()
                .unwrap()
                .iter()
                .map(|number| number.as_u64().unwrap()),
        );
    }
    order.sort_unstable();
    assert!(order.iter().copied().eq(0..order.len() as u64), "{order:?}");
    assert!(campaign.get("progress").is_none(), "done");
}

#[test]
fn a_directory_is_measured_with_defaults() {
    let scratch = Scratch::new();
    let page = scratch.succeeded("disk --size 4MiB --runs 3 --drop-caches target --output out.json");
    for part in [
        "write",
        "strided_read",
        "freread",
        "MiB/s",
        "98 %",
        "zlib-6",
        "1 MiB",
    ] {
        assert!(page.contains(part), "no '{part}' in\n{page}");
    }
    let campaign = scratch.campaign("out.json");
    assert_eq!(cells(&campaign).len(), 39);
    whole(&campaign, 3);
    assert!(scratch.names("disk").is_empty(), "nothing is left");
    assert!(
        scratch.names(".").iter().all(|name| !name.starts_with(".flaz")),
        "no draft is left"
    );
    for field in [
        "kernel",
        "file_system",
        "free_bytes",
        "target",
        "generator_gb_per_s_thread",
    ] {
        assert!(!campaign["environment"][field].is_null(), "{field}");
    }
    let half = cells(&campaign).iter().find(|cell| cell["level"] == 50).unwrap();
    let lz4 = &half["achieved"][0];
    assert_eq!(
        (&lz4["codec"], &lz4["chunk_bytes"]),
        (&"lz4".into(), &4096.into())
    );
    assert!((lz4["saved_pct"].as_f64().unwrap() - 50.0).abs() < 1.0, "{lz4}");
}

/// Duplicates that a device can find: requested, in the pool, and on a target of two pools.
#[test]
fn the_share_of_duplicates_matches_the_written_data() {
    const POOL_BYTES: usize = 64 << 20;
    let scratch = Scratch::new();
    File::create(scratch.path("image"))
        .unwrap()
        .set_len(2 * POOL_BYTES as u64)
        .unwrap();
    let page = scratch.succeeded(
        "image --yes-destroy image --size 128MiB --tests rewrite --records 64KiB --levels 50 --runs 1 --dedup 50 --pool 64MiB \
         --drop-caches target --output out.json",
    );
    let campaign = scratch.campaign("out.json");
    let found = &cells(&campaign)[0]["duplicates"];
    assert_eq!(found["requested_pct"], 50.0);
    assert_eq!(found["pool_bytes"], POOL_BYTES);
    assert_eq!(found["pass_bytes"], 2 * POOL_BYTES);
    let share = |field: &str| found[field].as_f64().unwrap();
    // A sixteenth of the pool has no earlier data to duplicate.
    assert!((share("pool_pct") - 46.9).abs() < 2.0, "{found}");
    let bytes = fs::read(scratch.path("image")).unwrap();
    let repeated = |bytes: &[u8]| {
        let mut seen = HashSet::new();
        let again = bytes.chunks(4096).filter(|block| !seen.insert(*block));
        again.count() as f64 * 100.0 * 4096.0 / bytes.len() as f64
    };
    // From another pass than the counted one, so similar but not equal.
    assert!(
        (repeated(&bytes[..POOL_BYTES]) - share("pool_pct")).abs() < 2.0,
        "{found}"
    );
    assert!((repeated(&bytes) - share("pass_pct")).abs() < 1.0, "{found}");
    assert!(
        page.contains("Duplicates: 50 % requested") && page.contains("A pass writes 128 MiB"),
        "{page}"
    );
}

#[test]
fn results_are_read_by_compare_and_claim() {
    let scratch = Scratch::new();
    for name in ["a.json", "b.json"] {
        scratch.succeeded(&format!(
            "disk --size 1MiB --tests write,iops --records 64KiB --levels random --runs 2 --drop-caches target --output {name}"
        ));
    }
    for words in [
        vec!["compare", "a.json", "b.json", "--json"],
        vec!["claim", "a.json", "--claim", "random_read_iops=1IOPS", "--json"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_flaz"))
            .arg("bench")
            .args(&words)
            .current_dir(scratch.0.path())
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{words:?}\n{err}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap();
    }
}

#[test]
fn queues_writers_and_verification() {
    let scratch = Scratch::new();
    let json = scratch.succeeded(
        "new --size 4MiB --tests all --records 16KiB --levels 50,zeros --runs 1 --writers 2 --depth 8 --verify --json \
         --drop-caches target --flush after --pool 1MiB --output out.json",
    );
    let campaign: Value = serde_json::from_str(&json).expect("nothing but JSON in the JSON");
    assert_eq!(campaign, scratch.campaign("out.json"));
    assert_eq!(cells(&campaign).len(), 34);
    whole(&campaign, 1);
    assert!(
        cells(&campaign)
            .iter()
            .all(|cell| cell["naive"].as_array().unwrap().len() == 1)
    );
    assert!(!scratch.path("new").exists(), "the created directory was removed");
}

#[test]
fn options_override_the_campaign_file() {
    let scratch = Scratch::new();
    fs::write(
        scratch.path("plan.toml"),
        "target = \"disk\"\nname = \"nightly\"\ntests = [\"streaming\"]\nrecords = [\"64KiB\"]\nruns = 7\nsize = \"256KiB\"\n\
         warm-up = 1\nprecondition = 1\ndrop-caches = \"target\"\n",
    )
    .unwrap();
    let page = scratch.succeeded("--campaign plan.toml --runs 2 --output out.json");
    assert!(page.contains("nightly") && page.contains("zeros"), "{page}");
    let campaign = scratch.campaign("out.json");
    whole(&campaign, 2);
    assert_eq!(cells(&campaign).len(), 4);
    assert!(
        cells(&campaign)
            .iter()
            .all(|cell| cell["warm_up"].as_array().unwrap().len() == 1)
    );
    fs::write(scratch.path("plan.toml"), "target = \"disk\"\nrnus = 7\n").unwrap();
    scratch.refused("--campaign plan.toml", USAGE, &["line 2", "rnus"]);
}

#[test]
fn real_data_is_replayed_with_other_levels() {
    let scratch = Scratch::new();
    fs::write(
        scratch.path("d.json"),
        "{\"schema\":\"flaz-distribution/1\",\"source\":\"home\",\"measured_bytes\":81920,\"duplicate_percent\":0,\"sizes\":[{\
         \"chunk_bytes\":4096,\"zero_chunks\":5,\"rows\":[{\"lz4_percent\":30,\"zstd_percent\":45,\"chunks\":15}]}]}",
    )
    .unwrap();
    let options = "--size 1MiB --tests write,read --runs 1 --drop-caches target --output";
    scratch.succeeded(&format!(
        "disk --family replay --distribution d.json {options} alone.json --verify"
    ));
    let alone = scratch.campaign("alone.json");
    whole(&alone, 1);
    // A quarter is zeros, the rest saves 30 % with lz4: 47.5 % in the mean, of 256 chunks.
    let lz4 = &cells(&alone)[0]["achieved"][0];
    assert_eq!(
        (&cells(&alone)[0]["level"], &lz4["codec"]),
        (&"replay".into(), &"lz4".into())
    );
    assert!((lz4["saved_pct"].as_f64().unwrap() - 47.5).abs() < 8.0, "{lz4}");
    scratch.succeeded(&format!(
        "disk --levels replay,50 --distribution d.json {options} both.json"
    ));
    assert_eq!(cells(&scratch.campaign("both.json")).len(), 4);
    scratch.refused(
        &format!("disk --levels replay {options} none.json"),
        USAGE,
        &["--distribution", "flaz study"],
    );
    scratch.refused(
        &format!("disk --family replay --distribution nowhere.json {options} none.json"),
        FAILURE,
        &["nowhere.json"],
    );
}

#[test]
fn runs_are_added_until_intervals_or_limit_are_reached() {
    let scratch = Scratch::new();
    // No interval is as narrow as a hundredth of a percent.
    scratch.succeeded(
        "disk --size 128KiB --tests write --records 64KiB --levels 50 --runs 3 --within 0.01 --runs-max 6 --drop-caches target \
         --output narrow.json",
    );
    whole(&scratch.campaign("narrow.json"), 6);
}

#[test]
fn warm_up_rounds_continue_until_steady_state() {
    let scratch = Scratch::new();
    scratch.succeeded(
        "disk --size 1MiB --tests write,read --records 64KiB --levels 50 --runs 2 --steady --drop-caches target --output out.json",
    );
    let campaign = scratch.campaign("out.json");
    whole(&campaign, 2);
    let rounds: Vec<usize> = cells(&campaign)
        .iter()
        .map(|cell| cell["warm_up"].as_array().unwrap().len())
        .collect();
    assert!(
        rounds[0] == rounds[1] && (5..=25).contains(&rounds[0]),
        "{rounds:?}"
    );
}

#[test]
fn an_interrupted_campaign_continues_without_repeats() {
    let scratch = Scratch::new();
    let line = "disk --size 4MiB --tests throughput --records 64KiB,1MiB --levels 2,98 --runs 4 --drop-caches target --output \
                out.json";
    let mut child = scratch.command(line).spawn().unwrap();
    let patience = Instant::now() + Duration::from_secs(600);
    let samples = || -> usize {
        let Ok(text) = fs::read(scratch.path("out.json")) else {
            return 0;
        };
        // Complete at any time.
        let campaign: Value = serde_json::from_slice(&text).expect("a file that is replaced is never half");
        cells(&campaign)
            .iter()
            .map(|cell| cell["samples"].as_array().unwrap().len())
            .sum()
    };
    while samples() < 20 {
        assert!(child.try_wait().unwrap().is_none(), "it goes on");
        assert!(Instant::now() < patience, "nothing is measured");
    }
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(FAILURE), "{err}");
    assert!(err.contains("flaz bench run --resume out.json"), "{err}");
    assert!(scratch.names("disk").is_empty(), "nothing is left");
    let before = scratch.campaign("out.json");
    let done = samples();
    assert!((20..208).contains(&done), "{done}");
    scratch.refused(
        "--resume out.json --runs 5",
        USAGE,
        &["only --yes-destroy and --json can be combined"],
    );
    let held = File::open(scratch.path("out.json")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    scratch.refused("--resume out.json", FAILURE, &["out.json is not free", "locked"]);
    drop(held);
    scratch.succeeded("--resume out.json");
    let after = scratch.campaign("out.json");
    whole(&after, 4);
    assert_eq!(cells(&after).len(), 52);
    for cell in cells(&before) {
        let same = |other: &&Value| {
            ["test", "record_bytes", "level"]
                .iter()
                .all(|field| other[field] == cell[field])
        };
        let later = cells(&after).iter().find(same).unwrap();
        let kept = cell["samples"].as_array().unwrap();
        assert_eq!(
            &later["samples"].as_array().unwrap()[..kept.len()],
            kept.as_slice(),
            "samples stay as they were"
        );
    }
    scratch.refused("--resume out.json", USAGE, &["is complete"]);
    assert!(scratch.names("disk").is_empty(), "nothing is left");
}

#[test]
fn a_killed_campaign_continues() {
    let scratch = Scratch::new();
    let line = "disk --size 4MiB --tests write,read --records 64KiB --levels 2,98 --runs 30 --drop-caches target --output out.json";
    let mut child = scratch.command(line).spawn().unwrap();
    let patience = Instant::now() + Duration::from_secs(600);
    while fs::read(scratch.path("out.json")).map_or(0, |text| text.len()) < 3000 {
        assert!(Instant::now() < patience, "nothing is measured");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    scratch.succeeded("--resume out.json");
    whole(&scratch.campaign("out.json"), 30);
}

#[test]
fn a_file_is_overwritten_only_with_its_path_typed() {
    let scratch = Scratch::new();
    File::create(scratch.path("mine"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let options = "--tests write,read --records 64KiB --levels 50 --runs 1 --size 1MiB --drop-caches target --output out.json";
    scratch.refused(
        &format!("mine {options}"),
        USAGE,
        &["all data on it will be lost", "--yes-destroy mine"],
    );
    scratch.refused(
        &format!("mine --yes-destroy other {options}"),
        USAGE,
        &["expected mine as confirmation, found 'other'"],
    );
    scratch.refused(
        &format!("disk --yes-destroy disk {options}"),
        USAGE,
        &["nothing is overwritten"],
    );
    assert!(
        fs::read(scratch.path("mine"))
            .unwrap()
            .iter()
            .all(|byte| *byte == 0)
    );
    assert!(!scratch.path("out.json").exists());
    scratch.succeeded(&format!("mine --yes-destroy mine {options}"));
    let after = fs::read(scratch.path("mine")).unwrap();
    assert!(after.len() == 1 << 20 && after.iter().any(|byte| *byte != 0));
    let environment = &scratch.campaign("out.json")["environment"];
    assert_eq!(environment["target_kind"], "file");
    assert!(environment["free_bytes"].as_u64().unwrap() > 0, "{environment}");
}

#[test]
fn a_file_with_a_file_system_is_always_refused() {
    let scratch = Scratch::new();
    let mut image = vec![0; 1 << 20];
    image[65_600..65_608].copy_from_slice(b"_BHRfS_M");
    fs::write(scratch.path("image"), &image).unwrap();
    scratch.refused(
        "image --yes-destroy image --tests write --runs 1",
        FAILURE,
        &["btrfs file system", "No option overrides"],
    );
    assert!(
        fs::read(scratch.path("image")).unwrap() == image,
        "nothing was written"
    );
}

#[test]
fn refusals_name_the_expected_value() {
    let scratch = Scratch::new();
    scratch.refused("", USAGE, &["TARGET"]);
    scratch.refused("disk --tests wirte", USAGE, &["wirte", "backwards_read"]);
    scratch.refused("disk --records 5000", USAGE, &["power of two"]);
    scratch.refused("disk --levels lots", USAGE, &["lots"]);
    scratch.refused("disk --levels 101", USAGE, &["0 to 100"]);
    scratch.refused("disk --engine sync --depth 4", USAGE, &["io_uring"]);
    scratch.refused("disk --size 4KiB", USAGE, &["at least one record"]);
    scratch.refused("disk --size 4E", FAILURE, &["of free space, found", "--size"]);
    scratch.refused("/dev/null --size 1MiB", FAILURE, &["character device"]);
    scratch.refused("/dev/no-such-disk", USAGE, &["lsblk"]);
    fs::write(scratch.path("there.json"), "mine").unwrap();
    scratch.refused("disk --output there.json", USAGE, &["already exists"]);
    scratch.refused("--resume there.json", FAILURE, &["there.json"]);
    scratch.refused("--resume none.json", FAILURE, &["none.json"]);
    let output = scratch.run("disk --size 1MiB --output nodir/o.json");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(FAILURE), "{err}");
    assert!(
        err.starts_with("flaz: writing nodir/o.json: ") && err.contains("the directory must exist"),
        "before a measurement is announced: {err}"
    );
    for name in ["", "  "] {
        let output = scratch.command("disk --name").arg(name).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(USAGE), "{err}");
        assert!(err.contains("--name: expected"), "{err}");
    }
    fs::write(
        scratch.path("other.json"),
        "{\"format\":\"flaz-campaign-1\",\"seed\":1,\"cells\":[]}",
    )
    .unwrap();
    scratch.refused("--resume other.json", USAGE, &["without a plan"]);
    assert_eq!(fs::read(scratch.path("there.json")).unwrap(), b"mine");
    assert!(scratch.names("disk").is_empty());
}
