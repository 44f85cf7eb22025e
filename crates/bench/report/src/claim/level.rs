//! The position of a point on the curve of a claim: the requested level, or the measured savings of codecs.
//!
//! A requested level means little for data such as IOzone's, whose savings differ from its name. The achieved level is
//! therefore used if every point of a curve has one, and otherwise the requested levels: a mixture would distort the
//! curve.

use serde::Serialize;

use super::point::PointReport;
use crate::campaign_file::Achieved;

/// The codec that is preferred if there are several.
const CODEC: &str = "lz4";
/// The chunk.
const CHUNK_BYTES: u64 = 4096;

/// Which levels are used for the points of a curve.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Levels {
    /// The requested levels: some cells lack the achieved ones.
    Asked,
    /// The savings of a codec on the data.
    Achieved {
        /// The codec.
        codec: String,
        /// Chunk size in bytes.
        chunk_bytes: u64,
    },
}

impl Levels {
    /// The best choice that all points with a percentage have.
    pub(super) fn of(points: &[PointReport]) -> Self {
        let mut percentages = points.iter().filter(|point| point.level.percent().is_some());
        let Some(first) = percentages
            .clone()
            .next()
            .and_then(|point| point.achieved.as_ref())
        else {
            return Self::Asked;
        };
        let alike = percentages.all(|point| {
            point
                .achieved
                .as_ref()
                .is_some_and(|found| (&found.codec, found.chunk_bytes) == (&first.codec, first.chunk_bytes))
        });
        if alike {
            Self::Achieved {
                codec: first.codec.clone(),
                chunk_bytes: first.chunk_bytes,
            }
        } else {
            Self::Asked
        }
    }

    /// Position of a point in percent; `None` for a level with a name.
    pub(super) fn at(&self, point: &PointReport) -> Option<f64> {
        let asked = point.level.percent()?;
        match self {
            Self::Asked => Some(asked),
            Self::Achieved { .. } => point.achieved.as_ref().map(|found| found.saved_pct),
        }
    }
}

/// The savings that represent the data of a cell: LZ4 at 4 KiB, or else the first entry.
pub(super) fn achieved_of<'a>(figures: impl Iterator<Item = &'a Achieved> + Clone) -> Option<Achieved> {
    let preferred = figures
        .clone()
        .find(|found| found.codec == CODEC && found.chunk_bytes == CHUNK_BYTES);
    preferred.or_else(|| figures.clone().next()).cloned()
}
