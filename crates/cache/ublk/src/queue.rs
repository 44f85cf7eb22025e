//! The service of one queue.
//!
//! For each request that may be in flight, there is a command that waits for one (*fetch*). A request is answered by a
//! command that also waits for the next one, so that a busy queue needs one command a request.
//!
//! A kill between two fetches may leave a device that the driver gives to no other server: see [`crate::take_over`]. So the
//! memory of a queue is there before it is served, its fetches are submitted by one system call, and the requests are mapped
//! afterwards: the first one comes only when the driver has all fetches of the device.
//!
//! Invariants:
//! - between a command and its completion, the driver alone uses the buffer of that tag; otherwise this process does;
//! - a request is answered once. A request that cannot be answered, because the cache stops, is left to the next server;
//! - a read-only device is not written to, whatever the kernel sends;
//! - an error of the driver is reported when it occurs: the tag that has it serves no more requests, and one that the kernel
//!   sends to it would wait for ever.

use std::cell::{Cell, OnceCell};
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;

use flaz_device::local::{Notify, Semaphore};
use flaz_device::{Env, IoBuf};
use flaz_engine::router::PIECES_MAX;
use flaz_engine::volume::{STRIPE_BYTES, Volume};
use flaz_runtime::command::{Submission, command};
use flaz_runtime::{OneReceiver, Rt};
use futures_util::future::{Either, join, select};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::char_device::{CharDevice, Descriptors};
use crate::counters::Counters;
use crate::error::UblkError;
use crate::protocol::{Descriptor, DeviceInfo, IoCommand, IoOp};
use crate::request::{Refused, answer, changes_data, is_range, perform};

/// Pages are not smaller.
const PAGE_BYTES_MIN: usize = 4096;
/// Discards and writes of zeroes in progress that are larger than a request with data. Others wait: they may be a thousand
/// times larger, and each takes as much memory as the volume processes at a time.
const LARGE_RANGES_MAX: usize = 1;
/// The memory that such a request takes.
const LARGE_RANGE_BYTES: usize = PIECES_MAX * STRIPE_BYTES as usize;

/// Memory that the requests of a queue take at most while they are performed, in bytes. Its buffers are not included.
#[must_use]
pub fn bytes_in_progress_max(depth: u16, request_bytes_max: usize) -> usize {
    usize::from(depth) * request_bytes_max + LARGE_RANGES_MAX * LARGE_RANGE_BYTES
}

/// One queue, with the buffers of its requests.
pub struct Queue {
    number: u16,
    buffers: Vec<IoBuf>,
    counters: Arc<Counters>,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Queue {
    /// A queue of a device. Call this on the thread that will serve it, so that its memory is near that thread.
    #[must_use]
    pub fn new(number: u16, info: &DeviceInfo, counters: Arc<Counters>) -> Self {
        assert!(number < info.queues, "queue {number} of {}", info.queues);
        let buffer = |_| in_memory(info.request_bytes_max as usize);
        Self {
            number,
            buffers: (0..info.depth).map(buffer).collect(),
            counters,
        }
    }

    /// Serves the requests until the device is stopped, or until `park` is sent (or its sender dropped): then requests that
    /// are being served are answered, and others are left to the next server. `failed` is called once at most.
    pub async fn serve<V: Volume>(
        self,
        device: CharDevice,
        volume: V,
        park: OneReceiver<()>,
        failed: impl Fn(UblkError),
    ) {
        let read_only = device.read_only;
        let driver = QueueDevice {
            device,
            number: self.number,
        };
        serve(self, &driver, &volume, read_only, park, failed).await;
    }
}

/// The driver, as a queue uses it.
trait Driver {
    /// Sends a command; returns its status when there is a request.
    async fn command(&self, op: IoOp, tag: u16, result: i32, buf: IoBuf) -> (IoBuf, i32);

    /// Maps the requests by their tags. The fetches have been submitted before.
    async fn map(&self) -> Result<Box<dyn Fn(u16) -> Descriptor>, UblkError>;
}

struct QueueDevice {
    device: CharDevice,
    number: u16,
}

impl Driver for QueueDevice {
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
        let submission = match op {
            IoOp::Fetch => Submission::Together,
            IoOp::CommitAndFetch => Submission::Soon,
        };
        // SAFETY: the driver accesses no memory but that at the address, at most `request_bytes_max` bytes, which is all of
        // `buf`.
        unsafe { command(self.device.fd.as_fd(), number, bytes.to_bytes(), buf, submission).await }
    }

    async fn map(&self) -> Result<Box<dyn Fn(u16) -> Descriptor>, UblkError> {
        // The end of this turn submits the fetches.
        Rt.yield_now().await;
        let depth = self.device.info.depth;
        let mapped = Descriptors::map(&self.device.fd, self.number, depth);
        let descriptors = mapped.map_err(|source| UblkError::Map {
            queue: self.number,
            source,
        })?;
        Ok(Box::new(move |tag| descriptors.get(tag)))
    }
}

/// Why a tag is no longer served.
enum End {
    /// It was asked to end. Requests wait for the next server.
    Parked,
    /// The driver ended it, with this error number: the device was stopped, or something is wrong.
    Driver(i32),
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

/// The requests, when they are mapped.
#[derive(Default)]
struct Requests {
    mapped: OnceCell<Box<dyn Fn(u16) -> Descriptor>>,
    changed: Notify,
}

impl Requests {
    async fn get(&self, tag: u16) -> Descriptor {
        loop {
            match self.mapped.get() {
                Some(request) => return request(tag),
                None => self.changed.notified().await,
            }
        }
    }
}

/// What all tags of a queue share.
struct Service<'a, D, V> {
    driver: &'a D,
    volume: &'a V,
    read_only: bool,
    parking: Parking,
    requests: Requests,
    large_ranges: Semaphore,
    counters: &'a Counters,
}

async fn serve<D: Driver, V: Volume>(
    queue: Queue,
    driver: &D,
    volume: &V,
    read_only: bool,
    park: OneReceiver<()>,
    failed: impl Fn(UblkError),
) {
    let number = queue.number;
    let service = Service {
        driver,
        volume,
        read_only,
        parking: Parking::default(),
        requests: Requests::default(),
        large_ranges: Semaphore::new(LARGE_RANGES_MAX),
        counters: &queue.counters,
    };
    let tags = (0..)
        .zip(queue.buffers)
        .map(|(tag, buf)| service.serve_tag(tag, buf));
    let mut tags: FuturesUnordered<_> = tags.collect();
    let first_failure = Cell::new(Some(failed));
    let report = |error| {
        if let Some(failed) = first_failure.take() {
            failed(error);
        }
    };
    let all = async {
        while let Some(end) = tags.next().await {
            if let End::Driver(errno) = end {
                let source = io::Error::from_raw_os_error(errno);
                report(UblkError::Ended {
                    queue: number,
                    source,
                });
            }
        }
    };
    let map = async {
        match driver.map().await {
            Ok(requests) => {
                let _ = service.requests.mapped.set(requests);
                service.requests.changed.notify_all();
            }
            Err(error) => report(error),
        }
    };
    // The first poll sends all fetches, and only then begins to map.
    let mut all = pin!(join(all, map));
    if let Either::Right(_) = select(&mut all, pin!(park.recv())).await {
        service.parking.begun.set(true);
        service.parking.changed.notify_all();
        all.await;
    }
}

impl<D: Driver, V: Volume> Service<'_, D, V> {
    /// Serves one request after the other.
    async fn serve_tag(&self, tag: u16, buf: IoBuf) -> End {
        let mut next = (IoOp::Fetch, 0, buf);
        loop {
            let (op, result, buf) = next;
            let waiting = pin!(self.next_request(op, tag, result, buf));
            let (mut buf, request) = match select(waiting, pin!(self.parking.begins())).await {
                Either::Left((Ok(request), _)) => request,
                Either::Left((Err(end), _)) => return end,
                // The answer has been sent; the driver keeps the rest of the command.
                Either::Right(_) => return End::Parked,
            };
            let is_large = is_range(request.op()) && request.len() > buf.len() as u64;
            let _turn = match is_large {
                true => Some(self.large_ranges.acquire(1).await),
                false => None,
            };
            if self.parking.begun.get() {
                return End::Parked;
            }
            self.counters.begin(request.op());
            let done = match self.read_only && changes_data(request.op()) {
                true => Err(Refused::ReadOnly),
                false => perform(self.volume, request, &mut buf)
                    .await
                    .map_err(Refused::Failed),
            };
            let failed = done.is_err();
            let result = answer(done, request);
            // What the next server answers has not failed.
            self.counters.end(request.op(), failed && result.is_some());
            let Some(result) = result else {
                return End::Parked;
            };
            next = (IoOp::CommitAndFetch, result, buf);
        }
    }

    async fn next_request(
        &self,
        op: IoOp,
        tag: u16,
        result: i32,
        buf: IoBuf,
    ) -> Result<(IoBuf, Descriptor), End> {
        let (buf, status) = self.driver.command(op, tag, result, buf).await;
        if status < 0 {
            return Err(End::Driver(-status));
        }
        Ok((buf, self.requests.get(tag).await))
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

#[cfg(test)]
mod tests;
