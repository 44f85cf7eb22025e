//! How well the written data compresses: one share for all units, or the distribution that `flaz study` measured.

use std::path::Path;

use flaz_codec::CodecSpec;
use flaz_data::distribution::DistributionError;
use flaz_data::{Distribution, Level};
use flaz_random::{mix, scale};

use super::description::Description;

/// What the codec of a device leaves of the units of some data.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    name: String,
    /// Shares that are left, with the number of units up to this one. Not empty; the last number is positive.
    shares: Vec<(f64, u64)>,
}

/// Why there is no mix.
#[derive(Debug, thiserror::Error)]
pub enum MixError {
    /// The distribution cannot be read.
    #[error(transparent)]
    Read(#[from] DistributionError),
    /// It has other chunks.
    #[error(
        "the distribution has chunks of {found} bytes, and the device compresses units of {wanted}: expected both in \
         `flaz study` and in the description of the device"
    )]
    Unit {
        /// Its chunks.
        found: String,
        /// Unit of the device.
        wanted: u64,
    },
}

impl Mix {
    /// Data of which every unit compresses by the same share.
    #[must_use]
    pub fn level(level: Level) -> Self {
        Self {
            name: format!("{} %", level.percent()),
            shares: vec![(1.0 - level.share(), 1)],
        }
    }

    /// Data as `flaz study` measured it: by LZ4 or by zstd, whichever is closer to the codec of the device.
    ///
    /// # Errors
    /// It cannot be read, or has no chunks of the size of the device's unit.
    pub fn measured(path: &Path, device: &Description) -> Result<Self, MixError> {
        let distribution = Distribution::read(path)?;
        let wanted = device.unit_bytes();
        let size = distribution.size(wanted).ok_or_else(|| MixError::Unit {
            found: distribution.sizes_text(),
            wanted,
        })?;
        let engine = device.controller.engine.id();
        let has_entropy_stage = [CodecSpec::ZSTD, CodecSpec::ZLIB]
            .iter()
            .any(|codec| codec.id() == engine);
        let mut total = size.zero_chunks;
        let mut shares = vec![(0.0, total)];
        for row in &size.rows {
            let saved = match has_entropy_stage {
                true => row.entropy_percent,
                false => row.matched_percent,
            };
            total += row.chunks;
            shares.push((1.0 - saved / 100.0, total));
        }
        Ok(Self {
            name: path
                .file_name()
                .unwrap_or(path.as_os_str())
                .to_string_lossy()
                .into_owned(),
            shares,
        })
    }

    /// Its name: the level, or the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Granules of a unit on `device`. Every unit always compresses the same way.
    #[must_use]
    pub fn granules(&self, device: &Description, unit: u32) -> u8 {
        if device.controller.engine == CodecSpec::NONE {
            return device.granules(1.0);
        }
        let (_, total) = self.shares[self.shares.len() - 1];
        let drawn = scale(mix(unit.into()), total);
        let at = self.shares.partition_point(|(_, until)| *until <= drawn);
        device.granules(self.shares[at].0)
    }

    /// Mean share of a unit that `device` stores.
    #[must_use]
    pub fn stored_fraction(&self, device: &Description) -> f64 {
        if device.controller.engine == CodecSpec::NONE {
            return 1.0;
        }
        let lowest = device.controller.lowest_fraction;
        let (mut before, mut sum) = (0, 0.0);
        for (share, until) in &self.shares {
            sum += share.max(lowest).min(1.0) * (until - before) as f64;
            before = *until;
        }
        sum / before as f64
    }
}

#[cfg(test)]
mod tests {
    use super::super::description_file::preset;
    use super::*;

    const TEXT: &str = r#"{"schema": "flaz-distribution/1", "source": "x", "measured_bytes": 40960, "duplicate_percent": 0,
        "sizes": [{"chunk_bytes": 4096, "zero_chunks": 2, "rows": [
            {"lz4_percent": 0, "zstd_percent": 50, "chunks": 3}, {"lz4_percent": 50, "zstd_percent": 75, "chunks": 5}]}]}"#;

    #[test]
    fn levels_and_measured_data_have_their_mean() {
        let device = preset("sf1222").unwrap();
        let level = |percent| Mix::level(Level::new(percent).unwrap());
        assert_eq!(level(98.0).stored_fraction(&device), 0.14);
        assert_eq!(level(25.0).stored_fraction(&device), 0.75);
        assert_eq!(level(25.0).granules(&device, 9), 48);
        let raw = preset("sf1222-raw").unwrap();
        assert_eq!(
            (level(98.0).stored_fraction(&raw), level(98.0).granules(&raw, 1)),
            (1.0, 64)
        );

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.json");
        std::fs::write(&path, TEXT).unwrap();
        let measured = Mix::measured(&path, &device).unwrap();
        assert_eq!(measured.name(), "d.json");
        let mean = measured.stored_fraction(&device);
        assert!(
            (mean - (2.0 * 0.14 + 3.0 + 5.0 * 0.5) / 10.0).abs() < 1e-9,
            "{mean}"
        );
        let drawn: f64 = (0..100_000)
            .map(|unit| f64::from(measured.granules(&device, unit)))
            .sum();
        // 0.14 is stored in 9 of 64 granules.
        assert!((drawn / 64.0 / 100_000.0 - mean).abs() < 0.005, "{drawn}");
        let mut entropy = device.clone();
        entropy.controller.engine = CodecSpec::ZLIB;
        assert!(Mix::measured(&path, &entropy).unwrap().stored_fraction(&entropy) < mean);
        entropy.controller.unit_kib = 32;
        let error = Mix::measured(&path, &entropy).unwrap_err().to_string();
        assert!(
            error.contains("chunks of 4096 bytes") && error.contains("units of 32768"),
            "{error}"
        );
    }
}
