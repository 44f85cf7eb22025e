//! What the next start of an idle cache will meet: the checks that a start makes before its first write, for a report.
//!
//! Nothing is written, held or created.

use std::io::ErrorKind;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use flaz_control::shell::quoted;
use flaz_device::Device;
use flaz_device::deadline::Deadline;
use flaz_engine::cache::lifecycle::foresee as foresee_opening;
use flaz_engine::cache::surroundings::Surroundings;
use flaz_engine::cache::{CacheError, Untrusted};
use flaz_engine::format::superblock::Superblock;
use flaz_runtime::file::{FileDevice, Hold, OpenError, OpenMode};
use flaz_runtime::{Config, Rt, Runtime};

use crate::block_device::refuse_on_waiting;
use crate::device::{HostDevice, Production};
use crate::error::HostError;
use crate::origin::{explain, refuse_other, refuse_protected, refuse_smaller, refuse_used};
use crate::state::StateFile;
use crate::state_records::StateRecords;

/// Why the next start will be refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// In a few words.
    pub(crate) short: &'static str,
    /// With what was expected and found, and what to do.
    pub(crate) full: HostError,
}

impl Refusal {
    fn because(short: &'static str) -> impl FnOnce(HostError) -> Self {
        move |full| Self { short, full }
    }
}

/// Makes the checks. Returns warnings, if the origin has grown, or the start will not use clean blocks, or cannot be checked.
///
/// # Errors
/// The start will be refused.
pub(crate) fn foresee(
    (path, cache): (&Path, &HostDevice),
    origin: &Path,
    state_dir: Option<&Path>,
    superblock: &Superblock,
) -> Result<Vec<String>, Refusal> {
    const UNREADABLE: &str = "the origin cannot be read";
    if let Err(error) = origin.metadata()
        && error.kind() == ErrorKind::NotFound
    {
        let full = format!(
            "origin {} is missing: connect the disk, or specify its current path with --origin",
            origin.display()
        );
        return Err(Refusal {
            short: "the origin is missing",
            full: full.into(),
        });
    }
    refuse_used(origin).map_err(Refusal::because("the origin is in use without the cache"))?;
    let mode = OpenMode {
        read_only: true,
        hold: Hold::None,
        buffered: false,
    };
    let file = match FileDevice::open(origin, mode) {
        Ok(file) => file,
        // Another user may start it.
        Err(OpenError::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            return Ok(vec![format!(
                "it is not known whether the next start will be refused: no permission to read the origin {}",
                origin.display()
            )]);
        }
        Err(error) => return Err(Refusal::because(UNREADABLE)(format!("origin: {error}").into())),
    };
    refuse_other(&file, superblock).map_err(Refusal::because("the origin is another device"))?;
    refuse_smaller(&file, superblock).map_err(Refusal::because("the origin has shrunk"))?;
    refuse_protected(origin, superblock).map_err(Refusal::because("the origin is read-only"))?;
    let mut warnings: Vec<_> = grown(path, &file, superblock).into_iter().collect();
    let runtime = Runtime::new(Config::default())
        .map_err(|error| Refusal::because("the start cannot be checked")(error.into()))?;
    // A start warns if there is no record.
    let state_dir = state_dir.filter(|directory| refuse_on_waiting("", directory, "").is_ok());
    let state = Arc::new(StateFile::peek(state_dir, superblock.uuid));
    let origin = HostDevice::new(file, None);
    let around: Surroundings<Production> = Surroundings {
        env: Rt,
        cache: Rc::new(Deadline::new(cache.clone(), Rt, None)),
        origin: Rc::new(origin.clone()),
        host_records: StateRecords::of_lifecycle(&state, &origin),
        shared_budget: None,
    };
    let foreseen = runtime.block_on(foresee_opening(&around, superblock.clone()));
    let cold = |why: Untrusted| {
        format!("the next start will not use the clean blocks of the cache (no data is lost): {why}")
    };
    let why = foreseen.map_err(|error| {
        let short = match &error {
            CacheError::OriginChanged { .. } => "the origin was changed without the cache",
            CacheError::OtherCacheDirty { .. } => "another cache has dirty data of the origin",
            CacheError::Origin(_) => UNREADABLE,
            _ => "the next start will be refused",
        };
        Refusal {
            short,
            full: explain(error, &runtime, &origin, state.origin().as_ref()),
        }
    })?;
    warnings.extend(why.map(cold));
    Ok(warnings)
}

/// The warning that the origin has grown.
fn grown(cache: &Path, origin: &FileDevice, superblock: &Superblock) -> Option<String> {
    let (served, found) = (superblock.geometry.origin_len, origin.len());
    (found > served).then(|| {
        format!(
            "the origin has grown to {found} bytes: the next start will serve its first {served} bytes; serve all of it with \
             `flaz volume resize {}`",
            quoted(cache)
        )
    })
}
