//! Which reads count as uses of a cached block, for the decision of the policy when its region is reclaimed.
//!
//! A write always counts, but not in main of a paged index. A new version of a block goes to the end of its ring, so its location does not tell how long the block
//! has been cached.
//!
//! With a paged index, a read of a block in main counts only while its region is among the oldest quarter of the ring: bits for the uses
//! in all of main would take memory from pages.

use super::{Platform, Shard};
use crate::index::Entry;

impl<P: Platform> Shard<P> {
    /// Whether a read of the block with this entry counts: see [`crate::policy::Policy::window`].
    pub(super) fn counts_read(&self, entry: Entry) -> bool {
        if self.map.is_paged() && self.log.is_young_in_main(entry.location()) {
            return false;
        }
        let age = self.log.age_in_probation(entry.location());
        age.is_none_or(|age| self.tuning.counts_read(age, self.ring_sizes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::GeometryOptions;
    use crate::policy::{PolicyKind, Ring};
    use crate::settings::Settings;
    use crate::shard::Shard;
    use crate::shard::log::{Append, Class};
    use crate::shard::simulated::{Disks, Simulated};
    use crate::units::{BlockNumber, LocalBlock};

    const REGION_BYTES: u64 = 128 << 10;

    fn append(shard: &Shard<Simulated>, ring: Ring, block: u64, data: &[u8]) -> Entry {
        let what = Append::Packed {
            codec: flaz_codec::CodecId::RAW,
            stored: data,
            plain_crc: crc32c::crc32c(data),
            dirty: false,
        };
        let appended = (shard.log).append(ring, BlockNumber(block), what, Class::Reclaim);
        let entry = appended.expect("there is room").entry;
        shard.map.install(&shard.log, LocalBlock(block), entry);
        entry
    }

    fn set_policy(shard: &Shard<Simulated>, policy: PolicyKind) {
        let settings = Settings {
            policy,
            ..shard.tuning.settings().clone()
        };
        shard.set(&settings);
    }

    fn disks() -> Disks {
        let wish = GeometryOptions {
            extent_bytes: Some(32 << 10),
            region_bytes: Some(REGION_BYTES),
            ..GeometryOptions::default()
        };
        // A window of 146 KiB.
        Disks::new((192 << 10) + 64 * REGION_BYTES, wish)
    }

    #[test]
    fn reads_count_after_a_quarter_of_probation() {
        let data = [1; 4096];
        let disks = disks();
        let shard = disks.shard(1);
        set_policy(&shard, PolicyKind::S3Fifo);
        let (first, main) = (
            append(&shard, Ring::Probation, 0, &data),
            append(&shard, Ring::Main, 1, &data),
        );
        assert!(shard.counts_read(main), "it was used before");
        assert!(!shard.counts_read(first));
        let later = (2..200).find(|&block| {
            append(&shard, Ring::Probation, block, &data);
            shard.counts_read(first)
        });
        let window = shard.region_space() * 7 / 100 / 4;
        let bytes = later.expect("it gets old") * 4096;
        let exact = window - 16 * 1024..window + 4096;
        assert!(exact.contains(&bytes), "{bytes} of {window}");
        let newest = append(&shard, Ring::Probation, 500, &data);
        assert!(!shard.counts_read(newest));
        set_policy(&shard, PolicyKind::Fifo);
        assert!(shard.counts_read(newest), "a policy without a window");
    }

    #[test]
    fn reads_of_bursts_count_while_probation_is_wide() {
        let data = [1; 4096];
        let disks = disks();
        let shard = disks.shard(1);
        set_policy(&shard, PolicyKind::S3Fifo);
        disks.sim.block_on(async {
            // 14 % of the 64 regions are nearly nine.
            for block in 0.. {
                let newest = append(&shard, Ring::Probation, block, &data);
                if shard.counts_read(newest) {
                    break;
                }
                assert!(block % 8 > 0 || shard.make_log_stable().await);
            }
            assert_eq!(shard.log.regions_of(Ring::Probation), 9);
        });
    }

    #[test]
    fn a_burst_goes_on_after_a_crash() {
        let data = [1; 4096];
        let disks = disks();
        disks.sim.block_on(async {
            let shard = disks.shard(1);
            for block in 0..100 {
                append(&shard, Ring::Probation, block, &data);
                assert!(shard.make_log_stable().await);
            }
        });
        disks.sim.kill_tasks();
        disks.sim.block_on(async {
            let shard = disks.recovered(2).await;
            set_policy(&shard, PolicyKind::S3Fifo);
            let counts = |block| {
                let entry = shard.map.lookup(LocalBlock(block)).expect("it is warm");
                shard.counts_read(entry)
            };
            assert!(counts(0) && !counts(99));
        });
    }

    /// Uses in main count in the oldest quarter, and outlive the stay of their page in memory.
    #[cfg(feature = "planted-bugs")]
    #[test]
    fn uses_of_a_paged_index_count_late_in_main() {
        const BLOCKS: u64 = 500;
        let data = [1; 4096];
        crate::planted::page_index(true);
        let disks = disks();
        disks.sim.block_on(async {
            let shard = disks.shard(1);
            set_policy(&shard, PolicyKind::S3Fifo);
            let mut entries = Vec::new();
            for block in 0..BLOCKS {
                shard.load_page(LocalBlock(block)).await;
                entries.push(append(&shard, Ring::Main, block, &data));
                if block % 16 == 0 {
                    assert!(shard.make_log_stable().await);
                }
            }
            let regions = shard.log.full_regions(Ring::Main);
            let oldest = shard.log.region_of(entries[0].location()) + regions.div_ceil(4);
            for (block, entry) in entries.iter().enumerate() {
                let counts = shard.counts_read(*entry);
                assert_eq!(counts, shard.log.region_of(entry.location()) < oldest, "{block}");
            }
            for block in [1, BLOCKS - 1] {
                shard.load_page(LocalBlock(block)).await;
                shard
                    .map
                    .touch(LocalBlock(block), |entry| shard.counts_read(entry));
            }
            for block in 0..BLOCKS {
                shard.load_page(LocalBlock(block)).await;
            }
            for (block, hits) in [(1, 2), (2, 0), (BLOCKS - 1, 0)] {
                shard.load_page(LocalBlock(block)).await;
                let entry = shard.map.lookup(LocalBlock(block)).expect("it is cached");
                assert_eq!(entry.hits(), hits, "block {block}");
            }
        });
        crate::planted::page_index(false);
    }
}
