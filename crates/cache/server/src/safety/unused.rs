//! Whether a block device of this process is unused, so that it may be removed. Unlike the other checks, this one must not
//! overlook anything: what cannot be found out counts as a use.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, OFlags, StatxFlags, statx};
use rustix::io::Errno;

use super::claim::uses_text;
use super::holders::Use;
use super::identity::DeviceNumber;

/// udev opens a device for a moment when it appears or was written to.
const OPENED_FOR_A_MOMENT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

/// A device that nothing uses: mounts, devices on it and other exclusive users find it busy as long as this lives.
#[derive(Debug)]
pub(crate) struct Unused {
    file: File,
    partitions: Vec<PathBuf>,
}

impl Unused {
    /// Writes to the device what its page caches hold: a writer that has just closed it does not wait for that.
    ///
    /// # Errors
    /// It fails, or takes longer.
    pub(crate) fn flush(&self, within: Duration) -> Result<(), String> {
        let text = |error: io::Error| format!("it cannot be flushed: {error}");
        let (file, partitions) = (self.file.try_clone().map_err(text)?, self.partitions.clone());
        let (sender, flushed) = mpsc::channel();
        // The kernel may wait for ever.
        let flush = move || {
            let result = partitions
                .iter()
                .try_for_each(|partition| File::open(partition)?.sync_all())
                .and_then(|()| file.sync_all());
            // Nobody waits any more.
            let _ = sender.send(result);
        };
        std::thread::Builder::new()
            .name("flush".to_owned())
            .spawn(flush)
            .map_err(text)?;
        match flushed.recv_timeout(within) {
            Ok(result) => result.map_err(text),
            Err(_) => Err(format!("it cannot be flushed within {} s", within.as_secs())),
        }
    }
}

/// Opens the device exclusively, if nothing uses it.
///
/// # Errors
/// What uses it, or why that cannot be found out: it then counts as used.
pub(crate) fn hold_unused(device: &Path) -> Result<Unused, String> {
    let give_up = Instant::now() + OPENED_FOR_A_MOMENT;
    loop {
        match hold_unused_now(device) {
            Err(InUse::OpenedBy(_)) if Instant::now() < give_up => std::thread::sleep(POLL),
            other => return other.map_err(|used| used.to_string()),
        }
    }
}

/// As [`hold_unused`], for a device without a server: to open it may take until the next server answers.
///
/// # Errors
/// As there, or it takes longer.
pub(crate) fn hold_unused_within(device: &Path, within: Duration) -> Result<Unused, String> {
    let (sender, opened) = mpsc::channel();
    let path = device.to_owned();
    // Nobody waits any more if the send fails.
    let open = move || drop(sender.send(hold_unused(&path)));
    std::thread::Builder::new()
        .name("open".to_owned())
        .spawn(open)
        .map_err(|error| format!("cannot start a thread to open it: {error}"))?;
    let late = |_| Err(format!("it cannot be opened within {} s", within.as_secs()));
    opened.recv_timeout(within).unwrap_or_else(late)
}

/// What uses a device.
#[derive(Debug, thiserror::Error)]
enum InUse {
    #[error("process {0} has it open")]
    OpenedBy(u32),
    #[error("{0}")]
    Otherwise(String),
}

fn hold_unused_now(device: &Path) -> Result<Unused, InUse> {
    let unknown = |what: &str, error: &dyn std::fmt::Display| InUse::Otherwise(format!("{what}: {error}"));
    let exclusive = OFlags::EXCL.bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(exclusive).open(device) {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
            return Err(InUse::Otherwise(
                uses_text(device).unwrap_or_else(|| Use::Claimed.to_string()),
            ));
        }
        Err(error) => return Err(unknown("cannot open it", &error)),
    };
    // Loop devices and others that claim nothing.
    if let Some(uses) = uses_text(device) {
        return Err(InUse::Otherwise(uses));
    }
    let metadata = file
        .metadata()
        .map_err(|error| unknown("cannot inspect it", &error))?;
    let number = DeviceNumber::from_raw(metadata.rdev());
    let partitions = partitions(Path::new("/sys"), number)
        .map_err(|error| unknown("cannot list its partitions", &error))?;
    let mut numbers: Vec<_> = partitions.iter().map(|(number, _)| *number).collect();
    numbers.push(number);
    let opened = opened_by(Path::new("/proc"), &numbers, std::process::id());
    match opened.map_err(|error| unknown("cannot list open files", &error))? {
        Some(process) => Err(InUse::OpenedBy(process)),
        None => Ok(Unused {
            file,
            partitions: partitions.into_iter().map(|(_, path)| path).collect(),
        }),
    }
}

/// The numbers and files of the device's partitions.
fn partitions(sys: &Path, device: DeviceNumber) -> io::Result<Vec<(DeviceNumber, PathBuf)>> {
    let mut partitions = Vec::new();
    for entry in fs::read_dir(sys.join("dev/block").join(device.to_string()))? {
        let directory = entry?.path();
        if directory.join("partition").exists() {
            let text = fs::read_to_string(directory.join("dev"))?;
            let number = DeviceNumber::parse(&text)
                .ok_or_else(|| io::Error::other(format!("{}: {text:?}", directory.display())))?;
            let name = directory.file_name().unwrap_or_default();
            partitions.push((number, Path::new("/dev").join(name)));
        }
    }
    Ok(partitions)
}

/// A process that has one of these block devices open, except `own`.
fn opened_by(proc: &Path, numbers: &[DeviceNumber], own: u32) -> io::Result<Option<u32>> {
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if process != own && has_open(&entry.path().join("fd"), numbers)? {
            return Ok(Some(process));
        }
    }
    Ok(None)
}

fn has_open(files: &Path, numbers: &[DeviceNumber]) -> io::Result<bool> {
    // Processes and files may go at any time.
    let gone = |error: &io::Error| {
        error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
    };
    let entries = match fs::read_dir(files) {
        Ok(entries) => entries,
        Err(error) if gone(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    let paths: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    let paths = match paths {
        Ok(paths) => paths,
        Err(error) if gone(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    for path in paths {
        match block_device_at(&path) {
            Ok(Some(number)) if numbers.contains(&number) => return Ok(true),
            Ok(_) => {}
            // It may be the device.
            Err(error @ (Errno::ACCESS | Errno::PERM)) => return Err(error.into()),
            // Files of which nothing is known are on file systems that do not answer: they are no block devices.
            Err(_) => {}
        }
    }
    Ok(false)
}

/// The number of the block device that an open file is. Does not ask servers of network file systems, which may not answer.
fn block_device_at(file: &Path) -> Result<Option<DeviceNumber>, Errno> {
    let status = statx(CWD, file, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)?;
    let is_block_device = FileType::from_raw_mode(status.stx_mode.into()) == FileType::BlockDevice;
    Ok(is_block_device.then_some(DeviceNumber {
        major: status.stx_rdev_major,
        minor: status.stx_rdev_minor,
    }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileTypeExt;

    use super::*;

    #[test]
    fn a_device_that_cannot_be_inspected_counts_as_used() {
        let error = hold_unused(Path::new("/dev/no-such-device")).unwrap_err();
        assert!(error.contains("cannot open it"), "{error}");
    }

    #[test]
    fn a_device_that_cannot_be_opened_in_time_counts_as_used() {
        let scratch = tempfile::tempdir().unwrap();
        let device = scratch.path().join("fifo");
        // Opening it waits for a writer, as the kernel would wait for a server.
        rustix::fs::mkfifoat(CWD, &device, rustix::fs::Mode::RUSR).unwrap();
        let error = hold_unused_within(&device, Duration::from_millis(1)).unwrap_err();
        assert_eq!(error, "it cannot be opened within 0 s");
    }

    #[test]
    fn partitions_are_listed_with_their_numbers() {
        let sys = tempfile::tempdir().unwrap();
        let disk = sys.path().join("dev/block/259:0");
        for (name, number) in [("ublkb0p1", "259:1"), ("ublkb0p2", "259:2")] {
            fs::create_dir_all(disk.join(name)).unwrap();
            fs::write(disk.join(name).join("partition"), "1\n").unwrap();
            fs::write(disk.join(name).join("dev"), format!("{number}\n")).unwrap();
        }
        fs::create_dir_all(disk.join("queue")).unwrap();
        let listed = |device| {
            partitions(sys.path(), device).map(|mut numbers| {
                numbers.sort_unstable();
                numbers
            })
        };
        let number = |minor| DeviceNumber { major: 259, minor };
        let partition = |minor, path: &str| (number(minor), PathBuf::from(path));
        assert_eq!(
            listed(number(0)).unwrap(),
            [partition(1, "/dev/ublkb0p1"), partition(2, "/dev/ublkb0p2")]
        );
        assert!(listed(number(9)).is_err(), "no such device");
        fs::write(disk.join("ublkb0p2/dev"), "nonsense").unwrap();
        assert!(listed(number(0)).is_err());
    }

    #[test]
    fn a_flush_includes_partitions_and_has_a_limit() {
        let scratch = tempfile::tempdir().unwrap();
        let flushed = |name: &str, within| {
            let unused = Unused {
                file: tempfile::tempfile().unwrap(),
                partitions: vec![scratch.path().join(name)],
            };
            unused.flush(within)
        };
        fs::write(scratch.path().join("partition"), "").unwrap();
        assert_eq!(flushed("partition", Duration::from_secs(60)), Ok(()));
        let error = flushed("missing", Duration::from_secs(60)).unwrap_err();
        assert!(error.contains("it cannot be flushed: No such file"), "{error}");
        // Opening it waits for a writer, as the kernel would wait for an origin that does not answer.
        rustix::fs::mkfifoat(CWD, scratch.path().join("fifo"), rustix::fs::Mode::RUSR).unwrap();
        let error = flushed("fifo", Duration::from_millis(1)).unwrap_err();
        assert_eq!(error, "it cannot be flushed within 0 s");
    }

    #[test]
    fn a_process_with_the_device_open_is_found() {
        let Some(device) = fs::read_dir("/dev").unwrap().flatten().find(|entry| {
            entry
                .metadata()
                .is_ok_and(|file| file.file_type().is_block_device())
        }) else {
            eprintln!("skipped: there is no block device in /dev");
            return;
        };
        let proc = tempfile::tempdir().unwrap();
        for process in ["17", "18", "self", "19"] {
            fs::create_dir_all(proc.path().join(process).join("fd")).unwrap();
        }
        fs::remove_dir(proc.path().join("19/fd")).unwrap();
        let number = DeviceNumber::from_raw(device.metadata().unwrap().rdev());
        let by = |own| opened_by(proc.path(), &[number], own).unwrap();
        std::os::unix::fs::symlink("/dev/null", proc.path().join("17/fd/0")).unwrap();
        assert_eq!(by(1), None);
        std::os::unix::fs::symlink(device.path(), proc.path().join("18/fd/3")).unwrap();
        assert_eq!((by(1), by(18)), (Some(18), None));
    }
}
