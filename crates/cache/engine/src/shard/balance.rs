//! Whether compression saves more time than it costs.
//!
//! A block that the first codec has compressed takes about two microseconds to restore, with the second codec several more. In return the
//! cache has more blocks, and fewer reads miss. If the working set fits in the cache anyway, no misses are left to avoid. As long as the
//! thread of the shard has time, compression then costs little; if the thread is saturated, it would serve more requests without. So
//! would one whose large reads take most of their time on other cores, which restore them. [`Balance`] compares two times over intervals
//! of [`INTERVAL`]:
//!
//! - *restoring*: [`FIRST`] for each block that the first codec has restored, [`SECOND`] for each of the second one, or
//!   [`SECOND_SATURATED`];
//! - *missing*: the mean time of the origin's reads for each read that missed. A saturated thread serves other requests meanwhile: a miss
//!   then costs an eighth of that, and at least its processor time, [`MISS_PROCESSOR`].
//!
//! If the thread was saturated in [`PATIENCE`] intervals, or restoring took one part in [`HEAVY_PART`] of them, and in these restoring by
//! the second codec took more than one and a half times as long as missing, blocks that stay are not compressed again, and some of those
//! that are read are stored with the first codec: there would be about twice as many misses without the second one. They are stored
//! uncompressed if misses are so rare that even the first codec for all hits would take [`RAW_PART`] times as long: that costs more
//! capacity. One block in [`UNDO_PART`] is stored so, which begins with those that are read often. They end up in the order of those
//! reads; larger reads then have them stored together, about [`JOINED_MAX`] times as many blocks as were stored uncompressed. Reclaim
//! compresses blocks again when misses have become dearer than hits would be if they were all restored: by the first codec, and then by
//! the second one.
//!
//! A thread is saturated if it ran, or waited for a processor, for three quarters of an interval: where the kernel hands reads of the
//! device to threads of its own, a thread at its limit has waited for these in the rest of it (82 % was measured with hits of 4 KiB).
//!
//! Reads come in bursts, so a thread counts as saturated for [`SATURATED_FOR`] after it was. Compressing also takes processor time from
//! such a thread and its clients, unless many processors are idle or misses saturate it: see [`Balance::is_saturated`].

use std::cell::Cell;
use std::time::Duration;

use flaz_codec::CodecSpec;
use flaz_device::Nanos;

use super::fragment::Restored;
use super::queue::Replaced;
use crate::planted;

/// How long the times are added up.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time in which the first codec restores a block: see `docs/compression.md`.
const FIRST: Duration = Duration::from_micros(2);
/// The same of the second codec ...
const SECOND: Duration = Duration::from_micros(6);
/// ... and while the thread is saturated: measured on two cores, with the client on the other one.
const SECOND_SATURATED: Duration = Duration::from_micros(12);
/// A hit in a group of four restores two and a half blocks on average: so many halves.
const GROUP_HALVES: u32 = 5;
/// The processor time of a miss, about.
const MISS_PROCESSOR: Duration = Duration::from_micros(100);
/// While the thread is saturated, one part in this many of the time of the origin's reads counts.
const SATURATED_PART: u32 = 8;
/// A thread counts as saturated for so long after it was: reads come in bursts.
const SATURATED_FOR: Duration = Duration::from_secs(5);
/// Restoring counts if it takes one part in this many of the time.
const RESTORING_PART: u32 = 100;
/// Restoring holds up clients, even if the thread has time, if it takes one part in this many of the time: 40,000 blocks of the second
/// codec a second ...
const HEAVY_PART: u32 = 4;
/// ... and while compression is being undone, one part in this many.
const HEAVY_PART_UNDONE: u32 = 20;
/// Intervals, not counting those with time to spare, in which compression must have been too dear.
const PATIENCE: u8 = 4;
/// How many times as long as missing the first codec must take.
const RAW_PART: u32 = 16;
/// For each block that was stored uncompressed, about so many uncompressed ones are stored again only to lie together: once for reads of
/// several blocks, and once more for larger reads. Without a bound, blocks that reclaim drops would come back apart from the others, be
/// moved with them, and so have reclaim drop the next ones.
const JOINED_MAX: u64 = 2;
/// Of this many reads, the blocks of one are stored again.
const UNDO_PART: u32 = 8;

/// What to do at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Verdict {
    /// To compress blocks that stay again.
    #[default]
    Compress,
    /// To leave them as they are.
    Leave,
    /// The same; and to store some blocks of the second codec with the first one when they are read.
    First,
    /// The same; and to store some compressed blocks uncompressed when they are read.
    Raw,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Balance {
    verdict: Cell<Verdict>,
    /// Blocks that were stored uncompressed are left so.
    leaves_raw: Cell<bool>,
    /// Intervals without time to spare in which compression was too dear, since the last one in which it was not.
    dear: Cell<u8>,
    /// When the interval began, and the time that the thread had needed by then.
    began: Cell<Nanos>,
    thread_time: Cell<Duration>,
    /// When the last interval ended in which the thread was saturated, and misses took less time than hits would with the second codec.
    saturated_at: Cell<Option<Nanos>>,
    /// In this interval: blocks found, those restored by the first and by the second codec, and reads that missed.
    hits: Cell<u64>,
    first: Cell<u64>,
    second: Cell<u64>,
    misses: Cell<u64>,
    /// How many uncompressed blocks may be stored again only to lie together.
    scattered: Cell<u64>,
    /// Reads whose blocks could have been stored again.
    turn: Cell<u32>,
}

impl Balance {
    /// A read found so many blocks, and perhaps not all.
    pub(super) fn note_read(&self, hits: u64, missed: bool) {
        add(&self.hits, hits);
        add(&self.misses, u64::from(missed));
    }

    /// Whether the interval has ended.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        now.since(self.began.get()) >= INTERVAL
    }

    /// Compares the times of this interval, and begins another one. `thread_time`: for how long the thread has run or waited for a
    /// processor since it began; zero if unknown. `origin_read`: the mean time of the origin's reads.
    pub(super) fn judge(&self, now: Nanos, thread_time: Duration, origin_read: Duration) {
        let took = now.since(self.began.replace(now));
        let ran = thread_time.saturating_sub(self.thread_time.replace(thread_time));
        let is_saturated = ran * 4 >= took * 3;
        let (miss, each_second) = if is_saturated {
            (origin_read / SATURATED_PART, SECOND_SATURATED)
        } else {
            (origin_read, SECOND)
        };
        let missing = times(miss.max(MISS_PROCESSOR), self.misses.take());
        let (first, second) = (
            times(FIRST, self.first.take()),
            times(each_second, self.second.take()),
        );
        let hits = self.hits.take();
        let dear_misses = missing > times(each_second * GROUP_HALVES / 2, hits);
        if is_saturated && !dear_misses {
            self.saturated_at.set(Some(now));
        }
        let counts = |time: Duration| time * RESTORING_PART > took;
        let heavy_part = match self.verdict.get() {
            Verdict::First | Verdict::Raw => HEAVY_PART_UNDONE,
            Verdict::Compress | Verdict::Leave => HEAVY_PART,
        };
        let has_time = !is_saturated && (first + second) * heavy_part <= took;
        let undo = if counts(first + second) && times(FIRST, hits) > missing * RAW_PART {
            Some(Verdict::Raw)
        } else {
            (counts(second) && second * 2 > missing * 3).then_some(Verdict::First)
        };
        // Between bursts of reads, misses are no dearer than in the bursts.
        let pauses = has_time && self.is_saturated(now);
        match (undo, has_time) {
            (Some(_), false) => self.dear.set(self.dear.get().saturating_add(1)),
            // With time to spare, nothing is known about a time without.
            (Some(_), true) => {}
            (None, _) if missing > Duration::ZERO && !pauses => self.dear.set(0),
            (None, _) => {}
        }
        let verdict = match undo.filter(|_| !has_time && self.dear.get() >= PATIENCE) {
            Some(undo) => undo,
            None if self.compresses() => Verdict::Compress,
            None if dear_misses && !pauses => {
                // Compression is undone again only after as many dear intervals as before.
                self.dear.set(0);
                Verdict::Compress
            }
            None => Verdict::Leave,
        };
        self.verdict.set(verdict);
        if missing > times(FIRST, hits) {
            self.leaves_raw.set(false);
            self.scattered.set(0);
        }
        if verdict == Verdict::Raw {
            self.leaves_raw.set(true);
        }
    }

    /// Whether the thread was saturated of late, and not by misses: compressing would then take more time from it than it saves.
    pub(super) fn is_saturated(&self, now: Nanos) -> bool {
        (self.saturated_at.get()).is_some_and(|at| now.since(at) < SATURATED_FOR)
    }

    /// Whether blocks that stay are worth being compressed by the first codec, if they are not compressed.
    pub(super) fn compresses_raw(&self) -> bool {
        !self.leaves_raw.get()
    }

    /// Whether blocks that stay are worth being compressed again.
    pub(super) fn compresses(&self) -> bool {
        self.verdict.get() == Verdict::Compress
    }

    /// Some blocks of a fragment were restored.
    pub(super) fn note_restored(&self, restored: Restored) {
        match restored {
            Restored::Raw => {}
            Restored::ByFirst => add(&self.first, 1),
            Restored::BySecond(count) => add(&self.second, count),
        }
    }

    /// Whether there are blocks for which [`Balance::undo`] may return a codec.
    pub(super) fn undoes(&self) -> bool {
        matches!(self.verdict.get(), Verdict::First | Verdict::Raw) || planted::is_hit_bound()
    }

    /// The codec for storing restored blocks again. `None`: they stay as they are.
    pub(super) fn undo(&self, restored: Restored) -> Option<CodecSpec> {
        let codec = match (self.verdict.get(), restored) {
            (_, Restored::Raw) => return None,
            (Verdict::Raw, _) => CodecSpec::NONE,
            (Verdict::First, Restored::BySecond(_)) => CodecSpec::LZ4,
            (_, Restored::BySecond(_)) if planted::is_hit_bound() => CodecSpec::LZ4,
            (_, Restored::ByFirst) if planted::is_hit_bound() => CodecSpec::NONE,
            (Verdict::Compress | Verdict::Leave | Verdict::First, _) => return None,
        };
        self.is_turn().then_some(codec)
    }

    /// A block was stored again. Returns whether it is compressed less than before.
    pub(super) fn note_undone(&self, replaced: Replaced) -> bool {
        match replaced.restored {
            Restored::Raw => self.scattered.set(self.scattered.get().saturating_sub(1)),
            _ if replaced.codec == CodecSpec::NONE => add(&self.scattered, JOINED_MAX),
            _ => {}
        }
        replaced.restored != Restored::Raw
    }

    /// Whether there may be uncompressed blocks that lie apart because they were stored so one by one.
    pub(super) fn joins(&self) -> bool {
        (self.leaves_raw.get() || planted::is_hit_bound()) && self.scattered.get() > 0
    }

    /// Whether to store the blocks of a read, which lie apart, together.
    pub(super) fn join(&self) -> bool {
        self.joins() && self.is_turn()
    }

    /// Whether it is the turn of a read's blocks to be stored again.
    fn is_turn(&self) -> bool {
        let turn = self.turn.get().wrapping_add(1);
        self.turn.set(turn);
        // Hashed, so that it is not always the same block of those that are read in turn.
        let part = if planted::is_hit_bound() { 2 } else { UNDO_PART };
        turn.wrapping_mul(0x9e37_79b9) < u32::MAX / part
    }
}

fn add(counter: &Cell<u64>, count: u64) {
    counter.set(counter.get() + count);
}

fn times(time: Duration, count: u64) -> Duration {
    time.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Entry;
    use crate::units::Location;

    const VOLUME: Duration = Duration::from_millis(1);
    const DISK: Duration = Duration::from_millis(12);

    #[derive(Default)]
    struct Run {
        balance: Balance,
        now: Nanos,
        thread_time: Duration,
        has_time: bool,
    }

    impl Run {
        /// A second with so many hits, of which the codecs restore some, and misses.
        fn pass(
            &mut self,
            hits: u64,
            (first, second): (u64, u64),
            misses: u64,
            origin_read: Duration,
        ) -> Verdict {
            let balance = &self.balance;
            balance.note_read(hits, false);
            (0..misses).for_each(|_| balance.note_read(0, true));
            (0..first).for_each(|_| balance.note_restored(Restored::ByFirst));
            balance.note_restored(Restored::BySecond(second));
            self.now = self.now.after(Duration::from_secs(1));
            assert!(balance.is_due(self.now));
            self.thread_time += Duration::from_millis(if self.has_time { 740 } else { 760 });
            balance.judge(self.now, self.thread_time, origin_read);
            assert!(!balance.is_due(self.now));
            balance.verdict.get()
        }
    }

    #[test]
    fn a_saturated_thread_restores_only_what_avoids_misses() {
        let mut run = Run::default();
        let strong = (0, 75_000);
        assert_eq!(run.pass(30_000, strong, 5000, VOLUME), Verdict::Compress);
        for _ in 1..PATIENCE {
            assert_eq!(
                run.pass(30_000, strong, 4700, VOLUME),
                Verdict::Compress,
                "a burst"
            );
        }
        assert_eq!(run.pass(30_000, strong, 4700, VOLUME), Verdict::First);
        assert_eq!(run.pass(30_000, strong, 40, VOLUME), Verdict::First);
        assert_eq!(run.pass(30_000, strong, 20, VOLUME), Verdict::Raw);
        assert_eq!(run.pass(30_000, strong, 100, DISK), Verdict::First, "dearer");
        assert_eq!(run.pass(30_000, strong, 450, DISK), Verdict::Leave);
        assert_eq!(run.pass(30_000, strong, 650, DISK), Verdict::Compress);
        assert_eq!(
            run.pass(30_000, strong, 0, DISK),
            Verdict::Compress,
            "it must last again"
        );
    }

    #[test]
    fn a_thread_that_has_time_restores_everything() {
        let mut run = Run::default();
        for _ in 1..PATIENCE {
            run.pass(30_000, (30_000, 0), 0, VOLUME);
        }
        run.has_time = true;
        for misses in [0, 0, 0, 400] {
            assert_eq!(run.pass(30_000, (0, 40_000), misses, VOLUME), Verdict::Compress);
        }
        run.has_time = false;
        assert_eq!(run.pass(30_000, (30_000, 0), 0, VOLUME), Verdict::Raw);
        run.has_time = true;
        assert_eq!(run.pass(30_000, (1000, 5000), 0, VOLUME), Verdict::Leave);
        for _ in 0..4 {
            assert_eq!(run.pass(0, (0, 0), 0, VOLUME), Verdict::Leave);
        }
        assert_eq!(run.pass(30_000, (10_000, 30_000), 400, VOLUME), Verdict::Leave);
        assert_eq!(run.pass(30_000, (10_000, 30_000), 500, VOLUME), Verdict::Compress);
    }

    #[test]
    fn a_thread_that_was_saturated_counts_so_for_a_while() {
        let mut run = Run::default();
        let is_saturated = |run: &Run, ms| run.balance.is_saturated(run.now.after(Duration::from_millis(ms)));
        assert!(!is_saturated(&run, 0));
        run.pass(30_000, (0, 0), 3000, VOLUME);
        assert!(is_saturated(&run, 4999) && !is_saturated(&run, 5000));
        run.has_time = true;
        run.pass(30_000, (0, 0), 3000, VOLUME);
        assert!(is_saturated(&run, 3999) && !is_saturated(&run, 4000));
        run.has_time = false;
        run.pass(30_000, (0, 0), 8000, VOLUME);
        assert!(!is_saturated(&run, 4000), "saturated by misses");
    }

    #[test]
    fn pauses_between_bursts_end_nothing_and_long_ones_do() {
        let mut run = Run::default();
        let burst = |run: &mut Run| {
            run.has_time = false;
            run.pass(30_000, (0, 30_000), 900, VOLUME)
        };
        let pause = |run: &mut Run| {
            run.has_time = true;
            run.pass(5000, (0, 5000), 150, VOLUME)
        };
        for _ in 1..PATIENCE {
            assert_eq!(burst(&mut run), Verdict::Compress);
            assert_eq!(pause(&mut run), Verdict::Compress);
        }
        for _ in 0..3 {
            assert_eq!(burst(&mut run), Verdict::First);
            assert_eq!(pause(&mut run), Verdict::Leave);
        }
        let passes = (0..9).take_while(|_| pause(&mut run) == Verdict::Leave);
        assert_eq!(passes.count(), 3);
        assert_eq!(burst(&mut run), Verdict::Compress, "it must last again");
    }

    #[test]
    fn large_reads_that_other_cores_restore_are_held_up_as_well() {
        let mut run = Run {
            has_time: true,
            ..Run::default()
        };
        let large = (0, 96_000);
        for _ in 1..PATIENCE {
            assert_eq!(run.pass(96_000, large, 0, VOLUME), Verdict::Compress);
        }
        assert_eq!(run.pass(96_000, large, 200, VOLUME), Verdict::First);
        assert_eq!(run.pass(192_000, (192_000, 0), 10, VOLUME), Verdict::Raw);
        assert_eq!(
            run.pass(192_000, (50_000, 0), 0, VOLUME),
            Verdict::Raw,
            "not stopped halfway"
        );
        assert!(!run.balance.is_saturated(run.now));
        assert_eq!(run.pass(192_000, (20_000, 0), 0, VOLUME), Verdict::Leave);
        assert_eq!(run.pass(192_000, (50_000, 0), 0, VOLUME), Verdict::Leave);
    }

    #[test]
    fn what_was_undone_stays_so_while_there_are_few_misses() {
        let mut run = Run::default();
        for _ in 0..PATIENCE {
            run.pass(30_000, (30_000, 0), 0, VOLUME);
        }
        assert_eq!(run.balance.verdict.get(), Verdict::Raw);
        assert_eq!(run.pass(60_000, (100, 100), 0, VOLUME), Verdict::Leave);
        assert_eq!(run.pass(60_000, (100, 100), 900, VOLUME), Verdict::Leave);
        assert!(!run.balance.compresses_raw());
        assert_eq!(run.pass(60_000, (100, 100), 1000, VOLUME), Verdict::Leave);
        assert!(run.balance.compresses_raw());
        assert_eq!(run.pass(60_000, (100, 100), 14_000, VOLUME), Verdict::Leave);
        assert_eq!(run.pass(60_000, (100, 100), 15_000, VOLUME), Verdict::Compress);
    }

    #[test]
    fn one_block_in_eight_is_undone_wherever_it_is() {
        let balance = Balance::default();
        let undone = |verdict, restored| {
            balance.verdict.set(verdict);
            let mut undone = [0; 16];
            for turn in 0..16_000 {
                undone[turn % 16] += u32::from(balance.undo(restored).is_some());
            }
            let is_even = undone.iter().all(|&count| (100..150).contains(&count));
            assert!(is_even || undone == [0; 16], "{undone:?}");
            is_even
        };
        assert!(!undone(Verdict::Leave, Restored::BySecond(1)));
        assert!(undone(Verdict::First, Restored::BySecond(4)));
        assert!(!undone(Verdict::First, Restored::ByFirst));
        assert!(undone(Verdict::Raw, Restored::ByFirst) && undone(Verdict::Raw, Restored::BySecond(1)));
        assert!(!undone(Verdict::Raw, Restored::Raw));
    }

    #[test]
    fn only_so_many_blocks_are_joined_as_were_scattered() {
        let stored = |restored, codec| Replaced {
            entry: Entry::same_filled(Location::at(0), 0),
            restored,
            codec,
        };
        let balance = Balance::default();
        let joins = || (0..100).any(|_| balance.join());
        assert!(balance.note_undone(stored(Restored::BySecond(1), CodecSpec::LZ4)));
        balance.leaves_raw.set(true);
        assert!(!joins(), "it is compressed");
        assert!(balance.note_undone(stored(Restored::ByFirst, CodecSpec::NONE)));
        for _ in 0..JOINED_MAX {
            assert!(joins());
            assert!(!balance.note_undone(stored(Restored::Raw, CodecSpec::NONE)));
        }
        assert!(!joins());
        balance.note_undone(stored(Restored::ByFirst, CodecSpec::NONE));
        balance.leaves_raw.set(false);
        assert!(!joins(), "raw blocks are not left so at present");
    }
}
