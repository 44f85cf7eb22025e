//! Small caches with clients that write and read the same few blocks, with every policy, so that writeback and reclaim
//! meet; then a kill of the process.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use flaz_device::Env;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{Mode, Settings};
use flaz_sim::{Rng, check_seeds};
use futures_util::future::{Either, join_all, select};

use crate::faults::world::{BLOCKS, Live, World};

const CLIENTS: u64 = 4;

/// Writes and reads its own blocks in an endless loop. Records the write in flight.
async fn client(live: &Live, number: u64, hot: u64, mut rng: Rng, under_way: &RefCell<BTreeSet<u64>>) {
    loop {
        let block = rng.below(hot) * CLIENTS + number;
        match rng.below(6) {
            0 | 1 => live.read(block).await,
            2 => {
                let _ = live.try_read(BLOCKS / 2 + rng.below(BLOCKS / 2)).await;
            }
            3 => live.env.sleep(Duration::from_micros(rng.below(2000))).await,
            _ => {
                under_way.borrow_mut().insert(block);
                live.write(block).await;
                under_way.borrow_mut().remove(&block);
            }
        }
    }
}

#[test]
fn a_cleaner_and_a_reclaim_that_meet_and_a_kill_lose_nothing() {
    check_seeds(60, |seed| {
        let mut rng = Rng::new(seed);
        let regions = 7 + rng.below(5);
        let world = World::sized(seed, Mode::WriteBack, (192 << 10) + regions * (128 << 10));
        world.dirty_percent.set([2, 10, 50][rng.below(3) as usize]);
        let hot = [20, 60, 120][rng.below(3) as usize];
        let under_way = RefCell::new(BTreeSet::new());
        world.sim.block_on(async {
            let live = world.open().await;
            live.cache.set(&Settings {
                policy: PolicyKind::ALL[rng.below(3) as usize],
                ..world.settings()
            });
            let clients = (0..CLIENTS).map(|number| client(&live, number, hot, rng.fork(), &under_way));
            let clients = Box::pin(join_all(clients.collect::<Vec<_>>()));
            let end = Box::pin(live.env.sleep(Duration::from_millis(20 + rng.below(600))));
            let Either::Right(_) = select(clients, end).await else {
                unreachable!("clients go on for ever")
            };
        });
        let next = world.reboot(seed + 1);
        next.sim.block_on(async {
            let live = next.open().await;
            let under_way = under_way.take();
            for mode in [Mode::WriteBack, Mode::PassThrough] {
                next.switch(&live, mode);
                for block in (0..hot * CLIENTS).filter(|block| !under_way.contains(block)) {
                    live.read(block).await;
                }
            }
        });
    });
}
