//! Stalls and absences of both devices at random, under concurrent clients, then the death of the process: nothing that
//! was acknowledged is lost, nothing old comes back, and every run ends.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::Env;
use flaz_engine::volume::Volume;
use flaz_sim::{Rng, check_seeds};
use futures_util::future::{Either, join_all, select};

use crate::world::{BLOCK, BLOCKS, Live, MODES, World, contents};

const CLIENTS: u64 = 6;
/// Blocks of each client, over all stripes.
const BLOCKS_EACH: u64 = 40;

/// The blocks of a client.
fn block_of(client: u64, number: u64) -> u64 {
    (number * 53 + client) % BLOCKS / CLIENTS * CLIENTS + client
}

/// Reads and writes blocks of its own for ever. Notes which write is under way.
async fn client(live: &Live, number: u64, mut rng: Rng, under_way: &RefCell<BTreeSet<u64>>) {
    loop {
        let block = block_of(number, rng.below(BLOCKS_EACH));
        match rng.below(8) {
            0..=3 => live.read(block).await,
            4 => live.env.sleep(Duration::from_millis(rng.below(3000))).await,
            5 => live.volume.flush().await.expect("the origin is only slow"),
            _ => {
                under_way.borrow_mut().insert(block);
                live.write(block).await;
                under_way.borrow_mut().remove(&block);
            }
        }
    }
}

/// What befalls the devices.
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

/// Reads a block whose last write may have been cut short: each sector is old or new, now and later.
async fn read_torn(live: &Live, block: u64) -> Vec<u8> {
    let data = live
        .volume
        .read(block * BLOCK, BLOCK as u32)
        .await
        .expect("reads")[0]
        .to_vec();
    let old = contents(block, live.expected(block));
    let new = contents(block, live.expected(block) + 1);
    for at in (0..BLOCK as usize).step_by(512) {
        let sector = &data[at..at + 512];
        assert!(
            sector == &old[at..at + 512] || sector == &new[at..at + 512],
            "sector at {at} of block {block} is neither old nor new"
        );
    }
    data
}

#[test]
fn stalls_and_absences_and_a_kill_revive_nothing() {
    let (given_up, noted) = (Cell::new(0), Cell::new(0));
    check_seeds(120, |seed| {
        let world = World::new(seed, MODES[seed as usize % MODES.len()]);
        let under_way = Rc::new(RefCell::new(BTreeSet::new()));
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..512).await;
            let mut rng = Rng::new(seed);
            let clients = (0..CLIENTS).map(|number| client(&live, number, rng.fork(), &under_way));
            let clients = Box::pin(join_all(clients.collect::<Vec<_>>()));
            let end = Box::pin(misfortune(&world, &live, Rng::new(seed ^ 1)));
            let Either::Right(_) = select(clients, end).await else {
                unreachable!("clients go on for ever")
            };
            given_up.set(given_up.get() + u32::from(live.failed()));
            noted.set(noted.get() + world.host.noted_lost.get());
        });
        let next = world.reboot(seed + 1);
        next.sim.block_on(async {
            let live = next.open().await;
            let mut torn = Vec::new();
            for &block in under_way.borrow().iter() {
                torn.push((block, read_torn(&live, block).await));
            }
            for _ in 0..2 {
                for block in (0..BLOCKS).filter(|block| !under_way.borrow().contains(block)) {
                    live.read(block).await;
                }
                live.stored().await;
            }
            for (block, seen) in torn {
                assert!(
                    read_torn(&live, block).await == seen,
                    "block {block} is not the same again"
                );
            }
        });
    });
    if std::env::var_os("FLAZ_SEED").is_none() {
        assert!(
            given_up.get() > 20 && noted.get() > 10,
            "given up {} times, noted {} times",
            given_up.get(),
            noted.get()
        );
    }
}
