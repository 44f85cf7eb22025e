//! What input files must look like: limits, the format name of a campaign, the columns of tables.

/// What the field `format` says: what it is, and in which version.
pub const FORMAT: &str = "flaz-campaign-1";

/// Columns of a table of rates.
pub const RATE_COLUMNS: [&str; 5] = [
    "record_kib",
    "compressibility_pct",
    "test",
    "mean_kib_per_s",
    "stddev_kib_per_s",
];

/// Columns of a table of differences.
pub const DIFFERENCE_COLUMNS: [&str; 5] = [
    "record_kib",
    "compressibility_pct",
    "test",
    "diff_pct",
    "stddev_pct",
];

/// Most bytes of a file.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// Most cells of a file.
pub const CELLS_MAX: usize = 10_000;

/// Most files of a folder.
pub const FILES_MAX: usize = 1000;

/// Most claims in a file or on the command line.
pub const CLAIMS_MAX: usize = 1000;

/// Most results on one page: as many as there are colours that can be told apart.
pub const SOURCES_MAX: usize = 8;
