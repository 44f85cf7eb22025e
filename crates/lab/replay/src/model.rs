//! A simulated disk that takes as long as a modelled device.
//!
//! A request takes the positioning time and the transfer. Requests are replayed one after another, so no request waits for another;
//! what the cache does in the background takes no time. A disk skips the positioning time for a request of a client that continues the
//! one before it in the trace.
//!
//! Invariant: time passes only while a request of a client is served.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{Device, DeviceError, Env, IoBuf};
pub use flaz_runtime::emulate::{Model, Seek};
use flaz_sim::{SimDisk, SimEnv};

/// The request that is served.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Share of the client's request that is replayed: transfers take as much longer as the rest of it would.
    pub share: f64,
    /// The request continues the one before it.
    pub follows: bool,
}

/// Operations of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Reads; a part of a client's request counts as that part of a read.
    pub reads: f64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Writes, counted likewise.
    pub writes: f64,
    /// Bytes of them.
    pub write_bytes: u64,
}

/// The request that is served, if any: one for both devices of a cache.
pub type Serving = Rc<Cell<Option<Served>>>;

/// See the module's documentation.
pub struct Modelled {
    disk: SimDisk,
    env: SimEnv,
    model: Model,
    serving: Serving,
    traffic: Cell<Traffic>,
    /// Writes and discards reach the disk.
    changes: bool,
}

/// Time of an access to a device.
#[must_use]
pub fn access_time(model: &Model, is_write: bool, bytes: f64, follows: bool) -> Duration {
    let rate = match is_write {
        true => model.write_bytes_per_second,
        false => model.read_bytes_per_second,
    };
    let positioning = match follows && model.seek != Seek::None {
        true => Duration::ZERO,
        false => model.latency,
    };
    positioning + Duration::from_nanos((bytes * 1e9 / rate.max(1) as f64) as u64)
}

impl Modelled {
    /// `disk`, as slow as `model`.
    #[must_use]
    pub fn new(disk: SimDisk, env: SimEnv, model: Model, serving: Serving) -> Self {
        Self {
            disk,
            env,
            model,
            serving,
            traffic: Cell::default(),
            changes: true,
        }
    }

    /// A disk whose contents stay as they are: clients write what it has, so that it takes no memory.
    #[must_use]
    pub fn unchanging(disk: SimDisk, env: SimEnv, model: Model, serving: Serving) -> Self {
        Self {
            changes: false,
            ..Self::new(disk, env, model, serving)
        }
    }

    /// Operations so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic.get()
    }

    async fn pass(&self, is_write: bool, len: usize) {
        let served = self.serving.get();
        let mut traffic = self.traffic.get();
        let share = served.map_or(1.0, |served| served.share);
        match is_write {
            true => {
                (traffic.writes, traffic.write_bytes) =
                    (traffic.writes + share, traffic.write_bytes + len as u64)
            }
            false => {
                (traffic.reads, traffic.read_bytes) = (traffic.reads + share, traffic.read_bytes + len as u64)
            }
        }
        self.traffic.set(traffic);
        if let Some(served) = served {
            let time = access_time(&self.model, is_write, len as f64 / served.share, served.follows);
            if !time.is_zero() {
                self.env.sleep(time).await;
            }
        }
    }
}

impl Device for Modelled {
    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn alignment(&self) -> u32 {
        self.disk.alignment()
    }

    fn has_volatile_cache(&self) -> bool {
        self.disk.has_volatile_cache()
    }

    async fn read_at(&self, offset: u64, buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        self.pass(false, buf.len()).await;
        self.disk.read_at(offset, buf).await
    }

    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        self.pass(true, buf.len()).await;
        match self.changes {
            true => self.disk.write_at(offset, buf, fua).await,
            false => (buf, Ok(())),
        }
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        self.disk.flush().await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        match self.changes {
            true => self.disk.discard(offset, len).await,
            false => Ok(()),
        }
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), DeviceError> {
        match self.changes {
            true => self.disk.write_zeroes(offset, len, may_unmap, fua).await,
            false => Ok(()),
        }
    }
}
