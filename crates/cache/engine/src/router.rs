//! Routing requests to shards: splitting by stripe, joining the results, and reaching shards on any thread.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use flaz_device::{Device, DeviceError, DeviceOp, Env, IoBuf, Nanos};
use futures_util::future::join_all;

use crate::planted::{PlantedBug, planted, planted_once_in};
use crate::policy::SequentialDetector;
use crate::shard::{OriginWrites, Platform, Shard};
use crate::units::BLOCK_BYTES;
use crate::units::BlockNumber;
use crate::volume::{IoError, Segments, StatusExtent, Volume, segment_lens};

/// Most stripes of one trim, zeroing or prefetch in flight at a time. Each may hold a buffer of a stripe.
pub const PIECES_MAX: usize = 8;

/// One request to one shard; its range lies in one stripe.
#[derive(Debug)]
pub enum Piece {
    /// Read this many bytes.
    Read {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: usize,
        /// Do not admit misses.
        bypass: bool,
    },
    /// Write.
    Write {
        /// Byte offset.
        offset: u64,
        /// The data.
        data: IoBuf,
        /// Stable on return.
        fua: bool,
        /// Do not admit new blocks.
        bypass: bool,
    },
    /// Trim.
    Trim {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Stable on return.
        fua: bool,
    },
    /// Zero.
    WriteZeroes {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The storage may be freed.
        may_unmap: bool,
        /// Stable on return.
        fua: bool,
    },
    /// The shard's part of a flush; the origin is flushed by the caller.
    Flush,
    /// Wait until the flushes of the origin that are in flight have ended. Any shard can do this.
    AwaitFlushes,
    /// Write everything dirty to the origin.
    Clean,
    /// Whether anything is dirty: returns an empty buffer if so.
    IsDirty,
}

impl Piece {
    /// Byte offset of the piece; 0 if it concerns a whole shard.
    #[must_use]
    pub fn offset(&self) -> u64 {
        match self {
            Self::Flush | Self::AwaitFlushes | Self::Clean | Self::IsDirty => 0,
            Self::Read { offset, .. }
            | Self::Write { offset, .. }
            | Self::Trim { offset, .. }
            | Self::WriteZeroes { offset, .. } => *offset,
        }
    }
}

/// The shards of a cache, on any threads.
#[expect(
    async_fn_in_trait,
    reason = "a handle belongs to one thread; no Send bound is wanted"
)]
pub trait Shards: Clone + 'static {
    /// Number of shards.
    fn count(&self) -> u32;

    /// Counts of writes to the origin, for all shards.
    fn origin_writes(&self) -> OriginWrites;

    /// The current time, the same for all shards.
    fn time(&self) -> Nanos;

    /// Executes a piece on shard `number`. A read returns its data, everything else nothing.
    ///
    /// # Errors
    /// The shard's [`IoError`].
    async fn run(&self, number: u32, piece: Piece) -> Result<Option<IoBuf>, IoError>;
}

/// Executes a piece on its shard. A future is moved when it is awaited, once for each caller: those of rare pieces have
/// memory of their own, so that reads and writes stay small.
///
/// # Errors
/// The shard's [`IoError`].
pub async fn run_piece<P: Platform>(shard: &Rc<Shard<P>>, piece: Piece) -> Result<Option<IoBuf>, IoError> {
    match piece {
        Piece::Read { offset, len, bypass } => shard.read(offset, len, bypass).await.map(Some),
        Piece::Write {
            offset,
            data,
            fua,
            bypass,
        } => shard.write(offset, data, fua, bypass).await.map(|()| None),
        Piece::Trim { offset, len, fua } => Box::pin(shard.trim(offset, len, fua)).await.map(|()| None),
        Piece::WriteZeroes {
            offset,
            len,
            may_unmap,
            fua,
        } => Box::pin(shard.write_zeroes(offset, len, may_unmap, fua))
            .await
            .map(|()| None),
        Piece::Flush => Box::pin(shard.flush()).await.map(|()| None),
        Piece::AwaitFlushes => {
            shard.await_origin_flushes().await;
            Ok(None)
        }
        Piece::Clean => Box::pin(shard.clean_all()).await.map(|()| None),
        Piece::IsDirty => Ok((shard.dirty_blocks() > 0).then(|| IoBuf::new(0))),
    }
}

/// Shards that are all on this thread.
pub struct LocalShards<P: Platform>(Rc<[Rc<Shard<P>>]>);

impl<P: Platform> LocalShards<P> {
    /// The shards, in the order of their numbers.
    #[must_use]
    pub fn new(shards: Vec<Rc<Shard<P>>>) -> Self {
        Self(shards.into())
    }

    /// Every shard.
    pub fn iter(&self) -> impl Iterator<Item = &Rc<Shard<P>>> {
        self.0.iter()
    }
}

impl<P: Platform> Clone for LocalShards<P> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<P: Platform> Shards for LocalShards<P> {
    fn count(&self) -> u32 {
        self.0.len() as u32
    }

    fn origin_writes(&self) -> OriginWrites {
        self.0
            .first()
            .map(|shard| shard.origin_writes().clone())
            .unwrap_or_default()
    }

    fn time(&self) -> Nanos {
        self.0.first().map(|shard| shard.env.now()).unwrap_or_default()
    }

    async fn run(&self, number: u32, piece: Piece) -> Result<Option<IoBuf>, IoError> {
        run_piece(&self.0[number as usize], piece).await
    }
}

struct Inner<S, O> {
    shards: S,
    origin: Rc<O>,
    size: Cell<u64>,
    sequential: RefCell<SequentialDetector>,
}

/// The cached device, as front ends see it. Each clone is for one client. A client is told once of every failed flush of
/// the origin, if it failed since the client connected or in the minutes before, no matter who asked for the flush.
pub struct CachedVolume<S, O> {
    inner: Rc<Inner<S, O>>,
    /// Number of failed flushes that the client was told of, or that were too old to report when it connected.
    heard: Cell<u64>,
}

impl<S: Shards, O> Clone for CachedVolume<S, O> {
    fn clone(&self) -> Self {
        Self::for_client(Rc::clone(&self.inner))
    }
}

impl<S: Shards, O> CachedVolume<S, O> {
    fn for_client(inner: Rc<Inner<S, O>>) -> Self {
        // The client may have reconnected: it may not have been told on the earlier connection, or it retries after having
        // been told.
        let now = inner.shards.time();
        let heard = Cell::new(
            inner
                .shards
                .origin_writes()
                .flushes()
                .flushes_failed_long_ago(now),
        );
        Self { inner, heard }
    }
}

impl<S: Shards, O: Device> CachedVolume<S, O> {
    /// A volume of `size` bytes.
    #[must_use]
    pub fn new(shards: S, origin: Rc<O>, size: u64, sequential_cutoff: u64) -> Self {
        Self::for_client(Rc::new(Inner {
            shards,
            origin,
            size: Cell::new(size),
            sequential: RefCell::new(SequentialDetector::new(sequential_cutoff)),
        }))
    }

    /// Sets the length from which sequential streams are not admitted; 0 admits all.
    pub fn set_sequential_cutoff(&self, bytes: u64) {
        self.inner.sequential.borrow_mut().set_cutoff(bytes);
    }

    /// The volume has `size` bytes from now on, for all clones. Every shard, on every thread, serves as many already.
    ///
    /// # Panics
    /// If it would shrink.
    pub fn grow(&self, size: u64) {
        let before = self.inner.size.replace(size);
        assert!(before <= size, "a volume does not shrink: it has {before} bytes");
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), IoError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.inner.size.get() => Ok(()),
            _ => Err(IoError::OutOfRange {
                offset,
                len,
                size: self.inner.size.get(),
            }),
        }
    }

    fn bypass(&self, offset: u64, len: u64) -> bool {
        self.inner.sequential.borrow_mut().bypasses(offset, len)
    }

    fn shard_of(&self, offset: u64) -> u32 {
        BlockNumber(offset / BLOCK_BYTES as u64)
            .in_shard(self.inner.shards.count())
            .0
    }

    async fn run(&self, piece: Piece) -> Result<Option<IoBuf>, IoError> {
        self.inner.shards.run(self.shard_of(piece.offset()), piece).await
    }

    /// Executes one piece per stripe; returns the first error, after all have ended.
    async fn each_stripe(
        &self,
        offset: u64,
        len: u64,
        piece: impl Fn(u64, u64) -> Piece,
    ) -> Result<(), IoError> {
        let mut at = offset;
        debug_assert!(self.check(offset, len).is_ok(), "the range was checked");
        let mut lens = segment_lens(offset, len).peekable();
        let mut outcome = Ok(());
        while lens.peek().is_some() {
            let batch = lens.by_ref().take(PIECES_MAX).map(|len| {
                let piece = piece(at, len as u64);
                at += len as u64;
                self.run(piece)
            });
            for result in join_all(batch.collect::<Vec<_>>()).await {
                outcome = outcome.and(result.map(|_| ()));
            }
        }
        assert_eq!(at, offset + len, "every stripe had its piece");
        outcome
    }
}

impl<S: Shards, O: Device> Volume for CachedVolume<S, O> {
    fn size(&self) -> u64 {
        self.inner.size.get()
    }

    async fn read(&self, offset: u64, len: u32) -> Result<Segments, IoError> {
        self.check(offset, u64::from(len))?;
        let bypass = self.bypass(offset, u64::from(len));
        let mut at = offset;
        let mut pieces = segment_lens(offset, u64::from(len)).map(|len| {
            let piece = Piece::Read {
                offset: at,
                len,
                bypass,
            };
            at += len as u64;
            piece
        });
        let Some(first) = pieces.next() else {
            return Ok(Segments::new());
        };
        let rest: Vec<Piece> = pieces.collect();
        if rest.is_empty() {
            return Ok(self.run(first).await?.into_iter().collect());
        }
        let all = std::iter::once(first).chain(rest).map(|piece| self.run(piece));
        // All pieces end, even after an error: other requests may have joined their origin reads.
        let mut segments = Segments::new();
        for result in join_all(all).await {
            segments.extend(result?);
        }
        Ok(segments)
    }

    async fn write(&self, offset: u64, mut data: Segments, fua: bool) -> Result<(), IoError> {
        let len = data.iter().map(|segment| segment.len() as u64).sum();
        self.check(offset, len)?;
        let bypass = self.bypass(offset, len);
        if data.len() == 1 {
            let data = data.pop().expect("one");
            return self
                .run(Piece::Write {
                    offset,
                    data,
                    fua,
                    bypass,
                })
                .await
                .map(|_| ());
        }
        let mut at = offset;
        let pieces = data.into_iter().map(|data| {
            let piece = Piece::Write {
                offset: at,
                data,
                fua,
                bypass,
            };
            at = piece.offset() + piece_len(&piece);
            self.run(piece)
        });
        // All pieces end before the reply, even after an error: a late piece must not overtake a retry.
        join_all(pieces)
            .await
            .into_iter()
            .try_for_each(|result| result.map(|_| ()))
    }

    async fn flush(&self) -> Result<(), IoError> {
        if planted(PlantedBug::FlushNotSent) || planted_once_in(200, PlantedBug::FlushNotSentAtTimes) {
            return Ok(());
        }
        let writes = self.inner.shards.origin_writes();
        let heard = self.heard.get();
        let unflushed = writes.unflushed();
        let mut outcome = Ok(());
        if let Some(upto) = unflushed {
            let flushed = writes.flushes().run(self.inner.origin.flush()).await;
            let flushed = flushed.inspect_err(|error| writes.log_origin_error(error));
            outcome = flushed.map_err(IoError::Origin);
            writes.flushes().note_news(self.inner.shards.time());
            if outcome.is_ok() && writes.flushes().under_way() {
                // An overlapping flush may have failed and lost data that this flush covers. That is known when the other
                // has ended. Until then this flush must not count for other clients either.
                outcome = self.inner.shards.run(0, Piece::AwaitFlushes).await.map(|_| ());
            }
            if outcome.is_ok() {
                writes.flushed(upto);
            }
        }
        // After the origin flush: a failure that is reported to a shard's own flush is reported to no other client.
        let parts = (0..self.inner.shards.count()).map(|number| self.inner.shards.run(number, Piece::Flush));
        for part in join_all(parts).await {
            outcome = outcome.and(part.map(|_| ()));
        }
        let untold = writes.flushes().take_untold();
        outcome = outcome.and(untold.map_or(Ok(()), |error| Err(IoError::Origin(error))));
        // A flush that failed for another client may have lost writes of this client.
        let failed = writes.flushes().flushes_failed();
        self.heard.set(failed);
        if outcome.is_ok() && failed != heard {
            let why = io::Error::other("a flush requested by another client failed");
            outcome = Err(IoError::Origin(DeviceError::new(DeviceOp::Flush, 0, 0, why)));
        }
        outcome
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), IoError> {
        self.check(offset, len)?;
        self.each_stripe(offset, len, |offset, len| Piece::Trim { offset, len, fua })
            .await
    }

    async fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool, fua: bool) -> Result<(), IoError> {
        self.check(offset, len)?;
        self.each_stripe(offset, len, |offset, len| Piece::WriteZeroes {
            offset,
            len,
            may_unmap,
            fua,
        })
        .await
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.check(offset, len)?;
        self.each_stripe(offset, len, |offset, len| Piece::Read {
            offset,
            len: len as usize,
            bypass: false,
        })
        .await
    }

    async fn block_status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<StatusExtent>, IoError> {
        self.check(offset, len)?;
        // Asked first: blocks that are written back between the two queries are known to the origin.
        let parts =
            (0..self.inner.shards.count()).map(|number| self.inner.shards.run(number, Piece::IsDirty));
        for part in join_all(parts).await {
            if part?.is_some() {
                // The origin does not have everything.
                return Ok(vec![StatusExtent {
                    len,
                    hole: false,
                    zero: false,
                }]);
            }
        }
        let extents = self
            .inner
            .origin
            .status(offset, len, extents_max)
            .await
            .map_err(IoError::Origin)?;
        Ok(extents
            .into_iter()
            .map(|(len, hole)| StatusExtent {
                len,
                hole,
                zero: hole,
            })
            .collect())
    }
}

fn piece_len(piece: &Piece) -> u64 {
    match piece {
        Piece::Read { len, .. } => *len as u64,
        Piece::Write { data, .. } => data.len() as u64,
        Piece::Trim { len, .. } | Piece::WriteZeroes { len, .. } => *len,
        Piece::Flush | Piece::AwaitFlushes | Piece::Clean | Piece::IsDirty => 0,
    }
}
