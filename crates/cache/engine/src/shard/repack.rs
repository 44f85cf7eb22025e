//! Compressing clean blocks again with a stronger codec, when reclaim stores them again: neighbours of an aligned 16 KiB together,
//! others alone.
//!
//! Neighbours are those that stay as well, and, within limits, used blocks elsewhere in main: they are read and stored again now, not
//! when their own region is reclaimed. They leave main for main, so of their records the newest is still destroyed last.
//!
//! Codec threads do the work, or those for spare time, a few blocks at a time, so that work that clients wait for is never far back in
//! their queue.
//! Fragments are moved as they are where processors are busy, where space is needed at once, and where it does not pay: see
//! [`super::second_stage`].

use std::cell::Cell;
use std::collections::BTreeMap;
use std::mem::take;
use std::rc::Rc;
use std::sync::Arc;

use flaz_codec::{CodecChoice, CodecId, CodecSpec, Effort};
use flaz_device::{Env, IoBuf, Load, Priority};
use futures_util::stream::{StreamExt, iter};

use super::fragment;
use super::keep::Survivor;
use super::second_stage::{ForMiss, SECOND_JOB_BLOCKS, Second, Stored};
use super::sets::{
    DictionaryAge, Kept, Member, Outcome, PackedGroup, Repacked, Set, alone, is_whole_group, of_broken_group,
    pack_set, without_quickly,
};
use super::tasks::Phase;
use super::{Platform, Shard};
use crate::format::extent::{FRAGMENT_HEADER_BYTES, FragmentIdentity};
use crate::format::group::{GROUP_BLOCKS_MAX, Members};
use crate::index::Place;
use crate::policy::Ring;
use crate::stats::count;
use crate::units::LocalBlock;

/// The blocks of a miss with more than this do not get high effort: those that stay get the usual one, new ones the first codec.
const HIGH_ADMITTED_MAX: usize = 16;
/// The same for misses while more admission jobs than this wait.
const HIGH_WAITING_MAX: u64 = 8;
/// Neighbours that are read from the cache device at the same time.
const FETCHES_MAX: usize = 8;

/// What was compressed again.
#[derive(Debug, Default)]
pub(super) struct Again {
    pub(super) groups: Vec<PackedGroup>,
    pub(super) blocks: BTreeMap<LocalBlock, Repacked>,
}

/// All blocks of the region that stay, and how many bytes of others may be stored along with them.
pub(super) struct Wider<'a> {
    /// By block.
    survivors: BTreeMap<LocalBlock, &'a Survivor>,
    bytes_left: Cell<u64>,
    is_full: bool,
}

impl<'a> Wider<'a> {
    /// Neighbours from elsewhere leave at least an eighth of the region's bytes to be gained by its reclaim.
    pub(super) fn new(survivors: &'a [Survivor], region_bytes: u64) -> Self {
        let fragments = survivors.chunk_by(|a, b| a.entry.same_place(b.entry));
        let bytes: u64 = fragments.map(|same| same[0].end - same[0].start).sum();
        let full = region_bytes / 8 * 7;
        Self {
            survivors: survivors
                .iter()
                .map(|survivor| (survivor.block, survivor))
                .collect(),
            bytes_left: Cell::new(full.saturating_sub(bytes)),
            is_full: bytes > full,
        }
    }

    /// A block is stored along with others, before or after its region is reclaimed.
    fn take(&self, guest: Survivor) {
        if !self.survivors.contains_key(&guest.block) {
            let left = self.bytes_left.get().saturating_sub(guest.end - guest.start);
            self.bytes_left.set(left);
        }
    }

    /// Whether so much of the region stays that reclaim would gain little if it moved bytes that no block needs.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }
}

impl<P: Platform> Shard<P> {
    /// The codec for blocks that stay, if the settings have one and it pays to use it now.
    pub(super) fn second_codec(&self) -> Option<Second> {
        let usual = self.second_with(Effort::Usual)?;
        if !self.second_stage.pays(self.origin.mean_read()) || !self.second_stage.balance.compresses() {
            return None;
        }
        match self.effort()? {
            Effort::Usual => Some(usual),
            Effort::High => self.second_with(Effort::High),
        }
    }

    fn second_with(&self, effort: Effort) -> Option<Second> {
        let has_dictionary = self.codecs.current_number().is_some();
        let codec = self.tuning.settings().codec.second(effort, has_dictionary)?;
        Some(Second {
            codec,
            effort,
            is_charged: effort == Effort::High,
        })
    }

    /// The same for admission after a miss, of `staying` blocks that stay and `new` others. High effort must not delay other admissions or
    /// block codec threads.
    pub(super) fn second_for_miss(&self, staying: usize, new: usize) -> ForMiss {
        // With one core, the codec would keep this thread from serving clients.
        let second = self.second_codec().filter(|_| self.env.parallelism() > 1);
        let (Some(second), Some(usual)) = (second, self.second_with(Effort::Usual)) else {
            return ForMiss::default();
        };
        let is_prepared = |second: Second| {
            let current = self.codecs.current();
            current.is_none_or(|current| current.dictionary.is_prepared(second.codec.level()))
        };
        let has_time = second.effort == Effort::High
            && staying + new <= HIGH_ADMITTED_MAX
            && self.queue.waiting() <= HIGH_WAITING_MAX;
        let high = has_time && is_prepared(second);
        // A single job prepares the dictionary. Each of several would.
        let usual_is_quick = is_prepared(usual) || new <= usual.job_blocks();
        let for_new = has_time && usual_is_quick && self.second_stage.has_plenty(self.env.now());
        ForMiss {
            stay: Some(if high { second } else { usual }),
            new: for_new.then_some(Second {
                is_charged: true,
                ..usual
            }),
        }
    }

    /// Runs a job of the second codec, or of the first if there is none. One that is charged has time to spare; the time from its start to
    /// its end goes to the budget for high effort.
    pub(super) async fn compute_second<T: Send + 'static>(
        &self,
        second: Option<Second>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        if !second.is_some_and(|second| second.is_charged) {
            return self.env.compute(Priority::Write, job).await;
        }
        let (result, ran) = self.env.compute_spare(job).await;
        self.second_stage.spent(ran);
        count(&self.stats.counters.high_effort_ns, ran.as_nanos() as u64);
        result
    }

    /// Compresses blocks again, where it pays. One that is damaged is dropped.
    pub(super) async fn repack(self: &Rc<Self>, kept: Vec<Kept>, wider: &Wider<'_>) -> Again {
        // Without a free region, writers may wait for this reclaim. A start and a stop should end soon.
        let hurries = self.log.free_regions() == 0 || self.tasks.phase() != Phase::Serving;
        let second = self.second_codec().filter(|_| !hurries);
        // They may have been stored so when there were only hits.
        let compresses_raw = !hurries
            && self.tuning.settings().codec == CodecChoice::Auto
            && self.second_stage.balance.compresses_raw()
            && self.env.load() != Load::High;
        let mut fours: BTreeMap<u64, Vec<Member>> = BTreeMap::new();
        for member in kept.into_iter().filter_map(|kept| self.member(kept, false)) {
            let four = member.kept.survivor.block.0 / GROUP_BLOCKS_MAX as u64;
            fours.entry(four).or_default().push(member);
        }
        let fours: Vec<_> = fours.into_values().collect();
        let sets: Vec<Set> = match second {
            Some(_) => {
                let sets = fours.into_iter().map(|four| self.set_of(four, wider));
                iter(sets).buffered(FETCHES_MAX).concat().await
            }
            None => {
                let is_tried = |member: &Member| member.of > 1 || compresses_raw && self.tries_raw(member);
                let tried = |mut four: Vec<Member>| {
                    four.retain(is_tried);
                    of_broken_group(four)
                };
                fours.into_iter().map(tried).collect()
            }
        };
        let (mut again, mut some, mut blocks) = (Again::default(), Vec::new(), 0);
        let mut second_now = second;
        let mut sets = sets.into_iter().filter(|set| !set.members.is_empty()).peekable();
        while let Some(set) = sets.next() {
            if some.is_empty() && second.is_some() {
                // Time and space may have become short in the meantime.
                second_now = self.second_with(self.effort().unwrap_or_default());
            }
            blocks += set.members.len();
            some.push(set);
            let job_blocks = second_now.map_or(SECOND_JOB_BLOCKS, Second::job_blocks);
            if blocks >= job_blocks || sets.peek().is_none() {
                self.repack_some(second_now, take(&mut some), &mut again).await;
                blocks = 0;
            }
        }
        again
    }

    /// Whether to try to compress a block that is not compressed.
    fn tries_raw(&self, member: &Member) -> bool {
        member.stored == Some(Stored::Raw) && self.second_stage.tries(Stored::Raw)
    }

    pub(super) fn identity_of(&self, survivor: &Survivor) -> FragmentIdentity {
        let Survivor { block, entry, .. } = *survivor;
        self.log.identity_at(self.global(block), entry.location())
    }

    /// A block that may be compressed again: a clean one.
    fn member(&self, mut kept: Kept, is_guest: bool) -> Option<Member> {
        let Survivor { block, entry, .. } = kept.survivor;
        let Place::Fragment { .. } = entry.place() else {
            return None;
        };
        if entry.dirty() || self.map.is_newly_clean(block) {
            return None;
        }
        let (header, stored) = fragment::split(&kept.data[kept.place.clone()]).ok()?;
        kept.place.end = kept.place.start + FRAGMENT_HEADER_BYTES + stored.len();
        let of = Members::from_bits(header.members).map_or(1, Members::count);
        let codec = CodecId(header.codec);
        let dictionary = match (codec.dictionary(), self.codecs.current_number()) {
            (needed, current) if needed == current => DictionaryAge::Current,
            (None, _) => DictionaryAge::None,
            (Some(_), _) => DictionaryAge::Earlier,
        };
        let stored = match codec {
            _ if of > 1 => None,
            CodecId::RAW => Some(Stored::Raw),
            CodecId::LZ4 => Some(Stored::Packed),
            _ if dictionary == DictionaryAge::None => Some(Stored::WithoutDictionary),
            _ if self.log.ring_at(entry.location()) == Ring::Probation => Some(Stored::Quickly),
            _ => None,
        };
        Some(Member {
            identity: self.identity_of(&kept.survivor),
            kept,
            of,
            stored,
            dictionary,
            is_guest,
        })
    }

    /// What to do with the members of a four that stay.
    async fn set_of(self: &Rc<Self>, mut four: Vec<Member>, wider: &Wider<'_>) -> Vec<Set> {
        four.retain_mut(|member| match member.stored {
            Some(stored) if self.second_stage.tries(stored) => true,
            Some(Stored::Quickly) if self.wants_sample() => true,
            // It may still become part of a group, which saves more.
            Some(Stored::Quickly) => {
                member.stored = None;
                true
            }
            stored => stored.is_none(),
        });
        if let Some(member) = four.first() {
            self.load_four(member.kept.survivor.block).await;
        }
        let guests = self.guests(&four, wider);
        if guests.is_empty() && is_whole_group(&four) && four[0].dictionary == DictionaryAge::Current {
            return Vec::new();
        }
        let is_bound = four.iter().any(Member::is_bound);
        let together = four.len() + guests.len() > 1 && (self.second_stage.tries(Stored::Apart) || is_bound);
        let mut members = four;
        if together {
            for guest in guests {
                wider.take(guest);
                let kept = self.fetch_fragment(guest).await;
                members.extend(kept.and_then(|kept| self.member(kept, true)));
            }
            // Blocks that do not compress gain nothing.
            members.retain(|member| !member.is_guest || member.stored != Some(Stored::Raw));
            members.sort_unstable_by_key(|member| member.kept.survivor.block);
        }
        let together = together && members.len() > 1;
        if !together {
            members = alone(members);
        }
        vec![Set { members, together }]
    }

    /// Neighbours elsewhere that may be stored along with a four, whose index pages have been loaded.
    fn guests(&self, four: &[Member], wider: &Wider<'_>) -> Vec<Survivor> {
        let Some(one) = four.first() else {
            return Vec::new();
        };
        let one = one.kept.survivor.block;
        let first = one.0 - one.0 % GROUP_BLOCKS_MAX as u64;
        (first..first + GROUP_BLOCKS_MAX as u64)
            .map(LocalBlock)
            .filter(|block| four.iter().all(|member| member.kept.survivor.block != *block))
            .filter_map(|block| self.guest(block, wider))
            .collect()
    }

    /// A block that is used, in main or in the region that is reclaimed.
    fn guest(&self, block: LocalBlock, wider: &Wider<'_>) -> Option<Survivor> {
        let entry = self.map.lookup(block)?;
        let Place::Fragment { sectors, .. } = entry.place() else {
            return None;
        };
        if entry.dirty() {
            return None;
        }
        if let Some(survivor) = wider.survivors.get(&block) {
            return entry.same_place(survivor.entry).then_some(**survivor);
        }
        // A paged index still has the blocks of the region that are dropped.
        if self.log.victim() == Some(self.log.region_of(entry.location())) {
            return None;
        }
        let bytes = u64::from(sectors) * 512;
        let hits = entry.hits().checked_sub(1)?;
        if wider.bytes_left.get() < bytes || self.log.ring_at(entry.location()) != Ring::Main {
            return None;
        }
        let start = entry.location().offset();
        Some(Survivor {
            block,
            entry,
            ring: Ring::Main,
            hits,
            start,
            end: start / 512 * 512 + bytes,
        })
    }

    /// Reads the fragment of a block.
    async fn fetch_fragment(self: &Rc<Self>, survivor: Survivor) -> Option<Kept> {
        let Survivor { block, entry, .. } = survivor;
        let location = entry.location();
        let len = (survivor.end - survivor.start) as usize;
        let copy = |bytes: &[u8], _| IoBuf::copy_of(&bytes[..len.min(bytes.len())]);
        if let Some(data) = self.log.in_memory(self.global(block), location, copy) {
            let place = 0..data.len();
            return Some(Kept {
                survivor,
                data: Arc::new(data),
                place,
            });
        }
        let hit = self.hit(0, block, entry);
        let pin = self.log.pin(location);
        let read = self.read_cache(hit.start, hit.end - hit.start).await;
        let Ok((data, at)) = read else {
            self.load_page(block).await;
            drop(pin);
            // Otherwise each reclaim of a neighbour would read it again, and its errors would fence the device. It is clean.
            let _ = self.drop_bad(block, entry, None);
            return None;
        };
        let start = at + (location.offset() - hit.start) as usize;
        Some(Kept {
            survivor,
            place: start..start + len,
            data: Arc::new(data),
        })
    }

    /// Compresses some sets, with LZ4 if there is no second codec.
    async fn repack_some(self: &Rc<Self>, second: Option<Second>, mut sets: Vec<Set>, again: &mut Again) {
        let wants_samples = self.wants_sample() && second.is_some();
        if second.is_none_or(|second| second.effort == Effort::Usual) && !wants_samples {
            sets = sets.into_iter().map(without_quickly).collect();
        }
        let started = self.env.now();
        let codec = second.map_or(CodecSpec::LZ4, |second| second.codec);
        let mut packer = self.codecs.take(codec, self.tuning.settings().codec);
        let mut decoders = self.codecs.take_decoders();
        let job = move || {
            let pack = |set| pack_set(&mut packer, &mut decoders, set, wants_samples);
            let outcomes: Vec<Outcome> = sets.into_iter().map(pack).collect();
            (packer, decoders, outcomes)
        };
        let (packer, decoders, outcomes) = self.compute_second(second, job).await;
        self.codecs.put_back(packer);
        self.codecs.put_back_decoders(decoders);
        let counters = &self.stats.counters;
        let took = self.env.now().since(started);
        count(&counters.repack_ns, took.as_nanos() as u64);
        for outcome in outcomes {
            let members = &outcome.set.members;
            for (at, error) in outcome.damaged {
                let Survivor { block, entry, .. } = members[at].kept.survivor;
                self.load_page(block).await;
                // A dirty block is not tried, and this one is clean, so there is no error to pass on.
                let _ = self.drop_bad(block, entry, Some(&error));
            }
            if let Some(sample) = &outcome.sample {
                self.add_sample(sample);
            }
            if outcome.set.together && !members.iter().any(Member::is_bound) {
                self.second_stage.note(Stored::Apart, outcome.group.is_some());
            }
            again.groups.extend(outcome.group);
            for (at, found) in outcome.alone {
                let member = &members[at];
                // What is left of a group cannot stay as it is, nor what needs an earlier dictionary.
                let worth = match member.stored.filter(|_| !member.is_bound()) {
                    Some(stored) => {
                        let before = member.kept.place.len() - FRAGMENT_HEADER_BYTES;
                        let now = found.as_ref().map(|found| found.stored.len());
                        self.second_stage.is_worth(stored, before, now)
                    }
                    None => true,
                };
                let found = found.filter(|_| worth);
                again
                    .blocks
                    .extend(found.map(|found| (member.kept.survivor.block, found)));
            }
        }
    }
}
