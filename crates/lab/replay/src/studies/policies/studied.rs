//! The policies under study.

use flaz_engine::policy::{Policy, PolicyKind};

use super::ideal;
use super::outcome::Outcome;
use super::reinsertion::FifoWithReinsertion;

/// A policy under study.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Studied {
    /// A policy of the engine.
    Engine(PolicyKind),
    /// A column of the table that the engine does not have.
    FifoWithReinsertion,
}

impl Studied {
    /// All of them.
    pub const ALL: [Studied; 4] = [
        Studied::Engine(PolicyKind::S3Fifo),
        Studied::Engine(PolicyKind::SecondTouch),
        Studied::FifoWithReinsertion,
        Studied::Engine(PolicyKind::Fifo),
    ];

    /// Its name in the output.
    pub fn name(self) -> &'static str {
        match self {
            Studied::Engine(kind) => kind.name(),
            Studied::FifoWithReinsertion => "fifo+reins.",
        }
    }

    /// The policy for a cache with regions of `blocks` uncompressed blocks.
    pub fn build(self, blocks: u64) -> Box<dyn Policy> {
        match self {
            Studied::Engine(kind) => kind.build(blocks),
            Studied::FifoWithReinsertion => Box::new(FifoWithReinsertion),
        }
    }

    /// Its model by block.
    pub(super) fn ideal(self) -> fn(&[u32], usize, usize) -> Outcome {
        match self {
            Studied::Engine(PolicyKind::S3Fifo) => ideal::s3_fifo,
            Studied::Engine(PolicyKind::SecondTouch) => ideal::second_touch,
            Studied::Engine(PolicyKind::Fifo) => ideal::fifo,
            Studied::FifoWithReinsertion => ideal::fifo_with_reinsertion,
        }
    }
}

impl From<PolicyKind> for Studied {
    fn from(kind: PolicyKind) -> Self {
        Studied::Engine(kind)
    }
}
