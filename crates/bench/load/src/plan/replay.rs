//! The measured distribution for the level `replay`.
//!
//! Invariant: a resumed campaign uses the distribution with which it started: its file has the path and a checksum.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use flaz_data::Distribution;
use serde::{Deserialize, Serialize};

use crate::error::LoadError;

/// The level whose data is replayed.
pub const REPLAY: &str = "replay";

/// A distribution and its source.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Replay {
    /// The file, as an absolute path.
    path: PathBuf,
    /// Checksum of the distribution, in hexadecimal digits.
    sum: String,
    /// Description of the studied data.
    source: String,
    /// Not stored in a campaign's file.
    #[serde(skip)]
    distribution: Option<Arc<Distribution>>,
}

impl PartialEq for Replay {
    fn eq(&self, other: &Self) -> bool {
        (&self.path, &self.sum) == (&other.path, &other.sum)
    }
}

impl Replay {
    /// Reads a distribution.
    ///
    /// # Errors
    /// It cannot be read, or is invalid.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let path = std::path::absolute(path).map_err(LoadError::at("find", path))?;
        let distribution = Distribution::read(&path)?;
        Ok(Self {
            sum: sum(&distribution)?,
            source: distribution.source.clone(),
            path,
            distribution: Some(Arc::new(distribution)),
        })
    }

    /// Reads it again, for a resumed campaign.
    ///
    /// # Errors
    /// As [`Replay::read`]; the distribution has changed.
    pub fn read_again(&mut self) -> Result<(), LoadError> {
        let found = Self::read(&self.path)?;
        if found.sum != self.sum {
            return Err(LoadError::plan(format!(
                "{}: expected the distribution with which the campaign started (checksum {}), found another \
                 one (checksum {}): restore it, or start a new campaign",
                self.path.display(),
                self.sum,
                found.sum
            )));
        }
        *self = found;
        Ok(())
    }

    /// The distribution; `None` before [`Replay::read_again`] if it comes from a campaign's file.
    #[must_use]
    pub fn distribution(&self) -> Option<Arc<Distribution>> {
        self.distribution.clone()
    }
}

/// FNV-1a of its JSON text: detects an exchanged file, but not malice.
fn sum(distribution: &Distribution) -> Result<String, LoadError> {
    let text = serde_json::to_vec(distribution).map_err(|error| LoadError::plan(error.to_string()))?;
    let sum = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    Ok(format!("{sum:016x}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::plan::{Plan, Wanted};

    const TEXT: &str = r#"{"schema":"flaz-distribution/1","source":"/srv","measured_bytes":81920,"duplicate_percent":0,
        "sizes":[{"chunk_bytes":4096,"zero_chunks":5,"rows":[{"lz4_percent":30,"zstd_percent":45,"chunks":15}]}]}"#;

    fn wanted(path: &Path) -> Wanted {
        Wanted::parse(&format!(
            "target = \"/tmp\"\nfamily = \"replay\"\ndistribution = \"{}\"\n",
            path.display()
        ))
        .unwrap()
    }

    #[test]
    fn a_plan_replays_the_distribution_also_when_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.json");
        fs::write(&path, TEXT).unwrap();
        let plan = wanted(&path).plan().unwrap();
        let levels: Vec<String> = plan.data.levels.iter().map(ToString::to_string).collect();
        assert_eq!(levels, ["replay"]);
        let text = serde_json::to_string(&plan).unwrap();
        let mut back: Plan = serde_json::from_str(&text).unwrap();
        assert_eq!(back, plan);
        assert!(back.check().is_err(), "the distribution is not read yet");
        back.data.replay.as_mut().unwrap().read_again().unwrap();
        back.check().unwrap();
        let spec = crate::data::spec(&back, &back.data.levels[0], 1 << 20, 0).unwrap();
        let generator = flaz_data::Generator::new(spec).unwrap();
        let mut data = vec![0; 4 << 20];
        generator.fill(0, &mut data);
        let zeros = data
            .chunks(4096)
            .filter(|chunk| chunk.iter().all(|byte| *byte == 0))
            .count();
        assert!((200..312).contains(&zeros), "a quarter of 1024: {zeros}");
        fs::write(&path, TEXT.replace("15", "16")).unwrap();
        let other = back
            .data
            .replay
            .as_mut()
            .unwrap()
            .read_again()
            .unwrap_err()
            .to_string();
        assert!(other.contains("start a new campaign"), "{other}");
    }

    #[test]
    fn an_invalid_replay_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.json");
        let told = |wanted: Wanted| wanted.plan().unwrap_err().to_string();
        assert!(told(wanted(&path)).contains("d.json"), "{}", told(wanted(&path)));
        fs::write(&path, TEXT).unwrap();
        let with = |text: &str| Wanted::parse(text).unwrap().or(wanted(&path));
        assert!(told(with("levels = [50]")).contains("replay"), "no percentages");
        assert!(
            told(with("chunk = \"64KiB\"")).contains("4096"),
            "the sizes there are"
        );
        assert!(told(with("family = \"run\"")).contains("--family replay"));
        let none = Wanted::parse("target = \"/tmp\"\nlevels = [\"replay\", 50]").unwrap();
        assert!(told(none).contains("flaz study"));
        let beside = with("family = \"run\"\nlevels = [\"replay\", 50, \"zeros\"]");
        assert_eq!(beside.plan().unwrap().data.levels.len(), 3);
    }
}
