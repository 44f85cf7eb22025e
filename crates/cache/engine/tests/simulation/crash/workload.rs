//! The requests of clients, as data: generated in advance from a seed, so that they can be minimised.

use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use flaz_codec::CodecChoice;
use flaz_engine::format::geometry::GeometryOptions;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{Mode, Settings, StrictFlush};
use flaz_engine::volume::STRIPE_BYTES;
use flaz_engine::write_budget::WriteBudget;
use flaz_sim::{DiscardMode, FaultRates, Rng};

use super::groups;
use super::oracle::Spot;
use super::sectors::{BLOCK_SECTORS, SECTOR};

/// Blocks of the largest spot.
const SPOT_BLOCKS_MAX: u64 = 10;
/// Blocks of a large spot: more than are split at a time for any operation.
const LARGE_BLOCKS_MIN: u64 = 80;
const LARGE_BLOCKS_MAX: u64 = 250;
/// Stripes with ballast, in their second halves, and blocks of ballast in each: about twice a cache in total.
const BALLAST_STRIPES: [u64; 6] = [0, 1, 3, 4, 5, 6];
const BALLAST_BLOCKS: u64 = 110;
pub const STRIPE_SECTORS: u64 = STRIPE_BYTES / SECTOR as u64;
/// Bytes of a sequential stream: a few requests, or one of the larger ones.
const CUTOFF_BYTES: u64 = 64 << 10;
/// A write budget that is ample before a crash, and lets a few blocks in soon after it.
const BUDGET_PER_DAY: NonZeroU64 = NonZeroU64::new(20 << 30).unwrap();
/// Spots within the size that the origin has at first. The others lie beyond it.
pub const SPOTS: usize = 8;
/// Bytes by which the origin grows, but for its alignment.
const GROWTH: u64 = 2 * STRIPE_BYTES + STRIPE_BYTES / 2;
/// Versions of writes beyond the old end count from here.
const VERSION_BEYOND: u64 = 500_000;
/// All modes.
pub const MODES: [Mode; 4] = [
    Mode::WriteThrough,
    Mode::WriteBack,
    Mode::WriteAround,
    Mode::PassThrough,
];
/// Scenarios that start from the same filled cache.
pub const SCENARIOS_A_BASE: u64 = 16;

/// A range of sectors within a spot.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub spot: usize,
    pub first: u64,
    pub count: u64,
}

/// One request of a client.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    Write {
        place: Place,
        version: u64,
        fua: bool,
    },
    Read {
        place: Place,
    },
    Flush,
    Trim {
        place: Place,
        fua: bool,
    },
    WriteZeroes {
        place: Place,
        may_unmap: bool,
        fua: bool,
    },
    Prefetch {
        place: Place,
    },
    /// Read blocks that are never written: more of them than the cache holds, so that non-empty regions are reclaimed.
    Ballast {
        sector: u64,
        count: u64,
    },
    /// Applies to all clients from now on.
    Mode(Mode),
    /// Stored for the next openings as well.
    Policy(PolicyKind),
    /// From now on sequential streams longer than this bypass the cache; 0: none.
    Cutoff {
        bytes: u64,
    },
    /// Write everything dirty to the origin.
    Clean,
    /// The same in write-through, and then mark the cache as not dirty, if nothing is.
    Withdraw,
    /// Use all of the cache device but for so many regions of each shard, at most as many as can be missing. A shrink is called
    /// off after this time.
    Resize {
        gone: u64,
        patience_ms: u64,
    },
    /// The origin grows, and the cache takes it over.
    Grow,
    /// Permanently flip a bit of the cache device, this far behind the superblocks.
    Rot {
        ppm: u64,
    },
    /// Damage a closed region: a bit of it, or a lost or misdirected write.
    Damage {
        pick: u64,
    },
    Pause {
        us: u64,
    },
}

impl Op {
    /// Whether it is a client's request, not damage to the cache.
    pub fn is_request(self) -> bool {
        !matches!(
            self,
            Self::Mode(_)
                | Self::Withdraw
                | Self::Resize { .. }
                | Self::Grow
                | Self::Policy(_)
                | Self::Cutoff { .. }
                | Self::Rot { .. }
                | Self::Damage { .. }
                | Self::Pause { .. }
        )
    }
}

/// A request, its client, and the two clean stops it is between.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub phase: u32,
    pub client: u32,
    pub op: Op,
}

/// Sizes and properties of cache and origin: the same for all scenarios of a base.
#[derive(Clone, Debug)]
pub struct Shape {
    pub origin_len: u64,
    /// After it has grown.
    pub grown_len: u64,
    pub cache_len: u64,
    pub wish: GeometryOptions,
    pub settings: Settings,
    pub origin_alignment: u32,
    pub origin_discard: DiscardMode,
    pub spots: Rc<[Spot]>,
    /// The spot that is large enough for requests of many blocks, in some bases.
    pub large: Option<usize>,
    /// Many of the blocks lie in groups: see [`super::groups`].
    pub grouped: bool,
    pub cores: usize,
}

impl Shape {
    /// Half of the bases use write-back. (The lowest bit determines the number of shards.)
    fn mode_of_base(base: u64) -> Mode {
        if (base / 2).is_multiple_of(2) {
            Mode::WriteThrough
        } else {
            Mode::WriteBack
        }
    }

    /// The bases whose caches are in that mode.
    pub fn bases_of(mode: Mode) -> impl Iterator<Item = u64> {
        (0..).filter(move |&base| Self::mode_of_base(base) == mode)
    }

    pub fn of_base(base: u64) -> Self {
        let mut rng = Rng::new(base ^ 0x5a9e);
        // As in scenarios.
        let mut later = Rng::new(base ^ 0x1a7e);
        let shard_count = 1 + base % 2;
        let regions = 7 + rng.below(4);
        let origin_alignment = if rng.below(4) == 0 { 4096 } else { 512 };
        let whole = 8 * STRIPE_BYTES;
        let odd = rng.below(2) * u64::from(origin_alignment);
        let origin_len = whole + odd;
        // In stripes without ballast.
        let large = (base % 9 == 5).then_some([2, 7][(base / 9 % 2) as usize]);
        let mut spots = Vec::new();
        for stripe in 0..SPOTS as u64 {
            let mut count = BLOCK_SECTORS * rng.between(3, SPOT_BLOCKS_MAX);
            let over = count / 2;
            if large == Some(stripe as usize) {
                count = BLOCK_SECTORS * later.between(LARGE_BLOCKS_MIN, LARGE_BLOCKS_MAX);
            }
            let room = STRIPE_SECTORS - count;
            let first = match stripe {
                // Across the border to the next stripe, which has its own shard.
                2 => room + over,
                // To the end of the device.
                7 => room,
                // In the first half, because ballast is in the other; after the part that reaches over from the previous
                // stripe.
                _ => {
                    let reserved = BLOCK_SECTORS * SPOT_BLOCKS_MAX;
                    reserved
                        + rng.below((STRIPE_SECTORS / 2 - reserved - count) / BLOCK_SECTORS) * BLOCK_SECTORS
                }
            };
            // More often than by chance at a location that is part of the origin's fingerprint.
            let first = if stripe == 0 && base.is_multiple_of(3) {
                BLOCK_SECTORS * SPOT_BLOCKS_MAX
            } else {
                first
            };
            let first = stripe * STRIPE_SECTORS + first / BLOCK_SECTORS * BLOCK_SECTORS;
            let count = if stripe == 7 {
                origin_len / SECTOR as u64 - first
            } else {
                count
            };
            spots.push(Spot { first, count });
        }
        let grown_len = whole + GROWTH + u64::from(origin_alignment);
        // From the old end on, which may be within a block; across the border to another stripe; and to the new end.
        let end = (origin_len / SECTOR as u64, grown_len / SECTOR as u64);
        for (first, count) in [
            (end.0, 12 * BLOCK_SECTORS),
            (10 * STRIPE_SECTORS - 5 * BLOCK_SECTORS, 10 * BLOCK_SECTORS),
            (end.1 - 20, 20),
        ] {
            spots.push(Spot { first, count });
        }
        let apart = spots
            .windows(2)
            .all(|pair| pair[0].first + pair[0].count <= pair[1].first);
        assert!(apart, "spots overlap: {spots:?}");
        let mut settings = Settings {
            mode: Self::mode_of_base(base),
            policy: PolicyKind::ALL[rng.below(3) as usize],
            codec: ["lz4", "none", "auto", "lzo"][rng.below(4) as usize]
                .parse()
                .expect("a codec"),
            sequential_cutoff: if later.below(4) == 0 { CUTOFF_BYTES } else { 0 },
            dirty_percent: [10, 25, 50][(base / 4 % 3) as usize],
            strict_flush: [StrictFlush::Always, StrictFlush::Never][(base / 4 % 2) as usize],
            write_budget: match base / 8 % 4 {
                3 => WriteBudget::BytesPerDay(BUDGET_PER_DAY),
                _ => WriteBudget::None,
            },
        };
        if has_groups(base) {
            settings.codec = CodecChoice::Auto;
            settings.policy = PolicyKind::S3Fifo;
        }
        let shape = Self {
            origin_len,
            grown_len,
            cache_len: (192 << 10) + shard_count * regions * (128 << 10),
            wish: GeometryOptions {
                extent_bytes: Some(32 << 10),
                region_bytes: Some(128 << 10),
                shard_count: Some(shard_count as u32),
                threads: None,
                index_memory: None,
                dictionary_bytes: None,
            },
            settings,
            origin_alignment,
            origin_discard: [DiscardMode::Zero, DiscardMode::Zero, DiscardMode::Mixed][rng.below(3) as usize],
            spots: spots.into(),
            large,
            grouped: false,
            cores: 1 + rng.below(2) as usize,
        };
        match base >= groups::FIRST_BASE {
            true => groups::adapt(shape, &mut later),
            false => shape,
        }
    }
}

/// Whether the cache of a base stores neighbours together, as often as it can: in both modes, with one shard and with two.
fn has_groups(base: u64) -> bool {
    base % 5 == 1
}

/// A device that fails operations, rarely or often.
pub fn failing(rng: &mut Rng) -> FaultRates {
    let mut ppm = |usual: u32| match rng.below(4) {
        0 => 0,
        1 => 10 * usual,
        _ => usual,
    };
    FaultRates {
        read_error_ppm: ppm(10_000),
        write_error_ppm: ppm(10_000),
        write_no_space_ppm: ppm(1_000),
        // A workload has few flushes.
        flush_error_ppm: ppm(5_000),
        discard_error_ppm: ppm(10_000),
        ..FaultRates::default()
    }
}

/// A device that often fails while a cache is opened, which takes only a few operations.
pub fn failing_opening(rng: &mut Rng) -> FaultRates {
    let mut ppm = |usual: u32| match rng.below(4) {
        0 | 1 => 0,
        2 => usual,
        _ => 5 * usual,
    };
    FaultRates {
        read_error_ppm: ppm(20_000),
        write_error_ppm: ppm(50_000),
        write_no_space_ppm: ppm(10_000),
        flush_error_ppm: ppm(50_000),
        discard_error_ppm: ppm(50_000),
        // Two wrong reads in a row cannot be distinguished from damage.
        read_flip_ppm: ppm(10_000),
        read_flip_once: true,
        stall_ppm: ppm(50_000),
        stall: Duration::from_millis(40),
        ..FaultRates::default()
    }
}

/// A workload whose crashes are explored.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub steps: Vec<Step>,
    pub cache_faults: FaultRates,
    pub origin_faults: FaultRates,
    /// The host keeps no records.
    pub forgetful_host: bool,
    /// Settings change, in the workload and from life to life.
    pub unsettled: bool,
    /// A stop at the end does not wait for the clients.
    pub stop_beside: bool,
}

impl Scenario {
    /// The base that it starts from.
    pub fn base_of(seed: u64) -> u64 {
        seed / SCENARIOS_A_BASE
    }

    pub fn of_seed(seed: u64, shape: &Shape) -> Self {
        let mut rng = Rng::new(seed ^ 0x3c0e);
        let count = if rng.coin() {
            6 + rng.below(20)
        } else {
            40 + rng.below(120)
        };
        let phases = 1 + u32::from(rng.below(4) == 0);
        let clients = 1 + rng.below(5) as u32;
        let mut generator = Generator::new(shape, rng.fork(), 10_000);
        let steps = (0..count).map(|n| Step {
            phase: (n * u64::from(phases) / count) as u32,
            client: rng.below(u64::from(clients)) as u32,
            op: generator.op(),
        });
        let mut steps: Vec<Step> = steps.collect();
        let mut cache_faults = FaultRates::default();
        match rng.below(6) {
            0 => {
                cache_faults.read_flip_ppm = 20_000;
                cache_faults.read_error_ppm = 2_000;
                cache_faults.write_error_ppm = 2_000;
            }
            1 | 2 => {
                cache_faults.stall_ppm = 50_000;
                cache_faults.stall = Duration::from_millis(40);
            }
            _ => {}
        }
        // Later additions have random numbers of their own, so that the others stay unchanged.
        let mut rng = Rng::new(seed ^ 0xfa17);
        let mut origin_faults = FaultRates::default();
        match rng.below(12) {
            0 => origin_faults = failing(&mut rng),
            1 => cache_faults = failing(&mut rng),
            2 => (cache_faults, origin_faults) = (failing(&mut rng), failing(&mut rng)),
            3 => {
                origin_faults.stall_ppm = 50_000;
                origin_faults.stall = Duration::from_millis(2000);
            }
            _ => {}
        }
        let unsettled = rng.below(4) == 0;
        if unsettled {
            unsettle(&mut steps, &mut rng);
        } else if shape.settings.mode != Mode::WriteBack && rng.below(6) == 0 {
            // (In write-back, rot in a region that is not full may hide later data.)
            for _ in 0..1 + rng.below(3) {
                let ppm = rng.below(1_000_000);
                insert(&mut steps, Op::Rot { ppm }, &mut rng);
            }
        }
        // Damage to a closed region cannot hide other data.
        let mut rng = Rng::new(seed ^ 0xda3a);
        let rots = steps.iter().any(|step| matches!(step.op, Op::Rot { .. }));
        if !rots && rng.below(10) == 0 {
            let pick = rng.next_u64();
            insert(&mut steps, Op::Damage { pick }, &mut rng);
        }
        let stop_beside = rng.below(3) == 0;
        Self {
            seed,
            steps,
            cache_faults,
            origin_faults,
            forgetful_host: false,
            unsettled,
            stop_beside,
        }
    }

    /// The workload that fills the cache of a base: everything is written, most of it several times, and read.
    pub fn filler(base: u64, turn: u64, shape: &Shape) -> Self {
        let mut rng = Rng::new(base ^ 0xf111 ^ turn << 32);
        let mut generator = Generator::new(shape, rng.fork(), 1 + turn * 1000);
        let steps = match shape.grouped {
            true => groups::filling(&mut generator),
            false => Self::filling(&mut generator, &mut rng),
        };
        Self {
            seed: base ^ 0xba5e ^ turn << 32,
            steps,
            cache_faults: FaultRates::default(),
            origin_faults: FaultRates::default(),
            forgetful_host: false,
            unsettled: false,
            stop_beside: false,
        }
    }

    fn filling(generator: &mut Generator<'_>, rng: &mut Rng) -> Vec<Step> {
        let mut steps = Vec::new();
        for round in 0..6 {
            for spot in 0..SPOTS {
                let place = generator.whole(spot);
                let version = generator.version();
                let op = match (round, rng.below(3)) {
                    (1, _) | (_, 0) => Op::Read { place },
                    _ => Op::Write {
                        place,
                        version,
                        fua: false,
                    },
                };
                let client = rng.below(3) as u32;
                steps.push(Step { phase: 0, client, op });
                let mut more = vec![generator.op(), generator.ballast()];
                if generator.shape.settings.codec == CodecChoice::Auto {
                    // What is used stays, with its neighbours.
                    more.push(Op::Read { place });
                }
                for op in more {
                    if !matches!(op, Op::Mode(_)) {
                        steps.push(Step { phase: 0, client, op });
                    }
                }
            }
        }
        steps
    }
}

/// Inserts changes of settings between requests.
pub fn unsettle(steps: &mut Vec<Step>, rng: &mut Rng) {
    for _ in 0..1 + rng.below(2 + steps.len() as u64 / 4) {
        let op = match rng.below(8) {
            0 | 1 => Op::Mode(Mode::WriteBack),
            2 | 3 => Op::Mode(MODES[rng.below(4) as usize]),
            4 | 5 => Op::Clean,
            6 => Op::Policy(PolicyKind::ALL[rng.below(3) as usize]),
            _ => Op::Cutoff {
                bytes: rng.below(2) * CUTOFF_BYTES,
            },
        };
        insert(steps, op, rng);
    }
}

/// Inserts withdrawals of write-back, most of them followed by write-back, between requests.
pub fn withdraw(steps: &mut Vec<Step>, rng: &mut Rng) {
    for _ in 0..2 + rng.below(3) {
        insert(steps, Op::Withdraw, rng);
        insert(steps, Op::Mode(Mode::WriteBack), rng);
    }
}

/// Inserts changes of the cache's size between requests.
pub fn with_resizes(scenario: &mut Scenario) {
    if scenario.seed.is_multiple_of(4) {
        // A sparse cache file.
        scenario.cache_faults.allocate_no_space_ppm = 300_000;
    }
    let rng = &mut Rng::new(scenario.seed ^ 0x517e);
    for _ in 0..2 + rng.below(4) {
        let gone = rng.below(5);
        let patience_ms = match rng.below(4) {
            0 => rng.below(50),
            _ => 60_000,
        };
        insert(&mut scenario.steps, Op::Resize { gone, patience_ms }, rng);
    }
}

/// Inserts one growth of the origin, or two, of which the second changes nothing, and requests beyond its old end. Those before it
/// are not made.
pub fn grow(steps: &mut Vec<Step>, shape: &Shape, rng: &mut Rng) {
    for n in 0..8 + rng.below(24) {
        let spot = SPOTS + rng.below((shape.spots.len() - SPOTS) as u64) as usize;
        let Spot { first: start, count } = shape.spots[spot];
        let mut first = rng.below(count);
        let mut len = 1 + rng.below(40);
        if rng.below(4) > 0 {
            // Whole blocks of the device.
            first = ((start + first) / BLOCK_SECTORS * BLOCK_SECTORS).saturating_sub(start);
            len = len.next_multiple_of(BLOCK_SECTORS) - (start + first) % BLOCK_SECTORS;
        }
        let count = len.min(count - first);
        let place = Place { spot, first, count };
        let fua = rng.below(8) == 0;
        let op = match rng.below(12) {
            0..=6 => Op::Write {
                place,
                version: VERSION_BEYOND + n,
                fua,
            },
            7 => Op::Trim { place, fua },
            8 => Op::WriteZeroes {
                place,
                may_unmap: rng.coin(),
                fua,
            },
            9 => Op::Flush,
            _ => Op::Read { place },
        };
        insert(steps, op, rng);
    }
    for _ in 0..1 + rng.below(2) {
        // Mostly early.
        let upto = 1 + rng.below(steps.len() as u64 / 2) as usize;
        let mut early = steps.split_off(upto);
        insert(steps, Op::Grow, rng);
        steps.append(&mut early);
    }
}

/// Inserts a step anywhere.
fn insert(steps: &mut Vec<Step>, op: Op, rng: &mut Rng) {
    let at = rng.below(steps.len() as u64 + 1) as usize;
    let beside = steps.get(at).or(steps.last()).copied();
    let (phase, client) = beside.map_or((0, 0), |step| (step.phase, step.client));
    steps.insert(at, Step { phase, client, op });
}

/// Generates requests.
pub struct Generator<'a> {
    shape: &'a Shape,
    pub rng: Rng,
    next_version: u64,
    last: Option<Place>,
}

impl<'a> Generator<'a> {
    /// Versions count from `first_version`.
    pub fn new(shape: &'a Shape, rng: Rng, first_version: u64) -> Self {
        Self {
            shape,
            rng,
            next_version: first_version,
            last: None,
        }
    }

    pub fn version(&mut self) -> u64 {
        self.next_version += 1;
        let number = self.next_version;
        // Neighbours that do not compress are not stored together.
        match self.shape.settings.codec {
            CodecChoice::Auto => number / 4 * 8 + 4 + number % 4,
            CodecChoice::One(_) => number,
        }
    }

    pub fn whole(&self, spot: usize) -> Place {
        Place {
            spot,
            first: 0,
            count: self.shape.spots[spot].count,
        }
    }

    /// A range with a bias to few spots, to their starts, to alignment, and to the previous location.
    fn place(&mut self) -> Place {
        if let Some(last) = self.last.filter(|_| self.rng.below(3) == 0) {
            return last;
        }
        if let Some(large) = self.shape.large.filter(|_| self.rng.below(5) == 0) {
            return self.large_place(large);
        }
        let rng = &mut self.rng;
        let spots = SPOTS as u64;
        let hot = rng.below(spots).min(rng.below(spots)).min(rng.below(spots));
        let spot = if rng.below(4) == 0 { rng.below(spots) } else { hot } as usize;
        let room = self.shape.spots[spot].count;
        let (mut first, mut count) = (rng.below(room).min(rng.below(room)), 1 + rng.below(40));
        if rng.below(4) > 0 {
            first = first / BLOCK_SECTORS * BLOCK_SECTORS;
            count = count.next_multiple_of(BLOCK_SECTORS);
        }
        let count = count.min(room - first);
        let place = Place { spot, first, count };
        self.last = Some(place);
        place
    }

    /// Any part of a spot, large ones as likely as small ones.
    fn large_place(&mut self, spot: usize) -> Place {
        let rng = &mut self.rng;
        let room = self.shape.spots[spot].count;
        let first = rng.below(room).min(rng.below(room));
        let count = 1 + rng.below(room - first).max(rng.below(room - first));
        let place = match rng.below(4) {
            0 => Place { spot, first, count },
            _ => {
                let first = first / BLOCK_SECTORS * BLOCK_SECTORS;
                let count = count.next_multiple_of(BLOCK_SECTORS).min(room - first);
                Place { spot, first, count }
            }
        };
        self.last = Some(place);
        place
    }

    /// A few blocks of ballast, some of them more often than others.
    pub fn ballast(&mut self) -> Op {
        let rng = &mut self.rng;
        let all = BALLAST_STRIPES.len() as u64 * BALLAST_BLOCKS;
        let block = rng.below(all).min(rng.below(all));
        let stripe = BALLAST_STRIPES[(block / BALLAST_BLOCKS) as usize];
        let within = block % BALLAST_BLOCKS;
        let blocks = (4 + rng.below(28)).min(BALLAST_BLOCKS - within);
        Op::Ballast {
            sector: stripe * STRIPE_SECTORS + STRIPE_SECTORS / 2 + within * BLOCK_SECTORS,
            count: blocks * BLOCK_SECTORS,
        }
    }

    /// The next request.
    pub fn op(&mut self) -> Op {
        match self.shape.grouped {
            true => groups::op(self),
            false => self.usual_op(),
        }
    }

    pub fn usual_op(&mut self) -> Op {
        let place = self.place();
        let fua = self.rng.below(8) == 0;
        match self.rng.below(100) {
            0..=43 => {
                let version = self.version();
                Op::Write { place, version, fua }
            }
            44..=54 => self.ballast(),
            55..=61 => Op::Read { place },
            62..=72 => {
                let spot = self.rng.below(SPOTS as u64) as usize;
                let count = self.shape.spots[spot].count.min(place.count);
                Op::Read {
                    place: Place {
                        spot,
                        first: 0,
                        count,
                    },
                }
            }
            73..=80 => Op::Flush,
            81..=84 => Op::Trim { place, fua },
            85..=88 => Op::WriteZeroes {
                place,
                may_unmap: self.rng.coin(),
                fua,
            },
            89..=91 => Op::Prefetch { place },
            92..=94 => {
                let usual = self.shape.settings.mode;
                let modes = [
                    usual,
                    usual,
                    usual,
                    Mode::WriteThrough,
                    Mode::WriteAround,
                    Mode::PassThrough,
                ];
                Op::Mode(modes[self.rng.below(6) as usize])
            }
            95 if self.shape.settings.mode == Mode::WriteBack => Op::Clean,
            // Sometimes long enough for the engine's idle work.
            _ => Op::Pause {
                us: match self.rng.below(3) {
                    0 => self.rng.below(14_000_000),
                    _ => self.rng.below(5_000),
                },
            },
        }
    }
}
