//! What each sector may hold: the oracle.
//!
//! Before a run a sector's [`Ground`] says what it may hold; in a run it collects the writes that it got. From both
//! follows what a read may return, and what the sector may hold after a crash at any earlier tick:
//!
//! - a write is *sure* after the death of the process if it was acknowledged; after a power cut, if it was
//!   acknowledged before a flush was called that then succeeded, or was FUA and acknowledged;
//! - a sector holds any write (or the ground) unless a sure write began after that had ended: the last sure one or
//!   any later one, also one in flight;
//! - what a read has returned stays: from then on it is the only thing that the ground may be.
//!
//! Time is a counter of starts and ends. A trimmed sector is [`Print::ANY`] until it is read, unless the device is
//! known to give zeroes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::sectors::{Print, SECTOR, describe, print_of};

/// A run of sectors that the workload uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// First sector on the device.
    pub first: u64,
    /// Sectors.
    pub count: u64,
}

/// Two ways of dying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies: the devices keep all that was completed.
    Kill,
    /// Both devices lose power: each loses what it likes of what was not flushed.
    PowerCut,
}

/// What a sector may hold before a run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SectorGround {
    now: Vec<Print>,
    /// And after a power cut, if nothing is written or flushed any more.
    durable: Vec<Print>,
}

/// What all sectors may hold before a run, in the order of the spots.
#[derive(Clone, Debug)]
pub struct Ground {
    sectors: Vec<SectorGround>,
    /// All of it is durable: what is read now is there after a power cut.
    settled: bool,
}

impl Ground {
    /// Every sector of the spots holds what `print` says, durably.
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

    /// The same, with nothing volatile about it.
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
}

#[derive(Clone, Debug, Default)]
struct History {
    /// What a read found the ground to be, and when.
    seen: Option<(u64, Print)>,
    versions: Vec<Version>,
}

/// A write that has begun.
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
    /// Successful flushes: called, answered.
    flushes: RefCell<Vec<(u64, u64)>>,
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

    /// The present tick.
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// Where a sector's history lies. The sectors of a request lie in one spot.
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
            });
        }
        Writing { start, first, count }
    }

    /// It was acknowledged; with `fua` it is durable.
    pub fn write_ends(&self, writing: &Writing, fua: bool) {
        let end = self.tick();
        for history in &mut self.sectors.borrow_mut()[writing.first..writing.first + writing.count] {
            for version in history.versions.iter_mut().filter(|v| v.start == writing.start) {
                version.end = Some(end);
                version.fua = fua;
            }
        }
    }

    pub fn flush_starts(&self) -> u64 {
        self.tick()
    }

    pub fn flush_ends(&self, start: u64) {
        let end = self.tick();
        self.flushes.borrow_mut().push((start, end));
    }

    pub fn read_starts(&self) -> u64 {
        self.tick()
    }

    /// Checks what a read that started at `start` and ends now returned, and learns from it.
    ///
    /// # Errors
    /// What a sector held and what it might have held.
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
                    number / super::sectors::BLOCK_SECTORS,
                    describe(number, bytes),
                    list(history.candidates(ground, start, |v| v.end.is_some_and(|end| end < start))),
                    history.tell(ground),
                ));
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

    /// What all sectors may hold after a crash at `tick`.
    pub fn ground_at(&self, tick: u64, crash: Crash) -> Ground {
        let flushed = self.flushes.borrow();
        let flushed = flushed
            .iter()
            .filter(|(_, end)| *end <= tick)
            .map(|(start, _)| *start)
            .max();
        let acknowledged = |v: &Version| v.end.is_some_and(|end| end <= tick);
        let durable = |v: &Version| {
            acknowledged(v) && (v.fua || flushed.is_some_and(|flush| v.end.is_some_and(|end| end < flush)))
        };
        let histories = self.sectors.borrow();
        let sectors = histories
            .iter()
            .zip(&self.ground.sectors)
            .map(|(history, ground)| {
                let after_kill = || history.candidates(&ground.now, tick, acknowledged);
                let after_cut = || {
                    let kept = self.ground.settled || flushed.is_some();
                    if kept {
                        history.candidates(&ground.now, tick, durable)
                    } else {
                        history.candidates_over(&ground.durable, tick, durable)
                    }
                };
                match crash {
                    Crash::Kill => SectorGround {
                        now: after_kill(),
                        durable: after_cut(),
                    },
                    Crash::PowerCut => SectorGround {
                        now: after_cut(),
                        durable: Vec::new(),
                    },
                }
            })
            .collect();
        Ground {
            sectors,
            settled: crash == Crash::PowerCut,
        }
    }
}

impl History {
    /// What the sector may hold at `tick`, when the writes that `sure` names are sure to be there.
    fn candidates(&self, ground: &[Print], tick: u64, sure: impl Fn(&Version) -> bool) -> Vec<Print> {
        match self.seen {
            Some((at, print)) if at <= tick => self.candidates_over(&[print], tick, sure),
            _ => self.candidates_over(ground, tick, sure),
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
        let ended = |v: &Version| v.end.is_some_and(|end| end < start);
        let all = self.candidates(ground, u64::MAX, ended);
        all.into_iter().any(fits)
    }

    fn tell(&self, ground: &[Print]) -> String {
        let mut text = format!("at first {}", list(ground.to_vec()));
        if let Some((at, print)) = self.seen {
            text += &format!(", seen as {print} at {at}");
        }
        for v in &self.versions {
            text += &format!(", {} from {} to {:?}", v.print, v.start, v.end);
            text += if v.fua { " with FUA" } else { "" };
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
    use super::*;
    use crate::sectors::fill;

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
    fn an_acknowledged_write_survives_a_kill_and_a_flushed_one_a_power_cut() {
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
            // A power cut after a kill may still undo what was read: nobody flushed it.
            let later = after(&next, Crash::PowerCut).len();
            assert_eq!(later, if crash == Crash::Kill { 3 } else { 1 });
        }
    }
}
