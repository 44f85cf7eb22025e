//! Compression of single blocks. The cache, the benchmarks and `flaz study` all use the codecs of this crate, so a name, a
//! level or a number on disk means the same in each of them.
//!
//! A codec is one file that defines its number on disk and its `CODEC`, and is listed in the registry. Names on the command
//! line and in its help, levels and decoding all follow from that entry.
//!
//! Invariants:
//! - a number on disk ([`CodecId`]) is never given to another format;
//! - an encoder never writes beyond its output slice;
//! - a decoder fills exactly its block, or fails. Hostile input produces an error, or wrong bytes of the right length
//!   (the fragment's checksum detects those). It never causes a panic, an endless loop or an allocation whose size the
//!   input determines, and never exposes earlier contents of the block;
//! - encoders and decoders keep their tables between blocks: the steady state allocates nothing.
//!
//! | module | contents |
//! |---|---|
//! | `codec` | traits, numbers and errors; depends on no other module |
//! | `none`, `lz4`, `zstd`, `zlib`, `lzo` | one codec each |
//! | [`Dictionary`] | what blocks of one cache have in common |
//! | `registry` | list of the codecs, search by number or name, decoders |
//! | [`SharedDecoders`] | decoders that several threads share |
//! | `spec` | a codec and its level as users write them |
//! | `choice` | what a cache compresses with: a codec, or `auto` |
//! | `meter` | compressed length of a chunk |
//! | `memory` | what encoders and decoders take |
//! | [`work`] | counts of blocks compressed and restored, for simulations |
//! | [`compressibility`] | single-value blocks; cheap test whether compression can pay |

#![forbid(unsafe_code)]

mod choice;
mod codec;
pub mod compressibility;
mod dictionary;
mod lz4;
mod lzo;
mod memory;
mod meter;
mod none;
mod registry;
mod shared;
mod spec;
pub mod work;
mod zlib;
mod zstd;

pub use choice::{CodecChoice, Effort};
pub use codec::{CodecId, DecodeError, Decoder, Encoder};
pub use dictionary::{DICTIONARIES_MAX, Dictionaries, Dictionary};
pub use memory::context_bytes;
pub use meter::Meter;
pub use registry::{Decoders, choices, ids};
pub use shared::SharedDecoders;
pub use spec::{CodecSpec, SpecError, encoder, encoder_with};

#[cfg(test)]
mod tests;
