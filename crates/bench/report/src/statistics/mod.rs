//! Statistics: pure functions, tested against SciPy.
//!
//! | module | contents |
//! |---|---|
//! | [`moments`] | mean and variance, medians, outliers |
//! | [`student`] | Student's t distribution and the normal one |
//! | [`welch`] | Welch's t-test, its interval, and the equivalence test |
//! | [`ranks`] | the Mann-Whitney U test |
//! | [`bootstrap`] | intervals of medians and of their ratio, by resampling |
//! | [`trend`] | regression over the runs: drift, steady state |
//! | [`family`] | p-values of many tests at once: Benjamini-Hochberg, Holm |
//! | [`deviation`] | the standard deviation rule, and its error rate |
//!
//! All functions are deterministic: random ones take a seed. `docs/bench.md` has the formulas with their sources.

pub mod bootstrap;
pub mod deviation;
pub mod family;
pub mod moments;
pub mod ranks;
pub mod student;
pub mod trend;
pub mod welch;
