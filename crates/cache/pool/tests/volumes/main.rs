//! Caches of several volumes on one device.
//!
//! | module | contents |
//! |---|---|
//! | `sectors`, `oracle` | of the crash simulation of the engine: the allowed contents of each sector, now and after a crash |
//! | `world` | a pool, and the caches of its volumes |
//! | `sharing` | chunks move from one volume to another |
//! | `life`, `crashes` | the same at random, with crashes |

mod crashes;
mod life;
#[expect(dead_code, reason = "the crash simulation of the engine uses more of it")]
#[path = "../../../engine/tests/simulation/crash/oracle.rs"]
mod oracle;
#[path = "../../../engine/tests/simulation/crash/sectors.rs"]
mod sectors;
mod sharing;
mod world;
