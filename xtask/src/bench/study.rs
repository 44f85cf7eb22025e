//! The overhead of `flaz study` compared with the codecs alone: reading, detection of zeroes, fingerprints, histograms.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use flaz_codec::Meter;
use flaz_data::distribution::CODECS;
use flaz_data::study::window::CHUNK_BYTES;
use flaz_data::study::{self, StudyOptions, WINDOWS_MAX_DEFAULT, WITHIN_POINTS_DEFAULT};

use super::options::{BenchError, Options};
use super::real_data::real_data;
use super::row::{Row, Spread};

/// One pass of each codec over each chunk size.
fn codecs_alone(data: &[u8]) -> Duration {
    let mut meters = CODECS.map(Meter::new);
    let began = Instant::now();
    for meter in &mut meters {
        for chunk_bytes in CHUNK_BYTES {
            for chunk in data.chunks(chunk_bytes as usize) {
                std::hint::black_box(meter.stored_bytes(chunk));
            }
        }
    }
    began.elapsed()
}

/// Rows of `flaz study`.
///
/// # Errors
/// The file to study cannot be written or studied.
pub fn rows(options: &Options, runs: usize, bar: &indicatif::ProgressBar) -> Result<Vec<Row>, BenchError> {
    let data = real_data(if options.quick { 48 << 20 } else { 128 << 20 });
    let folder = match &options.dir {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let path = folder.path().join("data");
    std::fs::write(&path, &data)?;
    let study_options = StudyOptions {
        paths: vec![path],
        exact: true,
        codecs: CODECS.to_vec(),
        cache_bytes: None,
        within_points: WITHIN_POINTS_DEFAULT,
        windows_max: WINDOWS_MAX_DEFAULT,
        seed: 1,
        threads: NonZeroUsize::MIN,
    };
    let (mut ours, mut alone) = (Vec::new(), Vec::new());
    // One run that is not counted: pages and code are touched for the first time.
    codecs_alone(&data);
    for run in 0..runs {
        bar.set_message(format!("study, run {} of {runs}", run + 1));
        alone.push(codecs_alone(&data).as_secs_f64());
        let began = Instant::now();
        study::study(&study_options, &mut |_, _| {})?;
        ours.push(began.elapsed().as_secs_f64());
    }
    Ok(vec![Row {
        what: "study in full, LZ4 and zstd:1 at three sizes, a thread".into(),
        peer: "the codecs alone".into(),
        budget: "0.8 / 0.9",
        reached: Spread::of_ratios(&alone, &ours).ok_or_else(|| "no runs".into()),
        unit: "x",
    }])
}
