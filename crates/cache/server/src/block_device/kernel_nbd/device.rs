//! Devices of the kernel's NBD driver, as `/sys/block` shows them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use uuid::Uuid;

use super::super::{Exported, SETTLE_POLL, SETTLE_WITHIN, Shape, Stamp, Stamped, fits, of_cache};
use super::DRIVER;
use crate::error::HostError;

/// Time limit of a request, after which the driver sends it again if the device has another socket by then.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The kernel's own limit, which an unused device has.
const REQUEST_TIMEOUT_UNUSED: Duration = Duration::from_secs(30);

/// A device that has a client's stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StampedDevice {
    pub number: u32,
    stamp: Stamp,
}

impl Stamped for StampedDevice {
    fn stamp(&self) -> Stamp {
        self.stamp
    }

    fn path(&self) -> PathBuf {
        path(self.number)
    }
}

/// The block device's file.
pub(super) fn path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/nbd{number}"))
}

/// The number of a device from its file.
pub(in super::super) fn number_of(file: &Path) -> Option<u32> {
    file.to_str()?.strip_prefix("/dev/nbd")?.parse().ok()
}

/// The devices of this machine.
#[derive(Clone, Debug)]
pub(super) struct Devices {
    /// `/sys/block`.
    sys: PathBuf,
}

impl Default for Devices {
    fn default() -> Self {
        Self {
            sys: "/sys/block".into(),
        }
    }
}

impl Devices {
    fn of(&self, number: u32) -> PathBuf {
        self.sys.join(format!("nbd{number}"))
    }

    /// Whether the device is connected to a server, or waits for one.
    pub(super) fn is_connected(&self, number: u32) -> bool {
        self.of(number).join("pid").exists()
    }

    /// The numbers of all devices, ascending.
    fn numbers(&self) -> io::Result<Vec<u32>> {
        let entries = match fs::read_dir(&self.sys) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut numbers = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let digits = name.to_str().and_then(|name| name.strip_prefix("nbd"));
            numbers.extend(digits.and_then(|digits| digits.parse::<u32>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Numbers to try for a new device: those that are unused, and one that does not exist, which the driver then makes.
    pub(super) fn unused(&self) -> io::Result<Vec<u32>> {
        let numbers = self.numbers()?;
        let next = numbers.last().map_or(0, |last| last + 1);
        let unused = numbers.into_iter().filter(|number| !self.is_connected(*number));
        Ok(unused.chain([next]).collect())
    }

    /// The stamp of a connected device. Other programs' devices have none.
    pub(super) fn stamp(&self, number: u32) -> io::Result<Option<Stamp>> {
        match fs::read_to_string(self.of(number).join("backend")) {
            Ok(text) => Ok(text.trim_end().parse().ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn stamped(&self) -> io::Result<Vec<StampedDevice>> {
        let mut devices = Vec::new();
        for number in self.numbers()? {
            if !self.is_connected(number) {
                continue;
            }
            if let Some(stamp) = self.stamp(number)? {
                devices.push(StampedDevice { number, stamp });
            }
        }
        Ok(devices)
    }

    /// The device of this cache that an earlier server left.
    ///
    /// # Errors
    /// It was made for another origin, there are two, or they cannot be found out.
    pub(super) fn find(&self, stamp: Stamp) -> Result<Option<StampedDevice>, HostError> {
        of_cache(DRIVER, &self.stamped().map_err(unknown)?, stamp)
    }

    /// The device of this cache, with any origin.
    pub(super) fn left_over(&self, uuid: Uuid) -> Result<Option<PathBuf>, HostError> {
        let devices = self.stamped().map_err(unknown)?;
        let of_cache = devices.iter().find(|device| device.stamp.is_of_cache(uuid));
        Ok(of_cache.map(Stamped::path))
    }

    /// Whether the device can serve this volume.
    ///
    /// # Errors
    /// What differs, or that it cannot be found out.
    pub(super) fn check(&self, number: u32, exported: &Exported) -> Result<(), HostError> {
        let found = Shape {
            sectors: self.value(number, "size")?,
            read_only: self.value(number, "ro")? != 0,
        };
        let wanted = Shape {
            sectors: exported.bytes / 512,
            read_only: exported.read_only,
        };
        fits(DRIVER, &path(number), found, wanted, exported)
    }

    /// Bytes of the device's logical block.
    pub(super) fn logical_block(&self, number: u32) -> Result<u64, HostError> {
        self.value(number, "queue/logical_block_size")
    }

    fn value(&self, number: u32, name: &str) -> Result<u64, HostError> {
        let file = self.of(number).join(name);
        let text = fs::read_to_string(&file).map_err(|error| unreadable(&file, &error.to_string()))?;
        text.trim_end()
            .parse()
            .map_err(|_| unreadable(&file, &format!("expected a number, found {text:?}")))
    }

    /// Makes the driver send requests of an ended server again soon.
    pub(super) fn shorten_timeout(&self, number: u32) {
        if let Err(error) = self.set_timeout(number, REQUEST_TIMEOUT) {
            tracing::warn!(
                "{DRIVER}: cannot set the time limit of requests to {}: {error}; after a kill, requests wait for up to {} s",
                path(number).display(),
                REQUEST_TIMEOUT_UNUSED.as_secs()
            );
        }
    }

    /// Leaves the device to other programs as it was.
    pub(super) fn restore_timeout(&self, number: u32) {
        // Without permission it was not changed.
        let _ = self.set_timeout(number, REQUEST_TIMEOUT_UNUSED);
    }

    fn set_timeout(&self, number: u32, timeout: Duration) -> io::Result<()> {
        fs::write(
            self.of(number).join("queue/io_timeout"),
            timeout.as_millis().to_string(),
        )
    }

    /// Waits until the driver has released a device.
    pub(super) fn wait_for_release(&self, number: u32) -> bool {
        let polls = SETTLE_WITHIN.as_millis() / SETTLE_POLL.as_millis();
        for _ in 0..polls {
            if !self.is_connected(number) {
                return true;
            }
            std::thread::sleep(SETTLE_POLL);
        }
        false
    }
}

fn unknown(error: io::Error) -> HostError {
    format!("{DRIVER}: cannot list devices in /sys/block: {error}").into()
}

fn unreadable(file: &Path, why: &str) -> HostError {
    format!("{DRIVER}: {}: {why}", file.display()).into()
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::exported;
    use super::*;

    struct Machine {
        directory: tempfile::TempDir,
        devices: Devices,
    }

    impl Machine {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let devices = Devices {
                sys: directory.path().to_owned(),
            };
            Self { directory, devices }
        }

        fn file(&self, name: &str, text: &str) {
            let path = self.directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn a_device_has_a_number() {
        assert_eq!(number_of(&path(12)), Some(12));
        for other in ["/dev/ublkb0", "/dev/nbd0p1", "/dev/nbd"] {
            assert_eq!(number_of(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn unused_devices_come_first_then_a_new_one() {
        let machine = Machine::new();
        assert_eq!(machine.devices.unused().unwrap(), [0]);
        for name in [
            "nbd0/pid",
            "nbd1/size",
            "nbd10/size",
            "nbd2/pid",
            "sda/size",
            "nbdx/size",
        ] {
            machine.file(name, "1\n");
        }
        assert_eq!(machine.devices.unused().unwrap(), [1, 10, 11]);
        let nowhere = Devices {
            sys: "/no/such/directory".into(),
        };
        assert_eq!(nowhere.unused().unwrap(), [0]);
    }

    #[test]
    fn devices_of_caches_are_found_while_connected() {
        let machine = Machine::new();
        let (ours, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let stamp = Stamp::new(ours, "disk a");
        machine.file("nbd0/pid", "7\n");
        machine.file("nbd1/pid", "7\n");
        machine.file("nbd1/backend", "another program\n");
        machine.file("nbd3/backend", &format!("{stamp}\n"));
        assert_eq!(machine.devices.find(stamp).unwrap(), None, "not connected");
        assert_eq!(machine.devices.left_over(ours).unwrap(), None);
        machine.file("nbd3/pid", "7\n");
        let found = machine.devices.find(stamp).unwrap().unwrap();
        assert_eq!(found.path(), Path::new("/dev/nbd3"));
        assert_eq!(machine.devices.left_over(ours).unwrap(), Some("/dev/nbd3".into()));
        assert_eq!(machine.devices.left_over(other).unwrap(), None);
        assert!(machine.devices.find(Stamp::new(ours, "disk b")).is_err());
    }

    #[test]
    fn a_device_of_a_larger_size_is_not_taken_over() {
        let machine = Machine::new();
        machine.file("nbd0/size", "2097152\n");
        machine.file("nbd0/ro", "0\n");
        assert!(machine.devices.check(0, &exported(1 << 30, 512)).is_ok());
        let error = machine.devices.check(0, &exported(1 << 20, 512)).unwrap_err();
        assert!(error.to_string().contains("expected at most 2048"), "{error}");
        machine.file("nbd0/size", "many\n");
        let error = machine.devices.check(0, &exported(1 << 30, 512)).unwrap_err();
        assert!(error.to_string().contains("found \"many\\n\""), "{error}");
    }

    #[test]
    fn the_time_limit_is_set_in_milliseconds() {
        let machine = Machine::new();
        machine.file("nbd0/queue/io_timeout", "");
        let now = || fs::read_to_string(machine.directory.path().join("nbd0/queue/io_timeout")).unwrap();
        machine.devices.shorten_timeout(0);
        assert_eq!(now(), "5000");
        machine.devices.restore_timeout(0);
        assert_eq!(now(), "30000");
    }
}
