//! The ublk front end: a block device on this machine.
//!
//! The device outlives the server. It is found again by a stamp, the beginning of the cache's UUID, that the driver keeps
//! with it: a start takes over the device that a killed server left, and requests that had no answer are sent again. A clean
//! stop deletes the device, unless something uses it or [`UblkSpec::keep`] says so: then its requests wait for the next
//! start.
//!
//! Invariants: a device is taken over only if its size is that of the volume, and if no other process serves it. Its name is
//! a link that this front end makes and removes.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flaz_control::report::{NbdReport, UblkReport};
use flaz_nbd::Snapshot;
use flaz_runtime::{OneSender, oneshot};
use flaz_ublk::protocol::{DeviceInfo, DeviceState, Parameters, SECTOR_BYTES, attribute};
use flaz_ublk::{CharDevice, Control, NewDevice};
use rustix::fs::FileType;
use uuid::Uuid;

use crate::error::HostError;
use crate::front_end::{Failed, FrontEnd, SessionThreads};
use crate::safety;

/// Maximum size of a request in bytes.
const REQUEST_BYTES_MAX: u32 = 256 << 10;
/// Maximum size of a discard, or of a write of zeroes, in bytes.
const DISCARD_BYTES_MAX: u64 = 256 << 20;
/// Granularity of discards: a block of the cache.
const DISCARD_GRANULARITY: u32 = 4096;
/// Requests in flight of each queue, by default.
pub const DEPTH_DEFAULT: u16 = 64;
/// The directory of names.
const NAMES: &str = "/dev/flaz";
/// How long the driver has to notice that a server has ended, to make device files, and to end queues.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);
const SETTLE_POLL: Duration = Duration::from_millis(10);
/// How long a start or a stop of the block device may take: the kernel reads its partition table, or waits for requests.
const BLOCK_DEVICE_WITHIN: Duration = Duration::from_secs(60);

/// The block device to serve.
#[derive(Clone, Debug, Default)]
pub struct UblkSpec {
    /// The last part of its name below `/dev/flaz`.
    pub name: String,
    /// Number of queues; by default one for each thread.
    pub queues: Option<u16>,
    /// Requests in flight of each queue; by default [`DEPTH_DEFAULT`].
    pub depth: Option<u16>,
    /// Bytes of a logical block, 512 or 4096; by default those of the origin.
    pub block_bytes: Option<u32>,
    /// Leave the device in place at a clean stop.
    pub keep: bool,
}

impl UblkSpec {
    /// The name of the device.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(NAMES).join(&self.name)
    }
}

/// The volume behind the device.
pub(crate) struct Exported {
    pub uuid: Uuid,
    pub bytes: u64,
    /// Bytes of a sector of the origin.
    pub origin_sector: u32,
    pub read_only: bool,
    pub threads: u32,
}

/// A device of the driver.
pub(crate) struct UblkFrontEnd {
    state: Arc<State>,
    info: DeviceInfo,
    /// The device is left over from a server that has ended.
    left_over: bool,
    name: PathBuf,
    keep: bool,
    threads: u32,
    control: Mutex<Control>,
}

#[derive(Default)]
struct State {
    /// Queues that are being served.
    queues: AtomicUsize,
    /// Ends the service of each queue.
    park: Mutex<Vec<OneSender<()>>>,
    started: std::sync::atomic::AtomicBool,
}

fn stamp_of(uuid: Uuid) -> u64 {
    uuid.as_u64_pair().0
}

impl UblkFrontEnd {
    /// Adds the device, or finds the one that an earlier server left.
    ///
    /// # Errors
    /// The driver cannot be used, or the device does not fit the volume.
    pub(crate) fn bind(spec: &UblkSpec, exported: &Exported) -> Result<Self, HostError> {
        let mut control = Control::open()?;
        let stamp = stamp_of(exported.uuid);
        let parameters = parameters(spec, exported)?;
        let (info, left_over) = match find(&mut control, stamp)? {
            Some(info) => {
                let found = control.parameters(info.device)?;
                fits(&parameters, &found, info.device)?;
                (info, true)
            }
            None => {
                let new = NewDevice {
                    queues: spec.queues.unwrap_or(exported.threads as u16).max(1),
                    depth: spec.depth.unwrap_or(DEPTH_DEFAULT),
                    request_bytes_max: REQUEST_BYTES_MAX,
                    stamp,
                };
                let info = control.add(new)?;
                control.set_parameters(info.device, parameters)?;
                (info, false)
            }
        };
        Ok(Self {
            state: Arc::default(),
            info,
            left_over,
            name: spec.path(),
            keep: spec.keep,
            threads: exported.threads,
            control: Mutex::new(control),
        })
    }

    fn device(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.info.device))
    }

    fn control(&self) -> std::sync::MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the queues to the threads.
    fn serve(&self, threads: &SessionThreads) -> Result<(), HostError> {
        let device = open_soon(self.info, self.control().encoding())?;
        for number in 0..self.info.queues {
            let queue = device.queue(number)?;
            let (sender, receiver) = oneshot();
            self.state
                .park
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(sender);
            self.state.queues.fetch_add(1, Ordering::SeqCst);
            let state = Arc::clone(&self.state);
            let session = Box::new(move |volume| {
                Box::pin(async move {
                    queue.serve(volume, receiver).await;
                    state.queues.fetch_sub(1, Ordering::SeqCst);
                }) as futures_util::future::LocalBoxFuture<'_, ()>
            });
            let thread = usize::from(number) % threads.count();
            if threads.run(thread, session).is_err() {
                return Err("ublk: a thread accepts no orders".into());
            }
        }
        Ok(())
    }

    fn park(&self) {
        let senders = std::mem::take(&mut *self.state.park.lock().unwrap_or_else(PoisonError::into_inner));
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

    /// Makes the link, as udev would do.
    fn link(&self) -> io::Result<()> {
        fs::create_dir_all(NAMES)?;
        let draft = self.name.with_extension(format!("new-{}", std::process::id()));
        let _ = fs::remove_file(&draft);
        std::os::unix::fs::symlink(self.device(), &draft)?;
        fs::rename(&draft, &self.name)
    }

    /// Deletes the device, or leaves it to the next server.
    fn leave(&self) {
        let device = self.device();
        let user = if self.keep {
            Some("--keep-device".to_owned())
        } else {
            users_of(&device)
        };
        if let Some(user) = user {
            tracing::info!(
                "{} stays ({user}): its requests wait for the next start",
                device.display()
            );
            return self.park();
        }
        let mut control = self.control();
        let stopped = control.stop(self.info.device, BLOCK_DEVICE_WITHIN);
        if let Err(error) = stopped {
            tracing::warn!("{error}");
            return self.park();
        }
        if !self.wait_for_queues() {
            tracing::warn!("{} has requests in flight", device.display());
            return self.park();
        }
        if let Err(error) = control.delete(self.info.device, SETTLE_WITHIN) {
            tracing::warn!("{error}");
        }
        let ours = fs::read_link(&self.name).is_ok_and(|target| target == device);
        if ours && let Err(error) = fs::remove_file(&self.name) {
            tracing::warn!("cannot remove {}: {error}", self.name.display());
        }
    }
}

impl FrontEnd for UblkFrontEnd {
    fn name(&self) -> String {
        format!("ublk on {} ({})", self.name.display(), self.device().display())
    }

    fn start(&self, threads: SessionThreads, _failed: Failed) -> Result<Vec<JoinHandle<()>>, HostError> {
        if self.left_over {
            self.control().start_recovery(self.info.device)?;
        }
        self.serve(&threads)?;
        match self.left_over {
            true => self
                .control()
                .end_recovery(self.info.device, BLOCK_DEVICE_WITHIN)?,
            false => self.control().start(self.info.device, BLOCK_DEVICE_WITHIN)?,
        }
        self.state.started.store(true, Ordering::SeqCst);
        if let Err(error) = self.link() {
            tracing::warn!("cannot make the link {}: {error}", self.name.display());
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

    fn counts(&self) -> Vec<Snapshot> {
        vec![Snapshot::default(); self.threads as usize]
    }

    fn report(&self) -> Vec<NbdReport> {
        Vec::new()
    }

    fn devices(&self) -> Vec<UblkReport> {
        vec![UblkReport {
            name: self.name.clone(),
            device: self.device(),
            queues: self.info.queues,
            depth: self.info.depth,
        }]
    }
}

impl Drop for UblkFrontEnd {
    /// A start that failed leaves no device that it has added.
    fn drop(&mut self) {
        if !self.left_over && !self.state.started.load(Ordering::SeqCst) {
            self.park();
            self.wait_for_queues();
            if let Err(error) = self.control().delete(self.info.device, SETTLE_WITHIN) {
                tracing::warn!("{error}");
            }
        }
    }
}

/// The device with this stamp, once its earlier server has ended. One that was never started, or was stopped, is deleted.
fn find(control: &mut Control, stamp: u64) -> Result<Option<DeviceInfo>, HostError> {
    let give_up = Instant::now() + SETTLE_WITHIN;
    loop {
        let Some(info) = control.find(stamp)? else {
            return Ok(None);
        };
        match info.state() {
            DeviceState::Quiesced => return Ok(Some(info)),
            DeviceState::Dead => {
                control.delete(info.device, SETTLE_WITHIN)?;
                return Ok(None);
            }
            // The driver notices the end of a process a little later.
            DeviceState::Live | DeviceState::Other(_) => {}
        }
        if Instant::now() >= give_up {
            let device = format!("/dev/ublkb{}", info.device);
            return Err(format!(
                "ublk: {device} of this cache is served by process {}: stop that first",
                info.server
            )
            .into());
        }
        std::thread::sleep(SETTLE_POLL);
    }
}

fn parameters(spec: &UblkSpec, exported: &Exported) -> Result<Parameters, HostError> {
    let block = spec
        .block_bytes
        .unwrap_or(exported.origin_sector.clamp(512, 4096));
    if !exported.bytes.is_multiple_of(u64::from(block)) {
        return Err(format!(
            "ublk: --block-size {block}: the size of the origin, {} bytes, is not a multiple of it: use 512",
            exported.bytes
        )
        .into());
    }
    let mut attributes = attribute::VOLATILE_CACHE | attribute::FUA;
    if exported.read_only {
        attributes |= attribute::READ_ONLY;
    }
    let sectors = |bytes: u64| bytes / SECTOR_BYTES;
    let mut parameters = Parameters::both();
    parameters.attributes = attributes;
    parameters.shifts = [block.trailing_zeros() as u8, 12, 12, 12];
    parameters.sectors_max = sectors(u64::from(REQUEST_BYTES_MAX)) as u32;
    parameters.sectors = sectors(exported.bytes);
    parameters.discard_granularity = DISCARD_GRANULARITY;
    parameters.discard_sectors_max = sectors(DISCARD_BYTES_MAX) as u32;
    parameters.zeroes_sectors_max = sectors(DISCARD_BYTES_MAX) as u32;
    parameters.discard_segments_max = 1;
    Ok(parameters)
}

/// Whether a device that was left over can serve this volume.
fn fits(wanted: &Parameters, found: &Parameters, device: u32) -> Result<(), HostError> {
    let read_only = |parameters: &Parameters| parameters.attributes & attribute::READ_ONLY != 0;
    let what = if found.sectors != wanted.sectors {
        format!("{} sectors, expected {}", found.sectors, wanted.sectors)
    } else if read_only(found) != read_only(wanted) {
        "another --read-only".to_owned()
    } else {
        return Ok(());
    };
    Err(format!(
        "ublk: /dev/ublkb{device} was left by an earlier server of this cache and has {what}: unmount it, serve it as before, \
         and stop it"
    )
    .into())
}

/// Opens the character device, whose file appears a little after the device was added.
fn open_soon(info: DeviceInfo, encoding: flaz_ublk::protocol::Encoding) -> Result<CharDevice, HostError> {
    let give_up = Instant::now() + SETTLE_WITHIN;
    loop {
        match CharDevice::open(info, encoding) {
            Ok(device) => return Ok(device),
            Err(error) if Instant::now() >= give_up => return Err(error.into()),
            Err(_) => std::thread::sleep(SETTLE_POLL),
        }
    }
}

/// What uses a block device, for a message: mounts, devices on it, and processes that have it open.
fn users_of(device: &Path) -> Option<String> {
    if let Some(uses) = safety::uses_text(device) {
        return Some(uses);
    }
    let number = fs::metadata(device).ok()?.rdev();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    for process in processes {
        let name = process.file_name();
        let is_process = name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
        let Ok(files) = fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        let has_it = |file: fs::DirEntry| {
            fs::metadata(file.path()).is_ok_and(|file| {
                FileType::from_raw_mode(file.mode()) == FileType::BlockDevice && file.rdev() == number
            })
        };
        if is_process && files.flatten().any(has_it) {
            return Some(format!("process {} has it open", name.to_string_lossy()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exported(bytes: u64, origin_sector: u32) -> Exported {
        Exported {
            uuid: Uuid::from_u128(7),
            bytes,
            origin_sector,
            read_only: false,
            threads: 1,
        }
    }

    #[test]
    fn a_logical_block_is_that_of_the_origin_or_as_asked() {
        let block = |asked, sector| {
            let spec = UblkSpec {
                block_bytes: asked,
                ..UblkSpec::default()
            };
            1_u32 << parameters(&spec, &exported(1 << 30, sector)).unwrap().shifts[0]
        };
        assert_eq!((block(None, 512), block(None, 4096)), (512, 4096));
        assert_eq!((block(Some(4096), 512), block(Some(512), 4096)), (4096, 512));
    }

    #[test]
    fn a_size_that_is_no_multiple_of_the_block_is_refused() {
        let spec = UblkSpec {
            block_bytes: Some(4096),
            ..UblkSpec::default()
        };
        let error = parameters(&spec, &exported((1 << 30) + 512, 512)).unwrap_err();
        assert!(error.to_string().contains("use 512"), "{error}");
        assert!(parameters(&UblkSpec::default(), &exported((1 << 30) + 512, 512)).is_ok());
    }

    #[test]
    fn a_device_of_another_size_or_access_is_not_taken_over() {
        let parameters = |bytes, read_only| {
            let exported = Exported {
                read_only,
                ..exported(bytes, 512)
            };
            super::parameters(&UblkSpec::default(), &exported).unwrap()
        };
        let wanted = parameters(1 << 30, false);
        assert!(fits(&wanted, &wanted, 3).is_ok());
        for found in [parameters(1 << 20, false), parameters(1 << 30, true)] {
            let error = fits(&wanted, &found, 3).unwrap_err().to_string();
            assert!(
                error.contains("/dev/ublkb3 was left by an earlier server"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_device_that_nothing_uses_has_no_user() {
        assert_eq!(users_of(Path::new("/dev/no-such-device")), None);
    }
}
