//! Where front ends plug in: the ways in which clients reach the volume.
//!
//! A front end is made before the cache is opened, so that what it cannot have (a socket in use) leaves a clean cache
//! clean. It is started once the volume can be served, and gets the threads of the server. For each client, or each queue
//! of a device, it gives one of the threads a [`Session`], which runs there with that thread's volume. NBD is the only
//! front end so far.

use std::sync::Arc;
use std::thread::JoinHandle;

use flaz_control::report::NbdReport;
use flaz_engine::cache::shard_set::Reached;
use flaz_nbd::Snapshot;
use flaz_runtime::mailbox::Sender;

use crate::error::HostError;
use crate::order::{Order, post};

pub use crate::order::{Session, ThreadVolume};

/// What is told of a failure that ends the server.
pub type Failed = Arc<dyn Fn(HostError) + Send + Sync>;

/// The threads of a server, to which a front end gives its sessions.
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

    /// Runs `session` on the thread with this number. Waits while the thread takes no orders.
    ///
    /// # Errors
    /// The thread has ended, or takes no orders for seconds.
    ///
    /// # Panics
    /// If there is no such thread.
    pub fn run(&self, thread: usize, session: Session) -> Reached<()> {
        post(&self.mailboxes[thread], Order::Session(session))
    }
}

/// A way in which clients reach the volume.
pub trait FrontEnd: Send + Sync {
    /// What this is, for the log: `NBD on unix:/run/flaz/nbd.sock`.
    fn name(&self) -> String;

    /// Begins to serve clients. Called once, when the volume can be served. The threads returned end after
    /// [`FrontEnd::stop`], and are joined when the server has closed the cache.
    ///
    /// # Errors
    /// A thread cannot be started.
    fn start(&self, threads: SessionThreads, failed: Failed) -> Result<Vec<JoinHandle<()>>, HostError>;

    /// Takes no more clients and no more requests; requests in flight are finished.
    fn stop(&self);

    /// Clients that have not left yet.
    fn clients(&self) -> usize;

    /// Ends the clients that are left, after [`FrontEnd::stop`] and a while.
    fn cut(&self);

    /// What the sessions on each thread counted.
    fn counts(&self) -> Vec<Snapshot>;

    /// The addresses of this front end, for `flaz status`.
    fn report(&self) -> Vec<NbdReport>;
}
