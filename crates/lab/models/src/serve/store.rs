//! The contents of a served device: a file without a name. The codec of the device decides how much of each unit it stores.
//!
//! A write that covers a part of a unit reads the rest of it, as a drive does that compresses whole units.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use flaz_codec::{CodecSpec, Meter};
use flaz_device::IoBuf;
use rustix::fs::{FallocateFlags, fallocate};

use crate::ssd::Description;

thread_local! {
    /// The encoder of this thread.
    static METER: RefCell<Option<Meter>> = const { RefCell::new(None) };
}

/// The contents. Cheap to clone; jobs on other threads have clones.
#[derive(Clone, Debug)]
pub(super) struct Store {
    file: Arc<File>,
    device: Arc<Description>,
}

impl Store {
    pub(super) fn new(device: &Description, directory: &Path, size: u64) -> io::Result<Self> {
        let file = tempfile::tempfile_in(directory)?;
        file.set_len(size)?;
        Ok(Self {
            file: Arc::new(file),
            device: Arc::new(device.clone()),
        })
    }

    /// Numbers of the units that a range touches: the first, and the one after the last.
    pub(super) fn units(&self, offset: u64, len: u64) -> (u32, u32) {
        let unit = self.device.unit_bytes();
        ((offset / unit) as u32, (offset + len).div_ceil(unit) as u32)
    }

    /// The bytes of a unit: the first, and the one after the last.
    pub(super) fn bytes_of(&self, unit: u32) -> (u64, u64) {
        let bytes = self.device.unit_bytes();
        (u64::from(unit) * bytes, (u64::from(unit) + 1) * bytes)
    }

    /// Numbers of the units that lie in a range.
    pub(super) fn whole_units(&self, offset: u64, len: u64) -> (u32, u32) {
        let unit = self.device.unit_bytes();
        let first = offset.div_ceil(unit);
        (first as u32, ((offset + len) / unit).max(first) as u32)
    }

    /// Writes `data` at `offset`. Returns the granules that the drive stores of each unit it touches.
    pub(super) fn write(&self, offset: u64, data: &[IoBuf]) -> io::Result<Vec<u8>> {
        let mut at = offset;
        for piece in data {
            self.file.write_all_at(piece, at)?;
            at += piece.len() as u64;
        }
        self.sizes(offset, data, at - offset)
    }

    fn sizes(&self, offset: u64, data: &[IoBuf], len: u64) -> io::Result<Vec<u8>> {
        let unit = self.device.unit_bytes();
        let (first, end) = self.units(offset, len);
        let mut sizes = Vec::with_capacity((end - first) as usize);
        let mut whole = vec![0; unit as usize];
        for number in u64::from(first)..u64::from(end) {
            let begin = number * unit;
            let given = begin
                .checked_sub(offset)
                .and_then(|at| piece_of(data, at as usize, unit as usize));
            let contents = match given {
                Some(contents) => contents,
                None => {
                    self.file.read_exact_at(&mut whole, begin)?;
                    &whole
                }
            };
            sizes.push(self.granules(contents));
        }
        Ok(sizes)
    }

    fn granules(&self, contents: &[u8]) -> u8 {
        let engine = self.device.controller.engine;
        if engine == CodecSpec::NONE {
            return self.device.granules(1.0);
        }
        let left = METER.with_borrow_mut(|meter| {
            if meter.as_ref().is_none_or(|meter| meter.codec() != engine) {
                *meter = Some(Meter::new(engine));
            }
            meter.as_mut().map_or(1.0, |meter| 1.0 - meter.saved(contents))
        });
        self.device.granules(left)
    }

    /// Fills `data` from `offset` on.
    pub(super) fn read(&self, offset: u64, data: &mut [IoBuf]) -> io::Result<()> {
        let mut at = offset;
        for piece in data {
            self.file.read_exact_at(piece, at)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Makes a range read as zeros, and frees its space.
    pub(super) fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&*self.file, flags, offset, len) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => self.write_zeros(offset, len),
            Err(error) => Err(error.into()),
        }
    }

    fn write_zeros(&self, offset: u64, len: u64) -> io::Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let end = offset + len;
        for at in (offset..end).step_by(ZEROS.len()) {
            self.file
                .write_all_at(&ZEROS[..ZEROS.len().min((end - at) as usize)], at)?;
        }
        Ok(())
    }
}

/// The bytes from `at` on, if they are in one piece.
fn piece_of(data: &[IoBuf], mut at: usize, len: usize) -> Option<&[u8]> {
    for piece in data {
        if at < piece.len() {
            return piece.get(at..at + len);
        }
        at -= piece.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssd::description_file::preset;

    fn store(name: &str, unit_kib: u32) -> Store {
        let mut device = preset(name).unwrap();
        device.controller.unit_kib = unit_kib;
        Store::new(&device, &std::env::temp_dir(), 1 << 20).unwrap()
    }

    fn random(len: usize, seed: u64) -> IoBuf {
        let mut data = IoBuf::zeroed(len);
        flaz_random::Random::named(seed, "bytes").fill(&mut data);
        data
    }

    #[test]
    fn contents_are_kept_and_decide_what_is_stored() {
        let store = store("sf1222", 4);
        let sizes = store
            .write(4096, &[random(8192, 1), IoBuf::zeroed(4096)])
            .unwrap();
        assert_eq!(sizes, [64, 64, 9]);
        let mut read = [IoBuf::new(12_288)];
        store.read(4096, &mut read).unwrap();
        assert_eq!(read[0][..8192], random(8192, 1)[..]);
        assert!(read[0][8192..].iter().all(|byte| *byte == 0));
        // The second half of a unit of random data becomes zeros: half of it is left.
        let sizes = store.write(4096 + 2048, &[IoBuf::zeroed(2048)]).unwrap();
        assert!(sizes.len() == 1 && (32..35).contains(&sizes[0]), "{sizes:?}");
        store.punch(4096, 4096).unwrap();
        store.read(4096, &mut read).unwrap();
        assert!(read[0][..4096].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_drive_without_compression_stores_everything() {
        assert_eq!(
            store("sf1222-raw", 4).write(0, &[IoBuf::zeroed(8192)]).unwrap(),
            [64, 64]
        );
    }

    #[test]
    fn large_units_are_compressed_whole_also_across_pieces() {
        let store = store("sf1222", 32);
        let block = random(16 << 10, 2);
        let twice = [IoBuf::copy_of(&block), block];
        // A copy 16 KiB away is in the same unit.
        let sizes = store.write(0, &twice).unwrap();
        assert!(sizes.len() == 1 && sizes[0] <= 34, "{sizes:?}");
        assert_eq!(store.units(1, 32 << 10), (0, 2));
        assert_eq!(store.whole_units(1, 64 << 10), (1, 2));
        assert_eq!(store.whole_units(1, 100), (1, 1));
    }
}
