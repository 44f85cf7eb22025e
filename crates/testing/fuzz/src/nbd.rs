//! The NBD protocol without I/O: bytes of a client for the state machine of the handshake and the parser of requests.

use flaz_nbd::export::Export;
use flaz_nbd::limits::{OPTION_BYTES_MAX, OPTIONS_MAX, PAYLOAD_BYTES_MAX};
use flaz_nbd::negotiation::{Negotiation, Progress, Session};
use flaz_nbd::protocol::REQUEST_MAGIC;
use flaz_nbd::request::{Command, REQUEST_BYTES, Request};

use crate::choices::Choices;

/// Maximum length of the replies to one option: every information once, with short strings.
const REPLY_BYTES_MAX: usize = 512;

fn export() -> Export {
    let export = Export::new(1 << 20).with_name("disk").expect("short");
    export.with_description("text").expect("short")
}

/// A handshake. The first byte determines the pieces in which the client's bytes arrive.
///
/// # Panics
/// If the state machine makes no progress, consumes more than it got, or replies with more than the limit.
pub fn negotiation(data: &[u8]) {
    let Some((pieces, input)) = data.split_first() else {
        return;
    };
    let piece = match pieces {
        0 => input.len().max(1),
        pieces => usize::from(*pieces),
    };
    let export = export();
    let mut out = Vec::new();
    let mut machine = Negotiation::new(&export, &mut out);
    let mut held = 0..0;
    loop {
        match machine.advance(&input[held.clone()], &mut out) {
            Ok((taken, Progress::NeedMore)) => held.start += taken,
            Ok((taken, Progress::Transmission(session))) => {
                assert!(held.start + taken <= held.end);
                assert!(session.structured || !session.allocation_context);
                break;
            }
            Err(_) | Ok((_, Progress::Aborted)) => break,
        }
        assert!(held.start <= held.end, "more bytes were consumed than there were");
        assert!(
            held.len() < OPTION_BYTES_MAX + 16,
            "no progress over {} bytes",
            held.len()
        );
        if held.end == input.len() {
            break;
        }
        held.end = (held.end + piece).min(input.len());
    }
    let most = REPLY_BYTES_MAX * (OPTIONS_MAX as usize + 1);
    assert!(out.len() <= most, "{} bytes of replies", out.len());
}

/// Requests in sequence; the first byte has the negotiated features.
///
/// # Panics
/// If a request is accepted that exceeds the device or that this client may not send.
pub fn requests(data: &[u8]) {
    let mut choices = Choices::new(data);
    let flags = choices.byte();
    let session = Session {
        structured: flags & 1 != 0,
        allocation_context: flags & 3 == 3,
    };
    let export = export().read_only(flags & 4 != 0).fast_zero(flags & 8 != 0);
    let mut rest = choices.rest();
    while let Some(header) = rest.first_chunk::<REQUEST_BYTES>() {
        // Without the magic number all streams would end here.
        let mut header = *header;
        if flags & 16 == 0 {
            header[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        }
        let Ok(request) = Request::parse(&header) else {
            return;
        };
        match request.check(&export, session) {
            Ok(Command::Disconnect) => return,
            Ok(Command::Flush) => {}
            Ok(command) => {
                let end = request.offset.checked_add(request.len.into());
                assert!(
                    end.is_some_and(|end| end <= export.size()),
                    "{request:?} exceeds the device"
                );
                assert!(
                    !(export.is_read_only() && command.writes()),
                    "{request:?} on a read-only export"
                );
                assert!(session.allocation_context || !matches!(command, Command::BlockStatus { .. }));
                assert!(request.payload_len() <= PAYLOAD_BYTES_MAX);
            }
            Err(refusal) => assert!([1, 22, 28].contains(&refusal.errno.code())),
        }
        let skip = REQUEST_BYTES + request.payload_len() as usize;
        rest = rest.get(skip..).unwrap_or_default();
    }
}
