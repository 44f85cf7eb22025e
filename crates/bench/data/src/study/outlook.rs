//! What compression would be worth: in a flaz cache of some size, and in an SSD that compresses.
//!
//! Both are models, with their assumptions in the report. The cache is filled with blocks like those measured, by the
//! layout of `docs/format.md`: fragments of 8-byte granularity in extents of 64 KiB, whose header holds 56 records,
//! and a summary a region. The SSD compresses blocks of 4 KiB and packs them without loss: what it writes to its
//! flash shrinks by what is saved, and what it does not need for data it uses as spare space.

use flaz_codec::CodecSpec;
use serde::Serialize;

use super::estimate::{self, Estimate};
use super::sample::Measured;
use super::window::{BLOCK_BYTES, WindowSums};

/// Payload of an extent: 64 KiB without its header.
const EXTENT_PAYLOAD_BYTES: f64 = 65_024.0;
/// Its header.
const EXTENT_HEADER_BYTES: f64 = 512.0;
/// Records that fit the header.
const EXTENT_RECORDS: f64 = 56.0;
/// What the region's summary has of an extent, and of a record.
const SUMMARY_BYTES: (f64, f64) = (24.0, 8.0);
/// Most records a 4 KiB of region.
const RECORDS_PER_BLOCK_MAX: f64 = 8.0;
/// Spare space of the SSD, as a share of what it offers.
pub const SPARE_SHARE: f64 = 0.07;

/// What a flaz cache would hold of such data, with one codec.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CacheOutlook {
    /// The codec.
    pub codec: CodecSpec,
    /// Bytes of data for each 100 bytes of cache, with interval.
    pub data_percent_of_cache: Estimate,
    /// Data that a cache of the size that was named holds.
    pub holds_bytes: Option<u64>,
    /// As a share of what was studied, at most 100.
    pub holds_percent: Option<f64>,
    /// The same of a cache that does not compress.
    pub uncompressed_percent: Option<f64>,
}

/// What an SSD that compresses would gain with such data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SsdOutlook {
    /// What its controller compresses like.
    pub codec: CodecSpec,
    /// Bytes written to flash for each byte from the host, before cleaning.
    pub flash_writes_ratio: f64,
    /// Most gain in the speed of sequential writes, if flash is the bottleneck and not the interface.
    pub sequential_write_gain_max: f64,
    /// Gain in lifetime of sequential writes.
    pub sequential_lifetime_gain: f64,
    /// Flash writes for each write of the drive full of such data, written at random: without compression.
    pub write_amplification_plain: f64,
    /// The same with it.
    pub write_amplification_compressed: f64,
    /// Gain in lifetime, and at most in speed, of such random writes.
    pub random_lifetime_gain: f64,
}

/// Device bytes that a window's blocks take in a cache.
fn cache_bytes(sums: &WindowSums, codec: usize) -> f64 {
    let fragments = sums.fragment_bytes[codec] as f64;
    let records = (sums.bytes / BLOCK_BYTES) as f64;
    let extents = (fragments / EXTENT_PAYLOAD_BYTES).max(records / EXTENT_RECORDS);
    let used = fragments + extents * (EXTENT_HEADER_BYTES + SUMMARY_BYTES.0) + records * SUMMARY_BYTES.1;
    used.max(records * BLOCK_BYTES as f64 / RECORDS_PER_BLOCK_MAX)
}

/// What a cache would hold, by codec.
pub(super) fn caches(measured: &Measured, size_bytes: Option<u64>, data_bytes: u64) -> Vec<CacheOutlook> {
    let of = |number: usize, codec: CodecSpec| {
        let pairs = measured
            .sums
            .iter()
            .map(|sums| (cache_bytes(sums, number), sums.bytes as f64));
        let used = estimate::ratio(pairs, measured.windows_readable())?;
        // Of bytes for each byte of data to data for each byte.
        let inverse = |percent: f64| 10_000.0 / percent.max(100.0 / RECORDS_PER_BLOCK_MAX);
        let data = Estimate {
            percent: inverse(used.percent),
            low_percent: inverse(used.high_percent),
            high_percent: inverse(used.low_percent),
        };
        let share = |bytes: f64| (bytes / data_bytes as f64 * 100.0).min(100.0);
        let holds = size_bytes.map(|size| size as f64 * data.percent / 100.0);
        Some(CacheOutlook {
            codec,
            data_percent_of_cache: data,
            holds_bytes: holds.map(|bytes| bytes as u64),
            holds_percent: holds.map(share),
            uncompressed_percent: size_bytes.map(|size| share(size as f64)),
        })
    };
    let codecs = measured.codecs.iter().enumerate();
    codecs.filter_map(|(number, codec)| of(number, *codec)).collect()
}

/// What an SSD would gain whose controller saves `saved_percent` of blocks of 4 KiB.
#[must_use]
pub fn ssd(codec: CodecSpec, saved_percent: f64) -> SsdOutlook {
    // Blocks of zeroes alone would make it infinite; a mapping entry is written even then.
    let kept = (1.0 - saved_percent / 100.0).max(0.01);
    let plain = write_amplification(1.0 / (1.0 + SPARE_SHARE));
    let compressed = write_amplification(kept / (1.0 + SPARE_SHARE));
    SsdOutlook {
        codec,
        flash_writes_ratio: kept,
        sequential_write_gain_max: 1.0 / kept,
        sequential_lifetime_gain: 1.0 / kept,
        write_amplification_plain: plain,
        write_amplification_compressed: compressed * kept,
        random_lifetime_gain: plain / (compressed * kept),
    }
}

/// Flash writes for each write when `full` of the flash holds data, writes are uniformly random and the oldest flash
/// is cleaned first: 1 / (1 - x), where x, what is still valid of it, satisfies full = (x - 1) / ln x (Menon, "A
/// performance comparison of RAID-5 and log-structured arrays", HPDC 1995).
#[must_use]
pub fn write_amplification(full: f64) -> f64 {
    let (mut low, mut high) = (0.0_f64, 1.0_f64);
    for _ in 0..60 {
        let valid = low.midpoint(high);
        if (valid - 1.0) / valid.ln() < full {
            low = valid;
        } else {
            high = valid;
        }
    }
    1.0 / (1.0 - low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_amplification_is_that_of_the_model() {
        // (0.2 - 1) / ln 0.2 = 0.49707: a fifth is valid, so five quarters are written.
        assert!((write_amplification(0.497_07) - 1.25).abs() < 1e-3);
        assert!(write_amplification(0.01) < 1.001);
        assert!(write_amplification(0.934_58) > 6.0);
    }

    #[test]
    fn an_ssd_gains_what_is_saved_and_more() {
        let nothing = ssd(CodecSpec::LZ4, 0.0);
        assert_eq!(
            (nothing.sequential_lifetime_gain, nothing.random_lifetime_gain),
            (1.0, 1.0)
        );
        let half = ssd(CodecSpec::LZ4, 50.0);
        assert_eq!(half.sequential_lifetime_gain, 2.0);
        assert!(half.random_lifetime_gain > 2.0);
        assert!(ssd(CodecSpec::LZ4, 100.0).random_lifetime_gain.is_finite());
    }

    #[test]
    fn a_cache_of_raw_blocks_holds_a_little_less_than_its_size() {
        let raw = WindowSums {
            bytes: 1 << 20,
            fragment_bytes: vec![256 * 4104],
            ..WindowSums::default()
        };
        let overhead = cache_bytes(&raw, 0) / (1 << 20) as f64;
        assert!((1.0..1.02).contains(&overhead), "{overhead}");
        let zeroes = WindowSums {
            bytes: 1 << 20,
            fragment_bytes: vec![0],
            ..WindowSums::default()
        };
        assert_eq!(cache_bytes(&zeroes, 0) * 8.0, (1 << 20) as f64);
    }
}
