//! The allowed contents of each sector of the export, recorded by verifying clients.
//!
//! - An *acknowledged* write is present after the server is killed.
//! - A *durable* write is present after a power cut: one that was acknowledged before a successful flush was sent, or
//!   an acknowledged one with FUA. Any later write may be present.
//! - A write that was *in flight* when the server died is present or not, sector by sector.
//! - Data that a read has returned stays: after a kill until a power cut, after a power cut permanently.
//!
//! Requests for the same sectors are never in flight together, unless they are all reads, so that the writes of a
//! sector have an order. Time is a counter of starts and ends.

use std::fmt::Write;

use super::stamp::{Print, SECTOR, print_of};

/// A read that returned wrong data.
#[derive(Debug)]
pub struct Violation(pub String);

/// Sectors of one request.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub first: u64,
    pub count: u64,
}

impl Range {
    fn places(self) -> std::ops::Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }
}

/// Writes (including trims and zeroes) since the ledger was created.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub acknowledged: u64,
    /// Writes among them that had to survive power cuts.
    pub durable: u64,
    pub flushes: u64,
}

/// A write in the history of a sector.
#[derive(Clone, Copy, Debug)]
struct Kept {
    print: Print,
    /// When it was acknowledged or seen: a later flush makes it durable.
    sure_since: Option<u64>,
}

#[derive(Clone, Debug)]
struct Sector {
    /// What a read may return now.
    now: Vec<Print>,
    /// What may remain after a power cut, oldest first; never empty.
    after_cut: Vec<Kept>,
    /// After a power cut, until the first read or write: all of `after_cut` may be the durable contents.
    settled: bool,
    /// It is in the ledger's list `volatile`.
    listed: bool,
    writing: bool,
    readers: u32,
}

/// See the module's documentation.
pub struct Ledger {
    sectors: Vec<Sector>,
    /// Sectors that may have more than one entry in `after_cut`.
    volatile: Vec<usize>,
    clock: u64,
    version: u64,
    tally: Tally,
    /// Writes acknowledged since the last power cut with their times, until they are durable.
    pending: Vec<u64>,
}

impl Ledger {
    /// The ledger of a device of zeroes.
    pub fn new(sectors: u64) -> Self {
        let blank = Sector {
            now: vec![Print::Zero],
            after_cut: vec![Kept {
                print: Print::Zero,
                sure_since: Some(0),
            }],
            settled: false,
            listed: false,
            writing: false,
            readers: 0,
        };
        Self {
            sectors: vec![blank; sectors as usize],
            volatile: Vec::new(),
            clock: 0,
            version: 0,
            tally: Tally::default(),
            pending: Vec::new(),
        }
    }

    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// A number for the next write.
    pub fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A write of `print` will be sent. False: another request in flight conflicts, and nothing was recorded.
    #[must_use]
    pub fn write_starts(&mut self, range: Range, print: Print) -> bool {
        let places = range.places();
        if self.sectors[places.clone()]
            .iter()
            .any(|sector| sector.writing || sector.readers > 0)
        {
            return false;
        }
        for place in places {
            let sector = &mut self.sectors[place];
            sector.writing = true;
            sector.settled = false;
            sector.after_cut.push(Kept {
                print,
                sure_since: None,
            });
            if !sector.listed {
                sector.listed = true;
                self.volatile.push(place);
            }
        }
        true
    }

    /// It was acknowledged; with `fua` it is durable.
    pub fn write_acknowledged(&mut self, range: Range, fua: bool) {
        let now = self.tick();
        for sector in &mut self.sectors[range.places()] {
            sector.writing = false;
            let newest = sector.after_cut.len() - 1;
            sector.after_cut[newest].sure_since = Some(now);
            sector.now = vec![sector.after_cut[newest].print];
            if fua {
                sector.after_cut.drain(..newest);
            }
        }
        self.tally.acknowledged += 1;
        if fua {
            self.tally.durable += 1;
        } else {
            self.pending.push(now);
        }
    }

    /// The server died before it replied, or replied with an error: old or new data, sector by sector.
    pub fn write_lost(&mut self, range: Range) {
        for sector in &mut self.sectors[range.places()] {
            sector.writing = false;
            if let Some(newest) = sector.after_cut.last() {
                sector.now.push(newest.print);
            }
        }
    }

    /// A flush will be sent: returns the time for [`flush_succeeded`](Self::flush_succeeded).
    pub fn flush_starts(&mut self) -> u64 {
        self.tick()
    }

    /// Data acknowledged before `start` is durable.
    pub fn flush_succeeded(&mut self, start: u64) {
        for place in &self.volatile {
            let kept = &mut self.sectors[*place].after_cut;
            let covered = kept
                .iter()
                .rposition(|kept| kept.sure_since.is_some_and(|since| since < start));
            kept.drain(..covered.unwrap_or(0));
        }
        let sectors = &mut self.sectors;
        self.volatile.retain(|place| {
            sectors[*place].listed = sectors[*place].after_cut.len() > 1;
            sectors[*place].listed
        });
        let before = self.pending.len();
        self.pending.retain(|acknowledged| *acknowledged >= start);
        self.tally.durable += (before - self.pending.len()) as u64;
        self.tally.flushes += 1;
    }

    /// A read will be sent. False: a write in flight conflicts, and nothing was recorded.
    #[must_use]
    pub fn read_starts(&mut self, range: Range) -> bool {
        let sectors = &mut self.sectors[range.places()];
        if sectors.iter().any(|sector| sector.writing) {
            return false;
        }
        sectors.iter_mut().for_each(|sector| sector.readers += 1);
        true
    }

    /// The server died before it replied.
    pub fn read_lost(&mut self, range: Range) {
        for sector in &mut self.sectors[range.places()] {
            sector.readers -= 1;
        }
    }

    /// It returned `data`, which is compared with the allowed contents, and recorded.
    ///
    /// # Errors
    /// The first wrong sector.
    pub fn read_returned(&mut self, range: Range, data: &[u8]) -> Result<(), Violation> {
        let now = self.tick();
        for (place, bytes) in range.places().zip(data.chunks_exact(SECTOR)) {
            self.sectors[place].readers -= 1;
            let seen = print_of(place as u64, bytes, self.version);
            if !self.sectors[place].see(seen, now) {
                return Err(self.violation(place, seen, bytes));
            }
        }
        Ok(())
    }

    /// Compares `data`, the origin's contents from `range` on, with its required contents after everything was flushed.
    ///
    /// # Errors
    /// The first wrong sector.
    pub fn compare_origin(&self, range: Range, data: &[u8]) -> Result<(), Violation> {
        for (place, bytes) in range.places().zip(data.chunks_exact(SECTOR)) {
            let seen = print_of(place as u64, bytes, self.version);
            if !self.sectors[place].now.iter().any(|print| print.allows(seen)) {
                return Err(self.violation(place, seen, bytes));
            }
        }
        Ok(())
    }

    /// Both devices lost power, and nothing is in flight any more.
    pub fn power_cut(&mut self) {
        for sector in &mut self.sectors {
            assert!(
                !sector.writing && sector.readers == 0,
                "requests end before the power is cut"
            );
            sector.now = sector.after_cut.iter().map(|kept| kept.print).collect();
            sector
                .after_cut
                .iter_mut()
                .for_each(|kept| kept.sure_since = None);
            sector.settled = true;
        }
        self.pending.clear();
    }

    fn violation(&self, place: usize, seen: Print, bytes: &[u8]) -> Violation {
        Violation(format!(
            "sector {place} (block {}) holds {seen}: {}; first bytes {:02x?}",
            place / 8,
            self.sectors[place].tell(),
            &bytes[..32]
        ))
    }

    /// All sectors that were ever written, one per line.
    pub fn tell(&self) -> String {
        let mut text = format!("{:?}, {} writes begun\n", self.tally, self.version);
        for (place, sector) in self.sectors.iter().enumerate() {
            if sector.now != [Print::Zero] || sector.after_cut.len() > 1 {
                let _ = writeln!(text, "sector {place}: {}", sector.tell());
            }
        }
        text
    }
}

impl Sector {
    /// Whether `seen` may be read; if so, it stays.
    fn see(&mut self, seen: Print, now: u64) -> bool {
        if !self.now.iter().any(|print| print.allows(seen)) {
            return false;
        }
        if self.now == [seen] {
            return true;
        }
        self.now = vec![seen];
        let at = self.after_cut.iter().rposition(|kept| kept.print.allows(seen));
        let Some(at) = at.filter(|_| !self.settled) else {
            // After a power cut these are the contents of the medium.
            self.after_cut = vec![Kept {
                print: seen,
                sure_since: Some(0),
            }];
            self.settled = false;
            return true;
        };
        // Requests of a killed server that have not happened by now will not happen any more.
        self.after_cut.truncate(at + 1);
        self.after_cut[at].print = seen;
        self.after_cut[at].sure_since.get_or_insert(now);
        true
    }

    fn tell(&self) -> String {
        let list = |prints: &mut dyn Iterator<Item = Print>| {
            prints
                .map(|print| print.to_string())
                .collect::<Vec<_>>()
                .join(" or ")
        };
        format!(
            "it may hold {}; after a power cut {}{}",
            list(&mut self.now.iter().copied()),
            list(&mut self.after_cut.iter().map(|kept| kept.print)),
            if self.writing {
                ", a write is in flight"
            } else {
                ""
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::stamp::fill;
    use super::*;

    const ONE: Range = Range { first: 3, count: 1 };

    fn write(ledger: &mut Ledger, fua: bool) -> u64 {
        let version = ledger.next_version();
        assert!(ledger.write_starts(ONE, Print::Version(version)));
        ledger.write_acknowledged(ONE, fua);
        version
    }

    fn lose(ledger: &mut Ledger) -> u64 {
        let version = ledger.next_version();
        assert!(ledger.write_starts(ONE, Print::Version(version)));
        ledger.write_lost(ONE);
        version
    }

    fn flush(ledger: &mut Ledger) {
        let start = ledger.flush_starts();
        ledger.flush_succeeded(start);
    }

    /// Whether the sector may be read as `version`, 0 for zeroes; if so, it stays.
    fn reads(ledger: &mut Ledger, version: u64) -> bool {
        let mut bytes = [0; SECTOR];
        if version > 0 {
            fill(ONE.first, version, &mut bytes);
        }
        assert!(ledger.read_starts(ONE));
        ledger.read_returned(ONE, &bytes).is_ok()
    }

    fn after_cut(ledger: &Ledger) -> Vec<Print> {
        let kept = &ledger.sectors[ONE.first as usize].after_cut;
        kept.iter().map(|kept| kept.print).collect()
    }

    #[test]
    fn an_acknowledged_write_is_the_only_one_that_may_be_read() {
        let mut ledger = Ledger::new(8);
        let (first, second) = (write(&mut ledger, false), write(&mut ledger, false));
        assert!(!reads(&mut ledger, first));
        assert!(!reads(&mut ledger, 0));
        assert!(reads(&mut ledger, second));
    }

    #[test]
    fn a_write_in_flight_is_present_or_not_and_stays_so() {
        for done in [true, false] {
            let mut ledger = Ledger::new(8);
            let (old, new) = (write(&mut ledger, false), lose(&mut ledger));
            let (is, is_not) = if done { (new, old) } else { (old, new) };
            assert!(reads(&mut ledger, is));
            assert!(!reads(&mut ledger, is_not));
            flush(&mut ledger);
            assert_eq!(after_cut(&ledger), [Print::Version(is)]);
        }
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it_was_sent() {
        let mut ledger = Ledger::new(8);
        let old = write(&mut ledger, false);
        let start = ledger.flush_starts();
        let new = write(&mut ledger, false);
        assert_eq!(after_cut(&ledger).len(), 3);
        ledger.flush_succeeded(start);
        assert_eq!(after_cut(&ledger), [Print::Version(old), Print::Version(new)]);
        assert_eq!((ledger.tally().acknowledged, ledger.tally().durable), (2, 1));
        let last = write(&mut ledger, true);
        assert_eq!(after_cut(&ledger), [Print::Version(last)]);
        assert_eq!(ledger.tally().durable, 2);
    }

    #[test]
    fn the_first_read_after_a_power_cut_is_final() {
        let mut ledger = Ledger::new(8);
        let old = write(&mut ledger, true);
        let new = write(&mut ledger, false);
        ledger.power_cut();
        assert!(!reads(&mut ledger, 0), "the durable write is lost");
        assert!(ledger.read_starts(ONE));
        ledger.read_lost(ONE);
        // A flush makes the current contents durable, whichever they are.
        flush(&mut ledger);
        assert_eq!(after_cut(&ledger), [Print::Version(old), Print::Version(new)]);
        ledger.power_cut();
        assert!(reads(&mut ledger, old));
        ledger.power_cut();
        assert!(!reads(&mut ledger, new), "another answer than before");
    }

    #[test]
    fn after_a_kill_a_power_cut_may_still_undo_what_was_read() {
        let mut ledger = Ledger::new(8);
        let (old, new) = (write(&mut ledger, false), lose(&mut ledger));
        assert!(reads(&mut ledger, new));
        let versions = [Print::Zero, Print::Version(old), Print::Version(new)];
        assert_eq!(after_cut(&ledger), versions);
    }

    #[test]
    fn a_trimmed_sector_has_zeroes_or_earlier_contents() {
        let mut ledger = Ledger::new(8);
        let old = write(&mut ledger, false);
        assert!(ledger.write_starts(ONE, Print::Trimmed));
        assert!(
            !ledger.read_starts(ONE),
            "a read beside the trim could return anything"
        );
        ledger.write_acknowledged(ONE, false);
        let mut wrong = [0; SECTOR];
        fill(ONE.first + 1, old, &mut wrong);
        assert!(ledger.read_starts(ONE));
        assert!(
            ledger.read_returned(ONE, &wrong).is_err(),
            "data of another sector"
        );
        assert!(reads(&mut ledger, old));
        assert!(!reads(&mut ledger, 0), "it does not change once it was read");
    }
}
