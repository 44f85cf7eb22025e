//! All codecs: round trips, hostile streams, names.

use flaz_random::Random;
use proptest::collection::vec;
use proptest::prelude::*;

use super::compressibility::{Detector, looks_incompressible, single_value};
use super::registry::REGISTRY;
use super::*;

const BLOCK: usize = 4096;
/// Maximum length that the engine stores compressed.
const FRAGMENT_MAX: usize = BLOCK - 64;
const SPECS: [&str; 12] = [
    "none", "lz4", "lzo", "zlib:1", "zlib:6", "zlib:12", "zstd:-7", "zstd:-1", "zstd:1", "zstd:3", "zstd:9",
    "zstd:19",
];

fn spec(text: &str) -> CodecSpec {
    text.parse().unwrap()
}

/// Deterministic bytes without order.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}

/// Repeats of `piece` up to `len` bytes.
fn tiled(piece: &[u8], len: usize) -> Vec<u8> {
    piece.iter().copied().cycle().take(len).collect()
}

fn words_of(len: usize, seed: u64, word: impl Fn(usize, u64) -> Vec<u8>) -> Vec<u8> {
    noise(len * 8, seed)
        .chunks_exact(8)
        .enumerate()
        .flat_map(|(n, bytes)| word(n, bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))))
        .take(len)
        .collect()
}

/// Compressible data of many kinds, each with a name. None of it may be classified as incompressible.
fn orderly_blocks() -> Vec<(&'static str, Vec<u8>)> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut kinds = vec![
        ("zeroes", vec![0; BLOCK]),
        ("counter", (0..BLOCK).map(|n| n as u8).collect()),
        (
            "text",
            tiled(
                b"It was the best of times, it was the worst of times, it was the age. ",
                BLOCK,
            ),
        ),
        ("last word differs", [vec![7; BLOCK - 1], vec![8]].concat()),
        (
            "half noise, half zeroes",
            [noise(BLOCK / 2, 1), vec![0; BLOCK / 2]].concat(),
        ),
        (
            "noise with 512 zeroes",
            [noise(1700, 2), vec![0; 512], noise(BLOCK - 2212, 3)].concat(),
        ),
    ];
    for seed in 1..40 {
        kinds.extend([
            (
                "base64",
                words_of(BLOCK, seed, |_, word| vec![LETTERS[word as usize % 64]]),
            ),
            (
                "hexadecimal",
                words_of(BLOCK, seed, |_, word| {
                    vec![b"0123456789abcdef"[word as usize % 16]]
                }),
            ),
            (
                "seven bits",
                words_of(BLOCK, seed, |_, word| vec![word as u8 & 127]),
            ),
            (
                "160 values",
                words_of(BLOCK, seed, |_, word| vec![(word % 160) as u8]),
            ),
            ("64-byte records", tiled(&noise(64, seed), BLOCK)),
            ("100-byte records", tiled(&noise(100, seed), BLOCK)),
            ("512-byte records", tiled(&noise(512, seed), BLOCK)),
            ("1000-byte records", tiled(&noise(1000, seed), BLOCK)),
            ("the half twice", tiled(&noise(2048, seed), BLOCK)),
            (
                "16-byte pieces of 40",
                words_of(BLOCK, seed, |_, word| noise(16, word % 40 + 1)),
            ),
            (
                "floating point",
                words_of(BLOCK, seed, |_, word| (word as f64 / 1e3).to_be_bytes().to_vec()),
            ),
            (
                "big numbers, 6 of 8 bytes noise",
                words_of(BLOCK, seed, |_, word| (word >> 16).to_le_bytes().to_vec()),
            ),
            ("24-byte records, key of noise", {
                words_of(BLOCK, seed, |n, word| {
                    [
                        word.to_le_bytes().to_vec(),
                        n.to_le_bytes().to_vec(),
                        1_u64.to_le_bytes().to_vec(),
                    ]
                    .concat()
                })
            }),
            (
                "12-bit samples in 16 bits",
                words_of(BLOCK, seed, |_, word| (word as u16 >> 4).to_le_bytes().to_vec()),
            ),
            (
                "sorted numbers",
                words_of(BLOCK, seed, |n, word| {
                    (n as u32 * 7919 + word as u32 % 7919).to_le_bytes().to_vec()
                }),
            ),
            (
                "packed 12-bit values below 2000",
                words_of(BLOCK, seed, |_, word| {
                    let (a, b) = (word % 2000, (word >> 32) % 2000);
                    (a | b << 12).to_le_bytes()[..3].to_vec()
                }),
            ),
        ]);
    }
    kinds
}

fn orderless_blocks() -> Vec<Vec<u8>> {
    let mut blocks: Vec<Vec<u8>> = (100..1100).map(|seed| noise(BLOCK, seed)).collect();
    // Compressed data is the usual incompressible data.
    let text: Vec<u8> = words_of(400_000, 7, |n, word| {
        format!("{} {} ", word % 1000, n * 17).into_bytes()
    });
    let mut out = vec![0; text.len()];
    for name in ["zlib:9", "zstd:9"] {
        let len = encoder(spec(name)).compress(&text, &mut out).unwrap();
        blocks.extend(
            out[..len]
                .chunks_exact(BLOCK)
                .skip(1)
                .take(20)
                .map(<[u8]>::to_vec),
        );
    }
    blocks
}

fn round_trip(
    encoder: &mut dyn Encoder,
    decoders: &mut Decoders,
    id: CodecId,
    block: &[u8],
) -> Option<usize> {
    let mut out = vec![0; block.len() + block.len() / 8 + 64];
    let len = encoder.compress(block, &mut out)?;
    let mut back = vec![0xa5; block.len()];
    assert_eq!(
        decoders.decompress(id, &out[..len], &mut back),
        Ok(()),
        "{id}, {} bytes",
        block.len()
    );
    assert!(back == block, "{id}: other bytes came out");
    Some(len)
}

#[test]
fn every_codec_round_trips_all_data_at_every_level() {
    let mut decoders = Decoders::new();
    let all = (-7..=19)
        .map(|level| format!("zstd:{level}"))
        .chain((1..=12).map(|level| format!("zlib:{level}")));
    for name in all.chain(["lz4".into(), "lzo".into()]) {
        let spec = spec(&name);
        let mut encoder = encoder(spec);
        for (kind, block) in orderly_blocks().into_iter().take(24) {
            let len = round_trip(&mut *encoder, &mut decoders, spec.id(), &block);
            assert!(
                len.is_some_and(|len| len <= BLOCK + 64),
                "{name} on {kind}: {len:?}"
            );
        }
        for block in orderless_blocks().iter().take(3) {
            round_trip(&mut *encoder, &mut decoders, spec.id(), block);
        }
    }
}

#[test]
fn text_becomes_much_smaller_with_every_codec() {
    let text: Vec<u8> = words_of(BLOCK, 3, |_, word| {
        format!("item {} costs {}\n", word % 50, word % 7).into_bytes()
    });
    for name in &SPECS[1..] {
        let len = encoder(spec(name))
            .compress(&text, &mut [0; FRAGMENT_MAX])
            .unwrap();
        assert!(len < BLOCK / 2, "{name}: {len}");
    }
}

#[test]
fn encoders_never_write_beyond_their_output() {
    let noise = noise(BLOCK, 9);
    let text = tiled(b"some text that compresses well, ", BLOCK);
    for name in SPECS {
        let mut encoder = encoder(spec(name));
        for room in [0, 1, 2, 3, 5, 8, 13, 20, FRAGMENT_MAX] {
            let mut out = vec![0x5a; BLOCK];
            assert_eq!(
                encoder.compress(&noise, &mut out[..room]),
                None,
                "{name} in {room} bytes"
            );
            assert!(
                out[room..].iter().all(|byte| *byte == 0x5a),
                "{name} wrote beyond {room} bytes"
            );
            if let Some(len) = encoder.compress(&text, &mut out[..room]) {
                assert!(len <= room);
            }
        }
    }
}

#[test]
fn the_output_does_not_depend_on_earlier_blocks() {
    for name in &SPECS[1..] {
        let blocks: Vec<_> = orderly_blocks()
            .into_iter()
            .take(20)
            .map(|(_, block)| block)
            .collect();
        let mut used = encoder(spec(name));
        for block in &blocks {
            let (mut first, mut second) = (vec![0; BLOCK + 600], vec![0; BLOCK + 600]);
            let first_len = used.compress(block, &mut first);
            assert_eq!(
                first_len,
                encoder(spec(name)).compress(block, &mut second),
                "{name}"
            );
            assert!(first == second, "{name}");
        }
    }
}

/// Decodes into two blocks with different earlier contents: a success must not show them.
fn decode_twice(decoders: &mut Decoders, id: CodecId, input: &[u8], len: usize) -> Option<Vec<u8>> {
    let (mut one, mut other) = (vec![0x11; len + 8], vec![0xee; len + 8]);
    let result = decoders.decompress(id, input, &mut one[..len]);
    assert_eq!(result, decoders.decompress(id, input, &mut other[..len]));
    assert!(
        one[len..] == [0x11; 8] && other[len..] == [0xee; 8],
        "{id} wrote beyond the block"
    );
    result.ok()?;
    assert!(
        one[..len] == other[..len],
        "{id}: earlier contents show through for {input:02x?}"
    );
    Some(one[..len].to_vec())
}

#[test]
fn damaged_streams_do_not_expose_old_contents() {
    let block: Vec<u8> = words_of(BLOCK, 5, |n, word| {
        format!("{} {} ", word % 300, n % 7).into_bytes()
    });
    let mut decoders = Decoders::new();
    for name in ["lz4", "zstd:1", "zstd:19", "zlib:6", "lzo"] {
        let (spec, mut out) = (spec(name), vec![0; BLOCK]);
        let len = encoder(spec).compress(&block, &mut out).unwrap();
        let stream = &out[..len];
        for at in 0..len {
            for change in [1, 0x80, 0xff, stream[at]] {
                let mut damaged = stream.to_vec();
                damaged[at] ^= change;
                decode_twice(&mut decoders, spec.id(), &damaged, BLOCK);
            }
            let cut = decode_twice(&mut decoders, spec.id(), &stream[..at], BLOCK);
            // LZ4 has no end mark: a stream is complete when the block is.
            assert!(cut.is_none(), "{name}: {at} of {len} bytes were enough");
        }
        for extra in [&[0; 1][..], &[0xff; 3], &noise(100, 3), stream] {
            let got = decode_twice(&mut decoders, spec.id(), &[stream, extra].concat(), BLOCK);
            assert!(got.is_none_or(|got| got == block), "{name}");
        }
        for wrong in [0, 1, BLOCK / 2, BLOCK - 1, BLOCK + 1, 2 * BLOCK] {
            let got = decode_twice(&mut decoders, spec.id(), stream, wrong);
            assert!(got.is_none(), "{name}: {wrong} bytes out of a stream of {BLOCK}");
        }
        // The decoder still works.
        assert!(decode_twice(&mut decoders, spec.id(), stream, BLOCK).as_ref() == Some(&block));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_block_of_any_length_round_trips(
        block in prop_oneof![
            vec(any::<u8>(), 0..5000),
            vec(0_u8..4, 0..5000),
            (vec(any::<u8>(), 1..300), 0_usize..9000).prop_map(|(piece, len)| tiled(&piece, len)),
            vec((any::<u8>(), 1_usize..700), 0..30)
                .prop_map(|runs| runs.into_iter().flat_map(|(byte, len)| vec![byte; len]).collect()),
            (vec(any::<u8>(), 20..60), vec((0_usize..20, 3_usize..20, any::<u8>()), 0..300)).prop_map(|(words, picks)| {
                picks.iter().flat_map(|(from, len, sep)| {
                    let end = (from + len).min(words.len());
                    [&words[*from..end], &[*sep]].concat()
                }).collect()
            }),
        ],
        choice in 0..SPECS.len(),
    ) {
        let spec = spec(SPECS[choice]);
        round_trip(&mut *encoder(spec), &mut Decoders::new(), spec.id(), &block);
    }

    #[test]
    fn random_streams_never_do_harm(input in vec(any::<u8>(), 0..300), id in 0_u8..7, len in 0_usize..5000) {
        decode_twice(&mut Decoders::new(), CodecId(id), &input, len);
    }

    #[test]
    fn mixed_up_streams_never_do_harm(
        pieces in vec((0_usize..2000, 0_usize..200), 1..8),
        choice in 1..SPECS.len(),
        len in prop_oneof![Just(BLOCK), 0_usize..5000],
    ) {
        let block: Vec<u8> = words_of(BLOCK, 11, |n, word| format!("{} {} ", word % 300, n % 7).into_bytes());
        let spec = spec(SPECS[choice]);
        let mut out = vec![0; BLOCK];
        let used = encoder(spec).compress(&block, &mut out).unwrap();
        let mut mixed = out[..4].to_vec();
        for (from, count) in pieces {
            mixed.extend_from_slice(&out[from.min(used)..(from + count).min(used)]);
        }
        decode_twice(&mut Decoders::new(), spec.id(), &mixed, len);
    }

    #[test]
    fn lzo_agrees_with_another_implementation(
        runs in vec((vec(any::<u8>(), 1..40), 1_usize..600), 1..40),
    ) {
        let block: Vec<u8> = runs.iter().flat_map(|(piece, len)| tiled(piece, *len)).collect();
        let mut out = vec![0; block.len() + block.len() / 8 + 64];
        let len = encoder(spec("lzo")).compress(&block, &mut out).unwrap();
        let mut back = vec![0; block.len()];
        prop_assert_eq!(lzokay::decompress::decompress(&out[..len], &mut back), Ok(block.len()));
        prop_assert!(back == block);

        let theirs = lzokay::compress::compress(&block).unwrap();
        back.fill(0);
        prop_assert_eq!(Decoders::new().decompress(CodecId::LZO, &theirs, &mut back), Ok(()));
        prop_assert!(back == block);
    }

    #[test]
    fn single_values_are_found_and_nothing_else(len in 1_usize..5000, value: u8, at: usize, change in 1_u8..) {
        let mut block = vec![value; len];
        prop_assert_eq!(single_value(&block), Some(value));
        if len > 1 {
            block[at % len] ^= change;
            prop_assert_eq!(single_value(&block), None);
        }
    }
}

#[test]
fn invalid_lz4_copies_do_not_expose_old_contents() {
    // A token of no literals and a long copy at distance 0, which the format forbids; then final literals.
    let mut decoders = Decoders::new();
    for distance in [0_u16, 1, 4, 100, 65_535] {
        for head in [&[0x0f][..], &[0x1f, 7], &[0x4f, 1, 2, 3, 4]] {
            let mut stream = head.to_vec();
            stream.extend(distance.to_le_bytes());
            stream.extend([255; 15]);
            stream.push(200);
            stream.extend([0x50, 1, 2, 3, 4, 5]);
            for len in 4000..4150 {
                decode_twice(&mut decoders, CodecId::LZ4, &stream, len);
            }
        }
    }
}

#[test]
fn incompressible_blocks_shrink_little_with_any_codec() {
    let mut encoders: Vec<_> = ["lz4", "lzo", "zlib:12", "zstd:19"]
        .map(|name| (name, encoder(spec(name))))
        .into();
    let mut called = 0;
    for (kind, block) in orderly_blocks() {
        // Such data may begin anywhere in a block.
        for shift in [0, 17, 1000] {
            let block: Vec<u8> = block[shift..].iter().chain(&block[..shift]).copied().collect();
            if looks_incompressible(&block) {
                called += 1;
                for (name, encoder) in &mut encoders {
                    let len = encoder.compress(&block, &mut [0; 2 * BLOCK]).unwrap();
                    assert!(len * 100 > BLOCK * 97, "{kind}: {name} makes {len} bytes of it");
                }
            }
        }
    }
    assert!(called < 100, "{called}");
}

#[test]
fn a_detector_soon_detects_order_after_noise() {
    let noise = noise(256 * BLOCK, 77);
    let mut lz4 = encoder(CodecSpec::LZ4);
    // Packs blocks as the cache does: returns whether the codec was used, and its result.
    let mut pack = |detector: &mut Detector, block: &[u8]| {
        let asked = !detector.incompressible(block);
        let smaller = asked && lz4.compress(block, &mut [0; FRAGMENT_MAX]).is_some();
        detector.note(!smaller);
        (asked, smaller)
    };
    let (mut at_once, mut tried) = (0, 0);
    for (kind, block) in orderly_blocks() {
        if !pack(&mut Detector::new(), &block).1 {
            continue;
        }
        tried += 1;
        for blocks_before in [5, 20, 60, 200] {
            let mut detector = Detector::new();
            let before = noise.chunks_exact(BLOCK).take(blocks_before);
            let asked = before.filter(|block| pack(&mut detector, block).0).count();
            assert!(asked <= 4 + blocks_before / 16, "{asked} of {blocks_before}");
            detector.next_request();
            let seen_after = (0..128).position(|_| pack(&mut detector, &block).1);
            assert!(seen_after.is_some(), "{kind}");
            at_once += usize::from(seen_after.is_some_and(|after| after <= 1));
            // From then on the codec gets every block.
            assert!(pack(&mut detector, &block).1, "{kind}");
        }
    }
    // The small sample does not detect repeated noise, but most other order.
    assert!(at_once * 3 > 2 * tried * 4, "{at_once} of {} times", 4 * tried);
}

#[test]
fn a_streak_may_have_any_length() {
    let noise = noise(BLOCK, 78);
    let mut detector = Detector::new();
    let mut asked = 0;
    for _ in 0..1600 {
        asked += usize::from(!detector.incompressible(&noise));
        detector.note(true);
    }
    assert!((16..=20).contains(&asked), "{asked}");
}

/// In the middle of a long stretch, the first block of other data is missed at most, and at most three blocks if it is
/// in the same request; in a very long stretch, at most seven.
#[test]
fn a_change_within_a_request_is_detected_soon() {
    let (noise, zeros) = (noise(BLOCK, 79), vec![0; BLOCK]);
    let lengths = [(40, 1, 3), (140, 5, 7)];
    for (before, (streak, missed_first, missed_max)) in
        (0..8).flat_map(|before| lengths.map(|length| (before, length)))
    {
        let mut detector = Detector::new();
        (0..streak).for_each(|_| detector.note(true));
        detector.next_request();
        for _ in 0..before {
            assert!(detector.incompressible(&noise));
            detector.note(true);
        }
        let missed = (0..16).take_while(|_| detector.incompressible(&zeros)).count();
        assert!(
            missed <= missed_max && (before > 0 || missed <= missed_first),
            "{missed} after {before} in a streak of {streak}"
        );
    }
}

#[test]
fn random_data_is_nearly_always_called_incompressible() {
    let blocks = orderless_blocks();
    let found = blocks.iter().filter(|block| looks_incompressible(block)).count();
    assert!(found * 1000 >= blocks.len() * 985, "{found} of {}", blocks.len());
    let mut lz4 = encoder(CodecSpec::LZ4);
    assert!(
        blocks
            .iter()
            .all(|block| lz4.compress(block, &mut [0; FRAGMENT_MAX]).is_none())
    );
}

#[test]
fn short_blocks_are_left_to_the_codec() {
    for len in 0..1024 {
        assert!(!looks_incompressible(&noise(len, 5)));
    }
    assert_eq!(single_value(&[]), None);
}

#[test]
fn names_parse_and_print() {
    for (text, id, level) in [
        ("none", CodecId::RAW, 0),
        ("lz4", CodecId::LZ4, 0),
        ("zstd:3", CodecId::ZSTD, 3),
        ("zstd:-5", CodecId::ZSTD, -5),
        ("zlib:12", CodecId::ZLIB, 12),
        ("lzo", CodecId::LZO, 0),
    ] {
        let parsed = spec(text);
        assert_eq!(
            (parsed.id(), parsed.level(), parsed.to_string().as_str()),
            (id, level, text)
        );
        let json = serde_json::to_string(&parsed).unwrap();
        assert_eq!(json, format!("{text:?}"));
        assert_eq!(serde_json::from_str::<CodecSpec>(&json).unwrap(), parsed);
    }
    assert_eq!(spec("zstd").to_string(), "zstd:1");
    assert_eq!(spec("zlib").to_string(), "zlib:6");
    assert_eq!(CodecSpec::default(), spec("lz4"));
    assert_eq!(CodecSpec::NONE, spec("none"));
    assert_eq!(CodecSpec::ZSTD, spec("zstd"));
    assert_eq!(CodecSpec::ZLIB, spec("zlib"));
    assert_eq!(
        format!("{:<8}|{:>5}", spec("zstd:3"), spec("lz4")),
        "zstd:3  |  lz4"
    );
    assert_eq!(CodecSpec::new(CodecId::ZSTD, None), Ok(spec("zstd")));
}

#[test]
fn wrong_names_and_levels_list_the_choices() {
    let message = |text: &str| text.parse::<CodecSpec>().unwrap_err().to_string();
    let choices = "unknown codec \"gzip\": expected none, lz4, zstd[:LEVEL] (-7 to 19, default 1), \
                   zlib[:LEVEL] (1 to 12, default 6) or lzo";
    assert_eq!(message("gzip"), choices);
    for wrong in ["zstd:20", "zstd:-8", "zstd:", "zstd:fast", "zstd:3:3", "zstd:300"] {
        assert!(message(wrong).contains("expected -7 to 19"), "{}", message(wrong));
    }
    assert!(message("zlib:0").contains("expected 1 to 12"));
    assert_eq!(
        message("lz4:3"),
        "lz4 has no levels: expected \"lz4\", found \"lz4:3\""
    );
    assert!(message("").contains("expected none, lz4"));
    assert!(message("LZ4").contains("expected none, lz4"));
    assert!(serde_json::from_str::<CodecSpec>("\"zip\"").is_err());
    assert!(CodecSpec::new(CodecId(200), None).is_err());
}

#[test]
fn numbers_and_names_are_unique_and_stable() {
    let numbers: Vec<_> = REGISTRY.iter().map(|codec| (codec.id.0, codec.name)).collect();
    assert_eq!(
        numbers,
        [(0, "none"), (1, "lz4"), (2, "zstd"), (3, "zlib"), (4, "lzo")]
    );
    assert!(ids().map(|id| id.0).eq(0..5));
    assert_eq!(CodecId::ZSTD.to_string(), "zstd");
    assert_eq!(CodecId(99).to_string(), "codec 99");
}

#[test]
fn unknown_numbers_are_an_error() {
    let result = Decoders::new().decompress(CodecId(99), &[1, 2, 3], &mut [0; 10]);
    assert_eq!(result, Err(DecodeError::UnknownCodec(99)));
    let raw = Decoders::new().decompress(CodecId::RAW, &[1, 2, 3], &mut [0; 10]);
    assert_eq!(
        raw,
        Err(DecodeError::Length {
            codec: "none",
            expected: 10,
            found: 3
        })
    );
}

#[test]
fn a_meter_counts_chunks_that_do_not_shrink_as_they_are() {
    let noise = noise(BLOCK, 80);
    let half = [vec![7; BLOCK / 2], noise[..BLOCK / 2].to_vec()].concat();
    for name in ["lz4", "lzo", "zstd:1", "zlib:6"] {
        let mut meter = Meter::new(spec(name));
        let saved = meter.saved(&half);
        assert!((0.44..0.56).contains(&saved), "{name}: {saved}");
        assert_eq!(meter.stored_bytes(&noise), noise.len(), "{name}");
        assert_eq!(meter.stored_bytes(&[]), 0, "{name}");
    }
    let mut none = Meter::new(CodecSpec::NONE);
    assert_eq!((none.stored_bytes(&half), none.saved(&[])), (BLOCK, 0.0));
}

/// Neighbours with something in common.
fn alike() -> Vec<u8> {
    let words = noise(200 * 8, 7);
    let pick = noise(4 * BLOCK / 8, 8).into_iter();
    pick.flat_map(|at| words[usize::from(at) % 200 * 8..][..8].to_vec())
        .collect()
}

#[test]
fn the_first_blocks_of_a_group_are_restored_alone() {
    let (data, mut out) = (alike(), vec![0; 4 * BLOCK]);
    for name in ["zstd:1", "zstd:6", "zstd:12"] {
        let mut encoder = encoder(spec(name));
        for blocks in 2..=4 {
            let input = &data[..blocks * BLOCK];
            let len = encoder
                .compress_group(input, BLOCK, &mut out)
                .expect("fits and has a block each");
            let apart: usize = (input.chunks(BLOCK))
                .map(|block| encoder.compress(block, &mut [0; BLOCK]).expect("fits"))
                .sum();
            assert!(len < apart, "{name}: {len} bytes together, {apart} apart");
            let mut decoders = Decoders::new();
            for first in 1..=blocks {
                let mut found = vec![0; first * BLOCK];
                decoders
                    .decompress_first(CodecId::ZSTD, &out[..len], BLOCK, &mut found)
                    .expect("as written");
                assert!(found == input[..first * BLOCK], "{name}: {first} of {blocks}");
                let cut = decoders.decompress_first(CodecId::ZSTD, &out[..len / 8], BLOCK, &mut found);
                assert!(cut.is_err(), "{name}: {first} of {blocks}, cut short");
            }
            let mut more = vec![0; (blocks + 1) * BLOCK];
            let found = decoders.decompress_first(CodecId::ZSTD, &out[..len], BLOCK, &mut more);
            assert!(found.is_err(), "{name}: {blocks} are not {}", blocks + 1);
            assert_eq!(encoder.compress_group(input, BLOCK, &mut out[..len - 1]), None);
        }
    }
    let mut lz4 = encoder(spec("lz4"));
    assert_eq!(lz4.compress_group(&data, BLOCK, &mut out), None);
    let mut found = vec![0; BLOCK];
    assert_eq!(
        Decoders::new().decompress_first(CodecId(1), &out, BLOCK, &mut found),
        Err(DecodeError::NoGroups)
    );
}
