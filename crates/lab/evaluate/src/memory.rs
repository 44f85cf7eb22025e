//! A device in memory: the bytes behind a modelled device, which take no time.
//!
//! Invariants: a block that was never written has the contents of the background, or zeroes; a write is stable when it returns.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;

use flaz_device::{Device, DeviceError, DeviceOp, IoBuf};
use flaz_engine::units::BLOCK_BYTES;
use flaz_sim::disk::Background;

use crate::contents::Block;

/// Granularity of offsets and lengths.
const SECTOR_BYTES: u32 = 512;

/// The device. Clones are the same one.
#[derive(Clone)]
pub struct Memory {
    len: u64,
    background: Option<Background>,
    written: Rc<RefCell<HashMap<u64, Box<Block>>>>,
}

impl Memory {
    /// A device of `len` bytes.
    #[must_use]
    pub fn new(len: u64, background: Option<Background>) -> Self {
        Self {
            len,
            background,
            written: Rc::default(),
        }
    }

    /// Contents of a block before it is written.
    fn first(&self, block: u64, bytes: &mut Block) {
        match &self.background {
            Some(background) => background(block, bytes),
            None => bytes.fill(0),
        }
    }

    /// Calls `part` for each block of a range: its number, the first byte in it, and the range in the buffer.
    fn each(
        &self,
        op: DeviceOp,
        offset: u64,
        len: u64,
        mut part: impl FnMut(u64, usize, std::ops::Range<usize>),
    ) -> Result<(), DeviceError> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "beyond the end of the device");
            return Err(DeviceError::new(op, offset, len, source));
        }
        let mut done = 0;
        while done < len {
            let (block, within) = (
                (offset + done) / BLOCK_BYTES as u64,
                ((offset + done) % BLOCK_BYTES as u64) as usize,
            );
            let bytes = (BLOCK_BYTES - within).min((len - done) as usize);
            part(block, within, done as usize..done as usize + bytes);
            done += bytes as u64;
        }
        Ok(())
    }

    fn write(&self, block: u64, within: usize, bytes: &[u8]) {
        let mut written = self.written.borrow_mut();
        let contents = written.entry(block).or_insert_with(|| {
            let mut contents = Box::new([0; BLOCK_BYTES]);
            if bytes.len() < BLOCK_BYTES {
                self.first(block, &mut contents);
            }
            contents
        });
        contents[within..within + bytes.len()].copy_from_slice(bytes);
    }
}

impl Device for Memory {
    fn len(&self) -> u64 {
        self.len
    }

    fn alignment(&self) -> u32 {
        SECTOR_BYTES
    }

    fn has_volatile_cache(&self) -> bool {
        false
    }

    async fn read_at(&self, offset: u64, mut buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        let len = buf.len() as u64;
        let written = self.written.borrow();
        let mut first = [0; BLOCK_BYTES];
        let result = self.each(DeviceOp::Read, offset, len, |block, within, range| {
            let contents = match written.get(&block) {
                Some(contents) => &**contents,
                None => {
                    self.first(block, &mut first);
                    &first
                }
            };
            let bytes = range.len();
            buf[range].copy_from_slice(&contents[within..within + bytes]);
        });
        (buf, result)
    }

    async fn write_at(&self, offset: u64, buf: IoBuf, _fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        let result = self.each(
            DeviceOp::Write,
            offset,
            buf.len() as u64,
            |block, within, range| {
                self.write(block, within, &buf[range]);
            },
        );
        (buf, result)
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    async fn discard(&self, _offset: u64, _len: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        _may_unmap: bool,
        _fua: bool,
    ) -> Result<(), DeviceError> {
        let zeroes = [0; BLOCK_BYTES];
        self.each(DeviceOp::WriteZeroes, offset, len, |block, within, range| {
            self.write(block, within, &zeroes[..range.len()]);
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flaz_sim::Sim;

    use super::*;

    #[test]
    fn a_block_written_in_part_keeps_the_rest() {
        let numbered: Background = Arc::new(|block, bytes: &mut Block| bytes.fill(block as u8));
        let memory = Memory::new(1 << 20, Some(numbered));
        Sim::new(1).block_on(async {
            let (_, result) = memory
                .write_at(3 * 4096 - 512, IoBuf::copy_of(&[9; 1024]), false)
                .await;
            result.expect("written");
            memory
                .write_zeroes(4 * 4096, 512, false, false)
                .await
                .expect("zeroed");
            let (read, result) = memory.read_at(2 * 4096, IoBuf::new(4 * 4096)).await;
            result.expect("read");
            let bytes = [0, 3583, 3584, 4607, 4608, 8191, 8192, 8703, 8704, 12_288].map(|at: usize| read[at]);
            assert_eq!(bytes, [2, 2, 9, 9, 3, 3, 0, 0, 4, 5]);
            let (_, result) = memory.read_at((1 << 20) - 512, IoBuf::new(1024)).await;
            let error = result.expect_err("too far").to_string();
            assert!(error.contains("beyond the end"), "{error}");
        });
    }
}
