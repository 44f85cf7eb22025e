//! A claims file (TOML):
//!
//! ```toml
//! [[claim]]
//! test = "write"
//! rate = "275MB/s"
//! record = "1MiB"                     # left out: every record size
//! source = "data sheet, revision 3"   # optional
//! ```

use std::path::Path;

use serde::Deserialize;

use super::statement::Claim;
use crate::error::{InputError, Problem};
use crate::input::CLAIMS_MAX;
use crate::text_file::read_text;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimFile {
    #[serde(default)]
    claim: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    test: String,
    rate: String,
    record: Option<String>,
    source: Option<String>,
}

/// Reads a claims file.
///
/// # Errors
/// It cannot be read, is not TOML in this form, has no claim or too many, or has an invalid one.
pub fn read_claims(path: &Path) -> Result<Vec<Claim>, InputError> {
    let text = read_text(path)?;
    parse(&text).map_err(|problem| InputError {
        path: path.to_owned(),
        line: None,
        problem,
    })
}

fn parse(text: &str) -> Result<Vec<Claim>, Problem> {
    let file: ClaimFile = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = 1 + text.as_bytes()[..start]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count();
        Problem::Toml(format!("line {line}: {}", error.message()))
    })?;
    if file.claim.is_empty() || file.claim.len() > CLAIMS_MAX {
        return Err(Problem::Toml(format!(
            "expected 1 to {CLAIMS_MAX} tables [[claim]] with test and rate, found {}",
            file.claim.len()
        )));
    }
    file.claim
        .into_iter()
        .enumerate()
        .map(|(at, entry)| {
            let claim = Claim::new(&entry.test, entry.record.as_deref(), &entry.rate);
            let claim = claim.map_err(|problem| Problem::Claim {
                number: at + 1,
                problem,
            })?;
            Ok(Claim {
                source: entry.source,
                ..claim
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claims_file_with_all_fields() {
        let claims = parse(
            "[[claim]]\ntest = \"write\"\nrate = \"275MB/s\"\n\n\
             [[claim]]\ntest = \"read\"\nrecord = \"4KiB\"\nrate = \"95k IOPS\"\nsource = \"box\"\n",
        )
        .unwrap();
        assert_eq!(claims[0], "write=275MB/s".parse().unwrap());
        assert_eq!(
            (claims[1].record_bytes, claims[1].source.as_deref()),
            (Some(4096), Some("box"))
        );
    }

    #[test]
    fn invalid_claims_files_are_refused() {
        let refused = |text: &str| parse(text).unwrap_err().to_string();
        assert!(refused("").contains("found 0"));
        assert!(refused("[[claim]]\ntest = \n").contains("line 2"));
        assert!(refused("[[claim]]\ntest = \"a\"\n").contains("`rate`"));
        let misspelt = refused("[[claim]]\ntest = \"a\"\nrate = \"1MB/s\"\nrecrod = \"4K\"\n");
        assert!(
            misspelt.contains("line 4") && misspelt.contains("`recrod`"),
            "{misspelt}"
        );
        let second = refused("[[claim]]\ntest=\"a\"\nrate=\"1MB/s\"\n[[claim]]\ntest=\"a\"\nrate=\"1M\"\n");
        assert!(second.contains("claim 2: '1M' has the unknown unit"), "{second}");
        assert!(refused("[[claim]]\ntest = \"a\"\nrate = 275\n").contains("expected a string"));
    }
}
