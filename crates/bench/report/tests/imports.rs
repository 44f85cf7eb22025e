//! Real output of fio 3.33 and IOzone 3.489 as results for `compare`, `claim` and `report`.

use std::fs;
use std::path::{Path, PathBuf};

use flaz_bench::comparison::{Margin, Options, Verdict, compare};
use flaz_bench::results::{Kind, open_results, open_to_show};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn cells(path: &Path) -> Vec<(String, Vec<f64>)> {
    let results = open_results(path, None).unwrap();
    results
        .cells
        .iter()
        .map(|cell| (cell.key.to_string(), cell.measured.runs().unwrap().to_vec()))
        .collect()
}

/// The values in the file, found in another way than by the reader.
fn fio_says(file: &str, direction: &str) -> f64 {
    let text = fs::read_to_string(data("fio-runs").join(file)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    json["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job[direction]["bw_bytes"].as_f64().unwrap())
        .sum()
}

#[test]
fn a_directory_of_fio_files_has_one_run_per_file() {
    let found = cells(&data("fio-runs"));
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        ["write of 64 KiB at 50 %", "random_read.qd16 of 4 KiB at 50 %"]
    );
    for (at, direction) in ["write", "read"].into_iter().enumerate() {
        let said: Vec<f64> = ["1.json", "2.json", "3.json"]
            .map(|file| fio_says(file, direction))
            .to_vec();
        assert_eq!(found[at].1, said);
    }
    let results = open_results(&data("fio-runs"), None).unwrap();
    assert_eq!(results.kind, Kind::Fio);
    let told = &results.background.environment;
    assert!(
        told.iter()
            .any(|(name, value)| name == "measured by" && value == "fio 3.33"),
        "{told:?}"
    );
}

#[test]
fn iozone_files_take_levels_from_the_command_line() {
    let found = cells(&data("iozone-runs"));
    // Two levels, two record sizes; -i 0 1 2 6 are eight tests.
    assert_eq!(found.len(), 2 * 2 * 8);
    assert!(found.iter().all(|(_, runs)| runs.len() == 3));
    let text = fs::read_to_string(data("iozone-runs/50-1.txt")).unwrap();
    // The list has the same values as the table: the last line of "Re-Fwrite report".
    let list = text.split("\"Re-Fwrite report\"").nth(1).unwrap();
    let rate: f64 = list
        .lines()
        .nth(2)
        .unwrap()
        .split_whitespace()
        .nth(2)
        .unwrap()
        .parse()
        .unwrap();
    let (_, runs) = found
        .iter()
        .find(|(name, _)| name == "frewrite of 1 MiB at 50 %")
        .expect("the cell");
    assert_eq!(runs[0], rate * 1024.0);
    let notes = open_results(&data("iozone-runs"), None).unwrap().background.notes;
    assert!(
        notes.iter().any(|note| note.contains("25.00 % of each record")),
        "{notes:?}"
    );
}

#[test]
fn lists_alone_give_the_same_values_as_the_table() {
    let text = fs::read_to_string(data("iozone-runs/98-2.txt")).unwrap();
    let (head, table) = text.split_once("              kB  reclen").unwrap();
    let (_, lists) = table.split_once("Excel output is below").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let without_table = folder.path().join("lists.txt");
    fs::write(&without_table, format!("{head}{lists}")).unwrap();
    let shown = |path: &Path| {
        let mut cells: Vec<_> = open_to_show(path, None, None)
            .unwrap()
            .incomplete
            .into_iter()
            .map(|cell| (cell.key, cell.value.unwrap() as u64))
            .collect();
        cells.sort();
        cells
    };
    let whole = shown(&data("iozone-runs/98-2.txt"));
    assert_eq!(whole.len(), 16);
    assert_eq!(shown(&without_table), whole);
}

#[test]
fn other_programs_are_compared_like_campaigns() {
    let options = Options {
        margin: Margin::Percent(1.0),
        resamples: 200,
        ..Options::default()
    };
    let same = compare(&data("fio-runs"), &data("fio-runs"), &options).unwrap();
    assert_eq!(same.counts.cells, 2);
    assert!(
        same.cells
            .iter()
            .all(|cell| matches!(cell.verdict, Verdict::Equivalent | Verdict::Inconclusive))
    );
    let one_run = compare(&data("fio-runs/1.json"), &data("fio-runs"), &options)
        .unwrap_err()
        .to_string();
    assert!(
        one_run.contains("1.json") && one_run.contains("put the files of all runs into a directory"),
        "{one_run}"
    );
    // The only cell that both measured: writes of 64 KiB at 50 %.
    let across = compare(&data("fio-runs"), &data("iozone-runs"), &options).unwrap();
    assert_eq!((across.counts.cells, across.only_in_b.len()), (1, 31));
}

#[test]
fn invalid_directories_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let refused = || open_results(path, Some(10)).unwrap_err().to_string();
    assert!(refused().contains("directory without files"));
    fs::copy(data("sf1222-throughput.csv"), path.join("b.csv")).unwrap();
    assert!(refused().contains("use the table itself"), "{}", refused());
    fs::copy(data("fio-runs/1.json"), path.join("a.json")).unwrap();
    let mixed = refused();
    assert!(
        mixed.contains("different kinds") && mixed.contains("a.json"),
        "{mixed}"
    );
    fs::write(path.join("b.csv"), "{\"format\": \"flaz-campaign-2\"}").unwrap();
    assert!(refused().contains("b.csv"), "the file is named");
}
