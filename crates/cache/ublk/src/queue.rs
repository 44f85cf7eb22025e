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
use std::os::fd::AsFd;
use std::pin::pin;

use flaz_device::IoBuf;
use flaz_device::local::Notify;
use flaz_engine::volume::Volume;
use flaz_runtime::OneReceiver;
use flaz_runtime::command::{Submission, command};
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::char_device::{CharDevice, Descriptors};
use crate::error::UblkError;
use crate::protocol::{IoCommand, IoOp};
use crate::request::{Refused, answer, changes_data, perform};

/// Pages are not smaller.
const PAGE_BYTES_MIN: usize = 4096;

/// Why a queue is no longer served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was asked to end. Requests wait for the next server.
    Parked,
    /// The driver ended it, with this error number: the device was stopped, or something is wrong.
    Driver(i32),
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
    /// A queue of a device, to be served on one thread.
    ///
    /// # Errors
    /// Its memory cannot be mapped.
    pub fn open(device: &CharDevice, number: u16) -> Result<Self, UblkError> {
        let info = &device.info;
        assert!(number < info.queues, "queue {number} of {}", info.queues);
        let descriptors =
            Descriptors::map(&device.fd, number, info.depth).map_err(|source| UblkError::Map {
                queue: number,
                source,
            })?;
        Ok(Self {
            device: device.clone(),
            number,
            descriptors,
        })
    }

    /// Serves the requests until the device is stopped, or until `park` is sent (or its sender dropped): then requests that
    /// are being served are answered, and others are left to the next server.
    pub async fn serve<V: Volume>(self, volume: V, park: OneReceiver<()>) -> End {
        let parking = Parking::default();
        let queue = &self;
        let tags = (0..self.device.info.depth).map(|tag| queue.serve_tag(tag, &volume, &parking));
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
        let submission = Submission::Soon;
        // SAFETY: the driver accesses no memory but that at the address, at most `request_bytes_max` bytes, which is all of
        // `buf`.
        unsafe { command(self.device.fd.as_fd(), number, bytes.to_bytes(), buf, submission).await }
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
