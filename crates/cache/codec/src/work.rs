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

impl Work {
    const NONE: Self = Self {
        compressed: [0; CODECS],
        restored: [0; CODECS],
    };
}

thread_local! {
    static WORK: Cell<Work> = const { Cell::new(Work::NONE) };
}

/// The work of this thread since the last call.
#[must_use]
pub fn take() -> Work {
    WORK.replace(Work::NONE)
}

fn add(codec: CodecId, count: u64, to: impl FnOnce(&mut Work) -> &mut [u64; CODECS]) {
    let mut work = WORK.get();
    if let Some(sum) = to(&mut work).get_mut(usize::from(codec.0)) {
        *sum += count;
        WORK.set(work);
    }
}

/// Blocks were compressed.
pub fn compressed(codec: CodecId, blocks: u64) {
    add(codec, blocks, |work| &mut work.compressed);
}

/// Blocks were restored.
pub(crate) fn restored(codec: CodecId, blocks: u64) {
    add(codec, blocks, |work| &mut work.restored);
}
