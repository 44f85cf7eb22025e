//! The encoders and decoders of a shard, kept between uses.
//!
//! Invariants: a packer is in use or in the pool; the pool has packers of one codec, as many as were in use at the same
//! time.

use std::cell::RefCell;

use flaz_codec::{CodecSpec, Decoders};

use super::fragment::{self, FragmentError, Packer};
use crate::format::extent::FragmentIdentity;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct CodecPool {
    packers: RefCell<Vec<Packer>>,
    decoders: RefCell<Decoders>,
}

impl CodecPool {
    /// Takes a packer of a codec from the pool, or creates one.
    pub(super) fn take(&self, codec: CodecSpec) -> Packer {
        let mut packers = self.packers.borrow_mut();
        packers.retain(|packer| packer.codec() == codec);
        packers.pop().unwrap_or_else(|| Packer::new(codec))
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
    fn the_pool_has_packers_of_one_codec() {
        let pool = CodecPool::default();
        let [lz4, zstd] = ["lz4", "zstd"].map(|codec| codec.parse().expect("a codec"));
        pool.put_back(pool.take(lz4));
        pool.put_back(pool.take(lz4));
        assert_eq!(pool.packers.borrow().len(), 1);
        assert_eq!(pool.take(zstd).codec(), zstd);
        assert!(pool.packers.borrow().is_empty());
    }
}
