//! Errors about results, claims and options: the expected and the actual value, the location, and the fix.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::cell::{CellKey, Unfit};
use crate::input::{
    CELLS_MAX, CLAIMS_MAX, DIFFERENCE_COLUMNS, FILE_BYTES_MAX, FILES_MAX, FORMAT, RATE_COLUMNS, SOURCES_MAX,
};
use crate::unit::RateError;

/// An invalid file.
#[derive(Debug)]
pub struct InputError {
    /// Which file.
    pub path: PathBuf,
    /// The line, from 1, if one is the cause.
    pub line: Option<u64>,
    /// The problem.
    pub problem: Problem,
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for InputError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.problem)
    }
}

fn beginning(found: &str) -> String {
    if found.is_empty() {
        "it is empty".to_owned()
    } else {
        format!("it begins with '{found}'")
    }
}

/// A problem of a file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// It cannot be read.
    #[error("cannot be read")]
    Read(#[source] io::Error),
    /// It is larger than any valid file.
    #[error("is larger than {} MiB: expected results, which are smaller", FILE_BYTES_MAX >> 20)]
    TooLarge,
    /// It is not text.
    #[error("is not UTF-8 text: expected a campaign (JSON), a table (CSV), fio JSON or IOzone text")]
    NotText,
    /// It is not a known format.
    #[error(
        "is not a campaign (JSON with \"format\": \"{}\"), a table (CSV with the columns {} or {}), fio JSON \
         or IOzone text: {}", FORMAT, RATE_COLUMNS.join(","), DIFFERENCE_COLUMNS.join(","), beginning(.found)
    )]
    NotResults {
        /// Its beginning.
        found: String,
    },
    /// A campaign in another format, or of a later version.
    #[error(
        "has the format '{found}': expected '{}'; a later version of flaz may support it",
        FORMAT
    )]
    Format {
        /// The format found.
        found: String,
    },
    /// An invalid campaign.
    #[error("is not a campaign: {0}")]
    Json(String),
    /// A quoted field of a table that does not end, or continues after its end.
    #[error("a double quote is not closed before a comma or the end of the line")]
    Quote,
    /// Columns are missing, or have other names.
    #[error(
        "has no column {}: expected {}, separated by commas, in any order; found {}",
        missing.join(", "), expected.join(","), found.join(",")
    )]
    Columns {
        /// The missing columns.
        missing: Vec<&'static str>,
        /// All required columns.
        expected: &'static [&'static str],
        /// The columns found.
        found: Vec<String>,
    },
    /// A column occurs twice.
    #[error("has the column {0} twice")]
    ColumnTwice(&'static str),
    /// A row with too few or too many fields.
    #[error("expected {expected} fields, as in the first line, found {found}")]
    Fields {
        /// Number of columns.
        expected: usize,
        /// Number of fields.
        found: usize,
    },
    /// A field that does not match its column.
    #[error("{column} is '{text}': expected {expected}")]
    Value {
        /// Which column.
        column: &'static str,
        /// The text found.
        text: String,
        /// What should.
        expected: &'static str,
    },
    /// A cell that occurs twice.
    #[error("{key} occurs twice{}", earlier(*first_line))]
    Twice {
        /// Which cell.
        key: CellKey,
        /// Its first line, in a table.
        first_line: Option<u64>,
    },
    /// Values that cannot be compared.
    #[error("{key}: {unfit}")]
    Unfit {
        /// Which cell.
        key: CellKey,
        /// Why.
        unfit: Unfit,
    },
    /// There are no cells.
    #[error("has no cells: expected at least one result")]
    NoCells,
    /// There are too many cells.
    #[error("has more than {CELLS_MAX} cells, the maximum")]
    TooManyCells,
    /// A table without the number of runs.
    #[error("is a table, which does not contain the number of runs: add --runs N")]
    RunsUnknown,
    /// A table of differences where rates are required.
    #[error(
        "is a table of differences, without rates: expected a campaign or a table with the columns {}",
        RATE_COLUMNS.join(",")
    )]
    OnlyDifferences,
    /// Invalid output of another program.
    #[error("is not valid output of {program}: {what}")]
    Foreign {
        /// Which program.
        program: &'static str,
        /// The problem, and what was expected.
        what: String,
    },
    /// One run of another program where two are required.
    #[error(
        "{key}: a comparison needs at least 2 runs, found 1: put the files of all runs into a directory and use that"
    )]
    OneRun {
        /// Which cell.
        key: CellKey,
    },
    /// A directory without files.
    #[error("is a directory without files: expected the files of the runs of one campaign")]
    EmptyFolder,
    /// A directory with too many files.
    #[error("has {0} files: the maximum is {FILES_MAX}")]
    TooManyFiles(usize),
    /// A directory with files of different kinds.
    #[error(
        "has files of different kinds, {} and {}: expected the files of the runs of one campaign, of one \
         program",
        first.display(), other.display()
    )]
    Mixed {
        /// One.
        first: PathBuf,
        /// Another.
        other: PathBuf,
    },
    /// A directory with a table.
    #[error("has a table, {}, which already covers all runs: use the table itself", _0.display())]
    TableInFolder(PathBuf),
    /// An invalid claims file.
    #[error("is not a claims file: {0}")]
    Toml(String),
    /// An invalid claim in it.
    #[error("claim {number}: {problem}")]
    Claim {
        /// Its number, from 1.
        number: usize,
        /// The problem.
        problem: ClaimError,
    },
}

fn earlier(line: Option<u64>) -> String {
    line.map_or_else(String::new, |line| format!(", first in line {line}"))
}

/// Why a claim is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// It has the wrong form.
    #[error(
        "'{0}' is not a claim: expected TEST=RATE or TEST@RECORD=RATE, for example write=275MB/s or \
         read@4KiB=95000IOPS"
    )]
    Form(String),
    /// Its test has no valid name.
    #[error("'{0}' is not a test name: expected a letter followed by letters, digits and _-.:")]
    Test(String),
    /// Its record size is invalid.
    #[error("{0}")]
    Record(String),
    /// Its rate is invalid.
    #[error(transparent)]
    Rate(#[from] RateError),
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A file is invalid.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A claim on the command line is invalid.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// There is no claim.
    #[error("no claim is given: use --claim TEST=RATE, for example --claim write=275MB/s, or --claims FILE")]
    NoClaims,
    /// There are too many claims.
    #[error("{0} claims: the maximum is {CLAIMS_MAX}")]
    TooManyClaims(usize),
    /// A claim about a test that was not measured.
    #[error("{path}: no cell for the claim about {claim}: measured are {measured}", path = path.display())]
    ClaimUnmeasured {
        /// The results.
        path: PathBuf,
        /// The test, with the record size if one was given.
        claim: String,
        /// The tests that were measured.
        measured: String,
    },
    /// A claimed rate for a cell in which lower values are better.
    #[error("{path}: lower is better for {key}: rates cannot be claimed for it", path = path.display())]
    ClaimDirection {
        /// The results.
        path: PathBuf,
        /// The cell.
        key: CellKey,
    },
    /// Two results without a common cell.
    #[error(
        "{} and {} have no cell in common: the first has {a_example}, the second {b_example}; cells are the same when \
         test, record size and level are", a.display(), b.display()
    )]
    NothingCommon {
        /// The baseline.
        a: PathBuf,
        /// The other file.
        b: PathBuf,
        /// A cell of A.
        a_example: CellKey,
        /// A cell of B.
        b_example: CellKey,
    },
    /// A cell with different units.
    #[error("{key} is in {counts_a} in {} and in {counts_b} in {}: measure both alike", a.display(), b.display())]
    Units {
        /// Which cell.
        key: CellKey,
        /// The baseline.
        a: PathBuf,
        /// The other file.
        b: PathBuf,
        /// Unit in A.
        counts_a: String,
        /// Unit in B.
        counts_b: String,
    },
    /// Cells that the A/A campaign lacks.
    #[error(
        "the A/A campaign lacks {missing} of the {cells} compared cells, including {example}: measure them \
         too, or set one margin with --delta PCT"
    )]
    RepeatLacks {
        /// Number of missing cells.
        missing: usize,
        /// Number of compared cells.
        cells: usize,
        /// One of them.
        example: CellKey,
    },
    /// An invalid margin.
    #[error("a margin of {0} % is invalid: expected 0 to below 100")]
    Delta(f64),
    /// Too few or too many results for a page.
    #[error("{0} results, including the baseline: expected 1 to {SOURCES_MAX}")]
    Sources(usize),
    /// Too many A/A campaigns.
    #[error(
        "{0} A/A campaigns: expected one, which is compared with A, or two, which are compared with each other"
    )]
    Repeats(usize),
}

impl BenchError {
    /// Whether the command line is the cause, and not a file.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Input(input) => matches!(input.problem, Problem::RunsUnknown),
            Self::Claim(_)
            | Self::NoClaims
            | Self::TooManyClaims(_)
            | Self::Delta(_)
            | Self::Repeats(_)
            | Self::Sources(_) => true,
            _ => false,
        }
    }
}
