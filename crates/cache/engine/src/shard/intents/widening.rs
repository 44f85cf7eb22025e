//! The number of neighbouring stripes that are set together with the wanted ones.
//!
//! If writers wait for intents more than a certain share of their time, the workload writes all over the device. Then the
//! stripes around the wanted ones are set as well, twice as many each time, because the workload will reach them anyway. A
//! crash drops the blocks of all set stripes, so if setting is cheap compared with the writes, as in front of a hard disk,
//! only the wanted stripes are set.
//!
//! Invariant: the stripes set around a wanted one are in the same sector of the bitmap, so they cost no additional write.

use std::cell::Cell;
use std::time::Duration;

use flaz_device::Nanos;

use crate::format::intent::INTENT_STRIPES;

/// Writers may spend one part in this many of their time waiting for intents.
const WAIT_PART: u32 = 20;
/// Number of close sets in a row before widening begins, and the maximum that is counted.
const CLOSE_SETS_ALONE: u32 = 16;
const CLOSE_SETS_MAX: u32 = CLOSE_SETS_ALONE + 12;
/// Maximum number of stripes set for one wanted stripe: a sector.
const GROUP_MAX: u64 = INTENT_STRIPES;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Widening {
    /// Number of sets in close succession.
    close_sets: Cell<u32>,
    /// When the last set began.
    last_set: Cell<Nanos>,
    /// Duration of the last set.
    last_took: Cell<Duration>,
}

impl Widening {
    pub(super) fn new() -> Self {
        Self {
            close_sets: Cell::new(0),
            last_set: Cell::new(Nanos(0)),
            last_took: Cell::new(Duration::ZERO),
        }
    }

    /// The stripes to set for the `wanted` ones, of `stripes` in all, ascending. `writers` have a write waiting or in flight.
    pub(super) fn widen(&self, now: Nanos, wanted: &[u64], writers: u32, stripes: u64) -> Vec<u64> {
        let apart = now.since(self.last_set.replace(now));
        // The writers that wait for this set, and those that have written since the last one.
        let (waiting, writers) = (wanted.len() as u32, writers.max(1));
        let close = self.last_took.get() * waiting * WAIT_PART > apart * writers;
        let run = if close {
            (self.close_sets.get() + 1).min(CLOSE_SETS_MAX)
        } else {
            self.close_sets.get() / 2
        };
        self.close_sets.set(run);
        let group = (1 << run.saturating_sub(CLOSE_SETS_ALONE)).min(GROUP_MAX);
        let mut all: Vec<u64> = wanted
            .iter()
            .flat_map(|&stripe| {
                let sector = stripe / INTENT_STRIPES * INTENT_STRIPES;
                let start = sector + (stripe - sector) / group * group;
                start..(start + group).min(sector + INTENT_STRIPES).min(stripes)
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The set that was widened last took so long.
    pub(super) fn note_took(&self, took: Duration) {
        self.last_took.set(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIPES: u64 = 3 * INTENT_STRIPES / 2;

    #[test]
    fn sets_far_apart_are_not_widened() {
        let widening = Widening::new();
        let mut now = Nanos(0);
        for stripe in 0..100 {
            now = now.after(Duration::from_secs(1));
            assert_eq!(widening.widen(now, &[stripe, stripe], 1, STRIPES), [stripe]);
            widening.note_took(Duration::from_millis(1));
        }
    }

    #[test]
    fn sets_close_together_double_up_to_a_sector() {
        let widening = Widening::new();
        let mut now = Nanos(0);
        let mut lens = Vec::new();
        for _ in 0..CLOSE_SETS_MAX + 5 {
            now = now.after(Duration::from_millis(2));
            let all = widening.widen(now, &[5], 1, STRIPES);
            assert!(all.contains(&5) && all.iter().all(|&stripe| stripe < INTENT_STRIPES));
            lens.push(all.len() as u64);
            widening.note_took(Duration::from_millis(1));
        }
        assert_eq!(lens[CLOSE_SETS_ALONE as usize - 1], 1);
        assert!(lens.is_sorted() && lens.ends_with(&[GROUP_MAX]), "{lens:?}");
        let last = widening.widen(now, &[STRIPES - 1], 1, STRIPES);
        assert_eq!(last.last(), Some(&(STRIPES - 1)), "not past the end");
    }
}
