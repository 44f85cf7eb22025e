//! What the words on the pages of `flaz status` mean, for its help and manual page.

/// Examples of `flaz status`.
pub const EXAMPLES: &str = "\
If the cache is not running, `status` reads its superblock, and checks whether the next start will be refused: whether the \
origin is missing, for example, or was changed without the cache. This requires read permission for both devices. \
Counters count from the start of the daemon.

Examples:
  flaz status /dev/nvme0n1p3
  flaz status cache.img -v
  flaz status --control /run/flaz/mine.sock --json | jq .live.lookups
  flaz status cache.img --watch 2";

/// A label, or a word, and its meaning.
type Term = (&'static str, &'static str);

/// Labels of the short page.
pub const SUMMARY: &[Term] = &[
    (
        "Health",
        "healthy; or warning or failed, with the most urgent reason and the number of others. failed: the cache is \
         bypassed, its next start will be refused, or data is at risk. -v shows all reasons, and what to do",
    ),
    (
        "State",
        "running, starting, stopping or not running; degraded: the cache device failed, requests go to the origin. Then \
         the time since the start, the mode and the codec for new blocks",
    ),
    (
        "Cache",
        "the cache device and its size; during a `flaz resize`, the smaller size that it will have. Of a volume: \
         the space that it has now",
    ),
    ("Origin", "the cached device and its size, which clients see"),
    (
        "Clients",
        "the block device or the address that clients use, and the number of NBD clients connected now",
    ),
    (
        "Hits",
        "share of the reads that were answered from the cache alone, and of their blocks: a block is 4 KiB; a read of many \
         blocks can find only some of them",
    ),
    (
        "Contents",
        "cached data before compression. Full: share of the cache device in use, with data that is no longer needed. \
         Effective capacity: data that the full cache will hold at the present compression, also as a multiple of its size, \
         once a hundredth of it is full",
    ),
    (
        "Dirty",
        "data that clients wrote and the origin does not have yet (write-back). At the dirty limit, writers wait. Then an \
         upper limit of the age of the oldest dirty data, and the time to write all of it back at the present pace",
    ),
    (
        "Budget",
        "with a write budget: which blocks are stored at present, the bytes written to the cache device in the last 24 hours \
         (or since the start, if that is later), the budget, and the remaining budget. Dirty data is always stored",
    ),
    (
        "Latency",
        "99 of 100 requests took less than this, from arrival to reply",
    ),
    (
        "Errors",
        "failed requests by cause. client: requests that clients saw fail. checksum: damaged blocks, which were read from \
         the origin instead unless they were dirty. region: regions of the cache device that could not be read when they were freed; \
         their clean blocks were dropped",
    ),
    (
        "Now",
        "with --watch: requests and bytes per second since the previous page",
    ),
];

/// Labels that only the detailed page has, and words on it.
pub const DETAILS: &[Term] = &[
    ("Settings", "the settings in force; `flaz set` changes them"),
    (
        "Block device",
        "/dev/flaz/NAME, the device of its driver, its queues and the requests in flight of each",
    ),
    ("NBD", "an address for NBD clients and its connections"),
    (
        "Space",
        "for a volume: its space on the shared cache device, its guarantee and limit, the free space, and its need: hits per \
         day and MiB on blocks that left its cache recently. The volume with the larger need gets space of others. Then the \
         write budget of all volumes, if there is one, and the remaining budget",
    ),
    ("Warning", "what is wrong, and what to do"),
    (
        "Holds",
        "cached data, and its fragments: compressed blocks. In use: regions with live or dead fragments",
    ),
    (
        "region",
        "the unit of allocation and reclaim. probation: regions of new blocks; main: of blocks that were used again",
    ),
    (
        "Codec",
        "bytes given to the codec and stored; raw: blocks that do not compress; same-filled: blocks of one value, which \
         take no space",
    ),
    (
        "Admitted",
        "blocks stored after misses and by writes, and blocks that were not stored, by reason: policy, write-budget, sequential (longer \
         than sequential-cutoff), queue-full, overtaken-by-write, already-there",
    ),
    (
        "Reclaimed",
        "regions freed: their blocks were dropped, or stored again (reinserted). Ghost hits: accesses to blocks that were \
         dropped or refused recently",
    ),
    (
        "Traffic",
        "bytes read, written and discarded on both devices. Writes to the cache device wear it; other: headers, padding and \
         metadata. Owed (Budget): bytes beyond the budget that could not be refused, and that time has not made up for",
    ),
    (
        "Operation",
        "requests of clients, then of flaz to its devices, with their latencies. p99: 99 % took less. read-hit: answered \
         from the cache; read-miss: needed the origin; prefetch: read into the cache for an NBD client",
    ),
    (
        "Memory",
        "of the server, by use. resident: as the kernel counts it; listed: the sum of the lines. tables: lists of recently dropped \
         blocks (ghosts) and all else that grows with the cache; extents: not written yet; requests: buffers in use; pooled: \
         buffers for reuse, freed within a minute if unused; tasks: connections and background work; other: the \
         rest of the heap in use; reserve: free, for block devices when memory runs out; free: free memory of the heap; \
         at most: the limit",
    ),
    (
        "Queues",
        "entries of each queue now, at most so far, and its limit; times full: how often a request waited or was refused",
    ),
    (
        "Start",
        "warm: the contents of the last run were loaded; cold: the cache was empty",
    ),
];

/// Width of the words.
const TERM_COLUMNS: usize = 13;
/// Width of a line: a manual page indents it, and breaks what is wider than a terminal.
const COLUMNS: usize = 72;

/// The end of `flaz status --help`, and of its manual page.
#[must_use]
pub fn help() -> String {
    let mut text = format!("{EXAMPLES}\n\nLines:\n");
    list(&mut text, SUMMARY);
    text += "\nFurther lines with -v:\n";
    list(&mut text, DETAILS);
    text.truncate(text.trim_end().len());
    text
}

/// Appends a table of two columns.
fn list(text: &mut String, terms: &[Term]) {
    for (term, meaning) in terms {
        let mut line = format!("  {term:TERM_COLUMNS$}");
        for word in meaning.split_ascii_whitespace() {
            if line.len() + 1 + word.len() > COLUMNS {
                text.push_str(line.trim_end());
                text.push('\n');
                line = format!("  {:TERM_COLUMNS$}", "");
            }
            line.push(' ');
            line.push_str(word);
        }
        text.push_str(&line);
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::page::{details, summary};
    use crate::report::example::example;
    use crate::report::{WriteBudgetReport, WriteBudgetState};

    /// Words at the beginning of the lines of a page.
    fn labels(page: &str) -> Vec<&str> {
        let starts = page.lines().filter_map(|line| line.get(..13));
        starts.map(str::trim).filter(|label| !label.is_empty()).collect()
    }

    #[test]
    fn every_label_is_explained() {
        let mut report = example();
        let live = report.live.as_mut().expect("it is served");
        live.write_budget = Some(WriteBudgetReport {
            bytes_per_day: 40 << 30,
            left_bytes: 10 << 30,
            owed_bytes: 0,
            last_day_bytes: 30 << 30,
            state: WriteBudgetState::AdmittingAll,
        });
        let since = Some((&report, Duration::from_secs(1)));
        let (short, long) = (summary(&report, since, true), details(&report, since));
        let explained = |label: &&str| SUMMARY.iter().any(|(term, _)| term == label);
        assert_eq!(labels(&short).len(), SUMMARY.len());
        for label in labels(&short) {
            assert!(explained(&label), "{label}");
        }
        let operations: Vec<&str> = report
            .live
            .iter()
            .flat_map(|live| &live.operations)
            .map(|it| it.operation.as_str())
            .collect();
        for label in labels(&long) {
            let known = explained(&label) || DETAILS.iter().any(|(term, _)| *term == label);
            assert!(known || operations.contains(&label), "{label}");
        }
    }

    #[test]
    fn the_help_has_every_term_once_and_fits() {
        let help = help();
        for (term, _) in SUMMARY.iter().chain(DETAILS) {
            let count = help
                .lines()
                .filter(|line| {
                    line.strip_prefix("  ")
                        .is_some_and(|rest| rest.starts_with(&format!("{term} ")))
                })
                .count();
            assert_eq!(count, 1, "{term}");
        }
        let listed = |line: &&str| line.starts_with(&" ".repeat(TERM_COLUMNS + 2));
        assert!(
            help.lines().filter(listed).all(|line| line.len() <= COLUMNS),
            "{help}"
        );
    }
}
