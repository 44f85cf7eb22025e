//! Cells in real time: the same engine on the same modelled devices, served over NBD, and a client that replays the load.
//!
//! | module | contents |
//! |---|---|
//! | `client` | sends the requests of a load as they were recorded, over a socket |
//! | [`here`] | the times of this machine's cores, for the same cells in virtual time |
//! | `usual` | the runtime, without the high effort that virtual time does not have |
//!
//! Server and client are two threads of this process, connected by a pair of Unix sockets. A machine that does something else meanwhile
//! makes a cell slower, which virtual time does not show.

mod client;
pub mod here;
mod usual;

use std::io;
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use flaz_device::Env;
use flaz_engine::cache::LocalCache;
use flaz_engine::router::CachedVolume;
use flaz_engine::volume::Volume;
use flaz_nbd::{Counters, Export, Incoming, Limits, Service, Shutdown, serve_connection};
use flaz_runtime::{Config, Rt, Runtime, oneshot};

use crate::assembly::{self, OnMachine};
use crate::cell::{CellError, Measured, PAUSE, Setup};
use crate::contents::Contents;
use crate::workload::Workload;
use client::{Pass, Replayer};
use usual::Usual;

/// How long the server takes at most to notice that its client has left, and how often this is checked.
const LEAVE_MAX: Duration = Duration::from_secs(5);
const LEAVE_POLL: Duration = Duration::from_millis(1);
/// A sleep of a modelled device may end this late: the least that the system offers.
const TIMER_SLACK: NonZeroU64 = NonZeroU64::MIN;

/// Replays a load in real time. The processor is that of this machine.
///
/// # Errors
/// The cache is too small, or the system has no memory, thread or socket left.
pub fn run(workload: &Workload, setup: &Setup, contents: &Arc<Contents>) -> Result<Measured, CellError> {
    passes(workload, setup, contents, 1)
}

/// Warms the cache, and replays a load `measured` times after that; the result is the fastest of those.
fn passes(
    workload: &Workload,
    setup: &Setup,
    contents: &Arc<Contents>,
    measured: u32,
) -> Result<Measured, CellError> {
    let serve = || -> Result<Measured, String> {
        let runtime = Runtime::new(Config::default()).map_err(|it| format!("starting the runtime: {it}"))?;
        // Without it, every operation of a modelled device takes up to 50 us more.
        rustix::thread::set_current_timer_slack(Some(TIMER_SLACK)).map_err(|it| it.to_string())?;
        runtime.block_on(async {
            let origin = assembly::origin(&Usual, workload, setup, contents);
            let cache = assembly::open(&Usual, setup, &origin).await?;
            let shards = cache.shards();
            let volume = CachedVolume::new(shards, Rc::new(origin), workload.origin_bytes(), 0);
            let shutdown = Shutdown::new();
            let socket = connect(volume, &shutdown).map_err(|it| format!("connecting the client: {it}"))?;
            let passes = (setup.warming, measured);
            let result = replay(&cache, socket, workload, contents, passes).await;
            leave(&shutdown).await;
            cache.stop().await.map_err(|it| it.to_string())?;
            result
        })
    };
    // A thread of its own, because a thread has one runtime at most, and its timers are set.
    let served = thread::scope(|scope| scope.spawn(serve).join());
    let result = served.unwrap_or_else(|_| Err("the server panicked".to_owned()));
    result.map_err(|reason| CellError {
        cache_bytes: setup.cache_bytes.unwrap_or(0),
        reason,
    })
}

/// Serves a volume to the other end of the returned socket.
fn connect(volume: impl Volume, shutdown: &Shutdown) -> io::Result<UnixStream> {
    let (server, client) = UnixStream::pair()?;
    let service = Service {
        export: Arc::new(Export::new(volume.size())),
        limits: Limits::default(),
        counters: Arc::new(Counters::default()),
    };
    if let Some(incoming) = Incoming::of_pair(server.into(), shutdown)? {
        Rt.spawn(serve_connection(incoming, volume, Rt, service));
    }
    Ok(client)
}

/// The passes of the client, and what the engine counts meanwhile.
async fn replay(
    cache: &LocalCache<OnMachine<Usual>>,
    socket: UnixStream,
    workload: &Workload,
    contents: &Arc<Contents>,
    (warming, measured): (u32, u32),
) -> Result<Measured, String> {
    let (load, contents) = (workload.clone(), Arc::clone(contents));
    let connected = move || Replayer::connect(socket, load, contents);
    let mut replayer = on_a_thread(connected).await?.map_err(|it| it.to_string())?;
    let mut best: Option<Measured> = None;
    for number in 1..=warming + measured {
        let before = cache.stats();
        let pass;
        (replayer, pass) = on_a_thread(move || replayer.pass()).await?;
        let Pass {
            elapsed,
            read_latency,
            reads,
        } = pass.map_err(|it| it.to_string())?;
        if number == warming {
            Rt.sleep(PAUSE).await;
        } else if number > warming && best.as_ref().is_none_or(|best| elapsed < best.elapsed) {
            best = Some(Measured {
                elapsed,
                read_latency,
                reads,
                ..Measured::counted(&before, &cache.stats())
            });
        }
    }
    // It disconnects on this thread, which does not wait for the server.
    drop(replayer);
    best.ok_or_else(|| "nothing was measured".to_owned())
}

/// Runs `job` on a thread, beside the server.
async fn on_a_thread<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    let (sender, receiver) = oneshot();
    let body = move || {
        // The receiver waits for it.
        let _ = sender.send(job());
    };
    let started = thread::Builder::new().name("flaz-client".to_owned()).spawn(body);
    started.map_err(|error| format!("starting the client: {error}"))?;
    receiver
        .recv()
        .await
        .map_err(|_| "the client panicked".to_owned())
}

/// Waits until the connection has ended.
async fn leave(shutdown: &Shutdown) {
    let give_up = Rt.now().after(LEAVE_MAX);
    while shutdown.connections() > 0 && Rt.now() < give_up {
        Rt.sleep(LEAVE_POLL).await;
    }
    shutdown.cut();
}
