//! The executor: order, time, determinism, and runs that cannot continue.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{Device, DeviceOp, Env, IoBuf, Nanos, Priority};
use flaz_sim::{DiskConfig, EventStage, Halt, Sim, SimDisk};
use futures_util::future::{join_all, select};
use futures_util::stream::{FuturesUnordered, StreamExt};

const MS: Duration = Duration::from_millis(1);

/// A small workload on two disks; returns its trace and the order in which its tasks ended.
fn busy_run(seed: u64) -> (u64, u64, Vec<u32>) {
    let sim = Sim::new(seed);
    let env = sim.env();
    let disks = [DiskConfig::fast(1 << 20), DiskConfig::slow(1 << 20)].map(|c| SimDisk::new(&env, c));
    let order = Rc::new(RefCell::new(Vec::new()));
    for task in 0..20 {
        let (env2, order, disk) = (env.clone(), Rc::clone(&order), disks[task as usize % 2].clone());
        env.spawn(async move {
            for _ in 0..10 {
                let offset = env2.random_u64() % 256 * 4096;
                disk.write_at(offset, IoBuf::zeroed(4096), false).await.1.unwrap();
                env2.compute(Priority::Read, || ()).await;
                env2.yield_now().await;
            }
            order.borrow_mut().push(task);
        });
    }
    sim.block_on(async {
        while order.borrow().len() < 20 {
            env.sleep(MS).await;
        }
    });
    (sim.trace_hash(), env.now().0, order.take())
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..20 {
        assert_eq!(busy_run(seed), busy_run(seed), "seed {seed}");
    }
}

#[test]
fn seeds_differ() {
    let orders: HashSet<_> = (0..20).map(|seed| busy_run(seed).2).collect();
    assert!(orders.len() >= 18, "only {} different orders", orders.len());
}

#[test]
fn all_orders_of_three_tasks_and_completions_happen() {
    let mut tasks_seen = HashSet::new();
    let mut timers_seen = HashSet::new();
    for seed in 0..200 {
        for (seen, moment) in [(&mut tasks_seen, Nanos(0)), (&mut timers_seen, Nanos(1_000_000))] {
            let sim = Sim::new(seed);
            let env = sim.env();
            let order = Rc::new(RefCell::new(Vec::new()));
            for n in 0..3 {
                let (env2, order) = (env.clone(), Rc::clone(&order));
                env.spawn(async move {
                    env2.sleep_until(moment).await;
                    order.borrow_mut().push(n);
                });
            }
            sim.block_on(env.sleep(MS * 2));
            seen.insert(order.take());
        }
    }
    assert_eq!(tasks_seen.len(), 6, "{tasks_seen:?}");
    assert_eq!(timers_seen.len(), 6, "{timers_seen:?}");
}

#[test]
fn virtual_time_jumps_and_never_falls_short() {
    let sim = Sim::new(3);
    let env = sim.env();
    sim.block_on(async {
        for wait in [Duration::ZERO, MS, Duration::from_secs(3600)] {
            let before = env.now();
            env.sleep(wait).await;
            let waited = env.now().since(before);
            assert!(waited >= wait && waited < wait + MS, "{waited:?} for {wait:?}");
        }
    });
    assert!(sim.steps() < 20);
}

#[test]
fn dropped_sleeps_neither_fire_nor_move_the_clock() {
    let sim = Sim::new(4);
    let env = sim.env();
    sim.block_on(async {
        for _ in 0..100 {
            let long = std::pin::pin!(env.sleep(Duration::from_secs(100)));
            let short = std::pin::pin!(env.sleep(MS));
            select(long, short).await;
        }
    });
    assert!(env.now() < Nanos(200_000_000), "{:?}", env.now());
    // Only cancelled timers remain, which are not events.
    assert_eq!(
        sim.try_block_on(std::future::pending::<()>()),
        Err(Halt::Deadlock)
    );
}

#[test]
fn a_task_that_spins_on_yield_does_not_stop_time_nor_the_others() {
    let sim = Sim::new(5);
    let env = sim.env();
    let done = Rc::new(Cell::new(false));
    let (env2, done2) = (env.clone(), Rc::clone(&done));
    env.spawn(async move {
        env2.sleep(MS).await;
        done2.set(true);
    });
    sim.block_on(async {
        while !done.get() {
            env.yield_now().await;
        }
    });
}

#[test]
fn yield_lets_every_runnable_task_run() {
    for seed in 0..100 {
        let sim = Sim::new(seed);
        let env = sim.env();
        let ran = Rc::new(Cell::new(0));
        sim.block_on(async {
            env.yield_now().await;
            for _ in 0..10 {
                let ran = Rc::clone(&ran);
                env.spawn(async move { ran.set(ran.get() + 1) });
            }
            // A new task may be put into the next round; the second yield is after that.
            env.yield_now().await;
            env.yield_now().await;
        });
        assert_eq!(ran.get(), 10, "seed {seed}");
    }
}

#[test]
fn combinators_with_their_own_wakers_work() {
    let sim = Sim::new(6);
    let env = sim.env();
    let sum = sim.block_on(async {
        let mut all: FuturesUnordered<_> = (0..100u64)
            .map(|n| {
                let env = env.clone();
                async move {
                    env.sleep(MS * (n as u32 % 7)).await;
                    env.yield_now().await;
                    env.compute(Priority::Write, move || n).await
                }
            })
            .collect();
        let mut sum = 0;
        while let Some(n) = all.next().await {
            sum += n;
        }
        sum
    });
    assert_eq!(sum, 4950);
}

#[test]
#[should_panic(expected = "deadlock: nothing can run and no event is pending (seed 0x2a, step 1,")]
fn a_deadlock_is_reported_with_the_seed() {
    Sim::new(42).block_on(std::future::pending::<()>());
}

#[test]
fn an_endless_loop_meets_the_step_limit() {
    let sim = Sim::new(7);
    sim.set_step_limit(1000);
    let env = sim.env();
    let halt = sim.try_block_on(async {
        loop {
            env.yield_now().await;
        }
    });
    assert_eq!(halt, Err::<(), _>(Halt::StepLimit));
    assert_eq!(sim.steps(), 1000);
}

#[test]
fn a_run_halts_at_the_given_event() {
    let sim = Sim::new(8);
    let disk = SimDisk::new(&sim.env(), DiskConfig::fast(1 << 20));
    sim.halt_at_event(7);
    let halt = sim.try_block_on(async {
        for _ in 0..10 {
            disk.write_at(0, IoBuf::zeroed(512), false).await.1.unwrap();
        }
    });
    assert_eq!(halt, Err(Halt::CrashPoint));
    assert_eq!((sim.events(), disk.stats().writes), (7, 3));
}

#[test]
fn the_observer_sees_the_state_at_every_event() {
    let sim = Sim::new(9);
    let disk = SimDisk::new(&sim.env(), DiskConfig::fast(1 << 20));
    let seen = Rc::new(RefCell::new(Vec::new()));
    let (seen2, disk2) = (Rc::clone(&seen), disk.clone());
    sim.set_observer(move |event| {
        let writes: Vec<_> = disk2.volatile_writes().iter().map(|w| w.in_flight).collect();
        seen2.borrow_mut().push((event.op, event.stage, writes));
    });
    sim.block_on(async {
        disk.write_at(0, IoBuf::zeroed(512), false).await.1.unwrap();
        disk.flush().await.unwrap();
    });
    let expected = [
        (DeviceOp::Write, EventStage::Issued, vec![true]),
        (DeviceOp::Write, EventStage::Completed, vec![false]),
        (DeviceOp::Flush, EventStage::Issued, vec![false]),
        (DeviceOp::Flush, EventStage::Completed, vec![]),
    ];
    assert_eq!(*seen.borrow(), expected);
}

#[test]
fn killed_tasks_are_dropped_and_the_simulation_continues() {
    let sim = Sim::new(10);
    let env = sim.env();
    let alive = Rc::new(());
    for _ in 0..5 {
        let (env2, held) = (env.clone(), Rc::clone(&alive));
        env.spawn(async move {
            env2.sleep(MS).await;
            std::future::pending::<()>().await;
            drop(held);
        });
    }
    sim.block_on(env.sleep(MS * 2));
    assert_eq!((sim.task_count(), Rc::strong_count(&alive)), (5, 6));
    sim.kill_tasks();
    assert_eq!((sim.task_count(), Rc::strong_count(&alive)), (0, 1));
    sim.block_on(env.sleep(MS));
}

#[test]
fn dropping_the_simulation_drops_its_tasks() {
    let alive = Rc::new(());
    let sim = Sim::new(11);
    let (env, held) = (sim.env(), Rc::clone(&alive));
    let env2 = env.clone();
    env.spawn(async move {
        let _held = held;
        env2.sleep(Duration::from_secs(1)).await;
    });
    drop(sim);
    assert_eq!(Rc::strong_count(&alive), 1);
}

#[test]
fn parallelism_has_the_configured_value() {
    let sim = Sim::new(12);
    assert_eq!(sim.env().parallelism(), 1);
    sim.set_parallelism(4);
    assert_eq!(sim.env().parallelism(), 4);
}

/// Not a benchmark but a limit: a step must be cheap enough for tens of thousands per second.
#[test]
fn half_a_million_steps_with_disk_operations_are_quick() {
    let sim = Sim::new(13);
    let env = sim.env();
    let disk = SimDisk::new(&env, DiskConfig::fast(64 << 20));
    sim.block_on(join_all((0..32).map(|_| {
        let (env, disk) = (env.clone(), disk.clone());
        async move {
            for n in 0..2000 {
                let offset = env.random_u64() % 16_384 * 4096;
                if n % 4 == 0 {
                    disk.write_at(offset, IoBuf::new(4096), false).await.1.unwrap();
                } else {
                    disk.read_at(offset, IoBuf::new(4096)).await.1.unwrap();
                }
                env.yield_now().await;
            }
        }
    })));
    assert!(sim.steps() >= 64_000);
}
