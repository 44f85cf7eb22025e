//! Runs a campaign: rounds of visits until every cell has the number of runs in the plan. Its file is updated after
//! each visit.
//!
//! Invariants:
//! - the file is complete at any time: a [`Keeper`] replaces it as a whole, or leaves it unchanged;
//! - the samples of a visit are added to the file together, or not at all. After an interruption, completed visits are
//!   not measured again, and an incomplete visit does not count;
//! - the file contains the remaining visits, so a resumed campaign does not depend on earlier random or adaptive
//!   choices.

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use flaz_bench::campaign_file::{Achieved, Campaign, CampaignCell, Duplicates};
use flaz_bench::cell::CellKey;
use flaz_bench::statistics::trend;
use flaz_bench::unit::{Unit, WholeBytes};
use serde::{Deserialize, Serialize};

use crate::environment;
use crate::error::LoadError;
use crate::flags;
use crate::forecast::{Forecast, Status, Surety};
use crate::plan::{Plan, WARM_UP_MAX};
use crate::schedule::{self, Visit};
use crate::target::Target;
use crate::test::Test;
use crate::visit::{Sample, Signals, Visitor};
use crate::writers::Moved;

/// Phase of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Phase {
    /// Warm-up rounds, which are not counted.
    WarmUp,
    /// Measured rounds.
    Measure,
}

/// Progress of a campaign; absent when it is complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Progress {
    phase: Phase,
    /// Number of rounds of the phase that have begun.
    rounds: u32,
    /// Remaining visits of the current round, the next one last.
    pending: Vec<Visit>,
    /// Number of completed visits of both phases; determines the data.
    visits: u64,
    /// Samples so far.
    samples: u32,
}

/// Storage of a campaign's file.
pub trait Keeper: Debug {
    /// Its path, for messages.
    fn path(&self) -> &Path;

    /// Replaces the file with `text` as a whole, or leaves it unchanged.
    ///
    /// # Errors
    /// The system's error, or another program has created a file there.
    fn keep(&mut self, text: &str) -> io::Result<()>;
}

/// Observers of a campaign use this to read the progress and to stop it.
#[derive(Debug, Default)]
pub struct Watch {
    /// Bytes done, and the stop request.
    pub signals: Signals,
    status: Mutex<Option<Status>>,
}

impl Watch {
    /// Current activity; absent before the first one.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        self.locked().clone()
    }

    fn locked(&self) -> MutexGuard<'_, Option<Status>> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A campaign that is being measured.
#[derive(Debug)]
pub struct Running<'a> {
    plan: &'a Plan,
    target: &'a Target,
    campaign: Campaign,
    progress: Progress,
    output: Box<dyn Keeper>,
    forecast: Forecast,
    spent_s: f64,
}

impl<'a> Running<'a> {
    /// A new campaign, stored in `output`. The size of the target is fixed from now on, even if the plan does not
    /// specify it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(
        plan: &'a Plan,
        target: &'a Target,
        name: Option<String>,
        started: String,
        output: Box<dyn Keeper>,
    ) -> Result<Self, LoadError> {
        let mut campaign = Campaign::new(plan.seed);
        campaign.name = name;
        campaign.program = Some(concat!("flaz ", env!("CARGO_PKG_VERSION")).to_owned());
        campaign.started = Some(started);
        campaign.environment = environment::of(target);
        let decided = Plan {
            size_bytes: Some(target.bytes()),
            ..plan.clone()
        };
        campaign.plan = Some(json(&decided)?);
        let others = [
            ("direct_io", target.is_direct().into()),
            ("size_bytes", target.bytes().into()),
            ("writers", target.writers().into()),
        ];
        for (name, value) in others {
            campaign.environment.other.insert(name.to_owned(), value);
        }
        let running = Self {
            plan,
            target,
            campaign,
            progress: Progress {
                phase: Phase::WarmUp,
                rounds: 0,
                pending: Vec::new(),
                visits: 0,
                samples: 0,
            },
            output,
            forecast: Forecast::default(),
            spent_s: 0.0,
        };
        Ok(running)
    }

    /// Continues an interrupted campaign.
    ///
    /// # Errors
    /// It is already complete, or its file does not contain its progress.
    pub fn resume(
        plan: &'a Plan,
        target: &'a Target,
        campaign: Campaign,
        output: Box<dyn Keeper>,
    ) -> Result<Self, LoadError> {
        let progress = campaign.progress.clone().ok_or_else(|| {
            LoadError::Plan(format!(
                "{}: this campaign is complete; expected an interrupted one",
                output.path().display()
            ))
        })?;
        let progress: Progress = serde_json::from_value(progress).map_err(|error| {
            LoadError::Plan(format!(
                "{}: its progress is damaged: {error}",
                output.path().display()
            ))
        })?;
        let known = schedule::round(plan, 0);
        if let Some(visit) = progress.pending.iter().find(|visit| !known.contains(visit)) {
            return Err(LoadError::Plan(format!(
                "{}: its progress contains {visit:?}, which is not in its plan: the file was edited",
                output.path().display()
            )));
        }
        Ok(Self {
            plan,
            target,
            campaign,
            progress,
            output,
            forecast: Forecast::default(),
            spent_s: 0.0,
        })
    }

    /// The results so far.
    #[must_use]
    pub fn campaign(&self) -> &Campaign {
        &self.campaign
    }

    /// Where it is stored.
    #[must_use]
    pub fn kept_at(&self) -> &Path {
        self.output.path()
    }

    /// Measures until the campaign is complete or stopped. The results up to then are in the file in any case.
    ///
    /// # Errors
    /// The first error; [`LoadError::Interrupted`].
    pub fn run(&mut self, watch: &Watch) -> Result<(), LoadError> {
        let mut visitor = Visitor::new(self.plan, self.target, &watch.signals);
        let drops = json(&visitor.drop_caches())?;
        self.campaign
            .environment
            .other
            .insert("caches_dropped".to_owned(), drops);
        self.save()?;
        let untouched = self.progress.visits == 0;
        if untouched && self.plan.rounds.precondition > 0 {
            let bytes = u64::from(self.plan.rounds.precondition) * self.target.bytes();
            self.tell(watch, "preconditioning".to_owned(), bytes, None);
            let began = Instant::now();
            visitor.precondition(self.plan.rounds.precondition)?;
            let seconds = began.elapsed().as_secs_f64();
            self.forecast.moved(bytes, seconds);
            self.spent_s += seconds;
        }
        let mut filled = None;
        while let Some(visit) = self.next() {
            let bytes = Visitor::bytes(self.plan, self.target, &visit, filled == Some(visit.level));
            watch.signals.done.store(0, std::sync::atomic::Ordering::Relaxed);
            self.tell(watch, self.words(&visit), bytes, Some(&visit));
            let began = Instant::now();
            let samples = visitor.visit(&visit, self.progress.visits)?;
            let seconds = began.elapsed().as_secs_f64();
            self.forecast.took(&visit, seconds);
            self.forecast.moved(bytes, seconds);
            self.spent_s += seconds;
            filled = Some(visit.level);
            self.take(&visit, &samples, &visitor)?;
        }
        self.campaign.progress = None;
        if let Some(speed) = visitor.data().gb_per_s_thread() {
            self.campaign
                .environment
                .other
                .insert("generator_gb_per_s_thread".to_owned(), speed.into());
        }
        self.write()
    }

    /// The next visit; begins a new round if one is complete; `None` if the campaign is complete.
    fn next(&mut self) -> Option<Visit> {
        while self.progress.pending.is_empty() {
            if !self.begin_round() {
                return None;
            }
        }
        self.progress.pending.last().copied()
    }

    /// Begins another round or phase; false if there is none.
    fn begin_round(&mut self) -> bool {
        let rounds = self.progress.rounds;
        let mut visits = schedule::round(self.plan, self.round_number());
        match self.progress.phase {
            Phase::WarmUp if !self.warms_up(rounds) => {
                self.progress.phase = Phase::Measure;
                self.progress.rounds = 0;
                return true;
            }
            Phase::WarmUp => {}
            Phase::Measure if rounds < self.plan.rounds.runs => {}
            Phase::Measure if rounds < self.plan.rounds.runs_max => {
                visits.retain(|visit| self.is_wide(visit));
            }
            Phase::Measure => return false,
        }
        visits.reverse();
        self.progress.rounds += 1;
        self.progress.pending = visits;
        !self.progress.pending.is_empty()
    }

    /// Gives the rounds of both phases different numbers.
    fn round_number(&self) -> u64 {
        match self.progress.phase {
            Phase::WarmUp => u64::MAX - u64::from(self.progress.rounds),
            Phase::Measure => u64::from(self.progress.rounds),
        }
    }

    /// Whether another warm-up round is necessary.
    fn warms_up(&self, rounds: u32) -> bool {
        let steady = || {
            !self.campaign.cells.is_empty()
                && self
                    .campaign
                    .cells
                    .iter()
                    .all(|cell| trend::is_steady(&cell.warm_up) == Some(true))
        };
        rounds < self.plan.rounds.warm_up || (self.plan.rounds.steady && rounds < WARM_UP_MAX && !steady())
    }

    /// Whether an interval in a visit is still too wide.
    fn is_wide(&self, visit: &Visit) -> bool {
        let Some(within_pct) = self.plan.rounds.within_pct else {
            return false;
        };
        visit
            .group
            .tests()
            .filter(|test| self.plan.tests.contains(test))
            .any(|test| {
                let key = self.key(test, visit);
                let cell = self.campaign.cells.iter().find(|cell| cell.key == key);
                cell.and_then(|cell| flags::half_width_pct(&cell.samples))
                    .is_none_or(|half| half > within_pct)
            })
    }

    fn key(&self, test: Test, visit: &Visit) -> CellKey {
        CellKey {
            test: test.name().to_owned(),
            record_bytes: visit.record_bytes,
            level: self.plan.data.levels[visit.level].clone(),
        }
    }

    /// Adds the samples of a visit and writes the file.
    fn take(&mut self, visit: &Visit, samples: &[Sample], visitor: &Visitor<'_>) -> Result<(), LoadError> {
        for (test, moved) in samples {
            let key = self.key(*test, visit);
            let place = match self.campaign.cells.iter().position(|cell| cell.key == key) {
                Some(place) => place,
                None => {
                    let mut cell =
                        CampaignCell::new(&key.test, key.record_bytes, key.level.clone(), Vec::new());
                    cell.unit = test.unit();
                    (cell.achieved, cell.duplicates) = self.data_truth(visit, visitor)?;
                    self.campaign.cells.push(cell);
                    self.campaign.cells.len() - 1
                }
            };
            let cell = &mut self.campaign.cells[place];
            let (precise, naive) = values(moved, cell.unit, visit.record_bytes);
            if self.progress.phase == Phase::WarmUp {
                cell.warm_up.push(precise);
                continue;
            }
            cell.samples.push(precise);
            cell.order.push(self.progress.samples);
            if self.plan.writers > 1 {
                cell.naive.push(naive);
            }
            self.progress.samples += 1;
        }
        self.progress.pending.pop();
        self.progress.visits += 1;
        self.save()
    }

    /// Savings of codecs on the data, and its share of duplicates: from a cell with the same data, or measured now.
    fn data_truth(
        &self,
        visit: &Visit,
        visitor: &Visitor<'_>,
    ) -> Result<(Vec<Achieved>, Option<Duplicates>), LoadError> {
        let level = &self.plan.data.levels[visit.level];
        let alike = self.campaign.cells.iter().find(|cell| {
            cell.key.level == *level
                && (cell.key.record_bytes == visit.record_bytes
                    || self.plan.data.family != crate::plan::FamilyWord::Iozone)
        });
        if let Some(cell) = alike {
            return Ok((cell.achieved.clone(), cell.duplicates));
        }
        let data = visitor.data();
        let achieved = data.achieved(visit.level, visit.record_bytes)?;
        let duplicates = data.duplicates(visit.level, visit.record_bytes)?;
        Ok((achieved, Some(duplicates)))
    }

    fn words(&self, visit: &Visit) -> String {
        let of = match self.progress.phase {
            Phase::WarmUp => "warm-up round",
            Phase::Measure => "round",
        };
        let names: Vec<&str> = visit
            .group
            .tests()
            .filter(|test| self.plan.tests.contains(test))
            .map(Test::name)
            .collect();
        format!(
            "{of} {}{}: {}, {}, {}",
            self.progress.rounds,
            match self.progress.phase {
                Phase::WarmUp => String::new(),
                Phase::Measure => format!(" of {}", self.plan.rounds.runs.max(self.progress.rounds)),
            },
            names.join(" and "),
            WholeBytes(visit.record_bytes),
            self.plan.data.levels[visit.level]
        )
    }

    /// Reports the current activity and the estimated time of everything after it.
    fn tell(&self, watch: &Watch, what: String, bytes: u64, visit: Option<&Visit>) {
        let pending = &self.progress.pending;
        let round = schedule::round(self.plan, 0);
        let rounds_left = match self.progress.phase {
            Phase::WarmUp => {
                self.plan.rounds.warm_up.saturating_sub(self.progress.rounds) + self.plan.rounds.runs
            }
            Phase::Measure => self.plan.rounds.runs.saturating_sub(self.progress.rounds),
        };
        // During preconditioning no round has begun.
        let after = &pending[..pending.len().saturating_sub(usize::from(visit.is_some()))];
        let later = self
            .forecast
            .total(after.iter())
            .zip(self.forecast.total(round.iter()))
            .map(|(now, round)| now + round * f64::from(rounds_left));
        let only = after.is_empty() && rounds_left == 0;
        let bytes_of = |visits: &[Visit]| -> u64 {
            let bytes = visits
                .iter()
                .map(|visit| Visitor::bytes(self.plan, self.target, visit, true));
            bytes.fold(0, u64::saturating_add)
        };
        let later_bytes =
            bytes_of(after).saturating_add(bytes_of(&round).saturating_mul(u64::from(rounds_left)));
        let warming = self.progress.phase == Phase::WarmUp && self.plan.rounds.steady;
        let surety = if warming || self.plan.rounds.runs_max > self.plan.rounds.runs {
            Surety::AtLeast
        } else if round.iter().all(|visit| self.forecast.knows(visit)) {
            Surety::Known
        } else {
            Surety::About
        };
        *watch.locked() = Some(Status {
            what,
            began: Instant::now(),
            bytes,
            expected_s: visit.and_then(|visit| self.forecast.seconds(visit)),
            later: if only { Some(0.0) } else { later }.map(|seconds| (seconds, surety)),
            later_bytes,
            bytes_per_s_max: self.forecast.bytes_per_s_max(),
            spent_s: self.spent_s,
        });
    }

    fn save(&mut self) -> Result<(), LoadError> {
        self.campaign.progress = Some(json(&self.progress)?);
        self.write()
    }

    fn write(&mut self) -> Result<(), LoadError> {
        flags::set(&mut self.campaign);
        let text = self
            .campaign
            .to_json()
            .map_err(|error| LoadError::at("write", self.output.path())(error.into()))?;
        let kept = self.output.keep(&text);
        kept.map_err(LoadError::at("write", self.output.path()))
    }
}

/// The precise and the naive rate, in a unit.
fn values(moved: &Moved, unit: Unit, record_bytes: u64) -> (f64, f64) {
    let divisor = match unit {
        Unit::BytesPerSecond => 1.0,
        Unit::OperationsPerSecond => record_bytes as f64,
    };
    (moved.bytes_per_s() / divisor, moved.naive_bytes_per_s / divisor)
}

fn json(value: &impl Serialize) -> Result<serde_json::Value, LoadError> {
    serde_json::to_value(value).map_err(|error| LoadError::Plan(error.to_string()))
}

/// The plan in a campaign's file.
///
/// # Errors
/// There is none, or it is invalid.
pub fn plan_of(campaign: &Campaign, path: &Path) -> Result<Plan, LoadError> {
    let told = |problem: &str| LoadError::Plan(format!("{}: {problem}", path.display()));
    let value = campaign.plan.clone().ok_or_else(|| {
        told("expected a campaign of `flaz bench run`, found one without a plan, which cannot be continued")
    })?;
    let mut plan: Plan =
        serde_json::from_value(value).map_err(|error| told(&format!("its plan is damaged: {error}")))?;
    if let Some(replay) = &mut plan.data.replay {
        replay.read_again()?;
    }
    plan.check()?;
    Ok(plan)
}
