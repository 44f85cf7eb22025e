//! Numbers and fixed layouts of the NBD protocol: fixed newstyle negotiation and the transmission phase.
//!
//! Follows doc/proto.md of the NetworkBlockDevice project. All numbers are big-endian on the wire. The structs below
//! have the layout of the wire, so they are read and written without copying single fields.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First 8 bytes that a server sends: `NBDMAGIC`.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: second in the server's greeting, first in each option of the client.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First in each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First in each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First in each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First in each chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// The port that IANA assigned to NBD.
pub const DEFAULT_PORT: u16 = 10809;
/// Zeroes after the answer to [`opt::EXPORT_NAME`], unless the client opted out.
pub const EXPORT_NAME_PADDING: usize = 124;
/// Name of the only metadata context that is served.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Number by which block-status replies refer to [`BASE_ALLOCATION`].
pub const BASE_ALLOCATION_ID: u32 = 1;

/// Handshake flags of server and client (the same bits in both directions).
pub mod handshake {
    /// Fixed newstyle: options have replies.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No padding after the answer to EXPORT_NAME.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options that a client can send.
pub mod opt {
    /// Select an export, with no way to refuse it, and start transmission.
    pub const EXPORT_NAME: u32 = 1;
    /// Give up.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Change to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and start transmission.
    pub const GO: u32 = 7;
    /// Reply in chunks.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select the metadata contexts of block-status replies.
    pub const SET_META_CONTEXT: u32 = 10;
    /// 64-bit lengths: not supported.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
pub mod rep {
    /// Accepted, or the end of a list.
    pub const ACK: u32 = 1;
    /// An export's name and description.
    pub const SERVER: u32 = 2;
    /// One piece of information about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every type that refuses the option.
    pub const ERROR_FLAG: u32 = 1 << 31;
    /// The option is unknown.
    pub const ERR_UNSUP: u32 = ERROR_FLAG + 1;
    /// The option is not allowed.
    pub const ERR_POLICY: u32 = ERROR_FLAG + 2;
    /// The option's data is invalid.
    pub const ERR_INVALID: u32 = ERROR_FLAG + 3;
    /// The export does not exist.
    pub const ERR_UNKNOWN: u32 = ERROR_FLAG + 6;
    /// The server is stopping.
    pub const ERR_SHUTDOWN: u32 = ERROR_FLAG + 7;
    /// The option's data is too long.
    pub const ERR_TOO_BIG: u32 = ERROR_FLAG + 9;
}

/// Kinds of information in [`rep::INFO`].
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's name.
    pub const NAME: u16 = 1;
    /// Description.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum and preferred block size, maximum payload.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Capabilities of an export, sent at the end of the handshake.
pub mod transmission {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag is supported.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag of reads is supported; only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers the writes of all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE works.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The FAST_ZERO flag is supported.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Requests.
pub mod cmd {
    /// Read data.
    pub const READ: u16 = 0;
    /// Write data, which follows the request.
    pub const WRITE: u16 = 1;
    /// End the connection; no reply.
    pub const DISC: u16 = 2;
    /// Make completed writes stable.
    pub const FLUSH: u16 = 3;
    /// Discard a range.
    pub const TRIM: u16 = 4;
    /// Prefetch a range.
    pub const CACHE: u16 = 5;
    /// Make a range read as zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Report which parts of a range are allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod cmd_flag {
    /// Stable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES must not deallocate.
    pub const NO_HOLE: u16 = 1 << 1;
    /// The reply to READ must be one chunk.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS must give one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES must fail if it is not faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types and flags of the chunks of structured replies, and the states of block status.
pub mod chunk {
    /// Flag: the last chunk of its reply.
    pub const DONE: u16 = 1 << 0;
    /// Success without data.
    pub const NONE: u16 = 0;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeroes at an offset, without data. This server sends none.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of a metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in every type that reports an error.
    pub const ERROR_FLAG: u16 = 1 << 15;
    /// An error.
    pub const ERROR: u16 = ERROR_FLAG + 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = ERROR_FLAG + 2;
    /// State of `base:allocation`: not allocated.
    pub const STATE_HOLE: u32 = 1 << 0;
    /// State of `base:allocation`: reads as zeroes.
    pub const STATE_ZERO: u32 = 1 << 1;
}

/// Header of an option of the client; `len` bytes of data follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OptionHeader {
    /// [`OPTION_MAGIC`].
    pub magic: U64,
    /// An option of [`opt`].
    pub option: U32,
    /// Bytes of data that follow.
    pub len: U32,
}

/// Header of a reply to an option; `len` bytes of data follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OptionReplyHeader {
    /// [`OPTION_REPLY_MAGIC`].
    pub magic: U64,
    /// The option that this replies to.
    pub option: U32,
    /// A reply type of [`rep`].
    pub kind: U32,
    /// Bytes of data that follow.
    pub len: U32,
}

/// Data of [`info::EXPORT`] after its number.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExportInfo {
    /// Size of the export in bytes.
    pub size: U64,
    /// Flags of [`transmission`].
    pub flags: U16,
}

/// A request of the transmission phase; WRITE is followed by `len` bytes of data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// [`REQUEST_MAGIC`].
    pub magic: U32,
    /// Flags of [`cmd_flag`].
    pub flags: U16,
    /// A command of [`cmd`].
    pub command: U16,
    /// Returned in the reply.
    pub cookie: U64,
    /// Offset of the first byte.
    pub offset: U64,
    /// Number of bytes.
    pub len: U32,
}

/// A simple reply; a successful READ is followed by its data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SimpleReplyHeader {
    /// [`SIMPLE_REPLY_MAGIC`].
    pub magic: U32,
    /// Zero, or an error number of NBD.
    pub error: U32,
    /// The request's cookie.
    pub cookie: U64,
}

/// Header of a chunk of a structured reply; `len` bytes follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChunkHeader {
    /// [`CHUNK_MAGIC`].
    pub magic: U32,
    /// [`chunk::DONE`] or 0.
    pub flags: U16,
    /// A chunk type of [`chunk`].
    pub kind: U16,
    /// The request's cookie.
    pub cookie: U64,
    /// Bytes that follow.
    pub len: U32,
}

/// Header of an OFFSET_DATA chunk with its offset; the data follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OffsetDataHeader {
    /// The chunk header; its length includes the 8 bytes of the offset.
    pub chunk: ChunkHeader,
    /// Device offset of the data.
    pub offset: U64,
}

/// One extent of a block-status reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtentDescriptor {
    /// Length in bytes, never zero.
    pub len: U32,
    /// States of [`chunk`].
    pub state: U32,
}

const _: () = assert!(size_of::<OptionHeader>() == 16);
const _: () = assert!(size_of::<OptionReplyHeader>() == 20);
const _: () = assert!(size_of::<ExportInfo>() == 10);
const _: () = assert!(size_of::<RequestHeader>() == 28);
const _: () = assert!(size_of::<SimpleReplyHeader>() == 16);
const _: () = assert!(size_of::<ChunkHeader>() == 20);
const _: () = assert!(size_of::<OffsetDataHeader>() == 28);
const _: () = assert!(size_of::<ExtentDescriptor>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    /// Client and server share these numbers, so tests between the two would not show a wrong one.
    #[test]
    fn numbers_match_the_specification() {
        assert_eq!(INIT_MAGIC.to_be_bytes(), *b"NBDMAGIC");
        assert_eq!(OPTION_MAGIC.to_be_bytes(), *b"IHAVEOPT");
        assert_eq!(OPTION_REPLY_MAGIC, 0x0003_e889_0455_65a9);
        assert_eq!(
            [REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, CHUNK_MAGIC],
            [0x2560_9513, 0x6744_6698, 0x668e_33ef]
        );
        assert_eq!((handshake::FIXED_NEWSTYLE, handshake::NO_ZEROES), (1, 2));
        let options = [
            opt::EXPORT_NAME,
            opt::ABORT,
            opt::LIST,
            opt::STARTTLS,
            opt::INFO,
            opt::GO,
        ];
        assert_eq!(options, [1, 2, 3, 5, 6, 7]);
        let options = [
            opt::STRUCTURED_REPLY,
            opt::LIST_META_CONTEXT,
            opt::SET_META_CONTEXT,
        ];
        assert_eq!(options, [8, 9, 10]);
        assert_eq!(
            [rep::ACK, rep::SERVER, rep::INFO, rep::META_CONTEXT],
            [1, 2, 3, 4]
        );
        let refusals = [
            rep::ERR_UNSUP,
            rep::ERR_POLICY,
            rep::ERR_INVALID,
            rep::ERR_UNKNOWN,
        ];
        assert_eq!(refusals, [0x8000_0001, 0x8000_0002, 0x8000_0003, 0x8000_0006]);
        assert_eq!([rep::ERR_SHUTDOWN, rep::ERR_TOO_BIG], [0x8000_0007, 0x8000_0009]);
        assert_eq!(
            [info::EXPORT, info::NAME, info::DESCRIPTION, info::BLOCK_SIZE],
            [0, 1, 2, 3]
        );
        let commands = [cmd::READ, cmd::WRITE, cmd::DISC, cmd::FLUSH, cmd::TRIM];
        assert_eq!(commands, [0, 1, 2, 3, 4]);
        assert_eq!([cmd::CACHE, cmd::WRITE_ZEROES, cmd::BLOCK_STATUS], [5, 6, 7]);
        let flags = [
            cmd_flag::FUA,
            cmd_flag::NO_HOLE,
            cmd_flag::DF,
            cmd_flag::REQ_ONE,
            cmd_flag::FAST_ZERO,
        ];
        assert_eq!(flags, [1, 2, 4, 8, 16]);
        assert_eq!(
            [chunk::DONE, chunk::NONE, chunk::OFFSET_DATA, chunk::OFFSET_HOLE],
            [1, 0, 1, 2]
        );
        assert_eq!(
            [chunk::BLOCK_STATUS, chunk::ERROR, chunk::ERROR_OFFSET],
            [5, 0x8001, 0x8002]
        );
    }
}
