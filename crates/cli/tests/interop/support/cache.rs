//! A cache device and an origin, both files.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Program, Scratch};

/// Parameters of `flaz create`. Sizes in bytes.
pub struct CacheSpec {
    pub size: u64,
    pub codec: &'static str,
    pub region: u64,
    pub shards: u32,
    /// The index is in pages, with so much memory.
    pub index_memory: Option<u64>,
}

impl Default for CacheSpec {
    /// A cache of 64 MiB with regions small enough that reclaim has a choice.
    fn default() -> Self {
        Self {
            size: 64 << 20,
            codec: "auto",
            region: 1 << 20,
            shards: 2,
            index_memory: None,
        }
    }
}

/// A created cache.
pub struct Cache {
    pub path: PathBuf,
}

impl Cache {
    /// Runs `flaz create` on a new file.
    pub fn create(scratch: &Scratch, origin: &Path, spec: &CacheSpec) -> Self {
        let path = scratch.image("cache.img");
        let index_memory = (spec.index_memory).map(|bytes| format!("--index-memory {bytes}"));
        Program::flaz()
            .arg("create")
            .arg(&path)
            .arg("--origin")
            .arg(origin)
            .words(&format!("--size {} --codec {}", spec.size, spec.codec))
            .words(&format!("--region-size {} --shards {}", spec.region, spec.shards))
            .words(&index_memory.unwrap_or_default())
            .ok();
        Self { path }
    }

    /// Runs `flaz check`, expects no problem, and returns the report.
    pub fn check(&self) -> Value {
        let text = Program::flaz().arg("check").arg(&self.path).arg("--json").ok();
        let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
        let bad: u64 = report["bad"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(_, count)| count.as_u64())
            .sum();
        assert_eq!(bad, 0, "flaz check found: {report:#}");
        report
    }
}
