//! The encoders and decoders of a shard, kept between uses.
//!
//! Invariants: a packer is in use or in the pool; the pool has at most [`PACKERS_MAX`], all of codecs of one choice. (One of LZ4, with
//! which reclaim divides groups, stays until the next packer is taken.) Those that were not needed between two calls of
//! [`CodecPool::trim`] are dropped. It drops the decoders of large reads as well. There are at most as many of them as
//! codec threads have used at once.
//!
//! It has the dictionaries of the shard, too: blocks are compressed with the current one, by the second codec of a choice alone, and
//! restored with each.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use flaz_codec::{CodecChoice, CodecSpec, Decoders, Dictionaries, Dictionary, SharedDecoders};

use super::fragment::{self, FragmentError, Numbered, Packer};
use crate::format::extent::FragmentIdentity;

/// Maximum number of packers that a pool keeps.
const PACKERS_MAX: usize = 64;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct CodecPool {
    packers: RefCell<Vec<Packer>>,
    /// The smallest number of packers in the pool since the last trim.
    idle: Cell<usize>,
    decoders: RefCell<Decoders>,
    /// Those of large reads.
    elsewhere: SharedDecoders,
    /// Those of blocks that are compressed again, unless a codec thread has them.
    again: Cell<Decoders>,
    dictionaries: RefCell<Dictionaries>,
    /// The number of the one that blocks are compressed with.
    current: Cell<Option<u8>>,
}

impl CodecPool {
    /// Takes a packer of a codec of `choice` from the pool, or creates one.
    pub(super) fn take(&self, codec: CodecSpec, choice: CodecChoice) -> Packer {
        let current = self.current();
        let of = |codec| current.as_ref().filter(|_| choice.is_second(codec));
        let mut packers = self.packers.borrow_mut();
        packers.retain(|packer| choice.uses(packer.codec()) && packer.uses(of(packer.codec())));
        let found = packers.iter().rposition(|packer| packer.codec() == codec);
        // The others keep their order: those that were used last are at the end.
        let packer = match found {
            Some(at) => packers.remove(at),
            None => Packer::new(codec, of(codec).cloned()),
        };
        self.idle.set(self.idle.get().min(packers.len()));
        packer
    }

    /// The dictionary that blocks are compressed with.
    pub(super) fn current(&self) -> Option<Numbered> {
        let number = self.current.get()?;
        let dictionary = self.dictionaries.borrow()[usize::from(number)].clone()?;
        Some(Numbered { number, dictionary })
    }

    /// Its number.
    pub(super) fn current_number(&self) -> Option<u8> {
        self.current.get()
    }

    /// All dictionaries.
    pub(super) fn dictionaries(&self) -> Dictionaries {
        self.dictionaries.borrow().clone()
    }

    /// Restores blocks with a dictionary from now on. With `is_current`, compresses with it, too.
    pub(super) fn set_dictionary(&self, number: u8, dictionary: Arc<Dictionary>, is_current: bool) {
        self.dictionaries.borrow_mut()[usize::from(number)] = Some(dictionary);
        self.decoders.borrow_mut().set_dictionaries(self.dictionaries());
        if is_current {
            self.current.set(Some(number));
        }
    }

    /// Puts a packer back.
    pub(super) fn put_back(&self, packer: Packer) {
        let mut packers = self.packers.borrow_mut();
        if packers.len() < PACKERS_MAX {
            packers.push(packer);
        }
    }

    /// The decoders and dictionaries with which codec threads restore blocks of large reads.
    pub(super) fn elsewhere(&self) -> (SharedDecoders, Dictionaries) {
        (self.elsewhere.clone(), self.dictionaries())
    }

    /// Takes the decoders of blocks that are compressed again.
    pub(super) fn take_decoders(&self) -> Decoders {
        let mut decoders = self.again.take();
        decoders.set_dictionaries(self.dictionaries());
        decoders
    }

    /// Puts them back.
    pub(super) fn put_back_decoders(&self, decoders: Decoders) {
        self.again.set(decoders);
    }

    /// Drops the packers that were not needed since the last call, tables of dictionaries that no packer uses, and the decoders of blocks
    /// that are compressed again.
    pub(super) fn trim(&self) {
        self.again.take();
        self.elsewhere.trim();
        let mut packers = self.packers.borrow_mut();
        packers.drain(..self.idle.get());
        self.idle.set(packers.len());
        let dictionaries = self.dictionaries.borrow();
        dictionaries
            .iter()
            .flatten()
            .for_each(|dictionary| dictionary.trim());
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
    use flaz_codec::Effort;

    use super::*;

    #[test]
    fn the_pool_has_packers_of_one_choice() {
        let pool = CodecPool::default();
        let (lz4, auto) = (CodecSpec::LZ4, CodecChoice::Auto);
        let zstd = |effort| auto.second(effort, false).expect("a second codec");
        let (usual, high) = (zstd(Effort::Usual), zstd(Effort::High));
        for codec in [lz4, usual, high, usual, lz4, high] {
            let packer = pool.take(codec, auto);
            assert_eq!(packer.codec(), codec);
            pool.put_back(packer);
        }
        assert_eq!(pool.packers.borrow().len(), 3, "one of each");
        pool.put_back(pool.take(lz4, lz4.into()));
        assert_eq!(pool.packers.borrow().len(), 1, "zstd is used no more");
    }

    #[test]
    fn the_pool_is_bounded_and_gives_back_what_was_not_needed() {
        let pool = CodecPool::default();
        let (codec, choice) = (CodecSpec::ZSTD, CodecSpec::ZSTD.into());
        let use_at_once = |count| {
            let packers: Vec<_> = (0..count).map(|_| pool.take(codec, choice)).collect();
            packers.into_iter().for_each(|packer| pool.put_back(packer));
            pool.packers.borrow().len()
        };
        assert_eq!(use_at_once(PACKERS_MAX + 10), PACKERS_MAX);
        pool.trim();
        assert_eq!(use_at_once(5), PACKERS_MAX, "all were in use since the beginning");
        pool.trim();
        assert_eq!(pool.packers.borrow().len(), 5);
        pool.trim();
        assert_eq!(pool.packers.borrow().len(), 0);
    }
}
