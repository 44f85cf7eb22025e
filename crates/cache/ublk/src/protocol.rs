//! The structures of the ublk driver, as `linux/ublk_cmd.h` defines them, and its command numbers. Pure.
//!
//! All numbers are in the byte order of the machine.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::UblkError;

/// Bytes of a sector in all structures.
pub const SECTOR_BYTES: u64 = 512;
/// The number of the queue in a command that concerns no queue.
pub const NO_QUEUE: u16 = u16::MAX;
/// The number of the device in [`ControlOp::Add`] that asks for a free one.
pub const ANY_DEVICE: u32 = u32::MAX;
/// Size of a descriptor of a request.
pub const DESCRIPTOR_BYTES: usize = size_of::<Descriptor>();
/// Descriptors that the driver reserves for each queue in the mapping of its character device.
pub const QUEUE_DEPTH_MAX: u16 = 4096;

/// Processors that a set has room for: no kernel supports more.
const PROCESSORS_MAX: usize = 8192;

/// Features of the driver, and flags of a device.
pub mod flag {
    /// The server gets no copy of the data.
    pub const SUPPORT_ZERO_COPY: u64 = 1 << 0;
    /// The driver asks for memory when it has data of a write.
    pub const NEED_GET_DATA: u64 = 1 << 2;
    /// A device outlives its server.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// Requests that a server did not answer go to the next one.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands are numbered like ioctls.
    pub const IOCTL_ENCODE: u64 = 1 << 6;
    /// The size of a device can be changed.
    pub const UPDATE_SIZE: u64 = 1 << 10;
    /// The server copies data itself.
    pub const USER_COPY: u64 = 1 << 7;
    /// The device is zoned.
    pub const ZONED: u64 = 1 << 8;
    /// The driver registers the pages of data as buffers of the ring.
    pub const AUTO_BUF_REG: u64 = 1 << 11;
    /// What a device must have, so that its requests outlive a server.
    pub const RECOVERY: u64 = USER_RECOVERY | USER_RECOVERY_REISSUE;
    /// What needs another server than this one.
    pub const OTHER_MODES: u64 = SUPPORT_ZERO_COPY | NEED_GET_DATA | USER_COPY | ZONED | AUTO_BUF_REG;
}

/// Attributes of a device.
pub mod attribute {
    /// Writes are refused.
    pub const READ_ONLY: u32 = 1 << 0;
    /// Flushes have an effect.
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    /// Writes with FUA are supported.
    pub const FUA: u32 = 1 << 3;
}

/// The kinds of parameters in [`Parameters`].
pub mod parameters {
    /// The first part.
    pub const BASIC: u32 = 1 << 0;
    /// Discard and write-zeroes.
    pub const DISCARD: u32 = 1 << 1;
}

/// Commands to `/dev/ublk-control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlOp {
    /// Reads a [`DeviceInfo`].
    GetInfo,
    /// Adds a device.
    Add,
    /// Deletes a device.
    Delete,
    /// Makes the block device appear. Its data is the process number of the server.
    Start,
    /// Makes the block device disappear.
    Stop,
    /// Sets [`Parameters`].
    SetParameters,
    /// Reads [`Parameters`].
    GetParameters,
    /// Gives a device whose server has ended to this process.
    StartRecovery,
    /// Continues its requests. Its data is the process number of the server.
    EndRecovery,
    /// Reads the [`Processors`] of a queue.
    GetQueueAffinity,
    /// Reads the features of the driver.
    GetFeatures,
    /// Changes the size of a device: Linux 6.16 and later. Its data is the size in sectors.
    UpdateSize,
}

/// Commands to `/dev/ublkcN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOp {
    /// Waits for a request.
    Fetch,
    /// Answers a request, and waits for the next one.
    CommitAndFetch,
}

/// How commands are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Like ioctls: Linux 6.4 and later.
    Ioctl,
    /// Plain numbers.
    Plain,
}

const fn ioctl(read: bool, write: bool, number: u32, size: usize) -> u32 {
    (read as u32) << 31 | (write as u32) << 30 | (size as u32) << 16 | (b'u' as u32) << 8 | number
}

impl ControlOp {
    /// The number of the command.
    #[must_use]
    pub const fn number(self, encoding: Encoding) -> u32 {
        let (number, writes) = match self {
            Self::GetQueueAffinity => (0x01, false),
            Self::GetInfo => (0x02, false),
            Self::Add => (0x04, true),
            Self::Delete => (0x05, true),
            Self::Start => (0x06, true),
            Self::Stop => (0x07, true),
            Self::SetParameters => (0x08, true),
            Self::GetParameters => (0x09, false),
            Self::StartRecovery => (0x10, true),
            Self::EndRecovery => (0x11, true),
            Self::GetFeatures => (0x13, false),
            Self::UpdateSize => (0x15, true),
        };
        match encoding {
            Encoding::Ioctl => ioctl(true, writes, number, size_of::<ControlCommand>()),
            Encoding::Plain => number,
        }
    }
}

impl IoOp {
    /// The number of the command.
    #[must_use]
    pub const fn number(self, encoding: Encoding) -> u32 {
        let number = match self {
            Self::Fetch => 0x20,
            Self::CommitAndFetch => 0x21,
        };
        match encoding {
            Encoding::Ioctl => ioctl(true, true, number, size_of::<IoCommand>()),
            Encoding::Plain => number,
        }
    }
}

/// `struct ublksrv_ctrl_cmd`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ControlCommand {
    /// Number of the device.
    pub device: u32,
    /// Number of the queue, or [`NO_QUEUE`].
    pub queue: u16,
    /// Bytes at `address`.
    pub len: u16,
    /// Address of a structure that the driver reads or writes.
    pub address: u64,
    /// A number, for some commands.
    pub data: u64,
    pub(crate) path_len: u16,
    pub(crate) padding: u16,
    pub(crate) reserved: u32,
}

impl ControlCommand {
    /// A command without data, for a device.
    #[must_use]
    pub fn of(device: u32) -> Self {
        Self {
            device,
            queue: NO_QUEUE,
            ..Self::default()
        }
    }
}

/// State of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// There is no block device.
    Dead,
    /// The block device is there, and has a server.
    Live,
    /// The block device is there, and waits for another server.
    Quiesced,
    /// Not known to this version.
    Other(u16),
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceInfo {
    /// Number of queues.
    pub queues: u16,
    /// Maximum number of requests in flight of each queue.
    pub depth: u16,
    pub(crate) state: u16,
    pub(crate) padding: u16,
    /// Maximum size of a request in bytes.
    pub request_bytes_max: u32,
    /// Number of the device.
    pub device: u32,
    /// Process number of the server.
    pub server: i32,
    pub(crate) padding_2: u32,
    /// See [`flag`].
    pub flags: u64,
    /// Chosen by the server, and kept by the driver.
    pub stamp: u64,
    pub(crate) owner: [u32; 2],
    pub(crate) reserved: [u64; 2],
}

impl DeviceInfo {
    /// With another state, as the driver numbers them: 0 dead, 1 live, 2 quiesced. For tests.
    #[must_use]
    pub fn in_state(self, state: u16) -> Self {
        Self { state, ..self }
    }

    /// Whether [`crate::queue`] can serve it, and the next server after it.
    pub(crate) fn is_usable(&self) -> Result<(), UblkError> {
        if self.flags & flag::RECOVERY == flag::RECOVERY && self.flags & flag::OTHER_MODES == 0 {
            return Ok(());
        }
        Err(UblkError::Mode {
            device: self.device,
            flags: self.flags,
        })
    }

    /// The state of the device.
    #[must_use]
    pub fn state(&self) -> DeviceState {
        match self.state {
            0 => DeviceState::Dead,
            1 => DeviceState::Live,
            2 => DeviceState::Quiesced,
            other => DeviceState::Other(other),
        }
    }
}

/// `struct ublk_params`, as far as it is used here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Parameters {
    /// Bytes of this structure that count.
    pub(crate) len: u32,
    pub(crate) types: u32,
    /// See [`attribute`].
    pub attributes: u32,
    /// Binary logarithms of the sizes of a logical block, of a physical block, of the best and of the smallest good request.
    pub shifts: [u8; 4],
    /// Maximum size of a request in sectors.
    pub sectors_max: u32,
    pub(crate) chunk_sectors: u32,
    /// Size of the device in sectors.
    pub sectors: u64,
    pub(crate) virtual_boundary: u64,
    pub(crate) discard_alignment: u32,
    /// Granularity of discards in bytes.
    pub discard_granularity: u32,
    /// Maximum size of a discard in sectors; 0: there is none.
    pub discard_sectors_max: u32,
    /// The same for write-zeroes.
    pub zeroes_sectors_max: u32,
    /// Maximum number of ranges in a discard.
    pub discard_segments_max: u16,
    pub(crate) reserved: u16,
    pub(crate) unused: u32,
}

impl Parameters {
    /// Bytes that the driver reads and writes.
    pub const BYTES: u16 = 60;

    /// Parameters of which both parts are set.
    #[must_use]
    pub fn both() -> Self {
        Self {
            len: u32::from(Self::BYTES),
            types: parameters::BASIC | parameters::DISCARD,
            ..Self::default()
        }
    }

    /// Room for the driver's answer.
    #[must_use]
    pub fn room() -> Self {
        Self::both()
    }
}

/// A set of processors, as the kernel writes one: a bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Processors {
    words: [u64; PROCESSORS_MAX / 64],
}

impl Default for Processors {
    fn default() -> Self {
        Self {
            words: [0; PROCESSORS_MAX / 64],
        }
    }
}

impl Processors {
    /// The numbers of the processors.
    pub fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..PROCESSORS_MAX).filter(|number| self.words[number / 64] >> (number % 64) & 1 == 1)
    }

    /// Adds the processors of another set.
    pub fn add(&mut self, other: &Self) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }
}

/// `struct ublksrv_io_cmd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoCommand {
    /// Number of the queue.
    pub queue: u16,
    /// Number of the request in its queue.
    pub tag: u16,
    /// Bytes done, or a negative error number; for [`IoOp::CommitAndFetch`].
    pub result: i32,
    /// Address of the memory for the request's data.
    pub address: u64,
}

impl IoCommand {
    /// The bytes to send.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.as_bytes().try_into().expect("16 bytes")
    }
}

/// `struct ublksrv_io_desc`: a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Descriptor {
    op_flags: u32,
    sectors: u32,
    first_sector: u64,
    address: u64,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read.
    Read,
    /// Write; with FUA, stable when answered.
    Write {
        /// Stable when answered.
        fua: bool,
    },
    /// Makes answered writes stable.
    Flush,
    /// Gives a range up.
    Discard,
    /// Makes a range read as zeroes.
    WriteZeroes {
        /// Its storage may be deallocated.
        may_unmap: bool,
        /// Stable when answered.
        fua: bool,
    },
    /// Not known here.
    Other(u8),
}

const FUA: u32 = 1 << 13;
const NO_UNMAP: u32 = 1 << 15;

impl Descriptor {
    /// What it asks for.
    #[must_use]
    pub fn op(&self) -> Op {
        let fua = self.op_flags & FUA != 0;
        match self.op_flags as u8 {
            0 => Op::Read,
            1 => Op::Write { fua },
            2 => Op::Flush,
            3 => Op::Discard,
            5 => Op::WriteZeroes {
                may_unmap: self.op_flags & NO_UNMAP == 0,
                fua,
            },
            other => Op::Other(other),
        }
    }

    /// Byte offset on the device. That of a flush has no meaning.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.first_sector.saturating_mul(SECTOR_BYTES)
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        u64::from(self.sectors) * SECTOR_BYTES
    }

    /// Whether it concerns no bytes, as a flush does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sectors == 0
    }
}

const _: () = assert!(size_of::<ControlCommand>() == 32);
const _: () = assert!(size_of::<DeviceInfo>() == 64);
const _: () = assert!(size_of::<Parameters>() == 64);
const _: () = assert!(size_of::<Processors>() == 1024);
const _: () = assert!(size_of::<IoCommand>() == 16);
const _: () = assert!(size_of::<Descriptor>() == 24);

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the macros in the kernel's header.
    #[test]
    fn commands_have_the_kernel_numbers() {
        let all = [
            (ControlOp::GetQueueAffinity, 0x8020_7501, 0x01),
            (ControlOp::GetInfo, 0x8020_7502, 0x02),
            (ControlOp::Add, 0xc020_7504, 0x04),
            (ControlOp::Delete, 0xc020_7505, 0x05),
            (ControlOp::Start, 0xc020_7506, 0x06),
            (ControlOp::Stop, 0xc020_7507, 0x07),
            (ControlOp::SetParameters, 0xc020_7508, 0x08),
            (ControlOp::GetParameters, 0x8020_7509, 0x09),
            (ControlOp::StartRecovery, 0xc020_7510, 0x10),
            (ControlOp::EndRecovery, 0xc020_7511, 0x11),
            (ControlOp::GetFeatures, 0x8020_7513, 0x13),
            (ControlOp::UpdateSize, 0xc020_7515, 0x15),
        ];
        for (op, ioctl, plain) in all {
            assert_eq!(op.number(Encoding::Ioctl), ioctl, "{op:?}");
            assert_eq!(op.number(Encoding::Plain), plain, "{op:?}");
        }
        assert_eq!(IoOp::Fetch.number(Encoding::Ioctl), 0xc010_7520);
        assert_eq!(IoOp::CommitAndFetch.number(Encoding::Ioctl), 0xc010_7521);
        assert_eq!(IoOp::Fetch.number(Encoding::Plain), 0x20);
        assert_eq!(IoOp::CommitAndFetch.number(Encoding::Plain), 0x21);
    }

    #[test]
    fn a_control_command_has_its_fields_in_place() {
        let command = ControlCommand {
            len: 64,
            address: 0x1122_3344_5566_7788,
            data: 0x99,
            ..ControlCommand::of(0x0102_0304)
        };
        let mut expected = Vec::new();
        expected.extend(0x0102_0304_u32.to_ne_bytes());
        expected.extend(0xffff_u16.to_ne_bytes());
        expected.extend(64_u16.to_ne_bytes());
        expected.extend(0x1122_3344_5566_7788_u64.to_ne_bytes());
        expected.extend(0x99_u64.to_ne_bytes());
        expected.extend([0; 8]);
        assert_eq!(command.as_bytes(), expected);
    }

    #[test]
    fn an_io_command_has_its_fields_in_place() {
        let command = IoCommand {
            queue: 0x0102,
            tag: 0x0304,
            result: -5,
            address: 0x1122_3344_5566_7788,
        };
        let mut expected = Vec::new();
        expected.extend(0x0102_u16.to_ne_bytes());
        expected.extend(0x0304_u16.to_ne_bytes());
        expected.extend((-5_i32).to_ne_bytes());
        expected.extend(0x1122_3344_5566_7788_u64.to_ne_bytes());
        assert_eq!(command.to_bytes(), expected[..]);
    }

    #[test]
    fn device_information_is_read_from_its_bytes() {
        let mut bytes = [0_u8; 64];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &2_u16.to_ne_bytes());
        put(2, &128_u16.to_ne_bytes());
        put(4, &2_u16.to_ne_bytes());
        put(8, &(512_u32 << 10).to_ne_bytes());
        put(12, &7_u32.to_ne_bytes());
        put(16, &4321_i32.to_ne_bytes());
        put(24, &(flag::USER_RECOVERY | flag::IOCTL_ENCODE).to_ne_bytes());
        put(32, &0xfeed_u64.to_ne_bytes());
        let info = DeviceInfo::read_from_bytes(&bytes).expect("64 bytes");
        assert_eq!((info.queues, info.depth, info.device), (2, 128, 7));
        assert_eq!(info.state(), DeviceState::Quiesced);
        assert_eq!((info.request_bytes_max, info.server), (512 << 10, 4321));
        assert_eq!(
            (info.flags, info.stamp),
            (flag::USER_RECOVERY | flag::IOCTL_ENCODE, 0xfeed)
        );
    }

    #[test]
    fn a_device_in_another_mode_is_not_usable() {
        let info = |flags| DeviceInfo {
            flags,
            ..DeviceInfo::default()
        };
        assert!(
            info(flag::RECOVERY | flag::IOCTL_ENCODE | 1 << 1 | 1 << 13)
                .is_usable()
                .is_ok()
        );
        for flags in [
            0,
            flag::USER_RECOVERY,
            flag::RECOVERY | flag::USER_COPY,
            flag::RECOVERY | flag::NEED_GET_DATA,
            flag::RECOVERY | flag::SUPPORT_ZERO_COPY,
            flag::RECOVERY | flag::AUTO_BUF_REG,
            flag::RECOVERY | flag::ZONED,
        ] {
            let error = info(flags).is_usable().unwrap_err().to_string();
            assert!(error.contains("expected recovery with reissue"), "{error}");
        }
    }

    #[test]
    fn a_set_of_processors_has_a_bit_for_each() {
        let mut bytes = [0_u8; 1024];
        (bytes[0], bytes[8]) = (0b101, 1);
        let processors = Processors::read_from_bytes(&bytes).expect("1024 bytes");
        let mut all = Processors::default();
        all.add(&processors);
        assert_eq!(all.numbers().collect::<Vec<_>>(), [0, 2, 64]);
    }

    #[test]
    fn parameters_have_their_fields_in_place() {
        let parameters = Parameters {
            attributes: attribute::FUA,
            shifts: [9, 12, 12, 12],
            sectors_max: 512,
            sectors: 0x0102_0304_0506,
            discard_granularity: 4096,
            discard_sectors_max: 8,
            zeroes_sectors_max: 16,
            discard_segments_max: 1,
            ..Parameters::both()
        };
        let bytes = parameters.as_bytes();
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!((u32_at(0), u32_at(4), u32_at(8)), (60, 3, 8));
        assert_eq!(bytes[12..16], [9, 12, 12, 12]);
        assert_eq!(u32_at(16), 512);
        assert_eq!(bytes[24..32], 0x0102_0304_0506_u64.to_ne_bytes());
        assert_eq!((u32_at(44), u32_at(48), u32_at(52)), (4096, 8, 16));
        assert_eq!(bytes[56..58], 1_u16.to_ne_bytes());
    }

    #[test]
    fn requests_are_read_from_their_descriptors() {
        let request = |op_flags| Descriptor {
            op_flags,
            sectors: 8,
            first_sector: 1 << 33,
            address: 0,
        };
        let op = |op_flags| request(op_flags).op();
        assert_eq!((request(0).offset(), request(0).len()), (1 << 42, 4096));
        assert_eq!(op(0), Op::Read);
        assert_eq!(
            (op(1), op(1 | FUA)),
            (Op::Write { fua: false }, Op::Write { fua: true })
        );
        assert_eq!((op(2), op(3), op(4)), (Op::Flush, Op::Discard, Op::Other(4)));
        let zeroes = |may_unmap, fua| Op::WriteZeroes { may_unmap, fua };
        assert_eq!(op(5), zeroes(true, false));
        assert_eq!(op(5 | NO_UNMAP | FUA), zeroes(false, true));
        // The driver gives a flush no sector.
        let flush = Descriptor {
            first_sector: u64::MAX,
            sectors: 0,
            ..request(2)
        };
        assert!(flush.is_empty() && flush.offset() == u64::MAX);
        // Flags that change nothing here: metadata, fail fast.
        assert_eq!(op(1 | 1 << 11 | 1 << 8), Op::Write { fua: false });
    }
}
