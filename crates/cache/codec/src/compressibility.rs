//! Two cheap looks at a block before a codec gets it: is it one value, and can compressing pay at all?
//!
//! [`looks_incompressible`] asks two questions. Does a sample of the bytes collide about as often as random
//! bytes would (Friedman's index of coincidence)? Then an entropy coder can gain a few percent at most. Does any
//! piece of some short windows come again anywhere? If not, there is hardly anything to copy from either. The
//! first stops at the first sign of order, so that compressible blocks lose little time.
//!
//! A [`Detector`] remembers that the codec made nothing of the blocks before, for such data comes in long stretches: in
//! them a look decides, later on a smaller one at some of the blocks, and elsewhere none is taken. That keeps the price
//! from data that compresses, and the looks from blocks that shrink a little.
//!
//! Invariant: a wrong "incompressible" costs capacity, so every doubt counts as compressible; the codec is
//! the judge then.

/// Length of the blocks that are judged; others are left to the codec.
const BLOCK_BYTES: usize = 4096;
/// From one sampled run to the next: a prime, so that in records of any usual length every field gets its share.
const RUN_STRIDE: usize = 71;
/// Bytes sampled in a row.
const RUN_BYTES: usize = 6;
/// The same in the middle of incompressible data.
const RUN_BYTES_QUICK: usize = 2;
/// Runs between two looks at the collisions.
const RUNS_A_LOOK: usize = 8;
const LOOKS: usize = (BLOCK_BYTES / RUN_STRIDE).div_ceil(RUNS_A_LOOK);
const VALUES: usize = 256;
/// Blocks in a row that were stored as they are, after which a look decides.
const STREAK_MIN: u8 = 4;
/// The same after which the smaller sample will do, and not at every block.
const STREAK_LONG: u8 = 32;
/// The same after which half as much will do: what a look too late costs is little beside such a stretch.
const STREAK_VERY_LONG: u8 = 128;
/// Of so many blocks of a streak the codec gets one, which bounds what a wrong streak can cost.
const CODEC_EVERY: u8 = 16;
const CODEC_EVERY_LONG: u8 = 64;
const CODEC_EVERY_VERY_LONG: u8 = 128;
/// Of so many blocks of a request one is looked at in a long streak: what it holds is of one kind.
const LOOK_EVERY_LONG: u8 = 4;
const LOOK_EVERY_VERY_LONG: u8 = 8;
/// For how many blocks the beginning of a request counts: of requests of one block every other is looked at in a long
/// streak, of longer ones the first block or the second.
const REQUEST_COUNTS: u8 = 2;
/// Length of the windows that are looked for in the rest of the block, and distance of the places that are
/// looked at: no second copy of a whole window can hide between two places.
const WINDOW_BYTES: usize = 32;
/// Where the windows begin, in windows: any piece of a little over 1 KiB holds one.
const WINDOWS: [usize; 4] = [0, 33, 66, 99];
const TAGS_BITS: u32 = 9;

/// The byte that the whole block consists of, if there is one. Costs a few nanoseconds on other blocks.
#[must_use]
pub fn single_value(block: &[u8]) -> Option<u8> {
    let first = *block.first()?;
    // Most blocks differ in the first or the last word; data that ends in padding differs in the first.
    if let (Some(head), Some(tail)) = (block.first_chunk::<8>(), block.last_chunk::<8>())
        && (*head != [first; 8] || *tail != [first; 8])
    {
        return None;
    }
    let mut chunks = block.chunks_exact(64);
    for chunk in &mut chunks {
        if chunk.iter().fold(0, |differing, byte| differing | (byte ^ first)) != 0 {
            return None;
        }
    }
    chunks
        .remainder()
        .iter()
        .all(|byte| *byte == first)
        .then_some(first)
}

/// Whether a block of 4 KiB looks like random, encrypted or compressed data, which no codec makes smaller.
#[must_use]
pub fn looks_incompressible(block: &[u8]) -> bool {
    block
        .try_into()
        .is_ok_and(|block| collides_like_random::<RUN_BYTES>(block) && !repeats(block))
}

/// Judges blocks that come one after the other from the same place.
#[derive(Clone, Debug, Default)]
pub struct Detector {
    /// Blocks stored as they are since one that the codec made smaller.
    streak: u8,
    /// Blocks of this request that nobody looked at since one that was.
    unseen: u8,
}

impl Detector {
    /// A detector that has seen nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next block is of another request.
    pub fn next_request(&mut self) {
        self.unseen = self.unseen.saturating_add(REQUEST_COUNTS);
    }

    /// Whether the codec need not be asked. What becomes of the block is to be told by [`Self::note`].
    pub fn incompressible(&mut self, block: &[u8]) -> bool {
        let (codec_every, look_every) = match self.streak {
            STREAK_VERY_LONG.. => (CODEC_EVERY_VERY_LONG, LOOK_EVERY_VERY_LONG),
            STREAK_LONG.. => (CODEC_EVERY_LONG, LOOK_EVERY_LONG),
            _ => (CODEC_EVERY, 1),
        };
        if self.streak < STREAK_MIN || self.streak.is_multiple_of(codec_every) {
            self.unseen = 0;
            return false;
        }
        if self.unseen.saturating_add(1) < look_every {
            self.unseen += 1;
            return true;
        }
        self.unseen = 0;
        let quick = || {
            let block = block.try_into();
            block.is_ok_and(collides_like_random::<RUN_BYTES_QUICK>)
        };
        self.streak >= STREAK_LONG && quick() || looks_incompressible(block)
    }

    /// Takes note of a block that is stored as it is, by whoever's verdict, or of one that was made smaller.
    pub fn note(&mut self, as_it_is: bool) {
        self.streak = match (as_it_is, self.streak) {
            (false, _) => 0,
            // A streak has no end.
            (true, u8::MAX) => u8::MAX - CODEC_EVERY_VERY_LONG + 1,
            (true, streak) => streak + 1,
        };
    }
}

/// Whether equal bytes in a sample are as frequent as in random data, neither more nor less.
fn collides_like_random<const RUN: usize>(block: &[u8; BLOCK_BYTES]) -> bool {
    // A count stays under 256: long before, the pairs are too many.
    let mut seen = [0_u8; VALUES];
    let mut pairs: u32 = 0;
    let (strides, _) = block.as_chunks::<RUN_STRIDE>();
    for (look, strides) in strides.chunks(RUNS_A_LOOK).enumerate() {
        for stride in strides {
            for byte in &stride[..RUN] {
                let count = &mut seen[usize::from(*byte)];
                pairs += u32::from(*count);
                *count = count.wrapping_add(1);
            }
        }
        if pairs > const { pairs_limits(RUN) }[look] {
            return false;
        }
    }
    // Fewer than random data is order, too: a counter, for one.
    let mean = const { pairs_mean(BLOCK_BYTES / RUN_STRIDE * RUN) };
    pairs + const { slack(pairs_mean(BLOCK_BYTES / RUN_STRIDE * RUN)) } >= mean
}

/// Mean number of pairs of equal bytes among so many random ones; it has nearly Poisson's distribution.
const fn pairs_mean(samples: usize) -> u32 {
    (samples * (samples - 1) / 2 / VALUES) as u32
}

/// Four and a half standard deviations, and a little for small means: exceeded a few times in a million.
const fn slack(mean: u32) -> u32 {
    (20 * mean).isqrt() + 4
}

/// The most pairs that random data shows at each look.
const fn pairs_limits(run: usize) -> [u32; LOOKS] {
    let mut limits = [0; LOOKS];
    let mut look = 0;
    while look < LOOKS {
        let mean = pairs_mean((look + 1) * RUNS_A_LOOK * run);
        limits[look] = mean + slack(mean);
        look += 1;
    }
    limits
}

/// Whether four bytes of one of the windows come again where the rest of the block is looked at.
fn repeats(block: &[u8; BLOCK_BYTES]) -> bool {
    // The last word of each hash, by other bits of its product; zero stands for none.
    let mut tags = [0_u16; 1 << TAGS_BITS];
    for window in WINDOWS {
        // A window's words reach three bytes over its end.
        let bytes = &block[window * WINDOW_BYTES..][..WINDOW_BYTES + 3];
        for word in bytes.windows(4) {
            let (tag, place) = hashed(word);
            tags[place] = tag;
        }
    }
    let mut found = false;
    for (n, window) in WINDOWS.iter().enumerate() {
        // The places between this window and the next: a window would find itself.
        let next = WINDOWS.get(n + 1).copied().unwrap_or(BLOCK_BYTES / WINDOW_BYTES);
        let between = &block[(window + 1) * WINDOW_BYTES..next * WINDOW_BYTES];
        for piece in between.chunks_exact(WINDOW_BYTES) {
            let (tag, place) = hashed(&piece[..4]);
            // No early exit: nearly all blocks that come this far hold no repeats.
            found |= tags[place] == tag;
        }
    }
    found
}

#[inline]
fn hashed(bytes: &[u8]) -> (u16, usize) {
    let product = bytes
        .try_into()
        .map_or(0, u32::from_le_bytes)
        .wrapping_mul(0x9e37_79b1);
    ((product >> 4) as u16 | 1, (product >> (32 - TAGS_BITS)) as usize)
}
