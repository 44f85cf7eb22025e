//! The daemon's machinery: devices, threads, the engine's assembly. A stub until the engine stands.

use std::path::Path;
use std::sync::Arc;

use uuid::Uuid;

use crate::commands::spec::{CreateSpec, ServeSpec};
use crate::report::{CheckReport, CreateReport, DumpRecord, StatusReport};
use crate::settings::{Settings, SettingsPatch};

/// Any error of the host; its message says what was expected, found, and what to do.
pub type HostError = Box<dyn std::error::Error + Send + Sync>;

/// Where flaz's superblocks start (byte offsets) and the bytes they start with.
pub const SUPERBLOCK_SIGNATURES: &[(u64, &[u8])] = &[(0, b"flaz-cac"), (4096, b"flaz-cac")];

fn not_built() -> HostError {
    "not built yet: this program has no engine".into()
}

/// The UUID in the superblock of a cache.
///
/// # Errors
/// The device cannot be read, or holds no valid superblock.
pub fn identify(_cache: &Path) -> Result<Uuid, HostError> {
    Err(not_built())
}

/// Formats a cache device. All safety checks have passed.
///
/// # Errors
/// The origin is not usable, the geometry does not fit, or a device failed.
pub fn create(_spec: &CreateSpec) -> Result<CreateReport, HostError> {
    Err(not_built())
}

/// What the superblock says, for a cache that nobody serves; `live` is absent.
///
/// # Errors
/// The device cannot be read, or holds no valid superblock.
pub fn offline_status(_cache: &Path) -> Result<StatusReport, HostError> {
    Err(not_built())
}

/// Verifies a cache that nobody serves; `progress` is told bytes done and bytes in all.
///
/// # Errors
/// The check could not be made. Problems found are no error but part of the report.
pub fn check(_cache: &Path, _progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport, HostError> {
    Err(not_built())
}

/// Lists what is on a cache device, in the order of the device.
///
/// # Errors
/// The device cannot be read, or what `emit` returned.
pub fn dump(_cache: &Path, _emit: &mut dyn FnMut(&DumpRecord) -> Result<(), HostError>) -> Result<(), HostError> {
    Err(not_built())
}

/// A cache being served. Dropping it without [`Daemon::shutdown`] is a crash, on purpose.
#[derive(Debug)]
pub enum Daemon {}

/// Opens the devices, restores the index, starts the threads, binds the NBD sockets: ready on return.
/// `failed` is called at most once, from any thread, if the daemon cannot go on.
///
/// # Errors
/// Something of that failed; everything is closed again.
pub fn start(_spec: &ServeSpec, _failed: Arc<dyn Fn(HostError) + Send + Sync>) -> Result<Daemon, HostError> {
    Err(not_built())
}

impl Daemon {
    /// Everything it knows about itself, at any time until shutdown returns.
    #[must_use]
    pub fn status(&self) -> StatusReport {
        match *self {}
    }

    /// Changes settings; returns those then in force.
    ///
    /// # Errors
    /// A setting that this cache cannot take; nothing is changed then.
    pub fn set(&self, _patch: &SettingsPatch) -> Result<Settings, HostError> {
        match *self {}
    }

    /// Takes no more requests, finishes those in flight, writes the index and the clean mark, joins threads.
    ///
    /// # Errors
    /// The cache could not be closed cleanly; the next start is cold.
    pub fn shutdown(&self) -> Result<(), HostError> {
        match *self {}
    }
}
