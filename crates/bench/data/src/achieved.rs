//! The compressibility that codecs achieve on generated data, compared with the request.
//!
//! A correct mean can hide chunks that save nothing beside chunks that save everything, so every figure includes the
//! spread. Windows are taken evenly over the data, at multiples of their size, where a device would compress them.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use flaz_codec::{CodecSpec, Meter};
use serde::Serialize;

use crate::generator::Generator;

/// Sizes that are compressed separately: a block, an extent, a large record.
pub const WINDOW_BYTES: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
/// The codecs for which generated data is calibrated.
pub const CALIBRATED: [CodecSpec; 3] = [CodecSpec::LZ4, CodecSpec::ZSTD, CodecSpec::ZLIB];
/// Number of windows measured at each of these sizes, if the data has them: 4 MiB, 8 MiB and 24 MiB.
const WINDOWS_MAX: [u64; 3] = [1024, 128, 24];

/// Savings of one codec on windows of one size.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Achieved {
    /// The codec.
    #[schemars(with = "String")]
    pub codec: CodecSpec,
    /// Size of the windows.
    pub window_bytes: u64,
    /// Number of measured windows.
    pub windows: u64,
    /// Share saved in percent; 0 for a window that the codec does not make smaller.
    #[serde(flatten)]
    pub saved: Spread,
}

/// Mean and spread of some percentages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Spread {
    /// Mean.
    pub mean_percent: f64,
    /// Standard deviation over the windows.
    pub stddev_points: f64,
    /// Smallest.
    pub min_percent: f64,
    /// Fifth percentile.
    pub p5_percent: f64,
    /// Median.
    pub median_percent: f64,
    /// Ninety-fifth percentile.
    pub p95_percent: f64,
    /// Largest.
    pub max_percent: f64,
}

impl Spread {
    /// Of at least one value.
    #[must_use]
    pub fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let count = sorted.len() as f64;
        let mean = sorted.iter().sum::<f64>() / count;
        let square = sorted.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
        let at = |share: f64| sorted[(share * (count - 1.0)).round() as usize];
        Some(Self {
            mean_percent: mean,
            stddev_points: (square / count).sqrt(),
            min_percent: min,
            p5_percent: at(0.05),
            median_percent: at(0.5),
            p95_percent: at(0.95),
            max_percent: max,
        })
    }
}

/// Compresses windows of the first `size_bytes` bytes of the generator's data. Returns a row for each codec and each
/// size of which the data has at least one window.
#[must_use]
pub fn measure(
    generator: &Generator,
    size_bytes: u64,
    codecs: &[CodecSpec],
    threads: NonZeroUsize,
) -> Vec<Achieved> {
    let windows: Vec<(usize, u64)> = WINDOW_BYTES
        .iter()
        .zip(WINDOWS_MAX)
        .enumerate()
        .flat_map(|(size, (window_bytes, most))| {
            let all = size_bytes / window_bytes;
            let count = all.min(most);
            // Evenly over the data, not only at the front of each part.
            (0..count).map(move |n| (size, (2 * n + 1) * all / (2 * count) * window_bytes))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let saved = Mutex::new(vec![vec![0.0; codecs.len()]; windows.len()]);
    thread::scope(|scope| {
        for _ in 0..threads.get().min(windows.len()) {
            scope.spawn(|| {
                let mut meters: Vec<Meter> = codecs.iter().map(|codec| Meter::new(*codec)).collect();
                let mut buffer = vec![0; WINDOW_BYTES[WINDOW_BYTES.len() - 1] as usize];
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(size, offset)) = windows.get(place) else {
                        break;
                    };
                    let window = &mut buffer[..WINDOW_BYTES[size] as usize];
                    generator.fill(offset, window);
                    let found: Vec<f64> = meters
                        .iter_mut()
                        .map(|meter| meter.saved(window) * 100.0)
                        .collect();
                    saved.lock().unwrap_or_else(PoisonError::into_inner)[place] = found;
                }
            });
        }
    });
    rows(
        codecs,
        &windows,
        &saved.into_inner().unwrap_or_else(PoisonError::into_inner),
    )
}

fn rows(codecs: &[CodecSpec], windows: &[(usize, u64)], saved: &[Vec<f64>]) -> Vec<Achieved> {
    let mut rows = Vec::new();
    for (number, codec) in codecs.iter().enumerate() {
        for (size, window_bytes) in WINDOW_BYTES.iter().enumerate() {
            let figures: Vec<f64> = windows
                .iter()
                .zip(saved)
                .filter(|((of, _), _)| *of == size)
                .map(|(_, saved)| saved[number])
                .collect();
            if let Some(spread) = Spread::of(&figures) {
                rows.push(Achieved {
                    codec: *codec,
                    window_bytes: *window_bytes,
                    windows: figures.len() as u64,
                    saved: spread,
                });
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layouts were calibrated for these levels, even if the defaults change.
    #[test]
    fn calibrated_codecs_have_fixed_levels() {
        assert_eq!(
            CALIBRATED.map(|codec| codec.to_string()),
            ["lz4", "zstd:1", "zlib:6"]
        );
    }
}
