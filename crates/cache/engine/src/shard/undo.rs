//! Storing blocks with less compression again: those that clients read, where hits lose more by compression than misses gain (see
//! [`super::balance`]). Small reads leave such blocks one by one, in the order of the reads; a larger read that finds its blocks so has
//! them stored together.
//!
//! Clean blocks of a read are stored together, like those from the origin, off the client's path, unless a write has overtaken them or they
//! have left their places. A block stays in its ring, so of its records the newest is still destroyed last. There it is as young as a new
//! block.

use std::ops::Range;
use std::sync::Arc;

use flaz_codec::{CodecChoice, CodecSpec};
use flaz_device::{Env, IoBuf, Nanos};

use super::fragment::Restored;
use super::gather::Limits;
use super::load::Hit;
use super::queue::{Candidate, Job, Replaced};
use super::second_stage::ORIGIN_SLOW;
use super::{Platform, Shard};
use crate::policy::{Allowance, Ring};
use crate::settings::Mode;
use crate::units::BLOCK_BYTES;

/// While more admission jobs than this wait, no blocks are added to them.
const WAITING_MAX: u64 = 16;
/// A job has blocks of an aligned run of this many.
const JOB_BLOCKS: u64 = 32;
/// At least one block in this many must become quicker to read for the others to be stored along with it.
const TOGETHER_PART: usize = 4;
/// Fragments lie apart if for one in this many the next one does not follow.
const APART_PART: usize = 8;

/// Which blocks of a run are stored again with a codec: those that become quicker to read. If these are one in [`TOGETHER_PART`] or more,
/// the others move along, because one that stays elsewhere would cost the next such request another read of the device. A block that is
/// uncompressed is never compressed.
fn offered<T: Copy>(run: &[(T, Restored)], codec: CodecSpec) -> impl Iterator<Item = (T, Restored)> {
    let is_quicker = move |restored: Restored| match restored {
        Restored::Raw => false,
        Restored::ByFirst => codec == CodecSpec::NONE,
        Restored::BySecond(_) => true,
    };
    let quicker = run.iter().filter(|(_, restored)| is_quicker(*restored));
    let together = quicker.count() * TOGETHER_PART >= run.len();
    let moves = move |restored| together && (restored != Restored::Raw || codec == CodecSpec::NONE);
    (run.iter())
        .filter(move |(_, restored)| is_quicker(*restored) || moves(*restored))
        .copied()
}

/// Whether fragments lie apart, given by their ring and where each begins and ends, in each ring in the order of their places. Those of
/// the other ring lie elsewhere in any case.
fn lie_apart(places: impl Iterator<Item = (Ring, Range<u64>)>) -> bool {
    let (mut count, mut apart, mut ends) = (0, 0, [None, None]);
    for (ring, place) in places {
        let end = ends[ring.index()].replace(place.end);
        apart += usize::from(end.is_some_and(|end: u64| place.start > end + Limits::OF_HITS.gap_max));
        count += 1;
    }
    // A run that begins in one extent and ends in another one has a gap in any case.
    apart * APART_PART >= count && apart > 0
}

fn place(hit: &(Hit, Restored)) -> (Ring, Range<u64>) {
    (hit.0.ring, hit.0.start..hit.0.end)
}

/// Whether a run lies apart, and nearly all of its blocks are uncompressed: the few others are worth less than reads of the device.
fn is_raw_and_apart(run: &[(Hit, Restored)]) -> bool {
    let compressed = run.iter().filter(|(_, restored)| *restored != Restored::Raw);
    if compressed.count() * TOGETHER_PART > run.len() {
        return false;
    }
    let mut places: Vec<_> = run.iter().map(place).collect();
    places.sort_unstable_by_key(|(_, place)| place.start);
    lie_apart(places.into_iter())
}

impl<P: Platform> Shard<P> {
    /// A read found so many blocks, and perhaps not all.
    pub(super) fn weigh_read(&self, found: u64, missed: bool, now: Nanos) {
        if !self.weighs() {
            return;
        }
        self.second_stage.balance.note_read(found, missed);
        if self.second_stage.balance.is_due(now) {
            let origin_read = self.origin.mean_read().unwrap_or(ORIGIN_SLOW);
            self.second_stage
                .balance
                .judge(now, self.env.thread_time(), origin_read);
        }
    }

    /// Whether compression may be undone here.
    pub(super) fn weighs(&self) -> bool {
        self.tuning.settings().codec == CodecChoice::Auto
    }

    /// Hits of one request of a client, sorted by location, were restored. `block_of`: the contents of each.
    pub(super) fn weigh_hits<'a>(&self, hits: &[(Hit, Restored)], block_of: impl Fn(&Hit) -> &'a [u8]) {
        let strongest = |hits: &[(Hit, Restored)]| hits.iter().map(|(_, restored)| *restored).max();
        for fragment in hits.chunk_by(|(a, _), (b, _)| a.identity.location == b.identity.location) {
            if let Some(restored) = strongest(fragment) {
                self.second_stage.balance.note_restored(restored);
            }
        }
        let balance = &self.second_stage.balance;
        let undoes = |hits: &[_]| balance.undoes() && strongest(hits).is_some_and(|by| by != Restored::Raw);
        // Nearly all hits end here, without an allocation.
        if !undoes(hits) && !(balance.joins() && lie_apart(hits.iter().map(place))) {
            return;
        }
        let mut clean: Vec<(Hit, Restored)> = (hits.iter().copied())
            .filter(|(hit, _)| !hit.entry.dirty() && !self.map.is_newly_clean(hit.block))
            .collect();
        clean.sort_unstable_by_key(|(hit, _)| hit.block);
        for run in clean.chunk_by(|(a, _), (b, _)| a.block.0 / JOB_BLOCKS == b.block.0 / JOB_BLOCKS) {
            if undoes(run) {
                if let Some(codec) = strongest(run).and_then(|restored| balance.undo(restored)) {
                    let offered = offered(run, codec).map(|one| (one, block_of(&one.0)));
                    self.offer_restored(codec, &offered.collect::<Vec<_>>());
                }
            } else if balance.joins() && is_raw_and_apart(run) && balance.join() {
                let all = run.iter().map(|one| (*one, block_of(&one.0)));
                self.offer_restored(CodecSpec::NONE, &all.collect::<Vec<_>>());
            }
        }
    }

    /// Offers ascending blocks of one request for admission with a codec, together.
    fn offer_restored(&self, codec: CodecSpec, blocks: &[((Hit, Restored), &[u8])]) {
        let [((Hit { block: first, .. }, _), _), ..] = *blocks else {
            return;
        };
        let count = blocks[blocks.len() - 1].0.0.block.0 - first.0 + 1;
        let is_wanted = !self.is_stopping()
            && self.mode() != Mode::PassThrough
            && self.queue.waiting() <= WAITING_MAX
            && self.allowance() == Allowance::All;
        if !is_wanted {
            return;
        }
        let bytes = count as usize * BLOCK_BYTES;
        let Some(slot) = self.queue.try_reserve(bytes) else {
            return;
        };
        let mut data = IoBuf::zeroed(bytes);
        let mut candidates = Vec::with_capacity(blocks.len());
        for ((hit, restored), block) in blocks {
            let index = (hit.block.0 - first.0) as usize;
            data[index * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(block);
            candidates.push(Candidate {
                index,
                ring: hit.ring,
                hits: 0,
                written: false,
                version: hit.version,
                replaces: Some(Replaced {
                    entry: hit.entry,
                    restored: *restored,
                    codec,
                }),
            });
        }
        let job = Job::Store {
            first,
            data: Arc::new(data),
            candidates,
            stale: Vec::new(),
        };
        self.queue.offer(slot, job, &self.stats);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_move_with_many_that_become_quicker_and_not_with_few() {
        let (raw, first, second) = (Restored::Raw, Restored::ByFirst, Restored::BySecond(1));
        let offered = |run: &[Restored], codec| {
            let run: Vec<(usize, Restored)> = run.iter().copied().enumerate().collect();
            offered(&run, codec).map(|(number, _)| number).collect::<Vec<_>>()
        };
        assert_eq!(offered(&[raw, second, raw, first], CodecSpec::NONE), [0, 1, 2, 3]);
        assert_eq!(offered(&[raw, second, raw, first], CodecSpec::LZ4), [1, 3]);
        assert_eq!(offered(&[first, first, first], CodecSpec::LZ4), [0; 0]);
        let mut run = [raw; 32];
        run[5] = first;
        assert_eq!(offered(&run, CodecSpec::NONE), [5]);
        assert_eq!(offered(&run, CodecSpec::LZ4), [0; 0]);
        run[..8].fill(second);
        assert_eq!(offered(&run, CodecSpec::NONE).len(), 32);
    }

    #[test]
    fn fragments_lie_apart_if_many_do_not_follow_each_other() {
        let place = |start: &u64| start * 1000..start * 1000 + 1000;
        let apart = |starts: &[u64]| lie_apart(starts.iter().map(|start| (Ring::Main, place(start))));
        assert!(!apart(&[7]));
        assert!(!apart(&[7, 8, 9]));
        assert!(
            !apart(&[7, 7, 7, 7, 12, 12]),
            "groups, and a gap that is read along"
        );
        assert!(apart(&[7, 8, 20]));
        let of_both = [7, 40, 8, 41].iter().zip(Ring::ALL.into_iter().cycle());
        assert!(!lie_apart(of_both.map(|(start, ring)| (ring, place(start)))));
        let mut places: Vec<u64> = (0..32).collect();
        for breaks in 0..=4 {
            assert_eq!(apart(&places), breaks == 4, "{places:?}");
            places[(breaks + 1) * 6..]
                .iter_mut()
                .for_each(|place| *place += 100);
        }
    }
}
