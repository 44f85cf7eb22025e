//! Where a point lies on the curve of a claim: at the level that was asked for, or at what codecs really saved of the data.
//!
//! A level that was asked for says little where the data is not what its name says, as IOzone's. So the achieved one is taken
//! where every point of a curve has it, and otherwise none, for a curve with both would bend where the kind of level changes.

use serde::Serialize;

use super::point::PointReport;
use crate::campaign_file::Achieved;

/// The codec whose figures are taken where there are several.
const CODEC: &str = "lz4";
/// The chunk.
const CHUNK_BYTES: u64 = 4096;

/// Which levels the points of a curve lie at.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Levels {
    /// Those asked for: not everything that was measured says what was achieved.
    Asked,
    /// What a codec saves of the data.
    Achieved {
        /// The codec.
        codec: String,
        /// In chunks of so many bytes.
        chunk_bytes: u64,
    },
}

impl Levels {
    /// The best that all points with a percentage have.
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

    /// Where a point lies, in percent; nothing for a level with a name.
    pub(super) fn at(&self, point: &PointReport) -> Option<f64> {
        let asked = point.level.percent()?;
        match self {
            Self::Asked => Some(asked),
            Self::Achieved { .. } => point.achieved.as_ref().map(|found| found.saved_pct),
        }
    }
}

/// What stands for the data of a cell: what LZ4 saves of 4 KiB, or whatever comes first.
pub(super) fn achieved_of<'a>(figures: impl Iterator<Item = &'a Achieved> + Clone) -> Option<Achieved> {
    let preferred = figures
        .clone()
        .find(|found| found.codec == CODEC && found.chunk_bytes == CHUNK_BYTES);
    preferred.or_else(|| figures.clone().next()).cloned()
}
