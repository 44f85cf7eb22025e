//! Shared by several test files: servers with a RAM disk, and a client that sends raw bytes.
#![allow(
    dead_code,
    unused_imports,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

pub mod client;
pub mod ram_volume;
pub mod tools;

use std::future::Future;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use flaz_device::Env;
use flaz_nbd::{Counters, Export, Incoming, Limits, NbdAddress, Server, Service, Shutdown, serve_connection};
use flaz_runtime::{Config, Rt, Runtime};
use futures_util::future::{Either, select};

use client::Client;
use ram_volume::RamVolume;

pub const MIB: u64 = 1 << 20;

/// A server on the test's runtime, so that the test can change its volume.
pub struct Local {
    pub dir: tempfile::TempDir,
    pub volume: RamVolume,
    pub counters: Arc<Counters>,
    pub shutdown: Shutdown,
    service: Service,
}

impl Local {
    /// Starts a server of a RAM disk. Call it inside [`run`].
    pub fn start(export: Export, limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = NbdAddress::Unix(dir.path().join("s"));
        Self::start_at(address, dir, export, limits)
    }

    pub fn start_at(address: NbdAddress, dir: tempfile::TempDir, export: Export, limits: Limits) -> Self {
        let volume = RamVolume::new(export.size());
        let counters = Arc::new(Counters::default());
        let shutdown = Shutdown::new();
        let server = Server::bind(&address, limits, shutdown.clone()).unwrap();
        let service = Service {
            export: Arc::new(export),
            limits,
            counters: Arc::clone(&counters),
        };
        let (served, of_clients) = (volume.clone(), service.clone());
        Rt.spawn(async move {
            server
                .run(&Rt, |incoming| {
                    Rt.spawn(serve_connection(incoming, served.clone(), Rt, of_clients.clone()));
                })
                .await
                .unwrap();
        });
        Self {
            dir,
            volume,
            counters,
            shutdown,
            service,
        }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// A client that stands for the kernel's.
    pub fn kernel(&self) -> Client {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let incoming = Incoming::of_kernel(ours.into(), &self.shutdown).unwrap().unwrap();
        Rt.spawn(serve_connection(
            incoming,
            self.volume.clone(),
            Rt,
            self.service.clone(),
        ));
        Client::over(theirs.into())
    }

    /// A client that has only connected.
    pub fn connect(&self) -> Client {
        Client::connect(&self.path())
    }

    /// A client in the transmission phase, with or without structured replies and block status.
    pub async fn client(&self, structured: bool) -> Client {
        let mut client = self.connect();
        client.negotiate(structured).await;
        client
    }
}

/// Runs a test on its own runtime; a test that hangs fails.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = Runtime::new(Config::default()).expect("io_uring");
    runtime.block_on(within(Duration::from_secs(60), test));
}

/// The future's output, if it ends in time.
pub async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> T {
    match select(std::pin::pin!(future), std::pin::pin!(Rt.sleep(limit))).await {
        Either::Left((output, _)) => output,
        Either::Right(_) => panic!("not over after {limit:?}"),
    }
}

/// Waits until a condition is true.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if condition() {
            return;
        }
        Rt.sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: not so after 10 s");
}

/// A server on its own thread, for clients that are separate programs.
pub struct Remote {
    pub dir: tempfile::TempDir,
    pub shutdown: Shutdown,
    pub counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl Remote {
    pub fn start(export: Export) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (shutdown, counters) = (Shutdown::new(), Arc::new(Counters::default()));
        let address = NbdAddress::Unix(dir.path().join("s"));
        let server = Server::bind(&address, Limits::default(), shutdown.clone()).unwrap();
        let counted = Arc::clone(&counters);
        let (ended, _) = mpsc::channel::<()>();
        let stop = shutdown.clone();
        let thread = std::thread::spawn(move || {
            let _ended = ended;
            let runtime = Runtime::new(Config::default()).expect("io_uring");
            runtime.block_on(async move {
                let volume = RamVolume::new(export.size());
                let limits = Limits::default();
                let service = Service {
                    export: Arc::new(export),
                    limits,
                    counters: counted,
                };
                server
                    .run(&Rt, |incoming| {
                        Rt.spawn(serve_connection(incoming, volume.clone(), Rt, service.clone()));
                    })
                    .await
                    .unwrap();
                until("all connections end", || stop.connections() == 0).await;
            });
        });
        Self {
            dir,
            shutdown,
            counters,
            thread: Some(thread),
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub fn uri(&self) -> String {
        NbdAddress::Unix(self.socket()).uri("")
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.shutdown.stop();
        let outcome = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            outcome.unwrap().expect("the server does not panic");
            assert!(!self.dir.path().join("s").exists(), "the socket is removed");
        }
    }
}
