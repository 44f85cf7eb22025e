//! `/dev/ublkcN`: the file through which the requests of a device come.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags};

use crate::error::UblkError;
use crate::protocol::{DESCRIPTOR_BYTES, Descriptor, DeviceInfo, Encoding, QUEUE_DEPTH_MAX};

/// Distance of the descriptors of two queues in the mapping of the character device.
const QUEUE_BYTES: u64 = QUEUE_DEPTH_MAX as u64 * DESCRIPTOR_BYTES as u64;

/// Whether several queues can be mapped. Pages of 64 KiB, as some Arm kernels have, do not divide what the driver reserves
/// for a queue.
#[must_use]
pub fn many_queues_are_possible() -> bool {
    QUEUE_BYTES.is_multiple_of(rustix::param::page_size() as u64)
}

/// The character device of a ublk device.
#[derive(Clone, Debug)]
pub struct CharDevice {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) info: DeviceInfo,
    pub(crate) encoding: Encoding,
    pub(crate) read_only: bool,
}

impl CharDevice {
    /// Opens the device. Only one process can have it open.
    ///
    /// # Errors
    /// The system's.
    pub fn open(info: DeviceInfo, encoding: Encoding, read_only: bool) -> Result<Self, UblkError> {
        let path = PathBuf::from(format!("/dev/ublkc{}", info.device));
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(|source| UblkError::Open { path, source })?;
        Ok(Self {
            fd: Arc::new(file.into()),
            info,
            encoding,
            read_only,
        })
    }
}

/// The descriptors of the requests of a queue: memory that the driver writes.
pub(crate) struct Descriptors {
    first: NonNull<Descriptor>,
    bytes: usize,
    depth: u16,
}

// SAFETY: it is a mapping of its own, which is only read, by whoever has it.
unsafe impl Send for Descriptors {}

impl Descriptors {
    pub(crate) fn map(fd: &OwnedFd, queue: u16, depth: u16) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let bytes = (usize::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(page);
        let offset = u64::from(queue) * QUEUE_BYTES;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, flags, fd, offset) }?;
        let first = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { first, bytes, depth })
    }

    pub(crate) fn get(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth, "tag {tag} of {}", self.depth);
        // SAFETY: the mapping has `depth` descriptors. The driver wrote this one before it completed the command of this tag,
        // and does not change it before the request is answered.
        unsafe { self.first.add(usize::from(tag)).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, of which no reference is left.
        let unmapped = unsafe { rustix::mm::munmap(self.first.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}
