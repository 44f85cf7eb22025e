//! The threads that drive shards: each has a runtime, some shards, and a mailbox.
//!
//! A request for a shard of this thread is a plain call; one for another thread's shard goes through that
//! thread's mailbox. The command line's own threads use the same mailboxes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flaz_device::deadline::Deadline;
use flaz_device::rt::mailbox::{Receiver, Sender};
use flaz_device::rt::{Config, Rt, Runtime};
use flaz_device::rt::{OneSender, oneshot};
use flaz_device::{Device, Env, IoBuf, Nanos};
use flaz_engine::format::superblock::Superblock;
use flaz_engine::router::{CachedVolume, Piece, Shards, run_piece};
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::shard::{ImageError, OriginWrites, RecoverError, Recovered, Shard, ShardParts};
use flaz_engine::stats::{Latencies, StatsSnapshot};
use flaz_engine::units::Epoch;
use flaz_engine::volume::IoError;
use flaz_engine::witness::Witness;
use flaz_nbd::{Incoming, Service, serve_connection};
use indicatif::ProgressBar;

use super::HostError;
use super::device::{CacheDevice, HostDevice, Production};
use super::patience::Patience;
use super::state::{HostWitness, StateFile};
use super::status::Cleaning;
use super::timed::Timed;

/// Requests and orders that wait in one mailbox, at most.
pub const MAILBOX_MAX: usize = 1024;

/// What a thread is asked to do.
pub enum Order {
    /// Carry out a piece on one of its shards.
    Piece {
        shard: u32,
        piece: Piece,
        reply: OneSender<Result<Option<IoBuf>, IoError>>,
    },
    /// Serve a connection.
    Connection(Incoming),
    /// Take the index over from the last clean stop. Gives the entries that were refused.
    Load {
        epoch: Epoch,
        reply: OneSender<Result<usize, ImageError>>,
    },
    /// Read the log back after a crash; with `distrust` only what is dirty is kept.
    Recover {
        distrust: bool,
        progress: ProgressBar,
        reply: OneSender<Result<Recovered, RecoverError>>,
    },
    /// Build the shards, empty.
    Build {
        superblock: Arc<Superblock>,
        settings: Settings,
        reply: OneSender<()>,
    },
    /// Whether the superblock says that blocks may be dirty.
    PermitWriteBack(bool, OneSender<()>),
    /// Bring everything that is dirty to the origin.
    Clean(OneSender<Result<(), IoError>>),
    /// Let the shards store and reclaim.
    Start,
    /// Say what was counted.
    Stats(OneSender<ThreadStats>),
    /// Change settings.
    Set(Settings, OneSender<()>),
    /// Bring everything that was admitted to the cache device.
    Stop(OneSender<()>),
    /// Write the index images.
    Save(OneSender<Result<(), ImageError>>),
    /// End the thread.
    Exit,
}

/// What a thread and its shards counted.
pub struct ThreadStats {
    /// Added up.
    pub total: StatsSnapshot,
    /// Of each shard, for they clean at a pace of their own.
    pub cleaning: Vec<Cleaning>,
}

/// What a thread is made from.
pub struct WorkerParts {
    pub number: u32,
    pub threads: u32,
    pub cache: HostDevice,
    pub origin: HostDevice,
    /// How long the cache device has for an operation; `None`: as long as it takes.
    pub device_timeout: Option<Duration>,
    pub state: Arc<StateFile>,
    pub service: Service,
    pub mailboxes: Vec<Sender<Order>>,
    /// Of the whole process.
    pub origin_writes: OriginWrites,
    pub inbox: Receiver<Order>,
}

/// The shards of the whole process, as one thread reaches them.
#[derive(Clone)]
pub struct HostShards(Rc<Reach>);

struct Reach {
    thread: u32,
    threads: u32,
    count: Cell<u32>,
    /// By shard number; only this thread's are there.
    local: RefCell<Vec<Option<Rc<Shard<Production>>>>>,
    mailboxes: Vec<Sender<Order>>,
    origin_writes: OriginWrites,
}

impl HostShards {
    fn local(&self, number: u32) -> Option<Rc<Shard<Production>>> {
        self.0.local.borrow().get(number as usize).cloned().flatten()
    }

    fn all_local(&self) -> Vec<Rc<Shard<Production>>> {
        self.0.local.borrow().iter().flatten().cloned().collect()
    }
}

impl Shards for HostShards {
    fn count(&self) -> u32 {
        self.0.count.get()
    }

    fn origin_writes(&self) -> OriginWrites {
        self.0.origin_writes.clone()
    }

    fn now(&self) -> Nanos {
        Rt.now()
    }

    async fn run(&self, number: u32, piece: Piece) -> Result<Option<IoBuf>, IoError> {
        if number % self.0.threads == self.0.thread {
            let Some(shard) = self.local(number) else {
                return Err(IoError::Stopping);
            };
            return run_piece(&shard, piece).await;
        }
        let (reply, answer) = oneshot();
        let mailbox = &self.0.mailboxes[(number % self.0.threads) as usize];
        mailbox
            .send(Order::Piece {
                shard: number,
                piece,
                reply,
            })
            .await
            .map_err(|_| IoError::Stopping)?;
        answer.recv().await.map_err(|_| IoError::Stopping)?
    }
}

/// Runs one thread until it is told to exit.
///
/// # Errors
/// The runtime could not be made; `ready` is told.
pub fn run(parts: WorkerParts, ready: std::sync::mpsc::Sender<Result<(), HostError>>) {
    let runtime = match Runtime::new(Config::default()) {
        Ok(runtime) => runtime,
        Err(error) => {
            // The starter is waiting for the answer; it cannot be gone.
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
        service,
        mailboxes,
        origin_writes,
        mut inbox,
    } = parts;
    let cache = Rc::new(Deadline::new(cache, Rt, device_timeout));
    let origin = Rc::new(origin);
    let witness: Rc<dyn Witness> = Rc::new(HostWitness(state));
    let shards = HostShards(Rc::new(Reach {
        thread: number,
        threads,
        count: Cell::new(0),
        local: RefCell::new(Vec::new()),
        mailboxes,
        origin_writes,
    }));
    let patience = Patience::new(Rc::clone(&cache), device_timeout);
    let mut volume: Option<CachedVolume<HostShards, HostDevice>> = None;
    let latencies = Rc::new(RefCell::new(Latencies::default()));
    while let Some(order) = inbox.recv().await {
        match order {
            Order::Piece { shard, piece, reply } => {
                let shard = shards.local(shard);
                Rt.spawn(async move {
                    let result = match shard {
                        Some(shard) => run_piece(&shard, piece).await,
                        None => Err(IoError::Stopping),
                    };
                    // The asker may be gone with its connection.
                    let _ = reply.send(result);
                });
            }
            Order::Connection(incoming) => {
                if let Some(volume) = volume.clone() {
                    let volume = Timed::new(volume, Rc::clone(&latencies));
                    Rt.spawn(serve_connection(incoming, volume, Rt, service.clone()));
                }
            }
            Order::Build {
                superblock,
                settings,
                reply,
            } => {
                let cutoff = settings.sequential_cutoff;
                patience.set_mode(settings.mode);
                let devices = (Rc::clone(&cache), Rc::clone(&origin));
                build(
                    &shards,
                    number,
                    threads,
                    &superblock,
                    &settings,
                    devices,
                    &witness,
                );
                let size = superblock.geometry.origin_len.min(origin.len());
                volume = Some(CachedVolume::new(
                    shards.clone(),
                    Rc::clone(&origin),
                    size,
                    cutoff,
                ));
                let _ = reply.send(());
            }
            Order::Load { epoch, reply } => {
                let shards = shards.all_local();
                Rt.spawn(async move {
                    let mut refused = 0;
                    for shard in shards {
                        match shard.load_image(epoch).await {
                            Ok(count) => refused += count,
                            Err(error) => {
                                let _ = reply.send(Err(error));
                                return;
                            }
                        }
                    }
                    let _ = reply.send(Ok(refused));
                });
            }
            Order::Recover {
                distrust,
                progress,
                reply,
            } => {
                let shards = shards.all_local();
                Rt.spawn(async move {
                    let progress = &progress;
                    let parts = shards.iter().map(|shard| async move {
                        if distrust && let Err(source) = shard.distrust().await {
                            let shard = shard.number();
                            return Err(RecoverError::Device { shard, source });
                        }
                        shard.recover(|| progress.inc(1)).await
                    });
                    let mut total = Recovered::default();
                    for part in futures_util::future::join_all(parts).await {
                        match part {
                            Ok(part) => total.add(&part),
                            Err(error) => {
                                let _ = reply.send(Err(error));
                                return;
                            }
                        }
                    }
                    let _ = reply.send(Ok(total));
                });
            }
            Order::PermitWriteBack(permitted, reply) => {
                if permitted {
                    patience.be(&shards.all_local());
                }
                for shard in shards.all_local() {
                    shard.permit_write_back(permitted);
                }
                let _ = reply.send(());
            }
            Order::Clean(reply) => {
                let shards = shards.all_local();
                Rt.spawn(async move {
                    let all = shards.iter().map(Shard::clean_all);
                    let all = futures_util::future::join_all(all).await;
                    // The asker may have gone.
                    let _ = reply.send(all.into_iter().collect());
                });
            }
            Order::Start => shards.all_local().iter().for_each(Shard::start),
            Order::Stats(reply) => {
                let mut total = StatsSnapshot::default();
                total.latencies.add(&latencies.borrow());
                let mut cleaning = Vec::new();
                for shard in shards.all_local() {
                    let stats = shard.stats();
                    cleaning.push(Cleaning::of(&stats));
                    total.add(&stats);
                }
                let _ = reply.send(ThreadStats { total, cleaning });
            }
            Order::Set(settings, reply) => {
                patience.set_mode(settings.mode);
                if settings.mode == Mode::WriteBack {
                    patience.be(&shards.all_local());
                }
                for shard in shards.all_local() {
                    shard.set(&settings);
                }
                if let Some(volume) = &volume {
                    volume.set_sequential_cutoff(settings.sequential_cutoff);
                }
                let _ = reply.send(());
            }
            Order::Stop(reply) => {
                let shards = shards.all_local();
                Rt.spawn(async move {
                    for shard in shards {
                        shard.stop().await;
                    }
                    let _ = reply.send(());
                });
            }
            Order::Save(reply) => {
                let shards = shards.all_local();
                Rt.spawn(async move {
                    let mut result = Ok(());
                    for shard in shards {
                        let saved = shard.save().await;
                        // That the cache device failed counts more than whatever else went wrong.
                        if result.is_ok() || matches!(saved, Err(ImageError::Failed { .. })) {
                            result = saved;
                        }
                    }
                    let _ = reply.send(result);
                });
            }
            Order::Exit => break,
        }
    }
    // Shards refer to their tasks and the other way round: let go of them before the runtime ends.
    shards.0.local.borrow_mut().clear();
}

fn build(
    shards: &HostShards,
    thread: u32,
    threads: u32,
    superblock: &Superblock,
    settings: &Settings,
    (cache, origin): (Rc<CacheDevice>, Rc<HostDevice>),
    witness: &Rc<dyn Witness>,
) {
    let count = superblock.geometry.shard_count;
    shards.0.count.set(count);
    *shards.0.local.borrow_mut() = (0..count)
        .map(|number| {
            (number % threads == thread).then(|| {
                Shard::new(ShardParts {
                    number,
                    geometry: superblock.geometry,
                    cache_id: superblock.cache_id(),
                    epoch: superblock.epoch,
                    valid_from: superblock.valid_from_epoch,
                    may_be_dirty: superblock.dirty,
                    after_crash: superblock.after_crash,
                    env: Rt,
                    cache: Rc::clone(&cache),
                    origin: Rc::clone(&origin),
                    settings: settings.clone(),
                    origin_writes: shards.0.origin_writes.clone(),
                    witness: Some(Rc::clone(witness)),
                })
            })
        })
        .collect();
}
