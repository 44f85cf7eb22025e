//! The devices of the host: files and block devices, slowed down on request.

use flaz_device::deadline::Deadline;
use flaz_device::{Device, DeviceError, IoBuf};
use flaz_engine::shard::Platform;
use flaz_runtime::Rt;
use flaz_runtime::emulate::{Emulated, Model};
use flaz_runtime::file::FileDevice;

use std::path::Path;

use flaz_control::settings::Emulation;

use crate::error::HostError;
use crate::pool::{Member, Part, Place};
use crate::safety::{self, Access, Claim};

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
    /// A volume's part of a cache device.
    Part(Part),
    /// The same, slowed down.
    SlowPart(Emulated<Part, Rt>),
}

fn model(emulation: Emulation) -> Model {
    match emulation {
        Emulation::Hdd => Model::HDD,
        Emulation::Ssd => Model::SSD,
        Emulation::NetworkVolume => Model::NETWORK_VOLUME,
    }
}

impl HostDevice {
    /// A device, slowed down if asked for.
    pub fn new(file: FileDevice, emulation: Option<Emulation>) -> Self {
        match emulation {
            None => Self::Plain(file),
            Some(emulation) => Self::Slow(Emulated::new(file, Rt, model(emulation))),
        }
    }

    fn of_part(part: Part, emulation: Option<Emulation>) -> Self {
        match emulation {
            None => Self::Part(part),
            Some(emulation) => Self::SlowPart(Emulated::new(part, Rt, model(emulation))),
        }
    }

    /// The file or device, at full speed.
    pub fn file(&self) -> &FileDevice {
        match self {
            Self::Plain(device) => device,
            Self::Slow(device) => device.device(),
            Self::Part(part) => part.device(),
            Self::SlowPart(part) => part.device().device(),
        }
    }
}

/// The cache device of a cache that this process holds: a whole device or file, or a volume's part of one.
#[derive(Debug)]
pub(crate) struct HeldCache {
    /// The device, at full speed.
    device: HostDevice,
    /// The volume, if it is a part.
    pub(crate) member: Option<Member>,
    _claim: Option<Claim>,
}

impl HeldCache {
    /// Opens and holds the cache device at a place: with others that read, or alone.
    ///
    /// # Errors
    /// It is missing or in use, or cannot be opened.
    pub(crate) fn open(place: &Path, access: Access) -> Result<Self, HostError> {
        let place = Place::of_cache(place)?;
        let Some(volume) = &place.volume else {
            let claim = safety::claim_existing(&place.device, access)?;
            let file = crate::daemon::open_cache(&place.device, access == Access::Read)?;
            return Ok(Self {
                device: HostDevice::Plain(file),
                member: None,
                _claim: Some(claim),
            });
        };
        let member = Member::open(&place.device, volume, access)?;
        Ok(Self {
            device: HostDevice::Part(member.part.clone()),
            member: Some(member),
            _claim: None,
        })
    }

    /// The device, slowed down if asked for.
    pub(crate) fn device(&self, emulation: Option<Emulation>) -> HostDevice {
        match &self.member {
            Some(member) => HostDevice::of_part(member.part.clone(), emulation),
            None => HostDevice::new(self.device.file().clone(), emulation),
        }
    }
}

macro_rules! both {
    ($self:ident, $device:ident => $call:expr) => {
        match $self {
            HostDevice::Plain($device) => $call,
            HostDevice::Slow($device) => $call,
            HostDevice::Part($device) => $call,
            HostDevice::SlowPart($device) => $call,
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

    fn shares_space(&self) -> bool {
        both!(self, device => device.shares_space())
    }

    fn has_space(&self, offset: u64, len: u64) -> bool {
        both!(self, device => device.has_space(offset, len))
    }

    async fn deallocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        both!(self, device => device.deallocate(offset, len).await)
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
