//! What the demo found: the struct behind the table, the page and the JSON.
//!
//! Field names end in their unit. Times of one run count from the start of its measured phase.

use serde::Serialize;

use crate::dataset::DataSummary;
use flaz_control::size::HumanMicros;

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
    /// Why not to trust the figures, if there is a reason.
    pub warnings: Vec<String>,
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
    /// What it takes for one small request at a random place.
    pub disk_access_us: f64,
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
    /// What the clients got in the measured phase.
    #[serde(flatten)]
    pub served: Served,
    /// Share of the blocks read that the cache had; 0 without one.
    pub hit_ratio: f64,
    /// What that took of processor and SSD.
    #[serde(flatten)]
    pub cost: Cost,
    /// What the SSD holds at the end; absent without a cache.
    pub holdings: Option<Holdings>,
    /// Figures over time.
    #[serde(flatten)]
    pub series: Series,
    /// Whether the cache was warm after the restart between the phases.
    pub restarted_warm: bool,
    /// Data that was read again and compared.
    #[serde(flatten)]
    pub verified: Verified,
}

/// What the clients got in the measured phase.
#[derive(Debug, Clone, Serialize)]
pub struct Served {
    /// Requests finished.
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
}

/// What that took of processor and SSD.
#[derive(Debug, Clone, Serialize)]
pub struct Cost {
    /// CPU time of the server in the measured phase.
    pub cpu_s: f64,
    /// CPU time of the server for each request.
    pub cpu_us_per_request: f64,
    /// Bytes written to the SSD from empty to the end.
    pub ssd_written_bytes: u64,
    /// Bytes written to the SSD in the measured phase.
    pub ssd_written_measured_bytes: u64,
}

/// Figures over time.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// Hit ratio while warming up: (requests so far, hit ratio of late).
    pub warmup: Vec<(u64, f64)>,
    /// Hit ratio over time: (second, hit ratio of late).
    pub hit_ratio_series: Vec<(f64, f64)>,
    /// Throughput over time: (second at the middle of the slice, requests a second).
    pub iops_series: Vec<(f64, f64)>,
}

/// Data that was read again and compared.
#[derive(Debug, Clone, Serialize)]
pub struct Verified {
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

/// What the SSD holds at the end of a run.
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

    /// About how many of the fragments' bytes are of blocks stored as they are.
    pub fn raw_bytes(&self) -> u64 {
        let raw = self.raw_share * self.logical_bytes as f64;
        (raw as u64).min(self.fragment_bytes)
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
            (Some(run), Some(other)) if other.served.iops > 0.0 => run.served.iops / other.served.iops,
            _ => 0.0,
        }
    }

    /// Blocks verified in all runs.
    pub fn blocks_verified(&self) -> u64 {
        self.runs.iter().map(|run| run.verified.blocks_verified).sum()
    }

    /// Finds the reasons not to trust the figures.
    pub fn warn(&mut self) {
        /// Queues and the machine's own disk may add this much to what the emulated disk takes.
        const SLOWER_MAX: f64 = 1.25;
        let mut warnings = Vec::new();
        // With one arm and one request a client in flight, each waits for those of all clients.
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
        // Nothing in the demo takes that long: the machine slept, or gave its time to others.
        let longest_us = (expected_us * 20.0).max(2e6);
        for run in self
            .runs
            .iter()
            .filter(|run| run.served.latency_us.max > longest_us)
        {
            warnings.push(format!(
                "A request of the run '{}' took {}: the machine was suspended or very busy. Please repeat the \
                 demo.",
                run.variant.title(),
                HumanMicros(run.served.latency_us.max)
            ));
        }
        let cold = |run: &&Run| run.variant != Variant::NoCache && !run.restarted_warm;
        let cold: Vec<&str> = self
            .runs
            .iter()
            .filter(cold)
            .map(|run| run.variant.title())
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
                "With the same SSD, the compressed cache serves {gain:.2} times the requests of the \
                 uncompressed one, and {over_disk:.1} times those of the disk alone."
            )
        } else if gain < 1.0 - NOISE {
            format!(
                "The compressed cache is slower here: {gain:.2} times the requests of the uncompressed one \
                 (the data compresses {:.2}:1).",
                held.ratio()
            )
        } else {
            format!(
                "Compression makes no significant difference here ({gain:.2} times the requests of the \
                 uncompressed cache; the data compresses {:.2}:1); the cache serves {over_disk:.1} times the \
                 requests of the disk alone.",
                held.ratio()
            )
        }
    }
}

#[cfg(test)]
pub mod sample;
