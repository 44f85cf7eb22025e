//! A volume in memory, for tests and for measuring the front end alone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flaz_device::local::Notify;
use flaz_device::{DeviceError, DeviceOp, Env, IoBuf};
use flaz_engine::volume::{IoError, STRIPE_BYTES, Segments, StatusExtent, Volume, segment_lens};
use flaz_runtime::Rt;

/// A stripe; `None` if it was never written.
type Stripe = Option<Box<[u8]>>;

/// A disk in memory. A stripe is allocated when it is first written.
#[derive(Clone)]
pub struct RamVolume {
    size: u64,
    stripes: Rc<RefCell<Vec<Stripe>>>,
    /// What tests change and inspect.
    pub probe: Rc<Probe>,
}

/// Faults to inject, and counts.
#[derive(Default)]
pub struct Probe {
    /// Reads that cover this offset fail, and report this offset.
    pub bad_offset: Cell<Option<u64>>,
    /// Every request fails as if the cache were stopping.
    pub stopping: Cell<bool>,
    /// Requests wait for `gate` before they are served.
    pub closed: Cell<bool>,
    /// Notified when `closed` is cleared.
    pub gate: Notify,
    /// Requests that wait at the gate.
    pub waiting: Cell<usize>,
    /// Every request is delayed by this much.
    pub delay: Cell<Duration>,
    /// Flushes, and writes with FUA.
    pub flushes: Cell<usize>,
    pub fua_writes: Cell<usize>,
    pub prefetches: Cell<usize>,
}

impl RamVolume {
    pub fn new(size: u64) -> Self {
        let stripes = size.div_ceil(STRIPE_BYTES) as usize;
        Self {
            size,
            stripes: Rc::new(RefCell::new(vec![None; stripes])),
            probe: Rc::default(),
        }
    }

    async fn admit(&self, offset: u64, len: u64) -> Result<(), IoError> {
        if self.probe.closed.get() {
            self.probe.waiting.set(self.probe.waiting.get() + 1);
            while self.probe.closed.get() {
                self.probe.gate.notified().await;
            }
            self.probe.waiting.set(self.probe.waiting.get() - 1);
        }
        if !self.probe.delay.get().is_zero() {
            Rt.sleep(self.probe.delay.get()).await;
        }
        if self.probe.stopping.get() {
            return Err(IoError::Stopping);
        }
        if offset + len > self.size {
            return Err(IoError::OutOfRange {
                offset,
                len,
                size: self.size,
            });
        }
        if let Some(bad) = self
            .probe
            .bad_offset
            .get()
            .filter(|bad| (offset..offset + len).contains(bad))
        {
            let source = std::io::Error::from_raw_os_error(5);
            return Err(IoError::Origin(DeviceError::new(
                DeviceOp::Read,
                bad,
                512,
                source,
            )));
        }
        Ok(())
    }

    /// Calls `each` with a stripe and the range in it, for every part of a range of the disk.
    fn pieces(&self, offset: u64, len: u64, mut each: impl FnMut(&mut Stripe, std::ops::Range<usize>)) {
        let mut stripes = self.stripes.borrow_mut();
        let mut at = offset;
        for piece in segment_lens(offset, len) {
            let begin = (at % STRIPE_BYTES) as usize;
            each(&mut stripes[(at / STRIPE_BYTES) as usize], begin..begin + piece);
            at += piece as u64;
        }
    }
}

fn memory(stripe: &mut Stripe) -> &mut [u8] {
    stripe.get_or_insert_with(|| vec![0; STRIPE_BYTES as usize].into())
}

impl Volume for RamVolume {
    fn size(&self) -> u64 {
        self.size
    }

    async fn read(&self, offset: u64, len: u32) -> Result<Segments, IoError> {
        self.admit(offset, len.into()).await?;
        let mut segments = Segments::with_capacity(1);
        self.pieces(offset, len.into(), |stripe, range| {
            segments.push(match stripe {
                Some(stripe) => IoBuf::copy_of(&stripe[range]),
                None => IoBuf::zeroed(range.len()),
            });
        });
        Ok(segments)
    }

    async fn write(&self, offset: u64, data: Segments, fua: bool) -> Result<(), IoError> {
        let len: usize = data.iter().map(|segment| segment.len()).sum();
        self.admit(offset, len as u64).await?;
        self.probe
            .fua_writes
            .set(self.probe.fua_writes.get() + usize::from(fua));
        let mut data = data.into_iter();
        self.pieces(offset, len as u64, |stripe, range| {
            let segment = data.next().expect("one segment a stripe");
            memory(stripe)[range].copy_from_slice(&segment);
        });
        Ok(())
    }

    async fn flush(&self) -> Result<(), IoError> {
        self.admit(0, 0).await?;
        self.probe.flushes.set(self.probe.flushes.get() + 1);
        Ok(())
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), IoError> {
        self.write_zeroes(offset, len, true, fua).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool, _fua: bool) -> Result<(), IoError> {
        self.admit(offset, len).await?;
        self.pieces(offset, len, |stripe, range| {
            if may_unmap && range.len() as u64 == STRIPE_BYTES {
                *stripe = None;
            } else if stripe.is_some() || !may_unmap {
                memory(stripe)[range].fill(0);
            }
        });
        Ok(())
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.probe.prefetches.set(self.probe.prefetches.get() + 1);
        self.admit(offset, len).await
    }

    async fn block_status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<StatusExtent>, IoError> {
        self.admit(offset, len).await?;
        let mut extents: Vec<StatusExtent> = vec![];
        self.pieces(offset, len, |stripe, range| {
            let empty = stripe.is_none();
            extents.push(StatusExtent {
                len: range.len() as u64,
                hole: empty,
                zero: empty,
            });
        });
        extents.truncate(extents_max);
        Ok(extents)
    }
}
