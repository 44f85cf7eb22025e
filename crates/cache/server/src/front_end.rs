//! The interface of front ends, through which clients reach the volume.
//!
//! A front end is created before the cache is opened, so that a failure (a socket in use) leaves a clean cache clean. When the
//! volume can be served, it is prepared and then started, and receives the threads of the server. For each client, or each queue of
//! a device, it passes a [`Session`] to one of the threads, which runs it with that thread's volume. There are three: NBD sockets,
//! and block devices by ublk and by the kernel's NBD client.

use std::thread::JoinHandle;

use flaz_control::report::{BlockDeviceReport, FrontEndSizeReport, NbdReport};
use flaz_engine::cache::shard_set::Reached;
use flaz_nbd::Snapshot;
use flaz_runtime::mailbox::Sender;

use crate::error::HostError;
use crate::order::{Order, post};
use crate::safety::hold_unused;

pub use crate::error::Failed;
pub use crate::order::{Session, ThreadVolume};

/// The threads of a server, which run the sessions of front ends.
#[derive(Clone)]
pub struct SessionThreads {
    mailboxes: Vec<Sender<Order>>,
}

impl SessionThreads {
    pub(crate) fn new(mailboxes: Vec<Sender<Order>>) -> Self {
        Self { mailboxes }
    }

    /// Number of threads.
    #[must_use]
    pub fn count(&self) -> usize {
        self.mailboxes.len()
    }

    /// Runs `session` on the thread with this number. Waits while the thread's mailbox is full.
    ///
    /// # Errors
    /// The thread has ended, or its mailbox stays full for seconds.
    ///
    /// # Panics
    /// If there is no such thread.
    pub fn run(&self, thread: usize, session: Session) -> Reached<()> {
        post(&self.mailboxes[thread], Order::Session(session))
    }
}

/// A way for clients to reach the volume.
pub trait FrontEnd: Send + Sync {
    /// Its name for the log, for example `NBD on unix:/run/flaz/nbd.sock`.
    fn name(&self) -> String;

    /// Gets memory and threads ready, as far as clients do not see it. Called once, when the volume can be served, and before
    /// the reserve of memory is made.
    ///
    /// # Errors
    /// A thread does not accept its part.
    fn prepare(&self, _threads: &SessionThreads, _failed: &Failed) -> Result<(), HostError> {
        Ok(())
    }

    /// Begins to serve clients. Called once, when the volume can be served. The returned threads end after
    /// [`FrontEnd::stop`] and are joined when the server has closed the cache.
    ///
    /// # Errors
    /// A thread cannot be started.
    fn start(&self, threads: SessionThreads, failed: Failed) -> Result<Vec<JoinHandle<()>>, HostError>;

    /// Accepts no more clients and no more requests; requests in flight are completed.
    fn stop(&self);

    /// Number of clients that are still connected.
    fn clients(&self) -> usize;

    /// Disconnects the remaining clients. Called some time after [`FrontEnd::stop`].
    fn cut(&self);

    /// The counts of the sessions on each thread.
    fn counts(&self) -> Vec<Snapshot> {
        Vec::new()
    }

    /// The addresses of this front end, for `flaz status`.
    fn report(&self) -> Vec<NbdReport> {
        Vec::new()
    }

    /// What uses the block devices of this front end and could not go on without the cache, for a message.
    fn in_use(&self) -> Option<String> {
        self.devices()
            .iter()
            .find_map(|BlockDeviceReport { device, .. }| {
                let user = hold_unused(device).err()?;
                Some(format!("{} is in use ({user})", device.display()))
            })
    }

    /// What a stop would disconnect, or leave waiting for the next start, for a message.
    fn users(&self) -> Vec<String> {
        self.in_use().into_iter().collect()
    }

    /// The cache has been detached: nothing is kept for a next start.
    fn detached(&self) {}

    /// Memory that the requests of clients on this machine take at most, in bytes.
    fn request_bytes(&self) -> usize {
        0
    }

    /// Why clients cannot use a volume of `bytes` bytes, for a message. Nothing has changed yet.
    fn refuses(&self, _bytes: u64) -> Option<String> {
        None
    }

    /// The volume has grown to `bytes` bytes: tells the clients, as far as they can be told. Called again if they are to be
    /// told again.
    fn grow(&self, bytes: u64) -> Vec<FrontEndSizeReport>;

    /// The block devices of this front end, for `flaz status`.
    fn devices(&self) -> Vec<BlockDeviceReport> {
        Vec::new()
    }
}
