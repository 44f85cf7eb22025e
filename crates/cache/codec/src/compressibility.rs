//! Two cheap tests of a block before a codec gets it: is it a single repeated byte, and can compression gain anything?
//!
//! [`looks_incompressible`] asks two questions. Do the bytes of a sample collide about as often as random bytes would
//! (Friedman's index of coincidence)? Then an entropy coder can gain a few percent at most. Does any piece of some
//! short windows occur again anywhere? If not, there is hardly anything to copy either. The first test stops at the
//! first sign of order, so that compressible blocks lose little time.
//!
//! A [`Detector`] remembers that the previous blocks did not shrink, because such data comes in long stretches. Inside
//! a stretch a test decides without the codec, later a smaller test on some of the blocks; outside of stretches no
//! block is tested. This limits the cost for compressible data, and blocks that shrink a little are not tested.
//!
//! Invariant: a wrong "incompressible" costs capacity, so every doubtful block counts as compressible, and the codec
//! decides.

/// Length of the blocks that are tested; others always go to the codec.
const BLOCK_BYTES: usize = 4096;
/// Distance of sampled runs: a prime, so that in records of any usual length every field is sampled.
const RUN_STRIDE: usize = 71;
/// Bytes in one sampled run.
const RUN_BYTES: usize = 6;
/// Bytes in one sampled run, in the middle of incompressible data.
const RUN_BYTES_QUICK: usize = 2;
/// Number of runs between two evaluations of the collisions.
const RUNS_A_LOOK: usize = 8;
const LOOKS: usize = (BLOCK_BYTES / RUN_STRIDE).div_ceil(RUNS_A_LOOK);
const VALUES: usize = 256;
/// Number of consecutive blocks stored raw after which the test decides.
const STREAK_MIN: u8 = 4;
/// Number of consecutive raw blocks after which the smaller sample is sufficient, and not every block is tested.
const STREAK_LONG: u8 = 32;
/// Number of consecutive raw blocks after which half as many tests are sufficient: the cost of a late test is small
/// compared with such a stretch.
const STREAK_VERY_LONG: u8 = 128;
/// In a stretch, the codec gets one of this many blocks, which bounds the cost of a wrong decision.
const CODEC_EVERY: u8 = 16;
const CODEC_EVERY_LONG: u8 = 64;
const CODEC_EVERY_VERY_LONG: u8 = 128;
/// In a long stretch, one of this many blocks of a request is tested, because a request usually contains one kind of
/// data.
const LOOK_EVERY_LONG: u8 = 4;
const LOOK_EVERY_VERY_LONG: u8 = 8;
/// Number of blocks at the beginning of a request that are tested: in a long stretch, every other request of one block
/// is tested, and the first or the second block of longer ones.
const REQUEST_COUNTS: u8 = 2;
/// Length of the windows that are searched for in the rest of the block, and distance of the positions that are
/// compared. A second copy of a whole window always covers a compared position.
const WINDOW_BYTES: usize = 32;
/// Start of the windows, in windows: any piece of a little over 1 KiB contains one.
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

/// Tests blocks that arrive in order from one source.
#[derive(Clone, Debug, Default)]
pub struct Detector {
    /// Number of blocks stored raw since the last one that shrank.
    streak: u8,
    /// Number of untested blocks of this request since the last tested one.
    unseen: u8,
}

impl Detector {
    /// A detector without history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next block belongs to another request.
    pub fn next_request(&mut self) {
        self.unseen = self.unseen.saturating_add(REQUEST_COUNTS);
    }

    /// Whether the block can bypass the codec. The caller reports the outcome with [`Self::note`].
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

    /// Records whether a block was stored raw, for any reason, or shrank.
    pub fn note(&mut self, as_it_is: bool) {
        self.streak = match (as_it_is, self.streak) {
            (false, _) => 0,
            // The count saturates: a stretch may have any length.
            (true, u8::MAX) => u8::MAX - CODEC_EVERY_VERY_LONG + 1,
            (true, streak) => streak + 1,
        };
    }
}

/// Whether equal bytes in a sample are as frequent as in random data, neither more nor less.
fn collides_like_random<const RUN: usize>(block: &[u8; BLOCK_BYTES]) -> bool {
    // A count stays under 256: there are too many pairs long before.
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
    // Fewer pairs than in random data are order, too: for example a counter.
    let mean = const { pairs_mean(BLOCK_BYTES / RUN_STRIDE * RUN) };
    pairs + const { slack(pairs_mean(BLOCK_BYTES / RUN_STRIDE * RUN)) } >= mean
}

/// Mean number of pairs of equal bytes among this many random ones; it is nearly Poisson distributed.
const fn pairs_mean(samples: usize) -> u32 {
    (samples * (samples - 1) / 2 / VALUES) as u32
}

/// Four and a half standard deviations, plus a little for small means: exceeded a few times in a million.
const fn slack(mean: u32) -> u32 {
    (20 * mean).isqrt() + 4
}

/// The maximum number of pairs in random data at each evaluation.
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

/// Whether four bytes of one of the windows occur again at a compared position of the rest of the block.
fn repeats(block: &[u8; BLOCK_BYTES]) -> bool {
    // The last word of each hash, by other bits of its product; zero means none.
    let mut tags = [0_u16; 1 << TAGS_BITS];
    for window in WINDOWS {
        // The words of a window reach three bytes beyond its end.
        let bytes = &block[window * WINDOW_BYTES..][..WINDOW_BYTES + 3];
        for word in bytes.windows(4) {
            let (tag, place) = hashed(word);
            tags[place] = tag;
        }
    }
    let mut found = false;
    for (n, window) in WINDOWS.iter().enumerate() {
        // The positions between this window and the next, because a window would find itself.
        let next = WINDOWS.get(n + 1).copied().unwrap_or(BLOCK_BYTES / WINDOW_BYTES);
        let between = &block[(window + 1) * WINDOW_BYTES..next * WINDOW_BYTES];
        for piece in between.chunks_exact(WINDOW_BYTES) {
            let (tag, place) = hashed(&piece[..4]);
            // No early exit: nearly all blocks that get here contain no repeats.
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
