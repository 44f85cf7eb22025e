//! Asks the daemons of this host, all at the same time, and computes their rates.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use super::table::{Row, RowState};
use crate::control::place::Places;
use crate::control::{Client, ControlError, Reply, Request};
use crate::rates::Rates;
use crate::report::StatusReport;

/// How long a daemon may take to answer: less than it waits for its own threads, so that the others are shown in time.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Maximum number of caches; further sockets are not asked.
const CACHES_MAX: usize = 256;

/// Asks again and again, and remembers the last reports.
#[derive(Debug)]
pub struct Sampler {
    controls: Vec<PathBuf>,
    answer_within: Duration,
    earlier: BTreeMap<PathBuf, Earlier>,
}

#[derive(Debug)]
struct Earlier {
    at: Instant,
    report: StatusReport,
}

impl Sampler {
    /// Of all runtime directories, and of these control sockets.
    pub fn new(controls: Vec<PathBuf>, interval: Duration) -> Self {
        // Daemons that are killed later are shown as gone.
        Places::of_process().remove_stale_sockets();
        Self {
            controls,
            answer_within: ANSWER_WITHIN.min(interval.max(Duration::from_secs(1))),
            earlier: BTreeMap::new(),
        }
    }

    /// A row for each socket.
    pub fn sample(&mut self) -> Vec<Row> {
        let sockets = self.sockets();
        let within = self.answer_within;
        let answers: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = sockets
                .iter()
                .map(|(path, owner)| {
                    let asked =
                        std::thread::Builder::new().spawn_scoped(scope, move || ask(path, *owner, within));
                    (path, asked)
                })
                .collect();
            threads
                .into_iter()
                .map(|(path, thread)| {
                    let answer = match thread {
                        Ok(thread) => thread.join().unwrap_or(Err("silent")),
                        Err(_) => Err("no asker"),
                    };
                    (path.clone(), answer)
                })
                .collect()
        });
        answers
            .into_iter()
            .map(|(path, answer)| self.row(path, answer))
            .collect()
    }

    fn row(&mut self, path: PathBuf, answer: Result<(Instant, StatusReport), &'static str>) -> Row {
        match answer {
            Ok((at, report)) => {
                let rates = self.rates(&path, at, &report);
                let name = name_of(&report);
                let state = RowState::Answers(Box::new(report.clone()), rates);
                self.earlier.insert(path, Earlier { at, report });
                Row { name, state }
            }
            Err(why) => Row {
                name: self
                    .earlier
                    .get(&path)
                    .map_or_else(|| socket_name(&path), |it| name_of(&it.report)),
                state: RowState::Silent(why),
            },
        }
    }

    fn rates(&self, path: &Path, at: Instant, report: &StatusReport) -> Rates {
        let Some(live) = &report.live else {
            return Rates::default();
        };
        let earlier = self.earlier.get(path);
        match earlier.and_then(|earlier| Some((earlier.at, earlier.report.live.as_ref()?))) {
            Some((then, before)) => Rates::between(before, live, at.duration_since(then)),
            None => Rates::since_start(live),
        }
    }

    /// The sockets, each with the user besides root and this one whose daemon may answer there.
    fn sockets(&self) -> BTreeMap<PathBuf, Option<u32>> {
        let places = Places::of_process();
        let mut owners = vec![None];
        if geteuid().is_root() {
            owners.extend(users().into_iter().map(Some));
        }
        let mut sockets: BTreeMap<PathBuf, Option<u32>> =
            self.controls.iter().map(|path| (path.clone(), None)).collect();
        for owner in owners {
            for path in places.all_control_sockets(owner) {
                sockets.entry(path).or_insert(owner);
            }
        }
        while sockets.len() > CACHES_MAX {
            sockets.pop_last();
        }
        sockets
    }
}

/// Users who may have a runtime directory.
fn users() -> Vec<u32> {
    let names = |folder: &str, prefix: &str| -> Vec<u32> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let name = entries.filter_map(|entry| entry.file_name().into_string().ok());
        name.filter_map(|name| name.strip_prefix(prefix)?.parse().ok())
            .collect()
    };
    let mut users = names("/run/user", "");
    users.extend(names("/tmp", "flaz-"));
    users.sort_unstable();
    users.dedup();
    users
}

fn ask(path: &Path, owner: Option<u32>, within: Duration) -> Result<(Instant, StatusReport), &'static str> {
    let mut client = Client::connect(path, owner).map_err(|error| match error {
        ControlError::NotRunning { .. } => "gone",
        ControlError::Denied { .. } | ControlError::Stranger { .. } => "denied",
        _ => "silent",
    })?;
    match client.ask(&Request::Status {}, within) {
        Ok(Reply::Status(report)) => Ok((Instant::now(), *report)),
        _ => Err("silent"),
    }
}

/// The name of the configuration, else the file name of the cache device.
fn name_of(report: &StatusReport) -> String {
    let configured = report.live.as_ref().and_then(|live| live.daemon.name.clone());
    if let Some(name) = configured {
        return name;
    }
    let path = &report.cache.path;
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

fn socket_name(path: &Path) -> String {
    path.file_stem()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}
