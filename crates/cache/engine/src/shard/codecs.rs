//! The encoders and decoders of a shard, kept between uses.
//!
//! Invariants: a packer is in use or in the pool; the pool has packers of the codecs of one choice, of each as many as were in
//! use at the same time. (One of LZ4, with which reclaim divides groups, stays until the next packer is taken.)

use std::cell::RefCell;

use flaz_codec::{CodecChoice, CodecSpec, Decoders};

use super::fragment::{self, FragmentError, Packer};
use crate::format::extent::FragmentIdentity;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct CodecPool {
    packers: RefCell<Vec<Packer>>,
    decoders: RefCell<Decoders>,
}

impl CodecPool {
    /// Takes a packer of a codec of `choice` from the pool, or creates one.
    pub(super) fn take(&self, codec: CodecSpec, choice: CodecChoice) -> Packer {
        let mut packers = self.packers.borrow_mut();
        packers.retain(|packer| choice.uses(packer.codec()));
        let found = packers.iter().rposition(|packer| packer.codec() == codec);
        found.map_or_else(|| Packer::new(codec), |at| packers.swap_remove(at))
    }

    /// Puts a packer back.
    pub(super) fn put_back(&self, packer: Packer) {
        self.packers.borrow_mut().push(packer);
    }

    /// Restores a block from the fragment at the start of `bytes` and verifies its checksum.
    ///
    /// # Errors
    /// [`FragmentError`]; the contents of `block` must then not be used.
    pub(super) fn unpack(
        &self,
        bytes: &[u8],
        identity: &FragmentIdentity,
        block: &mut [u8],
    ) -> Result<(), FragmentError> {
        fragment::unpack(&mut self.decoders.borrow_mut(), bytes, identity, block)
    }

    /// Calls `decode` with the decoders.
    pub(super) fn decode<T>(&self, decode: impl FnOnce(&mut Decoders) -> T) -> T {
        decode(&mut self.decoders.borrow_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_has_packers_of_one_choice() {
        let pool = CodecPool::default();
        let (lz4, auto) = (CodecSpec::LZ4, CodecChoice::Auto);
        let zstd = auto.second().expect("a second codec");
        for codec in [lz4, zstd, zstd, lz4] {
            let packer = pool.take(codec, auto);
            assert_eq!(packer.codec(), codec);
            pool.put_back(packer);
        }
        assert_eq!(pool.packers.borrow().len(), 2, "one of each");
        pool.put_back(pool.take(lz4, lz4.into()));
        assert_eq!(pool.packers.borrow().len(), 1, "zstd is used no more");
    }
}
