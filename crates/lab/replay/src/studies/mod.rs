//! Development studies: the policies on known traces, beside the design's table. `docs/policy.md` and `docs/advise.md` have results.
//!
//! | module | contents |
//! |---|---|
//! | [`table`] | hit ratios of the engine beside those of the table |
//! | [`budget`] | the hit ratio that a write budget costs |
//! | [`advice`] | estimates of the advisor beside replays |
//! | [`scale`] | a trace at full size, beside samples with smaller caches |
//! | [`policies`] | models of the policies, by block and by region |
//! | [`known`] | the traces |

pub mod advice;
pub mod budget;
pub mod known;
pub mod policies;
pub mod scale;
pub mod table;

use std::path::PathBuf;

use flaz_codec::CodecChoice;
use flaz_engine::policy::PolicyKind;

use self::known::{KNOWN, KnownError, Trace};
use crate::engine::EngineError;
use crate::sizing::SizingError;

/// Which traces are studied.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory with the known traces.
    pub traces: PathBuf,
    /// Only the known trace of this name.
    pub only: Option<String>,
    /// Other traces.
    pub also: Vec<PathBuf>,
    /// Policy.
    pub policy: PolicyKind,
}

/// A trace, and its name.
pub(crate) struct Selected {
    name: String,
    trace: Trace,
}

impl Options {
    /// Reads the selected traces, one after another.
    fn selected(&self) -> impl Iterator<Item = Result<Selected, KnownError>> + '_ {
        let known = KNOWN
            .iter()
            .filter(|known| self.only.as_ref().is_none_or(|only| only == known.name));
        let known = known.map(|known| {
            Ok(Selected {
                name: known.name.to_owned(),
                trace: Trace::known(&self.traces, known)?,
            })
        });
        let also = self.also.iter().map(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            Ok(Selected {
                name: name.split('.').next().unwrap_or_default().to_owned(),
                trace: Trace::read(path)?,
            })
        });
        known.chain(also)
    }
}

/// Why a study failed.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(#[from] KnownError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A trace cannot be replayed.
    #[error(transparent)]
    Sizing(#[from] SizingError),
    /// The file with contents cannot be read, or has no whole block.
    #[error("{path}: expected a file of at least a block of 4096 bytes: {found}")]
    Contents {
        /// The file.
        path: String,
        /// What was found.
        found: String,
    },
    /// The advisor has no estimates for caches with this codec.
    #[error(
        "expected a codec that the advisor compares, found {codec}: use none, lz4, zstd:1, zstd:3 or auto"
    )]
    NoEstimates {
        /// The codec.
        codec: CodecChoice,
    },
    /// The engine's hit ratio is below that of the table.
    #[error(
        "{below} of {compared} compared lines are more than {} below the table",
        table::DIFFERENCE_MAX
    )]
    Below {
        /// Number of such lines.
        below: usize,
        /// Number of lines for which the table has a hit ratio.
        compared: usize,
    },
}
