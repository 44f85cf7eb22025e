//! The threads that drive shards: each has a runtime, some of the shards, and a mailbox.
//!
//! A request for a shard of the same thread is a plain call. A request for another thread's shard goes through that
//! thread's mailbox. Threads without shards use the same mailboxes.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use flaz_device::deadline::Deadline;
use flaz_device::{Device, Env, IoBuf, buf};
use flaz_engine::advise::SharedSamples;
use flaz_engine::cache::shard_set::{GroupParts, Reached, ShardGroup, ShardSet, Share};
use flaz_engine::cache::surroundings::Surroundings;
use flaz_engine::format::superblock::Superblock;
use flaz_engine::router::{CachedVolume, Piece, run_piece};
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::shard::{OriginWrites, Shard};
use flaz_engine::shared_budget::SharedBudget;
use flaz_engine::stats::{Latencies, StatsSnapshot};
use flaz_engine::volume::IoError;
use flaz_runtime::mailbox::{Receiver, Sender};
use flaz_runtime::{Config, OneSender, Rt, Runtime, memory};
use futures_util::future::{join_all, select};

use crate::device::{HostDevice, Production};
use crate::device_timeout::DeviceTimeout;
use crate::error::HostError;
use crate::order::{HostShards, Order, Reach, Session, ThreadStats};
use crate::state::StateFile;
use crate::state_records::StateRecords;
use crate::status::Cleaning;
use crate::timed::Timed;

/// How often a flush checks whether it was canceled.
const ABANDONED_LOOK: Duration = Duration::from_millis(100);

/// The parameters of a thread.
pub struct WorkerParts {
    pub number: u32,
    pub threads: u32,
    pub cache: HostDevice,
    pub origin: HostDevice,
    /// Time limit of a cache device operation; `None`: no limit.
    pub device_timeout: Option<Duration>,
    pub state: Arc<StateFile>,
    /// Of the volumes on the cache device, if it is shared.
    pub shared_budget: Option<Arc<SharedBudget>>,
    /// Memory for a paged index.
    pub index_memory: Option<u64>,
    pub mailboxes: Vec<Sender<Order>>,
    /// Shared by the whole process.
    pub origin_writes: OriginWrites,
    /// Of the advisor, shared by all shards.
    pub codec_samples: SharedSamples,
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
    runtime.block_on(async {
        let (mut worker, mut inbox) = Worker::new(parts);
        worker.keep_pools_small();
        while let Some(order) = inbox.recv().await {
            if matches!(order, Order::Exit) {
                break;
            }
            worker.execute(order);
        }
        worker.shards.0.group.clear();
    });
}

/// One thread: its shards, its volume, and its own counts.
struct Worker {
    shards: HostShards,
    origin: Rc<HostDevice>,
    device_timeout: DeviceTimeout<Rt>,
    /// `None` until the shards are built.
    volume: Option<CachedVolume<HostShards, HostDevice>>,
    /// Sequential cutoff at the start, for the volume.
    sequential_cutoff: u64,
    /// Latencies that concern all shards.
    latencies: Rc<RefCell<Latencies>>,
}

impl Worker {
    fn new(parts: WorkerParts) -> (Self, Receiver<Order>) {
        let cache = Rc::new(Deadline::new(parts.cache, Rt, parts.device_timeout));
        let origin = Rc::new(parts.origin);
        let group = GroupParts {
            share: Share {
                first: parts.number,
                step: parts.threads,
            },
            around: Surroundings {
                env: Rt,
                cache: Rc::clone(&cache),
                origin: Rc::clone(&origin),
                host_records: StateRecords::of_shards(&parts.state),
                shared_budget: parts.shared_budget,
            },
            origin_writes: parts.origin_writes,
            codec_samples: parts.codec_samples,
            index_memory: parts.index_memory,
        };
        let mode = parts.settings.mode;
        let device_timeout = DeviceTimeout::new(Rt, parts.device_timeout, mode, move |limit| {
            cache.set_limit(limit);
        });
        let worker = Self {
            sequential_cutoff: parts.settings.sequential_cutoff,
            shards: HostShards(Rc::new(Reach {
                thread: parts.number,
                threads: parts.threads,
                group: ShardGroup::new(group, parts.settings),
                mailboxes: parts.mailboxes,
            })),
            origin,
            device_timeout,
            volume: None,
            latencies: Rc::default(),
        };
        (worker, parts.inbox)
    }

    fn group(&self) -> &ShardGroup<Production> {
        &self.shards.0.group
    }

    /// Executes an order, or starts a task that does.
    fn execute(&mut self, order: Order) {
        match order {
            Order::Piece { shard, piece, reply } => self.piece(shard, piece, reply),
            Order::Session(session) => self.session(session),
            Order::Build { superblock, reply } => self.build(superblock, reply),
            Order::Load {
                epoch,
                progress,
                reply,
            } => self.step(reply, async move |group| {
                Ok(group.load_images_with(epoch, || progress.inc(1)).await)
            }),
            Order::Recover {
                trust,
                progress,
                reply,
            } => self.step(reply, async move |group| {
                Ok(group.recover_with(trust, || progress.inc(1)).await)
            }),
            Order::PermitWriteBack(permitted, reply) => {
                if permitted {
                    self.suspend_device_timeout();
                }
                self.step(reply, async move |group| group.permit_write_back(permitted).await);
            }
            Order::GrowShards(bytes, reply) => {
                self.step(reply, async move |group| group.grow_origin(bytes).await);
            }
            Order::GrowVolume(bytes, reply) => {
                if let Some(volume) = &self.volume {
                    volume.grow(bytes);
                }
                let _ = reply.send(());
            }
            Order::Clean(reply) => self.clean(reply),
            Order::Start(reply) => self.step(reply, async |group| group.start().await),
            Order::State(reply) => self.step(reply, async |group| group.state().await),
            Order::Stats(reply) => {
                let _ = reply.send(self.stats());
            }
            Order::Set(settings, reply) => {
                self.set(&settings);
                let _ = reply.send(());
            }
            Order::Resize(step, reply) => {
                self.step(reply, async move |group| group.resize(step).await);
            }
            Order::Stop(reply) => self.step(reply, async |group| group.stop().await),
            Order::Save(reply) => self.step(reply, async |group| group.save().await),
            Order::Exit => unreachable!("the loop ends with this order"),
        }
    }

    /// Runs a step of all shards of this thread concurrently with the orders that follow, and sends its outcome.
    fn step<T: Send + 'static>(
        &self,
        reply: OneSender<T>,
        step: impl AsyncFnOnce(&ShardGroup<Production>) -> Reached<T> + 'static,
    ) {
        let shards = self.shards.clone();
        Rt.spawn(async move {
            if let Ok(outcome) = step(&shards.0.group).await {
                // The receiver may have gone.
                let _ = reply.send(outcome);
            }
        });
    }

    /// Writes all dirty blocks to the origin, unless canceled.
    fn clean(&self, reply: OneSender<Result<(), IoError>>) {
        let shards = self.shards.clone();
        Rt.spawn(async move {
            let cleaned = async {
                let shards = shards.0.group.shards();
                let all = join_all(shards.iter().map(Shard::clean_all)).await;
                Some(all.into_iter().collect::<Result<(), IoError>>())
            };
            let abandoned = async {
                while !reply.is_abandoned() {
                    Rt.sleep(ABANDONED_LOOK).await;
                }
                None
            };
            let outcome = {
                let (cleaned, abandoned) = (pin!(cleaned), pin!(abandoned));
                let (outcome, _) = select(cleaned, abandoned).await.factor_first();
                outcome
            };
            if let Some(outcome) = outcome {
                // The receiver may have gone.
                let _ = reply.send(outcome);
            }
        });
    }

    fn piece(&self, shard: u32, piece: Piece, reply: OneSender<Result<Option<IoBuf>, IoError>>) {
        let shard = self.group().get(shard);
        Rt.spawn(async move {
            let result = match shard {
                Some(shard) => run_piece(&shard, piece).await,
                None => Err(IoError::Stopping),
            };
            // The receiver may have gone with its connection.
            let _ = reply.send(result);
        });
    }

    fn session(&self, session: Session) {
        if let Some(volume) = self.volume.clone() {
            Rt.spawn(session(Timed::new(volume, Rc::clone(&self.latencies))));
        }
    }

    fn build(&mut self, superblock: Arc<Superblock>, reply: OneSender<()>) {
        self.volume = Some(CachedVolume::new(
            self.shards.clone(),
            Rc::clone(&self.origin),
            superblock.geometry.origin_len.min(self.origin.len()),
            self.sequential_cutoff,
        ));
        self.step(reply, async move |group| group.build(&superblock).await);
    }

    fn stats(&self) -> ThreadStats {
        let mut total = StatsSnapshot::default();
        total.latencies.add(&self.latencies.borrow());
        let mut cleaning = Vec::new();
        for shard in self.group().shards().iter() {
            let stats = shard.stats();
            cleaning.push(Cleaning::of(&stats));
            total.add(&stats);
        }
        total.holdings.histogram_bytes += self.latencies.borrow().memory_bytes() as u64;
        ThreadStats {
            total,
            cleaning,
            task_bytes: Rt::task_bytes() as u64,
        }
    }

    /// From time to time, frees what the pools of this thread and its shards did not need.
    fn keep_pools_small(&self) {
        let shards = self.shards.clone();
        Rt.spawn(async move {
            loop {
                Rt.sleep(buf::TRIM_EVERY).await;
                while buf::trim() {
                    Rt.yield_now().await;
                }
                shards
                    .0
                    .group
                    .shards()
                    .iter()
                    .for_each(|shard| shard.trim_pools());
                memory::trim_end();
            }
        });
    }

    fn set(&self, settings: &Settings) {
        self.device_timeout.set_mode(settings.mode);
        if settings.mode == Mode::WriteBack {
            self.suspend_device_timeout();
        }
        self.group().set(settings);
        if let Some(volume) = &self.volume {
            volume.set_sequential_cutoff(settings.sequential_cutoff);
        }
    }

    /// Blocks of the shards may become dirty from now on.
    fn suspend_device_timeout(&self) {
        // The shards end with the thread, even if the task still checks them.
        let shards: Vec<Weak<_>> = self.group().shards().iter().map(Rc::downgrade).collect();
        let dirty =
            |shard: &Weak<Shard<Production>>| shard.upgrade().is_some_and(|shard| shard.dirty_blocks() > 0);
        self.device_timeout.suspend(move || shards.iter().any(dirty));
    }
}
