//! The devices of the host: files and block devices, slowed down on request.

use flaz_device::deadline::Deadline;
use flaz_device::{Device, DeviceError, IoBuf};
use flaz_engine::shard::Platform;
use flaz_runtime::Rt;
use flaz_runtime::emulate::{Emulated, Model};
use flaz_runtime::file::FileDevice;

use flaz_control::settings::Emulation;

/// The environment that the engine runs in in production.
pub struct Production;

impl Platform for Production {
    type Env = Rt;
    type Cache = CacheDevice;
    type Origin = HostDevice;
}

/// The cache device as one thread uses it: operations have a time limit.
pub type CacheDevice = Deadline<HostDevice, Rt>;

/// A device, possibly slowed down. Clones, on any thread, are the same device.
#[derive(Clone, Debug)]
pub enum HostDevice {
    /// At full speed.
    Plain(FileDevice),
    /// Slowed down to the speed of an emulated device.
    Slow(Emulated<FileDevice, Rt>),
}

impl HostDevice {
    /// A device, slowed down if asked for.
    pub fn new(file: FileDevice, emulation: Option<Emulation>) -> Self {
        let model = match emulation {
            None => return Self::Plain(file),
            Some(Emulation::Hdd) => Model::HDD,
            Some(Emulation::Ssd) => Model::SSD,
            Some(Emulation::NetworkVolume) => Model::NETWORK_VOLUME,
        };
        Self::Slow(Emulated::new(file, Rt, model))
    }
}

impl HostDevice {
    /// The file or device, at full speed.
    pub fn file(&self) -> &FileDevice {
        match self {
            Self::Plain(device) => device,
            Self::Slow(device) => device.device(),
        }
    }
}

macro_rules! both {
    ($self:ident, $device:ident => $call:expr) => {
        match $self {
            HostDevice::Plain($device) => $call,
            HostDevice::Slow($device) => $call,
        }
    };
}

impl Device for HostDevice {
    fn len(&self) -> u64 {
        both!(self, device => device.len())
    }

    fn alignment(&self) -> u32 {
        both!(self, device => device.alignment())
    }

    fn fua_stands_alone(&self) -> bool {
        both!(self, device => device.fua_stands_alone())
    }

    fn has_volatile_cache(&self) -> bool {
        both!(self, device => device.has_volatile_cache())
    }

    async fn read_at(&self, offset: u64, buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        both!(self, device => device.read_at(offset, buf).await)
    }

    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        both!(self, device => device.write_at(offset, buf, fua).await)
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        both!(self, device => device.flush().await)
    }

    fn is_sparse(&self) -> bool {
        both!(self, device => device.is_sparse())
    }

    async fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        both!(self, device => device.allocate(offset, len).await)
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        both!(self, device => device.discard(offset, len).await)
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), DeviceError> {
        both!(self, device => device.write_zeroes(offset, len, may_unmap, fua).await)
    }

    async fn status(&self, offset: u64, len: u64, runs_max: usize) -> Result<Vec<(u64, bool)>, DeviceError> {
        both!(self, device => Device::status(device, offset, len, runs_max).await)
    }
}
