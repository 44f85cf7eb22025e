//! The processor: cores in virtual time, and how long codecs take on them.
//!
//! The engine runs on one thread. A codec job runs on any core, jobs of readers before others, as in the runtime; what the engine does on
//! its own thread delays the requests there. Jobs take the time of the blocks that they compress and restore, which the codecs count.
//!
//! Invariants: time comes from counts and a table, so it is the same on any machine; work is charged exactly once.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};

use flaz_codec::work::{self, Work};
use flaz_codec::{CodecChoice, CodecId, CodecSpec, Decoders, Effort, encoder};
use flaz_device::{Env, Load, Nanos, Priority, compute_timed};
use flaz_engine::units::BLOCK_BYTES;
use flaz_replay::contents::Contents;
use flaz_sim::SimEnv;

/// Number of codecs in the table.
const CODECS: usize = 5;
/// Levels of zstd, and how much longer each takes to compress than the first: docs/compression.md. Restoring takes the same time.
const ZSTD_LEVELS: [(i8, f64); 5] = [(1, 1.0), (3, 1.2), (6, 3.0), (12, 14.0), (19, 50.0)];

/// Times of one core, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Name on the command line.
    pub name: &'static str,
    /// A request, without what follows.
    pub request_ns: u64,
    /// A block of a request: checksum, copies.
    pub block_ns: u64,
    /// What a request takes beside that and the devices: its way to a server and back. The processor is free meanwhile.
    pub way_ns: u64,
    /// Compressing a block, by the number of the codec; zstd at level 1.
    pub compress_ns: [u64; CODECS],
    /// Restoring it.
    pub restore_ns: [u64; CODECS],
    /// How much longer the client computes than where it was recorded.
    pub think: f64,
}

/// zlib on the paper's processor: 2.4 ms for 64 KiB, 16 blocks.
const PAPER_ZLIB_NS: f64 = 2.4e6 / 16.0;

impl Speeds {
    /// A core of 2026. LZ4 and zstd as measured on real data; zlib, LZO and what a block takes beside them are estimates:
    /// [`here`](crate::real_time::here) replaces them by those of this machine, on generated data.
    pub const MODERN: Self = Self {
        name: "modern",
        // Pass-through at depth 16: docs/performance.md.
        request_ns: 12_000,
        block_ns: 900,
        way_ns: 0,
        compress_ns: [0, 6600, 14_300, 43_000, 9000],
        restore_ns: [0, 1200, 5400, 8200, 3500],
        think: 1.0,
    };

    /// The paper's processor, a core of 2 GHz of 2009. One time is published, that of zlib; all others are those of
    /// [`Speeds::MODERN`], as much longer as that one is.
    #[must_use]
    pub fn xeon_2009() -> Self {
        let factor = PAPER_ZLIB_NS / Self::MODERN.compress_ns[usize::from(CodecId::ZLIB.0)] as f64;
        let slower = |ns: u64| (ns as f64 * factor) as u64;
        Self {
            name: "xeon-2ghz-2009",
            request_ns: slower(Self::MODERN.request_ns),
            block_ns: slower(Self::MODERN.block_ns),
            way_ns: slower(Self::MODERN.way_ns),
            compress_ns: Self::MODERN.compress_ns.map(slower),
            restore_ns: Self::MODERN.restore_ns.map(slower),
            think: factor,
        }
    }

    /// The same, with the time of zstd at the level that a cache uses: `auto` has LZ4 for new blocks, and zstd for those that stay.
    #[must_use]
    pub fn with(mut self, codec: CodecChoice) -> Self {
        let choice = codec.second(Effort::Usual, false).unwrap_or(codec.first());
        if choice.id() == CodecSpec::ZSTD.id() {
            let known = ZSTD_LEVELS.iter().find(|(level, _)| choice.level() <= *level);
            let (_, factor) = known.unwrap_or(&ZSTD_LEVELS[ZSTD_LEVELS.len() - 1]);
            let compress_ns = &mut self.compress_ns[usize::from(choice.id().0)];
            *compress_ns = (*compress_ns as f64 * factor) as u64;
        }
        self
    }

    /// The codecs on this machine. Takes about a second.
    #[must_use]
    pub(crate) fn with_codecs_of_this_machine() -> Self {
        let contents = Contents::usual();
        let mut speeds = Self {
            name: "here",
            ..Self::MODERN
        };
        for codec in [CodecSpec::LZ4, CodecSpec::ZSTD, CodecSpec::ZLIB] {
            let number = usize::from(codec.id().0);
            (speeds.compress_ns[number], speeds.restore_ns[number]) = measure(codec, &contents);
        }
        if let Ok(lzo) = "lzo".parse::<CodecSpec>() {
            let number = usize::from(lzo.id().0);
            (speeds.compress_ns[number], speeds.restore_ns[number]) = measure(lzo, &contents);
        }
        speeds
    }

    fn of(&self, work: &Work) -> Duration {
        let sum = |counts: &[u64; CODECS], ns: &[u64; CODECS]| -> u64 {
            counts.iter().zip(ns).map(|(count, ns)| count * ns).sum()
        };
        Duration::from_nanos(sum(&work.compressed, &self.compress_ns) + sum(&work.restored, &self.restore_ns))
    }
}

/// Nanoseconds of a block, compressing and restoring: the best of several rounds.
fn measure(codec: CodecSpec, contents: &Contents) -> (u64, u64) {
    const BLOCKS: u64 = 1024;
    const ROUNDS: u32 = 7;
    let mut best = (u64::MAX, u64::MAX);
    let (mut encoder, mut decoders) = (encoder(codec), Decoders::new());
    let mut block = vec![0; BLOCK_BYTES];
    for _ in 0..ROUNDS {
        let mut packed: Vec<Vec<u8>> = Vec::new();
        let began = Instant::now();
        for number in 0..BLOCKS {
            let mut out = vec![0; BLOCK_BYTES - 1];
            if let Some(len) = encoder.compress(contents.of(number), &mut out) {
                out.truncate(len);
                packed.push(out);
            }
        }
        best.0 = best.0.min(began.elapsed().as_nanos() as u64 / BLOCKS);
        let began = Instant::now();
        for stored in &packed {
            // What was compressed here is restored.
            let _ = decoders.decompress(codec.id(), stored, &mut block);
        }
        let restored = (packed.len() as u64).max(1);
        best.1 = best.1.min(began.elapsed().as_nanos() as u64 / restored);
    }
    best
}

/// Cores, and the engine's thread.
#[derive(Debug)]
pub struct Processor {
    speeds: Speeds,
    /// When each core has finished everything, and when what readers wait for.
    all: RefCell<Vec<Nanos>>,
    for_readers: RefCell<Vec<Nanos>>,
    /// When the engine's thread has finished.
    engine: Cell<Nanos>,
    busy: Cell<Duration>,
    /// Work of the engine's thread that was not charged yet.
    unpaid: Cell<Duration>,
}

impl Processor {
    /// `cores` cores, idle.
    #[must_use]
    pub fn new(speeds: Speeds, cores: u32) -> Self {
        let idle = vec![Nanos::default(); cores.max(1) as usize];
        // What another simulation on this thread has left.
        let _ = work::take();
        Self {
            speeds,
            all: RefCell::new(idle.clone()),
            for_readers: RefCell::new(idle),
            engine: Cell::default(),
            busy: Cell::default(),
            unpaid: Cell::default(),
        }
    }

    /// Time that it was busy.
    #[must_use]
    pub fn busy(&self) -> Duration {
        self.busy.get()
    }

    /// Its times.
    #[must_use]
    pub fn speeds(&self) -> &Speeds {
        &self.speeds
    }

    /// What codecs did on the engine's thread since the last call is to be paid by the next request.
    fn absorb(&self) {
        let work = self.speeds.of(&work::take());
        self.unpaid.set(self.unpaid.get() + work);
    }

    /// When a job that begins now has ended.
    fn on_a_core(&self, now: Nanos, priority: Priority, time: Duration) -> Nanos {
        let (mut all, mut for_readers) = (self.all.borrow_mut(), self.for_readers.borrow_mut());
        let cores = match priority {
            Priority::Read => &for_readers,
            Priority::Write => &all,
        };
        let core = (0..cores.len()).min_by_key(|core| cores[*core]).unwrap_or(0);
        let done = now.max(cores[core]).after(time);
        match priority {
            // Other work of this core is done later.
            Priority::Read => {
                for_readers[core] = done;
                all[core] = all[core].max(now).after(time);
            }
            Priority::Write => all[core] = done,
        }
        self.busy.set(self.busy.get() + time);
        done
    }

    /// The engine's thread has served a request with so many blocks. Returns when it is free again.
    #[must_use]
    pub fn request(&self, now: Nanos, blocks: u64) -> Nanos {
        self.absorb();
        let time =
            self.unpaid.take() + Duration::from_nanos(self.speeds.request_ns + blocks * self.speeds.block_ns);
        let done = now.max(self.engine.get()).after(time);
        self.engine.set(done);
        self.busy.set(self.busy.get() + time);
        done
    }
}

/// The environment of the engine: the simulation's, with this processor.
#[derive(Clone)]
pub struct EvaluationEnv {
    sim: SimEnv,
    processor: Rc<Processor>,
    /// Cores that the engine knows of: with 1 it splits nothing.
    parallelism: usize,
}

impl EvaluationEnv {
    /// `parallelism`: number of cores that the engine splits requests for.
    #[must_use]
    pub fn new(sim: SimEnv, processor: Rc<Processor>, parallelism: u32) -> Self {
        Self {
            sim,
            processor,
            parallelism: parallelism.max(1) as usize,
        }
    }
}

impl Env for EvaluationEnv {
    fn now(&self) -> Nanos {
        self.sim.now()
    }

    async fn sleep(&self, duration: Duration) {
        self.sim.sleep(duration).await;
    }

    async fn yield_now(&self) {
        self.sim.yield_now().await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.sim.spawn(task);
    }

    async fn compute<T: Send + 'static>(
        &self,
        priority: Priority,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        self.processor.absorb();
        let result = job();
        let time = self.processor.speeds.of(&work::take());
        let done = self.processor.on_a_core(self.now(), priority, time);
        self.sim.sleep_until(done).await;
        result
    }

    async fn compute_spare<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> (T, Duration) {
        compute_timed(self, job).await
    }

    async fn compute_long<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.compute(Priority::Write, job).await
    }

    fn parallelism(&self) -> usize {
        self.parallelism
    }

    /// Never low: what high effort gains is not modelled, because contents are generated to recorded sizes.
    fn load(&self) -> Load {
        let now = self.now();
        match self.processor.all.borrow().iter().all(|free| *free > now) {
            true => Load::High,
            false => Load::Medium,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_go_first_and_work_is_done_once() {
        let processor = Processor::new(Speeds::MODERN, 2);
        let ms = Duration::from_millis;
        let at = |ms: u64| Nanos(ms * 1_000_000);
        assert_eq!(processor.on_a_core(at(0), Priority::Write, ms(10)), at(10));
        assert_eq!(processor.on_a_core(at(0), Priority::Write, ms(10)), at(10));
        assert_eq!(processor.on_a_core(at(0), Priority::Write, ms(10)), at(20));
        // Before all of that.
        assert_eq!(processor.on_a_core(at(1), Priority::Read, ms(2)), at(3));
        assert_eq!(processor.on_a_core(at(1), Priority::Read, ms(2)), at(3));
        // Which is done later: 20 + 2 and 10 + 2.
        assert_eq!(processor.on_a_core(at(1), Priority::Write, ms(1)), at(13));
        assert_eq!(processor.busy(), ms(35));
    }

    #[test]
    fn zstd_takes_the_time_of_its_level() {
        let zstd = usize::from(CodecId::ZSTD.0);
        let modern = Speeds::MODERN.compress_ns[zstd];
        let of = |codec: &str| Speeds::MODERN.with(codec.parse().expect("a codec")).compress_ns[zstd];
        assert_eq!(
            ["lz4", "zstd", "zstd:-3", "zstd:5", "auto"].map(of),
            [modern, modern, modern, modern * 3, modern * 3]
        );
    }

    #[test]
    fn the_paper_s_zlib_takes_as_long_as_published() {
        let paper = Speeds::xeon_2009();
        let zlib = usize::from(CodecId::ZLIB.0);
        assert!((paper.compress_ns[zlib] as f64 / PAPER_ZLIB_NS - 1.0).abs() < 0.001);
        assert!(paper.restore_ns[zlib] < paper.compress_ns[zlib] / 2);
    }
}
