//! The statistics: pure functions from numbers to numbers, checked against SciPy.
//!
//! | module | what it holds |
//! |---|---|
//! | [`moments`] | mean and variance, medians, outliers |
//! | [`student`] | Student's t distribution and the normal one |
//! | [`welch`] | Welch's t-test, its interval, the test of equivalence made of two of them |
//! | [`ranks`] | the Mann-Whitney U test |
//! | [`bootstrap`] | intervals of medians and of their ratio, by resampling |
//! | [`trend`] | lines through runs: drift, steady state |
//! | [`family`] | p-values of many tests at once: Benjamini-Hochberg, Holm |
//! | [`deviation`] | the rule of the old articles, and how often it is wrong |
//!
//! Nothing here knows what was measured. All of it is deterministic: what is random takes its seed.
//! `docs/bench.md` has the formulas with their sources.

pub mod bootstrap;
pub mod deviation;
pub mod family;
pub mod moments;
pub mod ranks;
pub mod student;
pub mod trend;
pub mod welch;
