//! Serves a volume of the lab over NBD.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flaz_device::{DeviceError, DeviceOp, Env, Priority};
use flaz_engine::volume::{IoError, Volume};
use flaz_nbd::socket::ListenError;
use flaz_nbd::{Counters, Export, Limits, NbdAddress, Server, Service, Shutdown, serve_connection};
use flaz_runtime::{Config, Rt, Runtime};

/// How long clients may take to read their last replies, and how often this is checked.
const LEAVE_MAX: Duration = Duration::from_secs(5);
const LEAVE_POLL: Duration = Duration::from_millis(10);

/// Why a volume cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The description.
    #[error("the device cannot be served: {0}")]
    Device(String),
    /// The system.
    #[error("{what}")]
    System {
        /// The failed action.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl ServeError {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}

/// A request, for an error: what it does, its offset, and its length in bytes.
pub(crate) type Place = (DeviceOp, u64, u64);

/// Refuses a request beyond the end of a device of `size` bytes.
pub(crate) fn check(size: u64, offset: u64, len: u64) -> Result<(), IoError> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(IoError::OutOfRange { offset, len, size }),
    }
}

/// Runs `job`, which waits for files, on another thread.
pub(crate) async fn elsewhere<T: Send + 'static>(
    (operation, offset, len): Place,
    job: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, IoError> {
    let priority = match operation {
        DeviceOp::Read => Priority::Read,
        _ => Priority::Write,
    };
    let done = Rt.compute(priority, job).await;
    done.map_err(|source| IoError::Origin(DeviceError::new(operation, offset, len, source)))
}

/// Serves `volume` until `shutdown` is stopped. `ready` is called when clients can connect, `beside` then runs on the runtime of the
/// server until it ends; the value that it returned is passed to `finish` on that runtime after the last reply.
pub(crate) fn serve<V: Volume, B, T>(
    volume: V,
    address: &NbdAddress,
    shutdown: &Shutdown,
    ready: impl FnOnce(),
    beside: impl FnOnce() -> B,
    finish: impl FnOnce(B) -> Result<T, ServeError>,
) -> Result<T, ServeError> {
    let runtime = Runtime::new(Config::default()).map_err(ServeError::system("starting the runtime"))?;
    let server = Server::bind(address, Limits::default(), shutdown.clone())?;
    ready();
    let served = runtime.block_on(async {
        let service = Service {
            export: Arc::new(Export::new(volume.size())),
            limits: Limits::default(),
            counters: Arc::new(Counters::default()),
        };
        let beside = beside();
        let ended = server
            .run(&Rt, |incoming| {
                Rt.spawn(serve_connection(incoming, volume.clone(), Rt, service.clone()));
            })
            .await;
        let give_up = Instant::now() + LEAVE_MAX;
        while shutdown.connections() > 0 && Instant::now() < give_up {
            Rt.sleep(LEAVE_POLL).await;
        }
        shutdown.cut();
        ended.map_err(ServeError::system("accepting clients"))?;
        finish(beside)
    });
    drop(runtime);
    served
}
