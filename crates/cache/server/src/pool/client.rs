//! The thread that reads and changes the pool.
//!
//! It takes the lock of the table for each order, reads again what other processes have changed, and releases the lock when the order
//! is done. An order that waits too long for the lock, or whose giver has gone, is called off, and nothing is done then. The lock
//! belongs to the descriptor that the thread writes through, so requests of a process that was killed hold it until they have ended.

use std::io;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use flaz_device::Env;
use flaz_pool::{Chunks, Pool, PoolError, PoolSuperblock};
use flaz_runtime::file::{ByteLock, FileDevice, Hold, OpenMode, lock_byte, wait_for_byte};
use flaz_runtime::{Config, OneReceiver, OneSender, Rt, Runtime, oneshot};
use futures_util::FutureExt;
use futures_util::future::{Either, LocalBoxFuture, select};

use super::TABLE;
use super::failures::FailedFlushes;
use super::file_system::refuse_without_locks;
use crate::error::HostError;
use crate::safety::Access;

/// How long a command waits for another process that changes the pool.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);
/// How long a request of a cache waits for it, at most.
const BEGIN_WITHIN: Duration = Duration::from_millis(500);
/// The same as a share of the time limit of the cache device, which must not run out meanwhile: the device is well.
const BEGIN_SHARE: u32 = 4;
/// Orders that may wait while another process holds the lock. More are called off at once.
const ORDERS_MAX: usize = 64;
/// How long a volume that was refused a chunk does not ask for another one.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// A pool on a device that is read and written by this process.
pub(crate) type HostPool = Rc<Pool<FileDevice>>;

type Work = Box<dyn FnOnce(Result<HostPool, HostError>) -> LocalBoxFuture<'static, ()> + Send>;

struct Order {
    access: Access,
    work: Work,
    claim: Claim,
}

/// Whether an order is carried out: the thread claims it to do it, or its giver claims it to call it off, also by going away.
#[derive(Debug, Default)]
struct Claim(Arc<AtomicBool>);

impl Claim {
    /// True for the first one.
    fn claim(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What the thread and those that give it orders share.
#[derive(Debug, Default)]
struct Shared {
    /// Of a process that serves a volume, or has seen a flush fail.
    failures: OnceLock<FailedFlushes>,
    /// The device as the volume uses it: it grows with the pool.
    part: OnceLock<FileDevice>,
    /// The time limit of operations of the volume's cache.
    limit: OnceLock<Duration>,
    /// When a chunk was refused last.
    refused: Mutex<Option<Instant>>,
}

/// Gives orders to the thread, which ends when all clones are gone. See the module's documentation.
#[derive(Clone)]
pub struct PoolClient {
    orders: mpsc::SyncSender<Order>,
    /// Number of the volume whose chunks are taken and given back.
    volume: u32,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for PoolClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolClient")
            .field("volume", &self.volume)
            .finish_non_exhaustive()
    }
}

impl PoolClient {
    /// Starts the thread. Returns also what the superblock says now.
    ///
    /// # Errors
    /// The device cannot be opened, or has no pool.
    pub(crate) fn start(device: &Path, access: Access) -> Result<(Self, PoolSuperblock), HostError> {
        let mode = OpenMode {
            read_only: access == Access::Read,
            hold: Hold::None,
            buffered: false,
        };
        let file = FileDevice::open(device, mode)?;
        refuse_without_locks(&file, device)?;
        // Whoever overwrites the device waits for requests of this descriptor.
        lock_byte(&file, 0, ByteLock::Shared)?;
        let (sender, orders) = mpsc::sync_channel(ORDERS_MAX);
        let shared = Arc::new(Shared::default());
        let client = Self {
            orders: sender,
            volume: 0,
            shared: Arc::clone(&shared),
        };
        std::thread::Builder::new()
            .name("flaz-pool".to_owned())
            .spawn(move || drive(&file, &orders, &shared))?;
        let superblock = client.ask_blocking(access, async |pool| Ok(pool.superblock()))?;
        Ok((client, superblock))
    }

    /// The same thread, for the chunks of a volume that this process serves on `part`.
    pub(crate) fn of_volume(&self, superblock: &PoolSuperblock, volume: u32, part: &FileDevice) -> Self {
        let shared = &self.shared;
        shared.failures.get_or_init(|| FailedFlushes::of(superblock.uuid));
        shared.part.get_or_init(|| part.clone());
        Self {
            volume,
            ..self.clone()
        }
    }

    /// Operations on the chunks of the volume have a time limit.
    pub(crate) fn set_limit(&self, limit: Option<Duration>) {
        if let Some(limit) = limit {
            self.shared.limit.get_or_init(|| limit);
        }
    }

    /// How long a request of the volume's cache waits for another process.
    fn patience(&self) -> Duration {
        let share = self.shared.limit.get().map(|limit| *limit / BEGIN_SHARE);
        share.map_or(BEGIN_WITHIN, |share| share.min(BEGIN_WITHIN))
    }

    /// `None`: too many wait already.
    fn order<T: Send + 'static>(
        &self,
        access: Access,
        work: impl AsyncFnOnce(HostPool) -> Result<T, HostError> + Send + 'static,
    ) -> Option<(OneReceiver<Result<T, HostError>>, Claim)> {
        let (reply, answer) = oneshot();
        let claim = Claim::default();
        let order = Order {
            access,
            work: Box::new(move |pool| answered(pool, work, reply).boxed_local()),
            claim: Claim(Arc::clone(&claim.0)),
        };
        match self.orders.try_send(order) {
            Err(mpsc::TrySendError::Full(_)) => None,
            // If the thread has ended, the reply is dropped.
            Ok(()) | Err(mpsc::TrySendError::Disconnected(_)) => Some((answer, claim)),
        }
    }

    /// Does something with the pool, alone if it is changed, on behalf of a cache: it is called off if it has to wait. `None`: it was.
    ///
    /// # Errors
    /// The pool cannot be read; or those of `work`.
    async fn ask<T: Send + 'static>(
        &self,
        within: Duration,
        access: Access,
        work: impl AsyncFnOnce(HostPool) -> Result<T, HostError> + Send + 'static,
    ) -> Option<Result<T, HostError>> {
        let (answer, claim) = self.order(access, work)?;
        let answer = match select(pin!(answer.recv()), pin!(Rt.sleep(within))).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((), _)) if claim.claim() => return None,
            // It has begun.
            Either::Right(((), answer)) => answer.await,
        };
        Some(answer.unwrap_or_else(|_| Err(ENDED.into())))
    }

    /// Does something with the pool, alone if it is changed, from a thread without a runtime, and waits for other processes.
    ///
    /// # Errors
    /// The pool cannot be read, or another process changes it; or those of `work`.
    pub(crate) fn ask_blocking<T: Send + 'static>(
        &self,
        access: Access,
        work: impl AsyncFnOnce(HostPool) -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, HostError> {
        self.ask_within(ANSWER_WITHIN, access, work)
    }

    /// As [`PoolClient::ask_blocking`], with a limit.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn ask_within<T: Send + 'static>(
        &self,
        within: Duration,
        access: Access,
        work: impl AsyncFnOnce(HostPool) -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, HostError> {
        let Some((answer, claim)) = self.order(access, work) else {
            return Err(BUSY.into());
        };
        match answer.recv_blocking(within) {
            Ok(answer) => answer,
            Err(_) if claim.claim() => Err(BUSY.into()),
            Err(error) => Err(format!(
                "the cache device does not answer, and it is not known what has been done: {error}"
            )
            .into()),
        }
    }
}

const ENDED: &str = "the thread for the volumes of the cache device has ended";
const BUSY: &str = "another process changes the volumes of the cache device, and has not ended in time";

async fn answered<T: Send>(
    pool: Result<HostPool, HostError>,
    work: impl AsyncFnOnce(HostPool) -> Result<T, HostError>,
    reply: OneSender<Result<T, HostError>>,
) {
    let answer = match pool {
        Ok(pool) => work(pool).await,
        Err(error) => Err(error),
    };
    // Whoever asked may have gone.
    let _ = reply.send(answer);
}

fn drive(device: &FileDevice, orders: &mpsc::Receiver<Order>, shared: &Arc<Shared>) {
    let runtime = match Runtime::new(Config::default()) {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!("no thread for the volumes of the cache device: {error}");
            return;
        }
    };
    runtime.block_on(async {
        let mut known = None;
        while let Ok(Order { access, work, claim }) = orders.recv() {
            let locked = lock(device, access);
            // It is not called off from here on.
            if claim.claim() {
                let pool = match locked {
                    Ok(()) => now(device, access, shared, &mut known).await,
                    Err(error) => Err(error),
                };
                work(pool).await;
            }
            if let Err(error) = lock_byte(device, TABLE, ByteLock::Released) {
                tracing::error!("the lock of the volumes cannot be released: {error}");
            }
        }
    });
}

/// Takes the lock of the table.
fn lock(device: &FileDevice, access: Access) -> Result<(), HostError> {
    let lock = match access {
        Access::Read => ByteLock::Shared,
        Access::ReadWrite => ByteLock::Exclusive,
    };
    wait_for_byte(device, TABLE, lock).map_err(|error| {
        format!(
            "cannot lock {}: {error}; volumes need a file system with locks",
            device.path().display()
        )
        .into()
    })
}

/// The pool as it is now. The table is locked.
async fn now(
    device: &FileDevice,
    access: Access,
    shared: &Arc<Shared>,
    known: &mut Option<HostPool>,
) -> Result<HostPool, HostError> {
    // A file or device that has grown.
    device.measure()?;
    if let Some(part) = shared.part.get() {
        part.measure()?;
    }
    let pool = match known {
        Some(pool) => Rc::clone(pool),
        None => {
            let shared = Arc::clone(shared);
            // Those of the table count for all volumes too.
            let tell = move |pool| shared.failures.get_or_init(|| FailedFlushes::of(pool)).note();
            let opened = Pool::open_telling(Rc::new(device.clone()), Box::new(tell)).await;
            Rc::clone(known.insert(opened?))
        }
    };
    pool.reload(access == Access::ReadWrite).await?;
    Ok(pool)
}

/// As a device reports it.
fn as_io(error: HostError) -> io::Error {
    match error.downcast::<PoolError>() {
        Ok(error) => (*error).into(),
        Err(error) => io::Error::other(error.to_string()),
    }
}

impl Chunks for PoolClient {
    async fn take(&self, index: u32) -> io::Result<()> {
        let none = |why| Err(io::Error::new(io::ErrorKind::StorageFull, why));
        let refused = || self.shared.refused.lock().unwrap_or_else(PoisonError::into_inner);
        // A cache asks for each region that it fills.
        if refused().is_some_and(|at| at.elapsed() < REFUSED_FOR) {
            return none("no chunk was free a moment ago");
        }
        let volume = self.volume;
        let taken = self.ask(self.patience(), Access::ReadWrite, async move |pool| {
            Ok(pool.take_part(volume, index).await?)
        });
        let taken = match taken.await {
            Some(taken) => taken.map_err(as_io),
            // There is none now. The cache goes on with what it has.
            None => none(BUSY),
        };
        let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
        *refused() = taken.as_ref().is_err_and(is_refused).then(Instant::now);
        taken
    }

    async fn give(&self, index: u32) -> io::Result<()> {
        let volume = self.volume;
        let given = self.ask(self.patience(), Access::ReadWrite, async move |pool| {
            Ok(pool.give_part(volume, index).await?)
        });
        match given.await {
            Some(given) => given.map_err(as_io),
            None => Err(io::Error::new(io::ErrorKind::ResourceBusy, BUSY)),
        }
    }

    fn failed_flushes(&self) -> u64 {
        self.shared.failures.get().map_or(0, FailedFlushes::count)
    }

    fn note_failed_flush(&self) {
        if let Some(failures) = self.shared.failures.get() {
            failures.note();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process holds the lock, for however long.
    #[test]
    fn orders_that_wait_have_a_bound() {
        let (orders, waiting) = mpsc::sync_channel(ORDERS_MAX);
        let client = PoolClient {
            orders,
            volume: 0,
            shared: Arc::default(),
        };
        let order = || client.order(Access::Read, async |_| Ok(()));
        let first: Vec<_> = (0..ORDERS_MAX).map(|_| order()).collect();
        assert!(first.iter().all(Option::is_some) && order().is_none());
        let next = waiting.try_recv().expect("one waits");
        assert!(order().is_some(), "one fewer waits");
        drop(next);
        drop(waiting);
        assert!(order().is_some(), "without an answer");
    }
}
