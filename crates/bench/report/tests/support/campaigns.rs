//! Two synthetic campaigns for tests.

use std::fs;
use std::path::PathBuf;

use flaz_bench::campaign_file::{Achieved, Campaign, CampaignCell, Duplicates};
use flaz_bench::report::{Options, Report, report};
use flaz_bench::unit::Unit;
use flaz_random::Random;

/// Two campaigns of one device, the second with a faster write at 98 % and a slower random read.
pub struct Rig(tempfile::TempDir);

impl Rig {
    pub fn new() -> Self {
        let rig = Self(tempfile::tempdir().unwrap());
        rig.write("before.json", "Before <1> & \"x\"", 1, 1.0);
        rig.write("after.json", "After", 2, 1.08);
        rig
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, file: &str, name: &str, seed: u64, factor: f64) {
        let mut campaign = Campaign::new(seed);
        campaign.name = Some(name.to_owned());
        campaign.environment.kernel = Some("6.1.0 <x>".to_owned());
        campaign.environment.memory_bytes = Some(16 << 30);
        campaign.environment.cpu =
            Some("Fictional Xeon 8000 @ 2.40 GHz, 16 processors of which 2 are used".to_owned());
        campaign.environment.governor = Some("performance".to_owned());
        campaign.environment.device_model = Some("Fictional SF-1222 240 GB with a long name".to_owned());
        campaign.environment.device_firmware = Some("580ABBF0".to_owned());
        campaign.environment.file_system = Some("ext4".to_owned());
        campaign.environment.mount_options =
            Some("rw,noatime,nodiratime,data=ordered,errors=remount-ro".to_owned());
        campaign.environment.free_bytes = Some(123 << 30);
        let more = [
            (
                "command",
                "flaz bench run --target /a/rather/long/path --tests write,random_read --runs 100",
            ),
            ("direct", "yes"),
        ];
        for (name, value) in more {
            campaign.environment.other.insert(name.to_owned(), value.into());
        }
        let mut random = Random::stream(seed, 0);
        let mut order = 0;
        for (test, base) in [
            ("write", 2.5e8),
            ("random_read", 1.2e8),
            ("iops_random_read", 9e4),
        ] {
            for record in [4096u64, 65_536, 1 << 20] {
                for (level, gain) in [("98", 1.9), ("50", 1.3), ("2", 1.0), ("random", 0.98)] {
                    let changed = match (test, level) {
                        ("write", "98") => factor,
                        ("random_read", _) => 2.0 - factor,
                        _ => 1.0,
                    };
                    let runs = if test == "random_read" { 100 } else { 10 };
                    let size = (record as f64 / 4096.0).powf(0.1);
                    let samples = (0..runs).map(|_| {
                        let noise: f64 = (0..6).map(|_| random.unit() - 0.5).sum();
                        base * gain * changed * size * (1.0 + 0.01 * noise)
                    });
                    let mut cell = CampaignCell::new(test, record, level.parse().unwrap(), samples.collect());
                    if test.starts_with("iops") {
                        cell.unit = Unit::OperationsPerSecond;
                    }
                    cell.order = (order..).take(runs).collect();
                    order += runs as u32;
                    if let Some(asked) = cell.key.level.percent() {
                        for (codec, chunk_bytes) in [("lz4", 4096), ("zstd-1", 4096), ("lz4", 1 << 20)] {
                            cell.achieved.push(Achieved {
                                codec: codec.to_owned(),
                                chunk_bytes,
                                saved_pct: asked - 0.4,
                                spread_pct: 0.3,
                            });
                        }
                    }
                    cell.duplicates = Some(Duplicates {
                        block_bytes: 4096,
                        requested_pct: 20.0,
                        pool_bytes: 256 << 20,
                        pool_pct: 19.6,
                        pass_bytes: 4 << 30,
                        pass_pct: 95.0,
                    });
                    campaign.cells.push(cell);
                }
            }
        }
        fs::write(self.path(file), campaign.to_json().unwrap()).unwrap();
    }

    pub fn report(&self, files: &[&str], baseline: Option<&str>) -> Report {
        let files: Vec<PathBuf> = files.iter().map(|file| self.path(file)).collect();
        let baseline = baseline.map(|file| self.path(file));
        let options = Options {
            resamples: 300,
            ..Options::default()
        };
        report(&files, baseline.as_deref(), &options).unwrap()
    }
}
