//! Random stalls and absences of both devices, with concurrent clients, then a kill of the process or a power cut: no
//! guaranteed data is lost, no old data comes back, data that was read stays, and every run ends.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use flaz_device::Env;
use flaz_engine::settings::Mode;
use flaz_engine::volume::{IoError, Volume};
use flaz_sim::{CrashPlan, Rng, check_seeds};
use futures_util::future::{Either, join_all, select};

use super::world::{BLOCK, BLOCKS, Live, MODES, World, contents};

const CLIENTS: u64 = 6;
/// Blocks of each client, over all stripes.
const BLOCKS_EACH: u64 = 40;

/// The blocks of a client.
fn block_of(client: u64, number: u64) -> u64 {
    (number * 53 + client) % BLOCKS / CLIENTS * CLIENTS + client
}

/// The state of the blocks besides their last acknowledged version.
#[derive(Default)]
struct Known {
    /// Requests may fail because only the cache device has the data.
    write_back: bool,
    /// A write is in flight, or has failed.
    under_way: RefCell<BTreeSet<u64>>,
    /// The last version that was acknowledged before a successful flush.
    durable: RefCell<BTreeMap<u64, u64>>,
}

impl Known {
    fn may_fail(&self, error: &IoError) {
        let cache = matches!(error, IoError::CacheFailed(_) | IoError::DirtyLost { .. });
        assert!(self.write_back && cache, "the origin is only slow: {error}");
    }

    /// The versions that a block may have after a kill of the process, or after a power cut.
    fn allowed(&self, live: &Live, block: u64, power_cut: bool) -> RangeInclusive<u64> {
        let last = live.expected(block);
        let durable = self.durable.borrow().get(&block).copied().unwrap_or(0);
        let first = if power_cut { durable } else { last };
        first..=last + u64::from(self.under_way.borrow().contains(&block))
    }
}

/// Reads and writes its own blocks in an endless loop.
async fn client(live: &Live, number: u64, mut rng: Rng, known: &Known) {
    loop {
        let block = block_of(number, rng.below(BLOCKS_EACH));
        match rng.below(8) {
            0..=3 => match live.try_read(block).await {
                Ok(version) => {
                    let allowed = known.allowed(live, block, false);
                    assert!(
                        allowed.contains(&version),
                        "block {block}: {version}, {allowed:?} allowed"
                    );
                }
                Err(error) => known.may_fail(&error),
            },
            4 => live.env.sleep(Duration::from_millis(rng.below(3000))).await,
            5 => {
                let before: Vec<_> = (0..BLOCKS).map(|block| live.expected(block)).collect();
                if let Err(error) = live.volume.flush().await {
                    known.may_fail(&error);
                    continue;
                }
                let mut durable = known.durable.borrow_mut();
                for (block, version) in (0..BLOCKS).zip(before) {
                    let floor = durable.entry(block).or_default();
                    *floor = version.max(*floor);
                }
            }
            _ => {
                known.under_way.borrow_mut().insert(block);
                match live.try_write(block).await {
                    Ok(_) => drop(known.under_way.borrow_mut().remove(&block)),
                    Err(error) => known.may_fail(&error),
                }
            }
        }
    }
}

/// Random faults of the devices.
async fn misfortune(world: &World, live: &Live, mut rng: Rng) {
    for _ in 0..1 + rng.below(4) {
        live.env.sleep(Duration::from_millis(rng.below(12_000))).await;
        let span = Duration::from_millis(rng.below(40_000));
        match rng.below(5) {
            0 => world.origin.stall(span),
            1 => {
                world.cache.set_dead(true);
                live.env.sleep(span).await;
                world.cache.set_dead(false);
            }
            _ => world.cache.stall(span),
        }
    }
    live.env.sleep(Duration::from_millis(rng.below(30_000))).await;
}

/// Reads a block after a crash: each sector must have an allowed version.
async fn read_any(live: &Live, block: u64, allowed: RangeInclusive<u64>) -> Vec<u8> {
    let data = live
        .volume
        .read(block * BLOCK, BLOCK as u32)
        .await
        .expect("reads")[0]
        .to_vec();
    let versions: Vec<_> = allowed.clone().map(|version| contents(block, version)).collect();
    for (at, sector) in data.chunks(512).enumerate() {
        let found = versions
            .iter()
            .any(|version| version[at * 512..][..512] == *sector);
        assert!(
            found,
            "sector {at} of block {block} is of none of the versions {allowed:?}"
        );
    }
    data
}

fn survive(seed: u64, modes: &[Mode], power_cut: bool, given_up: &Cell<u32>, noted: &Cell<u32>) {
    let world = World::new(seed, modes[seed as usize % modes.len()]);
    let known = Known {
        write_back: world.mode == Mode::WriteBack,
        ..Known::default()
    };
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..512).await;
        let mut rng = Rng::new(seed);
        let clients = (0..CLIENTS).map(|number| client(&live, number, rng.fork(), &known));
        let clients = Box::pin(join_all(clients.collect::<Vec<_>>()));
        let end = Box::pin(misfortune(&world, &live, Rng::new(seed ^ 1)));
        let Either::Right(_) = select(clients, end).await else {
            unreachable!("clients go on for ever")
        };
        given_up.set(given_up.get() + u32::from(live.failed()));
        noted.set(noted.get() + world.host.noted_fenced.get());
    });
    let next = if power_cut {
        let (cache, origin) = (CrashPlan::Random(seed), CrashPlan::Random(seed ^ 2));
        let found = (
            world.cache.crash(&cache),
            world.origin.crash(&origin),
            world.host.memory(),
        );
        world.boot(seed + 1, found)
    } else {
        world.reboot(seed + 1)
    };
    next.sim.block_on(async {
        let live = next.open().await;
        let mut seen = Vec::new();
        for block in 0..BLOCKS {
            let allowed = known.allowed(&live, block, power_cut);
            seen.push(read_any(&live, block, allowed).await);
        }
        live.stored().await;
        for (block, before) in (0..BLOCKS).zip(seen) {
            let allowed = known.allowed(&live, block, power_cut);
            let again = read_any(&live, block, allowed).await;
            assert!(again == before, "block {block} is not the same again");
        }
    });
}

fn search(modes: &[Mode], power_cut: bool) {
    let (given_up, noted) = (Cell::new(0), Cell::new(0));
    check_seeds(100, |seed| survive(seed, modes, power_cut, &given_up, &noted));
    if std::env::var_os("FLAZ_SEED").is_none() {
        assert!(
            given_up.get() > 20 && noted.get() > 10,
            "given up {} times, noted {} times",
            given_up.get(),
            noted.get()
        );
    }
}

#[test]
fn stalls_and_absences_and_a_kill_revive_nothing() {
    search(&MODES, false);
}

#[test]
fn stalls_and_absences_and_a_power_cut_revive_nothing() {
    search(&MODES, true);
}

#[test]
pub fn stalls_absences_and_a_kill_in_write_back() {
    search(&[Mode::WriteBack], false);
}

#[test]
pub fn stalls_absences_and_a_power_cut_in_write_back() {
    search(&[Mode::WriteBack], true);
}
