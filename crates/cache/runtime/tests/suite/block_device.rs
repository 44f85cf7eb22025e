//! Block devices, on a loop device. Needs root and a kernel with loop devices; prints a message if there are none.

use std::path::PathBuf;
use std::process::Command;

use flaz_device::{Device, IoBuf};
use flaz_runtime::file::{FileDevice, Hold, Kind, OpenError, OpenMode, Run};

use crate::runtime;

const LEN: u64 = 16 << 20;
const EXCLUSIVE: OpenMode = OpenMode {
    read_only: false,
    hold: Hold::Exclusive,
    buffered: false,
};

struct Loop {
    path: PathBuf,
    _backing: tempfile::NamedTempFile,
}

impl Loop {
    fn new() -> Option<Self> {
        let backing = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("scratch file");
        backing.as_file().set_len(LEN).expect("scratch file");
        let output = Command::new("losetup")
            .args(["-f", "--show"])
            .arg(backing.path())
            .output();
        match output {
            Ok(output) if output.status.success() => {
                let path = String::from_utf8_lossy(&output.stdout).trim().into();
                Some(Self {
                    path,
                    _backing: backing,
                })
            }
            _ => {
                eprintln!("skipped: no loop device (requires root and the loop driver)");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.path).status();
    }
}

#[test]
fn a_block_device_is_read_written_discarded_and_locked() {
    let Some(disk) = Loop::new() else { return };
    let device = FileDevice::open(&disk.path, EXCLUSIVE).expect("open");
    assert_eq!(
        (device.kind(), device.len(), device.is_direct()),
        (Kind::BlockDevice, LEN, true)
    );
    assert!(
        device.identity().id.starts_with("block:loop="),
        "{:?}",
        device.identity()
    );
    assert_eq!(
        device.status(0, LEN, 9).expect("status"),
        [Run {
            len: LEN,
            hole: false
        }]
    );

    let error = FileDevice::open(&disk.path, EXCLUSIVE).expect_err("it is in use");
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");

    runtime().block_on(async {
        let block = usize::try_from(device.alignment()).expect("small");
        let fresh = |byte: u8| {
            let mut buf = IoBuf::new(1 << 20);
            buf.fill(byte);
            buf
        };
        for mebibyte in 0..4u64 {
            device
                .write_at(mebibyte << 20, fresh(9), mebibyte == 3)
                .await
                .1
                .expect("write");
        }
        device.flush().await.expect("flush");
        device.discard(0, 1 << 20).await.expect("discard");
        device
            .write_zeroes(1 << 20, 1 << 20, true, true)
            .await
            .expect("zero by unmapping");
        device
            .write_zeroes(2 << 20, block as u64, false, false)
            .await
            .expect("zero one sector");
        let (buf, result) = device.read_at(0, IoBuf::new(4 << 20)).await;
        result.expect("read");
        // A discarded range has unspecified contents; on a loop device it is a hole in a file.
        let zeroes = buf.iter().take_while(|byte| **byte == 0).count();
        assert_eq!(zeroes, (2 << 20) + block);
        assert!(buf[zeroes..].iter().all(|byte| *byte == 9));
        let error = device
            .read_at(LEN, IoBuf::new(block))
            .await
            .1
            .expect_err("beyond the end");
        assert!(error.to_string().contains("ends at"), "{error}");
    });
}
