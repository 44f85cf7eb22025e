//! The handshake, byte by byte, as the specification defines it.

use flaz_nbd::export::Export;
use flaz_nbd::negotiation::{Negotiation, NegotiationError, Progress, Session};

const SIZE: u64 = 0x0000_0001_0203_0000;

fn export() -> Export {
    Export::new(SIZE)
        .with_name("disk")
        .unwrap()
        .with_description("a disk")
        .unwrap()
}

/// An option of a client.
fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut out = b"IHAVEOPT".to_vec();
    out.extend(number.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

/// A reply of the server.
fn reply(number: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut out = vec![0, 3, 0xe8, 0x89, 0x04, 0x55, 0x65, 0xa9];
    out.extend(number.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

const ACK: u32 = 1;
const UNSUP: u32 = 0x8000_0001;
const INVALID: u32 = 0x8000_0003;
const UNKNOWN: u32 = 0x8000_0006;
const TOO_BIG: u32 = 0x8000_0009;

/// Flags: HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, MULTI_CONN, CACHE; with DF if replies are structured.
const FLAGS: [u8; 2] = [0x05, 0x6d];
const FLAGS_STRUCTURED: [u8; 2] = [0x05, 0xed];

/// Runs a handshake over `input` and returns the replies (without the greeting) and how it ended.
fn haggle(client_flags: u32, options: &[Vec<u8>]) -> (Vec<u8>, Result<Progress, NegotiationError>) {
    let export = export();
    let mut greeting = vec![];
    let mut negotiation = Negotiation::new(&export, &mut greeting);
    assert_eq!(greeting, b"NBDMAGICIHAVEOPT\0\x03");
    let mut input = client_flags.to_be_bytes().to_vec();
    input.extend(options.concat());
    let mut out = vec![];
    match negotiation.advance(&input, &mut out) {
        Ok((taken, progress)) => {
            if progress != Progress::NeedMore {
                assert_eq!(taken, input.len());
            }
            (out, Ok(progress))
        }
        Err(error) => (out, Err(error)),
    }
}

/// The kinds of the replies in `out`.
fn kinds(mut out: &[u8]) -> Vec<u32> {
    let mut kinds = vec![];
    while !out.is_empty() {
        kinds.push(u32::from_be_bytes(out[12..16].try_into().unwrap()));
        out = &out[20 + u32::from_be_bytes(out[16..20].try_into().unwrap()) as usize..];
    }
    kinds
}

#[test]
fn export_name_answers_with_size_flags_and_padding() {
    let (out, end) = haggle(1, &[option(1, b"disk")]);
    assert_eq!(end, Ok(Progress::Transmission(Session::default())));
    assert_eq!(out, [&[0, 0, 0, 1, 2, 3, 0, 0][..], &FLAGS, &[0; 124]].concat());
    let (out, _) = haggle(3, &[option(1, b"")]);
    assert_eq!(out, [&[0, 0, 0, 1, 2, 3, 0, 0][..], &FLAGS].concat());
    let (out, end) = haggle(3, &[option(1, b"other")]);
    assert_eq!((out.len(), end), (0, Err(NegotiationError::UnknownExport(5))));
}

#[test]
fn go_sends_the_requested_information_and_starts() {
    let data = b"\0\0\0\x04disk\0\x03\0\x01\0\x02\0\x03";
    let (out, end) = haggle(3, &[option(8, b""), option(7, data)]);
    assert_eq!(
        end,
        Ok(Progress::Transmission(Session {
            structured: true,
            allocation_context: false
        }))
    );
    let expected = [
        reply(8, ACK, b""),
        reply(
            7,
            3,
            &[&[0, 0][..], &[0, 0, 0, 1, 2, 3, 0, 0], &FLAGS_STRUCTURED].concat(),
        ),
        reply(7, 3, b"\0\x01disk"),
        reply(7, 3, b"\0\x02a disk"),
        reply(7, 3, &[0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]),
        reply(7, ACK, b""),
    ];
    assert_eq!(out, expected.concat());
    // Nothing is requested: size and flags are sent anyway.
    let (out, _) = haggle(3, &[option(7, &[0; 6])]);
    assert_eq!(kinds(&out), [3, ACK]);
}

#[test]
fn info_continues_and_unknown_exports_are_refused() {
    let (out, end) = haggle(
        3,
        &[
            option(6, &[0; 6]),
            option(7, b"\0\0\0\x01x\0\0"),
            option(6, b"\0\0"),
        ],
    );
    assert_eq!(end, Ok(Progress::NeedMore));
    assert_eq!(kinds(&out), [3, ACK, UNKNOWN, INVALID]);
}

#[test]
fn list_abort_and_unknown_options() {
    let (out, end) = haggle(
        3,
        &[
            option(3, b""),
            option(11, b""),
            option(5, b""),
            option(99, b"zz"),
            option(2, b"x"),
        ],
    );
    assert_eq!(end, Ok(Progress::Aborted));
    assert!(out.starts_with(&[reply(3, 2, b"\0\0\0\x04diska disk"), reply(3, ACK, b"")].concat()));
    assert!(out.ends_with(&reply(2, ACK, b"")));
    assert_eq!(kinds(&out), [2, ACK, UNSUP, UNSUP, UNSUP, ACK]);
    let (out, _) = haggle(3, &[option(3, b"x"), option(8, b"x"), option(5, b"x")]);
    assert_eq!(kinds(&out), [INVALID, INVALID, INVALID]);
}

#[test]
fn metadata_contexts_are_listed_and_chosen() {
    let query = |text: &str| {
        [
            &[0, 0, 0, 0, 0, 0, 0, 1][..],
            &(text.len() as u32).to_be_bytes(),
            text.as_bytes(),
        ]
        .concat()
    };
    // Refused before structured replies are negotiated.
    let (out, _) = haggle(3, &[option(9, &[0; 8]), option(10, &query("base:allocation"))]);
    assert_eq!(kinds(&out), [INVALID, INVALID]);

    let (out, end) = haggle(
        3,
        &[
            option(8, b""),
            option(10, &query("base:allocation")),
            option(7, &[0; 6]),
        ],
    );
    assert_eq!(
        end,
        Ok(Progress::Transmission(Session {
            structured: true,
            allocation_context: true
        }))
    );
    assert!(
        out.starts_with(
            &[
                reply(8, ACK, b""),
                reply(10, 4, b"\0\0\0\x01base:allocation"),
                reply(10, ACK, b"")
            ]
            .concat()
        )
    );

    // Wildcards list but do not select; unknown queries do neither.
    let (out, end) = haggle(
        3,
        &[
            option(8, b""),
            option(9, &[0; 8]),
            option(9, &query("base:")),
            option(9, &query("base:allocation")),
            option(9, &query("qemu:dirty-bitmap:x")),
            option(10, &query("base:")),
            option(7, &[0; 6]),
        ],
    );
    assert_eq!(kinds(&out), [ACK, 4, ACK, 4, ACK, 4, ACK, ACK, ACK, 3, ACK]);
    assert_eq!(
        end,
        Ok(Progress::Transmission(Session {
            structured: true,
            allocation_context: false
        }))
    );

    // A later selection replaces the earlier one, even if it fails.
    for spoil in [
        query("base:other"),
        b"\0\0\0\x01x\0\0\0\0".to_vec(),
        b"\xff\xff\xff\xff".to_vec(),
    ] {
        let (_, end) = haggle(
            3,
            &[
                option(8, b""),
                option(10, &query("base:allocation")),
                option(10, &spoil),
                option(7, &[0; 6]),
            ],
        );
        assert_eq!(
            end,
            Ok(Progress::Transmission(Session {
                structured: true,
                allocation_context: false
            }))
        );
    }
}

#[test]
fn long_options_are_skipped_and_longer_ones_end_the_connection() {
    let mut name = 4097_u32.to_be_bytes().to_vec();
    name.resize(4 + 4097 + 2, 0);
    let (out, _) = haggle(
        3,
        &[
            option(7, &name),
            option(99, &vec![0; 65536]),
            option(99, &vec![0; 65537]),
        ],
    );
    assert_eq!(kinds(&out), [TOO_BIG, UNSUP, TOO_BIG]);
    // EXPORT_NAME has no reply other than the start of the transmission phase.
    let (out, end) = haggle(3, &[option(1, &vec![b'n'; 65537])]);
    assert_eq!(
        (kinds(&out), end),
        (vec![], Err(NegotiationError::UnknownExport(65537)))
    );
    let mut huge = option(7, b"");
    huge[12..16].copy_from_slice(&((32_u32 << 20) + 1).to_be_bytes());
    let (_, end) = haggle(3, &[huge]);
    assert_eq!(
        end,
        Err(NegotiationError::OptionLength {
            option: 7,
            len: (32 << 20) + 1
        })
    );
}

#[test]
fn protocol_violations_end_the_connection() {
    assert_eq!(haggle(4, &[]).1, Err(NegotiationError::ClientFlags(4)));
    let mut wrong = option(7, b"");
    wrong[0] = b'J';
    assert_eq!(
        haggle(3, &[wrong]).1,
        Err(NegotiationError::OptionMagic(u64::from_be_bytes(*b"JHAVEOPT")))
    );
    let many = vec![option(99, b""); 129];
    assert_eq!(haggle(3, &many).1, Err(NegotiationError::TooManyOptions));
    assert!(haggle(3, &many[..128]).1.is_ok());
}

#[test]
fn bytes_may_arrive_one_at_a_time() {
    let export = export();
    let mut out = vec![];
    let mut negotiation = Negotiation::new(&export, &mut out);
    out.clear();
    let input = [
        &3_u32.to_be_bytes()[..],
        &option(8, b""),
        &option(7, b"\0\0\0\x04disk\0\0"),
    ]
    .concat();
    let mut held = vec![];
    let mut last = Progress::NeedMore;
    for byte in &input {
        assert_eq!(last, Progress::NeedMore);
        held.push(*byte);
        let (taken, progress) = negotiation.advance(&held, &mut out).unwrap();
        held.drain(..taken);
        last = progress;
    }
    assert_eq!(
        last,
        Progress::Transmission(Session {
            structured: true,
            allocation_context: false
        })
    );
    assert_eq!(kinds(&out), [ACK, 3, ACK]);
}
