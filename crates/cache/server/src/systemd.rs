//! Notifications to systemd, if systemd started this process: see sd_notify(3).

use std::time::Duration;

use sd_notify::NotifyState;

pub(crate) fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify systemd: {error}");
    }
}

/// Tells systemd why the server ends: `systemctl status` shows the last status.
pub fn notify_failure(reason: &str) {
    let line = reason.replace('\n', " ");
    notify(&[NotifyState::Status(&format!("failed: {line}"))]);
}

/// Tells systemd what the start is doing, and that it may take at least `time` more, whatever `TimeoutStartSec` says.
pub(crate) fn starting_takes_longer(time: Duration, status: &str) {
    let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    notify(&[
        NotifyState::ExtendTimeoutUsec(micros),
        NotifyState::Status(status),
    ]);
}
