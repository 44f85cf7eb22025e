//! Each format: its requests, its bad lines, compression, detection; and arbitrary input, which must neither cause a panic nor a loop.

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;

use flaz_trace::{Format, Op, Options, Request, TraceReader};
use proptest::prelude::*;

/// A sample of a format: the name of its file, its contents, and its requests.
struct Sample {
    format: Format,
    name: &'static str,
    bytes: Vec<u8>,
    requests: Vec<Request>,
}

fn request(at_us: Option<u64>, op: Op, device: u32, offset: u64, len: u64) -> Request {
    Request {
        at_us,
        op,
        device,
        offset,
        len,
    }
}

const BLKPARSE: &str = "\
  8,0    3        1     0.000000000   697  Q  WS 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  G  WS 223490 + 8 [kjournald]
  8,0    3        0     0.000002000     0  m   N cfq697 insert_request
  8,16   3        5     1.250000100   697  Q   R 8 + 16 [cat]
  8,0    3        6     1.300000000   697  Q FWS [jbd2/sda1-8]
  8,0    3        7     1.400000000   697  A  WM 32 + 8 <- (8,1) 0
  8,0    3        8     2.000000000   697  Q FWFS 16 + 8 [jbd2/sda1-8]
  8,0    3        9     3.000000000   697  Q   D 0 + 2048 [fstrim]
  8,0    0       10     3.000000400     0  C   R 8 + 16 [0]

CPU3 (sda):
 Reads Queued:           1,        8KiB\t Writes Queued:           2,        8KiB
Total (sda):
Throughput (R/W): 2,000KiB/s / 3,000KiB/s
Events (sda): 9 entries
Skips: 0 forward (0 -   0.0%)
";

const MSR: &str = "\
Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime
128166372003061629,usr,0,Read,7014609920,24576,41286
128166372016382155,usr,1,Write,1317441536,8192,1963
";

const IOLOG_2: &str = "\
fio version 2 iolog
/dev/sda add
/dev/sda open
/dev/sda write 4096 8192
/dev/sda wait 1500
/dev/sdb read 0 512
/dev/sda datasync 0 0
/dev/sda trim 65536 4096
/dev/sda close
";

const IOLOG_3: &str = "\
fio version 3 iolog
0 /dev/sda add
1 /dev/sda open
7 /dev/sda read 4096 8192
9 /dev/sda close
";

const OWN: &str = "flaz-trace 1\n# a comment\n0 r 4096 8192\n\n1500 w 0 512\n1600 t 1048576 1048576\n";

fn vscsi(len: u32, command: u16, sector: u64, at_us: u64) -> Vec<u8> {
    let mut record = vec![0; 32];
    record[4..8].copy_from_slice(&len.to_le_bytes());
    record[12..14].copy_from_slice(&command.to_le_bytes());
    record[14..16].copy_from_slice(&0x100_u16.to_le_bytes());
    record[16..24].copy_from_slice(&sector.to_le_bytes());
    record[24..32].copy_from_slice(&at_us.to_le_bytes());
    record
}

fn oracle(seconds: u32, object: u64, len: u32) -> Vec<u8> {
    let mut record = seconds.to_le_bytes().to_vec();
    record.extend(object.to_le_bytes());
    record.extend(len.to_le_bytes());
    record.extend((-1_i64).to_le_bytes());
    record
}

fn samples() -> Vec<Sample> {
    let sample = |format, name, bytes: &[u8], requests| Sample {
        format,
        name,
        bytes: bytes.to_vec(),
        requests,
    };
    let (read, write, trim) = (Op::Read, Op::Write, Op::Trim);
    let objects = [oracle(5, 1, 4096), oracle(6, 2, 100_000), oracle(6, 1, 4096)].concat();
    let commands = [
        vscsi(4096, 0x28, 8, 10),
        vscsi(0, 0x12, 0, 11),
        vscsi(512, 0x2a, 7, 20),
    ];
    vec![
        sample(
            Format::Blkparse,
            "sda.txt",
            BLKPARSE.as_bytes(),
            vec![
                request(Some(0), write, 0, 223_490 * 512, 4096),
                request(Some(1_250_000), read, 1, 4096, 8192),
                request(Some(2_000_000), write, 0, 8192, 4096),
                request(Some(3_000_000), trim, 0, 0, 1 << 20),
            ],
        ),
        sample(
            Format::Msr,
            "usr_0.csv",
            MSR.as_bytes(),
            vec![
                request(Some(12_816_637_200_306_162), read, 0, 7_014_609_920, 24_576),
                request(Some(12_816_637_201_638_215), write, 1, 1_317_441_536, 8192),
            ],
        ),
        sample(
            Format::Iolog,
            "log",
            IOLOG_2.as_bytes(),
            vec![
                request(None, write, 0, 4096, 8192),
                request(Some(1500), read, 1, 0, 512),
                request(Some(1500), trim, 0, 65_536, 4096),
            ],
        ),
        sample(
            Format::Iolog,
            "log.iolog",
            IOLOG_3.as_bytes(),
            vec![request(Some(7000), read, 0, 4096, 8192)],
        ),
        sample(
            Format::Arc,
            "P1.lis",
            b"8 8 0 0\n7 10 0 1\n\n100 0 0 2\n16 1 0 3\n",
            vec![
                request(None, read, 0, 4096, 4096),
                request(None, read, 0, 3584, 5120),
                request(None, read, 0, 8192, 512),
            ],
        ),
        sample(
            Format::Vscsi,
            "w.vscsi",
            &commands.concat(),
            vec![
                request(Some(10), read, 0, 4096, 4096),
                request(Some(20), write, 0, 3584, 512),
            ],
        ),
        sample(Format::OracleGeneral, "w.oracleGeneral", &objects, Vec::new()),
        sample(
            Format::Flaz,
            "a",
            OWN.as_bytes(),
            vec![
                request(Some(0), read, 0, 4096, 8192),
                request(Some(1500), write, 0, 0, 512),
                request(Some(1600), trim, 0, 1 << 20, 1 << 20),
            ],
        ),
    ]
}

fn read(name: &str, bytes: &[u8], options: Options) -> Result<(Format, Vec<Request>, u64), String> {
    let source = Cursor::new(bytes.to_vec());
    let mut reader = TraceReader::new(source, Path::new(name), options).map_err(|error| error.to_string())?;
    let mut requests = Vec::new();
    while let Some(request) = reader.next_request().map_err(|error| error.to_string())? {
        requests.push(request);
    }
    Ok((reader.format(), requests, reader.skipped().0))
}

fn of(format: Format) -> Options {
    Options {
        format: Some(format),
        skip_bad: 0,
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("to memory");
    encoder.finish().expect("to memory")
}

#[test]
fn each_format_is_detected_and_read() {
    for sample in samples() {
        let (format, requests, skipped) =
            read(sample.name, &sample.bytes, Options::default()).expect(sample.name);
        assert_eq!((format, skipped), (sample.format, 0), "{}", sample.name);
        if sample.format != Format::OracleGeneral {
            assert_eq!(requests, sample.requests, "{}", sample.name);
        }
        // By the contents alone, and by the name on the command line.
        let anonymous = read("trace", &sample.bytes, Options::default());
        if sample.name != "w.vscsi" {
            assert_eq!(anonymous.expect(sample.name).0, sample.format, "{}", sample.name);
        }
        assert_eq!(sample.format.name().parse(), Ok(sample.format));
        let named = read("trace", &sample.bytes, of(sample.format)).expect(sample.name);
        assert_eq!(named.1, requests);
    }
}

#[test]
fn objects_overlap_no_others() {
    let bytes = [oracle(5, 1, 4096), oracle(6, 2, 100_000), oracle(6, 1, 4096)].concat();
    let (_, requests, _) = read("w.oracleGeneral.bin", &bytes, Options::default()).expect("a trace");
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[0].offset, requests[2].offset);
    assert_ne!(requests[0].offset, requests[1].offset);
    assert_eq!((requests[1].at_us, requests[1].len), (Some(6_000_000), 100_000));
}

#[test]
fn compressed_traces_are_read() {
    for sample in samples() {
        let plain = read(sample.name, &sample.bytes, Options::default()).expect(sample.name);
        let zstd = zstd::encode_all(&sample.bytes[..], 1).expect("to memory");
        let two_members = [gzip(&sample.bytes[..10]), gzip(&sample.bytes[10..])].concat();
        for (end, bytes) in [("zst", zstd), ("gz", two_members)] {
            let name = format!("{}.{end}", sample.name);
            assert_eq!(
                read(&name, &bytes, Options::default()),
                Ok(plain.clone()),
                "{name}"
            );
            // Without the end of its name, by its first bytes.
            assert_eq!(
                read(sample.name, &bytes, of(sample.format)),
                Ok(plain.clone()),
                "{name}"
            );
            let cut = &bytes[..bytes.len() - 6];
            let error = read(&name, cut, of(sample.format)).expect_err("it is cut");
            assert!(
                error.starts_with(&format!("cannot read the trace {name}")),
                "{error}"
            );
        }
    }
}

#[test]
fn a_cut_file_is_said_to_be_cut() {
    let lines = "0 1 0 1\n".repeat(1000);
    let zstd = zstd::encode_all(lines.as_bytes(), 1).expect("to memory");
    for (name, bytes) in [("t.zst", zstd), ("t.gz", gzip(lines.as_bytes()))] {
        let cut = Cursor::new(bytes[..bytes.len() - 6].to_vec());
        let read = TraceReader::new(cut, Path::new(name), of(Format::Arc)).and_then(|mut reader| {
            while reader.next_request()?.is_some() {}
            Ok(())
        });
        let error = read.expect_err("it is cut");
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let expected = "the file ends in the middle of its compressed data";
        assert_eq!(source.as_deref(), Some(expected), "{error}");
    }
}

#[test]
fn bad_lines_are_named_and_skipped_up_to_a_limit() {
    let bytes = b"8 8 0 0\n8 x 0 1\n1 1 0 2\nnonsense\n2 2 0 3\n";
    let error = read("t.lis", bytes, Options::default()).expect_err("x is no number");
    assert_eq!(
        error,
        "t.lis:2: expected first sector and number of sectors (arc format), found \"8 x 0 1\"; --skip-bad N skips N bad lines"
    );
    let skipping = |skip_bad| Options {
        format: None,
        skip_bad,
    };
    let error = read("t.lis", bytes, skipping(1)).expect_err("two are bad");
    assert!(error.starts_with("t.lis:4: "), "{error}");
    assert!(
        error.ends_with("1 bad line was skipped before, and --skip-bad allows no more"),
        "{error}"
    );
    let (_, requests, skipped) = read("t.lis", bytes, skipping(2)).expect("both are skipped");
    assert_eq!((requests.len(), skipped), (3, 2));
}

#[test]
fn each_format_refuses_what_it_does_not_have() {
    for (format, text, part) in [
        (
            Format::Blkparse,
            "8,0 3 1 x 697 Q WS 1 + 8 [a]\n",
            "t:1: expected time, action, kind",
        ),
        (Format::Blkparse, "what\n", "t:1: expected an event"),
        (
            Format::Blkparse,
            "8,0 3 x 0.1 697 Q WS 1 + 8 [a]\n",
            "t:1: expected a sequence number",
        ),
        (
            Format::Iolog,
            "fio version 1 iolog\n",
            "t:1: expected 'fio version 2 iolog'",
        ),
        (
            Format::Iolog,
            "fio version 3 iolog\n1 /dev/sda read 0\n",
            "t:2: expected file, action",
        ),
        (
            Format::Msr,
            "1,usr,0,Read,7,x,1\n",
            "t:1: expected time, host, disk",
        ),
        (
            Format::Arc,
            "1 18446744073709551615 0 0\n",
            "t:1: expected at most 1 GiB",
        ),
        (Format::Flaz, "0 r 0 1\n", "t:1: expected 'flaz-trace 1'"),
        (
            Format::Flaz,
            "flaz-trace 1\n0 r 0 4096 1 0 0 0\n",
            "t:2: expected microseconds",
        ),
        (
            Format::Flaz,
            "flaz-trace 2\n0 r 0 4096\n",
            "t:2: expected requests in flight",
        ),
        (
            Format::Flaz,
            "flaz-trace 2\n0 r 0 4096 0 0 0 0\n",
            "t:2: expected requests in flight",
        ),
        (
            Format::Flaz,
            "flaz-trace 2\n0 r 0 4096 70000 0 0 0\n",
            "t:2: expected at most 65536",
        ),
        (
            Format::Flaz,
            "flaz-trace 2\n0 r 512 4096 1 0 0 0\n",
            "t:2: expected a size for each block",
        ),
        (
            Format::Flaz,
            "flaz-trace 2\n0 r 0 1073741824 1 0 0 0\n",
            "t:2: expected a size for each block",
        ),
        (
            Format::Flaz,
            "flaz-trace 2\n0 w 0 4096 1 0 0 -\n",
            "t:2: expected sizes as",
        ),
        (
            Format::Flaz,
            "flaz-trace 2\n0 w 0 4096 1 0 0 0 0\n",
            "t:2: expected the end of the line",
        ),
        (
            Format::Flaz,
            "flaz-trace 1\n0 r 0 2000000000\n",
            "t:2: expected at most 1 GiB",
        ),
        (
            Format::Flaz,
            "flaz-trace 1\n0 q 0 1\n",
            "t:2: expected microseconds",
        ),
        (
            Format::Vscsi,
            "31 bytes, which are no record .",
            "t:1: expected a whole record",
        ),
        (Format::OracleGeneral, "less", "t:1: expected a whole record"),
    ] {
        let error = read("t", text.as_bytes(), of(format)).expect_err(text);
        assert!(error.starts_with(part), "{error}");
    }
    let error = read("t", &vscsi(100, 0x28, 8, 1), of(Format::Vscsi)).expect_err("no whole sector");
    assert!(
        error.starts_with("t:1: expected a length in whole sectors"),
        "{error}"
    );
    let long = [b'7'; 100_000];
    let error = read("t", &long, of(Format::Arc)).expect_err("it is long");
    assert!(
        error.starts_with("t:1: expected a line of at most 4096 bytes"),
        "{error}"
    );
    assert!(error.len() < 300, "{error}");
}

#[test]
fn unknown_formats_are_refused() {
    for (bytes, part) in [
        (&b""[..], "the file is empty"),
        (b"nothing of the kind\n", "none of the formats blkparse, iolog"),
        (
            &[7, 0x74, 0x61, 0x65, 0, 0, 0, 0],
            "convert it to text with `blkparse -i FILE`",
        ),
    ] {
        let error = read("t", bytes, Options::default()).expect_err("no format");
        assert!(error.contains(part), "{error}");
    }
    let error = TraceReader::open(Path::new("/nonexistent/a.lis"), Options::default());
    let error = error.err().expect("nothing there").to_string();
    assert_eq!(error, "cannot read the trace /nonexistent/a.lis");
}

#[test]
fn a_file_tells_how_far_it_was_read() {
    let scratch = tempfile::tempdir().expect("a directory");
    let path = scratch.path().join("a.flaztrace");
    fs::write(&path, OWN).expect("written");
    let mut reader = TraceReader::open(&path, Options::default()).expect("opens");
    while reader.next_request().expect("reads").is_some() {}
    assert_eq!(reader.file_bytes(), Some(OWN.len() as u64));
    let read = reader.bytes_read().load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(read, OWN.len() as u64);
}

/// Reads to the end or to the first error, whatever the bytes are.
fn survives(name: &str, bytes: &[u8], options: Options) {
    if let Ok((_, requests, skipped)) = read(name, bytes, options) {
        assert!(skipped <= options.skip_bad);
        for request in requests {
            assert!(request.len > 0 && request.offset.checked_add(request.len).is_some());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..2000), skip_bad in 0..50_u64) {
        for name in ["t", "t.gz", "t.zst", "t.vscsi", "t.lis"] {
            survives(name, &bytes, Options { format: None, skip_bad });
        }
        for format in Format::ALL {
            survives("t", &bytes, Options { format: Some(format), skip_bad });
        }
    }

    #[test]
    fn changed_samples_are_survived(
        number in 0..8_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        skip_bad in 0..50_u64,
    ) {
        let sample = &samples()[number];
        let mut bytes = sample.bytes.clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        survives(sample.name, &bytes, Options { format: None, skip_bad });
        survives("t", &bytes, Options { format: Some(sample.format), skip_bad });
        survives("t.gz", &gzip(&bytes), Options { format: Some(sample.format), skip_bad });
    }

    #[test]
    fn fields_of_any_number_are_survived(fields in prop::collection::vec(any::<u64>(), 8), word in "[ -~]{0,12}") {
        let [a, b, c, d, ..] = fields[..] else { return Ok(()) };
        for (format, line) in [
            (Format::Arc, format!("{a} {b} {c} {d}\n")),
            (Format::Msr, format!("{a},{word},{b},Read,{c},{d},0\n")),
            (Format::Blkparse, format!("8,{word} {a} {b} {c}.{d} 1 Q {word} {a} + {b} [x]\n")),
            (Format::Blkparse, format!("8,0 {a} {b} {c}.{d} 1 Q R {a} + {b} [x]\n")),
            (Format::Iolog, format!("fio version 3 iolog\n{a} {word} write {b} {c}\n")),
            (Format::Iolog, format!("fio version 2 iolog\nx wait {a}\nx wait {b}\nx read {c} {d}\n")),
            (Format::Flaz, format!("flaz-trace 1\n{a} r {b} {c}\n{word}\n")),
            (Format::Flaz, format!("flaz-trace 2\n{a} w {b} {c} {d} {a} {word} {word}\n{a} t {b} {c} 1 {d}\n")),
        ] {
            survives("t", line.as_bytes(), Options { format: Some(format), skip_bad: 3 });
        }
    }
}
