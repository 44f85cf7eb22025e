//! The thread that reads and changes the pool.
//!
//! It takes the lock of the table for each order, reads again what other processes have changed, and releases the lock when the order
//! is done. The lock belongs to the descriptor that it writes through, so requests of a process that was killed hold it until they
//! have ended.

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use flaz_pool::{Chunks, Pool, PoolError, PoolSuperblock};
use flaz_runtime::file::{ByteLock, FileDevice, Hold, OpenMode, lock_byte, wait_for_byte};
use flaz_runtime::{Config, OneReceiver, OneSender, Runtime, oneshot};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;

use super::TABLE;
use super::failures::FailedFlushes;
use crate::error::HostError;
use crate::safety::Access;

/// How long a command waits for another process that changes the pool.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);
/// How long a volume that was refused a chunk does not ask for another one.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// A pool on a device that is read and written by this process.
pub(crate) type HostPool = Rc<Pool<FileDevice>>;

type Work = Box<dyn FnOnce(Result<HostPool, HostError>) -> LocalBoxFuture<'static, ()> + Send>;

struct Order {
    access: Access,
    work: Work,
}

/// Gives orders to the thread, which ends when all clones are gone. See the module's documentation.
#[derive(Clone)]
pub struct PoolClient {
    orders: Arc<Mutex<mpsc::Sender<Order>>>,
    /// Number of the volume whose chunks are taken and given back.
    volume: u32,
    /// Of a process that serves a volume.
    failures: Arc<OnceLock<FailedFlushes>>,
    /// When a chunk was refused last.
    refused: Arc<Mutex<Option<Instant>>>,
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
        let (sender, orders) = mpsc::channel();
        let failures = Arc::new(OnceLock::new());
        let client = Self {
            orders: Arc::new(Mutex::new(sender)),
            volume: 0,
            failures: Arc::clone(&failures),
            refused: Arc::default(),
        };
        std::thread::Builder::new()
            .name("flaz-pool".to_owned())
            .spawn(move || drive(&file, &orders, &failures))?;
        let superblock = client.ask_blocking(Access::Read, async |pool| Ok(pool.superblock()))?;
        Ok((client, superblock))
    }

    /// The same thread, for the chunks of a volume.
    pub(crate) fn of_volume(&self, superblock: &PoolSuperblock, volume: u32) -> Self {
        self.failures.get_or_init(|| FailedFlushes::of(superblock.uuid));
        Self {
            volume,
            ..self.clone()
        }
    }

    fn order<T: Send + 'static>(
        &self,
        access: Access,
        work: impl AsyncFnOnce(HostPool) -> Result<T, HostError> + Send + 'static,
    ) -> OneReceiver<Result<T, HostError>> {
        let (reply, answer) = oneshot();
        let order = Order {
            access,
            work: Box::new(move |pool| answered(pool, work, reply).boxed_local()),
        };
        // If the thread has ended, the reply is dropped.
        let _ = self
            .orders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .send(order);
        answer
    }

    /// Does something with the pool, alone if it is changed.
    ///
    /// # Errors
    /// The pool cannot be read; or those of `work`.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        access: Access,
        work: impl AsyncFnOnce(HostPool) -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, HostError> {
        match self.order(access, work).recv().await {
            Ok(answer) => answer,
            Err(_) => Err(ENDED.into()),
        }
    }

    /// As [`PoolClient::ask`], for a thread without a runtime.
    ///
    /// # Errors
    /// As there, or there is no answer: another process changes the pool, or the device does not answer.
    pub(crate) fn ask_blocking<T: Send + 'static>(
        &self,
        access: Access,
        work: impl AsyncFnOnce(HostPool) -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, HostError> {
        let answer = self.order(access, work).recv_blocking(ANSWER_WITHIN);
        answer.map_err(|error| format!("the volumes of the cache device: {error}"))?
    }
}

const ENDED: &str = "the thread for the volumes of the cache device has ended";

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

fn drive(device: &FileDevice, orders: &mpsc::Receiver<Order>, failures: &OnceLock<FailedFlushes>) {
    let runtime = match Runtime::new(Config::default()) {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!("no thread for the volumes of the cache device: {error}");
            return;
        }
    };
    runtime.block_on(async {
        let (mut known, mut told) = (None, 0);
        while let Ok(Order { access, work }) = orders.recv() {
            let pool = now(device, access, &mut known).await;
            work(pool).await;
            // Those of the table count for all volumes too.
            let failed = known.as_ref().map_or(0, |pool: &HostPool| pool.failed_flushes());
            if let Some(failures) = failures.get() {
                failures.note_more(&mut told, failed);
            }
            if let Err(error) = lock_byte(device, TABLE, ByteLock::Released) {
                tracing::error!("the lock of the volumes cannot be released: {error}");
            }
        }
    });
}

/// The pool as it is now, with the lock of the table.
async fn now(
    device: &FileDevice,
    access: Access,
    known: &mut Option<HostPool>,
) -> Result<HostPool, HostError> {
    let lock = match access {
        Access::Read => ByteLock::Shared,
        Access::ReadWrite => ByteLock::Exclusive,
    };
    wait_for_byte(device, TABLE, lock).map_err(|error| {
        format!(
            "cannot lock {}: {error}; volumes need a file system with locks",
            device.path().display()
        )
    })?;
    // A file or device that has grown.
    device.measure()?;
    if let Some(pool) = known {
        pool.reload().await?;
        return Ok(Rc::clone(pool));
    }
    let pool = Pool::open(Rc::new(device.clone())).await?;
    *known = Some(Rc::clone(&pool));
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
        let refused = || self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        // A cache asks for each region that it fills.
        if refused().is_some_and(|at| at.elapsed() < REFUSED_FOR) {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "no chunk was free a moment ago",
            ));
        }
        let volume = self.volume;
        let taken = self.ask(Access::ReadWrite, async move |pool| {
            Ok(pool.take_part(volume, index).await?)
        });
        let taken = taken.await.map_err(as_io);
        let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
        *refused() = taken.as_ref().is_err_and(is_refused).then(Instant::now);
        taken
    }

    async fn give(&self, index: u32) -> io::Result<()> {
        let volume = self.volume;
        let given = self.ask(Access::ReadWrite, async move |pool| {
            Ok(pool.give_part(volume, index).await?)
        });
        given.await.map_err(as_io)
    }

    fn failed_flushes(&self) -> u64 {
        self.failures.get().map_or(0, FailedFlushes::count)
    }

    fn note_failed_flush(&self) {
        if let Some(failures) = self.failures.get() {
            failures.note();
        }
    }
}
