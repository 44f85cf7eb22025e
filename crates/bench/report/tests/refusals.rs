//! Results that cannot be compared: each message names the expected and the actual value, the location, and the fix.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use flaz_bench::campaign_file::{Campaign, CampaignCell};
use flaz_bench::claim::{self, Claim, ClaimOptions, Standing};
use flaz_bench::comparison::{IntervalMethod, Margin, Note, Options, Verdict, compare};
use flaz_bench::error::BenchError;
use flaz_bench::unit::{Direction, Unit};

const RATES: &str = "record_kib,compressibility_pct,test,mean_kib_per_s,stddev_kib_per_s\n";
const DIFFERENCES: &str = "record_kib,compressibility_pct,test,diff_pct,stddev_pct\n";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn campaign(&self, name: &str, cells: Vec<CampaignCell>) -> PathBuf {
        let mut campaign = Campaign::new(1);
        campaign.cells = cells;
        self.file(name, &campaign.to_json().unwrap())
    }
}

fn cell(test: &str, samples: &[f64]) -> CampaignCell {
    CampaignCell::new(test, 1 << 20, "50".parse().unwrap(), samples.to_vec())
}

fn ten_runs() -> Options {
    Options {
        runs: Some(10),
        resamples: 100,
        ..Options::default()
    }
}

/// The message with its causes.
fn message(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", message(cause)),
        None => error.to_string(),
    }
}

#[track_caller]
fn says(error: &BenchError, parts: &[&str]) {
    let message = message(error);
    for part in parts {
        assert!(message.contains(part), "no '{part}' in {message}");
    }
}

#[test]
fn invalid_files_are_refused() {
    let folder = Folder::new();
    let good = folder.file("good", &format!("{RATES}4,50,read,100,1\n"));
    let refused = |path: &PathBuf| compare(&good, path, &ten_runs()).unwrap_err();
    says(
        &refused(&folder.0.path().join("none")),
        &["none: cannot be read", "No such file"],
    );
    says(
        &refused(&folder.0.path().to_owned()),
        &["has a table", "good", "use the table itself"],
    );
    says(
        &refused(&folder.file("empty", "")),
        &["is not a campaign", "a table (CSV", "IOzone text: it is empty"],
    );
    says(
        &refused(&folder.file("hello", "<html>\n")),
        &["begins with '<html>'", "diff_pct", "flaz-campaign-1"],
    );
    let binary = folder.0.path().join("binary");
    fs::write(&binary, [0xff; 100]).unwrap();
    says(&refused(&binary), &["not UTF-8"]);
    let large = folder.0.path().join("large");
    fs::File::create(&large).unwrap().set_len((16 << 20) + 1).unwrap();
    says(&refused(&large), &["larger than 16 MiB"]);
    says(
        &refused(&folder.file("json", "{\"seed\": 1}")),
        &["not a campaign", "\"format\""],
    );
}

#[test]
fn invalid_tables_are_refused() {
    let folder = Folder::new();
    let good = folder.file("good", &format!("{RATES}4,50,read,100,1\n"));
    let refused = |text: &str| {
        let path = folder.file("bad.csv", text);
        compare(&path, &good, &ten_runs()).unwrap_err()
    };
    says(
        &refused("record,compressibility_pct,test,mean_kib_per_s,stddev_kib_per_s\n4,50,read,1,1\n"),
        &[
            "bad.csv, line 1",
            "no column record_kib",
            "found record,compressibility_pct",
        ],
    );
    says(
        &refused(&format!("{RATES}4,50,read,100,1\n\n4,50,write,quick,1\n")),
        &[
            "bad.csv, line 4",
            "mean_kib_per_s is 'quick'",
            "expected a positive number",
        ],
    );
    says(&refused(RATES), &["no cells"]);
}

#[test]
fn missing_or_too_few_runs_are_refused() {
    let folder = Folder::new();
    let table = folder.file("t.csv", &format!("{RATES}4,50,read,100,1\n"));
    let runs = |runs| {
        let options = Options { runs, ..ten_runs() };
        compare(&table, &table, &options).unwrap_err()
    };
    let missing = runs(None);
    says(
        &missing,
        &["t.csv", "does not contain the number of runs", "--runs N"],
    );
    assert!(missing.is_usage());
    says(
        &runs(Some(1)),
        &[
            "line 2",
            "read of 4 KiB at 50 %",
            "a comparison needs at least 2 runs, found 1",
        ],
    );
    let campaign = folder.campaign("c.json", vec![cell("read", &[1.0])]);
    let error = compare(&campaign, &campaign, &ten_runs()).unwrap_err();
    says(&error, &["c.json", "read of 1 MiB at 50 %", "measure more runs"]);
    assert!(!error.is_usage());
    let read = Campaign::read(&campaign).unwrap();
    assert_eq!(
        read.cells[0].samples,
        [1.0],
        "what cannot be compared can be read and gone on with"
    );
    let zero = folder.campaign("z.json", vec![cell("read", &[1.0, 0.0])]);
    says(
        &compare(&zero, &zero, &ten_runs()).unwrap_err(),
        &["run 2 is 0", "expected a positive number"],
    );
}

#[test]
fn differences_need_a_baseline() {
    let folder = Folder::new();
    let differences = folder.file("d.csv", &format!("{DIFFERENCES}4,50,read,1,1\n"));
    let error = compare(&differences, &differences, &ten_runs()).unwrap_err();
    says(&error, &["d.csv", "table of differences", "mean_kib_per_s"]);
    let other = folder.file("o.csv", &format!("{RATES}4,50,write,100,1\n"));
    says(
        &compare(&other, &differences, &ten_runs()).unwrap_err(),
        &[
            "no cell in common",
            "write of 4 KiB at 50 %",
            "read of 4 KiB at 50 %",
        ],
    );
    says(
        &claim::check(&differences, &["read=1MB/s".parse().unwrap()], &claim_options()).unwrap_err(),
        &["table of differences"],
    );
}

#[test]
fn cells_with_different_units_are_refused() {
    let folder = Folder::new();
    let a = folder.campaign("a.json", vec![cell("read", &[1.0, 2.0])]);
    let mut operations = cell("read", &[1.0, 2.0]);
    operations.unit = Unit::OperationsPerSecond;
    let b = folder.campaign("b.json", vec![operations]);
    says(
        &compare(&a, &b, &ten_runs()).unwrap_err(),
        &[
            "read of 1 MiB",
            "bytes per second (higher",
            "operations per second",
            "measure both alike",
        ],
    );
    let mut less = cell("read", &[1.0, 2.0]);
    less.direction = Direction::LowerIsBetter;
    let b = folder.campaign("b.json", vec![less]);
    says(
        &compare(&a, &b, &ten_runs()).unwrap_err(),
        &["(lower is better) in"],
    );
}

#[test]
fn invalid_margins_are_refused() {
    let folder = Folder::new();
    let a = folder.campaign(
        "a.json",
        vec![cell("read", &[1.0, 1.1, 0.9]), cell("write", &[2.0, 2.1, 2.2])],
    );
    let again = folder.campaign("again.json", vec![cell("read", &[1.0, 1.1, 0.9])]);
    let with = |margin| compare(&a, &a, &Options { margin, ..ten_runs() }).unwrap_err();
    for percent in [-1.0, 100.0, f64::NAN] {
        let error = with(Margin::Percent(percent));
        says(&error, &["expected 0 to below 100"]);
        assert!(error.is_usage());
    }
    says(
        &with(Margin::Repeats(vec![again])),
        &[
            "lacks 1 of the 2 compared cells",
            "write of 1 MiB at 50 %",
            "--delta",
        ],
    );
    says(&with(Margin::Repeats(vec![])), &["0 A/A campaigns"]);
    says(
        &with(Margin::Repeats(vec!["none".into()])),
        &["none: cannot be read"],
    );
}

fn claim_options() -> ClaimOptions {
    ClaimOptions {
        runs: Some(10),
        resamples: 100,
        ..ClaimOptions::default()
    }
}

#[test]
fn claims_without_a_matching_cell_are_refused() {
    let folder = Folder::new();
    let mut less = cell("latency", &[1.0, 2.0]);
    less.direction = Direction::LowerIsBetter;
    let path = folder.campaign("a.json", vec![cell("read", &[1e6, 1.1e6]), less]);
    let check = |claim: &str| {
        let claim: Claim = claim.parse().unwrap();
        claim::check(&path, &[claim], &claim_options()).unwrap_err()
    };
    says(
        &check("write=1MB/s"),
        &["no cell for the claim about write", "measured are latency, read"],
    );
    says(
        &check("read@4KiB=1MB/s"),
        &["about read of 4 KiB", "measured are latency, read of 1 MiB"],
    );
    says(&check("latency=1MB/s"), &["lower is better"]);
    let none = claim::check(&path, &[], &claim_options()).unwrap_err();
    says(&none, &["--claim write=275MB/s", "--claims FILE"]);
    assert!(none.is_usage());
    let file = folder.file("claims.toml", "[[claim]]\ntest = \"read\"\nrate = \"275Mb/s\"\n");
    says(
        &claim::read_claims(&file).unwrap_err().into(),
        &["claims.toml: claim 1", "is in bits"],
    );
}

/// Resampled medians stay between the runs, so with a few runs their interval says nothing.
#[test]
fn few_runs_do_not_decide_a_claim_by_their_range() {
    let folder = Folder::new();
    let checked = |runs: &[f64]| {
        let path = folder.campaign("a.json", vec![cell("read", runs)]);
        let claim: Claim = "read=105MB/s".parse().unwrap();
        claim::check(&path, &[claim], &claim_options()).unwrap()
    };
    let few = checked(&[100e6, 101e6]);
    let point = &few.claims[0].curves[0].points[0];
    assert_eq!(point.standing, Standing::Undecided);
    assert_eq!(
        (point.rate.estimate, point.rate.method),
        (100.5e6, IntervalMethod::LogNormal)
    );
    assert!(
        few.text(false).contains("f: fewer than 6 runs: "),
        "{}",
        few.text(false)
    );
    let json = serde_json::to_value(&few).unwrap();
    assert_eq!(
        json["claims"][0]["curves"][0]["points"][0]["notes"][0],
        "few-runs"
    );

    let enough = checked(&[100e6, 101e6, 100.2e6, 100.4e6, 100.6e6, 100.8e6]);
    let point = &enough.claims[0].curves[0].points[0];
    assert_eq!(
        (point.standing, point.rate.method),
        (Standing::Exaggerated, IntervalMethod::Bootstrap)
    );
    assert!(point.notes.is_empty() && !enough.text(false).contains("fewer than 6"));
}

/// Not an error: the A/A campaign measures the noise, and a difference within it is not called a change.
#[test]
fn an_a_a_campaign_widens_the_margin() {
    let folder = Folder::new();
    let runs = |factor: f64| [100.0, 101.0, 99.0, 100.5, 99.5, 100.2].map(|run| run * factor);
    let a = folder.campaign("a.json", vec![cell("read", &runs(1.0))]);
    let again = folder.campaign("again.json", vec![cell("read", &runs(1.04))]);
    let b = folder.campaign("b.json", vec![cell("read", &runs(1.03))]);
    let with = |margin| {
        let mut comparison = compare(&a, &b, &Options { margin, ..ten_runs() }).unwrap();
        comparison.cells.remove(0)
    };
    let plain = with(Margin::Percent(1.0));
    assert_eq!(plain.verdict, Verdict::Faster);
    let noisy = with(Margin::Repeats(vec![again.clone()]));
    assert!(
        noisy.delta_pct > 4.0 && noisy.delta_pct < 6.0,
        "{}",
        noisy.delta_pct
    );
    assert_eq!(noisy.verdict, Verdict::Equivalent);
    // Two campaigns are compared with each other, independent of A; equal ones have no noise.
    let quiet = with(Margin::Repeats(vec![again.clone(), again]));
    assert!(quiet.delta_pct < 2.0, "{}", quiet.delta_pct);
}

/// Not an error either: runs that do not vary are reported.
#[test]
fn runs_without_variance_are_reported() {
    let folder = Folder::new();
    let a = folder.campaign("a.json", vec![cell("read", &[5.0; 4])]);
    let b = folder.campaign("b.json", vec![cell("read", &[6.0; 4])]);
    let comparison = compare(&a, &b, &ten_runs()).unwrap();
    let cell = &comparison.cells[0];
    assert_eq!((cell.welch.p, cell.verdict), (0.0, Verdict::Faster));
    assert_eq!(cell.notes, [Note::NoVariation, Note::FewRuns]);
    let json = serde_json::to_value(&comparison).unwrap();
    assert!(json["cells"][0]["welch"]["t"].is_null(), "infinite");
}

/// The same files and seed produce the same report; an interval does not depend on which other cells there are.
#[test]
fn reports_repeat() {
    let folder = Folder::new();
    let read = cell("read", &[9.0, 10.0, 11.0, 10.5, 9.5, 9.9, 10.7]);
    let write = cell("write", &[5.0, 5.5, 5.2, 4.8, 4.9, 5.1, 5.3]);
    let both = folder.campaign("both.json", vec![write, read.clone()]);
    let alone = folder.campaign("alone.json", vec![read]);
    let with = |a: &PathBuf, seed| {
        let options = Options { seed, ..ten_runs() };
        serde_json::to_string(&compare(a, &both, &options).unwrap().cells.last()).unwrap()
    };
    assert_eq!(with(&both, 1), with(&both, 1));
    assert_ne!(with(&both, 1), with(&both, 2));
    let ratio = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap()["ratio"].clone();
    assert_eq!(ratio(with(&both, 1)), ratio(with(&alone, 1)));
}
