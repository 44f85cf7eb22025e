//! The memory of the process, by use.
//!
//! Three sources, which know nothing of each other: components count what they allocate; the allocator says what is in use of its
//! heaps; the kernel says what is resident. What is in use and not counted is `other`; what is resident and not in use is `free`. So
//! the sum is the resident memory, except for memory that was allocated and never touched.

use flaz_control::report::{IndexPagesReport, MemoryReport, MemoryUse};
use flaz_device::buf;
use flaz_engine::advise;
use flaz_engine::shard::EXTENTS_IN_MEMORY_MAX;
use flaz_engine::stats::StatsSnapshot;
use flaz_runtime::memory::used_bytes;
use flaz_runtime::resident::{Resident, resident};

use crate::process::reserve_bytes;
use crate::status::Facts;

/// What the components of the process count, in the order of the report: name, bytes, the most that it can be.
type Counted = Vec<(&'static str, u64, Option<u64>)>;

/// The memory of this process.
pub(crate) fn memory_report(stats: &StatsSnapshot, facts: &Facts<'_>) -> MemoryReport {
    let holdings = &stats.holdings;
    let (buffers, pooled) = (buf::allocated_bytes(), buf::pooled());
    let requests = buffers.saturating_sub(pooled.bytes + holdings.extent_bytes);
    let shards = u64::from(facts.cache.shards);
    // A buffer has a power of two pages.
    let extents_max = EXTENTS_IN_MEMORY_MAX as u64 * facts.cache.extent_bytes.next_power_of_two() * shards;
    let counted = vec![
        ("index", holdings.index_bytes, None),
        ("tables", holdings.other_memory_bytes, None),
        ("extents", holdings.extent_bytes, Some(extents_max)),
        ("requests", requests, Some(facts.request_bytes_max)),
        ("pooled", pooled.bytes, Some(pooled.bytes_max)),
        (
            "codecs",
            flaz_codec::context_bytes() + holdings.sample_bytes,
            None,
        ),
        (
            "advisor",
            stats.observed.memory_bytes,
            Some(advise::MEMORY_BYTES_MAX as u64),
        ),
        ("histograms", holdings.histogram_bytes, None),
        ("tasks", facts.task_bytes, None),
    ];
    let resident = resident().unwrap_or_default();
    let uses = uses(counted, used_bytes(), resident, reserve_bytes());
    let each = |bytes: u64| bytes as f64 / holdings.cached_blocks.max(1) as f64;
    MemoryReport {
        resident_bytes: resident.total_bytes,
        listed_bytes: uses.iter().map(|used| used.bytes).sum(),
        index_bytes_per_block: each(holdings.index_bytes),
        tables_bytes_per_block: each(holdings.other_memory_bytes),
        uses,
        index_pages: index_pages(stats),
    }
}

fn index_pages(stats: &StatsSnapshot) -> Option<IndexPagesReport> {
    let (holdings, counts) = (&stats.holdings, &stats.counts);
    (holdings.index_pages > 0).then(|| IndexPagesReport {
        bound_bytes: holdings.index_bound_bytes,
        pages: holdings.index_pages,
        pages_in_memory: holdings.index_pages_in_memory,
        reads: counts.index_page_reads,
        reads_per_lookup: stats.index_reads_per_lookup(),
        writes: counts.index_page_writes,
        written_share: stats.index_written_share(),
        rebuilt: counts.index_pages_rebuilt,
    })
}

fn uses(counted: Counted, in_use: u64, resident: Resident, reserve: u64) -> Vec<MemoryUse> {
    let known: u64 = counted.iter().map(|(_, bytes, _)| bytes).sum();
    let free = resident.heap_bytes.saturating_sub(in_use);
    let rest = [
        ("other", in_use.saturating_sub(known), None),
        ("reserve", free.min(reserve), (reserve > 0).then_some(reserve)),
        ("free", free.saturating_sub(reserve), None),
        ("stacks", resident.stack_bytes, Some(resident.stack_bytes_max)),
        ("program", resident.program_bytes, None),
    ];
    (counted.into_iter().chain(rest))
        .map(|(name, bytes, bytes_max)| MemoryUse {
            name: name.to_owned(),
            bytes,
            bytes_max,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn sizes(in_use: u64, resident: Resident, reserve: u64) -> Vec<(String, u64)> {
        let counted = vec![("index", 3 * MIB, None), ("pooled", 2 * MIB, Some(64 * MIB))];
        uses(counted, in_use * MIB, resident, reserve)
            .into_iter()
            .map(|used| (used.name, used.bytes / MIB))
            .collect()
    }

    fn expected(bytes: [u64; 7]) -> Vec<(String, u64)> {
        ["index", "pooled", "other", "reserve", "free", "stacks", "program"]
            .map(str::to_owned)
            .into_iter()
            .zip(bytes)
            .collect()
    }

    #[test]
    fn the_parts_are_what_is_resident() {
        let resident = Resident {
            total_bytes: 40 * MIB,
            program_bytes: 12 * MIB,
            stack_bytes: MIB,
            stack_bytes_max: 16 * MIB,
            heap_bytes: 27 * MIB,
        };
        assert_eq!(sizes(7, resident, 0), expected([3, 2, 2, 0, 20, 1, 12]));
        assert_eq!(sizes(7, resident, 15 * MIB), expected([3, 2, 2, 15, 5, 1, 12]));
        assert_eq!(sizes(7, resident, 90 * MIB), expected([3, 2, 2, 20, 0, 1, 12]));
        // Allocated and never touched; and a count that is ahead of the allocator's.
        assert_eq!(sizes(30, resident, 0), expected([3, 2, 25, 0, 0, 1, 12]));
        assert_eq!(sizes(4, resident, 0), expected([3, 2, 0, 0, 23, 1, 12]));
    }
}
