//! Estimates the value of compression: in a flaz cache of a given size, and in an SSD that compresses.
//!
//! Both are models; the report lists their assumptions. The cache is filled with blocks like the measured ones, in the
//! layout of `docs/format.md`: fragments with a granularity of 8 bytes in extents of 64 KiB whose header has 56
//! records, and one summary per region. The SSD compresses blocks of 4 KiB and packs them without loss: its flash
//! writes shrink by the savings, and the free flash becomes spare space.

use flaz_codec::CodecSpec;
use serde::Serialize;

use super::estimate::{self, Estimate};
use super::sample::Measured;
use super::window::{BLOCK_BYTES, WindowSums};

/// Payload of an extent: 64 KiB minus its header.
const EXTENT_PAYLOAD_BYTES: f64 = 65_024.0;
/// Its header.
const EXTENT_HEADER_BYTES: f64 = 512.0;
/// Number of records that fit into the header.
const EXTENT_RECORDS: f64 = 56.0;
/// Bytes in the region's summary for an extent, and for a record.
const SUMMARY_BYTES: (f64, f64) = (24.0, 8.0);
/// Maximum number of records per 4 KiB of a region.
const RECORDS_PER_BLOCK_MAX: f64 = 8.0;
/// Spare space of the SSD, as a share of its capacity.
pub const SPARE_SHARE: f64 = 0.07;

/// Contents of a flaz cache with such data and one codec.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct CacheOutlook {
    /// The codec.
    #[schemars(with = "String")]
    pub codec: CodecSpec,
    /// Bytes of data per 100 bytes of cache, with interval.
    pub data_percent_of_cache: Estimate,
    /// Bytes of data in a cache of the given size.
    pub holds_bytes: Option<u64>,
    /// As a share of the studied data, at most 100.
    pub holds_percent: Option<f64>,
    /// The same share for a cache without compression.
    pub uncompressed_percent: Option<f64>,
}

/// Gain of an SSD that compresses such data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct SsdOutlook {
    /// The codec that models its controller.
    #[schemars(with = "String")]
    pub codec: CodecSpec,
    /// Bytes written to flash per byte from the host, before garbage collection.
    pub flash_writes_ratio: f64,
    /// Maximum speed-up of sequential writes, if the flash and not the interface is the bottleneck.
    pub sequential_write_gain_max: f64,
    /// Lifetime gain for sequential writes.
    pub sequential_lifetime_gain: f64,
    /// Write amplification of a full drive with random writes, without compression.
    pub write_amplification_plain: f64,
    /// The same with compression.
    pub write_amplification_compressed: f64,
    /// Lifetime gain, and maximum speed-up, for such random writes.
    pub random_lifetime_gain: f64,
}

/// Bytes of the cache device that the blocks of a window take.
fn cache_bytes(sums: &WindowSums, codec: usize) -> f64 {
    let fragments = sums.fragment_bytes[codec] as f64;
    let records = (sums.bytes / BLOCK_BYTES) as f64;
    let extents = (fragments / EXTENT_PAYLOAD_BYTES).max(records / EXTENT_RECORDS);
    let used = fragments + extents * (EXTENT_HEADER_BYTES + SUMMARY_BYTES.0) + records * SUMMARY_BYTES.1;
    used.max(records * BLOCK_BYTES as f64 / RECORDS_PER_BLOCK_MAX)
}

/// Contents of a cache, by codec.
pub(super) fn caches(measured: &Measured, size_bytes: Option<u64>, data_bytes: u64) -> Vec<CacheOutlook> {
    let of = |number: usize, codec: CodecSpec| {
        let pairs = measured
            .sums
            .iter()
            .map(|sums| (cache_bytes(sums, number), sums.bytes as f64));
        let used = estimate::ratio(pairs, measured.windows_readable())?;
        // Converts bytes per byte of data to data per byte.
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

/// Gain of an SSD whose controller saves `saved_percent` of blocks of 4 KiB.
#[must_use]
pub fn ssd(codec: CodecSpec, saved_percent: f64) -> SsdOutlook {
    // With only zero blocks the gain would be infinite, but a mapping entry is written even then.
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

/// Write amplification when data occupies the share `full` of the flash, writes are uniformly random and the oldest
/// flash is cleaned first: 1 / (1 - x), where x, the share of it that is still valid, satisfies full = (x - 1) / ln x
/// (Menon, "A performance comparison of RAID-5 and log-structured arrays", HPDC 1995).
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
    fn write_amplification_matches_the_model() {
        // (0.2 - 1) / ln 0.2 = 0.49707: a fifth is valid, so 1.25 times the data is written.
        assert!((write_amplification(0.497_07) - 1.25).abs() < 1e-3);
        assert!(write_amplification(0.01) < 1.001);
        assert!(write_amplification(0.934_58) > 6.0);
    }

    #[test]
    fn an_ssd_gains_at_least_the_savings() {
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
    fn raw_blocks_fill_slightly_less_than_the_cache_size() {
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
