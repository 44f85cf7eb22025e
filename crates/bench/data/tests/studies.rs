//! Studies of data with known properties: exact studies report them, the intervals of samples contain them.

use std::fs::{self, File};
use std::io::Write;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flaz_codec::{CodecId, CodecSpec, Meter};
use flaz_data::study::{StudyError, StudyOptions, StudyReport, study};
use flaz_data::{DataSpec, Family, Generator, Level, measure};

const MIB: u64 = 1 << 20;

fn options(paths: &[&Path]) -> StudyOptions {
    StudyOptions {
        paths: paths.iter().map(|path| path.to_path_buf()).collect(),
        exact: false,
        codecs: vec![CodecSpec::LZ4, CodecSpec::ZSTD],
        cache_bytes: None,
        within_points: 1.0,
        windows_max: 8192,
        seed: 1,
        threads: NonZeroUsize::new(2).unwrap(),
    }
}

fn run(options: &StudyOptions) -> StudyReport {
    study(options, &mut |done, total| assert!(done <= total.max(done))).unwrap()
}

fn saved(report: &StudyReport, codec: CodecSpec, chunk_bytes: u64) -> flaz_data::study::estimate::Estimate {
    let row = report
        .chunks
        .iter()
        .find(|row| row.codec == codec && row.chunk_bytes == chunk_bytes);
    row.unwrap().saved
}

/// A file of generated data: each 4 MiB of another kind, some of it holes.
fn mixed_file(path: &Path, mib: u64) {
    let file = File::create(path).unwrap();
    file.set_len(mib * MIB).unwrap();
    for part in 0..mib {
        // In stretches of different data, as on real disks.
        let family = match flaz_random::mix(part / 3) % 5 {
            0 => continue,
            1 => (Family::Run, 80.0),
            2 => (Family::Run, 30.0),
            3 => (Family::Alphabet, 45.0),
            _ => (Family::Random, 0.0),
        };
        let generator = Generator::new(DataSpec::new(family.0, Level::new(family.1).unwrap())).unwrap();
        let mut data = vec![0; MIB as usize];
        generator.fill(part * MIB, &mut data);
        file.write_all_at(&data, part * MIB).unwrap();
    }
}

/// Savings on all blocks that are not zeroes, computed directly.
fn truth(path: &Path, codec: CodecSpec, chunk_bytes: usize) -> (f64, f64) {
    let data = fs::read(path).unwrap();
    let mut meter = Meter::new(codec);
    let (mut stored, mut zeroes) = (0, 0);
    for chunk in data.chunks(chunk_bytes) {
        if chunk.iter().all(|byte| *byte == 0) {
            zeroes += chunk.len();
        } else {
            stored += meter.stored_bytes(chunk);
        }
    }
    let percent = |part: usize| part as f64 * 100.0 / data.len() as f64;
    (100.0 - percent(stored), percent(zeroes))
}

#[test]
fn an_exact_study_reports_exact_shares() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    mixed_file(&path, 70);
    let report = run(&StudyOptions {
        exact: true,
        ..options(&[&path])
    });
    assert!(
        report.coverage.exact
            && report.coverage.studied_bytes == 70 * MIB
            && report.coverage.windows_studied == 70
    );
    for codec in [CodecSpec::LZ4, CodecSpec::ZSTD] {
        for chunk_bytes in [4096, 65536, 1 << 20] {
            let (saved_percent, zero_percent) = truth(&path, codec, chunk_bytes);
            let found = saved(&report, codec, chunk_bytes as u64);
            assert!(
                (found.percent - saved_percent).abs() < 1e-9,
                "{codec} {chunk_bytes}"
            );
            assert_eq!(
                (found.low_percent, found.high_percent),
                (found.percent, found.percent)
            );
            assert!(chunk_bytes > 4096 || (report.zeroes.percent - zero_percent).abs() < 1e-9);
        }
    }
    assert_eq!(report.duplicates.percent, 0.0);
    for row in &report.chunks {
        assert_eq!(
            row.histogram.iter().sum::<u64>() + row.zero_chunks,
            70 * MIB / row.chunk_bytes
        );
    }
}

#[test]
fn intervals_of_samples_contain_the_exact_shares() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    mixed_file(&path, 300);
    let exact = run(&StudyOptions {
        exact: true,
        ..options(&[&path])
    });
    let (mut held, mut asked) = (0, 0);
    for seed in 0..12 {
        let report = run(&StudyOptions {
            seed,
            windows_max: 64,
            ..options(&[&path])
        });
        assert!(!report.coverage.exact && report.coverage.windows_studied == 64);
        for codec in [CodecSpec::LZ4, CodecSpec::ZSTD] {
            let found = saved(&report, codec, 4096);
            let truth = saved(&exact, codec, 4096).percent;
            asked += 1;
            held += u32::from((found.low_percent..=found.high_percent).contains(&truth));
            assert!((1.0..15.0).contains(&found.half_points()), "{found:?}");
        }
    }
    // The coverage itself is tested on thousands of simulated windows; here on both codecs of twelve samples.
    assert!(held >= asked * 3 / 4, "{held} of {asked}");
}

#[test]
fn a_narrower_interval_takes_a_larger_sample() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    mixed_file(&path, 300);
    let wide = run(&StudyOptions {
        within_points: 20.0,
        ..options(&[&path])
    });
    let narrow = run(&StudyOptions {
        within_points: 6.0,
        ..options(&[&path])
    });
    assert_eq!(wide.coverage.windows_studied, 64);
    assert!(
        narrow.coverage.windows_studied > 64 && saved(&narrow, CodecSpec::LZ4, 4096).half_points() <= 6.0
    );
    assert_eq!(
        run(&StudyOptions {
            within_points: 6.0,
            ..options(&[&path])
        })
        .chunks,
        narrow.chunks
    );
}

#[test]
fn duplicates_are_counted_exactly_and_bounded_by_samples() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let mut spec = DataSpec::new(Family::Run, Level::new(50.0).unwrap());
    spec.dedup = Level::new(40.0).unwrap();
    let generator = Generator::new(spec).unwrap();
    let mut data = vec![0; 200 << 20];
    generator.fill(0, &mut data);
    fs::write(&path, &data).unwrap();
    let truth = (0..data.len() as u64 / 4096)
        .filter(|chunk| generator.is_duplicate(*chunk))
        .count();
    let truth = truth as f64 * 409_600.0 / data.len() as f64;
    let exact = run(&StudyOptions {
        exact: true,
        ..options(&[&path])
    })
    .duplicates;
    assert!((exact.percent - truth).abs() < 1e-9, "{exact:?} {truth}");
    let sampled = run(&StudyOptions {
        windows_max: 100,
        ..options(&[&path])
    });
    let found = sampled.duplicates;
    assert!(
        (found.low_percent..=found.high_percent).contains(&truth),
        "{found:?} {truth}"
    );
    assert!(found.percent > 15.0 && found.percent < 70.0, "{found:?}");
}

#[test]
fn directories_are_searched_once_and_without_links() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/one"), vec![1; 5000]).unwrap();
    fs::write(root.join("a/b/two"), vec![2; 4096]).unwrap();
    fs::write(root.join("a/empty"), []).unwrap();
    fs::hard_link(root.join("a/one"), root.join("a/again")).unwrap();
    std::os::unix::fs::symlink(root, root.join("a/loop")).unwrap();
    let report = run(&options(&[&root.join("a"), &root.join("a/b")]));
    // 5000 bytes are two blocks.
    assert_eq!(
        (report.coverage.files, report.coverage.total_bytes),
        (2, 3 * 4096)
    );
    assert_eq!(
        (
            report.coverage.skipped.special,
            report.coverage.skipped.hard_links
        ),
        (1, 2)
    );
    assert!(report.coverage.exact, "little data is read whole");
    assert!((report.single_value.percent - 200.0 / 3.0).abs() < 1e-9);
}

#[test]
fn the_distribution_that_a_study_writes_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, file) = (folder.path().join("disk"), folder.path().join("distribution"));
    mixed_file(&disk, 60);
    let report = run(&options(&[&disk]));
    fs::write(&file, report.distribution.to_json().unwrap()).unwrap();
    let read = Arc::new(flaz_data::Distribution::read(&file).unwrap());
    assert_eq!(*read, report.distribution);
    let generator = Generator::new(DataSpec::new(Family::Replay(read), Level::ZERO)).unwrap();
    let rows = measure(
        &generator,
        64 * MIB,
        &[CodecSpec::LZ4, CodecSpec::ZSTD],
        NonZeroUsize::new(2).unwrap(),
    );
    for row in rows.iter().filter(|row| row.window_bytes == 4096) {
        let of = report
            .chunks
            .iter()
            .find(|of| of.codec == row.codec && of.chunk_bytes == 4096);
        let of = of.unwrap();
        // 1024 windows with a deviation of 35 points: four standard errors.
        assert!(
            (row.saved.mean_percent - of.saved.percent).abs() < 4.5,
            "{row:?} {:?}",
            of.saved
        );
        assert!(
            (row.saved.stddev_points - of.stddev_points).abs() < 3.0,
            "{row:?} {}",
            of.stddev_points
        );
    }
}

#[test]
fn the_given_cache_size_is_assessed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    mixed_file(&path, 20);
    let report = run(&StudyOptions {
        cache_bytes: Some(5 * MIB),
        ..options(&[&path])
    });
    for cache in &report.outlook.cache {
        assert_eq!(cache.uncompressed_percent, Some(25.0));
        assert!(
            cache.holds_percent > Some(30.0) && cache.data_percent_of_cache.percent > 120.0,
            "{cache:?}"
        );
    }
    let page = flaz_data::study::page::study(&report);
    for part in [
        "Studied",
        "Zeroes",
        "Duplicates",
        "lz4",
        "zstd:1",
        "64 KiB chunks",
        "flaz cache holds",
        "SSD gains, by a model",
        "the modelled lifetime",
        " % without compression",
    ] {
        assert!(page.contains(part), "{part} is missing in\n{page}");
    }
    let mut lines = page.lines().filter(|line| !line.starts_with("Studied"));
    assert!(lines.all(|line| line.chars().count() <= 120), "{page}");
    // A cache that is larger than the data holds no more than all of it.
    let large = run(&StudyOptions {
        cache_bytes: Some(64 * MIB),
        ..options(&[&path])
    });
    let page = flaz_data::study::page::study(&large);
    assert!(
        page.contains("all of the data fits into 64.0 MiB, also without compression"),
        "{page}"
    );
    assert!(!page.contains("100.0 % of it"), "{page}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["schema"], "flaz-study/1");
    assert_eq!(json["chunks"][0]["codec"], "lz4");
}

#[test]
fn unusable_paths_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let refused = |paths: &[&Path]| study(&options(paths), &mut |_, _| {}).unwrap_err();
    let missing = root.join("missing");
    assert!(matches!(refused(&[&missing]), StudyError::Path { path, .. } if path == missing));
    assert!(matches!(refused(&[root]), StudyError::Nothing { .. }));
    assert!(matches!(refused(&[Path::new("/dev/null")]), StudyError::Kind(_)));
    fs::write(root.join("file"), vec![1; 10_000]).unwrap();
    let many = StudyOptions {
        codecs: (1..=9)
            .map(|level| CodecSpec::new(CodecId::ZLIB, Some(level)).unwrap())
            .collect(),
        ..options(&[root])
    };
    assert!(matches!(
        study(&many, &mut |_, _| {}),
        Err(StudyError::TooManyCodecs(11))
    ));
}

#[test]
fn a_shrinking_file_is_skipped_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let (small, large) = (folder.path().join("a"), folder.path().join("b"));
    let mut file = File::create(&small).unwrap();
    file.write_all(&vec![7; 2 << 20]).unwrap();
    fs::write(&large, vec![8; 2 << 20]).unwrap();
    let population = flaz_data::study::population::Population::of(&[small.clone(), large]).unwrap();
    file.set_len(4096).unwrap();
    let mut reader = flaz_data::study::population::WindowReader::new(&population);
    let (mut buffer, mut failures) = (vec![0; 1 << 20], Vec::new());
    assert_eq!(reader.read(0, &mut buffer, &mut failures), 0);
    assert_eq!((failures.len(), &failures[0].0), (1, &PathBuf::from(&small)));
    assert_eq!(reader.read(3, &mut buffer, &mut failures), 1 << 20);
    assert!(failures.len() == 1 && buffer.iter().all(|byte| *byte == 8));
}

#[test]
fn an_unreadable_part_keeps_the_rest_of_its_window() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for (name, value) in [("a", 1), ("b", 2), ("c", 3)] {
        fs::write(root.join(name), vec![value; 5000]).unwrap();
    }
    let population = flaz_data::study::population::Population::of(&[root.to_path_buf()]).unwrap();
    fs::remove_file(root.join("b")).unwrap();
    let mut reader = flaz_data::study::population::WindowReader::new(&population);
    let (mut buffer, mut failures) = (vec![9; 1 << 20], Vec::new());
    assert_eq!(reader.read(0, &mut buffer, &mut failures), 4 * 4096);
    assert_eq!(failures.len(), 1);
    let mut expected = vec![0; 4 * 4096];
    expected[..5000].fill(1);
    expected[8192..13192].fill(3);
    assert!(buffer[..4 * 4096] == expected);
}

#[test]
fn data_of_zeroes_has_no_share_of_duplicates() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zeroes");
    File::create(&path).unwrap().set_len(8 * MIB).unwrap();
    let report = run(&options(&[&path]));
    assert_eq!(report.duplicates.blocks_compared, 0);
    let page = flaz_data::study::page::study(&report);
    assert!(page.contains("there were no other blocks to compare"), "{page}");
}
