//! The engine on a machine: a new cache on its SSDs, in front of its disks with the contents of a load. The time is that of the environment,
//! virtual or real; all else is the same in both.

use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use flaz_device::{Device, Env};
use flaz_engine::cache::{CreateOptions, LocalCache, create};
use flaz_engine::format::geometry::{Geometry, GeometryOptions, REGION_BYTES};
use flaz_engine::router::{CachedVolume, LocalShards};
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::shard::Platform;
use flaz_sim::disk::Background;

use crate::cell::Setup;
use crate::contents::{Block, Contents};
use crate::machine::Stripe;
use crate::workload::Workload;

/// Size of the cache that a pass-through has, and does not use.
const UNUSED_CACHE_BYTES: u64 = 4 << 20;

/// The engine on a machine in the environment `E`.
pub(crate) struct OnMachine<E>(PhantomData<E>);

impl<E: Env> Platform for OnMachine<E> {
    type Env = E;
    type Cache = Stripe<E>;
    type Origin = Stripe<E>;
}

/// The cached disks.
pub(crate) type Cached<E> = CachedVolume<LocalShards<OnMachine<E>>, Stripe<E>>;

/// The disks, with the contents before the load: each block as it is first read.
pub(crate) fn origin<E: Env>(
    env: &E,
    workload: &Workload,
    setup: &Setup,
    contents: &Arc<Contents>,
) -> Stripe<E> {
    let (first, contents) = (workload.first_contents(), Arc::clone(contents));
    let background: Background = Arc::new(move |block, bytes: &mut Block| match first.get(&block) {
        Some(sizes) => contents.fill(block, *sizes, bytes),
        None => bytes.fill(0),
    });
    setup.machine.origin(env, workload.origin_bytes(), &background)
}

/// Creates a cache and opens it.
///
/// # Errors
/// It is too small.
pub(crate) async fn open<E: Env>(
    env: &E,
    setup: &Setup,
    origin: &Stripe<E>,
) -> Result<LocalCache<OnMachine<E>>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let cache_bytes = setup.cache_bytes.unwrap_or(UNUSED_CACHE_BYTES);
    let parts = (cache_bytes / 64).max(1);
    let region_bytes =
        (1_u64 << (63 - parts.leading_zeros())).clamp(*REGION_BYTES.start(), *REGION_BYTES.end());
    let wish = GeometryOptions {
        extent_bytes: Some(setup.extent_bytes),
        region_bytes: Some(region_bytes.max(u64::from(setup.extent_bytes) * 4)),
        shard_count: Some(1),
        threads: None,
        index_memory: None,
        // Blocks of the same recorded sizes share four generated contents. A dictionary would hold such contents whole, and gain more
        // than one of real data.
        dictionary_bytes: Some(0),
    };
    // Metadata is not part of the capacity.
    let plan = Geometry::plan(cache_bytes + (4 << 20), 512, origin.len(), wish).map_err(|it| text(&it))?;
    let disk = setup.machine.cache(env, plan.data_offset() + cache_bytes);
    let options = CreateOptions {
        uuid: uuid::Uuid::from_u128(1),
        created_unix_s: 0,
        wish: wish.into(),
        codec: setup.codec,
        origin_len: origin.len(),
        origin_identity: "evaluation".into(),
        origin_path: "evaluation".into(),
    };
    create(&disk, options).await.map_err(|it| text(&it))?;
    let settings = Settings {
        mode: match setup.cache_bytes {
            Some(_) => Mode::WriteThrough,
            None => Mode::PassThrough,
        },
        codec: setup.codec,
        ..Settings::default()
    };
    LocalCache::open(env.clone(), Rc::new(disk), Rc::new(origin.clone()), settings)
        .await
        .map_err(|it| text(&it))
}
