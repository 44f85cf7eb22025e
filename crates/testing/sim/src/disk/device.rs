//! The [`Device`] implementation of simulated disks: an operation is issued, waits, and completes.

use std::io;

use flaz_device::{Device, DeviceError, DeviceOp, Env, IoBuf, Nanos};

use super::contents::{Payload, sectors};
use super::volatile::{FlushOutcome, NewWrite};
use super::{OS_ERROR_IO, OS_ERROR_NO_SPACE, SECTOR_BYTES, SimDisk, State};
use crate::executor::EventStage;

/// An operation between issue and completion.
struct Operation<'a> {
    disk: &'a SimDisk,
    op: DeviceOp,
    offset: u64,
    len: u64,
    issued_at: Nanos,
    completes_at: Nanos,
    generation: u64,
    /// The error with which it will end, if that is decided.
    doomed: Option<i32>,
    /// Its number on the medium, for writes and discards.
    medium_op: Option<u64>,
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let mut state = self.disk.shared.state.borrow_mut();
        state.in_flight -= 1;
        if let Some(op) = self.medium_op
            && state.generation == self.generation
        {
            // Still in flight only if its future was dropped before the end.
            state.medium.orphan(op);
        }
    }
}

impl SimDisk {
    /// Checks and counts a new operation, and chooses its duration.
    fn issue(&self, op: DeviceOp, offset: u64, len: u64) -> Operation<'_> {
        let config = &self.shared.config;
        let alignment = u64::from(config.alignment);
        assert!(
            offset.is_multiple_of(alignment) && len.is_multiple_of(alignment),
            "caller's mistake: {op} of {len} bytes at {offset} is not aligned to {alignment} bytes"
        );
        assert!(
            offset
                .checked_add(len)
                .is_some_and(|end| end <= self.shared.len.get()),
            "caller's mistake: {op} of {len} bytes at {offset} is beyond the disk's {} bytes",
            self.shared.len.get()
        );
        let range = match op {
            DeviceOp::Read | DeviceOp::Status => &config.read_latency,
            DeviceOp::Write | DeviceOp::WriteZeroes => &config.write_latency,
            DeviceOp::Flush => &config.flush_latency,
            DeviceOp::Discard => &config.discard_latency,
        };
        let now = self.shared.env.now();
        let state = &mut *self.shared.state.borrow_mut();
        let latency_ns = state
            .rng
            .between(range.start().as_nanos() as u64, range.end().as_nanos() as u64);
        let mut start = now.max(state.stalled_until);
        if state.rng.chance(state.faults.stall_ppm) {
            start = start.after(state.faults.stall);
        }
        state.in_flight += 1;
        state.stats.in_flight_max = state.stats.in_flight_max.max(state.in_flight);
        let doomed = if state.dead {
            Some(OS_ERROR_IO)
        } else {
            state.doom(op).or_else(|| state.full(op, offset, len))
        };
        Operation {
            disk: self,
            op,
            offset,
            len,
            issued_at: now,
            completes_at: Nanos(start.0.saturating_add(latency_ns)),
            generation: state.generation,
            doomed,
            medium_op: None,
        }
    }

    fn begin_write(&self, operation: &mut Operation<'_>, payload: Payload, fua: bool) {
        let config = &self.shared.config;
        let state = &mut *self.shared.state.borrow_mut();
        if operation.doomed == Some(OS_ERROR_NO_SPACE) || state.dead || operation.len == 0 {
            return;
        }
        let mut offset = operation.offset;
        let data = matches!(payload, Payload::Bytes(..));
        if data && operation.doomed.is_none() {
            if state.rng.chance(state.faults.write_lost_ppm) {
                state.stats.silent_faults += 1;
                return;
            }
            if state.rng.chance(state.faults.write_misdirected_ppm) {
                state.stats.silent_faults += 1;
                let places = (self.shared.len.get() - operation.len) / u64::from(config.alignment) + 1;
                offset = state.rng.below(places) * u64::from(config.alignment);
            }
        }
        // Before the new write is in the list, because what is due earlier lands earlier.
        state.medium.advance(operation.issued_at.0);
        let write = NewWrite {
            offset,
            len: operation.len,
            payload,
            fua,
            now: operation.issued_at.0,
            completes_at: operation.completes_at.0,
            tear: config.tear_in_flight,
        };
        operation.medium_op = Some(state.medium.begin(write, &mut state.rng));
    }

    async fn change(
        &self,
        op: DeviceOp,
        offset: u64,
        len: u64,
        payload: Payload,
        fua: bool,
    ) -> Result<(), i32> {
        let mut operation = self.issue(op, offset, len);
        if op != DeviceOp::Discard || operation.doomed.is_none() {
            self.begin_write(&mut operation, payload, fua);
        }
        operation.tell(EventStage::Issued);
        operation.wait().await;
        operation.end(|state, operation, failed| {
            let Some(medium_op) = operation.medium_op else {
                return;
            };
            if failed {
                state.medium.fail(medium_op, &mut state.rng);
                return;
            }
            state.medium.advance(operation.completes_at.0);
            state.medium.complete(medium_op);
            if op != DeviceOp::Discard && !state.bad_sectors.is_empty() {
                for sector in sectors(offset, len) {
                    state.bad_sectors.remove(&sector);
                }
            }
        })
    }
}

impl State {
    /// The error with which the operation about to start will end, if any.
    fn doom(&mut self, op: DeviceOp) -> Option<i32> {
        let mut planned = None;
        self.planned.retain_mut(|failure| {
            if failure.op != op {
                return true;
            }
            failure.countdown -= 1;
            if failure.countdown == 0 {
                planned = Some(failure.os_error);
            }
            failure.countdown > 0
        });
        let faults = self.faults;
        let error_ppm = match op {
            DeviceOp::Read | DeviceOp::Status => faults.read_error_ppm,
            DeviceOp::Write | DeviceOp::WriteZeroes => faults.write_error_ppm,
            DeviceOp::Flush => faults.flush_error_ppm,
            DeviceOp::Discard => faults.discard_error_ppm,
        };
        let writes = matches!(op, DeviceOp::Write | DeviceOp::WriteZeroes);
        if planned.is_some() {
            planned
        } else if self.rng.chance(error_ppm) {
            Some(OS_ERROR_IO)
        } else if writes && self.rng.chance(faults.write_no_space_ppm) {
            Some(OS_ERROR_NO_SPACE)
        } else {
            None
        }
    }

    /// The error of a write that finds no space.
    fn full(&mut self, op: DeviceOp, offset: u64, len: u64) -> Option<i32> {
        let writes = matches!(op, DeviceOp::Write | DeviceOp::WriteZeroes);
        let fits = !writes || self.space.as_mut().is_none_or(|space| space.take(offset, len));
        (!fits).then_some(OS_ERROR_NO_SPACE)
    }

    fn count(&mut self, op: DeviceOp, len: u64) {
        let stats = &mut self.stats;
        match op {
            DeviceOp::Read => {
                stats.reads += 1;
                stats.read_bytes += len;
            }
            DeviceOp::Write => {
                stats.writes += 1;
                stats.written_bytes += len;
            }
            DeviceOp::Flush => stats.flushes += 1,
            DeviceOp::Status => {}
            DeviceOp::Discard => {
                stats.discards += 1;
                stats.discarded_bytes += len;
            }
            DeviceOp::WriteZeroes => {
                stats.write_zeroes += 1;
                stats.zeroed_bytes += len;
            }
        }
    }
}

impl Operation<'_> {
    /// Counts an event and shows it to the observer. An operation is in flight at the event of its start. At the event
    /// of its end it has completed, but its caller has not seen the result yet. A crash at either point shows that.
    fn tell(&self, stage: EventStage) {
        let shared = &self.disk.shared;
        shared
            .env
            .device_event(shared.number, stage, self.op, self.offset, self.len);
    }

    async fn wait(&self) {
        self.disk.shared.env.sleep_until(self.completes_at).await;
    }

    /// Completes the operation: `settle` changes the disk and receives whether the operation fails. Returns the error
    /// number.
    fn end(self, settle: impl FnOnce(&mut State, &Self, bool)) -> Result<(), i32> {
        let shared = &self.disk.shared;
        let error = {
            let state = &mut *shared.state.borrow_mut();
            let gone = state.dead || state.generation != self.generation;
            let error = self.doomed.or(gone.then_some(OS_ERROR_IO));
            if state.generation == self.generation {
                settle(state, &self, error.is_some());
            }
            match error {
                Some(_) => {
                    state.stats.errors += 1;
                    state.stats.flush_errors += u64::from(self.op == DeviceOp::Flush);
                }
                None => state.count(self.op, self.len),
            }
            error
        };
        self.tell(EventStage::Completed);
        error.map_or(Ok(()), Err)
    }
}

fn result(op: DeviceOp, offset: u64, len: u64, outcome: Result<(), i32>) -> Result<(), DeviceError> {
    outcome.map_err(|code| DeviceError::new(op, offset, len, io::Error::from_raw_os_error(code)))
}

impl Device for SimDisk {
    fn len(&self) -> u64 {
        self.shared.len.get()
    }

    fn alignment(&self) -> u32 {
        self.shared.config.alignment
    }

    fn has_volatile_cache(&self) -> bool {
        self.shared.config.write_cache_bytes_max > 0
    }

    fn fua_stands_alone(&self) -> bool {
        true
    }

    fn is_sparse(&self) -> bool {
        self.shared.state.borrow().space.is_some()
    }

    async fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let operation = self.issue(DeviceOp::Status, offset, len);
        operation.tell(EventStage::Issued);
        operation.wait().await;
        let mut fits = true;
        let outcome = operation.end(|state, _, failed| {
            let is_full = !failed && state.rng.chance(state.faults.allocate_no_space_ppm);
            fits = failed || !is_full && state.space.as_mut().is_none_or(|space| space.take(offset, len));
        });
        let outcome = if fits { outcome } else { Err(OS_ERROR_NO_SPACE) };
        result(DeviceOp::Write, offset, len, outcome)
    }

    async fn read_at(&self, offset: u64, mut buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        let len = buf.len() as u64;
        let mut operation = self.issue(DeviceOp::Read, offset, len);
        // One side of a random cut is sampled now, the other at completion.
        let late = {
            let state = &mut *self.shared.state.borrow_mut();
            let cut = match (self.shared.config.tear_in_flight, len / SECTOR_BYTES) {
                (true, sector_count) if sector_count > 0 => {
                    (state.rng.below(sector_count + 1) * SECTOR_BYTES) as usize
                }
                _ => 0,
            };
            let (head, tail) = (0..cut, cut..buf.len());
            let (early, late) = if cut > 0 && state.rng.coin() {
                (tail, head)
            } else {
                (head, tail)
            };
            state
                .medium
                .visible(operation.issued_at.0)
                .read(offset + early.start as u64, &mut buf[early.clone()]);
            if !state.bad_sectors.is_empty() && state.bad_sectors.range(sectors(offset, len)).next().is_some()
            {
                operation.doomed = Some(OS_ERROR_IO);
            }
            late
        };
        operation.tell(EventStage::Issued);
        operation.wait().await;
        let outcome = operation.end(|state, operation, failed| {
            if failed {
                // The buffer of a failed read has unspecified contents.
                state.rng.fill(&mut buf);
                return;
            }
            let now = operation.completes_at.0;
            state
                .medium
                .visible(now)
                .read(offset + late.start as u64, &mut buf[late.clone()]);
            if !buf.is_empty() && state.rng.chance(state.faults.read_flip_ppm) {
                state.stats.silent_faults += 1;
                let at = state.rng.below(len) as usize;
                buf[at] ^= 1 << state.rng.below(8);
                if state.faults.read_flip_once {
                    state.faults.read_flip_ppm = 0;
                }
            }
        });
        (buf, result(DeviceOp::Read, offset, len, outcome))
    }

    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        let len = buf.len() as u64;
        let payload = Payload::Bytes(buf[..].into(), 0);
        let outcome = self.change(DeviceOp::Write, offset, len, payload, fua).await;
        (buf, result(DeviceOp::Write, offset, len, outcome))
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        let operation = self.issue(DeviceOp::Flush, 0, 0);
        let mark = self.shared.state.borrow().medium.flush_mark();
        operation.tell(EventStage::Issued);
        operation.wait().await;
        let outcome = operation.end(|state, operation, failed| {
            state.medium.advance(operation.completes_at.0);
            let State {
                medium,
                rng,
                faults,
                stats,
                ..
            } = state;
            if failed {
                medium.flush(mark, || match rng.below(3) {
                    0 => FlushOutcome::Durable,
                    1 => FlushOutcome::StillVolatile,
                    _ => FlushOutcome::Forgotten,
                });
            } else if rng.chance(faults.flush_lie_ppm) {
                stats.silent_faults += 1;
            } else {
                medium.flush(mark, || FlushOutcome::Durable);
            }
        });
        result(DeviceOp::Flush, 0, 0, outcome)
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let seed = self.shared.state.borrow_mut().rng.next_u64();
        let payload = Payload::Discard(self.shared.config.discard_mode, seed);
        let outcome = self.change(DeviceOp::Discard, offset, len, payload, false).await;
        result(DeviceOp::Discard, offset, len, outcome)
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        _may_unmap: bool,
        fua: bool,
    ) -> Result<(), DeviceError> {
        let outcome = self
            .change(DeviceOp::WriteZeroes, offset, len, Payload::Zeroes, fua)
            .await;
        result(DeviceOp::WriteZeroes, offset, len, outcome)
    }
}
