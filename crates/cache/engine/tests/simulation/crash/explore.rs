//! From a workload to crash states, and checks of each.
//!
//! A workload is run once, and every relevant moment of it is kept. Several plans turn a moment into crashed disks; each of
//! these starts a new life, which reads everything and is checked against the oracle. Some of these lives are watched as
//! well and crash again.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Once;
use std::time::Duration;

use flaz_engine::settings::StrictFlush;
use flaz_sim::rng::splitmix;
use flaz_sim::{CrashPlan, FaultRates, Rng};

use super::damage::Damage;
use super::oracle::{Crash, Ground};
use super::run::{Kinds, Life, Moment, OpeningFaults, Past, Script, Start, live};
use super::start::{filled, records_of};
use super::workload::{Generator, MODES, Scenario, Shape, Step, failing, failing_opening, unsettle};

/// Time within which the mark of a flush is certainly stable, if it follows the reply: some writes and flushes of the
/// fastest disk, and of the extents and the summary that it may have to wait for.
const MARKED_WITHIN: Duration = Duration::from_millis(15);
/// Number of consecutive operations of the cache device that a mark may wait for if each of them stalls: a mark that is being
/// written, the mark itself, and the flush that makes it stable.
const STALLS_MAX: u32 = 3;

/// How much of a scenario is explored.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Approximate number of crash states of one scenario.
    pub states: u64,
    /// Moments of one life.
    pub moments: usize,
    /// Random plans per moment, if there are too many subsets.
    pub random_plans: u64,
    /// One in this many crash states continues: writes, a clean stop, a warm start.
    pub one_in_lives_on: u64,
    /// One in this many is crashed again.
    pub one_in_crashes_again: u64,
    /// One in this many is recovered twice.
    pub one_in_twice: u64,
    /// Devices fail in one in this many lives after a crash, and in as many openings.
    pub one_in_fails: u64,
    /// In one in this many, a closed region of the cache device is damaged.
    pub one_in_damaged: u64,
    /// One in this many is started a second time, with damage to the latest extents.
    pub one_in_damaged_newest: u64,
}

impl Budget {
    pub const USUAL: Self = Self {
        states: 250,
        moments: 30,
        random_plans: 64,
        one_in_lives_on: 6,
        one_in_crashes_again: 24,
        one_in_twice: 12,
        one_in_fails: 16,
        one_in_damaged: 16,
        one_in_damaged_newest: 8,
    };

    /// Every moment, every plan.
    pub const ALL: Self = Self {
        states: u64::MAX,
        moments: usize::MAX,
        ..Self::USUAL
    };

    /// For tests of the harness.
    pub const SMALL: Self = Self {
        states: 60,
        moments: 10,
        random_plans: 8,
        ..Self::USUAL
    };
}

/// Counts of what was explored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub scenarios: u64,
    /// Scenarios with changed settings.
    pub unsettled: u64,
    /// Scenarios with large requests.
    pub large: u64,
    pub states: u64,
    pub kills: u64,
    pub power_cuts: u64,
    pub second_crashes: u64,
    pub lived_on: u64,
    pub twice: u64,
    /// Lives after a crash that began with a warm cache.
    pub warm: u64,
    /// Steps of the longest life.
    pub steps_max: u64,
    /// Digest of everything that happened: equal for equal explorations.
    pub digest: u64,
    /// The engine's counts, in workloads and in lives after crashes.
    pub did: flaz_engine::stats::Counts,
    pub kinds: Kinds,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.scenarios += other.scenarios;
        self.unsettled += other.unsettled;
        self.large += other.large;
        self.states += other.states;
        self.kills += other.kills;
        self.power_cuts += other.power_cuts;
        self.second_crashes += other.second_crashes;
        self.lived_on += other.lived_on;
        self.twice += other.twice;
        self.warm += other.warm;
        self.steps_max = self.steps_max.max(other.steps_max);
        self.digest ^= other.digest;
        self.did.add(&other.did);
        self.kinds.add(&other.kinds);
    }
}

/// A crash state that violates the contract.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    /// The violation.
    pub what: String,
    /// The events that led to it, outermost first.
    pub path: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        for step in &self.path {
            writeln!(f, "  {step}")?;
        }
        Ok(())
    }
}

/// A filled cache and the common parameters of the scenarios on it.
pub struct Base {
    pub shape: Shape,
    pub start: Start,
}

impl Base {
    /// # Errors
    /// [`Failure`] if even filling it fails.
    pub fn new(base: u64) -> Result<Self, Failure> {
        let shape = Shape::of_base(base);
        let start = caught(|| filled(base, &shape)).map_err(|what| Failure {
            seed: base * super::workload::SCENARIOS_A_BASE,
            what,
            path: vec![format!("filling the cache of base {base}")],
        })?;
        Ok(Self { shape, start })
    }
}

/// Explores crashes of one scenario.
///
/// # Errors
/// The first [`Failure`].
pub fn explore(
    base: &Base,
    scenario: &Scenario,
    budget: &Budget,
    counts: &mut Counts,
) -> Result<(), Failure> {
    let mut explorer = Explorer {
        base,
        budget: *budget,
        rng: Rng::new(scenario.seed ^ 0xe4b1),
        block: super::number_from_env("FLAZ_BLOCK"),
        forgetful_host: scenario.forgetful_host,
        unsettled: scenario.unsettled,
        counts: Counts::default(),
        path: Vec::new(),
    };
    let outcome = explorer.scenario(scenario);
    explorer.counts.scenarios = 1;
    explorer.counts.unsettled = u64::from(scenario.unsettled);
    explorer.counts.large = u64::from(base.shape.large.is_some());
    counts.add(&explorer.counts);
    outcome.map_err(|what| Failure {
        seed: scenario.seed,
        what,
        path: explorer.path,
    })
}

thread_local! {
    /// `Some` during a life: panics go here, not to the terminal.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs a life; a panic becomes an error.
fn caught<T>(life: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let noted = PANIC.with_borrow_mut(|panic| match panic {
                Some(text) => {
                    *text = info.to_string();
                    true
                }
                None => false,
            });
            if !noted {
                usual(info);
            }
        }));
    });
    PANIC.set(Some(String::new()));
    let outcome = catch_unwind(AssertUnwindSafe(life));
    let text = PANIC.take();
    outcome.unwrap_or_else(|_| Err(text.unwrap_or_default()))
}

struct Explorer<'a> {
    base: &'a Base,
    budget: Budget,
    rng: Rng,
    /// A block to print records of.
    block: Option<u64>,
    forgetful_host: bool,
    unsettled: bool,
    counts: Counts,
    path: Vec<String>,
}

/// The plan of one crash.
#[derive(Clone, Copy, Debug)]
struct Plan {
    crash: Crash,
    /// Applies to the volatile writes of the origin, then those of the cache device.
    both: CrashPlan,
}

impl Explorer<'_> {
    fn scenario(&mut self, scenario: &Scenario) -> Result<(), String> {
        let script = Script {
            seed: scenario.seed,
            steps: &scenario.steps,
            watch: true,
            stop: self.rng.below(4) == 0,
            stop_beside: scenario.stop_beside,
            cache_faults: scenario.cache_faults,
            origin_faults: scenario.origin_faults,
            forgetful_host: scenario.forgetful_host,
            ..Script::default()
        };
        self.path = vec![format!("in the workload of {} steps", scenario.steps.len())];
        let start = &self.base.start;
        let life = self.live(start, &script)?;
        let moments = self.choose(life.moments.len(), self.budget.moments);
        let states_each = self.budget.states.div_ceil(moments.len().max(1) as u64);
        for index in moments {
            let moment = &life.moments[index];
            self.crashes(&life, moment, states_each as usize, 1)?;
        }
        Ok(())
    }

    fn live(&mut self, start: &Start, script: &Script<'_>) -> Result<Life, String> {
        let life = caught(|| live(&self.base.shape, start, script))?;
        self.counts.steps_max = self.counts.steps_max.max(life.steps);
        self.counts.did.add(&life.did);
        self.counts.kinds.add(&life.kinds);
        self.counts.digest = splitmix(self.counts.digest ^ life.trace_hash);
        Ok(life)
    }

    /// Chooses up to `most` of `count` numbers, in order.
    fn choose(&mut self, count: usize, most: usize) -> Vec<usize> {
        let mut left = most.min(count) as u64;
        let mut chosen = Vec::new();
        for number in 0..count {
            if self.rng.below((count - number) as u64) < left {
                chosen.push(number);
                left -= 1;
            }
        }
        chosen
    }

    /// Explores up to `most` crashes at one moment.
    fn crashes(&mut self, life: &Life, moment: &Moment, most: usize, depth: u32) -> Result<(), String> {
        let plans = self.plans(moment);
        let chosen = self.choose(plans.len(), most);
        let grounds =
            [Crash::Kill, Crash::PowerCut].map(|crash| Rc::new(life.oracle.ground_at(moment.tick, crash)));
        let [kill, cut] = grounds;
        for index in chosen {
            let plan = plans[index];
            let ground = if plan.crash == Crash::Kill { &kill } else { &cut };
            let start = crashed(moment, plan, ground);
            let path_before = self.path.len();
            if self.block.is_some() {
                let events = life
                    .moments
                    .iter()
                    .take_while(|before| before.event <= moment.event);
                let told = events.map(|event| format!("  event {}: {}", event.event, event.what));
                self.path.extend(told);
            }
            self.path.push(format!(
                "{:?} after device event {} ({}), {:?} of {} volatile writes of the origin and {} of the cache device",
                plan.crash,
                moment.event,
                moment.what,
                plan.both,
                moment.volatile(plan.crash).0,
                moment.volatile(plan.crash).1,
            ));
            self.counts.states += 1;
            match plan.crash {
                Crash::Kill => self.counts.kills += 1,
                Crash::PowerCut => self.counts.power_cuts += 1,
            }
            self.counts.second_crashes += u64::from(depth > 1);
            self.recover(&start, depth)?;
            self.damage_newest(life, moment, &start, index as u64)?;
            self.path.truncate(path_before);
        }
        Ok(())
    }

    /// Sometimes starts once more, with damage to one of the latest extents. Data that was flushed and marked by the time
    /// of the crash must be read, or give an error, or the start must be refused.
    fn damage_newest(
        &mut self,
        life: &Life,
        moment: &Moment,
        start: &Start,
        index: u64,
    ) -> Result<(), String> {
        let mut rng = Rng::new(splitmix(life.trace_hash ^ moment.event << 20 ^ index));
        let past = start.past;
        // Other damage is covered only if it is the only damage.
        let alone = !past.rotten && !past.damaged && !past.forgetful;
        let strict = self.base.shape.settings.strict_flush == StrictFlush::Always;
        let unmarked = moment.past.unmarked && !strict;
        if !alone || unmarked || rng.below(self.budget.one_in_damaged_newest) > 0 {
            return Ok(());
        }
        let mut before = life.moments.iter().rev();
        let within = MARKED_WITHIN + STALLS_MAX * life.stall;
        let marked = match before.find(|other| other.time.after(within) <= moment.time) {
            _ if strict => moment.tick,
            Some(due) => due.tick,
            None => 0,
        };
        let start = Start {
            ground: Rc::new(life.oracle.ground_of_durable(moment.tick, marked)),
            ..start.clone()
        };
        let script = Script {
            seed: rng.next_u64(),
            read_first: true,
            plain: true,
            forgetful_host: self.forgetful_host,
            damage: Some(Damage::Newest(rng.next_u64())),
            ..Script::default()
        };
        self.path.push(format!(
            "in a life after it, simulated with seed {:#x}, {:?} before it",
            script.seed,
            script.damage.expect("there is")
        ));
        let path_before = self.path.len() - 1;
        self.live(&start, &script)?;
        self.path.truncate(path_before);
        Ok(())
    }

    /// The crashes worth trying at a moment.
    fn plans(&mut self, moment: &Moment) -> Vec<Plan> {
        let mut plans = Vec::new();
        for crash in [Crash::Kill, Crash::PowerCut] {
            if crash == Crash::PowerCut && moment.past.forgetful {
                continue;
            }
            let (origin, cache) = moment.volatile(crash);
            let random = self.budget.random_plans;
            let seed = self.rng.next_u64();
            let each = CrashPlan::explore(origin + cache, random, seed);
            plans.extend(each.into_iter().map(|both| Plan { crash, both }));
        }
        plans
    }

    /// Starts again after a crash and verifies everything.
    fn recover(&mut self, start: &Start, depth: u32) -> Result<(), String> {
        let lives_on = self.rng.below(self.budget.one_in_lives_on) == 0;
        let crashes_again = depth < 2 && self.rng.below(self.budget.one_in_crashes_again) == 0;
        // Sometimes clients start without a full read first.
        let read_first = !lives_on || self.rng.below(3) > 0;
        let twice = read_first && self.rng.below(self.budget.one_in_twice) == 0;
        let seed = self.rng.next_u64();
        let mut steps = if lives_on || crashes_again {
            self.more_steps(depth)
        } else {
            Vec::new()
        };
        let mut mode = None;
        if self.unsettled {
            let mut rng = Rng::new(splitmix(!seed));
            mode = Some(MODES[rng.below(4) as usize]);
            if !steps.is_empty() {
                unsettle(&mut steps, &mut rng);
            }
        }
        let troubles = self.troubles(start, seed, depth);
        let script = Script {
            seed,
            mode,
            forgetful_host: self.forgetful_host,
            read_first,
            plain: !lives_on,
            steps: &steps,
            stop: lives_on,
            stop_beside: troubles.stop_beside,
            watch: crashes_again,
            watch_end: troubles.opening.is_some(),
            cache_faults: troubles.cache,
            origin_faults: troubles.origin,
            opening_faults: troubles.opening,
            damage: troubles.damage.map(Damage::Closed),
        };
        let path_before = self.path.len();
        self.path.push(format!(
            "in life {depth} after it, simulated with seed {seed:#x}, {} steps{}{}",
            steps.len(),
            mode.map_or(String::new(), |mode| format!(", {mode}")),
            troubles.tell(),
        ));
        if let Some(block) = self.block {
            let records = records_of(start, block);
            let told = records.into_iter().map(|record| format!("  before it: {record}"));
            self.path.extend(told);
        }
        self.counts.lived_on += u64::from(lives_on);
        let life = self.live(start, &script)?;
        self.counts.warm += u64::from(life.warm);
        self.counts.kinds.failing_lives += u64::from(life.failed);
        if life.refused {
            // The next opening must find all contents.
            let end = life.moments.last().expect("the end is a moment");
            self.crashes(&life, end, 4, depth + 1)?;
        }
        // Not comparable after errors; and damage depends on which data is stable.
        if twice && troubles.none() {
            self.counts.twice += 1;
            let other = Script {
                seed: splitmix(seed),
                mode,
                forgetful_host: self.forgetful_host,
                read_first: true,
                plain: true,
                ..Script::default()
            };
            let again = self.live(start, &other)?;
            if again.first_seen != life.first_seen {
                let differ = again
                    .first_seen
                    .iter()
                    .zip(&life.first_seen)
                    .filter(|(a, b)| a != b)
                    .count();
                return Err(format!("recovered twice, {differ} sectors differ"));
            }
        }
        if crashes_again {
            for index in self.choose(life.moments.len(), 4) {
                self.crashes(&life, &life.moments[index], 4, depth + 1)?;
            }
        }
        self.path.truncate(path_before);
        Ok(())
    }

    /// The faults of a life after a crash. The rest of the life stays as it would be without them.
    fn troubles(&self, start: &Start, seed: u64, depth: u32) -> Troubles {
        let mut rng = Rng::new(splitmix(seed ^ 0x7b0b1e));
        let mut troubles = Troubles::default();
        // Damage and faults are not combined, because one may hide the other; and the last life has no faults.
        if rng.below(self.budget.one_in_damaged) == 0 {
            troubles.damage = (!start.past.rotten).then_some(rng.next_u64());
        } else if rng.below(self.budget.one_in_fails) == 0 && depth < 3 && !start.past.rotten {
            // Data read from the origin is trusted.
            let (cache, origin) = (
                failing_opening(&mut rng),
                FaultRates {
                    read_flip_ppm: 0,
                    ..failing_opening(&mut rng)
                },
            );
            troubles.opening = Some(match rng.below(4) {
                0 => OpeningFaults { cache, origin },
                1 => OpeningFaults {
                    cache: FaultRates::default(),
                    origin,
                },
                _ => OpeningFaults {
                    cache,
                    origin: FaultRates::default(),
                },
            });
        }
        if rng.below(self.budget.one_in_fails) == 0 {
            troubles.fails = true;
            match rng.below(3) {
                0 => troubles.origin = failing(&mut rng),
                1 => troubles.cache = failing(&mut rng),
                _ => (troubles.cache, troubles.origin) = (failing(&mut rng), failing(&mut rng)),
            }
        }
        troubles.stop_beside = rng.below(3) == 0;
        troubles
    }

    fn more_steps(&mut self, depth: u32) -> Vec<Step> {
        let first_version = 100_000 * u64::from(depth);
        let mut generator = Generator::new(&self.base.shape, self.rng.fork(), first_version);
        let count = 2 + self.rng.below(10);
        let each = (0..count).map(|n| Step {
            phase: 0,
            client: (n % 2) as u32,
            op: generator.op(),
        });
        each.collect()
    }
}

/// The faults of a life after a crash.
#[derive(Clone, Copy, Debug, Default)]
struct Troubles {
    /// Devices fail while the cache is served.
    fails: bool,
    cache: FaultRates,
    origin: FaultRates,
    opening: Option<OpeningFaults>,
    damage: Option<u64>,
    stop_beside: bool,
}

impl Troubles {
    fn none(&self) -> bool {
        !self.fails && self.opening.is_none() && self.damage.is_none()
    }

    fn tell(&self) -> String {
        let all = [
            (self.fails, ", devices fail"),
            (self.opening.is_some(), ", devices fail at openings"),
            (self.damage.is_some(), ", a closed region is damaged before it"),
            (self.stop_beside, ", a stop does not wait for clients"),
        ];
        all.iter().filter(|(is, _)| *is).map(|(_, what)| *what).collect()
    }
}

impl Moment {
    /// Numbers of writes of the origin and of the cache device that such a crash may undo.
    fn volatile(&self, crash: Crash) -> (usize, usize) {
        match crash {
            Crash::Kill => (
                self.origin.unlanded_writes().len(),
                self.cache.unlanded_writes().len(),
            ),
            Crash::PowerCut => (
                self.origin.volatile_writes().len(),
                self.cache.volatile_writes().len(),
            ),
        }
    }
}

/// The state after a crash.
fn crashed(moment: &Moment, plan: Plan, ground: &Rc<Ground>) -> Start {
    let (origin_writes, _) = moment.volatile(plan.crash);
    let chooser = RefCell::new(plan.both.chooser());
    let survives = |write, sector| (*chooser.borrow_mut())(write, sector);
    let of_cache = |write: usize, sector| survives(origin_writes + write, sector);
    let (origin, cache) = match plan.crash {
        Crash::Kill => (moment.origin.kill(survives), moment.cache.kill(of_cache)),
        Crash::PowerCut => (moment.origin.cut(survives), moment.cache.cut(of_cache)),
    };
    let past = Past {
        unmarked: true,
        forgetful: plan.crash == Crash::Kill && (moment.past.forgetful || moment.flush_failed),
        ..moment.past
    };
    Start {
        cache,
        origin,
        ground: Rc::clone(ground),
        past,
        memory: moment.memory,
        policies: moment.policies.clone(),
        sizes: moment.sizes.clone(),
    }
}
