//! Crashes while chunks move between volumes: the process is killed, or the power fails, at any event of any disk.
//!
//! After each crash all volumes are opened, everything is read and compared with the oracle of each volume, and some lives go on and
//! crash again. `FLAZ_SEEDS=1000 cargo test -p flaz-pool --test volumes crashes` searches longer.

use std::cell::Cell;
use std::rc::Rc;

use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::Mode;
use flaz_pool::Pool;
use flaz_sim::rng::splitmix;
use flaz_sim::{CrashPlan, DiskConfig, DiskImage, Rng, Sim, SimDisk, check_seeds};
use uuid::Uuid;

use crate::life::{Did, Exists, Life, Moment, Script, Start, VolumeStart, live, spots};
use crate::oracle::{Crash, Ground};
use crate::sectors::Print;
use crate::world::{CHUNK, POOL_LEN, Spec, add, origin_config};

/// Moments of a life at which it crashes.
const MOMENTS: usize = 24;
/// One in so many crashed lives crashes again.
const ONE_IN_CRASHES_AGAIN: u64 = 12;

/// New volumes of a pool. The third one exists, or is added later.
fn new(seed: u64) -> Start {
    let mut rng = Rng::new(seed ^ 0x5e7);
    let sim = Sim::new(seed);
    let disk = SimDisk::new(&sim.env(), DiskConfig::fast(POOL_LEN));
    let specs = ["one", "two", "three"].map(|name| Spec {
        name,
        mode: if rng.below(3) > 0 {
            Mode::WriteBack
        } else {
            Mode::WriteThrough
        },
        shards: 1 + u32::from(name == "two" && rng.coin()),
        policy: PolicyKind::ALL[rng.below(3) as usize],
        codec: ["none", "lz4", "auto"][rng.below(3) as usize],
        dirty_percent: [10, 25, 50][rng.below(3) as usize],
    });
    let exists = |spec: &Spec| match spec.name {
        "three" if seed.is_multiple_of(2) => Exists::No,
        _ => Exists::Yes,
    };
    sim.block_on(async {
        let pool = Pool::create(Rc::new(disk.clone()), Uuid::from_u128(77), CHUNK);
        let pool = pool.await.expect("fits");
        for spec in specs.iter().filter(|spec| exists(spec) == Exists::Yes) {
            assert!(add(&pool, spec).await, "there is room");
        }
    });
    let volumes = specs.iter().map(|spec| VolumeStart {
        spec: *spec,
        origin: DiskImage::new(origin_config()),
        ground: Rc::new(Ground::known(&spots(), |_| Print::of_version(0))),
        exists: exists(spec),
    });
    Start {
        pool: disk.snapshot(),
        volumes: volumes.collect(),
    }
}

/// The disks after a crash at a moment of a life.
fn crash(before: &Start, life: &Life, moment: &Moment, kind: Crash, rng: &mut Rng) -> Start {
    let mut plan = || match (kind, rng.below(4)) {
        (Crash::PowerCut, 0) => CrashPlan::Nothing,
        (Crash::PowerCut, 1) => CrashPlan::Everything,
        _ => CrashPlan::Random(rng.next_u64()),
    };
    let mut left = |disk: &flaz_sim::DiskMoment| match kind {
        Crash::Kill => disk.kill(plan().chooser()),
        Crash::PowerCut => disk.cut(plan().chooser()),
    };
    let each = before.volumes.iter().zip(&life.oracles).zip(&moment.volumes);
    let volumes = each.map(|((volume, oracle), (origin, tick, exists))| VolumeStart {
        spec: volume.spec,
        origin: left(origin),
        ground: Rc::new(oracle.ground_at(*tick, kind)),
        exists: *exists,
    });
    let volumes = volumes.collect();
    Start {
        pool: left(&moment.pool),
        volumes,
    }
}

/// Crashes a life at some moments. Returns how many crashes there were.
fn explore(before: &Start, life: &Life, depth: u32, seed: u64, did: &mut Did) -> Result<u64, String> {
    let mut rng = Rng::new(seed ^ 0xc4a5);
    let mut crashes = 0;
    let moments = if depth == 0 { MOMENTS } else { MOMENTS / 4 };
    for turn in 0..moments {
        let moment = &life.moments[rng.below(life.moments.len() as u64) as usize];
        let kind = if rng.coin() { Crash::Kill } else { Crash::PowerCut };
        let next = crash(before, life, moment, kind, &mut rng);
        let again = depth == 0 && rng.below(ONE_IN_CRASHES_AGAIN) == 0;
        let goes_on = again || rng.below(6) == 0;
        let script = Script {
            seed: splitmix(seed ^ turn as u64),
            requests: if goes_on { 15 } else { 0 },
            changes: if goes_on { 2 } else { 0 },
            stop: goes_on && rng.coin(),
            watch: again,
        };
        let path = |error| format!("{kind:?} at {}: {error}", moment.what);
        let after = live(&next, script).map_err(path)?;
        crashes += 1;
        did.crashed_in_shrink += u64::from(moment.shrinking);
        did.add(&after.did);
        if again {
            crashes += explore(&next, &after, depth + 1, script.seed, did).map_err(path)?;
        }
    }
    Ok(crashes)
}

/// One workload, and its crashes.
fn run(seed: u64, did: &mut Did) -> Result<u64, String> {
    let start = new(seed);
    let script = Script {
        seed,
        requests: 60,
        changes: 10,
        stop: true,
        watch: true,
    };
    let life = live(&start, script)?;
    did.add(&life.did);
    explore(&start, &life, 0, seed, did)
}

#[test]
fn no_crash_of_a_shared_device_loses_anything() {
    let (did, crashes, seeds) = (Cell::new(Did::default()), Cell::new(0), Cell::new(0));
    check_seeds(40, |seed| {
        let mut sum = did.get();
        let found = run(seed, &mut sum).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        did.set(sum);
        crashes.set(crashes.get() + found);
        seeds.set(seeds.get() + 1);
    });
    let did = did.get();
    eprintln!("{} crashes, {did:?}", crashes.get());
    if seeds.get() >= 40 {
        assert!(crashes.get() > 1000, "{} crashes", crashes.get());
        assert!(did.given_back > 300 && did.called_off > 10, "{did:?}");
        assert!(
            did.added > 10 && did.removed > 3 && did.origins_failed > 10,
            "{did:?}"
        );
        assert!(
            did.recovered > 1000 && did.reclaimed > 300 && did.hits > 1000,
            "{did:?}"
        );
        assert!(
            did.moved > 100 && did.shrunk > 10 && did.shrinks_left > 5 && did.crashed_in_shrink > 50,
            "{did:?}"
        );
    }
}

/// Seeds until the simulation finds what is planted.
#[cfg(feature = "planted-bugs")]
fn find(seeds: u64) -> String {
    let found = (0..seeds).find_map(|seed| {
        let outcome = std::panic::catch_unwind(|| run(seed, &mut Did::default()));
        match outcome {
            Ok(outcome) => outcome.err(),
            Err(_) => Some("a panic".to_owned()),
        }
        .map(|error| format!("seed {seed}: {error}"))
    });
    found.expect("the defect is found")
}

/// The simulation can find what it looks for.
#[cfg(feature = "planted-bugs")]
#[test]
fn planted_chunks_given_back_early_are_found() {
    use flaz_engine::planted::{PlantedBug, plant};
    plant(Some(PlantedBug::ChunkGivenBackEarly));
    eprintln!("{}", find(40));
    plant(None);
}

/// As well in a shrink.
#[cfg(feature = "planted-bugs")]
#[test]
fn planted_chunks_moved_carelessly_are_found() {
    use flaz_pool::planted::{PlantedBug, plant};
    for bug in [PlantedBug::MovedUnflushed, PlantedBug::MovedUnderWrites] {
        plant(Some(bug));
        eprintln!("{bug:?}: {}", find(200));
        plant(None);
    }
}
