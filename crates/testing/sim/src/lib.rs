//! Deterministic simulation: a seeded executor with virtual time, and disks that fail on purpose.
//!
//! Engine code written against `flaz_device::{Env, Device}` runs here unchanged. A seed determines a run: the order of
//! runnable tasks, every latency, every fault and every sector that survives a power cut depend only on the seed (no
//! clock, no thread, no hash map with random state). A failing seed is therefore a complete bug report; [`check_seeds`]
//! prints the command that replays it.
//!
//! | module | contents |
//! |---|---|
//! | [`rng`] | the random generator |
//! | [`executor`] | [`Sim`]: tasks, virtual time, device events |
//! | [`mod@env`] | [`SimEnv`]: the environment of engine code |
//! | [`disk`] | [`SimDisk`]: contents, volatile writes, faults, power cuts |
//! | [`seeds`] | running a test over many seeds |
//!
//! ```
//! use flaz_device::{Device, IoBuf};
//! use flaz_sim::{CrashPlan, DiskConfig, Sim, SimDisk};
//!
//! let sim = Sim::new(1);
//! let disk = SimDisk::new(&sim.env(), DiskConfig::fast(1 << 20));
//! sim.block_on(async {
//!     let (_, result) = disk.write_at(4096, IoBuf::copy_of(&[7; 512]), false).await;
//!     result.unwrap();
//! });
//! assert_eq!(disk.peek(4096, 1), [7]); // visible to readers ...
//! let after = disk.crash(&CrashPlan::Nothing); // ... but never flushed
//! assert_eq!(after.read(4096, 1), [0]);
//! ```
#![forbid(unsafe_code)]

pub mod disk;
pub mod env;
pub mod executor;
pub mod rng;
pub mod seeds;
mod timer;

pub use disk::{
    CrashPlan, DiscardMode, DiskConfig, DiskImage, DiskMoment, DiskStats, FaultRates, SECTOR_BYTES, SimDisk,
    VolatileWrite,
};
pub use env::SimEnv;
pub use executor::{DeviceEvent, EventStage, Halt, Sim};
pub use rng::Rng;
pub use seeds::check_seeds;
