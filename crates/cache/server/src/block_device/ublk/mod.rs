//! A block device by the ublk driver of Linux 6.1 and later.
//!
//! Invariant: each queue is served until it is parked or the device is stopped; another end of a queue ends the server.

mod device;
mod queues;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flaz_control::report::{BlockDeviceReport, FrontEndSizeReport};
use flaz_nbd::Snapshot;
use flaz_ublk::protocol::{DeviceInfo, DeviceState, Processors};
use flaz_ublk::{CharDevice, Control, Counts, Kind, Patience};

pub use self::device::DEPTH_DEFAULT;
use self::device::REQUEST_BYTES_MAX;
pub(super) use self::device::{left_over, remove_left};
use self::queues::Queues;
use super::{
    BlockDeviceSpec, Exported, FLUSH_WITHIN, Phase, SETTLE_POLL, SETTLE_WITHIN, Stamp, Stamped, claim, disk,
    fits, not_in_blocks, size_of_device,
};
use crate::error::HostError;
use crate::front_end::{Failed, FrontEnd, SessionThreads};
use crate::names::{Held, Name};
use crate::safety::hold_unused;

/// The driver's name in messages.
pub(super) const DRIVER: &str = "ublk";
/// How long a stop of the block device may take: the kernel waits for requests.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// Interval of messages about a start that waits for the origin.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// A device of the driver.
pub(super) struct UblkFrontEnd {
    queues: Queues,
    info: DeviceInfo,
    /// The device is left over from a server that has ended.
    left_over: bool,
    name: Name,
    _held: Vec<Held>,
    keep: AtomicBool,
    read_only: bool,
    /// Of a logical block.
    block_bytes: u32,
    control: Mutex<Control>,
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
        let own = found.as_ref().map(Stamped::path);
        let held = claim::claim(spec.driver, &name, own.as_deref())?;
        let mut block_shift = parameters.shifts[0];
        let info = match found {
            Some(info) => {
                let found = control.parameters(info.device)?;
                let (has, wanted) = (device::shape(&found), device::shape(&parameters));
                fits(DRIVER, &info.path(), has, wanted, exported)?;
                for option in device::ignored(spec, &parameters, &found, &info) {
                    tracing::warn!("{} keeps its own {option}", info.path().display());
                }
                block_shift = found.shifts[0];
                info
            }
            None => device::add(&mut control, spec, exported, parameters)?,
        };
        Ok(Self {
            queues: Queues::default(),
            info,
            left_over: found.is_some(),
            name,
            _held: held,
            keep: AtomicBool::new(spec.keep),
            read_only: exported.read_only,
            // The kernel has checked it.
            block_bytes: 1_u32.checked_shl(block_shift.into()).unwrap_or(u32::MAX),
            control: Mutex::new(control),
        })
    }

    fn device(&self) -> PathBuf {
        self.info.path()
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the device over, if it was left over, and passes it to the queues. If this process is killed in between, older
    /// kernels may give the device to no other server: see [`flaz_ublk::take_over`]. So nothing else is done here.
    fn take_over(&self) -> Result<(), HostError> {
        let encoding = self.control().encoding();
        if self.left_over {
            self.check_again()?;
            self.control().start_recovery(&self.info, SETTLE_WITHIN)?;
        }
        let char_device = open_soon(|| CharDevice::open(self.info, encoding, self.read_only))?;
        self.queues.begin(&char_device);
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

    /// Starts the block device, or continues it. This includes reads of the partition table by the kernel, so the origin
    /// determines how long it takes. It fails only if a queue ends or has an error.
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
            self.queues.count() == usize::from(self.info.queues) && self.queues.error().is_none()
        };
        let patience = Patience::While(&mut patience);
        let started = match self.left_over {
            true => self.control().end_recovery(self.info.device, patience),
            false => self.control().start(self.info.device, patience),
        };
        match (started, self.queues.error()) {
            (Err(_), Some(cause)) => Err(cause.into()),
            (started, _) => Ok(started?),
        }
    }

    /// Gives the device its name. The key of its disk is known only now, so udev looks at the device again.
    fn publish(&self) {
        let device = self.device();
        let noted = match disk::key(&device) {
            Some(key) => self.name.note(&key),
            None => Err(std::io::Error::other("the kernel does not number its disk")),
        };
        if let Err(error) = noted {
            tracing::warn!("cannot note the name of {} for udev: {error}", device.display());
        }
        if let Err(error) = self.name.link(&device) {
            tracing::warn!("cannot make the link {}: {error}", self.name.path().display());
        }
        disk::announce(&device);
    }

    /// Deletes the device, or leaves it to the next server.
    fn leave(&self) {
        let device = self.device();
        self.queues.enter(Phase::Leaving);
        if let Err(why) = self.remove() {
            tracing::info!(
                "{} stays ({why}): its requests wait for the next start",
                device.display()
            );
            self.queues.park();
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
        if !self.queues.wait_for_end() {
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

    fn prepare(&self, threads: &SessionThreads, failed: &Failed) -> Result<(), HostError> {
        let processors = self.processors(threads.count())?;
        self.queues.prepare(self.info, processors, threads, failed)
    }

    fn start(&self, _: SessionThreads, _: Failed) -> Result<Vec<JoinHandle<()>>, HostError> {
        self.take_over()?;
        self.start_device()?;
        self.queues.enter(Phase::Serving);
        self.publish();
        Ok(Vec::new())
    }

    fn stop(&self) {
        self.leave();
    }

    fn clients(&self) -> usize {
        self.queues.count()
    }

    fn cut(&self) {
        self.queues.park();
    }

    /// With --keep-device a stop leaves the device in place, whatever uses it.
    fn users(&self) -> Vec<String> {
        match self.keep.load(Ordering::SeqCst) {
            true => Vec::new(),
            false => self.in_use().into_iter().collect(),
        }
    }

    fn detached(&self) {
        self.keep.store(false, Ordering::SeqCst);
    }

    fn refuses(&self, bytes: u64) -> Option<String> {
        not_in_blocks(&self.name.path(), self.block_bytes, bytes)
    }

    fn grow(&self, bytes: u64) -> Vec<FrontEndSizeReport> {
        let resize = || {
            let mut control = self.control();
            if !control.can_resize() {
                return Err("the driver of this kernel cannot change the size of a device".to_owned());
            }
            // A stop may have begun meanwhile.
            let now = control
                .info(self.info.device)
                .map_err(|error| error.to_string())?;
            if !now.is_some_and(|now| self.is_ours(&now) && now.state() == DeviceState::Live) {
                return Err("it is no longer the device of this server".to_owned());
            }
            let resized = control.resize(self.info.device, bytes);
            resized.map_err(|error| error.to_string())
        };
        vec![size_of_device(&self.name.path(), &self.device(), bytes, resize)]
    }

    fn counts(&self) -> Vec<Snapshot> {
        self.queues.counts().iter().map(snapshot).collect()
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
        usize::from(self.info.queues) * flaz_ublk::bytes_in_progress_max(self.info.depth, REQUEST_BYTES_MAX)
    }
}

impl Drop for UblkFrontEnd {
    /// A start that failed leaves no device that it has added.
    fn drop(&mut self) {
        if !self.left_over && self.queues.enter(Phase::Leaving) == Phase::Starting {
            self.queues.park();
            self.queues.wait_for_end();
            self.name.unlink_all(&self.device());
            if let Err(error) = self.control().delete(self.info.device, SETTLE_WITHIN) {
                tracing::warn!("{error}");
            }
        }
    }
}

/// The counts of a queue, as those of a connection.
fn snapshot(counts: &Counts) -> Snapshot {
    let (of, failed) = (|kind| counts.requests(kind), |kind| counts.failed(kind));
    let all = [
        Kind::Read,
        Kind::Write,
        Kind::Flush,
        Kind::Discard,
        Kind::WriteZeroes,
    ];
    Snapshot {
        reads: of(Kind::Read),
        writes: of(Kind::Write),
        flushes: of(Kind::Flush),
        trims: of(Kind::Discard),
        write_zeroes: of(Kind::WriteZeroes),
        errors: all.into_iter().map(failed).sum(),
        read_errors: failed(Kind::Read),
        write_errors: failed(Kind::Write),
        flush_errors: failed(Kind::Flush),
        trim_errors: failed(Kind::Discard),
        write_zeroes_errors: failed(Kind::WriteZeroes),
        answered: counts.ended,
        requests_in_flight_peak: counts.peak,
        ..Snapshot::default()
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
