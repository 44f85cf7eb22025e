//! The results of the demo: the struct behind the table, the page and the JSON.
//!
//! Field names end in their unit. Times of a run count from the start of its measured phase.

use serde::Serialize;

use crate::dataset::DataSummary;
use flaz_control::size::HumanMicros;

/// Version of the JSON form.
pub const OUTCOME_SCHEMA: u32 = 1;

/// The ways to run the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Everything goes to the slow disk.
    NoCache,
    /// The SSD caches blocks as they are.
    Uncompressed,
    /// The SSD caches blocks compressed, by the codec of [`Parameters::codec`].
    Compressed,
    /// The SSD caches blocks compressed: new ones fast, those that stay strongly.
    Auto,
}

impl Variant {
    /// Those that are run with this codec, in the order of runs and of display. `auto` is run once.
    pub fn of(codec: &str) -> &'static [Self] {
        const ALL: [Variant; 4] = [
            Variant::NoCache,
            Variant::Uncompressed,
            Variant::Compressed,
            Variant::Auto,
        ];
        match codec {
            "auto" => &[Self::NoCache, Self::Uncompressed, Self::Auto],
            _ => &ALL,
        }
    }

    /// For people. `codec` is that of [`Self::Compressed`].
    pub fn title(self, codec: &str) -> &str {
        match self {
            Self::NoCache => "no cache",
            Self::Uncompressed => "uncompressed",
            Self::Compressed => codec,
            Self::Auto => "auto",
        }
    }

    /// Whether blocks are compressed.
    pub fn compresses(self) -> bool {
        matches!(self, Self::Compressed | Self::Auto)
    }
}

/// The results of the demo.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Outcome {
    /// [`OUTCOME_SCHEMA`].
    pub schema: u32,
    /// Version of flaz.
    pub version: String,
    /// The parameters.
    pub parameters: Parameters,
    /// The data.
    pub data: DataSummary,
    /// One for each variant, in the order of [`Variant::of`].
    pub runs: Vec<Run>,
    /// Total duration in seconds.
    pub total_s: f64,
    /// Reasons not to trust the results.
    pub warnings: Vec<String>,
}

/// The parameters of a demo.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Parameters {
    /// Size of the SSD (the cache file) in bytes.
    pub ssd_bytes: u64,
    /// Codec of the run `compressed`.
    pub codec: String,
    /// Number of clients, each with one request in flight.
    pub clients: u32,
    /// Exponent of the Zipf distribution of popularity.
    pub skew: f64,
    /// Share of the requests that write, in percent.
    pub write_percent: f64,
    /// Seed of the requests.
    pub seed: u64,
    /// Number of warm-up requests.
    pub warmup_requests: u64,
    /// Seconds measured in each run.
    pub measured_s: f64,
    /// Share of the requests that go to the hottest quarter of the data: an approximate upper bound for a cache of a
    /// quarter.
    pub hottest_quarter_share: f64,
    /// The slow disk.
    pub emulated_disk: String,
    /// Time of one small request at a random place.
    pub disk_access_us: f64,
    /// CPU cores of the machine.
    pub cores: u64,
    /// Kernel and processor.
    pub machine: String,
    /// Whether the files were in memory instead of on a disk.
    pub files_in_memory: bool,
}

/// One run of the workload.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Run {
    /// Which.
    pub variant: Variant,
    /// Requests of the clients in the measured phase.
    #[serde(flatten)]
    pub served: Served,
    /// Hit ratio in blocks read; 0 without a cache.
    pub hit_ratio: f64,
    /// Processor time and SSD writes.
    #[serde(flatten)]
    pub cost: Cost,
    /// Contents of the SSD at the end; absent without a cache.
    pub holdings: Option<Holdings>,
    /// Values over time.
    #[serde(flatten)]
    pub series: Series,
    /// Whether the cache was warm after the restart between the phases.
    pub restarted_warm: bool,
    /// Data that was read again and verified.
    #[serde(flatten)]
    pub verified: Verified,
}

/// Requests of the clients in the measured phase.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Served {
    /// Requests finished.
    pub requests: u64,
    /// Reads among them.
    pub reads: u64,
    /// Writes among them.
    pub writes: u64,
    /// Requests per second.
    pub iops: f64,
    /// MiB read and written by the clients per second.
    pub mib_per_s: f64,
    /// Latency of reads and writes.
    pub latency_us: Latency,
    /// Cumulative distribution: (latency in microseconds, share of requests with at most this latency).
    pub latency_cdf: Vec<(f64, f64)>,
}

/// Processor time and SSD writes.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Cost {
    /// CPU time of the server in the measured phase.
    pub cpu_s: f64,
    /// CPU time of the server per request.
    pub cpu_us_per_request: f64,
    /// Bytes written to the SSD since it was empty.
    pub ssd_written_bytes: u64,
    /// Bytes written to the SSD in the measured phase.
    pub ssd_written_measured_bytes: u64,
}

/// Values over time.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Series {
    /// Hit ratio during warm-up: (requests so far, recent hit ratio).
    pub warmup: Vec<(u64, f64)>,
    /// Hit ratio over time: (second, recent hit ratio).
    pub hit_ratio_series: Vec<(f64, f64)>,
    /// Throughput over time: (second at the middle of the slice, requests per second).
    pub iops_series: Vec<(f64, f64)>,
}

/// Data that was read again and verified.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Verified {
    /// Blocks that were read by clients and checked, warm-up included.
    pub blocks_verified: u64,
    /// Bytes of the emulated disk that were compared with the expected contents at the end.
    pub disk_bytes_verified: u64,
    /// Fragments that `flaz check` read, verified and decompressed at the end.
    pub fragments_verified: u64,
}

/// Latency in microseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, schemars::JsonSchema)]
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

/// Contents of the SSD at the end of a run.
#[derive(Debug, Clone, Copy, Default, Serialize, schemars::JsonSchema)]
pub struct Holdings {
    /// Size of the SSD.
    pub ssd_bytes: u64,
    /// Blocks cached.
    pub cached_blocks: u64,
    /// These blocks before compression: the effective capacity.
    pub logical_bytes: u64,
    /// Bytes of the fragments of those blocks.
    pub fragment_bytes: u64,
    /// Space of regions in use without cached fragments: headers, padding, stale and dropped fragments.
    pub other_bytes: u64,
    /// Bytes of free regions, reserved or unused.
    pub free_bytes: u64,
    /// Superblocks, index and other metadata.
    pub metadata_bytes: u64,
    /// Share of the blocks that the codec could not shrink.
    pub raw_share: f64,
    /// Same-filled blocks, which take no space.
    pub single_value_blocks: u64,
}

impl Holdings {
    /// Compression ratio of the cached blocks as fragments.
    pub fn ratio(&self) -> f64 {
        if self.fragment_bytes == 0 {
            1.0
        } else {
            self.logical_bytes as f64 / self.fragment_bytes as f64
        }
    }

    /// Estimated fragment bytes of blocks stored raw.
    pub fn raw_bytes(&self) -> u64 {
        let raw = self.raw_share * self.logical_bytes as f64;
        (raw as u64).min(self.fragment_bytes)
    }

    /// Effective capacity relative to the size of the SSD.
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

    /// The name of a run for people.
    pub fn title(&self, run: &Run) -> &str {
        run.variant.title(&self.parameters.codec)
    }

    /// The last run: that with the strongest compression.
    pub fn last(&self) -> Variant {
        self.runs.last().map_or(Variant::Auto, |run| run.variant)
    }

    /// Requests per second of `variant` divided by those of `other`.
    pub fn speedup(&self, variant: Variant, other: Variant) -> f64 {
        match (self.run(variant), self.run(other)) {
            (Some(run), Some(other)) if other.served.iops > 0.0 => run.served.iops / other.served.iops,
            _ => 0.0,
        }
    }

    /// Blocks verified in all runs.
    pub fn blocks_verified(&self) -> u64 {
        self.runs.iter().map(|run| run.verified.blocks_verified).sum()
    }

    /// Finds reasons not to trust the results.
    pub fn warn(&mut self) {
        /// Maximum time that queues and the machine's own disk add to the emulated disk.
        const SLOWER_MAX: f64 = 1.25;
        let mut warnings = Vec::new();
        // With one actuator and one request in flight per client, each request waits for those of all clients.
        let expected_us = f64::from(self.parameters.clients) * self.parameters.disk_access_us;
        if let Some(run) = self.run(Variant::NoCache)
            && run.served.latency_us.mean > expected_us * SLOWER_MAX
        {
            warnings.push(format!(
                "The disk or CPU of this machine was busy: without a cache a request took {} on average; on \
                 the emulated disk alone it would take {}. Speed-ups over no cache are exaggerated.",
                HumanMicros(run.served.latency_us.mean),
                HumanMicros(expected_us)
            ));
        }
        // Nothing in the demo takes this long: the machine was suspended or busy with other work.
        let longest_us = (expected_us * 20.0).max(2e6);
        for run in self
            .runs
            .iter()
            .filter(|run| run.served.latency_us.max > longest_us)
        {
            warnings.push(format!(
                "A request of the run '{}' took {}: the machine was suspended or very busy. Please repeat the \
                 demo.",
                run.variant.title(&self.parameters.codec),
                HumanMicros(run.served.latency_us.max)
            ));
        }
        let cold = |run: &&Run| run.variant != Variant::NoCache && !run.restarted_warm;
        let cold: Vec<&str> = self
            .runs
            .iter()
            .filter(cold)
            .map(|run| run.variant.title(&self.parameters.codec))
            .collect();
        if !cold.is_empty() {
            let names = cold.join(", ");
            warnings.push(format!(
                "The cache was cold after the restart ({names}): the results are too low."
            ));
        }
        if self.parameters.files_in_memory {
            let text = "All files were in memory because there was not enough disk space: the SSD is faster here \
                 than a real one.";
            warnings.push(text.to_owned());
        }
        if self.data.walk_cut_short {
            warnings
                .push("The number of files exceeds the limit; some directories may be missing.".to_owned());
        }
        self.warnings = warnings;
    }

    /// The result in one sentence.
    pub fn headline(&self) -> String {
        /// Smaller differences are noise in a demo of a few seconds.
        const NOISE: f64 = 0.03;
        let last = self.last();
        let over_disk = self.speedup(last, Variant::NoCache);
        let ratio = self
            .run(last)
            .and_then(|run| run.holdings)
            .unwrap_or_default()
            .ratio();
        let compressing = self.runs.iter().filter(|run| run.variant.compresses());
        let gains: Vec<(&str, f64)> = compressing
            .map(|run| (self.title(run), self.speedup(run.variant, Variant::Uncompressed)))
            .collect();
        let each: Vec<String> = gains
            .iter()
            .map(|(codec, gain)| format!("{gain:.2} ({codec})"))
            .collect();
        let listed = each.join(" and ");
        let is_faster = gains.iter().any(|(_, gain)| *gain > 1.0 + NOISE);
        let is_slower = gains.iter().any(|(_, gain)| *gain < 1.0 - NOISE);
        if is_slower && !is_faster {
            format!(
                "A compressed cache is slower here: {listed} times the requests of the uncompressed one (the \
                 data compresses {ratio:.2}:1)."
            )
        } else if is_faster {
            format!(
                "With the same SSD, a compressed cache serves {listed} times the requests of the uncompressed \
                 one, and {over_disk:.1} times those of the disk alone."
            )
        } else {
            format!(
                "Compression makes little difference here ({listed} times the requests of the uncompressed \
                 cache; the data compresses {ratio:.2}:1); the cache serves {over_disk:.1} times the requests \
                 of the disk alone."
            )
        }
    }
}

#[cfg(test)]
pub mod sample;
