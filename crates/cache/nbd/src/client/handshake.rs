//! The client side of the handshake.

use std::io::{Read, Write};

use zerocopy::FromBytes;
use zerocopy::byteorder::big_endian::{U16, U64};

use super::error::{ClientError, expect};
use super::wire::Wire;
use crate::limits::CLIENT_OPTION_REPLIES_MAX;
use crate::option_data::{put_export_query, put_option};
use crate::protocol::{
    ExportInfo, INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionReplyHeader, handshake, info, opt, rep,
    transmission,
};

const DURING: &str = "handshake";

/// What client and server agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    pub size_bytes: u64,
    /// Flags of [`transmission`].
    pub flags: u16,
    pub structured: bool,
}

/// Opens the export `name`, with structured replies if they are requested and the server supports them.
pub(super) fn negotiate<S: Read + Write>(
    wire: &mut Wire<S>,
    name: &str,
    structured: bool,
) -> Result<Agreed, ClientError> {
    expect("the magic NBDMAGIC", wire.get::<U64>(DURING)?.get(), INIT_MAGIC)?;
    expect("the magic IHAVEOPT", wire.get::<U64>(DURING)?.get(), OPTION_MAGIC)?;
    let offered = wire.get::<U16>(DURING)?.get();
    if offered & handshake::FIXED_NEWSTYLE == 0 {
        return Err(ClientError::Protocol {
            expected: "the fixed-newstyle flag",
            found: offered.into(),
        });
    }
    let answer = u32::from(offered & (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES));
    wire.put(DURING, &[&answer.to_be_bytes()])?;
    let structured = structured && ask_for_structured_replies(wire)?;
    let (size_bytes, flags) = open(wire, name)?;
    Ok(Agreed {
        size_bytes,
        flags,
        structured,
    })
}

fn ask_for_structured_replies<S: Read + Write>(wire: &mut Wire<S>) -> Result<bool, ClientError> {
    send(wire, opt::STRUCTURED_REPLY, &[])?;
    match receive(wire, opt::STRUCTURED_REPLY)? {
        (rep::ACK, _) => Ok(true),
        (rep::ERR_UNSUP, _) => Ok(false),
        (reply, message) => Err(refused(reply, &message)),
    }
}

/// Size and transmission flags of the export. The transmission phase begins after them.
fn open<S: Read + Write>(wire: &mut Wire<S>, name: &str) -> Result<(u64, u16), ClientError> {
    let mut query = Vec::new();
    put_export_query(&mut query, name.as_bytes(), &[]);
    send(wire, opt::GO, &query)?;
    let mut export = None;
    for _ in 0..CLIENT_OPTION_REPLIES_MAX {
        match receive(wire, opt::GO)? {
            (rep::ACK, _) => {
                return export.ok_or(ClientError::Protocol {
                    expected: "NBD_INFO_EXPORT before the end of options",
                    found: 0,
                });
            }
            (rep::INFO, data) => {
                if let Some((kind, rest)) = data.split_first_chunk::<2>()
                    && u16::from_be_bytes(*kind) == info::EXPORT
                {
                    export = Some(export_info(rest)?);
                }
            }
            (reply, message) => return Err(refused(reply, &message)),
        }
    }
    Err(ClientError::Protocol {
        expected: "at most 64 replies to NBD_OPT_GO",
        found: u64::from(CLIENT_OPTION_REPLIES_MAX) + 1,
    })
}

fn export_info(data: &[u8]) -> Result<(u64, u16), ClientError> {
    let broken = |expected, found| ClientError::Protocol { expected, found };
    let export = ExportInfo::ref_from_bytes(data)
        .map_err(|_| broken("an NBD_INFO_EXPORT of 12 bytes", data.len() as u64 + 2))?;
    let flags = export.flags.get();
    if flags & transmission::HAS_FLAGS == 0 {
        return Err(broken("transmission flags", flags.into()));
    }
    Ok((export.size.get(), flags))
}

fn send<S: Read + Write>(wire: &mut Wire<S>, option: u32, data: &[u8]) -> Result<(), ClientError> {
    let mut message = Vec::new();
    put_option(&mut message, option, data);
    wire.put(DURING, &[&message])
}

/// The next reply to `option`: its type and data.
fn receive<S: Read + Write>(wire: &mut Wire<S>, option: u32) -> Result<(u32, Vec<u8>), ClientError> {
    let header = wire.get::<OptionReplyHeader>(DURING)?;
    expect(
        "the magic of an option reply",
        header.magic.get(),
        OPTION_REPLY_MAGIC,
    )?;
    expect(
        "a reply to the option sent",
        header.option.get().into(),
        option.into(),
    )?;
    let data = wire.message(DURING, header.len.get())?;
    Ok((header.kind.get(), data))
}

fn refused(reply: u32, message: &[u8]) -> ClientError {
    ClientError::Refused {
        reply,
        message: String::from_utf8_lossy(message).into_owned(),
    }
}
