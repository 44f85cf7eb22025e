//! `flaz flush` and `flaz detach`: write all dirty blocks to the origin.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use flaz_engine::settings::{AfterCrash, Mode};
use flaz_engine::units::BLOCK_BYTES;
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{output, target};
use crate::args::{DetachArgs, FlushArgs, IdleArgs};
use crate::control::client::ANSWER;
use crate::control::{Client, ControlError, Reply, Request};
use crate::error::Failure;
use crate::host::{self, CLEAN_WITHIN, Daemon, HostError};
use crate::interrupt::Interrupt;
use crate::report::{CacheState, FlushReport};
use crate::settings::SettingsPatch;
use crate::size::HumanBytes;
use flaz_server::ServeSpec;

/// Signals that cancel a command. Other signals kill it; the daemon then cancels the request as well.
const INTERRUPTS: [i32; 2] = [SIGINT, SIGTERM];
/// Interval between two progress updates.
const LOOK: Duration = Duration::from_millis(250);
/// Additional time limit of a stop after writeback.
const STOP: Duration = Duration::from_secs(600);

/// Runs `flaz flush`.
///
/// # Errors
/// Some blocks stay dirty, or the cache cannot be reached or opened.
pub fn flush(args: &FlushArgs) -> Result<(), Failure> {
    let (cache, control) = (args.target.cache.as_deref(), args.target.control.as_deref());
    let waited = Waited {
        cache,
        control,
        interrupt: Interrupt::by(&INTERRUPTS)?,
    };
    let left = match target::find(cache, control)? {
        Some(client) => waited.ask(client, &Request::Flush {}, CLEAN_WITHIN, |reply| match reply {
            Reply::Left { dirty_blocks } => Some(dirty_blocks),
            _ => None,
        })?,
        None => {
            let cache = cache.ok_or_else(|| Failure::Usage("expected CACHE or --control PATH".to_owned()))?;
            alone(cache, &args.idle, |daemon| {
                daemon.clean(&|| waited.interrupt.is_asked())
            })
            .map_err(Failure::host("writing dirty blocks to the origin of", cache))?
        }
    };
    if args.json {
        return output::print_json(&FlushReport { dirty_blocks: left }, true);
    }
    if left == 0 {
        return output::confirm("clean: all blocks are on the origin\n");
    }
    output::print(&format!(
        "{} are still dirty: written in the meantime, or damaged (see `flaz status`)\n",
        HumanBytes(left * BLOCK_BYTES as u64)
    ))
}

/// Runs `flaz detach`.
///
/// # Errors
/// The cache is in use, the origin cannot be made complete, or the cache cannot be reached or opened.
pub fn detach(args: &DetachArgs) -> Result<(), Failure> {
    let (cache, control) = (args.target.cache.as_deref(), args.target.control.as_deref());
    let waited = Waited {
        cache,
        control,
        interrupt: Interrupt::by(&INTERRUPTS)?,
    };
    match target::find(cache, control)? {
        Some(client) => {
            let detach = Request::Detach { force: args.force };
            let in_use = waited.ask(client, &detach, CLEAN_WITHIN + STOP, |reply| match reply {
                Reply::Done => Some(Vec::new()),
                Reply::InUse { users } => Some(users),
                _ => None,
            })?;
            if !in_use.is_empty() {
                return Err(Failure::BadNews(format!(
                    "not detached: {}: disconnect or unmount first; --force disconnects NBD clients",
                    in_use.join("; ")
                )));
            }
        }
        None => {
            let cache = cache.ok_or_else(|| Failure::Usage("expected CACHE or --control PATH".to_owned()))?;
            alone(cache, &args.idle, |daemon| {
                daemon.detach(&|| waited.interrupt.is_asked())
            })
            .map_err(Failure::host("detach", cache))?;
        }
    }
    output::confirm("detached: the origin is complete and the cache is empty\n")
}

/// A flush or detach that the user may interrupt.
struct Waited<'a> {
    cache: Option<&'a Path>,
    control: Option<&'a Path>,
    interrupt: Interrupt,
}

impl Waited<'_> {
    /// Sends the request, with a progress bar on a terminal, and converts the expected reply with `take`.
    fn ask<T>(
        &self,
        mut client: Client,
        request: &Request,
        within: Duration,
        take: impl FnOnce(Reply) -> Option<T>,
    ) -> Result<T, Failure> {
        let progress = Progress::of_daemon(self.cache, self.control);
        let reply = client.ask_unless(&|| self.interrupt.is_asked(), request, within);
        drop(progress);
        if matches!(reply, Err(ControlError::Interrupted)) {
            // The daemon cancels the request.
            drop(client);
            return Err(Failure::BadNews(self.after_interrupt(request)));
        }
        take(reply?).ok_or_else(|| client.unexpected("flush or detach").into())
    }

    /// Describes the outcome of an interrupted request, from the daemon's status.
    fn after_interrupt(&self, request: &Request) -> String {
        let is_detach = matches!(request, Request::Detach { .. });
        let asked = target::find(self.cache, self.control)
            .ok()
            .flatten()
            .and_then(|mut client| client.ask(&Request::Status {}, ANSWER).ok());
        let dirty = match asked {
            Some(Reply::Status(report)) if report.state != CacheState::Stopping => {
                report.live.map_or(0, |live| live.write_back.dirty_bytes)
            }
            _ if is_detach => {
                return "interrupted, but the daemon is stopping or has stopped: `flaz status` says whether the \
                        cache is detached (state new)"
                    .to_owned();
            }
            _ => {
                return "interrupted, and the daemon is stopping or does not answer: see `flaz status`"
                    .to_owned();
            }
        };
        let done = match is_detach {
            true => "not detached: the cache is served as before",
            false => "not all is written back",
        };
        let dirty = HumanBytes(dirty);
        format!("interrupted: {done}; {dirty} of dirty data is only on the cache device")
    }
}

/// Opens a cache that is not running, calls a function that writes dirty blocks, and stops it.
fn alone<T>(
    cache: &Path,
    idle: &IdleArgs,
    what: impl FnOnce(&Daemon) -> Result<T, HostError>,
) -> Result<T, HostError> {
    with_idle(cache, idle, |daemon| {
        // Only for a message: if the count is unavailable, writeback will fail as well and report it.
        if let Ok(report) = daemon.status() {
            let left = report.live.map_or(0, |live| live.write_back.dirty_blocks);
            tracing::info!(
                "{} of dirty data to write to the origin",
                HumanBytes(left * BLOCK_BYTES as u64)
            );
        }
        let done = AtomicBool::new(false);
        let left = || Some(daemon.status().ok()?.live?.write_back.dirty_bytes);
        std::thread::scope(|scope| {
            scope.spawn(|| watch(left, &done));
            let result = what(daemon);
            done.store(true, Ordering::Relaxed);
            result
        })
    })
}

/// Opens a cache that is not running, calls a function with it, and stops it.
pub(super) fn with_idle<T>(
    cache: &Path,
    idle: &IdleArgs,
    what: impl FnOnce(&Daemon) -> Result<T, HostError>,
) -> Result<T, HostError> {
    let spec = ServeSpec {
        cache: cache.to_owned(),
        origin: idle.origin.clone(),
        nbd: Vec::new(),
        device: None,
        name: None,
        metrics: None,
        // Nothing becomes dirty.
        settings: SettingsPatch {
            mode: Some(Mode::WriteThrough),
            ..SettingsPatch::default()
        },
        threads: None,
        discard_cache: false,
        discard_dirty: false,
        after_crash: AfterCrash::Warm,
        device_timeout: None,
        index_memory: None,
        state_dir: idle.state_dir.clone().or_else(host::default_directory),
        read_only: false,
        emulate_origin: None,
        emulate_cache: None,
    };
    let (tell, failures) = mpsc::channel();
    let failed = Arc::new(move |error: HostError| {
        // The receiver lives as long as the daemon.
        let _ = tell.send(error);
    });
    let daemon = host::start(&spec, failed)?;
    let result = what(&daemon);
    let stopped = daemon.shutdown();
    if let Ok(error) = failures.try_recv() {
        return Err(error);
    }
    let result = result?;
    stopped?;
    Ok(result)
}

/// A progress bar on a terminal; removed when dropped.
struct Progress {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Progress {
    /// Uses a second connection, because the first one waits for its reply.
    fn of_daemon(cache: Option<&Path>, control: Option<&Path>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = match target::find(cache, control) {
            Ok(Some(mut client)) => {
                let stop = Arc::clone(&stop);
                let left = move || match client.ask(&Request::Status {}, ANSWER) {
                    Ok(Reply::Status(report)) => {
                        Some(report.live.map_or(0, |live| live.write_back.dirty_bytes))
                    }
                    _ => None,
                };
                // The command also works without it.
                std::thread::Builder::new().spawn(move || watch(left, &stop)).ok()
            }
            _ => None,
        };
        Self { stop, thread }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Draws a bar of the bytes `left`, until it is stopped, or there is no reply.
fn watch(mut left: impl FnMut() -> Option<u64>, stop: &AtomicBool) {
    let mut bar: Option<ProgressBar> = None;
    while !stop.load(Ordering::Relaxed) {
        let Some(left) = left() else { break };
        let bar = bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template(
                "{spinner} writing to the origin {wide_bar} {binary_bytes}/{binary_total_bytes} \
                 {binary_bytes_per_sec} {eta}",
            )
            .unwrap_or_else(|_| ProgressStyle::default_bar());
            // Hidden if standard error is not a terminal.
            ProgressBar::new(left).with_style(style)
        });
        let total = bar.length().unwrap_or(0).max(left);
        bar.set_length(total);
        bar.set_position(total - left);
        std::thread::sleep(LOOK);
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}
