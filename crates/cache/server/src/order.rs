//! Orders to the threads, and the volume of each thread.
//!
//! Other threads, the front ends and the daemon put an [`Order`] into the mailbox of a thread.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flaz_device::{Env, IoBuf, Nanos};
use flaz_engine::cache::shard_set::{Reached, ShardGroup, ShardSet, ShardsState};
use flaz_engine::cache::{ShardsUnreachable, Trust};
use flaz_engine::format::superblock::Superblock;
use flaz_engine::router::{CachedVolume, Piece, Shards, run_piece};
use flaz_engine::settings::Settings;
use flaz_engine::shard::{ImageError, OriginWrites, RecoverError, Recovered, ResizeStep, Shrinking};
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

/// How long a thread has to answer.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of requests and orders that wait in one mailbox.
pub const MAILBOX_MAX: usize = 1024;

/// An order to a thread.
pub enum Order {
    /// Serve a part of a request on one of its shards.
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
    /// Load the index images of the clean stop that ended `epoch`. Returns the number of refused entries.
    Load {
        epoch: Epoch,
        progress: ProgressBar,
        reply: OneSender<Result<u64, ImageError>>,
    },
    /// Recover the log after a crash.
    Recover {
        trust: Trust,
        progress: ProgressBar,
        reply: OneSender<Result<Recovered, RecoverError>>,
    },
    /// Whether the superblock permits dirty blocks.
    PermitWriteBack(bool, OneSender<()>),
    /// The shards serve an origin that has grown to as many bytes.
    GrowShards(u64, OneSender<()>),
    /// The volume has as many bytes; the shards of all threads serve them.
    GrowVolume(u64, OneSender<()>),
    /// Write all dirty blocks to the origin.
    Clean(OneSender<Result<(), IoError>>),
    /// Start the tasks of the shards.
    Start(OneSender<()>),
    /// Report counts and holdings.
    Stats(OneSender<ThreadStats>),
    /// Report the number of dirty blocks, and whether the cache device is in use.
    State(OneSender<ShardsState>),
    /// Change settings.
    Set(Settings, OneSender<()>),
    /// A step of a change of the cache's size.
    Resize(ResizeStep, OneSender<Shrinking>),
    /// Stop the shards. On return everything admitted is on the cache device.
    Stop(OneSender<()>),
    /// Write the index images.
    Save(OneSender<Result<(), ImageError>>),
    /// End the thread.
    Exit,
}

/// The counts of a thread and its shards.
pub struct ThreadStats {
    /// Added up.
    pub total: StatsSnapshot,
    /// One for each shard, because each writes back at its own pace.
    pub cleaning: Vec<Cleaning>,
    /// Memory of the thread's tasks.
    pub task_bytes: u64,
}

/// The cached volume of one thread. It stays on that thread.
pub type ThreadVolume = Timed<CachedVolume<HostShards, HostDevice>>;

/// A session of a front end. It runs on a thread, with that thread's volume, and serves a client (or a queue of a
/// device) until it ends.
pub type Session = Box<dyn FnOnce(ThreadVolume) -> LocalBoxFuture<'static, ()> + Send>;

/// The shards of the whole process, as one thread reaches them.
#[derive(Clone)]
pub struct HostShards(pub(crate) Rc<Reach>);

/// The way of one thread to all shards.
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

    fn time(&self) -> Nanos {
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

/// Puts an order into a mailbox from an ordinary thread, and waits while the mailbox is full.
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
                    "a thread accepts no orders: its mailbox stays full".to_owned(),
                ));
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use flaz_runtime::mailbox::channel;

    use super::*;

    #[test]
    fn posts_to_an_ended_thread_fail_at_once() {
        let (mailbox, inbox) = channel(1);
        drop(inbox);
        let error = post(&mailbox, Order::Exit).unwrap_err().to_string();
        assert!(error.contains("a thread has ended"), "{error}");
    }

    #[test]
    fn posts_wait_while_the_mailbox_is_full() {
        let (mailbox, inbox) = channel(1);
        post(&mailbox, Order::Exit).unwrap();
        let second = std::thread::spawn(move || post(&mailbox, Order::Exit));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!second.is_finished(), "the mailbox has room for one order");
        drop(inbox);
        second.join().unwrap().unwrap_err();
    }
}
