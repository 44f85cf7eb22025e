//! The write budget over simulated weeks: loads that vary, clients that write, restarts and crashes.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use flaz_device::{Env, IoBuf};
use flaz_engine::policy::{Allowance, PolicyKind};
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::stats::{Counts, StatsSnapshot};
use flaz_engine::volume::Volume;
use flaz_engine::write_budget::WriteBudget;
use flaz_sim::{Rng, check_seeds};

use crate::whole_cache::rig::{BLOCK, FRONT_BYTES, Open, Rig, SMALLEST, filled_disk, plain_disk, settings};

const ORIGIN_LEN: u64 = 32 << 20;
const REGIONS: u64 = 32;
const REGION_BYTES: u64 = 128 << 10;
const HOUR: Duration = Duration::from_secs(3600);
const WEEK_HOURS: u64 = 7 * 24;
/// Half of the cache a day.
const PER_DAY: u64 = REGIONS * REGION_BYTES / 2;
/// What an opening and a stop write at most besides: superblocks, and the state page of the shard.
const OPENING_BYTES_MAX: u64 = 128 << 10;

fn random(number: u64, block: &mut [u8; 4096]) {
    Rng::new(number).fill(block);
}

fn rig(seed: u64) -> Rig {
    let cache_len = FRONT_BYTES + REGIONS * REGION_BYTES;
    let rig = Rig::new(seed, filled_disk(ORIGIN_LEN, random), plain_disk(cache_len));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig
}

fn with(budget: WriteBudget, mode: Mode, policy: PolicyKind) -> Settings {
    Settings {
        mode,
        write_budget: budget,
        ..settings("none", policy)
    }
}

fn bytes(bytes: u64) -> WriteBudget {
    WriteBudget::BytesPerDay(NonZeroU64::new(bytes).expect("not zero"))
}

/// Bytes stored because the budget allowed it.
fn granted(stats: &StatsSnapshot) -> u64 {
    stats.appended.admitted + stats.appended.reinserted
}

/// The load of an hour: quiet nights, days, and bursts.
fn requests(rng: &mut Rng, hour: u64) -> u64 {
    match (hour % 24, rng.below(12)) {
        (_, 0) => 600,
        (0..=6, _) => rng.below(4),
        _ => 20 + rng.below(120),
    }
}

/// Some requests: reads of blocks of which a few are popular, and writes. Returns the longest time that a write took.
async fn load(rig: &Rig, open: &Open, rng: &mut Rng, requests: u64, writes_percent: u64) -> Duration {
    let env = rig.sim.env();
    let mut longest = Duration::ZERO;
    for _ in 0..requests {
        let blocks = ORIGIN_LEN / BLOCK;
        let block = (rng.below(blocks) * rng.below(blocks) / blocks) * 13 % blocks;
        if rng.below(100) < writes_percent {
            let mut data = IoBuf::new(BLOCK as usize);
            rng.fill(&mut data);
            let begun = env.now();
            let written = open.volume.write(block * BLOCK, [data].into(), false).await;
            written.expect("a write is never refused");
            longest = longest.max(env.now().since(begun));
        } else {
            open.read(block * BLOCK, BLOCK).await;
        }
        // What was admitted is stored.
        env.sleep(Duration::from_millis(5)).await;
    }
    longest
}

/// No window of any length has more than its share of the budget, and one day's.
fn assert_within(kind: &str, by_hour: &[u64], per_day: u64, besides: u64) {
    for from in 0..by_hour.len() {
        let mut sum = 0;
        for (upto, bytes) in by_hour.iter().enumerate().skip(from) {
            sum += bytes;
            let most = per_day * (upto + 1 - from) as u64 / 24 + per_day + besides;
            assert!(
                sum <= most,
                "{kind}: {sum} bytes in hours {from} to {upto}, at most {most}"
            );
        }
    }
}

/// What a week is like.
struct Week {
    mode: Mode,
    policy: PolicyKind,
    writes_percent: u64,
    /// One in so many hours ends with a restart, or with a crash.
    restarts: u64,
}

/// Runs a week. Returns for each hour the bytes that were granted, and all bytes that reached the device.
fn run(rig: &Rig, rng: &mut Rng, week: &Week) -> (Vec<u64>, Vec<u64>) {
    let settings = with(bytes(PER_DAY), week.mode, week.policy);
    let (mut grants, mut writes, mut openings) = (Vec::new(), Vec::new(), 0);
    let mut open = Some(rig.sim.block_on(rig.opened(settings.clone())));
    let (mut granted_before, mut written_before) = (0, rig.disk.stats().written_bytes);
    for hour in 0..WEEK_HOURS {
        let opened = open.take().expect("it is open");
        let requests = requests(rng, hour);
        let kept = rig.sim.block_on(async {
            let longest = load(rig, &opened, rng, requests, week.writes_percent).await;
            assert!(longest < Duration::from_millis(100), "a write took {longest:?}");
            rig.sim.env().sleep(HOUR - Duration::from_secs(60)).await;
            let now = granted(&opened.cache.stats());
            grants.push(now - granted_before);
            granted_before = now;
            if rng.below(week.restarts) > 0 {
                return Some(opened);
            }
            granted_before = 0;
            openings += 1;
            if rng.coin() {
                opened.stop().await.expect("the devices are well");
            }
            None
        });
        if kept.is_none() {
            rig.sim.kill_tasks();
        }
        let now = rig.disk.stats().written_bytes;
        writes.push(now - written_before);
        written_before = now;
        open = Some(kept.unwrap_or_else(|| rig.sim.block_on(rig.opened(settings.clone()))));
    }
    assert!(openings > 0 || week.restarts > WEEK_HOURS);
    (grants, writes)
}

/// What is stored stays within the budget, whatever clients write, and however often the cache is restarted or crashes.
#[test]
fn a_week_stays_within_the_budget() {
    check_seeds(4, |seed| {
        let mut rng = Rng::new(seed ^ 0xb0d6);
        let week = Week {
            mode: [Mode::WriteBack, Mode::WriteThrough][(seed % 2) as usize],
            policy: PolicyKind::ALL[rng.below(3) as usize],
            writes_percent: [0, 30][rng.below(2) as usize],
            restarts: 24,
        };
        let (grants, _) = run(&rig(seed), &mut rng, &week);
        assert_within("granted", &grants, PER_DAY, 0);
    });
}

/// Without clients in write-back, all that reaches the device stays within the budget, and the budget is used.
#[test]
fn all_bytes_of_the_device_count() {
    let week = Week {
        mode: Mode::WriteThrough,
        policy: PolicyKind::S3Fifo,
        writes_percent: 0,
        restarts: u64::MAX,
    };
    let (grants, writes) = run(&rig(7), &mut Rng::new(7), &week);
    assert_within("written", &writes, PER_DAY, OPENING_BYTES_MAX);
    let (granted, written) = (grants.iter().sum::<u64>(), writes.iter().sum::<u64>());
    assert!(written > 7 * PER_DAY * 9 / 10, "{written} of {}", 7 * PER_DAY);
    assert!(granted < written, "headers count too");
}

/// The counts of a few days.
fn days(budget: WriteBudget) -> (Counts, u64) {
    let rig = rig(3);
    rig.sim.block_on(async {
        let mut rng = Rng::new(11);
        let open = rig
            .opened(with(budget, Mode::WriteThrough, PolicyKind::S3Fifo))
            .await;
        for hour in 0..30 {
            let requests = requests(&mut rng, hour);
            load(&rig, &open, &mut rng, requests, 20).await;
            rig.sim.env().sleep(HOUR).await;
        }
        let stats = open.cache.stats();
        (stats.counts, stats.holdings.cached_blocks)
    })
}

/// A budget that is never used up decides nothing.
#[test]
fn an_ample_budget_changes_nothing() {
    let none = days(WriteBudget::None);
    assert_eq!(days(bytes(1 << 30)), none);
    assert!(none.0.regions_reclaimed > 20 && none.0.reinserted_blocks > 0);
    let dwpd = WriteBudget::DwpdThousandths(NonZeroU32::new(500).expect("not zero"));
    let (half, _) = days(dwpd);
    assert_eq!(half, days(bytes(PER_DAY)).0, "half of the space for data");
    assert!(half.refused_budget > 0 && half.hit_blocks < none.0.hit_blocks);
}

/// Dirty data of clients uses the budget up, and takes as long as without one; nothing else is stored meanwhile.
#[test]
fn clients_in_write_back_are_counted_and_not_delayed() {
    let longest = |budget| {
        let rig = rig(5);
        rig.sim.block_on(async {
            let mut rng = Rng::new(5);
            let open = rig
                .opened(with(budget, Mode::WriteBack, PolicyKind::S3Fifo))
                .await;
            let longest = load(&rig, &open, &mut rng, 3000, 100).await;
            let stats = open.cache.stats();
            assert!(stats.appended.dirty > 2 * PER_DAY, "{:?}", stats.appended);
            if budget != WriteBudget::None {
                let level = stats.holdings.budget;
                assert_eq!((level.left, level.allowance()), (0, Allowance::Nothing));
                assert!(level.owed > 0 && level.owed <= PER_DAY, "{level:?}");
                assert!(level.last_day >= stats.appended.dirty, "{level:?}");
                let before = granted(&stats);
                load(&rig, &open, &mut rng, 500, 0).await;
                assert_eq!(granted(&open.cache.stats()), before);
            }
            longest
        })
    };
    // Other writes of the device draw other latencies.
    let (within, without) = (longest(bytes(PER_DAY)), longest(WriteBudget::None));
    assert!(
        within < without.mul_f64(1.1),
        "{within:?} with a budget, {without:?} without"
    );
}

/// A restart keeps the level of the budget. After a crash the budget is empty, and time refills it.
#[test]
fn neither_a_restart_nor_a_crash_refills_the_budget() {
    let rig = rig(9);
    let settings = with(bytes(PER_DAY), Mode::WriteThrough, PolicyKind::Fifo);
    let mut rng = Rng::new(9);
    let left = |open: &Open| open.cache.stats().holdings.budget.left;
    let before = rig.sim.block_on(async {
        let open = rig.opened(settings.clone()).await;
        let full = left(&open);
        assert!(full > PER_DAY * 9 / 10, "{full}");
        load(&rig, &open, &mut rng, 200, 0).await;
        let left = left(&open);
        assert!(left < full - 200 * 4096 / 2);
        open.stop().await.expect("the devices are well");
        left
    });
    rig.sim.block_on(async {
        let open = rig.opened(settings.clone()).await;
        let now = left(&open);
        assert!(
            now <= before && now > before - OPENING_BYTES_MAX,
            "{now} after {before}"
        );
    });
    rig.sim.kill_tasks();
    rig.sim.block_on(async {
        let open = rig.opened(settings.clone()).await;
        assert_eq!(left(&open), 0, "after a crash");
        load(&rig, &open, &mut rng, 20, 0).await;
        assert!(open.cache.stats().counts.refused_budget > 0);
        rig.sim.env().sleep(12 * HOUR).await;
        let refilled = left(&open);
        assert!(
            (PER_DAY * 4 / 10..=PER_DAY / 2 + 1).contains(&refilled),
            "{refilled}"
        );
    });
}
