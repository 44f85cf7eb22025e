//! A claim of a vendor.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::cell::{Cell, is_name};
use crate::error::ClaimError;
use crate::unit::{Rate, WholeBytes, parse_record};

/// A vendor claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Claim {
    /// The test.
    pub test: String,
    /// The record size in bytes; `None` means every one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_bytes: Option<u64>,
    /// The claimed rate.
    pub rate: Rate,
    /// The source of the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl Claim {
    /// Creates a claim from its parts in text form.
    ///
    /// # Errors
    /// A part is invalid.
    pub fn new(test: &str, record: Option<&str>, rate: &str) -> Result<Self, ClaimError> {
        let test = test.trim();
        if !is_name(test) {
            return Err(ClaimError::Test(test.to_owned()));
        }
        Ok(Self {
            test: test.to_owned(),
            record_bytes: record.map(parse_record).transpose().map_err(ClaimError::Record)?,
            rate: rate.parse()?,
            source: None,
        })
    }

    /// Test and record size, in the form of the option.
    #[must_use]
    pub fn subject(&self) -> String {
        match self.record_bytes {
            Some(bytes) => format!("{} of {}", self.test, WholeBytes(bytes)),
            None => self.test.clone(),
        }
    }

    pub(super) fn is_about(&self, cell: &Cell) -> bool {
        cell.key.test == self.test
            && self
                .record_bytes
                .is_none_or(|bytes| bytes == cell.key.record_bytes)
    }
}

/// `write=275MB/s`, `read@4KiB=95000IOPS`.
impl FromStr for Claim {
    type Err = ClaimError;

    fn from_str(text: &str) -> Result<Self, ClaimError> {
        let (subject, rate) = text
            .split_once('=')
            .ok_or_else(|| ClaimError::Form(text.to_owned()))?;
        match subject.split_once('@') {
            Some((test, record)) => Self::new(test, Some(record), rate),
            None => Self::new(subject, None, rate),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_of_every_form() {
        let claim: Claim = "write=275MB/s".parse().unwrap();
        assert_eq!((claim.test.as_str(), claim.record_bytes), ("write", None));
        assert_eq!(claim.rate.value, 275e6);
        let claim: Claim = " read@4KiB = 95k IOPS".parse().unwrap();
        assert_eq!(claim.subject(), "read of 4 KiB");
    }

    #[test]
    fn invalid_claims_are_refused() {
        let refused = |text: &str| text.parse::<Claim>().unwrap_err().to_string();
        assert!(refused("275MB/s").contains("expected TEST=RATE"));
        assert!(refused("=275MB/s").contains("not a test name"));
        assert!(refused("write@=1MB/s").contains("not a record size"));
        assert!(refused("write=fast").contains("not a rate"));
        assert!(refused("write=275Mb/s").contains("is in bits"));
    }
}
