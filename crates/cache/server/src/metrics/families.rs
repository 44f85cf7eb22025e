//! From a status report to metrics: names, help, labels and values. Pure.
//!
//! Names follow the practice of Prometheus: the prefix `flaz_`, base units (bytes, seconds), `_total` for counters. Every metric of
//! a running cache is there from the first scrape, with zero, so that rates and alert rules work; a metric whose value is not
//! known is absent. Names and labels are an interface: dashboards and alert rules use them (`dist/prometheus`, `dist/grafana`).

use flaz_control::report::{
    CLIENT_OPERATIONS, CacheState, Health, HealthLevel, LiveReport, OperationReport, StatusReport,
};
use flaz_engine::units::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Reasons for which blocks are not admitted, as in the status report.
const REFUSALS: [&str; 6] = [
    "policy",
    "write-budget",
    "sequential",
    "queue-full",
    "overtaken-by-write",
    "already-there",
];

/// How a metric changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Grows, and starts again from zero with the server.
    Counter,
    Gauge,
    Histogram,
}

/// Metrics of one name.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    pub(super) samples: Vec<Sample>,
}

/// One metric.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) value: Value,
}

/// The value of a metric.
#[derive(Debug)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
    Histogram {
        sum: f64,
        /// Upper bounds, and numbers in each bucket; the last bound is infinite.
        buckets: Vec<(f64, u64)>,
    },
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        // A report may come from elsewhere; infinities have another spelling in Prometheus text.
        Self::Real(if value.is_finite() { value } else { 0.0 })
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

/// Families in the order of the page.
#[derive(Default)]
struct Families(Vec<Family>);

impl Families {
    fn add(&mut self, kind: Kind, name: &'static str, help: &'static str, samples: Vec<Sample>) {
        self.0.push(Family {
            name,
            help,
            kind,
            samples,
        });
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, value: impl Into<Value>) {
        self.add(Kind::Gauge, name, help, vec![alone(value)]);
    }

    fn counter(&mut self, name: &'static str, help: &'static str, value: impl Into<Value>) {
        self.add(Kind::Counter, name, help, vec![alone(value)]);
    }

    /// A counter with one label.
    fn counters<L: Into<String>, V: Into<Value>>(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (L, V)>,
    ) {
        self.add(Kind::Counter, name, help, labelled(label, values));
    }
}

fn alone(value: impl Into<Value>) -> Sample {
    Sample {
        labels: Vec::new(),
        value: value.into(),
    }
}

fn labelled<L: Into<String>, V: Into<Value>>(
    label: &'static str,
    values: impl IntoIterator<Item = (L, V)>,
) -> Vec<Sample> {
    let sample = |(name, value): (L, V)| Sample {
        labels: vec![(label, name.into())],
        value: value.into(),
    };
    values.into_iter().map(sample).collect()
}

/// The metrics of a server; without a report, of one that is starting, or does not answer.
pub(super) fn families(report: Option<&StatusReport>) -> Vec<Family> {
    let mut families = Families::default();
    let live = report.and_then(|report| Some((report, report.live.as_ref()?)));
    families.gauge(
        "flaz_up",
        "Whether the cache is open and its threads answer.",
        live.is_some(),
    );
    if let Some((report, live)) = live {
        state(&mut families, report, live);
        requests(&mut families, live);
        lookups(&mut families, live);
        dirty(&mut families, live);
        space(&mut families, report, live);
        devices(&mut families, live);
        contents(&mut families, live);
        process(&mut families, live);
    }
    families.0
}

fn state(families: &mut Families, report: &StatusReport, live: &LiveReport) {
    let settings = report.settings.as_ref();
    let setting = |text: Option<String>| text.unwrap_or_default();
    let info = Sample {
        labels: vec![
            ("version", live.daemon.version.clone()),
            ("cache", report.cache.path.display().to_string()),
            ("origin", report.origin.path.display().to_string()),
            (
                "mode",
                setting(settings.map(|settings| settings.mode.to_string())),
            ),
            (
                "policy",
                setting(settings.map(|settings| settings.policy.to_string())),
            ),
            (
                "codec",
                setting(settings.map(|settings| settings.codec.to_string())),
            ),
        ],
        value: true.into(),
    };
    families.add(
        Kind::Gauge,
        "flaz_info",
        "Devices, version and settings, as labels; always 1.",
        vec![info],
    );
    families.gauge(
        "flaz_bypass",
        "Whether the cache device failed and is bypassed.",
        report.state == CacheState::Degraded,
    );
    let health = Health::of(report).level;
    let levels = [HealthLevel::Healthy, HealthLevel::Warning, HealthLevel::Failed];
    families.add(
        Kind::Gauge,
        "flaz_health",
        "Health as flaz status shows it: 1 for the present level.",
        labelled("level", levels.map(|level| (level.name(), level == health))),
    );
    families.gauge(
        "flaz_uptime_seconds",
        "Time since the server started.",
        live.daemon.uptime_s,
    );
    families.gauge(
        "flaz_started_warm",
        "Whether the contents of the last run were kept at the start.",
        live.daemon.started_warm,
    );
}

fn requests(families: &mut Families, live: &LiveReport) {
    let operations: Vec<(&str, Option<&OperationReport>)> =
        CLIENT_OPERATIONS.map(|name| (name, live.operation(name))).into();
    let each = |value: fn(&OperationReport) -> u64| {
        let values = operations.iter();
        values.map(move |(name, operation)| (*name, operation.map_or(0, value)))
    };
    families.counters(
        "flaz_requests_total",
        "Requests of clients that were answered, including failed ones.",
        "operation",
        each(|operation| operation.count),
    );
    families.counters(
        "flaz_request_bytes_total",
        "Bytes that clients read and wrote.",
        "operation",
        each(|operation| operation.bytes).filter(|(name, _)| ["read", "write"].contains(name)),
    );
    families.counters(
        "flaz_request_errors_total",
        "Requests of clients that failed.",
        "operation",
        each(|operation| operation.errors),
    );
    let histogram = |operation: Option<&OperationReport>| histogram(live, operation);
    let durations = operations
        .iter()
        .map(|(name, operation)| (*name, histogram(*operation)));
    families.add(
        Kind::Histogram,
        "flaz_request_duration_seconds",
        "Latency of client requests, of each part that lies in one MiB.",
        labelled("operation", durations),
    );
    let results = [("hit", "read-hit"), ("miss", "read-miss")];
    let durations = results.map(|(result, name)| (result, histogram(live.operation(name))));
    families.add(
        Kind::Histogram,
        "flaz_read_duration_seconds",
        "Latency of reads that were answered from the cache alone (hit) or needed the origin (miss).",
        labelled("result", durations),
    );
}

fn histogram(live: &LiveReport, operation: Option<&OperationReport>) -> Value {
    let bounds = live.latency_bounds_s.iter().copied().chain([f64::INFINITY]);
    let counts = operation.map_or(&[][..], |operation| &operation.latency_counts);
    let counts = counts.iter().copied().chain(std::iter::repeat(0));
    Value::Histogram {
        sum: operation.map_or(0.0, |operation| operation.latency_sum_s),
        buckets: bounds.zip(counts).collect(),
    }
}

fn lookups(families: &mut Families, live: &LiveReport) {
    let lookups = &live.lookups;
    for (name, help, value) in [
        (
            "flaz_read_hits_total",
            "Reads that were answered from the cache alone.",
            lookups.hits,
        ),
        (
            "flaz_read_partial_hits_total",
            "Reads that were answered partly from the cache.",
            lookups.partial_hits,
        ),
        (
            "flaz_read_misses_total",
            "Reads that were answered from the origin alone.",
            lookups.misses,
        ),
        (
            "flaz_hit_blocks_total",
            "Blocks of 4 KiB that reads found in the cache.",
            lookups.hit_blocks,
        ),
        (
            "flaz_miss_blocks_total",
            "Blocks of 4 KiB that reads did not find in the cache.",
            lookups.miss_blocks,
        ),
    ] {
        families.counter(name, help, value);
    }
}

fn dirty(families: &mut Families, live: &LiveReport) {
    let dirty = &live.write_back;
    families.gauge(
        "flaz_dirty_bytes",
        "Data that the origin does not have yet.",
        dirty.dirty_bytes,
    );
    families.gauge(
        "flaz_dirty_seconds",
        "Time since the oldest dirty data was written, at most; 0 if none is dirty.",
        dirty.dirty_s,
    );
    families.gauge(
        "flaz_dirty_device_bytes",
        "Space on the cache device that dirty data takes.",
        dirty.dirty_device_bytes,
    );
    families.gauge(
        "flaz_dirty_limit_bytes",
        "Limit of that space; writers wait at the limit.",
        dirty.limit_bytes,
    );
    if let Some(seconds) = dirty.clean_s.filter(|_| !dirty.failing) {
        families.gauge(
            "flaz_writeback_remaining_seconds",
            "Time to write back all dirty data at the pace so far, estimated; absent if the pace is not known.",
            seconds,
        );
    }
    families.counter(
        "flaz_writeback_bytes_total",
        "Data written back to the origin.",
        dirty.cleaned_blocks.saturating_mul(BLOCK),
    );
    families.gauge(
        "flaz_writeback_failing",
        "Whether writeback to the origin fails and is retried.",
        dirty.failing,
    );
    families.counter(
        "flaz_dirty_waits_total",
        "Writes that waited because the dirty limit was reached.",
        dirty.waits,
    );
    families.gauge(
        "flaz_damaged_blocks",
        "Dirty blocks of 4 KiB whose only copy cannot be read.",
        dirty.lost,
    );
}

fn space(families: &mut Families, report: &StatusReport, live: &LiveReport) {
    let space = &live.space;
    for (name, help, value) in [
        (
            "flaz_cached_bytes",
            "Cached data before compression.",
            space.cached_bytes,
        ),
        (
            "flaz_fragment_bytes",
            "Size of the cached data on the cache device, to about 1 %.",
            space.fragment_bytes,
        ),
        (
            "flaz_used_bytes",
            "Space in use on the cache device, with data that is no longer needed.",
            space.used_bytes,
        ),
        (
            "flaz_capacity_bytes",
            "Space for data on the cache device.",
            space.capacity_bytes,
        ),
        (
            "flaz_effective_capacity_bytes",
            "Data before compression that the full cache will hold at the present ratio.",
            space.effective_capacity_bytes,
        ),
        (
            "flaz_cache_size_bytes",
            "Size of the cache device; of a volume, what it has of it.",
            report.cache.size_bytes,
        ),
        (
            "flaz_origin_size_bytes",
            "Size of the origin.",
            report.origin.size_bytes,
        ),
    ] {
        families.gauge(name, help, value);
    }
    let Some(share) = &live.share else { return };
    for (name, help, value) in [
        (
            "flaz_share_at_least_bytes",
            "Of a volume: space of the cache device that no other volume gets.",
            share.at_least_bytes,
        ),
        (
            "flaz_share_at_most_bytes",
            "Of a volume: the most that it gets of the cache device; 0 if there is no limit.",
            share.at_most_bytes.unwrap_or(0),
        ),
        (
            "flaz_share_free_bytes",
            "Of a volume: space of the cache device that no volume has and this one may take, at the last look.",
            share.free_bytes,
        ),
        (
            "flaz_share_need",
            "Of a volume: hits a day, for each MiB that it has, on blocks that left its cache recently.",
            share.need,
        ),
        (
            "flaz_share_write_budget_bytes_per_day",
            "Of a volume: the write budget of all volumes of the cache device; 0 if there is none.",
            share.write_budget.map_or(0, |budget| budget.bytes_per_day),
        ),
        (
            "flaz_share_write_budget_left_bytes",
            "Of a volume: bytes left of the write budget of all volumes, at the last look.",
            share.write_budget.map_or(0, |budget| budget.left_bytes),
        ),
    ] {
        families.gauge(name, help, value);
    }
}

fn devices(families: &mut Families, live: &LiveReport) {
    let (traffic, errors) = (&live.traffic, &live.errors);
    for (name, help, value) in [
        (
            "flaz_cache_read_bytes_total",
            "Bytes read from the cache device.",
            traffic.cache_read_bytes,
        ),
        (
            "flaz_cache_written_bytes_total",
            "Bytes written to the cache device, with metadata; they wear it.",
            traffic.cache_written_bytes,
        ),
        (
            "flaz_cache_discarded_bytes_total",
            "Bytes discarded on the cache device.",
            traffic.cache_discarded_bytes,
        ),
        (
            "flaz_origin_read_bytes_total",
            "Bytes read from the origin.",
            traffic.origin_read_bytes,
        ),
        (
            "flaz_origin_written_bytes_total",
            "Bytes written to the origin.",
            traffic.origin_written_bytes,
        ),
    ] {
        families.counter(name, help, value);
    }
    let written = &traffic.cache_written;
    families.counters(
        "flaz_cache_written_by_cause_bytes_total",
        "Bytes written to the cache device by cause: admitted blocks, dirty blocks of clients, clean blocks stored again, dirty blocks moved, and headers, padding and metadata.",
        "cause",
        [
            ("admitted", written.admitted_bytes),
            ("dirty", written.dirty_bytes),
            ("reinserted", written.reinserted_bytes),
            ("moved-dirty", written.moved_dirty_bytes),
            ("other", written.other_bytes),
        ],
    );
    let budget = live.write_budget.as_ref();
    for (name, help, value) in [
        (
            "flaz_write_budget_bytes_per_day",
            "The write budget; 0 if there is none.",
            budget.map_or(0, |budget| budget.bytes_per_day),
        ),
        (
            "flaz_write_budget_left_bytes",
            "Bytes left of the write budget, at most those of a day.",
            budget.map_or(0, |budget| budget.left_bytes),
        ),
        (
            "flaz_write_budget_owed_bytes",
            "Bytes written beyond the write budget that time has not made up for yet.",
            budget.map_or(0, |budget| budget.owed_bytes),
        ),
    ] {
        families.gauge(name, help, value);
    }
    families.counters(
        "flaz_errors_total",
        "Errors by cause: wrong checksums of cached blocks, failed requests to the devices, regions of the cache device that could not be read.",
        "cause",
        [
            ("checksum", errors.checksum_failures),
            ("cache-read", errors.cache_read_errors),
            ("cache-write", errors.cache_write_errors),
            ("cache-region", errors.cache_unreadable_regions),
            ("origin", errors.origin_errors),
        ],
    );
    let operations = [
        ("origin", "read", "origin-read"),
        ("origin", "write", "origin-write"),
        ("cache", "read", "cache-read"),
        ("cache", "write", "cache-write"),
    ];
    let each = |value: &dyn Fn(Option<&OperationReport>) -> Value| {
        let sample = |(device, operation, name): (&str, &str, &str)| Sample {
            labels: vec![("device", device.to_owned()), ("operation", operation.to_owned())],
            value: value(live.operation(name)),
        };
        operations.map(sample).into()
    };
    families.add(
        Kind::Counter,
        "flaz_device_operations_total",
        "Requests to the devices.",
        each(&|operation| operation.map_or(0, |operation| operation.count).into()),
    );
    families.add(
        Kind::Histogram,
        "flaz_device_duration_seconds",
        "Latency of requests to the devices; of reads of the cache device, of a sample.",
        each(&|operation| histogram(live, operation)),
    );
}

fn contents(families: &mut Families, live: &LiveReport) {
    let (admission, reclaim, codec) = (&live.admission, &live.reclaim, &live.codec);
    families.counters(
        "flaz_admitted_blocks_total",
        "Blocks of 4 KiB stored in the cache, by the cause: misses or writes.",
        "cause",
        [
            ("miss", admission.admitted_blocks),
            ("write", admission.written_blocks),
        ],
    );
    families.counters(
        "flaz_refused_blocks_total",
        "Blocks of 4 KiB that were not stored in the cache, by reason.",
        "reason",
        REFUSALS.map(|reason| (reason, admission.refused_blocks.get(reason).copied().unwrap_or(0))),
    );
    families.counter(
        "flaz_reclaimed_regions_total",
        "Regions of the cache device that were freed for new blocks.",
        reclaim.regions,
    );
    families.counter(
        "flaz_reinserted_bytes_total",
        "Bytes written to the cache device for blocks that were stored again when their region was freed.",
        reclaim.reinserted_bytes,
    );
    families.counter(
        "flaz_recompressed_blocks_total",
        "Blocks of 4 KiB that were compressed again when their region was freed.",
        codec.recompressed_blocks,
    );
    families.counter(
        "flaz_recompressed_saved_bytes_total",
        "Bytes of the cache device that this saved.",
        codec.recompressed_saved_bytes,
    );
    families.counter(
        "flaz_grouped_blocks_total",
        "Blocks of those that were compressed together with their neighbours.",
        codec.grouped_blocks,
    );
    families.counter(
        "flaz_dictionaries_total",
        "Dictionaries trained for blocks that are compressed again.",
        codec.dictionaries,
    );
    families.counter(
        "flaz_high_effort_seconds_total",
        "Time for which blocks were compressed with high effort.",
        codec.high_effort_s,
    );
    families.counter(
        "flaz_less_compressed_blocks_total",
        "Blocks stored again with less compression or none, because restoring took longer than misses.",
        codec.less_compressed_blocks,
    );
    families.counter(
        "flaz_divided_groups_total",
        "Groups of blocks compressed together that had lost some of them when their region was freed.",
        codec.divided_groups,
    );
    families.counter(
        "flaz_codec_input_bytes_total",
        "Bytes given to the codec.",
        codec.in_bytes,
    );
    families.counter(
        "flaz_codec_output_bytes_total",
        "Bytes that the codec produced, with blocks that do not compress.",
        codec.out_bytes,
    );
    families.counters(
        "flaz_codec_seconds_total",
        "Time spent in the codec.",
        "operation",
        [("compress", codec.compress_s), ("decompress", codec.decompress_s)],
    );
}

fn process(families: &mut Families, live: &LiveReport) {
    let memory = &live.memory;
    families.counter(
        "flaz_cpu_seconds_total",
        "CPU time of the server, user and system.",
        live.daemon.cpu_s,
    );
    families.gauge(
        "flaz_resident_memory_bytes",
        "Resident memory of the server.",
        memory.resident_bytes,
    );
    families.add(
        Kind::Gauge,
        "flaz_memory_bytes",
        "Memory by use: the sum is within a tenth of the resident memory.",
        labelled(
            "use",
            (memory.uses.iter()).map(|used| (used.name.as_str(), used.bytes)),
        ),
    );
    if let Some(index) = &memory.index_pages {
        families.gauge(
            "flaz_index_memory_bound_bytes",
            "Maximum memory of the index and all else that grows with the cache.",
            index.bound_bytes,
        );
        families.gauge("flaz_index_pages", "Pages of the index.", index.pages);
        families.gauge(
            "flaz_index_pages_in_memory",
            "Pages of the index that are in memory.",
            index.pages_in_memory,
        );
        families.counter(
            "flaz_index_page_reads_total",
            "Pages of the index read from the cache device.",
            index.reads,
        );
        families.counter(
            "flaz_index_page_writes_total",
            "Pages of the index written to the cache device.",
            index.writes,
        );
        families.counter(
            "flaz_index_pages_rebuilt_total",
            "Pages of the index that were damaged on the cache device, and rebuilt from the log.",
            index.rebuilt,
        );
    }
    families.add(
        Kind::Gauge,
        "flaz_nbd_connections",
        "Connected NBD clients by address.",
        labelled(
            "address",
            live.nbd
                .iter()
                .map(|nbd| (nbd.address.as_str(), u64::from(nbd.connections))),
        ),
    );
    let queues = |value: fn(&flaz_control::report::QueueReport) -> u64| {
        labelled(
            "queue",
            live.queues
                .iter()
                .map(|queue| (queue.name.as_str(), value(queue))),
        )
    };
    families.add(
        Kind::Gauge,
        "flaz_queue_depth",
        "Entries of the fullest queue of a kind.",
        queues(|queue| queue.depth),
    );
    families.add(
        Kind::Gauge,
        "flaz_queue_limit",
        "Limit of the entries of a queue.",
        queues(|queue| queue.depth_max),
    );
    families.add(
        Kind::Counter,
        "flaz_queue_full_total",
        "Times that a request waited or was refused because a queue was full.",
        queues(|queue| queue.full_count),
    );
}
