//! The served device: contents from the store, times from the model of the drive.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use flaz_device::{DeviceOp, Env, IoBuf, Nanos};
use flaz_engine::volume::{IoError, Segments, StatusExtent, Volume, segment_lens};
use flaz_runtime::Rt;

use super::store::Store;
use crate::nbd::{Place, check, elsewhere};
use crate::ssd::Description;
use crate::ssd::drive::{Counters, Drive};
use crate::ssd::ftl::Wear;

/// A clone is the same device, for another client of this thread.
#[derive(Clone, Debug)]
pub(super) struct SsdVolume {
    size: u64,
    store: Store,
    drive: Rc<RefCell<Drive>>,
}

impl SsdVolume {
    pub(super) fn new(device: &Description, size: u64, store: Store, slowdown: f64) -> Result<Self, String> {
        Ok(Self {
            size,
            store,
            drive: Rc::new(RefCell::new(Drive::new(device, slowdown)?)),
        })
    }

    pub(super) fn counters(&self) -> (Counters, Wear) {
        let drive = self.drive.borrow();
        (drive.counters(), drive.wear())
    }

    fn admit(&self, offset: u64, len: u64) -> Result<Nanos, IoError> {
        check(self.size, offset, len)?;
        Ok(Rt.now())
    }

    /// Runs `job` on another thread.
    async fn contents<T: Send + 'static>(
        &self,
        place: Place,
        job: impl FnOnce(Store) -> io::Result<T> + Send + 'static,
    ) -> Result<T, IoError> {
        let store = self.store.clone();
        elsewhere(place, move || job(store)).await
    }
}

/// The device has answered.
async fn wait_until(done: Nanos) {
    let left = done.since(Rt.now());
    if !left.is_zero() {
        Rt.sleep(left).await;
    }
}

impl Volume for SsdVolume {
    fn size(&self) -> u64 {
        self.size
    }

    async fn read(&self, offset: u64, len: u32) -> Result<Segments, IoError> {
        let arrived = self.admit(offset, len.into())?;
        let (first, end) = self.store.units(offset, len.into());
        let done = self.drive.borrow_mut().read(arrived, len.into(), first, end);
        let mut segments: Segments = segment_lens(offset, len.into()).map(IoBuf::new).collect();
        let what = (DeviceOp::Read, offset, len.into());
        let read = move |store: Store| {
            store.read(offset, &mut segments)?;
            Ok(segments)
        };
        let segments = self.contents(what, read).await?;
        wait_until(done).await;
        Ok(segments)
    }

    async fn write(&self, offset: u64, data: Segments, fua: bool) -> Result<(), IoError> {
        let len: u64 = data.iter().map(|piece| piece.len() as u64).sum();
        let arrived = self.admit(offset, len)?;
        let what = (DeviceOp::Write, offset, len);
        let sizes = self
            .contents(what, move |store| store.write(offset, &data))
            .await?;
        let (first, _) = self.store.units(offset, len);
        let done = self.drive.borrow_mut().write(arrived, len, first, &sizes, fua);
        wait_until(done).await;
        Ok(())
    }

    async fn flush(&self) -> Result<(), IoError> {
        let done = self.drive.borrow_mut().flush(Rt.now());
        wait_until(done).await;
        Ok(())
    }

    /// What is trimmed reads as zeros. The drive gives whole units up.
    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), IoError> {
        let arrived = self.admit(offset, len)?;
        let (first, end) = self.store.whole_units(offset, len);
        let what = (DeviceOp::Discard, offset, len);
        self.contents(what, move |store| store.punch(offset, len)).await?;
        let done = self.drive.borrow_mut().trim(arrived, first, end);
        wait_until(done).await;
        if fua { self.flush().await } else { Ok(()) }
    }

    async fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool, fua: bool) -> Result<(), IoError> {
        if may_unmap {
            return self.trim(offset, len, fua).await;
        }
        self.admit(offset, len)?;
        let mut at = offset;
        for piece in segment_lens(offset, len) {
            self.write(at, [IoBuf::zeroed(piece)].into_iter().collect(), fua)
                .await?;
            at += piece as u64;
        }
        Ok(())
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.admit(offset, len).map(|_| ())
    }

    async fn block_status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<StatusExtent>, IoError> {
        self.admit(offset, len)?;
        let drive = self.drive.borrow();
        let (first, end) = self.store.units(offset, len);
        let mut extents: Vec<StatusExtent> = Vec::new();
        for unit in first..end {
            let hole = !drive.has(unit);
            let (begin, next) = self.store.bytes_of(unit);
            let part = next.min(offset + len) - begin.max(offset);
            let full = extents.len() == extents_max;
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.len += part,
                _ if full => break,
                _ => extents.push(StatusExtent {
                    len: part,
                    hole,
                    zero: hole,
                }),
            }
        }
        Ok(extents)
    }
}
