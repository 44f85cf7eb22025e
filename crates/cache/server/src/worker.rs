//! The threads that drive shards: each has a runtime, some of the shards, and a mailbox.
//!
//! A request for a shard of the same thread is a plain call. A request for another thread's shard goes through that
//! thread's mailbox. Threads without shards use the same mailboxes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flaz_device::deadline::Deadline;
use flaz_device::{Device, Env};
use flaz_engine::cache::shard_set::{GroupParts, ShardGroup, ShardSet, Share};
use flaz_engine::cache::surroundings::Surroundings;
use flaz_engine::router::{CachedVolume, run_piece};
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::shard::{OriginWrites, Shard};
use flaz_engine::stats::{Latencies, StatsSnapshot};
use flaz_engine::volume::IoError;
use flaz_runtime::mailbox::{Receiver, Sender};
use flaz_runtime::{Config, Rt, Runtime};

use crate::device::HostDevice;
use crate::error::HostError;
use crate::order::{HostShards, Order, Reach, ThreadStats};
use crate::patience::Patience;
use crate::state::{StateFile, StateRecords};
use crate::status::Cleaning;
use crate::timed::Timed;

/// The parameters of a thread.
pub struct WorkerParts {
    pub number: u32,
    pub threads: u32,
    pub cache: HostDevice,
    pub origin: HostDevice,
    /// Time limit of a cache device operation; `None`: no limit.
    pub device_timeout: Option<Duration>,
    pub state: Arc<StateFile>,
    pub mailboxes: Vec<Sender<Order>>,
    /// Shared by the whole process.
    pub origin_writes: OriginWrites,
    /// Settings at the start.
    pub settings: Settings,
    pub inbox: Receiver<Order>,
}

/// Runs one thread until it is told to exit.
///
/// # Errors
/// The runtime could not be created; `ready` receives the error.
pub fn run(parts: WorkerParts, ready: std::sync::mpsc::Sender<Result<(), HostError>>) {
    let runtime = match Runtime::new(Config::default()) {
        Ok(runtime) => runtime,
        Err(error) => {
            // The starter is still waiting for the answer.
            let _ = ready.send(Err(error.into()));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    runtime.block_on(serve(parts));
}

async fn serve(parts: WorkerParts) {
    let WorkerParts {
        number,
        threads,
        cache,
        origin,
        device_timeout,
        state,
        mailboxes,
        origin_writes,
        settings,
        mut inbox,
    } = parts;
    let cache = Rc::new(Deadline::new(cache, Rt, device_timeout));
    let origin = Rc::new(origin);
    let parts = GroupParts {
        share: Share {
            first: number,
            step: threads,
        },
        around: Surroundings {
            env: Rt,
            cache: Rc::clone(&cache),
            origin: Rc::clone(&origin),
            host_records: StateRecords::of_shards(&state),
        },
        origin_writes,
    };
    let patience = Patience::new(Rc::clone(&cache), device_timeout);
    patience.set_mode(settings.mode);
    let cutoff = settings.sequential_cutoff;
    let shards = HostShards(Rc::new(Reach {
        thread: number,
        threads,
        group: ShardGroup::new(parts, settings),
        mailboxes,
    }));
    let mut volume: Option<CachedVolume<HostShards, HostDevice>> = None;
    let latencies = Rc::new(RefCell::new(Latencies::default()));
    /// Runs a step of all shards of this thread concurrently with the orders that follow, and sends its outcome. The
    /// receiver may have gone.
    macro_rules! step {
        ($reply:ident, $group:ident => $step:expr) => {{
            let shards = shards.clone();
            Rt.spawn(async move {
                let $group = &shards.0.group;
                if let Ok(outcome) = $step.await {
                    let _ = $reply.send(outcome);
                }
            });
        }};
    }
    while let Some(order) = inbox.recv().await {
        match order {
            Order::Piece { shard, piece, reply } => {
                let shard = shards.0.group.get(shard);
                Rt.spawn(async move {
                    let result = match shard {
                        Some(shard) => run_piece(&shard, piece).await,
                        None => Err(IoError::Stopping),
                    };
                    // The receiver may have gone with its connection.
                    let _ = reply.send(result);
                });
            }
            Order::Session(session) => {
                if let Some(volume) = volume.clone() {
                    Rt.spawn(session(Timed::new(volume, Rc::clone(&latencies))));
                }
            }
            Order::Build { superblock, reply } => {
                let size = superblock.geometry.origin_len.min(origin.len());
                volume = Some(CachedVolume::new(
                    shards.clone(),
                    Rc::clone(&origin),
                    size,
                    cutoff,
                ));
                step!(reply, group => group.build(&superblock));
            }
            Order::Load { epoch, reply } => step!(reply, group => group.load_images(epoch)),
            Order::Recover {
                trust,
                progress,
                reply,
            } => {
                let shards = shards.clone();
                Rt.spawn(async move {
                    let recovered = shards.0.group.recover_with(trust, || progress.inc(1)).await;
                    let _ = reply.send(recovered);
                });
            }
            Order::PermitWriteBack(permitted, reply) => {
                if permitted {
                    patience.be(&shards.0.group.shards());
                }
                step!(reply, group => group.permit_write_back(permitted));
            }
            Order::Clean(reply) => {
                let shards = shards.0.group.shards();
                Rt.spawn(async move {
                    let all = shards.iter().map(Shard::clean_all);
                    let all = futures_util::future::join_all(all).await;
                    // The receiver may have gone.
                    let _ = reply.send(all.into_iter().collect());
                });
            }
            Order::Start(reply) => step!(reply, group => group.start()),
            Order::State(reply) => step!(reply, group => group.state()),
            Order::Stats(reply) => {
                let mut total = StatsSnapshot::default();
                total.latencies.add(&latencies.borrow());
                let mut cleaning = Vec::new();
                for shard in shards.0.group.shards().iter() {
                    let stats = shard.stats();
                    cleaning.push(Cleaning::of(&stats));
                    total.add(&stats);
                }
                let _ = reply.send(ThreadStats { total, cleaning });
            }
            Order::Set(settings, reply) => {
                patience.set_mode(settings.mode);
                if settings.mode == Mode::WriteBack {
                    patience.be(&shards.0.group.shards());
                }
                shards.0.group.set(&settings);
                if let Some(volume) = &volume {
                    volume.set_sequential_cutoff(settings.sequential_cutoff);
                }
                let _ = reply.send(());
            }
            Order::Stop(reply) => step!(reply, group => group.stop()),
            Order::Save(reply) => step!(reply, group => group.save()),
            Order::Exit => break,
        }
    }
    shards.0.group.clear();
}
