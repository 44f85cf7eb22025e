//! What the codecs of this thread have done, for simulations that charge time for it.

use std::cell::Cell;

use crate::codec::CodecId;

/// Numbers of codecs that are counted.
const CODECS: usize = 5;

/// Blocks by the number of their codec. Of a group, each block counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Compressed, whether that gained something or not.
    pub compressed: [u64; CODECS],
    /// Restored.
    pub restored: [u64; CODECS],
}

/// Counts of this thread. Each is a cell of its own: a block adds one to a word, because served blocks are counted too.
struct Counts {
    compressed: [Cell<u64>; CODECS],
    restored: [Cell<u64>; CODECS],
}

thread_local! {
    static COUNTS: Counts = const {
        Counts {
            compressed: [const { Cell::new(0) }; CODECS],
            restored: [const { Cell::new(0) }; CODECS],
        }
    };
}

/// The work of this thread since the last call.
#[must_use]
pub fn take() -> Work {
    COUNTS.with(|counts| Work {
        compressed: counts.compressed.each_ref().map(Cell::take),
        restored: counts.restored.each_ref().map(Cell::take),
    })
}

fn add(counts: &[Cell<u64>; CODECS], codec: CodecId, blocks: u64) {
    if let Some(count) = counts.get(usize::from(codec.dictionary().map_or(codec, |_| CodecId::ZSTD).0)) {
        count.set(count.get() + blocks);
    }
}

/// Blocks were compressed.
pub fn compressed(codec: CodecId, blocks: u64) {
    COUNTS.with(|counts| add(&counts.compressed, codec, blocks));
}

/// Blocks were restored.
pub(crate) fn restored(codec: CodecId, blocks: u64) {
    COUNTS.with(|counts| add(&counts.restored, codec, blocks));
}
