//! The clock of the runtime.

use flaz_device::Nanos;

/// CLOCK_MONOTONIC.
pub(crate) fn monotonic() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
