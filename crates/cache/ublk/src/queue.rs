//! The requests of one queue of a device.
//!
//! For each request that may be in flight, there is a command that waits for one (*fetch*). A request is answered by a
//! command that also waits for the next one, so that a busy queue needs one command a request.
//!
//! Invariants:
//! - between a command and its completion, the driver alone uses the buffer of that tag; otherwise this process does;
//! - a request is answered once. A request that cannot be answered, because the cache stops, is left to the next server;
//! - a read-only device is not written to, whatever the kernel sends.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::pin::pin;
use std::ptr::NonNull;
use std::sync::Arc;

use flaz_device::IoBuf;
use flaz_device::local::Notify;
use flaz_engine::volume::{IoError, Segments, Volume, segment_lens};
use flaz_runtime::OneReceiver;
use flaz_runtime::command::command;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::UblkError;
use crate::protocol::{
    DESCRIPTOR_BYTES, Descriptor, DeviceInfo, Encoding, IoCommand, IoOp, Op, QUEUE_DEPTH_MAX,
};

/// Pages are not smaller.
const PAGE_BYTES_MIN: usize = 4096;
/// Distance of the descriptors of two queues in the mapping of the character device.
const QUEUE_BYTES: u64 = QUEUE_DEPTH_MAX as u64 * DESCRIPTOR_BYTES as u64;

/// Whether several queues can be mapped. Pages of 64 KiB, as some Arm kernels have, do not divide what the driver reserves
/// for a queue.
#[must_use]
pub fn many_queues_are_possible() -> bool {
    QUEUE_BYTES.is_multiple_of(rustix::param::page_size() as u64)
}

/// Why a queue is no longer served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was asked to end. Requests wait for the next server.
    Parked,
    /// The driver ended it, with this error number: the device was stopped, or something is wrong.
    Driver(i32),
}

/// The character device of a ublk device.
#[derive(Clone, Debug)]
pub struct CharDevice {
    fd: Arc<OwnedFd>,
    info: DeviceInfo,
    encoding: Encoding,
    read_only: bool,
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

    /// One of its queues, to be served on one thread.
    ///
    /// # Errors
    /// Its memory cannot be mapped.
    pub fn queue(&self, number: u16) -> Result<Queue, UblkError> {
        assert!(
            number < self.info.queues,
            "queue {number} of {}",
            self.info.queues
        );
        let descriptors =
            Descriptors::map(&self.fd, number, self.info.depth).map_err(|source| UblkError::Map {
                queue: number,
                source,
            })?;
        Ok(Queue {
            device: self.clone(),
            number,
            descriptors,
        })
    }
}

/// The descriptors of the requests of a queue: memory that the driver writes.
struct Descriptors {
    first: NonNull<Descriptor>,
    bytes: usize,
    depth: u16,
}

// SAFETY: it is a mapping of its own, which is only read, by whoever has it.
unsafe impl Send for Descriptors {}

impl Descriptors {
    fn map(fd: &OwnedFd, queue: u16, depth: u16) -> io::Result<Self> {
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

    fn get(&self, tag: u16) -> Descriptor {
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

/// One queue.
pub struct Queue {
    device: CharDevice,
    number: u16,
    descriptors: Descriptors,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// Whether the queue leaves further requests to the next server.
#[derive(Default)]
struct Parking {
    begun: Cell<bool>,
    changed: Notify,
}

impl Parking {
    async fn begins(&self) {
        if !self.begun.get() {
            self.changed.notified().await;
        }
    }
}

impl Queue {
    /// Serves the requests until the device is stopped, or until `park` is sent (or its sender dropped): then requests that
    /// are being served are answered, and others are left to the next server.
    pub async fn serve<V: Volume>(self, volume: V, park: OneReceiver<()>) -> End {
        let parking = Parking::default();
        let queue = &self;
        let tags = (0..self.descriptors.depth).map(|tag| queue.serve_tag(tag, &volume, &parking));
        let mut tags: FuturesUnordered<_> = tags.collect();
        let all = async {
            let mut end = End::Parked;
            while let Some(of_tag) = tags.next().await {
                if end == End::Parked {
                    end = of_tag;
                }
            }
            end
        };
        let mut all = pin!(all);
        match select(&mut all, pin!(park.recv())).await {
            Either::Left((end, _)) => end,
            Either::Right(_) => {
                parking.begun.set(true);
                parking.changed.notify_all();
                all.await
            }
        }
    }

    /// Serves one request after the other.
    async fn serve_tag<V: Volume>(&self, tag: u16, volume: &V, parking: &Parking) -> End {
        let buf = in_memory(self.device.info.request_bytes_max as usize);
        let mut next = (IoOp::Fetch, 0, buf);
        loop {
            let (op, result, buf) = next;
            let waiting = pin!(self.command(op, tag, result, buf));
            let (mut buf, status) = match select(waiting, pin!(parking.begins())).await {
                Either::Left((done, _)) => done,
                // The answer has been sent; the driver keeps the rest of the command.
                Either::Right(_) => return End::Parked,
            };
            if parking.begun.get() {
                return End::Parked;
            }
            if status < 0 {
                return End::Driver(-status);
            }
            let request = self.descriptors.get(tag);
            let done = match self.device.read_only && changes_data(request.op()) {
                true => Err(Refused::ReadOnly),
                false => perform(volume, request, &mut buf).await.map_err(Refused::Failed),
            };
            let Some(result) = answer(done, request) else {
                return End::Parked;
            };
            next = (IoOp::CommitAndFetch, result, buf);
        }
    }

    /// Sends a command; returns its status when there is a request.
    async fn command(&self, op: IoOp, tag: u16, result: i32, mut buf: IoBuf) -> (IoBuf, i32) {
        assert_eq!(
            buf.len(),
            self.device.info.request_bytes_max as usize,
            "there is room for any request"
        );
        let bytes = IoCommand {
            queue: self.number,
            tag,
            result,
            address: buf.as_mut_ptr() as u64,
        };
        let number = op.number(self.device.encoding);
        // SAFETY: the driver accesses no memory but that at the address, at most `request_bytes_max` bytes, which is all of
        // `buf`.
        unsafe { command(self.device.fd.as_fd(), number, bytes.to_bytes(), buf).await }
    }
}

/// A buffer whose memory is there: when the kernel is short of it, and writes to this device to get some, it is too late to
/// ask for it.
fn in_memory(len: usize) -> IoBuf {
    let mut buf = IoBuf::zeroed(len);
    for byte in buf.iter_mut().step_by(PAGE_BYTES_MIN) {
        // Hidden from the compiler, which knows that the memory is zero.
        *std::hint::black_box(byte) = 0;
    }
    buf
}

/// Why a request has no result.
#[derive(Debug)]
enum Refused {
    ReadOnly,
    Failed(IoError),
}

/// The driver's form of a result: bytes, or a negative error number. `None`: the next server answers.
fn answer(result: Result<(), Refused>, request: Descriptor) -> Option<i32> {
    match result {
        Ok(()) => Some(i32::try_from(request.len()).unwrap_or(i32::MAX)),
        Err(Refused::ReadOnly) => Some(-libc::EPERM),
        Err(Refused::Failed(IoError::Stopping)) => None,
        Err(Refused::Failed(error)) => {
            tracing::debug!(%error, ?request, "a request failed");
            Some(-errno(&error))
        }
    }
}

fn errno(error: &IoError) -> i32 {
    match error {
        IoError::OutOfRange { .. } => libc::EINVAL,
        IoError::Origin(device) if device.source.raw_os_error() == Some(libc::ENOSPC) => libc::ENOSPC,
        IoError::Origin(_)
        | IoError::OriginShared
        | IoError::CacheFailed(_)
        | IoError::DirtyLost { .. }
        | IoError::Stopping => libc::EIO,
    }
}

fn changes_data(op: Op) -> bool {
    match op {
        Op::Write { .. } | Op::Discard | Op::WriteZeroes { .. } => true,
        Op::Read | Op::Flush | Op::Other(_) => false,
    }
}

/// Performs a request, with its data in `buf`.
async fn perform<V: Volume>(volume: &V, request: Descriptor, buf: &mut IoBuf) -> Result<(), IoError> {
    let (offset, len) = (request.offset(), request.len());
    let out_of_range = || IoError::OutOfRange {
        offset,
        len,
        size: volume.size(),
    };
    match request.op() {
        Op::Read | Op::Write { .. } if len > buf.len() as u64 || offset.checked_add(len).is_none() => {
            Err(out_of_range())
        }
        Op::Read => {
            let data = volume.read(offset, len as u32).await?;
            let mut at = 0;
            for part in &data {
                buf[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            assert_eq!(at as u64, len, "a read returns all that was asked for");
            Ok(())
        }
        Op::Write { fua } => {
            let mut at = 0;
            let parts: Segments = segment_lens(offset, len)
                .map(|len| {
                    let part = IoBuf::copy_of(&buf[at..at + len]);
                    at += len;
                    part
                })
                .collect();
            volume.write(offset, parts, fua).await
        }
        Op::Flush => volume.flush().await,
        Op::Discard => volume.trim(offset, len, false).await,
        Op::WriteZeroes { may_unmap, fua } => volume.write_zeroes(offset, len, may_unmap, fua).await,
        // The driver does not send it, because no parameter permits it.
        Op::Other(_) => Err(out_of_range()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use flaz_device::{DeviceError, DeviceOp};
    use flaz_engine::volume::StatusExtent;
    use futures_util::FutureExt;
    use zerocopy::FromBytes;

    use super::*;

    const SIZE: u64 = 4 << 20;

    /// A volume in memory that notes what it is asked for.
    #[derive(Clone)]
    struct Memory {
        bytes: Rc<RefCell<Vec<u8>>>,
        asked: Rc<RefCell<Vec<String>>>,
    }

    impl Memory {
        fn new() -> Self {
            Self {
                bytes: Rc::new(RefCell::new(vec![0; SIZE as usize])),
                asked: Rc::default(),
            }
        }

        fn check(&self, offset: u64, len: u64) -> Result<std::ops::Range<usize>, IoError> {
            let end = offset.checked_add(len).filter(|end| *end <= SIZE);
            let out_of_range = IoError::OutOfRange {
                offset,
                len,
                size: SIZE,
            };
            end.map_or(Err(out_of_range), |end| Ok(offset as usize..end as usize))
        }

        fn note(&self, what: String) {
            self.asked.borrow_mut().push(what);
        }
    }

    impl Volume for Memory {
        fn size(&self) -> u64 {
            SIZE
        }

        async fn read(&self, offset: u64, len: u32) -> Result<Segments, IoError> {
            let range = self.check(offset, u64::from(len))?;
            let mut at = range.start;
            Ok(segment_lens(offset, u64::from(len))
                .map(|len| {
                    let part = IoBuf::copy_of(&self.bytes.borrow()[at..at + len]);
                    at += len;
                    part
                })
                .collect())
        }

        async fn write(&self, offset: u64, data: Segments, fua: bool) -> Result<(), IoError> {
            self.note(format!("write in {} parts, fua {fua}", data.len()));
            let mut at = offset;
            for part in data {
                let range = self.check(at, part.len() as u64)?;
                self.bytes.borrow_mut()[range].copy_from_slice(&part);
                at += part.len() as u64;
            }
            Ok(())
        }

        async fn flush(&self) -> Result<(), IoError> {
            self.note("flush".to_owned());
            Ok(())
        }

        async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), IoError> {
            self.check(offset, len)?;
            self.note(format!("trim {offset}+{len}, fua {fua}"));
            Ok(())
        }

        async fn write_zeroes(
            &self,
            offset: u64,
            len: u64,
            may_unmap: bool,
            fua: bool,
        ) -> Result<(), IoError> {
            self.note(format!("zeroes {offset}+{len}, unmap {may_unmap}, fua {fua}"));
            let range = self.check(offset, len)?;
            self.bytes.borrow_mut()[range].fill(0);
            Ok(())
        }

        async fn prefetch(&self, _: u64, _: u64) -> Result<(), IoError> {
            unreachable!("ublk has no such request")
        }

        async fn block_status(&self, _: u64, _: u64, _: usize) -> Result<Vec<StatusExtent>, IoError> {
            unreachable!("ublk has no such request")
        }
    }

    fn request(op_flags: u32, sectors: u32, first_sector: u64) -> Descriptor {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[..4].copy_from_slice(&op_flags.to_ne_bytes());
        bytes[4..8].copy_from_slice(&sectors.to_ne_bytes());
        bytes[8..16].copy_from_slice(&first_sector.to_ne_bytes());
        Descriptor::read_from_bytes(&bytes).expect("24 bytes")
    }

    fn performed(volume: &Memory, request: Descriptor, buf: &mut IoBuf) -> Option<i32> {
        let done = perform(volume, request, buf).now_or_never();
        answer(
            done.expect("the volume never waits").map_err(Refused::Failed),
            request,
        )
    }

    #[test]
    fn data_goes_to_the_volume_and_back() {
        let volume = Memory::new();
        let mut buf = IoBuf::zeroed(128 << 10);
        buf.iter_mut()
            .zip(1_u32..)
            .for_each(|(byte, n)| *byte = (n / 3) as u8);
        let written = IoBuf::copy_of(&buf);
        // Across the border of a stripe, where data is cut.
        let first = (1 << 20) / 512 - 8;
        assert_eq!(
            performed(&volume, request(1 | 1 << 13, 256, first), &mut buf),
            Some(128 << 10)
        );
        assert_eq!(*volume.asked.borrow(), ["write in 2 parts, fua true"]);
        buf.fill(0);
        assert_eq!(
            performed(&volume, request(0, 256, first), &mut buf),
            Some(128 << 10)
        );
        assert!(buf[..] == written[..]);
    }

    #[test]
    fn requests_without_data_reach_the_volume() {
        let volume = Memory::new();
        let mut buf = IoBuf::zeroed(4096);
        let all = [
            (request(2, 0, u64::MAX), 0, "flush"),
            (request(3, 16, 8), 8192, "trim 4096+8192, fua false"),
            (
                request(5, 2048, 0),
                1 << 20,
                "zeroes 0+1048576, unmap true, fua false",
            ),
            (
                request(5 | 1 << 15 | 1 << 13, 8, 8),
                4096,
                "zeroes 4096+4096, unmap false, fua true",
            ),
        ];
        for (request, result, asked) in all {
            assert_eq!(performed(&volume, request, &mut buf), Some(result));
            assert_eq!(volume.asked.borrow_mut().pop().as_deref(), Some(asked));
        }
    }

    #[test]
    fn impossible_requests_get_an_error() {
        let volume = Memory::new();
        let mut buf = IoBuf::zeroed(4096);
        let sectors = SIZE / 512;
        for wrong in [
            request(0, 8, sectors),
            request(0, 16, 0),
            request(1, 16, 0),
            request(0, 8, u64::MAX),
            request(1, 8, u64::MAX),
            request(3, 8, u64::MAX),
            request(5, u32::MAX, 0),
            request(4, 8, 0),
        ] {
            assert_eq!(
                performed(&volume, wrong, &mut buf),
                Some(-libc::EINVAL),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn a_read_only_device_refuses_all_that_changes_data() {
        let refused = |op_flags| changes_data(request(op_flags, 8, 0).op());
        assert!([1, 1 | 1 << 13, 3, 5].into_iter().all(refused));
        assert!(![0, 2].into_iter().any(refused));
    }

    #[test]
    fn errors_have_numbers_and_a_stop_has_no_answer() {
        let origin = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            IoError::Origin(DeviceError::new(DeviceOp::Write, 0, 512, source))
        };
        let answered = |error| answer(Err(Refused::Failed(error)), request(1, 8, 0));
        assert_eq!(
            answer(Err(Refused::ReadOnly), request(1, 8, 0)),
            Some(-libc::EPERM)
        );
        assert_eq!(answered(origin(libc::ENOSPC)), Some(-libc::ENOSPC));
        assert_eq!(answered(origin(libc::EIO)), Some(-libc::EIO));
        assert_eq!(answered(IoError::DirtyLost { block: 3 }), Some(-libc::EIO));
        assert_eq!(answered(IoError::Stopping), None, "the next server answers");
    }
}
