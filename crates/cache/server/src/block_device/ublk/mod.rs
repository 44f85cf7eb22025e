//! A block device by the ublk driver of Linux 6.1 and later.
//!
//! Invariant: each queue is served until it is parked or the device is stopped; another end of a queue ends the server.

mod device;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flaz_control::report::BlockDeviceReport;
use flaz_runtime::{OneReceiver, OneSender, oneshot};
use flaz_ublk::protocol::{DeviceInfo, DeviceState, Processors};
use flaz_ublk::{CharDevice, Control, End, Patience, Queue};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

pub use self::device::DEPTH_DEFAULT;
use self::device::REQUEST_BYTES_MAX;
pub(super) use self::device::left_over;
use super::{
    BlockDeviceSpec, Exported, FLUSH_WITHIN, Phase, Phases, SETTLE_POLL, SETTLE_WITHIN, Stamp, Stamped, fits,
    refuse_used_name,
};
use crate::error::HostError;
use crate::front_end::{Failed, FrontEnd, SessionThreads};
use crate::names::Name;
use crate::safety::hold_unused;

/// The driver's name in messages.
pub(super) const DRIVER: &str = "ublk";
/// How long a stop of the block device may take: the kernel waits for requests.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// Interval of messages about a start that waits for the origin.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// A device of the driver.
pub(super) struct UblkFrontEnd {
    state: Arc<State>,
    info: DeviceInfo,
    /// The device is left over from a server that has ended.
    left_over: bool,
    name: Name,
    keep: AtomicBool,
    read_only: bool,
    control: Mutex<Control>,
}

#[derive(Default)]
struct State {
    phases: Phases,
    /// Queues that are being served.
    queues: AtomicUsize,
    /// Ends the service of each queue.
    park: Mutex<Vec<OneSender<()>>>,
}

impl State {
    fn park(&self) -> MutexGuard<'_, Vec<OneSender<()>>> {
        self.park.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a queue as served.
struct Served(Arc<State>);

impl Served {
    fn new(state: &Arc<State>) -> Self {
        state.queues.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(state))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.queues.fetch_sub(1, Ordering::SeqCst);
    }
}

impl UblkFrontEnd {
    /// Adds the device, or finds the one that an earlier server left.
    ///
    /// # Errors
    /// The driver cannot be used, or the device does not fit the volume.
    pub(super) fn bind(spec: &BlockDeviceSpec, exported: &Exported) -> Result<Self, HostError> {
        let mut control = Control::open()?;
        let stamp = Stamp::new(exported.uuid, &exported.origin_identity);
        let parameters = device::parameters(spec.logical_block(exported)?, exported);
        let found = device::find(&mut control, stamp)?;
        let name = Name::new(&spec.name);
        refuse_used_name(spec.driver, &name, found.as_ref().map(Stamped::path).as_deref())?;
        let info = match found {
            Some(info) => {
                let found = control.parameters(info.device)?;
                let (has, wanted) = (device::shape(&found), device::shape(&parameters));
                fits(DRIVER, &info.path(), has, wanted, exported)?;
                for option in device::ignored(spec, &parameters, &found, &info) {
                    tracing::warn!("{} keeps its own {option}", info.path().display());
                }
                info
            }
            None => device::add(&mut control, spec, exported, parameters)?,
        };
        Ok(Self {
            state: Arc::default(),
            info,
            left_over: found.is_some(),
            name,
            keep: AtomicBool::new(spec.keep),
            read_only: exported.read_only,
            control: Mutex::new(control),
        })
    }

    fn device(&self) -> PathBuf {
        self.info.path()
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the queues to the threads.
    fn serve(&self, threads: &SessionThreads, failed: &Failed) -> Result<(), HostError> {
        let char_device =
            open_soon(|| CharDevice::open(self.info, self.control().encoding(), self.read_only))?;
        let mut processors = self.processors(threads.count())?;
        for number in 0..self.info.queues {
            let queue = Queue::open(&char_device, number)?;
            let (sender, parked) = oneshot();
            self.state.park().push(sender);
            let thread = usize::from(number) % threads.count();
            let session = session(Session {
                queue,
                number,
                parked,
                served: Served::new(&self.state),
                // Once for each thread.
                processors: processors[thread].take(),
                failed: Arc::clone(failed),
            });
            if threads.run(thread, session).is_err() {
                return Err("ublk: a thread accepts no orders".into());
            }
        }
        Ok(())
    }

    /// The processors whose requests go to each thread.
    fn processors(&self, threads: usize) -> Result<Vec<Option<Processors>>, HostError> {
        let mut all: Vec<Option<Processors>> = vec![None; threads];
        for number in 0..self.info.queues {
            let of_queue = self.control().processors(self.info.device, number)?;
            all[usize::from(number) % threads]
                .get_or_insert_default()
                .add(&of_queue);
        }
        Ok(all)
    }

    fn park(&self) {
        self.state.phases.enter(Phase::Leaving);
        let senders = std::mem::take(&mut *self.state.park());
        for sender in senders {
            // A queue that has ended receives nothing.
            let _ = sender.send(());
        }
    }

    fn wait_for_queues(&self) -> bool {
        let give_up = Instant::now() + SETTLE_WITHIN;
        while self.clients() > 0 && Instant::now() < give_up {
            std::thread::sleep(SETTLE_POLL);
        }
        self.clients() == 0
    }

    /// Starts the block device, or continues it. This includes reads of the partition table by the kernel, so the origin
    /// determines how long it takes. It fails only if a queue ends.
    fn start_device(&self) -> Result<(), HostError> {
        let device = self.device();
        let mut told = Duration::ZERO;
        let mut patience = |waited: Duration| {
            if waited >= told + TELL_EVERY {
                told = waited;
                tracing::warn!(
                    "{}: the kernel has been reading its partition table for {} s: the origin is slow",
                    device.display(),
                    waited.as_secs()
                );
            }
            self.clients() == usize::from(self.info.queues)
        };
        let patience = Patience::While(&mut patience);
        match self.left_over {
            true => self.control().end_recovery(self.info.device, patience)?,
            false => self.control().start(self.info.device, patience)?,
        }
        Ok(())
    }

    /// Deletes the device, or leaves it to the next server.
    fn leave(&self) {
        let device = self.device();
        self.state.phases.enter(Phase::Leaving);
        if let Err(why) = self.remove() {
            tracing::info!(
                "{} stays ({why}): its requests wait for the next start",
                device.display()
            );
            self.park();
        }
    }

    /// Deletes the device, if nothing uses it.
    ///
    /// # Errors
    /// Why it stays.
    fn remove(&self) -> Result<(), String> {
        if self.keep.load(Ordering::SeqCst) {
            return Err("--keep-device".to_owned());
        }
        let device = self.device();
        let held = hold_unused(&device)?;
        held.flush(FLUSH_WITHIN)?;
        let mut control = self.control();
        let text = |error: flaz_ublk::UblkError| error.to_string();
        if !control
            .info(self.info.device)
            .map_err(text)?
            .is_some_and(|now| self.is_ours(&now))
        {
            return Err("it is no longer the device of this server".to_owned());
        }
        // Nothing should open the device while the driver stops it.
        self.name.unlink_all(&device);
        control.stop(self.info.device, STOP_WITHIN).map_err(text)?;
        drop(held);
        if !self.wait_for_queues() {
            return Err("it has requests in flight".to_owned());
        }
        if let Err(error) = control.delete(self.info.device, SETTLE_WITHIN) {
            tracing::warn!("{error}: something has /dev/ublkc{} open", self.info.device);
        }
        Ok(())
    }

    /// The cache may have taken long to open: the number may belong to another device by now.
    fn check_again(&self) -> Result<(), HostError> {
        let now = self.control().info(self.info.device)?;
        if now.is_some_and(|now| now.stamp == self.info.stamp && now.state() == DeviceState::Quiesced) {
            return Ok(());
        }
        Err(format!(
            "{DRIVER}: {} no longer waits for this server: it was deleted meanwhile; start again",
            self.device().display()
        )
        .into())
    }

    /// Whether this process still serves the device: its number may have been given to another one.
    fn is_ours(&self, now: &DeviceInfo) -> bool {
        now.stamp == self.info.stamp && u32::try_from(now.server) == Ok(std::process::id())
    }
}

impl FrontEnd for UblkFrontEnd {
    fn name(&self) -> String {
        format!(
            "ublk on {} ({})",
            self.name.path().display(),
            self.device().display()
        )
    }

    fn start(&self, threads: SessionThreads, failed: Failed) -> Result<Vec<JoinHandle<()>>, HostError> {
        let device = self.device();
        if let Err(error) = self.name.note(&device) {
            tracing::warn!("cannot note the name of {} for udev: {error}", device.display());
        }
        if self.left_over {
            self.check_again()?;
            self.control().start_recovery(&self.info, SETTLE_WITHIN)?;
        }
        self.serve(&threads, &failed)?;
        self.start_device()?;
        self.state.phases.enter(Phase::Serving);
        if let Err(error) = self.name.link(&device) {
            tracing::warn!("cannot make the link {}: {error}", self.name.path().display());
        }
        Ok(Vec::new())
    }

    fn stop(&self) {
        self.leave();
    }

    fn clients(&self) -> usize {
        self.state.queues.load(Ordering::SeqCst)
    }

    fn cut(&self) {
        self.park();
    }

    fn detached(&self) {
        self.keep.store(false, Ordering::SeqCst);
    }

    fn devices(&self) -> Vec<BlockDeviceReport> {
        vec![BlockDeviceReport {
            name: self.name.path(),
            device: self.device(),
            queues: self.info.queues,
            depth: self.info.depth,
        }]
    }

    fn request_bytes(&self) -> usize {
        usize::from(self.info.queues) * usize::from(self.info.depth) * REQUEST_BYTES_MAX
    }
}

impl Drop for UblkFrontEnd {
    /// A start that failed leaves no device that it has added.
    fn drop(&mut self) {
        if !self.left_over && self.state.phases.enter(Phase::Leaving) == Phase::Starting {
            self.park();
            self.wait_for_queues();
            self.name.unlink_all(&self.device());
            if let Err(error) = self.control().delete(self.info.device, SETTLE_WITHIN) {
                tracing::warn!("{error}");
            }
        }
    }
}

/// What a thread needs to serve a queue.
struct Session {
    queue: Queue,
    number: u16,
    parked: OneReceiver<()>,
    served: Served,
    /// The thread is to run on these.
    processors: Option<Processors>,
    failed: Failed,
}

fn session(parts: Session) -> crate::front_end::Session {
    Box::new(move |volume| {
        if let Some(processors) = &parts.processors {
            run_on(processors);
        }
        Box::pin(async move {
            let end = parts.queue.serve(volume, parts.parked).await;
            if let End::Driver(errno) = end
                && parts.served.0.phases.now() != Phase::Leaving
            {
                let error = std::io::Error::from_raw_os_error(errno);
                let number = parts.number;
                (parts.failed)(
                    format!("ublk: the driver has ended queue {number}: {error}; was the device deleted?")
                        .into(),
                );
            }
            drop(parts.served);
        })
    })
}

/// Makes this thread run on those processors whose requests it serves, as far as it may.
fn run_on(processors: &Processors) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut chosen = CpuSet::new();
    let numbers = processors
        .numbers()
        .take_while(|number| *number < CpuSet::MAX_CPU);
    for number in numbers.filter(|number| allowed.is_set(*number)) {
        chosen.set(number);
    }
    if chosen.count() > 0
        && let Err(error) = sched_setaffinity(None, &chosen)
    {
        tracing::debug!(%error, "a thread runs on any processor");
    }
}

/// Opens the character device, whose file appears a little after the device was added.
fn open_soon(open: impl Fn() -> Result<CharDevice, flaz_ublk::UblkError>) -> Result<CharDevice, HostError> {
    let give_up = Instant::now() + SETTLE_WITHIN;
    loop {
        match open() {
            Ok(device) => return Ok(device),
            Err(error) if Instant::now() >= give_up => return Err(error.into()),
            Err(_) => std::thread::sleep(SETTLE_POLL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_counted_even_if_they_never_run() {
        let state = Arc::<State>::default();
        let served = [Served::new(&state), Served::new(&state)];
        assert_eq!(state.queues.load(Ordering::SeqCst), 2);
        drop(served);
        assert_eq!(state.queues.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_thread_runs_only_where_it_may() {
        let ran = std::thread::spawn(|| {
            let allowed = sched_getaffinity(None).unwrap();
            run_on(&Processors::default());
            assert_eq!(
                sched_getaffinity(None).unwrap(),
                allowed,
                "no processor: as before"
            );
            let mut bytes = [0_u8; size_of::<Processors>()];
            bytes[..8].fill(0xff);
            run_on(&zerocopy::FromBytes::read_from_bytes(&bytes).unwrap());
            let now = sched_getaffinity(None).unwrap();
            (0..CpuSet::MAX_CPU).all(|number| !now.is_set(number) || allowed.is_set(number))
        });
        assert!(ran.join().unwrap());
    }
}
