//! The chunks of a volume, taken and given back by the pool itself.

use std::io;
use std::rc::Rc;

use flaz_device::Device;

use crate::device::Chunks;
use crate::pool::Pool;

/// The chunks of one volume, on the thread of the pool.
pub struct ChunksOf<D> {
    pool: Rc<Pool<D>>,
    volume: u32,
}

impl<D> ChunksOf<D> {
    pub(crate) fn new(pool: &Rc<Pool<D>>, volume: u32) -> Self {
        let pool = Rc::clone(pool);
        Self { pool, volume }
    }
}

impl<D> Clone for ChunksOf<D> {
    fn clone(&self) -> Self {
        Self {
            pool: Rc::clone(&self.pool),
            volume: self.volume,
        }
    }
}

impl<D: Device> Chunks for ChunksOf<D> {
    async fn take(&self, index: u32) -> io::Result<()> {
        let taken = self.pool.take_part(self.volume, index).await;
        taken.map_err(io::Error::from)
    }

    async fn give(&self, index: u32) -> io::Result<()> {
        let given = self.pool.give_part(self.volume, index).await;
        given.map_err(io::Error::from)
    }

    fn failed_flushes(&self) -> u64 {
        self.pool.failed_flushes()
    }

    fn note_failed_flush(&self) {
        self.pool.note_failed_flush();
    }
}
