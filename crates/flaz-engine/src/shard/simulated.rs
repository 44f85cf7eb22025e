//! A shard alone on simulated disks, for tests of its parts.

use std::rc::Rc;

use flaz_sim::{DiskConfig, SimDisk, SimEnv};

use super::{OriginWrites, Platform, Shard, ShardParts};
use crate::codec::CodecSpec;
use crate::format::geometry::Geometry;
use crate::policy::PolicyKind;
use crate::settings::{AfterCrash, DIRTY_PERCENT_DEFAULT, Mode, Settings};
use crate::units::Epoch;

pub(super) struct Simulated;

impl Platform for Simulated {
    type Env = SimEnv;
    type Cache = SimDisk;
    type Origin = SimDisk;
}

/// A shard of a cache in write-through, in opening `epoch`, over an origin of zeroes. It is not started.
pub(super) fn shard(env: &SimEnv, cache: &SimDisk, geometry: Geometry, epoch: u32) -> Rc<Shard<Simulated>> {
    let origin = SimDisk::new(env, DiskConfig::fast(geometry.origin_len));
    shard_over(env, cache, &origin, geometry, epoch, false)
}

/// The same over a given origin.
pub(super) fn shard_over(
    env: &SimEnv,
    cache: &SimDisk,
    origin: &SimDisk,
    geometry: Geometry,
    epoch: u32,
    may_be_dirty: bool,
) -> Rc<Shard<Simulated>> {
    Shard::new(ShardParts {
        number: 0,
        geometry,
        cache_id: 7,
        epoch: Epoch(epoch),
        valid_from: Epoch(1),
        may_be_dirty,
        after_crash: AfterCrash::Warm,
        env: env.clone(),
        cache: Rc::new(cache.clone()),
        origin: Rc::new(origin.clone()),
        settings: Settings {
            mode: Mode::WriteThrough,
            policy: PolicyKind::Fifo,
            codec: CodecSpec::default(),
            sequential_cutoff: 0,
            dirty_percent: DIRTY_PERCENT_DEFAULT,
        },
        origin_writes: OriginWrites::default(),
        witness: None,
    })
}
