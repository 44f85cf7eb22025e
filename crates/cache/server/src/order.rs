//! What the threads are asked to do, and the volume that each of them has.
//!
//! Whoever wants something of a thread puts an [`Order`] into its mailbox: other threads, the front ends, the daemon.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flaz_device::{Env, IoBuf, Nanos};
use flaz_engine::cache::shard_set::{Reached, ShardGroup, ShardSet, ShardsState};
use flaz_engine::cache::{ShardsUnreachable, Trust};
use flaz_engine::format::superblock::Superblock;
use flaz_engine::router::{CachedVolume, Piece, Shards, run_piece};
use flaz_engine::settings::Settings;
use flaz_engine::shard::{ImageError, OriginWrites, RecoverError, Recovered};
use flaz_engine::stats::StatsSnapshot;
use flaz_engine::units::Epoch;
use flaz_engine::volume::IoError;
use flaz_runtime::mailbox::Sender;
use flaz_runtime::{OneSender, Rt, oneshot};
use futures_util::future::LocalBoxFuture;
use indicatif::ProgressBar;

use crate::device::{HostDevice, Production};
use crate::status::Cleaning;
use crate::timed::Timed;

/// How long a thread has to answer a question.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);
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
    /// Run a session of a front end, with the volume of this thread.
    Session(Session),
    /// Build the shards, empty.
    Build {
        superblock: Arc<Superblock>,
        reply: OneSender<()>,
    },
    /// Load the index images of the clean stop that ended `epoch`. Gives the entries that were refused.
    Load {
        epoch: Epoch,
        reply: OneSender<Result<u64, ImageError>>,
    },
    /// Read the log back after a crash.
    Recover {
        trust: Trust,
        progress: ProgressBar,
        reply: OneSender<Result<Recovered, RecoverError>>,
    },
    /// Whether the superblock permits dirty blocks.
    PermitWriteBack(bool, OneSender<()>),
    /// Write all dirty blocks to the origin.
    Clean(OneSender<Result<(), IoError>>),
    /// Start the tasks of the shards.
    Start(OneSender<()>),
    /// Report counts and holdings.
    Stats(OneSender<ThreadStats>),
    /// Report dirty blocks, and whether the cache device is still used.
    State(OneSender<ShardsState>),
    /// Change settings.
    Set(Settings, OneSender<()>),
    /// Stop the shards: everything admitted is on the cache device on return.
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

/// The cached volume, as one thread has it. It stays on that thread.
pub type ThreadVolume = Timed<CachedVolume<HostShards, HostDevice>>;

/// What a front end runs on a thread: given that thread's volume, serves a client (or a queue of a device) until it ends.
pub type Session = Box<dyn FnOnce(ThreadVolume) -> LocalBoxFuture<'static, ()> + Send>;

/// The shards of the whole process, as one thread reaches them.
#[derive(Clone)]
pub struct HostShards(pub(crate) Rc<Reach>);

/// How one thread reaches all shards.
pub struct Reach {
    pub(crate) thread: u32,
    pub(crate) threads: u32,
    /// The shards of this thread.
    pub(crate) group: ShardGroup<Production>,
    pub(crate) mailboxes: Vec<Sender<Order>>,
}

impl Shards for HostShards {
    fn count(&self) -> u32 {
        self.0.group.shard_count()
    }

    fn origin_writes(&self) -> OriginWrites {
        self.0.group.origin_writes().clone()
    }

    fn now(&self) -> Nanos {
        Rt.now()
    }

    async fn run(&self, number: u32, piece: Piece) -> Result<Option<IoBuf>, IoError> {
        if number % self.0.threads == self.0.thread {
            let Some(shard) = self.0.group.get(number) else {
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

/// Puts an order into a mailbox from an ordinary thread, waiting while the mailbox is full.
pub(crate) fn post(mailbox: &Sender<Order>, order: Order) -> Reached<()> {
    let deadline = Instant::now() + ANSWER_WITHIN;
    let mut order = order;
    loop {
        match mailbox.try_send(order) {
            Ok(()) => return Ok(()),
            Err(_) if mailbox.is_closed() => return Err(ShardsUnreachable("a thread has ended".to_owned())),
            Err(back) if Instant::now() < deadline => order = back,
            Err(_) => {
                return Err(ShardsUnreachable(
                    "a thread takes no orders: its mailbox stays full".to_owned(),
                ));
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
