//! Zstandard: better ratios, levels from -7 (fast) to 19 (slow).
//!
//! Frames have no magic number, content size or checksum, which saves 5 bytes per block: the extent's header has the same
//! information.
//!
//! Blocks that are compressed together are one frame, in which each of them is a block of Zstandard. A decoder can stop after any
//! of them: see [`first_blocks`].

use std::sync::Arc;

use zstd::bulk::Compressor;
use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd::zstd_safe::{
    CParameter, DCtx, DParameter, DictAttachPref, FrameFormat, InBuffer, OutBuffer, ParamSwitch,
    ResetDirective,
};

use crate::codec::{Codec, CodecId, DecodeError, Decoder, Encoder, Levels, exactly};
use crate::dictionary::{Dictionary, Prepared};
use crate::memory::Counted;

impl CodecId {
    /// One Zstandard frame (RFC 8878) without magic number, content size and checksum.
    pub const ZSTD: Self = Self(2);
}

/// Default level.
pub(crate) const LEVEL_DEFAULT: i8 = 1;

pub(crate) static CODEC: Codec = Codec {
    id: CodecId::ZSTD,
    name: "zstd",
    levels: Some(Levels {
        range: -7..=19,
        default: LEVEL_DEFAULT,
    }),
    encoder: |level| {
        let made = compressor(level);
        // The library allocates its tables with the first block.
        let memory = Counted::new(0);
        Box::new(ZstdEncoder {
            made,
            memory,
            _prepared: None,
        })
    },
    decoder: || Box::new(ZstdDecoder::new()),
};

/// Bytes of the header of a frame: of a descriptor, which is 0, and the size of the window.
const FRAME_HEADER_BYTES: usize = 2;
/// Bytes of the header of a block: from the lowest bit, whether it is the last one (1 bit), its type (2), its length (21).
const BLOCK_HEADER_BYTES: usize = 3;
/// The type of a block that repeats one byte, the only one that follows the header.
const TYPE_REPEATED: u32 = 1;

struct ZstdEncoder {
    made: Compressor<'static>,
    memory: Counted,
    /// `made` refers to it, so it is dropped later.
    _prepared: Option<Arc<Prepared>>,
}

/// An encoder that compresses with a dictionary.
pub(crate) fn encoder_with(dictionary: &Dictionary, level: i8) -> Option<Box<dyn Encoder + Send>> {
    let prepared = dictionary.prepare(level)?;
    let mut made = compressor(level);
    // Without this, the library copies the dictionary's tables for each group at high levels.
    let attach = CParameter::ForceAttachDict(DictAttachPref::ForceAttach);
    made.set_parameter(attach).ok()?;
    made.context_mut().ref_cdict(&prepared.dictionary).ok()?;
    let memory = Counted::new(0);
    Some(Box::new(ZstdEncoder {
        made,
        memory,
        _prepared: Some(prepared),
    }))
}

pub(crate) struct ZstdDecoder {
    context: DCtx<'static>,
    memory: Counted,
    /// The first blocks of a frame.
    part: Vec<u8>,
}

/// Where the header of block `blocks` - 1 of a frame begins, and where that block ends. `None`: there are not so many, or this is
/// no frame without a descriptor.
fn first_blocks(frame: &[u8], blocks: usize) -> Option<(usize, usize)> {
    if *frame.first()? != 0 {
        return None;
    }
    let (mut begin, mut end, mut is_last) = (0, FRAME_HEADER_BYTES, false);
    for _ in 0..blocks {
        let head = frame.get(end..end + BLOCK_HEADER_BYTES).filter(|_| !is_last)?;
        let bits = u32::from_le_bytes([head[0], head[1], head[2], 0]);
        let stored = match bits >> 1 & 3 {
            TYPE_REPEATED => 1,
            _ => bits >> 3,
        };
        (begin, is_last) = (end, bits & 1 == 1);
        end += BLOCK_HEADER_BYTES + stored as usize;
    }
    (blocks > 0 && end <= frame.len()).then_some((begin, end))
}

fn compressor(level: i8) -> Compressor<'static> {
    let mut made = Compressor::new(level.into()).expect("the library has memory for a compressor");
    for parameter in [
        CParameter::ContentSizeFlag(false),
        CParameter::ChecksumFlag(false),
        CParameter::DictIdFlag(false),
        CParameter::Format(FrameFormat::Magicless),
        // A group has exactly one Zstandard block for each member.
        CParameter::UseBlockSplitter(ParamSwitch::Disable),
    ] {
        made.set_parameter(parameter)
            .expect("the library knows the parameter");
    }
    made
}

impl ZstdDecoder {
    pub(crate) fn new() -> Self {
        let mut context = DCtx::try_create().expect("the library has memory for a decompressor");
        context
            .set_parameter(DParameter::Format(FrameFormat::Magicless))
            .expect("the library knows the parameter");
        let memory = Counted::new(context.sizeof());
        Self {
            context,
            memory,
            part: Vec::new(),
        }
    }

    /// As [`Decoder::decompress`], with the dictionary that the block was compressed with.
    pub(crate) fn restore(
        &mut self,
        input: &[u8],
        block: &mut [u8],
        dictionary: Option<&Dictionary>,
    ) -> Result<(), DecodeError> {
        let found = decompress(&mut self.context, input, block, dictionary)
            .ok_or_else(|| DecodeError::damaged(&CODEC, input))?;
        self.memory.set(self.context.sizeof() + self.part.capacity());
        exactly(&CODEC, block.len(), found)
    }

    /// As [`Decoder::decompress_first`], with the dictionary that the blocks were compressed with.
    pub(crate) fn restore_first(
        &mut self,
        input: &[u8],
        block_bytes: usize,
        blocks: &mut [u8],
        dictionary: Option<&Dictionary>,
    ) -> Result<(), DecodeError> {
        let damaged = DecodeError::damaged(&CODEC, input);
        let (last, end) = first_blocks(input, blocks.len() / block_bytes).ok_or(damaged)?;
        self.part.clear();
        self.part.extend_from_slice(&input[..end]);
        self.part[last] |= 1;
        let found = decompress(&mut self.context, &self.part, blocks, dictionary)
            .ok_or_else(|| DecodeError::damaged(&CODEC, input))?;
        self.memory.set(self.context.sizeof() + self.part.capacity());
        exactly(&CODEC, blocks.len(), found)
    }
}

/// The number of bytes that a frame has become. `None`: it is damaged.
fn decompress(
    context: &mut DCtx<'static>,
    input: &[u8],
    blocks: &mut [u8],
    dictionary: Option<&Dictionary>,
) -> Option<usize> {
    let found = match dictionary {
        Some(dictionary) => context.decompress_using_ddict(blocks, input, dictionary.decoder()),
        None => context.decompress(blocks, input),
    };
    found.ok()
}

impl Encoder for ZstdEncoder {
    fn compress(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize> {
        let len = self.made.compress_to_buffer(block, out).ok();
        self.memory.set(self.made.context_mut().sizeof());
        len
    }

    fn compress_group(&mut self, blocks: &[u8], block_bytes: usize, out: &mut [u8]) -> Option<usize> {
        let context = self.made.context_mut();
        context.reset(ResetDirective::SessionOnly).ok()?;
        context.set_pledged_src_size(Some(blocks.len() as u64)).ok()?;
        let mut output = OutBuffer::around(out);
        let count = blocks.len() / block_bytes;
        for (number, block) in (1..).zip(blocks.chunks_exact(block_bytes)) {
            let mut input = InBuffer::around(block);
            let end = match number == count {
                true => ZSTD_EndDirective::ZSTD_e_end,
                false => ZSTD_EndDirective::ZSTD_e_flush,
            };
            let left = context.compress_stream2(&mut output, &mut input, end).ok()?;
            if left > 0 || input.pos() < block.len() {
                return None;
            }
        }
        let len = output.pos();
        self.memory.set(self.made.context_mut().sizeof());
        // The library may split a block.
        (first_blocks(&out[..len], count)?.1 == len).then_some(len)
    }
}

impl Decoder for ZstdDecoder {
    fn decompress(&mut self, input: &[u8], block: &mut [u8]) -> Result<(), DecodeError> {
        self.restore(input, block, None)
    }

    fn decompress_first(
        &mut self,
        input: &[u8],
        block_bytes: usize,
        blocks: &mut [u8],
    ) -> Result<(), DecodeError> {
        self.restore_first(input, block_bytes, blocks, None)
    }
}
