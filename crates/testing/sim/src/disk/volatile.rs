//! Tracks which writes are in flight, visible, or durable.
//!
//! A write is cut into one or two *pieces*. A piece is first in flight, then *lands* (readers see it) at a
//! moment between issue and completion, then waits in landing order until a flush, FUA or a full write cache
//! makes it durable.
//!
//! Invariants:
//! - `visible` is `durable` plus all waiting pieces in landing order;
//! - what is applied to `durable` keeps landing order wherever pieces overlap: a durable piece on top of an older
//!   volatile one waits for it (`forced`), so an older write can never replace a newer one;
//! - a flush covers exactly the operations that had completed when it was issued.

use std::collections::VecDeque;

use super::contents::{Contents, Payload, SECTOR_BYTES, sectors};
use crate::rng::Rng;

/// Granularity at which zeroes and discards survive a power cut, in bytes.
const FILL_UNIT_BYTES: u64 = 64 << 10;

/// A write that a power cut may undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolatileWrite {
    /// Index in the list of volatile writes, in order of issue.
    pub index: usize,
    /// Byte offset.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Not completed yet: readers may or may not see it.
    pub in_flight: bool,
}

/// Effect of a flush on a write that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushOutcome {
    Durable,
    StillVolatile,
    Forgotten,
}

#[derive(Clone)]
struct Piece {
    op: u64,
    offset: u64,
    len: u64,
    payload: Payload,
    /// Completion number of its operation; `None` while in flight.
    completed: Option<u64>,
    /// Already durable, and kept in the list only for the order.
    forced: bool,
}

impl Piece {
    fn overlaps(&self, other: &Self) -> bool {
        self.offset < other.offset + other.len && other.offset < self.offset + self.len
    }
}

#[derive(Clone)]
struct InFlight {
    op: u64,
    completes_at: u64,
    fua: bool,
    /// Its caller has gone: it completes by itself.
    orphan: bool,
    pieces: [Option<(u64, Piece)>; 2], // (moment of landing, piece)
}

/// A write to begin.
pub(super) struct NewWrite {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) payload: Payload,
    pub(super) fua: bool,
    pub(super) now: u64,
    pub(super) completes_at: u64,
    pub(super) tear: bool,
}

/// Volatile data when nothing is in flight: the state after the death of a process.
#[derive(Clone)]
pub(super) struct Unflushed {
    durable: Contents,
    waiting: VecDeque<Piece>,
    ops: u64,
}

impl Unflushed {
    /// Changes the durable contents as well.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.durable.write(offset, bytes);
    }
}

#[derive(Clone)]
pub(super) struct Medium {
    visible: Contents,
    /// `None`: no volatile cache, `visible` is durable.
    durable: Option<Contents>,
    waiting: VecDeque<Piece>,
    waiting_bytes: u64,
    cache_bytes_max: u64,
    in_flight: Vec<InFlight>,
    ops: u64,
    completions: u64,
}

impl Medium {
    pub(super) fn new(contents: Contents, cache_bytes_max: u64) -> Self {
        let durable = (cache_bytes_max > 0).then(|| contents.clone());
        Self {
            visible: contents,
            durable,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            cache_bytes_max,
            in_flight: Vec::new(),
            ops: 0,
            completions: 0,
        }
    }

    /// The medium for the next process: `contents` is visible, `unflushed` is its part that is not durable.
    pub(super) fn restored(contents: Contents, unflushed: Option<Unflushed>, cache_bytes_max: u64) -> Self {
        let mut medium = Self::new(contents, cache_bytes_max);
        if let (Some(unflushed), true) = (unflushed, cache_bytes_max > 0) {
            medium.durable = Some(unflushed.durable);
            medium.waiting_bytes = unflushed.waiting.iter().map(|piece| piece.len).sum();
            medium.waiting = unflushed.waiting;
            medium.ops = unflushed.ops;
        }
        medium
    }

    /// Contents that readers see at `now`.
    pub(super) fn visible(&mut self, now: u64) -> &Contents {
        self.advance(now);
        &self.visible
    }

    /// Contents that survive a power cut for certain.
    pub(super) fn durable(&self) -> &Contents {
        self.durable.as_ref().unwrap_or(&self.visible)
    }

    /// Starts a write and returns its number.
    pub(super) fn begin(&mut self, write: NewWrite, rng: &mut Rng) -> u64 {
        self.ops += 1;
        let op = self.ops;
        let piece = |offset, len, payload| Piece {
            op,
            offset,
            len,
            payload,
            completed: None,
            forced: false,
        };
        let mut moment = || rng.between(write.now, write.completes_at);
        let sector_count = write.len / SECTOR_BYTES;
        let pieces = match &write.payload {
            Payload::Bytes(bytes, from) if write.tear && sector_count > 1 => {
                let (first, second) = (moment(), moment());
                let cut = SECTOR_BYTES * rng.between(1, sector_count - 1);
                let tail = Payload::Bytes(bytes.clone(), from + cut as usize);
                let tail = piece(write.offset + cut, write.len - cut, tail);
                let head = piece(write.offset, cut, Payload::Bytes(bytes.clone(), *from));
                [Some((first, head)), Some((second, tail))]
            }
            payload => [
                Some((moment(), piece(write.offset, write.len, payload.clone()))),
                None,
            ],
        };
        self.in_flight.push(InFlight {
            op,
            completes_at: write.completes_at,
            fua: write.fua,
            orphan: false,
            pieces,
        });
        op
    }

    /// Lands the pieces that are due at `now`, in order of time, and completes operations whose callers have gone.
    pub(super) fn advance(&mut self, now: u64) {
        loop {
            let mut due: Option<(u64, usize, usize)> = None;
            for (index, op) in self.in_flight.iter().enumerate() {
                for (part, piece) in op.pieces.iter().enumerate() {
                    if let Some((at, _)) = piece
                        && *at <= now
                        && due.is_none_or(|(earliest, _, _)| *at < earliest)
                    {
                        due = Some((*at, index, part));
                    }
                }
            }
            let Some((_, index, part)) = due else { break };
            if let Some((_, piece)) = self.in_flight[index].pieces[part].take() {
                self.land(piece);
            }
        }
        while let Some(index) = self
            .in_flight
            .iter()
            .position(|o| o.orphan && o.completes_at <= now)
        {
            let op = self.in_flight[index].op;
            self.complete(op);
        }
    }

    fn land(&mut self, piece: Piece) {
        self.visible.apply(piece.offset, piece.len, &piece.payload);
        if self.durable.is_none() {
            return;
        }
        self.waiting_bytes += piece.len;
        self.waiting.push_back(piece);
        while self.waiting_bytes > self.cache_bytes_max {
            // The oldest piece has nothing under it, so it can become durable at once.
            let Some(oldest) = self.waiting.pop_front() else {
                break;
            };
            self.harden(&oldest);
        }
    }

    fn harden(&mut self, piece: &Piece) {
        self.waiting_bytes -= piece.len;
        if let Some(durable) = &mut self.durable {
            durable.apply(piece.offset, piece.len, &piece.payload);
        }
    }

    /// Ends operation `op` successfully: all of it is visible from now on, and durable if it was FUA.
    pub(super) fn complete(&mut self, op: u64) {
        self.finish(op, |_| true);
    }

    /// Ends operation `op` with an error: any part that has not landed may be lost.
    pub(super) fn fail(&mut self, op: u64, rng: &mut Rng) {
        self.finish(op, |_| rng.coin());
    }

    fn finish(&mut self, op: u64, mut lands: impl FnMut(&Piece) -> bool) {
        let Some(index) = self.in_flight.iter().position(|o| o.op == op) else {
            return;
        };
        let mut ended = self.in_flight.remove(index);
        let mut left: Vec<_> = ended.pieces.iter_mut().filter_map(Option::take).collect();
        left.sort_by_key(|(at, _)| *at);
        for (_, piece) in left {
            if lands(&piece) {
                self.land(piece);
            }
        }
        self.completions += 1;
        let number = self.completions;
        for piece in self.waiting.iter_mut().rev().filter(|p| p.op == op) {
            piece.completed = Some(number);
            piece.forced |= ended.fua;
        }
        if ended.fua {
            self.absorb();
        }
    }

    /// The caller of `op` has gone; the device continues.
    pub(super) fn orphan(&mut self, op: u64) {
        if let Some(op) = self.in_flight.iter_mut().find(|o| o.op == op) {
            op.orphan = true;
        }
    }

    /// Ends everything in flight now; by chance, each part has landed or not.
    pub(super) fn settle(&mut self, rng: &mut Rng) {
        while let Some(op) = self.in_flight.last().map(|o| o.op) {
            self.fail(op, rng);
        }
    }

    /// The set of writes that a flush issued now covers.
    pub(super) fn flush_mark(&self) -> u64 {
        self.completions
    }

    /// Applies `outcome` to all writes under `mark`.
    pub(super) fn flush(&mut self, mark: u64, mut outcome: impl FnMut() -> FlushOutcome) {
        let mut forgotten_bytes = 0;
        self.waiting.retain_mut(|piece| {
            if piece.forced || piece.completed.is_none_or(|number| number > mark) {
                return true;
            }
            match outcome() {
                FlushOutcome::Durable => piece.forced = true,
                FlushOutcome::StillVolatile => {}
                FlushOutcome::Forgotten => {
                    forgotten_bytes += piece.len;
                    return false;
                }
            }
            true
        });
        self.waiting_bytes -= forgotten_bytes;
        self.absorb();
    }

    /// Moves forced pieces into `durable`, except those with an older volatile piece under them.
    fn absorb(&mut self) {
        let mut kept: VecDeque<Piece> = VecDeque::new();
        for piece in std::mem::take(&mut self.waiting) {
            if piece.forced && !kept.iter().any(|older| older.overlaps(&piece)) {
                self.harden(&piece);
            } else {
                kept.push_back(piece);
            }
        }
        self.waiting = kept;
    }

    /// Writes durably without an operation.
    pub(super) fn poke(&mut self, offset: u64, bytes: &[u8]) {
        let payload = Payload::Bytes(bytes.into(), 0);
        let len = bytes.len() as u64;
        self.land(Piece {
            op: 0,
            offset,
            len,
            payload,
            completed: Some(0),
            forced: true,
        });
        self.absorb();
    }

    /// The writes that a power cut may undo, in order of issue.
    pub(super) fn volatile_writes(&self) -> Vec<VolatileWrite> {
        let waiting = self.waiting.iter().filter(|p| !p.forced);
        list_writes(waiting.chain(self.landing()))
    }

    /// The writes that the death of the process may cut short, in order of issue.
    pub(super) fn unlanded_writes(&self) -> Vec<VolatileWrite> {
        list_writes(self.landing())
    }

    /// Pieces in flight that have not landed.
    fn landing(&self) -> impl Iterator<Item = &Piece> {
        self.in_flight
            .iter()
            .flat_map(|o| o.pieces.iter().flatten().map(|(_, piece)| piece))
    }

    /// The same, in the order in which they would land.
    fn landing_in_order(&self) -> Vec<&Piece> {
        let pieces = self.in_flight.iter().flat_map(|o| o.pieces.iter().flatten());
        let mut timed: Vec<_> = pieces.collect();
        timed.sort_by_key(|(at, _)| *at);
        timed.into_iter().map(|(_, piece)| piece).collect()
    }

    /// The image after a power cut: everything durable, and of each volatile write the sectors that `survives` chooses
    /// (for zeroes and discards: runs of [`FILL_UNIT_BYTES`], identified by their first sector).
    pub(super) fn crash(&self, mut survives: impl FnMut(usize, u64) -> bool) -> Contents {
        let mut left = self.durable().clone();
        let mut ops: Vec<u64> = self.waiting.iter().filter(|p| !p.forced).map(|p| p.op).collect();
        ops.extend(self.landing().map(|piece| piece.op));
        ops.sort_unstable();
        ops.dedup();
        for piece in self.waiting.iter().chain(self.landing_in_order()) {
            if piece.forced {
                left.apply(piece.offset, piece.len, &piece.payload);
            } else if let Ok(index) = ops.binary_search(&piece.op) {
                for_surviving(
                    piece,
                    |sector| survives(index, sector),
                    |offset, len, payload| {
                        left.apply(offset, len, payload);
                    },
                );
            }
        }
        left
    }

    /// The image after the death of the process: everything that readers could see, and of each write in flight the
    /// sectors that `survives` chooses. Unflushed data stays unflushed.
    pub(super) fn kill(&self, mut survives: impl FnMut(usize, u64) -> bool) -> (Contents, Option<Unflushed>) {
        let mut left = self.visible.clone();
        let mut waiting = self.waiting.clone();
        let mut ops: Vec<u64> = self.landing().map(|piece| piece.op).collect();
        ops.sort_unstable();
        ops.dedup();
        for piece in self.landing_in_order() {
            let Ok(index) = ops.binary_search(&piece.op) else {
                continue;
            };
            for_surviving(
                piece,
                |sector| survives(index, sector),
                |offset, len, payload| {
                    left.apply(offset, len, payload);
                    waiting.push_back(Piece {
                        offset,
                        len,
                        payload: payload.clone(),
                        ..piece.clone()
                    });
                },
            );
        }
        // Their callers have gone: the next flush covers all of them.
        for piece in &mut waiting {
            piece.completed = Some(0);
        }
        let unflushed = self.durable.as_ref().map(|durable| Unflushed {
            durable: durable.clone(),
            waiting,
            ops: self.ops,
        });
        (left, unflushed)
    }
}

/// One entry per operation, in order of issue.
fn list_writes<'a>(pieces: impl Iterator<Item = &'a Piece>) -> Vec<VolatileWrite> {
    let mut ops: Vec<(u64, VolatileWrite)> = Vec::new();
    for piece in pieces {
        let new = VolatileWrite {
            index: 0,
            offset: piece.offset,
            len: piece.len,
            in_flight: piece.completed.is_none(),
        };
        match ops.iter_mut().find(|(op, _)| *op == piece.op) {
            Some((_, write)) => {
                let end = (write.offset + write.len).max(piece.offset + piece.len);
                write.offset = write.offset.min(piece.offset);
                write.len = end - write.offset;
            }
            None => ops.push((piece.op, new)),
        }
    }
    ops.sort_by_key(|(op, _)| *op);
    ops.iter()
        .enumerate()
        .map(|(index, (_, write))| VolatileWrite { index, ..*write })
        .collect()
}

/// Calls `each(offset, length, payload)` for the parts of a piece that survive (for zeroes and discards: runs of
/// [`FILL_UNIT_BYTES`], identified by their first sector).
fn for_surviving(
    piece: &Piece,
    mut survives: impl FnMut(u64) -> bool,
    mut each: impl FnMut(u64, u64, &Payload),
) {
    if let Payload::Bytes(bytes, from) = &piece.payload {
        // Adjacent surviving sectors are combined, because most writes survive entirely.
        let mut run: Option<u64> = None;
        let all = sectors(piece.offset, piece.len);
        for sector in all.start..=all.end {
            let survives = sector < all.end && survives(sector);
            match run {
                None if survives => run = Some(sector),
                Some(first) if !survives => {
                    let offset = first * SECTOR_BYTES;
                    let start = from + (offset - piece.offset) as usize;
                    let len = (sector - first) * SECTOR_BYTES;
                    each(offset, len, &Payload::Bytes(bytes.clone(), start));
                    run = None;
                }
                _ => {}
            }
        }
        return;
    }
    let end = piece.offset + piece.len;
    let mut at = piece.offset;
    while at < end {
        let next = ((at / FILL_UNIT_BYTES + 1) * FILL_UNIT_BYTES).min(end);
        if survives(at / SECTOR_BYTES) {
            each(at, next - at, &piece.payload);
        }
        at = next;
    }
}
