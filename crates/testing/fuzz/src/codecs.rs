//! Hostile streams for every codec: the result is exactly one block or an error, and always the same.

use std::cell::RefCell;

use flaz_codec::{CodecId, CodecSpec, Decoders, encoder, ids};

thread_local! {
    static DECODERS: RefCell<Decoders> = RefCell::default();
}

/// A stream; its first byte selects the codec.
///
/// # Panics
/// If the result depends on the earlier contents of the buffer, or an encoder cannot restore it.
pub fn codec_stream(data: &[u8]) {
    let Some((codec, stream)) = data.split_first() else {
        return;
    };
    // Every codec, and one number without a codec.
    let codec = CodecId(codec % (ids().len() as u8 + 1));
    let stream = &stream[..stream.len().min(4096)];
    let decode = |fill: u8| {
        // The decoder must not use the bytes after the block.
        let mut room = vec![fill; 4096 + 64];
        let result =
            DECODERS.with_borrow_mut(|decoders| decoders.decompress(codec, stream, &mut room[..4096]));
        assert!(
            room[4096..].iter().all(|byte| *byte == fill),
            "{codec} writes beyond its block"
        );
        room.truncate(4096);
        result.map(|()| room)
    };
    let (first, second) = (decode(0), decode(0xa5));
    assert!(first == second, "{codec} lets earlier contents show through");
    let Ok(block) = first else { return };
    let Ok(spec) = CodecSpec::new(codec, None) else {
        return;
    };
    let mut packed = vec![0; 4096];
    if let Some(len) = encoder(spec).compress(&block, &mut packed) {
        let mut again = vec![1; 4096];
        let back =
            DECODERS.with_borrow_mut(|decoders| decoders.decompress(codec, &packed[..len], &mut again));
        assert!(
            back.is_ok() && again == block,
            "{codec} does not restore its input"
        );
    }
}
