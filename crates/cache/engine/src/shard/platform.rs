//! What an engine runs on.

use flaz_device::{Device, Env};

/// What an engine runs on: one type for each seam.
pub trait Platform: 'static {
    /// Time, tasks, randomness, other cores.
    type Env: Env;
    /// The cache device.
    type Cache: Device;
    /// The slow device.
    type Origin: Device;
}
