//! The cache device of one volume: sparse, and as large as the whole cache device.
//!
//! Its chunks lie anywhere on the cache device. First comes the front, with the metadata of the volume's cache, in as many chunks as
//! it needs; then one chunk for each region. A part that has no chunk reads as zeroes; a write to it fails.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use flaz_device::{Device, DeviceError, DeviceOp, IoBuf};

use crate::format::PoolLayout;
use crate::gate::{Gate, Kind};

/// No chunk.
const NONE: u32 = u32::MAX;

/// The pool as one volume uses it: it may be driven by another thread, and changed by other processes. Clones are the same pool.
#[expect(
    async_fn_in_trait,
    reason = "a volume's device is driven by one thread each; no Send bound is wanted"
)]
pub trait Chunks: Clone + 'static {
    /// Gives the volume a chunk for a part of it, unless the part has one.
    async fn take(&self, index: u32) -> io::Result<()>;

    /// The chunk of a part of the volume becomes free. Nobody reads or writes the part any more.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`]: nothing was done, because another process changes the pool. It can be tried again.
    async fn give(&self, index: u32) -> io::Result<()>;

    /// Number of failed flushes of the cache device, by whichever volume.
    fn failed_flushes(&self) -> u64;

    /// A flush of this volume has failed: others may have lost writes.
    fn note_failed_flush(&self);
}

/// Where the parts of a volume lie. Shared by the threads that drive its cache; changed by the pool only.
#[derive(Debug)]
pub struct VolumeMap {
    layout: PoolLayout,
    front_bytes: u64,
    /// Most chunks that the whole device ever had.
    chunks: AtomicU32,
    map: Box<[AtomicU32]>,
    gate: Gate,
    /// Number of parts that have a chunk.
    held: AtomicU32,
    /// Most chunks that the volume takes for now.
    limit: AtomicU32,
    /// How often the volume asked for a chunk, and there was none for it.
    shortages: AtomicU64,
    /// Failed flushes of the cache device that the volume knows of.
    failed_flushes: AtomicU64,
}

impl VolumeMap {
    pub(crate) fn new(layout: PoolLayout, chunks: u32, front_bytes: u64) -> Self {
        let front = front_bytes.div_ceil(layout.chunk_bytes);
        let parts = front + u64::from(layout.chunks_max);
        Self {
            layout,
            front_bytes,
            chunks: AtomicU32::new(chunks),
            map: (0..parts).map(|_| AtomicU32::new(NONE)).collect(),
            gate: Gate::new(parts),
            held: AtomicU32::new(0),
            limit: AtomicU32::new(u32::MAX),
            shortages: AtomicU64::new(0),
            failed_flushes: AtomicU64::new(0),
        }
    }

    /// The requests to its parts.
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Number of parts.
    #[must_use]
    pub fn parts(&self) -> u32 {
        self.map.len() as u32
    }

    /// Number of parts that the volume can use: the map also has those that it gets when the whole device grows.
    #[must_use]
    pub fn parts_now(&self) -> u32 {
        self.front_parts() + self.chunks.load(Ordering::Acquire)
    }

    /// Parts of the front.
    #[must_use]
    pub fn front_parts(&self) -> u32 {
        self.front_bytes.div_ceil(self.layout.chunk_bytes) as u32
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk_bytes(&self) -> u64 {
        self.layout.chunk_bytes
    }

    /// Bytes of a part: the last one of the front may use only the beginning of its chunk.
    pub(crate) fn part_bytes(&self, index: u32) -> u64 {
        let left = self
            .front_bytes
            .checked_sub(u64::from(index) * self.layout.chunk_bytes);
        match left {
            Some(left @ 1..) => left.min(self.layout.chunk_bytes),
            _ => self.layout.chunk_bytes,
        }
    }

    /// Number of parts that have a chunk.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.held.load(Ordering::Acquire)
    }

    /// The chunk of a part.
    #[must_use]
    pub fn chunk(&self, index: u32) -> Option<u32> {
        let chunk = self.map.get(index as usize)?.load(Ordering::Acquire);
        (chunk != NONE).then_some(chunk)
    }

    /// How often the volume asked for a chunk, and there was none for it.
    #[must_use]
    pub fn shortages(&self) -> u64 {
        self.shortages.load(Ordering::Relaxed)
    }

    /// Most chunks that the volume takes for now.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Acquire)
    }

    /// The volume takes at most so many chunks from now on. Those that it has, it keeps.
    pub fn set_limit(&self, chunks: u32) {
        self.limit.store(chunks, Ordering::Release);
    }

    /// On one thread: that of the pool.
    pub(crate) fn set(&self, index: u32, chunk: Option<u32>) {
        let before = self.map[index as usize].swap(chunk.unwrap_or(NONE), Ordering::AcqRel);
        match (before != NONE, chunk.is_some()) {
            (false, true) => self.held.fetch_add(1, Ordering::AcqRel),
            (true, false) => self.held.fetch_sub(1, Ordering::AcqRel),
            _ => 0,
        };
    }

    pub(crate) fn set_chunks(&self, chunks: u32) {
        self.chunks.store(chunks, Ordering::Release);
    }

    /// Bytes of the volume's cache device.
    fn len(&self) -> u64 {
        self.front_bytes + u64::from(self.chunks.load(Ordering::Acquire)) * self.layout.chunk_bytes
    }

    /// The part of an offset, the offset in it, and the bytes from there to its end.
    fn part(&self, offset: u64) -> (u32, u64, u64) {
        let chunk = self.layout.chunk_bytes;
        match offset.checked_sub(self.front_bytes) {
            None => {
                let within = offset % chunk;
                let end = (chunk - within).min(self.front_bytes - offset);
                ((offset / chunk) as u32, within, end)
            }
            Some(behind) => {
                let within = behind % chunk;
                (
                    self.front_parts() + (behind / chunk) as u32,
                    within,
                    chunk - within,
                )
            }
        }
    }

    /// Cuts a range at the ends of parts.
    fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = Piece> {
        let (mut at, end) = (offset, offset + len);
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (index, within, left) = self.part(at);
            let len = left.min(end - at);
            at += len;
            Some(Piece { index, within, len })
        })
    }

    /// The position of a piece on the cache device, if its part has a chunk.
    fn position(&self, piece: &Piece) -> Option<u64> {
        let chunk = self.chunk(piece.index)?;
        Some(self.layout.chunk_offset(chunk) + piece.within)
    }

    fn has_chunk(&self, piece: &Piece) -> bool {
        self.chunk(piece.index).is_some()
    }
}

/// A piece of a range, in one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    index: u32,
    /// Offset in the part.
    within: u64,
    len: u64,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct VolumeDevice<D, C> {
    device: D,
    map: Arc<VolumeMap>,
    chunks: C,
}

impl<D: Device + Clone, C: Chunks> VolumeDevice<D, C> {
    /// The cache device of a volume. Clones are the same device.
    #[must_use]
    pub fn new(device: D, map: Arc<VolumeMap>, chunks: C) -> Self {
        let known = chunks.failed_flushes();
        map.failed_flushes.store(known, Ordering::Release);
        Self { device, map, chunks }
    }

    /// The device that all volumes share.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Where the volume's parts lie.
    #[must_use]
    pub fn map(&self) -> &Arc<VolumeMap> {
        &self.map
    }

    /// A write has ended. One with FUA that fails may have been a flush that has failed.
    fn noted(&self, result: Result<(), DeviceError>, fua: bool) -> Result<(), DeviceError> {
        if result.is_err() && fua && !self.device.fua_stands_alone() {
            self.chunks.note_failed_flush();
        }
        result
    }

    /// The only piece of a range, if it lies in one part.
    fn only(&self, offset: u64, len: u64) -> Option<Piece> {
        self.map.pieces(offset, len).next().filter(|only| only.len == len)
    }

    /// Reads a piece; one without a chunk as zeroes.
    async fn read_piece(&self, piece: &Piece, mut buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        let Ok(request) = self.map.gate.enter(piece.index, Kind::Read).await else {
            return (buf, Err(not_known(DeviceOp::Read, piece.len)));
        };
        let Some(position) = self.map.position(piece) else {
            buf.fill(0);
            return (buf, Ok(()));
        };
        let answer = self.device.read_at(position, buf).await;
        request.end();
        answer
    }

    /// Writes a piece.
    async fn write_piece(&self, piece: &Piece, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        let Ok(request) = self.map.gate.enter(piece.index, Kind::Change).await else {
            return (buf, Err(not_known(DeviceOp::Write, piece.len)));
        };
        let answer = match self.map.position(piece) {
            Some(position) => {
                let (buf, result) = self.device.write_at(position, buf, fua).await;
                (buf, self.noted(result, fua))
            }
            None => (buf, Err(no_chunk(DeviceOp::Write, piece.within, piece.len))),
        };
        request.end();
        answer
    }

    /// Does something else with each piece of a range that has a chunk.
    async fn change(
        &self,
        op: DeviceOp,
        (offset, len): (u64, u64),
        change: impl AsyncFn(u64, u64) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        for piece in self.map.pieces(offset, len).collect::<Vec<_>>() {
            let request = self.map.gate.enter(piece.index, Kind::Change).await;
            let request = request.map_err(|_| not_known(op, len))?;
            let changed = match self.map.position(&piece) {
                Some(position) => change(position, piece.len).await,
                None => Ok(()),
            };
            request.end();
            changed?;
        }
        Ok(())
    }
}

fn not_known(op: DeviceOp, len: u64) -> DeviceError {
    let why = io::Error::other(
        "the chunk table could not be written while this part of the volume's cache was moved",
    );
    DeviceError::new(op, 0, len, why)
}

fn no_chunk(op: DeviceOp, offset: u64, len: u64) -> DeviceError {
    let why = io::Error::other("this part of the volume's cache has no chunk");
    DeviceError::new(op, offset, len, why)
}

impl<D: Device + Clone, C: Chunks> Device for VolumeDevice<D, C> {
    fn len(&self) -> u64 {
        self.map.len()
    }

    fn alignment(&self) -> u32 {
        self.device.alignment()
    }

    fn fua_stands_alone(&self) -> bool {
        self.device.fua_stands_alone()
    }

    fn has_volatile_cache(&self) -> bool {
        self.device.has_volatile_cache()
    }

    async fn read_at(&self, offset: u64, buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        if let Some(only) = self.only(offset, buf.len() as u64) {
            return self.read_piece(&only, buf).await;
        }
        let (mut buf, mut at) = (buf, 0);
        for piece in self.map.pieces(offset, buf.len() as u64).collect::<Vec<_>>() {
            let len = piece.len as usize;
            let (part, result) = self.read_piece(&piece, IoBuf::new(len)).await;
            if result.is_err() {
                return (buf, result);
            }
            buf[at..at + len].copy_from_slice(&part);
            at += len;
        }
        (buf, Ok(()))
    }

    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        let len = buf.len() as u64;
        if let Some(only) = self.only(offset, len) {
            return self.write_piece(&only, buf, fua).await;
        }
        let pieces: Vec<Piece> = self.map.pieces(offset, len).collect();
        if !pieces.iter().all(|piece| self.map.has_chunk(piece)) {
            return (buf, Err(no_chunk(DeviceOp::Write, offset, len)));
        }
        let mut at = 0;
        for piece in pieces {
            let len = piece.len as usize;
            let part = IoBuf::copy_of(&buf[at..at + len]);
            let (_, result) = self.write_piece(&piece, part, fua).await;
            if result.is_err() {
                return (buf, result);
            }
            at += len;
        }
        (buf, Ok(()))
    }

    /// Fails also if a flush of another volume has failed since: the device may have dropped writes of this one, and reports that
    /// once.
    async fn flush(&self) -> Result<(), DeviceError> {
        let flushed = self.device.flush().await;
        if flushed.is_err() {
            self.chunks.note_failed_flush();
        }
        let failed = self.chunks.failed_flushes();
        let known = self.map.failed_flushes.swap(failed, Ordering::AcqRel);
        flushed?;
        if failed > known {
            let why = io::Error::other("a flush of another volume of this cache device has failed");
            return Err(DeviceError::new(DeviceOp::Flush, 0, 0, why));
        }
        Ok(())
    }

    fn is_sparse(&self) -> bool {
        true
    }

    fn shares_space(&self) -> bool {
        true
    }

    fn has_space(&self, offset: u64, len: u64) -> bool {
        self.map
            .pieces(offset, len)
            .all(|piece| self.map.has_chunk(&piece))
    }

    /// Fails if the range is not a region: a cache that was not made for this device may have others.
    async fn deallocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let (index, within, whole) = self.map.part(offset);
        if (within, whole) != (0, len) || index < self.map.front_parts() {
            let why = io::Error::other("the range is not a region of the volume's cache");
            return Err(DeviceError::new(DeviceOp::Discard, offset, len, why));
        }
        let given = self.chunks.give(index).await;
        given.map_err(|source| DeviceError::new(DeviceOp::Discard, offset, len, source))
    }

    async fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let missing = self
            .map
            .pieces(offset, len)
            .filter(|piece| !self.map.has_chunk(piece));
        for index in missing.map(|piece| piece.index).collect::<Vec<_>>() {
            let taken = self.chunks.take(index).await.inspect_err(|error| {
                let is_short = error.kind() == io::ErrorKind::StorageFull;
                self.map.shortages.fetch_add(is_short.into(), Ordering::Relaxed);
            });
            taken.map_err(|source| DeviceError::new(DeviceOp::Write, offset, len, source))?;
        }
        Ok(())
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let discard = async |position, len| self.device.discard(position, len).await;
        self.change(DeviceOp::Discard, (offset, len), discard).await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), DeviceError> {
        let zeroes = async |position, len| {
            let written = self.device.write_zeroes(position, len, may_unmap, fua);
            self.noted(written.await, fua)
        };
        self.change(DeviceOp::WriteZeroes, (offset, len), zeroes).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 128 << 10;

    #[test]
    fn ranges_are_cut_at_the_ends_of_parts() {
        let (layout, chunks) = PoolLayout::plan(8 << 20, 512, CHUNK).expect("fits");
        let map = VolumeMap::new(layout, chunks, CHUNK + 4096);
        assert_eq!(
            (map.front_parts(), map.len()),
            (2, CHUNK + 4096 + u64::from(chunks) * CHUNK)
        );
        for (index, chunk) in [(0, 7), (1, 3), (2, 5)] {
            map.set(index, Some(chunk));
        }
        let at = |chunk| layout.chunk_offset(chunk);
        let pieces: Vec<Piece> = map.pieces(CHUNK - 512, 2 * CHUNK).collect();
        let piece = |index, within, len| Piece { index, within, len };
        assert_eq!(
            pieces,
            [
                piece(0, CHUNK - 512, 512),
                // The front ends within its second part.
                piece(1, 0, 4096),
                piece(2, 0, CHUNK),
                piece(3, 0, CHUNK - 512 - 4096),
            ]
        );
        assert_eq!(
            [0, 1, 2, 9].map(|index| map.part_bytes(index)),
            [CHUNK, 4096, CHUNK, CHUNK]
        );
        let positions: Vec<_> = pieces.iter().map(|piece| map.position(piece)).collect();
        assert_eq!(
            positions,
            [Some(at(7) + CHUNK - 512), Some(at(3)), Some(at(5)), None]
        );
    }
}
