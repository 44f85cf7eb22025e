//! One segment of the index: a bucketised cuckoo hash table of any number of buckets.
//!
//! A bucket is a cache line of eight entries. A key of `key_bits` bits has a home bucket, `key * n >> key_bits`,
//! and an alternative one, `(hash(tag) - home) mod n`, an involution for any `n`. The tag is the key's distance
//! from the smallest key of its home bucket. So home bucket and tag together *are* the key: the table is
//! exact, it never takes one block for another, and it can be rebuilt with any other number of buckets.
//!
//! Invariants: a key is in the table once; an entry in its alternative bucket has the moved bit; the load stays
//! below [`LOAD_MAX`] because the segment grows by an eighth before, and above [`LOAD_MIN`] because it shrinks before,
//! where fewer buckets would do. So an entry takes 8.4 to 9.85 bytes. Where nothing has been removed since the table was
//! made, a bucket with a free slot has never been full, and no key is in its alternative bucket whose home has one.

use crate::index::entry::{Entry, MOVED_BIT, TAG_BITS, TAG_SHIFT, VALUE_MASK};

/// Entries of a bucket: one cache line.
pub(super) const SLOTS: usize = 8;
/// The segment grows when more than this share of its slots is taken, in 1/256.
const LOAD_MAX: usize = 244;
/// Load after growing or shrinking, in 1/256.
const LOAD_REBUILT: usize = 218;
/// The segment shrinks below this load, in 1/256. So 10/256 of its slots must become free after a rebuild before the
/// next, or 26/256 be taken: a removal pays for the moves of 22 entries at most, and a cache that drops a region and
/// fills another stays between the two, unless its regions are larger than a 26th of it.
const LOAD_MIN: usize = 208;
/// Displacements tried before the segment grows instead.
const KICKS_MAX: usize = 128;

/// The slot of a bucket with the tag and the moved bit of `wanted`, and the first free one. Looks at all slots whatever
/// it finds: where they are mostly strangers a branch for each is dearer.
fn scan(bucket: &[u64; SLOTS], wanted: u64) -> (Option<usize>, Option<usize>) {
    let (mut same, mut free) = (0u32, 0u32);
    for (slot, &bits) in bucket.iter().enumerate() {
        same |= u32::from((bits ^ wanted) & !VALUE_MASK == 0) << slot;
        free |= u32::from(bits == 0) << slot;
    }
    let first = |slots: u32| (slots != 0).then(|| slots.trailing_zeros() as usize);
    (first(same & !free), first(free))
}

#[derive(Debug)]
pub(super) struct Segment {
    buckets: Vec<[u64; SLOTS]>,
    len: usize,
    /// For divisions by the number of buckets, see [`Segment::divide`].
    reciprocal: u64,
    key_bits: u32,
    /// Slots may have become free since the table was made.
    holes: bool,
}

impl Segment {
    pub(super) fn new(key_bits: u32) -> Self {
        Self::with(vec![[0; SLOTS]; Self::buckets_min(key_bits)], key_bits)
    }

    /// Of buckets that are empty as yet.
    fn with(buckets: Vec<[u64; SLOTS]>, key_bits: u32) -> Self {
        assert!(buckets.len() >= Self::buckets_min(key_bits), "tags would not fit");
        Self {
            reciprocal: u64::MAX / buckets.len() as u64,
            buckets,
            len: 0,
            key_bits,
            holes: false,
        }
    }

    /// Makes an empty segment large enough for `entries`.
    pub(super) fn reserve(&mut self, entries: usize) {
        debug_assert_eq!(self.len, 0);
        let n = self.buckets_for(entries, LOAD_REBUILT);
        *self = Self::with(vec![[0; SLOTS]; n], self.key_bits);
    }

    /// Makes a segment that has too much room smaller, if that needs fewer buckets.
    pub(super) fn fit(&mut self) {
        if self.len * 256 < self.buckets.len() * SLOTS * LOAD_MIN
            && self.buckets_for(self.len + 1, LOAD_REBUILT) < self.buckets.len()
        {
            self.rebuild(LOAD_REBUILT);
        }
    }

    /// Buckets for so many entries at a load of `load`/256.
    fn buckets_for(&self, entries: usize, load: usize) -> usize {
        let wanted = (entries * 256).div_ceil(SLOTS * load);
        wanted.max(Self::buckets_min(self.key_bits))
    }

    /// Fewest buckets with which tags are wide enough to be exact.
    pub(super) fn buckets_min(key_bits: u32) -> usize {
        // One bit of slack for the rounding of bucket borders.
        1usize << key_bits.saturating_sub(TAG_BITS - 1)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<[u64; SLOTS]>()
    }

    pub(super) fn buckets(&self) -> &[[u64; SLOTS]] {
        &self.buckets
    }

    /// Quotient and remainder of a division by the number of buckets, which takes processors several times as long as
    /// this multiplication: the quotient by the reciprocal is right, or too small by one.
    fn divide(&self, number: u64) -> (u64, u64) {
        let n = self.buckets.len() as u64;
        let quotient = ((u128::from(number) * u128::from(self.reciprocal)) >> 64) as u64;
        let remainder = number - quotient * n;
        if remainder < n {
            (quotient, remainder)
        } else {
            (quotient + 1, remainder - n)
        }
    }

    /// A key's home bucket, and its tag.
    fn home(&self, key: u64) -> (usize, u64) {
        let product = u128::from(key) * self.buckets.len() as u128;
        let home = (product >> self.key_bits) as usize;
        debug_assert!(home < self.buckets.len(), "the key has its bits");
        // What the product is beyond the border of the bucket, and the key beyond the bucket's first one n times over.
        let beyond = product as u64 & ((1 << self.key_bits) - 1);
        (home, self.divide(beyond).0)
    }

    /// Smallest key whose home is `bucket`.
    fn first_key(&self, bucket: usize) -> u64 {
        if (bucket as u64).leading_zeros() >= self.key_bits {
            let (quotient, remainder) = self.divide((bucket as u64) << self.key_bits);
            return quotient + u64::from(remainder > 0);
        }
        let n = self.buckets.len() as u128;
        ((bucket as u128) << self.key_bits).div_ceil(n) as u64
    }

    fn alternative(&self, bucket: usize, tag: u64) -> usize {
        let n = self.buckets.len();
        debug_assert!(bucket < n && tag < 1 << TAG_BITS);
        let (_, hash) = self.divide(tag.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24);
        let sum = hash as usize + n - bucket;
        if sum >= n { sum - n } else { sum }
    }

    fn key_of(&self, bucket: usize, bits: u64) -> u64 {
        let tag = bits >> TAG_SHIFT;
        let home = if bits & MOVED_BIT == 0 {
            bucket
        } else {
            self.alternative(bucket, tag)
        };
        self.first_key(home) + tag
    }

    fn find(&self, key: u64) -> Option<(usize, usize)> {
        let (home, tag) = self.home(key);
        let wanted = tag << TAG_SHIFT;
        let scan = |bucket: usize, wanted: u64| {
            self.buckets[bucket]
                .iter()
                .position(|&bits| bits != 0 && (bits ^ wanted) & !VALUE_MASK == 0)
                .map(|slot| (bucket, slot))
        };
        scan(home, wanted).or_else(|| scan(self.alternative(home, tag), wanted | MOVED_BIT))
    }

    pub(super) fn get(&self, key: u64) -> Option<Entry> {
        self.find(key)
            .map(|(bucket, slot)| Entry(self.buckets[bucket][slot] & VALUE_MASK))
    }

    /// Replaces the entry of a key that is there; keeps the table's own bits.
    pub(super) fn update(&mut self, key: u64, change: impl FnOnce(Entry) -> Entry) -> Option<Entry> {
        let (bucket, slot) = self.find(key)?;
        let old = Entry(self.buckets[bucket][slot] & VALUE_MASK);
        Some(self.replace(bucket, slot, change(old)))
    }

    /// Adds or replaces; returns what was there.
    pub(super) fn insert(&mut self, key: u64, entry: Entry) -> Option<Entry> {
        let (home, tag) = self.home(key);
        let at_home = tag << TAG_SHIFT | entry.0 & VALUE_MASK;
        let (same, free) = scan(&self.buckets[home], at_home);
        if let Some(slot) = same {
            return Some(self.replace(home, slot, entry));
        }
        if self.holes || free.is_none() {
            let other = self.alternative(home, tag);
            if let Some(slot) = scan(&self.buckets[other], at_home | MOVED_BIT).0 {
                return Some(self.replace(other, slot, entry));
            }
        }
        if (self.len + 1) * 256 > self.buckets.len() * SLOTS * LOAD_MAX {
            self.rebuild(LOAD_REBUILT);
        } else if let Some(slot) = free {
            self.buckets[home][slot] = at_home;
            self.len += 1;
            return None;
        }
        let (mut key, mut entry) = (key, entry);
        let mut load = LOAD_REBUILT;
        while let Err(homeless) = self.place(key, entry) {
            // Practically never: no path of displacements. A roomier table has one.
            (key, entry) = homeless;
            load = load * 7 / 8;
            self.rebuild(load);
        }
        self.len += 1;
        None
    }

    /// Gives the key in a slot another entry; returns the one it had.
    fn replace(&mut self, bucket: usize, slot: usize, entry: Entry) -> Entry {
        let bits = &mut self.buckets[bucket][slot];
        debug_assert!(*bits != 0, "there is an entry");
        let old = Entry(*bits & VALUE_MASK);
        *bits = *bits & !VALUE_MASK | entry.0 & VALUE_MASK;
        old
    }

    /// Puts an entry of an absent key in place, displacing others; hands one back if there is no path.
    fn place(&mut self, key: u64, entry: Entry) -> Result<(), (u64, Entry)> {
        let (home, tag) = self.home(key);
        debug_assert!(tag < 1 << TAG_BITS);
        let at_home = tag << TAG_SHIFT | entry.0 & VALUE_MASK;
        let other = self.alternative(home, tag);
        if self.put(home, at_home) || self.put(other, at_home | MOVED_BIT) {
            return Ok(());
        }
        let (mut bucket, mut bits) = (home, at_home);
        for kick in 0..KICKS_MAX {
            // The victim rotates with the bits in hand, so that two buckets do not swap for ever.
            let slot = ((bits >> 3) as usize ^ kick) % SLOTS;
            std::mem::swap(&mut self.buckets[bucket][slot], &mut bits);
            let tag = bits >> TAG_SHIFT;
            bucket = self.alternative(bucket, tag);
            bits ^= MOVED_BIT;
            if self.put(bucket, bits) {
                return Ok(());
            }
        }
        Err((self.key_of(bucket, bits), Entry(bits & VALUE_MASK)))
    }

    fn put(&mut self, bucket: usize, bits: u64) -> bool {
        let free = self.buckets[bucket].iter_mut().find(|slot| **slot == 0);
        free.map(|slot| *slot = bits).is_some()
    }

    /// Removes an entry and keeps its room.
    pub(super) fn take(&mut self, key: u64) -> Option<Entry> {
        let (bucket, slot) = self.find(key)?;
        let old = Entry(self.buckets[bucket][slot] & VALUE_MASK);
        assert!(self.len > 0, "entries are counted");
        self.buckets[bucket][slot] = 0;
        self.len -= 1;
        self.holes = true;
        Some(old)
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<Entry> {
        let old = self.take(key)?;
        self.fit();
        Some(old)
    }

    /// Rebuilds the table for a load of about `load`/256.
    fn rebuild(&mut self, load: usize) {
        let mut load = load;
        loop {
            let n = self.buckets_for(self.len + 1, load);
            let mut next = Self::with(vec![[0; SLOTS]; n], self.key_bits);
            next.len = self.len;
            if self.entries().all(|(key, entry)| next.place(key, entry).is_ok()) {
                *self = next;
                return;
            }
            load = load * 7 / 8;
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, Entry)> + '_ {
        self.entries_of(|_| true)
    }

    /// Those that are `wanted`. The keys of others are not worked out.
    pub(super) fn entries_of(&self, wanted: fn(Entry) -> bool) -> impl Iterator<Item = (u64, Entry)> + '_ {
        self.buckets.iter().enumerate().flat_map(move |(bucket, slots)| {
            slots
                .iter()
                .filter(move |&&bits| bits != 0 && wanted(Entry(bits & VALUE_MASK)))
                .map(move |&bits| (self.key_of(bucket, bits), Entry(bits & VALUE_MASK)))
        })
    }

    /// Looks at every bucket, in the order in which processors fetch memory ahead: what comes next in any order finds them
    /// in a cache. An empty table is left alone, for the system gives it memory only where it is written to.
    pub(super) fn touch(&self) {
        if self.len > 0 {
            let all = self.buckets.iter().fold(0, |all, bucket| all ^ bucket[0]);
            std::hint::black_box(all);
        }
    }

    /// The entries without their keys, which take most of the time.
    pub(super) fn values(&self) -> impl Iterator<Item = Entry> + '_ {
        let slots = self.buckets.iter().flatten();
        slots
            .filter(|&&bits| bits != 0)
            .map(|&bits| Entry(bits & VALUE_MASK))
    }

    /// A segment from buckets of an index image. Every entry is checked: its key is in range, its place is
    /// its home or alternative bucket, and `valid` likes it. Those that fail are left out and counted.
    pub(super) fn from_buckets(
        key_bits: u32,
        buckets: Vec<[u64; SLOTS]>,
        mut valid: impl FnMut(u64, Entry) -> bool,
    ) -> (Self, usize) {
        let mut segment = Self::with(buckets, key_bits);
        segment.holes = true;
        let mut refused = 0;
        for bucket in 0..segment.buckets.len() {
            for slot in 0..SLOTS {
                let bits = segment.buckets[bucket][slot];
                if bits == 0 {
                    continue;
                }
                let key = segment.key_of(bucket, bits);
                let in_range = key >> key_bits == 0;
                if in_range
                    && segment.find(key) == Some((bucket, slot))
                    && valid(key, Entry(bits & VALUE_MASK))
                {
                    segment.len += 1;
                } else {
                    segment.buckets[bucket][slot] = 0;
                    refused += 1;
                }
            }
        }
        (segment, refused)
    }
}
