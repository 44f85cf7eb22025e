//! Properties of input files: limits, the format name of a campaign, the columns of tables.

/// Value of the field `format`: name and version.
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

/// Maximum size of a file in bytes.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of cells in a file.
pub const CELLS_MAX: usize = 10_000;

/// Maximum number of files in a directory.
pub const FILES_MAX: usize = 1000;

/// Maximum number of claims in a file or on the command line.
pub const CLAIMS_MAX: usize = 1000;

/// Maximum number of results on one page: the number of distinguishable colours.
pub const SOURCES_MAX: usize = 8;
