//! A pool that becomes smaller, while its volumes are served.
//!
//! The superblock says where the pool will end: from then on no volume gets a chunk beyond, and no more chunks than there will be.
//! Volumes that have too many give some back. Then each part that lies beyond the end moves to a free chunk before it, by the process
//! that holds its volume:
//!
//! 1. changes of the part wait, and those in flight end; reads go on;
//! 2. the chunk is copied, and the device flushed;
//! 3. the table names the lower chunk too, stable. Of two chunks of one part the lower one counts, so this is the move;
//! 4. reads wait until those of the old chunk have ended, then all requests go on, to the new chunk;
//! 5. the table does not name the old chunk any more.
//!
//! A crash before 3 leaves the old chunk, after it the new one; both have the same bytes, because no write was possible in between. What
//! 5 would have done is done before the next change of the pool, so an old chunk never comes back. When no volume has a chunk beyond the
//! end, the superblock says that the pool ends there.
//!
//! A shrink that was interrupted goes on when it is begun again, and can be called off at any time: what has moved stays where it is.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use flaz_device::{Device, IoBuf};

use crate::error::PoolError;
use crate::format::Owner;
use crate::planted::{PlantedBug, planted};
use crate::pool::{Pool, check_shares};

/// Bytes that are copied at a time.
const COPY_BYTES: u64 = 1 << 20;

impl<D: Device> Pool<D> {
    /// Begins to shrink to `chunks` chunks, or goes on with that.
    ///
    /// # Errors
    /// [`PoolError::TooSmall`]: the volumes need more, or are guaranteed more; or the device fails. Nothing has changed.
    pub async fn begin_shrink(&self, chunks: u32) -> Result<(), PoolError> {
        let _permit = self.writer.acquire(1).await;
        if !self.pending.borrow().is_empty() {
            self.read_again(true).await?;
        }
        self.settle().await?;
        let mut next = self.superblock();
        let least = next.chunks_least();
        if chunks < least {
            return Err(PoolError::TooSmall {
                least: next.layout.chunk_offset(least),
                found: next.layout.chunk_offset(chunks),
            });
        }
        next.shrink_to = (chunks < next.chunks).then_some(chunks);
        if next.shrink_to == self.superblock().shrink_to {
            return Ok(());
        }
        check_shares(&next)?;
        self.write_superblock(next).await?;
        self.table.borrow_mut().set_usable(chunks);
        Ok(())
    }

    /// Calls a shrink off, if there is one: all chunks may be used.
    ///
    /// # Errors
    /// The device fails.
    pub async fn cancel_shrink(&self) -> Result<(), PoolError> {
        let _permit = self.writer.acquire(1).await;
        self.call_off().await
    }

    pub(crate) async fn call_off(&self) -> Result<(), PoolError> {
        let mut next = self.superblock();
        if next.shrink_to.take().is_none() {
            return Ok(());
        }
        // Beyond the end, an older copy does not count; elsewhere it would contradict the newer one.
        self.settle().await?;
        let chunks = next.chunks;
        self.write_superblock(next).await?;
        self.table.borrow_mut().set_usable(chunks);
        Ok(())
    }

    /// The parts of a volume that lie beyond the end of a shrink.
    #[must_use]
    pub fn parts_beyond(&self, number: u32) -> Vec<u32> {
        let table = self.table.borrow();
        let own = table.beyond().filter(|(_, owner)| owner.volume == number);
        own.map(|(_, owner)| owner.index).collect()
    }

    /// Number of chunks that the volumes have more than there will be after a shrink: they have to give them back.
    #[must_use]
    pub fn chunks_too_many(&self) -> u32 {
        let usable = self.superblock().usable();
        self.table.borrow().used().saturating_sub(usable)
    }

    /// Moves a part of a volume that lies beyond the end of a shrink. The caller holds the volume, so it alone reads and writes the
    /// part. `patience` ends the wait for changes in flight.
    ///
    /// # Errors
    /// [`PoolError::Moving`]: they have not ended in time; [`PoolError::NoChunk`]: no chunk before the end is free; or the device fails.
    /// The part has its old chunk then, but if the table could not be written, and not be read again: then its changes fail until it can.
    pub async fn move_part(
        &self,
        number: u32,
        index: u32,
        patience: impl Future<Output = ()>,
    ) -> Result<(), PoolError> {
        let _permit = self.writer.acquire(1).await;
        self.settle().await?;
        let map = self.map(number)?;
        let owner = Owner {
            volume: number,
            index,
        };
        let usable = self.superblock().usable();
        let Some(from) = map.chunk(index).filter(|chunk| *chunk >= usable) else {
            return Ok(());
        };
        let to = self.table.borrow_mut().first_free();
        let to = to.ok_or_else(|| PoolError::NoChunk {
            volume: number.to_string(),
            why: "the volumes have not given enough back",
        })?;
        let hold = map.gate().hold(index);
        if planted(PlantedBug::MovedUnderWrites) {
            drop(map.gate().hold(index));
        } else {
            ended(hold.changes_ended(), patience)
                .await
                .ok_or(PoolError::Moving {
                    volume: number,
                    index,
                })?;
        }
        self.copy(from, to, map.part_bytes(index)).await?;
        self.table.borrow_mut().take(to, owner);
        if let Err(error) = self.write_sector(self.sector_of(to), true).await {
            self.table.borrow_mut().give(to);
            // The device may have the entry or not. Until that is known, no write may go to either chunk.
            if self.write_sector(self.sector_of(to), true).await.is_err() {
                self.unknown.set(true);
                hold.unknown();
            }
            return Err(error.into());
        }
        map.set(index, Some(to));
        hold.reads_ended().await;
        drop(hold);
        self.table.borrow_mut().leave(from);
        // If this fails, it is done again before the next change.
        Ok(self.write_sector(self.sector_of(from), true).await?)
    }

    /// Copies the first bytes of a chunk, and makes the copy stable.
    async fn copy(&self, from: u32, to: u32, bytes: u64) -> Result<(), PoolError> {
        let layout = self.superblock().layout;
        let mut at = 0;
        while at < bytes {
            let len = COPY_BYTES.min(bytes - at);
            let (buf, read) = self
                .device
                .read_at(layout.chunk_offset(from) + at, IoBuf::new(len as usize))
                .await;
            read?;
            let written = self.device.write_at(layout.chunk_offset(to) + at, buf, false);
            written.await.1?;
            at += len;
        }
        if planted(PlantedBug::MovedUnflushed) {
            return Ok(());
        }
        let flushed = self.device.flush().await.map_err(PoolError::from);
        self.noted(flushed)
    }

    /// Ends a shrink, if no volume has a chunk beyond its end. Returns whether the pool has its new size.
    ///
    /// # Errors
    /// The device fails: the pool may have either size, and uses no chunk beyond the smaller one.
    pub async fn end_shrink(&self) -> Result<bool, PoolError> {
        let _permit = self.writer.acquire(1).await;
        self.settle().await?;
        let mut next = self.superblock();
        let Some(chunks) = next.shrink_to.take() else {
            return Ok(true);
        };
        if self.table.borrow().beyond().next().is_some() {
            return Ok(false);
        }
        next.chunks = chunks;
        self.write_superblock(next).await?;
        self.table.borrow_mut().resize(chunks);
        Ok(true)
    }
}

/// Waits for the first, until the second has ended: then `None`.
async fn ended(first: impl Future<Output = ()>, second: impl Future<Output = ()>) -> Option<()> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|cx| match first.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(Some(())),
        Poll::Pending => second.as_mut().poll(cx).map(|()| None),
    })
    .await
}
