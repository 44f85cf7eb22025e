//! Every test on a medium that records all requests.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flaz_data::{DataSpec, Family, Generator, Level, Pool};
use flaz_load::medium::Medium;
use flaz_load::pass::{self, Engine, Pass};
use flaz_load::pattern::Pattern;
use flaz_load::source::Source;
use flaz_load::test::{Direction, Test};
use flaz_load::ticker::{Ticker, is_interrupted};

const RECORD: usize = 4096;

/// A request to a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Read(u64, usize),
    /// Offset and bytes.
    Write(u64, Vec<u8>),
    Flush,
}

#[derive(Default)]
struct Recorder {
    asked: Mutex<Vec<Asked>>,
    fails_after: Option<usize>,
}

impl Recorder {
    fn note(&self, asked: Asked) -> io::Result<()> {
        let mut all = self.asked.lock().unwrap();
        if self.fails_after == Some(all.len()) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        all.push(asked);
        Ok(())
    }

    fn asked(self) -> Vec<Asked> {
        self.asked.into_inner().unwrap()
    }
}

impl Medium for Recorder {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.note(Asked::Read(offset, buffer.len()))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.note(Asked::Write(offset, data.to_vec()))
    }

    fn flush(&self) -> io::Result<()> {
        self.note(Asked::Flush)
    }
}

fn pool(records: usize) -> Pool {
    let spec = DataSpec::new(Family::Run, Level::new(50.0).unwrap());
    let generator = Generator::new(spec).unwrap();
    Pool::fill(generator, records * RECORD, NonZeroUsize::MIN)
        .unwrap()
        .0
}

/// The requests of a test with `records` records.
fn recorded(test: Test, records: u64, pool: &Pool, base: u64) -> Vec<Asked> {
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let ticker = Ticker {
        done: &done,
        stop: &stop,
    };
    let recorder = Recorder::default();
    let pass = pass_of(test, records, Some(pool), base);
    let span = pass::run(&recorder, &pass, &ticker).unwrap();
    assert_eq!(
        (span.bytes, done.into_inner()),
        (records * RECORD as u64, records * RECORD as u64)
    );
    recorder.asked()
}

fn pass_of(test: Test, records: u64, pool: Option<&Pool>, base: u64) -> Pass<'_> {
    Pass {
        pattern: Pattern {
            order: test.order(),
            records,
            record_bytes: RECORD,
            seed: 3,
        },
        direction: test.direction(),
        stream: test.is_stream(),
        engine: Engine::Synchronous,
        source: pool.map(|pool| Source {
            pool,
            base,
            numbered: test == Test::RecordRewrite,
        }),
        flush_timed: true,
    }
}

fn offsets(asked: &[Asked]) -> Vec<u64> {
    asked
        .iter()
        .filter_map(|asked| match asked {
            Asked::Read(offset, _) | Asked::Write(offset, _) => Some(offset / RECORD as u64),
            Asked::Flush => None,
        })
        .collect()
}

#[test]
fn each_test_accesses_exactly_its_records() {
    let pool = pool(40);
    let forward: Vec<u64> = (0..40).collect();
    let backwards: Vec<u64> = (0..40).rev().collect();
    let strided: Vec<u64> = (0..17).flat_map(|start| (start..40).step_by(17)).collect();
    for test in Test::all() {
        let asked = recorded(test, 40, &pool, 0);
        let found = offsets(&asked);
        match test {
            Test::BackwardsRead => assert_eq!(found, backwards),
            Test::StridedRead => assert_eq!(found, strided),
            Test::RecordRewrite => assert_eq!(found, [0; 40]),
            Test::RandomRead | Test::RandomWrite | Test::RandomReadIops | Test::RandomWriteIops => {
                assert_ne!(found, forward, "{test}");
                let mut sorted = found.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, forward, "{test}");
                // One shuffle for all of them.
                assert_eq!(
                    found,
                    offsets(&recorded(Test::RandomRead, 40, &pool, 0)),
                    "{test}"
                );
            }
            _ => assert_eq!(found, forward, "{test}"),
        }
        let whole = asked.iter().all(|asked| match asked {
            Asked::Read(_, bytes) => *bytes == RECORD && test.direction() == Direction::Read,
            Asked::Write(_, data) => data.len() == RECORD && test.direction() == Direction::Write,
            Asked::Flush => true,
        });
        assert!(whole, "{test} asks for whole records, and in its direction only");
        let flushes = asked.iter().filter(|asked| **asked == Asked::Flush).count();
        assert_eq!(
            flushes,
            usize::from(test.direction() == Direction::Write),
            "{test}"
        );
        assert!(test.direction() == Direction::Read || asked.last() == Some(&Asked::Flush));
    }
}

#[test]
fn written_bytes_come_from_the_pool() {
    let pool = pool(8);
    for test in Test::all().filter(|test| test.direction() == Direction::Write) {
        // More records than the pool has, beginning in its middle, as for the second writer.
        let asked = recorded(test, 20, &pool, 4 * RECORD as u64);
        let writes = asked.iter().filter_map(|asked| match asked {
            Asked::Write(offset, data) => Some((*offset as usize / RECORD, data)),
            _ => None,
        });
        for (number, (record, data)) in writes.enumerate() {
            let place = if test == Test::RecordRewrite {
                number
            } else {
                record
            };
            let at = (4 + place) % 8 * RECORD;
            assert!(
                **data == pool.data()[at..at + RECORD],
                "{test}, access {number} of record {record}"
            );
        }
    }
}

#[test]
fn a_failure_ends_the_pass_and_is_reported() {
    let pool = pool(8);
    for test in Test::all() {
        let recorder = Recorder {
            fails_after: Some(5),
            ..Recorder::default()
        };
        let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let ticker = Ticker {
            done: &done,
            stop: &stop,
        };
        let error = pass::run(&recorder, &pass_of(test, 20, Some(&pool), 0), &ticker).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{test}");
        assert_eq!(recorder.asked().len(), 5, "{test}");
    }
}

#[test]
fn a_stop_ends_the_pass_before_the_next_record() {
    for test in Test::all() {
        let pool = pool(8);
        let recorder = Recorder::default();
        let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        stop.store(true, Ordering::Relaxed);
        let ticker = Ticker {
            done: &done,
            stop: &stop,
        };
        let error = pass::run(&recorder, &pass_of(test, 20, Some(&pool), 0), &ticker).unwrap_err();
        assert!(is_interrupted(&error), "{test}");
        assert!(recorder.asked().is_empty(), "{test}");
    }
}

#[test]
fn io_uring_needs_a_medium_with_a_descriptor() {
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let ticker = Ticker {
        done: &done,
        stop: &stop,
    };
    let pass = Pass {
        engine: Engine::IoUring { depth: 4 },
        ..pass_of(Test::Read, 4, None, 0)
    };
    let error = pass::run(&Recorder::default(), &pass, &ticker).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
}
