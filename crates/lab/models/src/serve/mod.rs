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

use std::path::PathBuf;
use std::time::Duration;

use flaz_device::Env;
use flaz_nbd::{NbdAddress, Shutdown};
use flaz_runtime::Rt;

use crate::nbd::{self, ServeError};
use crate::ssd::Description;
use store::Store;
pub use trace::{TRACE_COLUMNS, Trace};
use volume::SsdVolume;

/// Interval of the trace.
const TRACE_EVERY: Duration = Duration::from_secs(1);

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
    let trace = plan.trace.take();
    nbd::serve(
        volume.clone(),
        &plan.address,
        shutdown,
        ready,
        || TraceTask::start(trace, &volume),
        TraceTask::finish,
    )
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
