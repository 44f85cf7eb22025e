//! One request: what it asks the volume for, and the answer.

use flaz_device::IoBuf;
use flaz_engine::volume::{IoError, Segments, Volume, segment_lens};

use crate::protocol::{Descriptor, Op};

/// Why a request has no result.
#[derive(Debug)]
pub(crate) enum Refused {
    ReadOnly,
    Failed(IoError),
}

/// The driver's form of a result: bytes, or a negative error number. `None`: the next server answers.
pub(crate) fn answer(result: Result<(), Refused>, request: Descriptor) -> Option<i32> {
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

pub(crate) fn changes_data(op: Op) -> bool {
    match op {
        Op::Write { .. } | Op::Discard | Op::WriteZeroes { .. } => true,
        Op::Read | Op::Flush | Op::Other(_) => false,
    }
}

/// Whether the request has no data, but a range, which may be larger than a buffer.
pub(crate) fn is_range(op: Op) -> bool {
    matches!(op, Op::Discard | Op::WriteZeroes { .. })
}

/// Performs a request, with its data in `buf`.
pub(crate) async fn perform<V: Volume>(
    volume: &V,
    request: Descriptor,
    buf: &mut IoBuf,
) -> Result<(), IoError> {
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
pub(crate) mod tests {
    use std::cell::RefCell;
    use std::io;
    use std::rc::Rc;

    use flaz_device::{DeviceError, DeviceOp};
    use flaz_engine::volume::StatusExtent;
    use futures_util::FutureExt;
    use zerocopy::FromBytes;

    use crate::protocol::DESCRIPTOR_BYTES;

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

    pub(crate) fn request(op_flags: u32, sectors: u32, first_sector: u64) -> Descriptor {
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
