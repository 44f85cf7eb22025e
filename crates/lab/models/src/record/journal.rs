//! The requests of a recording, in the order in which they were sent.
//!
//! Invariant: lines are written in that order, so a request that has ended waits for those sent before it; there are never more of them
//! than requests in flight since the oldest began, which the server limits.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{Env, Nanos};
use flaz_runtime::Rt;
use flaz_trace::recording::{GRANULES, RECORDED_CODECS, Recorded, RecordingWriter, Sizes};
use flaz_trace::{Op, Request};

use super::{CodecLeft, RecordReport};

/// Clones are the same journal.
#[derive(Clone)]
pub(super) struct Journal {
    state: Rc<RefCell<State>>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Journal")
    }
}

struct State {
    /// `None` after the end.
    writer: Option<RecordingWriter>,
    /// From the oldest request that has not ended.
    entries: VecDeque<Entry>,
    /// Number of the first entry.
    first: u64,
    /// Reads, and writes and trims.
    in_flight: [u32; 2],
    /// When the last read, and the last write or trim, ended.
    ended: [Nanos; 2],
    /// When the first request was sent.
    began: Option<Nanos>,
    failed: Option<io::Error>,
    report: RecordReport,
    blocks: u64,
    granules: [u64; RECORDED_CODECS.len()],
}

enum Entry {
    UnderWay(Recorded),
    Ended(Recorded),
    Failed,
}

/// A request under way. One that is dropped has failed.
pub(super) struct Ticket {
    journal: Journal,
    number: u64,
    kind: usize,
    sizes: Option<Vec<Sizes>>,
}

const READS: usize = 0;
const OTHERS: usize = 1;

impl Journal {
    pub fn new(writer: RecordingWriter) -> Self {
        Self {
            state: Rc::new(RefCell::new(State {
                writer: Some(writer),
                entries: VecDeque::new(),
                first: 0,
                in_flight: [0; 2],
                ended: [Nanos::default(); 2],
                began: None,
                failed: None,
                report: RecordReport::default(),
                blocks: 0,
                granules: Default::default(),
            })),
        }
    }

    /// A request is sent.
    pub fn begin(&self, op: Op, offset: u64, len: u64) -> Ticket {
        let state = &mut *self.state.borrow_mut();
        let now = Rt.now();
        let began = *state.began.get_or_insert(now);
        let kind = if op == Op::Read { READS } else { OTHERS };
        let think = state.think(kind, now);
        state.in_flight[kind] += 1;
        let depth = state.in_flight[kind];
        let request = Request {
            at_us: Some(now.since(began).as_micros() as u64),
            op,
            device: 0,
            offset,
            len,
        };
        state.report.depth_max = state.report.depth_max.max(depth);
        let number = state.first + state.entries.len() as u64;
        state.entries.push_back(Entry::UnderWay(Recorded {
            request,
            depth,
            think_us: think.as_micros() as u64,
            sizes: Vec::new(),
        }));
        Ticket {
            journal: self.clone(),
            number,
            kind,
            sizes: None,
        }
    }

    /// Writes the end, and returns what was recorded.
    pub fn finish(&self) -> io::Result<RecordReport> {
        let state = &mut *self.state.borrow_mut();
        if let Some(failed) = state.failed.take() {
            return Err(failed);
        }
        if let Some(writer) = state.writer.take() {
            writer.finish()?;
        }
        let whole = (state.blocks * u64::from(GRANULES)).max(1) as f64;
        state.report.seconds = state.began.map_or(0.0, |began| {
            state.ended[READS]
                .max(state.ended[OTHERS])
                .since(began)
                .as_secs_f64()
        });
        state.report.left_percent = (RECORDED_CODECS.iter().zip(state.granules))
            .map(|(codec, granules)| CodecLeft {
                codec: (*codec).to_owned(),
                percent: granules as f64 / whole * 100.0,
            })
            .collect();
        Ok(state.report.clone())
    }
}

impl Ticket {
    /// The request has succeeded.
    pub fn done(mut self, sizes: Vec<Sizes>) {
        self.sizes = Some(sizes);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let state = &mut *self.journal.state.borrow_mut();
        state.in_flight[self.kind] -= 1;
        state.ended[self.kind] = Rt.now();
        let at = (self.number - state.first) as usize;
        let entry = std::mem::replace(&mut state.entries[at], Entry::Failed);
        if let (Entry::UnderWay(mut recorded), Some(sizes)) = (entry, self.sizes.take()) {
            recorded.sizes = sizes;
            state.entries[at] = Entry::Ended(recorded);
        }
        state.write();
    }
}

impl State {
    /// Time that the client has computed before a request.
    fn think(&self, kind: usize, now: Nanos) -> Duration {
        match (kind, self.began) {
            (READS, Some(began)) if self.in_flight[READS] == 0 => now.since(self.ended[READS].max(began)),
            _ => Duration::ZERO,
        }
    }

    /// Writes the requests before the oldest that is under way.
    fn write(&mut self) {
        while let Some(entry) = self.entries.pop_front() {
            match entry {
                Entry::UnderWay(_) => {
                    self.entries.push_front(entry);
                    return;
                }
                Entry::Failed => {}
                Entry::Ended(recorded) => self.write_one(&recorded),
            }
            self.first += 1;
        }
    }

    fn write_one(&mut self, recorded: &Recorded) {
        let Some(writer) = self.writer.as_mut().filter(|_| self.failed.is_none()) else {
            return;
        };
        self.failed = writer.write(recorded).err();
        let (report, len) = (&mut self.report, recorded.request.len);
        match recorded.request.op {
            Op::Read => (report.reads, report.read_bytes) = (report.reads + 1, report.read_bytes + len),
            Op::Write => (report.writes, report.write_bytes) = (report.writes + 1, report.write_bytes + len),
            Op::Trim => report.trims += 1,
        }
        self.blocks += recorded.sizes.len() as u64;
        for sizes in &recorded.sizes {
            for (sum, size) in self.granules.iter_mut().zip(sizes) {
                *sum += u64::from(size.granules());
            }
        }
    }
}
