//! A device or file whose requests are recorded.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Seek};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use flaz_codec::compressibility::single_value;
use flaz_codec::{CodecSpec, Meter};
use flaz_device::{DeviceOp, IoBuf};
use flaz_engine::volume::{IoError, Segments, StatusExtent, Volume, segment_lens};
use flaz_trace::Op;
use flaz_trace::recording::{RECORDED_BLOCK_BYTES, RECORDED_CODECS, Sizes, Stored};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::journal::Journal;
use crate::nbd::{Place, check, elsewhere};

const BLOCK_BYTES: usize = RECORDED_BLOCK_BYTES as usize;

thread_local! {
    /// The encoders of this thread.
    static METERS: RefCell<Vec<Meter>> = const { RefCell::new(Vec::new()) };
}

/// Clones are the same device, for other clients of this thread.
#[derive(Clone, Debug)]
pub(super) struct Recorded {
    file: Arc<File>,
    size: u64,
    journal: Journal,
}

impl Recorded {
    pub fn new(mut file: File, journal: Journal) -> io::Result<Self> {
        let size = file.seek(io::SeekFrom::End(0))?;
        Ok(Self {
            file: Arc::new(file),
            size,
            journal,
        })
    }

    /// Runs `job` on another thread.
    async fn on_file<T: Send + 'static>(
        &self,
        place: Place,
        job: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
    ) -> Result<T, IoError> {
        let file = Arc::clone(&self.file);
        elsewhere(place, move || job(&file)).await
    }

    /// Frees a range. Returns whether the device can do that.
    async fn punch(&self, place: Place, fua: bool) -> Result<bool, IoError> {
        let (_, offset, len) = place;
        self.on_file(place, move |file| {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match fallocate(file, flags, offset, len) {
                Ok(()) if fua => file.sync_data().map(|()| true),
                Ok(()) => Ok(true),
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }
}

impl Volume for Recorded {
    fn size(&self) -> u64 {
        self.size
    }

    async fn read(&self, offset: u64, len: u32) -> Result<Segments, IoError> {
        check(self.size, offset, len.into())?;
        let ticket = self.journal.begin(Op::Read, offset, len.into());
        let mut data: Segments = segment_lens(offset, len.into()).map(IoBuf::new).collect();
        let read = move |file: &File| {
            let mut at = offset;
            for piece in &mut data {
                file.read_exact_at(piece, at)?;
                at += piece.len() as u64;
            }
            let sizes = sizes(file, offset, &data)?;
            Ok((data, sizes))
        };
        let (data, sizes) = self.on_file((DeviceOp::Read, offset, len.into()), read).await?;
        ticket.done(sizes);
        Ok(data)
    }

    async fn write(&self, offset: u64, data: Segments, fua: bool) -> Result<(), IoError> {
        let len: u64 = data.iter().map(|piece| piece.len() as u64).sum();
        check(self.size, offset, len)?;
        let ticket = self.journal.begin(Op::Write, offset, len);
        let write = move |file: &File| {
            let mut at = offset;
            for piece in &data {
                file.write_all_at(piece, at)?;
                at += piece.len() as u64;
            }
            if fua {
                file.sync_data()?;
            }
            sizes(file, offset, &data)
        };
        let sizes = self.on_file((DeviceOp::Write, offset, len), write).await?;
        ticket.done(sizes);
        Ok(())
    }

    async fn flush(&self) -> Result<(), IoError> {
        self.on_file((DeviceOp::Flush, 0, 0), File::sync_data).await
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), IoError> {
        check(self.size, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let ticket = self.journal.begin(Op::Trim, offset, len);
        self.punch((DeviceOp::Discard, offset, len), fua).await?;
        ticket.done(Vec::new());
        Ok(())
    }

    /// A range that is freed reads as zeros, and is recorded as a trim.
    async fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool, fua: bool) -> Result<(), IoError> {
        check(self.size, offset, len)?;
        if may_unmap && len > 0 {
            let ticket = self.journal.begin(Op::Trim, offset, len);
            if self.punch((DeviceOp::WriteZeroes, offset, len), fua).await? {
                ticket.done(Vec::new());
                return Ok(());
            }
        }
        let mut at = offset;
        for piece in segment_lens(offset, len) {
            self.write(at, [IoBuf::zeroed(piece)].into_iter().collect(), fua)
                .await?;
            at += piece as u64;
        }
        Ok(())
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<(), IoError> {
        check(self.size, offset, len)
    }

    async fn block_status(
        &self,
        offset: u64,
        len: u64,
        _extents_max: usize,
    ) -> Result<Vec<StatusExtent>, IoError> {
        check(self.size, offset, len)?;
        Ok(vec![StatusExtent {
            len,
            hole: false,
            zero: false,
        }])
    }
}

/// Sizes of the blocks that `data` at `offset` touches. Blocks that it has in part are read.
fn sizes(file: &File, offset: u64, data: &[IoBuf]) -> io::Result<Vec<Sizes>> {
    let mut sizes = Vec::new();
    let mut block = [0; BLOCK_BYTES];
    let mut at = offset;
    for piece in data {
        let end = at + piece.len() as u64;
        // A piece begins in a block of the piece before it only if the request does not begin with a block.
        let mut first = at - at % RECORDED_BLOCK_BYTES;
        while first < end {
            let whole =
                (first.checked_sub(at)).and_then(|skip| piece.get(skip as usize..)?.get(..BLOCK_BYTES));
            match whole {
                Some(whole) => sizes.push(measure(whole)),
                None => {
                    block.fill(0);
                    read_up_to(file, &mut block, first)?;
                    sizes.push(measure(&block));
                }
            }
            first += RECORDED_BLOCK_BYTES;
        }
        at = end;
    }
    Ok(sizes)
}

/// Reads a block, of which the end of the device may cut off a part.
fn read_up_to(file: &File, block: &mut [u8], offset: u64) -> io::Result<()> {
    let mut filled = 0;
    while filled < block.len() {
        match file.read_at(&mut block[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn measure(block: &[u8]) -> Sizes {
    if single_value(block).is_some() {
        return [Stored::SINGLE_VALUE; RECORDED_CODECS.len()];
    }
    METERS.with_borrow_mut(|meters| {
        if meters.is_empty() {
            let meter = |name: &&str| Meter::new(name.parse::<CodecSpec>().expect("a codec of the registry"));
            meters.extend(RECORDED_CODECS.iter().map(meter));
        }
        let mut sizes = Sizes::default();
        for (size, meter) in sizes.iter_mut().zip(meters) {
            *size = Stored::bytes(meter.stored_bytes(block) as u64);
        }
        sizes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(bytes, 0).expect("written");
        file
    }

    #[test]
    fn sizes_are_those_of_whole_blocks() {
        let mut bytes = vec![7; 4 * BLOCK_BYTES + 1000];
        let mut random = flaz_random::Random::new(1);
        random.fill(&mut bytes[BLOCK_BYTES..2 * BLOCK_BYTES]);
        random.fill(&mut bytes[2 * BLOCK_BYTES..2 * BLOCK_BYTES + 2048]);
        let file = file(&bytes);
        let of = |offset: usize, len: usize| {
            let data = IoBuf::copy_of(&bytes[offset..offset + len]);
            let sizes = sizes(&file, offset as u64, &[data]).expect("read");
            sizes.iter().map(|it| it[0].granules()).collect::<Vec<_>>()
        };
        let whole = of(0, 3 * BLOCK_BYTES);
        assert_eq!(whole[..2], [0, 64]);
        assert!((32..36).contains(&whole[2]), "{whole:?}");
        // Parts of the same blocks.
        assert_eq!(of(512, 2 * BLOCK_BYTES), whole);
        assert_eq!(of(BLOCK_BYTES + 512, 512), whole[1..2]);
        // The last block is not whole: its missing end counts as zeros.
        assert!(of(4 * BLOCK_BYTES, 1000)[0] <= 2);
    }
}
