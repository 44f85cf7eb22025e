//! The SSD as a device with its contents, over NBD, in real time.
//!
//! | module | contents |
//! |---|---|
//! | `store` | the contents, and how much of them the drive stores: the codec compresses what is written |
//! | `volume` | the device: the time of each request is that of the [`Drive`](crate::ssd::drive::Drive) |
//! | `trace` | counters over time |
//!
//! Only the trait [`Volume`](flaz_engine::volume::Volume) of the engine is used: no cache takes part.

mod store;
mod trace;
mod volume;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flaz_device::Env;
use flaz_nbd::socket::ListenError;
use flaz_nbd::{Counters, Export, Limits, NbdAddress, Server, Service, Shutdown, serve_connection};
use flaz_runtime::{Config, Rt, Runtime};

use crate::ssd::Description;
use store::Store;
pub use trace::{TRACE_COLUMNS, Trace};
use volume::SsdVolume;

/// Interval of the trace.
const TRACE_EVERY: Duration = Duration::from_secs(1);
/// How long clients may take to read their last replies, and how often this is checked.
const LEAVE_MAX: Duration = Duration::from_secs(5);
const LEAVE_POLL: Duration = Duration::from_millis(10);

/// What to serve.
#[derive(Debug)]
pub struct Plan {
    /// The device, in its served size.
    pub device: Description,
    /// Where.
    pub address: NbdAddress,
    /// Factor of all times.
    pub slowdown: f64,
    /// Directory of the file with the contents, which has no name.
    pub directory: PathBuf,
    /// Counters over time.
    pub trace: Option<Trace>,
}

/// Why a device cannot be served.
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
    fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}

/// Serves a device until `shutdown` is stopped. `ready` is called when clients can connect.
///
/// # Errors
/// [`ServeError`].
pub fn serve(mut plan: Plan, shutdown: &Shutdown, ready: impl FnOnce()) -> Result<(), ServeError> {
    let size = plan.device.user_bytes() / plan.device.unit_bytes() * plan.device.unit_bytes();
    let store = Store::new(&plan.device, &plan.directory, size).map_err(ServeError::system(format!(
        "creating the contents in {}",
        plan.directory.display()
    )))?;
    let volume = SsdVolume::new(&plan.device, size, store, plan.slowdown).map_err(ServeError::Device)?;
    let runtime = Runtime::new(Config::default()).map_err(ServeError::system("starting the runtime"))?;
    let server = Server::bind(&plan.address, Limits::default(), shutdown.clone())?;
    ready();
    let trace = plan.trace.take();
    let served = runtime.block_on(async {
        let service = Service {
            export: Arc::new(Export::new(size)),
            limits: Limits::default(),
            counters: Arc::new(Counters::default()),
        };
        let tracing = TraceTask::start(trace, &volume);
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
        tracing.finish()
    });
    drop(runtime);
    served
}

/// Writes the trace every second.
struct TraceTask {
    trace: std::rc::Rc<std::cell::RefCell<Option<Trace>>>,
    volume: SsdVolume,
}

impl TraceTask {
    fn start(trace: Option<Trace>, volume: &SsdVolume) -> Self {
        let task = Self {
            trace: std::rc::Rc::new(std::cell::RefCell::new(trace)),
            volume: volume.clone(),
        };
        if task.trace.borrow().is_some() {
            let (trace, volume) = (std::rc::Rc::clone(&task.trace), volume.clone());
            Rt.spawn(async move {
                loop {
                    Rt.sleep(TRACE_EVERY).await;
                    if let Some(trace) = &mut *trace.borrow_mut() {
                        trace.row(&volume);
                    }
                }
            });
        }
        task
    }

    /// The last row, and the first error of any row.
    fn finish(self) -> Result<(), ServeError> {
        match self.trace.borrow_mut().take() {
            Some(mut trace) => {
                trace.row(&self.volume);
                trace.finish()
            }
            None => Ok(()),
        }
    }
}
