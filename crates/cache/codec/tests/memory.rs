//! The memory of encoders and decoders is counted. One test, because the count is that of the process.

use flaz_codec::{CodecSpec, Decoders, context_bytes, encoder};

const BLOCK_BYTES: usize = 4096;

#[test]
fn encoders_and_decoders_are_counted_until_they_are_dropped() {
    assert_eq!(context_bytes(), 0);
    let block: Vec<u8> = (0..BLOCK_BYTES).map(|at| ((at * at) >> 7) as u8).collect();
    // Bytes that an encoder of a block takes, at least and at most.
    for (name, range) in [
        ("none", 0..=0),
        ("lz4", 0..=0),
        ("lzo", 4 << 10..=256 << 10),
        ("zlib:1", 100 << 10..=300 << 10),
        ("zlib:6", 500 << 10..=800 << 10),
        ("zlib:12", 8 << 20..=10 << 20),
        ("zstd:1", 16 << 10..=400 << 10),
        ("zstd:6", 16 << 10..=400 << 10),
        ("zstd:19", 16 << 10..=2 << 20),
    ] {
        let codec: CodecSpec = name.parse().expect("a codec");
        let (mut out, mut back) = (vec![0; 2 * BLOCK_BYTES], vec![0; BLOCK_BYTES]);
        let mut made = encoder(codec);
        let Some(len) = made.compress(&block, &mut out) else {
            assert_eq!(name, "none", "the others compress it");
            continue;
        };
        let taken = context_bytes();
        assert!(range.contains(&taken), "{name}: {taken} bytes");
        made.compress(&block, &mut out);
        assert_eq!(context_bytes(), taken, "{name}: the second block takes no more");
        let mut decoders = Decoders::new();
        (decoders.decompress(codec.id(), &out[..len], &mut back)).expect("its own output");
        let decoders_take = context_bytes() - taken;
        assert!(decoders_take <= 256 << 10, "{name}: {decoders_take} bytes");
        drop((made, decoders));
        assert_eq!(context_bytes(), 0, "{name}");
    }
}
