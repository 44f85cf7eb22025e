//! What can be wrong with results, claims and questions about them: what was expected, what was found, where, and what
//! to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::cell::{CellKey, Unfit};
use crate::input::{
    CELLS_MAX, CLAIMS_MAX, DIFFERENCE_COLUMNS, FILE_BYTES_MAX, FILES_MAX, FORMAT, RATE_COLUMNS, SOURCES_MAX,
};
use crate::unit::RateError;

/// A file that is not understood.
#[derive(Debug)]
pub struct InputError {
    /// Which file.
    pub path: PathBuf,
    /// Which line, from 1, where one is to blame.
    pub line: Option<u64>,
    /// What is wrong.
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

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// It cannot be read.
    #[error("cannot be read")]
    Read(#[source] io::Error),
    /// It is too large to be what it should be.
    #[error("is larger than {} MiB: expected results, which are smaller", FILE_BYTES_MAX >> 20)]
    TooLarge,
    /// It is not text.
    #[error("is not UTF-8 text: expected a campaign (JSON), a table (CSV), fio JSON or IOzone text")]
    NotText,
    /// It is neither a campaign nor a table.
    #[error(
        "is not a campaign (JSON with \"format\": \"{}\"), a table (CSV with the columns {} or {}), fio JSON \
         or IOzone text: it begins with '{found}'", FORMAT, RATE_COLUMNS.join(","), DIFFERENCE_COLUMNS.join(",")
    )]
    NotResults {
        /// Its beginning.
        found: String,
    },
    /// A campaign of another kind, or of a later version.
    #[error(
        "has the format '{found}': expected '{}'; a later version of flaz may support it",
        FORMAT
    )]
    Format {
        /// The format it says it has.
        found: String,
    },
    /// A campaign that is not what it should be.
    #[error("is not a campaign: {0}")]
    Json(String),
    /// A quoted field of a table that does not end, or goes on behind its end.
    #[error("a double quote is not closed before a comma or the end of the line")]
    Quote,
    /// Columns are missing, or have other names.
    #[error(
        "has no column {}: expected {}, separated by commas, in any order; found {}",
        missing.join(", "), expected.join(","), found.join(",")
    )]
    Columns {
        /// Those that are not there.
        missing: Vec<&'static str>,
        /// All that should be.
        expected: &'static [&'static str],
        /// Those that are there.
        found: Vec<String>,
    },
    /// A column is there twice.
    #[error("has the column {0} twice")]
    ColumnTwice(&'static str),
    /// A row with too few or too many fields.
    #[error("expected {expected} fields, as in the first line, found {found}")]
    Fields {
        /// As many as there are columns.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A field that is not what its column says.
    #[error("{column} is '{text}': expected {expected}")]
    Value {
        /// Which column.
        column: &'static str,
        /// What stands there.
        text: String,
        /// What should.
        expected: &'static str,
    },
    /// A cell that is there twice.
    #[error("{key} occurs twice{}", earlier(*first_line))]
    Twice {
        /// Which cell.
        key: CellKey,
        /// Where it is for the first time, in a table.
        first_line: Option<u64>,
    },
    /// Numbers that cannot be compared.
    #[error("{key}: {unfit}")]
    Unfit {
        /// Which cell.
        key: CellKey,
        /// Why.
        unfit: Unfit,
    },
    /// Nothing in it.
    #[error("has no cells: expected at least one result")]
    NoCells,
    /// Too much in it.
    #[error("has more than {CELLS_MAX} cells, the maximum")]
    TooManyCells,
    /// A table, and nobody said over how many runs.
    #[error("is a table, which does not contain the number of runs: add --runs N")]
    RunsUnknown,
    /// A table of differences where speeds are needed.
    #[error(
        "is a table of differences, without rates: expected a campaign or a table with the columns {}",
        RATE_COLUMNS.join(",")
    )]
    OnlyDifferences,
    /// The output of another program that is not understood.
    #[error("is not valid output of {program}: {what}")]
    Foreign {
        /// Which program.
        program: &'static str,
        /// What is wrong, and what was expected.
        what: String,
    },
    /// One run of another program where two are needed.
    #[error(
        "{key}: a comparison needs at least 2 runs, found 1: put the files of all runs into a directory and use that"
    )]
    OneRun {
        /// Which cell.
        key: CellKey,
    },
    /// A folder without files.
    #[error("is a directory without files: expected the files of the runs of one campaign")]
    EmptyFolder,
    /// A folder with more files than anybody measures.
    #[error("has {0} files: the maximum is {FILES_MAX}")]
    TooManyFiles(usize),
    /// A folder with files of different kinds.
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
    /// A folder with a table.
    #[error("has a table, {}, which already covers all runs: use the table itself", _0.display())]
    TableInFolder(PathBuf),
    /// A file of claims that is not one.
    #[error("is not a claims file: {0}")]
    Toml(String),
    /// A claim in it that is none.
    #[error("claim {number}: {problem}")]
    Claim {
        /// Which, from 1.
        number: usize,
        /// What is wrong.
        problem: ClaimError,
    },
}

fn earlier(line: Option<u64>) -> String {
    line.map_or_else(String::new, |line| format!(", first in line {line}"))
}

/// What is wrong with a claim.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// It has not the form of one.
    #[error(
        "'{0}' is not a claim: expected TEST=RATE or TEST@RECORD=RATE, for example write=275MB/s or \
         read@4KiB=95000IOPS"
    )]
    Form(String),
    /// Its test has no name.
    #[error("'{0}' is not a test name: expected a letter followed by letters, digits and _-.:")]
    Test(String),
    /// Its record size is none.
    #[error("{0}")]
    Record(String),
    /// Its rate is none.
    #[error(transparent)]
    Rate(#[from] RateError),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A file is not understood.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A claim on the command line is none.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// No claim at all.
    #[error("no claim is given: use --claim TEST=RATE, for example --claim write=275MB/s, or --claims FILE")]
    NoClaims,
    /// More claims than anybody makes.
    #[error("{0} claims: the maximum is {CLAIMS_MAX}")]
    TooManyClaims(usize),
    /// A claim about what was not measured.
    #[error("{path}: no cell for the claim about {claim}: measured are {measured}", path = path.display())]
    ClaimUnmeasured {
        /// The results.
        path: PathBuf,
        /// The test, with the record size if one was given.
        claim: String,
        /// What there is instead.
        measured: String,
    },
    /// A claim in bytes or operations a second about a cell where less is better.
    #[error("{path}: lower is better for {key}: rates cannot be claimed for it", path = path.display())]
    ClaimDirection {
        /// The results.
        path: PathBuf,
        /// The cell.
        key: CellKey,
    },
    /// Two results about different things.
    #[error(
        "{} and {} have no cell in common: the first has {a_example}, the second {b_example}; cells are the same when \
         test, record size and level are", a.display(), b.display()
    )]
    NothingCommon {
        /// The baseline.
        a: PathBuf,
        /// What is compared with it.
        b: PathBuf,
        /// A cell of A.
        a_example: CellKey,
        /// A cell of B.
        b_example: CellKey,
    },
    /// One cell counts bytes here and operations there.
    #[error("{key} is in {counts_a} in {} and in {counts_b} in {}: measure both alike", a.display(), b.display())]
    Units {
        /// Which cell.
        key: CellKey,
        /// The baseline.
        a: PathBuf,
        /// What is compared with it.
        b: PathBuf,
        /// What it counts in A.
        counts_a: String,
        /// What it counts in B.
        counts_b: String,
    },
    /// Cells of which the A/A campaign says nothing.
    #[error(
        "the A/A campaign lacks {missing} of the {cells} compared cells, including {example}: measure them \
         too, or set one margin with --delta PCT"
    )]
    RepeatLacks {
        /// How many it lacks.
        missing: usize,
        /// How many there are.
        cells: usize,
        /// One of them.
        example: CellKey,
    },
    /// A margin that is none.
    #[error("a margin of {0} % is invalid: expected 0 to below 100")]
    Delta(f64),
    /// Fewer or more results than a page can show.
    #[error("{0} results, including the baseline: expected 1 to {SOURCES_MAX}")]
    Sources(usize),
    /// More A/A campaigns than can be compared.
    #[error(
        "{0} A/A campaigns: expected one, which is compared with A, or two, which are compared with each other"
    )]
    Repeats(usize),
}

impl BenchError {
    /// Whether the command line is to blame, and no file.
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
