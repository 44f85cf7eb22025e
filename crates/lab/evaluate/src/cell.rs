//! One load on one machine with one cache: a recording, replayed through the engine.
//!
//! A request is sent when fewer requests of its kind are in flight than its recorded depth allows, and after the time that the client
//! computes. The recording is replayed several times: the first passes warm the cache, the last one is measured.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flaz_codec::CodecChoice;
use flaz_device::local::Notify;
use flaz_device::{Env, IoBuf, Nanos};
use flaz_engine::router::CachedVolume;
use flaz_engine::stats::StatsSnapshot;
use flaz_engine::volume::{Segments, Volume, segment_lens};
use flaz_sim::Sim;
use flaz_trace::Op;
use flaz_trace::recording::Recorded;

use crate::assembly;
use crate::contents::Contents;
use crate::machine::Machine;
use crate::processor::{EvaluationEnv, Processor, Speeds};
use crate::workload::Workload;

/// Time after which admitted blocks are stored, between the passes.
pub(crate) const PAUSE: Duration = Duration::from_secs(2);
/// Part of the time for which throughput is counted.
pub const WINDOW: Duration = Duration::from_millis(100);
const WINDOWS_MAX: usize = 1 << 20;
/// Extent that the engine plans for caches of this size, unless another one is given.
pub const EXTENT_BYTES: u32 = 64 << 10;

/// A cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// The machine.
    pub machine: Machine,
    /// Bytes of the cache for blocks; `None`: no cache, only the disks.
    pub cache_bytes: Option<u64>,
    /// Codec.
    pub codec: CodecChoice,
    /// Extents of this size.
    pub extent_bytes: u32,
    /// Whether large requests are split over cores.
    pub splits: bool,
    /// Times of a core.
    pub speeds: Speeds,
    /// Number of cores.
    pub cores: u32,
    /// Passes that warm the cache.
    pub warming: u32,
}

impl Setup {
    /// Whether it has a cache that compresses.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        self.cache_bytes.is_some() && self.codec != CodecChoice::NONE
    }
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Time of the second pass.
    pub elapsed: Duration,
    /// Blocks read from the cache and from the origin.
    pub hit_blocks: u64,
    /// Blocks that were not in the cache.
    pub miss_blocks: u64,
    /// Time that the processor was busy, without the client.
    pub processor: Duration,
    /// Sum of the latencies of reads.
    pub read_latency: Duration,
    /// Number of reads.
    pub reads: u64,
    /// Bytes of requests that ended in each [`WINDOW`].
    pub bytes_by_window: Vec<u64>,
    /// Regions reclaimed.
    pub regions_reclaimed: u64,
}

impl Measured {
    /// What the engine has counted from `before` to `after`.
    pub(crate) fn counted(before: &StatsSnapshot, after: &StatsSnapshot) -> Self {
        let counts = |of: fn(&StatsSnapshot) -> u64| of(after) - of(before);
        Self {
            hit_blocks: counts(|stats| stats.counts.hit_blocks),
            miss_blocks: counts(|stats| stats.counts.miss_blocks),
            regions_reclaimed: counts(|stats| stats.counts.regions_reclaimed),
            ..Self::default()
        }
    }

    /// Blocks found in the cache, of those read.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        self.hit_blocks as f64 / (self.hit_blocks + self.miss_blocks).max(1) as f64
    }

    /// Throughput of the slowest window beside the mean, and of each window; without the first and the last, which are not whole.
    #[must_use]
    pub fn throughput(&self) -> (f64, Vec<f64>) {
        let whole = match self.bytes_by_window.len() {
            ..3 => &[][..],
            windows => &self.bytes_by_window[1..windows - 1],
        };
        let mean = whole.iter().sum::<u64>() as f64 / whole.len().max(1) as f64;
        let shares: Vec<f64> = whole.iter().map(|bytes| *bytes as f64 / mean.max(1.0)).collect();
        (shares.iter().copied().fold(1.0, f64::min), shares)
    }
}

/// Why a cell cannot be measured.
#[derive(Debug, thiserror::Error)]
#[error("the cache of {cache_bytes} bytes failed: {reason}")]
pub struct CellError {
    /// Size of the cache.
    pub cache_bytes: u64,
    /// What failed.
    pub reason: String,
}

/// Replays a load.
///
/// # Errors
/// The cache is too small.
pub fn run(workload: &Workload, setup: &Setup, contents: &Arc<Contents>) -> Result<Measured, CellError> {
    let sim = Sim::new(1);
    sim.set_step_limit(u64::MAX);
    let processor = Rc::new(Processor::new(setup.speeds.with(setup.codec), setup.cores));
    let parallelism = if setup.splits { setup.cores } else { 1 };
    let env = EvaluationEnv::new(sim.env(), Rc::clone(&processor), parallelism);
    let origin = assembly::origin(&env, workload, setup, contents);
    let replay = Rc::new(Replay {
        env: env.clone(),
        processor,
        contents: Arc::clone(contents),
        reads_in_flight: Cell::default(),
        others_in_flight: Cell::default(),
        ended: Notify::new(),
        failed: RefCell::default(),
        sums: RefCell::default(),
    });
    let failed = |reason: String| CellError {
        cache_bytes: setup.cache_bytes.unwrap_or(0),
        reason,
    };
    sim.block_on(async {
        let cache = assembly::open(&env, setup, &origin).await.map_err(failed)?;
        let volume = CachedVolume::new(
            cache.shards(),
            Rc::new(origin.clone()),
            workload.origin_bytes(),
            0,
        );
        for _ in 0..setup.warming {
            replay.pass(workload, &volume).await.map_err(failed)?;
        }
        env.sleep(PAUSE).await;
        let (began, busy, before) = (env.now(), replay.processor.busy(), cache.stats());
        replay.sums.take();
        replay.pass(workload, &volume).await.map_err(failed)?;
        let elapsed = env.now().since(began);
        let after = cache.stats();
        let sums = replay.sums.take();
        let measured = Measured {
            elapsed,
            processor: replay.processor.busy() - busy,
            read_latency: sums.read_latency,
            reads: sums.reads,
            bytes_by_window: by_window(&sums, began),
            ..Measured::counted(&before, &after)
        };
        // Its tasks refer to the devices: without a stop, their memory is never freed.
        cache.stop().await.map_err(|error| failed(error.to_string()))?;
        Ok(measured)
    })
}

/// Bytes of requests that ended in each window since `began`.
fn by_window(sums: &Sums, began: Nanos) -> Vec<u64> {
    let mut bytes_by_window = Vec::new();
    for (ended, bytes) in &sums.ended {
        let window = (ended.since(began).as_nanos() / WINDOW.as_nanos()) as usize;
        // A recording may have a client that computes for years.
        if window >= WINDOWS_MAX {
            continue;
        }
        if bytes_by_window.len() <= window {
            bytes_by_window.resize(window + 1, 0);
        }
        bytes_by_window[window] += bytes;
    }
    bytes_by_window
}

/// A replay under way.
struct Replay {
    env: EvaluationEnv,
    processor: Rc<Processor>,
    contents: Arc<Contents>,
    reads_in_flight: Cell<u32>,
    others_in_flight: Cell<u32>,
    /// A request has ended.
    ended: Notify,
    failed: RefCell<Option<String>>,
    sums: RefCell<Sums>,
}

#[derive(Debug, Default)]
struct Sums {
    /// Ends of requests, and their bytes.
    ended: Vec<(Nanos, u64)>,
    read_latency: Duration,
    reads: u64,
}

type Cached = assembly::Cached<EvaluationEnv>;

impl Replay {
    /// Replays the load once, and waits until all requests have ended.
    async fn pass(self: &Rc<Self>, workload: &Workload, volume: &Cached) -> Result<(), String> {
        for recorded in workload.requests() {
            let op = recorded.request.op;
            self.wait_for(op, recorded.depth).await;
            if recorded.think_us > 0 {
                let think = recorded.think_us as f64 * self.processor.speeds().think;
                self.env
                    .sleep(Duration::from_nanos((think * 1000.0) as u64))
                    .await;
            }
            self.in_flight(op).update(|count| count + 1);
            let (replay, volume, recorded) = (Rc::clone(self), volume.clone(), Arc::clone(recorded));
            self.env.spawn(async move {
                if let Err(error) = replay.request(&volume, &recorded).await {
                    replay.failed.borrow_mut().get_or_insert(error);
                }
                replay.in_flight(op).update(|count| count - 1);
                replay.ended.notify_one();
            });
        }
        self.wait_for(Op::Read, 1).await;
        self.wait_for(Op::Write, 1).await;
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Reads in flight, or other requests.
    fn in_flight(&self, op: Op) -> &Cell<u32> {
        match op {
            Op::Read => &self.reads_in_flight,
            Op::Write | Op::Trim => &self.others_in_flight,
        }
    }

    /// Waits until fewer than `depth` requests of a kind are in flight.
    async fn wait_for(&self, op: Op, depth: u32) {
        while self.in_flight(op).get() >= depth.max(1) {
            self.ended.notified().await;
        }
    }

    async fn request(&self, volume: &Cached, recorded: &Recorded) -> Result<(), String> {
        let began = self.env.now();
        let (offset, len) = (recorded.request.offset, recorded.request.len);
        let result = match recorded.request.op {
            Op::Read => volume.read(offset, len as u32).await.map(|_| ()),
            Op::Write => {
                let data = segments(offset, &self.contents.of_write(recorded));
                volume.write(offset, data, false).await
            }
            Op::Trim => volume.trim(offset, len, false).await,
        };
        result.map_err(|error| error.to_string())?;
        let free = self
            .processor
            .request(self.env.now(), recorded.sizes.len() as u64);
        let answered = free.after(Duration::from_nanos(self.processor.speeds().way_ns));
        self.env.sleep(answered.since(self.env.now())).await;
        let now = self.env.now();
        let mut sums = self.sums.borrow_mut();
        if recorded.request.op == Op::Read {
            sums.reads += 1;
            sums.read_latency += now.since(began);
        }
        if recorded.request.op != Op::Trim {
            sums.ended.push((now, len));
        }
        Ok(())
    }
}

/// The pieces of a write, as a volume takes them.
fn segments(offset: u64, bytes: &[u8]) -> Segments {
    let mut at = 0;
    segment_lens(offset, bytes.len() as u64)
        .map(|len| {
            let piece = IoBuf::copy_of(&bytes[at..at + len]);
            at += len;
            piece
        })
        .collect()
}
