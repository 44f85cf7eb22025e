//! Taking a device over whose server has ended.
//!
//! What the driver does (drivers/block/ublk_drv.c, Linux 6.12), and what follows:
//!
//! - *START_USER_RECOVERY* forgets the earlier server. It answers EBUSY as long as the kernel has not released that one's
//!   io_uring, which takes a moment; and EINVAL if no queue has a server. That is so if a server was killed after this command
//!   and before its fetches. The device then still waits, and nothing is left to forget: the take-over goes on. Later
//!   drivers forget a server when it closes the character device, and give neither error.
//! - *Mapping.* The first process that maps the requests is the only one that may, until START_USER_RECOVERY. If it was killed
//!   before its fetches, that is for ever. So requests are mapped after the fetches.
//! - *Fetches.* If only some fetches of a device have arrived when a server is killed, the driver does not release them, and no
//!   server gets the device. Stopping and deleting it helps, but what waits in it gets I/O errors. So nothing is done between
//!   this command and the fetches, and those of a queue are submitted together. With several queues a short window remains.
//! - *END_USER_RECOVERY.* If a server is killed after its fetches and before this command, Linux 6.7 and later release them.

use std::time::{Duration, Instant};

use crate::error::UblkError;
use crate::protocol::{DeviceInfo, DeviceState};

const POLL: Duration = Duration::from_millis(20);

/// The commands that a take-over needs.
pub(crate) trait Driver {
    /// START_USER_RECOVERY.
    fn start_recovery(&mut self) -> Result<(), UblkError>;
    /// The device as it is now.
    fn info(&mut self) -> Result<Option<DeviceInfo>, UblkError>;
}

/// Takes `device` over. While the kernel still releases what the earlier server had, this waits up to `within`.
///
/// # Errors
/// The driver's: the device still has a server, for example.
pub(crate) fn take_over(
    driver: &mut impl Driver,
    device: &DeviceInfo,
    within: Duration,
) -> Result<(), UblkError> {
    let give_up = Instant::now() + within;
    loop {
        let Err(error) = driver.start_recovery() else {
            return Ok(());
        };
        let errno = match &error {
            UblkError::Command { source, .. } => source.raw_os_error(),
            _ => None,
        };
        match errno {
            Some(libc::EINVAL) if waits(driver.info()?, device) => return Ok(()),
            Some(libc::EBUSY) if Instant::now() < give_up => std::thread::sleep(POLL),
            _ => return Err(error),
        }
    }
}

/// Whether it is still the same device, and waits for a server.
fn waits(now: Option<DeviceInfo>, device: &DeviceInfo) -> bool {
    now.is_some_and(|now| now.stamp == device.stamp && now.state() == DeviceState::Quiesced)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// A device with the errors of START_USER_RECOVERY that are next.
    struct Fake {
        errors: Vec<i32>,
        now: DeviceInfo,
    }

    impl Driver for Fake {
        fn start_recovery(&mut self) -> Result<(), UblkError> {
            let source = self.errors.pop().map(io::Error::from_raw_os_error);
            source.map_or(Ok(()), |source| {
                Err(UblkError::Command {
                    what: "take a device over",
                    source,
                })
            })
        }

        fn info(&mut self) -> Result<Option<DeviceInfo>, UblkError> {
            Ok(Some(self.now))
        }
    }

    fn device(stamp: u64, state: u16) -> DeviceInfo {
        DeviceInfo {
            stamp,
            ..DeviceInfo::default()
        }
        .in_state(state)
    }

    fn taken(errors: &[i32], now: DeviceInfo, within: Duration) -> Result<(), UblkError> {
        let errors = errors.to_vec();
        take_over(&mut Fake { errors, now }, &device(7, 2), within)
    }

    #[test]
    fn a_take_over_that_was_killed_before_its_fetches_is_continued() {
        taken(&[libc::EINVAL], device(7, 2), Duration::ZERO).expect("it waits");
        for other in [device(7, 1), device(7, 0), device(8, 2)] {
            taken(&[libc::EINVAL], other, Duration::ZERO).expect_err("it does not wait");
        }
    }

    #[test]
    fn what_the_kernel_still_releases_is_awaited_for_some_time() {
        let busy = [libc::EBUSY; 2];
        taken(&busy, device(7, 2), Duration::from_secs(60)).expect("it is released");
        taken(&busy, device(7, 2), Duration::ZERO).expect_err("the time is over");
        taken(&[libc::EPERM], device(7, 2), Duration::from_secs(60)).expect_err("another error");
    }
}
