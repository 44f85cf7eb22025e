//! Hostile streams through every codec: exactly a block comes out, or an error, and always the same.

use std::cell::RefCell;

use flaz_codec::{CodecId, CodecSpec, Decoders, encoder, ids};

thread_local! {
    static DECODERS: RefCell<Decoders> = RefCell::default();
}

/// A stream, its codec in the first byte.
///
/// # Panics
/// If what comes out depends on what was in the buffer before, or an encoder cannot have it back.
pub fn codec_stream(data: &[u8]) {
    let Some((codec, stream)) = data.split_first() else {
        return;
    };
    // Every codec, and one number that has none.
    let codec = CodecId(codec % (ids().len() as u8 + 1));
    let stream = &stream[..stream.len().min(4096)];
    let decode = |fill: u8| {
        // The bytes behind the block are nobody's business.
        let mut room = vec![fill; 4096 + 64];
        let result =
            DECODERS.with_borrow_mut(|decoders| decoders.decompress(codec, stream, &mut room[..4096]));
        assert!(
            room[4096..].iter().all(|byte| *byte == fill),
            "{codec} writes behind its block"
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
            "{codec} does not give back what it took"
        );
    }
}
