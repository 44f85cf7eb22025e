//! The engine on simulated disks against a model, with concurrent clients and active reclaim.
//!
//! `FLAZ_SEEDS=1000 cargo test -p flaz-engine --test simulation model::` searches longer; a failure prints the command that replays it.

mod by_name;
#[cfg(feature = "planted-bugs")]
mod cached_entries;
mod expected;
#[cfg(feature = "planted-bugs")]
mod rotten_pages;
#[cfg(feature = "planted-bugs")]
mod undone;

use std::cell::{Cell, RefCell};
use std::num::NonZeroU64;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use crate::platform::{AnyDevice, Simulated, SimulatedVolume};
use expected::{Model, some_data};
use flaz_codec::CodecChoice;
use flaz_device::{Env, IoBuf, Load};
use flaz_engine::cache::{CacheError, CreateOptions, LocalCache, Start, create};
use flaz_engine::format::geometry::{Geometry, GeometryOptions};
use flaz_engine::policy::PolicyKind;
use flaz_engine::router::CachedVolume;
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::stats::StatsSnapshot;
use flaz_engine::volume::{IoError, Volume, segment_lens};
use flaz_engine::write_budget::WriteBudget;
use flaz_sim::{DiscardMode, DiskConfig, FaultRates, Rng, Sim, SimDisk, SimEnv, check_seeds};
use futures_util::future::Either;

const CLIENTS: u64 = 6;
/// Bits of index pages that flip in a run.
const ROTTEN_BITS: u64 = 40;
const CODECS: [&str; 7] = ["lz4", "none", "zstd:1", "zlib:1", "lzo", "zstd:-3", "auto"];

/// The parameters of one run.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    origin_len: u64,
    cache_len: u64,
    wish: GeometryOptions,
    settings: Settings,
    operations: u64,
    origin_faults: FaultRates,
    cache_faults: FaultRates,
    /// The cache device damages data silently.
    damage: bool,
    /// Bits of index pages flip while clients run.
    pages_rot: bool,
    /// Whether clients change mode, codec and policy while they run.
    change_settings: bool,
    /// Blocks may be dirty, so requests fail if the cache device fails.
    write_back: bool,
}

impl Plan {
    /// The same without dirty blocks.
    fn through(mut self) -> Self {
        self.write_back = false;
        if self.settings.mode == Mode::WriteBack {
            self.settings.mode = Mode::WriteThrough;
        }
        self
    }

    fn back(mut self) -> Self {
        self.write_back = true;
        self.settings.mode = Mode::WriteBack;
        self
    }
}

/// A write budget that a run uses up, or none.
fn budget_of(seed: u64) -> WriteBudget {
    match seed % 3 {
        0 => WriteBudget::BytesPerDay(NonZeroU64::new(1 << 20).expect("not zero")),
        _ => WriteBudget::None,
    }
}

fn plan(seed: u64) -> Plan {
    let mut rng = Rng::new(seed ^ 0xf1a2);
    let modes = [
        Mode::WriteThrough,
        Mode::WriteThrough,
        Mode::WriteThrough,
        Mode::WriteAround,
        Mode::PassThrough,
        Mode::WriteBack,
        Mode::WriteBack,
        Mode::WriteBack,
    ];
    Plan {
        seed,
        origin_len: (4 << 20) + rng.below(4 << 20) / 512 * 512,
        cache_len: [5 << 19, 3 << 20, 6 << 20][rng.below(3) as usize],
        wish: GeometryOptions {
            extent_bytes: Some(32 << 10),
            region_bytes: Some(128 << 10),
            shard_count: Some(1 + rng.below(2) as u32 * u32::from(!seed.is_multiple_of(3))),
            threads: None,
            index_memory: None,
            dictionary_bytes: None,
        },
        settings: Settings {
            mode: modes[rng.below(8) as usize],
            policy: PolicyKind::ALL[rng.below(3) as usize],
            codec: CODECS[rng.below(CODECS.len() as u64) as usize]
                .parse()
                .expect("a codec"),
            sequential_cutoff: if rng.below(4) == 0 { 256 << 10 } else { 0 },
            dirty_percent: [1, 25, 50][rng.below(3) as usize],
            write_budget: budget_of(seed),
            ..Settings::default()
        },
        operations: 150,
        origin_faults: FaultRates::default(),
        cache_faults: FaultRates::default(),
        damage: false,
        pages_rot: false,
        change_settings: rng.below(3) == 0,
        write_back: true,
    }
}

/// State shared by the clients of a run.
struct Run {
    volume: SimulatedVolume,
    cache: Rc<LocalCache<Simulated>>,
    model: Model,
    origin_len: u64,
    /// Starts of the reads in flight.
    reading: RefCell<Vec<u64>>,
    errors_allowed: bool,
    errors: Cell<u64>,
    operations: u64,
    change_settings: bool,
}

impl Run {
    fn check<T>(&self, result: Result<T, IoError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                assert!(
                    self.errors_allowed,
                    "an operation failed without a fault: {error}"
                );
                self.errors.set(self.errors.get() + 1);
                None
            }
        }
    }

    /// A range with a bias to few blocks, to alignment, and to a hot part of the device.
    fn range(&self, rng: &mut Rng) -> (u64, u64) {
        let sectors = self.origin_len / 512;
        let hot = rng.below(3) > 0;
        let span = if hot { sectors / 4 } else { sectors };
        let (mut first, mut count) = (rng.below(span), 1 + rng.below(16));
        match rng.below(10) {
            0 => count = 1 + rng.below(600),
            1..=2 => {}
            _ => {
                first = first / 8 * 8;
                count = count.next_multiple_of(8);
            }
        }
        let first = first.min(sectors - 1);
        (first * 512, count.min(sectors - first) * 512)
    }

    async fn read(&self, rng: &mut Rng) {
        let (offset, len) = self.range(rng);
        let start = self.model.read_starts();
        self.reading.borrow_mut().push(start);
        let result = self.volume.read(offset, len as u32).await;
        if let Some(data) = self.check(result) {
            let data: Vec<u8> = data.iter().flat_map(|segment| segment.iter().copied()).collect();
            assert_eq!(data.len() as u64, len);
            if let Err(error) = self.model.read_ends(start, offset, &data) {
                panic!("{error}");
            }
        }
        let mut reading = self.reading.borrow_mut();
        reading.retain(|&other| other != start);
        let oldest = reading.iter().copied().min().unwrap_or(start);
        drop(reading);
        if start.is_multiple_of(16) {
            self.model.forget_before(oldest);
        }
    }

    async fn write(&self, rng: &mut Rng) {
        let (offset, len) = self.range(rng);
        let data = some_data(rng, len as usize);
        let mut rest = &data[..];
        let segments = segment_lens(offset, len)
            .map(|len| {
                let (head, tail) = rest.split_at(len);
                rest = tail;
                IoBuf::copy_of(head)
            })
            .collect();
        let writing = self.model.write_starts(offset, &data);
        let result = self.volume.write(offset, segments, rng.below(8) == 0).await;
        self.model.write_ends(writing, self.check(result).is_some());
    }

    async fn zero(&self, rng: &mut Rng, trim: bool) {
        let (offset, len) = self.range(rng);
        let writing = self.model.write_starts(offset, &vec![0; len as usize]);
        let fua = rng.coin();
        let result = if trim {
            self.volume.trim(offset, len, fua).await
        } else {
            self.volume.write_zeroes(offset, len, rng.coin(), fua).await
        };
        self.model.write_ends(writing, self.check(result).is_some());
    }

    fn change(&self, rng: &mut Rng) {
        self.cache.set(&Settings {
            mode: [
                Mode::WriteThrough,
                Mode::WriteAround,
                Mode::PassThrough,
                Mode::WriteBack,
            ][rng.below(4) as usize],
            policy: PolicyKind::ALL[rng.below(3) as usize],
            codec: CODECS[rng.below(CODECS.len() as u64) as usize]
                .parse()
                .expect("a codec"),
            write_budget: budget_of(rng.below(9)),
            ..Settings::default()
        });
    }

    async fn client(self: Rc<Self>, mut rng: Rng) {
        for _ in 0..self.operations {
            match rng.below(100) {
                0..=54 => self.read(&mut rng).await,
                55..=86 => self.write(&mut rng).await,
                87..=89 => self.zero(&mut rng, true).await,
                90..=92 => self.zero(&mut rng, false).await,
                93..=94 => {
                    self.check(self.volume.flush().await);
                }
                95..=97 => {
                    let (offset, len) = self.range(&mut rng);
                    self.check(self.volume.prefetch(offset, len).await);
                }
                _ if self.change_settings => self.change(&mut rng),
                _ => self.read(&mut rng).await,
            }
        }
    }

    /// Reads the whole device.
    async fn read_all(&self) {
        let mut at = 0;
        while at < self.origin_len {
            let len = (128 << 10).min(self.origin_len - at);
            let start = self.model.read_starts();
            let result = self.volume.read(at, len as u32).await;
            if let Some(data) = self.check(result) {
                let data: Vec<u8> = data.iter().flat_map(|segment| segment.iter().copied()).collect();
                if let Err(error) = self.model.read_ends(start, at, &data) {
                    panic!("{error}");
                }
            }
            at += len;
        }
    }
}

struct Outcome {
    stats: StatsSnapshot,
    steps: u64,
}

/// One run: clients, a clean stop, a warm start, a read of everything.
fn run(plan: &Plan) -> Outcome {
    let sim = Sim::new(plan.seed);
    sim.set_parallelism(1 + (plan.seed % 2) as usize);
    sim.set_load(match plan.seed % 4 {
        1 => Load::Low,
        _ => Load::Medium,
    });
    let env = sim.env();
    let origin_config = DiskConfig {
        discard_mode: DiscardMode::Zero,
        ..DiskConfig::slow(plan.origin_len)
    };
    let origin = SimDisk::new(&env, origin_config);
    let disk = SimDisk::new(&env, DiskConfig::fast(plan.cache_len));
    let stats = sim.block_on(async {
        let options = CreateOptions {
            uuid: uuid::Uuid::from_u128(u128::from(plan.seed)),
            created_unix_s: 0,
            wish: plan.wish.into(),
            codec: CodecChoice::default(),
            origin_len: plan.origin_len,
            origin_identity: "sim".into(),
            origin_path: "sim".into(),
        };
        create(&disk, options).await.expect("the cache fits");
        let model = Model::new(plan.origin_len);
        let first = open_and_run(plan, &env, &origin, &disk, model, &[Start::Empty]).await;
        let (model, mut stats, starts) = first;
        let clean = starts == [WARM];
        origin.set_faults(FaultRates::default());
        disk.set_faults(FaultRates::default());
        let again = Plan {
            operations: 20,
            origin_faults: FaultRates::default(),
            cache_faults: FaultRates::default(),
            ..plan.clone()
        };
        let (_, second, _) = open_and_run(&again, &env, &origin, &disk, model, &starts).await;
        if clean
            && !plan.damage
            && stats.holdings.cached_blocks > 50
            && plan.settings.mode != Mode::PassThrough
            // A failed flush, or a failed write with FUA, leaves intents: then the next start drops blocks.
            && plan.origin_faults.write_error_ppm == 0
            && plan.origin_faults.flush_error_ppm == 0
        {
            assert!(second.counts.hit_blocks > 0, "a warm start gives hits");
        }
        stats.add(&second);
        stats
    });
    Outcome {
        stats,
        steps: sim.steps(),
    }
}

/// Start of a cache that was stopped cleanly in its first opening.
const WARM: Start = Start::Warm(flaz_engine::units::Epoch(1));

/// `starts`: how the cache may start. Returns how it may start the next time.
async fn open_and_run(
    plan: &Plan,
    env: &SimEnv,
    origin: &SimDisk,
    disk: &SimDisk,
    model: Model,
    starts: &[Start],
) -> (Model, StatsSnapshot, Vec<Start>) {
    let (cache, base) = (AnyDevice::disk(disk), AnyDevice::disk(origin));
    let opened =
        LocalCache::<Simulated>::open(env.clone(), cache, Rc::clone(&base), plan.settings.clone()).await;
    if let Err(CacheError::DirtyUnreadable { .. }) = &opened
        && plan.damage
    {
        // The image and the log were damaged: the opening is refused rather than serving old data.
        return (model, StatsSnapshot::default(), vec![Start::Recovered]);
    }
    let mut cache = opened.expect("opens");
    if plan.change_settings && plan.write_back {
        cache
            .permit_write_back()
            .await
            .expect("the superblock can be written");
    }
    // A damaged superblock slot, index image or log is found, and the cache starts as warm as it still can.
    let damaged = match cache.start {
        Start::Cold => plan.damage || starts.contains(&Start::Recovered),
        Start::Recovered => plan.damage || plan.pages_rot,
        Start::Warm(_) | Start::Empty => false,
    };
    assert!(
        starts.contains(&cache.start) || damaged,
        "started {:?}, expected one of {starts:?}",
        cache.start
    );
    let volume = CachedVolume::new(
        cache.shards(),
        base,
        plan.origin_len,
        plan.settings.sequential_cutoff,
    );
    origin.set_faults(plan.origin_faults);
    disk.set_faults(plan.cache_faults);
    let run = Rc::new(Run {
        volume,
        cache: Rc::new(cache),
        model,
        origin_len: plan.origin_len,
        reading: RefCell::new(Vec::new()),
        errors_allowed: plan.origin_faults.read_error_ppm > 0
            || plan.write_back
                && (plan.damage
                    || plan.cache_faults.read_error_ppm > 0
                    || plan.origin_faults.flush_error_ppm > 0),
        errors: Cell::new(0),
        operations: plan.operations,
        change_settings: plan.change_settings,
    });
    if starts != [Start::Empty] {
        run.read_all().await;
    }
    let mut rng = Rng::new(plan.seed ^ 0xc11e);
    let clients = (0..CLIENTS).map(|_| Rc::clone(&run).client(rng.fork()));
    let clients = futures_util::future::join_all(clients.collect::<Vec<_>>());
    let geometry = run.cache.superblock().geometry;
    let rot = pin!(rot(plan, env, geometry, disk));
    match futures_util::future::select(clients, rot).await {
        Either::Left(_) => {}
        Either::Right(((), clients)) => drop(clients.await),
    }
    run.read_all().await;
    let Ok(run) = Rc::try_unwrap(run) else {
        panic!("a client still runs")
    };
    let Ok(cache) = Rc::try_unwrap(run.cache) else {
        panic!("the cache is shared")
    };
    let stats = cache.stats();
    check_holdings(&stats, plan);
    drop(run.volume);
    let stopped = cache.stop().await;
    assert!(
        stopped.is_ok() || disk.stats().errors > 0 || plan.origin_faults.flush_error_ppm > 0,
        "a cache without faults stops in order: {stopped:?}"
    );
    let next = match stopped {
        Ok(_) => vec![WARM],
        // The mark of the clean stop may have landed anyway.
        Err(CacheError::Device(_)) => vec![Start::Recovered, WARM],
        Err(_) => vec![Start::Recovered],
    };
    (run.model, stats, next)
}

/// Flips bits of index pages, if the plan says so. Ends when enough have flipped.
async fn rot(plan: &Plan, env: &SimEnv, geometry: Geometry, disk: &SimDisk) {
    if !plan.pages_rot {
        return;
    }
    assert!(geometry.index_bytes > 0, "it has an area");
    let mut rng = Rng::new(plan.seed ^ 0x0707);
    for _ in 0..ROTTEN_BITS {
        env.sleep(Duration::from_micros(rng.below(10_000))).await;
        let at = geometry.index_offset() + rng.below(geometry.index_bytes);
        disk.flip_bit(at, rng.below(8) as u8);
    }
}

fn check_holdings(stats: &StatsSnapshot, plan: &Plan) {
    let holdings = &stats.holdings;
    let blocks = plan.origin_len / 4096;
    assert!(holdings.cached_blocks <= blocks);
    if !plan.damage {
        assert_eq!(
            stats.counts.checksum_failures, 0,
            "a checksum failed without a fault"
        );
    }
}

#[test]
fn concurrent_clients_see_what_was_written() {
    let totals = RefCell::new(StatsSnapshot::default());
    let steps = Cell::new(0);
    check_seeds(60, |seed| {
        let outcome = run(&plan(seed));
        totals.borrow_mut().add(&outcome.stats);
        steps.set(steps.get() + outcome.steps);
    });
    let counts = totals.into_inner().counts;
    eprintln!("{} simulated steps: {counts:?}", steps.get());
    if std::env::var_os("FLAZ_SEED").is_some() {
        return;
    }
    // A test must not pass without exploring anything.
    for (name, count) in [
        ("hits", counts.read_hits),
        ("partial hits", counts.read_partial_hits),
        ("joined reads", counts.joined_reads),
        ("reclaimed regions", counts.regions_reclaimed),
        ("reinserted blocks", counts.reinserted_blocks),
        ("blocks compressed again", counts.repacked_blocks),
        ("blocks stored together", counts.grouped_blocks),
        ("overtaken admissions", counts.refused_overtaken),
        ("tombstones", counts.tombstones),
        ("raw blocks", counts.raw_blocks),
        ("same-filled blocks", counts.same_filled_blocks),
        ("hits in memory", counts.memory_hit_blocks),
        ("blocks cleaned", counts.cleaned_blocks),
        ("extents closed for acknowledgements", counts.ack_extents),
        ("waits for writeback", counts.dirty_waits),
        ("dirty blocks moved", counts.dirty_moved_blocks),
    ] {
        assert!(count > 0, "no {name} in the whole test");
    }
}

/// Neighbours are stored together, in a cache whose main ring is reclaimed again and again, while single members change.
#[test]
fn members_of_groups_change_alone() {
    let totals = RefCell::new(StatsSnapshot::default());
    check_seeds(24, |seed| {
        let mut plan = plan(seed);
        let shards = u64::from(plan.wish.shard_count.expect("there is"));
        plan.wish.dictionary_bytes = Some(8 << 10);
        plan.cache_len = (256 << 10) + 6 * shards * (128 << 10);
        plan.origin_len = 4 << 20;
        plan.settings.codec = CodecChoice::Auto;
        plan.settings.policy = PolicyKind::S3Fifo;
        plan.settings.write_budget = WriteBudget::None;
        plan.settings.sequential_cutoff = 0;
        plan.change_settings = false;
        plan.operations = 600;
        totals.borrow_mut().add(&run(&plan).stats);
    });
    let counts = totals.into_inner().counts;
    if std::env::var_os("FLAZ_SEED").is_some() {
        return;
    }
    assert!(counts.grouped_blocks > 100, "{counts:?}");
    assert!(counts.dictionaries_made > 0, "{counts:?}");
    // With a paged index, reclaim looks at few of the groups.
    let paged = std::env::var_os("FLAZ_INDEX_PAGED").is_some();
    assert!(counts.groups_divided > if paged { 0 } else { 10 }, "{counts:?}");
}

#[test]
fn damage_on_the_cache_device_is_a_miss_never_wrong_data() {
    let failures = Cell::new(0);
    check_seeds(30, |seed| {
        let mut plan = plan(seed).through();
        plan.damage = true;
        plan.cache_faults = FaultRates {
            read_flip_ppm: 20_000,
            write_lost_ppm: 5_000,
            write_misdirected_ppm: 5_000,
            ..FaultRates::default()
        };
        failures.set(failures.get() + run(&plan).stats.counts.checksum_failures);
    });
    assert!(
        failures.get() > 0 || std::env::var_os("FLAZ_SEED").is_some(),
        "no damage was met"
    );
}

#[test]
fn a_failing_cache_device_never_fails_a_request() {
    check_seeds(30, |seed| {
        let mut plan = plan(seed).through();
        plan.cache_faults = FaultRates {
            read_error_ppm: 10_000,
            write_error_ppm: 10_000,
            discard_error_ppm: 10_000,
            ..FaultRates::default()
        };
        run(&plan);
    });
}

/// Bit rot, lost and misdirected writes under dirty blocks: requests fail, and never return older data of the origin.
#[test]
fn damage_of_dirty_blocks_is_an_error_never_old_data() {
    let lost = Cell::new(0);
    check_seeds(30, |seed| {
        let mut plan = plan(seed).back();
        plan.damage = true;
        plan.cache_faults = FaultRates {
            read_flip_ppm: 20_000,
            write_lost_ppm: 5_000,
            write_misdirected_ppm: 5_000,
            ..FaultRates::default()
        };
        lost.set(lost.get() + run(&plan).stats.counts.dirty_lost);
    });
    assert!(
        lost.get() > 0 || std::env::var_os("FLAZ_SEED").is_some(),
        "no dirty block was damaged"
    );
}

#[test]
fn a_failing_cache_device_never_gives_old_data_for_dirty_blocks() {
    check_seeds(30, |seed| {
        let mut plan = plan(seed).back();
        plan.cache_faults = FaultRates {
            read_error_ppm: 10_000,
            write_error_ppm: 10_000,
            discard_error_ppm: 10_000,
            flush_error_ppm: if seed.is_multiple_of(3) { 10_000 } else { 0 },
            ..FaultRates::default()
        };
        run(&plan);
    });
}

/// An origin that fails occasionally: dirty blocks stay dirty, and reach the origin in the end.
#[test]
fn a_failing_origin_keeps_what_is_dirty() {
    let cleaned = Cell::new(0);
    check_seeds(30, |seed| {
        let mut plan = plan(seed).back();
        plan.origin_faults = FaultRates {
            read_error_ppm: 20_000,
            write_error_ppm: 20_000,
            flush_error_ppm: 20_000,
            ..FaultRates::default()
        };
        cleaned.set(cleaned.get() + run(&plan).stats.counts.cleaned_blocks);
    });
    assert!(cleaned.get() > 0 || std::env::var_os("FLAZ_SEED").is_some());
}

#[test]
fn a_failing_origin_fails_requests_and_nothing_else() {
    check_seeds(30, |seed| {
        let mut plan = plan(seed);
        plan.origin_faults = FaultRates {
            read_error_ppm: 20_000,
            write_error_ppm: 20_000,
            ..FaultRates::default()
        };
        run(&plan);
    });
}
