//! A block device by the kernel's NBD client, for kernels without ublk.
//!
//! A start finds the device of the cache by the stamp in `/sys/block/nbdN/backend` and gives it a new socket; the kernel refuses
//! a socket with another stamp.
//!
//! What the driver does (drivers/block/nbd.c), and what follows:
//!
//! - *Lost socket.* New requests wait in the driver for `DEAD_CONN_TIMEOUT`. Requests that were sent and not answered are sent
//!   again only when their timer ends and the device has another socket by then (`nbd_xmit_timeout`). The timer is 30 s, or
//!   `queue/io_timeout`, which is set to a few seconds for this reason, and back to 30 s before a device is disconnected:
//!   the driver keeps it for the next user of the number.
//! - *One connection.* With several, the driver closes a connection when a request takes longer than its timer, and sends the
//!   request again over another one. A slow origin would lose its connections; and the first copy of a write, still unread in
//!   the closed socket, could overtake later writes of the same block. A timer long enough to exclude this would hold up the
//!   requests of a killed server equally long. With one connection and `TIMEOUT` 0, the driver only notes slow requests in the
//!   kernel's log. This needs Linux 5.7 (replaced sockets with one connection); the stamp needs 5.14.
//! - *No stop between requests.* An error reply becomes an I/O error of the file system. So a server that stops leaves requests
//!   unanswered instead of refusing them (`flaz_nbd::Incoming::of_kernel`).
//! - *Taking over.* `RECONFIGURE` replaces a dead socket only, and succeeds without effect if there is none yet, because the
//!   driver notices the end of a server late. It then closes the new socket. So after the kernel's end is closed here, a
//!   hang-up on the other end means: try again.
//! - *Removal.* `DISCONNECT` fails requests in flight and drops the page cache without writing it. So the device is held
//!   exclusively and synced first. Unlike a ublk device, `/dev/nbdN` stays, with a size of 0: the driver makes 16 of them when
//!   it is loaded. `NBD_CFLAG_DESTROY_ON_DISCONNECT` would take one of those from other users, and
//!   `NBD_CFLAG_DISCONNECT_ON_CLOSE` would end the device with its last user, although the server goes on.
//! - *Size.* `RECONFIGURE` changes the size of a connected device at once, and its users and udev hear of it. Newer kernels freeze
//!   the queue for it: they wait for the requests in flight, which the server goes on answering, and hold the lock that a take-over
//!   needs. So a server that is killed in this very moment may leave a device that only a restart of the machine frees. A device
//!   that was left over keeps its size, which may be smaller than that of the volume now.
//! - *Names.* The driver announces a device to udev while it executes `CONNECT`. So the number is chosen here, among those
//!   without `/sys/block/nbdN/pid`, and its note for udev is written first; EBUSY means that another process was faster.

mod device;
mod netlink;
mod protocol;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flaz_control::report::{BlockDeviceReport, FrontEndSizeReport};
use flaz_nbd::limits::BYTES_IN_FLIGHT_MAX;
use flaz_nbd::{Counters, Export, Incoming, Limits, Service, Shutdown, Snapshot, serve_connection};
use flaz_runtime::Rt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use uuid::Uuid;

use self::device::Devices;
pub(super) use self::device::number_of;
use self::netlink::Driver;
use self::protocol::Connect;
use super::{
    BlockDeviceSpec, Exported, FLUSH_WITHIN, Phase, Phases, SETTLE_POLL, SETTLE_WITHIN, Stamp, Stamped,
    claim, disk, not_in_blocks, size_of_device,
};
use crate::error::HostError;
use crate::front_end::{Failed, FrontEnd, SessionThreads};
use crate::names::{Held, Name};
use crate::safety::hold_unused;

/// The driver's name in messages.
pub(super) const DRIVER: &str = "nbd";
/// How long requests wait for the next server: longer than any repair.
const WAIT_FOR_SERVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long a device that was disconnected may stay open.
const DISCONNECTED_WITHIN: Duration = Duration::from_secs(3);
/// Requests in flight of a device: the driver's choice.
const DEPTH: u16 = 128;

/// The device of this cache that waits for a server.
///
/// # Errors
/// It cannot be found out.
pub(super) fn left_over(uuid: Uuid) -> Result<Option<PathBuf>, HostError> {
    Devices::default().left_over(uuid)
}

/// Disconnects the device of a server that has ended. Requests that wait for it fail.
pub(super) fn remove_left(number: u32, name: &Name) -> Result<(), HostError> {
    let (mut driver, devices) = (Driver::open()?, Devices::default());
    driver.disconnect(number)?;
    name.unlink_all(&device::path(number));
    // Not before: the kernel would set it only when no request waits.
    devices.restore_timeout(number);
    Ok(())
}

/// A device of the driver.
pub(super) struct KernelNbdFrontEnd {
    devices: Devices,
    stamp: Stamp,
    /// Of the device. That of a new one is certain once it is connected.
    number: AtomicU32,
    how: How,
    name: Name,
    _held: Vec<Held>,
    keep: AtomicBool,
    phases: Arc<Phases>,
    driver: Mutex<Driver>,
    /// Of a logical block.
    block_bytes: u32,
    export: Arc<Export>,
    counters: Arc<Counters>,
    shutdown: Shutdown,
}

/// How the device is obtained.
#[derive(Clone, Debug)]
enum How {
    /// An earlier server left it.
    TakeOver,
    /// The first of these numbers that is unused.
    Connect(Vec<u32>),
}

impl KernelNbdFrontEnd {
    /// Finds the device that an earlier server left, or chooses one.
    ///
    /// # Errors
    /// The driver cannot be used, the device `wanted` is in use, or the one that was left does not fit the volume.
    pub(super) fn bind(
        spec: &BlockDeviceSpec,
        wanted: Option<u32>,
        exported: &Exported,
    ) -> Result<Self, HostError> {
        let driver = Driver::open()?;
        let devices = Devices::default();
        let stamp = Stamp::new(exported.uuid, &exported.origin_identity);
        let mut block_bytes = spec.logical_block(exported)?;
        let found = devices.find(stamp)?;
        let name = Name::new(&spec.name);
        let own = found.as_ref().map(Stamped::path);
        let held = claim::claim(spec.driver, &name, own.as_deref())?;
        let (number, how) = match (found, wanted) {
            (Some(found), _) => {
                devices.check(found.number, exported)?;
                warn_of_other_device(spec, wanted, found.number);
                let block = devices.logical_block(found.number)?;
                if spec.block_bytes.is_some_and(|asked| u64::from(asked) != block) {
                    let device = found.path();
                    tracing::warn!("{} keeps its own --block-size (it has {block})", device.display());
                }
                block_bytes = u32::try_from(block).unwrap_or(block_bytes);
                (found.number, How::TakeOver)
            }
            (None, Some(number)) if devices.is_connected(number) => return Err(in_use(number)),
            (None, Some(number)) => (number, How::Connect(vec![number])),
            (None, None) => {
                let unused = devices.unused()?;
                (unused[0], How::Connect(unused))
            }
        };
        Ok(Self {
            devices,
            stamp,
            number: AtomicU32::new(number),
            how,
            name,
            _held: held,
            keep: AtomicBool::new(spec.keep),
            phases: Arc::default(),
            driver: Mutex::new(driver),
            block_bytes,
            export: Arc::new(exported.export.clone()),
            counters: Arc::default(),
            shutdown: Shutdown::new(),
        })
    }

    fn number(&self) -> u32 {
        self.number.load(Ordering::SeqCst)
    }

    fn device(&self) -> PathBuf {
        device::path(self.number())
    }

    fn driver(&self) -> MutexGuard<'_, Driver> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self) {
        if let Err(error) = self.name.note(&self.stamp.to_string()) {
            let name = self.name.path();
            tracing::warn!("cannot note the name {} for udev: {error}", name.display());
        }
    }

    /// Gives the device a socket; returns the server's end.
    fn obtain(&self) -> Result<OwnedFd, HostError> {
        match &self.how {
            How::TakeOver => {
                self.note();
                self.take_over()
            }
            How::Connect(numbers) => self.connect(numbers),
        }
    }

    fn take_over(&self) -> Result<OwnedFd, HostError> {
        let give_up = Instant::now() + SETTLE_WITHIN;
        loop {
            let (ours, theirs) = sockets()?;
            self.driver()
                .reconfigure(self.number(), &self.stamp.to_string(), theirs.as_fd())?;
            drop(theirs);
            if !is_hung_up(&ours)? {
                return Ok(ours);
            }
            if Instant::now() >= give_up {
                return Err(format!(
                    "{DRIVER}: {} of this cache still has a server: stop that first",
                    self.device().display()
                )
                .into());
            }
            std::thread::sleep(SETTLE_POLL);
        }
    }

    fn connect(&self, numbers: &[u32]) -> Result<OwnedFd, HostError> {
        let backend = self.stamp.to_string();
        for number in numbers {
            if self.devices.is_connected(*number) {
                continue;
            }
            self.number.store(*number, Ordering::SeqCst);
            self.note();
            let (ours, theirs) = sockets()?;
            let connected = self.driver().connect(&Connect {
                index: *number,
                bytes: self.export.size(),
                block_bytes: u64::from(self.block_bytes),
                flags: self.export.transmission_flags(false),
                wait_s: WAIT_FOR_SERVER.as_secs(),
                backend: &backend,
                socket: theirs.as_raw_fd(),
            });
            match connected {
                Ok(()) => return self.check_stamp().map(|()| ours),
                Err(error) => {
                    // It may be the device of another server by now.
                    self.name.unlink_own(&self.device());
                    if !error.is_busy() {
                        return Err(error.into());
                    }
                }
            }
        }
        Err(in_use(self.number()))
    }

    /// Whether the driver has kept the stamp, without which the next server would not find the device.
    fn check_stamp(&self) -> Result<(), HostError> {
        if self.is_ours() {
            return Ok(());
        }
        self.undo();
        Err(format!(
            "{DRIVER}: this kernel does not keep the identity of a device: expected Linux 5.14 or later; serve it over NBD with \
             --nbd"
        )
        .into())
    }

    /// Whether the device still has this cache's stamp: its number may have been given to another one.
    fn is_ours(&self) -> bool {
        matches!(self.devices.stamp(self.number()), Ok(Some(stamp)) if stamp == self.stamp)
    }

    /// Whether the device was disconnected while it was served. It keeps its stamp as long as something has it open, as udev does
    /// for a moment then. A device whose connection has only failed keeps it for the next server.
    fn is_lost(&self) -> bool {
        let has_ended = self.phases.now() == Phase::Serving && self.shutdown.connections() == 0;
        let give_up = Instant::now() + DISCONNECTED_WITHIN;
        while has_ended && self.is_ours() && Instant::now() < give_up {
            std::thread::sleep(SETTLE_POLL);
        }
        !self.is_ours()
    }

    /// Disconnects a device that this start has connected.
    fn undo(&self) {
        self.phases.enter(Phase::Leaving);
        self.name.unlink_all(&self.device());
        if let Err(error) = self.driver().disconnect(self.number()) {
            tracing::warn!("{error}");
        }
    }

    /// Passes the connection to a thread.
    fn serve(&self, socket: OwnedFd, threads: &SessionThreads, failed: &Failed) -> Result<(), HostError> {
        let Some(incoming) = Incoming::of_kernel(socket, &self.shutdown)? else {
            return Err(format!("{DRIVER}: the server is stopping").into());
        };
        let service = Service {
            export: Arc::clone(&self.export),
            limits: Limits::default(),
            counters: Arc::clone(&self.counters),
        };
        let (phases, failed, device) = (Arc::clone(&self.phases), Arc::clone(failed), self.device());
        let session: crate::front_end::Session = Box::new(move |volume| {
            Box::pin(async move {
                serve_connection(incoming, volume, Rt, service).await;
                if phases.now() != Phase::Leaving {
                    let device = device.display();
                    failed(
                        format!("{DRIVER}: the connection of {device} has ended; was it disconnected?")
                            .into(),
                    );
                }
            })
        });
        if threads.run(0, session).is_err() {
            return Err(format!("{DRIVER}: a thread accepts no orders").into());
        }
        Ok(())
    }

    /// Disconnects the device, if nothing uses it.
    ///
    /// # Errors
    /// Why it stays.
    fn remove(&self) -> Result<(), String> {
        if self.keep.load(Ordering::SeqCst) {
            return Err("--keep-device".to_owned());
        }
        let device = self.device();
        if !self.is_ours() {
            self.name.unlink_own(&device);
            return Err("it is no longer the device of this server".to_owned());
        }
        let held = hold_unused(&device)?;
        held.flush(FLUSH_WITHIN)?;
        if !self.is_ours() {
            return Err("it was given to another server".to_owned());
        }
        self.phases.enter(Phase::Leaving);
        self.name.unlink_all(&device);
        self.devices.restore_timeout(self.number());
        self.driver()
            .disconnect(self.number())
            .map_err(|error| error.to_string())?;
        drop(held);
        if !self.devices.wait_for_release(self.number()) {
            tracing::warn!(
                "{DRIVER}: {} is disconnected, but something has it open",
                device.display()
            );
        }
        Ok(())
    }
}

impl FrontEnd for KernelNbdFrontEnd {
    fn name(&self) -> String {
        format!(
            "the kernel's NBD client on {} ({})",
            self.name.path().display(),
            self.device().display()
        )
    }

    fn start(&self, threads: SessionThreads, failed: Failed) -> Result<Vec<JoinHandle<()>>, HostError> {
        let socket = self.obtain()?;
        if let Err(error) = self.serve(socket, &threads, &failed) {
            if matches!(self.how, How::Connect(_)) {
                self.undo();
            }
            return Err(error);
        }
        self.phases.enter(Phase::Serving);
        self.devices.shorten_timeout(self.number());
        if let Err(error) = self.name.link(&self.device()) {
            tracing::warn!("cannot make the link {}: {error}", self.name.path().display());
        }
        disk::announce(&self.device());
        Ok(Vec::new())
    }

    fn stop(&self) {
        if let Err(why) = self.remove() {
            if self.is_lost() {
                self.name.unlink_own(&self.device());
                tracing::info!("{} was disconnected", self.device().display());
            } else {
                tracing::info!(
                    "{} stays ({why}): its requests wait for the next start",
                    self.device().display()
                );
            }
        }
        self.phases.enter(Phase::Leaving);
        self.shutdown.stop();
    }

    fn clients(&self) -> usize {
        self.shutdown.connections()
    }

    fn cut(&self) {
        self.shutdown.cut();
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
        // First, because the kernel may read the new part at once.
        self.export.grow(bytes);
        let (device, name) = (self.device(), self.name.path());
        let resize = || {
            if !self.is_ours() {
                return Err("it is no longer the device of this server".to_owned());
            }
            let resized = self
                .driver()
                .resize(self.number(), &self.stamp.to_string(), bytes);
            resized.map_err(|error| error.to_string())
        };
        vec![size_of_device(&name, &device, bytes, resize)]
    }

    fn counts(&self) -> Vec<Snapshot> {
        vec![self.counters.snapshot()]
    }

    fn devices(&self) -> Vec<BlockDeviceReport> {
        vec![BlockDeviceReport {
            name: self.name.path(),
            device: self.device(),
            queues: 1,
            depth: DEPTH,
        }]
    }

    fn request_bytes(&self) -> usize {
        BYTES_IN_FLIGHT_MAX
    }
}

fn in_use(number: u32) -> HostError {
    format!(
        "{DRIVER}: {} is in use: expected a device without a server (`nbd-client -c {}` names its process); give \
         --nbd-device without a device to use any other",
        device::path(number).display(),
        device::path(number).display()
    )
    .into()
}

fn warn_of_other_device(spec: &BlockDeviceSpec, wanted: Option<u32>, found: u32) {
    if let Some(wanted) = wanted
        && wanted != found
    {
        tracing::warn!(
            "{} remains {}: it was left by an earlier server, although --nbd-device names {}",
            spec.path().display(),
            device::path(found).display(),
            device::path(wanted).display()
        );
    }
}

/// Two ends of a connection: the server's, and the kernel's.
fn sockets() -> Result<(OwnedFd, OwnedFd), HostError> {
    socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| format!("{DRIVER}: cannot make a socket: {error}").into())
}

/// Whether the other end is closed.
fn is_hung_up(socket: &OwnedFd) -> Result<bool, HostError> {
    let mut polled = [PollFd::new(socket, PollFlags::IN)];
    loop {
        match poll(&mut polled, Some(&Timespec::default())) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(format!("{DRIVER}: cannot poll a socket: {error}").into()),
            Ok(_) => return Ok(polled[0].revents().contains(PollFlags::HUP)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_socket_is_noticed_even_with_data() {
        let (ours, theirs) = sockets().unwrap();
        assert!(!is_hung_up(&ours).unwrap());
        rustix::io::write(&theirs, b"request").unwrap();
        assert!(!is_hung_up(&ours).unwrap());
        drop(theirs);
        assert!(is_hung_up(&ours).unwrap());
    }
}
