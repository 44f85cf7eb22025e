//! Fixed newstyle negotiation, without any I/O: bytes in, bytes out.
//!
//! Invariants:
//! - nothing is allocated for a client's bytes: an option is processed only when all of it is in the receive buffer,
//!   and one that would not fit is skipped and refused;
//! - every option gets exactly one final reply (EXPORT_NAME, which has none, ends the handshake);
//! - options and skipped bytes are limited ([`crate::limits`]); the caller limits the time;
//! - the volume is not touched before the handshake is over.

use zerocopy::{FromBytes, IntoBytes};

use crate::export::Export;
use crate::limits::{OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX, OPTIONS_MAX};
use crate::option_data::{ExportQuery, Malformed, MetaQueries};
use crate::protocol::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, EXPORT_NAME_PADDING, ExportInfo, INIT_MAGIC, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader, handshake, info, opt, rep,
};

/// The result of the negotiation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Replies are structured.
    pub structured: bool,
    /// `base:allocation` was selected, so block status may be requested.
    pub allocation_context: bool,
}

/// Progress of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    NeedMore,
    /// The transmission phase begins with the byte after the consumed ones.
    Transmission(Session),
    /// The client aborted the handshake.
    Aborted,
}

/// Why a handshake ended without a transmission phase. The caller closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// Flags that were not offered.
    #[error("unknown client flags {0:#x}: only bits 0 and 1 are defined")]
    ClientFlags(u32),
    /// Not an option.
    #[error("an option begins with {0:#018x}: expected IHAVEOPT")]
    OptionMagic(u64),
    /// More data than any valid option has.
    #[error("option {option} has {len} bytes of data: the maximum is {OPTION_SKIP_BYTES_MAX}")]
    OptionLength {
        /// Number of the option.
        option: u32,
        /// Bytes announced.
        len: u32,
    },
    /// Too many options.
    #[error("the client sent more than {OPTIONS_MAX} options")]
    TooManyOptions,
    /// EXPORT_NAME for an export that does not exist; the protocol has no reply for this case.
    #[error("the client requested an export that does not exist (a name of {0} bytes)")]
    UnknownExport(usize),
}

/// What the client's next bytes are.
#[derive(Clone, Copy, Debug)]
enum State {
    ClientFlags,
    Option,
    /// Data of an option that is refused because of its length.
    Skip {
        left: u32,
        option: u32,
    },
}

/// The effect of an option.
enum Outcome {
    Haggle,
    Start,
    Abort,
}

/// One handshake.
#[derive(Debug)]
pub struct Negotiation<'e> {
    export: &'e Export,
    state: State,
    no_zeroes: bool,
    options: u32,
    session: Session,
}

impl<'e> Negotiation<'e> {
    /// A new handshake; the server's greeting is appended to `out`.
    #[must_use]
    pub fn new(export: &'e Export, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&INIT_MAGIC.to_be_bytes());
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
        Self {
            export,
            state: State::ClientFlags,
            no_zeroes: false,
            options: 0,
            session: Session::default(),
        }
    }

    /// Consumes bytes from the front of `input` and appends replies to `out`. Returns the number of consumed bytes. The
    /// caller sends `out`, keeps the rest of the input and, at [`Progress::NeedMore`], calls again when there is more.
    /// An input of [`OPTION_BYTES_MAX`] + 16 bytes always makes progress.
    ///
    /// # Errors
    /// [`NegotiationError`]: `out` may still be sent, then the connection is to be closed.
    pub fn advance(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Progress), NegotiationError> {
        let mut taken = 0;
        loop {
            let rest = &input[taken..];
            match self.state {
                State::ClientFlags => {
                    let Some(flags) = rest.first_chunk::<4>() else {
                        return Ok((taken, Progress::NeedMore));
                    };
                    taken += flags.len();
                    self.take_flags(u32::from_be_bytes(*flags))?;
                }
                State::Skip { left, option } => {
                    let now = rest.len().min(left as usize);
                    taken += now;
                    if now < left as usize {
                        self.state = State::Skip {
                            left: left - now as u32,
                            option,
                        };
                        return Ok((taken, Progress::NeedMore));
                    }
                    refuse(out, option, rep::ERR_TOO_BIG, "the option's data is too long");
                    self.state = State::Option;
                }
                State::Option => {
                    let Ok((header, data)) = OptionHeader::ref_from_prefix(rest) else {
                        return Ok((taken, Progress::NeedMore));
                    };
                    if header.magic.get() != OPTION_MAGIC {
                        return Err(NegotiationError::OptionMagic(header.magic.get()));
                    }
                    let (option, len) = (header.option.get(), header.len.get());
                    if len as usize > OPTION_BYTES_MAX {
                        self.count_option()?;
                        if option == opt::EXPORT_NAME {
                            // EXPORT_NAME has no error reply.
                            return Err(NegotiationError::UnknownExport(len as usize));
                        }
                        if len > OPTION_SKIP_BYTES_MAX {
                            return Err(NegotiationError::OptionLength { option, len });
                        }
                        taken += size_of::<OptionHeader>();
                        self.state = State::Skip { left: len, option };
                        continue;
                    }
                    let Some(data) = data.get(..len as usize) else {
                        return Ok((taken, Progress::NeedMore));
                    };
                    self.count_option()?;
                    taken += size_of::<OptionHeader>() + data.len();
                    match self.take_option(option, data, out)? {
                        Outcome::Haggle => {}
                        Outcome::Start => return Ok((taken, Progress::Transmission(self.session))),
                        Outcome::Abort => return Ok((taken, Progress::Aborted)),
                    }
                }
            }
        }
    }

    fn take_flags(&mut self, flags: u32) -> Result<(), NegotiationError> {
        let known = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        if flags & !u32::from(known) != 0 {
            return Err(NegotiationError::ClientFlags(flags));
        }
        self.no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;
        self.state = State::Option;
        Ok(())
    }

    fn count_option(&mut self) -> Result<(), NegotiationError> {
        self.options += 1;
        if self.options > OPTIONS_MAX {
            Err(NegotiationError::TooManyOptions)
        } else {
            Ok(())
        }
    }

    fn take_option(
        &mut self,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Outcome, NegotiationError> {
        match option {
            opt::EXPORT_NAME => return self.start_by_name(data, out),
            opt::ABORT => {
                reply(out, option, rep::ACK, &[]);
                return Ok(Outcome::Abort);
            }
            opt::INFO | opt::GO => {
                if self.describe(option, data, out) && option == opt::GO {
                    return Ok(Outcome::Start);
                }
            }
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.meta_context(option, data, out),
            opt::LIST | opt::STRUCTURED_REPLY | opt::STARTTLS if !data.is_empty() => {
                refuse(out, option, rep::ERR_INVALID, "this option takes no data");
            }
            opt::LIST => {
                let (name, text) = (
                    self.export.name().as_bytes(),
                    self.export.description().as_bytes(),
                );
                reply(
                    out,
                    option,
                    rep::SERVER,
                    &[&(name.len() as u32).to_be_bytes(), name, text],
                );
                reply(out, option, rep::ACK, &[]);
            }
            opt::STRUCTURED_REPLY => {
                self.session.structured = true;
                reply(out, option, rep::ACK, &[]);
            }
            opt::STARTTLS => refuse(out, option, rep::ERR_UNSUP, "this server does not support TLS"),
            _ => refuse(out, option, rep::ERR_UNSUP, "unknown option"),
        }
        Ok(Outcome::Haggle)
    }

    fn start_by_name(&mut self, name: &[u8], out: &mut Vec<u8>) -> Result<Outcome, NegotiationError> {
        if !self.export.answers_to(name) {
            return Err(NegotiationError::UnknownExport(name.len()));
        }
        out.extend_from_slice(&self.export.size().to_be_bytes());
        out.extend_from_slice(
            &self
                .export
                .transmission_flags(self.session.structured)
                .to_be_bytes(),
        );
        if !self.no_zeroes {
            out.extend_from_slice(&[0; EXPORT_NAME_PADDING]);
        }
        Ok(Outcome::Start)
    }

    /// Answers INFO and GO; true if the export exists.
    fn describe(&self, option: u32, data: &[u8], out: &mut Vec<u8>) -> bool {
        let query = match ExportQuery::parse(data) {
            Ok(query) => query,
            Err(malformed) => {
                refuse_malformed(out, option, &malformed);
                return false;
            }
        };
        if !self.export.answers_to(query.name) {
            refuse(out, option, rep::ERR_UNKNOWN, "no such export");
            return false;
        }
        let export = ExportInfo {
            size: self.export.size().into(),
            flags: self.export.transmission_flags(self.session.structured).into(),
        };
        send_info(out, option, info::EXPORT, &[export.as_bytes()]);
        if query.wants(info::NAME) {
            send_info(out, option, info::NAME, &[self.export.name().as_bytes()]);
        }
        if query.wants(info::DESCRIPTION) && !self.export.description().is_empty() {
            send_info(
                out,
                option,
                info::DESCRIPTION,
                &[self.export.description().as_bytes()],
            );
        }
        if query.wants(info::BLOCK_SIZE) {
            let [minimum, preferred, payload] = self.export.block_sizes().map(u32::to_be_bytes);
            send_info(out, option, info::BLOCK_SIZE, &[&minimum, &preferred, &payload]);
        }
        reply(out, option, rep::ACK, &[]);
        true
    }

    /// Answers LIST_META_CONTEXT and SET_META_CONTEXT.
    fn meta_context(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        let set = option == opt::SET_META_CONTEXT;
        if set {
            // The earlier selection is lost in any case.
            self.session.allocation_context = false;
        }
        if !self.session.structured {
            refuse(
                out,
                option,
                rep::ERR_INVALID,
                "metadata contexts require structured replies",
            );
            return;
        }
        let queries = match MetaQueries::parse(data) {
            Ok(queries) => queries,
            Err(malformed) => return refuse_malformed(out, option, &malformed),
        };
        if !self.export.answers_to(queries.name) {
            refuse(out, option, rep::ERR_UNKNOWN, "no such export");
            return;
        }
        let mut found = !set && queries.is_empty();
        for query in queries.iter() {
            found |= query == BASE_ALLOCATION.as_bytes() || (!set && query == b"base:");
        }
        if found {
            let id = if set { BASE_ALLOCATION_ID } else { 0 };
            reply(
                out,
                option,
                rep::META_CONTEXT,
                &[&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()],
            );
        }
        self.session.allocation_context |= set && found;
        reply(out, option, rep::ACK, &[]);
    }
}

/// Appends one reply to an option.
fn reply(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let header = OptionReplyHeader {
        magic: OPTION_REPLY_MAGIC.into(),
        option: option.into(),
        kind: kind.into(),
        len: (len as u32).into(),
    };
    out.extend_from_slice(header.as_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

fn send_info(out: &mut Vec<u8>, option: u32, kind: u16, parts: &[&[u8]]) {
    let mut all = vec![];
    all.extend_from_slice(&kind.to_be_bytes());
    for part in parts {
        all.extend_from_slice(part);
    }
    reply(out, option, rep::INFO, &[&all]);
}

fn refuse(out: &mut Vec<u8>, option: u32, kind: u32, message: &str) {
    reply(out, option, kind, &[message.as_bytes()]);
}

fn refuse_malformed(out: &mut Vec<u8>, option: u32, malformed: &Malformed) {
    let kind = if *malformed == Malformed::NameTooLong {
        rep::ERR_TOO_BIG
    } else {
        rep::ERR_INVALID
    };
    refuse(out, option, kind, &malformed.to_string());
}
