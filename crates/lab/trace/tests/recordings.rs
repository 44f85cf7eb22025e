//! A recording is read back as it was written; anything else is refused.

use std::io::{Cursor, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use flaz_trace::recording::{
    RECORDED_BLOCK_BYTES, RECORDED_BYTES_MAX, Recorded, RecordingWriter, Sizes, Stored, blocks_touched,
};
use flaz_trace::{Op, Options, Request, TraceReader};
use proptest::prelude::*;

/// A file in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn written(all: &[Recorded]) -> Vec<u8> {
    let memory = Memory::default();
    let mut writer = RecordingWriter::new(memory.clone()).expect("to memory");
    for recorded in all {
        writer.write(recorded).expect("to memory");
    }
    writer.finish().expect("to memory");
    memory.bytes()
}

fn read(bytes: Vec<u8>) -> Result<Vec<Recorded>, String> {
    let reader = TraceReader::new(Cursor::new(bytes), Path::new("t.zst"), Options::default());
    let mut reader = reader.map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    while let Some(recorded) = reader.next_recorded().map_err(|error| error.to_string())? {
        all.push(recorded);
    }
    Ok(all)
}

fn recorded(op: Op, offset: u64, len: u64, numbers: (u64, u32, u64), sizes: &[u8]) -> Recorded {
    let count = match op {
        Op::Trim => 0,
        _ => blocks_touched(offset, len) as usize,
    };
    // A size of each kind, repeated.
    let stored = |size: &u8| match size {
        0 => Stored::SINGLE_VALUE,
        granules => Stored::bytes(u64::from(*granules) * 64),
    };
    let pairs = sizes.iter().cycle().zip(sizes.iter().cycle().skip(1));
    let sizes: Vec<Sizes> = pairs.map(|(a, b)| [stored(a), stored(b)]).take(count).collect();
    let (at_us, depth, think_us) = numbers;
    Recorded {
        request: Request {
            at_us: Some(at_us),
            op,
            device: 0,
            offset,
            len,
        },
        depth,
        think_us,
        sizes,
    }
}

#[test]
fn a_size_is_rounded_up_to_a_granule() {
    let granules = |bytes| Stored::bytes(bytes).granules();
    assert_eq!([1, 64, 65, 4032, 4033, 9000].map(granules), [1, 1, 2, 63, 64, 64]);
    assert_eq!(Stored::SINGLE_VALUE.granules(), 0);
}

#[test]
fn a_long_request_is_split() {
    let long = recorded(Op::Write, 4096, 2 * RECORDED_BYTES_MAX, (5, 3, 70), &[1, 64, 0]);
    let lines = read(written(std::slice::from_ref(&long))).expect("a recording");
    let lens: Vec<(u64, u64, u64)> = lines
        .iter()
        .map(|line| (line.request.offset, line.request.len, line.think_us))
        .collect();
    let part = RECORDED_BYTES_MAX;
    assert_eq!(
        lens,
        [(4096, part - 4096, 70), (part, part, 0), (2 * part, 4096, 0)]
    );
    let sizes: Vec<Sizes> = lines.into_iter().flat_map(|line| line.sizes).collect();
    assert_eq!(sizes, long.sizes);
}

#[test]
fn other_traces_are_no_recordings() {
    let error = read(b"flaz-trace 1\n0 r 0 4096\n".to_vec()).map(|_| ());
    assert!(error.is_err(), "a name ending in .zst is decompressed");
    let plain = zstd::encode_all(&b"flaz-trace 1\n0 r 0 4096\n"[..], 1).expect("to memory");
    let error = read(plain).expect_err("version 1");
    assert!(error.starts_with("t.zst: expected a recording"), "{error}");
    let arc = zstd::encode_all(&b"8 8 0 0\n"[..], 1).expect("to memory");
    let error = read(arc).expect_err("another format");
    assert!(error.starts_with("t.zst: expected a recording"), "{error}");
}

fn any_recorded() -> impl Strategy<Value = Recorded> {
    let op = prop_oneof![Just(Op::Read), Just(Op::Write), Just(Op::Trim)];
    let numbers = (any::<u64>(), 1..60_000_u32, any::<u64>());
    let sizes = prop::collection::vec(0..=64_u8, 2..20);
    (op, 0..1_u64 << 40, 1..64 * RECORDED_BLOCK_BYTES, numbers, sizes)
        .prop_map(|(op, offset, len, numbers, sizes)| recorded(op, offset, len, numbers, &sizes))
        // Those are split.
        .prop_filter("within a part", |it| {
            it.request.offset / RECORDED_BYTES_MAX
                == (it.request.offset + it.request.len - 1) / RECORDED_BYTES_MAX
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_recording_is_read_back(all in prop::collection::vec(any_recorded(), 0..20)) {
        prop_assert_eq!(read(written(&all)), Ok(all));
    }

    #[test]
    fn damaged_recordings_are_survived(
        all in prop::collection::vec(any_recorded(), 1..10),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut text = zstd::decode_all(&written(&all)[..]).expect("it was compressed");
        for (at, byte) in changes {
            let at = at.index(text.len());
            text[at] = byte;
        }
        // The result does not matter.
        let _ = read(zstd::encode_all(&text[..], 1).expect("to memory"));
    }
}
