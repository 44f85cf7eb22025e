//! The oracle: the allowed contents of each sector.
//!
//! Before a run, a sector's [`Ground`] holds its allowed contents; during a run it collects the writes to it. Both
//! determine what a read may return, and what the sector may hold after a crash at any earlier tick:
//!
//! - a write is *sure* after the death of the process if it was acknowledged; after a power cut, if it was
//!   acknowledged before a flush was called that then succeeded, or was FUA and acknowledged;
//! - a sector holds any write (or the ground), except those older than a sure write that began after they had ended: so the
//!   last sure write or any later one, including one in flight;
//! - a failed write may have happened, in whole or in part, until a later sure write; a failed flush makes nothing sure,
//!   and nothing written before it ended can be made sure by a later flush: the data that it covered may be lost;
//! - data that a read has returned stays: from then on it is the only allowed value of the ground, and, if no write was in
//!   flight, the only allowed value of the sector until it is written again, even after the death of the process.
//!
//! Time is a counter of starts and ends. A trimmed sector is [`Print::ANY`] until it is read, unless the device is known to
//! return zeroes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::sectors::{BLOCK_SECTORS, Print, SECTOR, describe, print_of};

/// A run of sectors that the workload uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// First sector on the device.
    pub first: u64,
    /// Number of sectors.
    pub count: u64,
}

/// The two kinds of crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies: the devices keep all completed writes.
    Kill,
    /// Both devices lose power: each may lose any unflushed writes.
    PowerCut,
}

/// The allowed contents of a sector before a run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SectorGround {
    now: Vec<Print>,
    /// The same after a power cut, if nothing is written or flushed any more.
    durable: Vec<Print>,
}

/// The allowed contents of all sectors before a run, in the order of the spots.
#[derive(Clone, Debug)]
pub struct Ground {
    sectors: Vec<SectorGround>,
    /// Everything is durable: data read now survives a power cut.
    settled: bool,
}

impl Ground {
    /// Every sector of the spots holds the value of `print`, durably.
    pub fn known(spots: &[Spot], print: impl Fn(u64) -> Print) -> Self {
        let each = spots.iter().flat_map(|spot| spot.first..spot.first + spot.count);
        let sectors = each
            .map(|sector| SectorGround {
                now: vec![print(sector)],
                durable: Vec::new(),
            })
            .collect();
        Self {
            sectors,
            settled: true,
        }
    }

    /// The same, with everything durable.
    #[must_use]
    pub fn settled(mut self) -> Self {
        for sector in &mut self.sectors {
            sector.durable.clear();
        }
        self.settled = true;
        self
    }
}

#[derive(Clone, Copy, Debug)]
struct Version {
    print: Print,
    start: u64,
    /// `None` while in flight.
    end: Option<u64>,
    fua: bool,
    /// It ended with an error.
    failed: bool,
}

impl Version {
    /// It was acknowledged by `tick`.
    fn acknowledged(&self, tick: u64) -> bool {
        self.ended(tick) && !self.failed
    }

    /// It was acknowledged or failed by `tick`.
    fn ended(&self, tick: u64) -> bool {
        self.end.is_some_and(|end| end <= tick)
    }
}

#[derive(Clone, Debug, Default)]
struct History {
    /// The value of the ground that a read returned, and when.
    seen: Option<(u64, Print)>,
    /// The value of the last read without a write in flight, and when the read ended.
    observed: Option<(u64, Print)>,
    versions: Vec<Version>,
}

/// Flushes of clients, as (called, ended).
#[derive(Clone, Debug, Default)]
struct Flushes {
    succeeded: Vec<(u64, u64)>,
    /// Flushes that reported the origin's failure.
    failed: Vec<(u64, u64)>,
}

impl Flushes {
    /// Whether a write in flight from `start` to `end` is stable at `tick`: a flush called after it has succeeded, and no
    /// failed flush can have lost it before.
    fn cover(&self, start: u64, end: u64, tick: u64) -> bool {
        let harmless = |answered| !self.failed.iter().any(|f| f.0 < answered && start < f.1);
        let mut good = self.succeeded.iter();
        good.any(|&(called, answered)| end < called && answered <= tick && harmless(answered))
    }
}

/// A write in progress.
#[must_use]
pub struct Writing {
    start: u64,
    first: usize,
    count: usize,
}

/// See the module's documentation.
pub struct Oracle {
    ground: Rc<Ground>,
    spots: Rc<[Spot]>,
    sectors: RefCell<Vec<History>>,
    flushes: RefCell<Flushes>,
    now: Cell<u64>,
}

impl Oracle {
    pub fn new(spots: Rc<[Spot]>, ground: Rc<Ground>) -> Self {
        let sectors = RefCell::new(vec![History::default(); ground.sectors.len()]);
        Self {
            ground,
            spots,
            sectors,
            flushes: RefCell::default(),
            now: Cell::new(1),
        }
    }

    fn tick(&self) -> u64 {
        self.now.set(self.now.get() + 1);
        self.now.get()
    }

    /// The current tick.
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// Index of a sector's history. The sectors of a request are in one spot.
    fn place(&self, sector: u64) -> usize {
        let mut before = 0;
        for spot in &*self.spots {
            if (spot.first..spot.first + spot.count).contains(&sector) {
                return before + (sector - spot.first) as usize;
            }
            before += spot.count as usize;
        }
        panic!("the workload does not use sector {sector}");
    }

    /// Whether a client has written, or tried to write, to the blocks of these sectors, now or in an earlier life.
    pub fn was_written(&self, sector: u64, count: u64) -> bool {
        let (first, last) = (
            sector / BLOCK_SECTORS,
            (sector + count.max(1) - 1) / BLOCK_SECTORS,
        );
        let blocks = first * BLOCK_SECTORS..(last + 1) * BLOCK_SECTORS;
        let each = self
            .spots
            .iter()
            .flat_map(|spot| spot.first..spot.first + spot.count);
        let histories = self.sectors.borrow();
        each.zip(&*histories)
            .zip(&self.ground.sectors)
            .filter(|((sector, _), _)| blocks.contains(sector))
            .any(|((_, history), ground)| {
                !history.versions.is_empty() || ground.now != [Print::of_version(0)]
            })
    }

    pub fn write_starts(&self, sector: u64, count: u64, print: Print) -> Writing {
        let start = self.tick();
        let first = if count == 0 { 0 } else { self.place(sector) };
        let count = count as usize;
        for history in &mut self.sectors.borrow_mut()[first..first + count] {
            history.versions.push(Version {
                print,
                start,
                end: None,
                fua: false,
                failed: false,
            });
        }
        Writing { start, first, count }
    }

    /// The write was acknowledged; with `fua` it is durable.
    pub fn write_ends(&self, writing: &Writing, fua: bool) {
        self.write_answered(writing, fua, false);
    }

    /// The write failed.
    pub fn write_fails(&self, writing: &Writing) {
        self.write_answered(writing, false, true);
    }

    fn write_answered(&self, writing: &Writing, fua: bool, failed: bool) {
        let end = self.tick();
        for history in &mut self.sectors.borrow_mut()[writing.first..writing.first + writing.count] {
            for version in history.versions.iter_mut().filter(|v| v.start == writing.start) {
                version.end = Some(end);
                version.fua = fua;
                version.failed = failed;
            }
        }
    }

    pub fn flush_starts(&self) -> u64 {
        self.tick()
    }

    pub fn flush_ends(&self, start: u64) {
        let end = self.tick();
        self.flushes.borrow_mut().succeeded.push((start, end));
    }

    /// The flush failed with an error of the origin.
    pub fn flush_fails(&self, start: u64) {
        let end = self.tick();
        self.flushes.borrow_mut().failed.push((start, end));
    }

    pub fn read_starts(&self) -> u64 {
        self.tick()
    }

    /// Checks the data returned by a read that started at `start` and ends now, and learns from it.
    ///
    /// # Errors
    /// The contents of a sector and its allowed contents.
    pub fn read_ends(
        &self,
        start: u64,
        sector: u64,
        data: &[u8],
        seen: &mut Vec<Print>,
    ) -> Result<(), String> {
        let now = self.tick();
        let first = self.place(sector);
        let mut sectors = self.sectors.borrow_mut();
        for (index, bytes) in data.chunks_exact(SECTOR).enumerate() {
            let (number, history) = (sector + index as u64, &mut sectors[first + index]);
            let ground = &self.ground.sectors[first + index].now;
            let print = print_of(number, bytes);
            seen.push(print);
            if !history.may_be(print, ground, start) {
                return Err(format!(
                    "sector {number} (block {}) reads as {}; it may be {}; its history: {}",
                    number / BLOCK_SECTORS,
                    describe(number, bytes),
                    list(history.candidates(ground, start, |v| v.acknowledged(start))),
                    history.tell(ground),
                ));
            }
            if history.versions.iter().all(|v| v.ended(start)) {
                history.observed = Some((now, print));
            }
            let written = history
                .versions
                .iter()
                .any(|v| v.print == print || v.print == Print::ANY);
            if history.seen.is_none() && !written {
                history.seen = Some((now, print));
            }
        }
        Ok(())
    }

    /// The allowed contents of all sectors after a crash at `tick`.
    pub fn ground_at(&self, tick: u64, crash: Crash) -> Ground {
        let after_cut = self.ground_of_durable(tick, tick);
        match crash {
            Crash::PowerCut => after_cut,
            Crash::Kill => {
                let histories = self.sectors.borrow();
                let each = histories.iter().zip(&self.ground.sectors).zip(after_cut.sectors);
                let sectors = each.map(|((history, ground), after_cut)| SectorGround {
                    now: history.after_kill(&ground.now, tick),
                    durable: after_cut.now,
                });
                Ground {
                    sectors: sectors.collect(),
                    settled: false,
                }
            }
        }
    }

    /// The same, if only data that was durable at the tick `since` is sure. After damage that is the data marked by then:
    /// it is read, or gives an error.
    pub fn ground_of_durable(&self, tick: u64, since: u64) -> Ground {
        let flushes = self.flushes.borrow();
        let durable = |v: &Version| {
            v.acknowledged(since) && (v.fua || v.end.is_some_and(|end| flushes.cover(v.start, end, since)))
        };
        let kept = self.ground.settled || flushes.cover(0, 0, since);
        let histories = self.sectors.borrow();
        let each = histories.iter().zip(&self.ground.sectors);
        let sectors = each.map(|(history, ground)| SectorGround {
            now: if kept {
                history.candidates(&ground.now, tick, durable)
            } else {
                history.candidates_over(&ground.durable, tick, durable)
            },
            durable: Vec::new(),
        });
        Ground {
            sectors: sectors.collect(),
            settled: true,
        }
    }
}

impl History {
    /// The allowed contents of the sector at `tick`, if the writes selected by `sure` are certain to be present.
    fn candidates(&self, ground: &[Print], tick: u64, sure: impl Fn(&Version) -> bool) -> Vec<Print> {
        match self.seen {
            Some((at, print)) if at <= tick => self.candidates_over(&[print], tick, sure),
            _ => self.candidates_over(ground, tick, sure),
        }
    }

    /// The allowed contents of the sector if the process dies at `tick`: as observed, or written since.
    fn after_kill(&self, ground: &[Print], tick: u64) -> Vec<Print> {
        let acknowledged = |v: &Version| v.acknowledged(tick);
        match self.observed {
            Some((at, print)) if at <= tick => {
                let since = Self {
                    versions: self.versions.iter().copied().filter(|v| v.start > at).collect(),
                    ..Self::default()
                };
                since.candidates_over(&[print], tick, acknowledged)
            }
            _ => self.candidates(ground, tick, acknowledged),
        }
    }

    fn candidates_over(&self, ground: &[Print], tick: u64, sure: impl Fn(&Version) -> bool) -> Vec<Print> {
        let newest_sure = self.versions.iter().filter(|v| sure(v)).map(|v| v.start).max();
        let mut all = if newest_sure.is_none() {
            ground.to_vec()
        } else {
            Vec::new()
        };
        let possible = self.versions.iter().filter(|v| {
            v.start <= tick && !newest_sure.is_some_and(|sure| v.end.is_some_and(|end| end < sure))
        });
        all.extend(possible.map(|v| v.print));
        all
    }

    /// Whether a read that started at `start` may return `print`.
    fn may_be(&self, print: Print, ground: &[Print], start: u64) -> bool {
        let fits = |one: Print| one == print || one == Print::ANY;
        if self.versions.is_empty() {
            return match self.seen {
                Some((_, seen)) => seen == print,
                None => ground.iter().copied().any(fits),
            };
        }
        if let Some((at, observed)) = self.observed
            && at < start
            && self.versions.iter().all(|v| v.start < at)
        {
            return observed == print;
        }
        let all = self.candidates(ground, u64::MAX, |v| v.acknowledged(start));
        all.into_iter().any(fits)
    }

    fn tell(&self, ground: &[Print]) -> String {
        let mut text = format!("at first {}", list(ground.to_vec()));
        if let Some((at, print)) = self.seen {
            text += &format!(", seen as {print} at {at}");
        }
        if let Some((at, print)) = self.observed {
            text += &format!(", read as {print} at {at}");
        }
        for v in &self.versions {
            text += &format!(", {} from {} to {:?}", v.print, v.start, v.end);
            text += if v.fua { " with FUA" } else { "" };
            text += if v.failed { ", failed" } else { "" };
        }
        text
    }
}

fn list(prints: Vec<Print>) -> String {
    let names: Vec<String> = prints.iter().map(Print::to_string).collect();
    names.join(" or ")
}

#[cfg(test)]
mod tests {
    use super::super::sectors::fill;
    use super::*;

    fn setup() -> Oracle {
        let spots: Rc<[Spot]> = Rc::new([Spot { first: 8, count: 8 }]);
        let ground = Ground::known(&spots, |_| Print::ZERO);
        Oracle::new(spots, Rc::new(ground))
    }

    fn write(oracle: &Oracle, version: u64, fua: bool) {
        let writing = oracle.write_starts(8, 1, Print::of_version(version));
        oracle.write_ends(&writing, fua);
    }

    fn reads(oracle: &Oracle, version: u64) -> bool {
        let mut bytes = vec![0; SECTOR];
        fill(8, version, &mut bytes);
        let start = oracle.read_starts();
        oracle.read_ends(start, 8, &bytes, &mut Vec::new()).is_ok()
    }

    fn after(oracle: &Oracle, crash: Crash) -> Vec<Print> {
        oracle.ground_at(oracle.now(), crash).sectors[0].now.clone()
    }

    #[test]
    fn oracle_tells_kills_from_power_cuts() {
        let oracle = setup();
        let version = Print::of_version;
        write(&oracle, 1, false);
        assert_eq!(after(&oracle, Crash::Kill), [version(1)]);
        assert_eq!(after(&oracle, Crash::PowerCut), [Print::ZERO, version(1)]);
        let flush = oracle.flush_starts();
        write(&oracle, 2, false);
        assert_eq!(
            after(&oracle, Crash::PowerCut).len(),
            3,
            "the flush has not ended"
        );
        oracle.flush_ends(flush);
        assert_eq!(after(&oracle, Crash::PowerCut), [version(1), version(2)]);
        write(&oracle, 3, true);
        assert_eq!(after(&oracle, Crash::PowerCut), [version(3)]);
        let _in_flight = oracle.write_starts(8, 1, version(4));
        assert_eq!(after(&oracle, Crash::Kill), [version(3), version(4)]);
    }

    #[test]
    fn what_was_read_after_a_crash_stays() {
        let oracle = setup();
        write(&oracle, 1, false);
        write(&oracle, 2, false);
        for crash in [Crash::PowerCut, Crash::Kill] {
            let ground = Rc::new(oracle.ground_at(oracle.now(), crash));
            let next = Oracle::new(Rc::clone(&oracle.spots), ground);
            let first = if crash == Crash::Kill { 2 } else { 1 };
            let other = reads(&next, 3 - first);
            assert_eq!(
                other,
                crash == Crash::PowerCut,
                "a kill loses nothing that was acknowledged"
            );
            let next = Oracle::new(Rc::clone(&oracle.spots), Rc::clone(&next.ground));
            assert!(reads(&next, first));
            assert!(!reads(&next, 3 - first), "another answer than before");
            // A power cut after a kill may still undo data that was read, because it was not flushed.
            let later = after(&next, Crash::PowerCut).len();
            assert_eq!(later, if crash == Crash::Kill { 3 } else { 1 });
        }
    }

    #[test]
    fn what_failed_is_not_sure_and_over_with_the_next_write_that_is() {
        let oracle = setup();
        let version = Print::of_version;
        write(&oracle, 1, true);
        let writing = oracle.write_starts(8, 1, version(2));
        oracle.write_fails(&writing);
        assert_eq!(after(&oracle, Crash::Kill), [version(1), version(2)]);
        write(&oracle, 3, false);
        assert_eq!(after(&oracle, Crash::Kill), [version(3)]);
        for fails in [true, false] {
            let flush = oracle.flush_starts();
            if fails {
                oracle.flush_fails(flush);
            } else {
                oracle.flush_ends(flush);
            }
            let left = after(&oracle, Crash::PowerCut);
            assert_eq!(left, [1, 2, 3].map(version), "no flush brings it back");
        }
        write(&oracle, 4, false);
        let flush = oracle.flush_starts();
        oracle.flush_ends(flush);
        assert_eq!(after(&oracle, Crash::PowerCut), [version(4)]);
    }

    #[test]
    fn of_two_writes_at_a_time_the_one_that_was_read_stays() {
        let oracle = setup();
        let both = [1, 2].map(|version| oracle.write_starts(8, 1, Print::of_version(version)));
        both.iter().for_each(|writing| oracle.write_ends(writing, false));
        let late = oracle.read_starts();
        assert!(reads(&oracle, 1));
        assert_eq!(after(&oracle, Crash::Kill), [Print::of_version(1)]);
        assert!(!reads(&oracle, 2), "another answer than before");
        let mut bytes = vec![0; SECTOR];
        fill(8, 2, &mut bytes);
        let overlapping = oracle.read_ends(late, 8, &bytes, &mut Vec::new());
        assert!(overlapping.is_ok(), "it began before the other had ended");
    }
}
