//! Hostile bytes through the parsers: no panic, no endless loop, no memory in proportion to a claimed length.

use flaz_nbd::export::Export;
use flaz_nbd::limits::{OPTION_BYTES_MAX, OPTIONS_MAX};
use flaz_nbd::negotiation::{Negotiation, Progress, Session};
use flaz_nbd::option_data::{ExportQuery, MetaQueries, put_export_query, put_option};
use flaz_nbd::protocol::{BASE_ALLOCATION, REQUEST_MAGIC};
use flaz_nbd::request::{Command, REQUEST_BYTES, Request};
use proptest::prelude::*;

fn export() -> Export {
    Export::new(1 << 30)
        .with_name("disk")
        .unwrap()
        .with_description("text")
        .unwrap()
}

/// Maximum length of the replies to one option: every information or context once, with short strings.
const REPLY_BYTES_MAX: usize = 512;

/// Feeds `input` in pieces, as a connection would, and checks the invariants of the state machine.
fn feed(input: &[u8], piece: usize) {
    let export = export();
    let mut out = vec![];
    let mut negotiation = Negotiation::new(&export, &mut out);
    let mut held = 0..0;
    loop {
        match negotiation.advance(&input[held.clone()], &mut out) {
            Err(_) | Ok((_, Progress::Aborted | Progress::Transmission(_))) => break,
            Ok((taken, Progress::NeedMore)) => held.start += taken,
        }
        assert!(held.start <= held.end, "consumed more bytes than there were");
        // An option that fits is processed when it is complete; one that does not fit is skipped.
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
    assert!(
        out.len() <= REPLY_BYTES_MAX * (OPTIONS_MAX as usize + 1),
        "{} bytes of replies",
        out.len()
    );
    assert!(out.capacity() <= 2 * REPLY_BYTES_MAX * (OPTIONS_MAX as usize + 1));
}

fn option() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![8 => 0_u32..14, 1 => any::<u32>()];
    let name = prop_oneof![Just(&b""[..]), Just(&b"disk"[..]), Just(&b"other"[..])];
    let number_of = prop_oneof![8 => 0_u32..5, 1 => any::<u32>()];
    let data = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64),
        Just(vec![]),
        Just(vec![0; OPTION_BYTES_MAX + 1]),
        (name.clone(), prop::collection::vec(0_u16..6, 0..6)).prop_map(|(name, infos)| {
            let mut data = vec![];
            put_export_query(&mut data, name, &infos);
            data
        }),
        (name, number_of).prop_map(|(name, count)| {
            let mut data = (name.len() as u32).to_be_bytes().to_vec();
            data.extend(name);
            data.extend(count.to_be_bytes());
            for _ in 0..count.min(5) {
                data.extend((BASE_ALLOCATION.len() as u32).to_be_bytes());
                data.extend(BASE_ALLOCATION.as_bytes());
            }
            data
        }),
    ];
    (number, data).prop_map(|(number, data)| {
        let mut out = vec![];
        put_option(&mut out, number, &data);
        out
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_are_survived(input in prop::collection::vec(any::<u8>(), 0..2048), piece in 1_usize..300) {
        feed(&input, piece);
        let mut with_flags = vec![0, 0, 0, 3];
        with_flags.extend(&input);
        feed(&with_flags, piece);
        let _ = ExportQuery::parse(&input);
        if let Ok(queries) = MetaQueries::parse(&input) {
            prop_assert!(queries.iter().count() <= input.len() / 4);
        }
    }

    #[test]
    fn mutated_handshakes_are_survived(
        options in prop::collection::vec(option(), 0..8),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        piece in 1_usize..70_000,
    ) {
        let mut input = vec![0, 0, 0, 3];
        input.extend(options.concat());
        for (place, value) in changes {
            let place = place.index(input.len());
            input[place] = value;
        }
        feed(&input, piece);
    }

    #[test]
    fn accepted_requests_are_within_the_device(
        bytes in any::<[u8; REQUEST_BYTES]>(),
        command in 0_u16..10,
        near in 0_u64..1 << 31,
        structured in any::<bool>(),
        allocation_context in any::<bool>(),
        read_only in any::<bool>(),
    ) {
        let session = Session { structured, allocation_context: allocation_context && structured };
        let export = export().read_only(read_only);
        let mut bytes = bytes;
        let _ = Request::parse(&bytes);
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[6..8].copy_from_slice(&command.to_be_bytes());
        for offset in [None, Some(near)] {
            if let Some(offset) = offset {
                bytes[4..6].copy_from_slice(&[0, 0]);
                bytes[16..24].copy_from_slice(&offset.to_be_bytes());
            }
            let request = Request::parse(&bytes).expect("the magic is right");
            match request.check(&export, session) {
                Ok(Command::Disconnect | Command::Flush) => {}
                Ok(command) => {
                    prop_assert!(request.offset.checked_add(request.len.into()).unwrap() <= export.size());
                    prop_assert!(!(read_only && command.writes()));
                    prop_assert!(request.payload_len() <= 32 << 20);
                }
                Err(refusal) => prop_assert!([1, 22, 28].contains(&refusal.errno.code())),
            }
        }
    }
}
