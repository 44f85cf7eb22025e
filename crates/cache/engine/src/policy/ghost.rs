//! Memory of blocks that are not cached: which were seen or dropped lately.
//!
//! A ghost holds fingerprints of 16 bits in buckets of eight. A bucket keeps what was put into it last, oldest
//! first to go, so a ghost of `n` slots remembers about the last `n` insertions: buckets are chosen by hash, so the
//! age at which one block is forgotten spreads around that by about a third.
//!
//! Invariants:
//! - A bucket never forgets a block before eight others came into that bucket (unless the ghost is resized).
//! - Two bytes a slot and nothing else that grows: [`Ghost::fit`] keeps it below 1.55 bytes a cached block.
//! - A lane of 0 is empty, and empty lanes are the last of a bucket: lane 0 is the newest.
//!
//! A block's place is its key seen as a fraction of 1, multiplied by the number of buckets: the whole part is the
//! bucket, the first 16 bits after the point are the fingerprint. So the fingerprint continues the bucket's number,
//! and a table of another size can be filled from this one without knowing the keys. Growing by a factor `g`
//! leaves each place uncertain by `g` units of the new fingerprint, which is why a lookup accepts fingerprints that
//! differ by [`TOLERANCE`]: one doubling loses next to nothing. The price is the rate of false memories, at most
//! [`FALSE_POSITIVES_MAX`].

/// Fingerprints in a bucket.
pub const LANES: usize = 8;

/// By how much a fingerprint may differ from what is looked for: what one growth of the table may shift it.
const TOLERANCE: u16 = 1;

/// Share of the lookups of never-inserted keys that a full ghost answers with yes, at most.
pub const FALSE_POSITIVES_MAX: f64 = (LANES as f64) * (2.0 * TOLERANCE as f64 + 1.0) / 65_535.0;

/// Buckets a ghost has at least: 128 slots, 256 bytes.
const BUCKETS_MIN: u64 = 16;

/// Buckets a ghost has at most: 16 GiB of fingerprints, for 40 TiB of incompressible blocks in one shard.
const BUCKETS_MAX: u64 = 1 << 30;

/// Growth beyond this factor forgets everything instead: the fingerprints would be too uncertain to be found.
const GROWTH_KEPT_MAX: u64 = 4;

// Slots for each thousand cached blocks. Resizing walks the whole table, so it waits until the ghost is smaller than
// the first or larger than the third, and then aims at the second: while the number of cached blocks is steady to a
// percent or two, nothing is ever resized. With region tables and the versions of blocks it must stay below 2 bytes a block.
const SLOTS_PER_MILLE_LOW: u64 = 700;
const SLOTS_PER_MILLE_TARGET: u64 = 750;
const SLOTS_PER_MILLE_HIGH: u64 = 770;

/// The same for what the regions hold of incompressible blocks: a ghost has that many however few blocks are cached.
/// With one as small as what is cached, second-touch could never fill an empty cache.
const SLOTS_PER_MILLE_MIN: u64 = 720;

type Bucket = [u16; LANES];

/// A bounded, approximate memory of keys, first in first out. See the module's text.
#[derive(Debug)]
pub struct Ghost {
    buckets: Box<[Bucket]>,
    buckets_min: u64,
    buckets_max: u64,
    len: usize,
}

impl Ghost {
    /// A ghost for a cache whose regions hold at least `blocks` blocks. It never becomes much smaller than that.
    #[must_use]
    pub fn for_blocks(blocks: u64) -> Self {
        let buckets = buckets_for(blocks, SLOTS_PER_MILLE_MIN);
        Ghost::with_buckets(buckets, buckets)
    }

    fn with_buckets(buckets: u64, buckets_min: u64) -> Self {
        let count = usize::try_from(buckets).expect("at most BUCKETS_MAX, which fits");
        Ghost {
            buckets: vec![[0; LANES]; count].into_boxed_slice(),
            buckets_min,
            buckets_max: BUCKETS_MAX,
            len: 0,
        }
    }

    /// Bounds its memory. It is at least the smallest ghost.
    pub fn limit_memory(&mut self, bytes: u64) {
        self.buckets_max = (bytes / size_of::<Bucket>() as u64).clamp(BUCKETS_MIN, BUCKETS_MAX);
        if self.buckets.len() as u64 > self.buckets_max {
            self.resize(self.buckets_max);
        }
    }

    /// How many keys it can remember.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.buckets.len() * LANES
    }

    /// How many keys it remembers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it remembers none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Memory it takes, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val::<[Bucket]>(&self.buckets)
    }

    /// Remembers `key` as the newest. A bucket that is full forgets its oldest.
    ///
    /// `key` is a well-mixed hash: its high bits choose the bucket.
    pub fn insert(&mut self, key: u64) {
        let (index, fingerprint) = self.place(key);
        let bucket = &mut self.buckets[index];
        // A key that is remembered already moves to the front: the lanes before it move back by one.
        let last = match find(bucket, fingerprint) {
            Some(lane) => lane,
            None => {
                self.len += usize::from(bucket[LANES - 1] == 0);
                LANES - 1
            }
        };
        bucket.copy_within(..last, 1);
        bucket[0] = fingerprint;
    }

    /// Whether `key` is remembered.
    #[must_use]
    pub fn has(&self, key: u64) -> bool {
        let (index, fingerprint) = self.place(key);
        find(&self.buckets[index], fingerprint).is_some()
    }

    /// Whether `key` was remembered; it no longer is.
    pub fn take(&mut self, key: u64) -> bool {
        let (index, fingerprint) = self.place(key);
        let bucket = &mut self.buckets[index];
        let Some(lane) = find(bucket, fingerprint) else {
            return false;
        };
        bucket.copy_within(lane + 1.., lane);
        bucket[LANES - 1] = 0;
        self.len -= 1;
        true
    }

    /// Makes the ghost as large as a cache of `blocks` blocks may have it, if it is not about that already.
    ///
    /// What was remembered stays so, as far as it has room.
    pub fn fit(&mut self, blocks: u64) {
        let now = self.buckets.len() as u64;
        let largest = buckets_for(blocks, SLOTS_PER_MILLE_HIGH).max(self.buckets_min);
        let least = buckets_for(blocks, SLOTS_PER_MILLE_LOW).min(self.buckets_max);
        if now < least || now > largest {
            self.resize(buckets_for(blocks, SLOTS_PER_MILLE_TARGET).max(self.buckets_min));
        }
    }

    /// The regions of the cache hold at least `blocks` blocks from now on. A ghost that is too small for that grows at once; one that
    /// is too large waits for [`Ghost::fit`].
    pub fn capacity(&mut self, blocks: u64) {
        self.buckets_min = buckets_for(blocks, SLOTS_PER_MILLE_MIN);
        let least = buckets_for(blocks, SLOTS_PER_MILLE_LOW).min(self.buckets_max);
        if (self.buckets.len() as u64) < least {
            self.resize(buckets_for(blocks, SLOTS_PER_MILLE_TARGET));
        }
    }

    /// One walk over the old table; the new one is filled in the same order, so both are streamed.
    fn resize(&mut self, buckets: u64) {
        let buckets = buckets.min(self.buckets_max);
        let mut new = Ghost::with_buckets(buckets, self.buckets_min);
        new.buckets_max = self.buckets_max;
        let old_buckets = self.buckets.len() as u64;
        if buckets <= old_buckets * GROWTH_KEPT_MAX {
            // New places for each old place, with FRACTION bits after the point. At most 4, so it fits.
            const FRACTION: u32 = 60;
            let scale = ((u128::from(buckets) << FRACTION) / u128::from(old_buckets)) as u64;
            for (index, bucket) in self.buckets.iter().enumerate() {
                for &fingerprint in bucket.iter().take_while(|&&lane| lane != 0) {
                    // In half fingerprints: an entry lies in the middle of what it may stand for.
                    let place = (((index as u64) << 16 | u64::from(fingerprint)) << 1) | 1;
                    let place = ((u128::from(place) * u128::from(scale)) >> FRACTION) as u64;
                    let target = usize::try_from(place >> 17).expect("below the number of buckets");
                    new.append(target, nonzero((place >> 1) as u16));
                }
            }
        }
        *self = new;
    }

    /// Puts a fingerprint behind the ones that are in a bucket, as the oldest; drops it where there is no room.
    fn append(&mut self, index: usize, fingerprint: u16) {
        let bucket = &mut self.buckets[index];
        if let Some(lane) = bucket.iter().position(|&lane| lane == 0) {
            bucket[lane] = fingerprint;
            self.len += 1;
        }
    }

    fn place(&self, key: u64) -> (usize, u16) {
        let place = u128::from(key) * self.buckets.len() as u128;
        ((place >> 64) as usize, nonzero((place >> 48) as u16))
    }
}

fn find(bucket: &Bucket, fingerprint: u16) -> Option<usize> {
    bucket
        .iter()
        .position(|&lane| lane != 0 && lane.abs_diff(fingerprint) <= TOLERANCE)
}

/// 0 means an empty lane: the fingerprint 0 shares the 1.
fn nonzero(fingerprint: u16) -> u16 {
    fingerprint.max(1)
}

/// Rounded down, so that the bytes stay below what the share allows.
fn buckets_for(blocks: u64, slots_per_mille: u64) -> u64 {
    let slots = u128::from(blocks) * u128::from(slots_per_mille) / 1000;
    let buckets = u64::try_from(slots / LANES as u128).unwrap_or(u64::MAX);
    buckets.clamp(BUCKETS_MIN, BUCKETS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::block_key;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// What a ghost with exact keys would do: for each bucket the last eight keys.
    struct Exact {
        ghost: Ghost,
        buckets: Vec<VecDeque<u64>>,
    }

    impl Exact {
        fn new(buckets: u64) -> Self {
            let ghost = Ghost::with_buckets(buckets, 0);
            Exact {
                buckets: vec![VecDeque::new(); ghost.buckets.len()],
                ghost,
            }
        }

        fn bucket(&mut self, key: u64) -> &mut VecDeque<u64> {
            let index = self.ghost.place(key).0;
            &mut self.buckets[index]
        }

        fn insert(&mut self, key: u64) {
            self.ghost.insert(key);
            let bucket = self.bucket(key);
            bucket.retain(|&other| other != key);
            bucket.push_front(key);
            bucket.truncate(LANES);
        }

        fn take(&mut self, key: u64) -> bool {
            let bucket = self.bucket(key);
            let before = bucket.len();
            bucket.retain(|&other| other != key);
            bucket.len() < before
        }
    }

    proptest! {
        /// What the exact ghost remembers, this one does, but where two keys share a fingerprint.
        #[test]
        fn forgets_no_sooner_than_its_buckets(
            steps in prop::collection::vec((any::<bool>(), 0_u64..600), 1..4000),
            buckets in BUCKETS_MIN..100,
        ) {
            let mut exact = Exact::new(buckets);
            let (mut asked, mut wrong) = (0_u32, 0_u32);
            for (insert, block) in steps {
                let key = block_key(block);
                if insert {
                    exact.insert(key);
                } else {
                    asked += 1;
                    let expected = exact.take(key);
                    wrong += u32::from(exact.ghost.take(key) != expected);
                    prop_assert!(!exact.ghost.has(key) || wrong > 0, "what is taken is gone");
                }
            }
            prop_assert!(wrong <= 2 + asked / 100, "{} of {} answers are wrong", wrong, asked);
        }

        /// Whatever is done to it, its length is the number of lanes in use and no lane follows an empty one.
        #[test]
        fn keeps_its_lanes_in_order(
            steps in prop::collection::vec((0_u8..8, any::<u64>(), 0_u64..5000), 1..300),
        ) {
            let mut ghost = Ghost::for_blocks(1000);
            for (what, key, blocks) in steps {
                match what {
                    0 => ghost.fit(blocks),
                    1 => { ghost.take(key); }
                    // Few different places, so that buckets fill up.
                    _ => ghost.insert(key & 0xf000_00ff_0000_0000),
                }
                let used = ghost.buckets.iter().flatten().filter(|&&lane| lane != 0).count();
                prop_assert_eq!(ghost.len(), used);
                for bucket in &ghost.buckets {
                    let first_empty = bucket.iter().position(|&lane| lane == 0).unwrap_or(LANES);
                    prop_assert!(bucket[first_empty..].iter().all(|&lane| lane == 0), "{:?}", bucket);
                }
            }
        }
    }

    fn filled(blocks: u64, keys: std::ops::Range<u64>) -> Ghost {
        let mut ghost = Ghost::for_blocks(blocks);
        keys.for_each(|block| ghost.insert(block_key(block)));
        ghost
    }

    fn remembered(ghost: &Ghost, keys: std::ops::Range<u64>) -> f64 {
        let count = (keys.end - keys.start) as f64;
        keys.filter(|&block| ghost.has(block_key(block))).count() as f64 / count
    }

    #[test]
    fn remembers_about_as_many_as_it_has_slots() {
        let ghost = filled(100_000, 0..1_000_000);
        assert_eq!(
            ghost.len(),
            ghost.slots(),
            "every bucket is full after eleven times as many insertions"
        );
        let slots = ghost.slots() as u64;
        let newest = remembered(&ghost, 1_000_000 - slots / 2..1_000_000);
        assert!(newest > 0.97, "of the newest half {newest} are remembered");
        let around = remembered(&ghost, 1_000_000 - slots * 3 / 2..1_000_000 - slots / 2);
        assert!(
            (0.35..0.65).contains(&around),
            "of those around its bound {around}"
        );
        let oldest = remembered(&ghost, 0..1_000_000 - slots * 5 / 2);
        assert!(oldest < 0.002, "of the oldest {oldest}");
    }

    #[test]
    fn few_strangers_look_familiar() {
        let ghost = filled(100_000, 0..1_000_000);
        let wrong = remembered(&ghost, 10_000_000..12_000_000);
        assert!(
            wrong <= FALSE_POSITIVES_MAX * 1.1,
            "{wrong} against {FALSE_POSITIVES_MAX}"
        );
        assert!(
            wrong > 0.0,
            "a full ghost of 16 bits cannot be exact: the test would not see an error"
        );
    }

    #[test]
    fn growing_and_shrinking_keep_what_is_remembered() {
        let mut ghost = filled(100_000, 0..40_000);
        ghost.buckets_min = 0;
        let before = remembered(&ghost, 0..40_000);
        assert!(before > 0.98, "{before}");
        // Blocks turn out to compress 2:1: twice the size at once, then in steps.
        for blocks in [200_000, 170_000, 150_000, 130_000, 115_000] {
            let slots = ghost.slots();
            ghost.fit(blocks);
            assert_ne!(ghost.slots(), slots, "{blocks} blocks are another size");
            let after = remembered(&ghost, 0..40_000);
            // Fewer buckets overflow a little more often.
            assert!(after > before - 0.03, "{after} of {before} at {blocks} blocks");
        }
        // Less room than keys: the ghost stays full of what it had.
        ghost.fit(30_000);
        let after = remembered(&ghost, 0..40_000);
        assert!(
            ghost.len() * 10 > ghost.slots() * 9,
            "{} of {}",
            ghost.len(),
            ghost.slots()
        );
        assert!((after - ghost.len() as f64 / 40_000.0).abs() < 0.01, "{after}");
    }

    #[test]
    fn steady_numbers_of_blocks_resize_nothing() {
        let mut ghost = Ghost::for_blocks(90_000);
        ghost.fit(100_000);
        let slots = ghost.slots();
        for blocks in [98_000, 102_000, 105_000, 99_000] {
            ghost.fit(blocks);
            assert_eq!(ghost.slots(), slots, "{blocks} blocks");
        }
    }

    #[test]
    fn an_empty_cache_has_a_ghost() {
        let mut ghost = Ghost::for_blocks(100_000);
        ghost.fit(0);
        assert!((71_900..=72_000).contains(&ghost.slots()), "{}", ghost.slots());
        ghost.fit(400_000);
        ghost.fit(1);
        assert!((71_900..=72_000).contains(&ghost.slots()), "{}", ghost.slots());
    }

    #[test]
    fn extreme_sizes_are_bounded() {
        let mut ghost = Ghost::for_blocks(0);
        assert_eq!(ghost.memory_bytes() - size_of::<Ghost>(), 256);
        assert_eq!(buckets_for(u64::MAX, SLOTS_PER_MILLE_TARGET), BUCKETS_MAX);
        for key in [0, u64::MAX, 1 << 63, u64::MAX >> 16] {
            assert!(!ghost.take(key));
            ghost.insert(key);
            assert!(ghost.has(key));
        }
        ghost.fit(1_000_000);
        ghost.fit(0);
    }

    /// A cache that gets regions while it is served remembers as much as one that had them from the beginning.
    #[test]
    fn a_ghost_follows_the_capacity() {
        let mut ghost = Ghost::for_blocks(1000);
        let before = ghost.slots();
        for blocks in (1000..=100_000).step_by(1000) {
            ghost.capacity(blocks);
            assert!(
                ghost.slots() >= Ghost::for_blocks(blocks).slots() * 7 / 8,
                "{blocks}"
            );
            assert!(ghost.memory_bytes() as f64 <= 1.55 * blocks as f64, "{blocks}");
        }
        ghost.fit(10);
        assert!(ghost.slots() > 65_000, "however few blocks are cached");
        ghost.capacity(1000);
        ghost.fit(10);
        assert_eq!(ghost.slots(), before);
    }
}
