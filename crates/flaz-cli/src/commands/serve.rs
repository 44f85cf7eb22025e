//! `flaz serve`: the life of a daemon, from its options to its last word.
//!
//! ```text
//! identify -> host starts -> control socket -> READY=1 -> wait -> STOPPING=1 -> host shuts down -> control closes
//! ```
//!
//! Invariant: whoever asked for the stop is answered only after the shutdown has ended, with its result.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::output;
use super::spec::ServeSpec;
use crate::args::{NBD_ADDRESSES_MAX, ServeArgs};
use crate::control::place::{self, Places};
use crate::control::{ControlHandler, Reply, Request, Server};
use crate::error::{EXIT_FAILURE, Failure, chain};
use crate::host::{self, Daemon, HostError};
use crate::settings::NbdAddress;
use crate::size::HumanDuration;

/// Runs `flaz serve`.
///
/// # Errors
/// The daemon could not start, failed on its way, or could not stop cleanly.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    check_addresses(args)?;
    let life = Arc::new(Life::default());
    // Before anything is opened: a signal during the start is a stop, not a crash.
    watch_signals(&life)?;
    let uuid = host::identify(&args.cache).map_err(Failure::host("serve", &args.cache))?;
    let directory = Places::of_process().daemon_directory();
    if args.control.is_none() || args.nbd.is_empty() {
        place::prepare_directory(&directory)?;
    }
    let control = args
        .control
        .clone()
        .unwrap_or_else(|| place::control_socket(&directory, &uuid));
    let spec = spec(args, place::nbd_socket(&directory, &uuid));
    warn_of_emulation(&spec);

    let begun = Instant::now();
    notify(&[sd_notify::NotifyState::Status(
        "starting: opening devices and restoring the index",
    )]);
    let failed = {
        let life = Arc::clone(&life);
        Arc::new(move |error: HostError| life.ask_to_stop(Reason::Failed(error)))
    };
    let daemon = Arc::new(host::start(&spec, failed).map_err(Failure::host("serve", &args.cache))?);
    let handler = Arc::new(Handler {
        daemon: Arc::clone(&daemon),
        life: Arc::clone(&life),
    });
    let server = match Server::start(&control, handler) {
        Ok(server) => server,
        Err(error) => {
            // Nobody could stop it otherwise, and a clean cache must stay clean.
            if let Err(second) = daemon.shutdown() {
                tracing::error!("closing the cache: {}", chain(second.as_ref()));
            }
            return Err(error.into());
        }
    };
    announce(&spec, &control, begun)?;

    let reason = life.wait_for_reason();
    tracing::info!("stopping: {}", reason.text());
    notify(&[
        sd_notify::NotifyState::Stopping,
        sd_notify::NotifyState::Status("stopping: finishing requests"),
    ]);
    let begun = Instant::now();
    let stopped = daemon.shutdown();
    life.finish(stopped.as_ref().err().map(|error| chain(error.as_ref())));
    server.close();
    stopped.map_err(Failure::host("stopping", &args.cache))?;
    tracing::info!("stopped cleanly in {}", HumanDuration(begun.elapsed()));
    match reason {
        Reason::Failed(error) => Err(Failure::host("serve", &args.cache)(error)),
        Reason::Signal(_) | Reason::Asked => Ok(()),
    }
}

fn check_addresses(args: &ServeArgs) -> Result<(), Failure> {
    if args.nbd.len() > NBD_ADDRESSES_MAX {
        return Err(Failure::Usage(format!(
            "serve: --nbd is given {} times: at most {NBD_ADDRESSES_MAX} addresses are served",
            args.nbd.len()
        )));
    }
    for (at, address) in args.nbd.iter().enumerate() {
        if args.nbd[..at].contains(address) {
            return Err(Failure::Usage(format!(
                "serve: --nbd {address} is given twice: give it once"
            )));
        }
        if matches!(address, NbdAddress::Tcp { .. }) && !args.insecure_tcp {
            return Err(Failure::Usage(format!(
                "serve: --nbd {address}: TCP without TLS lets everybody who reaches the port read and write all \
                 data: use unix:PATH, or add --insecure-tcp if the network is yours alone"
            )));
        }
    }
    Ok(())
}

fn spec(args: &ServeArgs, nbd_default: PathBuf) -> ServeSpec {
    let nbd = if args.nbd.is_empty() {
        vec![NbdAddress::Unix(nbd_default)]
    } else {
        args.nbd.clone()
    };
    ServeSpec {
        cache: args.cache.clone(),
        origin: args.origin.clone(),
        nbd,
        mode: args.mode,
        policy: args.policy,
        sequential_cutoff_bytes: args.sequential_cutoff,
        codec: args.codec,
        threads: args.threads,
        discard_cache: args.discard_cache,
        read_only: args.read_only,
        emulate_origin: args.emulate_origin,
        emulate_cache: args.emulate_cache,
    }
}

fn warn_of_emulation(spec: &ServeSpec) {
    for (device, emulation, option) in [
        ("origin", spec.emulate_origin, "--emulate-origin"),
        ("cache device", spec.emulate_cache, "--emulate-cache"),
    ] {
        if let Some(emulation) = emulation {
            tracing::warn!(
                "EMULATION: the {device} is SLOWED DOWN to an emulated '{emulation}': for demonstrations and tests \
                 only; leave {option} out for real use"
            );
        }
    }
}

/// Says that clients can come, to people and to systemd.
fn announce(spec: &ServeSpec, control: &std::path::Path, begun: Instant) -> Result<(), Failure> {
    let addresses = spec
        .nbd
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(" ");
    tracing::info!(
        "ready in {}: NBD on {addresses}, control on {}",
        HumanDuration(begun.elapsed()),
        control.display()
    );
    let status = format!("serving {} on {addresses}", spec.cache.display());
    notify(&[
        sd_notify::NotifyState::Ready,
        sd_notify::NotifyState::Status(&status),
    ]);
    match output::print(&format!("ready: {addresses}\n")) {
        // A script that read the line may have closed the pipe; the daemon serves on.
        Ok(()) | Err(Failure::ReaderGone) => Ok(()),
        Err(failure) => {
            tracing::warn!("{}", chain(&failure));
            Ok(())
        }
    }
}

/// Tells systemd, if it started us.
fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("systemd cannot be told: {error}");
    }
}

/// The first SIGTERM or SIGINT asks for a clean stop; the second ends the process at once.
fn watch_signals(life: &Arc<Life>) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(Failure::system("watching for signals"))?;
    let life = Arc::clone(life);
    let watch = move || {
        for (count, signal) in signals.forever().enumerate() {
            if count > 0 {
                tracing::error!("second signal: ending at once; the cache was not closed cleanly");
                std::process::exit(EXIT_FAILURE.into());
            }
            life.ask_to_stop(Reason::Signal(signal));
        }
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(watch)
        .map_err(Failure::system("starting a thread for signals"))?;
    Ok(())
}

/// Why the daemon stops.
enum Reason {
    Signal(i32),
    Asked,
    Failed(HostError),
}

impl Reason {
    fn text(&self) -> String {
        match self {
            Self::Signal(SIGINT) => "SIGINT".to_owned(),
            Self::Signal(SIGTERM) => "SIGTERM".to_owned(),
            Self::Signal(other) => format!("signal {other}"),
            Self::Asked => "asked by `flaz stop`".to_owned(),
            Self::Failed(error) => chain(error.as_ref()),
        }
    }
}

/// The way from serving to stopped, watched by several threads.
#[derive(Default)]
struct Life {
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Default)]
struct Stage {
    /// The first reason to stop, until taken.
    reason: Option<Reason>,
    stopping: bool,
    /// How the shutdown ended: nothing, or what went wrong.
    finished: Option<Option<String>>,
}

impl Life {
    fn lock(&self) -> std::sync::MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the stop; later reasons are only logged.
    fn ask_to_stop(&self, reason: Reason) {
        let mut stage = self.lock();
        if stage.stopping {
            tracing::info!("stopping already; now also: {}", reason.text());
            return;
        }
        stage.stopping = true;
        stage.reason = Some(reason);
        self.changed.notify_all();
    }

    fn wait_for_reason(&self) -> Reason {
        let mut stage = self.lock();
        loop {
            if let Some(reason) = stage.reason.take() {
                return reason;
            }
            stage = self.changed.wait(stage).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self, error: Option<String>) {
        self.lock().finished = Some(error);
        self.changed.notify_all();
    }

    /// Waits for the end of the shutdown.
    fn wait_for_end(&self) -> Option<String> {
        let mut stage = self.lock();
        loop {
            if let Some(end) = &stage.finished {
                return end.clone();
            }
            // Woken now and then for no reason: a lost wake-up would cost a second, not for ever.
            stage = self
                .changed
                .wait_timeout(stage, Duration::from_secs(1))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// Answers control requests with the daemon's means.
struct Handler {
    daemon: Arc<Daemon>,
    life: Arc<Life>,
}

impl ControlHandler for Handler {
    fn handle(&self, request: Request) -> Reply {
        match request {
            Request::Status {} => Reply::Status(Box::new(self.daemon.status())),
            Request::Set(patch) => match self.daemon.set(&patch) {
                Ok(settings) => {
                    tracing::info!("settings now: {}", crate::page::settings(&settings));
                    Reply::Settings(settings)
                }
                Err(error) => Reply::Refused(chain(error.as_ref())),
            },
            Request::Stop { wait } => {
                self.life.ask_to_stop(Reason::Asked);
                match wait.then(|| self.life.wait_for_end()).flatten() {
                    None => Reply::Done,
                    Some(error) => Reply::Refused(format!("the cache was not closed cleanly: {error}")),
                }
            }
        }
    }
}
