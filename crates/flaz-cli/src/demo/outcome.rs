//! What the demo found: the struct behind the table, the page and the JSON.
//!
//! Field names end in their unit. Times of one run count from the start of its measured phase.

use serde::Serialize;

use super::dataset::DataSummary;

/// Version of the JSON form.
pub const OUTCOME_SCHEMA: u32 = 1;

/// The three ways to run the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Everything goes to the slow disk.
    NoCache,
    /// The SSD caches blocks as they are.
    Uncompressed,
    /// The SSD caches blocks compressed.
    Compressed,
}

impl Variant {
    /// All, in the order they are run and shown.
    pub const ALL: [Self; 3] = [Self::NoCache, Self::Uncompressed, Self::Compressed];

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Self::NoCache => "no cache",
            Self::Uncompressed => "uncompressed",
            Self::Compressed => "compressed",
        }
    }
}

/// Everything the demo found.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// [`OUTCOME_SCHEMA`].
    pub schema: u32,
    /// Version of flaz.
    pub version: String,
    /// How it was done.
    pub parameters: Parameters,
    /// The data.
    pub data: DataSummary,
    /// One for each variant, in the order of [`Variant::ALL`].
    pub runs: Vec<Run>,
    /// Seconds it took, all in all.
    pub total_s: f64,
}

/// How it was done.
#[derive(Debug, Clone, Serialize)]
pub struct Parameters {
    /// Size of the SSD (the cache file) in bytes.
    pub ssd_bytes: u64,
    /// Codec of the compressed run.
    pub codec: String,
    /// Clients at a time, each with one request in flight.
    pub clients: u32,
    /// Exponent of the Zipf distribution of popularity.
    pub skew: f64,
    /// Share of the requests that write, in percent.
    pub write_percent: f64,
    /// Seed of the requests.
    pub seed: u64,
    /// Requests to warm a cache up.
    pub warmup_requests: u64,
    /// Seconds measured in each run.
    pub measured_s: f64,
    /// Share of the requests that go to the hottest quarter of the data: what no cache of a quarter can exceed by much.
    pub hottest_quarter_share: f64,
    /// The slow disk.
    pub emulated_disk: String,
    /// CPU cores of the machine.
    pub cores: u64,
    /// Kernel and processor.
    pub machine: String,
    /// Whether the files lay in memory instead of on a disk.
    pub files_in_memory: bool,
}

/// One run of the workload.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// Which.
    pub variant: Variant,
    /// Requests finished in the measured phase.
    pub requests: u64,
    /// Of those, reads.
    pub reads: u64,
    /// Of those, writes.
    pub writes: u64,
    /// Requests a second.
    pub iops: f64,
    /// Bytes read and written by the clients a second, in MiB.
    pub mib_per_s: f64,
    /// Latency of reads and writes.
    pub latency_us: Latency,
    /// Cumulative distribution: (latency in microseconds, share of requests at most that slow).
    pub latency_cdf: Vec<(f64, f64)>,
    /// Share of the blocks read that the cache had; 0 without one.
    pub hit_ratio: f64,
    /// CPU time of the server in the measured phase.
    pub cpu_s: f64,
    /// CPU time of the server for each request.
    pub cpu_us_per_request: f64,
    /// Bytes written to the SSD from empty to the end.
    pub ssd_written_bytes: u64,
    /// Bytes written to the SSD in the measured phase.
    pub ssd_written_measured_bytes: u64,
    /// What the SSD holds at the end; absent without a cache.
    pub holdings: Option<Holdings>,
    /// Hit ratio while warming up: (requests so far, hit ratio of late).
    pub warmup: Vec<(u64, f64)>,
    /// Hit ratio over time: (second, hit ratio of late).
    pub hit_ratio_series: Vec<(f64, f64)>,
    /// Throughput over time: (second at the middle of the slice, requests a second).
    pub iops_series: Vec<(f64, f64)>,
    /// Whether the cache was warm after the restart between the phases.
    pub restarted_warm: bool,
    /// Blocks that were read by clients and checked, warm-up included.
    pub blocks_verified: u64,
    /// Bytes of the emulated disk that were compared with what was written, at the end.
    pub disk_bytes_verified: u64,
    /// Fragments that `flaz check` read, checked and decompressed at the end.
    pub fragments_verified: u64,
}

/// Latency in microseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}

/// What the SSD holds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Holdings {
    /// Size of the SSD.
    pub ssd_bytes: u64,
    /// Blocks cached.
    pub cached_blocks: u64,
    /// Those blocks before compression: the data the SSD stands for.
    pub logical_bytes: u64,
    /// Bytes of the fragments of those blocks.
    pub fragment_bytes: u64,
    /// Of the regions in use, what is no cached fragment: headers, padding, outdated and dropped fragments.
    pub other_bytes: u64,
    /// Bytes of free regions, kept ready or not yet used.
    pub free_bytes: u64,
    /// Superblocks, index and other metadata.
    pub metadata_bytes: u64,
    /// Share of the blocks given to the codec that it could not shrink, by count.
    pub raw_share: f64,
    /// Blocks of one repeated value, that take no space.
    pub single_value_blocks: u64,
}

impl Holdings {
    /// How much smaller the cached blocks are as fragments.
    pub fn ratio(&self) -> f64 {
        if self.fragment_bytes == 0 {
            1.0
        } else {
            self.logical_bytes as f64 / self.fragment_bytes as f64
        }
    }

    /// How much data the SSD stands for, by its size.
    pub fn effective(&self) -> f64 {
        if self.ssd_bytes == 0 {
            0.0
        } else {
            self.logical_bytes as f64 / self.ssd_bytes as f64
        }
    }
}

impl Outcome {
    /// The run of a variant.
    pub fn run(&self, variant: Variant) -> Option<&Run> {
        self.runs.iter().find(|run| run.variant == variant)
    }

    /// Requests a second of `variant` by those of `other`.
    pub fn speedup(&self, variant: Variant, other: Variant) -> f64 {
        match (self.run(variant), self.run(other)) {
            (Some(run), Some(other)) if other.iops > 0.0 => run.iops / other.iops,
            _ => 0.0,
        }
    }

    /// Blocks verified in all runs.
    pub fn blocks_verified(&self) -> u64 {
        self.runs.iter().map(|run| run.blocks_verified).sum()
    }

    /// The result in one sentence, whatever it is.
    pub fn headline(&self) -> String {
        /// Differences below this are noise in a demo of a few seconds.
        const NOISE: f64 = 0.03;
        let gain = self.speedup(Variant::Compressed, Variant::Uncompressed);
        let over_disk = self.speedup(Variant::Compressed, Variant::NoCache);
        let held = self
            .run(Variant::Compressed)
            .and_then(|run| run.holdings)
            .unwrap_or_default();
        if gain > 1.0 + NOISE {
            format!(
                "From the same SSD, the compressed cache serves {gain:.2} times the requests of the uncompressed \
                 one, and {over_disk:.1} times those of the disk alone."
            )
        } else if gain < 1.0 - NOISE {
            format!(
                "Here the compressed cache is slower: {gain:.2} times the requests of the uncompressed one \
                 (the data compresses {:.2}:1).",
                held.ratio()
            )
        } else {
            format!(
                "Here compression makes no difference beyond noise ({gain:.2} times the requests of the \
                 uncompressed cache; the data compresses {:.2}:1); the cache as such serves {over_disk:.1} times \
                 those of the disk alone.",
                held.ratio()
            )
        }
    }
}

/// A made-up outcome, for the tests of what shows one.
#[cfg(test)]
pub mod sample {
    use super::*;

    /// Three runs in which compression helps.
    pub fn outcome() -> Outcome {
        Outcome {
            schema: OUTCOME_SCHEMA,
            version: "0.1.0".into(),
            parameters: Parameters {
                ssd_bytes: 64 << 20,
                codec: "lz4".into(),
                clients: 4,
                skew: 0.9,
                write_percent: 5.0,
                seed: 1,
                warmup_requests: 51_200,
                measured_s: 12.0,
                hottest_quarter_share: 0.78,
                emulated_disk: "an emulated hard disk (12.6 ms, 100 MB/s)".into(),
                cores: 2,
                machine: "Linux 6.1, Some Processor <8 GHz> & more".into(),
                files_in_memory: false,
            },
            data: DataSummary {
                source: "files of /usr/lib and /usr/share".into(),
                bytes: 256 << 20,
                files: 1942,
                candidates: 60_123,
                pieces: 2519,
                folders: vec![
                    ("/usr/lib/x86_64-linux-gnu".into(), 0.6),
                    ("/usr/share/fonts".into(), 0.25),
                ],
                zero_blocks: 300,
                walk_cut_short: false,
            },
            runs: vec![
                run(Variant::NoCache, 78.0, 0.0, None),
                run(Variant::Uncompressed, 240.0, 0.72, Some(holdings(61, 61))),
                run(Variant::Compressed, 330.0, 0.81, Some(holdings(90, 60))),
            ],
            total_s: 58.2,
        }
    }

    fn holdings(logical_mib: u64, fragment_mib: u64) -> Holdings {
        Holdings {
            ssd_bytes: 64 << 20,
            cached_blocks: logical_mib << 8,
            logical_bytes: logical_mib << 20,
            fragment_bytes: fragment_mib << 20,
            other_bytes: 1 << 20,
            free_bytes: (63 - 1 - fragment_mib) << 20,
            metadata_bytes: 1 << 20,
            raw_share: 0.2,
            single_value_blocks: 12,
        }
    }

    fn run(variant: Variant, iops: f64, hit_ratio: f64, holdings: Option<Holdings>) -> Run {
        let requests = (iops * 12.0) as u64;
        let wobble = |second: f64| (second * 2.1).sin() * 0.02;
        let seconds = || (0..60).map(|step| f64::from(step) * 0.2 + 0.2);
        Run {
            variant,
            requests,
            reads: requests * 95 / 100,
            writes: requests * 5 / 100,
            iops,
            mib_per_s: iops * 0.01,
            latency_us: Latency {
                mean: 4e6 / iops,
                p50: 300.0,
                p90: 3e4,
                p99: 7.5e4,
                p999: 9e4,
                max: 1e5,
            },
            latency_cdf: (0..=200)
                .map(|step| {
                    let micros = 10f64.powf(f64::from(step) / 40.0);
                    let slow = 1.0 / (1.0 + (-(micros.ln() - 10.5) * 5.0).exp());
                    let quick = 1.0 / (1.0 + (-(micros.ln() - 5.3) * 4.0).exp());
                    (micros, hit_ratio * quick + (1.0 - hit_ratio) * slow)
                })
                .collect(),
            hit_ratio,
            cpu_s: 0.4,
            cpu_us_per_request: 400_000.0 / requests as f64,
            ssd_written_bytes: 120 << 20,
            ssd_written_measured_bytes: 9 << 20,
            holdings,
            warmup: (1..30)
                .map(|step| (step * 1700, hit_ratio * (1.0 - (-(step as f64) / 5.0).exp())))
                .collect(),
            hit_ratio_series: seconds()
                .map(|second| (second, hit_ratio + wobble(second) * hit_ratio))
                .collect(),
            iops_series: seconds()
                .step_by(3)
                .map(|second| (second, iops * (1.0 + 3.0 * wobble(second))))
                .collect(),
            restarted_warm: holdings.is_some(),
            blocks_verified: requests * 3,
            disk_bytes_verified: 256 << 20,
            fragments_verified: 20_000,
        }
    }

    #[test]
    fn the_headline_tells_gain_loss_and_neither_apart() {
        let mut outcome = outcome();
        assert!(
            outcome.headline().contains("1.38 times"),
            "{}",
            outcome.headline()
        );
        outcome.runs[2].iops = 241.0;
        assert!(
            outcome.headline().contains("no difference"),
            "{}",
            outcome.headline()
        );
        outcome.runs[2].iops = 200.0;
        assert!(outcome.headline().contains("slower"), "{}", outcome.headline());
    }
}
