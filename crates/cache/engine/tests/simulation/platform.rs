//! The devices of all tests, as one type: the engine is compiled once for each type of device.

use std::rc::Rc;

use flaz_device::deadline::Deadline;
use flaz_device::{Device, DeviceError, IoBuf};
use flaz_engine::router::{CachedVolume, LocalShards};
use flaz_engine::shard::Platform;
use flaz_runtime::emulate::Emulated;
use flaz_sim::{SimDisk, SimEnv};

use crate::faults::flushes::{FlushesAfter, LateErrors};

/// The platform of all tests.
pub struct Simulated;

impl Platform for Simulated {
    type Env = SimEnv;
    type Cache = AnyDevice;
    type Origin = AnyDevice;
}

/// A volume for clients.
pub type SimulatedVolume = CachedVolume<LocalShards<Simulated>, AnyDevice>;

/// A simulated disk, or a device over one.
pub enum AnyDevice {
    Disk(SimDisk),
    Limited(Deadline<SimDisk, SimEnv>),
    Slow(Emulated<SimDisk, SimEnv>),
    LateErrors(LateErrors),
    FlushesAfter(FlushesAfter),
}

impl AnyDevice {
    /// The disk itself.
    pub fn disk(disk: &SimDisk) -> Rc<Self> {
        Rc::new(Self::Disk(disk.clone()))
    }
}

/// Evaluates an expression with the device of any kind.
macro_rules! with {
    ($any:expr, $device:ident => $call:expr) => {
        match $any {
            AnyDevice::Disk($device) => $call,
            AnyDevice::Limited($device) => $call,
            AnyDevice::Slow($device) => $call,
            AnyDevice::LateErrors($device) => $call,
            AnyDevice::FlushesAfter($device) => $call,
        }
    };
}

impl Device for AnyDevice {
    fn len(&self) -> u64 {
        with!(self, device => device.len())
    }

    fn alignment(&self) -> u32 {
        with!(self, device => device.alignment())
    }

    fn fua_stands_alone(&self) -> bool {
        with!(self, device => device.fua_stands_alone())
    }

    fn has_volatile_cache(&self) -> bool {
        with!(self, device => device.has_volatile_cache())
    }

    async fn read_at(&self, offset: u64, buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        with!(self, device => device.read_at(offset, buf).await)
    }

    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        with!(self, device => device.write_at(offset, buf, fua).await)
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        with!(self, device => device.flush().await)
    }

    fn is_sparse(&self) -> bool {
        with!(self, device => device.is_sparse())
    }

    fn shares_space(&self) -> bool {
        with!(self, device => device.shares_space())
    }

    fn has_space(&self, offset: u64, len: u64) -> bool {
        with!(self, device => device.has_space(offset, len))
    }

    async fn deallocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        with!(self, device => device.deallocate(offset, len).await)
    }

    async fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        with!(self, device => device.allocate(offset, len).await)
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        with!(self, device => device.discard(offset, len).await)
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), DeviceError> {
        with!(self, device => device.write_zeroes(offset, len, may_unmap, fua).await)
    }

    async fn status(&self, offset: u64, len: u64, runs_max: usize) -> Result<Vec<(u64, bool)>, DeviceError> {
        with!(self, device => device.status(offset, len, runs_max).await)
    }
}
