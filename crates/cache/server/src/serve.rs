//! The life cycle of a server, from its options to its end.
//!
//! ```text
//! control socket -> cache opens -> READY=1 -> wait -> STOPPING=1 -> cache closes -> control socket is removed
//! ```
//!
//! Metrics are offered from before the control socket exists until the server ends.
//!
//! Invariants: the control socket exists from before the first client can connect until the last one has left. A stop
//! request is answered only after the shutdown has ended, with its result, and when the control socket is removed.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use flaz_control::file::ServedFile;
use flaz_control::settings::{SettingsPatch, text_after};
use flaz_control::size::{HumanBytes, HumanDuration};
use flaz_control::{Asker, ControlError, ControlHandler, Reply, Request, Server, chain};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::daemon::{Daemon, HOUSEKEEP_EVERY, Lasting, Resize, start};
use crate::error::HostError;
use crate::life::{Life, Reason, STILL_STARTING};
use crate::metrics::{Exporter, Identity, Scrape, page};
use crate::offline::identify;
use crate::pool::Place;
use crate::process::{lock_memory, prepare, return_free_memory};
use crate::spec::ServeSpec;
use crate::systemd::notify;

/// Exit status after the second signal.
const EXIT_FAILURE: i32 = 1;

/// Why a server ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The cache cannot be served, or failed while it was being served.
    #[error("serve")]
    Serve(#[source] HostError),
    /// The cache could not be closed cleanly.
    #[error("stopping")]
    Stop(#[source] HostError),
    /// The control socket cannot be created.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A system call failed.
    #[error("{what}")]
    System {
        /// The failed action.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl ServeError {
    fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// Handles signals. The first SIGTERM or SIGINT requests a clean stop, also during the start; the second ends the
/// process. SIGHUP has no effect.
#[derive(Debug, Default)]
pub struct Watch(Arc<Life>);

impl Watch {
    /// Prepares the process for serving, and handles signals from now on. `is_local`: clients on this machine will use a block
    /// device.
    ///
    /// # Errors
    /// The system refuses.
    pub fn start(is_local: bool) -> Result<Self, ServeError> {
        prepare(is_local);
        let watch = Self::default();
        watch_signals(&watch.0)?;
        Ok(watch)
    }
}

/// Serves a cache until a stop is requested, with its control socket at `control`. `ready` is called when clients can
/// connect.
///
/// # Errors
/// The server could not start, failed while running, or could not stop cleanly.
pub fn serve(spec: &ServeSpec, control: &Path, watch: Watch, ready: impl FnOnce()) -> Result<(), ServeError> {
    let life = watch.0;
    warn_of_emulation(spec);
    let place = Place::of(&spec.cache);
    // Created before the cache is opened: a client that finds the NBD socket also finds the control socket, and a
    // second daemon for this cache fails here, with a message that says where the first one listens.
    let handler = Arc::new(Handler {
        cache: ServedFile::of(&place.device, place.volume.as_deref())
            .map_err(|error| format!("cannot inspect it: {error}")),
        daemon: OnceLock::new(),
        life: Arc::clone(&life),
    });
    let _exporter = offer_metrics(spec, &handler)?;
    let mut server = Server::start(control, Arc::clone(&handler) as Arc<dyn ControlHandler>)?;
    let begun = Instant::now();
    notify(&[NotifyState::Status(
        "starting: opening devices and loading the index",
    )]);
    let failed = {
        let life = Arc::clone(&life);
        Arc::new(move |error: HostError| life.ask_to_stop(Reason::Failed(error)))
    };
    // Clients on this machine may wait for this process to free memory.
    if spec.device.is_some() {
        lock_memory();
    } else {
        return_free_memory();
    }
    let daemon = match start(spec, failed) {
        Ok(daemon) => handler.daemon.get_or_init(|| daemon),
        Err(error) => {
            server.remove_socket();
            life.end(Err(format!("cannot start the cache: {}", chain(error.as_ref()))));
            server.close();
            return Err(ServeError::Serve(error));
        }
    };
    life.begin();
    announce(spec, daemon, control, begun.elapsed());
    ready();

    keep_balance(&handler)?;
    let reason = loop {
        match life.wait_for_reason(HOUSEKEEP_EVERY) {
            Some(reason) => break reason,
            None => daemon.housekeep(HOUSEKEEP_EVERY),
        }
    };
    tracing::info!("stopping: {}", reason.text());
    notify(&[
        NotifyState::Stopping,
        NotifyState::Status("stopping: completing requests"),
    ]);
    let begun = Instant::now();
    let stopped = daemon.shutdown();
    server.remove_socket();
    life.end(match &stopped {
        Ok(dirty_blocks) => Ok(*dirty_blocks),
        Err(error) => Err(format!(
            "the cache was not closed cleanly: {}",
            chain(error.as_ref())
        )),
    });
    server.close();
    stopped.map_err(ServeError::Stop)?;
    tracing::info!("stopped cleanly in {}", HumanDuration(begun.elapsed()));
    notify(&[NotifyState::Status("stopped cleanly")]);
    match reason {
        Reason::Failed(error) => Err(ServeError::Serve(error)),
        Reason::Signal(_) | Reason::Asked | Reason::Detached => Ok(()),
    }
}

/// Keeps the balance between the volumes of a shared cache device, on a thread that ends by itself.
fn keep_balance(handler: &Arc<Handler>) -> Result<(), ServeError> {
    if !handler.daemon.get().is_some_and(Daemon::has_share) {
        return Ok(());
    }
    let handler = Arc::clone(handler);
    let keep = move || {
        while !handler.life.stops_within(HOUSEKEEP_EVERY) {
            if let Some(daemon) = handler.daemon.get() {
                daemon.keep_balance(HOUSEKEEP_EVERY);
            }
        }
    };
    std::thread::Builder::new()
        .name("flaz-balance".to_owned())
        .spawn(keep)
        .map_err(ServeError::system(
            "starting the thread for the balance of volumes",
        ))?;
    Ok(())
}

/// Offers metrics, if they are wanted, also while the cache is opened and closed: it is not up then.
fn offer_metrics(spec: &ServeSpec, handler: &Arc<Handler>) -> Result<Option<Exporter>, ServeError> {
    let Some(address) = &spec.metrics else {
        return Ok(None);
    };
    let file_name = spec.cache.file_name().unwrap_or(spec.cache.as_os_str());
    let named = spec.name.clone();
    let identity = Identity {
        uuid: identify(&spec.cache).map_err(ServeError::Serve)?,
        name: named.unwrap_or_else(|| file_name.to_string_lossy().into_owned()),
    };
    let handler = Arc::clone(handler);
    let scrape: Scrape = Arc::new(move || {
        let report = handler.daemon.get().and_then(|daemon| {
            let report = daemon.status();
            report
                .inspect_err(|error| tracing::warn!("metrics: {}", chain(error.as_ref())))
                .ok()
        });
        page(&identity, report.as_ref())
    });
    let exporter = Exporter::start(address, scrape).map_err(|error| ServeError::Serve(error.into()))?;
    tracing::info!("metrics on {address}");
    Ok(Some(exporter))
}

/// Reports to the log and to systemd that clients can connect.
fn announce(spec: &ServeSpec, daemon: &Daemon, control: &Path, took: Duration) {
    let front_ends = daemon.front_ends().join(", ");
    // Users read it on standard output.
    tracing::debug!(
        "ready in {}: {front_ends}, control on {}",
        HumanDuration(took),
        control.display()
    );
    let status = format!("serving {}: {front_ends}", spec.cache.display());
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

fn warn_of_emulation(spec: &ServeSpec) {
    for (device, emulation, option) in [
        ("origin", spec.emulate_origin, "--emulate-origin"),
        ("cache device", spec.emulate_cache, "--emulate-cache"),
    ] {
        if let Some(emulation) = emulation {
            tracing::warn!(
                "EMULATION: the {device} is SLOWED DOWN to emulate '{emulation}', for demonstrations and \
                 tests only; omit {option} for production"
            );
        }
    }
}

/// The first SIGTERM or SIGINT requests a clean stop; the second ends the process at once. SIGHUP is logged: its default would
/// end the process as a kill does, when a terminal is closed, or by a habit to reload settings.
fn watch_signals(life: &Arc<Life>) -> Result<(), ServeError> {
    let mut signals =
        Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(ServeError::system("handling signals"))?;
    let life = Arc::clone(life);
    let watch = move || {
        let mut stopping = false;
        for signal in signals.forever() {
            if signal == SIGHUP {
                tracing::info!(
                    "SIGHUP has no effect: change settings with `flaz set`, stop with `flaz stop`"
                );
                continue;
            }
            if stopping {
                tracing::error!("second signal: exiting at once; the cache was not closed cleanly");
                std::process::exit(EXIT_FAILURE);
            }
            stopping = true;
            life.ask_to_stop(Reason::Signal(signal));
        }
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(watch)
        .map_err(ServeError::system("starting the signal thread"))?;
    Ok(())
}

/// Answers control requests by calling the daemon.
struct Handler {
    cache: Result<ServedFile, String>,
    daemon: OnceLock<Daemon>,
    life: Arc<Life>,
}

impl Handler {
    fn running(&self) -> Result<&Daemon, String> {
        self.life.wait_for_begin()?;
        self.daemon.get().ok_or_else(|| STILL_STARTING.to_owned())
    }

    /// Who speaks against a stop, unless it is forced.
    fn users(&self, force: bool) -> Vec<String> {
        // Before the start is complete there are no users, and a second request waits for the end of the first.
        let daemon = self.daemon.get().filter(|_| !force && !self.life.is_stopping());
        daemon.map(Daemon::users).unwrap_or_default()
    }

    fn set(&self, patch: &SettingsPatch, lasting: Lasting) -> Result<Reply, String> {
        let settings = self
            .running()?
            .set(patch, lasting)
            .map_err(|error| chain(error.as_ref()))?;
        let until = match lasting {
            Lasting::UntilRestart => "until the next start",
            Lasting::Stored => "stored in the cache",
        };
        tracing::info!("new settings, {until}: {}", text_after(&settings, patch));
        Ok(Reply::Settings(settings))
    }

    fn answer(&self, request: Request, client: Asker<'_>) -> Result<Reply, String> {
        match request {
            Request::Status {} => {
                let report = self.running()?.status().map_err(|error| chain(error.as_ref()))?;
                Ok(Reply::Status(Box::new(report)))
            }
            Request::Identify {} => self.cache.clone().map(Reply::File),
            Request::Advise {} => {
                let report = self.running()?.advise().map_err(|error| chain(error.as_ref()))?;
                Ok(Reply::Advice(Box::new(report)))
            }
            Request::Set(patch) => self.set(&patch, Lasting::Stored),
            Request::SetUntilRestart(patch) => self.set(&patch, Lasting::UntilRestart),
            Request::Flush {} => {
                let dirty_blocks = self
                    .running()?
                    .clean(&|| client.has_left())
                    .map_err(|error| chain(error.as_ref()))?;
                Ok(Reply::Left { dirty_blocks })
            }
            Request::Resize { size } => resized(self.running()?.resize(size)),
            Request::ContinueResize {} => resized(self.running()?.continue_resize()),
            Request::VolumeResize {} => {
                let resized = self.running()?.resize_volume();
                let report = resized.map_err(|error| chain(error.as_ref()))?;
                tracing::info!(
                    "the volume has {} bytes; it had {} before",
                    report.bytes,
                    report.bytes_before
                );
                Ok(Reply::VolumeResized(report))
            }
            Request::GiveSpace { bytes, need } => {
                let gives = self.running()?.give_space(bytes, need);
                let bytes = gives.map_err(|error| chain(error.as_ref()))?;
                Ok(Reply::Gives { bytes })
            }
            Request::MakeRoom { keep_bytes } => {
                let progress = self.running()?.make_room(keep_bytes);
                Ok(Reply::Shrinking(progress.map_err(|error| chain(error.as_ref()))?))
            }
            Request::Detach { force } => {
                let daemon = self.running()?;
                let users = self.users(force);
                if !users.is_empty() {
                    return Ok(Reply::InUse { users });
                }
                daemon
                    .detach(&|| client.has_left())
                    .map_err(|error| chain(error.as_ref()))?;
                self.life.ask_to_stop(Reason::Detached);
                self.life.wait_for_end().map(|_| Reply::Done)
            }
            Request::Stop { wait, force } => {
                let users = self.users(force);
                if !users.is_empty() {
                    return Ok(Reply::InUse { users });
                }
                self.life.ask_to_stop(Reason::Asked);
                if !wait {
                    return Ok(Reply::Done);
                }
                let dirty_blocks = self.life.wait_for_end()?;
                Ok(Reply::Left { dirty_blocks })
            }
        }
    }
}

fn resized(outcome: Result<Resize, HostError>) -> Result<Reply, String> {
    Ok(match outcome.map_err(|error| chain(error.as_ref()))? {
        Resize::Done(report) => {
            tracing::info!(
                "the cache uses {} of its device, before {}",
                HumanBytes(report.size_bytes),
                HumanBytes(report.size_before_bytes)
            );
            Reply::Resized(report)
        }
        Resize::Shrinking(progress) => Reply::Shrinking(progress),
    })
}

impl ControlHandler for Handler {
    fn handle(&self, request: Request, client: Asker<'_>) -> Reply {
        self.answer(request, client).unwrap_or_else(Reply::Refused)
    }
}
