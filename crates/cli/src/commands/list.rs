//! `flaz list`: the caches of this host. Those with a configuration are found by it, others by their control sockets.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flaz_control::chain;
use flaz_control::path::serialize_optional;
use flaz_engine::settings::Mode;
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::{output, target};
use crate::args::ListArgs;
use crate::configuration::{self, Configuration, Given};
use crate::control::file::ServedFile;
use crate::control::place::Places;
use crate::control::{Client, ControlError, Reply, Request};
use crate::error::Failure;
use crate::host;
use crate::host::pool::Place;
use crate::report::{CacheState, StatusReport};
use crate::size::HumanBytes;

/// Version of the JSON form.
const LIST_SCHEMA: u32 = 1;
/// How long each daemon has to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// State of a cache whose configuration is refused.
const INVALID: &str = "invalid";
/// Columns of a terminal.
const COLUMNS: usize = 80;
/// Between two columns of the table.
const GAP: usize = 2;
/// Shortest width to which a name or a path is cut.
const CUT_MIN: usize = 6;
/// The columns that may be cut: name, cache, origin.
const CUT: [usize; 3] = [0, 2, 3];

/// The caches of a host.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ListReport {
    /// Version of this form.
    pub schema: u32,
    /// Those with a configuration by name, then the others by path.
    pub caches: Vec<ListedCache>,
}

/// A cache of this host.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ListedCache {
    /// Name of its configuration; null if it runs without one.
    pub name: Option<String>,
    /// File of the configuration.
    #[serde(serialize_with = "serialize_optional")]
    #[schemars(with = "Option<String>")]
    pub configuration: Option<PathBuf>,
    /// A state of `flaz status`, or `missing`, `unreadable`, `silent`, `invalid`.
    pub state: &'static str,
    /// Why the state is one of the last four.
    pub problem: Option<String>,
    /// Path of the cache device; null if the configuration is invalid, or the daemon does not answer.
    #[serde(serialize_with = "serialize_optional")]
    #[schemars(with = "Option<String>")]
    pub cache: Option<PathBuf>,
    /// Path of the origin; null for the same reasons.
    #[serde(serialize_with = "serialize_optional")]
    #[schemars(with = "Option<String>")]
    pub origin: Option<PathBuf>,
    /// Block devices and NBD addresses that it serves.
    pub exports: Vec<String>,
    /// Mode in force, or of the next start.
    pub mode: Option<Mode>,
    /// Blocks read from the cache, of those read since the start; null if none was read, or it is not running.
    pub hit_ratio: Option<f64>,
    /// Data that the origin lacks, in bytes; null if it is not known how much.
    pub dirty_bytes: Option<u64>,
}

/// Runs `flaz list`.
///
/// # Errors
/// A configuration is invalid, which is printed as well, or standard output cannot be written.
pub fn run(args: &ListArgs) -> Result<(), Failure> {
    let caches = caches();
    let invalid = caches.iter().filter(|listed| listed.state == INVALID).count();
    if args.json {
        let schema = LIST_SCHEMA;
        output::print_json(&ListReport { schema, caches }, true)?;
    } else {
        print(&caches)?;
    }
    match invalid {
        0 => Ok(()),
        1 => Err(Failure::BadNews(
            "list: a configuration is invalid: correct or remove it".into(),
        )),
        _ => Err(Failure::BadNews(format!(
            "list: {invalid} configurations are invalid: correct or remove them"
        ))),
    }
}

fn print(caches: &[ListedCache]) -> Result<(), Failure> {
    for listed in caches {
        if let Some(problem) = &listed.problem {
            let name = listed
                .name
                .as_deref()
                .unwrap_or("a cache without a configuration");
            tracing::warn!("{name}: {problem}");
        }
    }
    if caches.is_empty() {
        let directories = configuration::directories();
        let names: Vec<_> = directories
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        tracing::info!(
            "no configuration in {}, and no cache is running",
            names.join(" or ")
        );
        return Ok(());
    }
    output::print(&table(caches))
}

/// What a control socket has led to.
struct Found {
    /// Of a socket at its default path.
    uuid: Option<Uuid>,
    path: PathBuf,
    /// The file that the daemon reports.
    file: Option<ServedFile>,
    answer: Result<Box<StatusReport>, ControlError>,
}

impl Found {
    /// Whether the daemon serves the file or device of a configuration, rather than, for example, a copy with the same UUID.
    fn is_of(&self, configuration: &Configuration) -> bool {
        let file = self.file.as_ref();
        file.is_none_or(|file| target::is_of(file, &configuration.cache))
    }
}

fn caches() -> Vec<ListedCache> {
    let mut daemons = Vec::new();
    let mut asked = BTreeSet::new();
    let places = Places::of_process();
    places.remove_stale_sockets();
    for path in places.all_control_sockets(None) {
        let path = std::fs::canonicalize(&path).unwrap_or(path);
        if asked.insert(path.clone()) {
            daemons.extend(ask(path));
        }
    }
    let mut listed = Vec::new();
    for path in configuration::all(&configuration::directories()) {
        let name = configuration::name_of(&path).map(str::to_owned);
        let found = match Configuration::read(&path) {
            Ok(configuration) => configured(&configuration, &mut daemons),
            Err(error) => problem(INVALID, chain(&error)),
        };
        listed.push(ListedCache {
            name,
            configuration: Some(path),
            ..found
        });
    }
    let mut others: Vec<_> = daemons.into_iter().map(of_daemon).collect();
    others.sort_by(|a, b| a.cache.cmp(&b.cache));
    listed.append(&mut others);
    listed
}

/// Asks the daemon of a socket; `None` if there is none, or it is another user's.
fn ask(path: PathBuf) -> Option<Found> {
    let uuid = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
    let found = |file, answer| {
        Some(Found {
            uuid,
            path: path.clone(),
            file,
            answer,
        })
    };
    let mut client = match Client::connect(&path, None) {
        Ok(client) => client,
        Err(
            ControlError::NotRunning { .. } | ControlError::Denied { .. } | ControlError::Stranger { .. },
        ) => {
            return None;
        }
        Err(error) => return found(None, Err(error)),
    };
    let file = match target::served(&mut client, None) {
        Ok(file) => file,
        Err(error) => return found(None, Err(error)),
    };
    let answer = match client.ask(&Request::Status {}, ANSWER_WITHIN) {
        Ok(Reply::Status(report)) => Ok(report),
        Ok(_) => Err(client.unexpected("status")),
        Err(error) => Err(error),
    };
    found(file, answer)
}

/// A cache with a configuration. Its daemon is taken from `daemons`.
fn configured(configuration: &Configuration, daemons: &mut Vec<Found>) -> ListedCache {
    let serve = configuration.serve(&Given::default()).ok();
    let mode = serve.as_ref().and_then(|args| args.mode);
    let control = serve.and_then(|args| args.control);
    let idle = host::idle_cache(&configuration.cache);
    let uuid = idle.as_ref().ok().map(|idle| idle.uuid);
    let serves_it = |found: &Found| {
        let report = found.answer.as_ref().ok();
        let named = report.is_some_and(|report| report.cache.path == configuration.cache);
        let found_uuid = report.map(|report| report.cache.uuid).or(found.uuid);
        named || (uuid.is_some() && found_uuid == uuid && found.is_of(configuration))
    };
    let paths = ListedCache {
        cache: Some(configuration.cache.clone()),
        origin: Some(configuration.origin.clone()),
        ..problem("missing", String::new())
    };
    let found = match daemons.iter().position(serves_it) {
        Some(at) => Some(daemons.swap_remove(at)),
        None => control.and_then(ask).filter(|found| found.is_of(configuration)),
    };
    if let Some(found) = found {
        let found = of_daemon(found);
        return ListedCache {
            cache: found.cache.or(paths.cache),
            origin: found.origin.or(paths.origin),
            ..found
        };
    }
    match idle {
        Ok(idle) => ListedCache {
            state: state_name(idle.state),
            problem: None,
            // The next start prefers the file.
            mode: Some(mode.unwrap_or(idle.settings.mode)),
            dirty_bytes: (!idle.may_be_dirty).then_some(0),
            ..paths
        },
        Err(error) => ListedCache {
            state: if configuration.device.exists() {
                "unreadable"
            } else {
                "missing"
            },
            problem: Some(chain(error.as_ref())),
            ..paths
        },
    }
}

fn of_daemon(found: Found) -> ListedCache {
    let report = match found.answer {
        Ok(report) => report,
        // It answers when it has started.
        Err(ControlError::Refused { message }) => {
            return ListedCache {
                state: state_name(CacheState::Starting),
                problem: None,
                ..problem("", message)
            };
        }
        Err(error) => {
            return problem(
                "silent",
                format!("control socket {}: {}", found.path.display(), chain(&error)),
            );
        }
    };
    let live = report.live.as_ref();
    let devices = live.map(|live| {
        live.block_devices
            .iter()
            .map(|device| device.name.display().to_string())
    });
    let addresses = live.map(|live| live.nbd.iter().map(|listener| listener.address.clone()));
    let read = live.map(|live| {
        (
            live.lookups.hit_blocks,
            live.lookups.hit_blocks + live.lookups.miss_blocks,
        )
    });
    ListedCache {
        state: state_name(report.state),
        problem: None,
        cache: Some(from_daemon(&report, &report.cache.path)),
        origin: Some(from_daemon(&report, &report.origin.path)),
        exports: devices
            .into_iter()
            .flatten()
            .chain(addresses.into_iter().flatten())
            .collect(),
        mode: report.settings.as_ref().map(|settings| settings.mode),
        hit_ratio: read
            .filter(|(_, all)| *all > 0)
            .map(|(hits, all)| hits as f64 / all as f64),
        dirty_bytes: live.map(|live| live.write_back.dirty_bytes),
        ..problem("", String::new())
    }
}

/// A path of a report. A relative one was given in the directory of the daemon.
fn from_daemon(report: &StatusReport, path: &Path) -> PathBuf {
    let directory = report
        .live
        .as_ref()
        .and_then(|live| std::fs::read_link(format!("/proc/{}/cwd", live.daemon.pid)).ok());
    directory.map_or_else(|| path.to_owned(), |directory| directory.join(path))
}

fn problem(state: &'static str, problem: String) -> ListedCache {
    ListedCache {
        name: None,
        configuration: None,
        state,
        problem: Some(problem),
        cache: None,
        origin: None,
        exports: Vec::new(),
        mode: None,
        hit_ratio: None,
        dirty_bytes: None,
    }
}

pub(super) fn state_name(state: CacheState) -> &'static str {
    match state {
        CacheState::Clean => "clean",
        CacheState::Unclean => "unclean",
        CacheState::New => "new",
        CacheState::Starting => "starting",
        CacheState::Running => "running",
        CacheState::Degraded => "degraded",
        CacheState::Stopping => "stopping",
    }
}

/// The caches as lines of at most [`COLUMNS`] characters.
fn table(caches: &[ListedCache]) -> String {
    let head = ["NAME", "STATE", "CACHE", "ORIGIN", "MODE", "HITS", "DIRTY"].map(str::to_owned);
    let mut rows = vec![head];
    rows.extend(caches.iter().map(row));
    let mut widths = [0; 7];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    while widths.iter().sum::<usize>() + GAP * (widths.len() - 1) > COLUMNS {
        let Some(widest) = CUT
            .into_iter()
            .max_by_key(|at| widths[*at])
            .filter(|at| widths[*at] > CUT_MIN)
        else {
            break;
        };
        widths[widest] -= 1;
    }
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
            let cell = cut(cell, width);
            // Numbers are aligned on the right.
            line += &if at < 5 {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            };
            line += "  ";
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn row(listed: &ListedCache) -> [String; 7] {
    let path = |path: &Option<PathBuf>| path.as_deref().map_or_else(|| "-".to_owned(), short);
    // Of a running or idle cache with an unknown amount there may be some.
    let dirty = match listed.dirty_bytes {
        Some(bytes) => HumanBytes(bytes).to_string(),
        None if matches!(listed.state, "clean" | "unclean" | "running") => "maybe".to_owned(),
        None => "-".to_owned(),
    };
    [
        listed.name.clone().unwrap_or_else(|| "-".to_owned()),
        listed.state.to_owned(),
        path(&listed.cache),
        path(&listed.origin),
        listed
            .mode
            .map_or_else(|| "-".to_owned(), |mode| mode.to_string()),
        listed
            .hit_ratio
            .map_or_else(|| "-".to_owned(), |ratio| format!("{:.1} %", 100.0 * ratio)),
        dirty,
    ]
}

/// A device by the name of the kernel, a file by its own name; a volume of either follows after a colon.
pub(super) fn short(path: &Path) -> String {
    let Place { device, volume } = Place::of(path);
    let real = std::fs::canonicalize(&device).unwrap_or_else(|_| device.clone());
    let name = real
        .strip_prefix("/dev")
        .ok()
        .or(device.file_name().map(Path::new));
    // A name may have any characters.
    let name = name.unwrap_or(&device).to_string_lossy();
    let name: String = name
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    volume.map_or(name.clone(), |volume| format!("{name}:{volume}"))
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(2)).collect();
    kept + ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(name: Option<&str>, state: &'static str) -> ListedCache {
        ListedCache {
            name: name.map(str::to_owned),
            state,
            problem: None,
            cache: Some("/nowhere/cache.img".into()),
            origin: Some("/nowhere/origin-with-a-long-name.img".into()),
            mode: Some(Mode::WriteThrough),
            hit_ratio: Some(1.0),
            dirty_bytes: Some(0),
            ..problem("", String::new())
        }
    }

    #[test]
    fn a_volume_follows_the_kernels_name_of_its_device() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("by-partuuid");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let file = folder.path().join("ssd.img");
        std::fs::write(&file, "").unwrap();
        for (path, expected) in [
            (link.clone(), "null"),
            (Place::path_of(&link, "home"), "null:home"),
            (Place::path_of(&file, "home"), "ssd.img:home"),
            (folder.path().join("missing:home"), "missing:home"),
        ] {
            assert_eq!(short(&path), expected);
        }
    }

    #[test]
    fn a_line_has_at_most_80_columns() {
        let caches = [
            listed(Some(&"a".repeat(64)), "unreadable"),
            ListedCache {
                dirty_bytes: None,
                hit_ratio: None,
                ..listed(Some("disk"), "clean")
            },
            listed(None, "running"),
            problem("invalid", String::new()),
        ];
        let expected = "\
NAME          STATE       CACHE      ORIGIN        MODE              HITS  DIRTY
aaaaaaaaaa..  unreadable  cache.img  origin-wit..  write-through  100.0 %    0 B
disk          clean       cache.img  origin-wit..  write-through        -  maybe
-             running     cache.img  origin-wit..  write-through  100.0 %    0 B
-             invalid     -          -             -                    -      -
";
        let table = table(&caches);
        assert_eq!(table, expected);
        assert!(table.lines().all(|line| line.len() <= COLUMNS));
    }
}
