//! Passes through io_uring on real files: written data is there, and short reads are reported. Skipped if the system
//! has no io_uring.

use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64};

use flaz_data::{DataSpec, Family, Generator, Level, Pool};
use flaz_load::medium::FileMedium;
use flaz_load::pass::{self, Engine, Pass, Span};
use flaz_load::pattern::{Order, Pattern};
use flaz_load::source::Source;
use flaz_load::test::Direction;
use flaz_load::ticker::Ticker;

const RECORD: usize = 4096;
const RECORDS: usize = 200;

struct Rig {
    folder: tempfile::TempDir,
    pool: Pool,
}

impl Rig {
    fn new() -> Self {
        let generator = Generator::new(DataSpec::new(Family::Random, Level::ZERO)).unwrap();
        let pool = Pool::fill(generator, 64 * RECORD, NonZeroUsize::MIN).unwrap().0;
        Self {
            folder: tempfile::tempdir().unwrap(),
            pool,
        }
    }

    /// A pass over the part of the file that begins at `base`; `None` without io_uring.
    fn pass(&self, direction: Direction, order: Order, depth: usize, base: u64) -> Option<io::Result<Span>> {
        let path = self.folder.path().join("file");
        let medium = FileMedium::open(&path, false).unwrap().from_offset(base);
        let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let ticker = Ticker {
            done: &done,
            stop: &stop,
        };
        let pass = Pass {
            pattern: Pattern {
                order,
                records: RECORDS as u64,
                record_bytes: RECORD,
                seed: 5,
            },
            direction,
            stream: false,
            engine: Engine::IoUring { depth },
            source: Some(Source {
                pool: &self.pool,
                base: 3 * RECORD as u64,
                numbered: false,
            }),
            flush_timed: true,
        };
        let span = pass::run(&medium, &pass, &ticker);
        match &span {
            Err(error) if error.to_string().contains("cannot set up io_uring") => {
                eprintln!("skipped: {error}");
                return None;
            }
            Err(_) => {}
            Ok(_) => assert_eq!(done.into_inner(), (RECORDS * RECORD) as u64),
        }
        Some(span)
    }

    fn file(&self, bytes: usize) {
        fs::write(self.folder.path().join("file"), vec![0; bytes]).unwrap();
    }
}

#[test]
fn written_data_is_readable_in_any_order_and_depth() {
    let rig = Rig::new();
    for (order, depth) in [
        (Order::Forward, 1),
        (Order::Shuffled, 7),
        (Order::Backwards, 32),
        (Order::Strided, 512),
    ] {
        rig.file(10 * RECORD);
        let Some(span) = rig.pass(Direction::Write, order, depth, 2 * RECORD as u64) else {
            return;
        };
        assert_eq!(span.unwrap().bytes, (RECORDS * RECORD) as u64);
        let found = fs::read(rig.folder.path().join("file")).unwrap();
        assert_eq!(found.len(), (RECORDS + 2) * RECORD);
        assert!(
            found[..2 * RECORD].iter().all(|byte| *byte == 0),
            "what is before the part"
        );
        for (number, record) in found[2 * RECORD..].chunks(RECORD).enumerate() {
            let at = (number + 3) % 64 * RECORD;
            assert!(
                record == &rig.pool.data()[at..at + RECORD],
                "{order:?} {depth}: record {number}"
            );
        }
    }
}

#[test]
fn reads_are_complete_or_report_the_end() {
    let rig = Rig::new();
    for depth in [1, 16, 300] {
        rig.file(RECORDS * RECORD);
        let Some(span) = rig.pass(Direction::Read, Order::Shuffled, depth, 0) else {
            return;
        };
        span.unwrap();
        rig.file(RECORDS * RECORD - 100);
        let Some(Err(error)) = rig.pass(Direction::Read, Order::Shuffled, depth, 0) else {
            panic!("a record is short");
        };
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
    }
}
