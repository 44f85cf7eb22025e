//! `flaz serve`: the life of a daemon, from its options to its last word.
//!
//! ```text
//! identify -> control socket -> host starts -> READY=1 -> wait -> STOPPING=1 -> host shuts down -> control closes
//! ```
//!
//! Invariants: the control socket is there before the first NBD client can be, and as long as the last one;
//! whoever asked for the stop is answered only after the shutdown has ended, with its result.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use flaz_nbd::NbdAddress;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::life::{Life, Reason, STILL_STARTING};
use super::output;
use super::spec::ServeSpec;
use crate::args::{NBD_ADDRESSES_MAX, ServeArgs};
use crate::control::place::{self, Places};
use crate::control::{ControlHandler, Reply, Request, Server};
use crate::error::{EXIT_FAILURE, Failure, chain};
use crate::host::{self, Daemon, HostError};
use crate::page;
use crate::size::HumanDuration;

/// Runs `flaz serve`.
///
/// # Errors
/// The daemon could not start, failed on its way, or could not stop cleanly.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    check_addresses(args)?;
    host::prepare();
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

    // Before the start: a client that finds the NBD socket finds the control socket too, and a second daemon for
    // this cache stops here, with a message that says where the first one is.
    let handler = Arc::new(Handler {
        daemon: OnceLock::new(),
        life: Arc::clone(&life),
    });
    let server = Server::start(&control, Arc::clone(&handler) as Arc<dyn ControlHandler>)?;
    let begun = Instant::now();
    notify(&[NotifyState::Status(
        "starting: opening devices and loading the index",
    )]);
    let failed = {
        let life = Arc::clone(&life);
        Arc::new(move |error: HostError| life.ask_to_stop(Reason::Failed(error)))
    };
    let daemon = match host::start(&spec, failed) {
        Ok(daemon) => handler.daemon.get_or_init(|| daemon),
        Err(error) => {
            life.end(Err(format!("cannot start the cache: {}", chain(error.as_ref()))));
            server.close();
            return Err(Failure::host("serve", &args.cache)(error));
        }
    };
    life.begin();
    announce(&spec, &control, begun);

    let reason = life.wait_for_reason();
    tracing::info!("stopping: {}", reason.text());
    notify(&[
        NotifyState::Stopping,
        NotifyState::Status("stopping: completing requests"),
    ]);
    let begun = Instant::now();
    let stopped = daemon.shutdown();
    life.end(match &stopped {
        Ok(dirty_blocks) => Ok(*dirty_blocks),
        Err(error) => Err(format!(
            "the cache was not closed cleanly: {}",
            chain(error.as_ref())
        )),
    });
    server.close();
    stopped.map_err(Failure::host("stopping", &args.cache))?;
    tracing::info!("stopped cleanly in {}", HumanDuration(begun.elapsed()));
    match reason {
        Reason::Failed(error) => Err(Failure::host("serve", &args.cache)(error)),
        Reason::Signal(_) | Reason::Asked | Reason::Detached => Ok(()),
    }
}

fn check_addresses(args: &ServeArgs) -> Result<(), Failure> {
    if args.nbd.len() > NBD_ADDRESSES_MAX {
        return Err(Failure::Usage(format!(
            "serve: --nbd is given {} times: the maximum is {NBD_ADDRESSES_MAX}",
            args.nbd.len()
        )));
    }
    for (at, address) in args.nbd.iter().enumerate() {
        if args.nbd[..at].contains(address) {
            return Err(Failure::Usage(format!("serve: --nbd {address} is given twice")));
        }
        address
            .check_insecure(args.insecure_tcp)
            .map_err(|error| Failure::Usage(format!("serve: --nbd {error}")))?;
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
        sequential_cutoff: args.sequential_cutoff,
        dirty_percent: args.dirty_limit,
        strict_flush: args.strict_flush,
        codec: args.codec,
        threads: args.threads,
        discard_cache: args.discard_cache,
        discard_dirty: args.discard_dirty,
        after_crash: args.after_crash,
        device_timeout: (!args.device_timeout.is_zero()).then_some(args.device_timeout),
        state_dir: args.state_dir.clone().or_else(host::default_directory),
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
                "EMULATION: the {device} is SLOWED DOWN to emulate '{emulation}', for demonstrations and \
                 tests only; omit {option} for production"
            );
        }
    }
}

/// Says that clients can come, to people, scripts and systemd.
fn announce(spec: &ServeSpec, control: &Path, begun: Instant) {
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
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
    // A script that has read the line may have closed the pipe; the daemon serves on.
    if let Err(failure) = output::print(&format!("ready: {addresses}\n")) {
        tracing::debug!("{}", chain(&failure));
    }
}

/// Tells systemd, if it started us.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify systemd: {error}");
    }
}

/// The first SIGTERM or SIGINT asks for a clean stop; the second ends the process at once.
fn watch_signals(life: &Arc<Life>) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(Failure::system("handling signals"))?;
    let life = Arc::clone(life);
    let watch = move || {
        for (count, signal) in signals.forever().enumerate() {
            if count > 0 {
                tracing::error!("second signal: exiting at once; the cache was not closed cleanly");
                std::process::exit(EXIT_FAILURE.into());
            }
            life.ask_to_stop(Reason::Signal(signal));
        }
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(watch)
        .map_err(Failure::system("starting the signal thread"))?;
    Ok(())
}

/// Answers control requests with the daemon's means.
struct Handler {
    daemon: OnceLock<Daemon>,
    life: Arc<Life>,
}

impl Handler {
    fn running(&self) -> Result<&Daemon, String> {
        self.life.wait_for_begin()?;
        self.daemon.get().ok_or_else(|| STILL_STARTING.to_owned())
    }

    fn answer(&self, request: Request) -> Result<Reply, String> {
        match request {
            Request::Status {} => {
                let report = self.running()?.status().map_err(|error| chain(error.as_ref()))?;
                Ok(Reply::Status(Box::new(report)))
            }
            Request::Set(patch) => {
                let settings = self
                    .running()?
                    .set(&patch)
                    .map_err(|error| chain(error.as_ref()))?;
                tracing::info!("new settings: {}", page::settings_after(&settings, &patch));
                Ok(Reply::Settings(settings))
            }
            Request::Flush {} => {
                let dirty_blocks = self.running()?.clean().map_err(|error| chain(error.as_ref()))?;
                Ok(Reply::Left { dirty_blocks })
            }
            Request::Detach {} => {
                self.running()?.detach().map_err(|error| chain(error.as_ref()))?;
                self.life.ask_to_stop(Reason::Detached);
                self.life.wait_for_end().map(|_| Reply::Done)
            }
            Request::Stop { wait } => {
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

impl ControlHandler for Handler {
    fn handle(&self, request: Request) -> Reply {
        self.answer(request).unwrap_or_else(Reply::Refused)
    }
}
