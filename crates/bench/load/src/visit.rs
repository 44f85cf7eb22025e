//! Executes the steps of a visit on a target.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flaz_device::IoBuf;

use crate::data::{Contents, Data};
use crate::error::LoadError;
use crate::medium::Medium;
use crate::pass::{Engine, Pass};
use crate::pattern::{Order, Pattern};
use crate::plan::{Flush, Plan};
use crate::schedule::{Step, Visit, steps};
use crate::source::Source;
use crate::target::{DropCaches, Target, decided};
use crate::test::{Direction, Test};
use crate::ticker::{Ticker, is_interrupted};
use crate::writers::{self, Moved};

/// Record size of passes that are not measured: large, so that they are fast.
const FILL_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of writing passes in a visit, so that two visits never write the same data.
const PASSES_MAX: u64 = 8;

/// Shared by the thread of a visit and its observers.
#[derive(Debug, Default)]
pub struct Signals {
    /// Bytes done in the current visit.
    pub done: AtomicU64,
    /// Set when the campaign is to stop.
    pub stop: AtomicBool,
}

/// Executes visits, one after the other.
#[derive(Debug)]
pub struct Visitor<'a> {
    plan: &'a Plan,
    target: &'a Target,
    data: Data<'a>,
    signals: &'a Signals,
    drop_caches: DropCaches,
    /// The data of the whole target, if it comes from one pass.
    contents: Option<Contents>,
    pass: u64,
}

/// A sample.
pub type Sample = (Test, Moved);

impl<'a> Visitor<'a> {
    /// For a plan and a target that was created for it.
    #[must_use]
    pub fn new(plan: &'a Plan, target: &'a Target, signals: &'a Signals) -> Self {
        let piece = plan.record_bounds().0.max(fill_bytes(target));
        Self {
            plan,
            target,
            data: Data::new(plan, target.bytes(), piece),
            signals,
            drop_caches: decided(plan.method.drop_caches, uses_pages(plan, target)),
            contents: None,
            pass: 0,
        }
    }

    /// The data.
    #[must_use]
    pub fn data(&self) -> &Data<'a> {
        &self.data
    }

    /// Which cached pages are dropped between tests.
    #[must_use]
    pub fn drop_caches(&self) -> DropCaches {
        self.drop_caches
    }

    /// Executes a visit and returns the samples of the tests that count. `number` is that of the visit in the campaign.
    ///
    /// # Errors
    /// The first error; [`LoadError::Interrupted`].
    pub fn visit(&mut self, visit: &Visit, number: u64) -> Result<Vec<Sample>, LoadError> {
        self.signals.done.store(0, Ordering::Relaxed);
        self.pass = number * PASSES_MAX;
        let mut samples = Vec::new();
        for step in steps(visit.group, self.plan) {
            if self.signals.stop.load(Ordering::Relaxed) {
                return Err(LoadError::Interrupted);
            }
            match step {
                Step::Anew => {
                    self.contents = None;
                    self.target.make_anew()?;
                }
                Step::Fill => self.fill(visit)?,
                Step::DropCaches => self.target.drop_caches(self.drop_caches)?,
                Step::Pass { test, counts } => {
                    let moved = self.test(test, visit)?;
                    if counts {
                        samples.push((test, moved));
                    }
                }
                Step::Restore => self.restore()?,
                Step::Verify => self.verify()?,
            }
        }
        Ok(samples)
    }

    /// Bytes that a visit transfers, if the target contains (`filled`) data of its level.
    #[must_use]
    pub fn bytes(plan: &Plan, target: &Target, visit: &Visit, filled: bool) -> u64 {
        let passes = steps(visit.group, plan)
            .iter()
            .filter(|step| matches!(step, Step::Pass { .. } | Step::Verify))
            .count() as u64;
        let fill = steps(visit.group, plan).contains(&Step::Fill) && !filled;
        (passes + u64::from(fill)) * target.bytes()
    }

    /// Writes the whole target `times` times with data of the first level.
    ///
    /// # Errors
    /// As [`Visitor::visit`].
    pub fn precondition(&mut self, times: u32) -> Result<(), LoadError> {
        self.signals.done.store(0, Ordering::Relaxed);
        for time in 0..times {
            // Numbers from the other end, which no visit has.
            self.pass = u64::MAX - u64::from(time);
            self.contents = None;
            self.fill(&Visit {
                group: crate::test::Group::Write,
                record_bytes: FILL_BYTES_MAX,
                level: 0,
            })?;
        }
        self.contents = None;
        Ok(())
    }

    fn next_contents(&mut self, visit: &Visit) -> Result<Contents, LoadError> {
        let contents = self.data.contents(visit.level, visit.record_bytes, self.pass)?;
        self.pass = self.pass.wrapping_add(1);
        Ok(contents)
    }

    fn test(&mut self, test: Test, visit: &Visit) -> Result<Moved, LoadError> {
        let failed = |source: io::Error| {
            if is_interrupted(&source) {
                return LoadError::Interrupted;
            }
            LoadError::Test {
                test,
                record_bytes: visit.record_bytes,
                path: self.target.path().to_owned(),
                source,
            }
        };
        let pass = Pass {
            pattern: Pattern {
                order: test.order(),
                records: self.target.bytes_each() / visit.record_bytes,
                record_bytes: visit.record_bytes as usize,
                seed: self.plan.seed,
            },
            direction: test.direction(),
            stream: test.is_stream(),
            engine: self.plan.method.engine(),
            source: None,
            flush_timed: self.plan.method.flush == Flush::Timed,
        };
        let media = self.target.open(test.is_stream())?;
        let ticker = Ticker {
            done: &self.signals.done,
            stop: &self.signals.stop,
        };
        if test.direction() == Direction::Read {
            return writers::run(&media, &vec![pass; media.len()], &ticker).map_err(failed);
        }
        let rewrites_one = pass.pattern.order == Order::First;
        let contents = self.data.contents(visit.level, visit.record_bytes, self.pass)?;
        let before = self.contents.take();
        let pool = self.data.pool(contents)?;
        let passes = passes(pass, pool, self.target.bytes_each(), media.len(), rewrites_one);
        let moved = writers::run(&media, &passes, &ticker).map_err(failed)?;
        self.pass = self.pass.wrapping_add(1);
        // The next step restores what was rewritten.
        self.contents = if rewrites_one { before } else { Some(contents) };
        Ok(moved)
    }

    /// Writes the whole target with data of the visit's level, unless it already contains such data.
    fn fill(&mut self, visit: &Visit) -> Result<(), LoadError> {
        let wanted = self.next_contents(visit)?;
        if self
            .contents
            .is_some_and(|held| (held.level, held.chunk_bytes) == (wanted.level, wanted.chunk_bytes))
        {
            return Ok(());
        }
        self.contents = None;
        self.target.make_anew()?;
        let record_bytes = fill_bytes(self.target);
        let pass = Pass {
            pattern: Pattern {
                order: Order::Forward,
                records: self.target.bytes_each() / record_bytes,
                record_bytes: record_bytes as usize,
                seed: 0,
            },
            direction: Direction::Write,
            stream: false,
            engine: Engine::Synchronous,
            source: None,
            flush_timed: false,
        };
        let media = self.target.open(false)?;
        let ticker = Ticker {
            done: &self.signals.done,
            stop: &self.signals.stop,
        };
        let pool = self.data.pool(wanted)?;
        let passes = passes(pass, pool, self.target.bytes_each(), media.len(), false);
        writers::run(&media, &passes, &ticker).map_err(self.at("fill"))?;
        self.contents = Some(wanted);
        Ok(())
    }

    /// Writes the correct data into the first part of each writer, up to the length of the largest record.
    fn restore(&mut self) -> Result<(), LoadError> {
        let Some(contents) = self.contents else {
            return Ok(());
        };
        let mut record = IoBuf::new(self.plan.record_bounds().0 as usize);
        for (writer, medium) in self.target.open(false)?.iter().enumerate() {
            let base = writer as u64 * self.target.bytes_each();
            self.data.fill(contents, base, &mut record)?;
            medium
                .write(0, &record)
                .and_then(|()| medium.flush())
                .map_err(self.at("write to"))?;
        }
        Ok(())
    }

    /// Reads all data and compares it.
    fn verify(&mut self) -> Result<(), LoadError> {
        let Some(contents) = self.contents else {
            return Ok(());
        };
        let record_bytes = fill_bytes(self.target);
        let each = self.target.bytes_each();
        let media = self.target.open(false)?;
        let mut record = IoBuf::new(record_bytes as usize);
        let at = self.at("read back");
        let pool = self.data.pool(contents)?;
        for (writer, medium) in media.iter().enumerate() {
            for offset in (0..each).step_by(record_bytes as usize) {
                if self.signals.stop.load(Ordering::Relaxed) {
                    return Err(LoadError::Interrupted);
                }
                medium.read(offset, &mut record).map_err(&at)?;
                pool.verify(writer as u64 * each + offset, &record)
                    .map_err(|difference| LoadError::Mismatch {
                        path: self.target.path().to_owned(),
                        writer,
                        difference,
                    })?;
                self.signals.done.fetch_add(record_bytes, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn at(&self, what: &'static str) -> impl Fn(io::Error) -> LoadError + use<'a> {
        let path = self.target.path();
        move |source| {
            if is_interrupted(&source) {
                LoadError::Interrupted
            } else {
                LoadError::at(what, path)(source)
            }
        }
    }
}

/// Minimum number of bytes that a campaign transfers, in the planned rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// To the target.
    pub written: u64,
    /// From it.
    pub read: u64,
}

impl Traffic {
    /// For a plan on a target of `bytes` bytes.
    #[must_use]
    pub fn of(plan: &Plan, bytes: u64) -> Self {
        let mut round = Self { written: 0, read: 0 };
        // The target is filled once for each level, by a test or before one.
        let mut filled = None;
        for visit in crate::schedule::round(plan, 0) {
            for step in steps(visit.group, plan) {
                match step {
                    Step::Fill if filled != Some(visit.level) => round.written += bytes,
                    Step::Verify => round.read += bytes,
                    Step::Pass { test, .. } if test.direction() == Direction::Write => round.written += bytes,
                    Step::Pass { .. } => round.read += bytes,
                    _ => continue,
                }
                filled = Some(visit.level);
            }
        }
        let rounds = u64::from(plan.rounds.runs) + u64::from(plan.rounds.warm_up);
        Self {
            written: round.written.saturating_mul(rounds)
                + bytes.saturating_mul(u64::from(plan.rounds.precondition)),
            read: round.read.saturating_mul(rounds),
        }
    }
}

/// Whether tests leave pages in the page cache.
fn uses_pages(plan: &Plan, target: &Target) -> bool {
    !target.is_direct() || plan.tests.iter().any(|test| test.is_stream())
}

/// The largest power of two that divides each writer's part, up to [`FILL_BYTES_MAX`].
fn fill_bytes(target: &Target) -> u64 {
    (1 << target.bytes_each().trailing_zeros()).min(FILL_BYTES_MAX)
}

/// One pass for each writer, each with its own data.
fn passes<'p>(
    pass: Pass<'p>,
    pool: &'p flaz_data::Pool,
    bytes_each: u64,
    writers: usize,
    numbered: bool,
) -> Vec<Pass<'p>> {
    (0..writers as u64)
        .map(|writer| Pass {
            source: Some(Source {
                pool,
                base: writer * bytes_each,
                numbered,
            }),
            ..pass
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Bytes, FamilyWord, Wanted};
    use crate::schedule::round;
    use crate::test::Group;

    fn plan(path: &std::path::Path, family: FamilyWord) -> Plan {
        Wanted {
            target: Some(path.to_owned()),
            tests: Some(vec!["all".to_owned()]),
            records: Some(vec![Bytes(4096), Bytes(64 << 10)]),
            levels: Some(vec!["50".parse().unwrap(), "random".parse().unwrap()]),
            family: Some(family),
            size: Some(Bytes(512 << 10)),
            writers: Some(2),
            drop_caches: Some(DropCaches::Target),
            verify: Some(true),
            ..Wanted::default()
        }
        .plan()
        .unwrap()
    }

    #[test]
    fn the_target_contains_the_data_of_each_visit() {
        for family in [FamilyWord::Run, FamilyWord::Iozone] {
            let folder = tempfile::tempdir().unwrap();
            let plan = plan(folder.path(), family);
            let target = Target::new(folder.path(), &plan.target_options()).unwrap();
            let signals = Signals::default();
            let mut visitor = Visitor::new(&plan, &target, &signals);
            for (number, visit) in round(&plan, 0).into_iter().enumerate() {
                let samples = visitor.visit(&visit, number as u64).unwrap();
                assert_eq!(samples.len(), visit.group.tests().count());
                assert!(
                    samples
                        .iter()
                        .all(|(_, moved)| moved.bytes == target.bytes() && moved.seconds > 0.0)
                );
            }
        }
    }

    #[test]
    fn wrong_data_from_the_target_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path(), FamilyWord::Run);
        let target = Target::new(folder.path(), &plan.target_options()).unwrap();
        let signals = Signals::default();
        let mut visitor = Visitor::new(&plan, &target, &signals);
        let visit = Visit {
            group: Group::RecordRewrite,
            record_bytes: 4096,
            level: 1,
        };
        visitor.visit(&visit, 0).unwrap();
        // A misdirected write.
        target.open(true).unwrap()[1].write(100_000, b"astray").unwrap();
        match visitor.verify() {
            Err(LoadError::Mismatch {
                writer, difference, ..
            }) => {
                assert_eq!((writer, difference.offset), (1, target.bytes_each() + 100_000));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_level_is_filled_once_and_no_two_passes_write_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path(), FamilyWord::Run);
        let target = Target::new(folder.path(), &plan.target_options()).unwrap();
        let signals = Signals::default();
        let mut visitor = Visitor::new(&plan, &target, &signals);
        let visit = |group, level| Visit {
            group,
            record_bytes: 4096,
            level,
        };
        visitor.visit(&visit(Group::Read, 0), 0).unwrap();
        let first = visitor.contents.unwrap();
        visitor.visit(&visit(Group::Strided, 0), 1).unwrap();
        assert_eq!(
            visitor.contents,
            Some(first),
            "it holds data of the level already"
        );
        visitor.visit(&visit(Group::Random, 0), 2).unwrap();
        let written = visitor.contents.unwrap();
        assert_ne!(written.pass, first.pass);
        visitor.visit(&visit(Group::Read, 1), 3).unwrap();
        let other = visitor.contents.unwrap();
        assert!(other.level == 1 && other.pass != written.pass);
        let mut seen = [[0; 512], [0; 512]];
        visitor.data.fill(first, 0, &mut seen[0]).unwrap();
        visitor.data.fill(written, 0, &mut seen[1]).unwrap();
        assert_ne!(seen[0], seen[1]);
    }

    #[test]
    fn a_stop_ends_a_visit_without_a_sample() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path(), FamilyWord::Run);
        let target = Target::new(folder.path(), &plan.target_options()).unwrap();
        let signals = Signals::default();
        signals.stop.store(true, Ordering::Relaxed);
        let mut visitor = Visitor::new(&plan, &target, &signals);
        for visit in round(&plan, 0) {
            assert!(matches!(visitor.visit(&visit, 0), Err(LoadError::Interrupted)));
        }
    }

    #[test]
    fn traffic_equals_the_bytes_of_a_round() {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = plan(folder.path(), FamilyWord::Run);
        plan.tests = vec![Test::Write, Test::Read];
        plan.records_bytes = vec![4096];
        plan.method.verify = false;
        plan.rounds.runs = 3;
        plan.rounds.precondition = 2;
        let traffic = Traffic::of(&plan, 1000);
        // Two levels, three rounds: a write and a read each; a read that comes first needs a fill.
        assert_eq!(traffic.read, 6000);
        assert!((8000..=14_000).contains(&traffic.written) && traffic.written.is_multiple_of(1000));
    }
}
